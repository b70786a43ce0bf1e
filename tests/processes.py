"""Processes that tests start: they end with the test, whatever happens, and may be slow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

PATIENCE = 600.0
"""Seconds after which something will never come, on however busy a machine."""


class Processes:
    """Starts processes, each in a session of its own, and ends them with all they have started."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[Any], **options: Any) -> subprocess.Popen[str]:
        """Start a process; options are those of `subprocess.Popen`."""
        words = [str(word) for word in command]
        process = subprocess.Popen(words, text=True, start_new_session=True, **options)
        self._started.append(process)
        return process

    def run(self, command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
        """Start a process, wait for its end and return what it printed."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(command, **pipes | options)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End whatever is left."""
        while self._started:
            process = self._started.pop()
            with contextlib.suppress(ProcessLookupError):  # the whole group has gone
                os.killpg(process.pid, signal.SIGKILL)
            with process:  # waits for it and closes the pipes
                pass


def wait_until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Return what is found, once anything is."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(0.01)
    return found


def lines_in(file: Path) -> int:
    """How many lines another process has written so far."""
    try:
        return file.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
