"""The config of a run: every setting, where it comes from, and what it may be.

A setting comes from the defaults here, the preset, the config file or the flags; the last of these
wins. Models and server check their own settings; this file only knows their sections.
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
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from bgtplanner.data.ratings import Duplicates
from bgtplanner.data.split import Arrival
from bgtplanner.errors import ConfigError, quoted
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.learner import MODELS
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.planning.objective import Kind, Objective
from bgtplanner.planning.registry import POLICIES
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.allowed import UNITS, best_mechanism, neighbours_of
from bgtplanner.privacy.mechanisms import MECHANISMS, Additive, Neighbours
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.registry import Registry
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

__all__ = [
    "BEFORE",
    "FLAGS",
    "INDIFFERENT",
    "PRESETS",
    "Config",
    "check_policy",
    "departures",
    "differences",
    "expected",
    "identifying",
    "load_config",
    "merge",
    "parse_assignment",
    "to_toml",
]

PRESETS = ("recommended", "paper")

FLAGS = {
    "data.dataset": "--dataset",
    "data.data_dir": "--data-dir",
    "data.items": "--items",
    "model.name": "--model",
    "planning.policy": "--policy",
    "planning.objective": "--objective",
    "planning.traffic": "--traffic",
    "planning.levels": "--levels",
    "planning.min_rounds": "--min-rounds",
    "planning.target": "--target",
    "privacy.mechanism": "--mechanism",
    "privacy.trust": "--trust",
    "privacy.neighbours": "--neighbours",
    "privacy.epsilon": "--epsilon",
    "privacy.delta": "--delta",
    "privacy.budgets": "--budgets",
    "federation.rounds": "--rounds",
    "federation.participation": "--participation",
    "run.seed": "--seed",
    "run.device": "--device",
}
"""Config keys that have their own flag; all others are set with ``--set KEY=VALUE``."""

BEFORE = {
    "data.items": "none",
    "data.items_column": None,
    "data.items_words": None,
    "data.unknown_items": "error",
    "data.leave_last": 1,
    "data.arrival": "random",
    "synthetic.choosy": 0.0,
    "federation.most_dropouts": 0.0,
    "federation.most_colluders": 0.0,
    "planning.objective": "last",
    "planning.traffic": None,
    "privacy.neighbours": "replace-one",
}
"""Settings that the folders of older runs do not have, and what those runs did."""

_SUMS = ("biases", "tastes")  # models whose clients upload sums, not gradients

INDIFFERENT = (
    "data.data_dir", "run.device", "run.devices", "run.checkpoint_every", "run.examples",
)  # fmt: skip
"""Settings that do not change the result: where a run is carried out, how often it is saved, and
what its report shows."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(_Section):
    """Which ratings, and how they are divided.

    Attributes:
        dataset: A name from `bgtplanner data list`; ``csv:PATH`` or ``parquet:PATH`` for your own.
        data_dir: Folder with real data sets; then ``$BGTPLANNER_DATA``, then the cache.
        items: The public catalogue: a table of all items, with titles and features if it has them.
            ``auto``: the data set's own file if it is there. ``none``: the items that occur in the
            ratings.
        items_column: Column of the items' labels in that table; detected by default.
        items_words: Columns of text in it whose words are features, separated by commas.
        unknown_items: What to do with ratings of items that the catalogue lacks: an ``error``, or
            ``leave-out`` these ratings.
        train_share: Share of the ratings to train on; the rest is the test set.
        split: Which ratings are the test set: random ones of each ``user``, or of ``all``
            together; the ``last`` of each user; those of all users from one moment in ``time``
            on; the last k of each user (``leave-last``). ``auto``: random, as is usual for the
            data set, and by user for your own. Equal times are put in order by the seed.
        leave_last: The number k of ratings that ``leave-last`` holds out; each user keeps one.
        initial_share: Share of a client's training ratings that is there from the start; the
            others arrive evenly over the rounds.
        arrival: In which order they arrive: at ``random``, or by ``time``: then `initial_share` of
            all ratings is there from the start, a client has none before its first one, and what
            arrives is predicted before it is learned (`rmse_arriving`).
        duplicates: Which rating is kept where a user rated an item twice.
        clients: Distribute the users over this many clients. By default each user is one client,
            or as the data set says.
        delimiter: Delimiter of your table; detected by default, like all that follow but `scale`.
        header: Whether the first row holds names.
        user_column: Column of the users, by name or by position from 0.
        item_column: Column of the items, likewise.
        rating_column: Column of the ratings, likewise; ``none`` for clicks without ratings.
        time_column: Column of the times, likewise.
        client_column: Column of the clients, likewise; without one every user is a client.
        scale: How your ratings are scaled to 0 to 1: ``LOW:HIGH`` (public bounds), ``minmax``, or
            ``max``, the default; the last two read the bounds from the data.
    """

    dataset: str = "demo"
    data_dir: str | None = None
    items: str = Field(default="auto", min_length=1)
    items_column: str | None = None
    items_words: str | None = None
    unknown_items: Literal["error", "leave-out"] = "error"
    train_share: float = Field(default=0.8, gt=0, lt=1)
    split: Literal["auto", "user", "all", "last", "time", "leave-last"] = "auto"
    leave_last: int = Field(default=1, ge=1)
    initial_share: float = Field(default=0.5, gt=0, le=1)
    arrival: Arrival = "random"
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
        clients: The number of clients.
        items: The number of items; rare ones may get no rating.
        ratings_per_client: The mean number of ratings per client.
        users_per_client: The number of users per client.
        dim: Length of the hidden user and item factors; with 0 there are biases only.
        noise: Standard deviation, in stars, of the part of a rating that cannot be predicted.
        choosy: How strongly users pick items that suit them; with 0 by popularity alone.
    """

    clients: int = Field(default=1000, ge=1)
    items: int = Field(default=500, ge=1)
    ratings_per_client: int = Field(default=40, ge=1)
    users_per_client: int = Field(default=1, ge=1)
    dim: int = Field(default=4, ge=0, le=1024)
    noise: float = Field(default=0.87, ge=0)
    choosy: float = Field(default=0.0, ge=0, le=10)

    @model_validator(mode="after")
    def _indexable(self) -> Self:
        ratings = self.clients * self.ratings_per_client
        ConfigError.unless(
            ratings < 2**31, "clients * ratings_per_client", ratings, "fewer than 2**31 ratings"
        )
        return self


class ModelSection(_Section):
    """The model; its settings are in the section of its name.

    Attributes:
        name: A model that comes with the package, or ``package.module:Class``.
        pseudo_items: The number of items that each client pretends to have rated, as in FedGNN;
            ``auto``: the paper's number for the data set.
        fixed_pseudo_items: Whether they are the same in every round; if they change, the items
            that stay are the real ones.
        expansions: How often users get others who rated the same items as neighbours (fedgnn,
            preset paper).
        max_neighbours: The most neighbours that a user gets.
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
        """Leave empty options out: the rounds of older runs are identified without them."""
        found = plain(self)
        return found if self.options else {k: v for k, v in found.items() if k != "options"}


def _share_or_number(value: float) -> float:
    """Return a share below 1, or a whole number of clients."""
    if value >= 1 and value != int(value):
        raise PydanticCustomError("clients", "a share below 1, or a whole number of clients")
    return value


_Tolerated = Annotated[
    float, Field(ge=0, le=10_000_000), AfterValidator(_share_or_number)
]  # fmt: skip
_ALWAYS_TOLERATED = 0.05  # share of the clients; some always drop out of a real round


class FederationSection(_Section):
    """How long the run is, and who takes part.

    Attributes:
        rounds: The most rounds of training, T.
        participation: Share of the clients that are invited to a round, drawn anew each time.
        dropout: Share of the clients that pay and then fail to answer.
        stragglers: Share of the clients that pay and answer too late; mostly the same ones.
        most_dropouts: The most clients that may fail to answer in a round, in which each adds a
            share of the noise (trust ``secagg``): a share of those invited, or, from 1 on, a
            number. If more do, the sum is not opened: the charge is spent, and nothing is learned.
            ``auto``: 5 %, and as many as `dropout` and `stragglers` say.
        most_colluders: The most clients that may tell others what they added to the sum, given in
            the same way. Every client knows its own share, so that 1 is the least that protects
            clients from one another. Whoever does not drop out or collude adds to the noise: its
            variance is larger by a factor of up to n / (n - most_dropouts - most_colluders).
        after_budget: What to do when the budget is spent: ``stop``, or ``rest``: nothing is
            uploaded any more, but ratings keep arriving and each client learns from its own.
    """

    rounds: int = Field(default=100, ge=1, le=1_000_000)
    participation: float = Field(default=1.0, gt=0, le=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    stragglers: float = Field(default=0.0, ge=0, lt=1)
    most_dropouts: _Tolerated | Literal["auto"] = "auto"
    most_colluders: _Tolerated = 1.0
    after_budget: Literal["rest", "stop"] = "rest"

    @property
    def tolerance(self) -> Tolerance:
        """How many clients may drop out of a round or collude, for its promise to hold."""
        if self.most_dropouts == "auto":
            failing = _ALWAYS_TOLERATED + self.dropout + self.stragglers
            return Tolerance(min(failing, 1 - 2**-10), self.most_colluders)
        return Tolerance(self.most_dropouts, self.most_colluders)


def _traffic(value: Any) -> Any:
    """Return numbers as text with commas, from such text, a list, or a file with one per line.

    A file is read here and now: the settings of a run hold its numbers, so that it can be resumed
    where the file is not.
    """
    if value is None:
        return None
    given = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        if isinstance(value, str) and not _numbers(given) and Path(value).is_file():
            lines = read_bytes(Path(value), MOST_BYTES_OF_SETTINGS).decode("utf-8-sig").split("\n")
            given = [line.strip() for line in lines if line.strip()]
        numbers = Objective("served", [float(number) for number in given]).traffic or ()
    except (ConfigError, OSError, TypeError, ValueError) as error:
        raise PydanticCustomError(
            "traffic",
            "numbers of 0 or more with commas, such as 5,5,5,5,8,10,9, or a file with one per "
            "line; not all 0",
        ) from error
    return ",".join(repr(number).removesuffix(".0") for number in numbers)


def _numbers(parts: Iterable[str]) -> bool:
    try:
        return bool([float(part) for part in parts])
    except ValueError:
        return False


class PlanningSection(_Section):
    """The policy, which decides what a round may cost, and what it may look at.

    Attributes:
        policy: A policy that comes with the package, or ``package.module:Class``.
        objective: What is planned for, and compared by. ``served``: the mean error over the
            rounds, since people are served in each of them. ``last``: that of the last round.
        traffic: How many people are served in each round, in any unit: numbers with commas, such
            as ``5,5,5,5,8,10,9``, which are repeated over the rounds; or a file with one number
            per line. By default all rounds count the same.
        constants: For `bgt`: the planner's ``own`` constants; the paper's with the formulas
            ``repaired``; every formula as printed in the ``paper``, or as in its ``authors``'
            code. The last two are for comparison, and keep all errors.
        levels: The number of levels that `bgt` and `random` choose from, A.
        min_rounds: The fewest rounds that the budget may be spent in; sets the dearest level.
        context: What the policy may look at. ``usage``: singular values of the matrix of who
            rated what, which reveals item ids and is not accounted for. ``released``: statistics
            of what was released before.
        context_size: The number of singular values in ``usage``, d.
        reward: What the policy is told about a round: by how much the RMSE on the ``test``
            ratings or the training ``loss`` fell, neither of which is accounted for; the signal
            in what was ``released``; or by how much the RMSE on the ``validation`` set fell, which
            is paid for.
        target: The RMSE at which a run stops spending. It ends there, unless people are still
            served afterwards: with ``planning.objective = served`` and ``federation.after_budget =
            rest``, the other rounds are played without uploads. Unless it is read from the test
            ratings, clients keep a validation set.
        validation_share: Share of its ratings in a client's validation set, if there is one.
        validation_charge: Share of a round's charge that pays for validation.
        options: The policy's own options, such as ``planning.options.shape=saturating``.
    """

    policy: str = "bgt"
    objective: Kind = "served"
    traffic: Annotated[str | None, BeforeValidator(_traffic)] = None
    constants: Literal["own", "repaired", "paper", "authors"] = "own"
    levels: int | None = Field(default=None, ge=1, le=1000)
    min_rounds: int | None = Field(default=None, ge=1)
    context: Literal["none", "usage", "released"] = "released"
    context_size: int = Field(default=5, ge=1, le=1000)
    reward: Literal["none", "test", "loss", "released", "validation"] = "released"
    target: float | None = Field(default=None, gt=0, lt=1)
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    validation_charge: float = Field(default=0.05, gt=0, lt=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def goal(self) -> Objective:
        """What is planned for."""
        given = None if self.traffic is None else [float(of) for of in self.traffic.split(",")]
        return Objective(self.objective, given)


class _OneOf:
    """A name in a registry or one of a few more, with the error text of a literal choice."""

    def __init__(self, registry: Registry[Any], *more: str) -> None:
        self._registry, self._more = registry, more

    @property
    def names(self) -> list[str]:
        """All names that are possible."""
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
    """How uploads are made private.

    Attributes:
        mechanism: The mechanism that makes uploads private; ``none``: no privacy.
        trust: ``secagg``: the server sees only the sum, noised once. ``local``: no one is trusted.
        neighbours: What the epsilon is about. ``replace-special``: one client's uploads against
            nothing in their place, with ``secagg`` only. ``replace-one``: one client's data
            against any other, with twice the noise. ``auto``: the first with ``secagg``, the
            second with ``local``.
        unit: ``client``: one clip over the whole upload, which is sound. ``row``: each tensor and
            item row on its own, as in the code of the paper's authors.
        accounting: The accountant by name; ``auto``: the mechanism's own. ``authors`` promises
            nothing.
        epsilon: The total epsilon of each client.
        delta: The delta of each client: the probability that epsilon does not hold.
        budgets: For unequal budgets: ``EPSILON:SHARE,...``, or a file with one epsilon per client.
        clip: Bound on the norm of an upload, C.
        noise: Under local trust, draw the noise of the ``sum`` at once, or ``per-client``, which
            is slower and has the same distribution.
    """

    mechanism: Annotated[str, _OneOf(MECHANISMS, "none")] = "gaussian"
    trust: Literal["local", "secagg"] = "secagg"
    neighbours: Literal["auto", "replace-special", "replace-one"] = "auto"
    unit: Annotated[str, _OneOf(UNITS)] = "client"
    accounting: str = "auto"
    epsilon: float = Field(default=10.0, gt=0, le=1e6)
    delta: float = Field(default=1e-5, ge=0, lt=1)
    budgets: str | None = None
    clip: float = Field(default=1.0, gt=0, le=1e6)
    noise: Literal["sum", "per-client"] = "sum"

    @property
    def relation(self) -> Neighbours:
        """The neighbouring relation; ``auto`` is the one that goes with the trust.

        Raises:
            ConfigError: If another one was chosen, with which the trust does not go.
        """
        return neighbours_of(self.trust, self.neighbours, "--neighbours (privacy.neighbours)")


class DeploymentSection(_Section):
    """A federation on real machines: which items, how many clients, how long to wait for them.

    The scale of the ratings is `data.scale`.

    Attributes:
        items: File of public item names, one per line; or a table (CSV, Parquet) of items with
            titles and features, which every client gets once.
        clients: The most clients that can ever take part; as many as in the roster, if any.
        roster: File with the keys and the names of all clients, for `privacy.trust = secagg`;
            relative to the file of these settings. `bgtplanner deploy roster` makes it, and every
            client has the same one.
        least_clients: The fewest clients that must be connected for a round.
        wait_seconds: How long to wait for that many.
        round_seconds: How long a client may take to answer; under `secagg`, each of five times.
        pause_seconds: Pause between two rounds.
    """

    items: str | None = None
    clients: int = Field(default=100, ge=1, le=10_000_000)
    roster: str | None = None
    least_clients: int = Field(default=1, ge=1)
    wait_seconds: float = Field(default=3600.0, ge=0)
    round_seconds: float = Field(default=600.0, gt=0)
    pause_seconds: float = Field(default=0.0, ge=0)


class RunSection(_Section):
    """How the run itself is carried out.

    Attributes:
        seed: Seeds the split and every random draw.
        checkpoint_every: The number of rounds between two checkpoints.
        device: The kind of device to compute on.
        devices: Among how many devices of that kind the clients are divided. By default as many
            accelerators, or cores of a CPU, as get a million ratings each. The result is the same
            up to rounding.
        examples: How many users' lists the report of a simulated run shows; 0 for none. By
            default 3 for data sets that everybody can get, and none for your own.
    """

    seed: int = Field(default=0, ge=0, lt=2**31)
    checkpoint_every: int = Field(default=10, ge=1)
    device: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | None = Field(default=None, ge=1)
    examples: int | None = Field(default=None, ge=0, le=20)


class Config(_Section):
    """Every setting of a run."""

    preset: Literal["recommended", "paper"] = "recommended"
    data: DataSection = DataSection()
    synthetic: SyntheticSection = SyntheticSection()
    model: ModelSection = ModelSection()
    biases: Biases = Biases()
    factorization: Factorization = Factorization()
    fedgnn: FedGNN = FedGNN()
    tastes: Tastes = Tastes()
    server: Server = Server()
    federation: FederationSection = FederationSection()
    planning: PlanningSection = PlanningSection()
    privacy: PrivacySection = PrivacySection()
    deployment: DeploymentSection = DeploymentSection()
    run: RunSection = RunSection()

    @property
    def learns(self) -> bool:
        """Whether there is a budget, and a policy that uses rewards."""
        return self.privacy.mechanism != "none" and POLICIES[self.planning.policy].learns

    @property
    def target_from_test(self) -> bool:
        """Whether the target is read from the test ratings: without privacy, or as the paper."""
        open_book = self.privacy.mechanism == "none" or self.planning.reward == "test"
        return self.planning.target is not None and open_book

    @property
    def validates(self) -> bool:
        """Whether clients keep a validation set."""
        wanted = self.planning.target is not None and not self.target_from_test
        return wanted or (self.learns and self.planning.reward == "validation")

    @property
    def rests(self) -> bool:
        """Whether rounds are still played when a target is reached: people are still served."""
        served = self.planning.objective == "served"
        return served and self.federation.after_budget == "rest"


def load_config(
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> Config:
    """Load a config from a preset, a TOML file and single values; later ones win.

    Args:
        preset: ``recommended`` or ``paper``; by default the file's, otherwise recommended.
        file: A TOML file, such as the ``config.toml`` of a run folder.
        settings: Values by dotted key, such as ``{"server.learning_rate": 0.02}``.
        before: Values of keys that the file does not have, such as :data:`BEFORE`.

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
    given = _tree(before or {})
    merge(given, from_file)
    merge(given, _checked_keys(_tree(settings or {})))
    merged = _packaged(_variant(wanted, given))
    for name in _readings(wanted, given):
        merge(merged, _packaged(name))
    merge(merged, given)
    merged["preset"] = wanted
    _agree(merged, given)
    planning = merged.setdefault("planning", {})
    if str(planning.get("policy")) in POLICIES.former:  # patient, which was told nothing
        planning |= {"context": "none", "reward": "none"} | given.get("planning", {})
    if planning.get("context") == "forecast":  # of an earlier release, for the policy patient
        planning["context"] = "none"
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
    if ":" not in config.model.name:  # a user's own model is imported when it is needed
        try:
            MODELS[config.model.name]
        except ConfigError as error:
            raise ConfigError(str(error).replace("model", _named("model.name"), 1)) from error
    own = config.model.name in Config.model_fields
    expected = f"nothing: the settings of {config.model.name} are in [{config.model.name}]"
    ConfigError.unless(not (own and config.model.options), "model.options", "given", expected)
    if config.validates and not UNITS[config.privacy.unit].sound:
        key, value = "planning.reward", str(config.planning.reward)
        if config.planning.target is not None:
            key, value = "planning.target", str(config.planning.target)
        raise ConfigError(
            f"{_named(key)} = {value}: with privacy.unit = {config.privacy.unit} nothing pays for "
            "validation; set privacy.unit=client, or planning.reward=test"
        )
    _check_expansions(config)
    _ = config.privacy.relation  # refuses one that does not go with the trust
    return config


def check_policy(name: str) -> None:
    """Refuse a policy of an earlier release: its runs can be read, but nothing is planned by it.

    Raises:
        ConfigError: If it is one; says what to use in its place.
    """
    if name in POLICIES.former:
        raise ConfigError(
            f"{_named('planning.policy')} = {name!r}: no longer exists; use bgt with --objective "
            f"last, or the schedule {POLICIES.former[name]}"
        )


def _tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, as sections."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        if "preset" in (*path, last)[:1]:
            raise ConfigError(f"{key}: not a setting; choose a preset with --preset")
        target = tree
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{key}: {part} is a single value, not a section")
        target[last] = value
    return tree


def _check_expansions(config: Config) -> None:
    """Refuse graph expansion where it is not possible, and with the preset recommended."""
    times = config.model.expansions
    if not times:
        return
    for fits, expected in (
        (
            config.preset != "recommended",
            "0 with --preset recommended: the third party that matches users sees which of them "
            "rated the same items, and no noise hides that",
        ),
        (
            config.privacy.mechanism == "none"
            or isinstance(MECHANISMS[config.privacy.mechanism], Additive),
            "0, unless --mechanism (privacy.mechanism) adds noise: embeddings are uploaded, too",
        ),
        (config.model.name == "fedgnn", "0, unless --model (model.name) is fedgnn"),
        (
            config.privacy.trust == "local",
            "0, unless --trust (privacy.trust) is local: the third party that matches users sees "
            "the embedding of each of them",
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
    """Return the variant of a preset for the model, and for a run without privacy."""
    if preset != "recommended":
        return preset
    model = given.get("model", {}).get("name")
    if _without_privacy(given):
        return preset if model in (None, *_SUMS) else "recommended-unlimited"
    return preset if model in (None, *_SUMS) else "recommended-gradients"


def _readings(preset: str, given: Mapping[str, Any]) -> list[str]:
    """Return what the preset `paper` adds for a data set and a policy, as in Table 2."""
    if preset != "paper":
        return []
    wanted = (given.get("data", {}).get("dataset"), given.get("planning", {}).get("policy"))
    return [f"paper-{name}" for name in wanted if name in ("filmtrust", "adpml", "adap")]


def _best_mechanism(privacy: Mapping[str, Any], planning: Mapping[str, Any]) -> str:
    """Return the accountant's mechanism, or else the one that adds the least noise."""
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
    """Set both or neither: no mechanism means policy `unlimited`, and the other way round."""
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
    """Return where another config differs, by dotted key, as far as it changes the result.

    The neighbouring relation ``auto`` does not differ from the one that it stands for.
    """
    mine, theirs = one.model_dump(mode="json"), other.model_dump(mode="json")
    for tree, config in ((mine, one), (theirs, other)):
        tree["privacy"]["neighbours"] = config.privacy.relation
    changed = {} if mine.pop("preset") == theirs.pop("preset") else {"preset": other.preset}
    return changed | {
        f"{section}.{key}": theirs[section].get(key)
        for section, values in mine.items()
        for key in (values | theirs[section])
        if values.get(key) != theirs[section].get(key) and f"{section}.{key}" not in INDIFFERENT
    }


_WHY = {
    "recommended-gradients": "the model is trained by gradients",
    "recommended-unlimited": "without privacy there is no noise to withstand",
}


def departures(config: Config) -> str:
    """Return in a sentence what the preset recommended changed for this model, or without privacy.

    It is for the head of a run, and empty if nothing was changed. Settings that were given are not
    listed: whoever gave them knows.
    """
    model, private = config.model.name, config.privacy.mechanism != "none"
    given = {"model": {"name": model}, "privacy": {} if private else {"mechanism": "none"}}
    if (why := _WHY.get(_variant(config.preset, given))) is None:
        return ""
    chosen = {"model.name": model} | ({} if private else {"privacy.mechanism": "none"})
    plain, ours = load_config(), config.model_dump(mode="json")
    usual = plain.model_dump(mode="json")
    implied = () if private else ("planning.", "privacy.")
    changed = []
    for key, value in differences(plain, load_config(settings=chosen)).items():
        section, _, name = key.partition(".")
        if not key.startswith(implied) and ours[section].get(name) == value:
            changed.append(f"{key} {value} instead of {usual[section].get(name)}")
    return f"Not all settings are the recommended ones, since {why}: {', '.join(changed)}."


def identifying(config: Config) -> dict[str, Any]:
    """Return the settings that identify a run, without those that older runs did not have.

    They are left out where they say what older runs did, whose rounds are identified without them.
    """
    tree = config.model_dump(mode="json")
    tree["privacy"]["neighbours"] = config.privacy.relation
    if config.model.name != "tastes":
        del tree["tastes"]  # which older runs did not know
    for key, value in BEFORE.items():
        section, _, name = key.partition(".")
        if tree[section].get(name) == value:
            tree[section].pop(name, None)
    return tree


def merge(target: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Merge `extra` into `target`, section by section; `extra` wins."""
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = dict(value) if isinstance(value, Mapping) else value


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse the ``section.key=value`` of ``--set``; the value is TOML, or else plain text.

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
    except (ValueError, RecursionError):  # not TOML, or absurdly long or nested
        tree = {}
    return key.strip(), tree["value"] if list(tree) == ["value"] else value.strip()


def to_toml(config: Config, folder: Mapping[str, Any] | None = None) -> str:
    """Return the settings as TOML for :func:`load_config`; unset ones are left out."""
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
    # JSON's strings, numbers, booleans and lists are valid TOML for the values that occur here,
    # with two exceptions: escaped surrogates, and a DEL that is not escaped.
    if isinstance(value, Mapping):
        known = {key: of for key, of in value.items() if of is not None}  # TOML has no null
        inside = ", ".join(f"{json.dumps(key)} = {_toml_value(of)}" for key, of in known.items())
        return f"{{{inside}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = read_bytes(path, MOST_BYTES_OF_SETTINGS, plain=False)
        text = content.decode("utf-8-sig")  # some editors write a byte order mark
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
    """Return the tree if every key in it exists; otherwise name the nearest key."""
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
    """Return the declared type of a key, as text."""
    if is_dataclass(section):
        return next(str(entry.type) for entry in fields(section) if entry.name == key)
    return str(section.model_fields[key].annotation)


def _check_kind(key: str, value: Any, kind: str, where: str) -> None:
    """Refuse what pydantic lets pass: booleans as numbers, and text that is not UTF-8."""
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


def expected(problem: Any) -> str:
    """Return what was expected, from one of pydantic's errors.

    Example:
        >>> expected({"type": "greater_than", "msg": "Input should be greater than 0"})
        'expected a number greater than 0'
    """
    message = str(problem["msg"])
    if problem["type"] == "int_parsing_size":
        return "expected a number of fewer digits"
    if message.startswith("Value error, "):
        return message.removeprefix("Value error, ")
    if not message.startswith("Input should be "):
        return f"expected {message[:1].lower()}{message[1:]}"
    message = message.removeprefix("Input should be ")
    return "expected " + ("a number " * message.startswith(("greater", "less"))) + message


def _describe(problem: Any) -> str:
    """Return one of pydantic's errors as one line: flag or key, value, what was expected."""
    location = [str(part) for part in problem["loc"]]
    if problem["type"] == "value_error":  # from a section's own check, which names the key itself
        return f"{location[0]}.{expected(problem)}"
    return f"{_named('.'.join(location[:2]))} = {quoted(problem['input'])}: {expected(problem)}"
