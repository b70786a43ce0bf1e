"""What is called from Python: objects or names, scalars, sentences about what cannot be used."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import BGTPlannerError, RunFolderError
from bgtplanner.models.factorization import Factorization
from bgtplanner.planning.schedules import Late, Uniform
from bgtplanner.privacy.budget import Budget
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.loop import Observer
from bgtplanner.runs.result import Result
from bgtplanner.runs.run import load, resume, simulate
from bgtplanner.runs.statistics import compare, load_study

TWICE: dict[str, Any] = {"rounds": 2, "epsilon": 30}
SHORT: dict[str, Any] = TWICE | {"model": "biases"}


def _named(value: object) -> str:
    """The id of an argument: the same in every process, hence without an address."""
    return "object" if type(value) is object else str(value)


@pytest.fixture(scope="module")
def made() -> Ratings:
    return synthetic_ratings(clients=12, items=15, ratings_per_client=8, seed=1, catalogue=True)


@pytest.fixture(scope="module")
def result(made: Ratings) -> Result:
    return simulate(made, **SHORT)


def problem(call: Any, *arguments: Any, **options: Any) -> str:
    """The sentence that a call is refused with."""
    with pytest.raises(BGTPlannerError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("given", [None, ["demo"], np.ones((3, 3))], ids=_named)
def test_what_is_no_ratings(given: Any) -> None:
    said = problem(simulate, given)
    assert said.startswith("ratings = ")
    assert "a table with named columns" in said
    assert "[" not in said.partition(":")[0], "what an array holds may be ratings"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epsilon", float("nan")), ("rounds", True), ("seed", -1), ("mechanism", 3)),
        *(("preset", []), ("settings", {3: 1}), ("settings", {"": 1}), ("out", b"x")),
    ],
    ids=_named,
)
def test_arguments_that_simulate_refuses(name: str, value: Any) -> None:
    said = problem(simulate, "demo", **{name: value})
    assert "expected" in said or "unknown" in said


class TestScalars:
    def test_a_number_for_one_pair(self, result: Result) -> None:
        user, item = (
            labels[0] for labels in (result.ratings.user_labels, result.ratings.item_labels)
        )
        one = result.predict(user, item)
        assert type(one) is float
        assert result.predict([user], item).tolist() == [one]
        assert result.predict([[user]], [item, item]).tolist() == [[one, one]]
        assert result.predict([], item).tolist() == []


class TestKept:
    def test_pickle(self, result: Result) -> None:
        again = pickle.loads(pickle.dumps(result))
        said = repr(again)
        assert said == repr(result)
        assert said.startswith("Result(synthetic: biases by bgt, epsilon 30, 2 rounds)")
        assert again.predict(1, 2) == result.predict(1, 2)
        assert again.recommend(1) == result.recommend(1)


class EveryOther(Uniform):
    """A policy of somebody's own."""


@dataclass(frozen=True, kw_only=True)
class OwnFactors(Factorization):
    """A model of somebody's own."""


class TestCompare:
    def test_classes(self, tmp_path: Path) -> None:
        """A learner is made anew in every cell, from its settings."""
        policies: list[Any] = [Late, EveryOther]
        out = tmp_path / "grid"
        how: dict[str, Any] = TWICE | {"settings": {"model.options.dim": 2}}
        found = compare("demo", policies, model=OwnFactors, seeds=1, out=out, **how)
        named = [row.policy for row in found.rows if not row.reference]
        assert named == ["late", f"{__name__}:EveryOther"]
        assert not found.failed
        assert found.study.settings["model.name"] == f"{__name__}:OwnFactors"
        assert found.study.seeds == (0,)
        again = load_study(out)
        assert again.rows == found.rows
        assert repr(again) == repr(found)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("ratings", [], "--dataset = []"),
            ("ratings", np.ones(3), "ratings = a ndarray: expected names of data sets"),
            ("policies", [3], "policies = a list: expected names or classes"),
            ("mechanisms", None, "mechanisms = None"),
            ("model", 3, "model = 3: expected a name or a class"),
            ("seeds", "0-1", "seeds = '0-1': expected a whole number"),
            ("jobs", 0, "--jobs = 0: expected a whole number, at least 1"),
            ("out", 3, "out = 3: expected a path"),
        ],
    )
    def test_refuses(self, name: str, value: Any, said: str) -> None:
        options: dict[str, Any] = {"policies": "late", name: value}
        assert problem(compare, **options).startswith(said)


TINY = {"synthetic.clients": 12, "synthetic.items": 15, "synthetic.ratings_per_client": 8}
FOUR: dict[str, Any] = {"ratings": "synthetic", "rounds": 4, "seed": 1}


@dataclass(frozen=True)
class Level(Factorization):
    """A model of somebody's own."""

    shrinkage: float = 5.0


def test_by_address_with_options(tmp_path: Path) -> None:
    options = {"model.options.shrinkage": 2.0}
    address = f"{__name__}:Level"
    named = simulate(**FOUR, model=address, settings=TINY | options)
    held = simulate(**FOUR, model=Level, settings=TINY | options, out=tmp_path / "run")
    assert held.summary["rmse_final"] == named.summary["rmse_final"]
    config = RunFolder(tmp_path / "run").config()
    assert (config.model.name, config.model.options["shrinkage"]) == (address, 2.0)
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict([0, 1], [1, 2]), held.predict([0, 1], [1, 2]))


class Stopper(Observer):
    """Interrupts, as a second Ctrl-C does, after two rounds."""

    def round(self, record: Any, total: int) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt


def test_code_of_ones_own_runs_again_if_it_is_given_or_trusted(tmp_path: Path) -> None:
    settings = TINY | {"run.checkpoint_every": 1, "model.options.shrinkage": 2.0}
    given: dict[str, Any] = FOUR | {"model": Level, "settings": settings}
    whole, own = simulate(**given), {"model": Level}
    for name, how in (("given", own), ("trusted", {"trust_code": True})):
        with pytest.raises(KeyboardInterrupt):
            simulate(**given, out=tmp_path / name, observer=Stopper())
        with pytest.raises(RunFolderError, match="names code to run"):
            resume(tmp_path / name)
        with pytest.raises(RunFolderError, match="another model"):
            resume(tmp_path / name, model=Factorization)
        ended = resume(tmp_path / name, **how)
        assert ended.summary["rmse_final"] == whole.summary["rmse_final"]


def test_policies_by_name_and_class() -> None:
    found = [
        simulate(**FOUR, policy=policy, epsilon=10.0, settings=TINY).summary
        for policy in ("uniform", Uniform)
    ]
    assert len({summary["rmse_final"] for summary in found}) == 1
    made = Uniform(Budget(10.0, 1e-5), 12, rounds=4)
    assert problem(simulate, policy=made).startswith("policy = an Uniform: expected a name or a")
