"""ADPML and ADAP: adaptive schedules that the paper compares with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import floats, number
from bgtplanner.planning.plan import Floats, Plan, Why
from bgtplanner.planning.policy import Choice, LedgerPolicy
from bgtplanner.planning.schedules import Schedule

__all__ = ["Adap", "Adpml"]

_CLIPS = (1e-9, 1e9)  # that follow a norm


@dataclass(kw_only=True, eq=False, repr=False)
class Adpml(Schedule):
    """More noise early, less late, by a heuristic (Pan and Feng 2023).

    The charge grows from `smallest` to `largest`. The formula is in no source we could read; of
    the readings that fit its description two shapes are here, each literal (it ends when the
    ledger says so) or normalised (the shape is kept and the budget lasts all rounds).

    Args:
        smallest: Epsilon of the first round.
        largest: Epsilon that is never exceeded.
        rate: How fast it grows, between 0 and 1.
        shape: ``geometric``: smallest / rate^k; ``saturating``: largest minus what shrinks by
            `rate` a round.
        mode: ``literal`` or ``normalised``.
    """

    smallest: float = 1.0
    largest: float = 10.0
    rate: float = 0.9
    shape: Literal["geometric", "saturating"] = "geometric"
    mode: Literal["literal", "normalised"] = "literal"
    _why = Why("by a growing curve")

    def weights_of_rounds(self) -> Floats:
        """A release's own epsilon, as a charge.

        Epsilon itself where epsilons add up; where squares do, epsilon^2 (which the source's
        zero-concentrated reading halves, as the paper's accountant does).
        """
        unless, least, most, rate = ConfigError.unless, self.smallest, self.largest, self.rate
        unless(bool(0 < least <= most < 1e6), "smallest", least, "0 to `largest`")
        unless(bool(0 < rate < 1), "rate", rate, "between 0 and 1")
        fits = self.shape in ("geometric", "saturating")
        unless(fits, "shape", self.shape, "geometric or saturating")
        fits = self.mode in ("literal", "normalised")
        unless(fits, "mode", self.mode, "literal or normalised")
        steps = np.arange(self.rounds, dtype=np.float64)
        if self.shape == "geometric":
            epsilon = np.minimum(most, least * rate ** -np.minimum(steps, 5000))
        else:
            epsilon = most - (most - least) * rate**steps
        if self.accountant.counts_epsilons:
            return epsilon
        return np.asarray(epsilon**2 / (2 if self.accountant.name == "gaussian/rdp" else 1))

    def charges(self) -> Floats:
        """The curve as it is, or so that it just fits the budget."""
        if self.mode == "normalised":
            return super().charges()
        return np.tile(self.weights_of_rounds()[:, None], len(self.budgets.classes))


@dataclass(kw_only=True, eq=False, repr=False)
class Adap(LedgerPolicy):
    """Adaptive clip, and noise that falls while the loss falls (Fu, Chen and Han 2022).

    The source clips one sample's gradient at a time, adds noise to their sum and divides by their
    number; a client's next clip is the norm of what results. Where each tensor and item row is
    clipped on its own, these take the place of the samples.

    Args:
        noise_multiplier: Of the first round, over the clip as in the source (not over 2 * clip).
            6 is the source's default; the code that was published with the paper has 2.
        decay: Factor of the noise after three improvements in a row.
        factor: The clip is this times the norm of the last noisy gradient (see :meth:`saw`).
    """

    follows_norms = True
    noise_multiplier: float = 6.0
    decay: float = 0.9999
    factor: float = 1.0

    def __post_init__(self) -> None:
        sigma, unless = self.noise_multiplier, ConfigError.unless
        unless(bool(0 < sigma < 1e6), "noise_multiplier", sigma, "above 0")
        unless(bool(0 < self.decay <= 1), "decay", self.decay, "above 0, at most 1")
        unless(bool(0 < self.factor < 1e6), "factor", self.factor, "above 0")
        super().__post_init__()
        self._sigma = float(sigma)
        self._gains: list[float] = []
        self._own: Floats | None = None

    def saw(self, norm: float | Floats) -> None:
        """The norm of the last noisy gradient, from which the next clip follows at no charge.

        Args:
            norm: Of each client's own, as in the source: every client then has a clip of its own.
                Where only the mean of all can be seen, of that one: then all have the same clip.
        """
        # Noise that feeds on itself must not end in infinity.
        clip = np.clip(self.factor * np.asarray(norm, np.float64), *_CLIPS)
        if np.ndim(norm) == 0:
            self.clip = float(clip) if np.isfinite(norm) and norm > 0 else self.clip
            return
        before = np.ones(len(self.budgets)) if self._own is None else self._own
        fits = np.isfinite(norm) & (np.asarray(norm) > 0)
        self._own = np.where(fits, clip / self.clip, before)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """The charge of the present noise."""
        del context, left
        charge = float(self.accountant.charge(self._sigma / 2))
        every = np.full(len(self.budgets.classes), charge)
        why = Why(f"noise {self._sigma:.4g} over the clip")
        return Choice(every, clip=self.clip, own_clip=self._own, why=why)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """After three improvements in a row, less noise."""
        del plan
        self._gains = [*self._gains[-2:], 0.0 if reward is None else reward]
        if len(self._gains) == 3 and min(self._gains) > 0:
            self._sigma *= self.decay

    def state_dict(self) -> dict[str, Any]:
        """What every policy has, the noise, the clip and the latest rewards."""
        own = {"sigma": self._sigma, "clip": self.clip, "gains": self._gains}
        own["own"] = None if self._own is None else self._own.tolist()
        return super().state_dict() | own

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._sigma = number("state: sigma", state["sigma"], 1e-300, 1e6)
        self.clip = number("state: clip", state["clip"], 1e-80, 1e80)
        self._gains = [number("state: gains", gain) for gain in state["gains"]]
        if (own := state.get("own")) is not None:
            self._own = floats("state: own", own, (len(self.budgets),), 1e-300, 1e300)
