"""The predictor against scikit-learn's Gaussian process, which was made by other people.

The kernel is put together from scikit-learn's own parts: a squared exponential over the inputs
times an exponential over time, (1 - alpha)^(|t - t'| / 2) = exp(-|t - t'| / l), which is a Matern
kernel with nu = 1/2 and l = -2 / log(1 - alpha).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern

from bgtplanner.planning.predictor import Predictor, negative_likelihood

Floats = NDArray[np.float64]


class On(Kernel):  # type: ignore[misc]
    """A kernel that looks at some of the columns only."""

    def __init__(self, kernel: Kernel, first: int, last: int) -> None:
        self.kernel, self.first, self.last = kernel, first, last

    def __call__(self, X: Floats, Y: Floats | None = None, eval_gradient: bool = False) -> Any:
        other = None if Y is None else Y[:, self.first : self.last]
        found = self.kernel(X[:, self.first : self.last], other)
        return (found, np.zeros((*found.shape, 0))) if eval_gradient else found

    def diag(self, X: Floats) -> Floats:
        return self.kernel.diag(X[:, self.first : self.last])

    def is_stationary(self) -> bool:
        return True


def kernel_of(lengths: Any, forgetting: float, width: int) -> Kernel:
    smooth = On(RBF(lengths), 0, width)
    if not forgetting:
        return smooth
    decay = Matern(-2 / np.log1p(-forgetting), nu=0.5)
    return smooth * On(decay, width, width + 1)


class Mirror:
    """What a predictor should have kept, and scikit-learn's prediction from it."""

    def __init__(self, predictor: Predictor, *, length: float, forgetting: float, noise: float):
        self.predictor, self.length, self.forgetting = predictor, length, forgetting
        self.noise = noise
        self.rows: list[tuple[Floats, float, float, float]] = []
        self.centre: Any = 0.0
        self.spread: Any = 1.0

    def observe(self, inputs: Floats, time: float, reward: float, variance: float = 1.0) -> None:
        self.predictor.observe(inputs, time=time, reward=reward, variance=variance)
        if len(self.rows) == self.predictor.window:
            self.rows = self.rows[-(self.predictor.window // 2) :]
        self.rows.append((inputs, time, reward, variance))
        number = len(self.rows)
        if self.predictor.standardize and number & (number - 1) == 0:
            inputs = np.array([row[0] for row in self.rows])
            self.centre, self.spread = inputs.mean(axis=0), inputs.std(axis=0)
            self.spread[self.spread < 1e-12] = 1.0
            self.centre[0], self.spread[0] = 0.0, 1.0

    def reward_scale(self) -> tuple[float, float]:
        if not self.predictor.standardize:
            return 0.0, 1.0
        rewards = np.array([row[2] for row in self.rows])
        weights = np.array([1 / row[3] for row in self.rows])
        mean = np.average(rewards, weights=weights)
        spread = np.sqrt(np.average((rewards - mean) ** 2, weights=weights))
        spread = spread or abs(mean) or 1.0
        return max(mean, spread / np.sqrt(len(rewards))), spread

    def predict(self, inputs: Floats, time: float) -> Floats:
        width = inputs.shape[1]
        seen, times, rewards, variances = (
            np.array([row[part] for row in self.rows], dtype=float) for part in range(4)
        )
        centre, spread = self.reward_scale()
        process = GaussianProcessRegressor(
            kernel_of(self.length, self.forgetting, width),
            alpha=self.noise**2 * variances,
            optimizer=None,
        )
        process.fit(
            np.column_stack([(seen - self.centre) / self.spread, times]),
            (rewards - centre) / spread,
        )
        where = (inputs - self.centre) / self.spread
        mean = process.predict(np.column_stack([where, np.full(len(inputs), time)]))
        return np.asarray(centre + spread * mean)

    def check(self, inputs: Floats, time: float, tolerance: float = 1e-8) -> None:
        mean = self.predict(inputs, time)
        found = self.predictor.predict(inputs, time=time)
        np.testing.assert_allclose(found, mean, rtol=0, atol=tolerance)
        levels, contexts = inputs[:, 0].copy(), inputs[:, 1:]
        expected = self.predictor.expect(levels, contexts, time=time)
        np.testing.assert_allclose(expected.diagonal(), found, rtol=0, atol=1e-9)


def made(
    *, length: float, forgetting: float, noise: float, standardize: bool, window: int = 1024
) -> Mirror:
    predictor = Predictor(
        length_scale=length,
        forgetting=forgetting,
        noise=noise,
        standardize=standardize,
        window=window,
    )
    return Mirror(predictor, length=length, forgetting=forgetting, noise=noise)


def reward_of(inputs: Floats, generator: np.random.Generator) -> float:
    return float(np.sin(inputs).sum() + 0.3 * generator.standard_normal())


@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize("forgetting", [0.0, 0.2])
@pytest.mark.parametrize(("length", "noise"), [(0.2, 0.1), (1.5, 0.1), (4.0, 3.0)])
def test_raw(width: int, forgetting: float, length: float, noise: float) -> None:
    generator = np.random.default_rng(7)
    mirror = made(length=length, forgetting=forgetting, noise=noise, standardize=False)
    for time in range(40):
        inputs = generator.standard_normal(width)
        mirror.observe(inputs, time, reward_of(inputs, generator))
        if time in (0, 1, 15, 16, 17, 39):
            mirror.check(generator.standard_normal((7, width)), time + 1.0)
            mirror.check(inputs[None], time)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 8, 9, 33])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])  # a negative mean counts as hardly positive
def test_standardised(number: int, shift: float) -> None:
    generator = np.random.default_rng(number)
    mirror = made(length=1.0, forgetting=0.01, noise=0.5, standardize=True)
    for time in range(number):
        inputs = np.r_[time % 5, generator.normal([100.0, -3.0], [20.0, 1e-3])]
        reward = shift + 0.1 * float(generator.standard_normal())
        mirror.observe(inputs, time, reward, variance=float(generator.uniform(0.2, 5)))
    where = np.column_stack([np.arange(5.0), generator.normal([100.0, -3.0], [20, 1e-3], (5, 2))])
    mirror.check(where, number)


@pytest.mark.parametrize("standardize", [False, True])
def test_the_window_drops_the_older_half(standardize: bool) -> None:
    generator = np.random.default_rng(5)
    mirror = made(length=0.7, forgetting=0.01, noise=0.3, standardize=standardize, window=48)
    where = generator.standard_normal((5, 2))
    for time in range(150):
        inputs = generator.standard_normal(2)
        mirror.observe(inputs, time, reward_of(inputs, generator), variance=1 + time % 3)
        assert len(mirror.predictor) == len(mirror.rows)
        if time in (46, 47, 48, 49, 71, 72, 95, 96, 149):
            mirror.check(where, time + 1.0)
    assert {len(mirror.rows)} <= set(range(24, 49))


def test_the_likelihood_that_scales_are_fitted_by() -> None:
    # Ours leaves out the size of the signal, which is then the one that makes the data most
    # likely; so it is scikit-learn's at that size.
    generator = np.random.default_rng(17)
    number, width = 40, 3
    rows, times = generator.standard_normal((number, width)), np.arange(number, dtype=float)
    target = generator.standard_normal(number)
    variances = generator.uniform(0.5, 2.0, number)
    squares = (rows[:, None, :] - rows) ** 2
    ages = np.abs(times[:, None] - times)
    apart = np.dstack([squares, ages]).reshape(number**2, -1)
    for _ in range(10):
        lengths = generator.uniform(0.3, 3.0, width)
        forgetting, noise = generator.uniform(0.001, 0.2), generator.uniform(0.2, 2.0)
        point = np.log(np.r_[lengths, forgetting, noise])
        loss, _ = negative_likelihood(point, apart, target, variances, point)
        kernel = kernel_of(lengths, forgetting, width)
        inputs = np.column_stack([rows, times])
        covariance = kernel(inputs) + np.diag(noise**2 * variances)
        power = target @ np.linalg.solve(covariance, target) / number
        process = GaussianProcessRegressor(
            ConstantKernel(power) * kernel, alpha=power * noise**2 * variances, optimizer=None
        ).fit(inputs, target)
        known = number / 2 * (1 + np.log(2 * np.pi))
        likelihood = process.log_marginal_likelihood_value_
        assert loss == pytest.approx(-likelihood - known, abs=1e-7)
