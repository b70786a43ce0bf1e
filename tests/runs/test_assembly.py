"""From a config to a federation, a ledger and a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.models.tastes import Tastes
from bgtplanner.planning.policy import Policy
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.assembly import (
    accountant_of,
    budgets_of,
    federation_of,
    learner_of,
    policy_of,
)
from bgtplanner.runs.config import Config, load_config


def config(preset: str = "recommended", **changes: Any) -> Config:
    settings = {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(preset=preset, settings=settings)


class TestFederation:
    def test_a_learner_is_suited_to_the_noise_of_the_relation_in_force(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Against nothing in its place, a client needs half the noise: more axes are worth it."""
        seen: list[float] = []
        suited = Tastes.suited

        def spy(own: Tastes, clients: int, items: int, noise: float, **how: Any) -> Tastes:
            assert (clients, items, how) == (5000, 200, {"implicit": True})
            seen.append(noise)
            return suited(own, clients, items, noise, **how)

        monkeypatch.setattr(Tastes, "suited", spy)
        axes = []
        for relation in ("auto", "replace-special", "replace-one"):
            chosen = config(**{"privacy.neighbours": relation})
            model = federation_of(chosen, 200, clients=5000, implicit=True).model
            assert isinstance(model, Tastes)
            assert isinstance(learner_of(chosen), Tastes)
            axes.append(model.axes)
        by_default, special, one = seen
        assert by_default == special
        assert one == pytest.approx(2 * special) != 0
        assert axes[0] == axes[1] > axes[2] > 0
        free = config(**{"privacy.mechanism": "none"})
        federation_of(free, 200, clients=5000, implicit=True)
        assert seen[-1] == 0.0


def test_unequal_budgets_name_the_flag() -> None:
    with pytest.raises(ConfigError, match="--budgets"):
        budgets_of(config(privacy__budgets="epsilons.txt"), 4)


def policy(preset: str = "recommended", **changes: Any) -> Policy:
    settled = config(preset, federation__rounds=20, **changes)
    return policy_of(settled, Ledger.in_memory(budgets_of(settled, 5), accountant_of(settled)))


class TestPolicy:
    @pytest.mark.parametrize(("name", "highest"), [("bgt", 3), ("random", 2)])
    def test_levels(self, name: str, highest: int) -> None:
        """The planner's level 0 is to sit a round out."""
        drawn = set()
        for seed in range(3):
            found = policy(
                planning__policy=name, planning__levels=3, planning__min_rounds=10, run__seed=seed
            )
            for _ in range(10):
                if (plan := found.ask(np.zeros(6))) is not None:
                    found.tell(plan, reward=0.0)
                    drawn.add(plan.level)
        assert max(drawn) == highest

    @pytest.mark.parametrize(
        ("constants", "given", "fewest"), [("repaired", None, 14), ("paper", 10, 10)]
    )
    def test_levels_of_the_paper_and_of_its_authors(
        self, constants: str, given: int | None, fewest: int
    ) -> None:
        found: Any = policy("paper", planning__constants=constants, planning__min_rounds=given)
        steps = np.arange(5) / 4
        np.testing.assert_allclose(found.charges[0], 0.5 + steps * (10 / fewest - 0.5))
