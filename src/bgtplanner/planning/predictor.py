"""Predict what a round will bring: a Gaussian process over (level, context, time).

The paper's kernel, with its square restored (its text has lost it, its name and code have it):

    k((z, t), (z', t')) = (1 - alpha)^(|t - t'| / 2) exp( -|z - z'|^2 / (2 s^2) )

Old observations count less, and of many only the newest are kept.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve, cholesky
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, floats, number

_JITTER = 1e-12
_FIT_FROM = 16  # observations; with fewer, a length scale cannot be told from noise
_FIT_WITH = 128  # newest observations that scales are fitted to, at the cost of their cube
_LENGTHS = (0.05, 50.0)  # bounds on fitted length scales; inputs are of order 1
_NOISES = (0.02, 30.0)
_FORGETTING = (1e-6, 0.3)
_LARGEST = 1e100  # larger rewards and inputs count as this much: squares must be finite
_PULL = 0.5  # how far, in logarithms, fitted scales typically lie from where they began
_FARTHEST = 1e6  # length scales: larger distances make no difference


class Predictor:
    """Gaussian process regression that learns one observation at a time.

    Args:
        length_scale: The kernel's s.
        forgetting: The kernel's alpha: 0 remembers everything, 0.1 forgets within tens of rounds.
        noise: Standard deviation of an observation around the expected reward, over that of the
            expected reward itself.
        standardize: Scale rewards and contexts (not the level) to mean 0 and spread 1, as seen so
            far. A mean reward that may still be positive counts as positive, so that bad luck
            alone does not end all spending.
        fit: Choose all scales by marginal likelihood whenever the number of observations has
            doubled, with a prior centred at the values given here.
        window: The most observations to keep; the older half is dropped when it is reached.

    Example:
        >>> predictor = Predictor(standardize=False)
        >>> for x in (0.0, 0.2, 0.4):
        ...     predictor.observe([x], time=0, reward=x)
        >>> round(float(predictor.predict([[0.4]], time=0)[0]), 1)
        0.4
    """

    remembers = (
        "forgetting", "noise", "_next_fit", "_inputs", "_times", "_rewards", "_variances",
        "length_scales", "_centre", "_spread",
    )  # fmt: skip

    def __init__(
        self, *, length_scale: float = 0.2, forgetting: float = 0.001, noise: float = 0.1,
        standardize: bool = True, fit: bool = False, window: int = 1024,
    ) -> None:  # fmt: skip
        self._length = number("length_scale", length_scale, 1e-9, 1e6)
        self.forgetting = number("forgetting", forgetting, 0.0, 1 - 1e-9)
        self.noise = number("noise", noise, 1e-4, 1e6)
        ConfigError.unless(window >= 16, "window", window, "at least 16")
        self.standardize, self.fit, self.window = standardize, fit, int(window)
        self._prior_of_time = max(self.forgetting, _FORGETTING[0]), self.noise
        self._next_fit = _FIT_FROM
        self._inputs = np.zeros((0, 0))  # one row per observation
        self._times = self._rewards = self._variances = np.zeros(0)
        self.length_scales = self._centre = self._spread = np.zeros(0)  # one per input
        self._weights: Floats | None = None  # of the observations, until there is another one

    def __len__(self) -> int:
        return len(self._rewards)

    def reward_scale(self) -> tuple[float, float]:
        """Return mean and spread of the rewards kept; 0 and 1 where rewards are used raw."""
        if not self.standardize or not len(self):
            return 0.0, 1.0
        weights = 1.0 / self._variances
        mean = float(np.average(self._rewards, weights=weights))
        spread = math.sqrt(np.average((self._rewards - mean) ** 2, weights=weights))
        spread = spread or abs(mean) or 1.0
        return max(mean, spread / math.sqrt(len(self))), spread

    def observe(
        self, inputs: ArrayLike, *, time: float, reward: float, variance: float = 1.0
    ) -> None:
        """Learn that these inputs (level first) brought this reward at this time.

        The variance is that of this observation's noise, over the usual variance.
        """
        row = floats("inputs", inputs).ravel()
        time, reward = number("time", time), number("reward", reward)
        variance = number("variance", variance, 1e-12, 1e12)
        if not len(self.length_scales):
            self._inputs, self.length_scales = row[None][:0], np.full(len(row), self._length)
            self._centre, self._spread = np.zeros(len(row)), np.ones(len(row))
        width = len(self.length_scales)
        ConfigError.unless(len(row) == width, "inputs", len(row), f"{width} numbers")
        old = len(self) - self.window // 2 if len(self) >= self.window else 0
        self._inputs = np.vstack([self._inputs[old:], np.clip(row, -_LARGEST, _LARGEST)])
        self._times = np.append(self._times[old:], time)
        self._rewards = np.append(self._rewards[old:], np.clip(reward, -_LARGEST, _LARGEST))
        self._variances = np.append(self._variances[old:], variance)
        self._weights, known = None, len(self)
        if self.standardize and known & (known - 1) == 0:  # at powers of 2, standardise anew
            self._centre, self._spread = self._inputs.mean(axis=0), self._inputs.std(axis=0)
            self._centre[0], self._spread[0] = 0.0, 1.0  # the level stays as it is
            self._spread[self._spread < 1e-12] = 1.0
        if self.fit and known >= self._next_fit:
            self._fit()

    def predict(self, inputs: ArrayLike, *, time: float) -> Floats:
        """Return the expected reward at several inputs, one per row."""
        rows = np.atleast_2d(np.asarray(inputs, dtype=np.float64))
        centre, _ = self.reward_scale()
        if not len(self):
            return np.full(len(rows), centre)
        if self._weights is None:
            covariance = self._kernel(self._inputs, self._times)
            covariance[np.diag_indices(len(self))] += self.noise**2 * self._variances + _JITTER
            factor = cho_factor(covariance, lower=True)
            self._weights = cho_solve(factor, self._rewards - centre)
        return np.asarray(centre + self._kernel(rows, time) @ self._weights)

    def expect(self, levels: Floats, contexts: Floats, *, time: float) -> Floats:
        """Return the expected reward at all levels in all contexts, one row per context."""
        tiled = np.tile(levels, len(contexts)), np.repeat(contexts, len(levels), axis=0)
        return self.predict(np.column_stack(tiled), time=time).reshape(len(contexts), -1)

    def _scaled(self, rows: Floats) -> Floats:
        """Return inputs in length scales from their centre."""
        units = self._spread * self.length_scales
        near = (np.clip(rows, -_LARGEST, _LARGEST) - self._centre) / units
        return np.clip(near, -_FARTHEST, _FARTHEST)

    def _kernel(self, rows: Floats, times: float | Floats) -> Floats:
        """Return the kernel between some inputs, each at its time, and the observations."""
        squares = cdist(self._scaled(rows), self._scaled(self._inputs), "sqeuclidean")
        ages = np.abs(np.reshape(times, (-1, 1)) - self._times)
        return np.asarray(np.exp(0.5 * (math.log1p(-self.forgetting) * ages - squares)))

    def _fit(self) -> None:
        """Fit the scales by marginal likelihood, with a weak prior at where they began."""
        newest = slice(max(len(self) - _FIT_WITH, 0), None)
        centre, spread = self.reward_scale()
        target = (self._rewards[newest] - centre) / spread
        self._next_fit = 2 * len(self)
        if not target.any():  # if all rewards are equal, every scale explains that
            return
        rows, times = self._inputs[newest] / self._spread, self._times[newest]
        width = len(self.length_scales)
        # Of each pair of observations: squared distances by input, and the time between them.
        apart = np.empty((len(times), len(times), width + 1))
        apart[..., :width] = (rows[:, None] - rows) ** 2
        apart[..., width] = np.abs(times[:, None] - times)
        prior = np.log([self._length] * width + [*self._prior_of_time])
        bounds = np.log([_LENGTHS] * width + [_FORGETTING, _NOISES])
        now = np.log([*self.length_scales, max(self.forgetting, _FORGETTING[0]), self.noise])
        seen = apart.reshape(-1, width + 1), target, self._variances[newest], prior
        start, how = np.clip(now, *bounds.T), "L-BFGS-B"
        found = minimize(negative_likelihood, start, seen, how, jac=True, bounds=bounds)
        best = np.exp(found.x)
        self.length_scales, (self.forgetting, self.noise) = best[:-2], best[-2:].tolist()


def negative_likelihood(
    point: Floats, apart: Floats, target: Floats, variances: Floats, prior: Floats
) -> tuple[float, Floats]:
    """Return it and its gradient, over log length scales, log forgetting and log noise.

    The size of the signal is not a parameter: it is the most likely one, given the others. `apart`
    has squared distances by input and the time between, one row per pair of observations.
    """
    weights, forgetting = np.exp(-2 * point[:-2]), math.exp(point[-2])
    variance, number = math.exp(2 * point[-1]), len(target)
    # What the exponent is made of, and what its derivatives are: they differ in the last alone.
    exponent = np.append(-0.5 * weights, 0.5 * math.log1p(-forgetting))
    slope = np.append(weights, -0.5 * forgetting / (1 - forgetting))
    kernel = np.exp(apart @ exponent).reshape(number, number)
    try:
        factor = cholesky(kernel + np.diag(variance * variances + _JITTER), lower=True)
    except LinAlgError:
        return 1e12, np.zeros_like(point)
    inverse = cho_solve((factor, True), np.eye(number))
    weight = inverse @ target
    power = float(target @ weight) / number
    # d/dx of the likelihood is half the sum over (weight weight' - covariance^-1) dK/dx.
    outer = inverse - np.outer(weight, weight / power)
    noises = variance * float(outer.diagonal() @ variances)
    slopes = 0.5 * ((outer * kernel).reshape(-1) @ apart) * slope
    pull = (point - prior) / _PULL**2
    loss = 0.5 * number * math.log(power) + float(np.log(factor.diagonal()).sum())
    return loss + 0.5 * float(pull @ (point - prior)), np.append(slopes, noises) + pull
