"""Fixtures that more than one test file needs."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
import typer.rich_utils  # reads a width when it is imported, whoever does it first
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

import compiled
import randomness
from command_line import Call, Done
from processes import Processes

REPOSITORY = Path(__file__).resolve().parents[1]

# Tests write thousands of small files that are synchronised with the disk: in memory, if there is
# room for them, that takes no time.
_IN_MEMORY, _ROOM = Path("/dev/shm"), 4 * 2**30
if os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free > _ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))

# A process has one command line; typer would make it anew, out of its types, with every call.
typer.main.get_command = functools.cache(typer.main.get_command)

compiled.keep(os.environ)  # before JAX is imported, here or in a process that a test starts

# The same examples every time, however long they take. `--hypothesis-profile search` tries others.
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("search", **_PATIENT)
settings.register_profile("same", derandomize=True, **_PATIENT)
settings.load_profile("same")
# Left alone, examples are also made of the numbers in whatever modules are imported by then: other
# ones in every order of the tests, and none at all where a folder above is called "tests".
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    """`make test-seeds` gives every turn a number."""
    if config.getoption("--hypothesis-profile") == "search":
        randomness.others(int(os.environ.get("TURN", "1")))


FULL = {"browser", "test_authors_level.py", "test_authors_variant.py", "test_the_site"}
"""Folders, files and tests that `make test` leaves to `make test-all`."""

LONG = ("test_tastes.py", "test_equal.py", "test_docs_blocks.py", "test_kill.py", "test_run.py")
"""Files that would keep one worker busy when the other has nothing left, come they last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; within a file, and among the others, the order stays."""
    for item in items:
        if FULL & {item.path.parent.name, item.path.name, item.name}:
            item.add_marker("full")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.name not in LONG)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Every test has the same randomness each time, its fixtures included."""
    if item.config.getoption("--hypothesis-profile") == "search":
        return (yield)
    with randomness.of(item.nodeid):
        return (yield)


_STATM, _MOST, _STEP = Path("/proc/self/statm"), 900 * 2**20, 200 * 2**20
_kept = 0  # bytes that were left when programs were let go


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Let go of compiled programs before they fill the memory, or have too many maps for JAX."""
    yield
    global _kept
    if "jax" not in sys.modules or not _STATM.exists() or resident() < max(_MOST, _kept + _STEP):
        return
    sys.modules["jax"].clear_caches()
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # what is free goes back to the system
    _kept = resident()


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts processes, which end with the test."""
    with Processes() as made:
        yield made


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """For tests that interrupt: a shell that starts them in the background has that ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.fixture
def plain_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A folder of its own, 80 columns, no colours, no data sets."""
    here = tmp_path_factory.mktemp("here")
    for name in ("NO_COLOR", "FORCE_COLOR", "BGTPLANNER_DATA", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    monkeypatch.chdir(here)


@pytest.fixture
def command_line(
    plain_environment: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Calls `bgtplanner` in this process."""
    from bgtplanner import cli

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["bgtplanner", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return Done(caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without their pictures, which take most of the time, for tests of anything else."""
    from bgtplanner.report import page

    monkeypatch.setattr(page, "as_file", lambda *_, **__: "")


@pytest.fixture(scope="session")
def compiled_once() -> Path:
    """The folder with the compiled programs, for other processes."""
    return compiled.FOLDER
