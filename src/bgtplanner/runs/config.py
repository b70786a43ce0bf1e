"""What a run is made of: every setting, where it comes from, and what may be wrong with it.

A setting is taken from the defaults here, then the preset, then the config file, then the flags;
the last one wins. Models and server check their own settings; this file knows only their place.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from bgtplanner.data.ratings import Duplicates
from bgtplanner.errors import ConfigError, quoted
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.learner import MODELS
from bgtplanner.models.optimizers import Server
from bgtplanner.planning.registry import POLICIES
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.allowed import UNITS, best_mechanism
from bgtplanner.privacy.mechanisms import MECHANISMS, Additive
from bgtplanner.registry import Registry
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

__all__ = [
    "FLAGS",
    "INDIFFERENT",
    "PRESETS",
    "Config",
    "differences",
    "load_config",
    "merge",
    "parse_assignment",
    "to_toml",
]

PRESETS = ("recommended", "paper")

FLAGS = {
    "data.dataset": "--dataset",
    "data.data_dir": "--data-dir",
    "model.name": "--model",
    "planning.policy": "--policy",
    "planning.levels": "--levels",
    "planning.min_rounds": "--min-rounds",
    "planning.target": "--target",
    "privacy.mechanism": "--mechanism",
    "privacy.trust": "--trust",
    "privacy.epsilon": "--epsilon",
    "privacy.delta": "--delta",
    "privacy.budgets": "--budgets",
    "federation.rounds": "--rounds",
    "federation.participation": "--participation",
    "run.seed": "--seed",
    "run.device": "--device",
}
"""Config keys that have a flag of their own; all others are set with ``--set KEY=VALUE``."""

INDIFFERENT = ("data.data_dir", "run.device", "run.checkpoint_every")
"""Where a run is carried out and how often it is saved: that does not change what comes of it."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(_Section):
    """Which ratings, and how they are divided.

    Attributes:
        dataset: A name from `bgtplanner data list`; ``csv:PATH`` or ``parquet:PATH`` for your own.
        data_dir: Folder with real data sets; then ``$BGTPLANNER_DATA``, then the cache.
        train_share: Share of the ratings to train on; the rest is the test.
        split: By what ratings are divided: each ``user`` or ``all`` together. ``auto``: as is
            usual for the data set, by user for your own.
        initial_share: Share of a client's training ratings that is there from the start; the
            others arrive evenly over the rounds.
        duplicates: Which rating stays where a user rated an item twice.
        clients: Deal the users to so many clients. By default each user is one, or as the data
            set has it.
        delimiter: Of your table; found out by default, like all that follows but the scale.
        header: Whether its first row holds names.
        user_column: By name, or by position from 0.
        item_column: The same.
        rating_column: The same.
        time_column: The same.
        client_column: The same; without one every user is a client.
        scale: How your ratings become 0 to 1: ``LOW:HIGH`` (public bounds), ``minmax``, or
            ``max``, the default; the last two read the bounds from the data.
    """

    dataset: str = "demo"
    data_dir: str | None = None
    train_share: float = Field(default=0.8, gt=0, lt=1)
    split: Literal["auto", "user", "all"] = "auto"
    initial_share: float = Field(default=0.5, gt=0, le=1)
    duplicates: Duplicates = "last"
    clients: int | None = Field(default=None, ge=1)
    delimiter: str | None = None
    header: bool | None = None
    user_column: str | int | None = None
    item_column: str | int | None = None
    rating_column: str | int | None = None
    time_column: str | int | None = None
    client_column: str | int | None = None
    scale: str | None = None


class SyntheticSection(_Section):
    """Size and shape of the data set ``synthetic``.

    Attributes:
        clients: Number of clients.
        items: Number of items; rare ones may get no rating.
        ratings_per_client: Mean number of ratings of a client.
        users_per_client: Users behind each client.
        dim: Length of the hidden user and item factors; 0 leaves biases only.
        noise: Standard deviation, in stars, of what nobody can predict.
    """

    clients: int = Field(default=1000, ge=1)
    items: int = Field(default=500, ge=1)
    ratings_per_client: int = Field(default=40, ge=1)
    users_per_client: int = Field(default=1, ge=1)
    dim: int = Field(default=4, ge=0, le=1024)
    noise: float = Field(default=0.87, ge=0)

    @model_validator(mode="after")
    def _indexable(self) -> Self:
        ratings = self.clients * self.ratings_per_client
        ConfigError.unless(
            ratings < 2**31, "clients * ratings_per_client", ratings, "fewer than 2**31 ratings"
        )
        return self


class ModelSection(_Section):
    """Which model; its settings are in the section of its name.

    Attributes:
        name: What is learned: one that comes with the package, or ``package.module:Class``.
        pseudo_items: Items that each client pretends to have rated, as FedGNN does; ``auto``: the
            paper's number for the data set.
        fixed_pseudo_items: Whether they are the same in every round; drawn anew, they give the
            real ones away over the rounds.
        expansions: How often users are told of others who rated the same (fedgnn, preset paper).
        max_neighbours: Of how many at most.
        options: Settings of a model that does not come with the package.
    """

    name: str = "factorization"
    pseudo_items: Annotated[int, Field(ge=0, le=1_000_000)] | Literal["auto"] = 0
    fixed_pseudo_items: bool = False
    expansions: int = Field(default=0, ge=0, le=1_000_000)
    max_neighbours: int = Field(default=100, ge=1, le=10_000)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _as_before(self, plain: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        """Without options as if there were none: rounds of older runs are known by all of this."""
        found = plain(self)
        return found if self.options else {k: v for k, v in found.items() if k != "options"}


class FederationSection(_Section):
    """How long, and who takes part.

    Attributes:
        rounds: Rounds of training, at most: T.
        participation: Share of the clients that are asked in a round, drawn anew each time.
        dropout: Share of the clients that pay and then fail to answer.
        stragglers: Share of the clients that pay and answer too late; mostly the same ones.
        after_budget: When the budget is spent, ``stop``, or ``rest``: nothing is shared any more,
            but ratings go on arriving and each client learns from its own.
    """

    rounds: int = Field(default=100, ge=1, le=1_000_000)
    participation: float = Field(default=1.0, gt=0, le=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    stragglers: float = Field(default=0.0, ge=0, lt=1)
    after_budget: Literal["rest", "stop"] = "rest"


class PlanningSection(_Section):
    """Who decides what a round may spend, and what it gets to see.

    Attributes:
        policy: One of those that come with the package, or ``package.module:Class``.
        constants: For `bgt`: the planner's ``own``; the paper's with the formulas ``repaired``;
            every formula as it stands in the ``paper``, or in its ``authors``' code. The last two
            are for comparison: what is wrong with them is left as it is.
        levels: How many levels `bgt` and `random` choose from, A.
        min_rounds: Fewest rounds that the budget may be spent in: sets the dearest level.
        context: What the policy gets to look at. ``usage``: singular values of the matrix of who
            rated what, which shows item ids and is not accounted. ``released``: statistics of
            what was released before. ``forecast``: by how much the error would fall, for patient.
        context_size: How many singular values ``usage`` has, d.
        reward: What the policy is told of a round: by how much the RMSE on the ``test`` ratings
            or the training ``loss`` fell, neither of them accounted; the signal in what was
            ``released``; or by how much the RMSE on ``validation`` ratings fell, paid for.
        target: RMSE that ends a run. Where it is not read from the test ratings, clients validate.
        validation_share: Share of its ratings that a client sets aside to validate on, if it does.
        validation_charge: Share of a round's charge that pays for what it says of them.
        options: The policy's own arguments, such as ``planning.options.shape=saturating``.
    """

    policy: str = "bgt"
    constants: Literal["own", "repaired", "paper", "authors"] = "own"
    levels: int | None = Field(default=None, ge=1, le=1000)
    min_rounds: int | None = Field(default=None, ge=1)
    context: Literal["none", "usage", "released", "forecast"] = "released"
    context_size: int = Field(default=5, ge=1, le=1000)
    reward: Literal["none", "test", "loss", "released", "validation"] = "released"
    target: float | None = Field(default=None, gt=0, lt=1)
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    validation_charge: float = Field(default=0.05, gt=0, lt=1)
    options: dict[str, Any] = Field(default_factory=dict)


class _OneOf:
    """A name in a registry, or one of a few more; says so like a choice of fixed words."""

    def __init__(self, registry: Registry[Any], *more: str) -> None:
        self._registry, self._more = registry, more

    @property
    def names(self) -> list[str]:
        """All that are possible."""
        return [*self._registry, *self._more]

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return no_info_plain_validator_function(self._checked)

    def _checked(self, value: Any) -> str:
        if isinstance(value, str) and value in self.names:
            return value
        *most, last = (repr(name) for name in self.names)
        every = f"{', '.join(most)} or {last}"
        raise PydanticCustomError("literal_error", "{every}", {"every": every})


class PrivacySection(_Section):
    """What protects an upload.

    Attributes:
        mechanism: What makes uploads private; ``none``: nothing does.
        trust: ``secagg``: the server sees the sum only, noised once. ``local``: nobody is trusted.
        unit: ``client``: one clip over the whole upload, the sound one. ``row``: each tensor and
            item row on its own, as the authors' code does.
        accounting: Rule by name; ``auto``: the mechanism's own. ``authors`` promises nothing.
        epsilon: What a client may spend in all.
        delta: Probability with which it may lose more.
        budgets: For unequal budgets: ``EPSILON:SHARE,...``, or a file with an epsilon a client.
        clip: Bound on the norm of an upload, C.
        noise: Under local trust, draw the noise of the ``sum`` at once, or ``per-client``: slower,
            and distributed alike.
    """

    mechanism: Annotated[str, _OneOf(MECHANISMS, "none")] = "gaussian"
    trust: Literal["local", "secagg"] = "secagg"
    unit: Annotated[str, _OneOf(UNITS)] = "client"
    accounting: str = "auto"
    epsilon: float = Field(default=10.0, gt=0, le=1e6)
    delta: float = Field(default=1e-5, ge=0, lt=1)
    budgets: str | None = None
    clip: float = Field(default=1.0, gt=0, le=1e6)
    noise: Literal["sum", "per-client"] = "sum"


class DeploymentSection(_Section):
    """A federation on real machines: which items, how many clients, how long to wait for them.

    The scale of the ratings is `data.scale`.

    Attributes:
        items: File of public item names, one a line.
        clients: Places for clients: how many there can be.
        least_clients: Fewest that must be connected for a round.
        wait_seconds: How long to wait for so many.
        round_seconds: How long a client may take to answer.
        pause_seconds: Pause between two rounds.
    """

    items: str | None = None
    clients: int = Field(default=100, ge=1, le=10_000_000)
    least_clients: int = Field(default=1, ge=1)
    wait_seconds: float = Field(default=3600.0, ge=0)
    round_seconds: float = Field(default=600.0, gt=0)
    pause_seconds: float = Field(default=0.0, ge=0)


class RunSection(_Section):
    """How the run itself is carried out.

    Attributes:
        seed: Of the split and of all that is drawn at random.
        checkpoint_every: Rounds between two checkpoints.
        device: Where to compute.
    """

    seed: int = Field(default=0, ge=0, lt=2**31)
    checkpoint_every: int = Field(default=10, ge=1)
    device: Literal["auto", "cpu", "gpu"] = "auto"


class Config(_Section):
    """Every setting of a run."""

    preset: Literal["recommended", "paper"] = "recommended"
    data: DataSection = DataSection()
    synthetic: SyntheticSection = SyntheticSection()
    model: ModelSection = ModelSection()
    biases: Biases = Biases()
    factorization: Factorization = Factorization()
    fedgnn: FedGNN = FedGNN()
    server: Server = Server()
    federation: FederationSection = FederationSection()
    planning: PlanningSection = PlanningSection()
    privacy: PrivacySection = PrivacySection()
    deployment: DeploymentSection = DeploymentSection()
    run: RunSection = RunSection()

    @property
    def learns(self) -> bool:
        """Whether there is a budget, and a policy that looks at rewards."""
        return self.privacy.mechanism != "none" and POLICIES[self.planning.policy].learns

    @property
    def target_from_test(self) -> bool:
        """Whether the run ends by what the test ratings say: without privacy, and as the paper."""
        open_book = self.privacy.mechanism == "none" or self.planning.reward == "test"
        return self.planning.target is not None and open_book

    @property
    def validates(self) -> bool:
        """Whether clients set ratings aside to validate on."""
        wanted = self.planning.target is not None and not self.target_from_test
        return wanted or (self.learns and self.planning.reward == "validation")


def load_config(
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """Settings from a preset, a TOML file and single values, each winning over the one before.

    Args:
        preset: ``recommended`` or ``paper``; by default what the file says, else recommended.
        file: A TOML file, such as the ``config.toml`` of a run folder.
        settings: Values by dotted key, such as ``{"server.learning_rate": 0.02}``.

    Raises:
        ConfigError: Naming the key, the value and what was expected.

    Example:
        >>> load_config(settings={"federation.rounds": 5}).federation.rounds
        5
    """
    from_file = _read_toml(Path(file)) if file is not None else {}
    from_file.pop("folder", None)  # a run folder's own notes
    wanted = from_file.get("preset", "recommended") if preset is None else preset
    if wanted not in PRESETS:
        name = f"{file}: preset" if preset is None else "--preset"
        near = _nearest(str(wanted), PRESETS)
        raise ConfigError(f"{name} = {quoted(wanted)}: expected one of {', '.join(PRESETS)}{near}")
    from_file.pop("preset", None)
    _checked_keys(from_file, where=f"{file}: ")
    single: dict[str, Any] = {}
    for key, value in (settings or {}).items():
        *path, last = key.split(".")
        if "preset" in (*path, last)[:1]:
            raise ConfigError(f"{key}: not a setting; choose a preset with --preset")
        target = single
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{key}: {part} is a single value, not a section")
        target[last] = value
    given: dict[str, Any] = {}
    merge(given, from_file)
    merge(given, _checked_keys(single))
    merged = _packaged(_variant(wanted, given))
    for name in _readings(wanted, given):
        merge(merged, _packaged(name))
    merge(merged, given)
    merged["preset"] = wanted
    _agree(merged, given)
    planning = merged.setdefault("planning", {})
    if planning.get("policy") == "patient":  # it goes by forecasts
        planning.setdefault("context", "forecast")
        planning.setdefault("reward", "none")
    if merged.get("privacy", {}).get("mechanism") == "auto":
        merged["privacy"]["mechanism"] = _best_mechanism(merged["privacy"], planning)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_describe(problem) for problem in error.errors())) from error
    try:
        POLICIES[config.planning.policy]
    except ConfigError as error:
        raise ConfigError(str(error).replace("policy", _named("planning.policy"), 1)) from error
    if ":" not in config.model.name:  # one of somebody's own is imported when it is needed
        try:
            MODELS[config.model.name]
        except ConfigError as error:
            raise ConfigError(str(error).replace("model", _named("model.name"), 1)) from error
    own = config.model.name in Config.model_fields
    expected = f"nothing: the settings of {config.model.name} are in [{config.model.name}]"
    ConfigError.unless(not (own and config.model.options), "model.options", "given", expected)
    if config.validates and not UNITS[config.privacy.unit].sound:
        key, value = ("planning.reward", config.planning.reward)
        if config.planning.target is not None:
            key, value = ("planning.target", str(config.planning.target))
        raise ConfigError(
            f"{_named(key)} = {value}: with privacy.unit = {config.privacy.unit} nothing pays for "
            "validation; "
            "set privacy.unit=client, or planning.reward=test"
        )
    _check_expansions(config)
    return config


def _check_expansions(config: Config) -> None:
    """Graph expansion is for one model, in the open, and never recommended."""
    times = config.model.expansions
    if not times:
        return
    for fits, expected in (
        (
            config.preset != "recommended",
            "0 with --preset recommended: whoever matches users sees who rated what with whom, "
            "and no noise hides that",
        ),
        (
            config.privacy.mechanism == "none"
            or isinstance(MECHANISMS[config.privacy.mechanism], Additive),
            "0, unless --mechanism (privacy.mechanism) adds noise: embeddings leave, too",
        ),
        (config.model.name == "fedgnn", "0, unless --model (model.name) is fedgnn"),
        (
            config.privacy.trust == "local",
            "0, unless --trust (privacy.trust) is local: whoever matches users sees the "
            "embedding of each on its own",
        ),
        (
            times < config.federation.rounds,
            f"fewer than --rounds (federation.rounds) = {config.federation.rounds}",
        ),
    ):
        ConfigError.unless(fits, "model.expansions", times, expected)


def _packaged(name: str) -> dict[str, Any]:
    file = resources.files("bgtplanner.runs") / "presets" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _variant(preset: str, given: Mapping[str, Any]) -> str:
    """What a preset is for the model that is wanted, and without privacy."""
    if preset != "recommended":
        return preset
    model = given.get("model", {}).get("name")
    if _without_privacy(given):
        return preset if model == "biases" else "recommended-unlimited"
    return preset if model in (None, "biases") else "recommended-gradients"


def _readings(preset: str, given: Mapping[str, Any]) -> list[str]:
    """What the preset `paper` adds for a data set and for a policy, so that they are Table 2's."""
    if preset != "paper":
        return []
    wanted = (given.get("data", {}).get("dataset"), given.get("planning", {}).get("policy"))
    return [f"paper-{name}" for name in wanted if name in ("filmtrust", "adpml", "adap")]


def _best_mechanism(privacy: Mapping[str, Any], planning: Mapping[str, Any]) -> str:
    """Which mechanism leaves least noise, unless the rule says which it is for."""
    accounting = str(privacy.get("accounting", "auto"))
    if accounting in ACCOUNTANTS:
        return ACCOUNTANTS[accounting].mechanism
    if accounting != "auto":
        return "gaussian"
    validates = planning.get("target") is not None or planning.get("reward") == "validation"
    trust, unit = str(privacy.get("trust", "secagg")), str(privacy.get("unit", "client"))
    return best_mechanism(trust, unit, validates=validates)


def _without_privacy(given: Mapping[str, Any]) -> bool:
    mechanism = given.get("privacy", {}).get("mechanism")
    return bool(mechanism == "none" or given.get("planning", {}).get("policy") == "unlimited")


def _agree(merged: dict[str, Any], given: Mapping[str, Any]) -> None:
    """No mechanism means no budget to plan, and a policy without limit needs no mechanism."""
    if not _without_privacy(given):
        return
    policy, mechanism = (
        given.get("planning", {}).get("policy"),
        given.get("privacy", {}).get("mechanism"),
    )
    fits = policy in (None, "unlimited")
    ConfigError.unless(fits, "--policy", policy, "unlimited, for --mechanism none")
    fits = mechanism in (None, "none")
    ConfigError.unless(fits, "--mechanism", mechanism, "none, for --policy unlimited")
    merged.setdefault("planning", {})["policy"] = "unlimited"
    merged.setdefault("privacy", {})["mechanism"] = "none"


def differences(one: Config, other: Config) -> dict[str, Any]:
    """What another config has otherwise, by dotted key, as far as it matters to the outcome."""
    mine, theirs = one.model_dump(mode="json"), other.model_dump(mode="json")
    changed = {} if mine.pop("preset") == theirs.pop("preset") else {"preset": other.preset}
    return changed | {
        f"{section}.{key}": theirs[section].get(key)
        for section, values in mine.items()
        for key in (values | theirs[section])
        if values.get(key) != theirs[section].get(key) and f"{section}.{key}" not in INDIFFERENT
    }


def merge(target: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Put `extra` into `target`, section by section; what `extra` says wins."""
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = dict(value) if isinstance(value, Mapping) else value


def parse_assignment(text: str) -> tuple[str, Any]:
    """``section.key=value`` of ``--set``; the value as TOML has it, else as plain text.

    Example:
        >>> parse_assignment("server.learning_rate=0.02")
        ('server.learning_rate', 0.02)
        >>> parse_assignment("server.optimizer=sgd")
        ('server.optimizer', 'sgd')
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or "." not in key:
        raise ConfigError(
            f"--set {text}: expected SECTION.KEY=VALUE, such as federation.rounds=50"
        )
    try:
        tree = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # not TOML, or a number or nesting beyond all reason
        tree = {}
    return key.strip(), tree["value"] if list(tree) == ["value"] else value.strip()


def to_toml(config: Config, folder: Mapping[str, Any] | None = None) -> str:
    """The settings as TOML that :func:`load_config` reads; unset ones are left out."""
    tree: dict[str, Any] = config.model_dump()
    lines = [f"preset = {_toml_value(tree.pop('preset'))}"]
    for section, values in tree.items():
        known = {key: value for key, value in values.items() if value is not None}
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in known.items()]
    if folder:
        lines += ["", "[folder]  # about this run folder, not a setting"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in folder.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    # JSON's strings, numbers, booleans and lists are TOML too, for the values that occur here,
    # but for two things: escapes of half a character, and a DEL that is not escaped.
    if isinstance(value, Mapping):
        known = {key: of for key, of in value.items() if of is not None}  # TOML has no null
        inside = ", ".join(f"{json.dumps(key)} = {_toml_value(of)}" for key, of in known.items())
        return f"{{{inside}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = read_bytes(path, MOST_BYTES_OF_SETTINGS, plain=False)
        text = content.decode("utf-8-sig")  # some editors put a mark before the text
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such config file; give one, such as the config.toml of a run"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a TOML file") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not valid TOML: {error}; expected lines such as those of --show-config"
        ) from error


def _keys_of(section: Any) -> list[str]:
    if is_dataclass(section):
        return [entry.name for entry in fields(section)]
    return list(section.model_fields)


def _checked_keys(tree: dict[str, Any], where: str = "") -> dict[str, Any]:
    """The same tree, if every key in it exists; else an error with the nearest one."""
    sections = {name: entry.annotation for name, entry in Config.model_fields.items()}
    every = [
        f"{name}.{key}"
        for name, kind in sections.items()
        if name != "preset"
        for key in _keys_of(kind)
    ]
    for name, values in tree.items():
        if name not in sections:
            wanted = [f"{name}.{key}" for key in values] if isinstance(values, dict) else [name]
            near = _nearest((wanted or [name])[0], [*every, *sections])
            if homes := [key for key in every if key.endswith(f".{name}")]:
                near = f"; did you mean '{homes[0]}'?"
            near = near or f"; expected one of {', '.join(sections)}"
            raise ConfigError(f"{where}unknown section '{name}'{near}")
        if not isinstance(values, dict):
            raise ConfigError(f"{where}'{name}' is a section, not a value: write {name}.KEY")
        known = _keys_of(sections[name])
        for key in values:
            if key not in known:
                near = _nearest(key, known) or _nearest(f"{name}.{key}", every)
                raise ConfigError(f"{where}unknown key '{name}.{key}'{near}")
            _check_kind(f"{name}.{key}", values[key], _kind_of(sections[name], key), where)
    return tree


def _kind_of(section: Any, key: str) -> str:
    """The declared type of a key, as text."""
    if is_dataclass(section):
        return next(str(entry.type) for entry in fields(section) if entry.name == key)
    return str(section.model_fields[key].annotation)


def _check_kind(key: str, value: Any, kind: str, where: str) -> None:
    """What pydantic lets pass and must not: yes and no as numbers, and broken text."""
    name = f"{where}{_named(key)}"
    if isinstance(value, bool):
        ConfigError.unless("bool" in kind, name, value, "a number or text, not true or false")
    if isinstance(value, str):
        ConfigError.unless(
            value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value),
            name,
            value,
            "text that can be written as UTF-8",
        )


def _named(key: str) -> str:
    return f"{FLAGS[key]} ({key})" if key in FLAGS else key


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def _describe(problem: Any) -> str:
    """One line for one of pydantic's complaints: flag or key, value, what was expected."""
    location = [str(part) for part in problem["loc"]]
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if problem["type"] == "int_parsing_size":
        message = "a number of fewer digits"
    if problem["type"] == "value_error":  # from a model's own check: it names the key itself
        return f"{location[0]}.{message}"
    return f"{_named('.'.join(location[:2]))} = {quoted(problem['input'])}: expected {message}"
