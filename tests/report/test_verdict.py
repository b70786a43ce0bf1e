"""What came of a run, in sentences and figures: what was planned for comes first."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.report.verdict import nothing_learned, scores, verdict

LAST: dict[str, Any] = {
    "preset": "recommended", "model": "tastes", "clients": 300, "rounds_run": 30,
    "rmse_final": 0.18, "rmse_constant": 0.23, "rmse_client_alone": 0.2,
    "ndcg_at_10": 0.27601, "ndcg_at_10_popularity": 0.29149, "ndcg_at_10_random": 0.01,
}  # fmt: skip
SERVED = LAST | {
    "objective": "served",
    "rmse_served": 0.19,
    "rmse_client_alone_served": 0.25,  # unlike that of the last round: which one counts shows
    "ndcg_at_10_served": 0.25,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "an error 24.0% lower than each could reach alone (RMSE 0.1900 against 0.2500)"),
        ({"rmse_client_alone_served": None}, "RMSE 0.1900 against 0.2000"),
        ({"objective": "last"}, "an error 10.0% lower"),
        ({"rmse_served": 0.3}, "20.0% higher than each could reach alone"),
    ],
)
def test_as_people_were_served(changes: dict[str, Any], words: str) -> None:
    headline, error, better = verdict(SERVED | changes | {"gains": {"better": 0.6}})
    begun = "Over 30 rounds of learning together, 300 clients were served lists no better than "
    told = "popularity's (NDCG@10 0.250 against 0.291; perfect lists have 1)."
    if "objective" in changes:
        begun, told = "Learning together, 300 clients get lists no better than ", "0.276"
    assert headline.startswith(begun)
    assert told in headline
    assert words in error
    assert better == "Better off: 60 % of the clients."


def test_the_headline_is_about_lists_if_they_are_known() -> None:
    assert "lists better than popularity's" in verdict(LAST | {"ndcg_at_10": 0.3})[0]
    for unknown in ({"ndcg_at_10": None}, {"ndcg_at_10_popularity": None}, {"preset": "paper"}):
        begun = "Learning together, 300 clients get predicted ratings with an error 10.0% lower"
        assert verdict(LAST | unknown)[0].startswith(begun)
    nothing = {"ndcg_at_10": None, "rmse_client_alone": None}
    assert verdict(LAST | nothing) == ["RMSE 0.1800 after 30 rounds."]


@pytest.mark.parametrize("changes", [{"learned": False}, {"mechanism": "x", "rounds_paid": 0}])
def test_nothing_learned(changes: dict[str, Any]) -> None:
    known = LAST | changes | {"epsilon": 0.05, "trust": "local", "scale": [1, 5]}
    headline, error, helps = verdict(known)
    assert headline == "Nothing was learned from others."
    assert "an error of 0.72 stars" in error
    assert "a larger --epsilon, more clients or, with --trust local, secagg" in helps
    assert not nothing_learned(LAST | {"mechanism": "x", "rounds_paid": 1})


def test_scores() -> None:
    table = scores(SERVED | {"scale": [1, 5]})
    assert table.columns[:4] == ["predictor", "RMSE", "stars", "NDCG@10"]
    assert {name: figures[:3] for _, (name, *figures) in table.rows} == {
        "one constant for all": ["0.2300", "0.92", "–"],
        "each client alone": ["0.2000", "0.80", "–"],
        "each client alone, as served": ["0.2500", "1.00", "–"],
        "popularity, not private": ["–", "–", "0.291"],
        "random lists": ["–", "–", "0.010"],
        "tastes, as served": ["0.1900", "0.76", "0.250"],
        "tastes, last round": ["0.1800", "0.72", "0.276"],
    }
    assert table.bold == "tastes, as served"
    assert scores(SERVED | {"objective": "last"}).bold == "tastes, last round"
    paper = LAST | {"preset": "paper", "rmse_best": 0.17, "f1_best": 0.9, "f1_final": 0.8}
    table = scores(paper, judged=True)
    assert table.columns == ["predictor", "RMSE", "F1"]
    best = ["best round on the test set, as in the paper", "0.1700", "0.900"]
    assert (table.rows[-1], table.bold) == (("", best), "tastes, last round")
