"""The one line that gets a run again, checked by reading it as the command line would."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from bgtplanner.runs.config import FLAGS, Config, load_config, parse_assignment
from bgtplanner.runs.reproduce import command_of, command_of_study
from bgtplanner.runs.study import Study, Variation
from bgtplanner.runs.sweeps import parse_axis


def understood(line: str) -> Config:
    """The settings that `bgtplanner run` would take from the line."""
    words = shlex.split(line)
    assert words[:2] == ["bgtplanner", "run"]
    keys = {flag: key for key, flag in FLAGS.items()}
    preset, settings = None, {}
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        if flag == "--preset":
            preset = value
        elif flag == "--set":
            key, parsed = parse_assignment(value)
            settings[key] = parsed
        else:
            settings[keys[flag]] = parse_assignment(f"{keys[flag]}={value}")[1]
    return load_config(preset=preset, settings=settings)


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("recommended", {}),
        ("recommended", {"federation.rounds": 7, "run.seed": 3, "data.dataset": "ml-100k"}),
        ("recommended", {"model.name": "factorization", "server.momentum": 0.5}),
        ("recommended", {"model.name": "fedgnn", "planning.policy": "uniform"}),
        ("recommended", {"privacy.mechanism": "none"}),
        ("recommended", {"privacy.trust": "local"}),
        ("recommended", {"privacy.mechanism": "laplace", "privacy.budgets": "3:0.5,10:0.5"}),
        ("recommended", {"planning.policy": "bgt", "planning.options.gamma": 7}),
        ("recommended", {"data.dataset": "csv:a b's.csv", "data.scale": "1:5"}),
        ("paper", {"planning.policy": "adap", "privacy.epsilon": 2.5}),
    ],
)
def test_the_same_run(preset: str, settings: dict[str, Any]) -> None:
    config = load_config(preset=preset, settings=settings)
    assert understood(command_of(config)) == config


def test_where_it_runs_is_left_out() -> None:
    line = command_of(load_config(settings={"data.data_dir": "/home/ann", "run.device": "cpu"}))
    assert line == "bgtplanner run --preset recommended"


def test_what_cannot_be_typed() -> None:
    many = load_config(
        settings={"planning.policy": "fixed", "planning.options.weights": [0.5] * 300}
    )
    assert command_of(many) == "bgtplanner run --config config.toml --out NEW_FOLDER"
    unset = load_config(preset="paper").model_copy(
        update={
            "planning": load_config(preset="paper").planning.model_copy(
                update={"min_rounds": None}
            )
        }
    )
    assert "--config config.toml" in command_of(unset)
    python = load_config(settings={"data.dataset": "my own"})
    assert "given in Python" in command_of(python)


def test_grids() -> None:
    asked = Study(
        policies=("bgt", "uniform"),
        seeds=(0, 1),
        baseline="uniform",
        settings={"federation.rounds": 7, "data.data_dir": "/home/ann"},
    )
    assert command_of_study(asked) == (
        "bgtplanner compare --dataset demo --mechanism gaussian --policy bgt --policy uniform "
        "--seeds 0,1 --preset recommended --baseline uniform --set federation.rounds=7"
    )
    axis = parse_axis("server.optimizer=sgd,adam")
    sweep = replace(asked, baseline=None, variations=(Variation(axes=(axis,)),))
    words = shlex.split(command_of_study(sweep))
    assert words[:3] == ["bgtplanner", "sweep", "--vary"]
    assert parse_axis(words[3]) == axis
    figure = replace(sweep, figure="budget")
    assert command_of_study(figure).startswith("bgtplanner sweep --figure budget --dataset demo")
