"""What the files of a run may hold: each value is named with what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import METRICS, Metric
from bgtplanner.runs.record import (
    CLIENTS,
    ROUND,
    SUMMARY,
    Record,
    needed_keys,
)


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        (ROUND, {"rmse": -0.1}, "rmse = -0.1: expected greater than or equal to 0"),
        (ROUND, {"rmse": 10**400}, "rmse = 1000"),
        (ROUND, {"ndcg_at_10": float("nan")}, "ndcg_at_10 = nan: expected a finite number"),
        (ROUND, {"paid": True}, "paid = True: expected a valid integer"),
        (ROUND, {"level": -1}, "level = -1: expected greater than or equal to 0"),
        (ROUND, {"left": [1.5]}, "left = a list of 1: expected less than or equal to 1"),
        (ROUND, {"why": {"note": [1.0]}}, "why = an object: expected a note as text"),
        (ROUND, {"why": {"probability": [2.0]}}, "why = an object: expected probabilities from"),
        (ROUND, {"why": {"predicted": [1e308]}}, "why = an object: "),
        (ROUND, {"spent": [[1], [1, 2]]}, "spent = a list of 2: expected rows of one length"),
        (ROUND, {"spent": [[2**63]]}, "spent = a list of 1: expected less than"),
        (SUMMARY, {"delta": 1.0}, "delta = 1.0: expected less than 1"),
        (SUMMARY, {"policy": "x" * 2000}, "policy = 'xxx"),
        (SUMMARY, {"classes": [{}]}, "classes = a list of 1: expected: Field required"),
        (SUMMARY, {"trust": "no one"}, "trust = 'no one': expected 'local' or 'secagg'"),
        (SUMMARY, {"schema": "1"}, "schema = '1': expected a valid integer"),
        (SUMMARY, {"f1_best_round": 0.5}, "f1_best_round = 0.5: expected a valid integer"),
        (CLIENTS, {"run": 3}, "run = 3: expected a valid string"),
    ],
)
def test_named_with_what_was_expected(kind: Record, found: Any, said: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        kind.check("here", found)
    assert str(caught.value).startswith(f"here: {said}")
    assert str(caught.value).endswith("bring the old file back, or run it again")


def test_keys_that_nobody_knows_and_reasons_that_rule_something_out() -> None:
    SUMMARY.check("here", {"schema": 1, "epsilon": 3, "ndcg_at_10_served": 0.25, "later": [{}]})
    reasons = {"note": "explored", "predicted": [0.5, float("-inf")], "probability": [0.0, 1.0]}
    ROUND.check("here", {"why": reasons, "copy": 1, "json": 2})


def test_a_metric_that_was_added_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    SUMMARY.check("here", {"own_final": "any"})
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    METRICS.add("own", Metric(label="Own", better="lower", of=lambda lists: 0.0))
    with pytest.raises(RunFolderError, match="own_final = 'any': expected a valid number"):
        SUMMARY.check("here", {"own_final": "any"})


@pytest.mark.parametrize(("private", "deployed"), [(True, False), (False, False), (True, True)])
def test_what_is_missing_is_listed(private: bool, deployed: bool) -> None:
    needed, each = needed_keys(private, deployed)
    assert ("epsilon" in needed, "users" in needed) == (private, not deployed)
    found: dict[str, Any] = {"dataset": "demo", "users": None}
    with pytest.raises(RunFolderError, match=r"here: has no .*clients.* and \d+ more; run it"):
        SUMMARY.check("here", found, needed)
    assert (("charge" in each), ("rmse" in each)) == (private, not deployed)
