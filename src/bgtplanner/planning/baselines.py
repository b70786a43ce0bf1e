"""What others do, and what nobody compares with: policies by a formula.

All of them play the same game on the same ledger, so that a comparison is one of allocation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import floats, number, reward_of, whole
from bgtplanner.planning.plan import Plan, Untold, Why
from bgtplanner.planning.policy import STATE_VERSION, Choice, LedgerPolicy, reading_state
from bgtplanner.privacy.accountants import default_rule, rule_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

__all__ = [
    "Adap",
    "Adpml",
    "Fixed",
    "Hindsight",
    "Hong",
    "Random",
    "TwoPhase",
    "Uniform",
    "Unlimited",
]

Floats = NDArray[np.float64]
Who = Budget | Budgets | None

_CLIPS = (1e-9, 1e9)  # that follow a norm


class Unlimited:
    """No privacy at all: FedSGD. No clip, no noise, no ledger.

    Args:
        budget: Ignored, as are all options but `rounds` and `clients`.
        clients: How many clients.
        rounds: How many rounds.
        clip: Bound on the norm of an upload; by default none.
    """

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        rounds: int,
        clip: float = float("inf"),
        ledger: Ledger | None = None,
        **_: Any,
    ) -> None:
        ConfigError.unless(bool(clip > 0), "clip", clip, "a positive number")
        known = len(budget) if isinstance(budget, Budgets) else len(ledger) if ledger else 1
        self.clients = whole("clients", clients or known, 1, 10**9)
        self.rounds, self.clip = whole("rounds", rounds, 1, 10**9), float(clip)
        self.round = 0
        self._untold = Untold()

    def ask(
        self, context: ArrayLike | None = None, *, fingerprint: bytes | None = None
    ) -> Plan | None:
        """The next round, free of charge."""
        del context, fingerprint
        if self.round >= self.rounds:
            return None
        plan = Plan(
            round=self.round,
            rule=None,
            largest_clip=self.clip,
            charge_by_class=np.zeros(1),
            participants=np.ones(self.clients, dtype=bool),
            why=Why("no privacy"),
        )
        self._untold.add(plan)
        self.round += 1
        return plan

    def tell(
        self, plan: Plan, reward: float | None = None, participants: ArrayLike | None = None
    ) -> None:
        """Nothing to learn and nothing to settle."""
        del participants
        plan, _ = self._untold.check(plan), reward_of(reward)
        self._untold.remove(plan)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain data that JSON can hold."""
        clip = None if np.isinf(self.clip) else self.clip
        own = {"clients": self.clients, "rounds": self.rounds, "clip": clip}
        played = {"round": self.round, "pending": self._untold.state_dict()}
        return {"version": STATE_VERSION} | own | played

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again."""
        del ledger
        with reading_state(state):
            clip = float("inf") if state["clip"] is None else float(state["clip"])
            policy = cls(None, state["clients"], rounds=state["rounds"], clip=clip)
            policy.round = whole("state: round", state["round"], 0, policy.rounds)
            policy._untold = Untold.from_state(state["pending"], policy.round)
        return policy


class Uniform(LedgerPolicy):
    """The same charge every round: DPSGD with the moments accountant (Abadi et al. 2016)."""

    learns = False

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """An even share of the whole budget."""
        del context, left
        return Choice(self._even, why=Why("an even share"))


class Fixed(LedgerPolicy):
    """Any schedule that is known beforehand.

    Args:
        weights: One a round; the budget is divided in these proportions. 0 skips the round.
        **options: See :class:`LedgerPolicy`; `rounds` is the number of weights.

    Example:
        >>> schedule = Fixed(Budget(1.0, 1e-5), 3, weights=[1, 3], mechanism="laplace")
        >>> [round(schedule.ask().charge, 3) for _ in range(2)]
        [0.25, 0.75]
    """

    learns = False

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        weights: ArrayLike,
        rounds: int | None = None,
        **options: Any,
    ) -> None:
        shape = np.asarray(weights, dtype=np.float64)
        fits = shape.ndim == 1 and len(shape) >= 1 and bool(np.isfinite(shape).all())
        fits = fits and bool((shape >= 0).all() and shape.sum() > 0)
        ConfigError.unless(fits, "weights", "these", "numbers of 0 or more, not all 0")
        agree = rounds is None or rounds == len(shape)
        ConfigError.unless(agree, "rounds", rounds, f"{len(shape)}, the number of weights")
        super().__init__(budget, clients, rounds=len(shape), **options)
        self._charges = self._spread(shape / shape.max())

    def _spread(self, weights: Floats) -> Floats:
        """Charges ``[rounds, classes]`` in proportion to the weights that just fit the budget."""
        used = weights[weights > 1e-9]
        rows = []
        for budget in self.budgets.classes:
            limits = self.rule.limit_ticks(budget)
            low, high = 0.0, self.rule.capacity(budget)
            for _ in range(60):  # the largest factor with which the whole schedule fits
                middle = (low + high) / 2
                charges = np.maximum(middle * used, 2.0**-43)
                fits = (self.rule.sum_ticks(charges).sum(axis=1) <= limits).any()
                low, high = (middle, high) if fits else (low, middle)
            rows.append(np.where(weights > 1e-9, np.maximum(low * weights, 2.0**-43), 0.0))
        return np.stack(rows, axis=1)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """The next entry of the schedule."""
        del context, left
        return Choice(self._charges[self.round], why=Why("by schedule"))


class Hong(Fixed):
    """Noise that falls as training converges (Hong, Wang and Zhou 2022).

    For a loss whose error shrinks by a factor ``decay`` a round, noise of round t is worth
    q_t = decay^(T - t). The best charges grow like the root of q_t for Gaussian noise, and like
    its cube root for Laplace noise whose charges are epsilons.

    Args:
        decay: 1 - 1/condition number, below 1; 0.95 suits a condition number of 20.
        **options: See :class:`LedgerPolicy`.
    """

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        rounds: int,
        decay: float = 0.95,
        **options: Any,
    ) -> None:
        ConfigError.unless(bool(0 < decay < 1), "decay", decay, "between 0 and 1")
        basic = options.get("accounting") or options.get("mechanism") or "gaussian"
        basic = getattr(options.get("ledger"), "rule", None) or basic
        name = str(getattr(basic, "name", basic))
        rule = rule_named(name) if "/" in name else default_rule(name)
        power = 1 / 3 if rule.sound and rule.counts_epsilons else 1 / 2
        ages = np.arange(max(int(rounds), 1) - 1, -1, -1, dtype=np.float64)
        weights = np.maximum(decay ** (power * ages), 1e-6)
        super().__init__(budget, clients, weights=weights, rounds=rounds, **options)


class TwoPhase(Fixed):
    """Save early, spend late (as Kiani et al. 2025): a step after part of the rounds.

    Args:
        switch: Share of the rounds in the first phase.
        ratio: Charge of a late round over that of an early one.
        **options: See :class:`LedgerPolicy`.
    """

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        rounds: int,
        switch: float = 0.5,
        ratio: float = 4.0,
        **options: Any,
    ) -> None:
        ConfigError.unless(bool(0 < switch < 1), "switch", switch, "between 0 and 1")
        ConfigError.unless(bool(0 < ratio < 1e6), "ratio", ratio, "a positive number")
        late = np.arange(max(int(rounds), 1)) >= round(switch * rounds)
        weights = np.where(late, ratio, 1.0)
        super().__init__(budget, clients, weights=weights, rounds=rounds, **options)


class Hindsight(Fixed):
    """The best fixed schedule, found by trying them all: to measure regret by, not to use.

    It needs the whole run once for each candidate, so it spends the budget many times over.
    """

    COUNTS = (1, 2, 3, 5, 10, 20, 30, 50, 100)

    @classmethod
    def candidates(cls, rounds: int) -> dict[str, Floats]:
        """Schedules by name: in so many of the rounds, evenly spread, flat or growing."""
        found = {}
        for count in sorted({min(count, rounds) for count in cls.COUNTS}):
            # The last of each stretch: what has arrived by then is used.
            at = np.ceil(np.arange(1, count + 1) * rounds / count).astype(int) - 1
            growing = np.geomspace(0.1, 1.0, count) if count > 1 else np.ones(1)
            for shape, charges in (("flat", np.ones(count)), ("growing", growing)):
                if count == 1 and shape == "growing":
                    continue
                weights = np.zeros(rounds)
                weights[at] = charges
                found[f"{count} {shape}"] = weights
        return found

    @classmethod
    def search(
        cls,
        play: Callable[[Fixed], float],
        make: Callable[[Floats], Fixed],
        rounds: int,
        names: Sequence[str] | None = None,
    ) -> tuple[str, float]:
        """Name and score of the best candidate.

        Args:
            play: Plays a policy to its end and returns its score; more is better.
            make: Makes a policy of weights.
            rounds: Of the schedules.
            names: Which candidates; by default all.
        """
        every = cls.candidates(rounds)
        scores = {name: play(make(every[name])) for name in names or every}
        best = max(scores, key=lambda name: scores[name])
        return best, scores[best]


class Random(LedgerPolicy):
    """A level drawn uniformly at random: what the paper's constants amount to.

    Args:
        levels: How many levels, evenly spaced from an even share of `rounds` to one of
            `min_rounds`.
        min_rounds: Fewest rounds; by default 70 % of `rounds`.
        **options: See :class:`LedgerPolicy`.
    """

    learns = False

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        rounds: int,
        levels: int = 5,
        min_rounds: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(budget, clients, rounds=rounds, **options)
        fewest = max(1, round(0.7 * rounds)) if min_rounds is None else min_rounds
        ConfigError.unless(1 <= fewest <= rounds, "min_rounds", min_rounds, f"1 to {rounds}")
        ConfigError.unless(1 <= levels <= 1000, "levels", levels, "1 to 1000")
        self.levels = np.linspace(self._even, self.even_charges(fewest), levels, axis=1)
        self._generator = np.random.default_rng([self.seed, 0x4A2D])

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Any level."""
        del context, left
        number = self.levels.shape[1]
        level = int(self._generator.integers(number))
        why = Why("any level", probability=(1 / number,) * number)
        return Choice(self.levels[:, level], level=level, why=why)

    def state_dict(self) -> dict[str, Any]:
        """What every policy has, and the generator."""
        return super().state_dict() | {"random": self._generator.bit_generator.state}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._generator.bit_generator.state = state["random"]


class Adpml(LedgerPolicy):
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
        **options: See :class:`LedgerPolicy`.
    """

    learns = False

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        rounds: int,
        smallest: float = 1.0,
        largest: float = 10.0,
        rate: float = 0.9,
        shape: Literal["geometric", "saturating"] = "geometric",
        mode: Literal["literal", "normalised"] = "literal",
        **options: Any,
    ) -> None:
        unless = ConfigError.unless
        unless(bool(0 < smallest <= largest < 1e6), "smallest", smallest, "0 to `largest`")
        unless(bool(0 < rate < 1), "rate", rate, "between 0 and 1")
        unless(shape in ("geometric", "saturating"), "shape", shape, "geometric or saturating")
        unless(mode in ("literal", "normalised"), "mode", mode, "literal or normalised")
        super().__init__(budget, clients, rounds=rounds, **options)
        steps = np.arange(rounds, dtype=np.float64)
        if shape == "geometric":
            epsilon = np.minimum(largest, smallest * rate ** -np.minimum(steps, 5000))
        else:
            epsilon = largest - (largest - smallest) * rate**steps
        self._charges = np.tile(self._of_epsilon(epsilon)[:, None], len(self.budgets.classes))
        if mode == "normalised":
            fair = Fixed(self.budgets, weights=self._charges[:, 0], accounting=self.rule)
            self._charges = fair._charges

    def _of_epsilon(self, epsilon: Floats) -> Floats:
        """A release's own epsilon as a charge.

        Epsilon itself where epsilons add up; where squares do, epsilon^2 (which the source's
        zero-concentrated reading halves, as the paper's accountant does).
        """
        if self.rule.counts_epsilons:
            return epsilon
        return epsilon**2 / (2 if self.rule.name == "gaussian/rdp" else 1)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """The next charge of the curve; the last one is what is left."""
        del context, left
        return Choice(self._charges[self.round], why=Why("by a growing curve"))


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
        **options: See :class:`LedgerPolicy`.
    """

    def __init__(
        self,
        budget: Who = None,
        clients: int | None = None,
        *,
        rounds: int,
        noise_multiplier: float = 6.0,
        decay: float = 0.9999,
        factor: float = 1.0,
        **options: Any,
    ) -> None:
        unless = ConfigError.unless
        unless(bool(0 < noise_multiplier < 1e6), "noise_multiplier", noise_multiplier, "above 0")
        unless(bool(0 < decay <= 1), "decay", decay, "above 0, at most 1")
        unless(bool(0 < factor < 1e6), "factor", factor, "above 0")
        super().__init__(budget, clients, rounds=rounds, **options)
        self._sigma, self._decay, self._factor = float(noise_multiplier), float(decay), factor
        self._gains: list[float] = []
        self._own: Floats | None = None

    def saw(self, norm: float | Floats) -> None:
        """The norm of the last noisy gradient, from which the next clip follows at no charge.

        Args:
            norm: Of each client's own, as in the source: every client then has a clip of its own.
                Where only the mean of all can be seen, of that one: then all have the same clip.
        """
        # Noise that feeds on itself must not end in infinity.
        clip = np.clip(self._factor * np.asarray(norm, np.float64), *_CLIPS)
        if np.ndim(norm) == 0:
            self.clip = float(clip) if np.isfinite(norm) and norm > 0 else self.clip
            return
        before = np.ones(len(self.budgets)) if self._own is None else self._own
        fits = np.isfinite(norm) & (np.asarray(norm) > 0)
        self._own = np.where(fits, clip / self.clip, before)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """The charge of the present noise."""
        del context, left
        charge = float(self.rule.charge(self._sigma / 2))
        every = np.full(len(self.budgets.classes), charge)
        why = Why(f"noise {self._sigma:.4g} over the clip")
        return Choice(every, clip=self.clip, own_clip=self._own, why=why)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """After three improvements in a row, less noise."""
        del plan
        self._gains = [*self._gains[-2:], 0.0 if reward is None else reward]
        if len(self._gains) == 3 and min(self._gains) > 0:
            self._sigma *= self._decay

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
