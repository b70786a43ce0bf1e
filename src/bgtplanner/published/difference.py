"""What changed from one model to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgtplanner.errors import NothingLearnedError
from bgtplanner.published.model import Model

_TOP = 10


def differences(old: Model, new: Model) -> dict[str, Any]:
    """Return what changed: items, what is promised, and whose list without a history moved."""
    before, after = ({str(of) for of in each.items} for each in (old, new))
    came, went = len(after - before), len(before - after)
    said = [f"Items: {came:,} came, {went:,} went, {len(before & after):,} stayed."]
    found: dict[str, Any] = {"came": came, "went": went, "stayed": len(before & after)}
    if old.ranker != new.ranker:
        said.append(f"The kind of model: {old.ranker} became {new.ranker}.")
    for name in ("epsilon", "people"):
        pair = [each.guarantee.get(name) for each in (old, new)]
        found[name] = pair
        if pair[0] != pair[1]:
            said.append(f"{name.capitalize()}: {_word(pair[0])} became {_word(pair[1])}.")
    levels = [each.verdict().level for each in (old, new)]
    if levels[0] != levels[1]:
        said.append(f"Lists: {levels[0]} became {levels[1]}.")
    try:
        tops = [[str(row.item) for row in each.recommend(top=_TOP)] for each in (old, new)]
        found["same_of_ten"] = len(set(tops[0]) & set(tops[1]))
        said.append(f"Of the ten items for a newcomer, {found['same_of_ten']} are the same.")
    except NothingLearnedError:
        found["same_of_ten"] = None
    both = [str(of) for of in old.items if str(of) in after]
    if old.ranker == new.ranker and len(both) > 1:
        place = {str(of): at for at, of in enumerate(new.items)}
        own = {str(of): at for at, of in enumerate(old.items)}
        first = old.released[[own[of] for of in both], 0]
        second = new.released[[place[of] for of in both], 0]
        spread = float(first.std() * second.std())
        alike = float(np.corrcoef(first, second)[0, 1]) if spread > 0 else None
        found["quality_correlation"] = alike
        if alike is not None:
            said.append(f"Qualities of the items that stayed: correlation {alike:.2f}.")
    return found | {"verdicts": levels, "sentences": said}


def _word(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
