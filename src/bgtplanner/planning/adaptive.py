"""ADPML and ADAP, the adaptive schedules that the paper compares its planner with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats
from bgtplanner.planning.plan import Explanation, Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy
from bgtplanner.planning.schedules import Schedule
from bgtplanner.privacy.mechanisms import SENSITIVITY

_CLIPS = (1e-9, 1e9)  # bounds on a clip that follows a norm


@dataclass(kw_only=True, eq=False, repr=False)
class Adpml(Schedule):
    """A heuristic schedule with more noise early and less noise late (Pan and Feng 2023).

    The charge grows from `smallest` to `largest`. No source that we could read gives the formula.
    Two shapes fit its description; each of them is either literal (it ends when the ledger
    refuses) or normalised (the shape is kept and the budget lasts for all rounds).

    Args:
        smallest: Epsilon of the first round.
        largest: The most epsilon that a round may cost.
        rate: How fast the charge grows, between 0 and 1.
        shape: ``geometric``: smallest / rate^k; ``saturating``: the gap to `largest` shrinks by
            the factor `rate` per round.
        mode: ``literal`` or ``normalised``.
    """

    smallest: float = 1.0
    largest: float = 10.0
    rate: float = 0.9
    shape: Literal["geometric", "saturating"] = "geometric"
    mode: Literal["literal", "normalised"] = "literal"
    _why = Explanation("by a growing curve")

    def weights_of_rounds(self) -> Floats:
        """Return each round's epsilon as a charge.

        That is epsilon itself where epsilons add up, and epsilon^2 where squares add up (halved
        under the source's zero-concentrated reading, as the paper's accountant does).
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

    def charges_of_rounds(self) -> Floats:
        """Return the curve as it is, or scaled so that it just fits the budget."""
        if self.mode == "normalised":
            return super().charges_of_rounds()
        return np.tile(self.weights_of_rounds()[:, None], len(self.budgets.classes))


@dataclass(kw_only=True, eq=False, repr=False)
class Adap(LedgerPolicy):
    """An adaptive clip, and noise that falls while the loss falls (Fu, Chen and Han 2022).

    The source clips the gradient of each sample, adds noise to their sum and divides by their
    number; the norm of the result is the client's next clip. Where each tensor and item row is
    clipped on its own, they take the place of the samples.

    Args:
        noise_multiplier: Noise of the first round over the clip, as in the source (not over
            the sensitivity). The source's default is 6; the code published with the paper has 2.
        decay: Factor by which the noise changes after three improvements in a row.
        factor: The clip is this factor times the norm of the last noisy gradient; see
            :meth:`saw`.
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
        """Set the next clip from the norm of the last noisy gradient, at no further charge.

        With one norm per client, as in the source, every client has a clip of its own. Where only
        the mean over the clients can be seen, all have the same.
        """
        # Each clip follows the noise of the last one: it must not grow without bound.
        clip = np.clip(self.factor * np.asarray(norm, np.float64), *_CLIPS)
        if np.ndim(norm) == 0:
            self.clip = float(clip) if np.isfinite(norm) and norm > 0 else self.clip
            return
        before = np.ones(len(self.budgets)) if self._own is None else self._own
        fits = np.isfinite(norm) & (np.asarray(norm) > 0)
        self._own = np.where(fits, clip / self.clip, before)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge what the present noise costs."""
        del context, left
        sensitivity = SENSITIVITY[self.ledger.neighbours]  # in units of the clip
        charge = float(self.accountant.charge(self._sigma / sensitivity))
        every = np.full(len(self.budgets.classes), charge)
        why = Explanation(f"noise {self._sigma:.4g} over the clip")
        return Choice(every, clip=self.clip, own_clip=self._own, why=why)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Lower the noise after three improvements in a row."""
        del plan
        self._gains = [*self._gains[-2:], 0.0 if reward is None else reward]
        if len(self._gains) == 3 and min(self._gains) > 0:
            self._sigma *= self.decay

    def _state(self) -> dict[str, Any]:
        own = {"sigma": self._sigma, "clip": self.clip, "gains": self._gains}
        own["own"] = None if self._own is None else self._own.tolist()
        return super()._state() | own

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._sigma, self.clip, self._gains = state["sigma"], state["clip"], list(state["gains"])
        self._own = None if state["own"] is None else np.array(state["own"], dtype=np.float64)
