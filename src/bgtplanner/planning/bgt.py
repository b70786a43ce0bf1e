"""BGTplanner: predictor, constrainer and allocator behind ask and tell (paper, Algorithms 1, 3).

Levels are shares of the budget, the same for every class of clients: level a costs a client a
fixed part of what it may spend in all. Two settings of the same planner:

* the default: rewards and contexts standardised, one price in the unit of the rewards, kept right
  by replaying the latest contexts, a level that skips the round, levels below an even share, and
  no initial stage but trying each level once;
* :meth:`BGTPlanner.of_paper`: the paper's constants, with which levels are drawn almost uniformly,
  and its formulas repaired; as they stand they are in :mod:`bgtplanner.planning.literal`.

The printed sign of the penalty rewards spending; this is the one that penalises it (Han et al.
2023): score = predicted reward + price * (allowance - cost).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import gamma_growing, gamma_of_paper, probabilities
from bgtplanner.planning.constrainer import Constrainer, margin_of_paper, solve_programme
from bgtplanner.planning.given import context_of, floats
from bgtplanner.planning.given import number as a_number
from bgtplanner.planning.policy import Choice, LedgerPolicy, Plan, Why
from bgtplanner.planning.predictor import Predictor
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

__all__ = ["BGTPlanner"]

Floats = NDArray[np.float64]

_REPLAYED = 32  # latest contexts by which the price is kept right
_TRIED = 2.1  # even shares: what costs more is not tried for the sake of trying
_LARGEST = 1e90  # rewards count as no larger: their squares must be numbers
_REFRESH = 8  # rounds after which their rewards are predicted anew


class BGTPlanner(LedgerPolicy):
    """Plan each round's charge by what it is expected to bring and what budget is worth.

    Args:
        budget: What every client may spend, or all clients' budgets.
        clients: How many clients.
        rounds: Most rounds there can be, T.
        levels: How many levels, A; or the levels themselves, in even shares of `rounds`.
        min_rounds: Fewest rounds the budget may be spent in: the dearest level costs an even share
            of that many. By default an eighth of `rounds`.
        cheapest: The cheapest level, in even shares of `rounds`: below 1 leaves room to spend more
            in other rounds.
        spacing: Whether levels are evenly spaced or grow by a constant factor.
        skip: Whether there is a level that sits the round out.
        initial_rounds: How often each level is tried at first, T0.
        stage: ``short``: after trying the levels up to two even shares the planner decides.
            ``paper``: all levels are tried, then T0 more at random, from which the radius is set
            by the linear programme.
        gamma: How much the best level is preferred: a number, or None for one that grows with the
            rounds.
        radius: The largest price of the dearest level, in units of the rewards' size; by default
            rounds over what the budget would last for at that level. With 0 budget is free.
        step: Step size of mirror descent, as a share of the allowance.
        predictor: Options of :class:`bgtplanner.planning.predictor.Predictor`.
        **options: See :class:`bgtplanner.planning.policy.LedgerPolicy`.

    Example:
        >>> planner = BGTPlanner(Budget(10, 1e-5), clients=943, rounds=3, seed=0)
        >>> spent = 0.0
        >>> while (plan := planner.ask()) is not None:
        ...     spent += plan.charge
        ...     planner.tell(plan, reward=0.01)
        >>> spent <= planner.rule.capacity(Budget(10, 1e-5))
        True
    """

    def __init__(
        self,
        budget: Budget | Budgets | None = None,
        clients: int | None = None,
        *,
        rounds: int,
        levels: int | Sequence[float] = 5,
        min_rounds: int | None = None,
        cheapest: float = 0.5,
        spacing: Literal["linear", "geometric"] = "geometric",
        skip: bool = True,
        initial_rounds: int = 1,
        stage: Literal["short", "paper"] = "short",
        gamma: float | None = None,
        radius: float | None = None,
        step: float = 0.1,
        predictor: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        **options: Any,
    ) -> None:
        super().__init__(budget, clients, rounds=rounds, ledger=ledger, **options)
        unless = ConfigError.unless
        listed = None if isinstance(levels, int | np.integer) else np.asarray(levels, float)
        number = int(levels) if listed is None else listed.size  # type: ignore[arg-type]
        unless(1 <= number <= 1000, "levels", levels, "1 to 1000")
        fewest = max(1, round(rounds / 8)) if min_rounds is None else min_rounds
        unless(1 <= fewest <= rounds, "min_rounds", min_rounds, f"1 to rounds = {rounds}")
        unless(bool(0 < cheapest <= 1), "cheapest", cheapest, "above 0, at most 1")
        unless(spacing in ("linear", "geometric"), "spacing", spacing, "linear or geometric")
        unless(stage in ("short", "paper"), "stage", stage, "short or paper")
        unless(initial_rounds >= 1, "initial_rounds", initial_rounds, "at least 1")
        unless(isinstance(skip, bool | np.bool_), "skip", skip, "true or false")
        unless(gamma is None or bool(0 <= gamma < np.inf), "gamma", gamma, "0 or more, or None")
        self.initial_rounds = initial_rounds
        self.stage = stage
        self.skip = bool(skip)
        self.gamma = gamma
        self.levels = self._levels(number, fewest, cheapest, spacing, listed)
        default = {"fit": True, "length_scale": 4.0, "noise": 3.0}
        self.predictor = Predictor(**(default if predictor is None else dict(predictor)))
        self._position, self._usual = self._positions()
        dear = self.levels[0, int(skip) :] > _TRIED * self._even[0]
        self._tried = number if stage == "paper" else number - int(dear.sum())
        self._generator = np.random.default_rng([self.seed, 0xB67])
        shares = np.stack([self.share_of(row) for row in self.levels.T], axis=1)
        self._unit = shares.max(axis=1)  # the dearest level: costs are measured in it
        self._costs = shares / self._unit[:, None]
        if radius is None:
            # A round brings at most one unit of reward, so budget is worth at most this.
            radius = float((self.rounds * self._unit).max())
        self.constrainer = Constrainer(resources=len(shares), radius=radius, step=step)
        self._contexts: dict[int, Floats] = {}  # of plans that were not told yet
        self._latest: deque[Floats] = deque(maxlen=_REPLAYED)
        self._expected = np.zeros((0, self.levels.shape[1]))  # what was predicted in each of them
        self._trials: list[tuple[Floats, float]] = []  # contexts and errors of the paper's stage

    @classmethod
    def of_paper(
        cls,
        budget: Budget | Budgets | None = None,
        clients: int | None = None,
        *,
        rounds: int = 100,
        min_rounds: int | None = None,
        ledger: Ledger | None = None,
        **options: Any,
    ) -> Self:
        """The planner with the paper's constants: A = 5, T0 = 5, s = 0.2, alpha = 0.001.

        Its formulas are repaired; :mod:`bgtplanner.planning.literal` has them as they stand. By
        default the dearest level costs an even share of 0.7 of the rounds.
        """
        number = clients or len(budget if isinstance(budget, Budgets) else ledger or ())
        settings: dict[str, Any] = {
            "levels": 5,
            "cheapest": 1.0,
            "spacing": "linear",
            "skip": False,
            "initial_rounds": 5,
            "stage": "paper",
            "step": 2 * np.log(2) / np.sqrt(rounds),
            "gamma": gamma_of_paper(5, rounds, number),
            "predictor": {"standardize": False, "noise": 0.1},
            "min_rounds": max(1, round(0.7 * rounds)) if min_rounds is None else min_rounds,
        }
        settings |= {"rounds": rounds, "ledger": ledger} | options
        return cls(budget, clients, **settings)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Draw a level by its score, or try out levels in the initial stage."""
        width = self._width()
        same = width is None or len(context) == width
        ConfigError.unless(same, "context", len(context), f"{width} numbers, as before")
        self._contexts[self.round] = context
        first, number = int(self.skip), self.levels.shape[1]
        tried = self._tried * self.initial_rounds
        if self.round < tried:
            level = first + self.round // self.initial_rounds
            return self._choice(level, Why("trying out every level"))
        if self._is_trial(self.round):
            level = first + int(self._generator.integers(number - first))
            return self._choice(level, Why("any level: finding out what budget is worth"))
        predicted = self._predict(context[None])[0]
        unit = self._reward_unit()
        costs, allowance = np.where(left[:, None] > 0, self._costs, 0.0), self._allowance()
        if self.stage == "short":
            self._replay(context, predicted, unit, costs, allowance)
        prices = self.constrainer.prices()
        price = prices @ costs
        score = predicted / unit + prices @ allowance - price
        gamma = gamma_growing(number, self.round) if self.gamma is None else self.gamma
        chance = probabilities(score, gamma)
        level = int(min(np.searchsorted(chance.cumsum(), self._generator.random()), number - 1))
        why = Why(
            note="drawn by score",
            charges=tuple(self.levels.max(axis=0).tolist()),
            predicted=tuple(predicted.tolist()),
            price=tuple((price * unit).tolist()),
            score=tuple((score * unit).tolist()),
            probability=tuple(chance.tolist()),
        )
        return self._choice(level, why)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Teach the predictor, and let the price follow what was spent."""
        context = self._contexts.pop(plan.round, np.zeros(0))
        level = plan.level or 0
        if reward is not None and not plan.skip:
            inputs = np.append(self._position[level], context)
            reward = min(max(reward, -_LARGEST), _LARGEST)
            if self._is_trial(plan.round):  # the error of what was expected before it was seen
                expected = float(self.predictor.expect(inputs[None], time=plan.round)[0])
                self._trials.append((context, (expected - reward) ** 2))
            usual = self._usual[level]
            self.predictor.observe(
                inputs, time=plan.round, reward=reward / usual, doubt=1 / usual**2
            )
            if self._is_trial(plan.round) and not self._is_trial(plan.round + 1):
                self._set_radius()
        if self.stage == "paper":
            self.constrainer.update(self._costs[:, level], self._allowance())

    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold."""
        return super().state_dict() | {
            "predictor": self.predictor.state_dict(),
            "constrainer": self.constrainer.state_dict(),
            "random": self._generator.bit_generator.state,
            "contexts": {str(key): value.tolist() for key, value in self._contexts.items()},
            "latest": [context.tolist() for context in self._latest],
            "expected": self._expected.tolist(),
            "trials": [[context.tolist(), error] for context, error in self._trials],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self.predictor.load_state_dict(state["predictor"])
        self.constrainer.load_state_dict(state["constrainer"])
        self._generator.bit_generator.state = state["random"]
        self._contexts = {int(key): context_of(row) for key, row in state["contexts"].items()}
        self._latest.extend(context_of(row) for row in state["latest"])
        shape = (len(self._latest), self.levels.shape[1])
        self._expected = floats("state: expected", state["expected"], shape)
        self._trials = [
            (context_of(row), a_number("state: trials", error, 0.0))
            for row, error in state["trials"]
        ]
        rows = [*self._contexts.values(), *self._latest, *(row for row, _ in self._trials)]
        same = all(len(row) == self._width() for row in rows)
        ConfigError.unless(same, "state: contexts", "rows", f"of {self._width()} numbers each")

    def _width(self) -> int | None:
        """How many numbers a context has, by those seen so far; None if there were none."""
        if len(self.predictor):
            return len(self.predictor.length_scales) - 1
        seen = next(iter((*self._contexts.values(), *self._latest)), None)
        return None if seen is None else len(seen)

    def _levels(
        self, number: int, fewest: int, cheapest: float, spacing: str, listed: Floats | None
    ) -> Floats:
        """Charges, ``[classes, levels]``; the first is 0 if rounds may be skipped."""
        low, high = cheapest * self._even, self.even_charges(fewest)
        if listed is not None:
            rising = bool((np.diff(listed) > 0).all() and listed[0] > 0 and listed[-1] < np.inf)
            ConfigError.unless(rising, "levels", listed.tolist(), "rising positive even shares")
            grid = self._even[:, None] * listed
        elif number == 1:
            grid = low[:, None]
        else:
            space = np.linspace if spacing == "linear" else np.geomspace
            grid = np.asarray(space(low, high, number, axis=1))
        return np.hstack([np.zeros((len(low), 1)), grid]) if self.skip else grid

    def _positions(self) -> tuple[Floats, Floats]:
        """Where the predictor sees each level, and the reward that is usual there.

        The usual reward grows with the charge and saturates, 2c / (1 + c) for c even shares; the
        process learns by how much rewards differ from that. Until it has, an even share is best:
        the planner begins as the uniform schedule and departs from it by evidence.
        """
        number = self.levels.shape[1]
        if self.stage == "paper":  # the paper's raw index, 1 to A, and raw rewards
            return np.arange(1.0, number + 1), np.ones(number)
        shares = self.levels[0] / self._even[0]
        usual = 2 * shares / (1 + shares)
        # By the logarithm of the charge, 1 apart: equal ratios are equal steps.
        return np.log2(np.maximum(shares, shares[int(self.skip)])), usual

    def _choice(self, level: int, why: Why) -> Choice:
        return Choice(charges=self.levels[:, level], level=level, why=why)

    def _predict(self, contexts: Floats) -> Floats:
        """Expected reward of every level in some contexts, ``[contexts, levels]``."""
        first, number = int(self.skip), self.levels.shape[1]
        real = number - first
        inputs = np.empty((len(contexts) * real, 1 + contexts.shape[1]))
        inputs[:, 0] = np.tile(self._position[first:], len(contexts))
        inputs[:, 1:] = np.repeat(contexts, real, axis=0)
        expected = np.zeros((len(contexts), number))  # a round that is sat out brings nothing
        means = self.predictor.expect(inputs, time=self.round)
        expected[:, first:] = means.reshape(len(contexts), real) * self._usual[first:]
        return expected

    def _replay(
        self, context: Floats, predicted: Floats, unit: float, costs: Floats, allowance: Floats
    ) -> None:
        """Keep the price right by the latest contexts."""
        begun = len(self._latest) > 0
        self._latest.append(context)
        if len(self._expected) < _REPLAYED:
            self._expected = np.vstack([self._expected, predicted])
        else:  # the oldest makes room
            self._expected[:-1] = self._expected[1:]
            self._expected[-1] = predicted
        if begun and self.round % _REFRESH == 0:
            self._expected = self._predict(np.stack(self._latest))
        self.constrainer.replay(
            self._expected / unit, costs, allowance,
            steps=4 if begun else 100, rate=self.constrainer.step,
        )  # fmt: skip

    def _allowance(self) -> Floats:
        """What a round may cost from here on: remaining budget over remaining rounds."""
        remaining = max(self.rounds - self.round, 1)
        return np.asarray(self.share_left() / (remaining * self._unit))

    def _reward_unit(self) -> float:
        """Size of the rewards seen; the paper takes them as they are."""
        mean, spread = self.predictor.reward_scale()
        return 1.0 if self.stage == "paper" else max(abs(mean) + 2 * spread, 1e-12)

    def _is_trial(self, index: int) -> bool:
        """Whether a round is of the second part of the paper's initial stage."""
        first = self._tried * self.initial_rounds
        return self.stage == "paper" and first <= index < first + self.initial_rounds

    def _set_radius(self) -> None:
        """The paper's radius, from all rounds of its initial stage."""
        margin = margin_of_paper(
            float(np.mean([error for _, error in self._trials])),
            levels=self._tried,
            rounds=self.rounds,
            clients=len(self.budgets),
            initial_rounds=self.initial_rounds,
        )
        allowance = 1 / (self.rounds * self._unit)
        predicted = self._predict(np.stack([seen for seen, _ in self._trials]))
        best = solve_programme(predicted, self._costs, allowance + 2 * margin / self._unit)
        radius = max(best.optimum + margin, 0.0) / float(allowance.min())
        self.constrainer = Constrainer(
            resources=len(allowance), radius=radius, step=self.constrainer.step
        )
