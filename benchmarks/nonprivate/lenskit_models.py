"""How models of LensKit are trained, and its metric."""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.nonprivate.measure import Fitted, Matrix, liked, raw
from bgtplanner.data.ratings import Ratings


def fit_lenskit(
    scorer: str, train: Ratings, options: dict[str, Any], seed: int, users: NDArray[np.int64]
) -> Fitted:
    """Train a scorer of LensKit, given as ``module:class``, and ask it about some users.

    As in LensKit's own pipelines, its bias model predicts what a scorer has no rating for. The
    scorer is called without a pipeline, which would take twice the time.
    """
    import pandas as pd
    import structlog
    from lenskit.basic import BiasScorer
    from lenskit.data import ItemList, RecQuery, from_interactions_df
    from lenskit.training import TrainingOptions

    warnings.filterwarnings("ignore", "no query items")  # of users without training ratings
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if options.get("learns_from") == "liked":
        train = train.take(liked(train))
    module, _, name = scorer.partition(":")
    given = {key: value for key, value in options.items() if key != "learns_from"}
    model = getattr(importlib.import_module(f"lenskit.{module}"), name)(**given)
    columns = {"user_id": train.user, "item_id": train.item, "rating": raw(train)}
    data, fallback = from_interactions_df(pd.DataFrame(columns)), BiasScorer()
    for one in (model, fallback):
        one.train(data, TrainingOptions(rng=seed))
    if isinstance(model, BiasScorer):
        ratings = _biases(model.model_, train)
        return Fitted(ratings, ratings)
    personal = "query" in inspect.signature(model).parameters
    history = data.interactions().matrix()
    items = ItemList(item_nums=np.arange(data.item_count), vocabulary=data.items)
    scores = np.full((train.n_users, train.n_items), np.nan, dtype=np.float32)
    for user in users.tolist():
        query = RecQuery(user_id=user, history_items=history.row_items(user))
        found = model(query, items) if personal else model(items)
        scores[user, found.ids()] = found.scores()
    return Fitted(scores, np.where(np.isnan(scores), _biases(fallback.model_, train), scores))


def _biases(model: Any, train: Ratings) -> Matrix:
    """Return what a bias model predicts for all pairs."""
    found = np.full((train.n_users, train.n_items), model.global_bias, dtype=np.float32)
    found[model.users.ids()] += model.user_biases[:, None]
    found[:, model.items.ids()] += model.item_biases
    return found


def lenskit_metrics(lists: NDArray[np.int64], relevant: NDArray[np.bool_]) -> tuple[float, float]:
    """Return NDCG and recall of lists by LensKit, as means over the users with anything relevant.

    By default LensKit gives the first two ranks the same weight; the offset makes it the binary
    logarithm of the rank plus 1, as in scikit-learn.
    """
    from lenskit.data import ItemList
    from lenskit.metrics import NDCG, LogRankWeight, Recall

    length = lists.shape[1]
    metrics = NDCG(length, weight=LogRankWeight(offset=1)), Recall(length)
    pairs = [
        (ItemList(item_ids=shown, ordered=True), ItemList(item_ids=np.flatnonzero(likes)))
        for shown, likes in zip(lists, relevant, strict=True)
        if likes.any()
    ]
    ndcg, recall = (
        float(np.mean([metric.measure_list(*pair) for pair in pairs])) for metric in metrics
    )
    return ndcg, recall
