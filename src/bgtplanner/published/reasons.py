"""Why an item is on a person's list, in words.

A reason names what moved the item up for this person most: an item of the history that was rated
high, or a feature that the person rates higher or picks more often than usual. What moves an item
up for everybody, that it is popular or well rated, is said only where nothing of the person's own
did. Who has no history is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.catalogue import plain_name, strongest_feature

if TYPE_CHECKING:
    from bgtplanner.data.tables import Histories
    from bgtplanner.published.model import Model
    from bgtplanner.published.ranking import Floats, Ranked

_TENTH = 0.1  # a rating so much higher counts as an item that is about three times as likely
_HIGHER = 0.02  # on the scale of 0 to 1: what is less is not worth a word
_OFTEN = float(np.log(1.5))
_POPULAR = float(np.log(2.0))
_DRAWN = 0.3  # how much the history must add to the logarithm of how likely an item is picked
_CARRIES = 0.05  # and how much of that an item of the history that is named
_HIGH = 0.7  # the least rating that is called high, if the person's own mean is not higher
_OF_ALL = ("", "popular", "rated well by those who know it", "liked by many")
_NEW = "nothing of yours is known yet"


def reasons_of(
    model: Model, people: Histories, why: Ranked, table: Floats, items: NDArray[Any]
) -> list[list[str | None]]:
    """Return a reason for each place of each list; None where there is none.

    `items` are those on the lists, ``[people, top]``; `table` is where all items lie.
    """
    stars, none = model.low >= 0 and 3 <= model.high <= 10, np.zeros(items.shape)
    whom = "others" if model.learned else "chance would"
    names = [plain_name(name) for name in model.names]
    popular, good = (
        none if of is None else np.asarray(of)[items] for of in (why.popularity, why.quality)
    )
    kind = (popular >= _POPULAR) + 2 * (good >= _HIGHER)
    leaning, leaned = strongest_feature(model.features, names, why.leaning, items)
    interest, picked = strongest_feature(model.features, names, why.interest, items)
    drawn, said = _of_history(model.titles, people, why, table, items)
    drawn = np.where(drawn >= _DRAWN, drawn, 0.0)
    leaning = np.where(leaning >= _HIGHER, leaning / _TENTH, 0.0)
    often = (interest >= _OFTEN) & (interest >= 2 * drawn)  # or else the history says it as well
    own = np.stack([leaning, np.where(often, interest, 0.0), drawn])
    best, some = own.argmax(axis=0), own.max(axis=0) > 0
    reasons: list[list[str | None]] = [[None] * items.shape[1] for _ in items]
    for at in zip(*np.nonzero(some | (kind > 0)), strict=True):
        reason = said[at[0]][at[1]] if some[at] else _OF_ALL[kind[at]]
        if some[at] and best[at] == 0:
            more = why.leaning[at[0]][leaned[at]] * (model.high - model.low)
            much = f"{more:.1f} stars" if stars else f"{more:.2g} points"
            reason = f"you rate {names[leaned[at]]} {much} above your mean"
        elif some[at] and best[at] == 1:
            times = np.exp(why.interest[at[0]][picked[at]])
            reason = f"you pick {names[picked[at]]} {times:.2g} times as often as {whom}"
        reasons[at[0]][at[1]] = reason
    for user in np.flatnonzero(np.diff(people.starts) == 0).tolist():
        reasons[user] = ["; ".join(filter(None, (of, _NEW))) for of in reasons[user]]
    return reasons


def _of_history(
    titles: Sequence[str] | None, people: Histories, why: Ranked, table: Floats, items: Any
) -> tuple[Floats, list[list[str]]]:
    """Return how far a person's history moved each item up, and in words what of it did.

    It is the item of the history that did most, if it was rated high, or picked without a rating,
    and has a title. Otherwise only the axes of taste count, which other people have shaped.
    """
    drawn = np.zeros(items.shape)
    if why.tastes is not None:
        drawn = np.take_along_axis(np.asarray(why.tastes, np.float64), items, axis=1)
    said = [["fits what people like you pick"] * items.shape[1] for _ in items]
    if why.because is None or titles is None:
        return drawn, said
    number, rated = np.diff(people.starts), np.nan_to_num(people.value)
    usual = np.maximum(people.sums(rated) / np.maximum(number, 1), _HIGH).repeat(number)
    for at in np.flatnonzero(number).tolist():
        mine = slice(*people.starts[at : at + 2])
        added = why.because[mine] @ table[items[at]].T
        together = added.sum(axis=0)
        added[people.value[mine] < usual[mine]] = -np.inf
        first, most = added.argmax(axis=0), added.max(axis=0)
        for place in np.flatnonzero((most >= _CARRIES) & (together >= _DRAWN)).tolist():
            of = mine.start + first[place]
            title, drawn[at, place] = titles[people.item[of]], together[place]
            how = f"rated {title} high" if rated[of] > 0 else f"picked {title}"
            said[at][place] = f"because you {how}"
    return drawn, said
