"""Compiled programs are kept for the user: whole, bounded, and never a reason to fail."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from bgtplanner.caches import machine
from bgtplanner.federation import programs
from bgtplanner.federation.programs import KeptPrograms
from processes import Processes


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_found_by_another(tmp_path: Path) -> None:
    KeptPrograms(tmp_path / "a" / "b").put("key", b"program")
    other = KeptPrograms(tmp_path / "a" / "b")
    assert other.get("key") == b"program"
    assert other.get("another key") is None


@pytest.mark.parametrize("damage", [b"", b"\0" * 31, b"x" * 200])
def test_a_damaged_entry_goes(tmp_path: Path, damage: bytes) -> None:
    kept = KeptPrograms(tmp_path / "m")
    kept.put("key", b"program")
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage)
    assert kept.get("key") is None
    kept.put("key", b"program")
    assert kept.get("key") == b"program"


def test_half_an_entry_goes(tmp_path: Path) -> None:
    kept = KeptPrograms(tmp_path / "m")
    kept.put("key", b"program" * 100)
    (entry,) = entries(tmp_path)
    entry.write_bytes(entry.read_bytes()[:-1])
    assert kept.get("key") is None
    assert entries(tmp_path) == []


def test_what_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = KeptPrograms(tmp_path / "file" / "m")
    kept.put("key", b"program")
    assert kept.get("key") is None


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    KeptPrograms(tmp_path / "m").put("key", b"program")
    assert entries(tmp_path) == []


def test_the_longest_unused_goes_first_on_whatever_machine(tmp_path: Path) -> None:
    other, kept = KeptPrograms(tmp_path / "old", 300), KeptPrograms(tmp_path / "m", 300)
    other.put("first", b"x" * 50)
    for age, path in enumerate(entries(tmp_path)):
        os.utime(path, (age, age))
    for number, key in enumerate(("second", "third"), start=10):
        kept.put(key, b"x" * 50)
        (new,) = [path for path in entries(tmp_path / "m") if path.stat().st_mtime > 1e6]
        os.utime(new, (number, number))
    assert kept.get("second") is not None  # used just now
    kept.put("fourth", b"x" * 50)
    assert other.get("first") is None
    kept.put("fifth", b"x" * 50)
    assert kept.get("third") is None
    assert kept.get("second") is not None
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 300


KEEPS = """
import jax
import bgtplanner
from bgtplanner.federation import programs
assert not jax.config.jax_compilation_cache_dir  # importing does nothing
programs.keep_programs()
found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name))
print(int(jax.jit(lambda x: 2 * x)(21)), found.count("/jax/compilation_cache/cache_hits"))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path, processes: Processes) -> None:
    usual = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    usual = {**usual, "BGTPLANNER_CACHE": str(tmp_path)}

    def told() -> tuple[str, str]:
        done = processes.run([sys.executable, "-c", KEEPS], env=usual)
        return done.stdout.strip(), done.stderr

    assert told() == ("42 0", "")
    assert told() == ("42 1", "")
    for path in entries(tmp_path):
        path.write_bytes(path.read_bytes()[:-7])
    assert told() == ("42 0", "")


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    """As if this process kept no programs."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("nothing_kept")
def test_off_by_one_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BGTPLANNER_CACHE", "off")
    programs.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("why", ["others may write", "no folder"])
def test_no_programs_from_just_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    place = tmp_path / "programs" / machine()
    if why == "no folder":
        (tmp_path / "programs").write_text("in the way")
    else:
        place.mkdir(parents=True)
        place.chmod(0o777)
    monkeypatch.setenv("BGTPLANNER_CACHE", str(tmp_path))
    programs.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_a_folder_that_the_user_chose_stays() -> None:
    before = jax.config.values["jax_compilation_cache_dir"]
    assert before
    programs.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_who_waits_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said, told = [], threading.Event()
    monkeypatch.setattr(programs, "PATIENCE", 0.001)

    def tell() -> None:
        said.append("compiling")
        told.set()

    with programs.patiently(tell):
        assert told.wait(60)
    with programs.patiently(None):
        pass
    assert said == ["compiling"]
    monkeypatch.setattr(programs, "PATIENCE", 3600.0)
    with programs.patiently(tell):
        pass
    assert said == ["compiling"]
