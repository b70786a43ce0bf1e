"""Which files are tried, and which tests are there to notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Suite", "suite_of", "targets"]


class Suite(NamedTuple):
    """Files that are tried with the same tests.

    Attributes:
        name: Short, for its files in the build folder.
        files: The source files, as patterns from the root of the repository.
        tests: Files and folders of tests, in the order in which they are tried; what is not there
            is left out. The doctests of the source files themselves always belong to them.
    """

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


SUITES = (
    Suite(
        "privacy",
        ("src/bgtplanner/privacy/*.py",),
        (
            "tests/privacy",
            "tests/crash/test_ledger_kill.py",
            "tests/oracles/test_dp_accounting.py",
            "tests/paper",
            "tests/federation/test_protection.py",
            "tests/federation/test_shared_noise.py",
            "tests/federation/test_poisoning.py",
        ),
    ),
    Suite(
        "door",
        (
            "src/bgtplanner/federation/guard.py",
            "src/bgtplanner/federation/answers.py",
            "src/bgtplanner/federation/pacing.py",
            "src/bgtplanner/flower/client.py",
            "src/bgtplanner/flower/clientfile.py",
            "src/bgtplanner/flower/training.py",
        ),
        (
            "tests/federation/test_guard.py",
            "tests/federation/test_shared_noise.py",
            "tests/federation/test_answers.py",
            "tests/federation/test_pacing.py",
            "tests/federation/test_client.py",
            "tests/flower/test_client.py",
            "tests/flower/test_client_traces.py",
            "tests/flower/test_clientfile.py",
            "tests/flower/test_messages.py",
            "tests/flower/test_pinned.py",
            "tests/games",
            "tests/fuzz",
        ),
    ),
    Suite(
        "aggregation",
        ("src/bgtplanner/federation/aggregation/*.py",),
        (
            "tests/federation/aggregation",
            "tests/games/test_aggregation_attacks.py",
            "tests/games/test_aggregation_schedules.py",
            "tests/runs/test_audit_masks.py",
        ),
    ),
)

ORACLES = "tests/oracles/"
"""Tests that need packages which only serve as oracles; tried last, so that what only they notice
is known."""


def targets(root: Path) -> list[str]:
    """Every file that is tried and is there."""
    return [
        str(path.relative_to(root))
        for suite in SUITES
        for pattern in suite.files
        for path in sorted(root.glob(pattern))
        if path.name != "__init__.py"
    ]


def suite_of(file: str) -> Suite:
    for suite in SUITES:
        if any(Path(file).match(pattern) for pattern in suite.files):
            return suite
    raise SystemExit(
        f"{file}: not among the files that are tried: see benchmarks/mutation/suites.py"
    )


def in_order(file: str, tests: dict[str, float]) -> list[list[str]]:
    """Tests in the stages in which they are tried on a file, the fastest of each stage first.

    First those that are named after the file and its doctests, last the oracles: most faults are
    noticed by the first few, and a stage whose turn never comes is never even collected.
    """
    name = Path(file).stem.lstrip("_")
    stages: list[list[str]] = [[], [], [], []]
    for test in sorted(tests, key=lambda test: tests[test]):
        path = test.partition("::")[0]
        if path.startswith(ORACLES):
            stages[3].append(test)
        elif path == file or Path(path).name.startswith(f"test_{name}"):
            stages[0].append(test)
        else:
            stages[1 if tests[test] < 1 and "/crash/" not in path else 2].append(test)
    return [stage for stage in stages if stage]
