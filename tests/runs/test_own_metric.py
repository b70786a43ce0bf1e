"""A metric is one entry: whatever shows figures has it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from bgtplanner import compare, simulate
from bgtplanner.errors import ConfigError
from bgtplanner.models.metrics import METRICS, Lists, Metric, metrics
from bgtplanner.report.page import render
from bgtplanner.report.screen import print_table
from bgtplanner.report.study import as_rows
from bgtplanner.report.terminal import RunProgress
from bgtplanner.runs.config import load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.observers import figures_of
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
    terminal = Console(file=io.StringIO(), width=120)
    folder = tmp_path / "run"
    view = RunProgress(terminal, 1)
    result = simulate("synthetic", settings=TINY, out=folder, observer=view)
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert summary["worst_final"] == lines[-1]["worst"] >= lines[-1]["rmse"] > 0
    assert summary["worst_best"] == min(line["worst"] for line in lines)
    assert summary["worst_constant"] >= summary["rmse_constant"]
    assert 0 <= summary["hits_at_10"] <= 1
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert f"Worst {lines[0]['worst']:.2f}" in text
    row = next(line for line in text.splitlines() if line.startswith("tastes, last round"))
    assert row.split()[5] == f"{summary['worst_final']:.2f}", "after RMSE, and both in stars"
    assert row.split()[-1] == f"{summary['hits_at_10']:.3f}"
    config = load_config(settings={"privacy.mechanism": "none"})
    assert figures_of(lines[0], config)["quality/worst"] == lines[0]["worst"]
    page = render(folder)
    assert "Worst on the held-out ratings (lower is better)" in page
    assert f'<td class="n">{summary["worst_final"]:.2f}</td>' in page
    assert load(folder).summary["hits_at_10"] == result.summary["hits_at_10"]


@pytest.mark.usefixtures("more")
def test_it_is_compared(tmp_path: Path) -> None:
    found = compare(
        "synthetic", ["uniform", "late"], seeds=[0, 1], settings=TINY, out=tmp_path / "study"
    )
    served = ("ndcg_at_10_served", "rmse_served", "worst_served")
    last = ("ndcg_at_10", "rmse_final", "worst_final")
    lists = ("recall_at_10", "coverage", "overlap")
    assert found.reported == (*served, *last, *lists, "hits_at_10")
    terminal = Console(file=io.StringIO(), width=80)
    for table in tables_of(found):
        print_table(terminal, as_rows(table))
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "NDCG@10 and RMSE (mean over all rounds, as served)" in text
    assert "Worst (mean over all rounds, as served)" in text
    assert "Worst and recall@10 (last round)" in text
    assert "A lower Worst and a higher recall@10 are better." in text
    assert "Hits@10 (last round)" in text
    mean = found.rows[0].figures["worst_final"]
    assert mean is not None
    assert f"{mean.mean:.4f}" in text
    page = render(tmp_path / "study")
    assert "Worst (mean over all rounds, as served)" in page
    assert "worst_final" in (tmp_path / "study" / "comparison.csv").read_text()


def test_what_a_run_before_it_did_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old folders are read on: the new figure is a dash there."""
    folder = tmp_path / "run"
    simulate("synthetic", settings=TINY, out=folder)
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    METRICS.add("worst", WORST)
    page = render(folder)
    assert '<td class="n">–</td>' in page
    assert "Worst on the held-out ratings" not in page
    assert "worst" not in RunFolder(folder).rounds(whole=True)[0]


@pytest.mark.usefixtures("more")
def test_lists_hold_what_was_not_trained_on() -> None:
    seen: list[Lists] = []

    def of(lists: Lists) -> float:
        seen.append(lists)
        return 0.5

    METRICS.add("spy", Metric(label="spy", better="higher", of=of, shown=False))
    result = simulate("synthetic", settings=TINY)
    assert result.summary["spy"] == 0.5
    (lists,) = seen
    assert lists.items.shape == lists.hits.shape == (8, 10)
    assert (lists.hits.sum(axis=1) <= lists.liked).all()
    split_test = lists.liked.sum()
    assert 0 < split_test < len(result.ratings)
    for row in lists.items:
        known = row[row >= 0]
        assert 0 < len(np.unique(known)) == len(known), "what is left, each once"


def test_names_are_taken_once() -> None:
    with pytest.raises(ConfigError, match="metric = 'rmse': expected a name that is not taken"):
        METRICS.add("rmse", WORST)
    with pytest.raises(ConfigError, match=r"metric = 'rmsa': .*did you mean 'rmse'"):
        METRICS["rmsa"]


def test_which_is_better() -> None:
    assert METRICS["rmse"].best([0.2, 0.1, 0.3]) == 0.1
    assert METRICS["f1"].best([0.2, 0.1, 0.3]) == 0.3
    assert METRICS["rmse"].in_words(0.12345) == "0.1235"
    assert METRICS["f1"].in_words(None) == "–"
    assert set(metrics([0.1], [0.2])) == {"rmse", "mae", "precision", "recall", "f1"}
