"""Lists come before errors: in the headline, in the last lines of a run, and on its page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.report.page import write_report
from bgtplanner.report.screen import Screen
from bgtplanner.report.terminal import RunProgress, lists_in_words
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


def headline(**changes: Any) -> str:
    summary = SUMMARY | changes
    config = load_config(preset=summary["preset"])
    return RunView(
        summary=summary, rounds=[{}], config=config, versions={}, finished=True
    ).headline()


def test_beside_what_is_popular() -> None:
    assert lists_in_words(SUMMARY) == SAID
    error = "an error 10.0\N{NO-BREAK SPACE}% lower than each could reach alone"
    assert headline() == f"Learning together, 300 clients get lists with {SAID} and {error}."


@pytest.mark.parametrize(
    "changes",
    [{"ndcg_at_10": None}, {"ndcg_at_10_popularity": None}, {"preset": "paper"}],
    ids=["no lists", "nothing beside them", "not shown"],
)
def test_without_lists(changes: dict[str, Any]) -> None:
    assert lists_in_words(SUMMARY | changes) is None
    assert headline(**changes).startswith(
        "Learning together, 300 clients end with an error 10.0\N{NO-BREAK SPACE}%"
    )


def test_as_people_were_served() -> None:
    served = {"objective": "served", "rmse_served": 0.19, "ndcg_at_10_served": 0.25}
    served |= {"rmse_client_alone_served": 0.2, "rounds_run": 30}
    lists = "lists with NDCG@10 0.250 (what is popular has 0.291)"
    begun = "Over 30 rounds of learning together, 300 clients were served"
    error = "an error 5.0\N{NO-BREAK SPACE}% lower than each could reach alone"
    assert headline(**served) == f"{begun} {lists} and {error}."
    ends = f"{begun} with {error} (RMSE 0.1900 against 0.2000)."
    assert headline(**served, ndcg_at_10_popularity=None) == ends


@pytest.mark.usefixtures("compiled_once")
def test_on_the_page_and_on_the_terminal(tmp_path: Path) -> None:
    shown = io.StringIO()
    observer = RunProgress(Screen(file=shown, width=80))
    result = simulate("demo", rounds=2, out=tmp_path / "run", observer=observer)
    said = lists_in_words(result.summary)
    assert said is not None
    assert f"Learning together: over all rounds, lists had {said}; the error was" in " ".join(
        shown.getvalue().split()
    )
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert f"were served lists with {said}" in page
    order = ["Compared with simple predictors and lists", "How good the model got"]
    assert page.index(order[0]) < page.index(order[1])
