"""What is run: the preset `recommended` on services of all sizes, under budgets of all sizes.

The services are made up, so that they differ in the number of their clients only. Their people
have eight tastes, pick what suits them, and rate 50 of 2,000 items on average: between FilmTrust,
where it is 21 of 1,957, and ML-100K, where it is 106 of 1,682. Items have categories, which tell
half of what there is to know about them. The real sets are run beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from benchmarks.results.plan import Place, Run

CLIENTS = (30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
EPSILONS = (0.5, 1.0, 3.0, 10.0, 20.0)
SEEDS = (0, 1, 2)
MADE = {"items": 2000, "ratings_per_client": 50, "dim": 8, "choosy": 1.0}
REAL = {
    "ml-100k": ("ML-100K", 943),
    "filmtrust": ("FilmTrust", 874),
    "ml-1m-users": ("ML-1M", 6040),
}
"""Names of the real sets, and how many clients they have: one for each user."""

_COMPILING = 14.0  # seconds; the first run of a piece compiles for all of it
_SECONDS_PER_CLIENT = 0.003  # of a run on one core
_REAL_SECONDS = {"ml-100k": 10.0, "filmtrust": 5.0, "ml-1m-users": 100.0}


@cache
def cell(service: int | str, epsilon: float, seed: int, device: str = "auto") -> Run:
    """The run of a made-up service with so many clients, or of a real set.

    The seed is that of the made-up people, too.
    """
    settings: dict[str, object] = {"run.device": device}
    dataset = service if isinstance(service, str) else "synthetic"
    name = "real"
    if isinstance(service, int):
        settings |= {f"synthetic.{key}": value for key, value in MADE.items()}
        settings["synthetic.clients"] = service
        name = f"clients={service}"
    place = Place(dataset, "secagg", "gaussian", epsilon, "replace-special")
    return Run(place=place, name=name, seed=seed, settings=settings)


def cells(
    services: Iterable[int | str],
    epsilons: Sequence[float] = EPSILONS,
    seeds: Sequence[int] = SEEDS,
    device: str = "auto",
) -> list[Run]:
    """All runs, those of the same people one after the other."""
    return [
        cell(service, epsilon, seed, device)
        for service in services
        for seed in seeds
        for epsilon in epsilons
    ]


def pieces(runs: Iterable[Run], jobs: int) -> list[list[Run]]:
    """Runs that share their people and programs, the longest first.

    They are divided where a process would be left alone with them at the end.
    """
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.place.dataset, run.name, run.seed), []).append(run)
    share = sum(map(seconds, groups.values())) / jobs
    found: list[list[Run]] = []
    for group in groups.values():
        parts = 1 if jobs == 1 else min(len(group), math.ceil(seconds(group) / share))
        size = math.ceil(len(group) / parts)
        found += [group[first : first + size] for first in range(0, len(group), size)]
    return sorted(found, key=lambda piece: -seconds(piece))


def seconds(piece: Sequence[Run]) -> float:
    """About how long runs that are compiled once take on one core."""
    return _COMPILING + sum(map(_seconds, piece))


def _seconds(run: Run) -> float:
    if run.place.dataset in _REAL_SECONDS:
        return _REAL_SECONDS[run.place.dataset]
    return 0.5 + _SECONDS_PER_CLIENT * int(run.name.removeprefix("clients="))
