"""The door: who cannot pay is refused first, everything else is clipped and noised, and nothing is
ever released twice under the same noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import BudgetExceeded, ConfigError
from bgtplanner.federation.randomizer import Randomizer, Release
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.ledger import Ledger

UPLOADS = np.array([[3.0, 4.0], [0.1, -0.2], [-5.0, 0.0]])


def ledger_of(epsilons: list[float], accountant: str = "laplace/basic") -> Ledger:
    return Ledger.in_memory(Budgets.per_client(epsilons, 1e-5), accountant)


def release(guard: Randomizer, uploads: Any = UPLOADS, **options: Any) -> Release:
    settings: dict[str, Any] = {"charge": 0.5, "clip": 1.0, "run": "a", "round": 0}
    return guard.release(uploads, **settings | options)


# ---- what leaves


def test_every_coordinate_is_noised_and_lies_on_the_grid() -> None:
    guard = Randomizer(ledger_of([9.0] * 3))
    uploads = np.zeros((3, 50))
    uploads[:, :3] = 1 / 3  # most were never touched by the client
    found = release(guard, uploads)
    assert len(np.unique(found.values)) == found.values.size
    grid = 2.0 ** (math.floor(math.log2(found.noise_scale)) - 24)
    assert (np.mod(found.values, grid) == 0).all()


# ---- who is refused


def test_nothing_is_computed_if_nobody_can_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of([0.25] * 3)
    guard = Randomizer(ledger)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was computed for release")

    for name in ("clip", "noise", "on_grid"):
        monkeypatch.setattr(type(guard.mechanism), name, never)
    with pytest.raises(BudgetExceeded, match=r"3 of 3 clients cannot pay 0\.5"):
        release(guard)
    assert ledger.spent().tolist() == [[0, 0, 0]]
    assert ledger.unsettled == 0


def test_the_charge_is_booked_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of([1.0] * 3)
    guard = Randomizer(ledger)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the machine stopped here")

    monkeypatch.setattr(type(guard.mechanism), "clip", broken)
    with pytest.raises(RuntimeError, match="the machine stopped here"):
        release(guard)
    assert ledger.spent().tolist() == [[2**43] * 3]
    assert ledger.unsettled == 1


@pytest.mark.parametrize(
    "options",
    [
        {"charge": 0.0}, {"charge": -1.0}, {"charge": math.nan}, {"clip": 0.0}, {"clip": -1.0},
        {"clip": math.inf}, {"clip": math.nan}, {"round": -1}, {"uploads": np.zeros((2, 2))},
        {"uploads": np.zeros(3)}, {"uploads": np.zeros((3, 2, 2))},
    ],
)  # fmt: skip
def test_senseless_arguments_are_refused_and_cost_nothing(options: dict[str, Any]) -> None:
    ledger = ledger_of([9.0] * 3)
    with pytest.raises(ConfigError):
        release(Randomizer(ledger), **options)
    with pytest.raises(ConfigError, match="trust = 'secagg'"):
        release(Randomizer(ledger, trust="secagg"))
    assert not ledger.spent().any()


# ---- one reservation, one release


@pytest.mark.parametrize("accountant", ["gaussian/gdp", "laplace/basic", "privunit/either"])
def test_every_release_is_paid_and_has_noise_of_its_own(accountant: str) -> None:
    ledger = ledger_of([9.0] * 3, accountant)
    guard = Randomizer(ledger)
    values = [release(guard).values for _ in range(3)]
    assert ledger.spent()[0].tolist() == [3 * 2**43] * 3
    assert len(np.unique(values)) == np.size(values)


def test_a_reservation_buys_one_release() -> None:
    ledger = ledger_of([9.0] * 3)
    guard = Randomizer(ledger)
    paid = guard.reserve(0.5, run="a", round=0)
    assert ledger.spent()[0].tolist() == [2**43] * 3
    guard.protect(paid, UPLOADS, clip=1.0)
    with pytest.raises(ConfigError, match="not used yet"):
        guard.protect(paid, UPLOADS, clip=1.0)
    foreign = Randomizer(ledger).reserve(0.5, run="a", round=1)
    with pytest.raises(ConfigError, match="that this randomizer has made"):
        guard.protect(foreign, UPLOADS, clip=1.0)
