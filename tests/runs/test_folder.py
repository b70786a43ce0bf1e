"""The run folder: what lies in it, and that nothing in it is ever half written."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bgtplanner
from bgtplanner.errors import RunFolderError, RunLockedError, SchemaError, StorageError
from bgtplanner.runs.config import load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.record import CLIENTS, ROUND, SCHEMA, SUMMARY, check

CONFIG = load_config(settings={"federation.rounds": 5})
ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.asarray(7)}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def record(number: int) -> dict[str, Any]:
    scores = dict.fromkeys(("rmse", "mae", "precision", "recall", "f1", "loss"), 0.1 * number)
    counts = {"clients": 3, "ratings": 9, "dropped": 0}
    return {"round": number, **scores, **counts, "seconds": 0.5, "charge": 0.1}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", CONFIG, data="abc", key="k") as opened:
        yield opened


class TestLayout:
    def test_new_and_full(self, folder: RunFolder) -> None:
        assert names(folder.path) == [".lock", "config.toml"]
        assert folder.config() == CONFIG
        assert folder.notes()["versions"]["numpy"] == np.__version__
        assert (folder.notes()["schema"], folder.notes()["data"]) == (SCHEMA, "abc")
        assert folder.rounds() == []
        assert folder.checkpoint() is folder.summary() is None
        for number in range(3):
            folder.append_round(record(number))
        folder.write_checkpoint(ARRAYS)
        folder.write("summary.json", {"rmse_final": 0.5, "epsilon": None})
        written = ["checkpoint.npz", "config.toml", "rounds.jsonl", "summary.json"]
        assert names(folder.path) == [".lock", *written]
        lines = (folder.path / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == folder.rounds()
        assert folder.rounds() == [record(n) for n in range(3)]
        assert folder.read("summary.json") == {"rmse_final": 0.5, "epsilon": None}
        mode = (folder.path / "checkpoint.npz").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, "clients' own state is in it"
        stored = folder.checkpoint()
        assert stored is not None
        for name, array in ARRAYS.items():
            assert (stored[name].dtype, stored[name].tobytes()) == (array.dtype, array.tobytes())


class TestAtomicWrites:
    @pytest.mark.parametrize("target", ["replace", "fsync"])
    @pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
    def test_failure_leaves_the_old_one(
        self,
        folder: RunFolder,
        monkeypatch: pytest.MonkeyPatch,
        target: str,
        failure: BaseException,
    ) -> None:
        folder.append_round(record(0))
        folder.write_checkpoint(ARRAYS)
        folder.write("summary.json", {"n": 1})
        before = {e.name: e.read_bytes() for e in folder.path.iterdir()}

        def fail(*_: object) -> None:
            raise failure

        expected = StorageError if isinstance(failure, OSError) else KeyboardInterrupt
        with monkeypatch.context() as patch:
            patch.setattr(*((Path, "replace") if target == "replace" else (os, "fsync")), fail)
            for write in (
                lambda: folder.write_checkpoint({"a": np.zeros(99)}),
                lambda: folder.write("summary.json", {"n": 2}),
                lambda: folder.keep_rounds(0),
            ):
                with pytest.raises(expected) as caught:
                    write()
                assert expected is KeyboardInterrupt or "no space left" in str(caught.value)
        assert {e.name: e.read_bytes() for e in folder.path.iterdir()} == before

    def test_bytes_are_on_the_disk_before_the_new_name(
        self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.append_round(record(0))
        order: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def see_fsync(handle: int) -> None:
            order.append("sync " + Path(f"/proc/self/fd/{handle}").readlink().name[:5])
            fsync(handle)

        def see_replace(self: Path, target: Path) -> Path:
            order.append(f"name {target.name}")
            return replace(self, target)

        monkeypatch.setattr(os, "fsync", see_fsync)
        monkeypatch.setattr(Path, "replace", see_replace)
        folder.write_checkpoint(ARRAYS)
        assert order == ["sync round", "sync .tmp-", "name checkpoint.npz", "sync run"]


class TestForeignFolders:
    @pytest.mark.parametrize(("overwrite", "name"), [(True, "notes.txt"), (False, ".hidden")])
    def test_refused_and_untouched(self, tmp_path: Path, overwrite: bool, name: str) -> None:
        (tmp_path / "config.toml").write_text("")
        (tmp_path / name).mkdir()
        before = names(tmp_path)
        with pytest.raises(RunFolderError, match=f"other files \\({name}\\).*--out"):
            RunFolder.create(tmp_path, CONFIG, overwrite=overwrite)
        assert names(tmp_path) == before

    def test_a_run_is_replaced_as_a_whole_and_only_when_asked(self, folder: RunFolder) -> None:
        folder.append_round(record(0))
        folder.write_checkpoint(ARRAYS)
        folder.write("summary.json", {})
        (folder.path / "report.html").touch()
        (folder.path / ".tmp-0123456789abcdef").touch()  # left by a crash
        folder.close()
        with pytest.raises(RunFolderError, match=r"--overwrite.*bgtplanner resume"):
            RunFolder.create(folder.path, CONFIG)
        assert folder.rounds() == [record(0)]
        with RunFolder.create(folder.path, CONFIG, data="new", overwrite=True) as again:
            assert names(again.path) == [".lock", "config.toml"]
            assert again.notes()["data"] == "new"


def test_locked_by_whoever_writes(folder: RunFolder) -> None:
    assert folder.in_use()
    for attempt in (
        lambda: RunFolder.open(folder.path),
        lambda: RunFolder.create(folder.path, CONFIG, overwrite=True),
    ):
        with pytest.raises(RunLockedError, match="another process is running"):
            attempt()
    folder.close()
    assert not folder.in_use()
    RunFolder.open(folder.path).close()


class TestSchema:
    @pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
    def test_other_versions(self, folder: RunFolder, schema: int) -> None:
        folder.close()
        path, file = folder.path, folder.path / "config.toml"
        file.write_text(file.read_text().replace(f"schema = {SCHEMA}", f"schema = {schema}"))
        with pytest.raises(SchemaError) as caught:
            RunFolder.open(path)
        message = str(caught.value)
        for words in (f"schema {schema}", f"schema {SCHEMA}", "--config", str(path)):
            assert words in message
        assert f"version {bgtplanner.__version__}" in message


class TestRounds:
    @pytest.mark.parametrize("line", [b"nonsense", b"", b"[1]", b"\xff\xfe", b"[" * 9999])
    def test_a_line_that_is_no_record(self, folder: RunFolder, line: bytes) -> None:
        whole = json.dumps(record(0)).encode() + b"\n"
        (folder.path / "rounds.jsonl").write_bytes(whole + line + b"\n" + whole)
        with pytest.raises(RunFolderError, match=r"rounds\.jsonl, line 2: not a JSON object"):
            folder.keep_rounds(2)

    def test_cut_back_to_the_checkpoint(self, folder: RunFolder) -> None:
        for number in range(3):
            folder.append_round(record(number))
        with (folder.path / "rounds.jsonl").open("a") as file:
            file.write('{"rou')
        assert folder.keep_rounds(2) == folder.rounds() == [record(0), record(1)]
        folder.append_round(record(2))
        assert folder.rounds()[-1] == record(2)

    @pytest.mark.parametrize("numbers", [[0], [0, 2], ["0", 1], [None, 1]])
    def test_rounds_that_do_not_fit_the_checkpoint(
        self, folder: RunFolder, numbers: list[Any]
    ) -> None:
        for number in numbers:
            folder.append_round(record(0) | {"round": number})
        file = folder.path / "rounds.jsonl"
        before = file.read_bytes()
        words = "does not hold the 2 rounds|line [12]: (is round|round = |has no round)"
        with pytest.raises(RunFolderError, match=words):
            folder.keep_rounds(2)
        assert file.read_bytes() == before


class Bomb:
    """Would write a file if it were ever unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


class TestCheckpoint:
    def refused(self, folder: RunFolder, content: bytes) -> None:
        (folder.path / "checkpoint.npz").write_bytes(content)
        with pytest.raises(RunFolderError, match=r"checkpoint\.npz: .*not a checkpoint"):
            folder.checkpoint()

    def test_pickles_are_refused_and_not_run(self, folder: RunFolder, tmp_path: Path) -> None:
        target, whole, inside = tmp_path / "exploded", io.BytesIO(), io.BytesIO()
        array = np.asarray([Bomb(target)], dtype=object)
        np.savez(whole, a=array)
        np.save(inside, array, allow_pickle=True)
        for content in (whole.getvalue(), inside.getvalue(), pickle.dumps(array)):
            self.refused(folder, content)
        assert not target.exists()

    def test_one_that_unpacks_to_more(self, folder: RunFolder) -> None:
        whole = io.BytesIO()
        np.savez_compressed(whole, a=np.zeros(1 << 20))
        self.refused(folder, whole.getvalue())


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        (ROUND, {"rmse": 10**400}, "rmse = 1000"),
        (ROUND, {"ndcg_at_10": float("nan")}, "ndcg_at_10 = nan: expected a finite number"),
        (ROUND, {"paid": True}, "paid = True: expected a valid integer"),
        (ROUND, {"level": -1}, "level = -1: expected "),
        (ROUND, {"why": {"predicted": "low"}}, "why = an object: expected a valid list"),
        (SUMMARY, {"policy": "x" * 2000}, "policy = 'xxx"),
        (SUMMARY, {"neighbours": "all"}, "neighbours = 'all': expected 'replace-special' or"),
        (CLIENTS, {"run": 3}, "run = 3: expected a valid string"),
    ],
)
def test_named_with_what_was_expected(kind: Any, found: Any, said: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        check(kind, "here", found)
    assert str(caught.value).startswith(f"here: {said}")
    assert str(caught.value).endswith("bring the old file back, or run it again")


def test_figures_that_no_model_names_and_reasons_that_rule_something_out() -> None:
    check(SUMMARY, "here", {"schema": 1, "epsilon": 3, "ndcg_at_10_served": 0.25, "own": None})
    reasons = {"note": "explored", "predicted": [0.5, float("-inf")], "probability": [0.0, 1.0]}
    check(ROUND, "here", {"why": reasons, "copy": 1, "json": 2})
