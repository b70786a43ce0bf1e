"""Kill a client with kill -9 at every write of every step of a sum, and ask it again.

Usage: python killed_sums.py FOLDER

A process of its own, which forks for every question: no thread may be running. Prints what became
of the client, as JSON, for each write at which it was killed, and of one that pays too late.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bgtplanner.errors import BGTPlannerError
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.aggregation.neighbourhood import Ring
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.flower.client import Client
from bgtplanner.flower.messages import Request, SumStep
from bgtplanner.privacy._journal import Journal
from games.summing import Table, known, stand_in, write_summing

ROUND = 1


class PaysAfterwards(Client):
    """Stores its masked upload, and writes the charge down after that."""

    def _pay(self, ledger: Any, request: Request) -> Any:
        guard = Randomizer(ledger, trust="secagg")
        guard._paid[-1] = request.charge
        guard.settle = lambda _: Client._pay(self, ledger, request)  # type: ignore[method-assign]
        return guard, SimpleNamespace(number=-1)


class Writes:
    """Counts what reaches the disk in this process, and ends it at one of them."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at, self.done = stop_at, 0
        for name in ("replace", "unlink"):
            setattr(Path, name, self._around(getattr(Path, name)))
        opened, writing = Path.open, Journal.writing

        def opens(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
            if mode == "xb":
                self.passed()
            return opened(path, mode, *args, **options)

        @contextlib.contextmanager
        def writes(journal: Journal) -> Iterator[None]:
            with writing(journal):
                self.passed()
                yield
                self.passed()
            self.passed()

        Path.open, Journal.writing = opens, writes  # type: ignore[method-assign]

    def _around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.passed()
            found = real(*args, **options)
            self.passed()
            return found

        return call

    def passed(self) -> None:
        self.done += 1
        if self.done == self.stop_at:
            os.kill(os.getpid(), signal.SIGKILL)


def ask(table: Table, place: int, steps: list[SumStep], stop_at: int = 0) -> Any:
    """What a client says to each of these, and in how many writes; None if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        writes, said = Writes(stop_at), list[str]()
        for step in steps:
            try:
                said.append(table.step(place, step).hex())
            except BGTPlannerError:
                said.append("refused")
            except BaseException as error:
                said.append(repr(error))
        os.write(writing, json.dumps([said, writes.done]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return json.loads(answer) if status == 0 else None


def killed(table: Table, place: int, step: SumStep, stop_at: int) -> dict[str, Any]:
    """What becomes of a client after it was killed; its user goes on rating."""
    assert ask(table, place, [step], stop_at) is None
    local = known(table.state(place) / "local.npz")
    table.rate(place, "u0,c,1\n")
    asked = table.round(ROUND)
    other = asked.step(step.step, step.message + b"0")
    if step.step == "keys":
        other = asked.sealed(dropouts=0).step("keys")
    following = table.round(ROUND + 1).step("keys")
    said, _ = ask(table, place, [step, step, other, step, following])
    return {
        "step": step.step,
        "at": stop_at,
        "local": local,
        "answers": said[:2],
        "other": said[2],
        "after": said[3],
        "next": said[4],
        "paid": table.paid(place).count(("run", ROUND)),
    }


def kills(home: Path, kind: type[Client], steps: Sequence[str]) -> list[dict[str, Any]]:
    """What becomes of a client of some kind, for each write of these steps."""
    table, found = Table(write_summing(home), kind), list[dict[str, Any]]()
    with stand_in():
        table.play(table.round(ROUND - 1))
        asked = table.round(ROUND)
        place = min(ring_of(asked.agreed).witnesses)
        for name in steps:
            table.play(asked, until=name)  # what was answered is repeated
            folder, copy = table.home / str(place), home / f"before {name}"
            shutil.copytree(folder, copy)
            step = asked.step(name, table.got[place, name])
            _, writes = ask(table, place, [step])
            for stop_at in range(1, writes + 1):
                shutil.rmtree(folder)
                shutil.copytree(copy, folder)
                found.append(killed(table, place, step, stop_at))
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
    return found


def ring_of(agreed: SumRequest) -> Ring:
    return Ring(agreed.members, agreed.session, agreed.dropouts, agreed.colluders)


def main(home: Path) -> None:
    late = kills(home / "late", PaysAfterwards, ["upload"])
    print(json.dumps({"Client": kills(home / "real", Client, STEPS), "PaysAfterwards": late}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
