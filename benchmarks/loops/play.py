"""One policy in one training loop, and results that are kept from run to run."""

from __future__ import annotations

import json
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.loops import training
from benchmarks.regret.play import digest_of
from bgtplanner import planning
from bgtplanner.paper.baselines import Adpml
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.policy import LedgerPolicy
from bgtplanner.planning.schedules import Hong, Optimal, Uniform
from bgtplanner.privacy.budget import Budget
from bgtplanner.runs.folder import write_whole

CLIENTS, ROUNDS, SEEDS = 500, 50, tuple(range(20))
EPSILONS = (0.5, 2.0, 8.0)
REWARDS = ("loss", "noisy", "none")
LAST = "bgt-last"  # planned for the last round
POLICIES: dict[str, Callable[..., LedgerPolicy]] = {
    "uniform": Uniform,
    "bgt": BGTPlanner,
    LAST: partial(BGTPlanner, objective="last"),
    "optimal": partial(Optimal, workload="sgd:0.03"),
    "hong": Hong,
    "adpml": lambda budget, clients, **options: Adpml(
        budget, clients, mode="normalised", **options
    ),
}
_SPREAD = 0.005  # of the noise in a reward, in units of the loss: what a public sample would have


class Cell(NamedTuple):
    """One run: which loop, under which budget, by which policy, and what it is told."""

    loop: str
    epsilon: float
    seed: int
    policy: str
    reward: str
    clients: int = CLIENTS
    rounds: int = ROUNDS


def cells_of(
    loops: Iterable[str],
    epsilons: Sequence[float],
    seeds: Sequence[int],
    policies: Sequence[str],
    clients: int = CLIENTS,
    rounds: int = ROUNDS,
) -> list[Cell]:
    """Return all runs of a study; a policy that learns nothing is told nothing."""
    return [
        Cell(loop, epsilon, seed, policy, reward, clients, rounds)
        for loop in loops
        for epsilon in epsilons
        for policy in policies
        for reward in (REWARDS if policy == "bgt" else ("none",))
        for seed in seeds
    ]


def play(cell: Cell) -> dict[str, Any]:
    """Train to the end, and return what came of it.

    Data, initial model and the direction of every round's noise are the same for all policies with
    the same seed. A policy that stops early leaves the model as it is for the rest of the rounds.
    """
    begun = time.perf_counter()
    loop = training.LOOPS[cell.loop](cell.clients, cell.seed, cell.epsilon)
    budget = Budget(epsilon=cell.epsilon, delta=1e-5)
    planner = POLICIES[cell.policy](
        budget, cell.clients, rounds=cell.rounds, clip=loop.clip, trust="secagg", seed=cell.seed
    )
    even = float(planner.even_charges(cell.rounds)[0])
    measured = np.random.default_rng([cell.seed, 5])
    before, now = loop.train_loss(), loop.test()
    losses, spent, skipped = [], 0.0, 0
    while (plan := planner.ask()) is not None:
        if plan.skip:
            planner.tell(plan)
            skipped += 1
        else:
            generator = np.random.default_rng([cell.seed, 4, plan.round])
            loop.train(float(plan.clip), float(plan.noise_std), generator)
            after = loop.train_loss()
            error = measured.normal(0.0, _SPREAD) if cell.reward == "noisy" else 0.0
            planner.tell(plan, None if cell.reward == "none" else before - after + error)
            before, now, spent = after, loop.test(), spent + float(plan.charge)
        losses.append(now.loss)
    played = len(losses)
    losses += [now.loss] * (cell.rounds - played)
    figures = {
        "test_loss": now.loss,
        "accuracy": now.accuracy,
        "mean_loss": float(np.mean(losses)),
        "spent": spent / (even * cell.rounds),
    }
    rounded = {name: round(value, 6) for name, value in figures.items()}
    seconds = round(time.perf_counter() - begun, 2)
    counts = {"played": played, "skipped": skipped, "seconds": seconds}
    return {**cell._asdict(), **rounded, **counts, "code": fingerprint()}


@cache
def fingerprint() -> str:
    """Of the loops and of everything that policies are made of."""
    names = sorted(module.name for module in pkgutil.iter_modules(planning.__path__))
    parts = [import_module(f"{planning.__name__}.{name}") for name in names]
    return digest_of([training, *parts])


class Results:
    """Results in a file, one a line; what is there is not played again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[Cell, dict[str, Any]] = {}
        if path is not None and path.exists():
            for row in json.loads(path.read_text(encoding="utf-8")):
                self._known[Cell(*(row[name] for name in Cell._fields))] = row

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return those that have not been played with the present code."""
        code = fingerprint()
        return [cell for cell in cells if self._known.get(cell, {}).get("code") != code]

    def of(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """Return what is known of these runs."""
        return [self._known[cell] for cell in cells if cell in self._known]

    def fill(self, cells: Iterable[Cell], jobs: int) -> Iterator[dict[str, Any]]:
        """Play what is missing, and keep it every hundred runs and at the end."""
        wanted = self.missing(cells)
        try:
            for number, row in enumerate(_played(wanted, jobs), start=1):
                self._known[Cell(*(row[name] for name in Cell._fields))] = row
                if number % 100 == 0:
                    self._write()
                yield row
        finally:
            self._write()

    def _write(self) -> None:
        if self._path is not None:
            rows = sorted(self._known.items())
            lines = ",\n".join(json.dumps(row) for _, row in rows)
            write_whole(self._path, f"[\n{lines}\n]\n")


def _played(cells: list[Cell], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs <= 1:
        yield from map(play, cells)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, cells, chunksize=5)
