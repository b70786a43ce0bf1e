"""What may stand under a key of a file that somebody may have edited: types with words.

Pydantic looks at values by these types; where one does not fit, an error says in words what was
expected.
"""

from __future__ import annotations

import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from bgtplanner.text import LONGEST_NAME

__all__ = [
    "AtLeast0",
    "Count",
    "Delta",
    "Figure",
    "Many",
    "Number",
    "Positive",
    "RoundNumber",
    "Share",
    "Some",
    "Ticks",
    "Word",
    "in_words",
]

_LARGEST = 10**15  # no figure of a run is anywhere near, and drawings and sums stay exact enough
_MOST_ENTRIES = 1_000_000


def _figure(words: str, **limits: Any) -> Any:
    return Field(description=words, allow_inf_nan=False, **({"le": _LARGEST} | limits))


def _whole(words: str, least: int = 0, most: int = _LARGEST) -> Any:
    return Field(description=words, ge=least, le=most)


def _small(value: float) -> float:
    if math.isfinite(value) and abs(value) > _LARGEST:
        raise ValueError("too large")
    return value


Figure = Annotated[float, _figure("a finite number", ge=-_LARGEST)]
AtLeast0 = Annotated[float, _figure("a number of at least 0", ge=0)]
Positive = Annotated[float, _figure("a number above 0", gt=0)]
Share = Annotated[float, _figure("a number from 0 to 1", ge=0, le=1)]
Delta = Annotated[float, _figure("a number from 0 to below 1", ge=0, le=1, lt=1)]
Number = Annotated[float, Field(description="a number"), AfterValidator(_small)]
"""It need not be finite: a policy may rule something out."""
Count = Annotated[int, _whole("a whole number from 0")]
Some = Annotated[int, _whole("a whole number from 1", 1)]
RoundNumber = Annotated[int, _whole("a round's number", 0, 1_000_000)]
Ticks = Annotated[int, _whole("a whole number from 0", 0, 2**62)]
Word = Annotated[
    str, Field(description=f"text of at most {LONGEST_NAME} letters", max_length=LONGEST_NAME)
]
Many = Field(max_length=_MOST_ENTRIES)
"""Of a list: no more entries than a run can have."""


def in_words(kind: Any) -> str:
    """What is expected, as an error says it.

    Example:
        >>> in_words(list[Share] | None)
        'a list, each entry a number from 0 to 1, or null'
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        said = (of.description for of in parts[1:] if isinstance(of, FieldInfo))
        return next(filter(None, said), None) or in_words(parts[0])
    if origin in (Union, types.UnionType):
        known = [in_words(part) for part in parts if part is not type(None)]
        return ", or ".join([*known, "null"] if len(known) < len(parts) else known)
    if origin is list:
        return f"a list, each entry {in_words(parts[0])}"
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    return {bool: "true or false", dict: "a table"}.get(origin or kind, "another value")
