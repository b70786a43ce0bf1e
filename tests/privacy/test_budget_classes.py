"""Classes of budgets: what is refused beside something that fits, and that they never change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.budget import Budget, Budgets


@pytest.mark.parametrize("index", [[0, -1], [-1, 1, 0], [0, 2]])
def test_one_index_out_of_range_is_refused_beside_others_that_fit(index: list[int]) -> None:
    with pytest.raises(ConfigError, match="expected indices below 2"):
        Budgets((Budget(1.0), Budget(2.0)), np.asarray(index))


def test_a_share_above_1_is_refused_however_little_it_is_above() -> None:
    with pytest.raises(ConfigError, match="shares that sum to 1"):
        Budgets.shares("1:1.0000000005", 10, delta=1e-5, seed=0)


def test_budgets_cannot_be_given_other_classes_later() -> None:
    budgets = Budgets.same(Budget(1.0), clients=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budgets.classes = (Budget(100.0),)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable"):
        hash(budgets)
