"""Our side: the part of a private round that the others do, and the whole round."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.task import MODEL, Task
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.federation.compilation import compiled
from bgtplanner.federation.parameters import RoundParameters, round_parameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation, Uploaded
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.interactions import laid_out
from bgtplanner.models.optimizers import Server
from bgtplanner.privacy.accountants import accountant_named

_CHARGE = 1.0  # of a round, in the accountant's currency; how large it is costs no time


class Ours:
    """The part of a round that is the task, and `Simulation.step`, which is the whole of it."""

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
        self.where = jax.devices("cpu")[0]
        self.interactions = laid_out(ratings)
        self._start()
        clients = task.clients
        self.terms = round_parameters(
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

    def _uploaded(self, terms: RoundParameters) -> Uploaded:
        simulation, index = self.simulation, np.int32(0)
        program = compiled(
            Federation.uploaded, simulation.federation, self.where, quickly=False, shows=False
        )
        arguments = (simulation.state, self.interactions, index, jax.random.key(1), terms)
        found: Uploaded = program(*arguments)
        return found

    def sum(self) -> NDArray[np.float32]:
        """Return the sum of clipped uploads: the task with no noise, from the task's rows."""
        self._start()
        terms = self.terms._replace(scale=jnp.zeros(1), share=None, step=None)
        gradient = self._uploaded(terms).released.aggregate.gradient
        mean = np.concatenate([np.ravel(part) for part in gradient])
        return mean.reshape(self.task.rows.shape) * self.task.clients

    def round(self) -> None:
        """Do the task, with noise: what a round does up to the server's step."""
        jax.block_until_ready(self._uploaded(self.terms))

    def whole_round(self) -> None:
        """Run a round: the task, the server's step, and users who are solved for anew."""
        self.simulation.step(self.terms)
        jax.block_until_ready(self.simulation.state)
