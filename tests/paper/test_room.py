"""The core works without the paper's room: nothing of it is imported, and nothing is missing."""

from __future__ import annotations

import os
import subprocess
import sys

WITHOUT = """
import importlib
import importlib.abc
import pkgutil
import sys
from importlib import metadata


class Closed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "bgtplanner.paper" or name.startswith("bgtplanner.paper."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Closed())
metadata.entry_points = lambda **_: ()  # no plugin is installed
try:
    import bgtplanner.paper
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("the room is open")
"""

PLAYS = """
import numpy as np

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import split_ratings
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.models.optimizers import Server
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.factorization import Factorization
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

user, item = np.divmod(np.arange(12), 3)
ratings = Ratings.from_arrays(
    user, item, 1 + (user + item) % 5, users=range(4), items=range(3), scale=(0, 5)
)
federation = Federation(
    model=Factorization(dim=0),
    server=Server(optimizer="sgd", aggregation="clients", item_prior=0.0),
    protection=Protection(mechanism="laplace"),
)
ledger = Ledger.in_memory(Budgets.same(Budget(1.0, 1e-5), 4), "laplace/basic")
coordinator = Coordinator(
    Simulation(federation, split_ratings(ratings, seed=0, rounds=2), seed=0, device="cpu"),
    Uniform(ledger=ledger, rounds=2),
    ledger,
    trust="local",
    run="tiny",
    mark=b"tiny",
    stops=True,
)
while (record := coordinator.step()) is not None:
    assert np.isfinite(record.metrics.rmse)
assert coordinator.engine.next_round == 2
assert np.allclose(ledger.epsilon_spent(), 1.0)
"""


def test_the_core_works_without_the_paper() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + PLAYS + "\nassert 'bgtplanner.paper' not in sys.modules"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert done.returncode == 0, done.stderr
