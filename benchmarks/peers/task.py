"""The task that all sides do: clients' gradients of the factorization model, clipped, summed.

Every client solves for its own user part, which stays with it, and takes the gradient of half its
mean squared error with respect to the item rows. That is its upload: as long as there are items,
zero where it rated none. It is clipped as a whole, all uploads are added up, and every coordinate
of the sum gets Gaussian noise. Here it is written in NumPy, client by client and in double
precision, as what all sides are compared with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.factorization import Factorization

MODEL = Factorization()
NOISE_MULTIPLIER = 1.0
_SEED = 0


class Size(NamedTuple):
    """How large a set of made-up ratings is."""

    clients: int
    items: int
    ratings_per_client: int


SIZES = {"ML-100K": Size(943, 1682, 106), "ML-1M": Size(6040, 3706, 165)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Ratings by client, the item rows that were sent out, and the bound on an upload.

    Attributes:
        item: Item of each rating; those of a client lie together.
        value: The rating, from 0 to 1.
        ends: Where each client's ratings end.
        rows: Item rows, the bias first, ``[n_items, 1 + dim]``.
        clip: Bound on the Euclidean norm of an upload.
    """

    item: NDArray[np.int64]
    value: NDArray[np.float32]
    ends: NDArray[np.int64]
    rows: NDArray[np.float32]
    clip: float

    @classmethod
    def of(cls, ratings: Ratings) -> Task:
        """Return the task for ratings whose users are the clients, clipping about half of them."""
        order = np.argsort(ratings.user, kind="stable")
        shape = ratings.n_items, 1 + MODEL.dim
        drawn = np.random.default_rng(_SEED).normal(0, MODEL.init_scale, shape)
        made = cls(
            item=ratings.item[order].astype(np.int64),
            value=ratings.value[order].astype(np.float32),
            ends=np.cumsum(np.bincount(ratings.user, minlength=ratings.n_users)),
            rows=drawn.astype(np.float32),
            clip=1.0,
        )
        some = range(0, made.clients, 1 + made.clients // 500)
        norms = [np.linalg.norm(made.gradient(client)[1]) for client in some]
        return cls(**(vars(made) | {"clip": float(np.median(norms))}))

    @property
    def clients(self) -> int:
        return len(self.ends)

    @property
    def noise_std(self) -> float:
        return NOISE_MULTIPLIER * self.clip

    def ratings_of(self, client: int) -> slice:
        """Where the ratings of a client are."""
        return slice(self.ends[client - 1] if client else 0, self.ends[client])

    def gradient(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the items of a client, and the gradient with respect to their rows."""
        item, value = self.item[self.ratings_of(client)], self.value[self.ratings_of(client)]
        rows = self.rows[item].astype(np.float64)
        features = rows.copy()
        features[:, 0] = 1.0
        target = value - MODEL.mean - rows[:, 0]
        system = features.T @ features + np.diag(shrinkage())
        slope = np.linalg.solve(system, features.T @ target)
        error = target - features @ slope
        slope[0] = 1.0  # of the item's own bias
        return item, -error[:, None] * slope / max(len(item), 1)

    def clipped(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the items of a client, and its clipped gradient with respect to their rows."""
        item, gradient = self.gradient(client)
        norm = float(np.linalg.norm(gradient))
        return item, gradient * min(1.0, self.clip / max(norm, 1e-30))

    def upload(self, client: int) -> NDArray[np.float32]:
        """Return the clipped upload of a client, as long as there are items."""
        found = np.zeros(self.rows.shape, dtype=np.float32)
        np.add.at(found, *self.clipped(client))
        return found

    def sum(self, clients: Iterable[int] | None = None) -> NDArray[np.float64]:
        """Return the sum of clipped uploads before noise, of all clients or of some."""
        total = np.zeros(self.rows.shape)
        for client in range(self.clients) if clients is None else clients:
            np.add.at(total, *self.clipped(client))
        return total

    def save(self, path: Path) -> None:
        """Write it for other processes."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Task:
        """Read what was written by :meth:`save`."""
        with np.load(path) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        return cls(**(arrays | {"clip": float(arrays["clip"])}))


def shrinkage() -> list[float]:
    """Return the ridge weights of a user's part: of its bias, and of its factors."""
    return [MODEL.bias_shrinkage] + [MODEL.factor_shrinkage] * MODEL.dim


def apart(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return how far two sums are apart, relative to the length of the second."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
