"""Ratings as flat arrays: building, dealing, splitting, arriving."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, deal_users, split_ratings
from bgtplanner.errors import ConfigError, DataError

triples = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 30), st.integers(1, 5)), min_size=1, max_size=150
)
seeds = st.integers(0, 2**32)


def build(rows: list[tuple[int, int, int]], **options: Any) -> Ratings:
    user, item, value = (list(column) for column in zip(*rows, strict=True))
    return Ratings.from_arrays(user, item, value, scale=(0, 5), **options)


def pairs(ratings: Ratings) -> set[tuple[int, int]]:
    return set(zip(ratings.user.tolist(), ratings.item.tolist(), strict=True))


def lonely(ratings: Ratings) -> NDArray[np.int64]:
    """Users with a single rating, which always belongs to training."""
    return np.flatnonzero(np.bincount(ratings.user) == 1)


class TestFromArrays:
    def test_labels_values_and_order(self) -> None:
        ratings = Ratings.from_arrays(["bob", "ann", "bob"], [9, 7, 7], [5, 1, 3], scale="max")
        assert ratings.user_labels.tolist() == ["ann", "bob"]
        assert ratings.item_labels.tolist() == [7, 9]
        assert ratings.user.tolist() == [0, 1, 1]
        assert ratings.item.tolist() == [0, 0, 1]
        np.testing.assert_allclose(ratings.value, [0.2, 0.6, 1.0])
        np.testing.assert_allclose(ratings.to_raw(ratings.value), [1, 3, 5], rtol=1e-6)
        assert repr(ratings) == "Ratings(ratings: 3 ratings, 2 users, 2 items, 2 clients)"

    @pytest.mark.parametrize(
        ("timed", "expected"), [(None, 0.6), ([3, 9, 1], 1.0), ([0, 0, 0], 0.6)]
    )
    def test_the_last_of_repeated_rows_counts(
        self, timed: list[int] | None, expected: float
    ) -> None:
        ratings = build([(1, 1, 1), (1, 1, 5), (1, 1, 3)], time=timed)
        assert ratings.value.tolist() == [pytest.approx(expected)]
        assert (ratings.time is None) == (timed is None)

    def test_users_and_items_without_ratings(self) -> None:
        ratings = build([(1, 1, 1), (3, 2, 5)], users=[1, 2, 3, 4], items=[0, 1, 2])
        assert (ratings.n_users, ratings.n_items, ratings.n_clients) == (4, 3, 4)
        assert ratings.user.tolist() == [0, 2]
        with pytest.raises(DataError, match="not among the given users"):
            build([(1, 1, 1)], users=[2])

    def test_clients(self) -> None:
        rows = [(1, 1, 1), (2, 1, 2), (3, 1, 3), (1, 2, 4)]
        ratings = build(rows, client=["z", "a", "z", "z"], users=[1, 2, 3, 4])
        assert ratings.client_of_user.tolist() == [1, 0, 1, 2]  # the silent user: a client more
        assert ratings.client.tolist() == [0, 1, 1, 1]

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"scale": "big"}, "scale = 'big': expected 'max', 'minmax' or two finite numbers"),
            ({"feedback": "likes"}, "feedback = 'likes': expected auto or ratings or clicks"),
            ({"feedback": "clicks", "count_cap": 0}, "count_cap = 0: expected a number above 0"),
            ({"scale": (0, 10**400)}, "expected 'max'"),
            ({"scale": (5, 1)}, r"scale = \(5, 1\): expected"),
            ({"scale": 3, "value": None}, "scale = 3: expected"),
            ({"name": None}, "name = None: expected text"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], problem: str) -> None:
        good: dict[str, Any] = {"user": [1, 2], "item": [1, 2], "value": [1, 5]}
        with pytest.raises(ConfigError, match=problem):
            Ratings.from_arrays(**(good | options))

    @pytest.mark.parametrize(
        ("columns", "problem"),
        [
            ({"user": [1]}, "not of the same length: user has 1, item has 2, value has 2"),
            ({"user": [[1], [2]]}, "user holds neither text nor numbers"),
            ({"value": np.ones((2, 1))}, "value: expected one number or text in every row"),
            ({"user": None}, "user = None: expected a list or array"),
            ({"user": "ab"}, "user = 'ab': expected a list or array"),
            ({"user": iter([1, 2])}, "user = a list_iterator: expected a list or array"),
            ({"item": [1, (2, 3)]}, "item: expected one number or text"),
            ({"users": [1, None]}, "users is empty, in row 2"),
            ({"value": [10**400, 1]}, "value is not finite, in row 1"),
            ({"value": np.ma.array([1, 2], mask=[0, 1])}, "value is empty, in row 2"),
            ({"value": [1, 9]}, "row 2"),
            ({"client": [1, 2], "user": [1, 1]}, "more than one client"),
        ],
    )
    def test_bad_columns(self, columns: dict[str, Any], problem: str) -> None:
        good: dict[str, Any] = {"user": [1, 2], "item": [1, 2], "value": [1, 5], "scale": (0, 5)}
        with pytest.raises(DataError, match=problem):
            Ratings.from_arrays(**(good | columns))

    @given(triples)
    def test_sorted_distinct_and_nothing_lost(self, rows: list[tuple[int, int, int]]) -> None:
        ratings = build(rows)
        last = {(user, item): value / 5 for user, item, value in rows}
        labels = ratings.user_labels[ratings.user], ratings.item_labels[ratings.item]
        assert list(zip(*(of.tolist() for of in labels), strict=True)) == sorted(last)
        np.testing.assert_allclose(ratings.value, [last[pair] for pair in sorted(last)])


class TestClicks:
    """Implicit feedback: what happened, without a rating."""

    def test_no_values(self) -> None:
        clicks = Ratings.from_arrays(["a", "b", "a", "a"], [1, 1, 2, 2])
        assert clicks.implicit
        assert (clicks.value.tolist(), clicks.low, clicks.high) == ([1.0, 1.0, 1.0], 0.0, 1.0)
        assert clicks.public == {"scale"}
        assert "each row counts as a click" in clicks.notes[0]
        assert Ratings.from_arrays([1], [1], None, scale=(0, 1)).implicit
        with pytest.raises(ConfigError, match=r"scale = .*there are no values"):
            Ratings.from_arrays([1], [1], None, scale=(1, 5))
        framed = Ratings.from_frame({"user": [1, 2], "item": [1, 1]}, value=None)
        assert framed.implicit

    def test_values_that_are_all_the_same(self) -> None:
        for scale in ("max", "minmax"):
            clicks = Ratings.from_arrays([1, 2], [1, 1], [4, 4], scale=scale)
            assert clicks.implicit
            assert (clicks.value.tolist(), clicks.public) == ([1.0, 1.0], frozenset())
            assert "All ratings are the same" in clicks.notes[0]
        zeros = Ratings.from_arrays([1, 2], [1, 1], [0, 0])
        assert "nothing to learn" in zeros.notes[0]

    def test_ratings_are_no_clicks(self) -> None:
        """Whether bounds were given is public; whether one's ratings are alike is not."""
        assert not Ratings.from_arrays([1, 2], [1, 1], [1, 1], scale=(0, 1)).implicit
        assert not Ratings.from_arrays([1, 2], [1, 1], [4, 5]).implicit
        assert not Ratings.from_arrays([1], [1], [4]).implicit


class TestWithCatalogue:
    films = Catalogue.from_frame(
        {"item": [30, 9, 7, 8], "title": list("ABCD"), "kind": ["x", "y", "y", "x"]}
    )

    def test_all_items_of_it(self) -> None:
        ratings = build([(1, 9, 1), (2, 7, 5), (1, 30, 3)])
        made = ratings.with_catalogue(self.films)
        assert (made.item_labels.tolist(), made.n_items) == ([7, 8, 9, 30], 4)
        assert made.public == {"scale", "catalogue"}
        assert made.catalogue is not None
        assert made.catalogue.titles is not None
        assert made.catalogue.titles.tolist() == ["C", "D", "B", "A"]
        assert made.features.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
        assert made.item_labels[made.item].tolist() == [9, 30, 7]
        np.testing.assert_allclose(made.value, [0.2, 0.6, 1.0])

    def test_text_labels(self) -> None:
        """In the order of text: 10 comes before 9, and rows are sorted anew."""
        words = Catalogue.from_frame({"item": ["9", "10", "x"]})
        made = build([(1, 9, 1), (1, 10, 5)]).with_catalogue(words)
        assert made.item_labels.tolist() == ["10", "9", "x"]
        assert made.item.tolist() == [0, 1]
        np.testing.assert_allclose(made.value, [1.0, 0.2])
        texts = Ratings.from_arrays(["a", "a"], ["x y", "x"], [1, 2], scale=(0, 5))
        with pytest.raises(DataError, match="1 of 2 ratings are of 1 items"):
            texts.with_catalogue(words)

    def test_ratings_of_items_that_it_lacks(self) -> None:
        ratings = build([(1, 9, 1), (2, 777, 5), (1, 777, 3), (2, 888, 3), (3, 7, 2)])
        with pytest.raises(DataError) as caught:
            ratings.with_catalogue(self.films)
        said = str(caught.value)
        assert "3 of 5 ratings are of 2 items that the catalogue lacks" in said
        assert "777" not in said


class TestFromFrame:
    """Columns are found as in a file, and named where they are not."""

    columns: ClassVar[dict[str, list[Any]]] = {
        "who": ["a", "b"], "film": [1, 2], "stars": [1, 5], "t": [3, 4],
    }  # fmt: skip

    def test_columns_by_name(self) -> None:
        named = {"user": "who", "item": "film", "value": "stars", "time": "t"}
        for names in (named, {"user": "who", "time": "t"}):
            ratings = Ratings.from_frame(self.columns, scale=(0, 5), **names)
            assert ratings.value.tolist() == [pytest.approx(0.2), 1.0]
            assert ratings.time is not None
            assert ratings.time.tolist() == [3, 4]

    @pytest.mark.parametrize(
        ("user", "item", "time"),
        [("userID", "artistID", "timestamp"), ("User Id", "track_id", "rated_at"),
         ("uid", "business_id", "date"), ("username", "app_id", "unixReviewTime")],
    )  # fmt: skip
    def test_usual_names(self, user: str, item: str, time: str) -> None:
        frame = {"overall": [3, 4], item: ["x", "y"], time: [1, 2], user: [8, 9]}
        ratings = Ratings.from_frame(frame)
        assert ratings.item_labels.tolist() == ["x", "y"]
        assert ratings.user_labels.tolist() == [8, 9]
        assert ratings.time is not None
        assert ratings.to_raw(ratings.value).tolist() == [3, 4]
        assert Ratings.from_frame(frame, time=None).time is None

    def test_counts(self) -> None:
        plays = {"user": [1, 2], "item": [1, 1], "play_count": [9, 999]}
        ratings = Ratings.from_frame(plays)
        assert ratings.implicit
        assert ratings.value.tolist() == [pytest.approx(np.log(10) / np.log(101)), 1.0]
        assert not Ratings.from_frame(plays, scale=(0, 999)).implicit
        assert not Ratings.from_frame(plays, feedback="ratings").implicit
        assert Ratings.from_frame(plays, value=None).value.tolist() == [1, 1]

    def test_decimal_commas(self) -> None:
        frame = {"user": [1, 2], "item": [1, 1], "rating": ["0,5", "4"]}
        made = Ratings.from_frame(frame, decimal_comma=True, scale=(0, 5))
        np.testing.assert_allclose(made.to_raw(made.value), [0.5, 4])
        with pytest.raises(DataError, match=r"not a number.*data\.decimal_comma=true"):
            Ratings.from_frame(frame)


class TestQuestions:
    """What is asked before anything is guessed, and answered by a setting."""

    def many(self, values: list[float]) -> Any:
        return {"user": range(len(values)), "item": [0] * len(values), "value": values}

    def test_one_far_outside(self) -> None:
        columns = self.many([*np.tile([1.0, 2, 3, 4, 5], 10).tolist(), 99.0])
        with pytest.raises(DataError, match=r"many times.*data\.scale=1:5") as caught:
            Ratings.from_arrays(**columns)
        assert "99" not in str(caught.value)
        assert len(Ratings.from_arrays(**columns, scale="minmax")) == 51
        for few in ([1, 2, 5, 60], [*np.tile([1, 2, 3, 4, 5], 10).tolist(), 11]):
            with pytest.raises(DataError, match="many times"):
                Ratings.from_arrays(**self.many(few))

    @pytest.mark.parametrize("values", [[1, 2, 3, 4, 5], [0, 9, 1], [0.5, 4], [10, 60, 70, 100]])
    def test_no_question_about_ratings(self, values: list[float]) -> None:
        assert not Ratings.from_arrays(**self.many(values * 10)).implicit

    def test_counts(self) -> None:
        hours = np.random.default_rng(0).pareto(1.0, 500).round(1).tolist()
        with pytest.raises(DataError, match=r"counts.*data\.feedback=clicks.*data\.scale"):
            Ratings.from_arrays(**self.many(hours))
        clicks = Ratings.from_arrays(**self.many(hours), feedback="clicks", count_cap=10)
        assert clicks.implicit
        weights = np.log1p(np.minimum(hours, 10)) / np.log(11)
        np.testing.assert_allclose(clicks.value, weights, rtol=1e-6)
        assert clicks.public == {"scale"}

    def test_weights_of_counts(self) -> None:
        """The cap is public: whoever plays most changes no other weight."""
        few, many = (
            Ratings.from_arrays(**self.many([3.0, 7.0, most]), feedback="clicks")
            .value[:2]
            .tolist()
            for most in (8.0, 1e6)
        )
        assert few == many
        with pytest.raises(DataError, match="a count is below 0, first in row 2"):
            Ratings.from_arrays(**self.many([1, -1]), feedback="clicks")


class TestDealUsers:
    @given(st.integers(1, 60), st.data())
    def test_sizes_differ_by_at_most_one(self, users: int, data: st.DataObject) -> None:
        clients = data.draw(st.integers(1, users))
        ratings = build([(user, user % 7, 3) for user in range(users)])
        dealt = deal_users(ratings, clients, seed=data.draw(seeds))
        sizes = np.bincount(dealt.client_of_user, minlength=clients)
        assert dealt.n_clients == clients
        assert sizes.max() - sizes.min() <= 1
        assert (np.diff(dealt.client) >= 0).all()
        assert pairs(dealt) == pairs(ratings)

    @pytest.mark.parametrize("clients", [0, 4])
    def test_impossible(self, clients: int) -> None:
        with pytest.raises(ConfigError, match=f"clients = {clients}: expected 1 to 3"):
            deal_users(build([(user, 1, 3) for user in range(3)]), clients, seed=0)


timed = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=150
)


def with_times(rows: list[tuple[int, int, int]]) -> Ratings:
    return build([(user, item, 3) for user, item, _ in rows], time=[row[2] for row in rows])


def times(part: Ratings) -> NDArray[np.float64]:
    assert part.time is not None
    return part.time


class TestSplitRatings:
    @given(timed, seeds, st.integers(1, 20), st.integers(1, 4))
    def test_user_by_user(
        self, rows: list[tuple[int, int, int]], seed: int, rounds: int, last: int
    ) -> None:
        ratings = with_times(rows)
        every = np.bincount(ratings.user).tolist()
        fifth, some = [n - max(n * 4 // 5, 1) for n in every], [min(last, n - 1) for n in every]
        held: dict[Any, list[int]] = {"user": fifth, "last": fifth, "leave-last": some}
        for within, expected in held.items():
            split = split_ratings(
                ratings, seed=seed, rounds=rounds, within=within, leave_last=last
            )
            assert np.bincount(split.test.user, minlength=len(every)).tolist() == expected
            for user in range(ratings.n_users if within != "user" else 0):
                before, after = (times(p)[p.user == user] for p in (split.train, split.test))
                assert before.max(initial=-1) <= after.min(initial=99)
            self.check_whole(ratings, split, rounds)

    @given(timed, seeds, st.sampled_from(["all", "time"]), st.sampled_from([0.1, 0.6, 0.8, 1.0]))
    def test_over_all(
        self, rows: list[tuple[int, int, int]], seed: int, within: Any, share: float
    ) -> None:
        ratings = with_times(rows)
        split = split_ratings(ratings, seed=seed, rounds=5, within=within, train_share=share)
        drawn, alone = len(ratings) * round(share * 10) // 10, lonely(ratings)
        assert drawn <= len(split.train) <= drawn + len(alone)
        assert not set(alone.tolist()) & set(split.test.user.tolist())
        before = times(split.train)[~np.isin(split.train.user, alone)]
        if within == "time":
            assert before.max(initial=-1) <= times(split.test).min(initial=99)
        self.check_whole(ratings, split, 5)

    @staticmethod
    def check_whole(ratings: Ratings, split: Split, rounds: int) -> None:
        assert not pairs(split.train) & pairs(split.test)
        assert pairs(split.train) | pairs(split.test) == pairs(ratings)
        for part in (split.train, split.test):
            assert (part.n_users, part.n_items) == (ratings.n_users, ratings.n_items)
            assert (np.diff(part.client) >= 0).all()
        assert split.arrival.shape == (len(split.train),)
        assert split.present(rounds - 1).all()

    @given(st.integers(1, 80), st.integers(2, 30), seeds, st.sampled_from([0.25, 0.5, 1.0]))
    def test_arrival_is_even(self, size: int, rounds: int, seed: int, share: float) -> None:
        rows = [(user, item, 3) for user in range(3) for item in range(size)]
        ratings = deal_users(build(rows), 2, seed=seed)
        split = split_ratings(
            ratings, seed=seed, rounds=rounds, train_share=1.0, initial_share=share
        )
        for client in range(2):
            arrival = split.arrival[split.train.client == client]
            late = arrival[arrival > 0]
            assert len(arrival) - len(late) == np.ceil(share * len(arrival))
            by_round = np.bincount(late, minlength=rounds)[1:]
            pace = len(late) / (rounds - 1)
            assert np.abs(np.cumsum(by_round) - pace * np.arange(1, rounds)).max() <= 1

    def test_nothing_to_split(self) -> None:
        with pytest.raises(DataError, match="no ratings"):
            split_ratings(Ratings.from_arrays([], [], []), seed=0, rounds=3)

    @given(timed, seeds, st.integers(1, 9), st.sampled_from([0.1, 0.5, 1.0]))
    def test_arrival_in_order(
        self, rows: list[tuple[int, int, int]], seed: int, rounds: int, share: float
    ) -> None:
        ratings = with_times(rows)
        split = split_ratings(
            ratings, seed=seed, rounds=rounds, initial_share=share, arrival="time", train_share=1
        )
        assert split.in_order
        order = np.argsort(split.arrival, kind="stable")
        by_round = [times(split.train)[split.arrival == r] for r in range(rounds)]
        for early, late in itertools.pairwise(part for part in by_round if len(part)):
            assert early.max() <= late.min()
        assert len(order) == len(ratings)
        there = np.ceil(share * len(ratings) - 1e-9) if rounds > 1 else len(ratings)
        assert len(by_round[0]) == there
        sizes = [len(part) for part in by_round[1:]]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1

    @pytest.mark.parametrize(
        "options",
        [{"within": "last"}, {"within": "time"}, {"within": "leave-last"}, {"arrival": "time"}],
    )
    def test_without_times(self, options: dict[str, Any]) -> None:
        said = "has no times, which data.*name their column with data.time_column, or set data.sp"
        with pytest.raises(DataError, match=said):
            split_ratings(build([(1, item, 3) for item in range(9)]), seed=0, rounds=3, **options)
