"""Many at once: what each of them saw is what one after the other would have seen.

Processes and threads reserve, settle and look at one file at random, and write down when they
asked, what they were told and when. The chain gives the order in which everything happened; a
checker then looks whether everybody's answers fit that order and the clock (they are
*linearizable*). It must find fault with histories that were made up, or it proves nothing.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import BudgetExceeded, StaleRoundError
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

UNIT = 2**-10
CAPACITY = 160  # of these units, for each of two clients
PROCESSES, THREADS, CALLS = 3, 2, 14

Event = dict[str, Any]


def play(path: Path, seed: int, log: Path) -> None:
    """One process with a ledger of its own, and threads that share it."""
    events: list[Event] = []
    with Ledger.open(path) as ledger:

        def work(number: int) -> None:
            generator = random.Random(seed * 100 + number)
            for _ in range(CALLS):
                events.append(one_call(ledger, generator))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log.write_text(json.dumps(events))


def one_call(ledger: Ledger, generator: random.Random) -> Event:
    run, number = generator.choice("ab"), generator.randrange(40)
    units, rising = generator.randint(1, 12), generator.random() < 0.7
    event: Event = {"run": run, "round": number, "units": units, "rising": rising}
    event["began"] = time.monotonic_ns()
    try:
        if generator.random() < 0.15:
            event["newest"] = ledger.newest_round(run)
        else:
            reservation = ledger.reserve(units * UNIT, run=run, round=number, rising=rising)
            event["row"] = reservation.number
            if generator.random() < 0.6:
                ledger.settle(reservation)
                event["settled"] = True
    except BudgetExceeded as error:
        event["left"] = round(error.left / UNIT)
    except StaleRoundError:
        event["stale"] = True
    event["ended"] = time.monotonic_ns()
    return event


def faults(events: list[Event], rows: list[dict[str, Any]]) -> list[str]:
    """What everybody was told that no order of events explains."""
    found: list[str] = []
    booked = [row for row in rows if row["kind"] == "reserve"]
    granted = {event["row"]: event for event in events if "row" in event}
    told = [event["row"] for event in events if "row" in event]
    if sorted(told) != [row["number"] for row in booked]:
        found.append("a charge was granted and not booked, or booked and not granted, or twice")
        return found
    spent, newest = 0, {"a": -1, "b": -1}
    for row in booked:
        event = granted[row["number"]]
        spent += event["units"]
        if (row["run"], row["round"], row["charge_most"]) != (
            event["run"], event["round"], event["units"] * UNIT,
        ):  # fmt: skip
            found.append(f"row {row['number']} is another charge than was granted")
        if event["rising"] and event["round"] <= newest[event["run"]]:
            found.append(f"row {row['number']} goes back to round {event['round']}")
        newest[event["run"]] = max(newest[event["run"]], event["round"])
        if row["settled"] != event.get("settled", False):
            found.append(f"row {row['number']} is settled, or not, as nobody said")
    if spent > CAPACITY:
        found.append(f"{spent} units were granted of {CAPACITY}")
    for event in events:
        # What surely came before it, and what may have.
        before = [one for one in granted.values() if one["ended"] < event["began"]]
        maybe = [one for one in granted.values() if one["began"] < event["ended"]]
        if "row" in event and any(one["row"] > event["row"] for one in before):
            found.append(f"row {event['row']} comes before one that was granted earlier")
        if "left" in event:
            least = CAPACITY - sum(one["units"] for one in maybe)
            most = CAPACITY - sum(one["units"] for one in before)
            if not least <= event["left"] <= most or event["units"] <= event["left"]:
                found.append(f"{event['units']} units were refused with {event['left']} left")
        same = [one["round"] for one in maybe if one["run"] == event["run"]]
        if "stale" in event and not (event["rising"] and max(same, default=-1) >= event["round"]):
            found.append(f"round {event['round']} was refused as stale, and nobody had gone on")
        if "newest" in event:
            surely = [one["round"] for one in before if one["run"] == event["run"]]
            told_round = -1 if event["newest"] is None else event["newest"]
            if not max(surely, default=-1) <= told_round <= max(same, default=-1):
                found.append(f"{event['newest']} was told to be the newest round")
    return found


PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_histories import PROCESSES, play
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
children = []
for number in range(PROCESSES):
    child = os.fork()
    if child == 0:
        try:
            play(folder / "ledger.sqlite", 10 * seed + number, folder / f"{{number}}.json")
            os._exit(0)
        finally:
            os._exit(1)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.fixture(scope="module", params=range(3))
def history(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Event], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("history")
    budgets = Budgets.same(Budget(CAPACITY * UNIT), 2)
    Ledger.create(folder / "ledger.sqlite", budgets, "laplace/basic").close()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), str(request.param)],
        check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    events = [
        event
        for number in range(PROCESSES)
        for event in json.loads((folder / f"{number}.json").read_text())
    ]
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.verify()
        rows = list(ledger.history())
    return events, rows


def test_what_everybody_saw_fits_one_order(
    history: tuple[list[Event], list[dict[str, Any]]],
) -> None:
    events, rows = history
    assert len(events) == PROCESSES * THREADS * CALLS
    assert sum("row" in event for event in events) > 8
    assert faults(events, rows) == []


def test_histories_that_cannot_be_are_found_out(
    history: tuple[list[Event], list[dict[str, Any]]],
) -> None:
    events, rows = history
    granted = [event for event in events if "row" in event]
    first = min(granted, key=lambda event: event["row"])
    last = max(granted, key=lambda event: event["row"])

    def changed(event: Event, **change: Any) -> list[Event]:
        return [one | change if one is event else one for one in events]

    lost = [row for row in rows if row["number"] != last["row"]]
    assert faults(events, lost)
    assert faults([*events, last], rows)
    assert faults(changed(last, units=last["units"] + 1), rows)
    assert faults(changed(last, round=last["round"] + 1), rows)
    assert faults(changed(last, settled=not last.get("settled", False)), rows)
    later = {"began": last["ended"] + 1, "ended": last["ended"] + 2}
    assert faults(changed(first, **later), rows)  # granted after the last, and before it
    about = {"run": first["run"], "units": 1, "rising": True, **later}
    assert faults([*events, about | {"round": 99, "stale": True}], rows)
    assert faults([*events, about | {"round": 0, "newest": 99}], rows)
    assert faults([*events, about | {"round": 0, "newest": None}], rows)
    assert faults([*events, about | {"round": 0, "left": CAPACITY}], rows)
    highest = max(one["round"] for one in granted if one["run"] == first["run"])
    assert not faults([*events, about | {"round": highest, "newest": highest}], rows)
    assert not faults([*events, about | {"round": highest, "stale": True}], rows)
