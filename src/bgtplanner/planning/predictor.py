"""Predict what a round will bring: a Gaussian process over (level, context, time).

The paper's kernel, with its square restored (its text has lost it, its name and code have it):

    k((z, t), (z', t')) = (1 - alpha)^(|t - t'| / 2) exp( -|z - z'|^2 / (2 s^2) )

Old observations count less. The inverse of the Cholesky factor is kept and grows by one row per
round, so a round costs the square of the number of observations, not its cube, and only products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
_FARTHEST = 1e6  # length scales: larger distances make no difference
# As arrays: with plain numbers, an operation on a few entries takes twice as long.
_ZERO = np.array(0.0)
_BOUNDS = np.array(-_LARGEST), np.array(_LARGEST)
_FAR = np.array(-_FARTHEST), np.array(_FARTHEST)
_PULL = 0.5  # how far, in logarithms, fitted scales typically lie from where they began


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
        self._scale_of_rewards: tuple[float, float] | None = None  # until there is another one
        self._next_fit = _FIT_FROM
        self._rebuilt = 0  # number of observations that the factor was last built from at once
        self._lengths = self._centre = self._spread = np.zeros(0)  # one per input
        self._make_room(0, 16)

    def __len__(self) -> int:
        return self._size

    @property
    def length_scales(self) -> Floats:
        """Length scale s of each input, fitted or given."""
        return self._lengths.copy()

    def reward_scale(self) -> tuple[float, float]:
        """Return mean and spread of the rewards kept; 0 and 1 where rewards are used raw."""
        if not self.standardize or not self._size:
            return 0.0, 1.0
        if self._scale_of_rewards is None:
            self._scale_of_rewards = self._see_rewards()
        return self._scale_of_rewards

    def _see_rewards(self) -> tuple[float, float]:
        rewards, weights = self._rewards[: self._size], 1.0 / self._doubts[: self._size]
        weights /= np.add.reduce(weights)
        mean = float(weights @ rewards)
        off = rewards - mean
        spread = math.sqrt(weights @ (off * off)) or abs(mean) or 1.0
        return max(mean, spread / self._size**0.5), spread

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
        row = np.asarray(inputs, dtype=np.float64).ravel()
        number = np.count_nonzero(np.isfinite(row))
        ConfigError.unless(number == len(row), "inputs", "NaN", "finite numbers")
        finite = math.isfinite(reward) and math.isfinite(time)
        ConfigError.unless(finite, "reward", reward, "a finite number, at a finite time")
        ConfigError.unless(bool(1e-12 < doubt < 1e12), "doubt", doubt, "a positive number")
        row = _within(row, _BOUNDS)
        reward = min(max(float(reward), -_LARGEST), _LARGEST)
        if not self._size:
            self._make_room(len(row), 16)
        width = self._inputs.shape[1]
        ConfigError.unless(len(row) == width, "inputs", len(row), f"{width} numbers")
        if self._size >= self.window:
            self._keep_newest(self.window // 2)
        if self._size == len(self._inputs):
            self._make_room(width, 2 * self._size)
        at = self._size
        self._inputs[at], self._times[at] = row, time
        self._rewards[at], self._doubts[at] = reward, doubt
        self._size += 1
        self._scale_of_rewards = None
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
        half = self._kernel(rows, time) @ self._inverse[:number, :number].T
        target = (self._whitened[0, :number] - centre * self._whitened[1, :number]) / spread
        variance = np.maximum(1.0 - (half * half).sum(axis=1), 0.0)
        return Prediction(centre + spread * (half @ target), spread**2 * variance)

    def expect(self, inputs: ArrayLike, *, time: float) -> Floats:
        """Return the mean of :meth:`predict` alone, which is much cheaper for many inputs."""
        rows = np.asarray(inputs, dtype=np.float64)
        rows = rows if rows.ndim == 2 else np.atleast_2d(rows)
        centre, spread = self.reward_scale()
        number = self._size
        if not number:
            return np.full(len(rows), centre)
        target = (self._whitened[0, :number] - centre * self._whitened[1, :number]) / spread
        weights = target @ self._inverse[:number, :number]
        return np.asarray(centre + spread * (self._kernel(rows, time) @ weights))

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
        self._size, self._scale_of_rewards = 0, None
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

    def _make_room(self, width: int, room: int) -> None:
        """Make arrays for `room` observations, and copy the present ones."""
        number = self._size
        old = self.__dict__.copy()
        self._inputs: Floats = np.zeros((room, width))
        self._scaled: Floats = np.zeros((room, width))
        self._halves: Floats = np.zeros(room)  # half of the squared length of each of these
        self._times: Floats = np.zeros(room)
        self._rewards: Floats = np.zeros(room)
        self._doubts: Floats = np.zeros(room)
        self._whitened: Floats = np.zeros((2, room))  # inverse factor times rewards and ones
        self._inverse: Floats = np.zeros((room, room))
        if not number:
            self._lengths = np.full(width, self._length)
            self._centre, self._spread = np.zeros(width), np.ones(width)
            self._set_units()
            return
        for name in ("_inputs", "_scaled", "_halves", "_times", "_rewards", "_doubts"):
            getattr(self, name)[:number] = old[name][:number]
        self._whitened[:, :number] = old["_whitened"][:, :number]
        self._inverse[:number, :number] = old["_inverse"][:number, :number]

    def _set_units(self) -> None:
        """Derive what the kernel is computed with from the scales and the forgetting."""
        self._unit = self._spread * self._lengths
        self._fading = np.array(0.5 * np.log1p(-self.forgetting))

    def _scale(self, rows: Floats) -> Floats:
        """Return inputs that are not above the largest, in length scales from their centre."""
        scaled = rows - self._centre
        scaled /= self._unit
        return _within(scaled, _FAR)

    def _faded(self, ages: Floats) -> Floats:
        """Return the logarithm of the factor by which so many rounds lower the kernel, in place.

        An age may be negative: rounds may be told in any order.
        """
        np.abs(ages, out=ages)
        ages *= self._fading
        return ages

    def _kernel(self, rows: Floats, time: float) -> Floats:
        """Return the kernel between some inputs at one time and all observations."""
        number = self._size
        rows = self._scale(_within(rows, _BOUNDS))
        faded = self._faded(self._times[:number] - time)
        others, halves = self._scaled[:number], self._halves[:number]
        return _kernel(rows, _half_squares(rows), others, halves, faded)

    def _extend(self) -> None:
        """Add a row to the inverse factor, for the newest observation."""
        at = self._size - 1
        scaled, halves = self._scaled, self._halves
        own = scaled[at : at + 1]
        own[0] = self._scale(self._inputs[at])
        half = halves[at : at + 1]
        half[:] = _half_squares(own)
        faded = self._faded(self._times[:at] - self._times[at])
        across = _kernel(own, half, scaled[:at], halves[:at], faded)[0]
        inverse = self._inverse[:at, :at]
        row = inverse @ across
        variance = 1.0 + self.noise**2 * float(self._doubts[at]) + _JITTER
        corner = math.sqrt(max(variance - float(row @ row), _JITTER))
        self._inverse[at, :at] = (row @ inverse) / -corner
        self._inverse[at, at] = 1.0 / corner
        reward = self._rewards[at] - row @ self._whitened[0, :at]
        self._whitened[0, at] = reward / corner
        self._whitened[1, at] = (1.0 - row @ self._whitened[1, :at]) / corner

    def _rebuild(self) -> None:
        """Compute the whole inverse factor anew, after scales have changed."""
        number = self._rebuilt = self._size
        self._set_units()
        self._scaled[:number] = self._scale(self._inputs[:number])
        self._halves[:number] = _half_squares(self._scaled[:number])
        if not number:
            return
        scaled, halves = self._scaled[:number], self._halves[:number]
        times = self._times[:number]
        faded = self._faded(times[:, None] - times)
        covariance = _kernel(scaled, halves, scaled, halves, faded)
        noise = self.noise**2 * self._doubts[:number]
        np.fill_diagonal(covariance, 1.0 + noise + _JITTER)
        inverse = _inverse_factor(covariance)
        if inverse is None:  # pragma: no cover - the noise keeps it positive definite
            raise ConfigError(f"noise = {self.noise!r}: too small for so many equal inputs")
        self._inverse[:number, :number] = inverse
        self._whitened[0, :number] = inverse @ self._rewards[:number]
        self._whitened[1, :number] = inverse.sum(axis=1)

    def _keep_newest(self, keep: int) -> None:
        first = self._size - keep
        for values in (self._inputs, self._times, self._rewards, self._doubts):
            values[:keep] = values[first : self._size].copy()
        self._size, self._scale_of_rewards = keep, None
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
        first = self._size - number
        centre, spread = self.reward_scale()
        target = (self._rewards[first : self._size] - centre) / spread
        if not target.any():  # all rewards are equal: every scale explains that
            self._next_fit = 2 * self._size
            self._rebuild()
            return
        rows = (self._inputs[first : self._size] - self._centre) / self._spread
        squares = (rows[:, None, :] - rows) ** 2
        times = self._times[first : self._size]
        ages = np.abs(times[:, None] - times)
        prior = np.log(np.r_[np.full(rows.shape[1], self._length), self._first])
        limits = [_LENGTHS] * rows.shape[1] + [_FORGETTING, _NOISES]
        bounds = np.log(limits)
        now = np.r_[self._lengths, max(self.forgetting, _FORGETTING[0]), self.noise]
        from scipy.optimize import fmin_l_bfgs_b  # takes long to import; short runs do not fit

        found, *_ = fmin_l_bfgs_b(
            _negative_likelihood,
            np.clip(np.log(now), bounds[:, 0], bounds[:, 1]),
            args=(squares, ages, target, self._doubts[first : self._size], prior),
            bounds=bounds,
            maxiter=25,
        )
        best = np.exp(found)
        self._lengths, self.forgetting = best[:-2], float(best[-2])
        self.noise = float(best[-1])
        self._next_fit = 2 * self._size
        self._rebuild()


def _half_squares(rows: Floats) -> Floats:
    """Return half of the squared length of each row."""
    half: Floats = 0.5 * np.add.reduce(rows * rows, axis=1)
    return half


def _within(rows: Floats, bounds: tuple[Floats, Floats]) -> Floats:
    """Return numbers that are cut to bounds: np.clip takes several times as long for a few."""
    bounded: Floats = np.maximum(rows, bounds[0])
    return np.minimum(bounded, bounds[1], out=bounded)


def _kernel(rows: Floats, half: Floats, others: Floats, halves: Floats, faded: Floats) -> Floats:
    """Return the kernel between rows; half of their squared lengths are given.

    `faded` is the part of the exponent that is due to time.
    """
    exponent: Floats = rows @ others.T
    exponent -= half[:, None] + halves
    np.minimum(exponent, _ZERO, out=exponent)
    exponent += faded
    return np.exp(exponent, out=exponent)


def _inverse_factor(covariance: Floats) -> Floats | None:
    """Return the inverse of the lower Cholesky factor; None if there is none."""
    from scipy.linalg import lapack  # takes long to import, and plans by forecasts do without

    factor, failed = lapack.dpotrf(covariance, lower=1, clean=1)
    if failed:
        return None
    inverse, _ = lapack.dtrtri(factor, lower=1)
    return np.ascontiguousarray(inverse)


def _negative_likelihood(
    point: Floats, squares: Floats, ages: Floats, target: Floats, doubts: Floats, prior: Floats
) -> tuple[float, Floats]:
    """Return it and its gradient, over log length scales, log forgetting and log noise."""
    log_forgetting, log_noise = point[-2:].tolist()
    weights = np.exp(-2 * point[:-2])
    forgetting, variance = float(np.exp(log_forgetting)), float(np.exp(2 * log_noise))
    kernel = np.exp(-0.5 * (squares @ weights) + 0.5 * float(np.log1p(-forgetting)) * ages)
    number = len(target)
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
    outer = inverse.T @ inverse - np.multiply.outer(weight, weight) / power
    shared = outer * kernel
    slopes = 0.5 * np.einsum("ij,ijk->k", shared, squares) * weights
    forgets = 0.5 * float((shared * ages).sum()) * (-0.5 * forgetting / (1 - forgetting))
    noises = variance * float(outer.diagonal() @ doubts)
    pull = (point - prior) / _PULL**2
    loss = 0.5 * number * np.log(power) - np.log(inverse.diagonal()).sum()
    loss += 0.5 * pull @ (point - prior)
    return float(loss), np.concatenate([slopes, [forgets, noises]]) + pull
