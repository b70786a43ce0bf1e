"""Fixtures that more than one test file needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets; a test that needs it is skipped where there is none."""
    candidates = [os.environ.get("BGTPLANNER_DATA"), REPOSITORY.parent / "shared" / "data"]
    for candidate in candidates:
        if candidate is not None and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("no real data: set BGTPLANNER_DATA to a folder with ml-100k, ml-1m and filmtrust")


@pytest.fixture
def real_files(data_dir: Path) -> Callable[..., Path]:
    """Names files under the real data folder and skips the test if one of them is missing."""

    def require(*files: str) -> Path:
        for file in files:
            if not any((data_dir / name).is_file() for name in (file, file + ".gz")):
                pytest.skip(f"no real data: {data_dir / file} is not there")
        return data_dir

    return require


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without any data set; returns the (not yet existing) cache folder."""
    monkeypatch.delenv("BGTPLANNER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bgtplanner"
