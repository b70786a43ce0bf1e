"""A client's rate limit: how many requests it answers, whoever asks.

A budget bounds how much can be learned in total. The rate limit bounds how fast: an attacker who
takes over a server has to wait, and there is time to notice. It depends on the clock and on
earlier requests, never on data.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from bgtplanner.durable import replace_file


class RateLimit:
    """A token bucket: a number of requests per hour, of which one hour's worth can be saved up.

    A clock that is set back neither adds nor removes requests; one that jumps ahead adds at most
    one hour's worth. What is saved up is in a file; after it is lost or damaged, that is nothing.
    """

    def __init__(self, path: Path, per_hour: float, clock: Callable[[], float]) -> None:
        self.path, self.per_hour, self._clock = path, per_hour, clock

    def start(self) -> None:
        """Allow one hour's worth of requests, for a client that has never been asked."""
        self._note(self._most, self._clock())

    def take(self) -> bool:
        """Return whether one more request may be answered now, and count it if so."""
        now = self._clock()
        saved, then = self._noted(now)
        saved = min(self._most, saved + max(0.0, now - then) * self.per_hour / 3600)
        allowed = saved >= 1
        self._note(saved - 1 if allowed else saved, now)
        return allowed

    @property
    def _most(self) -> float:
        """The most that can be saved up: an hour of requests, or one."""
        return max(1.0, self.per_hour)

    def _noted(self, now: float) -> tuple[float, float]:
        """Return how many requests were saved up, and when; none if the note is unreadable."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            noted = json.loads(self.path.read_bytes())
            saved, then = float(noted["saved"]), float(noted["time"])
            if 0 <= saved <= self._most and math.isfinite(then):
                return saved, then
        return 0.0, now

    def _note(self, saved: float, now: float) -> None:
        """Write down how many requests are saved up at a time."""
        replace_file(self.path, json.dumps({"saved": saved, "time": now}).encode())
