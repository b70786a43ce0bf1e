"""Where a setting comes from, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bgtplanner.errors import ConfigError
from bgtplanner.planning.registry import CONTEXTS, POLICIES
from bgtplanner.runs.config import Config, differences, effective, load_config, to_toml
from bgtplanner.runs.settings import FLAGS


def keys_of_sections() -> dict[str, list[str]]:
    """Every section with its keys, read off a config and not off the code under test."""
    return {
        name: list(section)
        for name, section in Config().model_dump().items()
        if isinstance(section, dict)
    }


LISTS = st.lists(st.integers(), max_size=2)
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
EVERY_KEY = [f"{name}.{key}" for name, keys in keys_of_sections().items() for key in keys]


def value_of(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return config.model_dump()[section][name]


def toml(folder: Path, text: str | bytes) -> Path:
    file = folder / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def message_of(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(**arguments)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_settings_over_file_over_preset_over_defaults(tmp_path: Path) -> None:
    assert Config().model.name == "factorization"
    assert load_config() == load_config(preset="recommended")
    file = toml(tmp_path, 'preset = "paper"\n[server]\noptimizer = "sgd"\nmomentum = 0.3\n')
    config = load_config(file=str(file), settings={"server.optimizer": "adagrad"})
    assert (config.preset, config.model.name) == ("paper", "fedgnn")
    assert config.server.optimizer == "adagrad"
    assert config.server.momentum == 0.3
    assert config.server.learning_rate == 0.05  # the preset's, untouched by the file
    whole = load_config(settings={"server": {"momentum": 0.5}, "server.learning_rate": 0.2})
    assert (whole.server.momentum, whole.server.learning_rate) == (0.5, 0.2)


@pytest.mark.parametrize(("key", "name"), [("policy", "patient"), ("context", "forecast")])
def test_what_an_earlier_release_had_can_be_read_but_not_used(key: str, name: str) -> None:
    old = load_config(settings={f"planning.{key}": name}).planning
    assert getattr(old, key) == name
    registry: Any = {"policy": POLICIES, "context": CONTEXTS}[key]
    assert name not in list(registry)
    with pytest.raises(ConfigError, match="no longer exists; use "):
        registry[name]


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"model.name": "biases"}, {}),
        (
            {"model.name": "factorization", "privacy.clip": 0.5},
            {"optimizer": "shrunk", "learning_rate": 50.0, "aggregation": "clients"},
        ),
        (
            {"model.name": "factorization", "privacy.mechanism": "none"},
            {"optimizer": "adam", "learning_rate": 0.01, "aggregation": "item-usage"},
        ),
    ],
    ids=str,
)
def test_the_recommended_settings_adapt_to_the_model(
    given: dict[str, Any], changed: dict[str, Any]
) -> None:
    usual = {"optimizer": "posterior", "learning_rate": 0.01, "aggregation": "clients"}
    config = load_config(settings=given)
    assert {key: getattr(config.server, key) for key in usual} == usual | changed
    for key, value in given.items():
        assert value_of(config, key) == value


class TestMechanism:
    """The preset takes what leaves least noise, unless told otherwise."""

    @pytest.mark.parametrize(
        ("given", "mechanism"),
        [
            ({}, "gaussian"),
            ({"privacy.trust": "local"}, "privunit"),
            ({"privacy.trust": "local", "privacy.mechanism": "gaussian"}, "gaussian"),
            ({"privacy.trust": "local", "privacy.accounting": "gaussian/rdp"}, "gaussian"),
            ({"privacy.trust": "local", "privacy.accounting": "laplace/either"}, "laplace"),
            ({"privacy.trust": "local", "privacy.unit": "row"}, "gaussian"),
            ({"privacy.trust": "local", "model.name": "factorization"}, "gaussian"),
            ({"planning.policy": "unlimited"}, "none"),
        ],
        ids=str,
    )
    def test_by_trust_and_what_else_leaves(self, given: dict[str, Any], mechanism: str) -> None:
        config = load_config(settings=given)
        assert config.privacy.mechanism == mechanism
        assert f'mechanism = "{mechanism}"' in to_toml(config)  # never "auto" in a run folder


class TestUnknownNames:
    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_every_key_is_suggested_for_its_misspelling(self, key: str) -> None:
        section, name = key.split(".")
        wrong = f"{section}.{name[:-1]}{name[-1] * 2}"
        message = message_of(settings={wrong: 1})
        assert message == f"unknown key '{wrong}'; did you mean '{key}'?"

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"qqq.zzz": 1}, "unknown key 'qqq'; expected one of data, "),
            ({"seed": 1}, "did you mean 'run.seed'?"),
            ({"run": 3}, "run = 3: expected a valid dictionary"),
            ({"preset.x": 1}, "choose a preset with --preset"),
        ],
        ids=str,
    )
    def test_what_is_no_key(self, settings: dict[str, Any], said: str) -> None:
        assert said in message_of(settings=settings)


BAD_VALUES: list[tuple[str, Any, str]] = [
    ("federation.rounds", 16**5000, "less than or equal"),
    ("federation.participation", 1.0001, "less than or equal to 1"),
    ("run.device", "tpu", "'cpu'"),
    ("data.user_column", True, "not true or false"),
    ("data.dataset", "csv:\udcff.csv", "unicode"),
    ("model.name", "fedgn", "'fedgnn'"),
    ("planning.policy", "nonsense", "'bgt', 'uniform'"),
    ("federation.most_dropouts", 1.5, "a share below 1, or a whole number of clients"),
    ("server.learning_rate", 0, "from 1e-12 to 1e6"),
    ("factorization.dim", 16**5000, "0 to 1024"),
]


class TestBadValues:
    @pytest.mark.parametrize(
        ("key", "value", "expected"), BAD_VALUES, ids=[key for key, _, _ in BAD_VALUES]
    )
    def test_named_with_what_was_expected(self, key: str, value: Any, expected: str) -> None:
        message = message_of(settings={key: value})
        assert key in message
        if key in FLAGS:
            assert f"{FLAGS[key]} ({key})" in message
        assert expected in message
        assert " = " in message

    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_a_wrong_type_for_every_key(self, key: str) -> None:
        assert key in message_of(settings={key: object()})


def test_a_setting_that_is_gone_is_refused_in_a_sentence_and_read_of_old_runs(
    tmp_path: Path,
) -> None:
    said = "run.devices: is gone; leave it out"
    assert message_of(settings={"run.devices": 2}).startswith(said)
    assert said in message_of(file=toml(tmp_path, "[run]\ndevices = 2\n"))
    old = toml(tmp_path, "[run]\ndevices = 2\n[data]\nitems = 'auto'\n[folder]\nschema = 1\n")
    assert load_config(file=old) == load_config()


class TestFiles:
    @pytest.mark.parametrize(
        "text",
        [b"[server\n", b"\x00", b"a = " + b"[" * 5000, b"[run]\nseed = " + b"9" * 5000],
        ids=["bracket", "zero", "deep", "digits"],
    )
    def test_no_toml(self, tmp_path: Path, text: bytes) -> None:
        assert "config.toml: cannot be read as TOML" in message_of(file=toml(tmp_path, text))


class TestRoundTrip:
    @patient
    @given(
        st.dictionaries(
            st.sampled_from(EVERY_KEY) | st.text(max_size=12),
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), LISTS),
            max_size=4,
        )
    )
    def test_any_values_are_a_config_or_an_error_of_ours(
        self, tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]
    ) -> None:
        try:
            config = load_config(settings=settings)
        except ConfigError:
            return
        file = toml(tmp_path_factory.mktemp("any"), to_toml(config))
        assert load_config(file=file) == config


def test_the_papers_preset_reads_its_data_set_and_its_baselines_as_table_2_does() -> None:
    def of(**settings: object) -> Config:
        named = {key.replace("__", "."): value for key, value in settings.items()}
        return load_config(preset="paper", settings=named)

    film = of(data__dataset="filmtrust")
    assert (film.data.train_share, film.data.initial_share) == (0.6, 1.0)
    assert of(data__dataset="filmtrust", data__train_share=0.8).data.train_share == 0.8
    other = of(data__dataset="ml-100k")
    assert (other.data.train_share, other.data.initial_share) == (0.8, 0.5)
    growing = of(planning__policy="adpml").planning.options
    assert growing == {"shape": "saturating", "mode": "literal"}
    options = {"planning__policy": "adpml", "planning__options__shape": "geometric"}
    assert of(**options).planning.options == {"shape": "geometric", "mode": "literal"}
    assert of(planning__policy="adap").planning.options == {"noise_multiplier": 2.0}
    recommended = load_config(settings={"data.dataset": "filmtrust", "planning.policy": "adap"})
    assert recommended.data.train_share == 0.8
    assert recommended.planning.options == {}


@pytest.mark.parametrize(
    ("settings", "dropouts", "colluders"),
    [
        ({}, 0.05, 1),
        ({"dropout": 0.3}, 0.35, 1),
        ({"dropout": 0.98}, 1 - 2**-10, 1),
        ({"dropout": 0.1, "most_dropouts": 0.02, "most_colluders": 0.1}, 0.02, 0.1),
        ({"most_dropouts": 3, "most_colluders": 0}, 3, 0),
    ],
)
def test_who_may_drop_out_or_collude(
    settings: dict[str, Any], dropouts: float, colluders: float
) -> None:
    config = load_config(settings={f"federation.{key}": of for key, of in settings.items()})
    assert config.federation.tolerance == pytest.approx((dropouts, colluders))


def test_what_changes_the_result() -> None:
    here = {"data.data_dir": "x", "run.device": "cpu", "privacy.neighbours": "replace-special"}
    one = load_config()
    assert differences(one, load_config(settings=here)) == {}
    other = load_config(settings={"planning.options.x": 1, "run.seed": 2} | here)
    assert differences(one, other) == {"planning.options.x": 1, "run.seed": 2}
    assert differences(one, load_config(preset="paper"))["preset"] == "paper"
    assert effective(one)["privacy.neighbours"] == "replace-special"
