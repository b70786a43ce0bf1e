"""Statistics of what was released: refusals, and states that go on exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.errors import ConfigError
from bgtplanner.planning.context import ReleasedContext
from bgtplanner.planning.states import recall, remembered


def known(context: ReleasedContext) -> dict[str, float]:
    vector = context.vector(progress=0.25, left=0.5)
    return dict(zip(context.names, vector.tolist(), strict=True))


def test_the_signal_is_estimated_from_the_noise_that_is_known() -> None:
    generator = np.random.default_rng(0)
    signal = generator.standard_normal((100, 400))
    signal *= 300 / np.linalg.norm(signal)
    context = ReleasedContext()
    context.released(signal + 0.5 * generator.standard_normal(signal.shape), 0.5)
    truth = math.log(300**2 / (signal.size * 0.5**2))
    assert known(context)["log_signal_to_noise"] == pytest.approx(truth, abs=0.05)
    assert known(context)["log_norm"] == pytest.approx(math.log(math.hypot(300, 100)), abs=0.02)


def test_cosine_and_reward_follow_the_rounds() -> None:
    context = ReleasedContext()
    seen = []
    for aggregate, reward in [([1, 0], None), ([1, 1], 0.5), ([-2, -2], None), ([1, 2, 3], -1)]:
        context.released(aggregate, 1.0, reward)
        seen.append((known(context)["cosine"], known(context)["reward"]))
    assert seen == [
        (0.0, 0.0),
        (pytest.approx(math.sqrt(0.5)), 0.5),
        (pytest.approx(-1.0), 0.5),  # the reward that was paid for stays
        (0.0, -1.0),  # of another length: nothing to compare
    ]


FLOOR, CEILING = math.log(1e-3), math.log(1e9)


@pytest.mark.parametrize(
    ("aggregate", "noise_std", "log_norm", "log_ratio"),
    [
        ([3.0, 4.0], 0.0, math.log(5), CEILING),
        ([0.0, 0.0], 0.0, math.log(1e-12), FLOOR),
        ([0.0, 0.0], 1.0, math.log(1e-12), FLOOR),
        ([1.0, 1.0], 9.0, math.log(2) / 2, FLOOR),
        ([1e308, -1e308], 1e308 / math.sqrt(2), math.log(1e12), 0.0),
        ([1e308, 1e308], 1e-300, math.log(1e12), CEILING),
        ([5e-324, 0.0], 1e300, math.log(1e-12), FLOOR),
    ],
)
def test_no_size_is_too_large_or_too_small(
    aggregate: list[float], noise_std: float, log_norm: float, log_ratio: float
) -> None:
    context = ReleasedContext()
    context.released(aggregate, noise_std)
    context.released(aggregate, noise_std)
    found = known(context)
    assert found["log_norm"] == pytest.approx(log_norm)
    assert found["log_signal_to_noise"] == pytest.approx(log_ratio, abs=1e-9)
    assert found["cosine"] == pytest.approx(1.0 if any(aggregate) else 0.0)


finite = st.floats(allow_nan=False, allow_infinity=False)
rounds = st.lists(
    st.tuples(
        st.lists(finite, min_size=1, max_size=4), st.floats(0, 1e308), st.none() | st.floats(-1, 1)
    ),
    max_size=4,
)


@given(rounds, rounds)
def test_everything_stays_finite_and_a_restored_one_goes_on_exactly(
    before: list[Any], after: list[Any]
) -> None:
    context = ReleasedContext()
    for given_ in before:
        context.released(*given_)
    restored = ReleasedContext()
    recall(restored, remembered(context))
    assert known(restored) == known(context)
    for given_ in after:
        context.released(*given_)
        restored.released(*given_)
        assert known(restored) == known(context)
        assert all(math.isfinite(value) for value in known(context).values())
        assert -1 <= known(context)["cosine"] <= 1


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (([1.0, math.nan], 1.0), "aggregate = 'not all finite numbers': expected finite numbers"),
        (([], 1.0), "aggregate = 'empty': expected at least one coordinate"),
        (([1.0], -1.0), "noise_std = -1.0: expected a finite number from 0"),
        (([1.0], 1.0, math.nan), "reward = nan: expected a finite number"),
    ],
)
def test_what_cannot_have_been_released_is_refused_and_changes_nothing(
    given_: Any, message: str
) -> None:
    context = ReleasedContext()
    context.released([1.0, 2.0], 1.0, 0.5)
    before = remembered(context)
    with pytest.raises(ConfigError) as info:
        context.released(*given_)
    assert str(info.value) == message
    assert remembered(context) == before
