"""Stop a run from outside without losing its progress."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["stop_requests"]


@contextlib.contextmanager
def stop_requests(*, active: bool) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that a run can end between two rounds.

    A second request interrupts at once, as Ctrl-C usually does. If Ctrl-C is ignored, it stays
    ignored: a shell that starts a run in the background wants it to survive a Ctrl-C in the
    foreground. SIGTERM still stops it.
    """
    stop = threading.Event()
    if not active or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    old = {number: signal.signal(number, request) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
