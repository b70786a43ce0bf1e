"""What tests start, they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import Processes, wait_until

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(3600)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # whose parent has not looked yet


def test_a_process_that_listens_to_nobody_and_its_child() -> None:
    processes = Processes()
    process = processes.start([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    os.kill(child, signal.SIGTERM)
    assert process.poll() is None
    assert alive(child)
    processes.end()
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not alive(child), "the child to go")


def test_output_and_exit_code(processes: Processes) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = processes.run([sys.executable, "-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_waiting_has_an_end() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.02 s for nothing"):
        wait_until(lambda: None, "nothing", 0.02)


@pytest.mark.usefixtures("ctrl_c")
def test_what_is_started_can_be_interrupted(processes: Processes) -> None:
    """Even if the tests were started in the background, by a shell that has Ctrl-C ignored."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) == signal.default_int_handler)"
    assert processes.run([sys.executable, "-c", code]).stdout == "True\n"
