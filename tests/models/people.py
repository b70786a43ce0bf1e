"""Five users and what they have rated: what tests of learners share."""

from __future__ import annotations

import numpy as np

from bgtplanner.data.ratings import Ratings

N_USERS = 5


def some_ratings(several: bool, items: int = 6) -> Ratings:
    """Five users, behind three clients or a client each; user 4 rated nothing, user 0 all."""
    rated = [list(range(items)), [1, 4], [0, 2, 3, 5], [1, 3, 4]]
    user = np.repeat(np.arange(4), [len(each) for each in rated])
    return Ratings.from_arrays(
        user,
        np.concatenate(rated),
        np.random.default_rng(1).integers(1, 6, len(user)),
        client=user % 2 if several else None,
        users=range(N_USERS),
        items=range(items),
        scale=(0, 5),
    )
