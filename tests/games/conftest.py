"""Clients that add up, in folders that are copied for every game."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from games.summing import Table, stand_in, write_summing


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """Files in memory where there is such a folder: they are flushed all the time."""
    found = Path("/dev/shm")
    with TemporaryDirectory(dir=found if os.access(found, os.W_OK) else None) as folder:
        write_summing(Path(folder) / "template")
        yield Path(folder)


@pytest.fixture
def home(memory: Path) -> Iterator[Path]:
    shutil.copytree(memory / "template", memory / "home")
    with stand_in():
        yield memory / "home"
    shutil.rmtree(memory / "home")


@pytest.fixture
def table(home: Path) -> Table:
    return Table(home)
