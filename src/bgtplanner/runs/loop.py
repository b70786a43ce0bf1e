"""The loop of every run: plan, play, record, save, stop and go on.

It is the same for a simulation, for a training whose model is published, and on real machines.
They differ in the engine that plays a round, and in the place where the state is kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import (
    ConfigError,
    InterruptedRunError,
    RunFolderError,
    TrainingDivergedError,
)
from bgtplanner.federation.compilation import begin_run
from bgtplanner.federation.coordinator import Coordinator, Engine
from bgtplanner.federation.result import RoundResult
from bgtplanner.privacy.ledger import Head
from bgtplanner.runs.config import Config
from bgtplanner.runs.summary import most_spent, reaches_target

if TYPE_CHECKING:
    from bgtplanner.data.split import Split
    from bgtplanner.runs.result import Result

_LARGEST = 1e15  # figure in a file
_LOST = 1e6  # no parameter that predicts ratings from 0 to 1 is anywhere near
_NOT_OF_THIS_RUN = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
_heard: list[threading.Event] = []  # the event that signals set now, if any


class Observer(Protocol):
    """Observes a run; a subclass overrides only the methods that it needs.

    It sees no rating, no item, nothing that was not released. A run on real machines only has
    rounds.
    """

    def started(self, config: Config, split: Split, first: int) -> None:
        """The data are ready; training starts at round `first`."""
        del config, split, first

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """A round is over; the record is what ``rounds.jsonl`` holds."""

    def finished(self, result: Result) -> None:
        """The run is done."""
        del result


class Place(Protocol):
    """Where the state of a run is kept: a run folder, or the file beside a model."""

    @property
    def resume_command(self) -> str: ...
    def append_round(self, record: Mapping[str, Any]) -> None: ...
    def keep_rounds(self, number: int) -> list[dict[str, Any]]: ...
    def write_checkpoint(self, arrays: Mapping[str, NDArray[Any]]) -> None: ...
    def checkpoint(self) -> dict[str, NDArray[Any]] | None: ...


class Run:
    """A run in progress: its engine, its coordinator, and its record so far."""

    def __init__(self, config: Config, engine: Engine, observer: Observer | None) -> None:
        begin_run()
        self.config, self.engine, self.observer = config, engine, observer
        self.checkpoint_every = config.run.checkpoint_every
        self.records: list[dict[str, Any]] = []
        self.seconds_before = 0.0
        self.planned: Coordinator | None = None
        self.reached = False  # whether a round has reached the target, if there is one

    def close(self) -> None:
        """Close the ledger."""
        if self.planned is not None:
            self.planned.ledger.close()

    def go_on(self, place: Place) -> None:
        """Continue from the checkpoint, if there is one."""
        if (checkpoint := place.checkpoint()) is not None:
            self._restore(checkpoint)
        self.records = place.keep_rounds(self.engine.next_round)
        self.reached = any(reaches_target(self.config, record) for record in self.records)

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the state from a checkpoint, after checking that it belongs to this run."""
        try:
            played, seconds = int(arrays["next_round"]), float(arrays.pop("seconds", 0.0))
            if not (0 <= played <= self.config.federation.rounds and 0 <= seconds <= _LARGEST):
                raise ValueError("no number of rounds, or of seconds")
            planned, self.seconds_before = arrays.pop("planned", None), seconds
            self.engine.restore(arrays)
            if self.planned is not None:
                state = json.loads(bytes(np.asarray(planned, dtype=np.uint8)))
                self.planned.ledger.check_head(Head.parse(state.pop("head")))
                self.planned.load_state_dict(state)
        except RunFolderError:
            raise
        except _NOT_OF_THIS_RUN as error:
            why = f" ({error})" if isinstance(error, ConfigError) else ""
            raise RunFolderError(f"the checkpoint is not one of this run{why}") from error

    def _save(self, place: Place, seconds: float) -> None:
        """Write all the state that a later process needs to go on."""
        arrays = self.engine.arrays() | {"seconds": np.asarray(seconds)}
        if self.planned is not None:
            state = self.planned.state_dict() | {"head": str(self.planned.ledger.head)}
            arrays["planned"] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
        place.write_checkpoint(arrays)

    def step(self) -> RoundResult | None:
        """Plan and play a round; None if there is none left. A reached target ends spending."""
        if self.planned is None:
            raise ConfigError("the run has no ledger to pay from")
        self.planned.over |= self.reached
        played = self.planned.step()
        if played is None:
            return None
        left = self.planned.policy.share_left().tolist()
        return replace(played, spent=most_spent(self.planned.spending()), left=left)

    def inspected(self, index: int) -> dict[str, float]:  # noqa: ARG002
        """Return further figures of a round that was just played."""
        return {}

    def carry_out(self, place: Place | None = None) -> float:
        """Play all remaining rounds, and return how many seconds the run has taken in total."""
        total, started = self.config.federation.rounds, time.perf_counter() - self.seconds_before
        with stop_requests(active=place is not None) as asked:
            while not self._over():
                begun = time.perf_counter()
                if (played := self.step()) is None:
                    break
                record = self._record(replace(played, seconds=time.perf_counter() - begun))
                stopping = asked.is_set()  # read once: a later request is for the next round
                done = self.engine.next_round
                if place is not None:
                    place.append_round(record)
                    if done % self.checkpoint_every == 0 or stopping or self._over():
                        self._save(place, time.perf_counter() - started)
                if self.observer is not None:
                    self.observer.round(record, total)
                if stopping and place is not None and not self._over():
                    raise InterruptedRunError(
                        f"stopped after round {done} of {total}; continue with: "
                        f"{place.resume_command}"
                    )
        if not self.engine.next_round:
            raise ConfigError("the budget cannot pay for a single round; give a larger --epsilon")
        return time.perf_counter() - started

    def _record(self, played: RoundResult) -> dict[str, Any]:
        """Note a round, unless the run must not go on after it.

        Whether the model is lost, and the run with it, what was released says, not a test.
        """
        if not all((np.abs(np.asarray(of)) < _LOST).all() for of in self.engine.state.shared):
            raise TrainingDivergedError(  # NaN is not below it, either
                f"training diverged in round {self.engine.next_round}: the model's parameters "
                "grow without end. Try a smaller server.learning_rate "
                f"(now {self.config.server.learning_rate:g})"
            )
        figures = played.as_json() | self.inspected(played.round)
        record = {  # the largest, if a score is beyond what a number holds
            name: _LARGEST if isinstance(of, float) and not math.isfinite(of) else of
            for name, of in figures.items()
        }
        self.records.append(record)
        self.reached |= reaches_target(self.config, record)
        return record

    def _over(self) -> bool:
        """Whether there is no round left: a reached target ends a run that serves no one after."""
        done = self.engine.next_round >= self.config.federation.rounds
        rests = self.config.federation.after_budget == "rest"
        served = self.config.planning.objective == "served"
        return done or (self.reached and not (served and rests))


@contextlib.contextmanager
def stop_requests(*, active: bool) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that a run can end between two rounds.

    A second request interrupts at once, as Ctrl-C usually does. A Ctrl-C that is ignored stays
    ignored: a shell that starts a run in the background wants it to survive one in the foreground.
    A run within a study shares the event of the study.
    """
    active = active and threading.current_thread() is threading.main_thread()
    stop = _heard[0] if active and _heard else threading.Event()
    if not active or _heard:
        yield stop
        return

    def request(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    numbers = [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]
    old = {number: signal.signal(number, request) for number in numbers}
    _heard.append(stop)
    try:
        yield stop
    finally:
        _heard.clear()
        for number, handler in old.items():
            signal.signal(number, handler)
