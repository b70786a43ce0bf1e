"""The loop of every run, in simulation or on real machines: play, record, save, stop, go on."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, InterruptedRunError, RunFolderError
from bgtplanner.federation.compilation import begin_run
from bgtplanner.federation.coordinator import Coordinator, Engine
from bgtplanner.federation.result import RoundResult
from bgtplanner.privacy.ledger import Head
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.interrupts import stop_requests
from bgtplanner.runs.observers import Observer
from bgtplanner.runs.summary import most_spent, reaches_target

_LARGEST = 1e15  # figure in a file
_NOT_OF_THIS_RUN = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)


class Run:
    """A run in progress: its engine, its coordinator, and its record so far."""

    def __init__(self, config: Config, simulation: Engine, observer: Observer | None) -> None:
        begin_run()
        self.config, self.simulation, self.observer = config, simulation, observer
        self.checkpoint_every = config.run.checkpoint_every
        self.records: list[dict[str, Any]] = []
        self.seconds_before = 0.0
        self.planned: Coordinator | None = None
        self.reached = False  # whether a round has reached the target, if there is one

    def close(self) -> None:
        """Close the ledger."""
        if self.planned is not None:
            self.planned.ledger.close()

    def go_on(self, folder: RunFolder) -> None:
        """Continue from the checkpoint in a folder, if there is one."""
        if (checkpoint := folder.checkpoint()) is not None:
            self.restore(checkpoint)
        self.records = folder.keep_rounds(self.simulation.next_round)
        self.reached = any(reaches_target(self.config, record) for record in self.records)

    def restore(self, checkpoint: dict[str, NDArray[Any]]) -> None:
        """Restore the state from a checkpoint, after checking that it belongs to this run."""
        name = "next_round"
        try:
            _within(int(checkpoint[name]), self.config.federation.rounds)
            name = "seconds"
            self.seconds_before = _within(float(checkpoint.pop(name, np.zeros(()))), _LARGEST)
            planned = checkpoint.pop("planned", None)
            self.simulation.restore(checkpoint)
            if self.planned is not None:
                name = "planned"
                state = json.loads(bytes(np.asarray(planned, dtype=np.uint8)))
                self.planned.ledger.check_head(Head.parse(state.pop("head")))
                self.planned.load_state_dict(state)
        except RunFolderError:
            raise
        except _NOT_OF_THIS_RUN as error:
            why = f": {error}" if isinstance(error, ConfigError) else ""
            raise RunFolderError(
                f"checkpoint entry '{name}' is not one of this run{why}"
            ) from error

    def _save(self, folder: RunFolder | None, seconds: float) -> None:
        """Write all the state that a later process needs to resume."""
        if folder is None:
            return
        arrays = self.simulation.arrays() | {"seconds": np.asarray(seconds)}
        if self.planned is not None:
            state = self.planned.state_dict() | {"head": str(self.planned.ledger.head)}
            arrays["planned"] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
        folder.write_checkpoint(arrays)

    def step(self) -> RoundResult | None:
        """Plan and play a round; None if there is none left. A reached target ends spending."""
        if self.planned is None:
            raise ConfigError("the run has no ledger to pay from")
        begun = time.perf_counter()
        self.planned.over |= self.reached
        played = self.planned.step()
        if played is None:
            return None
        return replace(
            played,
            spent=most_spent(self.planned.spending()),
            left=self.planned.policy.share_left().tolist(),
            seconds=time.perf_counter() - begun,
        )

    def inspected(self, index: int) -> dict[str, float]:  # noqa: ARG002
        """Further figures of a round just played; raises an error if the run must not go on."""
        return {}

    def carry_out(self, folder: RunFolder | None = None) -> float:
        """Play all remaining rounds, and return how many seconds the run has taken in total."""
        total, started = self.config.federation.rounds, time.perf_counter() - self.seconds_before
        with stop_requests(active=folder is not None) as asked:
            while not self._over():
                played = self.step()
                if played is None:
                    if self.records:
                        self._save(folder, time.perf_counter() - started)
                    break
                extra = self.inspected(played.round)
                record: dict[str, Any] = {  # the largest, if a score is beyond what a number holds
                    name: _LARGEST if isinstance(of, float) and not math.isfinite(of) else of
                    for name, of in (played.as_json() | extra).items()
                }
                self.records.append(record)
                self.reached |= reaches_target(self.config, record)
                # Read once: a later request is for the next round.
                stopping = asked.is_set()
                done = self.simulation.next_round
                if folder is not None:
                    folder.append_round(record)
                if done % self.checkpoint_every == 0 or stopping or self._over():
                    self._save(folder, time.perf_counter() - started)
                if self.observer is not None:
                    self.observer.round(record, total)
                if stopping and folder is not None and not self._over():
                    raise InterruptedRunError(
                        f"stopped after round {done} of {total}; continue with: "
                        f"{folder.resume_command}"
                    )
        if not self.records:
            raise ConfigError("the budget cannot pay for a single round; give a larger --epsilon")
        return time.perf_counter() - started

    def _over(self) -> bool:
        """Whether there is no round left: a reached target ends a run that serves no one after."""
        done = self.simulation.next_round >= self.config.federation.rounds
        rests = self.config.federation.after_budget == "rest"
        served = self.config.planning.objective == "served"
        return done or (self.reached and not (served and rests))


def _within(value: float, most: float) -> float:
    """Return a number from 0 to `most`, and no other."""
    if not 0 <= value <= most:
        raise ValueError(value)
    return value
