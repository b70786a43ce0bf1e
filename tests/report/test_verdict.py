"""What came of a run, in sentences and figures: what was planned for comes first."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.report.verdict import (
    about_scores,
    gained,
    headline,
    lead,
    nothing_learned,
    scores,
    target_in_words,
)

LAST: dict[str, Any] = {
    "preset": "recommended",
    "model": "tastes",
    "clients": 300,
    "rounds_run": 30,
    "rmse_final": 0.18,
    "rmse_constant": 0.23,
    "rmse_client_alone": 0.2,
    "ndcg_at_10": 0.27601,
    "ndcg_at_10_popularity": 0.29149,
    "ndcg_at_10_random": 0.01,
}
SERVED = LAST | {
    "objective": "served",
    "rmse_served": 0.19,
    "rmse_client_alone_served": 0.25,  # unlike that of the last round: which one counts shows
    "ndcg_at_10_served": 0.25,
}


def test_last_round() -> None:
    error = "an error 10.0% lower than each could reach alone (RMSE 0.1800 against 0.2000)"
    assert headline(LAST) == f"Learning together, 300 clients end with {error}."
    assert lead(LAST) == ["Their lists have NDCG@10 0.276 (popularity reaches 0.291)."]


def test_as_people_were_served() -> None:
    error = "an error 24.0% lower than each could reach alone (RMSE 0.1900 against 0.2500)"
    begun = "Over 30 rounds of learning together, 300 clients were served with"
    assert headline(SERVED) == f"{begun} {error}."
    assert lead(SERVED) == ["Their lists had NDCG@10 0.250 (popularity reaches 0.291)."]
    assert gained(SERVED) == (0.19, 0.25)
    assert gained(SERVED | {"rmse_client_alone_served": None}) == (0.19, 0.2)
    assert gained(SERVED | {"objective": "last"}) == (0.18, 0.2)
    assert gained({"rmse_final": 0.1}) is None


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        ([1, 5], "0.72 instead of 0.80 stars"),
        ([0, 100], "18 instead of 20 on 0 to 100"),
        ([0, 1], "RMSE 0.1800 against 0.2000"),
        (None, "RMSE 0.1800 against 0.2000"),
    ],
)
def test_on_the_scale_of_the_data(scale: list[int] | None, words: str) -> None:
    assert headline(LAST | {"scale": scale}).endswith(f"alone ({words}).")


@pytest.mark.parametrize(
    ("together", "alone", "words"),
    [(0.3, 0.2, "50.0% higher"), (0.2, 0.2, "0.0% lower")],
)
def test_higher_or_lower(together: float, alone: float, words: str) -> None:
    changes = {"rmse_final": together, "rmse_client_alone": alone}
    assert f"with an error {words} than" in headline(LAST | changes)


@pytest.mark.parametrize("missing", ["ndcg_at_10", "ndcg_at_10_popularity"])
def test_lists_are_not_judged_without_popularity(missing: str) -> None:
    assert lead(LAST | {missing: None}) == []
    assert lead(LAST | {"preset": "paper"}) == []
    alone = LAST | {"rmse_client_alone": 0.0}  # clicks: there are no ratings to predict
    assert headline(alone).endswith("get lists with NDCG@10 0.276 (popularity reaches 0.291).")
    assert headline(alone | {missing: None}) == "RMSE 0.1800 after 30 rounds."


@pytest.mark.parametrize("changes", [{"learned": False}, {"mechanism": "x", "rounds_paid": 0}])
def test_nothing_learned(changes: dict[str, Any]) -> None:
    known = LAST | changes | {"epsilon": 0.05, "trust": "local", "scale": [1, 5]}
    assert nothing_learned(known)
    assert headline(known) == "Nothing was learned from others."
    error, helps = lead(known)
    assert "an error of 0.72 stars" in error
    assert "--epsilon than 0.05, more clients or --trust secagg" in helps
    assert not nothing_learned(LAST | {"mechanism": "x", "rounds_paid": 1})


def test_nobody_looked_at_the_ratings() -> None:
    known = {"clients": 1200, "rmse_final": None}
    assert headline(known).startswith("1,200 clients learned together on their own machines.")
    assert lead(known) == []


class TestScores:
    def test_all(self) -> None:
        labels, rows, best = scores(SERVED | {"scale": [1, 5]})
        assert labels[:3] == ["RMSE", "stars", "NDCG@10"]
        found = {name: figures[:3] for name, figures in rows}
        assert found == {
            "one constant for all": ["0.2300", "0.92", "–"],
            "each client alone": ["0.2000", "0.80", "–"],
            "each client alone, as served": ["0.2500", "1.00", "–"],
            "popularity, not private": ["–", "–", "0.291"],
            "random lists": ["–", "–", "0.010"],
            "tastes, as served": ["0.1900", "0.76", "0.250"],
            "tastes, last round": ["0.1800", "0.72", "0.276"],
        }
        assert best == "tastes, as served"
        assert scores(SERVED | {"objective": "last"})[2] == "tastes, last round"

    def test_what_it_is_judged_by(self) -> None:
        labels, rows, _ = scores(SERVED, judged=True)
        assert labels == ["RMSE", "NDCG@10"]
        assert [name for name, _ in rows] == [
            "each client alone, as served",
            "popularity, not private",
            "tastes, as served",
            "tastes, last round",
        ]

    def test_the_papers(self) -> None:
        paper = LAST | {"preset": "paper", "rmse_best": 0.17, "f1_best": 0.9, "f1_final": 0.8}
        labels, rows, best = scores(paper, judged=True)
        assert labels == ["RMSE", "F1"]
        assert rows[-1] == ("best round on the test set, as in the paper", ["0.1700", "0.900"])
        assert best == "tastes, last round"


def test_about_scores() -> None:
    more = {"scale": [1, 5], "rmse_arriving": 0.3, "users": 138_493, "users_ranked": 10_000}
    said = " ".join(about_scores(SERVED | more))
    assert "with RMSE 0.3000" in said
    assert "10,000 of 138,493 users" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"target": 0.2, "target_reached": False}, "Target RMSE 0.2: not reached."),
        (
            {"target": 0.2, "target_reached": True, "target_round": 11, "budget_left": 0.625},
            "Target RMSE 0.2: reached in round 12; 62 % of the budget was kept.",
        ),
    ],
)
def test_target(changes: dict[str, Any], words: str | None) -> None:
    assert target_in_words(LAST | changes) == words
