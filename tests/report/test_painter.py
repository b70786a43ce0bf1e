"""A process that draws: the same pictures, and nothing is lost or left behind without it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.report import painter
from bgtplanner.report.course import SentCourse
from bgtplanner.report.drawing import for_page
from bgtplanner.report.page import render
from bgtplanner.report.painter import Painter, painting
from bgtplanner.report.run_plots import run_pictures
from bgtplanner.report.view import RunView, read_run, run_as_ended
from made_runs import make_run
from processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, compiled_once: Path) -> Path:
    return make_run(tmp_path_factory.mktemp("painter") / "run", {"federation.rounds": 6})


@pytest.fixture(scope="module")
def view(folder: Path) -> RunView:
    return read_run(folder)


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The page with pictures that were drawn in this process."""
    return render(folder)


def never(view: RunView) -> list[object]:
    raise AssertionError("drawn here")


def test_what_is_sent_is_what_is_read(view: RunView) -> None:
    sent = SentCourse(view.sent())
    assert (sent.summary, sent.rounds) == (view.summary, view.rounds)
    assert (sent.total, sent.participation) == (view.total, view.participation)
    assert sent.curves == view.curves != []
    assert np.array_equal(sent.epsilon(), view.epsilon())  # type: ignore[arg-type]


def painted(folder: Path, view: RunView) -> str:
    """The page with pictures that were drawn in another process, if they were."""
    made = Painter()
    try:
        made.begin(view)
        return render(folder, painter=made)
    finally:
        made.close()
        assert made._process.returncode is not None, "it has ended"


def test_a_run_that_has_ended_is_as_in_its_folder(tmp_path: Path) -> None:
    result = simulate("demo", rounds=3, out=tmp_path / "run")
    assert run_as_ended(result).sent() == read_run(tmp_path / "run").sent()


def test_the_same_page(
    folder: Path, view: RunView, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bgtplanner.report.page._drawn_here", never)
    assert painted(folder, view) == page


def test_the_same_pictures(view: RunView) -> None:
    made = Painter()
    try:
        made.begin(view)
        assert made.painted() == [for_page(picture) for picture in run_pictures(view)]
    finally:
        made.close()


@pytest.mark.parametrize(
    "command",
    ["raise SystemExit(1)", "print('no JSON')", "print('[{}]')", "print('[1]')", "print('1')"],
)
def test_one_that_fails_is_not_missed(
    folder: Path, view: RunView, page: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(painter, "_COMMAND", command)
    assert painted(folder, view) == page


def test_a_copy_that_fails_is_not_missed(
    folder: Path, view: RunView, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the pictures are drawn by a copy of the painter, which may run out of memory."""
    fails = "import os\nos.fork = lambda of=os.fork: of() or os._exit(1)\n"
    monkeypatch.setattr(painter, "_COMMAND", fails + painter._COMMAND)
    assert painted(folder, view) == page


def test_one_that_never_answers(
    folder: Path, view: RunView, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(painter, "_COMMAND", "import time; time.sleep(600)")
    monkeypatch.setattr(painter, "_PATIENCE", 0.01)
    assert painted(folder, view) == page


def test_one_that_was_not_asked(folder: Path, page: str) -> None:
    with contextlib.closing(Painter()) as made:
        assert render(folder, painter=made) == page


def test_it_needs_no_jax(processes: Processes) -> None:
    """Loading JAX would take longer than all pictures."""
    code = (
        "import sys, bgtplanner.report.painter, bgtplanner.report.course\n"
        "assert 'numpy' in sys.modules and 'matplotlib' not in sys.modules\n"
        "import bgtplanner.report.run_plots\n"
        "print(*{'jax', 'pydantic', 'scipy', 'typer'} & set(sys.modules))"
    )
    done = processes.run([sys.executable, "-c", code])
    assert (done.stdout, done.stderr) == ("\n", "")


def test_starting_one_loads_nothing(processes: Processes) -> None:
    """It is started before everything else, so that there is time enough."""
    code = "import sys, bgtplanner.report.painter; print(*{'numpy', 'jax'} & set(sys.modules))"
    done = processes.run([sys.executable, "-c", code])
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_page_is_made_without_matplotlib(folder: Path, processes: Processes) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from bgtplanner.report.page import render\n"
        "from bgtplanner.report.painter import painting\n"
        "from bgtplanner.report.view import read_run\n"
        "folder = Path(sys.argv[1])\n"
        "with painting() as made:\n"
        "    made is None or made.begin(read_run(folder))\n"
        "    render(folder, painter=made)\n"
        "print(made is None, 'matplotlib' in sys.modules)"
    )
    done = processes.run([sys.executable, "-c", code, folder])
    alone = painter.cores() == 1
    assert (done.stdout, done.stderr) == (f"{alone} {alone}\n", "")


def test_files_in_the_current_folder_are_not_imported(
    view: RunView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    made = Painter()
    try:
        made.begin(view)
        assert made.painted()
    finally:
        made.close()


def test_it_ends_with_the_run_that_was_killed(processes: Processes) -> None:
    code = (
        "import os, signal\n"
        "from bgtplanner.report.painter import Painter\n"
        "print(Painter()._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = processes.run([sys.executable, "-c", code])
    number = int(done.stdout)

    def gone() -> bool:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{number}/stat")  # nobody may be there to ask how it ended
        return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"

    wait_until(gone, "the painter to end")


class TestPainting:
    @pytest.fixture(autouse=True)
    def not_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(painter, "cores", lambda: 2)
        monkeypatch.delitem(sys.modules, "matplotlib")

    def test_it_is_over_afterwards(self) -> None:
        with painting() as made:
            assert made is not None
            assert made._process.poll() is None
        assert made._process.returncode is not None

    def test_also_after_an_error(self) -> None:
        with pytest.raises(KeyboardInterrupt), painting() as made:
            raise KeyboardInterrupt
        assert made is not None
        assert made._process.returncode is not None

    def test_not_wanted(self) -> None:
        with painting(wanted=False) as made:
            assert made is None

    def test_on_one_core(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(painter, "cores", lambda: 1)
        with painting() as made:
            assert made is None

    def test_where_matplotlib_is_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", pytest)
        with painting() as made:
            assert made is None

    @pytest.mark.parametrize("executable", ["", "/nowhere/python"])
    def test_without_an_interpreter(
        self, executable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "executable", executable)
        with painting() as made:
            assert made is None
