"""What was planned for comes first: in the headline, in the last lines of a run, on its page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.report.outcome import lists_in_words
from bgtplanner.report.page import write_report
from bgtplanner.report.screen import Screen
from bgtplanner.report.terminal import RunProgress
from bgtplanner.report.view import RunView
from bgtplanner.runs.config import load_config
from bgtplanner.runs.run import simulate

SAID = "NDCG@10 0.276 (what is popular has 0.291)"
SUMMARY: dict[str, Any] = {
    "preset": "recommended",
    "clients": 300,
    "ndcg_at_10": 0.27601,
    "ndcg_at_10_popularity": 0.29149,
    "rmse_final": 0.18,
    "rmse_client_alone": 0.2,
}


def view(**changes: Any) -> RunView:
    summary = SUMMARY | changes
    config = load_config(preset=summary["preset"])
    return RunView(summary=summary, rounds=[{}], config=config, versions={}, finished=True)


def headline(**changes: Any) -> str:
    return view(**changes).headline()


def test_the_error_then_the_lists() -> None:
    assert lists_in_words(SUMMARY) == SAID
    error = "an error 10.0\N{NO-BREAK SPACE}% lower than each could reach alone"
    figures = "(RMSE 0.1800 against 0.2000)"
    assert headline() == f"Learning together, 300 clients end with {error} {figures}."
    assert view().lead() == [f"Their lists have {SAID}."]


def test_in_stars() -> None:
    assert headline(scale=[1, 5]).endswith("alone (0.72 instead of 0.80 stars).")
    assert headline(scale=[0, 100]).endswith("alone (18 instead of 20 on 0 to 100).")
    assert headline(scale=[0, 1]).endswith("alone (RMSE 0.1800 against 0.2000).")


@pytest.mark.parametrize(
    "changes",
    [{"ndcg_at_10": None}, {"ndcg_at_10_popularity": None}, {"preset": "paper"}],
    ids=["no lists", "nothing beside them", "not shown"],
)
def test_without_lists(changes: dict[str, Any]) -> None:
    assert lists_in_words(SUMMARY | changes) is None
    assert view(**changes).lead() == []


def test_lists_lead_where_there_are_no_ratings_to_predict() -> None:
    said = headline(rmse_client_alone=0.0)
    assert said == f"Learning together, 300 clients get lists with {SAID}."


def test_as_people_were_served() -> None:
    served = {"objective": "served", "rmse_served": 0.19, "ndcg_at_10_served": 0.25}
    served |= {"rmse_client_alone_served": 0.2, "rounds_run": 30}
    begun = "Over 30 rounds of learning together, 300 clients were served"
    error = "an error 5.0\N{NO-BREAK SPACE}% lower than each could reach alone"
    assert headline(**served) == f"{begun} with {error} (RMSE 0.1900 against 0.2000)."
    lists = "NDCG@10 0.250 (what is popular has 0.291)"
    assert view(**served).lead() == [f"Their lists had {lists}."]


@pytest.mark.parametrize(
    "changes",
    [{"learned": False}, {"mechanism": "gaussian", "rounds_paid": 0}],
    ids=["now", "old"],
)
def test_nothing_learned_is_a_headline_of_its_own(changes: dict[str, Any]) -> None:
    more = {"planner_note": "abstained", "policy": "bgt", "epsilon": 0.05, "trust": "local"}
    seen = view(**changes, **more, scale=[1, 5])
    assert seen.headline() == "Nothing was learned from others."
    assert seen.lead() == [
        "Each client is served as if it were alone, with an error of 0.72 stars.",
        "The planner bgt abstained.",
        "What helps: a larger --epsilon than 0.05, more clients or --trust secagg, which needs "
        "far less noise.",
    ]


@pytest.mark.usefixtures("compiled_once")
def test_on_the_page_and_on_the_terminal(tmp_path: Path) -> None:
    shown = io.StringIO()
    observer = RunProgress(Screen(file=shown, width=80))
    result = simulate("demo", rounds=2, out=tmp_path / "run", observer=observer)
    said = lists_in_words(result.summary)
    assert said is not None
    text = " ".join(shown.getvalue().split())
    assert "Learning together: over all rounds, the error was" in text
    assert f"stars); lists had {said}" in text
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert f"Their lists had {said}" in page
    order = ["with an error", "Their lists", "Error</dt>", "Lists (NDCG@10)</dt>"]
    order += ["Compared with simple predictors and lists", "How good the model got"]
    order += ["What people would be shown", "Who gains and who loses", "How the budget was spent"]
    assert sorted(order, key=page.index) == order
