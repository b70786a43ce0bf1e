"""Stop a run from outside without losing its progress."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_heard: list[threading.Event] = []  # the event that signals set now, if any


@contextlib.contextmanager
def stop_requests(*, active: bool) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that a run can end between two rounds.

    A second request interrupts at once, as Ctrl-C usually does. A Ctrl-C that is ignored stays
    ignored: a shell that starts a run in the background wants it to survive one in the foreground.
    A run within a study shares the event of the study.
    """
    active = active and threading.current_thread() is threading.main_thread()
    stop = _heard[0] if active and _heard else threading.Event()
    if not active or _heard:
        yield stop
        return

    def request(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    numbers = [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]
    old = {number: signal.signal(number, request) for number in numbers}
    _heard.append(stop)
    try:
        yield stop
    finally:
        _heard.clear()
        for number, handler in old.items():
            signal.signal(number, handler)
