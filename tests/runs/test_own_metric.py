"""A metric is one entry: whatever shows figures has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from bgtplanner import simulate
from bgtplanner.models.metrics import METRICS, Metric
from bgtplanner.runs.run import load

pytestmark = pytest.mark.usefixtures("compiled_once")

TINY = {
    "synthetic.clients": 8,
    "synthetic.items": 12,
    "synthetic.ratings_per_client": 8,
    "federation.rounds": 3,
    "run.device": "cpu",
}
WORST = Metric(
    label="Worst",
    better="lower",
    sums=(lambda predicted, actual: abs(predicted - actual).max(),),
    of=lambda worst, n: worst if n else float("nan"),
    digits=2,
    unit="ratings",
)
HITS = Metric(label="Hits@10", better="higher", of=lambda lists: lists.hits.any(axis=1).mean())


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A metric of ratings and one of lists, for the time of a test."""
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    METRICS.add("worst", WORST)
    METRICS.add("hits_at_10", HITS)
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("more")
def test_it_is_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = simulate("synthetic", settings=TINY, out=folder)
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert summary["worst_final"] == lines[-1]["worst"] >= lines[-1]["rmse"] > 0
    assert summary["worst_best"] == min(line["worst"] for line in lines)
    assert summary["worst_constant"] >= summary["rmse_constant"]
    assert 0 <= summary["hits_at_10"] <= 1
    assert load(folder).summary["hits_at_10"] == result.summary["hits_at_10"]
