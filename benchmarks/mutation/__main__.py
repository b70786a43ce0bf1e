"""How many small faults do the tests notice?  python -m benchmarks.mutation --help.

One fault at a time is put into a copy of the source, and the tests of its package are run until
one fails. A sample of every package is drawn; what survives is written down with its line, and
gets a test or, where none is possible, an argument in ``harmless.toml``.
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
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.mutation.faults import Fault, faults_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/bgtplanner"
HARMLESS = Path(__file__).with_name("harmless.toml")
GOALS = {"privacy": 0.9, "door": 0.9, "report": 0.0, "commands": 0.0, "rest": 0.0, "paper": 0.0}
GOAL = 0.8  # of every other package
DOOR = ("federation/randomizer", "flower/client", "flower/state")
ALSO = {  # tests beside those of the package's own folder
    "privacy": ("tests/oracles/test_dp_accounting.py", "tests/crash/test_ledger_kill.py"),
    "door": ("tests/federation", "tests/flower", "tests/games/test_reading_a_client.py"),
    "models": ("tests/runs/test_recommended.py",),
    "planning": ("tests/federation/test_coordinator.py",),
}


def package_of(file: str) -> str:
    """Return the name under which the faults of a source file are counted."""
    place = file.removeprefix(f"{SOURCE}/")
    if place.startswith(DOOR):
        return "door"
    return place.partition("/")[0] if "/" in place else "rest"


def tests_of(file: str) -> list[str]:
    """Return the tests that are there to notice a fault: those named after the file come first."""
    package = package_of(file)
    folder = Path("tests") / Path(file).relative_to(SOURCE).parent
    own = list((ROOT / folder).rglob("test_*.py")) if folder != Path("tests") else []
    own = own or list((ROOT / "tests").glob("test_*.py"))
    name = Path(file).stem.lstrip("_")
    own.sort(key=lambda path: (not path.stem.startswith(f"test_{name}"), path.stat().st_size))
    named = [str(path.relative_to(ROOT)) for path in own]
    return named + [also for also in ALSO.get(package, ()) if also not in named]


def play(fault: Fault, seconds: float) -> str:
    """Return what came of one fault: `noticed`, `survived` or `too slow`."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        source = Path(place) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        changed = Path(place) / fault.file
        changed.write_bytes(fault.applied(changed.read_bytes()))
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *tests_of(fault.file)],
                cwd=ROOT, env=environment, capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "too slow"  # an endless loop is noticed by whoever waits for the tests
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
    harmless = tomllib.loads(HARMLESS.read_text()) if HARMLESS.exists() else {}
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
    outcomes: dict[str, list[str]] = defaultdict(list)
    began = time.monotonic()

    def tried(fault: Fault) -> tuple[Fault, str]:
        return fault, play(fault, options.seconds)

    with ThreadPoolExecutor(options.jobs) as pool, options.out.open("a") as out:
        for number, (fault, outcome) in enumerate(pool.map(tried, drawn), 1):
            outcomes[package_of(fault.file)].append(outcome)
            out.write(json.dumps({**fault._asdict(), "outcome": outcome}) + "\n")
            out.flush()
            left = (time.monotonic() - began) / number * (len(drawn) - number) / 60
            if outcome == "survived":
                print(f"survived: {fault.file}:{fault.line}  {fault.kind} -> {fault.text!r}")
            print(f"  {number} of {len(drawn)}, {left:.0f} min left", end="\r", flush=True)
    short = False
    for name, found in sorted(outcomes.items()):
        share, goal = 1 - found.count("survived") / len(found), GOALS.get(name, GOAL)
        short |= share < goal
        print(f"{name:12} {share:5.0%} of {len(found)} faults noticed (goal {goal:.0%})")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
