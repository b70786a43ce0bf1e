"""Compiled programs are kept for the user: whole, bounded, and never a reason to fail."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax._src import compilation_cache

from bgtplanner import simulate
from bgtplanner.caches import machine
from bgtplanner.federation import kept, programs
from bgtplanner.federation.kept import KeptPrograms
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.models.bias import Biases
from bgtplanner.models.metrics import METRICS, Metric
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.privacy.mechanisms import MECHANISMS
from processes import PATIENCE, Processes


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
from bgtplanner.federation import kept, programs
assert not jax.config.jax_compilation_cache_dir  # importing does nothing
kept.keep_programs()
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


# ---- programs that are not even traced a second time

TRAINS = """
import sys
import bgtplanner
from bgtplanner.federation import kept
compiled, real = [], kept.keep
kept.keep = lambda *what: compiled.append(real(*what))
settings = {"synthetic.clients": 12, "synthetic.items": 9, "synthetic.ratings_per_client": 5}
result = bgtplanner.simulate(
    "synthetic", model="tastes", epsilon=10, rounds=2, seed=1, settings=settings
)
print(len(compiled), result.rounds[-1]["rmse"].hex(), file=sys.__stdout__)
"""


def test_a_second_run_traces_no_round(tmp_path: Path, processes: Processes) -> None:
    """It solves equations: LAPACK has to be made ready."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    usual = {**usual, "BGTPLANNER_CACHE": str(tmp_path)}

    def told() -> tuple[int, str]:
        done = processes.run([sys.executable, "-c", TRAINS], env=usual)
        assert done.returncode == 0, done.stderr
        number, error = done.stdout.split()[-2:]
        return int(number), error

    first, error = told()
    assert first > 2
    assert told() == (0, error)


@pytest.fixture
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are kept, and JAX keeps none."""
    monkeypatch.setattr(kept, "_KEPT", KeptPrograms(tmp_path / "m"))
    monkeypatch.setattr(compilation_cache, "_cache_checked", True)
    monkeypatch.setattr(compilation_cache, "_cache_used", False)
    return tmp_path


def _solve(matrix: Array, values: Array) -> Array:
    return jnp.linalg.cholesky(matrix) @ values


_solve.__module__ = "bgtplanner.made_up"


def solved(program: programs.Program | None = None) -> Any:
    program = program or programs.Program(_solve, static=())
    return program(jax.devices("cpu")[0], True, 4 * jnp.eye(3), jnp.ones(3)).tolist()


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Names of the programs that are compiled."""
    found, real = [], kept.keep

    def keep(name: str | None, compiled: Any) -> None:
        found.append(name)
        real(name, compiled)

    monkeypatch.setattr(kept, "keep", keep)
    return found


def test_a_kept_program_is_used(kept_here: Path, compilations: list[str | None]) -> None:
    assert solved() == solved() == [2.0, 2.0, 2.0]
    assert len(compilations) == 1
    (entry,) = entries(kept_here)
    entry.unlink()
    assert solved() == [2.0, 2.0, 2.0]
    assert len(compilations) == 2


@pytest.mark.usefixtures("kept_here")
@pytest.mark.parametrize("what", ["source", "setting", "flags", "metric", "mechanism"])
def test_but_not_once_something_has_changed(
    what: str, compilations: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert solved() == [2.0, 2.0, 2.0]
    if what == "source":
        monkeypatch.setattr(kept, "_own_source", lambda: "another")
    elif what == "setting":
        changed = jax.config.values | {"jax_default_matmul_precision": "highest"}
        monkeypatch.setattr(type(jax.config), "values", changed)
    elif what == "metric":  # of somebody whose source may change
        own = Metric(label="own", better="lower", sums=(lambda found, _: found.sum(),), of=float)
        monkeypatch.setitem(METRICS._entries, "own", own)
    elif what == "mechanism":
        monkeypatch.setitem(MECHANISMS._entries, "own", "somebody.mechanisms:Own")
    else:
        monkeypatch.setenv("XLA_FLAGS", "--made_up")
    assert solved() == [2.0, 2.0, 2.0]
    assert len(set(compilations)) == 2
    assert (compilations[1] is None) == (what in ("metric", "mechanism"))


def test_jax_keeps_no_second_copy(tmp_path: Path) -> None:
    """And finds none: a program that was loaded cannot be written down once more."""
    for_jax = kept.KeptForJax(tmp_path / "m")
    for_jax.put("key", b"program")
    with kept.alone("name"):
        assert for_jax.get("key") is None
        for_jax.put("another key", b"program")
    with kept.alone(None):
        assert for_jax.get("key") == b"program"
        assert for_jax.get("another key") is None


def test_what_cannot_be_loaded_is_compiled(kept_here: Path, tmp_path: Path) -> None:
    assert solved() == [2.0, 2.0, 2.0]
    (entry,) = entries(kept_here)
    value = b"whole, and yet no program"
    entry.write_bytes(hashlib.sha256(value).digest() + value)
    assert solved() == [2.0, 2.0, 2.0]
    assert len(entry.read_bytes()) > 100  # the new one


def test_calls_that_nothing_makes_ready_are_not_kept(
    kept_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_CALLS", re.compile("others"))
    assert solved() == [2.0, 2.0, 2.0]
    assert entries(kept_here) == []


def test_programs_of_other_shapes_are_others(kept_here: Path) -> None:
    program = programs.Program(_solve, static=())
    device = jax.devices("cpu")[0]
    for size in (2, 3, 2, 3):
        assert len(program(device, True, jnp.eye(size), jnp.ones(size))) == size
    assert len(entries(kept_here)) == 2
    program.forget()
    assert len(program(device, True, jnp.eye(3), jnp.ones(3))) == 3
    assert len(entries(kept_here)) == 2


# ---- programs that are compiled in the background


def test_a_call_waits_for_what_is_being_compiled(compilations: list[str | None]) -> None:
    program, device = programs.Program(_solve, static=()), jax.devices("cpu")[0]
    program.prepare(device, True, jnp.eye(3), jnp.ones(3))
    program.prepare(device, True, jnp.eye(2), jnp.ones(2))
    assert solved(program) == [2.0, 2.0, 2.0]
    assert len(program(device, True, jnp.eye(2), jnp.ones(2))) == 2
    assert len(compilations) == 2
    assert len(program(device, True, jnp.eye(4), jnp.ones(4))) == 4  # what nobody has prepared
    assert len(compilations) == 3


def test_what_fails_in_the_background_fails_where_it_is_called() -> None:
    def fails(matrix: Array) -> Array:
        raise ZeroDivisionError("while it is traced")

    program, device = programs.Program(fails, static=()), jax.devices("cpu")[0]
    program.prepare(device, True, jnp.eye(3))
    with pytest.raises(ZeroDivisionError, match="while it is traced"):
        program(device, True, jnp.eye(3))


def test_a_run_needs_all_that_it_prepares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything after its first round is prepared, but for what takes no time."""
    prepared, compiled = [], []
    real = programs.Program._ready

    def ready(program: programs.Program, *more: Any) -> Any:
        name = (
            program._function.__name__
            if hasattr(program._function, "__name__")
            else (program._function.args[0])
        )
        behind = threading.current_thread() is not threading.main_thread()
        (prepared if behind else compiled).append(name)
        return real(program, *more)

    monkeypatch.setattr(programs.Program, "_ready", ready)
    settings = {"synthetic.clients": 13, "synthetic.items": 11, "synthetic.ratings_per_client": 6}
    simulate("synthetic", model="tastes", epsilon=10, rounds=3, settings=settings, out=tmp_path)
    assert prepared == ["served", "rest", "rank", "_predict", "explain"]
    assert not set(compiled) & set(prepared)


class Foreign(Biases):
    """A model whose source is not ours."""


def test_values_are_told_apart() -> None:
    bias, server = Biases(), Server()
    federations = [
        Federation(model=bias, server=server),
        Federation(model=bias, server=server, participation=0.5),
        Federation(model=Tastes(), server=server),
        Federation(model=bias, server=server, protection=Protection(mechanism="gaussian")),
        Federation(
            model=bias, server=server, protection=Protection(mechanism="gaussian", trust="secagg")
        ),
    ]
    plain = [None, 1, True, 1.0, "1", b"1", (1,), [1], (1, 1), {"a": 1}, {"b": 1}, Biases, Tastes]
    found = [kept.described(each) for each in (*plain, *federations)]
    assert None not in found
    assert len(set(found)) == len(found)
    assert kept.described(Federation(model=Biases(), server=Server())) == found[len(plain)]


@pytest.mark.parametrize(
    "value",
    [
        Foreign(), Foreign, object(), np.zeros(3), {1}, lambda: 0, (1, Foreign()),
        Federation(model=Foreign(), server=Server()), partial(max, 1), "package.module:Name",
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_not_ours_cannot_be_told(value: Any) -> None:
    assert kept.described(value) is None


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
    kept.keep_programs()
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
    kept.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_a_folder_that_the_user_chose_stays() -> None:
    before = jax.config.values["jax_compilation_cache_dir"]
    assert before
    kept.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_who_waits_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said, told = [], threading.Event()
    monkeypatch.setattr(programs, "PATIENCE", 0.001)

    def tell() -> None:
        said.append("compiling")
        told.set()

    with programs.patiently(tell):
        assert told.wait(PATIENCE)
    with programs.patiently(None):
        pass
    assert said == ["compiling"]
    monkeypatch.setattr(programs, "PATIENCE", 3600.0)
    with programs.patiently(tell):
        pass
    assert said == ["compiling"]
