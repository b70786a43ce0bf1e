"""Metrics of lists against LensKit's figures for the same lists, and scikit-learn's NDCG.

The file holds made-up lists and what LensKit 2025.8.1 says of them, with the logarithm of the
place plus 1 as NDCG's weight (its own default weighs the first two places the same).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from bgtplanner.models.metrics import LIST_LENGTH, METRICS, Lists

FILE = Path(__file__).parents[1] / "assets" / "lenskit-lists.json"


def of_file() -> tuple[list[dict[str, Any]], int]:
    tree = json.loads(FILE.read_text())
    return tree["lists"], tree["items"]


def lists_of(entries: list[dict[str, Any]], items: int) -> Lists:
    shown = np.full((len(entries), LIST_LENGTH), -1)
    hits = np.zeros(shown.shape, dtype=bool)
    for row, entry in enumerate(entries):
        shown[row, : len(entry["shown"])] = entry["shown"]
        hits[row] = np.isin(shown[row], entry["relevant"])
    liked = np.array([len(entry["relevant"]) for entry in entries])
    return Lists(shown, hits, liked, items)


@pytest.mark.parametrize("name", ["ndcg_at_10", "recall_at_10", "mrr"])
def test_as_lenskit_has_it(name: str) -> None:
    entries, items = of_file()
    for entry in entries:
        ours = METRICS[name].of(lists_of([entry], items))
        assert ours == pytest.approx(entry.get(name, float("nan")), abs=1e-12, nan_ok=True)
    known = [entry[name] for entry in entries if name in entry]
    assert 0 < len(known) < len(entries), "users with nothing to find do not count"
    assert METRICS[name].of(lists_of(entries, items)) == pytest.approx(np.mean(known))


def test_as_scikit_learn_has_it() -> None:
    entries, items = of_file()
    whole = [of for of in entries if of["relevant"] and len(of["shown"]) == LIST_LENGTH]
    assert len(whole) > 20
    truth, scores = np.zeros((2, len(whole), items))
    for row, entry in enumerate(whole):
        truth[row, entry["relevant"]] = 1
        scores[row, entry["shown"]] = np.arange(LIST_LENGTH, 0, -1)
    theirs = ndcg_score(truth, scores, k=LIST_LENGTH)
    assert METRICS["ndcg_at_10"].of(lists_of(whole, items)) == pytest.approx(theirs, abs=1e-12)
