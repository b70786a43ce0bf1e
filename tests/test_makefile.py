"""What `make` installs, and when: read off what it would do, nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE_OF = ("pyproject.toml", "constraints.txt")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which `make run` was called before."""
    for name in ("Makefile", *MADE_OF):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    for age, name in enumerate([".venv/.run", *MADE_OF]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    return tmp_path


def would_do(checkout: Path, goal: str) -> str:
    plain = {name: of for name, of in os.environ.items() if not name.startswith("MAKE")}
    words = ["make", "--dry-run", goal]
    return subprocess.run(
        words, cwd=checkout, env=plain, capture_output=True, text=True, check=True
    ).stdout


def test_a_run_needs_only_what_runs(checkout: Path) -> None:
    (checkout / ".venv/.run").unlink()
    done = would_do(checkout, "run")
    assert "--editable '.[sim,report]'" in done
    assert "--group dev" not in done
    assert "bgtplanner run" in done


def test_the_rest_is_added(checkout: Path) -> None:
    assert "pip" not in would_do(checkout, "run")
    done = would_do(checkout, "pytest")
    assert "--clear" not in done
    assert "--editable '.[all]' --group dev" in done
    (checkout / ".venv/.ready").touch()
    assert "pip" not in would_do(checkout, "pytest")


@pytest.mark.parametrize("name", MADE_OF)
def test_remade_when_what_it_is_made_of_changes(checkout: Path, name: str) -> None:
    (checkout / ".venv/.ready").touch()
    os.utime(checkout / ".venv/.ready", (1001, 1001))
    os.utime(checkout / name, (2000, 2000))
    assert "--clear .venv" in would_do(checkout, "run")
    done = would_do(checkout, "pytest")
    assert done.index("--clear .venv") < done.index("--group dev")
