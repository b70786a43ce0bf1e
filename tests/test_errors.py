"""Every error that a user can run into: one table, each with what, where and what to do.

The columns are what is typed and the words that say what is wrong and where. That it also says
what to do, in one line, with exit code 2 (or 1 for trouble on the way) and without a traceback, is
checked for all of them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import StorageError
from bgtplanner.runs import folder as store
from bgtplanner.runs.study import Study
from command_line import Call, Done
from made_runs import make_run, make_study

ADVICE = re.compile(
    r"expected |[Dd]id you mean|Try 'bgtplanner|bgtplanner [a-z]+|[Cc]hoose |[Gg]ive |[Uu]se "
    r"|leave it out|leave out|again|anew|pip install|There are: |is given by|: write |bring "
    r"|delete |is it installed|requires an argument"
)
"""How a message says what to do, or what would have been right."""


@pytest.fixture
def call(command_line: Call) -> Call:
    """Run the command line in this process, where there are no data sets."""
    return command_line


# {tmp} holds a file, an empty folder, some tables, and folders of runs and grids.
REFUSED: list[tuple[str, str]] = [
    # numbers
    ("run --rounds 0", "--rounds (federation.rounds) = 0"),
    ("run --rounds -1", "--rounds (federation.rounds) = -1"),
    ("run --rounds 1000000000", "--rounds (federation.rounds) = 1000000000"),
    ("run --rounds " + "9" * 400, "--rounds (federation.rounds) = 999"),
    ("run --rounds " + "9" * 5000, "'--rounds'"),
    ("run --rounds 1.5", "'--rounds'"),
    ("run --rounds ten", "'--rounds'"),
    ("run --rounds ", "'--rounds'"),
    ("run --rounds", "'--rounds'"),
    ("run --seed -1", "--seed (run.seed) = -1"),
    ("run --seed 2147483648", "--seed (run.seed) = 2147483648"),
    ("run --seed 1e3", "'--seed'"),
    ("run --participation 0", "--participation (federation.participation) = 0.0"),
    ("run --participation -0.5", "--participation (federation.participation) = -0.5"),
    ("run --participation 1.0001", "--participation (federation.participation) = 1.0001"),
    ("run --participation nan", "--participation (federation.participation) = nan"),
    ("run --participation inf", "--participation (federation.participation) = inf"),
    ("run --participation 1e400", "--participation (federation.participation) = inf"),
    ("run --participation half", "'--participation'"),
    # names
    ("run --dataset nonsense", "dataset='nonsense'"),
    ("run --dataset DEMO", "Did you mean 'demo'?"),
    ("run --dataset ", "dataset=''"),
    ("run --dataset 日本", "日本"),
    ("run --dataset \udcff", "--dataset (data.dataset)"),
    ("run --dataset {tmp}/one.csv", "Did you mean 'csv:{tmp}/one.csv'?"),
    ("run --dataset csv:", "after 'csv:'"),
    ("run --dataset parquet:", "after 'parquet:'"),
    ("run --dataset parquet:{tmp}/none", "{tmp}/none: no such file"),
    ("run --dataset parquet:{tmp}/good.csv", "{tmp}/good.csv: cannot be read; expected Parquet"),
    ("run --dataset {tmp}/x.parquet", "Did you mean 'parquet:{tmp}/x.parquet'?"),
    ("run --dataset csv:{tmp}/none.csv", "{tmp}/none.csv: no such file"),
    ("run --dataset csv:{tmp}/empty", "{tmp}/empty: is a folder"),
    ("run --dataset csv:{tmp}/file", "{tmp}/file: the file is empty"),
    ("run --dataset csv:{tmp}/one.csv", "too few ratings"),
    ("run --dataset csv:{tmp}/one_item.csv", "too few ratings"),
    (
        "run --dataset csv:{tmp}/zeros.csv",
        "{tmp}/zeros.csv: all 9 values are the same",
    ),
    ("run --dataset csv:{tmp}/negative.csv", "{tmp}/negative.csv, line 2"),
    ("run --dataset csv:{tmp}/bytes.csv", "{tmp}/bytes.csv, line 1"),
    ("run --dataset csv:{tmp}/words.csv", "{tmp}/words.csv, line 2"),
    ("run --dataset csv:" + "x" * 5000, "File name too long"),
    ("run --dataset ml-100k", "bgtplanner data fetch ml-100k"),
    ("run --dataset ml-100k --data-dir {tmp}/none", "--data-dir"),
    ("run --dataset ml-100k --data-dir {tmp}/file", "--data-dir"),
    ("run --data-dir", "'--data-dir'"),
    ("run --model fedgn", "--model (model.name) = 'fedgn'"),
    ("run --model ", "--model (model.name) = ''"),
    ("run --policy nonsense", "--policy (planning.policy) = 'nonsense'"),
    ("run --mechanism nonsense", "--mechanism (privacy.mechanism) = 'nonsense'"),
    ("run --device tpu", "--device (run.device) = 'tpu'"),
    ("run --preset papr", "--preset = 'papr': expected one of recommended, paper; did you mean"),
    ("run --preset ", "--preset = ''"),
    # files and folders
    ("run --config ", "--config = ''"),
    ("run --config {tmp}/none.toml", "{tmp}/none.toml: no such config file"),
    ("run --config {tmp}/empty", "{tmp}/empty: cannot be read"),
    ("run --config {tmp}/bytes.csv", "{tmp}/bytes.csv: cannot be read"),
    ("run --config {tmp}/broken.toml", "{tmp}/broken.toml: not valid TOML"),
    ("run --config {tmp}/scalar.toml", "did you mean 'federation.rounds'?"),
    ("run --config {tmp}/unknown.toml", "did you mean 'learning_rate'?"),
    ("run --out ", "--out = ''"),
    ("run --out {tmp}", "{tmp}: holds other files"),
    ("run --out {tmp} --overwrite", "{tmp}: holds other files"),
    ("run --out {tmp}/file", "{tmp}/file: is a file, not a folder"),
    ("run --out {tmp}/file/below", "{tmp}/file/below: is a file, not a folder"),
    ("run --out {tmp}/" + "x" * 300, "the name is too long"),
    ("run --out {tmp}/loop", "{tmp}/loop: is a link that leads back to itself"),
    ("run --out {tmp}/dangling", "{tmp}/dangling: is a file, not a folder"),
    ("run --out a\0b", "holds a zero byte"),
    # --set
    ("run --set ", "--set"),
    ("run --set rounds=3", "--set rounds=3: expected SECTION.KEY=VALUE"),
    ("run --set federation.rounds", "expected SECTION.KEY=VALUE"),
    ("run --set federation.rounds=", "--rounds (federation.rounds) = ''"),
    ("run --set federation.rounds=true", "--rounds (federation.rounds) = True"),
    ("run --set federation.rounds=[1]", "--rounds (federation.rounds) = [1]"),
    ("run --set federation.rounds=2.5", "--rounds (federation.rounds) = 2.5"),
    ("run --set federation.rounds=" + "9" * 5000, "--rounds (federation.rounds)"),
    ("run --set federation.rounds=0x" + "f" * 5000, "a huge number"),
    ("run --set federation.rounds=" + "[" * 5000, "--rounds (federation.rounds)"),
    ("run --set federation.rounds.x=3", "--rounds (federation.rounds)"),
    ("run --set federation.round=3", "did you mean 'rounds'?"),
    ("run --set federatoin.rounds=3", "did you mean 'federation.rounds'?"),
    ("run --set preset.x=1", "--preset"),
    ("run --set folder.schema=1", "unknown section 'folder'"),
    ("run --set server.learning_rate=nan", "server.learning_rate = nan: expected a finite"),
    ("run --set server.learning_rate=-1", "server.learning_rate = -1"),
    ("run --set server.optimizer=adm", "server.optimizer = 'adm'"),
    ("run --set model.pseudo_items=-1", "model.pseudo_items = -1"),
    ("run --set model.pseudo_items=10000000000", "model.pseudo_items = 10000000000"),
    ("run --set factorization.dim=true", "factorization.dim = True"),
    ("run --set fedgnn.heads=3", "fedgnn.heads = 3"),
    ("run --set data.clients=301", "clients=301"),
    ("run --set data.train_share=1e-12", "too few ratings"),
    ("run --set data.scale=1:5", "only for csv:PATH"),
    ("run --dataset csv:{tmp}/good.csv --set data.scale=5:1", "scale='5:1'"),
    ("run --dataset csv:{tmp}/good.csv --set data.user_column=nope", "user='nope'"),
    ("run --dataset csv:{tmp}/good.csv --set data.user_column=-1", "user=-1"),
    ("run --dataset synthetic --set synthetic.clients=2000000000", "synthetic.clients"),
    ("run --dataset synthetic --set synthetic.items=999999999999", "items"),
    ("run --dataset synthetic --set synthetic.ratings_per_client=501", "ratings_per_client=501"),
    # how to say it
    ("run -q -v", "--verbose and --quiet exclude each other"),
    ("run -q -v --json", "--verbose and --quiet exclude each other"),
    ("run --nonsense", "No such option '--nonsense'"),
    ("run extra", "extra"),
    ("nonsense", "No such command 'nonsense'"),
    ("data nonsense", "No such command 'nonsense'"),
    # the other commands
    ("resume", "'FOLDER'"),
    ("resume ", "FOLDER = ''"),
    ("resume {tmp}", "{tmp}: not a run folder"),
    ("resume {tmp}/none", "{tmp}/none: not a run folder"),
    ("resume {tmp}/file", "{tmp}/file: not a run folder"),
    ("resume {tmp}/newer", "written by a newer version"),
    ("resume {tmp}/empty --json", "{tmp}/empty: not a run folder"),
    ("resume {tmp}/empty -q -v", "exclude each other"),
    ("report ", "FOLDER = ''"),
    ("report {tmp}/empty --json", "{tmp}/empty: not a run folder"),
    ("data info", "'DATASET'"),
    ("data info nonsense", "dataset='nonsense'"),
    ("data info nonsense --json", "dataset='nonsense'"),
    ("data info demo --seed -1", "--seed"),
    ("data info demo --seed 99999999999", "--seed (run.seed) = 99999999999"),
    ("data info demo --set data.clients=301", "clients=301"),
    ("data info csv:{tmp}/one.csv", "too few ratings"),
    ("data list --data-dir {tmp}/none", "--data-dir"),
    ("data fetch nonsense", "dataset='nonsense'"),
    ("data fetch demo", "dataset='demo': there is nothing to fetch"),
    ("data fetch synthetic --json", "dataset='synthetic': there is nothing to fetch"),
    ("data fetch csv:x", "nothing to fetch"),
    # report
    ("report", "'FOLDER'"),
    ("report {tmp}/none", "{tmp}/none: not a run folder"),
    ("report {tmp}/file", "{tmp}/file: not a run folder"),
    ("report {tmp}/newer", "{tmp}/newer: written by a newer version (schema 999"),
    ("report {tmp}/older", "{tmp}/older: written by an older version (schema 0, version 0.0.1)"),
    ("report {tmp}/plain", "{tmp}/plain/config.toml: has no [folder] schema"),
    ("report {tmp}/torn", "{tmp}/torn/config.toml: cannot be read"),
    ("report {tmp}/half", "{tmp}/half: the run is not finished"),
    ("report {tmp}/half --figures {tmp}/x", "{tmp}/half: the run is not finished"),
    ("report {tmp}/done --figures ", "--figures = ''"),
    ("report {tmp}/done --figures {tmp}/file", "--figures {tmp}/file: is not a folder"),
    ("report {tmp}/done --figures x --live", "--figures writes no page"),
    ("report {tmp}/done --live --port 65536", "--port = 65536"),
    ("report {tmp}/done --live --port x", "'--port'"),
    ("report {tmp}/old-grid", "{tmp}/old-grid/grid.json: written by another version (schema 0)"),
    ("report {tmp}/torn-grid", "{tmp}/torn-grid/grid.json: cannot be read"),
    ("report {tmp}/torn-sweep", "{tmp}/torn-sweep/vary.json: cannot be read"),
    # tracking
    ("run --track wandb", "--track = 'wandb': expected one of tensorboard, mlflow"),
    ("resume {tmp}/half --track ", "--track = ''"),
    # compare and sweep
    ("compare --policy nonsense", "--policy: policy = 'nonsense'"),
    ("compare --policy bgt,,x", "--policy = 'bgt,,x'"),
    ("compare --dataset nonsense", "--dataset: dataset='nonsense'"),
    ("compare --seeds x", "--seeds = 'x'"),
    ("compare --jobs 0", "--jobs = 0"),
    ("compare --baseline x", "--baseline = 'x': expected one of bgt, uniform, early"),
    ("compare --mechanism none", "--policy = 'bgt': expected unlimited"),
    ("compare --set run.seed=3", "--set run.seed"),
    ("compare --rounds 0", "--rounds (federation.rounds) = 0"),
    ("compare --out {tmp}/file", "--out {tmp}/file: cannot be used"),
    ("compare --out {tmp}/done", "--out {tmp}/done: holds something other than a comparison"),
    ("compare --out {tmp}/old-grid", "written by another version (schema 0)"),
    ("compare --out {tmp}/torn-grid", "{tmp}/torn-grid/grid.json: cannot be read"),
    ("sweep", "--vary: expected SECTION.KEY=V1,V2"),
    ("sweep --vary x", "--vary x: expected SECTION.KEY=V1,V2"),
    ("sweep --vary run.seed=1,2", "--vary run.seed: this is given by --seeds"),
    ("sweep --vary privacy.epsilon=-1", "--vary privacy.epsilon=-1: --epsilon"),
    ("sweep --figure nonsense", "--figure = 'nonsense'"),
    ("sweep --vary privacy.epsilon=1 --figure budget", "--vary and --figure exclude each other"),
    ("sweep --rounds 4", "No such option '--rounds'"),
    # what is paid with
    ("run --epsilon 0", "--epsilon (privacy.epsilon) = 0.0"),
    ("run --epsilon nan", "--epsilon (privacy.epsilon) = nan"),
    ("run --delta 1", "--delta (privacy.delta) = 1.0"),
    ("run --levels 0", "--levels (planning.levels) = 0"),
    ("run --min-rounds 0", "--min-rounds (planning.min_rounds) = 0"),
    ("run --objective mean", "--objective (planning.objective) = 'mean': expected 'served' or"),
    ("run --traffic a,b", "--traffic (planning.traffic) = 'a,b': expected numbers of 0 or more"),
    ("run --traffic 0,0", "--traffic (planning.traffic) = '0,0': expected numbers of 0 or more"),
    ("run --traffic -1,2", "--traffic (planning.traffic) = '-1,2': expected numbers of 0 or more"),
    ("run --traffic nan", "--traffic (planning.traffic) = 'nan': expected numbers of 0 or more"),
    ("compare --traffic none.txt", "--traffic (planning.traffic) = 'none.txt': expected numbers"),
    ("sweep --vary run.x=1 --objective no", "--objective (planning.objective) = 'no'"),
    ("run --target -1", "--target (planning.target) = -1.0"),
    ("run --budgets 3:0.4", "--budgets = '3:0.4': expected EPSILON:SHARE"),
    ("run --budgets {tmp}/none.txt", "--budgets {tmp}/none.txt: expected EPSILON:SHARE"),
    ("run --budgets {tmp}/two.txt", "--budgets = '{tmp}/two.txt': expected 300 numbers"),
    ("run --policy os:path", "--policy (planning.policy) = 'os:path': expected a class"),
    ("run --policy none:Class", "--policy (planning.policy) = 'none:Class': cannot be imported"),
    ("run --mechanism none --policy bgt", "--policy = 'bgt': expected unlimited"),
    ("run --set planning.options.x=1", "bgt does not accept them"),
    ("run --set privacy.accounting=x", "privacy.accounting = 'x': expected one of"),
    (
        "run --mechanism gaussian --set privacy.accounting=laplace/basic",
        "an accountant for",
    ),
    ("run --set server.optimizer=adam", "server.optimizer = 'adam': expected posterior"),
    ("budget --epsilon -1", "--epsilon = -1.0"),
    ("budget --delta 2", "--delta = 2.0"),
    ("budget --rounds 0", "--rounds = 0"),
    ("budget --mechanism nonsense", "--mechanism = 'nonsense'"),
    ("budget --noise-multiplier -1", "--noise-multiplier = -1.0"),
    ("audit --mechanism nonsense", "--mechanism = 'nonsense'"),
    ("audit --trust nonsense", "--trust = 'nonsense'"),
    ("audit --unit x", "--unit = 'x'"),
    ("audit --epsilon 0", "--epsilon = 0.0"),
    ("audit --releases 1", "--releases = 1"),
    ("audit --confidence 2", "--confidence = 2.0"),
    ("audit --seed -1", "--seed = -1"),
    ("audit --path x", "--path = 'x'"),
    ("ledger show {tmp}/none", "{tmp}/none: no such ledger"),
    ("ledger show {tmp}/done", "{tmp}/done/ledger.sqlite: no such ledger"),
    ("ledger show {tmp}/good.csv", "{tmp}/good.csv: "),
    ("ledger verify {tmp}/empty", "{tmp}/empty/ledger.sqlite: no such ledger"),
    ("ledger restore {tmp}/done --head x --lost all", "--head x: expected NUMBER:HASH"),
    # what was learned
    ("recommend {tmp}/done", "'--client'"),
    ("recommend {tmp}/empty --client 1", "{tmp}/empty: not a run folder"),
    ("recommend {tmp}/half --client 1", "{tmp}/half: not finished"),
    ("recommend {tmp}/done --client 1", "{tmp}/done: has no checkpoint"),
    ("predict {tmp}/done", "'--client'"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line[:50] for line, _ in REFUSED])
def test_refused(call: Call, odd_files: Path, line: str, words: str) -> None:
    """One line, code 2, before anything is trained or written."""
    before = sorted(odd_files.rglob("*"))
    done = call(*line.format(tmp=odd_files).split(" "))
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


def test_the_program_has_one_name(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """However Python was started: ``python -m pytest`` is not what a user has to type."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "pytest", raising=False)
    done = call("run", "--nonsense")
    assert done.err.startswith("Usage: bgtplanner run ")
    assert "Try 'bgtplanner run " in done.err


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "empty").mkdir()
    (folder / "newer").mkdir()
    (folder / "newer" / "config.toml").write_text("[folder]\nschema = 999\n")
    configs = {
        "older": '[folder]\nschema = 0\nversion = "0.0.1"\n',
        "plain": "[run]\nseed = 0\n",
        "torn": "[folder\n",
    }
    for name, text in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(text)
    asked = {"old-grid/grid": '{"schema": 0}', "torn-grid/grid": "{", "torn-sweep/vary": "{"}
    for name, text in asked.items():
        (folder / name).parent.mkdir()
        (folder / f"{name}.json").write_text(text)
    short = {"federation.rounds": 3}
    make_run(folder / "done", short)
    make_run(folder / "half", short, rounds_done=1)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nowhere")
    header = "user,item,rating\n"
    tables = {
        "file": "",
        "good.csv": header + "".join(f"{n % 4},{n},{1 + n % 5}\n" for n in range(40)),
        "one.csv": header + "a,1,3\n",
        "one_item.csv": header + "".join(f"{n},x,3\n" for n in range(9)),
        "zeros.csv": header + "".join(f"a,{n},0\n" for n in range(9)),
        "negative.csv": header + "a,1,-3\na,2,3\n",
        "words.csv": header + "a,1,good\n",
        "two.txt": "1\n2\n",
        "broken.toml": "[server\n",
        "scalar.toml": "rounds = 3\n",
        "unknown.toml": "[server]\nlerning_rate = 1\n",
    }
    for name, text in tables.items():
        (folder / name).write_text(text)
    (folder / "bytes.csv").write_bytes(bytes(range(256)))
    return folder


EXTRAS: list[tuple[str, str, str]] = [
    ("run", "jax", "sim"),
    ("resume x", "jax", "sim"),
    ("compare", "jax", "sim"),
    ("data info demo", "optax", "sim"),
    ("report {tmp}/done", "jinja2", "report"),
    ("report {tmp}/done", "matplotlib", "report"),
    ("sweep --vary privacy.epsilon=1", "matplotlib", "report"),
    ("run --track mlflow", "mlflow", "mlflow"),
    ("run --track tensorboard", "tensorboard.summary", "tensorboard"),
]


@pytest.mark.parametrize(("line", "module", "extra"), EXTRAS)
def test_missing_extra(
    call: Call,
    odd_files: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    module: str,
    extra: str,
) -> None:
    for name in [name for name in sys.modules if name.startswith("bgtplanner.report.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    done = call(*line.format(tmp=odd_files).split(" "))
    assert (done.code, done.out) == (2, "")
    assert f"needs the extra '{extra}': pip install 'bgtplanner[{extra}]'" in done.err


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestNoDisk:
    """Code 1: nobody gave anything wrong."""

    def check(self, done: Done, *words: str) -> None:
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        for word in words:
            assert word in done.err

    def test_run(self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store.os, "fsync", full)
        done = call("run", "--rounds", 1, "--out", tmp_path / "run")
        self.check(done, f"{tmp_path}/run/config.toml: no space left", "then 'bgtplanner resume'")

    def test_report(self, call: Call, odd_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store.os, "fsync", full)
        done = call("report", odd_files / "done")
        self.check(done, "report.html: no space left on the disk; free some, then give the same")

    def test_figures(
        self, call: Call, odd_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Path, "write_text", full)
        done = call("report", odd_files / "done", "--figures", tmp_path / "x")
        self.check(done, f"--figures {tmp_path}/x: no space left", "choose another folder")

    def test_compare(self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "mkdir", full)
        done = call("compare", "--out", tmp_path / "grid")
        self.check(done, f"{tmp_path}/grid: no space left", "choose another folder with --out")

    def test_ledger_export(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from bgtplanner.privacy.budget import Budget, Budgets
        from bgtplanner.privacy.ledger import Ledger

        file = tmp_path / "ledger.sqlite"
        Ledger.create(file, Budgets.same(Budget(1.0, 1e-5), 2), "gaussian/gdp").close()
        monkeypatch.setattr(Path, "write_text", full)
        done = call("ledger", "export", file, "--to", tmp_path / "x.csv")
        self.check(done, f"--to {tmp_path}/x.csv: no space left", "choose another file")

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (errno.EACCES, "x: no permission to write here; choose another"),
            (errno.EROFS, "x: the disk is read-only; choose another"),
            (errno.EIO, "x: Input/output error; choose another"),
        ],
    )
    def test_in_words(self, code: int, words: str) -> None:
        error = OSError(code, os.strerror(code))
        assert str(StorageError.of("x", error, "choose another")) == words


def test_no_network(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    done = call("data", "fetch", "ml-100k", "--data-dir", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert "By hand: get https://" in done.err
    assert "put them into" in done.err
    assert done.err.count("\n") == 1


class TestGridsOfOtherTimes:
    ASKED = Study(policies=("uniform",), seeds=(0,), settings={"federation.rounds": 3})

    def test_other_settings(self, call: Call, tmp_path: Path) -> None:
        make_study(tmp_path / "grid", self.ASKED)
        done = call("compare", "--out", tmp_path / "grid", "--epsilon", 3)
        assert (done.code, done.out) == (2, "")
        assert "was run there with other settings (privacy.epsilon); choose another" in done.err

    def test_a_cell_of_another_version(self, call: Call, tmp_path: Path) -> None:
        folder = make_study(tmp_path / "grid", self.ASKED)
        config = folder / "demo/gaussian/uniform/seed-0/config.toml"
        config.write_text(config.read_text().replace("schema = 1", "schema = 7"))
        done = call("compare", "--out", folder)
        assert (done.code, done.out) == (2, "")
        assert "written by a newer version (schema 7" in done.err
        assert "Use that version, or run again" in done.err

    def test_nothing_to_draw(self, call: Call, tmp_path: Path) -> None:
        folder = make_study(tmp_path / "grid", self.ASKED, leave_out=1)
        done = call("report", folder, "--figures", tmp_path / "x")
        assert (done.code, done.out) == (2, "")
        assert "no cell is finished; continue with: bgtplanner compare --out" in done.err


def test_a_ledger_that_is_none(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    done = call("ledger", "show", file)
    assert (done.code, done.out) == (2, "")
    assert f"{file}: " in done.err
    assert "bgtplanner ledger restore" in done.err


def test_json_keeps_standard_output_clean(call: Call, odd_files: Path) -> None:
    done = call("report", odd_files / "done", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {"report": f"{odd_files}/done/report.html"}
    (odd_files / "done" / "report.html").unlink()
