"""Popularity that forgets, in runs and trainings: what is picked now is on the lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgtplanner import Ratings, train

AGED: dict[str, Any] = {
    "tastes.half_life": 20.0, "tastes.date": "1970-04-11", "tastes.axes": 0, "privacy.clip": 1.0,
}  # fmt: skip


def moving() -> Ratings:
    """A hundred days in which the hundred items are popular one after the other."""
    draw = np.random.default_rng(0)
    day = np.sort(draw.uniform(0, 100, 4000))
    item = np.clip(np.rint(day + draw.normal(0, 8, len(day))), 0, 99).astype(int)
    user = np.minimum(day * 4, 399).astype(int)  # each person comes once
    return Ratings.from_arrays(user, item, time=day * 86_400.0)


def test_what_is_picked_now_is_on_the_lists() -> None:
    lists = {}
    for name, own in (("plain", {}), ("aged", AGED)):
        model = train(
            moving(), seed=0, epsilon=20.0, ledger=None, assume_public=["catalogue"],
            settings={"federation.rounds": 4, "tastes.axes": 0, "privacy.clip": 1.0, **own},
        )  # fmt: skip
        lists[name] = [int(row.item) for row in model.recommend(top=10)]
    assert np.mean(lists["aged"]) > 75
    assert np.mean(lists["plain"]) < 70
