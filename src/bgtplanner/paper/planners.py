"""The paper's planner: repaired, as it is printed, and as its authors coded it.

They are for comparison, not for use. All have the paper's two stages and constants, with which
levels are drawn almost uniformly. :class:`Repaired` is the package's own planner with these. The
other two differ from it and from each other in most formulas; ``docs/paper.md`` says what is wrong
with them:

==================  ======================================  =====================================
what                :class:`AsPrinted`                      :class:`AsCoded`
==================  ======================================  =====================================
levels              A, from epsilon/T up to epsilon/T_min   the same range in A steps, without
                                                            its upper end
initial stage       from the cheapest level up              from the dearest level down
kernel              exp(-|z - z'| / (2 s^2))                exp(-|z - z'|^2 / (2 s^2))
age of a record     in rounds                               in records told since
noise of a reward   sigma^2 on the diagonal                 sigma^2 in every entry
mean                as it is                                rounded to 4 decimals
E(T0)               of a predictor that was taught all      of one that was taught the round in
                    of the initial stage                    question and those before it
programme           a mixture of levels for each of T0      every level taken or not in each of
                    contexts, by its mean cost              T0 rounds, by the sum of their costs;
                                                            A predictions of the first rounds
multipliers         in the ball of radius Lambda; at        on the simplex, with a slack; at
                    first anywhere in it                    first all equal; Lambda is left out
allowance           epsilon/T                               what the initial stage has left over
                                                            the number of rounds after it
score               mean - (allowance - cost) lambda        mean + (allowance - cost) lambda
slope of the dual   cost - allowance                        allowance - cost
==================  ======================================  =====================================

Where the text is silent (sigma, the step of mirror descent), the code's value is used. Epsilon is
what adds up under the accountant: a release's own epsilon in the paper's setting.

The paper and the code have one multiplier per client. All clients of a class pay the same, so
their multipliers change by the same factor in every step, and the score depends only on their sum.
Only this sum is kept, per class.

One difference remains in both: a round is paid for before it is played, and the ledger refuses
what does not fit. The last charge is capped at what is left, whereas the authors' code checks the
budget after the round and overspends. The kernel matrix is solved anew in each round, which costs
the cube of the number of rounds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.spatial.distance import cdist

from bgtplanner.planning.allocator import LevelPolicy, probabilities
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.constrainer import Constrainer, solve_programme
from bgtplanner.planning.given import context_of, floats, number, whole
from bgtplanner.planning.plan import Floats, Plan
from bgtplanner.planning.policy import Choice

__all__ = ["AsCoded", "AsPrinted", "Repaired", "gamma_of_paper", "margin_of_paper"]

_NOISE = 0.1  # sigma of the authors' code; the text has no value
_LARGEST = 1e90  # larger rewards and contexts count as this much: squares must be finite
_MOST = 1e15  # bounds the logarithms of multipliers in a state


def gamma_of_paper(levels: int, rounds: int, clients: int) -> float:
    """Return the paper's gamma, 2 sqrt(A T / ((U + 2) log T)): about 0.7, almost uniform."""
    return float(2 * np.sqrt(levels * rounds / ((clients + 2) * np.log(max(rounds, 2)))))


def margin_of_paper(
    squared_error: float, *, levels: int, rounds: int, clients: int, initial_rounds: int
) -> float:
    """Return M(T0) = sqrt(A E + 4 log(T U) / T0), the initial stage's margin (eq. 14)."""
    noise = 4 * np.log(rounds * clients) / initial_rounds
    return float(np.sqrt(levels * squared_error + noise))


@dataclass(kw_only=True, eq=False, repr=False)
class Repaired(BGTPlanner):
    """The planner with the paper's constants: A = 5, T0 = 5, s = 0.2, alpha = 0.001.

    All levels are tried in turn; then T0 rounds play levels at random, and the linear programme
    over these sets the radius. By default the dearest level costs an even share of 70 % of the
    rounds.
    """

    cheapest: float = 1.0
    spacing: Literal["linear", "geometric"] = "linear"
    skip: bool = False
    initial_rounds: int = 5

    forecasts: ClassVar[bool] = False
    _follows_schedule: ClassVar[bool] = False
    _fewest: ClassVar[float] = 0.7
    _dearest: ClassVar[float] = np.inf
    _process: ClassVar[Mapping[str, Any]] = {"standardize": False, "noise": 0.1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is None:
            self.gamma = gamma_of_paper(5, self.rounds, len(self.budgets))
        self._trials: list[tuple[Floats, float]] = []  # contexts, and squared errors

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Draw any level in the second part of the initial stage; then plan as usual."""
        if not self._is_trial(self.round):
            return super().choose(context, left)
        self.keep(context)
        first = int(self.skip)
        level = first + int(self._generator.integers(self.charges.shape[1] - first))
        return self.choice(level, "any level: estimating what budget is worth")

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Teach the predictor, and update the price by what was spent."""
        level = plan.level or 0
        trial = self._is_trial(plan.round) and reward is not None and not plan.skip
        if trial:  # the error of the prediction made before the reward was seen
            context = self._contexts.get(plan.round, np.zeros(0))
            inputs = np.append(self._position[level], context)
            expected = float(self.process.predict(inputs, time=plan.round).mean[0])
            seen = min(max(reward or 0.0, -_LARGEST), _LARGEST)
            self._trials.append((context, (expected - seen) ** 2))
        super().learn(plan, reward)
        if trial and not self._is_trial(plan.round + 1):
            self._set_radius()
        self.constrainer.update(self._costs[:, level], self._allowance())

    def _state(self) -> dict[str, Any]:
        trials = [[context.tolist(), error] for context, error in self._trials]
        return super()._state() | {"trials": trials}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._trials = [
            (context_of(row), number("state: trials", error, 0.0))
            for row, error in state["trials"]
        ]
        self.check_widths(*(row for row, _ in self._trials))

    def _positions(self) -> tuple[Floats, Floats]:
        """Return the paper's raw index, 1 to A, and raw rewards."""
        levels = self.charges.shape[1]
        return np.arange(1.0, levels + 1), np.ones(levels)

    def _replay(self, *_: Any) -> None:
        """Do nothing: the price takes one step per round, by what the round cost."""

    def _reward_unit(self) -> float:
        return 1.0

    def _usual_step(self) -> float:
        return float(2 * np.log(2) / np.sqrt(self.rounds))

    def _is_trial(self, index: int) -> bool:
        """Whether a round belongs to the second part of the paper's initial stage."""
        first = self._tried * self.initial_rounds
        return first <= index < first + self.initial_rounds

    def _set_radius(self) -> None:
        """Set the paper's radius, from all rounds of its initial stage."""
        margin = margin_of_paper(
            float(np.mean([error for _, error in self._trials])),
            levels=self._tried,
            rounds=self.rounds,
            clients=len(self.budgets),
            initial_rounds=self.initial_rounds,
        )
        allowance = 1 / (self.expected(self.rounds) * self._unit)
        predicted = self._predict(np.stack([seen for seen, _ in self._trials]))
        best = solve_programme(predicted, self._costs, allowance + 2 * margin / self._unit)
        radius = max(best.optimum + margin, 0.0) / float(allowance.min())
        self.constrainer = Constrainer(
            resources=len(allowance), radius=radius, step=self.constrainer.step
        )


class _Record(NamedTuple):
    """A round that was told: its context, its level and its reward."""

    round: int
    level: int
    context: Floats
    reward: float


@dataclass(kw_only=True, eq=False, repr=False)
class _Literal(LevelPolicy):
    """The common part of both: the two stages, the draw, and the records.

    Args:
        levels: The number of levels, A.
        min_rounds: T_min, which sets the dearest level; by default a share of `rounds`, 0.7 as
            printed and 0.8 as coded.
        initial_rounds: How often each level is tried at first, T0.
        gamma: How strongly the best level is preferred; by default 2 sqrt(A T / ((U + 2) log T)).
        length_scale: The kernel's s.
        forgetting: The kernel's alpha.
    """

    levels: int = 5
    min_rounds: int | None = None
    initial_rounds: int = 5
    gamma: float | None = None
    length_scale: float = 0.2
    forgetting: float = 0.001

    _salt: ClassVar[int] = 0x117
    _power: ClassVar[int]  # of the distance in the kernel
    _sign: ClassVar[float]  # of (allowance - cost), in the score and in the slope
    _slack: ClassVar[int]  # number of multipliers that belong to no class

    def __post_init__(self) -> None:
        super().__post_init__()
        levels, everybody = whole("levels", self.levels, 1, 1000), len(self.budgets)
        whole("initial_rounds", self.initial_rounds, 1, 10**9)
        usual = gamma_of_paper(levels, self.rounds, everybody)
        self._gamma = usual if self.gamma is None else number("gamma", self.gamma, 0.0)
        number("length_scale", self.length_scale, 1e-6, 1e6)
        number("forgetting", self.forgetting, 1e-6, 0.999)
        self.step = float(2 * np.log(everybody) / np.sqrt(self.rounds))
        steps = self._steps(levels)
        self.charges = np.outer(self._even, 1 - steps)
        self.charges += np.outer(self.dearest(self.min_rounds), steps)
        self.radius: float | None = None
        """Lambda; None until the initial stage is over."""
        # Epsilon of each class and of its levels: what adds up under the accountant.
        self._lasts = self.expected(self.rounds)
        self._totals = self._lasts * self._even
        shares = np.stack([self.share_of(row) for row in self.charges.T], axis=1)
        self._costs = self._totals[:, None] * shares
        self._allowance = np.zeros(len(self._even))
        self._logs = np.zeros(len(self._even) + self._slack)  # of the sums of multipliers
        self._records: list[_Record] = []

    @staticmethod
    @abstractmethod
    def _steps(levels: int) -> Floats:
        """Return the levels between an even share of T (0) and one of T_min (1)."""

    @abstractmethod
    def _tried(self, turn: int) -> int:
        """Return the level that the initial stage tries in a turn."""

    @abstractmethod
    def _noise(self, records: int) -> Floats:
        """Return the noise that is added to the kernel matrix."""

    @abstractmethod
    def _predict(self, context: Floats) -> Floats:
        """Return the mean reward of every level in a context, for the coming round."""

    @abstractmethod
    def _look_back(self) -> tuple[float, float]:
        """Return Lambda's two parts after the initial stage: the optimum, and M(T0)."""

    @abstractmethod
    def _begin(self, radius: float, each: Floats) -> None:
        """Set the allowance and the first multipliers.

        Args:
            radius: Lambda, or 0 if it is negative.
            each: The number of clients of each class.
        """

    @abstractmethod
    def _bounded(self, logs: Floats) -> Floats:
        """Return the nearest multipliers that are allowed, in logarithms."""

    @property
    def multipliers(self) -> Floats:
        """The sum of the multipliers per class, once the initial stage is over."""
        return np.asarray(np.exp(self._logs[: len(self._even)]))

    @property
    def _least(self) -> float:
        """The smallest budget of all."""
        return float(self._totals.min())

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Try the levels in the initial stage; then draw one by its score."""
        del left  # what does not fit is capped by the caller
        context = np.clip(context, -_LARGEST, _LARGEST)
        self.keep(context)
        levels = self.charges.shape[1]
        turn = self.round // self.initial_rounds
        if turn < levels:
            return self.choice(self._tried(turn), "trying out every level")
        if turn == levels:
            level = int(self._generator.integers(levels))
            return self.choice(level, "any level: estimating what budget is worth")
        if self.radius is None:
            self._end_stage()
        predicted = self._predict(context)
        weights = self._sign * self.multipliers
        score = predicted + weights @ (self._allowance[:, None] - self._costs)
        chance = probabilities(score, self._gamma)
        return self.choice(
            int(self._generator.choice(levels, p=chance)), "drawn by score",
            charges=self.charges.max(axis=0), predicted=predicted, price=weights @ self._costs,
            score=score, probability=chance,
        )  # fmt: skip

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Record what the round brought, and update the multipliers by what it cost."""
        context, level = self._contexts.pop(plan.round, np.zeros(0)), plan.level or 0
        if reward is not None:
            reward = min(max(reward, -_LARGEST), _LARGEST)
            self._records.append(_Record(plan.round, level, context, reward))
        if self.radius is not None and plan.round >= self._planned_from:
            slope = self._sign * (self._allowance - self._costs[:, level])
            logs = self._logs.copy()
            logs[: len(slope)] -= self.step * slope
            self._logs = self._bounded(logs)

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "records": [[*row[:2], row.context.tolist(), row.reward] for row in self._records],
            "radius": self.radius,
            "allowance": self._allowance.tolist(),
            "logs": self._logs.tolist(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        last, levels = self.rounds - 1, self.charges.shape[1]
        self._records = [
            _Record(
                whole("state: records", at, 0, last),
                whole("state: records", level, 0, levels - 1),
                np.clip(context_of(row), -_LARGEST, _LARGEST),
                number("state: records", reward, -_LARGEST, _LARGEST),
            )
            for at, level, row, reward in state["records"]
        ]
        self.check_widths(*(row.context for row in self._records))
        if state["radius"] is not None:
            self.radius = number("state: radius", state["radius"], -1e200, 1e200)
        self._logs = floats("state: logs", state["logs"], self._logs.shape, -_MOST, 1e3)
        self._allowance = floats(
            "state: allowance", state["allowance"], self._allowance.shape, 0.0, 1e100
        )

    def width(self) -> int | None:
        """Return the length of the recorded contexts, if there are any."""
        return len(self._records[0].context) if self._records else super().width()

    @property
    def _planned_from(self) -> int:
        """The first round after the initial stage."""
        return (len(self.charges[0]) + 1) * self.initial_rounds

    def _initial(self, *, second: bool) -> list[tuple[int, _Record]]:
        """Return the records of one part of the initial stage, with their positions."""
        bound = self._planned_from - self.initial_rounds
        low, high = (bound, self._planned_from) if second else (0, bound)
        return [(at, one) for at, one in enumerate(self._records) if low <= one.round < high]

    def _means(
        self, records: Sequence[_Record], when: Floats, context: Floats, now: float
    ) -> Floats:
        """Return the process's mean for every level in a context, given some records.

        Args:
            records: What the process is taught.
            when: The time of each record.
            context: The context of the prediction.
            now: The time of the prediction.
        """
        levels = np.arange(self.charges.shape[1])
        if not records:
            return np.zeros(len(levels))
        seen = np.stack([np.append(float(one.level), one.context) for one in records])

        def kernel(inputs: Floats, times: Floats) -> Floats:
            ages = np.abs(times[:, None] - when)
            distances = cdist(inputs, seen) ** self._power
            near = np.exp(-distances / (2 * self.length_scale**2))
            return np.asarray((1 - self.forgetting) ** (ages / 2) * near)

        asked = np.column_stack([levels, np.tile(context, (len(levels), 1))])
        matrix = kernel(seen, when) + self._noise(len(records))
        weights = np.linalg.solve(matrix, np.array([one.reward for one in records]))
        return np.asarray(kernel(asked, np.full(len(levels), float(now))) @ weights)

    def _margin(self, squared_error: float) -> float:
        """M(T0)."""
        return margin_of_paper(
            squared_error,
            levels=self.charges.shape[1],
            rounds=self.rounds,
            clients=len(self.budgets),
            initial_rounds=self.initial_rounds,
        )

    def _end_stage(self) -> None:
        """Set Lambda from the initial stage, and the first multipliers."""
        optimum, margin = self._look_back()
        self.radius = self._lasts / self._least * (optimum + margin)
        each = np.bincount(self.budgets.class_of_client, minlength=len(self._even))
        self._begin(max(self.radius, 0.0), np.maximum(each, 1e-300))


class AsPrinted(_Literal):
    """Every formula of the paper as it is printed, including the wrong signs.

    What the text leaves open is read as follows. The linear programme is over one distribution of
    levels per round, as in the definition of OPT; its constraint holds for every client. E(T0) and
    the predictions of the programme come from the predictor after the whole initial stage, as in
    Algorithm 1. The first multipliers are drawn uniformly from the ball. The divergence is that of
    the negative entropy, so a step multiplies each multiplier by exp(-step * slope), and scales
    all of them down where their sum exceeds Lambda.

    Example:
        >>> from bgtplanner import Budget
        >>> planner = AsPrinted(Budget(10, 1e-5), clients=943, rounds=3, seed=0)
        >>> plan = planner.ask([160.0, 60.0])
        >>> plan.level, plan.why.note
        (0, 'trying out every level')
    """

    _fewest, _power, _sign, _slack = 0.7, 1, -1.0, 0

    @staticmethod
    def _steps(levels: int) -> Floats:
        return np.linspace(0.0, 1.0, levels)

    def _tried(self, turn: int) -> int:
        return turn

    def _noise(self, records: int) -> Floats:
        return np.asarray(_NOISE**2 * np.eye(records))

    def _predict(self, context: Floats) -> Floats:
        return self._at(context, self.round)

    def _at(self, context: Floats, now: int) -> Floats:
        when = np.array([float(one.round) for one in self._records])
        return self._means(self._records, when, context, now)

    def _look_back(self) -> tuple[float, float]:
        trials = [one for _, one in self._initial(second=True)]
        if not trials:
            return 0.0, self._margin(0.0)
        predicted = np.stack([self._at(one.context, one.round) for one in trials])
        errors = [row[one.level] - one.reward for row, one in zip(predicted, trials, strict=True)]
        margin = self._margin(float(np.mean(np.square(errors))))
        limits = np.full(len(self._even), self._least / self._lasts + 2 * margin)
        return solve_programme(predicted, self._costs, limits).optimum, margin

    def _begin(self, radius: float, each: Floats) -> None:
        self._allowance = self._totals / self._lasts
        # Uniform in the ball: a flat Dirichlet over the clients and a slack, summed by class.
        shares = self._generator.dirichlet(np.append(each, 1.0))[:-1]
        self._logs = np.log(np.maximum(radius * shares, 1e-300))

    def _bounded(self, logs: Floats) -> Floats:
        most = np.log(max(self.radius or 0.0, 1e-300))
        return np.asarray(logs - max(float(np.logaddexp.reduce(logs)) - most, 0.0))


class AsCoded(_Literal):
    """Every step as in the authors' published code.

    The code has one budget only. Where budgets differ, each class has its own cost and allowance,
    and the programme limits every class by the smallest budget, as in the text.

    Example:
        >>> from bgtplanner import Budget
        >>> planner = AsCoded(Budget(10, 1e-5), clients=943, rounds=3, seed=0)
        >>> plan = planner.ask([160.0, 60.0])
        >>> plan.level, plan.why.note
        (4, 'trying out every level')
    """

    _fewest, _power, _sign, _slack = 0.8, 2, 1.0, 1

    @staticmethod
    def _steps(levels: int) -> Floats:
        return np.arange(levels) / levels

    def _tried(self, turn: int) -> int:
        return len(self.charges[0]) - 1 - turn

    def _noise(self, records: int) -> Floats:
        return np.full((records, records), _NOISE**2)

    def _predict(self, context: Floats) -> Floats:
        return self._after(len(self._records), context)

    def _after(self, records: int, context: Floats) -> Floats:
        """Predict from the first records, for the round that comes right after them."""
        when = np.arange(float(records))
        means = self._means(self._records[:records], when, context, records)
        return np.asarray(np.round(means, 4))

    def _look_back(self) -> tuple[float, float]:
        def expected(at: int, one: _Record) -> float:
            """Return the prediction for a round that the predictor was just taught."""
            return float(self._after(at + 1, one.context)[one.level])

        errors = [expected(at, one) - one.reward for at, one in self._initial(second=True)]
        margin = self._margin(float(np.sum(np.square(errors))) / self.initial_rounds)
        first = self._initial(second=False)[: self.charges.shape[1]]
        predicted = np.zeros(self.charges.shape[1])
        predicted[: len(first)] = [expected(at, one) for at, one in first]
        limit = self._least / self._lasts + 2 * margin
        return _yes_or_no(predicted, self._costs, limit, self.initial_rounds), margin

    def _begin(self, radius: float, each: Floats) -> None:
        del radius  # the code computes it and does not use it
        rounds_left = self.expected(self.rounds - self._planned_from)
        self._allowance = self.share_left() * self._totals / rounds_left
        self._logs = np.log(np.append(each, 1.0) / (each.sum() + 1))

    def _bounded(self, logs: Floats) -> Floats:
        return np.asarray(logs - np.logaddexp.reduce(logs))


def _yes_or_no(predicted: Floats, costs: Floats, limit: float, rounds: int) -> float:
    """Return the best mean reward of rounds in each of which every level is taken or not.

    The predicted reward and the cost of a level are the same in all rounds, so what matters is in
    how many rounds it is taken: a whole number per level.
    """
    unit = float(np.abs(predicted).max()) or 1.0
    found = milp(
        -predicted / unit,
        integrality=np.ones(len(predicted)),
        bounds=Bounds(0, rounds),
        constraints=LinearConstraint(costs, ub=limit),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return 0.0
    return float(predicted @ np.rint(found.x) / rounds)
