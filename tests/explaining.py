"""Ratings of items with titles and genres, by people who have a taste for one, for tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings

GENRES = ("Drama", "Horror", "War")


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
