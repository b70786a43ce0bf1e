"""Runs that are stepped together: each is what it would be alone, and a round is one program."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError, InterruptedRunError
from bgtplanner.federation import simulation, together
from bgtplanner.federation.programs import Program
from bgtplanner.federation.together import Together
from bgtplanner.models.tastes import Tastes
from bgtplanner.runs.cells import LatestData, data_of, waves_of
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.execute import run_study
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.observers import Observer
from bgtplanner.runs.run import Result, execute, resume
from bgtplanner.runs.study import Study

ROUNDS = 4
TINY = {
    "data.dataset": "synthetic",
    "synthetic.clients": 24,
    "synthetic.items": 15,
    "synthetic.ratings_per_client": 8,
    "federation.rounds": ROUNDS,
    "run.device": "cpu",
}
# The second pays in one round only, the third is a learner, the fourth has another budget.
RIVALS: tuple[dict[str, Any], ...] = (
    {"planning.policy": "uniform"},
    {"planning.policy": "fixed", "planning.options": {"weights": [0.0, 1.0, 0.0, 0.0]}},
    {"planning.policy": "bgt"},
    {"planning.policy": "uniform", "privacy.epsilon": 3.0},
)
KINDS: dict[str, dict[str, Any]] = {
    "biases": {"model.name": "biases"},
    "tastes": {},
    "in order": {"model.name": "biases", "data.arrival": "time"},
    "several users": {"model.name": "biases", "data.clients": 6},
    "local": {"model.name": "biases", "privacy.trust": "local", "privacy.mechanism": "privunit"},
    "validated": {
        "model.name": "factorization",
        "planning.reward": "validation",
        "privacy.mechanism": "gaussian",
    },
}


def in_order() -> Ratings:
    """Ratings with times; clients join one after the other."""
    number, draws = 24 * 8, np.random.default_rng(5)
    user = np.repeat(np.arange(24), 8)
    item = np.concatenate([draws.permutation(15)[:8] for _ in range(24)])
    time = user * 10 + draws.integers(0, 60, number)
    return Ratings.from_arrays(user, item, draws.integers(1, 6, number), time=time)


def config_of(*parts: dict[str, Any]) -> Config:
    settings = dict(TINY)
    for part in parts:
        settings |= part
    return load_config(settings=settings)


def given_for(config: Config) -> Ratings | None:
    return in_order() if config.data.arrival == "time" else None


def alone(config: Config) -> Result:
    return execute(config, ratings=given_for(config), lists=False)


def played(configs: list[Config], observers: dict[int, Observer] | None = None) -> list[Result]:
    """Runs that are stepped together; those with the same data share them."""
    group = Together()
    data: dict[str, LatestData] = {}
    for config in configs:
        data.setdefault(data_of(config), LatestData())
    works = [
        partial(
            execute,
            config,
            data=partial(data[data_of(config)].of, ratings=given_for(config)),
            lists=False,
            observer=(observers or {}).get(number),
            together=group,
        )
        for number, config in enumerate(configs)
    ]
    return group.run(works)


def same(one: Result, other: Result) -> None:
    """Refuse runs that differ by more than rounding; what was paid must not differ at all.

    Axes of taste that explain about as much can turn, so that rounding grows there.
    """
    within = 5e-3 if isinstance(one.simulation.federation.model, Tastes) else 1e-4
    assert len(one.rounds) == len(other.rounds) == ROUNDS
    for a, b in zip(one.rounds, other.rounds, strict=True):
        assert a["rmse"] == pytest.approx(b["rmse"], rel=within)
        for name in ("charge", "clients", "paid", "ratings", "spent", "left"):
            assert a.get(name) == b.get(name), name
        for name in ("rmse_arriving", "loss", "validation_rmse"):
            if a.get(name) is not None:
                assert a[name] == pytest.approx(b[name], rel=1e-3), name
    assert one.summary["epsilon_spent_max"] == other.summary["epsilon_spent_max"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_as_it_would_be_alone(kind: str) -> None:
    configs = [config_of(KINDS[kind], rival) for rival in RIVALS]
    for config, found in zip(configs, played(configs), strict=True):
        same(alone(config), found)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every program of several runs that is run: the kind of its round, and its index."""
    calls: list[tuple[str, int]] = []
    usual = Program.__call__

    def call(self: Program, *arguments: Any) -> Any:
        if self is together.TOGETHER:
            calls.append((arguments[3], int(arguments[7])))
        assert self not in (simulation._ROUND, simulation._REST, simulation._UPLOADED)
        return usual(self, *arguments)

    monkeypatch.setattr(Program, "__call__", call)
    return calls


def test_a_round_of_all_is_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    played([config_of(KINDS["biases"], rival) for rival in (RIVALS[0], RIVALS[3])])
    assert calls == [("round", index) for index in range(ROUNDS)]


def test_what_all_of_them_need_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    readied: list[Program] = []
    usual = Program._ready

    def ready(self: Program, *arguments: Any) -> Any:
        readied.append(self)
        return usual(self, *arguments)

    monkeypatch.setattr(Program, "_ready", ready)
    unlike = {"synthetic.items": 19}  # than those of other tests
    played([config_of(KINDS["biases"], RIVALS[0], unlike) for _ in range(4)])
    assert together.TOGETHER in readied
    assert len(readied) == len(set(readied))


def test_those_that_pay_and_those_that_rest_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    played([config_of(KINDS["biases"], rival) for rival in RIVALS[:2]])
    paid = [("round", index) for index in range(ROUNDS)]
    assert sorted(calls) == sorted([*paid, ("rest", 0), ("rest", 2), ("rest", 3)])


def test_seeds_are_stepped_together_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = {"data.dataset": "demo"}  # however it is split, the numbers are the same
    configs = [
        config_of(KINDS["biases"], RIVALS[0], demo, {"run.seed": seed}) for seed in range(3)
    ]
    before = [alone(config) for config in configs]
    calls = counted(monkeypatch)
    for one, other in zip(before, played(configs), strict=True):
        same(one, other)
    assert len(calls) == ROUNDS


def test_who_has_no_equal_goes_on_alone() -> None:
    alike = [config_of(KINDS["biases"], rival) for rival in (RIVALS[0], RIVALS[3])]
    unlike = config_of(KINDS["biases"], RIVALS[0], {"synthetic.items": 17})
    found = played([alike[0], unlike, alike[1]])
    same(alone(unlike), found[1])
    same(alone(alike[1]), found[2])


class _Fails(Observer):
    def round(self, record: Any, total: int) -> None:
        if record["round"] == 1:
            raise ValueError("no more")


def test_a_failure_is_told_of_once_the_others_have_ended() -> None:
    ended: list[int] = []

    class Ends(Observer):
        def finished(self, result: Result) -> None:
            ended.append(len(result.rounds))

    configs = [config_of(KINDS["biases"], rival) for rival in (RIVALS[0], RIVALS[3], RIVALS[0])]
    with pytest.raises(ValueError, match="no more"):
        played(configs, {0: Ends(), 1: _Fails(), 2: Ends()})
    assert ended == [ROUNDS, ROUNDS]


def test_a_program_that_fails_wakes_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: Program, *arguments: Any) -> Any:
        raise MemoryError("too large")

    usual = Program.__call__
    monkeypatch.setattr(
        Program,
        "__call__",
        lambda self, *of: (call if self is together.TOGETHER else usual)(self, *of),
    )
    with pytest.raises(MemoryError, match="too large"):
        played([config_of(KINDS["biases"], rival) for rival in RIVALS[:2]])


def study_of(**changes: Any) -> Study:
    settings = {key: value for key, value in TINY.items() if key != "data.dataset"}
    return Study(
        datasets=("synthetic",),
        policies=("bgt", "uniform", "late"),
        seeds=(0, 1),
        settings=settings | {"model.name": "biases"},
        **changes,
    )


def test_a_study_in_waves(tmp_path: Path) -> None:
    study = study_of()
    each = run_study(study, tmp_path / "each")
    found = run_study(study, tmp_path / "together", together=4)
    assert [outcome.cell for outcome in found] == [outcome.cell for outcome in each]
    for one, other in zip(each, found, strict=True):
        assert one.summary is not None
        assert other.summary is not None
        assert one.summary["rmse_served"] == pytest.approx(other.summary["rmse_served"], rel=1e-4)
        assert one.summary["epsilon_spent_max"] == other.summary["epsilon_spent_max"]


def test_waves_are_alike_and_not_too_large() -> None:
    cells = study_of(mechanisms=("gaussian", "laplace")).cells()
    waves = waves_of(list(cells), cells, 5)
    assert [len(wave) for wave in waves] == [5, 5, 2]
    assert sorted(cell.name for wave in waves for cell in wave) == sorted(
        cell.name for cell in cells
    )
    assert [len(wave) for wave in waves_of(list(cells), cells, 1)] == [1] * len(cells)


def test_a_wave_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    configs = [config_of(KINDS["biases"], rival) for rival in (RIVALS[0], RIVALS[3])]
    group, data = Together(threading.Event()), LatestData()

    class Stops(Observer):
        def round(self, record: Any, total: int) -> None:
            if record["round"] == 1:
                group.stop.set()

    works = [
        partial(execute, config, data=data.of, out=tmp_path / str(number), observer=Stops(),
                together=group)
        for number, config in enumerate(configs)
    ]  # fmt: skip
    with pytest.raises(InterruptedRunError, match="continue with"):
        group.run(works)
    for number, config in enumerate(configs):
        folder = tmp_path / str(number)
        assert 2 <= len(RunFolder(folder).rounds()) < ROUNDS
        same(alone(config), resume(folder))


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_a_wrong_number_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="--together"):
        run_study(study_of(), tmp_path, together=wrong)
