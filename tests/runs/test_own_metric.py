"""A metric is one entry: whatever shows figures has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from bgtplanner import compare, simulate
from bgtplanner.models.metrics import METRICS, Metric
from bgtplanner.runs.run import load
from bgtplanner.runs.tables import tables_of

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


@pytest.mark.usefixtures("more")
def test_it_is_compared(tmp_path: Path) -> None:
    found = compare("synthetic", ["uniform", "late"], seeds=[0, 1], settings=TINY, out=tmp_path)
    served = ("ndcg_at_10_served", "rmse_served", "worst_served")
    last = ("ndcg_at_10", "rmse_final", "worst_final")
    lists = ("recall_at_10", "coverage", "overlap")
    assert found.reported == (*served, *last, *lists, "hits_at_10")
    mean = found.rows[0].figures["worst_final"]
    assert mean is not None
    cells = [cell for table in tables_of(found) for _, row in table.rows for cell in row]
    assert f"{mean.mean:.4f}" in cells
    assert "worst_final" in (tmp_path / "comparison.csv").read_text()
