"""Runs that plan and pay, from the settings to the ledger in the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Result, resume, simulate
from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.assembly import ratings_of, split_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.loop import Observer
from bgtplanner.runs.summary import CLIENT_LEVEL_DELTA
from finished import timeless

ROUNDS = 6
TINY = {
    "data.dataset": "synthetic",
    "synthetic.clients": 12,
    "synthetic.items": 10,
    "synthetic.ratings_per_client": 6,
    "federation.rounds": ROUNDS,
    "run.checkpoint_every": 2,
    "run.device": "cpu",
}

pytestmark = pytest.mark.usefixtures("compiled_once")


def tiny(
    out: Path | None = None, observer: Any = None, preset: str = "recommended", **changes: Any
) -> Result:
    settings = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return simulate("synthetic", preset=preset, settings=settings, out=out, observer=observer)


class TestSummary:
    @pytest.mark.parametrize(
        ("mechanism", "trust", "accounting"),
        [("gaussian", "secagg", "gaussian/gdp"), ("laplace", "local", "laplace/zcdp")],
    )
    def test_promised_and_spent(
        self, mechanism: str, trust: str, accounting: str, tmp_path: Path
    ) -> None:
        given = {"privacy__mechanism": mechanism, "privacy__trust": trust, "privacy__delta": 1e-6}
        result = tiny(tmp_path, **given, privacy__epsilon=4.0)
        summary = result.summary
        assert (summary["mechanism"], summary["trust"]) == (mechanism, trust)
        assert (summary["unit"], summary["accounting"]) == ("client", accounting)
        assert (summary["epsilon"], summary["delta"]) == (4.0, 1e-6)
        assert (summary["not_accounted"], summary["uploads_dropped"]) == ([], 0)
        assert 0 < summary["epsilon_spent_max"] <= 4.0
        assert summary["epsilon_client_level"] == summary["epsilon_spent_max"]
        assert summary["epsilon_client_level_median"] <= summary["epsilon_client_level"]
        paid = [record["charge"] > 0 for record in result.rounds]
        assert summary["rounds_paid"] == sum(paid) > 0
        with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
            assert ledger.verify() > 1
            assert str(ledger.head) == summary["ledger_head"]
            assert ledger.unsettled == 0
            assert float(ledger.epsilon_spent().max()) == summary["epsilon_spent_max"]
            reserved = [entry for entry in ledger.history() if entry["kind"] == "reserve"]
        assert [entry["round"] for entry in reserved] == np.flatnonzero(paid).tolist()
        for entry in reserved:
            record = result.rounds[entry["round"]]
            assert entry["charge_most"] == pytest.approx(record["charge"], rel=1e-9)
            assert record["paid"] == entry["clients"] == 12

    def test_a_rule_that_is_not_sound_says_what_it_amounts_to(self) -> None:
        result = tiny(privacy__accounting="authors", planning__policy="uniform")
        multipliers = [record["noise_multiplier"] for record in result.rounds]
        expected = client_level("gaussian", multipliers, np.ones(ROUNDS), 1e-5).epsilon
        assert result.summary["epsilon_client_level"] == pytest.approx(expected)
        assert result.summary["epsilon_client_level"] > result.summary["epsilon_spent_max"]

    def test_every_row_of_the_paper_counts(self) -> None:
        """Four clients of three users each: each item row and each tensor is one more release."""
        own = {"data__clients": 4, "planning__policy": "uniform", "planning__min_rounds": None}
        own |= {"model__pseudo_items": 0, "planning__reward": "none"}
        result = tiny(preset="paper", **own)
        multipliers = [record["noise_multiplier"] for record in result.rounds]
        assert len(multipliers) == ROUNDS
        config = load_config(preset="paper", settings=TINY | {"data.clients": 4})
        split = split_of(config, ratings_of(config))
        train, blocks = split.train, np.full((ROUNDS, 4), 4.0)
        for index, client in np.ndindex(ROUNDS, 4):
            known = (train.client == client) & (split.arrival <= index)
            blocks[index, client] += len(set(train.item[known].tolist()))
        found = sorted(
            client_level("gaussian", multipliers, rows, CLIENT_LEVEL_DELTA).epsilon
            for rows in blocks.T
        )
        assert result.summary["epsilon_client_level"] == pytest.approx(found[-1], rel=1e-9)
        assert result.summary["epsilon_client_level_median"] == pytest.approx(found[1], rel=1e-9)


class _PowerCut(Exception):
    pass


class Cut(Observer):
    """Pulls the plug at the end of a round."""

    def __init__(self, at: int) -> None:
        self.at = at

    def round(self, record: Mapping[str, Any], total: int) -> None:
        if record["round"] == self.at:
            raise _PowerCut


SOON: dict[str, Any] = {  # the paper's setting, with an initial stage of three rounds
    "preset": "paper",
    "planning__min_rounds": 5,
    "planning__levels": 2,
    "planning__options": {"initial_rounds": 1},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"federation__participation": 0.5, "federation__dropout": 0.2},
        {"privacy__budgets": "1:0.5,6:0.5", "planning__context": "usage"},
        {**SOON, "planning__constants": "paper"},
    ],
    ids=["some take part", "classes", "as printed"],
)
def test_interrupted_runs_spend_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    def spent(name: str) -> Any:
        with Ledger.open(tmp_path / name / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            return ledger.spent()

    whole = tiny(tmp_path / "whole", **changes)
    with pytest.raises(_PowerCut):  # before the first checkpoint
        tiny(tmp_path / "cut", observer=Cut(0), **changes)
    with pytest.raises(_PowerCut):  # and between two: round 2 is played twice
        resume(tmp_path / "cut", observer=Cut(2))
    assert (spent("cut") <= spent("whole")).all()
    again = resume(tmp_path / "cut")
    assert np.array_equal(spent("cut"), spent("whole"))
    assert [timeless(r) for r in again.rounds] == [timeless(r) for r in whole.rounds]
    assert timeless(again.summary) == timeless(whole.summary)


class TestPolicies:
    def test_budget_classes(self, tmp_path: Path) -> None:
        result = tiny(tmp_path, planning__policy="uniform", privacy__budgets="1:0.25,6:0.75")
        summary, promised = result.summary, np.array([1.0] * 3 + [6.0] * 9)
        assert summary["epsilon"] == 6.0
        assert summary["epsilon_spent_max"] == pytest.approx(6.0, rel=1e-3)
        with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
            found, index = np.sort(ledger.epsilon_spent()), ledger.budgets.class_of_client
            most = [[of[index == at].max() for at in range(2)] for of in ledger.spent()]
        assert result.rounds[-1]["spent"] == most
        np.testing.assert_allclose(found, promised, rtol=1e-3)
        assert (found <= promised).all()
        assert {len(record["charges"]) for record in result.rounds} == {2}
        assert [(of["epsilon"], of["clients"]) for of in summary["classes"]] == [(1, 3), (6, 9)]
        assert all(0 < of["epsilon_spent_max"] <= of["epsilon"] for of in summary["classes"])
        config = load_config(file=tmp_path / "config.toml")
        test = split_of(config, ratings_of(config)).test
        counts = np.bincount(index[test.client], minlength=2)
        squares = [entry["rmse_final"] ** 2 for entry in summary["classes"]]
        mean = np.dot(squares, counts) / counts.sum()
        assert mean == pytest.approx(summary["rmse_final"] ** 2, rel=1e-5)

    def test_after_the_budget_clients_rest_or_the_run_ends(self) -> None:
        own: dict[str, Any] = {"planning__policy": "adap", "privacy__epsilon": 3.0}
        own |= {"planning__options": {"noise_multiplier": 2.0}}
        rests, ends = tiny(**own), tiny(**own, federation__after_budget="stop")
        number = ends.summary["rounds_run"]
        assert 0 < number < ROUNDS == rests.summary["rounds_run"]
        assert rests.summary["rounds_paid"] == ends.summary["rounds_paid"] == number
        assert [record["paid"] for record in rests.rounds[number:]] == [0] * (ROUNDS - number)
        mine, theirs = (result.simulation.arrays()["shared/items"] for result in (rests, ends))
        assert np.array_equal(mine, theirs)
