"""The command line as a user meets it: help, results, errors, pipes and terminals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jax
import pytest
import typer

from bgtplanner import cli
from bgtplanner.runs import assembly, loop
from command_line import Call, Done
from finished import timeless

SIZES = ("synthetic.clients=20", "synthetic.items=15", "synthetic.ratings_per_client=8")
TINY = ["--dataset", "synthetic", *(part for size in SIZES for part in ("--set", size))]

pytestmark = pytest.mark.usefixtures("compiled_once", "plain_environment", "undrawn")


def object_of(done: Done) -> dict[str, Any]:
    """The one JSON object that is all of standard output."""

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert done.code == 0, done.err
    parsed = json.loads(done.out, parse_constant=never)
    assert isinstance(parsed, dict)
    return parsed


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def every_command() -> list[list[str]]:
    found: list[list[str]] = []

    def walk(command: click.Command, path: list[str]) -> None:
        found.append(path)
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                walk(child, [*path, name])

    walk(typer.main.get_command(cli.app), [])
    return found


class TestHelp:
    @pytest.mark.parametrize(
        "path", every_command(), ids=lambda path: " ".join(path) or "bgtplanner"
    )
    def test_every_command(self, command_line: Call, path: list[str]) -> None:
        """The help of each has an example, and each but a group has --json."""
        done = command_line(*path, "-h")
        text = without_codes(done.out)
        assert (done.code, done.err) == (0, "")
        assert "Example" in text
        assert f"bgtplanner {' '.join(path)}".strip() in text
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "--json" in text or "COMMAND" in text


class TestRun:
    def test_json(self, command_line: Call, tmp_path: Path) -> None:
        done = command_line("run", *TINY, "--rounds", 3, "--json", "--out", tmp_path / "run")
        assert done.err == ""
        assert object_of(done) == json.loads((tmp_path / "run" / "summary.json").read_text())

    def test_what_to_type_next(self, command_line: Call, tmp_path: Path, undrawn: None) -> None:
        rows = [f"{user},{item},{1 + item % 5}" for user in ("Al b", "Zoë") for item in range(6)]
        table, folder = tmp_path / "named.csv", tmp_path / "run"
        table.write_text("\n".join(["user,item,rating", *rows]), encoding="utf-8")
        done = command_line("run", "--dataset", table, "--rounds", 1, "--out", folder)
        assert (done.code, f"recommend {folder} --user 'Al b'" in done.out) == (0, True)
        assert "too few to learn together" in done.out
        assert "hides nobody" in done.out


class TestResume:
    def test_after_a_stop(
        self, command_line: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = object_of(
            command_line("run", *TINY, "--rounds", 12, "--json", "--out", tmp_path / "a")
        )
        stop = threading.Event()
        stop.set()

        @contextlib.contextmanager
        def at_once(*, active: bool) -> Iterator[threading.Event]:
            yield stop

        folder = tmp_path / "b c"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "stop_requests", at_once)
            stopped = command_line("run", *TINY, "--rounds", 12, "--json", "--out", folder)
            assert stopped == (
                1,
                "",
                f"stopped after round 1 of 12; continue with: bgtplanner resume '{folder}'\n",
            )
            again = command_line("resume", folder, "-q")
            assert (again.code, again.out) == (1, "")
            assert "after round 2 of 12" in again.err
        done = command_line("resume", folder)
        assert "held out" in done.out.split("\n")[0]
        assert "continuing after round 2" in done.out
        assert done.out.split("\n")[-2].startswith("For a model of all ratings: bgtplanner train")
        assert timeless(object_of(command_line("resume", folder, "--json"))) == timeless(whole)


class TestTrouble:
    """What goes wrong on the way: code 1, one line, no traceback."""

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (KeyboardInterrupt(), "interrupted"),
            (MemoryError(), "error: out of memory"),
            (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating"), "error: out of memory"),
        ],
        ids=["interrupt", "memory", "device"],
    )
    def test_while_loading(
        self, command_line: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(assembly, "ratings_of", fail)
        done = command_line("run", "--rounds", 1, "--json")
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert done.err.startswith(said)

    def test_no_such_device(self, command_line: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> None:
            raise RuntimeError("Unable to initialize backend 'bogus'")

        monkeypatch.setenv("JAX_PLATFORMS", "bogus")
        monkeypatch.setattr(jax, "devices", fail)
        done = command_line("run", "--rounds", 1)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: JAX_PLATFORMS = 'bogus'")

    def test_a_terminal_without_our_letters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "argv", ["bgtplanner", "budget"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == 0
        output.flush()
        shown = output.buffer.getvalue()  # type: ignore[attr-defined]
        assert re.search(rb"gaussian/authors.* \?\n", shown)  # a dash, where there is no figure


def environment() -> dict[str, str]:
    return os.environ | {"TERM": "xterm-256color"}


COMMAND = str(Path(sys.executable).parent / "bgtplanner")


class TestRealProcess:
    @pytest.mark.parametrize("arguments", [["data", "list"], ["run", *TINY, "--rounds", "3"]])
    def test_nobody_reads(self, arguments: list[str]) -> None:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [COMMAND, *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            env=environment(),
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (1, b"")

    def test_full_disk(self) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [COMMAND, "data", "list"], stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert done.returncode == 1
        assert done.stderr.startswith(b"error: ")
        assert done.stderr.count(b"\n") == 1
