"""What the files of a run may hold: each value is named with what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.errors import RunFolderError
from bgtplanner.runs.folder import CLIENTS, ROUND, SUMMARY, check


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        (ROUND, {"rmse": 10**400}, "rmse = 1000"),
        (ROUND, {"ndcg_at_10": float("nan")}, "ndcg_at_10 = nan: expected a finite number"),
        (ROUND, {"a_metric_of_a_plugin": "low"}, "a_metric_of_a_plugin = 'low': expected a valid"),
        (ROUND, {"paid": True}, "paid = True: expected a valid integer"),
        (ROUND, {"level": -1}, "level = -1: expected "),
        (ROUND, {"left": [1.5]}, "left = a list of 1: expected "),
        (ROUND, {"why": {"predicted": "low"}}, "why = an object: expected a valid list"),
        (ROUND, {"spent": [[2**63]]}, "spent = a list of 1: expected "),
        (SUMMARY, {"policy": "x" * 2000}, "policy = 'xxx"),
        (SUMMARY, {"classes": [{}]}, "classes = a list of 1: expected"),
        (SUMMARY, {"neighbours": "all"}, "neighbours = 'all': expected 'replace-special' or"),
        (CLIENTS, {"run": 3}, "run = 3: expected a valid string"),
    ],
)
def test_named_with_what_was_expected(kind: Any, found: Any, said: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        check(kind, "here", found)
    assert str(caught.value).startswith(f"here: {said}")
    assert str(caught.value).endswith("bring the old file back, or run it again")


def test_figures_that_no_model_names_and_reasons_that_rule_something_out() -> None:
    check(SUMMARY, "here", {"schema": 1, "epsilon": 3, "ndcg_at_10_served": 0.25, "own": None})
    reasons = {"note": "explored", "predicted": [0.5, float("-inf")], "probability": [0.0, 1.0]}
    check(ROUND, "here", {"why": reasons, "copy": 1, "json": 2})
