"""How many small faults do the tests notice?  python -m benchmarks.mutation --help.

One fault at a time is put into a copy of the source, and tests that can notice it are run until
one fails. What survives gets a test or, where none is possible, an argument in ``harmless.toml``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coverage import CoverageData

from benchmarks.mutation.faults import Fault, faults_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/bgtplanner"
HARMLESS = Path(__file__).with_name("harmless.toml")
GOALS = {"privacy": 0.9, "door": 0.9, "report": 0.0, "commands": 0.0, "rest": 0.0, "paper": 0.0}
GOAL = 0.8  # of every other package
DOOR = ("federation/randomizer", "flower/client", "flower/state")
REACHED = ROOT / "build" / "reached.db"  # which tests run which lines; made if it is missing
MOST = 300  # tests that run a line; more of them do not tell more


def package_of(file: str) -> str:
    """Return the name under which the faults of a source file are counted."""
    place = file.removeprefix(f"{SOURCE}/")
    if place.startswith(DOOR):
        return "door"
    return place.partition("/")[0] if "/" in place else "rest"


def reached() -> CoverageData:
    """Return which tests run which lines, from one run of all tests."""
    if not REACHED.exists():
        every = ["-m", "pytest", "-n", "auto", "--dist", "loadfile", "--cov", "--cov-context=test"]
        environment = os.environ | {"COVERAGE_FILE": str(REACHED)}
        subprocess.run([sys.executable, *every], cwd=ROOT, env=environment, check=False)
    data = CoverageData(str(REACHED))
    data.read()
    return data


def tests_of(fault: Fault, data: CoverageData) -> list[str]:
    """Return the tests that run the line of a fault, or its file on import, then its folder's.

    The latter because a line that is compiled runs once for many tests.
    """
    place = Path(fault.file)
    folder = ROOT / "tests" / place.relative_to(SOURCE).parent
    home = folder.glob("test_*.py") if folder == ROOT / "tests" else folder.rglob("test_*.py")
    files = [str(path.relative_to(ROOT)) for path in home]
    named = f"/test_{place.stem.lstrip('_')}"
    files.sort(key=lambda file: (named not in file, (ROOT / file).stat().st_size))
    lines = data.contexts_by_lineno(str(ROOT / place))
    near = max((line for line in lines if 0 < line <= fault.line), default=0)
    tests = {number: {of for of in ofs if of[:6] == "tests/"} for number, ofs in lines.items()}
    found = {of.rpartition("|")[0] for of in tests.get(near) or set().union(*tests.values())}
    by_file = Counter(test.partition("::")[0] for test in found)

    def rank(test: str) -> tuple[int, str]:  # those of a file that is near, or about little else
        file = test.partition("::")[0]
        return files.index(file) if file in files else len(files) + by_file[file], test

    return [*sorted(found, key=rank)[:MOST], *files]


def play(fault: Fault, tests: list[str], seconds: float) -> str:
    """Return what came of one fault: `noticed`, `survived` or `too slow`."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        source, chosen = Path(place) / "src", Path(place) / "tests"
        shutil.copytree(ROOT / "src", source)  # with what is compiled already
        changed = Path(place) / fault.file
        changed.write_bytes(fault.applied(changed.read_bytes()))
        chosen.write_text("\n".join([str(changed), *tests]))  # its own examples first
        environment = os.environ | {"PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--keep-duplicates"]
        command += [f"@{chosen}"]
        how: Any = {"cwd": ROOT, "env": environment, "capture_output": True, "timeout": seconds}
        try:
            done = subprocess.run(command, **how, check=False)
        except subprocess.TimeoutExpired:
            return "too slow"  # an endless loop is noticed by whoever waits for the tests
    if b"ERROR: not found" in done.stderr:
        raise SystemExit(f"{REACHED} knows other tests: delete it")
    return "survived" if done.returncode == 0 else "noticed"


def main() -> int:
    """Draw a sample, try it, and say which share of every package's faults was noticed."""
    parser = argparse.ArgumentParser(description="How many small faults do the tests notice?")
    parser.add_argument("--sample", type=int, default=20, help="faults per package (20)")
    parser.add_argument("--packages", default="", help="such as privacy,door (all)")
    parser.add_argument("--jobs", type=int, default=1, help="tests at the same time (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--seconds", type=float, default=600, help="for one fault (600)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutation.jsonl")
    options = parser.parse_args()
    faults: dict[str, list[Fault]] = defaultdict(list)
    for path in sorted((ROOT / SOURCE).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        faults[package_of(file)] += faults_of(file, path.read_bytes())
    harmless = tomllib.loads(HARMLESS.read_text())
    wanted = [name for name in options.packages.split(",") if name] or sorted(faults)
    drawn = [
        fault
        for name in wanted
        for fault in random.Random(options.seed).sample(
            faults[name], min(options.sample, len(faults[name]))
        )
        if fault.key not in harmless
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    data = reached()
    outcomes: dict[str, list[str]] = defaultdict(list)
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool, options.out.open("a") as out:
        found = pool.map(lambda of: play(of, tests_of(of, data), options.seconds), drawn)
        for number, (fault, outcome) in enumerate(zip(drawn, found, strict=True), 1):
            outcomes[package_of(fault.file)].append(outcome)
            out.write(json.dumps({**fault._asdict(), "outcome": outcome}) + "\n")
            out.flush()
            left = (time.monotonic() - began) / number * (len(drawn) - number) / 60
            if outcome == "survived":
                print(f"survived: {fault.file}:{fault.line}  {fault.kind} -> {fault.text!r}")
            print(f"  {number} of {len(drawn)}, {left:.0f} min left", end="\r", flush=True)
    short = False
    for name, came in sorted(outcomes.items()):
        share, goal = 1 - came.count("survived") / len(came), GOALS.get(name, GOAL)
        short |= share < goal
        print(f"{name:12} {share:5.0%} of {len(came)} faults noticed (goal {goal:.0%})")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
