"""The predictor on its own: what it fits, what it refuses. Oracles are in tests/oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.planning.predictor import Predictor, negative_likelihood
from bgtplanner.planning.states import remembered

Floats = NDArray[np.float64]


def test_what_it_is_given_stays_as_it_was() -> None:
    predictor, rows = Predictor(), np.array([[0.0, 1e200], [1.0, -1e200]])
    kept = rows.copy()
    for time in range(5):
        predictor.observe(rows[0], time=time, reward=1.0)
        state = remembered(predictor)
        predictor.expect(rows[:, 0], rows[:, 1:], time=9)
        predictor.predict(rows, time=9)
        assert remembered(predictor) == state
    assert rows.tolist() == kept.tolist()


@given(st.lists(st.sampled_from([0.0, 1e300, -1e300, 1.7e308, -1.7e308, 1e-300]), max_size=40))
@settings(max_examples=30, deadline=None)
def test_huge_rewards_stay_numbers(rewards: list[float]) -> None:
    predictor = Predictor(fit=True, length_scale=4.0, noise=3.0)
    for time, reward in enumerate(rewards):
        predictor.observe([float(time % 3), 1.0], time=time, reward=reward)
        assert np.isfinite(predictor.reward_scale()).all()
        assert np.isfinite(predictor.expect(np.zeros(1), np.ones((1, 1)), time=time)).all()


# ---- fitting


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_of_the_likelihood(seed: int) -> None:
    generator = np.random.default_rng(seed)
    number, width = 30, 3
    rows = generator.standard_normal((number, width))
    squares = (rows[:, None, :] - rows) ** 2
    ages = np.abs(np.arange(number)[:, None] - np.arange(number)).astype(float)
    apart = np.dstack([squares, ages]).reshape(number**2, -1)
    target, variances = generator.standard_normal(number), generator.uniform(0.3, 3.0, number)
    point = np.log(np.r_[generator.uniform(0.3, 3.0, width), 0.02, 0.6])
    prior = point + generator.standard_normal(width + 2)

    def loss(at: Floats) -> float:
        return negative_likelihood(at, apart, target, variances, prior)[0]

    _, gradient = negative_likelihood(point, apart, target, variances, prior)
    steps = 1e-5 * np.eye(width + 2)
    numeric = [(loss(point + step) - loss(point - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6)


def drawn(lengths: list[float], number: int, seed: int, noise: float = 0.1) -> tuple[Any, Any]:
    """Inputs and rewards from a process with known length scales."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((number, len(lengths)))
    scaled = rows / np.asarray(lengths)
    kernel = np.exp(-0.5 * ((scaled[:, None] - scaled) ** 2).sum(axis=2))
    factor = np.linalg.cholesky(kernel + 1e-9 * np.eye(number))
    rewards = factor @ generator.standard_normal(number)
    return rows, rewards + noise * generator.standard_normal(number)


def test_fitting_tells_long_from_short_length_scales() -> None:
    """The median of five: one fit in fifty misses a bound, three of five less than 1 in 10,000."""
    fitted = []
    for seed in range(5):
        rows, rewards = drawn([1.0, 0.4, 20.0], 128, seed)
        predictor = Predictor(fit=True, length_scale=2.0, noise=0.5)
        for time, (inputs, reward) in enumerate(zip(rows, rewards, strict=True)):
            predictor.observe(inputs, time=time, reward=reward)
        fitted.append([*predictor.length_scales, predictor.noise])
    level, short, long, noise = np.median(fitted, axis=0)
    assert 0.2 < short < 0.6 < level < 2.0
    assert long > 3.0
    assert noise < 0.3


# ---- refusals


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length_scale", 0.0),
        ("forgetting", 1.0),
        ("noise", float("nan")),
        ("window", 15),
    ],
)
def test_bad_options_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        Predictor(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "inputs", "rest"),
    [
        ("inputs", [float("nan"), 0.0], {}),
        ("inputs", [0.0], {}),
        ("reward", [0.0, 0.0], {"reward": float("inf")}),
        ("time", [0.0, 0.0], {"time": float("nan")}),
        ("variance", [0.0, 0.0], {"variance": 0.0}),
    ],
)
def test_bad_observations_are_named_and_change_nothing(
    name: str, inputs: list[float], rest: dict[str, float]
) -> None:
    predictor = Predictor()
    predictor.observe([0.0, 0.0], time=0, reward=1.0)
    before = remembered(predictor)
    with pytest.raises(ConfigError, match=f"^{name} = "):
        predictor.observe(inputs, **{"time": 1.0, "reward": 1.0, **rest})
    assert remembered(predictor) == before
