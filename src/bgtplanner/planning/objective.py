"""What is to be small: the error that people see over all rounds, or that of the last round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, floats

Kind = Literal["served", "last"]


@dataclass(frozen=True)
class Objective:
    """What a planner works towards.

    Attributes:
        kind: ``served``: the mean error over the rounds, since people are served in each of them.
            ``last``: the error after the last round.
        traffic: How many people are served in each round, in any unit: the weights of the mean. A
            short list is repeated, such as seven numbers for the days of a week.

    Example:
        >>> Objective("served", (1, 3)).of([0.2, 0.1, 0.2])
        0.14
    """

    kind: Kind = "served"
    traffic: Sequence[float] | None = None

    def __post_init__(self) -> None:
        ConfigError.unless(self.kind in get_args(Kind), "objective", self.kind, "served or last")
        if self.traffic is not None:
            given = floats("traffic", self.traffic, low=0.0)
            fits = given.ndim == 1 and bool(given.any()) and given.max() <= 1e12
            ConfigError.unless(fits, "traffic", "these", "numbers of 0 or more, not all 0")
            object.__setattr__(self, "traffic", tuple(given.tolist()))

    def weights(self, rounds: int) -> Floats:
        """Return how much each of so many rounds counts; the sum is 1."""
        found = np.resize(np.asarray(self.traffic or (1.0,)), rounds)
        if self.kind == "last" or not found.any():  # or traffic begins later: the end counts
            found = np.zeros(rounds)
            found[-1:] = 1.0
        return np.asarray(found / found.sum())

    def of(self, errors: ArrayLike) -> float:
        """Return the figure that is to be small, from the error after each round."""
        values = np.asarray(errors, dtype=np.float64)
        return float(self.weights(len(values)) @ values)
