"""Run folders that somebody has edited, or another version has written: refused in a sentence.

A run is made once, its files are changed in hundreds of ways, and everything that reads a folder
is let loose on each. What cannot be used must end in an error of ours: never in a traceback, and
never in a page that shows what is not a figure.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.errors import BGTPlannerError, RunFolderError
from bgtplanner.report.page import render
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import load, resume

pytestmark = pytest.mark.usefixtures("compiled_once")

TINY = {
    "synthetic.clients": 8,
    "synthetic.items": 10,
    "synthetic.ratings_per_client": 8,
    "run.device": "cpu",
    "planning.policy": "bgt",
    "privacy.budgets": "3:0.5,10:0.5",
}
ROUNDS = 4

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**63, 10**400, 1e308),
    *(float("nan"), float("inf"), -float("inf")),
    *("", "x" * 2000, "[/]\x1b[2J\ud800", "=cmd|' /C calc'!A0"),
    *([], [None], [[1], [1, 2]], [float("nan")] * 3, ["a", 1], [[[[[]]]]]),
    *({}, {"note": 1}, {"a": {"b": []}}),
)
"""What may stand where a figure was."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, compiled_once: Path) -> Path:
    folder = tmp_path_factory.mktemp("edited") / "run"
    with pytest.MonkeyPatch.context() as patch:  # what an interrupted run has, and a finished one
        patch.setattr(RunFolder, "forget", lambda _: None)
        simulate("synthetic", rounds=ROUNDS, settings=TINY, out=folder)
    return folder


def paths_in(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value that could be another."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield (*at, key)
        if isinstance(value, dict | list) and len(at) < 3:
            yield from paths_in(value, (*at, key))


def changed(tree: Any, generator: random.Random) -> Any:
    """The same tree with one value or one key otherwise."""
    tree = json.loads(json.dumps(tree))
    place = generator.choice(list(paths_in(tree)))
    inside = tree
    for key in place[:-1]:
        inside = inside[key]
    kind = generator.randrange(4)
    if kind == 0:
        del inside[place[-1]]
    elif kind == 1 and isinstance(inside, dict):
        inside[f"{place[-1]}_"] = inside.pop(place[-1])
    else:
        inside[place[-1]] = generator.choice(VALUES)
    return tree


def change_summary(folder: Path, generator: random.Random) -> None:
    file = folder / "summary.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), generator)))


def change_round(folder: Path, generator: random.Random) -> None:
    file = folder / "rounds.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    number = generator.randrange(len(records))
    records[number] = changed(records[number], generator)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def change_bytes(folder: Path, generator: random.Random) -> None:
    """Cut a file, turn one of its bytes, or repeat a part of it."""
    names = ("summary.json", "rounds.jsonl", "config.toml", "checkpoint.npz", "run.model")
    file = folder / generator.choice(names)
    content = bytearray(file.read_bytes())
    at = generator.randrange(len(content))
    kind = generator.randrange(3)
    if kind == 0:
        del content[at:]
    elif kind == 1:
        content[at] = generator.randrange(256)
    else:
        content[at:at] = content[at // 2 : at]
    file.write_bytes(content)


def change_settings(folder: Path, generator: random.Random) -> None:
    """Another value for one of the settings, or of the folder's own notes."""
    file = folder / "config.toml"
    lines = file.read_text().splitlines()
    number = generator.choice([n for n, line in enumerate(lines) if " = " in line])
    values = ("true", "-1", "1e308", "nan", '""', '"x"', "[]", "{}", "[[1],[2]]", "0", "7")
    lines[number] = f"{lines[number].partition(' = ')[0]} = {generator.choice(values)}"
    file.write_text("\n".join(lines) + "\n")


def change_checkpoint(folder: Path, generator: random.Random) -> None:
    """Another array, or another state of the planner."""
    file = folder / "checkpoint.npz"
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name = generator.choice(list(arrays))
    if name == "planned" and generator.random() < 0.8:
        state = changed(json.loads(bytes(arrays[name])), generator)
        arrays[name] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
    else:
        others: list[Any] = [float("nan"), 10**6, "x", np.zeros((3, 3, 3), np.int8)]
        others += [np.frombuffer(text, dtype=np.uint8) for text in (b"[" * 9999, b"3", b"")]
        arrays[name] = np.asarray(generator.choice(others))
    np.savez(file, **arrays)


def swap(folder: Path, generator: random.Random) -> None:
    """One file in the place of another."""
    names = ["summary.json", "rounds.jsonl", "config.toml", "checkpoint.npz", "ledger.sqlite"]
    one, other = generator.sample(names, 2)
    shutil.copy(folder / one, folder / other)


def resumes(folder: Path) -> None:
    (folder / "summary.json").unlink(missing_ok=True)
    resume(folder)


def lists(folder: Path) -> None:
    list(load(folder).recommend_many(top=3))


def refused_or_read(reader: Callable[[Path], Any], folder: Path) -> str:
    """What was said, if something was; anything but an error of ours fails the test."""
    try:
        reader(folder)
    except BGTPlannerError as error:
        said = str(error)
        assert said.isprintable(), "one line, and nothing a terminal would obey"
        assert len(said) < 1500
        return said
    return ""


READERS: dict[str, Callable[[Path], Any]] = {"report": render, "load": lists, "resume": resumes}
QUICK = [change_summary, change_round, change_round, change_bytes, change_settings, swap]
SLOW = [change_checkpoint, change_checkpoint, change_bytes, change_settings, swap, change_round]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("reader", "times", "changes"),
    [("report", 100, QUICK), ("load", 30, SLOW), ("resume", 30, SLOW)],
)
def test_whatever_is_changed(
    reader: str, times: int, changes: list[Any], finished: Path, tmp_path: Path
) -> None:
    said = []
    for seed in range(times):
        generator = random.Random(f"{reader} {seed}")
        folder = Path(shutil.copytree(finished, tmp_path / f"{reader}-{seed}"))
        generator.choice(changes)(folder, generator)
        said.append(refused_or_read(READERS[reader], folder))
        shutil.rmtree(folder)
    assert sum(map(bool, said)) > times // 4, "most changes matter"
    assert reader != "report" or not all(said), "some do not"


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl"])
def test_a_device_or_a_huge_file_is_not_read_to_its_end(
    name: str, finished: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    with (copy / name).open("r+b") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(RunFolderError, match="is longer than"):
        render(copy)
    (copy / name).unlink()
    (copy / name).symlink_to("/dev/zero")
    with pytest.raises(RunFolderError, match="is not a plain file"):
        render(copy)
