"""What the files of a run may hold: each value is named with what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import METRICS, Metric
from bgtplanner.runs.record import Clients, Record, Round, Summary, check_spent


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        (Round, {"rmse": -0.1}, "rmse = -0.1: expected a number greater than or equal to 0"),
        (Round, {"rmse": 10**400}, "rmse = 1000"),
        (Round, {"ndcg_at_10": float("nan")}, "ndcg_at_10 = nan: expected a finite number"),
        (Round, {"paid": True}, "paid = True: expected a valid integer"),
        (Round, {"level": -1}, "level = -1: expected a number greater than or equal to 0"),
        (Round, {"left": [1.5]}, "left = a list of 1: expected a number less than or equal to 1"),
        (Round, {"why": {"note": [1.0]}}, "why = an object: expected a note as text"),
        (Round, {"why": {"probability": [2.0]}}, "why = an object: expected probabilities from"),
        (Round, {"why": {"predicted": [1e308]}}, "why = an object: "),
        (Round, {"spent": [[1], [1, 2]]}, "spent = a list of 2: expected rows of one length"),
        (Round, {"spent": [[2**63]]}, "spent = a list of 1: expected a number less than"),
        (Summary, {"delta": 1.0}, "delta = 1.0: expected a number less than 1"),
        (Summary, {"policy": "x" * 2000}, "policy = 'xxx"),
        (Summary, {"classes": [{}]}, "classes = a list of 1: expected field required"),
        (Summary, {"trust": "no one"}, "trust = 'no one': expected 'local' or 'secagg'"),
        (Summary, {"schema": "1"}, "schema = '1': expected a valid integer"),
        (Summary, {"f1_best_round": 0.5}, "f1_best_round = 0.5: expected a valid integer"),
        (Clients, {"run": "a"}, "clients = None: expected field required"),
    ],
    ids=str,
)
def test_named_with_what_was_expected(kind: type[Record], found: Any, said: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        kind.check("here", found)
    assert str(caught.value).startswith(f"here: {said}")
    assert str(caught.value).endswith("bring the old file back, or run it again")


def test_values_by_name_and_keys_that_nobody_knows() -> None:
    summary = Summary.check(
        "here", {"schema": 1, "epsilon": 3, "ndcg_at_10_served": 0.25, "later": {"a": []}}
    )
    assert (summary.layout, summary.epsilon, summary.delta) == (1, 3.0, None)
    assert summary.figure("ndcg_at_10_served") == 0.25
    assert summary.figure("rmse_final") is None
    reasons = {"note": "explored", "predicted": [0.5, float("-inf")], "probability": [0.0, 1.0]}
    assert Round.check("here", {"why": reasons}).why == reasons


def test_a_metric_that_was_added_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    Summary.check("here", {"own_final": "any"})
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    METRICS.add("own", Metric(label="Own", better="lower", of=lambda lists: 0.0))
    with pytest.raises(RunFolderError, match="own_final = 'any': expected a valid number"):
        Summary.check("here", {"own_final": "any"})


@pytest.mark.parametrize(("private", "deployed"), [(True, False), (False, False), (True, True)])
def test_what_is_missing_is_listed(private: bool, deployed: bool) -> None:
    needed = Summary.needed(private, deployed)
    assert ("epsilon" in needed, "users" in needed) == (private, not deployed)
    found: dict[str, Any] = {"dataset": "demo", "model": None}
    with pytest.raises(RunFolderError, match=r"here: has no .*clients.* and \d+ more; run it"):
        Summary.check("here", found, needed)
    assert {"charge", "dropped"} <= Round.needed(True, True)
    assert {"rmse", "loss"} <= Round.needed(False, False)


def test_sums_of_one_ledger() -> None:
    rounds = [{"spent": [[1, 2]]}, {}, {"spent": [[3, 4]]}]
    check_spent("here", rounds, 1)
    for bad, sums in ((rounds, 2), ([*rounds, {"spent": [[5]]}], 1)):
        with pytest.raises(RunFolderError, match=r"here, line \d: spent does not fit"):
            check_spent("here", bad, sums)
