"""From scores to probabilities: inverse gap weighting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import probabilities

scores = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
gammas = st.one_of(st.just(0.0), st.floats(0, 1e308))


@given(scores, gammas)
def test_they_are_probabilities_and_follow_the_scores(values: list[float], gamma: float) -> None:
    chance = probabilities(values, gamma)
    number = len(values)
    assert chance.sum() == pytest.approx(1.0, abs=1e-12)
    assert (chance >= 0).all()
    assert chance[int(np.argmax(values))] >= (1 - 1e-12) / number
    assert chance.max() <= chance[int(np.argmax(values))] + 1e-12
    others = np.delete(chance, int(np.argmax(values)))
    order = np.argsort(np.delete(values, int(np.argmax(values))))
    assert (np.diff(others[order]) >= -1e-12).all()


@pytest.mark.parametrize(
    ("values", "gamma", "expected"),
    [
        ([0.3, 1.0, 0.8], 5.0, [1 / 6.5, 1 - 1 / 6.5 - 1 / 4, 1 / 4]),
        ([2.0] * 4, 1e300, [0.25] * 4),
        ([0.0, 1.0, 0.5], 1e308, [0.0, 1.0, 0.0]),
        ([-1e308, 1e308], 1e308, [0.0, 1.0]),
    ],
)
def test_the_formula(values: list[float], gamma: float, expected: list[float]) -> None:
    np.testing.assert_allclose(probabilities(values, gamma), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "values", "gamma"),
    [
        ("scores", [[1.0, 2.0]], 1.0),
        ("scores", [1.0, float("inf")], 1.0),
        ("gamma", [1.0], float("nan")),
    ],
)
def test_nonsense_is_refused(name: str, values: list[float], gamma: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        probabilities(values, gamma)
