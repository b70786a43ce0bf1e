"""One policy in one environment, and results that are kept from run to run.

A result is kept under its kind, rounds, seed and policy, with a fingerprint of the code that it
came from: comments and docstrings may change, but a changed policy is played again.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks.regret import environments
from benchmarks.regret.environments import Environment
from bgtplanner.paper import planners
from bgtplanner.paper.planners import Repaired
from bgtplanner.planning import allocator, bgt, constrainer, policy, predictor, schedules
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.policy import LedgerPolicy
from bgtplanner.planning.schedules import Random, Uniform
from bgtplanner.privacy.budget import Budget

BUDGET = Budget(epsilon=10.0, delta=1e-5)
POLICIES: dict[str, Callable[[int, int], LedgerPolicy]] = {
    "planner": lambda rounds, seed: BGTPlanner(BUDGET, 1, rounds=rounds, seed=seed),
    "paper": lambda rounds, seed: Repaired(
        BUDGET, 1, rounds=rounds, min_rounds=round(0.7 * rounds), seed=seed
    ),
    "uniform": lambda rounds, seed: Uniform(BUDGET, 1, rounds=rounds, seed=seed),
    "random": lambda rounds, seed: Random(BUDGET, 1, rounds=rounds, seed=seed),
    "greedy": lambda rounds, seed: BGTPlanner(  # the same planner, to whom budget is free
        BUDGET, 1, rounds=rounds, seed=seed, radius=0.0, gamma=1e9
    ),
}
_PLANNER = (bgt, predictor, constrainer, allocator)
_MADE_OF = {"planner": _PLANNER, "paper": (*_PLANNER, planners), "greedy": _PLANNER}


class Cell(NamedTuple):
    """One run."""

    kind: str
    rounds: int
    seed: int
    policy: str


def play(cell: Cell) -> dict[str, Any]:
    """Play one run to its end."""
    environment = Environment(cell.kind, cell.rounds, cell.seed)
    player = POLICIES[cell.policy](cell.rounds, cell.seed)
    even = float(player.even_charges(cell.rounds)[0])
    spent, skipped, index = 0.0, 0, 0
    begun = time.perf_counter()
    while index < cell.rounds:
        plan = player.ask(environment.context(index))
        if plan is None:
            break
        player.tell(plan, reward=environment.play(plan.round, plan.charge / even))
        spent, skipped, index = spent + plan.charge, skipped + plan.skip, index + 1
    seconds = time.perf_counter() - begun
    optimum = environment.optimum()
    return {
        **cell._asdict(),
        "total": environment.total,
        "optimum": optimum,
        "ratio": environment.total / optimum,
        "regret": optimum - environment.total,
        "rounds_played": index,
        "rounds_skipped": skipped,
        "budget_spent": spent / (even * cell.rounds),
        "seconds": seconds,
        "code": fingerprint(cell.policy),
    }


@cache
def fingerprint(name: str) -> str:
    """Of all code that decides what this policy does in these environments."""
    return digest_of((environments, policy, *_MADE_OF.get(name, (schedules,))))


def digest_of(modules: Iterable[ModuleType]) -> str:
    """Of the code of modules, without docstrings and comments."""
    digest = hashlib.sha256()
    for module in modules:
        tree = ast.parse(inspect.getsource(module))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""  # a docstring, or nothing
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


class Results:
    """Results on the disk, one a line; what is there is not played again."""

    def __init__(self, path: Path, *, any_code: bool = False) -> None:
        self.path, self.any_code = path, any_code
        self._known: dict[Cell, dict[str, Any]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                row = json.loads(line)
                self._known[Cell(*(row[name] for name in Cell._fields))] = row
            except (ValueError, KeyError):
                continue  # cut short by a kill

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """What is known of a run, if the code is still the same or does not matter."""
        row = self._known.get(cell)
        if row is None or self.any_code:
            return row
        return row if row["code"] == fingerprint(cell.policy) else None

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those not played yet."""
        return [cell for cell in cells if self.get(cell) is None]

    def fill(self, cells: Iterable[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Play what is missing, and write each result down as it comes."""
        wanted = self.missing(cells)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for cell, row in _played(wanted, jobs):
                self._known[cell] = row
                file.write("\n" * (file.tell() > 0) + json.dumps(row))
                file.flush()
                yield cell, row


def _played(cells: list[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if jobs <= 1:
        for cell in cells:
            yield cell, play(cell)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(play, cell): cell for cell in cells}
        for done in as_completed(running):
            yield running[done], done.result()
