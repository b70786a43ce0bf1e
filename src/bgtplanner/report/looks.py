"""How things look in every picture and on the page: colours, names of series, finished drawings.

Nothing here draws, so that a page can be put together where Matplotlib is not loaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "ABOVE",
    "BESIDE",
    "BLUE",
    "GREEN",
    "GREY",
    "VERMILLION",
    "YELLOW",
    "Drawn",
    "Look",
    "look_of",
    "series_name",
]

# The colours of Okabe and Ito, then of Tol: colour-blind readers can tell them apart.
BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"
YELLOW = "#E69F00"

BESIDE: Mapping[str, tuple[str, Any]] = {
    "constant": (YELLOW, "--"),
    "user_mean": (GREEN, ":"),
    "client_alone": (GREY, "-."),
    "features_alone": (VERMILLION, (0, (5, 1, 1, 1, 1, 1))),
    "popularity": (YELLOW, "-"),
    "popularity_released": (BLUE, ":"),
    "random": (GREY, (0, (1, 3))),
}
"""Colour and dashes of the references."""

ABOVE: Mapping[str, Any] = {
    "loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "fontsize": 9,
    "borderaxespad": 0.1, "columnspacing": 1.2, "handlelength": 1.6,
}  # fmt: skip
"""Legends go above the axes, where they hide nothing."""


class Look(NamedTuple):
    """The look of a policy in every picture: colour, and marker and dashes for print."""

    colour: str
    mark: str
    dashes: str


_LOOKS = {
    "bgt": Look(BLUE, "o", "-"),
    "late": Look(VERMILLION, "s", "--"),
    "early": Look("#332288", "d", ":"),
    "uniform": Look(GREEN, "^", "-."),
    "adpml": Look("#CC79A7", "D", ":"),
    "adap": Look("#E69F00", "v", "--"),
    "unlimited": Look(GREY, "P", ":"),
    "hong": Look("#56B4E9", "X", "-."),
    "two-phase": Look("#999933", "<", "-"),
    "random": Look("#AA4499", ">", "--"),
    "hindsight": Look("#44AA99", "p", "-."),
    "fixed": Look("#882255", "h", ":"),
}
_OTHERS = ("#DDAA33", "#BB5566", "#4477AA", "#66CCEE", "#228833")


def look_of(policy: str) -> Look:
    """The look of a policy, the same in every picture; your own get one by their name.

    Example:
        >>> look_of("bgt").colour, look_of("mine:Own") == look_of("mine:Own")
        ('#0072B2', True)
    """
    if policy in _LOOKS:
        return _LOOKS[policy]
    number = hashlib.sha256(policy.encode()).digest()[0]
    return Look(_OTHERS[number % len(_OTHERS)], "*", "-")


def series_name(name: str) -> str:
    """The name of a series in the page's buttons and pictures."""
    return re.sub(r"[^0-9a-z]+", "-", name.lower()).strip("-") or "x"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A picture that is ready for a page; the attributes are those of a picture.

    Attributes:
        svg: The drawing, as SVG for a page.
    """

    name: str
    title: str
    alt: str
    svg: str
    group: str = ""
    view: str = ""
    note: str = ""
