"""What the files of a run folder hold: every key that anybody reads, and what may stand there.

A run folder may have been edited, put together out of two, or written by another version. It is
looked at once, when it is read (:mod:`bgtplanner.runs.folder`), so that whoever works with
what it holds need not ask again whether a figure is a figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bgtplanner.errors import RunFolderError, quoted
from bgtplanner.text import LONGEST_NAME

__all__ = [
    "CLIENTS",
    "NOTES",
    "ROUND",
    "SUMMARY",
    "check",
    "check_ticks",
    "needed_of_rounds",
    "needed_of_summary",
]

_LARGEST = 1e15  # no figure of a run is anywhere near, and drawings and sums stay exact enough
_MOST_ROUNDS = 1_000_000
_MOST_ENTRIES = 1_000_000


class Kind(NamedTuple):
    """What may stand under a key, in words and as a test."""

    expected: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Kind:
        """The same, or nothing."""
        return Kind(f"{self.expected}, or null", lambda value: value is None or self.fits(value))

    def listed(self) -> Kind:
        """A list of such."""
        return Kind(
            f"a list, each entry {self.expected}",
            lambda value: (
                isinstance(value, list)
                and len(value) <= _MOST_ENTRIES
                and all(map(self.fits, value))
            ),
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_whole(value: Any, most: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _is_why(value: Any) -> bool:
    """A policy's reasons: a note, and numbers by level, which need not be finite."""
    if not isinstance(value, dict) or not _is_word(value.get("note", "")):
        return False
    if not _SHARE.listed().fits(value.get("probability", [])):
        return False
    return all(_NUMBERS.fits(of) for name, of in value.items() if name != "note")


def _is_table_of_ticks(value: Any) -> bool:
    """Rows of equal length, of whole numbers that an array can hold."""
    rows = Kind("", lambda row: _TICKS.listed().fits(row) and len(row) > 0).listed()
    return rows.fits(value) and len({len(row) for row in value}) == 1


def _of_keys(kinds: Mapping[str, Kind]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and kind.fits(value[name]) for name, kind in kinds.items())
    )


_FIGURE = Kind("a finite number", lambda value: _is_number(value) and abs(value) <= _LARGEST)
_AT_LEAST_0 = Kind("a number of at least 0", lambda value: _FIGURE.fits(value) and value >= 0)
_POSITIVE = Kind("a number above 0", lambda value: _FIGURE.fits(value) and value > 0)
_SHARE = Kind("a number from 0 to 1", lambda value: _FIGURE.fits(value) and 0 <= value <= 1)
_DELTA = Kind("a number from 0 to below 1", lambda value: _SHARE.fits(value) and value < 1)
_COUNT = Kind("a whole number from 0", lambda value: _is_whole(value, _LARGEST))
_SOME = Kind("a whole number from 1", lambda value: _is_whole(value, _LARGEST) and value > 0)
_NUMBER_OF_ROUND = Kind("a round's number", lambda value: _is_whole(value, _MOST_ROUNDS))
_TICKS = Kind("a whole number from 0", lambda value: _is_whole(value, 2**62))
_NUMBERS = Kind("a number", lambda of: _FIGURE.fits(of) or _is_not_finite(of)).listed()
_WORD = Kind(f"text of at most {LONGEST_NAME} letters", _is_word)
_TRUTH = Kind("true or false", lambda value: isinstance(value, bool))
_BY_CLASS = Kind(
    "a number, or a list of numbers, one a class of budgets",
    lambda value: _FIGURE.fits(value) or _FIGURE.listed().fits(value),
)
_CLASS = Kind(
    "an object with epsilon, clients, epsilon_spent_max and rmse_final",
    _of_keys(
        {
            "epsilon": _POSITIVE,
            "clients": _COUNT,
            "epsilon_spent_max": _AT_LEAST_0,
            "rmse_final": _AT_LEAST_0.or_null(),
        }
    ),
)


def _one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: value in words)


_SCORES = {
    f"{figure}_{when}": _AT_LEAST_0
    for figure in ("rmse", "f1")
    for when in ("constant", "user_mean", "client_alone", "final", "best")
}

SUMMARY: Mapping[str, Kind] = {
    "schema": _COUNT,
    **dict.fromkeys(("dataset", "model", "policy", "preset", "mechanism"), _WORD),
    **dict.fromkeys(("clients", "items"), _SOME),
    **dict.fromkeys(("users", "ratings"), _SOME.or_null()),
    **dict.fromkeys(("seed", "rounds_run"), _COUNT),
    **{name: kind.or_null() for name, kind in _SCORES.items()},
    **dict.fromkeys(("precision_final", "recall_final", "mae_final"), _AT_LEAST_0.or_null()),
    "rmse_best_round": _NUMBER_OF_ROUND.or_null(),
    "target": _POSITIVE.or_null(),
    "target_reached": _TRUTH.or_null(),
    "seconds_total": _AT_LEAST_0,
    "seconds_per_round": _AT_LEAST_0,
    "not_accounted": _WORD.listed(),
    "simulated_noise": _TRUTH,
    "class_epsilons": _POSITIVE.listed(),
    "classes": _CLASS.listed().or_null(),
    "trust": _one_of("local", "secagg").or_null(),
    "unit": _one_of("client", "row").or_null(),
    "accounting": _WORD.or_null(),
    "epsilon": _POSITIVE.or_null(),
    "delta": _DELTA.or_null(),
    **dict.fromkeys(
        (
            "epsilon_spent_max",
            "epsilon_client_level",
            "epsilon_client_level_median",
            "epsilon_client_level_pure",
        ),
        _AT_LEAST_0.or_null(),
    ),
    **dict.fromkeys(("rounds_paid", "uploads_dropped"), _COUNT.or_null()),
    **dict.fromkeys(("ledger_head", "planner_note"), _WORD.or_null()),
    "clients_with_last_model": _COUNT,
}
"""Of ``summary.json``, and of the facts that are known before the first round."""

ROUND: Mapping[str, Kind] = {
    "round": _NUMBER_OF_ROUND,
    **dict.fromkeys(("rmse", "f1", "mae", "precision", "recall"), _AT_LEAST_0.or_null()),
    "loss": _FIGURE.or_null(),
    "ratings": _COUNT.or_null(),
    "seconds": _AT_LEAST_0,
    "charge": _AT_LEAST_0,
    "charges": _AT_LEAST_0.listed(),
    **dict.fromkeys(("clients", "paid", "late", "dropped", "asked", "refused"), _COUNT),
    "dropped_by_kind": Kind(
        "an object of counts",
        lambda value: (
            isinstance(value, dict)
            and all(_is_word(name) and _COUNT.fits(of) for name, of in value.items())
        ),
    ),
    "level": _COUNT.or_null(),
    **dict.fromkeys(("clip", "noise_multiplier"), _BY_CLASS.or_null()),
    **dict.fromkeys(("released_norm", "noise_norm"), _AT_LEAST_0.or_null()),
    "reward": _FIGURE.or_null(),
    "left": _SHARE.listed(),
    "spent": Kind("rows of whole numbers", _is_table_of_ticks),
    "why": Kind("an object of a note and lists of numbers", _is_why).or_null(),
    "validation_rmse": _FIGURE,
    "validation_upper": _FIGURE,
}
"""Of a line of ``rounds.jsonl``."""

NOTES: Mapping[str, Kind] = {
    "version": _WORD,
    "data": _WORD,
    "deployed": _TRUTH,
    "given": _WORD.listed(),
    "versions": Kind(
        "a table of text",
        lambda value: isinstance(value, dict) and all(map(_is_word, value.values())),
    ),
    "facts": Kind("a table", lambda value: isinstance(value, dict)),
}
"""Of the section ``[folder]`` in ``config.toml``, beside its schema."""

CLIENTS: Mapping[str, Kind] = {"run": _WORD, "clients": _WORD.listed()}
"""Of ``clients.json``."""

_OF_RATINGS = frozenset({"users", "ratings", *_SCORES})  # which nobody says on real machines
_OF_BUDGET = (
    *("trust", "unit", "accounting", "epsilon", "delta", "rounds_paid"),
    *("epsilon_spent_max", "epsilon_client_level", "epsilon_client_level_median"),
)


def needed_of_summary(private: bool, deployed: bool) -> set[str]:
    """The keys without which nobody can say what came of a run."""
    every = {"dataset", "model", "policy", "preset", "mechanism", "clients", "items", "seed"}
    every |= {"rounds_run", "seconds_total", "seconds_per_round", "not_accounted"}
    every |= set() if deployed else _OF_RATINGS
    return every | (set(_OF_BUDGET) if private else set())


def needed_of_rounds(private: bool, deployed: bool) -> set[str]:
    """The keys without which nobody can say what happened in a round."""
    every = {"round", "clients", "seconds"}
    scores = {"rmse", "f1", "mae", "precision", "recall", "loss", "ratings"}
    every |= set() if deployed else scores
    return every | ({"charge", "dropped"} if private else set())


def check(
    where: object,
    found: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    needed: Collection[str] = (),
) -> None:
    """Refuse what is not of its kind, or not there; keys that nobody reads may hold anything.

    Args:
        where: The file, with its line where it has lines.
        found: What it holds.
        kinds: What may stand under each key.
        needed: The keys that must be there.

    Raises:
        RunFolderError: Naming the file, the key and what was expected.
    """
    for name, kind in kinds.items():
        if name in found and not kind.fits(found[name]):
            raise RunFolderError(
                f"{where}: {name} = {_shown(found[name])}: expected {kind.expected}; it was "
                "edited, or written by another version: bring the old file back, or run it anew"
            )
    if missing := sorted(name for name in needed if found.get(name) is None):
        rest = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        raise RunFolderError(f"{where}: has no {', '.join(missing[:6])}{rest}; run it anew")


def _shown(value: Any) -> str:
    """A value for a message; long or nested ones only by what they are."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if _is_not_finite(value):
        return "not finite"
    return quoted(value)


def check_ticks(where: object, records: Sequence[Mapping[str, Any]], sums: int) -> None:
    """Refuse rounds whose sums are not those of one ledger.

    Args:
        where: The file.
        records: Its lines.
        sums: How many sums the run's rule keeps.

    Raises:
        RunFolderError: Naming the file and the line.
    """
    shape: tuple[int, int] | None = None
    for number, record in enumerate(records, start=1):
        rows = record.get("spent")
        if rows is None:
            continue
        here = (len(rows), len(rows[0]))
        if here[0] != sums or (shape is not None and here != shape):
            raise RunFolderError(
                f"{where}, line {number}: spent does not fit the run's rule, or the other lines; "
                "the file was edited: bring the old one back, or run it anew"
            )
        shape = here
