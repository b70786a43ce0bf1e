"""The benchmark of made-up federations: what is drawn, and what is marked in its table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.worlds.__main__ import FIGURES, table
from benchmarks.worlds.families import KEPT, TUNING, Family


def rows(gain: float, spread: float = 0.1, seeds: int = 8) -> list[dict[str, Any]]:
    """Runs in which the planner's error of ratings is lower by so many .0001."""
    noise = np.random.default_rng(0).normal(0, spread, seeds)
    noise -= noise.mean()
    found = []
    for seed in range(seeds):
        even = {key: 0.2 + 0.01 * seed for _, key, _ in FIGURES.values()}
        ours = even | {"rmse_served": even["rmse_served"] - 1e-4 * (gain + noise[seed])}
        for policy, objective, values in (
            ("uniform", "any", even), ("bgt", "served", ours), ("bgt", "last", even)
        ):  # fmt: skip
            row = {"world": "one", "policy": policy, "objective": objective, "seed": seed}
            found.append(row | values)
    return found


@pytest.mark.parametrize(
    ("gain", "spread", "shown", "fine"),
    [
        (5.0, 0.1, "+5.", True),
        (-1.0, 0.1, "!! |", False),  # small, and sure
        (-4.0, 20.0, "! |", False),  # large, and not sure
        (-1.0, 20.0, "-1.0 ± 9.", True),
    ],
)
def test_cells_are_marked_that_are_too_low_or_surely_negative(
    gain: float, spread: float, shown: str, fine: bool
) -> None:
    text, unmarked = table(rows(gain, spread))
    assert shown in text
    assert unmarked is fine


def test_half_of_the_families_are_kept_and_none_is_both() -> None:
    assert len(KEPT) == len(TUNING) >= 6
    assert not set(KEPT) & set(TUNING)


@pytest.mark.parametrize("moves", ["still", "joining", "seasons"])
def test_a_family_and_a_seed_are_one_federation(moves: Any) -> None:
    family = Family(60, 50, 8, 3.0, moves=moves, features="good")
    one, same, other = (family.drawn("mine", seed) for seed in (1, 1, 2))
    assert one.value.tolist() == same.value.tolist()
    assert one.item.tolist() == same.item.tolist()
    assert one.item.tolist() != other.item.tolist()
    assert np.bincount(one.user).mean() == pytest.approx(8, rel=0.2)
    assert one.n_items == 50
