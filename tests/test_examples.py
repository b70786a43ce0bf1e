"""The examples run as they stand, and say what they promise."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(name: str, *options: str) -> list[str]:
    command = [sys.executable, *options, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def table_of(lines: list[str]) -> list[list[float]]:
    """Round, charge, noise_std, epsilon_spent and loss of the rounds that were printed."""
    rows = [re.findall(r"[\d.]+", line) for line in lines if re.match(r"\s+\d+  ", line)]
    return [[float(cell) for cell in row] for row in rows]


def check_rounds(rows: list[list[float]]) -> None:
    spent = [row[3] for row in rows]
    assert len(rows) >= 3
    assert spent == sorted(spent)
    assert 0 < spent[-1] <= 10.0
    assert all(row[1] > 0 and row[2] > 0 for row in rows)  # nothing goes out without noise


def test_numpy_loop_learns_within_its_budget() -> None:
    lines = output_of("numpy_loop.py", "-W", "error")
    rows = table_of(lines)
    check_rounds(rows)
    planned, even = (float(value) for value in re.findall(r"0\.\d+", lines[-1]))
    assert planned < 0.5  # at first it is log 2
    assert even < 0.5
    assert rows[-1][4] < rows[0][4]
    mixed, low, high = (float(value) for value in re.findall(r"\d+\.\d+", lines[-2]))
    assert mixed < 0.6
    assert 0 < low <= 3.0 < high <= 10.0  # by the same lines, each within its own budget


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make bench does")
def test_torch_model_learns_within_its_budget() -> None:
    lines = output_of("torch_model.py")
    check_rounds(table_of(lines))
    first, last = (float(lines[at].rsplit(" ", 1)[1]) for at in (0, -1))
    assert last < 0.5 * first


@pytest.mark.skipif(find_spec("flwr") is None, reason="Flower is not installed: extra `flower`")
def test_flower_clients_pay_what_the_strategy_planned() -> None:
    lines = output_of("flower_strategy.py")
    planned, paid = (float(value) for value in re.findall(r"\d+\.\d+", lines[-1]))
    assert 0 < planned <= 10.0
    assert paid == planned  # by the clients' own ledgers
    planned, paid = (float(value) for value in re.findall(r"\d+\.\d+", lines[-2]))
    assert 0 < planned <= 4.0
    assert paid == planned
