"""The paper's planner, with its formulas repaired and as it is printed.

They are for comparison, not for use. Both have the paper's two stages and constants, with which
levels are drawn almost uniformly. :class:`Repaired` is the package's own planner with these;
:class:`AsPrinted` has every formula of the text, ``docs/paper.md`` says what is wrong with them.
(Every step as in the authors' code, which differs from the text in most formulas, is
``benchmarks.paper.as_coded:AsCoded`` in a checkout.)

Where the text is silent (sigma, the step of mirror descent), the authors' value is used. Epsilon
is what adds up under the accountant: a release's own epsilon in the paper's setting.

The paper has one multiplier per client. All clients of a class pay the same, so their multipliers
change by the same factor in every step, and the score depends only on their sum. Only this sum is
kept, per class.

One difference remains: a round is paid for before it is played, and the ledger refuses what does
not fit. The last charge is capped at what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from bgtplanner.planning.allocator import LevelPolicy, probabilities
from bgtplanner.planning.arguments import Floats, number, whole
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.constrainer import Constrainer, solve_programme
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import Choice

NOISE = 0.1
"""Sigma of the authors' code; the text has no value."""

_LARGEST = 1e90  # larger rewards and contexts count as this much: squares must be finite


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
            expected = float(self.process.predict(inputs, time=plan.round)[0])
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
        self._trials = [(np.array(row, dtype=np.float64), error) for row, error in state["trials"]]

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


class Record(NamedTuple):
    """A round that was told: its context, its level and its reward."""

    round: int
    level: int
    context: Floats
    reward: float


@dataclass(kw_only=True, eq=False, repr=False)
class AsPrinted(LevelPolicy):
    """Every formula of the paper as it is printed, including the wrong signs.

    What the text leaves open is read as follows. The linear programme is over one distribution of
    levels per round, as in the definition of OPT; its constraint holds for every client. E(T0) and
    the predictions of the programme come from the predictor after the whole initial stage, as in
    Algorithm 1. The first multipliers are drawn uniformly from the ball. The divergence is that of
    the negative entropy, so a step multiplies each multiplier by exp(-step * slope), and scales
    all of them down where their sum exceeds Lambda. The kernel matrix is solved anew in each
    round, which costs the cube of the number of rounds.

    Args:
        levels: The number of levels, A, from epsilon/T up to epsilon/T_min.
        min_rounds: T_min, which sets the dearest level; by default 70 % of `rounds`.
        initial_rounds: How often each level is tried at first, T0.
        gamma: How strongly the best level is preferred; by default 2 sqrt(A T / ((U + 2) log T)).
        length_scale: The kernel's s.
        forgetting: The kernel's alpha.

    Example:
        >>> from bgtplanner import Budget
        >>> planner = AsPrinted(Budget(10, 1e-5), clients=943, rounds=3, seed=0)
        >>> plan = planner.ask([160.0, 60.0])
        >>> plan.level, plan.why.note
        (0, 'trying out every level')
    """

    levels: int = 5
    min_rounds: int | None = None
    initial_rounds: int = 5
    gamma: float | None = None
    length_scale: float = 0.2
    forgetting: float = 0.001

    _salt: ClassVar[int] = 0x117
    _fewest: ClassVar[float] = 0.7
    _power: ClassVar[int] = 1  # of the distance in the kernel
    _sign: ClassVar[float] = -1.0  # of (allowance - cost), in the score and in the slope

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
        self._allowance = self._totals / self._lasts
        self._logs = np.zeros(len(self._even))  # of the sums of multipliers, per class
        self._records: list[Record] = []

    @property
    def multipliers(self) -> Floats:
        """The sum of the multipliers per class, once the initial stage is over."""
        return np.asarray(np.exp(self._logs[: len(self._even)]))

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
            optimum, margin = self._look_back()
            self.radius = self._lasts / float(self._totals.min()) * (optimum + margin)
            each = np.bincount(self.budgets.class_of_client, minlength=len(self._even))
            self._begin(max(self.radius, 0.0), np.maximum(each, 1e-300))
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
            self._records.append(Record(plan.round, level, context, reward))
        if self.radius is not None and plan.round >= self._planned_from:
            slope = self._sign * (self._allowance - self._costs[:, level])
            logs = self._logs.copy()
            logs[: len(slope)] -= self.step * slope
            self._logs = self._bounded(logs)

    @property
    def _planned_from(self) -> int:
        """The first round after the initial stage."""
        return (len(self.charges[0]) + 1) * self.initial_rounds

    # ---- the steps of the algorithm, as the text has them

    def _steps(self, levels: int) -> Floats:
        """Return the levels between an even share of T (0) and one of T_min (1)."""
        return np.linspace(0.0, 1.0, levels)

    def _tried(self, turn: int) -> int:
        """Return the level that the initial stage tries in a turn: from the cheapest up."""
        return turn

    def _noise(self, records: int) -> Floats:
        """Return the noise that is added to the kernel matrix."""
        return np.asarray(NOISE**2 * np.eye(records))

    def _predict(self, context: Floats) -> Floats:
        """Return the mean reward of every level in a context, for the coming round."""
        return self._at(context, self.round)

    def _at(self, context: Floats, now: int) -> Floats:
        when = np.array([float(one.round) for one in self._records])
        return self._means(self._records, when, context, now)

    def _look_back(self) -> tuple[float, float]:
        """Return Lambda's two parts after the initial stage: the optimum, and M(T0)."""
        trials = [one for _, one in self._initial(second=True)]
        if not trials:
            return 0.0, self._margin(0.0)
        predicted = np.stack([self._at(one.context, one.round) for one in trials])
        errors = [row[one.level] - one.reward for row, one in zip(predicted, trials, strict=True)]
        margin = self._margin(float(np.mean(np.square(errors))))
        limits = np.full(len(self._even), self._totals.min() / self._lasts + 2 * margin)
        return solve_programme(predicted, self._costs, limits).optimum, margin

    def _begin(self, radius: float, each: Floats) -> None:
        """Set the first multipliers: anywhere in the ball, with equal probability.

        That is a flat Dirichlet over the clients and a slack, here summed by class.

        Args:
            radius: Lambda, or 0 if it is negative.
            each: The number of clients of each class.
        """
        shares = self._generator.dirichlet(np.append(each, 1.0))[:-1]
        self._logs = np.log(np.maximum(radius * shares, 1e-300))

    def _bounded(self, logs: Floats) -> Floats:
        """Return the nearest multipliers that are allowed, in logarithms."""
        most = np.log(max(self.radius or 0.0, 1e-300))
        return np.asarray(logs - max(float(np.logaddexp.reduce(logs)) - most, 0.0))

    def _initial(self, *, second: bool) -> list[tuple[int, Record]]:
        """Return the records of one part of the initial stage, with their positions."""
        bound = self._planned_from - self.initial_rounds
        low, high = (bound, self._planned_from) if second else (0, bound)
        return [(at, one) for at, one in enumerate(self._records) if low <= one.round < high]

    def _means(
        self, records: Sequence[Record], when: Floats, context: Floats, now: float
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

    # ---- its state

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "records": [[*row[:2], row.context.tolist(), row.reward] for row in self._records],
            "radius": self.radius,
            "allowance": self._allowance.tolist(),
            "logs": self._logs.tolist(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._records = [
            Record(at, level, np.array(row, dtype=np.float64), reward)
            for at, level, row, reward in state["records"]
        ]
        self.radius = state["radius"]
        self._logs = np.array(state["logs"], dtype=np.float64)
        self._allowance = np.array(state["allowance"], dtype=np.float64)
