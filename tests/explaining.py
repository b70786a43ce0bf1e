"""A learner that explains its ranking, and ratings of items with titles and genres, for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.learner import Local
from bgtplanner.published.reasons import Explanation

GENRES = ("Drama", "Horror", "War")


@dataclass(frozen=True, kw_only=True)
class Explaining(Biases):
    """The bias model, ranking also by how often a user picks a genre."""

    def rank(
        self, shared: Shared, local: Local, interactions: Interactions, users: Array
    ) -> Array:
        """Quality, popularity, and each user's interest in the features."""
        why = self.explain(shared, local, interactions, users)
        of_all = shared.items[:, 1] + shared.items[:, 0] / 0.1
        return of_all[None] + why.interest @ interactions.features.T

    def explain(
        self, shared: Shared, local: Local, interactions: Interactions, users: Array
    ) -> Explanation:
        """Say so."""
        del local
        features = interactions.features
        had = interactions.present[:, None] * features[interactions.item]
        share = features.mean(axis=0)
        picked = interactions.sum_by_user(had) + share
        number = interactions.sum_by_user(interactions.present) + 1.0
        interest = jnp.log(picked / number[:, None] / share)
        return Explanation(
            popularity=shared.items[:, 1], quality=shared.items[:, 0], interest=interest[users]
        )


def genre_ratings(users: int = 12, items: int = 24, seed: int = 3) -> Ratings:
    """Every user rates mostly items of one genre, and likes them better; users are named."""
    generator = np.random.default_rng(seed)
    genre = np.arange(items) % len(GENRES)
    rows = []
    for user in range(users):
        chance = np.where(genre == user % len(GENRES), 0.6, 0.1)
        for item in np.flatnonzero(generator.random(items) < chance):
            liked = genre[item] == user % len(GENRES)
            rows.append(
                (f"user {user:02d}", item, 3 + 1.5 * liked + generator.integers(-1, 2) / 2)
            )
    who, what, value = zip(*rows, strict=True)
    ratings = Ratings.from_arrays(
        who, what, value, items=range(items), scale=(0, 5), name="genres"
    )
    return replace(ratings, catalogue=genre_catalogue(items))


def genre_catalogue(items: int = 24, prefix: str = "") -> Catalogue:
    """Titles and one genre each."""
    names = [f"{prefix}{item}" for item in range(items)]
    return Catalogue.from_frame(
        {
            "item": names,
            "title": [f"The {name}th" for name in names],
            "genre": [GENRES[item % len(GENRES)] for item in range(items)],
        }
    )
