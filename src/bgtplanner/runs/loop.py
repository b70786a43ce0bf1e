"""The loop of every run: plan, play, record, save, stop and go on.

It is the same for a simulation, for a training whose model is published, and on real machines.
They differ in the engine that plays a round, and in where the state is kept.
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
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.split import Split
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
from bgtplanner.runs import summary
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.result import Result

_LARGEST = 1e15  # figure in a file
_LOST = 1e6  # no parameter that predicts ratings from 0 to 1 is anywhere near
_UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
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


class Run:
    """A run in progress: its engine, its coordinator, its folder if it has one, and its record."""

    checkpoint_every = 1  # round: where clients have paid, none is played twice

    def __init__(self, config: Config, engine: Engine, observer: Observer | None) -> None:
        begin_run()
        self.config, self.engine, self.observer = config, engine, observer
        self.folder: RunFolder | None = None
        self.planned: Coordinator | None = None
        self.records: list[dict[str, Any]] = []
        self.seconds_before = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.planned is not None:
            self.planned.ledger.close()

    def saved(self) -> dict[str, NDArray[Any]] | None:
        """Return the state that was saved last, if there is one."""
        return None if self.folder is None else self.folder.checkpoint()

    def save(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Write all the state that a later process needs to go on."""
        if self.folder is not None:
            self.folder.write_checkpoint(arrays)

    @property
    def kept(self) -> str | None:
        """What continues the run, if its state is kept anywhere."""
        return None if self.folder is None else self.folder.resume_command

    def go_on(self) -> None:
        """Continue from the state that was saved, after checking that it belongs to this run."""
        if (arrays := self.saved()) is not None:
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
            except _UNFIT as error:
                why = f" ({error})" if isinstance(error, ConfigError) else ""
                problem = f"the checkpoint is not one of this run{why}"
                raise RunFolderError(problem) from error
        if self.folder is not None:
            self.records = self.folder.keep_rounds(self.engine.next_round)

    def step(self) -> RoundResult | None:
        """Plan and play a round; None if there is none left."""
        if self.planned is None:
            raise ConfigError("the run has no ledger to pay from")
        played = self.planned.step()
        if played is None:
            return None
        left = self.planned.policy.share_left().tolist()
        return replace(played, spent=summary.most_spent(self.planned.spending()), left=left)

    def tell(self, record: Mapping[str, Any]) -> None:
        """Tell the observer about a round that was played and saved."""
        if self.observer is not None:
            self.observer.round(record, self.config.federation.rounds)

    def inspected(self, index: int) -> dict[str, float]:  # noqa: ARG002
        """Return further figures of a round that was just played."""
        return {}

    def carry_out(self) -> float:
        """Play all remaining rounds, and return how many seconds the run has taken in total."""
        total, started = self.config.federation.rounds, time.perf_counter() - self.seconds_before
        with stop_requests(active=self.kept is not None) as asked:
            while not self._over():
                begun = time.perf_counter()
                if (played := self.step()) is None:
                    break
                record = self._record(replace(played, seconds=time.perf_counter() - begun))
                stopping = asked.is_set()  # read once: a later request is for the next round
                done = self.engine.next_round
                if self.folder is not None:
                    self.folder.append_round(record)
                if self.kept and (done % self.checkpoint_every == 0 or stopping or self._over()):
                    self.save(self._state(time.perf_counter() - started))
                self.tell(record)
                if stopping and self.kept and not self._over():
                    raise InterruptedRunError(
                        f"stopped after round {done} of {total}; continue with: {self.kept}"
                    )
        if not self.engine.next_round:
            raise ConfigError("the budget cannot pay for a single round; give a larger --epsilon")
        return time.perf_counter() - started

    def _state(self, seconds: float) -> dict[str, NDArray[Any]]:
        arrays = self.engine.arrays() | {"seconds": np.asarray(seconds)}
        if self.planned is not None:
            state = self.planned.state_dict() | {"head": str(self.planned.ledger.head)}
            arrays["planned"] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
        return arrays

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
        return record

    def _over(self) -> bool:
        """Whether there is no round left."""
        return self.engine.next_round >= self.config.federation.rounds

    def spending(self, split: Split | None, clients: int | None = None) -> dict[str, Any]:
        """Return what was promised and spent, and what the planner has to say."""
        if self.planned is None:
            return {}
        found = summary.spending_of(self.config, self.planned.ledger, split, self.records, clients)
        return found | {"planner_note": self.planned.policy.note}


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
