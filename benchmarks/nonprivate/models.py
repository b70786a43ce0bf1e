"""The models, with the settings to choose from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.nonprivate.lenskit_models import fit_lenskit
from benchmarks.nonprivate.measure import Fitted
from benchmarks.nonprivate.surprise_models import fit_surprise
from bgtplanner.data.ratings import Ratings

Options = dict[str, Any]
Users = NDArray[np.int64]


class Model(NamedTuple):
    """A standard model.

    Attributes:
        task: What it is made for, and so what its settings are chosen by.
        fit: Trains it on ratings, with options and a seed, and asks it about some users; what it
            says about others is not used.
        fixed: Options that are not chosen; all others have the defaults of the library.
        settings: Values of each option to choose from.
        only: Data sets that it is run on, or all.
    """

    task: Literal["ratings", "ranking"]
    fit: Callable[[Ratings, Options, int, Users], Fitted]
    fixed: Mapping[str, Any] = {}
    settings: Mapping[str, Sequence[Any]] = {}
    only: tuple[str, ...] = ()

    def train(self, ratings: Ratings, options: Options, seed: int, users: Users) -> Fitted:
        """Train it with these options; what a model that ranks says of ratings is left out."""
        fitted = self.fit(ratings, {**self.fixed, **options}, seed, users)
        return fitted if self.task == "ratings" else fitted._replace(ratings=None)

    def options(self) -> list[Options]:
        """Return every combination of its settings."""
        return [
            dict(zip(self.settings, values, strict=True))
            for values in itertools.product(*self.settings.values())
        ]


BOTH = ("all", "liked")
PEARSON = {"name": "pearson_baseline", "user_based": False, "shrinkage": 100}
ALS = {"epochs": 10, "user_embeddings": "prefer"}  # those from training, not solved again
MODELS: dict[str, Model] = {
    "LensKit popularity": Model(
        "ranking",
        partial(fit_lenskit, "basic:PopScorer"),
        {"score": "count"},
        {"learns_from": BOTH},
    ),
    "LensKit Bias": Model(
        "ratings", partial(fit_lenskit, "basic:BiasScorer"), {}, {"damping": (5.0, 10.0, 20.0)}
    ),
    "LensKit ItemKNN": Model(
        "ratings",
        partial(fit_lenskit, "knn:ItemKNNScorer"),
        {"feedback": "explicit", "min_nbrs": 2},
        {"max_nbrs": (20, 60)},
    ),
    "LensKit UserKNN": Model(
        "ratings",
        partial(fit_lenskit, "knn:UserKNNScorer"),
        {"feedback": "explicit", "min_nbrs": 2},
        {"max_nbrs": (30, 60)},
    ),
    "LensKit BiasedMF (ALS)": Model(
        "ratings",
        partial(fit_lenskit, "als:BiasedMFScorer"),
        ALS,
        {"embedding_size": (20, 50), "regularization": (0.1, 0.2, 0.4)},
    ),
    "Surprise SVD": Model(
        "ratings",
        partial(fit_surprise, "SVD"),
        {"n_factors": 100},
        {"n_epochs": (20, 60), "reg_all": (0.02, 0.1)},
    ),
    "Surprise SVD++": Model(
        "ratings", partial(fit_surprise, "SVDpp"), {"cache_ratings": True}, only=("ml-100k",)
    ),
    "Surprise KNNBaseline": Model(
        "ratings",
        partial(fit_surprise, "KNNBaseline"),
        {"sim_options": PEARSON},
        {"k": (20, 40)},
    ),
    "Surprise NMF": Model("ratings", partial(fit_surprise, "NMF")),
    "LensKit ItemKNN, implicit": Model(
        "ranking",
        partial(fit_lenskit, "knn:ItemKNNScorer"),
        {"feedback": "implicit"},
        {"max_nbrs": (20, 100), "learns_from": BOTH},
    ),
    "LensKit UserKNN, implicit": Model(
        "ranking",
        partial(fit_lenskit, "knn:UserKNNScorer"),
        {"feedback": "implicit"},
        {"max_nbrs": (30, 100, 300), "learns_from": BOTH},
    ),
    "LensKit ImplicitMF (ALS)": Model(
        "ranking",
        partial(fit_lenskit, "als:ImplicitMFScorer"),
        ALS,
        {"embedding_size": (10, 25, 50), "weight": (4.0, 40.0), "learns_from": BOTH},
    ),
    "LensKit EASE": Model(
        "ranking",
        partial(fit_lenskit, "knn:EASEScorer"),
        {},
        {"regularization": (100.0, 400.0, 1600.0), "learns_from": BOTH},
    ),
}
