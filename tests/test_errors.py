"""Every error that a user can run into: one table, each with what, where and what to do.

The columns are what is typed and the words that say what is wrong and where. That it also says
what to do, in one line, with exit code 2 (or 1 for trouble on the way) and without a traceback, is
checked for all of them.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.runs import folder as store
from command_line import Call
from made_runs import make_run
from privacy.ledgers import edited

ADVICE = re.compile(
    r"expected |[Dd]id you mean|Try 'bgtplanner|bgtplanner [a-z]+|[Cc]hoose |[Gg]ive |[Uu]se "
    r"|leave it out|leave out|again|anew|pip install|There are: |is given by|: write |bring "
    r"|delete |is it installed|requires an argument"
)
"""How a message says what to do, or what would have been right."""


REFUSED: list[tuple[str, str]] = [
    ("run --rounds 0", "--rounds (federation.rounds) = 0"),
    ("run --rounds " + "9" * 5000, "'--rounds'"),
    ("run --dataset nonsense", "dataset = 'nonsense'"),
    ("run --dataset {tmp}/one.csv", "csv:one.csv: too few ratings to hold out a test set"),
    ("run --dataset csv:{tmp}/negative.csv", "{tmp}/negative.csv, line 2"),
    ("run --dataset ml-100k", "https://grouplens.org/datasets/movielens/100k/ into "),
    ("run --preset papr", "--preset = 'papr': expected one of recommended, paper"),
    (
        "run --config {tmp}/unknown.toml",
        "{tmp}/unknown.toml: unknown key 'server.lerning_rate'; did you mean 'server",
    ),
    ("run --out ", "--out = ''"),
    ("run --out {tmp}", "{tmp}: holds other files"),
    ("run --out {tmp}/file", "{tmp}/file: is a file, not a folder"),
    ("run --out a\0b", "holds a zero byte"),
    ("run --dataset csv:{tmp}/good.csv --set data.user_column=nope", "user='nope'"),
    ("nonsense", "No such command 'nonsense'"),
    ("resume", "'FOLDER'"),
    ("resume {tmp}/none", "{tmp}/none: not a run folder"),
    ("resume {tmp}/newer", "written by another version (schema 999"),
    ("report {tmp}/older", "{tmp}/older: written by another version (schema 0, version 0.0.1)"),
    ("report {tmp}/plain", "{tmp}/plain/config.toml: has no [folder] schema"),
    ("report {tmp}/half", "{tmp}/half: the run is not finished"),
    ("compare --out {tmp}/done", "--out {tmp}/done: holds something other than a comparison"),
    ("sweep", "--vary: expected SECTION.KEY=V1,V2"),
    ("run --policy os:path", "policy = 'os:path': expected a class"),
    ("budget --mechanism nonsense", "--mechanism = 'nonsense'"),
    ("ledger show {tmp}/good.csv", "{tmp}/good.csv: "),
    ("ledger show {tmp}/other.sqlite", "bgtplanner ledger restore"),
    ("recommend {tmp}/done", "{tmp}/done: has no run.model"),
]
"""What is typed, and what the answer names. {tmp} holds odd files, tables, and folders of runs."""


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line[:50] for line, _ in REFUSED])
def test_refused(command_line: Call, odd_files: Path, line: str, words: str) -> None:
    """One line, code 2, before anything is trained or written."""
    before = sorted(odd_files.rglob("*"))
    done = command_line(*line.format(tmp=odd_files).split(" "))
    assert (done.code, done.out) == (2, "")
    assert words.format(tmp=odd_files) in done.err
    assert "Traceback" not in done.err
    assert ADVICE.search(done.err), done.err
    lines = done.err.splitlines()
    if lines[0].startswith("Usage: bgtplanner"):
        assert lines[1].startswith("Try 'bgtplanner")
        assert lines[-1].startswith("Error: ")
    else:
        assert len(lines) == 1
        assert lines[0].startswith(("error: ", "Error: Option"))
    assert sorted(odd_files.rglob("*")) == before
    assert not Path("runs").exists()


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "newer").mkdir()
    (folder / "newer" / "config.toml").write_text("[folder]\nschema = 999\n")
    configs = {
        "older": '[folder]\nschema = 0\nversion = "0.0.1"\n', "plain": "[run]\nseed = 0\n"
    }  # fmt: skip
    for name, text in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(text)
    short = {"federation.rounds": 3}
    make_run(folder / "done", short)
    make_run(folder / "half", short, rounds_done=1)
    header = "user,item,rating\n"
    tables = {
        "file": "",
        "good.csv": header + "".join(f"{n % 4},{n},{1 + n % 5}\n" for n in range(40)),
        "one.csv": header + "a,1,3\n",
        "negative.csv": header + "a,1,-3\na,2,3\n",
        "unknown.toml": "[server]\nlerning_rate = 1\n",
    }
    for name, text in tables.items():
        (folder / name).write_text(text)
    edited(folder / "other.sqlite", "CREATE TABLE x (y)")
    return folder


EXTRAS: list[tuple[str, str, str]] = [
    ("run", "jax", "sim"),
    ("resume x", "jax", "sim"),
    ("compare", "jax", "sim"),
    ("data info demo", "optax", "sim"),
    ("report {tmp}/done", "jinja2", "report"),
    ("report {tmp}/done", "matplotlib", "report"),
]


@pytest.mark.parametrize(("line", "module", "extra"), EXTRAS)
def test_missing_extra(
    command_line: Call,
    odd_files: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    module: str,
    extra: str,
) -> None:
    for name in [name for name in sys.modules if name.startswith("bgtplanner.report.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    done = command_line(*line.format(tmp=odd_files).split(" "))
    assert (done.code, done.out) == (2, "")
    assert f"needs the extra '{extra}': pip install 'bgtplanner[{extra}]'" in done.err


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_disk(command_line: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 1: nobody gave anything wrong."""
    monkeypatch.setattr(store.os, "fsync", full)
    done = command_line("run", "--rounds", 1, "--out", tmp_path / "run")
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(
        r"error: .*/run/config\.toml: no space left.*then 'bgtplanner resume.*\n", done.err
    )
