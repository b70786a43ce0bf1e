"""The settings of a run, section by section: what each means, what it may be, and its default.

Flags, help texts and the reference pages are made from these classes: their docstrings say what a
setting is for, their fields what it may be. Only the models' own settings are elsewhere, with the
models, since these need JAX and ``--help`` does not.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from bgtplanner.data.ratings import Duplicates
from bgtplanner.data.split import Arrival
from bgtplanner.errors import ConfigError
from bgtplanner.models.registry import MODELS
from bgtplanner.planning.objective import Kind, Objective
from bgtplanner.planning.registry import CONSTANTS, CONTEXTS, POLICIES
from bgtplanner.privacy.compatibility import UNITS, neighbours_of
from bgtplanner.privacy.mechanisms import MECHANISMS, Neighbours
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.registry import Registry
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

PRESETS = ("recommended", "paper")

FLAGS = {
    key: "--model" if key == "model.name" else f"--{key.partition('.')[2].replace('_', '-')}"
    for key in (
        *("data.dataset", "data.data_dir", "data.items", "model.name"),
        *("planning.policy", "planning.objective", "planning.traffic", "planning.levels"),
        *("planning.min_rounds", "planning.target"),
        *("privacy.mechanism", "privacy.trust", "privacy.neighbours"),
        *("privacy.epsilon", "privacy.delta", "privacy.budgets"),
        *("federation.rounds", "federation.participation", "run.seed", "run.device"),
    )
}
"""Config keys that have their own flag; all others are set with ``--set KEY=VALUE``."""

_ALWAYS_TOLERATED = 0.05  # share of the clients; some always drop out of a real round


class Section(BaseModel):
    """A section of the config: no other keys, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OneOf:
    """The type of a setting that is a name in a registry, or one of a few more names.

    Args:
        registry: The registry.
        more: Other names.
        own: Whether it may also be the address of an object, ``package.module:Name``.
    """

    def __init__(self, registry: Registry[Any], *more: str, own: bool = False) -> None:
        self._registry, self._more, self._own = registry, more, own

    @property
    def names(self) -> list[str]:
        """All names that are possible, and how an address is written."""
        return [*self._registry, *self._more, *(["package.module:Class"] if self._own else [])]

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return no_info_plain_validator_function(self._checked)

    def _checked(self, value: Any) -> str:
        if isinstance(value, str):
            # What is gone can still be read, of old runs; whoever uses it is told what to do.
            known = value in self._registry or value in (*self._more, *self._registry.gone)
            if known or (self._own and ":" in value):
                return value
            if self._own:
                self._registry[value]  # says which names there are
        *most, last = (repr(name) for name in self.names)
        every = f"{', '.join(most)} or {last}"
        raise PydanticCustomError("literal_error", "{every}", {"every": every})


def _share_or_number(value: float) -> float:
    """Return a share below 1, or a whole number of clients."""
    if value >= 1 and value != int(value):
        raise PydanticCustomError("clients", "a share below 1, or a whole number of clients")
    return value


_Tolerated = Annotated[float, Field(ge=0, le=10_000_000), AfterValidator(_share_or_number)]


def _traffic(value: Any) -> Any:
    """Return numbers as text with commas, from such text, a list, or a file with one per line.

    A file is read here and now: the settings of a run hold its numbers, so that it can be resumed
    where the file is not.
    """
    if value is None:
        return None
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        if isinstance(value, str) and value.strip("0123456789eE+-., ") and Path(value).is_file():
            content = read_bytes(Path(value), MOST_BYTES_OF_SETTINGS).decode("utf-8-sig")
            parts = [line for line in content.split("\n") if line.strip()]
        numbers = Objective("served", [float(number) for number in parts]).traffic or ()
    except (ConfigError, OSError, TypeError, ValueError) as error:
        raise PydanticCustomError(
            "traffic",
            "numbers of 0 or more with commas, such as 5,5,5,5,8,10,9, or a file with one per "
            "line; not all 0",
        ) from error
    return ",".join(repr(number).removesuffix(".0") for number in numbers)


class DataSection(Section):
    """Which ratings, and how they are divided.

    Attributes:
        dataset: A name from `bgtplanner data list`; ``csv:PATH`` or ``parquet:PATH`` for your own.
        data_dir: Folder with real data sets; then ``$BGTPLANNER_DATA``, then the cache.
        items: The public catalogue: a table of all items, with titles and features if it has them;
            ``auto``: the data set's own; ``none``: the items that occur in the ratings.
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

    @property
    def paths(self) -> dict[str, str]:
        """The paths under which the data are, by key."""
        kind, _, path = self.dataset.partition(":")
        found = {"dataset": path} if kind in ("csv", "parquet") and path else {}
        found |= {} if self.items in ("auto", "none") else {"items": self.items}
        return found | ({"data_dir": self.data_dir} if self.data_dir else {})


class SyntheticSection(Section):
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


class ModelSection(Section):
    """The model; its settings are in the section of its name.

    Attributes:
        name: The model, or the address of your own.
        pseudo_items: The number of items that each client pretends to have rated, as in FedGNN;
            ``auto``: the paper's number for the data set.
        fixed_pseudo_items: Whether they are the same in every round; if they change, the items
            that stay are the real ones.
        expansions: How often users get others who rated the same items as neighbours (fedgnn,
            preset paper).
        max_neighbours: The most neighbours that a user gets.
        options: Settings of a model that does not come with the package.
    """

    name: Annotated[str, OneOf(MODELS, own=True)] = "factorization"
    pseudo_items: Annotated[int, Field(ge=0, le=1_000_000)] | Literal["auto"] = 0
    fixed_pseudo_items: bool = False
    expansions: int = Field(default=0, ge=0, le=1_000_000)
    max_neighbours: int = Field(default=100, ge=1, le=10_000)
    options: dict[str, Any] = Field(default_factory=dict)


class FederationSection(Section):
    """How long the run is, and who takes part.

    Attributes:
        rounds: The most rounds of training, T.
        participation: Share of the clients that are invited to a round, drawn anew each time.
        dropout: Share of the clients that pay and then fail to answer.
        stragglers: Share of the clients that pay and answer too late; mostly the same ones.
        most_dropouts: The most clients that may fail to answer in a round, in which each adds a
            share of the noise (trust ``secagg``): a share of those invited, or, from 1 on, a
            number. If more do, the charge is spent, and the sum is not opened. ``auto``: 5 %, and
            as many as `dropout` and `stragglers` say.
        most_colluders: The most clients that may tell others what they added to the sum, given in
            the same way. Every client knows its own share, so that 1 is the least that protects
            clients from one another. The noise's variance is larger by a factor of up to
            n / (n - most_dropouts - most_colluders).
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


class PlanningSection(Section):
    """The policy, which decides what a round may cost, and what it may look at.

    Attributes:
        policy: The policy, or the address of your own.
        objective: What is planned for, and compared by. ``served``: the mean error over the
            rounds, since people are served in each of them. ``last``: that of the last round.
        traffic: How many people are served in each round, in any unit: numbers with commas, such
            as ``5,5,5,5,8,10,9``, which are repeated over the rounds; or a file with one number
            per line. By default all rounds count the same.
        constants: For `bgt`: the planner's ``own`` constants; the paper's with the formulas
            ``repaired``; or every formula as printed in the ``paper``, with all errors.
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
        target: The RMSE (0 to 1) at which a run stops spending. It ends there, unless people are
            still served afterwards: with objective ``served`` and ``federation.after_budget =
            rest``. Unless it is read from the test ratings, clients keep a validation set.
        validation_share: Share of its ratings in a client's validation set, if there is one.
        validation_charge: Share of a round's charge that pays for validation.
        options: The policy's own options, such as ``planning.options.shape=saturating``.
    """

    policy: Annotated[str, OneOf(POLICIES, own=True)] = "bgt"
    objective: Kind = "served"
    traffic: Annotated[str | None, BeforeValidator(_traffic)] = None
    constants: Annotated[str, OneOf(CONSTANTS)] = "own"
    levels: int | None = Field(default=None, ge=1, le=1000)
    min_rounds: int | None = Field(default=None, ge=1)
    context: Annotated[str, OneOf(CONTEXTS)] = "released"
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


class PrivacySection(Section):
    """How uploads are made private.

    Attributes:
        mechanism: What makes uploads private; ``none``: nothing; ``auto``: what adds least noise.
        trust: With ``secagg`` the server sees only the sum, noised once; with ``local`` no one is
            trusted.
        neighbours: What the epsilon is about. ``replace-special``: one client's uploads against
            nothing in their place, with ``secagg`` only. ``replace-one``: one client's data
            against any other, with twice the noise. ``auto``: by the trust.
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

    mechanism: Annotated[str, OneOf(MECHANISMS, "none")] = "gaussian"
    trust: Literal["local", "secagg"] = "secagg"
    neighbours: Literal["auto", "replace-special", "replace-one"] = "auto"
    unit: Annotated[str, OneOf(UNITS)] = "client"
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


class DeploymentSection(Section):
    """A federation on real machines: which items, how many clients, how long to wait for them.

    The scale of the ratings is `data.scale`.

    Attributes:
        items: File of public item names, one per line; or a table (CSV, Parquet) of items with
            titles and features, which every client gets once.
        clients: The most clients that can ever take part; as many as in the roster, if any.
        roster: File with the keys and the names of all clients, for `privacy.trust = secagg`, made
            by `bgtplanner deploy roster`; relative to the file of these settings.
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


class RunSection(Section):
    """How the run itself is carried out.

    Attributes:
        seed: Seeds the split and every random draw.
        checkpoint_every: The number of rounds between two checkpoints.
        device: The kind of device to compute on.
        examples: How many users' lists the report of a simulated run shows; 0 for none. By
            default 3 for data sets that everybody can get, and none for your own.
    """

    seed: int = Field(default=0, ge=0, lt=2**31)
    checkpoint_every: int = Field(default=10, ge=1)
    device: Literal["auto", "cpu", "gpu"] = "auto"
    examples: int | None = Field(default=None, ge=0, le=20)


SECTIONS: dict[str, type[Section]] = {
    "data": DataSection,
    "synthetic": SyntheticSection,
    "model": ModelSection,
    "federation": FederationSection,
    "planning": PlanningSection,
    "privacy": PrivacySection,
    "deployment": DeploymentSection,
    "run": RunSection,
}
"""The sections but those of the models."""


def packaged(name: str) -> dict[str, Any]:
    """Return the settings of a preset, or of one of its variants, by section."""
    file = resources.files("bgtplanner.runs") / "presets" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


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
