"""Synthetic ratings of any size, drawn from a known model, that look like MovieLens.

A rating is ``3.65 + user bias + item bias + user factors . item factors + noise``, rounded to one
of 1..5. Few items get most of the ratings and few users give most of them. The spreads are such
that the errors of simple predictors have the proportions of those on MovieLens 100K.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError

_MEAN = 3.65
_USER_SPREAD = 0.50
_ITEM_SPREAD = 0.54
_TASTE_SPREAD = 0.45
_ACTIVITY_SPREAD = 0.9  # standard deviation of the logarithm of a user's number of ratings
_RACED = 1 << 21  # pairs of user and item that race at a time, to bound the memory
_GENRE_FROM = 0.6  # standard deviations from which an item belongs to one: about a quarter
_NOUNS = {  # by genre: the first two are high and low on the first hidden factor, and so on
    "Comedy": "Understudy Picnic Landlady Honeymoon Accordion Nephew Casserole Umbrella",
    "Thriller": "Witness Alibi Corridor Passenger Verdict Signal Basement Bystander",
    "Romance": "Letter Waltz Promise Harbour Violin Balcony Postcard Orchid",
    "Science Fiction": "Orbit Colony Satellite Android Nebula Reactor Antenna Replica",
    "Family": "Kite Snowman Lighthouse Circus Otter Bakery Scarecrow Carousel",
    "Crime": "Heist Informer Inspector Pawnshop Getaway Forger Warehouse Bookkeeper",
    "Adventure": "Caravan Compass Expedition Summit Lagoon Airship Glacier Ferry",
    "Drama": "Inheritance Harvest Schoolmaster Mill Widow Homecoming Quarry Apprentice",
    "Animation": "Teapot Marionette Beetle Balloonist Hedgehog Tinsmith Pebble Comet",
}
_ADJECTIVES = (
    "Last Quiet Borrowed Crooked Paper Hidden Seventh Distant Reluctant Golden Broken Northern "
    "Midnight Unlikely Forgotten Second Restless Invisible Careful Stolen"
)


def synthetic_ratings(
    *, clients: int = 1000, items: int = 500, ratings_per_client: int = 40, dim: int = 4,
    users_per_client: int = 1, noise: float = 0.87, choosy: float = 0.0, reluctance: float = 0.0,
    genre_share: float = 0.5, seed: int = 0, name: str = "synthetic", catalogue: bool = False,
) -> Ratings:  # fmt: skip
    """Draw ratings that are a function of the arguments alone: settings of ``synthetic`` and more.

    Per standard deviation of its fit to a `choosy` user, an item's log-odds change by as much;
    they are less by the `reluctance`. With a `catalogue`, items have titles and genres, which can
    tell the `genre_share` of the variance of a hidden factor. The ratings are the same, to the
    bit. Memory grows with the number of ratings, time with the users times the items.

    Example:
        >>> synthetic_ratings(clients=50, items=30, ratings_per_client=10)
        Ratings(synthetic: 500 ratings, 50 users, 30 items, 50 clients)
    """
    most = items * users_per_client
    fits = users_per_client <= ratings_per_client <= most
    ConfigError.unless(fits, "ratings_per_client", ratings_per_client, f"at most {most}")
    generator = np.random.default_rng([seed, 0x5E7])
    users = clients * users_per_client
    counts = _activity(generator, users, items, clients * ratings_per_client)
    popularity: NDArray[Any] = 1 / (np.arange(items) + 0.02 * items + 1)  # Zipf, with a flat head
    generator.shuffle(popularity)
    popularity /= popularity.sum()
    user_bias = generator.normal(0, _USER_SPREAD, users)
    # Items that many people rated have higher ratings on average, as in every real set.
    liking = np.log(popularity) - np.log(popularity).mean()
    liking /= max(float(liking.std()), 1e-12)
    item_bias = _ITEM_SPREAD * (0.5 * liking + np.sqrt(0.75) * generator.normal(0, 1, items))
    strength = 1.0 / np.arange(1, dim + 1)  # falling, as the singular values of real sets do
    strength *= _TASTE_SPREAD / max(float(np.linalg.norm(strength)), 1e-12)
    user_factors = generator.normal(0, np.sqrt(strength), (users, dim)).astype(np.float32)
    item_factors = generator.normal(0, np.sqrt(strength), (items, dim)).astype(np.float32)
    user = np.repeat(np.arange(users, dtype=np.int32), counts)
    odds = choosy / max(float(np.linalg.norm(strength)), 1e-12) * user_factors
    item = _draw_items(generator, counts, popularity, odds, item_factors, reluctance)
    # Popular items would shift the mean.
    stars = user_bias[user] + (item_bias[item] - float(popularity @ item_bias)) + _MEAN
    for factor in range(dim):  # less memory than all factors at once
        stars += user_factors[user, factor] * item_factors[item, factor]
    stars += generator.normal(0, noise, len(stars))
    value = (np.clip(np.rint(stars), 1, 5) / 5).astype(np.float32)
    return Ratings(
        user=user, item=item, value=value, time=None,
        client_of_user=np.repeat(np.arange(clients, dtype=np.int32), users_per_client),
        n_items=items, low=0.0, high=5.0, user_labels=np.arange(users),
        item_labels=np.arange(items), name=name,
        public=frozenset({"scale", "catalogue"}),  # both are settings, not data
        catalogue=_catalogue(item_factors, genre_share, seed) if catalogue else None,
    )  # fmt: skip


def _catalogue(item_factors: NDArray[np.float32], share: float, seed: int) -> Catalogue:
    """Return titles, and two genres for each hidden factor: high and low on it, with noise."""
    items, dim = item_factors.shape
    generator = np.random.default_rng([seed, 0xCA7])  # its own: the ratings stay as they are
    spread = np.maximum(item_factors.std(axis=0, dtype=np.float64), 1e-12)
    noise = generator.normal(0, np.sqrt(1 - share), (items, dim))
    seen = np.sqrt(share) * item_factors / spread + noise
    marks = np.stack([seen > _GENRE_FROM, seen < -_GENRE_FROM], axis=2).reshape(items, 2 * dim)
    genres = [*_NOUNS, *(f"Genre {number}" for number in range(len(_NOUNS) + 1, 2 * dim + 1))]
    return Catalogue(
        labels=np.arange(items).astype(str),
        titles=np.array(_titles(marks[:, : len(_NOUNS)], generator)),
        features=marks.astype(np.float32),
        names=tuple(f"genre: {genre}" for genre in genres[: 2 * dim]),
    )


def _titles(marks: NDArray[np.bool_], generator: np.random.Generator) -> list[str]:
    """Return a title for each item: an adjective, a noun of its first genre, maybe a number."""
    adjectives, nouns = _ADJECTIVES.split(), [row.split() for row in _NOUNS.values()]
    first = np.where(marks.any(axis=1), marks.argmax(axis=1) if marks.size else 0, -1)
    drawn = generator.integers([len(adjectives), len(nouns[0])], size=(len(marks), 2))
    titles, sequels = list[str](), Counter[str]()
    for genre, (adjective, noun) in zip(first.tolist(), drawn.tolist(), strict=True):
        title = f"The {adjectives[adjective]} {nouns[genre][noun]}"
        sequels[title] += 1
        titles.append(f"{title} {sequels[title]}" if sequels[title] > 1 else title)
    return titles


def demo_ratings() -> Ratings:
    """Return the default data set: always the same 15,000 ratings, a minute on a laptop.

    People have four tastes, of which genres tell a good half. They take one item in fifty that
    suits them as an average one does, and every other one that suits them by 1.6 standard
    deviations more. As on MovieLens, lists learned without privacy are about twice as good as
    the popular one.
    """
    shape = {"clients": 300, "items": 300, "ratings_per_client": 50, "seed": 20_250_101}
    world = {"choosy": 2.5, "reluctance": 4.0, "genre_share": 0.6}
    return synthetic_ratings(**shape, **world, name="demo", catalogue=True)  # type: ignore[arg-type]


def _activity(
    generator: np.random.Generator, users: int, items: int, total: int
) -> NDArray[np.int64]:
    """Return ratings per user: log-normal, at least a fifth of the mean, `total` in sum."""
    weight = generator.lognormal(0, _ACTIVITY_SPREAD, users)
    least = max(1, total // users // 5)
    low, high = 0.0, items / float(weight.min())
    for _ in range(100):  # bisection, because clipping moves the mean
        middle = (low + high) / 2
        too_few = np.clip(weight * middle, least, items).sum() < total
        low, high = (middle, high) if too_few else (low, middle)
    exact = np.clip(weight * high, least, items)
    counts = np.floor(exact).astype(np.int64)
    raised = np.argsort(-np.where(counts < items, exact - counts, -1.0), kind="stable")
    counts[raised[: total - int(counts.sum())]] += 1
    return counts


def _draw_items(
    generator: np.random.Generator, counts: NDArray[np.int64], popularity: NDArray[np.float64],
    odds: NDArray[np.float32], item_factors: NDArray[np.float32], reluctance: float,
) -> NDArray[np.int32]:  # fmt: skip
    """Return distinct items for each user, ``counts[user]`` of them, sorted by user and item.

    Items come along by popularity, and are taken with a chance whose log-odds are the product of
    the user's `odds` and the item's factors, less the reluctance. The first to arrive are taken,
    which is the same as drawing without replacement.
    """
    items, found = len(popularity), list[NDArray[np.int32]]()
    height = max(1, _RACED // items)
    for first in range(0, len(counts), height):
        wanted = counts[first : first + height, None]
        arrival = generator.exponential(size=(len(wanted), items)) / popularity
        if odds.any():
            likes = odds[first : first + height] @ item_factors.T
            arrival /= np.maximum(expit(likes - reluctance), 1e-12)
        taken = np.zeros(arrival.shape, dtype=bool)
        np.put_along_axis(taken, arrival.argsort(axis=1), np.arange(items) < wanted, axis=1)
        found.append(np.nonzero(taken)[1].astype(np.int32))
    return np.concatenate(found)
