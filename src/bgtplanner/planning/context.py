"""Contexts: what a policy may look at before a round, at no further charge.

Others can be added to :data:`bgtplanner.planning.registry.CONTEXTS`; the paper's context is.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, floats, number


class Context:
    """What a policy is shown before each round of a federation; this one shows nothing."""

    remembers: ClassVar[tuple[str, ...]] = ()  # the attributes that it goes on from

    def __init__(self, values: int = 5, *, seed: int = 0) -> None:
        self.values, self.seed = values, seed

    def of(self, coordinator: Any) -> Floats | None:
        """Return what the policy of a coordinator may look at before the next round."""
        del coordinator
        return None

    def released(
        self, aggregate: ArrayLike, noise_std: float, reward: float | None = None
    ) -> None:
        """Take in what a round released."""


class ReleasedContext(Context):
    """Statistics of what has been released already, at no further charge.

    In the order of `names`: share of the rounds that are over; share of the budget that is left;
    logarithm of the last aggregate's norm; logarithm of its signal-to-noise ratio, as the noise in
    it is known; its cosine with the aggregate before; the last reward that was paid for. Norms are
    cut at 1e-12 and 1e12, ratios at 1e-3 and 1e9. What is not known yet is 0.

    Example:
        >>> context = ReleasedContext()
        >>> context.released([3.0, 4.0], noise_std=1.0)
        >>> context.released([4.0, 3.0], noise_std=1.0, reward=0.25)
        >>> context.vector(progress=0.5, left=0.75).round(2).tolist()
        [0.5, 0.75, 1.61, 2.44, 0.96, 0.25]
    """

    names = ("progress", "left", "log_norm", "log_signal_to_noise", "cosine", "reward")
    remembers = ("_known", "_direction")

    def __init__(self, values: int = 6, *, seed: int = 0) -> None:
        super().__init__(values, seed=seed)
        self._direction: Floats | None = None
        self._known = dict.fromkeys(self.names[2:], 0.0)

    def released(
        self, aggregate: ArrayLike, noise_std: float, reward: float | None = None
    ) -> None:
        """Take in a round's noisy aggregate, the noise in each coordinate, and a paid reward."""
        now = floats("aggregate", aggregate).ravel()
        ConfigError.unless(len(now) > 0, "aggregate", "empty", "at least one coordinate")
        noise = number("noise_std", noise_std, 0.0)
        paid = self._known["reward"] if reward is None else number("reward", reward)
        # Scaled by the largest coordinate first: squares of huge or tiny numbers would be lost.
        scale = float(np.max(np.abs(now)))
        direction = now / (scale or 1.0)
        length = math.sqrt(float(direction @ direction))
        direction = direction / (length or 1.0)
        log_norm = math.log(scale) + math.log(length) if scale > 0 else -math.inf
        before, cosine = self._direction, 0.0
        if before is not None and len(before) == len(now):
            cosine = float(np.clip(direction @ before, -1.0, 1.0))
        self._direction = direction
        self._known |= {
            "log_norm": _cut(log_norm, 1e-12, 1e12),
            "log_signal_to_noise": _cut(_log_signal(log_norm, noise, len(now)), 1e-3, 1e9),
            "cosine": cosine,
            "reward": paid,
        }

    def of(self, coordinator: Any) -> Floats:
        """Return the context; the budget left is that of the class with most of it left."""
        policy, left = coordinator.policy, coordinator.policy.share_left()
        most = float(left.max()) if len(left) else 1.0
        return self.vector(progress=coordinator.engine.next_round / policy.rounds, left=most)

    def vector(self, *, progress: float, left: float) -> Floats:
        """Return the context of the next round; shares of the rounds over, and of what is left."""
        shares = [number("progress", progress, 0.0, 1.0), number("left", left, 0.0, 1.0)]
        return np.array([*shares, *self._known.values()], dtype=np.float64)


def _log_signal(log_norm: float, noise_std: float, coordinates: int) -> float:
    """Return the logarithm of the signal's power over the power of the noise."""
    if log_norm == -math.inf or noise_std == 0:
        return log_norm if log_norm == -math.inf else math.inf
    log_ratio = 2 * (log_norm - math.log(noise_std)) - math.log(coordinates)
    signal = math.expm1(min(log_ratio, 100.0))
    return math.log(signal) if signal > 0 else -math.inf


def _cut(logarithm: float, low: float, high: float) -> float:
    return min(max(logarithm, math.log(low)), math.log(high))
