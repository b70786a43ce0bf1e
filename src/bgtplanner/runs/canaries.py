"""Whose uploads an audit tells apart: two clients, their model, and what a server sends them.

The server of an audit is hostile: it has chosen the parameters such that the two uploads are as
far apart as the model makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bgtplanner.models.learner import Learner

__all__ = [
    "PICKED",
    "TASTE_WIDTH",
    "Canary",
    "Rows",
    "one_rating",
    "picked_together",
    "taste_size",
]

Floats = NDArray[np.float64]
Rows = tuple[tuple[int, int, float], ...]

PICKED = 4
"""Items that the clients of :func:`picked_together` have rated; they come first."""

TASTE_WIDTH = 4
"""Columns of an upload of :func:`picked_together`: residual, count, and two axes."""

_MEAN = 0.5  # public; it makes ratings of 1 and 0 nearly opposite
_MOST = 0.95  # of an upload: the largest share that tastes can have
_FEATURES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """Two clients that an attacker knows, except for which of them it is.

    Attributes:
        name: Name of their model.
        model: The model.
        settings: Those of its settings that are not the defaults.
        items: The parameters that a server sends, ``[n_items, columns]``.
        ahead: The ratings of one client: user, item, and rating from 0 to 1.
        behind: Those of the other.
    """

    name: str
    model: Learner
    settings: dict[str, Any]
    items: NDArray[np.float32]
    ahead: Rows
    behind: Rows

    def uploads(self) -> tuple[Floats, Floats]:
        """Return the unprotected uploads of both, ``[1, coordinates]``."""
        from bgtplanner.data.ratings import Ratings
        from bgtplanner.federation.client import upload_of
        from bgtplanner.models.learner import Shared

        def one(rows: Rows) -> Floats:
            users, items, values = zip(*rows, strict=True)
            every = np.arange(len(self.items))
            ratings = Ratings.from_arrays(
                users, items, values, client=np.zeros(len(rows)), items=every, scale=(0.0, 1.0)
            )
            shared = Shared(self.items, np.zeros(0, dtype=np.float32))  # type: ignore[arg-type]
            return np.asarray(upload_of(self.model, shared, ratings))[None]

        return one(self.ahead), one(self.behind)


def one_rating(n_items: int) -> Canary:
    """Return two clients of the bias model with one rating, the highest or the lowest."""
    from bgtplanner.models.bias import Biases

    return Canary(
        name="biases",
        model=Biases(mean=_MEAN),
        settings={"mean": _MEAN},
        items=np.zeros((n_items, 3), dtype=np.float32),
        ahead=((0, 0, 1.0),),
        behind=((0, 0, 0.0),),
    )


def picked_together(n_items: int) -> Canary:
    """Return two clients that differ in their tastes and in nothing else.

    Both have the same four items, rated alike, and two users. They differ in which items go
    together: those of the first and second, and of the third and fourth, or those of the first and
    third, and of the second and fourth. Residuals and counts are the same for both; the axes are
    such that all of the taste part differs. One feature is of these items, one is of the others.
    """
    from bgtplanner.models.tastes import Tastes

    settings: dict[str, Any] = {"mean": _MEAN, "axes": 2, "taste_share": _MOST}
    items = np.zeros((n_items, 5 + 2 + _FEATURES), dtype=np.float32)
    items[:, 3] = 1.0 / n_items  # all are as popular
    items[:PICKED, 5] = (0.5, 0.5, -0.5, -0.5)
    items[:PICKED, 6] = (0.5, -0.5, 0.5, -0.5)
    items[:PICKED, 7] = 1.0
    items[PICKED::2, 8] = 1.0
    return Canary(
        name="tastes",
        model=Tastes(**settings),
        settings=settings,
        items=items,
        ahead=((0, 0, 1.0), (0, 1, 1.0), (1, 2, 1.0), (1, 3, 1.0)),
        behind=((0, 0, 1.0), (0, 2, 1.0), (1, 1, 1.0), (1, 3, 1.0)),
    )


def taste_size(dimensions: int) -> int:
    """Return the number of coordinates of an upload of :func:`picked_together`.

    There are at least `dimensions` of them, and items that no one has picked.
    """
    return TASTE_WIDTH * max(PICKED + 2, -(-dimensions // TASTE_WIDTH))
