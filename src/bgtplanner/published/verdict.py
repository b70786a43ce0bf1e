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
    axes, features = int(evidence.get("axes", 0)), int(evidence.get("features", 0))
    larger = " or a larger epsilon" * bool(guarantee.get("private", True))
    more = f"More people{larger} would be needed for more."
    if not learned:
        nothing = "Nothing was learned from others"
        if not features:
            headline = f"{nothing}, and items have no features: there are no lists."
            return Verdict("nothing", headline, (more,))
        headline = f"{nothing}: lists follow the features that a person likes."
        return Verdict("personal", headline, (more,))
    number = {0: "No axis", 1: "One axis"}.get(axes, f"{axes} axes")
    stand = "stands" if axes < 2 else "stand"
    reasons = [f"{number} of taste {stand} out from the noise."]
    if "popularity" in evidence:  # which a client is told at the end of a run
        known = float(evidence["popularity"])
        how = "well" if known >= _KNOWN_WELL else "roughly" if known >= _KNOWN else "barely"
        reasons.insert(0, f"Popularity is {how} known.")
    if features:
        reasons.append(f"Public features of the items help ({features}).")
    if axes >= _SEVERAL or (axes and features):
        headline = "Expect lists that are clearly more personal than popularity."
        return Verdict("clearly personal", headline, tuple(reasons))
    if axes or features:
        headline = "Expect lists that are somewhat more personal than popularity."
        return Verdict("personal", headline, (*reasons, more))
    return Verdict("popularity", "Lists will not be better than popularity.", (*reasons, more))
