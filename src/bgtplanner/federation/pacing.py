"""How often a client lets itself be asked, whoever asks.

A budget bounds what can be learned in all. This bounds how fast: whoever takes over a server has
to wait, and there is time to notice. It goes by the clock and by earlier requests, never by data.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from bgtplanner.durable import replace_file

__all__ = ["Pacing"]


class Pacing:
    """So many requests per hour, saved up to as many when nobody asks.

    A clock that is set back gives nothing and takes nothing; one that jumps ahead gives at most
    one full hour's worth. A lost or damaged note starts from nothing saved up.

    Args:
        path: Where to note how many may come.
        per_hour: Requests per hour.
        clock: Seconds since some fixed time, such as :func:`time.time`.
    """

    def __init__(self, path: Path, per_hour: float, clock: Callable[[], float]) -> None:
        self.path, self.per_hour, self._clock = path, per_hour, clock

    def start(self) -> None:
        """Note that a whole hour's worth may come; for a client that has never been asked."""
        self._note(self._most, self._clock())

    def take(self) -> bool:
        """Whether one more request may be answered now; counts it if so."""
        now = self._clock()
        saved, then = self._noted(now)
        saved = min(self._most, saved + max(0.0, now - then) * self.per_hour / 3600)
        allowed = saved >= 1
        self._note(saved - 1 if allowed else saved, now)
        return allowed

    @property
    def _most(self) -> float:
        return max(1.0, self.per_hour)

    def _noted(self, now: float) -> tuple[float, float]:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            noted = json.loads(self.path.read_bytes())
            saved, then = float(noted["saved"]), float(noted["time"])
            if 0 <= saved <= self._most and math.isfinite(then):
                return saved, then
        return 0.0, now

    def _note(self, saved: float, now: float) -> None:
        replace_file(self.path, json.dumps({"saved": saved, "time": now}).encode())
