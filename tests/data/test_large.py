"""Reading and splitting many ratings: in pieces, with the same result, and in little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.data import ratings as of_ratings
from bgtplanner.data import split as of_split
from bgtplanner.data.datasets import load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users, merge_users, split_ratings

BYTES_PER_RATING = 60  # the arrays that stay have 29 of them


@given(
    st.lists(st.integers(-40, 60), min_size=1, max_size=60), st.sampled_from(["i4", "i8", "u2"])
)
def test_numbers_that_lie_close_together_are_indexed_as_by_sorting(
    numbers: list[int], kind: str
) -> None:
    array = np.abs(np.array(numbers)).astype(kind) if kind == "u2" else np.array(numbers, kind)
    labels, index = of_ratings._distinct(array)
    expected, inverse = np.unique(array, return_inverse=True)
    assert labels.dtype == array.dtype
    assert labels.tolist() == expected.tolist()
    assert index.tolist() == inverse.tolist()


def test_numbers_that_lie_far_apart_need_no_table() -> None:
    far = np.array([0, 2**60, 7, 2**60])
    labels, index = of_ratings._distinct(far)
    assert labels.tolist() == [0, 7, 2**60]
    assert index.tolist() == [0, 2, 1, 2]


@pytest.mark.parametrize("within", ["user", "all", "last", "leave-last", "time"])
@pytest.mark.parametrize("arrival", ["random", "time"])
def test_a_split_in_pieces_is_the_same_split(
    monkeypatch: pytest.MonkeyPatch, within: of_split.Within, arrival: of_split.Arrival
) -> None:
    draw = np.random.default_rng(5)
    made = Ratings.from_arrays(
        draw.integers(0, 40, 900),
        draw.integers(0, 90, 900),
        draw.integers(1, 6, 900),
        time=draw.integers(0, 50, 900),
        client=None,
    )
    whole = split_ratings(made, seed=3, rounds=8, within=within, arrival=arrival)
    monkeypatch.setattr(of_split, "_SORTED_AT_ONCE", 50)
    monkeypatch.setattr(of_ratings, "_PIECE", 33)
    parts = split_ratings(made, seed=3, rounds=8, within=within, arrival=arrival)
    assert np.array_equal(whole.arrival, parts.arrival)
    assert np.array_equal(whole.train.item, parts.train.item)
    assert np.array_equal(whole.test.item, parts.test.item)


@pytest.mark.parametrize("at_once", [1, 7, 5000])
@pytest.mark.parametrize("order", ["sorted", "backwards", "mixed"])
def test_ranks_within_groups(monkeypatch: pytest.MonkeyPatch, at_once: int, order: str) -> None:
    """Also of groups without a row, and of draws that are equal, 0 and almost 1."""
    monkeypatch.setattr(of_split, "_GROUPS_AT_ONCE", at_once)
    generator = np.random.default_rng(2)
    group = generator.integers(0, 50, 400).astype(np.int32) * 3
    group = {"sorted": np.sort(group), "backwards": np.sort(group)[::-1], "mixed": group}[order]
    draw = generator.choice([0.0, 0.5, 1 - 2**-53, *generator.random(50)], 400)
    rank, sizes = of_split._rank_within(group, draw, 150)
    expected = np.empty(400)
    for row, number in enumerate(group):
        earlier = (draw < draw[row]) | ((draw == draw[row]) & (np.arange(400) < row))
        expected[row] = (earlier & (group == number)).sum()
    assert np.array_equal(rank, expected)
    assert np.array_equal(sizes, np.bincount(group, minlength=150))


@pytest.mark.parametrize("merged", [False, True])
def test_dealt_ratings_are_sorted_by_client_user_and_item(merged: bool) -> None:
    draw = np.random.default_rng(4)
    user, item = draw.integers(0, 60, 500), draw.integers(0, 90, 500)
    made = Ratings.from_arrays(user, item, draw.integers(1, 6, 500), users=range(70))
    if merged:  # then a user has an item several times, in no order
        made = merge_users(deal_users(made, 20, seed=1))
    dealt = deal_users(made, 7, seed=0)
    order = np.lexsort((made.item, made.user, dealt.client_of_user[made.user]))
    assert np.array_equal(dealt.user, made.user[order])
    assert np.array_equal(dealt.item, made.item[order])
    assert np.array_equal(dealt.value, made.value[order])


@pytest.mark.parametrize("rule", ["first", "last", "mean"])
@pytest.mark.parametrize("timed", [False, True])
def test_duplicates_among_many_ratings_are_found_in_pieces(
    monkeypatch: pytest.MonkeyPatch, rule: of_ratings.Duplicates, timed: bool
) -> None:
    draw = np.random.default_rng(6)
    user, item = draw.integers(0, 12, 300), draw.integers(0, 40, 300)
    value, when = draw.integers(1, 6, 300), draw.permutation(300)
    monkeypatch.setattr(of_ratings, "_PIECE", 17)
    made = Ratings.from_arrays(
        user, item, value, time=when if timed else None, scale=(0, 5), duplicates=rule
    )
    expected: dict[tuple[int, int], list[float]] = {}
    for row in np.argsort(when) if timed else range(300):
        expected.setdefault((int(user[row]), int(item[row])), []).append(value[row] / 5)
    pick = {"first": lambda all_: all_[0], "last": lambda all_: all_[-1], "mean": np.mean}[rule]
    found = zip(made.user_labels[made.user], made.item_labels[made.item], made.value, strict=True)
    rated = {(int(u), int(i)): float(v) for u, i, v in found}
    assert rated == pytest.approx({pair: pick(all_) for pair, all_ in expected.items()})


def test_memory_per_rating_from_a_file_to_a_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(of_split, "_SORTED_AT_ONCE", 1 << 14)  # fewer ratings, smaller pieces
    monkeypatch.setattr(of_ratings, "_PIECE", 1 << 14)
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    count, draw = 400_000, np.random.default_rng(0)
    columns = {
        "userId": draw.permutation(np.repeat(np.arange(4_000, dtype=np.int32), count // 4_000)),
        "movieId": (draw.random(count) ** 3 * 20_000).astype(np.int32),
        "rating": draw.integers(1, 11, count) / 2,
    }
    parquet.write_table(pa.table(columns), tmp_path / "many.parquet")
    load_ratings(f"parquet:{tmp_path / 'many.parquet'}")  # what is imported does not count
    tracemalloc.start()
    try:
        made = load_ratings(f"parquet:{tmp_path / 'many.parquet'}")
        split = split_ratings(made, seed=0, rounds=100)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(split.train) > 0.75 * len(made)
    assert most < BYTES_PER_RATING * count
