"""How much privacy a client may spend in all, and how clients form classes of equal budgets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) that all releases of one client together must satisfy.

    The pair is a promise about everything that the client ever sends under this budget, however
    the charges are chosen, for the neighbouring relation of the ledger. The loss is at most
    epsilon, except with probability delta, which Gaussian noise needs to be positive.
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, least, below, expected in (
            ("epsilon", 1e-9, math.nextafter(1e5, math.inf), "a number from 1e-9 to 100,000"),
            ("delta", 0.0, 1.0, "a number from 0 to below 1"),
        ):
            value = getattr(self, name)
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                value = float(value)
            fits = isinstance(value, float) and least <= value < below
            ConfigError.unless(fits, name, value, expected)
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class Budgets:
    """Every client's budget: a few classes of equal ones, and the index of each client's.

    Example:
        >>> budgets = Budgets.shares("1:0.5,10:0.5", clients=4, delta=1e-5, seed=0)
        >>> [budget.epsilon for budget in budgets.classes], len(budgets)
        ([1.0, 10.0], 4)
    """

    classes: tuple[Budget, ...]
    class_of_client: NDArray[np.int32]

    def __post_init__(self) -> None:
        index = np.asarray(self.class_of_client)
        whole = index.ndim == 1 and np.issubdtype(index.dtype, np.integer)
        ConfigError.unless(whole, "class_of_client", index.dtype, "one whole number per client")
        ConfigError.unless(len(self.classes) > 0, "classes", self.classes, "at least one budget")
        inside, below = (index >= 0) & (index < len(self.classes)), len(self.classes)
        ConfigError.unless(
            bool(inside.all()), "class_of_client", "an index", f"indices below {below}"
        )
        object.__setattr__(self, "class_of_client", index.astype(np.int32))
        object.__setattr__(self, "classes", tuple(self.classes))

    def __len__(self) -> int:
        return len(self.class_of_client)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Budgets)
            and self.classes == other.classes
            and np.array_equal(self.class_of_client, other.class_of_client)
        )

    @classmethod
    def same(cls, budget: Budget, clients: int) -> Self:
        """Return the same budget for every client."""
        positive("clients", clients)
        return cls((budget,), np.zeros(clients, dtype=np.int32))

    @classmethod
    def per_client(cls, epsilons: ArrayLike, delta: float) -> Self:
        """Return one budget per client by its epsilon; equal ones form one class."""
        values = np.asarray(epsilons, dtype=np.float64)
        one_each = values.ndim == 1 and len(values) > 0
        ConfigError.unless(one_each, "epsilons", values.shape, "one number per client")
        distinct, index = np.unique(values, return_inverse=True)
        return cls(_budgets(distinct.tolist(), delta), index.astype(np.int32))

    @classmethod
    def shares(cls, text: str, clients: int, *, delta: float, seed: int) -> Self:
        """Return classes by share, as in ``--budgets 1:0.2,5:0.3,10:0.5``, assigned at random."""
        positive("clients", clients)
        expected = "EPSILON:SHARE,... with shares that sum to 1, such as 1:0.2,5:0.3,10:0.5"
        try:
            pairs = [map(float, entry.split(":")) for entry in text.split(",")]
            epsilons, weights = zip(*((epsilon, share) for epsilon, share in pairs), strict=True)
        except ValueError as error:
            raise ConfigError(f"budgets = {text!r}: expected {expected}") from error
        fits = all(0 < share <= 1 for share in weights) and abs(sum(weights) - 1) < 1e-9
        ConfigError.unless(fits, "budgets", text, expected)
        ends = np.round(np.cumsum(weights) * clients).astype(int)
        ordered = np.repeat(np.arange(len(ends)), np.diff(np.r_[0, ends]))
        index = np.random.default_rng([seed, 0xB0D6]).permutation(ordered)
        return cls(_budgets(epsilons, delta), index.astype(np.int32))


def positive(name: str, value: int) -> None:
    """Refuse what is not a whole number of at least 1."""
    whole = isinstance(value, int | np.integer) and value >= 1
    ConfigError.unless(bool(whole), name, value, "a whole number of at least 1")


def _budgets(epsilons: Sequence[float], delta: float) -> tuple[Budget, ...]:
    return tuple(Budget(epsilon, delta) for epsilon in epsilons)
