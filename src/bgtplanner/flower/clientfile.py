"""A client's settings: where its ratings and its state are, and what it agrees to.

There are two files, so that one person can run the machine and another be responsible for privacy:
``client.toml`` says where the files are, ``policy.toml`` what the client agrees to. Both are on
the client, and nothing that a server sends can change them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bgtplanner.arguments import expected, read_toml
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.tables import Labels, Table, TableFormat, read_table
from bgtplanner.errors import ConfigError, DataError, quoted
from bgtplanner.federation.aggregation.client import Policy
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.messages import unless
from bgtplanner.privacy.accountants import accountant_named, both_readings
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.compatibility import Choice, check, neighbours_of
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.witness import Witness
from bgtplanner.published.model import Model, load_model
from bgtplanner.text import is_sha256


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SumPolicy(_File):
    """What a client insists on under secure aggregation, beside its :class:`Policy`.

    The roster is a file with the names and keys of all clients, relative to the policy file.
    """

    roster: Path
    smallest_group: int = Field(ge=2)
    colluders: int = Field(default=1, ge=0)

    @property
    def insists(self) -> Policy:
        """The same, as the protocol has it."""
        return Policy(smallest_group=self.smallest_group, colluders=self.colluders)


class ClientPolicy(_File):
    """What a client agrees to, whatever a server asks for.

    The budget (`epsilon`, `delta`) is for all runs there will ever be; `rule` is the accountant of
    the ledger, and a server that uses another one is refused.

    Attributes:
        neighbours: The neighbouring relation that the budget is a promise about, and that the
            client scales its noise for. Without `secagg` it is ``replace-one``, one client's data
            against any other: the server sees each upload, and local privacy means no less.
        smallest_charge: Smallest charge of one round, in the accountant's currency; it bounds the
            total number of answers.
        smallest_noise_multiplier: Smallest ratio of the noise scale to the sensitivity, which
            is the clip, or twice the clip for ``replace-one``.
        models: Names of the models that may be computed, or ``package.module:Class`` for one that
            is installed here; no other code is imported, whatever a server names.
        settings: Settings of models, by name; a model that is not listed must have its defaults.
        catalogues: SHA-256 of every allowed catalogue: items, titles, features and scale; see
            :attr:`~bgtplanner.flower.messages.SentCatalogue.digest`.
        secagg: For a client that adds to sums only, under secure aggregation: with whom. Others
            noise each upload on their own.
    """

    epsilon: float
    delta: float
    rule: str = "gaussian/gdp"
    neighbours: Neighbours = "replace-one"
    largest_charge: float = Field(gt=0)
    smallest_charge: float = Field(gt=0)
    smallest_noise_multiplier: float = Field(gt=0)
    smallest_clip: float = Field(default=1e-3, gt=0)
    largest_clip: float = Field(default=10.0, gt=0)
    models: tuple[str, ...] = ("biases",)
    settings: dict[str, dict[str, bool | int | float | str]] = Field(default={})
    catalogues: tuple[str, ...] = Field(min_length=1)
    scale: tuple[float, float]
    most_items: int = Field(default=100_000, ge=1)
    most_features: int = Field(default=1024, ge=0)
    requests_per_hour: float = Field(default=60.0, gt=0)
    answers_kept: int = Field(default=16, ge=1, le=10_000)
    secagg: SumPolicy | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        """Refuse numbers that do not fit together, and accountants without a proof."""
        try:
            rule = accountant_named(self.rule)
        except ConfigError as error:
            raise ConfigError(str(error).replace("accounting", "rule", 1)) from error
        ConfigError.unless(rule.sound, "rule", self.rule, "a sound accountant, like gaussian/gdp")
        neighbours_of(self.trust, self.neighbours)
        check(Choice(rule.mechanism, self.trust, deployed=True, neighbours=self.neighbours))
        if self.secagg is not None:
            self.secagg.insists  # noqa: B018 - refuses numbers that do not fit together
        rule.limit_ticks(Budget(self.epsilon, self.delta))  # says what a budget must be
        (low, high), least, most = self.scale, self.smallest_charge, self.largest_charge
        expected = f"at most largest_charge = {most:g}"
        ConfigError.unless(least <= most, "smallest_charge", least, expected)
        ConfigError.unless(low < high, "scale", [low, high], "the lower rating first")
        for text in self.catalogues:
            expected = "SHA-256 as 64 hexadecimal digits"
            ConfigError.unless(is_sha256(text), "catalogues", text, expected)
        return self

    @property
    def trust(self) -> Literal["local", "secagg"]:
        """Whom this client trusts: no one, or sums of enough others."""
        return "local" if self.secagg is None else "secagg"

    @property
    def budgets(self) -> Budgets:
        """The budget of the client's ledger."""
        return Budgets.same(Budget(self.epsilon, self.delta), 1)

    @property
    def promise(self) -> dict[str, Any]:
        """What this client is promised, whatever server asks: its ledger enforces it."""
        rule, budget = accountant_named(self.rule), Budget(self.epsilon, self.delta)
        other = rule.other_promise(budget, self.neighbours)
        read = both_readings(self.epsilon, self.neighbours, other)
        return {
            "private": True, "epsilon": self.epsilon, "delta": self.delta, "trust": self.trust,
            "neighbours": self.neighbours, "epsilon_other_reading": other, "accounting": rule.name,
            "sentences": [f"All runs together, by this client's policy: {read}."],
        }  # fmt: skip

    def check(self, rule: str, charge: float, clip: float) -> None:
        """Refuse a plan that this client does not agree to; the reason is for its own log only."""
        unless(rule == self.rule, "another rule than the ledger's")
        unless(charge <= self.largest_charge, "a charge above largest_charge")
        unless(charge >= self.smallest_charge, "a charge below smallest_charge")
        multiplier = float(accountant_named(rule).noise_multiplier(charge))
        fits = multiplier >= self.smallest_noise_multiplier
        unless(fits, "less noise than smallest_noise_multiplier")
        fits = self.smallest_clip <= clip <= self.largest_clip
        unless(fits, "a clip outside smallest_clip and largest_clip")


class ClientFile(_File):
    """Where a client's files are. Paths are relative to the folder of the client file.

    Attributes:
        ratings: Table of this client's ratings.
        state: Folder of its ledger, the newest model file and the newest answers.
        policy: File that says what the client agrees to.
        witness: A file on another disk or host that records every payment. It detects a ledger
            that was replaced by a backup even if the whole state folder was; optional.
    """

    ratings: Path
    state: Path = Path("state")
    policy: Path = Path("policy.toml")
    witness: Path | None = None

    @property
    def ledger(self) -> Path:
        """The client's only ledger, for all runs there will ever be."""
        return self.state / "ledger.sqlite"

    @property
    def model(self) -> Path:
        """The newest model file: what a run published, or what it had released before a round."""
        return self.state / "public.model"

    @property
    def identity(self) -> Path:
        """The client's identity key, for secure aggregation."""
        return self.state / "identity"

    def times(self) -> dict[int, str]:
        """Return when payments were made, as far as it was noted, by the rows of the ledger."""
        noted = Witness(self.state / "times")
        return {head.number: time for time, head in noted.entries()} if noted.path.exists() else {}

    def roster(self, policy: ClientPolicy) -> Roster:
        """Return the clients that this one adds up with."""
        if policy.secagg is None:
            raise ConfigError(f"{self.policy}: secagg is missing; expected a roster")
        return Roster.read(self.policy.parent / policy.secagg.roster)

    def agreed(self) -> ClientPolicy:
        """Return what the client agrees to."""
        return _load(self.policy, ClientPolicy)

    def table(self) -> Table:
        """Return the client's ratings as they are in the file now."""
        table = read_table(self.ratings, TableFormat())
        if table.rating is None:
            lacks = "has no rating column; give one, which is 1 in every row if rows are clicks"
            raise DataError(lacks, path=self.ratings)
        return table

    def last_model(self) -> Model:
        """Return the newest model, of which lists are made."""
        if not self.model.exists():
            why = "this client has not taken part in a round, or the learner publishes none"
            raise ConfigError(f"{self.state}: no model has come yet; {why}")
        return load_model(self.model)

    def histories(self, model: Model) -> dict[str, NDArray[Any]]:
        """Return the present ratings within a model's scale as a frame."""
        table = self.table()
        rating = np.asarray(table.rating)
        fits = (rating >= model.low) & (rating <= model.high)
        columns = {"user": table.user.rows(), "item": table.item.rows(), "rating": rating}
        return {name: column[fits] for name, column in columns.items()}

    def ratings_over(
        self, catalogue: tuple[str, ...], low: float, high: float
    ) -> tuple[Ratings, int]:
        """Return the ratings of a catalogue, and the number of others, which never leaves here."""
        table = self.table()
        place = {name: index for index, name in enumerate(catalogue)}
        names = table.item.names.tolist()
        index = np.array([place.get(str(name), -1) for name in names])[table.item.index]
        rating = np.asarray(table.rating)
        known = (index >= 0) & (rating >= low) & (rating <= high)
        users, items = table.user.names, np.arange(len(catalogue))
        known_only = replace(table.take(known), item=Labels(items, index[known].astype(np.int32)))
        ratings = Ratings.from_table(
            known_only, users=users, items=items, scale=(low, high), name="own"
        )
        # All users in this file are one client: one ledger, one clip, one charge.
        one, labels = np.zeros(len(users), dtype=np.int32), np.array(catalogue)
        own = replace(ratings, client_of_user=one, item_labels=labels)
        return own, int((~known).sum())


def load_client(path: Path | str) -> ClientFile:
    """Read a client file, with its paths made absolute; errors name the file and the key."""
    file = Path(path).absolute()
    found = _load(file, ClientFile)
    return found.model_copy(
        update={name: file.parent / path for name, path in found if path is not None}
    )


_Kind = TypeVar("_Kind", bound=_File)


def _load(path: Path, kind: type[_Kind]) -> _Kind:
    """Read one of the two files; an error names the file, the key and what was expected."""
    tree = read_toml(path, "'bgtplanner deploy init FOLDER' writes an example")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        said = {
            "missing": f"{key}: expected a value; it has no default",
            "extra_forbidden": f"{key}: there is no such key; delete it",
            "value_error": str(problem.get("ctx", {}).get("error")),  # ours: it names the key
        }.get(problem["type"], f"{key} = {quoted(problem['input'])}: {expected(problem)}")
        raise ConfigError(f"{path}: {said}") from error
