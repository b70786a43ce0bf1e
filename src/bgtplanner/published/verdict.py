"""What lists from a model are worth, as far as the file itself can tell.

Nothing of this was measured on anybody's ratings: it follows from how far what was released stands
out from its noise, which is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Level = Literal["nothing", "popularity", "personal", "clearly personal"]

_KNOWN_WELL, _KNOWN = 0.8, 0.3  # share of what is picked whose popularity is known
_SEVERAL = 3  # axes of taste


class Verdict(NamedTuple):
    """What to expect of lists: a level, one sentence, and the reasons for it."""

    level: Level
    headline: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.headline, *self.reasons))


def verdict_of(
    evidence: Mapping[str, Any], guarantee: Mapping[str, Any], *, learned: bool
) -> Verdict:
    """Return the verdict on a model by its evidence, which a learner states when it publishes."""
    known = float(evidence.get("popularity", 0.0))
    axes, features = int(evidence.get("axes", 0)), int(evidence.get("features", 0))
    more = "More people or a larger epsilon would be needed for more."
    if not guarantee.get("private", True):
        more = "More people would be needed for more."
    reasons = []
    if not learned:
        level: Level = "personal" if features else "nothing"
        headline = (
            "Nothing was learned from others: lists follow the features that a person likes."
            if features
            else "Nothing was learned from others, and items have no features: there are no lists."
        )
        return Verdict(level, headline, (more,))
    how = "well" if known >= _KNOWN_WELL else "roughly" if known >= _KNOWN else "hardly"
    reasons.append(f"Popularity is learned {how}.")
    if axes:
        reasons.append(f"{_number(axes)} of taste stand{'s' * (axes == 1)} out from the noise.")
    else:
        reasons.append("No axis of taste stands out from the noise.")
    if features:
        reasons.append(f"{features} public features of the items help.")
    if axes >= _SEVERAL or (axes and features):
        headline = "Expect lists that are clearly more personal than popularity."
        return Verdict("clearly personal", headline, tuple(reasons))
    if axes or features:
        headline = "Expect lists that are somewhat more personal than popularity."
        return Verdict("personal", headline, (*reasons, more))
    headline = "Lists will not be better than popularity."
    return Verdict("popularity", headline, (*reasons, more))


def _number(axes: int) -> str:
    words = ("no axes", "one axis", "two axes", "three axes", "four axes", "five axes")
    return (words[axes] if axes < len(words) else f"{axes} axes").capitalize()
