"""Runs that plan and pay, from the settings to the ledger in the folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner import Result, resume, simulate
from bgtplanner.errors import ConfigError, InterruptedRunError
from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.config import load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.prepared import ratings_of, split_of
from bgtplanner.runs.summary import CLIENT_LEVEL_DELTA
from finished import timeless

ROUNDS = 6
TINY = {
    "synthetic.clients": 12,
    "synthetic.items": 10,
    "synthetic.ratings_per_client": 6,
    "run.checkpoint_every": 2,
    "run.device": "cpu",
}

pytestmark = pytest.mark.usefixtures("compiled_once")


def tiny(out: Path | None = None, observer: Any = None, **changes: Any) -> Result:
    rounds = changes.pop("rounds", ROUNDS)
    preset = changes.pop("preset", "recommended")
    settings = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return simulate(
        "synthetic", rounds=rounds, preset=preset, settings=settings, out=out, observer=observer
    )


def spent(folder: Path) -> NDArray[np.int64]:
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        return ledger.spent()


class TestSummary:
    @pytest.mark.parametrize(
        ("mechanism", "trust"), [("gaussian", "secagg"), ("laplace", "local")]
    )
    def test_promised_and_spent(self, mechanism: str, trust: str, tmp_path: Path) -> None:
        result = tiny(
            tmp_path / "run",
            privacy__mechanism=mechanism,
            privacy__trust=trust,
            privacy__epsilon=4.0,
            privacy__delta=1e-6,
        )
        summary = result.summary
        accountant = {"gaussian": "gaussian/gdp", "laplace": "laplace/zcdp"}[mechanism]
        assert (summary["mechanism"], summary["trust"]) == (mechanism, trust)
        assert (summary["unit"], summary["accounting"]) == ("client", accountant)
        assert (summary["epsilon"], summary["delta"]) == (4.0, 1e-6)
        assert summary["policy"] == "bgt"
        assert summary["not_accounted"] == []
        assert summary["uploads_dropped"] == 0
        assert 0 < summary["epsilon_spent_max"] <= 4.0
        assert summary["epsilon_client_level"] == summary["epsilon_spent_max"]
        assert summary["epsilon_client_level_median"] <= summary["epsilon_client_level"]
        paid = [record["charge"] > 0 for record in result.rounds]
        assert summary["rounds_paid"] == sum(paid) > 0
        assert summary["rounds_run"] == ROUNDS
        with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
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

    def test_nothing_is_promised_without_a_mechanism(self, tmp_path: Path) -> None:
        summary = tiny(tmp_path / "run", rounds=1, privacy__mechanism="none").summary
        for name in ("trust", "unit", "accounting", "epsilon", "delta", "epsilon_spent_max"):
            assert summary[name] is None
        assert "item-ids" in summary["not_accounted"]
        assert not (tmp_path / "run" / "ledger.sqlite").exists()

    def test_a_rule_that_is_not_sound_says_what_it_amounts_to(self) -> None:
        result = tiny(rounds=3, privacy__accounting="authors", planning__policy="uniform")
        multipliers = [record["noise_multiplier"] for record in result.rounds]
        expected = client_level("gaussian", multipliers, np.ones(3), 1e-5).epsilon
        assert result.summary["epsilon_client_level"] == pytest.approx(expected)
        assert result.summary["epsilon_client_level"] > result.summary["epsilon_spent_max"]


class TestPaper:
    def test_laplace_has_a_pure_one(self) -> None:
        result = tiny(
            preset="paper",
            rounds=2,
            planning__policy="uniform",
            planning__reward="none",
            privacy__mechanism="laplace",
            model__name="factorization",
            model__pseudo_items=0,
        )
        summary = result.summary
        assert summary["accounting"] == "laplace/basic"
        # Who does not learn has no use for the context, so nobody shows it.
        assert summary["not_accounted"] == ["item-ids"]
        assert summary["epsilon_client_level_pure"] >= summary["epsilon_client_level_median"]


class TestExpansion:
    def test_one_block_more_a_user(self, compiled_once: Path) -> None:
        """Four clients of three users each: in a round that expands, three embeddings each."""
        changes = {"data__clients": 4, "planning__policy": "uniform", "planning__min_rounds": None}
        changes |= {"model__pseudo_items": 0, "planning__reward": "none"}
        levels, medians = [], []
        for times in (0, 2):
            result = tiny(preset="paper", model__expansions=times, **changes)
            levels.append(result.summary["epsilon_client_level"])
            medians.append(result.summary["epsilon_client_level_median"])
        multipliers = [record["noise_multiplier"] for record in result.rounds]
        assert len(multipliers) == ROUNDS
        settings = TINY | {"data.dataset": "synthetic", "federation.rounds": ROUNDS}
        config = load_config(preset="paper", settings=settings | {"data.clients": 4})
        split = split_of(config, ratings_of(config))
        rows = [
            [
                len(set(split.train.item[(split.train.client == client) & known].tolist()))
                for client in range(4)
            ]
            for known in (split.arrival <= index for index in range(ROUNDS))
        ]
        users = np.bincount(split.train.client_of_user)
        for times, level, median in zip((0, 2), levels, medians, strict=True):
            blocks = 4.0 + np.array(rows)
            if times:
                blocks[[2, 4]] += users  # evenly over six rounds
            found = sorted(
                client_level("gaussian", multipliers, rows, CLIENT_LEVEL_DELTA).epsilon
                for rows in blocks.T
            )
            assert (level, median) == pytest.approx((found[-1], found[1]), rel=1e-9)
        assert levels[1] > levels[0]
        assert result.summary["not_accounted"] == ["item-ids", "expansion-matching"]


class _PowerCut(Exception):
    pass


class Cut:
    """Pulls the plug at the end of a round."""

    def __init__(self, at: int) -> None:
        self.at = at

    def started(self, config: Any, split: Any, first: int) -> None:
        pass

    def round(self, record: Mapping[str, Any], total: int) -> None:
        if record["round"] == self.at:
            raise _PowerCut

    def finished(self, result: Result) -> None:
        pass


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
    whole = tiny(tmp_path / "whole", **changes)
    folder = tmp_path / "cut"
    with pytest.raises(_PowerCut):  # before the first checkpoint
        tiny(folder, observer=Cut(0), **changes)
    with pytest.raises(_PowerCut):  # and between two: round 2 is played twice
        resume(folder, observer=Cut(2))
    assert (spent(folder) <= spent(tmp_path / "whole")).all()
    again = resume(folder)
    assert np.array_equal(spent(folder), spent(tmp_path / "whole"))
    assert [timeless(r) for r in again.rounds] == [timeless(r) for r in whole.rounds]
    assert timeless(again.summary) == timeless(whole.summary)
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        assert str(ledger.head) == again.summary["ledger_head"]


MANY: dict[str, Any] = {
    "synthetic__clients": 400,
    "privacy__epsilon": 500.0,
    "planning__policy": "uniform",
}


class TestTarget:
    def test_private_runs_end_by_what_was_paid_for(self, tmp_path: Path) -> None:
        ends = {"planning__objective": "last"}
        result = tiny(tmp_path / "run", planning__target=0.35, **MANY, **ends)
        summary = result.summary
        assert summary["target_round"] == summary["rounds_run"] - 1
        assert summary["budget_left"] == result.rounds[-1]["left"][0] > 0
        assert summary["target"] == 0.35
        assert summary["target_reached"] is True
        assert summary["rounds_run"] < ROUNDS
        assert summary["not_accounted"] == []
        last = result.rounds[-1]
        assert last["validation_rmse"] <= last["validation_upper"] <= 0.35
        assert all(record["validation_upper"] > 0.35 for record in result.rounds[:-1])
        again = resume(tmp_path / "run")
        assert again.summary["rounds_run"] == summary["rounds_run"]

    def test_it_is_reached_once_however_often_the_run_is_stopped(self, tmp_path: Path) -> None:
        whole = tiny(tmp_path / "whole", planning__target=0.35, **MANY)
        for stop in {1, whole.summary["target_round"] + 1}:  # before and after
            folder = tmp_path / f"stopped-{stop}"

            class Stop:
                def __getattr__(self, name: str) -> Any:
                    return lambda *_: None

                def round(self, record: Any, total: int, stop: int = stop) -> None:
                    if record["round"] + 1 == stop:
                        signal.raise_signal(signal.SIGTERM)

            with pytest.raises(InterruptedRunError):
                tiny(folder, observer=Stop(), planning__target=0.35, **MANY)
            again = resume(folder)
            assert timeless(again.summary) == timeless(whole.summary)
            assert [timeless(of) for of in again.rounds] == [timeless(of) for of in whole.rounds]
            assert (spent(folder) == spent(tmp_path / "whole")).all()

    def test_without_privacy_and_in_the_paper_by_the_test_ratings(self) -> None:
        for changes in ({"privacy__mechanism": "none"}, {"preset": "paper"}):
            whole = tiny(**changes)
            assert whole.summary["target"] is whole.summary["target_reached"] is None
            target = max(record["rmse"] for record in whole.rounds[1:])
            result = tiny(planning__target=target, **changes)
            assert "reward" in result.summary["not_accounted"]
            assert result.summary["target_reached"] is True
            when = result.summary["target_round"]
            assert result.rounds[when]["rmse"] <= target
            assert not any(record["rmse"] <= target for record in result.rounds[:when])
            assert result.summary["rounds_run"] <= whole.summary["rounds_run"]


class TestPolicies:
    @pytest.mark.parametrize("policy", ["random", "two-phase", "adap", "bgt"])
    def test_all_stay_within_the_budget(self, policy: str) -> None:
        result = tiny(planning__policy=policy, privacy__epsilon=2.0)
        assert result.summary["policy"] == policy
        assert 0 < result.summary["epsilon_spent_max"] <= 2.0
        assert result.summary["rounds_paid"] >= 1
        json.dumps(result.rounds, allow_nan=False)  # every figure can be written down

    def test_budget_classes(self, tmp_path: Path) -> None:
        result = tiny(
            tmp_path / "run", planning__policy="uniform", privacy__budgets="1:0.25,6:0.75"
        )
        summary = result.summary
        assert summary["epsilon"] == 6.0
        assert summary["epsilon_spent_max"] == pytest.approx(6.0, rel=1e-3)
        with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
            found = np.sort(ledger.epsilon_spent())
        np.testing.assert_allclose(found, [1.0] * 3 + [6.0] * 9, rtol=1e-3)
        assert (found <= [1.0] * 3 + [6.0] * 9).all()
        assert {len(record["charges"]) for record in result.rounds} == {2}
        poor, rich = summary["classes"]
        assert (poor["epsilon"], poor["clients"]) == (1.0, 3)
        assert (rich["epsilon"], rich["clients"]) == (6.0, 9)
        assert poor["epsilon_spent_max"] <= 1.0 < rich["epsilon_spent_max"] <= 6.0
        test = split_of(RunFolder(tmp_path / "run").config(), result.ratings).test
        counts = np.bincount(ledger.budgets.class_of_client[test.client], minlength=2)
        squares = [entry["rmse_final"] ** 2 for entry in summary["classes"]]
        mean = np.dot(squares, counts) / counts.sum()
        assert mean == pytest.approx(summary["rmse_final"] ** 2, rel=1e-5)

    def test_after_the_budget_clients_rest_or_the_run_ends(self) -> None:
        changes = {
            "planning__policy": "adap",
            "planning__options": {"noise_multiplier": 2.0},
            "privacy__epsilon": 3.0,
        }
        rests = tiny(**changes)
        ends = tiny(**changes, federation__after_budget="stop")
        number = ends.summary["rounds_run"]
        assert 0 < number < ROUNDS
        assert rests.summary["rounds_run"] == ROUNDS
        assert rests.summary["rounds_paid"] == ends.summary["rounds_paid"] == number
        assert [record["paid"] for record in rests.rounds[number:]] == [0] * (ROUNDS - number)
        mine, theirs = (result.simulation.arrays()["shared/items"] for result in (rests, ends))
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"planning__options": {"no_such": 1}}, "planning.options: bgt does not accept them"),
        ({"privacy__budgets": "1:0.5"}, "shares that sum to 1"),
        (
            {"privacy__unit": "row", "privacy__trust": "local", "planning__target": 0.2},
            "nothing pays for it",
        ),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny(rounds=1, **changes)
