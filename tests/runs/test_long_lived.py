"""A process that plays run after run does not grow without end.

Every compiled program keeps memory maps, and the compiler dies of a segmentation fault when the
kernel has no more of them.
"""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from bgtplanner import simulate
from bgtplanner.federation import compilation
from bgtplanner.runs.result import Result

MAPS = Path("/proc/self/maps")
TINY = {
    "synthetic.items": 6,
    "synthetic.ratings_per_client": 4,
    "model.name": "factorization",
    "run.device": "cpu",
}

pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="nobody counts memory maps here")


def maps() -> int:
    return MAPS.read_bytes().count(b"\n")


def train(clients: int) -> Result:
    settings = TINY | {"synthetic.clients": clients}
    return simulate("synthetic", mechanism="none", rounds=1, settings=settings)


def test_runs_of_different_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.clear_caches()
    before = maps()
    train(5)
    each = maps() - before
    assert each > 30, "a run without maps: this test shows nothing"
    monkeypatch.setattr(compilation, "_RUNS_KEPT", 2)
    for clients in range(6, 12):
        train(clients)
        assert maps() < before + 4 * each
