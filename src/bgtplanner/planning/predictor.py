"""Predict what a round will bring: a Gaussian process over (level, context, time).

The paper's kernel, with its square restored (its text has lost it, its name and code have it):

    k((z, t), (z', t')) = (1 - alpha)^(|t - t'| / 2) exp( -|z - z'|^2 / (2 s^2) )

Old observations count less. The inverse of the Cholesky factor is kept and grows by one row per
round, so a round costs the square of the number of observations, not its cube, and only products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import Floats, floats, whole
from bgtplanner.planning.given import number as a_number

__all__ = ["Prediction", "Predictor"]

_JITTER = 1e-12
_FIT_FROM = 16  # observations; with fewer, a length scale cannot be told from noise
_FIT_WITH = 128  # newest observations that scales are fitted to, at the cost of their cube
_LENGTHS = (0.05, 50.0)  # bounds on fitted length scales; inputs are of order 1
_NOISES = (0.02, 30.0)
_FORGETTING = (1e-6, 0.3)
_LARGEST = 1e100  # larger rewards and inputs count as this much: squares must be finite
_PULL = 0.5  # how far, in logarithms, fitted scales typically lie from where they began
_STEPS = 25  # the most that a fit takes
_SETTLED = 1e-4  # a fit ends with a step that moves no scale by more than this, in logarithms
_FARTHEST = 1e6  # length scales: larger distances make no difference
_NEAR = 1e4  # half of a squared length, below which rounding is too small to matter
_ZERO = np.array(0.0)  # with a plain number, an operation on a few entries takes twice as long


class Prediction(NamedTuple):
    """The prediction of the process at some inputs.

    Attributes:
        mean: Expected reward.
        variance: Variance of the expected reward, without the noise of a single observation.
    """

    mean: Floats
    variance: Floats


class Predictor:
    """Gaussian process regression that learns one observation at a time.

    Args:
        length_scale: The kernel's s.
        forgetting: The kernel's alpha: 0 remembers everything, 0.1 forgets within tens of rounds.
        noise: Standard deviation of an observation around the expected reward, over that of the
            expected reward itself.
        standardize: Scale rewards and contexts to mean 0 and spread 1, as seen so far. The first
            input (the level) is left as it is, and a mean reward that may still be positive counts
            as positive, so that bad luck alone does not end all spending. Without it everything is
            used raw, as in the paper.
        fit: Choose the length scale of each input, the forgetting and the noise by marginal
            likelihood whenever the number of observations has doubled, with a prior centred at the
            values given here.
        window: The most observations to keep; the older half is dropped when it is reached.

    Example:
        >>> predictor = Predictor(standardize=False)
        >>> for x in (0.0, 0.2, 0.4):
        ...     predictor.observe([x], time=0, reward=x)
        >>> round(float(predictor.predict([[0.4]], time=0).mean[0]), 1)
        0.4
    """

    def __init__(
        self,
        *,
        length_scale: float = 0.2,
        forgetting: float = 0.001,
        noise: float = 0.1,
        standardize: bool = True,
        fit: bool = False,
        window: int = 1024,
    ) -> None:
        unless = ConfigError.unless
        unless(0 < length_scale < 1e6, "length_scale", length_scale, "a positive number")
        unless(0 <= forgetting < 1, "forgetting", forgetting, "from 0 to below 1")
        unless(1e-4 <= noise < 1e6, "noise", noise, "at least 0.0001")
        unless(window >= 16, "window", window, "at least 16")
        self.forgetting = float(forgetting)
        self.noise = float(noise)
        self.standardize = standardize
        self.fit = fit
        self.window = int(window)
        self._length = float(length_scale)
        self._first = (max(self.forgetting, _FORGETTING[0]), self.noise)
        self._size = 0
        self._mean = self._squares = self._weight = self._counted = 0.0  # see _count
        self._scale_of_rewards = 0.0, 1.0
        self._next_fit = _FIT_FROM
        self._newest = -math.inf  # the latest time of an observation
        self._far = False  # whether one lies so far away that rounding matters
        self._asked: tuple[Floats | None, Floats, Floats] = None, np.zeros(0), np.zeros(0)
        self._rebuilt = 0  # number of observations that the factor was last built from at once
        self._lengths = self._centre = self._spread = np.zeros(0)  # one per input
        self._make_room(0, 16)

    def __len__(self) -> int:
        return self._size

    @property
    def width(self) -> int:
        """The number of inputs; 0 before the first observation."""
        return len(self._lengths)

    @property
    def length_scales(self) -> Floats:
        """Length scale s of each input, fitted or given."""
        return self._lengths.copy()

    def reward_scale(self) -> tuple[float, float]:
        """Return mean and spread of the rewards kept; 0 and 1 where rewards are used raw."""
        if not self.standardize or not self._size:
            return 0.0, 1.0
        return self._scale_of_rewards

    def _count(self, reward: float, doubt: float) -> None:
        """Add a reward to their weighted mean and to the squares around it (Welford 1962)."""
        weight = 1.0 / doubt
        self._weight += weight
        off = reward - self._mean
        self._mean += weight / self._weight * off
        self._squares += weight * off * (reward - self._mean)
        self._counted += 1
        spread = math.sqrt(self._squares / self._weight) or abs(self._mean) or 1.0
        self._scale_of_rewards = max(self._mean, spread / math.sqrt(self._counted)), spread

    def _count_all(self) -> None:
        """Do that for all observations, in their order: the result has the same bits."""
        self._mean = self._squares = self._weight = self._counted = 0.0
        seen = self._rewards[: self._size].tolist(), self._doubts[: self._size].tolist()
        for reward, doubt in zip(*seen, strict=True):
            self._count(reward, doubt)

    def observe(
        self, inputs: ArrayLike, *, time: float, reward: float, doubt: float = 1.0
    ) -> None:
        """Learn that these inputs (level first) brought this reward at this time.

        Args:
            inputs: The level and the context.
            time: The round.
            reward: What the round brought.
            doubt: Variance of this observation's noise, over the usual variance.

        Raises:
            ConfigError: If something is not a finite number, or the number of inputs changes.
        """
        row = np.asarray(inputs, dtype=np.float64).ravel().tolist()
        ConfigError.unless(all(map(math.isfinite, row)), "inputs", "NaN", "finite numbers")
        finite = math.isfinite(reward) and math.isfinite(time)
        ConfigError.unless(finite, "reward", reward, "a finite number, at a finite time")
        ConfigError.unless(bool(1e-12 < doubt < 1e12), "doubt", doubt, "a positive number")
        reward = min(max(float(reward), -_LARGEST), _LARGEST)
        if not self._size:
            self._make_room(len(row), 16)
        room, width = self._inputs.shape
        ConfigError.unless(len(row) == width, "inputs", len(row), f"{width} numbers")
        if self._size >= self.window:
            self._keep_newest(self.window // 2)
        if self._size == room:
            self._make_room(width, 2 * self._size)
        at = self._size
        if max(map(abs, row), default=0.0) > _LARGEST:
            row = [min(max(value, -_LARGEST), _LARGEST) for value in row]
        self._inputs[at] = row
        self._times[at], self._rewards[at], self._doubts[at] = time, reward, doubt
        self._size += 1
        self._count(reward, doubt)
        if self.standardize and not self._size & at:  # at powers of 2, standardise anew
            self._see_scales()
        elif self.fit and self._size >= self._next_fit:
            self._fit()
        else:
            self._extend()

    def predict(self, inputs: ArrayLike, *, time: float) -> Prediction:
        """Return the expected reward and its variance at several inputs, one per row."""
        rows = np.atleast_2d(np.asarray(inputs, dtype=np.float64))
        centre, spread = self.reward_scale()
        number = self._size
        if not number:
            return Prediction(np.full(len(rows), centre), np.full(len(rows), spread**2))
        kernel = self._kernel(self._queries(rows, time), time, number)
        half = kernel @ self._inverse[:number, :number].T
        variance = np.maximum(1.0 - (half * half).sum(axis=1), 0.0)
        return Prediction(centre + kernel @ self._weights(centre), spread**2 * variance)

    def expect(self, levels: Floats, contexts: Floats, *, time: float) -> Floats:
        """Return the mean of :meth:`predict` at all levels in all contexts, one row per context.

        The kernel is a product of a part that is due to the level and one due to the rest, so
        there are as many exponentials as of these, not as of their pairs.
        """
        centre, _ = self.reward_scale()
        number = self._size
        if not number:
            return np.full((len(contexts), len(levels)), centre)
        rows = np.zeros((len(contexts), 1 + contexts.shape[1]))  # at a level of 0
        rows[:, 1:] = contexts
        near = self._kernel(self._queries(rows, time)[:, :-2], time, number)
        off = (levels[:, None] - self._inputs[:number, 0]) / self._units[0][1]
        weights = np.exp(-0.5 * off * off) * self._weights(centre)
        return np.asarray(centre + near @ weights.T)

    def expect_levels(self, levels: Floats, context: list[float], *, time: float) -> list[float]:
        """Return the same for one context: what every round asks for.

        Of so few inputs, plain numbers are several times as fast as arrays. What is due to the
        levels is kept for the next round, if that asks for the same array of levels.
        """
        centre, _ = self.reward_scale()
        number = self._size
        if not number:
            return [centre] * len(levels)
        if self._asked[0] is not levels:
            queries = np.zeros((len(levels), self._inputs.shape[1]))
            queries[:, 0] = levels
            queries = self._queries(queries, 0.0)
            self._asked = levels, queries, -0.5 * queries[:, -2] ** 2
        _, queries, rest = self._asked
        scaled, half = self._place(context, self._units[1:])
        queries[:, :-4] = scaled
        np.add(rest, self._fading * time - half, out=queries[:, -3])
        parts = self._kernel(queries, time, number).dot(self._solved[:, :number].T).tolist()
        return [centre + reward - centre * one for reward, one in parts]

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as plain data."""
        number = self._size
        return {
            "inputs": self._inputs[:number].tolist(),
            "times": self._times[:number].tolist(),
            "rewards": self._rewards[:number].tolist(),
            "doubts": self._doubts[:number].tolist(),
            "lengths": self._lengths.tolist(),
            "centre": self._centre.tolist(),
            "spread": self._spread.tolist(),
            "forgetting": self.forgetting,
            "noise": self.noise,
            "next_fit": self._next_fit,
            "rebuilt": self._rebuilt,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        lengths = floats("lengths", state["lengths"], low=1e-12, high=1e6).ravel()
        number, width = len(state["inputs"]), len(lengths)
        seen = floats("inputs", state["inputs"], (number, width), -_LARGEST, _LARGEST)
        times = floats("times", state["times"], (number,), -1e12, 1e12)
        rewards = floats("rewards", state["rewards"], (number,), -_LARGEST, _LARGEST)
        doubts = floats("doubts", state["doubts"], (number,), 1e-12, 1e12)
        centre = floats("centre", state["centre"], (width,), -_LARGEST, _LARGEST)
        spread = floats("spread", state["spread"], (width,), 1e-12, _LARGEST)
        forgetting = a_number("forgetting", state["forgetting"], 0.0, np.nextafter(1.0, 0.0))
        noise = a_number("noise", state["noise"], 1e-4, 1e6)
        next_fit = whole("next_fit", state["next_fit"], 1)
        rebuilt = whole("rebuilt", state["rebuilt"], 0, number)
        self._size = 0
        self._make_room(width, max(16, 1 << (max(number, 1) - 1).bit_length()))
        self._inputs[:number], self._times[:number] = seen, times
        self._rewards[:number], self._doubts[:number] = rewards, doubts
        self._lengths[:], self._centre[:], self._spread[:] = lengths, centre, spread
        self.forgetting, self.noise, self._next_fit = forgetting, noise, next_fit
        # Step by step, as it was built: this gives the same bits, not only about the same numbers.
        self._size = rebuilt
        self._rebuild()
        while self._size < number:
            self._size += 1
            self._extend()
        self._count_all()

    def _make_room(self, width: int, room: int) -> None:
        """Make arrays for `room` observations, and copy the present ones."""
        number = self._size
        old = self.__dict__.copy()
        self._inputs: Floats = np.zeros((room, width))
        self._times: Floats = np.zeros(room)
        self._rewards: Floats = np.zeros(room)
        self._doubts: Floats = np.zeros(room)
        # What is multiplied by a kernel, in one block: the inverse of the covariance times the
        # rewards, the same times ones, and the inverse factor.
        self._block: Floats = np.zeros((2 + room, room))
        self._features: Floats = np.ones((width + 3, room))  # of the observations, see _kernel
        self._solved, self._inverse = self._block[:2], self._block[2:]
        if not number:
            self._lengths = np.full(width, self._length)
            self._centre, self._spread = np.zeros(width), np.ones(width)
            self._set_units()
            return
        self._features[:, :number] = old["_features"][:, :number]
        for name in ("_inputs", "_times", "_rewards", "_doubts"):
            getattr(self, name)[:number] = old[name][:number]
        self._block[: 2 + number, :number] = old["_block"][: 2 + number, :number]

    def _set_units(self) -> None:
        """Derive what the kernel is computed with from the scales and the forgetting."""
        units = self._spread * self._lengths
        self._units = list(zip(self._centre.tolist(), units.tolist(), strict=True))
        self._fading = 0.5 * math.log1p(-self.forgetting)
        self._asked = None, np.zeros(0), np.zeros(0)

    def _place(
        self, values: list[float], units: list[tuple[float, float]]
    ) -> tuple[list[float], float]:
        """Return inputs in length scales from their centre, and half of their squared length."""
        scaled = [(value - at) / unit for value, (at, unit) in zip(values, units, strict=True)]
        half = 0.5 * sum([value * value for value in scaled])
        if half >= 0.5 * _FARTHEST**2:
            scaled = [min(max(value, -_FARTHEST), _FARTHEST) for value in scaled]
            half = 0.5 * sum([value * value for value in scaled])
        return scaled, half

    def _queries(self, rows: Floats, time: float | Floats) -> Floats:
        """Return what is multiplied by the features, for any inputs, one per row; see _kernel."""
        centre, unit = np.array(self._units).T
        scaled = _within((_within(rows, _LARGEST) - centre) / unit, _FARTHEST)
        queries = np.ones((len(rows), len(unit) + 3))
        queries[:, :-4], queries[:, -2] = scaled[:, 1:], scaled[:, 0]
        queries[:, -3] = self._fading * time - 0.5 * np.add.reduce(scaled * scaled, axis=1)
        return queries

    def _kernel(self, queries: Floats, time: float | Floats, number: int) -> Floats:
        """Return the kernel between some inputs, at one time or each at its own, and observations.

        The exponent is one product of matrices. With the scaled context z and level a, and the
        logarithm f of what is kept from one round to the next,

            features of an observation:  z,  -|z|^2/2 - f t,  1,                       a,   -a^2/2
            of a query:                  z', 1,               f t' - (|z'|^2+a'^2)/2,  a',  1

        Without the last two, the level makes no difference.
        """
        exponent: Floats = queries.dot(self._features[: queries.shape[-1], :number])
        if isinstance(time, np.ndarray) or time < self._newest:
            # Rounds may be told in any order: what comes later counts as what was before.
            exponent += 2 * self._fading * np.maximum(self._times[:number] - time, 0.0)
        if self._far:
            np.minimum(exponent, _ZERO, out=exponent)
        return np.exp(exponent, out=exponent)

    def _weights(self, centre: float) -> Floats:
        """Return what the kernel is multiplied by to give a mean above the centre."""
        rewards, ones = self._solved[:, : self._size]
        return np.asarray(rewards - centre * ones)

    def _extend(self) -> None:
        """Add a row to the inverse factor, for the newest observation."""
        at, time = self._size - 1, self._times.item(self._size - 1)
        (place, *context), both = self._place(self._inputs[at].tolist(), self._units)
        faded, half = self._fading * time, 0.5 * place * place
        across = self._kernel(np.array([*context, 1.0, faded - both, place, 1.0]), time, at)
        self._features[:, at] = [*context, half - both - faded, 1.0, place, -half]
        self._newest, self._far = max(self._newest, time), self._far or both >= _NEAR
        block = self._block[: 2 + at, :at]
        product = block @ across  # not dot, which copies a part of an array
        reward, one, row = product.item(0), product.item(1), product[2:]
        variance = 1.0 + self.noise**2 * self._doubts.item(at) + _JITTER
        corner = math.sqrt(max(variance - float(row.dot(row)), _JITTER))
        own = self._inverse[at, : at + 1]
        own[at] = -1.0
        np.matmul(row, block[2:], out=own[:at])
        own /= -corner
        self._solved[0, : at + 1] += (self._rewards.item(at) - reward) / corner * own
        self._solved[1, : at + 1] += (1.0 - one) / corner * own

    def _rebuild(self) -> None:
        """Compute the whole inverse factor anew, after scales have changed."""
        number = self._rebuilt = self._size
        self._set_units()
        times = self._times[:number]
        self._newest = times.max(initial=-math.inf)
        if not number:
            return
        queries = self._queries(self._inputs[:number], times)
        self._far = bool((self._fading * times - queries[:, -3]).max() >= _NEAR)
        self._features[:, :number], level = queries.T, queries[:, -2]
        self._features[-1, :number] = half = -0.5 * level * level
        self._features[-4, :number] = queries[:, -3] - half - 2 * self._fading * times
        self._features[-3, :number] = 1.0
        covariance = self._kernel(queries, times[:, None], number)
        np.fill_diagonal(covariance, 1.0 + self.noise**2 * self._doubts[:number] + _JITTER)
        inverse = _inverse_factor(covariance)
        if inverse is None:  # pragma: no cover - the noise keeps it positive definite
            raise ConfigError(f"noise = {self.noise!r}: too small for so many equal inputs")
        self._inverse[:number, :number] = inverse
        whitened = inverse @ np.stack([self._rewards[:number], np.ones(number)], axis=1)
        self._solved[:, :number], self._solved[:, number:] = whitened.T @ inverse, 0.0

    def _keep_newest(self, keep: int) -> None:
        first = self._size - keep
        for values in (self._inputs, self._times, self._rewards, self._doubts):
            values[:keep] = values[first : self._size].copy()
        self._size = keep
        self._count_all()
        self._rebuild()

    def _see_scales(self) -> None:
        """Standardise the contexts by those seen so far; the level stays as it is."""
        seen = self._inputs[: self._size]
        self._centre, self._spread = seen.mean(axis=0), seen.std(axis=0)
        self._centre[0], self._spread[0] = 0.0, 1.0
        self._spread[self._spread < 1e-12] = 1.0
        if self.fit and self._size >= self._next_fit:
            self._fit()
        else:
            self._rebuild()

    def _fit(self) -> None:
        """Fit the scales by marginal likelihood, with a weak prior at where they began."""
        number = min(self._size, _FIT_WITH)
        newest = slice(self._size - number, self._size)
        centre, spread = self.reward_scale()
        target = (self._rewards[newest] - centre) / spread
        self._next_fit = 2 * self._size
        if target.any():  # if all rewards are equal, every scale explains that
            rows, times = self._inputs[newest] / self._spread, self._times[newest]
            width = rows.shape[1]
            # Of each pair of observations: squared distances by input, and the time between them.
            apart = np.empty((number, number, width + 1))
            apart[..., :width] = (rows[:, None] - rows) ** 2
            apart[..., width] = np.abs(times[:, None] - times)
            prior = np.log([self._length] * width + [*self._first])
            bounds = np.log([_LENGTHS] * width + [_FORGETTING, _NOISES])
            now = np.log([*self._lengths, max(self.forgetting, _FORGETTING[0]), self.noise])
            seen = apart.reshape(-1, width + 1), target, self._doubts[newest], prior
            best = np.exp(_minimised(_negative_likelihood, now, bounds, seen))
            self._lengths = best[:-2]
            self.forgetting, self.noise = best[-2:].tolist()
        self._rebuild()


def _within(rows: Floats, most: float) -> Floats:
    """Return numbers that are cut to bounds: np.clip takes several times as long for a few."""
    bounded: Floats = np.maximum(rows, -most)
    return np.minimum(bounded, most, out=bounded)


def _minimised(
    function: Callable[..., tuple[float, Floats]],
    start: Floats,
    bounds: Floats,
    args: tuple[Any, ...] = (),
) -> Floats:
    """Return where a function, which comes with its gradient, is smallest within bounds.

    This is BFGS, beginning with the curvature of the prior. No step moves a scale by more than a
    factor of e, and one that leads uphill is shortened; a scale that lies at a bound and would
    leave it stands still. There are a few scales only, and a handful of calls is enough. SciPy's
    minimiser needs as many, and wakes threads of its linear algebra that cost more than all else.
    """
    low, high = bounds.T
    point = np.clip(start, low, high)
    loss, slope = function(point, *args)
    prior: Floats = _PULL**2 * np.eye(len(point))
    inverse = prior
    for _ in range(_STEPS):
        free = ((point > low) | (slope < 0)) & ((point < high) | (slope > 0))
        step = np.where(free, inverse @ np.where(free, -slope, 0.0), 0.0)
        step /= max(1.0, float(np.abs(step).max()))
        further = np.clip(point + step, low, high)
        moved = further - point
        if np.abs(moved).max() < _SETTLED:
            return further
        falls = float(moved @ slope)
        while True:
            now, next_slope = function(point + moved, *args)
            if now <= loss:
                break
            # To where a parabola through what is known has its minimum.
            shorter = max(0.1, 0.5 * falls / (falls + loss - now))
            moved, falls = shorter * moved, shorter * falls
            if np.abs(moved).max() < _SETTLED:
                return point
        turned = next_slope - slope
        along = float(moved @ turned)
        if along > 0:
            bent = inverse @ turned
            crossed = np.multiply.outer(bent, moved / along)
            inverse = inverse - crossed - crossed.T
            inverse += np.multiply.outer(moved, moved * ((along + turned @ bent) / along**2))
        else:  # what was learned about the curvature does not hold here
            inverse = prior
        point, loss, slope = np.clip(point + moved, low, high), now, next_slope
    return point


def _inverse_factor(covariance: Floats) -> Floats | None:
    """Return the inverse of the lower Cholesky factor; None if there is none."""
    from scipy.linalg import lapack  # takes long to import, and plans by forecasts do without

    factor, failed = lapack.dpotrf(covariance, lower=1, clean=1)
    if failed:
        return None
    inverse, _ = lapack.dtrtri(factor, lower=1)
    return np.ascontiguousarray(inverse)


def _negative_likelihood(
    point: Floats, apart: Floats, target: Floats, doubts: Floats, prior: Floats
) -> tuple[float, Floats]:
    """Return it and its gradient, over log length scales, log forgetting and log noise.

    `apart` has one row for each pair of observations: squared distances, and the time between.
    """
    *logs, log_forgetting, log_noise = point.tolist()
    forgetting, variance = math.exp(log_forgetting), math.exp(2 * log_noise)
    weights = [math.exp(-2 * log) for log in logs]
    # What the exponent is made of, and what its derivatives are: they differ in the last alone.
    exponent = np.array([*(-0.5 * one for one in weights), 0.5 * math.log1p(-forgetting)])
    slope = np.array([*weights, -0.5 * forgetting / (1 - forgetting)])
    number = len(target)
    kernel = np.exp(apart @ exponent).reshape(number, number)
    covariance = kernel.copy()
    covariance.reshape(-1)[:: number + 1] += variance * doubts + _JITTER
    inverse = _inverse_factor(covariance)
    if inverse is None:
        return 1e12, np.zeros_like(point)
    half = inverse @ target
    weight = half @ inverse
    # d/dx of the likelihood is half the sum over (weight weight' - covariance^-1) dK/dx.
    # The size of the signal is not a parameter: it is the most likely one, given the others.
    power = float(half @ half) / number
    outer = inverse.T @ inverse
    outer -= np.multiply.outer(weight, weight / power)
    noises = variance * float(outer.diagonal() @ doubts)
    outer *= kernel
    slopes = 0.5 * (outer.reshape(-1) @ apart) * slope
    off = point - prior
    pull = off / _PULL**2
    loss = 0.5 * number * math.log(power) - float(np.log(inverse.diagonal()).sum())
    return loss + 0.5 * float(pull @ off), np.append(slopes, noises) + pull
