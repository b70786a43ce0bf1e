"""The record of a run: what its files hold, one pydantic model per file.

A run folder may have been edited, assembled from two, or written by another version. Whatever is
read from it goes through one of these models, so that the code that uses it need not check again.
Keys that no model names may hold anything and are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from typing_extensions import TypedDict

from bgtplanner.errors import RunFolderError, quoted
from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.runs.config import Config, expected
from bgtplanner.text import LONGEST_NAME

SCHEMA = 1
"""Version of the layout of the folder. Never raise it without a migration."""

_LARGEST = 10**15  # no figure of a run is anywhere near, and drawings and sums stay exact enough
_Many = Field(max_length=1_000_000)  # no list has more entries than a run can have rounds
_Figure = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
_AtLeast0 = Annotated[float, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Some = Annotated[int, Field(ge=1, le=_LARGEST)]
_Index = Annotated[int, Field(ge=0, le=1_000_000)]  # of a round
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


_Numbers = Annotated[list[Annotated[float, Field(allow_inf_nan=True)]], _Many]
_Why = Annotated[dict[_Word, _Word | _Numbers], AfterValidator(_check_reasons)]
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
        kinds: Types, each with its keys.
        ends: The ends of keys that hold the figure of a metric: ``final`` for ``rmse_final``.
    """

    def __init__(self, *kinds: tuple[Any, str], ends: tuple[str, ...] = ()) -> None:
        self._kinds = {name: kind for kind, names in kinds for name in names.split()}
        self._ends = ends
        self._model = cache(self._model_with)

    def _model_with(self, metrics: tuple[str, ...]) -> type[BaseModel]:
        """The model with the figures of these metrics, to which a plugin may have added."""
        names = [f"{name}_{end}".removesuffix("_") for name in metrics for end in self._ends]
        kinds: dict[str, Any] = dict.fromkeys(names, _Figure | None)
        if self._ends:
            kinds |= dict.fromkeys((*OF_EVERY_RUN, *_OF_EVERY_ROUND), _AtLeast0 | None)
            kinds |= {f"{name}_best_round": _Index | None for name in metrics}
        fields: dict[str, Any] = {  # by an alias, since a key may be the name of a method
            f"key_{name}": (kind, Field(default=None, alias=name))
            for name, kind in (kinds | self._kinds).items()
        }
        strict = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
        return create_model("Record", __config__=strict, **fields)

    def check(self, where: object, found: Mapping[str, Any], needed: Collection[str] = ()) -> None:
        """Check an object that was read, and that it has the needed keys, which are not null.

        Raises:
            RunFolderError: Names the place, the key and what was expected.
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
    (_Index, "round"),
    (_Count, "clients paid late dropped"),
    (_Count | None, "ratings level asked refused"),
    (_Figure | None, "loss reward rmse_arriving validation_rmse validation_upper"),
    (_AtLeast0 | None, "charge released_norm noise_norm surplus"),
    (_Figure | Annotated[list[_Figure], _Many] | None, "clip noise_multiplier"),
    (Annotated[list[_AtLeast0], _Many] | None, "charges"),
    (Annotated[list[_Share], _Many], "left"),
    (_AtLeast0, "seconds"),
    (_Why | None, "why"),
    (_Spent | None, "spent"),
    (dict[_Word, _Share] | None, "split"),
    (dict[_Word, _Count] | None, "dropped_by_kind"),
    (bool | None, "aborted"),
    ends=("",),
)
"""A line of ``rounds.jsonl``; :class:`~bgtplanner.federation.result.RoundResult` says more."""

SUMMARY = Record(
    (_Count, "schema seed rounds_run clients_with_last_model users_ranked"),
    (_Word, "dataset model policy preset mechanism"),
    (_Some, "clients items"),
    (_Some | None, "users ratings"),
    (_Positive | None, "target epsilon"),
    (bool | None, "target_reached"),
    (bool, "learned simulated_noise"),
    (_Index | None, "target_round"),
    (_Share | None, "budget_left"),
    (Literal["served", "last"], "objective"),
    (_AtLeast0, "seconds_total seconds_per_round"),
    (_Words, "not_accounted"),
    (Annotated[list[_Figure], Field(min_length=2, max_length=2)] | None, "scale"),
    (_Gains | None, "gains"),
    (Annotated[list[_Positive], _Many], "class_epsilons"),
    (Annotated[list[_BudgetClass], _Many] | None, "classes"),
    (Literal["local", "secagg"] | None, "trust"),
    (Literal["client", "row"] | None, "unit"),
    (Literal["replace-special", "replace-one"] | None, "neighbours"),
    (_Word | None, "accounting ledger_head planner_note"),
    (Annotated[float, Field(ge=0, lt=1)] | None, "delta"),
    (_AtLeast0 | None, "epsilon_spent_max epsilon_other_reading epsilon_client_level"),
    (_AtLeast0 | None, "epsilon_client_level_pure epsilon_client_level_median"),
    (_Count | None, "rounds_paid rounds_aborted uploads_dropped"),
    (_AtLeast0 | None, "most_dropouts most_colluders noise_surplus"),
    (_AtLeast0 | None, "rmse_served rmse_objective rmse_arriving rmse_client_alone_served"),
    ends=("", "final", "best", "served", "final_raw", *REFERENCES),
)
"""The object in ``summary.json``, and what is known of a run before its first round."""

NOTES = Record(
    (_Word, "version data"),
    (bool, "deployed saved"),
    (_Words, "given began_in"),
    (dict[str, _Word], "versions"),
    (dict[str, Any], "facts"),
)
"""The section ``[folder]`` of ``config.toml``: about the folder, not settings."""

CLIENTS = Record((_Word, "run"), (_Words, "clients"))
"""The object in ``clients.json``: a federation's name, and hashes of its clients' names."""

EXAMPLES = Record((_Word | None, "note"), (Annotated[list[_Example], _Many], "lists"))
"""The object in ``examples.json``: the lists of a few users, for the report."""


def identity_of(config: Config) -> dict[str, Any]:
    """What identifies a run in its summary, from its settings alone."""
    return {
        "dataset": config.data.dataset,
        "preset": config.preset,
        "model": config.model.name,
        "policy": config.planning.policy,
        "mechanism": config.privacy.mechanism,
        "seed": config.run.seed,
    }


def needed_keys(private: bool, deployed: bool) -> tuple[set[str], set[str]]:
    """The keys that a finished run's summary must have, and those that each round must have."""
    run = {"dataset", "model", "policy", "preset", "mechanism", "seed", "clients", "items"}
    run |= {"rounds_run", "not_accounted", "seconds_total", "seconds_per_round"}
    each = {"round", "clients", "seconds"}
    if not deployed:
        run |= {"users", "ratings", *OF_EVERY_RUN}
        each |= {*_OF_EVERY_ROUND, "loss", "ratings"}
    if private:
        run |= {"trust", "unit", "accounting", "epsilon", "delta", "rounds_paid"}
        run |= {"epsilon_spent_max", "epsilon_client_level", "epsilon_client_level_median"}
        each |= {"charge", "dropped"}
    return run, each
