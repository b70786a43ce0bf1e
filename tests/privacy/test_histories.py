"""Several processes on one ledger: every grant is in the chain once, none beyond a budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

UNIT, CAPACITY, PROCESSES, CALLS = 2**-10, 160, 3, 40

PROGRAM = """
import json, random, sys
from bgtplanner.errors import BudgetExceeded, StaleRoundError
from bgtplanner.privacy.ledger import Ledger
path, seed, unit, calls = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
draw, granted = random.Random(seed), []
with Ledger.open(path) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()  # all begin at once
    for _ in range(calls):
        units, run = draw.randint(1, 6), draw.choice("ab")
        try:
            reservation = ledger.reserve(units * unit, run=run, round=draw.randrange(40))
        except (BudgetExceeded, StaleRoundError):
            continue
        settles = draw.random() < 0.6
        if settles:
            ledger.settle(reservation)
        granted.append([reservation.number, units * unit, settles])
print(json.dumps(granted))
"""


def test_grants_of_all_processes_are_booked_once_and_within_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    budgets = Budgets.same(Budget(CAPACITY * UNIT), 2)
    Ledger.create(path, budgets, "laplace/basic").close()
    words = [str(UNIT), str(CALLS)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path), str(seed), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for seed in range(PROCESSES)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in started]
    granted = [grant for output in outputs for grant in json.loads(output)]
    with Ledger.open(path, read_only=True) as ledger:
        rows = {row["number"]: row for row in ledger.history() if row["kind"] == "reserve"}
        assert ledger.verify() >= len(rows)
        assert sorted(number for number, *_ in granted) == sorted(rows)
        for number, charge, settles in granted:
            assert (rows[number]["charge_most"], rows[number]["settled"]) == (charge, settles)
        spent = sum(charge for _, charge, _ in granted)
        assert ledger.spent()[0].max() / 2**44 == spent <= CAPACITY * UNIT
        assert spent > (CAPACITY - 6) * UNIT, "it was all asked for"
