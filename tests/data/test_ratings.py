"""Ratings as flat arrays: building, dealing, splitting, arriving."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def same(one: Ratings, other: Ratings) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("user", "item", "value", "client_of_user")
    )


class TestFromArrays:
    def test_labels_values_and_order(self) -> None:
        ratings = Ratings.from_arrays(["bob", "ann", "bob"], [9, 7, 7], [5, 1, 3], scale="max")
        assert ratings.user_labels.tolist() == ["ann", "bob"]
        assert ratings.item_labels.tolist() == [7, 9]
        assert ratings.user.tolist() == [0, 1, 1]
        assert ratings.item.tolist() == [0, 0, 1]
        np.testing.assert_allclose(ratings.value, [0.2, 0.6, 1.0])
        np.testing.assert_allclose(ratings.to_raw(ratings.value), [1, 3, 5], rtol=1e-6)
        assert ratings.density == 3 / 4
        assert repr(ratings) == "Ratings(ratings: 3 ratings, 2 users, 2 items, 2 clients)"

    @pytest.mark.parametrize(
        ("scale", "expected"),
        [("max", [0.5, 1.0]), ("minmax", [0.0, 1.0]), ((0, 8), [0.25, 0.5])],
    )
    def test_scales(self, scale: Any, expected: list[float]) -> None:
        assert Ratings.from_arrays([1, 2], [1, 1], [2, 4], scale=scale).value.tolist() == expected

    @pytest.mark.parametrize(
        ("rule", "timed", "expected"),
        [
            ("last", None, 0.6),
            ("first", None, 0.2),
            ("mean", None, 0.6),
            ("last", [3, 9, 1], 1.0),
            ("first", [3, 9, 1], 0.6),
            ("last", [0, 0, 0], 0.6),
        ],
    )
    def test_duplicates(self, rule: Any, timed: list[int] | None, expected: float) -> None:
        rows = [(1, 1, 1), (1, 1, 5), (1, 1, 3)]
        ratings = build(rows, duplicates=rule, time=timed)
        assert ratings.value.tolist() == [pytest.approx(expected)]
        assert (ratings.time is None) == (timed is None)

    def test_duplicates_refused(self) -> None:
        with pytest.raises(DataError, match="1 ratings repeat"):
            build([(1, 1, 1), (1, 1, 5)], duplicates="error")
        with pytest.raises(ConfigError, match="duplicates='newest'"):
            build([(1, 1, 1)], duplicates="newest")

    def test_users_and_items_without_ratings(self) -> None:
        ratings = build([(1, 1, 1), (3, 2, 5)], users=[1, 2, 3, 4], items=[0, 1, 2])
        assert (ratings.n_users, ratings.n_items, ratings.n_clients) == (4, 3, 4)
        assert ratings.user.tolist() == [0, 2]
        with pytest.raises(DataError, match="not among the given users"):
            build([(1, 1, 1)], users=[2])

    def test_clients(self) -> None:
        ratings = build(
            [(1, 1, 1), (2, 1, 2), (3, 1, 3), (1, 2, 4)],
            client=["z", "a", "z", "z"],
            users=[1, 2, 3, 4],
        )
        assert ratings.client_of_user.tolist() == [1, 0, 1, 2]  # the silent user: a client more
        assert ratings.client.tolist() == [0, 1, 1, 1]

    @pytest.mark.parametrize(
        ("columns", "problem"),
        [
            ({"user": [1]}, "user has shape"),
            ({"user": [[1], [2]]}, "user has shape"),
            ({"user": [1.0, float("nan")]}, "NaN"),
            ({"user": np.array(["a", None], dtype=object)}, "missing"),
            ({"value": [1, float("inf")]}, "row 2"),
            ({"value": ["good", "bad"]}, "must be numbers"),
            ({"value": [[1, 2]]}, "one-dimensional"),
            ({"value": [1, 9]}, "row 2"),
            ({"time": [1]}, "time has 1"),
            ({"client": [1]}, "client has shape"),
            ({"client": [1, 2, 3]}, "client has shape"),
            ({"client": [1, 2], "user": [1, 1]}, "more than one client"),
        ],
    )
    def test_bad_columns(self, columns: dict[str, Any], problem: str) -> None:
        good: dict[str, Any] = {"user": [1, 2], "item": [1, 2], "value": [1, 5], "scale": (0, 5)}
        with pytest.raises(DataError, match=problem):
            Ratings.from_arrays(**(good | columns))

    @pytest.mark.parametrize("scale", ["half", (5, 1), (0, float("inf")), 3])
    def test_bad_scale(self, scale: Any) -> None:
        with pytest.raises(ConfigError, match="scale"):
            Ratings.from_arrays([1], [1], [1], scale=scale)

    def test_scale_max_needs_a_positive_value(self) -> None:
        with pytest.raises(DataError, match="positive"):
            Ratings.from_arrays([1], [1], [0], scale="max")

    def test_conflicting_client_on_a_dropped_duplicate_is_seen(self) -> None:
        with pytest.raises(DataError, match="more than one client"):
            build([(1, 1, 1), (1, 1, 5)], client=["a", "b"])

    @given(triples)
    def test_sorted_distinct_and_nothing_lost(self, rows: list[tuple[int, int, int]]) -> None:
        ratings = build(rows)
        assert (np.diff(ratings.client) >= 0).all()
        assert (np.diff(ratings.user.astype(int) * ratings.n_items + ratings.item) > 0).all()
        assert len(pairs(ratings)) == len(ratings) == len({row[:2] for row in rows})
        last = {(user, item): value for user, item, value in rows}
        for user, item, value in zip(ratings.user, ratings.item, ratings.value, strict=True):
            raw = last[int(ratings.user_labels[user]), int(ratings.item_labels[item])]
            assert value == pytest.approx(raw / 5)


class FakeFrame:
    """A data frame that raises an error of its own for a column it does not have."""

    class MissingColumn(Exception):
        pass

    def __init__(self, columns: dict[str, list[Any]]):
        self._columns = columns

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self._columns:
            raise self.MissingColumn(name)
        return np.array(self._columns[name])


class TestFromFrame:
    columns: ClassVar[dict[str, list[Any]]] = {
        "who": ["a", "b"],
        "film": [1, 2],
        "stars": [1, 5],
        "t": [3, 4],
    }

    @pytest.mark.parametrize("kind", [dict, FakeFrame])
    def test_columns_by_name(self, kind: Any) -> None:
        ratings = Ratings.from_frame(
            kind(self.columns),
            user="who",
            item="film",
            value="stars",
            time="t",
            client="film",
            scale=(0, 5),
        )
        assert ratings.value.tolist() == [pytest.approx(0.2), 1.0]
        assert ratings.time is not None
        assert ratings.time.tolist() == [3, 4]

    def test_missing_column(self) -> None:
        with pytest.raises(DataError, match=r"user='user': no such column; .*'who'"):
            Ratings.from_frame(self.columns)
        with pytest.raises(DataError, match="user='user': no such column"):
            Ratings.from_frame(FakeFrame(self.columns))


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

    def test_by_seed(self) -> None:
        ratings = build([(user, 1, 3) for user in range(50)])
        assert same(deal_users(ratings, 5, seed=1), deal_users(ratings, 5, seed=1))
        assert not same(deal_users(ratings, 5, seed=1), deal_users(ratings, 5, seed=2))

    @pytest.mark.parametrize("clients", [0, 4])
    def test_impossible(self, clients: int) -> None:
        with pytest.raises(ConfigError, match=f"clients={clients}: expected 1 to 3"):
            deal_users(build([(user, 1, 3) for user in range(3)]), clients, seed=0)


class TestSplitRatings:
    @given(triples, seeds, st.integers(1, 20))
    def test_within_user(self, rows: list[tuple[int, int, int]], seed: int, rounds: int) -> None:
        ratings = build(rows)
        split = split_ratings(ratings, seed=seed, rounds=rounds)
        train = np.bincount(split.train.user, minlength=ratings.n_users)
        every = np.bincount(ratings.user, minlength=ratings.n_users)
        assert train.tolist() == [n * 4 // 5 for n in every.tolist()]
        self.check_whole(ratings, split, rounds)

    @given(triples, seeds, st.sampled_from([0.1, 0.6, 0.8, 1.0]))
    def test_over_all(self, rows: list[tuple[int, int, int]], seed: int, share: float) -> None:
        ratings = build(rows)
        split = split_ratings(ratings, seed=seed, rounds=5, within="all", train_share=share)
        assert len(split.train) == len(ratings) * round(share * 10) // 10
        self.check_whole(ratings, split, 5)

    @staticmethod
    def check_whole(ratings: Ratings, split: Split, rounds: int) -> None:
        assert not pairs(split.train) & pairs(split.test)
        assert pairs(split.train) | pairs(split.test) == pairs(ratings)
        assert split.train.n_users == split.test.n_users == ratings.n_users
        assert split.train.n_items == split.test.n_items == ratings.n_items
        for part in (split.train, split.test):
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

    def test_one_round_has_everything(self) -> None:
        split = split_ratings(build([(1, item, 3) for item in range(9)]), seed=0, rounds=1)
        assert split.present(0).all()

    @settings(max_examples=20)
    @given(seeds)
    def test_by_seed(self, seed: int) -> None:
        ratings = build([(user, item, 3) for user in range(5) for item in range(20)])
        one, again, other = (
            split_ratings(ratings, seed=s, rounds=7) for s in (seed, seed, seed + 1)
        )
        assert same(one.train, again.train)
        assert np.array_equal(one.arrival, again.arrival)
        assert not same(one.train, other.train)

    @pytest.mark.parametrize(
        "options",
        [
            {"train_share": 0},
            {"train_share": 1.1},
            {"initial_share": 0},
            {"rounds": 0},
            {"within": "x"},
        ],
    )
    def test_bad_arguments(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(options))):
            split_ratings(build([(1, 1, 1)]), **({"seed": 0, "rounds": 3} | options))

    def test_nothing_to_split(self) -> None:
        with pytest.raises(DataError, match="no ratings"):
            split_ratings(Ratings.from_arrays([], [], []), seed=0, rounds=3)
