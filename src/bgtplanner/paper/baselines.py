"""The paper's baselines: schedules and clips of others that it compares its planner with."""
# ruff: noqa: ARG002 - what is known in advance looks at nothing

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, number
from bgtplanner.planning.plan import Explanation, Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy
from bgtplanner.planning.schedules import Schedule
from bgtplanner.privacy.mechanisms import SENSITIVITY

_CLIPS = (1e-9, 1e9)  # bounds on a clip that follows a norm
_SHAPES, _MODES = ("geometric", "saturating"), ("literal", "normalised")


@dataclass(kw_only=True, eq=False, repr=False)
class Adpml(Schedule):
    """A heuristic schedule with more noise early and less noise late (Pan and Feng 2023).

    The epsilon of a round grows from `smallest` to `largest`. Two shapes fit what is known of the
    formula, smallest / rate^k and one whose gap to `largest` shrinks by the factor `rate`; each is
    either literal (it ends when the ledger refuses) or normalised (it lasts for all rounds).
    """

    smallest: float = 1.0
    largest: float = 10.0
    rate: float = 0.9
    shape: Literal["geometric", "saturating"] = "geometric"
    mode: Literal["literal", "normalised"] = "literal"

    def __post_init__(self) -> None:
        for name, known in (("shape", _SHAPES), ("mode", _MODES)):
            value = getattr(self, name)
            ConfigError.unless(value in known, name, value, " or ".join(known))
        super().__post_init__()
        if self.mode == "literal":
            self._charges = np.tile(self._weights()[:, None], len(self.budgets.classes))

    def _weights(self) -> Floats:
        most = number("largest", self.largest, 1e-9, 1e6)
        rate = number("rate", self.rate, 1e-9, 1 - 1e-9)
        least = number("smallest", self.smallest, 1e-9, most)
        steps = np.arange(self.rounds, dtype=np.float64)
        if self.shape == "geometric":
            epsilon = np.minimum(most, least * rate ** -np.minimum(steps, 5000))
        else:
            epsilon = most - (most - least) * rate**steps
        if self.accountant.counts_epsilons:
            return epsilon
        # Squares add up, halved in the zero-concentrated reading of the source and of the paper.
        return np.asarray(epsilon**2 / (2 if self.accountant.name == "gaussian/rdp" else 1))


@dataclass(kw_only=True, eq=False, repr=False)
class Adap(LedgerPolicy):
    """An adaptive clip, and noise that falls while the loss falls (Fu, Chen and Han 2022).

    The norm of a client's noisy gradient, times `factor`, is its next clip. The noise of the first
    round is `noise_multiplier` times the clip (not the sensitivity): 6 in the source, 2 in the
    code published with the paper. It changes by `decay` after three improvements in a row.
    """

    follows_norms = True
    remembers = (*LedgerPolicy.remembers, "clip", "_sigma", "_gains", "_own")
    noise_multiplier: float = 6.0
    decay: float = 0.9999
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sigma = number("noise_multiplier", self.noise_multiplier, 1e-9, 1e6)
        number("decay", self.decay, 1e-9, 1.0)
        number("factor", self.factor, 1e-9, 1e6)
        self._gains: list[float] = []
        self._own: Floats | None = None

    def saw(self, norm: float | Floats) -> None:
        """Set the next clip from the norm of the last noisy gradient, of each client if seen."""
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
        sensitivity = SENSITIVITY[self.ledger.neighbours]  # in units of the clip
        charge = float(self.accountant.charge(self._sigma / sensitivity))
        every = np.full(len(self.budgets.classes), charge)
        why = Explanation(f"noise {self._sigma:.4g} over the clip")
        return Choice(every, clip=self.clip, own_clip=self._own, why=why)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Lower the noise after three improvements in a row."""
        self._gains = [*self._gains[-2:], 0.0 if reward is None else reward]
        if len(self._gains) == 3 and min(self._gains) > 0:
            self._sigma *= self.decay
