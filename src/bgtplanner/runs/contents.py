"""The contents of the files of a run folder: every key that is read, and its type.

A run folder may have been edited, assembled from two, or written by another version. It is checked
once, when it is read (:mod:`bgtplanner.runs.folder`), so that the code that uses it need not check
again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from bgtplanner.errors import RunFolderError, quoted
from bgtplanner.federation.result import RoundResult
from bgtplanner.kinds import (
    AtLeast0,
    Count,
    Delta,
    Figure,
    Many,
    Positive,
    RoundNumber,
    Share,
    Some,
    Word,
    in_words,
)
from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES

__all__ = [
    "CLIENTS",
    "EXAMPLES",
    "NOTES",
    "OF_EVERY_RUN",
    "Contents",
    "check_ticks",
    "needed_of_rounds",
    "needed_of_summary",
    "of_rounds",
    "of_summary",
]


class Contents:
    """The type of each key of a file; keys that are never read may hold anything."""

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self.kinds = kinds

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        made: Any = TypedDict  # by a call, because the keys are not known in advance
        return TypeAdapter(made("Keys", dict(self.kinds), total=False))

    def check(self, where: object, found: Mapping[str, Any], needed: Collection[str] = ()) -> None:
        """Raise RunFolderError if a value has the wrong type, or a needed key is missing."""
        try:
            self._adapter.validate_python(found, strict=True)
        except ValidationError as error:
            name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
            raise RunFolderError(
                f"{where}: {name} = {_shown(found[name])}: expected {in_words(self.kinds[name])}; "
                "it was edited, or written by another version: bring the old file back, or run it "
                "again"
            ) from error
        if missing := sorted(name for name in needed if found.get(name) is None):
            rest = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
            raise RunFolderError(f"{where}: has no {', '.join(missing[:6])}{rest}; run it again")


def _shown(value: Any) -> str:
    """A value for a message; a nested one is only described."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    return quoted(value)


class _Class(TypedDict):
    epsilon: Positive
    clients: Count
    epsilon_spent_max: AtLeast0
    rmse_final: AtLeast0 | None


_Classes = Annotated[
    list[_Class],
    Field(
        max_length=1_000_000,
        description="a list, each entry an object with epsilon, clients, epsilon_spent_max and "
        "rmse_final",
    ),
]


class _Gain(TypedDict):
    name: Word
    clients: Some
    rmse: AtLeast0
    rmse_alone: AtLeast0
    better: Share
    gain: Figure | None
    low: Figure | None
    high: Figure | None


class _Gains(TypedDict, total=False):
    better: Share | None
    ratings: Annotated[list[_Gain], Many]
    budget: Annotated[list[_Gain], Many]


class _Item(TypedDict):
    title: Word
    predicted: Figure | None
    reason: Word | None


class _Example(TypedDict):
    user: Word
    items: Annotated[list[_Item], Many]


_Words = Annotated[list[Word], Many]
_Scale = Annotated[
    list[Figure], Field(min_length=2, max_length=2, description="a list of two numbers")
]
_WHEN = ("final", "best", "served", "final_raw", *REFERENCES)
_EVER = ("final", "best", "constant", "user_mean", "client_alone")
OF_EVERY_RUN = tuple(f"{name}_{when}" for name in ("rmse", "f1") for when in _EVER)
_OF_EVERY_ROUND = ("rmse", "f1", "mae", "precision", "recall")
"""Scores that every run has, whatever its version; later ones may be missing."""

_IDENTITY = ("dataset", "model", "policy", "preset", "mechanism")
_OF_BUDGET = ("trust", "unit", "accounting", "epsilon", "delta", "rounds_paid")
_EPSILONS = ("epsilon_spent_max", "epsilon_client_level", "epsilon_client_level_median")
_SUMMARY: Mapping[str, Any] = {
    "schema": Count,
    **dict.fromkeys(_IDENTITY, Word),
    **dict.fromkeys(("clients", "items"), Some),
    **dict.fromkeys(("users", "ratings"), Some | None),
    **dict.fromkeys(("seed", "rounds_run", "clients_with_last_model"), Count),
    "target": Positive | None,
    "target_reached": bool | None,
    "target_round": RoundNumber | None,
    "budget_left": Share | None,
    "objective": Literal["served", "last"],
    **dict.fromkeys(("seconds_total", "seconds_per_round"), AtLeast0),
    "not_accounted": _Words,
    "scale": _Scale | None,
    "learned": bool,
    "gains": Annotated[_Gains | None, Field(description="an object with the gains of groups")],
    "users_ranked": Count,
    "simulated_noise": bool,
    "class_epsilons": Annotated[list[Positive], Many],
    "classes": _Classes | None,
    "trust": Literal["local", "secagg"] | None,
    "unit": Literal["client", "row"] | None,
    "neighbours": Literal["replace-special", "replace-one"] | None,
    "accounting": Word | None,
    "epsilon": Positive | None,
    "delta": Delta | None,
    **dict.fromkeys((*_EPSILONS, "epsilon_client_level_pure"), AtLeast0 | None),
    "epsilon_other_reading": AtLeast0 | None,
    **dict.fromkeys(("rounds_paid", "rounds_aborted", "uploads_dropped"), Count | None),
    **dict.fromkeys(("most_dropouts", "most_colluders", "noise_surplus"), AtLeast0 | None),
    **dict.fromkeys(("ledger_head", "planner_note"), Word | None),
    **dict.fromkeys(("rmse_served", "rmse_objective", "rmse_arriving"), AtLeast0 | None),
    "rmse_client_alone_served": AtLeast0 | None,
}

NOTES = Contents(
    {
        "version": Word,
        "data": Word,
        "deployed": bool,
        "given": _Words,
        "saved": bool,
        "began_in": _Words,
        "versions": Annotated[dict[str, Word], Field(description="a table of text")],
        "facts": dict[str, Any],
    }
)
"""Contents of the section ``[folder]`` of ``config.toml``, besides its schema."""

CLIENTS = Contents({"run": Word, "clients": _Words})
"""Contents of ``clients.json``."""

_Lists = Annotated[list[_Example], Many, Field(description="a list, each with user and items")]
EXAMPLES = Contents({"note": Word | None, "lists": _Lists})
"""Contents of ``examples.json``."""


def of_summary() -> Contents:
    """Contents of ``summary.json``, and of the facts known before the first round."""
    return _contents(tuple(METRICS))[0]


def of_rounds() -> Contents:
    """Contents of a line of ``rounds.jsonl``."""
    return _contents(tuple(METRICS))[1]


@cache
def _contents(metrics: tuple[str, ...]) -> tuple[Contents, Contents]:
    """The contents of both, with the figures of these metrics."""
    names = [f"{name}_{when}" for name in metrics for when in _WHEN]
    scores = dict.fromkeys([*names, *metrics], Figure | None)
    scores |= dict.fromkeys(OF_EVERY_RUN, AtLeast0 | None)
    rounds = {f"{name}_best_round": RoundNumber | None for name in metrics}
    lines = RoundResult.kinds() | dict.fromkeys(metrics, Figure | None)
    lines |= dict.fromkeys(_OF_EVERY_ROUND, AtLeast0 | None)
    return Contents({**_SUMMARY, **scores, **rounds}), Contents(lines)


def needed_of_summary(private: bool, deployed: bool) -> set[str]:
    """The keys that a summary must have."""
    every = {*_IDENTITY, "clients", "items", "seed", "rounds_run", "not_accounted"}
    every |= {"seconds_total", "seconds_per_round"}
    every |= set() if deployed else {"users", "ratings", *OF_EVERY_RUN}
    return every | ({*_OF_BUDGET, *_EPSILONS} if private else set())


def needed_of_rounds(private: bool, deployed: bool) -> set[str]:
    """The keys that the record of a round must have."""
    every = {"round", "clients", "seconds"}
    every |= set() if deployed else {*_OF_EVERY_ROUND, "loss", "ratings"}
    return every | ({"charge", "dropped"} if private else set())


def check_ticks(where: object, records: Sequence[Mapping[str, Any]], sums: int) -> None:
    """Check that the sums of all rounds have the shape of one ledger, with `sums` rows.

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
