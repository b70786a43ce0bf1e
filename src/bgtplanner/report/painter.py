"""A process that draws the pictures of a run, beside the one that trains.

Loading Matplotlib and drawing take a quarter of the time of a short run, and Python computes on
one core only. So a painter is started first: it loads Matplotlib while the run goes on, and draws
when the run is done. It knows what the pictures show and nothing else: no ratings, and no JAX.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

from bgtplanner.cores import cores
from bgtplanner.report.looks import Drawn

if TYPE_CHECKING:  # it is started before anything else is loaded
    from bgtplanner.report.course import Course
    from bgtplanner.report.drawing import Picture

__all__ = ["Painter", "painting"]

# Modules are looked for where they are here, and not in the current folder. Ctrl-C is for the run.
_COMMAND = """
import gc, signal, sys
gc.disable()
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = sys.argv[1:]
from bgtplanner.report.painter import serve
serve()
"""

_PATIENCE = 120.0  # seconds after which a painter will never be done, on however busy a machine


class Painter:
    """A process that draws the pictures of one run. Whatever is wrong with it, it is not used.

    It ends when this process does, however that ends: its input is closed then.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own code
            [sys.executable, "-P", "-c", _COMMAND, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._talking = ThreadPoolExecutor(1, thread_name_prefix="painter")
        self._answer: Future[tuple[bytes, bytes]] | None = None

    def begin(self, course: Course) -> None:
        """Have the pictures of a run drawn, and return at once."""
        with contextlib.suppress(TypeError, ValueError):  # no JSON: it is drawn here
            asked = course.sent().encode()
            self._answer = self._talking.submit(self._process.communicate, asked, _PATIENCE)

    def painted(self) -> list[Drawn] | None:
        """Wait for the pictures and return them; None if they have to be drawn here."""
        if self._answer is None:
            return None
        try:
            answer, _ = self._answer.result()
            return [Drawn(**each) for each in json.loads(answer)]
        except (OSError, ValueError, TypeError, subprocess.SubprocessError):
            return None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._talking.shutdown()
        with self._process:  # closes the pipes, and waits for the end
            pass


@contextlib.contextmanager
def painting(wanted: bool = True) -> Iterator[Painter | None]:
    """Yield a painter; None if none is wanted, or if drawing here takes no longer.

    That is so on a single core, and once Matplotlib is loaded.
    """
    painter = None
    if wanted and cores() > 1 and "matplotlib" not in sys.modules and sys.executable:
        with contextlib.suppress(OSError):
            painter = Painter()
    try:
        yield painter
    finally:
        if painter is not None:
            painter.close()


def serve() -> None:
    """Draw the pictures of the run that is read from standard input, in the other process."""
    from bgtplanner.report.course import SentCourse
    from bgtplanner.report.run_plots import run_pictures

    asked = sys.stdin.buffer.read()
    if asked:  # else the run has ended without pictures
        drawn = _drawn_by_two(list(run_pictures(SentCourse(asked.decode()))))
        sys.stdout.buffer.write(json.dumps(drawn).encode())
        sys.stdout.buffer.flush()
    os._exit(0)  # tidying up would keep the run waiting


def _drawn_by_two(pictures: Sequence[Picture]) -> list[dict[str, str]]:
    """Draw every other picture in a copy of this process: the run waits, and its core is free."""
    from bgtplanner.report.drawing import for_page

    drawn: list[dict[str, str]] = [{} for _ in pictures]
    reading, writing = os.pipe()
    copy = os.fork() == 0
    drawn[copy::2] = [asdict(for_page(picture)) for picture in pictures[copy::2]]
    if copy:
        with os.fdopen(writing, "w") as pipe:
            json.dump(drawn[1::2], pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:  # to its end, which is also that of a copy that has failed
        drawn[1::2] = json.load(pipe)
    return drawn
