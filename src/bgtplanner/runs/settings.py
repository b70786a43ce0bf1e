"""The settings of a run, section by section: what each means, what it may be, and its default.

Flags, help texts and the reference page are made from these classes; what needs more words is on
that page. Only the models' own settings are elsewhere, with the models, which need JAX.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from bgtplanner.data.ratings import COUNT_CAP, Feedback
from bgtplanner.data.split import Arrival
from bgtplanner.errors import ConfigError
from bgtplanner.models.registry import MODELS
from bgtplanner.planning.objective import Kind, Objective
from bgtplanner.planning.registry import CONSTANTS, CONTEXTS, POLICIES
from bgtplanner.privacy.compatibility import UNITS, neighbours_of
from bgtplanner.privacy.mechanisms import MECHANISMS, Neighbours
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.registry import Registry
from bgtplanner.text import MOST_BYTES_OF_SETTINGS

PRESETS = ("recommended", "paper")

FLAGS = {
    key: "--model" if key == "model.name" else f"--{key.partition('.')[2].replace('_', '-')}"
    for key in (
        *("data.dataset", "data.data_dir", "data.items", "data.scale", "model.name"),
        *("planning.policy", "planning.objective", "planning.traffic", "planning.levels"),
        *("planning.min_rounds", "privacy.mechanism", "privacy.trust", "privacy.neighbours"),
        *("privacy.epsilon", "privacy.delta", "privacy.budgets"),
        *("federation.rounds", "federation.participation", "run.seed", "run.device"),
    )
}
"""Config keys that have their own flag; all others are set with ``--set KEY=VALUE``."""

TRAINING = {"privacy.epsilon": 3.0, "federation.rounds": 20}
"""What `train` does by default. Whoever guesses from a model with this epsilon whether somebody is
in it is right at most 65 times in 100, where a coin is right 50 times; with 10, it would be 85
times. Every round pays; more rounds would only be waited for."""

_ALWAYS_TOLERATED = 0.05  # share of the clients; some always drop out of a real round


class Section(BaseModel):
    """A section of the config: no other keys, only UTF-8, and nothing changes later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        str_max_length=MOST_BYTES_OF_SETTINGS,
    )


@dataclass(frozen=True, eq=False)
class OneOf:
    """The type of a setting that is a name in a registry, or one of a few more names.

    With `own`, it may also be the address of an object. Names that are gone are accepted, since
    old runs that have them can be read; whoever uses one is told what to do.
    """

    registry: Registry[Any]
    more: tuple[str, ...] = ()
    own: bool = False

    @property
    def names(self) -> list[str]:
        """All names that are possible, and how an address is written."""
        return [*self.registry, *self.more, *(["package.module:Class"] if self.own else [])]

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return no_info_plain_validator_function(self._checked)

    def _checked(self, value: Any) -> str:
        if isinstance(value, str):
            known = value in self.registry or value in (*self.more, *self.registry.gone)
            if known or (self.own and ":" in value):
                return value
        *most, last = map(repr, self.names)
        every = f"{', '.join(most)} or {last}"
        raise PydanticCustomError("literal_error", "Input should be {every}", {"every": every})


def _share_or_number(value: float) -> float:
    """Return a share below 1, or a whole number of clients."""
    if value >= 1 and value != int(value):
        expected = "Input should be a share below 1, or a whole number of clients"
        raise PydanticCustomError("clients", expected)
    return value


_Tolerated = Annotated[float, Field(ge=0, le=10_000_000), AfterValidator(_share_or_number)]


def _traffic(value: Any) -> Any:
    """Return numbers as text with commas, from such text or a list."""
    if value is None:
        return None
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        numbers = Objective("served", [float(number) for number in parts]).traffic or ()
    except (ConfigError, TypeError, ValueError) as error:
        raise PydanticCustomError(
            "traffic",
            "Input should be numbers of 0 or more with commas, such as 5,5,5,5,8,10,9; not all 0",
        ) from error
    return ",".join(repr(number).removesuffix(".0") for number in numbers)


class DataSection(Section):
    """Which ratings, and how they are divided."""

    dataset: str = "demo"
    """A name from `bgtplanner data list`, or the path of your own table."""
    data_dir: str | None = None
    """Folder with real data sets; then ``$BGTPLANNER_DATA``, then the cache."""
    items: str = Field(default="auto", min_length=1)
    """The public catalogue: a table of all items; ``auto``: the data set's; or ``none``."""
    train_share: float = Field(default=0.8, gt=0, lt=1)
    """Share of the ratings to train on; the rest is the test set."""
    split: Literal["auto", "user", "all", "last", "time", "leave-last", "marked"] = "auto"
    """Which ratings are the test set; ``auto``: random ones, as is usual for the data set."""
    leave_last: int = Field(default=1, ge=1)
    """The number of ratings that ``leave-last`` holds out; each user keeps one."""
    initial_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the training ratings that are there from the start."""
    arrival: Arrival = "random"
    """Whether the others arrive in ``random`` order, or by ``time``."""
    clients: int | None = Field(default=None, ge=1)
    """Distribute the users over this many clients. By default each user is one client."""
    delimiter: str | None = None
    """Delimiter of your table; detected by default, like header and columns."""
    header: bool | None = None
    """Whether the first row holds names."""
    decimal_comma: bool = False
    """Whether numbers are written as ``3,5``."""
    user_column: str | int | None = None
    """Column of the users, by name or by position from 0."""
    item_column: str | int | None = None
    """Column of the items, likewise."""
    rating_column: str | int | None = None
    """Column of the ratings, likewise; ``none`` for clicks without ratings."""
    weight_column: str | int | None = None
    """Column of counts, such as plays or hours, in the place of ratings: rows are clicks, weighted
    by ``log(1 + count)``."""
    time_column: str | int | None = None
    """Column of the times, likewise."""
    client_column: str | int | None = None
    """Column of the clients, likewise; without one every user is a client."""
    test_column: str | int | None = None
    """Column that marks the test ratings of your own table: 1 or 0, true or false, test or train.
    It implies the split ``marked``."""
    scale: str | None = None
    """How ratings become 0 to 1: ``LOW:HIGH`` (public), or ``minmax`` or ``max`` of them."""
    feedback: Feedback = "auto"
    """Whether values are ratings, or counts of clicks; ``auto``: by the column's name."""
    count_cap: float = Field(default=COUNT_CAP, gt=0)
    """The largest count that counts. It is public, and never read off the data."""


class SyntheticSection(Section):
    """Size and shape of the data set ``synthetic``."""

    clients: int = Field(default=1000, ge=1)
    """The number of clients."""
    items: int = Field(default=500, ge=1)
    """The number of items; rare ones may get no rating."""
    ratings_per_client: int = Field(default=40, ge=1)
    """The mean number of ratings per client."""
    users_per_client: int = Field(default=1, ge=1)
    """The number of users per client."""
    dim: int = Field(default=4, ge=0, le=1024)
    """Length of the hidden user and item factors; with 0 there are biases only."""
    noise: float = Field(default=0.87, ge=0)
    """Standard deviation, in stars, of the part of a rating that cannot be predicted."""
    choosy: float = Field(default=0.0, ge=0, le=10)
    """How strongly users pick items that suit them; with 0 by popularity alone."""


class ModelSection(Section):
    """The model; its settings are in the section of its name."""

    name: Annotated[str, OneOf(MODELS, own=True)] = "factorization"
    """The model, or the address of your own."""
    pseudo_items: Annotated[int, Field(ge=0, le=1_000_000)] | Literal["auto"] = 0
    """How many items each client pretends to have rated; ``auto``: as the paper."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of a model that does not come with the package."""


class FederationSection(Section):
    """How long the run is, and who takes part."""

    rounds: int = Field(default=100, ge=1, le=1_000_000)
    """The most rounds of training, T."""
    participation: float = Field(default=1.0, gt=0, le=1)
    """Share of the clients that are invited to a round, drawn anew each time."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the clients that pay and then fail to answer."""
    most_dropouts: _Tolerated | Literal["auto"] = "auto"
    """The most clients that may fail to answer, as a share, or a number from 1 on."""
    most_colluders: _Tolerated = 1.0
    """The most clients that may tell what they added to the sum, likewise."""
    after_budget: Literal["rest", "stop"] = "rest"
    """When the budget is spent: ``stop``, or ``rest``: clients still learn alone."""

    @property
    def tolerance(self) -> Tolerance:
        """How many clients may drop out of a round or collude, for its promise to hold."""
        usual = min(_ALWAYS_TOLERATED + self.dropout, 1 - 2**-10)
        most = usual if self.most_dropouts == "auto" else self.most_dropouts
        return Tolerance(most, self.most_colluders)


class PlanningSection(Section):
    """The policy, which decides what a round may cost, and what it may look at."""

    policy: Annotated[str, OneOf(POLICIES, own=True)] = "bgt"
    """The policy, or the address of your own."""
    objective: Kind = "served"
    """What is planned for: what people are ``served`` in all rounds, or the ``last``."""
    traffic: Annotated[str | None, BeforeValidator(_traffic)] = None
    """How many people come in each round, with commas, repeated; by default all equal."""
    constants: Annotated[str, OneOf(CONSTANTS)] = "own"
    """The constants of `bgt`: its ``own``; or those of the ``paper``, or ``repaired``."""
    levels: int | None = Field(default=None, ge=1, le=1000)
    """The number of levels that `bgt` and `random` choose from, A."""
    min_rounds: int | None = Field(default=None, ge=1)
    """The fewest rounds that the budget may be spent in; sets the dearest level."""
    context: Annotated[str, OneOf(CONTEXTS)] = "released"
    """What the policy may look at; ``usage`` is not accounted for."""
    context_size: int = Field(default=5, ge=1, le=1000)
    """The number of singular values in ``usage``, d."""
    reward: Literal["none", "test", "loss", "released"] = "released"
    """What the policy is told; ``test`` and ``loss`` are not accounted for."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The policy's own options, such as ``planning.options.shape=saturating``."""

    def in_words(self, rounds: int) -> str:
        """Return which policy plays, as the first line of a run says it."""
        if self.policy != "bgt" or self.constants == "own":
            return self.policy
        kind = CONSTANTS[self.constants]
        fewest = self.min_rounds or kind.fewest_rounds(rounds)
        return f"bgt ({kind.label}; T_min {fewest} of T {rounds})"

    @property
    def goal(self) -> Objective:
        """What is planned for."""
        given = None if self.traffic is None else [float(of) for of in self.traffic.split(",")]
        return Objective(self.objective, given)


class PrivacySection(Section):
    """How uploads are made private."""

    mechanism: Annotated[str, OneOf(MECHANISMS, ("none",))] = "gaussian"
    """What makes uploads private; ``none``: nothing; ``auto``: what adds least noise."""
    trust: Literal["local", "secagg"] = "secagg"
    """``secagg``: the server sees only the sum, noised once; ``local``: trust no one."""
    neighbours: Literal["auto", "replace-special", "replace-one"] = "auto"
    """What the epsilon is about; ``auto``: as goes with the trust."""
    unit: Annotated[str, OneOf(UNITS)] = "client"
    """What one clip covers: the ``client``'s whole upload, or each ``row`` (the authors')."""
    accounting: str = "auto"
    """The accountant by name; ``auto``: the mechanism's. ``authors`` proves nothing."""
    epsilon: float = Field(default=10.0, gt=0, le=1e6)
    """The total epsilon of each client."""
    delta: float = Field(default=1e-5, ge=0, lt=1)
    """The delta of each client: the probability that epsilon does not hold."""
    budgets: str | None = None
    """For unequal budgets: ``EPSILON:SHARE,...``, such as ``1:0.5,10:0.5``."""
    clip: float = Field(default=1.0, gt=0, le=1e6)
    """Bound on the norm of an upload, C."""

    @property
    def relation(self) -> Neighbours:
        """The neighbouring relation; one with which the trust does not go is refused."""
        return neighbours_of(self.trust, self.neighbours, "--neighbours (privacy.neighbours)")


class DeploymentSection(Section):
    """A federation on real machines; the scale of its ratings is `data.scale`."""

    items: str | None = None
    """File of public item names, one per line; or a table with titles and features."""
    clients: int = Field(default=100, ge=1, le=10_000_000)
    """The most clients that can ever take part; as many as in the roster, if any."""
    roster: str | None = None
    """File of `bgtplanner deploy roster`, for ``secagg``; relative to these settings."""
    least_clients: int = Field(default=1, ge=1)
    """The fewest clients that must be connected for a round."""
    wait_seconds: float = Field(default=3600.0, ge=0)
    """How long to wait for that many."""
    round_seconds: float = Field(default=600.0, gt=0)
    """How long a client may take to answer; under ``secagg``, each of five times."""
    pause_seconds: float = Field(default=0.0, ge=0)
    """Pause between two rounds."""


class RunSection(Section):
    """How the run itself is carried out."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds the split and every random draw."""
    checkpoint_every: int = Field(default=10, ge=1)
    """The number of rounds between two checkpoints."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """The kind of device to compute on."""
    examples: int | None = Field(default=None, ge=0, le=20)
    """How many users' lists the report shows; by default 3 if the data are public."""


class Sections(Section):
    """The sections but those of the models."""

    data: DataSection = DataSection()
    synthetic: SyntheticSection = SyntheticSection()
    model: ModelSection = ModelSection()
    federation: FederationSection = FederationSection()
    planning: PlanningSection = PlanningSection()
    privacy: PrivacySection = PrivacySection()
    deployment: DeploymentSection = DeploymentSection()
    run: RunSection = RunSection()


SECTIONS: dict[str, Any] = {
    name: entry.annotation for name, entry in Sections.model_fields.items()
}


def packaged(preset: str) -> dict[str, Any]:
    """Return the tables of a preset: what it ``usual``ly is, and what it becomes for others."""
    file = resources.files("bgtplanner.runs") / "presets" / f"{preset}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse the ``section.key=value`` of ``--set``; the value is TOML, or else plain text.

    Example:
        >>> parse_assignment("server.learning_rate=0.02"), parse_assignment("model.name=biases")
        (('server.learning_rate', 0.02), ('model.name', 'biases'))
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
