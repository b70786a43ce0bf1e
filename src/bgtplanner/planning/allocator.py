"""From scores to a level: inverse gap weighting, as in the paper (eqs. 18 and 19)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import context_of
from bgtplanner.planning.plan import Floats, Why
from bgtplanner.planning.policy import Choice, LedgerPolicy

__all__ = ["LevelPolicy", "gamma_growing", "probabilities"]


def probabilities(scores: ArrayLike, gamma: float) -> Floats:
    """Probability of each level: the best one most likely, the others by how far they lag.

        p(a) = 1 / (A + gamma (best - score(a)))   for all but the best, which gets the rest

    The best level never gets less than 1/A.

    Example:
        >>> probabilities([1.0, 0.0], gamma=8.0).tolist()
        [0.9, 0.1]
    """
    values = np.asarray(scores, dtype=np.float64)
    fits = values.ndim == 1 and len(values) >= 1 and bool(np.isfinite(values).all())
    ConfigError.unless(fits, "scores", scores, "finite numbers, one a level")
    ConfigError.unless(bool(0 <= gamma < np.inf), "gamma", gamma, "0 or a positive number")
    best = int(values.argmax())
    with np.errstate(over="ignore"):
        gaps = np.minimum(values[best] - values, 1e308)  # a number, also times a gamma of 0
        share = 1.0 / (len(values) + gamma * gaps)
    share[best] = 0.0
    share[best] = 1.0 - share.sum()
    return np.asarray(share)


def gamma_growing(levels: int, round: int, rate: float = 64.0) -> float:  # noqa: A002
    """The planner's default, rate * A * sqrt(t).

    Trying other levels costs about (A - 1) / gamma a round, whatever the gaps are. The theory's
    constant covers an adversary; a smooth process seen at t points is known far better than that.
    What trying costs still adds up to the order of sqrt(T).
    """
    return float(rate * levels * np.sqrt(round + 1.0))


class LevelPolicy(LedgerPolicy):
    """What policies share that draw one of several levels, each a charge for each class.

    Attributes:
        charges: Of each level, ``[classes, levels]``.
    """

    charges: Floats
    _salt: ClassVar[int]  # of its random choices, with the seed
    _fewest: ClassVar[float]  # `min_rounds` by default, as a share of the rounds

    def __post_init__(self) -> None:
        super().__post_init__()
        self._generator = np.random.default_rng([self.seed, self._salt])
        self._contexts: dict[int, Floats] = {}  # of plans that were not told yet

    def dearest(self, min_rounds: int | None) -> Floats:
        """An even share of the fewest rounds that the budget may be spent in."""
        fewest = max(1, round(self._fewest * self.rounds)) if min_rounds is None else min_rounds
        fits = isinstance(fewest, int | np.integer) and 1 <= fewest <= self.rounds
        ConfigError.unless(fits, "min_rounds", min_rounds, f"1 to rounds = {self.rounds}")
        return self.even_charges(int(fewest))

    def keep(self, context: Floats) -> None:
        """Keep a context until its plan is told, if it is as long as those before."""
        width = self.width()
        same = width is None or len(context) == width
        ConfigError.unless(same, "context", len(context), f"{width} numbers, as before")
        self._contexts[self.round] = context

    def width(self) -> int | None:
        """How many numbers a context has, by those seen so far; None if there were none."""
        return next((len(row) for row in self._contexts.values()), None)

    def choice(self, level: int, note: str, **numbers: Floats) -> Choice:
        """One of the levels, and the numbers behind it."""
        said = {name: tuple(values.tolist()) for name, values in numbers.items()}
        return Choice(self.charges[:, level], level=level, why=Why(note, **said))

    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold."""
        contexts = {str(key): value.tolist() for key, value in self._contexts.items()}
        drawn = {"random": self._generator.bit_generator.state}
        return super().state_dict() | {"contexts": contexts} | drawn

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._generator.bit_generator.state = state["random"]
        self._contexts = {int(key): context_of(row) for key, row in state["contexts"].items()}

    def check_widths(self, *contexts: Floats) -> None:
        """Refuse contexts in a state that are not all of one length."""
        same = all(len(row) == self.width() for row in (*self._contexts.values(), *contexts))
        ConfigError.unless(same, "state: contexts", "rows", f"of {self.width()} numbers each")
