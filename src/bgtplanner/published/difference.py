"""What changed from one model to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgtplanner.errors import NothingLearnedError
from bgtplanner.published.model import Model


def differences(old: Model, new: Model) -> dict[str, Any]:
    """Return what changed: items, what is promised, and whose list without a history moved."""
    pair = (old, new)
    own, place = ({str(of): at for at, of in enumerate(each.items)} for each in pair)
    both = [of for of in own if of in place]
    found: dict[str, Any] = {
        "came": len(place) - len(both), "went": len(own) - len(both), "stayed": len(both),
        "ranker": [each.ranker for each in pair],
        "epsilon": [each.guarantee.get("epsilon") for each in pair],
        "people": [each.guarantee.get("people") for each in pair],
        "verdicts": [each.verdict().level for each in pair],
        "same_of_ten": None, "quality_correlation": None,
    }  # fmt: skip
    said = ["Items: {came:,} came, {went:,} went, {stayed:,} stayed.".format(**found)]
    for name in ("ranker", "epsilon", "people", "verdicts"):
        before, after = ("none" if of is None else of for of in found[name])
        if before != after:
            said.append(f"{name.capitalize()}: {before} became {after}.")
    try:
        tops = [{str(row.item) for row in each.recommend(explain=False)} for each in pair]
        found["same_of_ten"] = same = len(tops[0] & tops[1])
        said.append(f"Of the ten items for a newcomer, {same} are the same.")
    except NothingLearnedError:
        said.append("One of them makes no lists.")
    first, second = (
        old.released[[own[of] for of in both]],
        new.released[[place[of] for of in both]],
    )
    if old.ranker == new.ranker and both and first[:, 0].std() * second[:, 0].std() > 0:
        found["quality_correlation"] = like = float(np.corrcoef(first[:, 0], second[:, 0])[0, 1])
        said.append(f"Qualities of the items that stayed: correlation {like:.2f}.")
    return found | {"sentences": said}
