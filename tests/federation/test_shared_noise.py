"""Shares of noise in a simulation and on a client: what a deployment would add, and no less."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.errors import BudgetExceeded, ConfigError
from bgtplanner.federation.parameters import round_parameters
from bgtplanner.federation.protection import Protection, Released
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.models.interactions import Interactions, Upload
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.randomness import ExactNoise
from bgtplanner.privacy.shares import Shares, Tolerance
from privacy.sums import sum_of_shares
from small_federation import N_CLIENTS, QUICK, flat, nothing, some_interactions

Floats = NDArray[np.float64]
GDP = accountant_named("gaussian/gdp")
PROTECTION = Protection(mechanism="gaussian", trust="secagg")
CHARGE, CLIP, MANY = 0.25, 0.5, 4000
EVERYBODY, ONE_CLASS = np.ones(N_CLIENTS, bool), np.zeros(N_CLIENTS, np.int32)


def seeded(seed: int) -> ExactNoise:
    return ExactNoise(np.random.default_rng(seed).bytes)


def terms(answers: Any = EVERYBODY, tolerance: Tolerance | None = None, **more: Any) -> Any:
    return round_parameters(
        GDP, "secagg", CLIP, np.array([CHARGE]), np.asarray(answers, bool), ONE_CLASS,
        neighbours="replace-special", invited=EVERYBODY, tolerance=tolerance, **more,
    )  # fmt: skip


def shares_of_six(tolerance: Tolerance) -> Shares:
    dropouts, colluders = tolerance.of(N_CLIENTS)
    scale = float(CLIP * GDP.noise_multiplier(CHARGE))
    return Shares(scale=scale, clip=CLIP, invited=N_CLIENTS, most_dropouts=dropouts,
                  most_colluders=colluders)  # fmt: skip


def released(upload: Upload, interactions: Interactions, given: Any) -> tuple[Floats, Released]:
    program = jax.jit(PROTECTION.release, compiler_options=QUICK)
    found = program(jax.random.key(0), upload, interactions, given)
    return flat(found), found


@pytest.mark.parametrize(
    ("answers", "tolerance"),
    [
        ([1, 1, 1, 1, 1, 1], Tolerance()),
        ([1, 1, 1, 1, 1, 1], Tolerance(2, 1)),
        ([1, 0, 1, 1, 0, 1], Tolerance(2, 1)),
    ],
)
def test_the_sum_carries_the_shares_of_those_who_answer(
    answers: list[int], tolerance: Tolerance
) -> None:
    interactions, number = some_interactions(MANY), sum(answers)
    given = terms(answers, tolerance)
    mean, found = released(nothing(interactions), interactions, given)
    shares = shares_of_six(tolerance)
    assert float(given.scale[0]) == pytest.approx(shares.scale)  # what the promise takes
    spread = math.sqrt(number) * shares.std_of_share
    assert float(found.noise_std) * number == pytest.approx(spread, rel=1e-5)
    assert np.std(mean * number) == pytest.approx(spread, rel=0.03)
    steps = mean * number / shares.step
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-2)  # in whole steps
    surplus = math.sqrt(number / shares.honest) - 1
    assert spread / shares.scale - 1 == pytest.approx(surplus, abs=1e-3)


def test_uploads_are_cut_to_the_grid_as_a_client_cuts_them() -> None:
    interactions = some_interactions()
    random = np.random.default_rng(1)
    dense = random.normal(0, 0.05, (N_CLIENTS, 3))
    upload = nothing(interactions)._replace(dense=jnp.asarray(dense, jnp.float32))
    given = terms()._replace(share=jnp.float32(0.0))
    mean, _ = released(upload, interactions, given)
    shares = shares_of_six(Tolerance())
    whole = np.trunc(np.asarray(dense, np.float32).astype(float) / shares.step).sum(axis=0)
    np.testing.assert_allclose(mean[-3:] * N_CLIENTS / shares.step, whole, atol=1e-2)
    uncut = (dense / shares.step).sum(axis=0)
    assert (np.abs(whole - uncut) > 0.1).any()


def test_the_reference_sum_has_the_noise_that_is_simulated() -> None:
    """What clients add from seeds of their own, as integers: a deployment ends with the same."""
    shares = shares_of_six(Tolerance(2, 1))
    uploads = np.random.default_rng(0).normal(0, 0.02, (5, MANY))
    total = sum_of_shares(shares, uploads, [seeded(index) for index in range(5)])
    one_by_one = np.zeros(MANY, dtype=np.uint64)
    for index in (3, 0, 4, 1, 2):  # in any order, and reduced after each
        one_by_one += shares.encode(uploads[index], seeded(index))
        one_by_one &= shares.mask(MANY)
    assert np.array_equal(total, one_by_one)
    noise = shares.decode(total, 5) - uploads.sum(axis=0)
    given = terms([1, 1, 1, 1, 1, 0], Tolerance(2, 1)).as_answered()
    assert np.std(noise) == pytest.approx(float(given.scale[0]), rel=0.05)


# ---- one client


def guard(epsilon: float = 9.0, *, trust: str = "secagg", **options: Any) -> Randomizer:
    rule = options.pop("accountant", "gaussian/gdp")
    clients = options.pop("clients", 1)
    ledger = Ledger.in_memory(
        Budgets.same(Budget(epsilon, 1e-5), clients), rule,
        neighbours="replace-special" if trust == "secagg" else "replace-one",
    )  # fmt: skip
    return Randomizer(ledger, trust=trust, **options)


def test_a_client_adds_its_share_and_pays_for_it() -> None:
    shares, upload = shares_of_six(Tolerance(2, 1)), np.array([0.3, -4.0, 0.0])
    door = guard(noise=seeded(7))
    door.check_shares(shares, charge=CHARGE, clip=CLIP)
    reservation = door.reserve(CHARGE, run="a", round=0)
    sent = door.share(reservation, upload, clip=CLIP, shares=shares)
    assert np.array_equal(sent.values, shares.encode(upload, seeded(7)))
    assert sent.values.dtype == np.uint64
    assert door.ledger.epsilon_spent()[0] > 0
    door.settle(sent)
    with pytest.raises(ConfigError, match="not used yet"):
        door.share(reservation, upload, clip=CLIP, shares=shares)
    with pytest.raises(BudgetExceeded):
        guard(0.01).reserve(CHARGE, run="a", round=0)


@pytest.mark.parametrize(
    ("door", "changes", "said"),
    [
        ({}, {"charge": 0.2}, "scale = "),  # a smaller charge takes more noise
        ({}, {"charge": CHARGE * (1 - 1e-12)}, "scale = "),  # not even a little
        ({}, {"clip": 0.6}, "clip = 0.6"),
        ({"trust": "local"}, {}, "trust = 'local': expected secagg"),
        ({"accountant": "laplace/basic"}, {}, "mechanism = 'laplace': expected gaussian"),
        ({"clients": 2}, {}, "clients = 2: expected 1"),
    ],
)
def test_shares_that_do_not_fit_are_refused(
    door: dict[str, Any], changes: dict[str, float], said: str
) -> None:
    asked = {"charge": CHARGE, "clip": CLIP} | changes
    with pytest.raises(ConfigError, match=said):
        guard(**door).check_shares(shares_of_six(Tolerance()), **asked)


def test_shares_are_checked_again_when_they_are_added() -> None:
    door = guard()
    reservation = door.reserve(0.2, run="a", round=0)
    with pytest.raises(ConfigError, match="scale"):
        door.share(reservation, [0.1], clip=CLIP, shares=shares_of_six(Tolerance()))
