"""How models of Surprise are trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.nonprivate.measure import Fitted, Matrix, raw
from bgtplanner.data.ratings import Ratings


def fit_surprise(
    name: str, train: Ratings, options: dict[str, Any], seed: int, users: NDArray[np.int64]
) -> Fitted:
    """Train an algorithm of Surprise, and ask it about some users.

    Its own ``predict`` takes one pair at a time. All pairs are computed at once from the trained
    parameters instead, and a sample of them is compared with ``predict``.
    """
    import pandas as pd
    import surprise

    columns = {"user": train.user, "item": train.item, "rating": raw(train)}
    reader = surprise.Reader(rating_scale=(float(raw(train).min()), train.high))
    data = surprise.Dataset.load_from_df(pd.DataFrame(columns), reader)
    known = data.build_full_trainset()
    algorithm = getattr(surprise, name)(**options, random_state=seed, verbose=False)
    algorithm.fit(known)
    ratings = _all_pairs(algorithm, known, train, users)
    generator = np.random.default_rng([seed, 0x5A3])
    some = generator.choice(users, 200), generator.integers(train.n_items, size=200)
    expected = [algorithm.predict(*pair, clip=False).est for pair in zip(*some, strict=True)]
    differ = np.abs(ratings[some] - expected) > 1e-4
    if differ.mean() > 0.01:  # neighbours that are equally near may be others
        raise SystemExit(f"{name}: {differ.mean():.0%} of the predictions are not Surprise's")
    return Fitted(ratings, ratings)


def _all_pairs(algorithm: Any, known: Any, train: Ratings, wanted: NDArray[np.int64]) -> Matrix:
    """Return the predictions of all pairs, also of users and items without training ratings."""
    users = np.array([known.to_raw_uid(user) for user in known.all_users()])
    items = np.array([known.to_raw_iid(item) for item in known.all_items()])
    ratings = np.full((train.n_users, train.n_items), known.global_mean, dtype=np.float32)
    if getattr(algorithm, "bu", None) is not None and getattr(algorithm, "biased", True):
        ratings[users] += algorithm.bu[:, None]
        ratings[:, items] += algorithm.bi
        mixed = ratings[np.ix_(users, items)]
    else:
        mixed = np.zeros((len(users), len(items)), dtype=np.float32)
    if hasattr(algorithm, "sim"):
        for user in np.flatnonzero(np.isin(users, wanted)):
            mixed[user] += _from_neighbours(algorithm, known, user)
    else:
        factors = algorithm.pu
        if hasattr(algorithm, "yj"):
            implicit = [
                algorithm.yj[[item for item, _ in known.ur[user]]].sum(axis=0)
                / np.sqrt(len(known.ur[user]))
                for user in known.all_users()
            ]
            factors = factors + np.array(implicit)
        mixed += (factors @ algorithm.qi.T).astype(np.float32)
    ratings[np.ix_(users, items)] = mixed
    return ratings


def _from_neighbours(algorithm: Any, known: Any, user: int) -> Matrix:
    """Return what the nearest rated items add to the baseline of every item, for one user."""
    rated = np.array([item for item, _ in known.ur[user]])
    given = np.array([rating for _, rating in known.ur[user]])
    residual = given - known.global_mean - algorithm.bu[user] - algorithm.bi[rated]
    similar = algorithm.sim[:, rated]
    if len(rated) > algorithm.k:
        nearest = np.argpartition(-similar, algorithm.k - 1, axis=1)[:, : algorithm.k]
        similar, residual = np.take_along_axis(similar, nearest, axis=1), residual[nearest]
    weights = np.maximum(similar, 0.0)
    total = weights.sum(axis=1)
    enough = (weights > 0).sum(axis=1) >= algorithm.min_k
    added = (weights * residual).sum(axis=1)
    return np.divide(added, total, out=np.zeros_like(total), where=enough & (total > 0))
