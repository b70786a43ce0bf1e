"""A mechanism of somebody's own: one class and one registration, and everything can use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.privacy.accountants import ACCOUNTANTS, PURE, Accountant
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import MECHANISMS, Additive
from bgtplanner.privacy.randomness import ExactNoise, SeededNoise


class Twice(Additive):
    """Two Laplace draws on every coordinate: pure epsilon, with more noise than is needed."""

    __slots__ = ()
    name, order, accountant = "twice", 1, "twice/basic"
    std_of_scale = 2.0

    def multiplier_of(self, epsilon: Any) -> Any:
        return np.asarray(1 / epsilon)

    epsilon_of = multiplier_of

    def draw(self, source: Any, shape: tuple[int, ...]) -> Any:
        one, two = source.split(2)
        return one.laplace(shape) + two.laplace(shape)

    def draw_steps(self, source: ExactNoise, scale: int, shape: tuple[int, ...]) -> Any:
        return source.laplace_steps(scale, shape) + source.laplace_steps(scale, shape)


class TwiceBasic(Accountant):
    """Its accountant: charges are epsilons, and add up."""

    name, mechanism, sums = "twice/basic", "twice", (PURE,)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    kind = Twice()
    MECHANISMS.add("twice", kind)
    ACCOUNTANTS.add("twice/basic", TwiceBasic())
    yield
    del MECHANISMS._entries["twice"], ACCOUNTANTS._entries["twice/basic"]


def test_the_simulator_runs_with_it_under_its_own_accountant() -> None:
    found = simulate("demo", mechanism="twice", rounds=2, seed=1)
    assert found.summary["mechanism"] == "twice"
    assert found.summary["accounting"] == "twice/basic"
    assert found.summary["epsilon_spent_max"] == pytest.approx(10.0)
    assert np.isfinite([record["rmse"] for record in found.rounds]).all()


@pytest.mark.parametrize("seeded", [True, False])
def test_the_guard_releases_with_it(seeded: bool) -> None:
    ledger = Ledger.in_memory(Budgets.same(Budget(9.0), 2000), "twice/basic")
    guard = Randomizer(ledger, noise=SeededNoise(1) if seeded else None)
    uploads = np.tile([3.0, 1.0], (2000, 1))
    found = guard.release(uploads, charge=0.5, clip=1.0, run="", round=0)
    noise = found.values - np.array([0.75, 0.25])  # clipped in L1
    assert found.noise_scale == pytest.approx(4.0)
    assert noise.std() == pytest.approx(4.0 * Twice.std_of_scale, rel=0.1)
    guard.settle(found)
    assert float(ledger.epsilon_spent().max()) == pytest.approx(0.5)
