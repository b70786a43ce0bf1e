"""Kill -9 at any instant: what was released is in the ledger, and no more than was reserved.

The tests start this file as a program. It imports the package once and forks children that spend
from a ledger; each is killed, and the file it leaves behind is opened and checked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import BudgetExceeded
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Head, Ledger

BUDGET = 2.0
KILLS = 210
STEPS = [
    ("before", "BEGIN IMMEDIATE"),
    ("after", "BEGIN IMMEDIATE"),
    ("before", "INSERT"),
    ("after", "INSERT"),
    ("before", "COMMIT"),
    ("after", "COMMIT"),
    ("before", "release"),
    ("after", "release"),
]
BOOKED = STEPS.index(("after", "COMMIT"))  # from here on the charge is in the file
RELEASED = STEPS.index(("after", "release"))
CREATION = ["link", "after link"]


def test_killed_at_random(tmp_path: Path) -> None:
    found = driven("random", tmp_path)
    assert found["kills"] >= 200
    assert found["problems"] == []
    # The kills did hit: work was done, cut off in the middle, and carried on until the end.
    assert found["released"] > found["kills"]
    assert found["cut_off"] > 10
    assert found["files"] > 1


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return driven("steps", tmp_path_factory.mktemp("steps"))


def test_killed_at_each_step_of_reserving(steps: Any) -> None:
    for index, (when, what) in enumerate(STEPS):
        report = steps["reserve"][index]
        assert report["released"] == (1.0 if index >= RELEASED else 0.0), (when, what)
        assert report["spent"] == (1.0 if index >= BOOKED else 0.0), (when, what)
        assert report["unsettled"] == int(index >= BOOKED), (when, what)
        # Asked for again: no further charge if it was booked.
        assert report["repeated"] == (index >= BOOKED), (when, what)
        assert report["spent_after"] == 1.0, (when, what)


def test_killed_at_each_step_of_settling(steps: Any) -> None:
    for index, report in enumerate(steps["settle"]):
        assert report["spent"] == report["released"] == 1.0, STEPS[index]
        assert report["unsettled"] == int(index < BOOKED), STEPS[index]


def test_killed_while_creating(tmp_path: Path) -> None:
    found = driven("creation", tmp_path)
    assert found == {"link": [False, True], "after link": [True, True]}


def driven(what: str, folder: Path) -> Any:
    from processes import Processes  # which the other process cannot see

    with Processes() as processes:
        result = processes.run(
            [sys.executable, "-W", "ignore", __file__, what, folder],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    if result.returncode:
        pytest.fail(result.stderr)
    return json.loads(result.stdout)


# ---- what runs in the other process


class Release:
    """A file to which whatever leaves the client is appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def send(self, charge: float) -> None:
        with self.path.open("a") as file:
            file.write(f"{charge!r}\n")
            file.flush()
            os.fsync(file.fileno())

    def total(self) -> float:
        return sum(map(float, self.path.read_text().splitlines())) if self.path.exists() else 0.0


def forked(work: Callable[[], None]) -> int:
    """A child that does this work and ends; returns its process number."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return child


def spend(path: Path, release: Release, seed: int, progress: int) -> None:
    """Reserve, release, settle, until it is killed or nothing is left."""
    generator = random.Random(seed)
    with Ledger.open(path) as ledger:
        for number in range(10**6):
            os.write(progress, b".")
            charge = generator.randint(1, 64) / 512
            try:
                reservation = ledger.reserve(charge, run=f"run {seed}", round=number)
            except BudgetExceeded:
                return
            os.write(progress, b".")
            release.send(charge)
            os.write(progress, b".")
            ledger.settle(reservation)


def checked(path: Path, release: Release, head: Head) -> tuple[list[str], Head, float]:
    """What is wrong with the file after a kill; its head, and what is reserved but not settled."""
    problems = []
    with Ledger.open(path, head=head) as ledger:  # a row that was once seen is never lost
        rows = ledger.verify(head)
        spent = float(ledger.spent()[0, 0]) * TICK
        history = list(ledger.history())
        open_ = [entry["charge_most"] for entry in history if entry.get("settled") is False]
        released = release.total()
        if rows != ledger.head.number + 1:
            problems.append(f"{rows} rows, but the newest is {ledger.head.number}")
        if len(open_) != ledger.unsettled:
            problems.append(f"{ledger.unsettled} unsettled, but {len(open_)} in the history")
        if spent < released:
            problems.append(f"released {released}, but only {spent} is booked")
        if spent > released + sum(open_):
            problems.append(f"booked {spent}, released {released}, reserved {sum(open_)}")
        if spent > BUDGET:
            problems.append(f"booked {spent} of {BUDGET}")
        return problems, ledger.head, sum(open_)


def kill_at_random(folder: Path) -> dict[str, Any]:
    """Kill until it was often enough: one ledger after another, each until nothing is left."""
    generator = random.Random(20_240)
    problems: list[str] = []
    released, cut_off, files, kills = 0, 0, 0, 0
    while kills < KILLS:
        path, release = folder / f"{files}.sqlite", Release(folder / f"{files}.released")
        files += 1
        with Ledger.create(path, Budgets.same(Budget(BUDGET), 1), "laplace/basic") as ledger:
            head = ledger.head
        status, open_before = -signal.SIGKILL, 0.0
        while status == -signal.SIGKILL:
            ours, theirs = os.pipe()
            seed = generator.randrange(10**9)
            child = forked(lambda: spend(path, release, seed, theirs))  # noqa: B023
            os.close(theirs)
            for _ in range(generator.randint(1, 12)):  # steps, however long they take
                os.read(ours, 1)
            time.sleep(generator.choice([0.0, generator.uniform(0.0, 0.004)]))
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.close(ours)
            found, head, open_now = checked(path, release, head)
            problems += found
            kills += status == -signal.SIGKILL
            cut_off += open_now > open_before
            open_before = open_now
        if status:
            problems.append(f"a child ended with {status}")
        released += len(release.path.read_text().splitlines())
    return {"kills": kills, "problems": problems, "released": released, "cut_off": cut_off,
            "files": files}  # fmt: skip


class Deadly:
    """A connection that ends the process before or after a statement."""

    def __init__(self, connection: Any, when: str, what: str) -> None:
        self.connection, self.when, self.what = connection, when, what

    def execute(self, statement: str, *values: Any) -> Any:
        hit = statement.startswith(self.what)
        if hit and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = self.connection.execute(statement, *values)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def kill_at_steps(folder: Path) -> dict[str, Any]:
    reports: dict[str, list[dict[str, Any]]] = {"reserve": [], "settle": []}
    for kind in reports:
        for index, (when, what) in enumerate(STEPS):
            path = folder / f"{kind} {index}.sqlite"
            release = Release(folder / f"{kind} {index}.released")
            Ledger.create(path, Budgets.same(Budget(BUDGET), 1), "laplace/basic").close()

            def work() -> None:
                ledger = Ledger.open(path)  # noqa: B023
                journal: Any = ledger._journal
                deadly = Deadly(journal._connection, when, what)  # noqa: B023
                if kind == "reserve":  # noqa: B023
                    journal._connection = deadly
                reservation = ledger.reserve(1.0, run="a", round=0, fingerprint=b"inputs")
                if kind == "reserve" and (when, what) == ("before", "release"):  # noqa: B023
                    os.kill(os.getpid(), signal.SIGKILL)
                release.send(1.0)  # noqa: B023
                if kind == "settle":  # noqa: B023
                    journal._connection = deadly
                    ledger.settle(reservation)
                os.kill(os.getpid(), signal.SIGKILL)

            status = os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1])
            if status != -signal.SIGKILL:
                raise RuntimeError(f"the child was not killed but ended with {status}")
            with Ledger.open(path) as ledger:
                ledger.verify()
                report: dict[str, Any] = {
                    "spent": float(ledger.spent()[0, 0]) * TICK,
                    "released": release.total(),
                    "unsettled": ledger.unsettled,
                }
                reservation = ledger.reserve(1.0, run="a", round=0, fingerprint=b"inputs")
                report["repeated"] = bool(reservation.replayed.all())
                report["spent_after"] = float(ledger.spent()[0, 0]) * TICK
            reports[kind].append(report)
    return reports


def kill_while_creating(folder: Path) -> dict[str, list[bool]]:
    found = {}
    for step in CREATION:
        path = folder / f"{step}.sqlite"

        def work() -> None:
            real = os.link

            def deadly(*arguments: Any) -> None:
                if step == "after link":  # noqa: B023
                    real(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

            os.link = deadly  # type: ignore[assignment]
            Ledger.create(path, Budgets.same(Budget(BUDGET), 1), "laplace/basic")  # noqa: B023

        os.waitpid(forked(work), 0)
        there = path.exists()
        if not there:  # nothing has the name; it can be made anew
            Ledger.create(path, Budgets.same(Budget(BUDGET), 1), "laplace/basic").close()
        with Ledger.open(path) as ledger:
            whole = ledger.verify() == 1 and ledger.left().tolist() == [BUDGET]
        found[step] = [there, whole]
    return found


if __name__ == "__main__":
    programs = {"random": kill_at_random, "steps": kill_at_steps, "creation": kill_while_creating}
    print(json.dumps(programs[sys.argv[1]](Path(sys.argv[2]))))
