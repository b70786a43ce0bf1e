"""The paper's symbols as names of settings, and what is refused about them."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.assembly import policy_of
from bgtplanner.runs.config import Config, load_config


def paper(**planning: Any) -> Config:
    settings = {f"planning.{name}": value for name, value in planning.items()}
    return load_config(preset="paper", settings={"federation.rounds": 20, **settings})


def planner(config: Config) -> Any:
    budgets = Budgets.same(Budget(10.0, 1e-5), 3)
    return policy_of(config, Ledger.in_memory(budgets, "laplace/basic"))


def test_symbols_set_what_they_stand_for() -> None:
    config = paper(A=3, T_min=8, d=4, T0=2, s=0.3, alpha=0.01)
    found = planner(config)
    assert (found.levels, found.min_rounds, found.initial_rounds) == (3, 8, 2)
    assert (found.given.s, found.given.alpha, config.planning.context_size) == (0.3, 0.01, 4)


@pytest.mark.parametrize("constants", ["paper", "repaired"])
def test_fewest_rounds_that_leave_no_choice_are_refused(constants: str) -> None:
    with pytest.raises(ConfigError, match=r"planning\.min_rounds\) = 20"):
        planner(paper(constants=constants, T_min=20))
    assert planner(paper(constants=constants, T_min=19)).charges.shape[1] == 5


def test_gamma_follows_the_number_of_levels() -> None:
    budgets = Budgets.same(Budget(10.0, 1e-5), 3)
    assert 0 < AsPrinted(budgets, rounds=1).given.gamma < 10
    for levels in (3, 9):
        printed = AsPrinted(budgets, rounds=20, levels=levels)
        for skip in (False, True):
            repaired = Repaired(budgets, rounds=20, levels=levels, skip=skip)
            assert repaired.gamma == pytest.approx(printed.given.gamma)
            assert repaired.initial_rounds == printed.initial_rounds == 5
