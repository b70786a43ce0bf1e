"""The record of a run: what its files hold, one model per file.

A run folder may have been edited, assembled from two, or written by another version. Whatever is
read from it goes through one of these models, so that the code that uses it need not check again.
Keys that no model names may hold anything and are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
)

from bgtplanner.errors import RunFolderError, quoted
from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.runs.config import expected
from bgtplanner.text import LONGEST_NAME

__all__ = [
    "OF_EVERY_RUN",
    "Clients",
    "Examples",
    "Notes",
    "Record",
    "Round",
    "Summary",
    "check_spent",
]

_LARGEST = 10**15  # no figure of a run is anywhere near, and drawings and sums stay exact enough


def _is_small(value: float) -> float:
    if math.isfinite(value) and abs(value) > _LARGEST:
        raise ValueError("expected a number that is less large")
    return value


_Many = Field(max_length=1_000_000)  # no list has more entries than a run can have rounds
_Figure = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
_AtLeast0 = Annotated[float, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Some = Annotated[int, Field(ge=1, le=_LARGEST)]
_RoundNumber = Annotated[int, Field(ge=0, le=1_000_000)]
_Ticks = Annotated[int, Field(ge=0, le=2**62)]
_Word = Annotated[str, StringConstraints(max_length=LONGEST_NAME)]
_Words = Annotated[list[_Word], _Many]
# A policy may rule a level out, so that a number among its reasons need not be finite.
_Reason = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_is_small)]


def _reasons(why: dict[str, Any]) -> dict[str, Any]:
    """Check a note and lists of numbers per level; probabilities are from 0 to 1."""
    if any(isinstance(of, str) != (name == "note") for name, of in why.items()):
        raise ValueError("expected a note as text, and lists of numbers")
    if not all(0 <= chance <= 1 for chance in why.get("probability", ())):
        raise ValueError("expected probabilities from 0 to 1")
    return why


def _even(rows: list[list[int]]) -> list[list[int]]:
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ValueError("expected rows of one length")
    return rows


class Record(BaseModel):
    """One object in a file of a run; a key that is not there is None."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    when: ClassVar[tuple[str, ...]] = ()
    """The ends of keys that hold the figure of a metric: ``final`` for ``rmse_final``."""

    @classmethod
    def check(cls, where: object, found: Mapping[str, Any], needed: Collection[str] = ()) -> Self:
        """Return the record that a mapping holds.

        Args:
            where: The file, and the line if there are several, for errors.
            found: What was read, or is to be written.
            needed: Keys that must be there, and not be null.

        Raises:
            RunFolderError: If a value has the wrong type, or a needed key is missing.
        """
        try:
            record: Self = _with_metrics(cls, tuple(METRICS)).model_validate(found)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name = str(problem["loc"][0])
            raise RunFolderError(
                f"{where}: {name} = {_shown(found.get(name))}: {expected(problem)}; it was "
                "edited, or written by another version: bring the old file back, or run it again"
            ) from error
        if missing := sorted(name for name in needed if found.get(name) is None):
            rest = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
            raise RunFolderError(f"{where}: has no {', '.join(missing[:6])}{rest}; run it again")
        return record

    def figure(self, key: str) -> float | None:
        """Return the figure under a key that a metric names, such as ``ndcg_at_10_served``."""
        value = getattr(self, key, None)
        return None if value is None else float(value)


@cache
def _with_metrics(kind: type[Record], metrics: tuple[str, ...]) -> Any:
    """Return the model with the figures of these metrics, to which a plugin may have added."""
    figures: dict[str, Any] = {}
    for end in kind.when:
        figures |= {f"{name}_{end}".removesuffix("_"): _Figure | None for name in metrics}
    figures |= {f"{name}_best_round": _RoundNumber | None for name in metrics if kind.when}
    figures |= dict.fromkeys((*OF_EVERY_RUN, *_OF_EVERY_ROUND), _AtLeast0 | None)
    fields: dict[str, Any] = {name: (of, None) for name, of in figures.items()}
    return create_model(kind.__name__, __base__=kind, **fields) if kind.when else kind


def _shown(value: Any) -> str:
    """Return a value for a message; a nested one is only described."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    return quoted(value)


_EVER = ("final", "best", "constant", "user_mean", "client_alone")
OF_EVERY_RUN = tuple(f"{name}_{when}" for name in ("rmse", "f1") for when in _EVER)
"""Scores that every simulated run has, whatever its version; later ones may be missing."""

_OF_EVERY_ROUND = ("rmse", "f1", "mae", "precision", "recall")


class Round(Record):
    """A line of ``rounds.jsonl``, as :meth:`RoundResult.as_json` makes it: see there."""

    when: ClassVar[tuple[str, ...]] = ("",)

    round: _RoundNumber | None = None
    loss: _Figure | None = None
    clients: _Count = 0
    ratings: _Count | None = None
    rmse_arriving: _Figure | None = None
    charge: _AtLeast0 | None = None
    charges: Annotated[list[_AtLeast0], _Many] | None = None
    paid: _Count = 0
    late: _Count = 0
    dropped: _Count = 0
    level: _Count | None = None
    clip: _Figure | Annotated[list[_Figure], _Many] | None = None
    noise_multiplier: _Figure | Annotated[list[_Figure], _Many] | None = None
    released_norm: _AtLeast0 | None = None
    noise_norm: _AtLeast0 | None = None
    reward: _Figure | None = None
    left: Annotated[list[_Share], _Many] = []
    validation_rmse: _Figure | None = None
    validation_upper: _Figure | None = None
    why: (
        Annotated[dict[_Word, _Word | Annotated[list[_Reason], _Many]], AfterValidator(_reasons)]
        | None
    ) = None
    spent: Annotated[list[Annotated[list[_Ticks], _Many]], AfterValidator(_even)] | None = None
    split: dict[_Word, _Share] | None = None
    asked: _Count | None = None
    refused: _Count | None = None
    dropped_by_kind: dict[_Word, _Count] | None = None
    aborted: bool | None = None
    surplus: _AtLeast0 | None = None
    seconds: _AtLeast0 = 0.0

    @staticmethod
    def needed(private: bool, deployed: bool) -> set[str]:
        """Return the keys that the record of a round must have."""
        every = {"round", "clients", "seconds"}
        every |= set() if deployed else {*_OF_EVERY_ROUND, "loss", "ratings"}
        return every | ({"charge", "dropped"} if private else set())


class _BudgetClass(BaseModel):
    epsilon: _Positive
    clients: _Count
    epsilon_spent_max: _AtLeast0
    rmse_final: _AtLeast0 | None


class _Gain(BaseModel):
    name: _Word
    clients: _Some
    rmse: _AtLeast0
    rmse_alone: _AtLeast0
    better: _Share
    gain: _Figure | None
    low: _Figure | None
    high: _Figure | None


class _Gains(BaseModel):
    better: _Share | None = None
    ratings: Annotated[list[_Gain], _Many] = []
    budget: Annotated[list[_Gain], _Many] = []


class Summary(Record):
    """The object in ``summary.json``, and what is known of a run before its first round.

    Beside the fields, it has the figures of every metric: ``rmse_final``, ``f1_user_mean``,
    ``ndcg_at_10_served`` and so on; see :meth:`Record.figure`.
    """

    when: ClassVar[tuple[str, ...]] = ("", "final", "best", "served", "final_raw", *REFERENCES)

    layout: _Count | None = Field(default=None, alias="schema")
    dataset: _Word | None = None
    model: _Word | None = None
    policy: _Word | None = None
    preset: _Word | None = None
    mechanism: _Word | None = None
    clients: _Some | None = None
    users: _Some | None = None
    items: _Some | None = None
    ratings: _Some | None = None
    seed: _Count | None = None
    scale: Annotated[list[_Figure], Field(min_length=2, max_length=2)] | None = None
    not_accounted: _Words = []
    simulated_noise: bool = False
    class_epsilons: Annotated[list[_Positive], _Many] = []
    trust: Literal["local", "secagg"] | None = None
    unit: Literal["client", "row"] | None = None
    neighbours: Literal["replace-special", "replace-one"] | None = None
    accounting: _Word | None = None
    epsilon: _Positive | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    epsilon_other_reading: _AtLeast0 | None = None
    epsilon_spent_max: _AtLeast0 | None = None
    epsilon_client_level: _AtLeast0 | None = None
    epsilon_client_level_median: _AtLeast0 | None = None
    epsilon_client_level_pure: _AtLeast0 | None = None
    budget_left: _Share | None = None
    classes: Annotated[list[_BudgetClass], _Many] | None = None
    most_dropouts: _AtLeast0 | None = None
    most_colluders: _AtLeast0 | None = None
    noise_surplus: _AtLeast0 | None = None
    rounds_run: _Count | None = None
    rounds_paid: _Count | None = None
    rounds_aborted: _Count | None = None
    uploads_dropped: _Count | None = None
    clients_with_last_model: _Count | None = None
    target: _Positive | None = None
    target_reached: bool | None = None
    target_round: _RoundNumber | None = None
    objective: Literal["served", "last"] | None = None
    rmse_served: _AtLeast0 | None = None
    rmse_objective: _AtLeast0 | None = None
    rmse_arriving: _AtLeast0 | None = None
    rmse_client_alone_served: _AtLeast0 | None = None
    learned: bool | None = None
    gains: _Gains | None = None
    users_ranked: _Count | None = None
    seconds_total: _AtLeast0 | None = None
    seconds_per_round: _AtLeast0 | None = None
    ledger_head: _Word | None = None
    planner_note: _Word | None = None

    @staticmethod
    def needed(private: bool, deployed: bool) -> set[str]:
        """Return the keys that the summary of a finished run must have."""
        every = {"dataset", "model", "policy", "preset", "mechanism", "seed"}
        every |= {"clients", "items", "rounds_run", "not_accounted"}
        every |= {"seconds_total", "seconds_per_round"}
        every |= set() if deployed else {"users", "ratings", *OF_EVERY_RUN}
        if not private:
            return every
        every |= {"trust", "unit", "accounting", "epsilon", "delta", "rounds_paid"}
        return every | {
            "epsilon_spent_max",
            "epsilon_client_level",
            "epsilon_client_level_median",
        }


class Notes(Record):
    """The section ``[folder]`` of ``config.toml``: about the folder, not settings."""

    version: _Word | None = None
    data: _Word | None = None
    deployed: bool = False
    given: _Words = []
    saved: bool = False
    began_in: _Words = []
    versions: dict[str, _Word] = {}
    facts: dict[str, Any] = {}


class Clients(Record):
    """The object in ``clients.json``: a federation's name, and hashes of its clients' names."""

    run: _Word
    clients: _Words


class _Item(BaseModel):
    title: _Word
    predicted: _Figure | None
    reason: _Word | None


class _Example(BaseModel):
    user: _Word
    items: Annotated[list[_Item], _Many]


class Examples(Record):
    """The object in ``examples.json``: the lists of a few users, for the report."""

    note: _Word | None = None
    lists: Annotated[list[_Example], _Many]


def check_spent(where: object, records: Sequence[Mapping[str, Any]], sums: int) -> None:
    """Check that what all rounds spent has the shape of one ledger, with `sums` rows.

    Raises:
        RunFolderError: If one does not; names the file and the line.
    """
    classes: int | None = None
    for number, record in enumerate(records, start=1):
        if (rows := record.get("spent")) is None:
            continue
        classes = len(rows[0]) if classes is None else classes
        if (len(rows), len(rows[0])) != (sums, classes):
            raise RunFolderError(
                f"{where}, line {number}: spent does not fit the accountant, or the other lines; "
                "the file was edited: bring the old one back, or run it again"
            )
