"""Families of made-up federations: half of them to tune with, half kept for the end.

A person rates items that are popular and suit them, and that are there at the time. How many items
there are, how steeply popularity falls, how strong tastes are, what features say, how many ratings
people have, when they come, and what protects their uploads differs from family to family. A
family and a seed are one federation. Whoever changes a constant of the planner looks at the
families for tuning; the others are played once, after the last change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings

_AXES = 4
_ACTIVITY = 0.9  # standard deviation of the logarithm of a person's number of ratings
_FEATURES = 12
_LASTS = 0.15  # how long an item is in season, and a person stays, as a share of the time

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """Federations of one kind.

    Attributes:
        people: The number of clients; each is one person.
        items: The size of the catalogue.
        ratings: The mean number of ratings per person.
        steep: The power by which popularity falls with an item's rank; 0: all are as popular.
        tastes: What an item's log-odds change by if it suits a person by one standard deviation.
        features: Whether public features of the items tell something about tastes.
        clicks: Whether there are clicks in place of stars.
        moves: ``still``: everything is there at once, and arrives in random order. ``joining``:
            people come over time. ``seasons``: items come and go. They arrive in order of time.
        epsilon: The budget of each person.
        settings: Further settings of a run.
    """

    people: int
    items: int
    ratings: float
    epsilon: float
    steep: float = 1.0
    tastes: float = 0.7
    features: Literal["good", "useless", "none"] = "none"
    clicks: bool = False
    moves: Literal["still", "joining", "seasons"] = "still"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def all_settings(self) -> dict[str, Any]:
        """What a run is told beyond the ratings."""
        order = "random" if self.moves == "still" else "time"
        return {"data.arrival": order, "privacy.epsilon": self.epsilon, **self.settings}

    def drawn(self, name: str, seed: int) -> Ratings:
        """Draw a federation of this family."""
        generator = np.random.default_rng([seed, 0x301D, len(name), *name.encode()])
        rank = generator.permutation(self.items)
        popularity = -self.steep * np.log(rank + 1 + 0.02 * self.items)
        people, items = (generator.normal(size=(of, _AXES)) for of in (self.people, self.items))
        strength = 1.0 / np.arange(1, _AXES + 1)
        fit = (people * strength / np.linalg.norm(strength)) @ items.T
        comes, season = generator.random(self.people), generator.random(self.items)
        odds = popularity + self.tastes * fit
        if self.moves == "seasons":
            apart = np.abs(comes[:, None] - season)
            odds = odds - 2.0 * np.minimum(apart, 1 - apart) / _LASTS
        who, what = _picked(odds, self._numbers(generator), generator)
        when = generator.random(len(who))
        if self.moves != "still":
            when = comes[who] + _LASTS * when
        own, liked = generator.normal(0, 0.5, self.people), generator.normal(0, 0.4, self.items)
        liked += 0.25 * (popularity - popularity.mean()) / max(float(popularity.std()), 1e-9)
        stars = 3.6 + own[who] + liked[what] + 0.6 * self.tastes * fit[who, what]
        stars = np.clip(np.rint(stars + generator.normal(0, 0.85, len(who))), 1, 5)
        value = None if self.clicks else stars
        scale = {} if self.clicks else {"scale": (0, 5)}
        found = Ratings.from_arrays(who, what, value, time=when, name=name, **scale)
        return found.with_catalogue(self._catalogue(items, generator))

    def _numbers(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return how many items each person rates: at least one, at most half of them."""
        vary = np.exp(_ACTIVITY * generator.normal(size=self.people))
        vary *= self.ratings / vary.mean()
        return np.clip(np.rint(vary), 1, self.items // 2).astype(np.int64)

    def _catalogue(self, items: Floats, generator: np.random.Generator) -> Catalogue:
        width = 0 if self.features == "none" else _FEATURES
        seen = generator.normal(size=(self.items, width))
        if self.features == "good":
            seen += 1.5 * items @ generator.normal(size=(_AXES, width)) / _AXES**0.5
        return Catalogue(
            labels=np.arange(self.items).astype(str),
            titles=None,
            features=(seen > 1.0).astype(np.float32),
            names=tuple(f"genre: {number}" for number in range(width)),
        )


def _picked(
    odds: Floats, numbers: NDArray[np.int64], generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return who rated what: each a number of items, drawn by their odds without replacement."""
    keys = odds + generator.gumbel(size=odds.shape)
    most = int(numbers.max())
    best = np.argpartition(-keys, most - 1, axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(keys, best, axis=1), axis=1)
    ranked = np.take_along_axis(best, order, axis=1)
    taken = np.arange(most) < numbers[:, None]
    return np.nonzero(taken)[0], ranked[taken]


_LOCAL = {"privacy.trust": "local", "privacy.mechanism": "auto"}
_LAPLACE = {"privacy.mechanism": "laplace"}

TUNING = {
    "few people": Family(150, 400, 40, 10.0, features="good"),
    "few ratings": Family(3000, 900, 2, 10.0, steep=1.2, features="good"),
    "large catalogue": Family(400, 3000, 60, 1.0, tastes=1.0, features="good"),
    "clicks": Family(1200, 600, 12, 3.0, tastes=1.2, clicks=True),
    "people joining": Family(800, 300, 20, 3.0, moves="joining"),
    "seasons": Family(800, 500, 25, 10.0, moves="seasons", features="useless"),
    "laplace": Family(900, 300, 25, 10.0, tastes=0.4, settings=_LAPLACE),
    "local": Family(2000, 200, 12, 20.0, tastes=0.0, settings=_LOCAL),
    "flat": Family(700, 400, 40, 10.0, steep=0.0, tastes=1.3),
    "scarce": Family(500, 300, 15, 0.5),
}

KEPT = {
    "small catalogue": Family(600, 80, 10, 1.0, tastes=0.3),
    "few clicks": Family(3500, 1000, 2.5, 3.0, steep=1.3, clicks=True, features="good"),
    "long histories": Family(300, 1200, 150, 3.0, tastes=0.9, features="useless"),
    "clicks in season": Family(1000, 500, 15, 10.0, clicks=True, moves="seasons"),
    "strangers joining": Family(2500, 700, 3, 3.0, moves="joining", features="good"),
    "unequal budgets": Family(
        900, 350, 30, 5.0, tastes=1.0, settings={"privacy.budgets": "1:0.4,5:0.4,20:0.2"}
    ),
    "laplace, few ratings": Family(2500, 400, 3, 3.0, settings=_LAPLACE),
    "local, clicks": Family(3000, 150, 8, 10.0, clicks=True, settings=_LOCAL),
    "plenty": Family(1500, 250, 40, 20.0, steep=0.6, tastes=1.0),
    "one of many": Family(250, 2500, 25, 0.5, steep=1.4, features="good"),
}
