"""What clients say of ratings they set aside: how it is measured, and what it costs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.federation.chunks import Heldout
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.validation import (
    WORST,
    Validation,
    errors_of_clients,
    rmse_of,
)
from bgtplanner.models.interactions import Interactions, Upload
from small_federation import some_terms


def some_ratings(seed: int = 0, clients: int | None = None) -> Ratings:
    generator = np.random.default_rng(seed)
    ratings = Ratings.from_arrays(
        np.repeat(np.arange(8), 12),
        np.concatenate([generator.permutation(20)[:12] for _ in range(8)]),
        generator.random(96),
        users=range(8),
        items=range(20),
        scale=(0, 1),
    )
    return ratings if clients is None else deal_users(ratings, clients, seed=1)


@pytest.mark.parametrize("clients", [None, 3])
def test_errors_are_client_by_client(clients: int | None) -> None:
    ratings = some_ratings(clients=clients)
    interactions = Interactions.of(ratings)
    generator = np.random.default_rng(1)
    chosen = np.sort(generator.permutation(len(ratings))[:10])
    part = ratings.take(chosen)
    arrival = generator.integers(0, 3, 10).astype(np.int32)
    predicted = generator.random(10).astype(np.float32)
    user, item, value = (jnp.asarray(array) for array in (part.user, part.item, part.value))
    aside = Heldout(user, item, value, arrival=jnp.asarray(arrival))
    found = np.asarray(
        errors_of_clients(jnp.asarray(predicted), aside, interactions, jnp.int32(1))
    )
    for client in range(ratings.n_clients):
        mine = (part.client == client) & (arrival <= 1)
        squares = (predicted[mine] - part.value[mine]) ** 2
        expected = min(squares.mean() / WORST, 1.0) if mine.any() else 0.04 / WORST
        assert found[client] == pytest.approx(expected, rel=1e-5)


class TestRelease:
    NUMBERS = np.array([0.0, 0.25, 1.0, 0.5, 0.75], np.float32)

    def test_a_number_out_of_bounds_moves_it_no_further(self) -> None:
        protection = Protection(mechanism="gaussian", trust="secagg", validation=0.2)
        wild = jnp.array([1e9, jnp.nan, -jnp.inf, 0.0, -5.0])
        found, _ = protection.validate(jax.random.key(0), wild, some_terms(clients=5))
        assert float(found) == pytest.approx(
            3 / 5, rel=1e-6
        )  # what is no number counts as the worst

    @pytest.mark.parametrize("trust", ["local", "secagg"])
    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    def test_its_noise_is_what_it_says(self, mechanism: Any, trust: Any) -> None:
        protection = Protection(mechanism=mechanism, trust=trust, validation=0.2)
        draw = jax.vmap(
            lambda key: protection.validate(
                key, jnp.asarray(self.NUMBERS), some_terms(scale=0.3, clients=5)
            )
        )
        found, std = draw(jax.random.split(jax.random.key(1), 20_000))
        assert float(found.mean()) == pytest.approx(0.5, abs=0.05)
        assert float(found.std()) == pytest.approx(float(std[0]), rel=0.05)

    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    def test_both_releases_cost_the_charge(self, mechanism: Any) -> None:
        """The bound on the gradients and on the number, put together, are the clip."""
        share, clip = 0.2, 0.5
        interactions = Interactions.of(some_ratings())
        protection = Protection(mechanism=mechanism, trust="secagg", validation=share)
        huge = Upload(jnp.full((len(interactions.pair_item), 1), 1e3), jnp.zeros((8, 0)))
        alone = [1] + [0] * 7
        gradients = protection.release(
            jax.random.key(0), huge, interactions, some_terms(clip, granted=alone, clients=8)
        )
        flat = np.asarray(gradients.aggregate.gradient.items).ravel()
        order = 1 if mechanism == "laplace" else 2
        of_gradients = float(np.linalg.norm(flat, order))
        # The noise is common to both; the deviation of the mean tells the bound of the number.
        scaled = some_terms(clip, 1.0, alone, clients=8)
        _, std = protection.validate(jax.random.key(0), jnp.ones(8), scaled)
        per_unit = 2**0.5 if mechanism == "laplace" else 1.0
        of_number = per_unit / float(std) / 2
        total = (of_gradients**order + of_number**order) ** (1 / order)
        assert total == pytest.approx(clip, rel=1e-5)


class TestAverage:
    @given(st.lists(st.tuples(st.floats(-1, 2), st.floats(0, 10)), min_size=1, max_size=30))
    def test_upper_is_above_and_state_goes_on(self, numbers: list[tuple[float, float]]) -> None:
        once, again = Validation(), Validation()
        for value, std in numbers:
            once.saw(value, std)
            again.saw(value, std)
            restored = Validation()
            restored.load_state_dict(again.state_dict())
            again = restored
        assert once.estimate == again.estimate
        assert once.estimate is not None
        assert 0 <= once.estimate.rmse <= once.estimate.upper

    def test_a_steady_error_is_found_and_seldom_understated(self) -> None:
        generator = np.random.default_rng(0)
        truth, understated = 0.25, 0
        for _ in range(200):
            average = Validation()
            for _ in range(30):
                average.saw(truth + 0.05 * generator.standard_normal(), 0.05)
            assert average.estimate is not None
            assert average.estimate.rmse == pytest.approx(rmse_of(truth), abs=0.02)
            understated += average.estimate.upper < rmse_of(truth)
        assert understated <= 3
