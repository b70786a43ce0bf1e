"""Draw a level by its score: inverse gap weighting, as in the paper (eqs. 12 and 13)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, whole
from bgtplanner.planning.plan import Explanation
from bgtplanner.planning.policy import Choice, LedgerPolicy


def probabilities(scores: ArrayLike, gamma: float) -> Floats:
    """Return the probability of each level: the further behind the best, the less likely.

        p(a) = 1 / (A + gamma (best - score(a)))   for all but the best, which gets the rest

    The probability of the best level is never below 1/A.

    Example:
        >>> probabilities([1.0, 0.0], gamma=8.0).tolist()
        [0.9, 0.1]
    """
    array = np.asarray(scores, dtype=np.float64)
    fits = array.ndim == 1 and len(array) >= 1 and bool(np.isfinite(array).all())
    ConfigError.unless(fits, "scores", scores, "finite numbers, one per level")
    ConfigError.unless(0 <= gamma < math.inf, "gamma", gamma, "0 or a positive number")
    with np.errstate(over="ignore"):  # a gap is finite, so that a gamma of 0 gives 0
        gaps = np.minimum(array.max() - array, 1e308)
        share: Floats = 1.0 / (len(array) + gamma * gaps)
    best = int(array.argmax())
    share[best] = 0.0
    share[best] = 1.0 - share.sum()
    return share


@dataclass(kw_only=True, eq=False, repr=False)
class LevelPolicy(LedgerPolicy):
    """The common part of the policies that draw one of several levels, ``[classes, levels]``.

    The dearest level costs an even share of `min_rounds` rounds.
    """

    min_rounds: int | None = None

    remembers = (*LedgerPolicy.remembers, "_generator", "_contexts", "_width")
    label: ClassVar[str] = "own"  # which planner it is, as the first lines of a run say it
    _salt: ClassVar[int]  # seeds its random choices, together with the seed
    _fewest: ClassVar[float]  # default of `min_rounds`, as a share of the rounds

    def __post_init__(self) -> None:
        super().__post_init__()
        self.charges: Floats
        self._generator = np.random.default_rng([self.seed, self._salt])
        self._contexts: dict[int, Floats] = {}  # of plans that have not been told yet
        self._width: int | None = None  # of contexts, once there was one
        usual = self.fewest_rounds(self.rounds)
        fewest = usual if self.min_rounds is None else self.min_rounds
        self._dearest = self.even_charges(whole("min_rounds", fewest, 1, self.rounds))

    @classmethod
    def fewest_rounds(cls, rounds: int) -> int:
        """Return the default of `min_rounds`: a share of the rounds, so that it scales."""
        return max(1, round(cls._fewest * rounds))

    def keep(self, context: Floats) -> None:
        """Keep a context until its plan is told; refuse one of another length than before."""
        self._width = len(context) if self._width is None else self._width
        fits, expected = len(context) == self._width, f"{self._width} numbers, as before"
        ConfigError.unless(fits, "context", len(context), expected)
        self._contexts[self.round] = context

    def drawn(self, chance: Floats, **numbers: Floats) -> Choice:
        """Draw a level, each with its chance; return it with the numbers behind it."""
        level = int(self._generator.choice(len(chance), p=chance))
        numbers |= {"charges": self.charges.max(axis=0), "probability": chance}
        return self.choice(level, "drawn by score", **numbers)

    def choice(self, level: int, note: str, **numbers: Floats) -> Choice:
        """Return a level as a choice, with the numbers behind it."""
        why = Explanation(note, **{name: tuple(of.tolist()) for name, of in numbers.items()})
        return Choice(self.charges[:, level], level=level, why=why)
