"""Flags are made from the settings: their help, their defaults, and what they set."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from bgtplanner.commands.options import Answer, choices, default, meanings, option, show
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.settings import FLAGS, SECTIONS
from command_line import Call


def test_every_setting_says_what_it_is_for() -> None:
    for name, kind in SECTIONS.items():
        assert Config.model_fields[name].annotation is kind
        assert list(meanings(kind)) == list(kind.model_fields), name


@pytest.mark.parametrize("key", FLAGS)
def test_a_flag_shows_the_default_of_the_preset(key: str) -> None:
    section, name = key.split(".")
    usual = load_config().model_dump()[section][name]
    assert default(key) == ("auto" if key == "privacy.mechanism" else usual)
    assert option(key).show_default == (usual is not None and str(default(key)))


def test_names_come_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices("model.name") == [
        *("biases", "factorization", "fedgnn", "tastes"),
        "package.module:Class",
    ]
    monkeypatch.setattr(POLICIES, "_entries", dict(POLICIES._entries))
    POLICIES.add("mine", "no.such:Policy")
    assert "mine" in choices("planning.policy")
    assert "mine" in option("planning.policy").help


def test_every_flag_reaches_its_key_and_wins_over_set(command_line: Call) -> None:
    values = {
        "data.dataset": "csv:x", "data.data_dir": "there", "data.items": "none",
        "data.scale": "0:5", "model.name": "fedgnn", "planning.policy": "uniform",
        "planning.objective": "last", "planning.traffic": "1,2", "planning.levels": 3,
        "planning.min_rounds": 4, "privacy.mechanism": "gaussian",
        "privacy.trust": "local", "privacy.neighbours": "replace-one", "privacy.epsilon": 2.5,
        "privacy.delta": 1e-6, "privacy.budgets": "3:0.5,10:0.5", "federation.rounds": 5,
        "federation.participation": 0.5, "run.seed": 6, "run.device": "cpu",
    }  # fmt: skip
    assert list(values) == list(FLAGS)
    words = [str(part) for key, value in values.items() for part in (FLAGS[key], value)]
    done = command_line(
        "run", "--show-config", *words, "--set", "federation.rounds=9", "--set", "run.examples=7"
    )
    tree = tomllib.loads(done.out)
    assert tree["run"]["examples"] == 7
    for key, value in values.items():
        section, name = key.split(".")
        assert tree[section][name] == value, key


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"]], ids=str)
def test_help_does_not_wait_for_jax(words: list[str]) -> None:
    code = (
        "import sys\nfrom bgtplanner.cli import main\n"
        f"sys.argv = ['bgtplanner', *{words!r}]\n"
        "try:\n    main()\nfinally:\n    print('jax' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"


def test_what_json_cannot_express_is_not_printed() -> None:
    with pytest.raises(ValueError, match="JSON"):
        show(Answer({"rmse": float("nan")}), as_json=True)
