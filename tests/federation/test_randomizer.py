"""The door: who cannot pay is refused first, everything else is clipped and noised, and nothing is
ever released twice under the same noise."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from bgtplanner.errors import BudgetExceeded, ConfigError
from bgtplanner.federation.randomizer import Randomizer, Release
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.randomness import SeededNoise

RULES = {"gaussian": "gaussian/gdp", "laplace": "laplace/basic"}
UPLOADS = np.array([[3.0, 4.0], [0.1, -0.2], [-5.0, 0.0]])


class Silent:
    """No noise at all, so that what lies under it can be looked at."""

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.zeros(shape)

    laplace = normal

    def gamma(self, concentration: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.zeros(shape)


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}$")


def ledger_of(epsilons: list[float], accountant: str = "laplace/basic") -> Ledger:
    return Ledger.in_memory(Budgets.per_client(epsilons, 1e-5), accountant)


def release(guard: Randomizer, uploads: Any = UPLOADS, **options: Any) -> Release:
    settings: dict[str, Any] = {"charge": 0.5, "clip": 1.0, "run": "a", "round": 0}
    return guard.release(uploads, **settings | options)


# ---- what leaves


@pytest.mark.parametrize(
    ("mechanism", "multiplier"), [("gaussian", 1 / math.sqrt(0.5)), ("laplace", 2.0)]
)
def test_the_noise_has_the_scale_that_was_paid_for(mechanism: str, multiplier: float) -> None:
    ledger = Ledger.in_memory(Budgets.same(Budget(9.0), 5000), RULES[mechanism])
    found = release(Randomizer(ledger, noise=SeededNoise(0)), np.zeros((5000, 4)), clip=3.0)
    assert found.noise_scale == pytest.approx(multiplier * 2 * 3.0, rel=1e-12)
    law = scipy.stats.norm if mechanism == "gaussian" else scipy.stats.laplace
    fit = law(scale=found.noise_scale)
    assert scipy.stats.kstest(found.values.ravel(), fit.cdf).pvalue > 1e-3
    assert scipy.stats.kstest(found.values.ravel() * 1.1, fit.cdf).pvalue < 1e-3


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_every_coordinate_is_noised_and_lies_on_the_grid(trust: Any) -> None:
    guard = Randomizer(ledger_of([9.0] * 3), trust=trust)
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

    for name in ("clip", "add_noise", "noise", "on_grid"):
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
        {"uploads": np.zeros(3)}, {"uploads": np.zeros((3, 2, 2))}, {"groups": [0, 1]},
        {"groups": [0.0, 1.0, 2.0]}, {"groups": [0, 0, -1]}, {"groups": [0, 0, 3]},
    ],
)  # fmt: skip
def test_senseless_arguments_are_refused_and_cost_nothing(options: dict[str, Any]) -> None:
    ledger = ledger_of([9.0] * 3)
    with pytest.raises(ConfigError):
        release(Randomizer(ledger, trust="secagg"), **options)
    assert not ledger.spent().any()


# ---- sums


def test_sums_of_groups() -> None:
    guard = Randomizer(ledger_of([9.0] * 4), trust="secagg", noise=Silent())
    uploads = np.array([[0.5, 0.0], [0.25, 0.25], [0.0, 0.125], [0.0, -0.5]])
    found = release(guard, uploads, groups=[2, 0, 2, 0])
    assert found.values.tolist() == [[0.25, -0.25], [0.0, 0.0], [0.5, 0.125]]
    assert release(guard, uploads, round=1).values.tolist() == [[0.75, -0.125]]


def test_a_sum_carries_the_noise_once() -> None:
    ledger = Ledger.in_memory(Budgets.same(Budget(9.0), 9000), "gaussian/gdp")
    guard = Randomizer(ledger, trust="secagg", noise=SeededNoise(1))
    found = release(guard, np.zeros((9000, 3)), groups=np.repeat(np.arange(3000), 3))
    assert found.values.shape == (3000, 3)
    fit = scipy.stats.norm(scale=found.noise_scale)
    assert scipy.stats.kstest(found.values.ravel(), fit.cdf).pvalue > 1e-3


def test_two_sums_differ_by_no_more_than_the_uploads_that_were_replaced() -> None:
    # Cut to the grid after summing, many coordinates would each differ by one step more.
    size, clip = 4000, 1.0
    scale = release(Randomizer(ledger_of([9.0] * 2)), np.zeros((2, 1))).noise_scale
    step = 2.0 ** (math.floor(math.log2(scale)) - 24)
    other = np.full(size, 0.5 * step)
    sums = []
    for share in (0.5, 0.4):
        guard = Randomizer(ledger_of([9.0] * 2), trust="secagg", noise=Silent())
        mine = np.full(size, share * step)
        sums.append(release(guard, np.stack([other, mine]), clip=clip).values[0])
    assert np.abs(sums[0] - sums[1]).sum() <= (0.5 - 0.4) * step * size


# ---- PrivUnit


# ---- one reservation, one release


@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize("accountant", ["gaussian/gdp", "laplace/basic", "privunit/either"])
def test_every_release_is_paid_and_has_noise_of_its_own(accountant: str, trust: Any) -> None:
    if accountant.startswith("privunit") and trust == "secagg":
        return
    ledger = ledger_of([9.0] * 3, accountant)
    guard = Randomizer(ledger, trust=trust)
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
