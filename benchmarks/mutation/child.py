"""Tests in a process of their own, forked from one that has loaded everything but the package."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["QUIET", "Done", "Running", "prepare", "run", "start"]

QUIET = (
    "-q",
    "-p",
    "no:cacheprovider",
    "--no-header",
    "--no-summary",
    "--tb=no",
)
_LOADED_BEFORE = (
    "numpy",
    "scipy.integrate",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.special",
    "scipy.stats",
    "hypothesis.extra.numpy",
    "hypothesis.stateful",
    "hypothesis.strategies",
    "pytest",
    "_pytest.doctest",
    "sqlite3",
    "pydantic",
    "jax",
    "jax.numpy",
    "optax",
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp",
    "dp_accounting",
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
)
_MEMORY = 8 << 30


class Done(NamedTuple):
    """How a process ended.

    Attributes:
        status: Its exit status; negative for the signal that ended it.
        slow: Whether it was ended because it took too long.
        cpu: Processor time, its own and that of the processes it waited for.
    """

    status: int
    slow: bool
    cpu: float


def prepare(root: Path) -> None:
    """Load what every test needs, once, and nothing of the package."""
    here = Path(__file__).resolve().parent
    src = str(root / "src")
    os.chdir(root)  # tests are named from there
    sys.path.insert(0, src)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here / "site"), src, str(root)])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("BGTPLANNER_SCHEDULES", "50")  # of tests/games; one fault needs no more
    for name in _LOADED_BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "bgtplanner"]
    if loaded:
        raise SystemExit(f"loaded before any fault could be put in: {', '.join(loaded)}")


class Running:
    """A process that was started; :meth:`poll` says when it has ended."""

    def __init__(self, pid: int, folder: str, seconds: float) -> None:
        self.pid = pid
        self.folder = folder
        self.ends = time.monotonic() + seconds

    def poll(self) -> Done | None:
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        slow = False
        if not pid:
            if time.monotonic() < self.ends:
                return None
            slow = True
            os.killpg(self.pid, signal.SIGKILL)
            pid, status, usage = os.wait4(self.pid, 0)
        self.end()
        code = os.waitstatus_to_exitcode(status)
        slow = slow or -code in (signal.SIGPROF, signal.SIGXCPU)
        return Done(code, slow, usage.ru_utime + usage.ru_stime)

    def end(self) -> None:
        """End all that is left of it: its process group, and its folder."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def start(work: Callable[[], int], log: Path, *, examples: int, seconds: float) -> Running:
    """Fork, and do the work there, in a process group of its own."""
    folder = tempfile.mkdtemp(prefix="mutation-")
    Path(folder).chmod(0o755)  # some tests start a process of another user
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        return Running(pid, folder, seconds)
    status = 70
    try:
        os.setpgid(0, 0)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in (1, 2):
            os.dup2(out, descriptor)
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        _few_examples(examples)
        status = work()
    except BaseExceptionGroup:  # warnings of threads that died, which pytest passes on at its end
        traceback.print_exc()
        status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(work: Callable[[], int], log: Path, *, examples: int, seconds: float) -> Done:
    """:func:`start`, and wait."""
    running = start(work, log, examples=examples, seconds=seconds)
    try:
        while (done := running.poll()) is None:
            time.sleep(0.05)
        return done
    finally:
        running.end()


def _few_examples(examples: int) -> None:
    """Hypothesis: the same few examples every time, and none made smaller when one fails."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutation",
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")
