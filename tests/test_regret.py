"""The environments of the regret benchmark: no schedule exceeds their optimum, some come close."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.regret.environments import KINDS, Environment
from numpy.typing import NDArray

Floats = NDArray[np.float64]
OPTIMA = (67.63140558343765, 44.09596284464074, 0.8996724387322688)


def collected(kind: str, rounds: int, seed: int, charges: Floats) -> float:
    environment = Environment(kind, rounds, seed)
    for index, charge in enumerate(charges):
        environment.play(index, float(charge))
    return environment.total


def best_by_programme(environment: Environment, levels: Floats) -> float:
    """The most that can be served with charges from levels that are multiples of the first.

    Exact, backwards over rounds and budget left: what is left to gain from a round on, summed over
    the rounds to come, is the round's factor times 1 plus the same sum from the next round on.
    """
    rounds, unit = environment.rounds, levels[1]
    left = 1 - environment._rate * environment._share(np.arange(rounds), levels)
    steps = np.rint(levels / unit).astype(int)
    budget = np.arange(round(rounds / unit) + 1)
    later = np.zeros(len(budget))
    for index in reversed(range(rounds)):
        choices = [
            np.where(budget >= step, factor * (1 + later[np.maximum(budget - step, 0)]), np.inf)
            for step, factor in zip(steps, left[index], strict=True)
        ]
        later = np.min(choices, axis=0)
    return float(1 - later[-1] / rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_no_random_schedule_exceeds_the_optimum(kind: str) -> None:
    generator, rounds = np.random.default_rng(1), 40
    for seed in range(3):
        optimum = Environment(kind, rounds, seed).optimum()
        for _ in range(200):
            weights = generator.exponential(size=rounds) ** generator.uniform(0, 3)
            weights *= generator.uniform(size=rounds) < generator.uniform(0.1, 1)
            weights *= np.arange(rounds, 0, -1.0) ** generator.uniform(-1, 3)
            charges = np.minimum(8.0, weights * rounds / max(weights.sum(), 1e-12))
            assert collected(kind, rounds, seed, charges) <= optimum + 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_on_tiny_cases_the_best_of_all_schedules_is_near_the_optimum(kind: str) -> None:
    """Nearer it cannot be: the bound may mix charges in a round, which one schedule cannot."""
    rounds, levels = 5, (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0)
    for seed in range(2):
        optimum = Environment(kind, rounds, seed).optimum()
        best = max(
            collected(kind, rounds, seed, np.array(charges))
            for charges in itertools.product(levels, repeat=rounds)
            if sum(charges) <= rounds
        )
        assert 0.7 * optimum <= best <= optimum + 1e-3


def test_the_dynamic_programme_of_service_is_brute_force() -> None:
    levels = np.array([0.0, 0.5, 1.0, 2.0])
    for seed in range(3):
        every = [
            collected("service", 4, seed, np.array(charges))
            for charges in itertools.product(levels, repeat=4)
            if sum(charges) <= 4
        ]
        found = best_by_programme(Environment("service", 4, seed), levels)
        assert found == pytest.approx(max(every), abs=1e-12)


def test_the_bound_of_service_is_tight() -> None:
    for seed in range(2):
        environment = Environment("service", 120, seed)
        best = best_by_programme(environment, np.linspace(0.0, 8.0, 33))
        assert 0.995 * environment.optimum() <= best <= environment.optimum() + 1e-6


def test_service_is_the_mean_of_what_has_been_gained() -> None:
    environment, gained = Environment("service", 30, 0), []
    for index in range(30):
        environment.play(index, 1.0)
        gained.append(environment._gained)
    assert environment.total == pytest.approx(np.mean(gained))
    assert environment.play(29, 0.0) == 0.0


def test_contexts_announce_bursts_but_not_for_certain() -> None:
    environment = Environment("bursts", 4000, 0)
    says = np.array([environment.context(index)[0] for index in range(4000)]) > 0.5
    bursting = environment.drawn[:, 0] == 1.0
    assert 0.15 < bursting.mean() < 0.32
    assert 0.85 < (says == bursting).mean() < 0.97
    assert np.flatnonzero(np.diff(bursting)).size < 400  # they last


def test_what_is_drawn_in_the_first_environments_stays_as_it_was() -> None:
    """Kept results are of these; a new kind must not change them."""
    optima = [Environment(kind, 250, 0).optimum() for kind in KINDS[:3]]
    assert optima == pytest.approx(OPTIMA, rel=1e-9)
