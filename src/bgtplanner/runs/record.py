"""The record of a run: what its files hold, one pydantic model per file.

A run folder may have been edited, assembled from two, or written by another version. Whatever is
read from it goes through one of these models, so that the code that uses it need not check again.
Keys that no model names may hold anything and are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from typing_extensions import TypedDict

from bgtplanner.errors import RunFolderError, quoted
from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.runs.config import expected
from bgtplanner.text import LONGEST_NAME

_LARGEST = 10**15  # no figure of a run is anywhere near, and drawings and sums stay exact enough
_Many = Field(max_length=1_000_000)  # no list has more entries than a run can have rounds
_Figure = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
_AtLeast0 = Annotated[float, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Some = Annotated[int, Field(ge=1, le=_LARGEST)]
_RoundNumber = Annotated[int, Field(ge=0, le=1_000_000)]
_Ticks = Annotated[int, Field(ge=0, le=2**62)]
_Word = Annotated[str, Field(max_length=LONGEST_NAME)]
_Words = Annotated[list[_Word], _Many]


def _check_reasons(why: dict[str, Any]) -> dict[str, Any]:
    """A policy's reasons: a note, and lists of numbers per level, which need not be finite."""
    for name, numbers in why.items():
        if isinstance(numbers, str) != (name == "note"):
            raise ValueError("expected a note as text, and lists of numbers")
        if name != "note" and any(abs(of) > _LARGEST for of in numbers if math.isfinite(of)):
            raise ValueError("expected numbers that are less large")
    if not all(0 <= chance <= 1 for chance in why.get("probability", ())):
        raise ValueError("expected probabilities from 0 to 1")
    return why


def _check_rows(rows: list[list[int]]) -> list[list[int]]:
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ValueError("expected rows of one length")
    return rows


_Number = Annotated[float, Field(allow_inf_nan=True)]
_Why = Annotated[
    dict[_Word, _Word | Annotated[list[_Number], _Many]], AfterValidator(_check_reasons)
]
_Spent = Annotated[list[Annotated[list[_Ticks], _Many]], AfterValidator(_check_rows)]


class _BudgetClass(TypedDict):
    epsilon: _Positive
    clients: _Count
    epsilon_spent_max: _AtLeast0
    rmse_final: _AtLeast0 | None


class _Gain(TypedDict):
    name: _Word
    clients: _Some
    rmse: _AtLeast0
    rmse_alone: _AtLeast0
    better: _Share
    gain: _Figure | None
    low: _Figure | None
    high: _Figure | None


class _Gains(TypedDict, total=False):
    better: _Share | None
    ratings: Annotated[list[_Gain], _Many]
    budget: Annotated[list[_Gain], _Many]


class _Item(TypedDict):
    title: _Word
    predicted: _Figure | None
    reason: _Word | None


class _Example(TypedDict):
    user: _Word
    items: Annotated[list[_Item], _Many]


class Record:
    """One object in a file of a run: the type of each key; a key may be missing.

    Args:
        kinds: The types by key.
        ends: The ends of keys that hold the figure of a metric: ``final`` for ``rmse_final``.
    """

    def __init__(self, kinds: Mapping[str, Any], ends: Iterable[str] = ()) -> None:
        self.kinds, self.ends = dict(kinds), tuple(ends)
        self._model = cache(self._model_with)

    def _model_with(self, metrics: tuple[str, ...]) -> type[BaseModel]:
        """The model with the figures of these metrics, to which a plugin may have added."""
        names = [f"{name}_{end}".removesuffix("_") for name in metrics for end in self.ends]
        kinds: dict[str, Any] = dict.fromkeys(names, _Figure | None)
        if self.ends:
            kinds |= dict.fromkeys((*OF_EVERY_RUN, *_OF_EVERY_ROUND), _AtLeast0 | None)
            kinds |= {f"{name}_best_round": _RoundNumber | None for name in metrics}
        fields: dict[str, Any] = {  # by an alias, since a key may be the name of a method
            f"key_{name}": (kind, Field(default=None, alias=name))
            for name, kind in (kinds | self.kinds).items()
        }
        strict = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
        return create_model("Record", __config__=strict, **fields)

    def check(self, where: object, found: Mapping[str, Any], needed: Collection[str] = ()) -> None:
        """Check an object that was read.

        Args:
            where: The file, and the line if there are several, for errors.
            found: The object.
            needed: Keys that must be there, and not be null.

        Raises:
            RunFolderError: If a value has the wrong type, or a needed key is missing.
        """
        try:
            self._model(tuple(METRICS)).model_validate(found)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name = str(problem["loc"][0])
            value = found.get(name)
            shown = quoted(value) if not isinstance(value, list | dict) else "an object"
            shown = f"a list of {len(value)}" if isinstance(value, list) else shown
            raise RunFolderError(
                f"{where}: {name} = {shown}: {expected(problem)}; it was edited, or written by "
                "another version: bring the old file back, or run it again"
            ) from error
        if missing := sorted(name for name in needed if found.get(name) is None):
            rest = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
            raise RunFolderError(f"{where}: has no {', '.join(missing[:6])}{rest}; run it again")


_EVER = ("final", "best", "constant", "user_mean", "client_alone")
OF_EVERY_RUN = tuple(f"{name}_{when}" for name in ("rmse", "f1") for when in _EVER)
"""Scores that every simulated run has, whatever its version; later ones may be missing."""

_OF_EVERY_ROUND = ("rmse", "f1", "mae", "precision", "recall")

ROUND = Record(
    {
        "round": _RoundNumber,
        **dict.fromkeys(("clients", "paid", "late", "dropped"), _Count),
        **dict.fromkeys(("ratings", "level", "asked", "refused"), _Count | None),
        **dict.fromkeys(("loss", "reward", "rmse_arriving"), _Figure | None),
        **dict.fromkeys(("validation_rmse", "validation_upper"), _Figure | None),
        **dict.fromkeys(("charge", "released_norm", "noise_norm", "surplus"), _AtLeast0 | None),
        **dict.fromkeys(
            ("clip", "noise_multiplier"), _Figure | Annotated[list[_Figure], _Many] | None
        ),
        "charges": Annotated[list[_AtLeast0], _Many] | None,
        "left": Annotated[list[_Share], _Many],
        "seconds": _AtLeast0,
        "why": _Why | None,
        "spent": _Spent | None,
        "split": dict[_Word, _Share] | None,
        "dropped_by_kind": dict[_Word, _Count] | None,
        "aborted": bool | None,
    },
    ends=("",),
)
"""A line of ``rounds.jsonl``; :class:`~bgtplanner.federation.result.RoundResult` says more."""

SUMMARY = Record(
    {
        "schema": _Count,
        **dict.fromkeys(("dataset", "model", "policy", "preset", "mechanism"), _Word),
        **dict.fromkeys(("clients", "items"), _Some),
        **dict.fromkeys(("users", "ratings"), _Some | None),
        **dict.fromkeys(("seed", "rounds_run", "clients_with_last_model", "users_ranked"), _Count),
        **dict.fromkeys(("target", "epsilon"), _Positive | None),
        **dict.fromkeys(("target_reached",), bool | None),
        **dict.fromkeys(("learned", "simulated_noise"), bool),
        "target_round": _RoundNumber | None,
        "budget_left": _Share | None,
        "objective": Literal["served", "last"],
        **dict.fromkeys(("seconds_total", "seconds_per_round"), _AtLeast0),
        "not_accounted": _Words,
        "scale": Annotated[list[_Figure], Field(min_length=2, max_length=2)] | None,
        "gains": _Gains | None,
        "class_epsilons": Annotated[list[_Positive], _Many],
        "classes": Annotated[list[_BudgetClass], _Many] | None,
        "trust": Literal["local", "secagg"] | None,
        "unit": Literal["client", "row"] | None,
        "neighbours": Literal["replace-special", "replace-one"] | None,
        **dict.fromkeys(("accounting", "ledger_head", "planner_note"), _Word | None),
        "delta": Annotated[float, Field(ge=0, lt=1)] | None,
        **dict.fromkeys(("epsilon_spent_max", "epsilon_other_reading"), _AtLeast0 | None),
        **dict.fromkeys(("epsilon_client_level", "epsilon_client_level_pure"), _AtLeast0 | None),
        "epsilon_client_level_median": _AtLeast0 | None,
        **dict.fromkeys(("rounds_paid", "rounds_aborted", "uploads_dropped"), _Count | None),
        **dict.fromkeys(("most_dropouts", "most_colluders", "noise_surplus"), _AtLeast0 | None),
        **dict.fromkeys(("rmse_served", "rmse_objective", "rmse_arriving"), _AtLeast0 | None),
        "rmse_client_alone_served": _AtLeast0 | None,
    },
    ends=("", "final", "best", "served", "final_raw", *REFERENCES),
)
"""The object in ``summary.json``, and what is known of a run before its first round."""

NOTES = Record(
    {
        **dict.fromkeys(("version", "data"), _Word),
        **dict.fromkeys(("deployed", "saved"), bool),
        **dict.fromkeys(("given", "began_in"), _Words),
        "versions": dict[str, _Word],
        "facts": dict[str, Any],
    }
)
"""The section ``[folder]`` of ``config.toml``: about the folder, not settings."""

CLIENTS = Record({"run": _Word, "clients": _Words})
"""The object in ``clients.json``: a federation's name, and hashes of its clients' names."""

EXAMPLES = Record({"note": _Word | None, "lists": Annotated[list[_Example], _Many]})
"""The object in ``examples.json``: the lists of a few users, for the report."""


def needed_of_summary(private: bool, deployed: bool) -> set[str]:
    """Return the keys that the summary of a finished run must have."""
    every = {"dataset", "model", "policy", "preset", "mechanism", "seed", "clients", "items"}
    every |= {"rounds_run", "not_accounted", "seconds_total", "seconds_per_round"}
    every |= set() if deployed else {"users", "ratings", *OF_EVERY_RUN}
    spent = {f"epsilon_{name}" for name in ("spent_max", "client_level", "client_level_median")}
    paid = {"trust", "unit", "accounting", "epsilon", "delta", "rounds_paid"} | spent
    return every | (paid if private else set())


def needed_of_rounds(private: bool, deployed: bool) -> set[str]:
    """Return the keys that the record of a round must have."""
    every = {"round", "clients", "seconds"}
    every |= set() if deployed else {*_OF_EVERY_ROUND, "loss", "ratings"}
    return every | ({"charge", "dropped"} if private else set())


def check_spent(where: object, records: Sequence[Mapping[str, Any]], sums: int) -> None:
    """Check that what all rounds spent has the shape of one ledger, with `sums` rows.

    Raises:
        RunFolderError: If one does not; names the file and the line.
    """
    shapes = [
        (number, (len(record["spent"]), len(record["spent"][0])))
        for number, record in enumerate(records, start=1)
        if record.get("spent") is not None
    ]
    for number, shape in shapes:
        if shape != (sums, shapes[0][1][1]):
            raise RunFolderError(
                f"{where}, line {number}: spent does not fit the accountant, or the other lines; "
                "the file was edited: bring the old one back, or run it again"
            )
