"""What privacy costs: standard models of LensKit and Surprise, which see all ratings in the clear.

    python -m benchmarks.nonprivate --dataset ml-100k --seeds 0,1,2,3,4 --out build/nonprivate.json

They are trained and tested on the splits that a run with the same seed has. What has been measured
is kept in the file and not measured again; a table of all of it is written beside it, as Markdown.
Both libraries go into an environment of their own, together with this package:

    pip install 'bgtplanner[sim]' lenskit scikit-surprise

If one of them cannot be imported, its models are left out, and the table says so.

Where a model has several settings, they are compared on a fifth of each user's training ratings,
for 400 users at most, by RMSE if it predicts ratings and by NDCG@10 if it ranks; it is then
trained on all training ratings with the best of them. The test ratings decide nothing. Models that
rank learn from all training ratings or only from those that are liked, which is one of their
settings.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.datasets import dataset_info, load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, split_ratings
from bgtplanner.errors import BGTPlannerError

DATASETS = {"ml-100k": "ML-100K", "ml-1m-users": "ML-1M, 6,040 users", "filmtrust": "FilmTrust"}
LENGTH = 10
LIKED = 0.8
"""Raw ratings of at least this share of the top of the scale are liked."""
ASIDE = 0.2
"""Share of the training ratings on which settings are compared."""
COMPARED = 400
"""How many users they are compared on, at most."""
METRICS = ("rmse", "rmse_stars", "ndcg_at_10", "recall_at_10")
LIBRARIES = {"lenskit": "lenskit", "surprise": "scikit-surprise"}

Matrix = NDArray[np.floating[Any]]
Options = dict[str, Any]
Users = NDArray[np.int64]


class Fitted(NamedTuple):
    """What a trained model says about pairs of a user and an item, ``[users, items]``.

    Attributes:
        scores: What items are ranked by; NaN where the model has nothing to say.
        ratings: Predicted ratings on the scale of the data, if the model predicts any.
    """

    scores: Matrix
    ratings: Matrix | None


class Model(NamedTuple):
    """A standard model.

    Attributes:
        task: What it is made for, and so what its settings are chosen by.
        fit: Trains it on ratings, with options and a seed, and asks it about some users; what it
            says about others is not used.
        settings: Values of each option to choose from.
        only: Data sets that it is run on, or all.
    """

    task: Literal["ratings", "ranking"]
    fit: Callable[[Ratings, Options, int, Users], Fitted]
    settings: Mapping[str, Sequence[Any]] = {}
    only: tuple[str, ...] = ()

    def options(self) -> list[Options]:
        """Return every combination of its settings."""
        return [
            dict(zip(self.settings, values, strict=True))
            for values in itertools.product(*self.settings.values())
        ]


# Metrics: ours, from matrices.


def liked(ratings: Ratings) -> NDArray[np.bool_]:
    """Return which ratings are liked."""
    return raw(ratings) >= LIKED * ratings.high


def raw(ratings: Ratings) -> NDArray[np.float64]:
    """Return the ratings on the scale of the data, without the rounding of 32 bits."""
    return ratings.to_raw(ratings.value).round(4)


def top_lists(scores: Matrix, train: Ratings, length: int = LENGTH) -> NDArray[np.int64]:
    """Return the best items of each user that are not in the training ratings, best first.

    Of equal scores, the item that comes first in the catalogue wins. Items without a score come
    after all others, those with the most training ratings first.
    """
    count = np.bincount(train.item, minlength=train.n_items)
    lists = np.empty((len(scores), min(length, train.n_items)), dtype=np.int64)
    for first in range(0, len(scores), 512):
        some = scores[first : first + 512].astype(np.float64)
        unknown = np.isnan(some)
        known = (train.user >= first) & (train.user < first + 512)
        some[train.user[known] - first, train.item[known]] = -np.inf
        order = np.lexsort((np.where(unknown, -count, 0), np.where(unknown, 0, -some), unknown))
        # What was rated in training is last, with a score and without one.
        rated = np.take_along_axis(some == -np.inf, order, axis=1)
        order = np.take_along_axis(order, np.argsort(rated, axis=1, kind="stable"), axis=1)
        lists[first : first + 512] = order[:, : lists.shape[1]]
    return lists


def ranking_metrics(lists: NDArray[np.int64], relevant: NDArray[np.bool_]) -> tuple[float, float]:
    """Return NDCG and recall of lists, as means over the users with anything relevant.

    Gains are binary and the discount is the binary logarithm of the rank plus 1. The ideal list
    has as many relevant items as there are, and no more than fit in. Recall is the share of all
    relevant items that are in the list.

    Args:
        lists: Items of each user, best first, ``[users, length]``.
        relevant: Which items are relevant to whom, ``[users, items]``.

    Example:
        >>> ndcg, recall = ranking_metrics(np.array([[2, 0]]), np.array([[True, True, False]]))
        >>> round(ndcg, 4), recall
        (0.3869, 0.5)
    """
    counts = relevant.sum(axis=1)
    hits = np.take_along_axis(relevant, lists, axis=1)[counts > 0]
    counts = counts[counts > 0]
    gains = 1 / np.log2(np.arange(2, lists.shape[1] + 2))
    ideal = np.cumsum(gains)[np.minimum(counts, lists.shape[1]) - 1]
    return float(np.mean(hits @ gains / ideal)), float(np.mean(hits.sum(axis=1) / counts))


def relevant_items(test: Ratings) -> NDArray[np.bool_]:
    """Return which items each user likes by the held-out ratings, ``[users, items]``."""
    found = np.zeros((test.n_users, test.n_items), dtype=bool)
    likes = liked(test)
    found[test.user[likes], test.item[likes]] = True
    return found


def measure(
    fitted: Fitted, train: Ratings, test: Ratings, bounds: tuple[float, float]
) -> dict[str, float | None]:
    """Return all metrics; those of ratings are None if the model predicts none.

    Predicted ratings are clipped to the bounds, as they are before anybody sees them. Lists are
    made from scores that are not.
    """
    stars = None
    if fitted.ratings is not None:
        error = np.clip(fitted.ratings[test.user, test.item], *bounds) - raw(test)
        stars = float(np.sqrt(np.mean(error**2)))
    ndcg, recall = ranking_metrics(top_lists(fitted.scores, train), relevant_items(test))
    scaled = None if stars is None else stars / (test.high - test.low)
    return dict(zip(METRICS, (scaled, stars, ndcg, recall), strict=True))


# LensKit.


def _lenskit(scorer: str, *, predicts: bool = False, **fixed: Any) -> Callable[..., Fitted]:
    """Return what trains a scorer of LensKit, given as ``module:class``.

    As in LensKit's own pipelines, its bias model predicts what a scorer has no rating for.
    """
    module, _, name = scorer.partition(":")

    def fit(train: Ratings, options: Options, seed: int, users: Users) -> Fitted:
        import pandas as pd
        import structlog
        from lenskit.basic import BiasScorer
        from lenskit.data import ItemList, RecQuery, from_interactions_df
        from lenskit.training import TrainingOptions

        warnings.filterwarnings("ignore", "no query items")  # of users without training ratings
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        given = {**fixed, **options}
        if given.pop("learns_from", "all") == "liked":
            train = train.take(liked(train))
        model = getattr(importlib.import_module(f"lenskit.{module}"), name)(**given)
        columns = {"user_id": train.user, "item_id": train.item, "rating": raw(train)}
        data, fallback = from_interactions_df(pd.DataFrame(columns)), BiasScorer()
        for one in (model, fallback):
            one.train(data, TrainingOptions(rng=seed))
        history = data.interactions().matrix()
        items = ItemList(item_ids=np.arange(train.n_items))
        scores = np.full((train.n_users, train.n_items), np.nan, dtype=np.float32)
        ratings = scores.copy() if predicts else None
        for user in users.tolist():
            query = RecQuery(user_id=user, history_items=history.row_items(user))
            found = scores[user] = model(query, items).scores()
            if ratings is not None:
                backup = fallback(query, items).scores()
                ratings[user] = np.where(np.isnan(found), backup, found)
        return Fitted(scores, ratings)

    return fit


def lenskit_ndcg(lists: NDArray[np.int64], relevant: NDArray[np.bool_]) -> float:
    """Return the NDCG of these lists by LensKit, as the mean over users with anything relevant.

    By default LensKit gives the first two ranks the same weight; the offset makes it the binary
    logarithm of the rank plus 1, as in scikit-learn.
    """
    from lenskit.data import ItemList
    from lenskit.metrics import NDCG, LogRankWeight

    metric = NDCG(lists.shape[1], weight=LogRankWeight(offset=1))
    found = [
        metric.measure_list(
            ItemList(item_ids=shown, ordered=True), ItemList(item_ids=np.flatnonzero(likes))
        )
        for shown, likes in zip(lists, relevant, strict=True)
        if likes.any()
    ]
    return float(np.mean(found))


# Surprise.


def _surprise(name: str, **fixed: Any) -> Callable[..., Fitted]:
    """Return what trains an algorithm of Surprise.

    Its own ``predict`` takes one pair at a time. All pairs are computed at once from the trained
    parameters instead, and a sample of them is compared with ``predict``.
    """

    def fit(train: Ratings, options: Options, seed: int, users: Users) -> Fitted:
        import pandas as pd
        import surprise

        columns = {"user": train.user, "item": train.item, "rating": raw(train)}
        reader = surprise.Reader(rating_scale=(float(raw(train).min()), train.high))
        data = surprise.Dataset.load_from_df(pd.DataFrame(columns), reader)
        known = data.build_full_trainset()
        algorithm = getattr(surprise, name)(**_surprise_options(name, fixed | options, seed))
        algorithm.fit(known)
        ratings = _all_pairs(algorithm, known, train, users)
        generator = np.random.default_rng([seed, 0x5A3])
        some = generator.choice(users, 200), generator.integers(train.n_items, size=200)
        expected = [algorithm.predict(*pair, clip=False).est for pair in zip(*some, strict=True)]
        differ = np.abs(ratings[some] - expected) > 1e-4
        if differ.mean() > 0.01:  # neighbours that are equally near may be others
            raise SystemExit(f"{name}: {differ.mean():.0%} of the predictions are not Surprise's")
        return Fitted(ratings, ratings)

    return fit


def _surprise_options(name: str, options: Options, seed: int) -> Options:
    if name == "KNNBaseline":
        similar = {"name": "pearson_baseline", "user_based": False, "shrinkage": 100}
        return {**options, "sim_options": similar, "verbose": False}
    return {**options, "random_state": seed}


def _all_pairs(algorithm: Any, known: Any, train: Ratings, wanted: Users) -> Matrix:
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


BOTH = ("all", "liked")
MODELS: dict[str, Model] = {
    "LensKit popularity": Model(
        "ranking", _lenskit("basic:PopScorer", score="count"), {"learns_from": BOTH}
    ),
    "LensKit Bias": Model(
        "ratings", _lenskit("basic:BiasScorer", predicts=True), {"damping": (5.0, 10.0, 20.0)}
    ),
    "LensKit ItemKNN": Model(
        "ratings",
        _lenskit("knn:ItemKNNScorer", predicts=True, feedback="explicit", min_nbrs=2),
        {"max_nbrs": (20, 60)},
    ),
    "LensKit UserKNN": Model(
        "ratings",
        _lenskit("knn:UserKNNScorer", predicts=True, feedback="explicit", min_nbrs=2),
        {"max_nbrs": (30, 60)},
    ),
    "LensKit BiasedMF (ALS)": Model(
        "ratings",
        _lenskit("als:BiasedMFScorer", predicts=True, epochs=10, user_embeddings="prefer"),
        {"embedding_size": (20, 50), "regularization": (0.1, 0.2, 0.4)},
    ),
    "Surprise SVD": Model(
        "ratings",
        _surprise("SVD", n_factors=100),
        {"n_epochs": (20, 60), "reg_all": (0.02, 0.1)},
    ),
    "Surprise SVD++": Model("ratings", _surprise("SVDpp", cache_ratings=True), only=("ml-100k",)),
    "Surprise KNNBaseline": Model("ratings", _surprise("KNNBaseline"), {"k": (20, 40)}),
    "Surprise NMF": Model("ratings", _surprise("NMF")),
    "LensKit ItemKNN, implicit": Model(
        "ranking",
        _lenskit("knn:ItemKNNScorer", feedback="implicit"),
        {"max_nbrs": (20, 100), "learns_from": BOTH},
    ),
    "LensKit UserKNN, implicit": Model(
        "ranking",
        _lenskit("knn:UserKNNScorer", feedback="implicit"),
        {"max_nbrs": (30, 100, 300), "learns_from": BOTH},
    ),
    "LensKit ImplicitMF (ALS)": Model(
        "ranking",
        _lenskit("als:ImplicitMFScorer", epochs=10, user_embeddings="prefer"),
        {"embedding_size": (10, 25, 50), "weight": (4.0, 40.0), "learns_from": BOTH},
    ),
    "LensKit EASE": Model(
        "ranking",
        _lenskit("knn:EASEScorer"),
        {"regularization": (100.0, 400.0, 1600.0), "learns_from": BOTH},
    ),
}


# What is measured, kept and shown.


@lru_cache(maxsize=1)
def split_of(dataset: str, seed: int) -> Split:
    """Return the split that a run of bgtplanner with this seed has."""
    return split_ratings(
        load_ratings(dataset),
        seed=seed,
        rounds=1,
        train_share=0.8,
        within=dataset_info(dataset).split_within,
        initial_share=1.0,
    )


def choose(model: Model, split: Split, seed: int, bounds: tuple[float, float]) -> Options:
    """Return the options that do best on a part of the training ratings."""
    every = model.options()
    if len(every) == 1:
        return every[0]
    kept, aside = split.set_aside(ASIDE, seed=seed)
    some = np.unique(aside.train.user)
    users = np.random.default_rng([seed, 0xC0]).permutation(some)[:COMPARED].astype(np.int64)
    held_out = aside.train.take(np.isin(aside.train.user, users))

    def loss(options: Options) -> float:
        fitted = model.fit(kept.train, options, seed, users)
        found = measure(fitted, kept.train, held_out, bounds)
        value = found["rmse"] if model.task == "ratings" else found["ndcg_at_10"]
        assert value is not None
        return value if model.task == "ratings" else -value

    return min(every, key=loss)


def run(name: str, dataset: str, seed: int) -> dict[str, Any]:
    """Choose the options of a model, train it and return what came of it."""
    started, model, split = time.monotonic(), MODELS[name], split_of(dataset, seed)
    bounds = dataset_info(dataset).raw_range or (split.train.low, split.train.high)
    options = choose(model, split, seed, bounds)
    fitted = model.fit(split.train, options, seed, np.arange(split.train.n_users))
    found: dict[str, Any] = {"options": options}
    found |= measure(fitted, split.train, split.test, bounds)
    if name.startswith("LensKit"):
        lists = top_lists(fitted.scores, split.train)
        ndcg = lenskit_ndcg(lists, relevant_items(split.test))
        if abs(ndcg - found["ndcg_at_10"]) > 1e-6:
            raise SystemExit(f"{name}: NDCG is {ndcg} by LensKit, {found['ndcg_at_10']} by us")
    return found | {"seconds": round(time.monotonic() - started, 1)}


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of all data sets that have results."""
    from benchmarks.paper.table import short, table
    from bgtplanner.runs.statistics import estimate

    def cell(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
        found = estimate([row[metric] for row in rows if row[metric] is not None])
        if found is None:
            return "–"
        digits = 3 if metric == "rmse_stars" else 4
        half = "" if found.half is None else f" ± {short(found.half, digits)}"
        return short(found.mean, digits) + half

    parts = []
    for dataset, title in DATASETS.items():
        measured = results["datasets"].get(dataset, {})
        rows = [["model", "made for", "RMSE", "in stars", "NDCG@10", "recall@10", "seeds"]]
        for name, model in MODELS.items():
            if found := [*measured.get(name, {}).values()]:
                cells = [cell(found, metric) for metric in METRICS]
                rows.append([name, model.task, *cells, str(len(found))])
        if len(rows) > 1:
            parts.append(f"{title}:\n\n{table(rows)}")
    known = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"Without any privacy ({known}), mean ± half the 95 % interval:\n\n" + "\n\n".join(
        parts
    )


def _versions() -> dict[str, str]:
    found = {}
    for module, package in LIBRARIES.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{package} is left out: {error}", file=sys.stderr)
        else:
            found[package] = importlib.metadata.version(package)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nonprivate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="ml-100k", choices=DATASETS, help="%(default)s")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="default %(default)s")
    parser.add_argument("--models", help="only those whose names contain one of these words")
    parser.add_argument("--out", type=Path, default=Path("build/nonprivate.json"))
    given = parser.parse_args(arguments)
    try:
        seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {given.seeds}: expected whole numbers with commas, such as 0,1,2")
    words = given.models.split(",") if given.models else [""]
    versions = _versions()
    libraries = tuple(
        word
        for word, package in (("LensKit", "lenskit"), ("Surprise", "scikit-surprise"))
        if package in versions
    )
    names = [
        name
        for name, model in MODELS.items()
        if name.startswith(libraries)
        and any(word.lower() in name.lower() for word in words)
        and (not model.only or given.dataset in model.only)
    ]
    results = {"versions": {}, "datasets": {}}
    if given.out.exists():
        results = json.loads(given.out.read_text(encoding="utf-8"))
    results["versions"] |= versions
    measured = results["datasets"].setdefault(given.dataset, {})
    for seed, name in itertools.product(seeds, names):
        rows = measured.setdefault(name, {})
        if str(seed) in rows:
            continue
        try:
            rows[str(seed)] = run(name, given.dataset, seed)
        except BGTPlannerError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{given.dataset}, seed {seed}, {name}: {rows[str(seed)]}", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(markdown(results) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
