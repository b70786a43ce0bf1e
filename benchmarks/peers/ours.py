"""Our side: a whole private round of the package, the server's step included."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.task import MODEL, Task
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.federation.protection import Protection, terms_of
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.server import Server
from bgtplanner.federation.simulation import Simulation
from bgtplanner.privacy.accountants import accountant_named

_CHARGE = 1.0  # of a round, in the accountant's currency; how large it is costs no time


class Ours:
    """`Simulation.step`: it also solves for the users anew, and takes the server's step."""

    def __init__(self, task: Task, ratings: Ratings) -> None:
        one = ratings.take(np.arange(1))  # next to no evaluation: the others have none
        split = Split(train=ratings, test=one, arrival=np.zeros(len(ratings), np.int32))
        federation = Federation(
            model=MODEL,
            server=Server(),
            protection=Protection(mechanism="gaussian", trust="secagg"),
        )
        self.task = task
        self.simulation = Simulation(federation, split, seed=0, device="cpu")
        self._start()
        clients = task.clients
        self.terms = terms_of(
            accountant_named("gaussian/gdp"),
            "secagg",
            task.clip,
            np.array([_CHARGE]),
            np.ones(clients, dtype=bool),
            np.zeros(clients, dtype=np.int32),
            neighbours="replace-special",
        )

    def _start(self) -> None:
        arrays = self.simulation.arrays()
        self.simulation.restore(arrays | {"shared/items": self.task.rows})

    def sum(self) -> NDArray[np.float32]:
        """Return the sum of clipped uploads: a round with no noise, from the task's rows."""
        self._start()
        terms = self.terms._replace(scale=jnp.zeros(1), share=None, step=None)
        self.simulation.step(terms)
        total = self.simulation.seen.aggregate.reshape(self.task.rows.shape) * self.task.clients
        self._start()
        return total

    def round(self) -> None:
        """Run a round, with noise."""
        self.simulation.step(self.terms)
        jax.block_until_ready(self.simulation.state)
