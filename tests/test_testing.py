"""The shipped contract itself: it must catch policies that are broken in the usual ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from numpy.typing import ArrayLike

from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.testing import PolicyContract
from learner_contract import LearnerContract


class NoiseOfTheRichest(Plan):
    """What plans were before each client had its own noise."""

    @property
    def noise_multiplier(self) -> float:  # type: ignore[override]
        return float(self.noise_by_class.multiplier.min())

    @property
    def noise_std(self) -> float:  # type: ignore[override]
        return float(self.noise_by_class.std.min())


class OneNoiseForAll(Uniform):
    """Gives a client with a small budget the noise of those with a large one."""

    def ask(self, context: ArrayLike | None = None, **options: Any) -> Plan | None:
        plan = super().ask(context, **options)
        return plan and NoiseOfTheRichest(**vars(plan))


class ChargesNothing(Uniform):
    """Spends from a ledger of its own, not from the one it was given."""

    def ask(self, context: ArrayLike | None = None, **options: Any) -> Plan | None:
        given, self.ledger = self.ledger, Ledger.in_memory(self.budgets, self.accountant)
        try:
            return super().ask(context, **options)
        finally:
            self.ledger = given

    def tell(self, plan: Plan, reward: float | None = None) -> None:
        super().tell(dataclasses.replace(plan, reservation=None), reward)


class ForgetsItsLedger(Uniform):
    """Comes back with a fresh budget."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Any:
        policy = cls(Budget(5.0, 1e-5), 3, **state["options"])
        policy.round = int(state["round"])
        return policy


class NeverEnds(Uniform):
    """Has no last round."""

    def ask(self, context: ArrayLike | None = None, **options: Any) -> Plan | None:
        self.rounds = self.round + 1
        kept, self.ledger = self.ledger, Ledger.in_memory(self.budgets, self.accountant)
        plan = super().ask(context, **options)
        self.ledger = kept
        return plan and dataclasses.replace(plan, reservation=None)


def broken(contract: PolicyContract, tmp_path: Path) -> set[str]:
    """Which checks of the contract fail."""
    found = set()
    for name in (name for name in dir(contract) if name.startswith("test_")):
        folder = tmp_path / name
        folder.mkdir()
        needed = (folder,) if name == "test_it_spends_from_a_durable_ledger" else ()
        try:
            getattr(contract, name)(*needed)
        except Exception:
            found.add(name.removeprefix("test_"))
    return found


def contract_of(kind: Any) -> PolicyContract:
    class Contract(PolicyContract):
        policy = kind

    return Contract()


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (OneNoiseForAll, "what_it_plans_is_what_it_pays"),
        (ChargesNothing, "what_it_plans_is_what_it_pays"),
        (ForgetsItsLedger, "it_spends_from_a_durable_ledger"),
        (NeverEnds, "it_ends_and_numbers_its_rounds"),
    ],
)
def test_broken_policies_are_caught(kind: Any, check: str, tmp_path: Path) -> None:
    assert check in broken(contract_of(kind), tmp_path)


def compiled(kind: Any) -> Any:
    """The same learner as one program for each step: one for each operation takes longer."""
    steps = ("personalise", "train", "predict")
    own = {name: jax.jit(getattr(kind, name), static_argnums=0) for name in steps}
    return type(kind.__name__, (kind,), own)


class TestBiases(LearnerContract):
    learner, optimizer = compiled(Biases)(), "posterior"


class TestFactorization(LearnerContract):
    learner = compiled(Factorization)(dim=2)


class TestFedGNN(LearnerContract):
    learner = compiled(FedGNN)(dim=2)
