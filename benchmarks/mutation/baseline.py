"""Which test reaches which line, and how long it takes, without any fault."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.mutation import child, hook
from benchmarks.mutation.suites import Suite

__all__ = ["Baseline", "baseline_of"]


class Baseline(NamedTuple):
    """What is known of the tests of a suite.

    Attributes:
        seconds: Processor time of each test that passes, while its lines are noted.
        reached: Tests that reach a line outside of an import, by file and line.
        imported: Lines that are reached by an import.
        left_out: Tests that do not pass, or files that cannot be collected, with the reason.
        skipped: Tests that were skipped, with the reason.
        blind: Tests in which Python stopped noting lines, since they leave no room on the stack
            for one more call: they may reach any line.
    """

    seconds: dict[str, float]
    reached: dict[str, dict[int, set[str]]]
    imported: dict[str, set[int]]
    left_out: dict[str, str]
    skipped: dict[str, str]
    blind: list[str]

    def tests_of(self, file: str, lines: tuple[int, int]) -> dict[str, float]:
        """The tests that reach one of the lines, with their seconds.

        What runs when a module is imported may show anywhere: there it is every test.
        """
        first, last = lines
        if any(first <= line <= last for line in self.imported.get(file, ())):
            return self.seconds
        by_line = self.reached.get(file, {})
        tests = {test for line in range(first, last + 1) for test in by_line.get(line, ())}
        tests.update(self.blind)
        return {test: self.seconds[test] for test in tests if test in self.seconds}


def baseline_of(suite: Suite, root: Path, scratch: Path, examples: int) -> Baseline:
    """Measured once for each state of sources and tests, then read from the build folder."""
    wanted = [path for path in suite.tests if (root / path).exists()]
    sources = sorted({str(path.relative_to(root)) for p in suite.files for path in root.glob(p)})
    state = hashlib.sha256(str(examples).encode() + Path(__file__).read_bytes())
    for path in sorted(_python_files(root, [*wanted, "src", "tests/conftest.py"])):
        state.update(str(path).encode() + path.read_bytes())
    kept = root / "build" / "mutation" / f"{suite.name}-{state.hexdigest()[:12]}.json"
    if not kept.exists():
        print(f"{suite.name}: which test reaches which line ...", flush=True)
        found = _measure(suite, root, scratch, [*wanted, *sources], sources, examples)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return _read(json.loads(kept.read_text()), root)


def _python_files(root: Path, paths: list[str]) -> Iterator[Path]:
    for path in paths:
        place = root / path
        yield from place.rglob("*.py") if place.is_dir() else place.parent.glob(place.name)


def _measure(
    suite: Suite, root: Path, scratch: Path, tests: list[str], sources: list[str], examples: int
) -> dict[str, Any]:
    lines, notes, log = (scratch / f"{suite.name}.{end}" for end in ("lines", "notes", "log"))
    files = [str(root / source) for source in sources]

    def run() -> int:
        os.environ[hook.TRACE] = json.dumps({"out": str(lines), "files": files})
        hook.trace(str(lines), files)
        watcher = _Watcher()
        arguments = [*child.QUIET, "--continue-on-collection-errors", *tests]
        pytest.main(arguments, plugins=[watcher])
        sys.settrace(None)
        notes.write_text(json.dumps(watcher.notes()))
        return 0

    done = child.run(run, log, examples=examples, seconds=3600)
    if done.status != 0:
        raise SystemExit(f"{suite.name}: the tests ended with {done}\n{log.read_text()[-3000:]}")
    reached = [line.split("\t") for line in lines.read_text().splitlines()]
    return {**json.loads(notes.read_text()), "lines": reached}


def _read(found: dict[str, Any], root: Path) -> Baseline:
    fixtures: dict[str, list[str]] = defaultdict(list)
    for test, names in found["fixtures"].items():
        for name in names:
            fixtures[name].append(test)
    reached: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    imported: dict[str, set[int]] = defaultdict(set)
    for *names, path, line in found["lines"]:
        # Two processes may have written at once: what cannot be read is left out.
        if not names or not line.isdecimal() or not path.startswith(str(root)):
            continue
        context, file = "\t".join(names), str(Path(path).relative_to(root))
        if context == "import":
            imported[file].add(int(line))
        else:  # a fixture that several tests share is reached by them all
            reached[file][int(line)].update(fixtures.get(context, [context]))
    return Baseline(
        found["seconds"],
        dict(reached),
        dict(imported),
        found["left_out"],
        found["skipped"],
        found["blind"],
    )


class _Watcher:
    """A pytest plugin: notes times and outcomes, and says whose lines are being reached."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.fixtures: dict[str, list[str]] = {}
        self.failed: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.blind: list[str] = []

    def notes(self) -> dict[str, Any]:
        passed = {
            test: seconds
            for test, seconds in self.seconds.items()
            if test not in self.failed and test not in self.skipped
        }
        return {
            "seconds": passed,
            "fixtures": self.fixtures,
            "left_out": self.failed,
            "skipped": self.skipped,
            "blind": self.blind,
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        _forget_results()
        hook.trace_on()
        names = getattr(item, "fixturenames", [])
        self.fixtures[item.nodeid] = [f"fixture {name}" for name in names]
        before = time.process_time() + _of_children()
        with _context(item.nodeid):
            result = yield
        if sys.gettrace() is None:
            self.blind.append(item.nodeid)
        self.seconds[item.nodeid] = time.process_time() + _of_children() - before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        with _context(f"fixture {fixturedef.argname}"):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-300:]
        if report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr)[-300:]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-300:]
        if report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr)[-300:]


class _context:  # noqa: N801 - used like a function
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before = hook.context
        hook.context = os.environ["BGTPLANNER_CONTEXT"] = self.name

    def __exit__(self, *_: object) -> None:
        hook.context = os.environ["BGTPLANNER_CONTEXT"] = self.before


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _forget_results() -> None:
    """Empty every cache of the package: a result that is remembered reaches no line."""
    for name, module in list(sys.modules.items()):
        if name.startswith("bgtplanner"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
