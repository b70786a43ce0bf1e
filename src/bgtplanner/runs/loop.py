"""The loop of every run, in simulation or on real machines.

It plans and plays a round, records it, writes checkpoints, and stops on request; or it continues
from a checkpoint.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, InterruptedRunError, RunFolderError, SchemaError
from bgtplanner.federation.compilation import begin_run
from bgtplanner.federation.coordinator import Coordinator, Engine
from bgtplanner.federation.result import RoundResult
from bgtplanner.privacy.ledger import Head
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.interrupts import stop_requests
from bgtplanner.runs.observers import RoundObserver
from bgtplanner.runs.summary import most_spent, reaches_target

_LARGEST = 1e15  # figure in a file
_MOST_SECONDS = 1e12  # longer than any run
_NOT_OF_THIS_RUN = (AttributeError, RecursionError, TypeError, ValueError)


class Run:
    """A run in progress: its engine, its coordinator, and its record so far."""

    def __init__(
        self,
        config: Config,
        simulation: Engine,
        observer: RoundObserver | None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        begin_run()
        self.config, self.simulation, self.observer = config, simulation, observer
        self.stop = stop  # asked after every round, besides signals
        self.checkpoint_every = config.run.checkpoint_every
        self.records: list[dict[str, Any]] = []
        self.seconds_before = 0.0
        self.planned: Coordinator | None = None
        self._looked = 0  # at how many records, for the target
        self._reached = False

    def close(self) -> None:
        """Close the ledger."""
        if self.planned is not None:
            self.planned.ledger.close()

    def restore(self, checkpoint: dict[str, NDArray[Any]]) -> None:
        """Restore the state from a checkpoint, after checking that it belongs to this run."""
        total = self.config.federation.rounds
        for name, kinds, most in (("seconds", "iuf", _MOST_SECONDS), ("next_round", "iu", total)):
            entry = checkpoint.get(name, np.zeros((), dtype=np.int64))
            if entry.shape != () or entry.dtype.kind not in kinds or not 0 <= entry <= most:
                raise RunFolderError(f"checkpoint entry '{name}' is not one of this run")
        self.seconds_before = float(checkpoint.pop("seconds", np.zeros(())))
        planned = checkpoint.pop("planned", None)
        self.simulation.restore(checkpoint)
        if self.planned is not None:
            try:
                state = json.loads(bytes(np.asarray(planned, dtype=np.uint8)))
                self.planned.ledger.check_head(Head.parse(state.pop("head")))
                self.planned.load_state_dict(state)
            except SchemaError:
                raise
            except (ArithmeticError, LookupError, *_NOT_OF_THIS_RUN) as error:
                why = f": {error}" if isinstance(error, ConfigError) else ""
                raise RunFolderError(
                    f"checkpoint entry 'planned' is not one of this run{why}"
                ) from error

    def _arrays(self, seconds: float) -> dict[str, NDArray[Any]]:
        """All the state that a later process needs to resume."""
        arrays = self.simulation.arrays() | {"seconds": np.asarray(seconds)}
        if self.planned is not None:
            state = self.planned.state_dict() | {"head": str(self.planned.ledger.head)}
            arrays["planned"] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
        return arrays

    def step(self) -> RoundResult | None:
        """Plan and play a round; None if there is no round left.

        Once the target is reached, nothing is spent any more.
        """
        if self.planned is None:
            raise ConfigError("the run has no ledger to pay from")
        begun = time.perf_counter()
        self.planned.over |= self.reached()
        played = self.planned.step()
        if played is None:
            return None
        return replace(
            played,
            spent=most_spent(self.planned.spending()),
            left=self.planned.policy.share_left().tolist(),
            seconds=time.perf_counter() - begun,
        )

    def check(self) -> None:
        """Raise an error if the run must not continue after a round."""

    def measured(self, index: int) -> dict[str, float]:
        """Further figures of a round that has just been played, for its record."""
        del index
        return {}

    def carry_out(self, folder: RunFolder | None = None) -> float:
        """Play all remaining rounds, and return how many seconds the run has taken in total."""
        total, started = self.config.federation.rounds, time.perf_counter()

        def save() -> None:
            if folder is not None:
                folder.write_checkpoint(self._arrays(seconds()))

        def seconds() -> float:
            return self.seconds_before + time.perf_counter() - started

        with stop_requests(active=folder is not None) as asked:
            while not self._over():
                played = self.step()
                if played is None:
                    if self.records:
                        save()
                    break
                self.check()
                record = _bounded(played.as_json()) | self.measured(played.round)
                self.records.append(record)
                # Read once: a later request is for the next round.
                stopping = asked.is_set() or (self.stop is not None and self.stop())
                done = self.simulation.next_round
                if folder is not None:
                    folder.append_round(record)
                if done % self.checkpoint_every == 0 or stopping or self._over():
                    save()
                if self.observer is not None:
                    self.observer.round(record, total)
                if stopping and folder is not None and not self._over():
                    raise InterruptedRunError(
                        f"stopped after round {done} of {total}; continue with: "
                        f"{folder.resume_command}"
                    )
        if not self.records:
            raise ConfigError("the budget cannot pay for a single round; give a larger --epsilon")
        return seconds()

    def reached(self) -> bool:
        """Whether a round has reached the target, if there is one."""
        later = self.records[self._looked :]
        self._looked = len(self.records)
        self._reached |= any(reaches_target(self.config, record) for record in later)
        return self._reached

    def _over(self) -> bool:
        """Whether there is no round left: a reached target ends a run that serves no one after."""
        done = self.simulation.next_round >= self.config.federation.rounds
        served = self.config.planning.objective == "served"
        rests = served and self.config.federation.after_budget == "rest"
        return done or (self.reached() and not rests)


def _bounded(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a round; a score beyond what a number holds is written as the largest."""
    return {
        name: _LARGEST if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
