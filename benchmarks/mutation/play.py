"""Each fault in turn: the tests that reach it, until one notices."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation import child, hook
from benchmarks.mutation.baseline import Baseline
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.suites import in_order

__all__ = ["play", "record_of"]

_FAILED, _BROKEN, _UNUSABLE, _NONE_LEFT = 1, 2, 4, 5  # pytest's exit status
_NOT_LOADED = 71
_PATIENCE = 5.0  # seconds of processor time that a test gets in any case


def record_of(mutant: Mutant, source: bytes) -> dict[str, Any]:
    """What is kept of a fault, whatever comes of it."""
    about = {name: value for name, value in asdict(mutant).items() if name not in ("start", "end")}
    return about | {"key": mutant.key, "source": hashlib.sha256(source).hexdigest()[:16]}


def play(
    mutants: list[Mutant],
    baselines: dict[str, Baseline],
    sources: dict[str, bytes],
    *,
    root: Path,
    scratch: Path,
    jobs: int,
    examples: int,
    stages: int,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Try all of them, `jobs` at a time; `keep` is given the record of each when it is known."""
    waiting = list(reversed(mutants))
    trials: list[_Trial] = []
    slots = list(range(jobs))
    try:
        while waiting or trials:
            while waiting and slots:
                mutant = waiting.pop()
                if (root / mutant.file).read_bytes() != sources[mutant.file]:
                    raise SystemExit(f"{mutant.file} was edited meanwhile; start again")
                baseline = baselines[mutant.file]
                trials.append(
                    _Trial(mutant, baseline, root, scratch, slots.pop(), examples, stages)
                )
            for trial in list(trials):
                record = trial.poll()
                if record is not None:
                    keep(record)
                    trials.remove(trial)
                    slots.append(trial.slot)
            time.sleep(0.01)
    finally:
        for trial in trials:
            if trial.running is not None:
                trial.running.end()


class _Trial:
    """One fault, through the stages of its tests."""

    def __init__(
        self,
        mutant: Mutant,
        baseline: Baseline,
        root: Path,
        scratch: Path,
        slot: int,
        examples: int,
        stages: int,
    ) -> None:
        self.mutant, self.baseline, self.root, self.slot = mutant, baseline, root, slot
        self.examples = examples
        self.log = scratch / f"slot-{slot}.log"
        self.notes = scratch / f"slot-{slot}.notes"
        self.record = record_of(mutant, (root / mutant.file).read_bytes())
        self.cpu = 0.0
        tests = baseline.tests_of(mutant.file, mutant.lines)
        self.record["tests"] = len(tests)
        self.stages = iter(in_order(mutant.file, tests)[:stages])
        self.running: child.Running | None = None
        self.outcome = "survived" if tests else "unreached"

    def poll(self) -> dict[str, Any] | None:
        """Start the next stage, or look after the one that runs; the record, once it is known."""
        if self.running is None:
            stage = next(self.stages, None)
            if stage is None:
                return self._ended(self.outcome)
            self.notes.unlink(missing_ok=True)
            limit = 60 + 20 * sum(self.baseline.seconds[test] for test in stage)
            self.running = child.start(
                lambda: self._run(stage), self.log, examples=self.examples, seconds=limit
            )
            return None
        done = self.running.poll()
        if done is None:
            return None
        self.running = None
        self.cpu += done.cpu
        if done.status in (0, _NONE_LEFT, _NOT_LOADED):  # or the file is not used
            return None
        self.record["test"] = self.notes.read_text().strip() if self.notes.exists() else ""
        if done.slow:
            return self._ended("timeout")
        conftest = "while loading conftest" in self.log.read_text(errors="replace")
        broken = done.status == _BROKEN or (done.status == _UNUSABLE and conftest)
        if done.status == _FAILED or broken or done.status < 0:
            return self._ended("killed")
        raise SystemExit(f"{self.mutant.key}: ended with {done}\n{self.log.read_text()[-3000:]}")

    def _ended(self, outcome: str) -> dict[str, Any]:
        return self.record | {"outcome": outcome, "cpu": round(self.cpu, 2)}

    def _run(self, tests: list[str]) -> int:
        """In the forked process: put the fault in, run the tests."""
        path = self.root / self.mutant.file
        module = ".".join(path.relative_to(self.root / "src").with_suffix("").parts)
        fault = {
            "module": module,
            "path": str(path),
            "start": self.mutant.start,
            "end": self.mutant.end,
            "text": self.mutant.text,
        }
        os.environ[hook.MUTANT] = json.dumps(fault)
        finder = hook.install(fault)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        chosen = _Chosen(tests, self.baseline.seconds, finder, self.notes)
        status = int(pytest.main([*child.QUIET, "-x", *files], plugins=[chosen]))
        # Where the module breaks while it is imported, it was used and is not there any more.
        if status in (0, _FAILED) and not finder.used:
            return _NOT_LOADED
        return status


class _Chosen:
    """A pytest plugin: the tests that reach the fault, in order, each with a limit of its time."""

    def __init__(
        self, tests: list[str], seconds: dict[str, float], finder: hook.Finder, notes: Path
    ) -> None:
        self.tests, self.seconds, self.finder, self.notes = tests, seconds, finder, notes

    def pytest_sessionstart(self) -> None:
        # Before pytest's own, which would load the files that it was told to collect by itself.
        sys.meta_path.remove(self.finder)
        sys.meta_path.insert(0, self.finder)
        signal.setitimer(signal.ITIMER_PROF, 120)
        self.notes.write_text("collection")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        found = [by_name[test] for test in self.tests if test in by_name]
        if len(found) < len(self.tests):  # the fault has renamed some
            found += [item for item in items if item.nodeid not in self.seconds]
        items[:] = found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.notes.write_text(item.nodeid)
        # Past it, the process ends by a signal, whatever it is in.
        limit = _PATIENCE + 5 * self.seconds.get(item.nodeid, 1.0)
        signal.setitimer(signal.ITIMER_PROF, limit)
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 60)
        return result
