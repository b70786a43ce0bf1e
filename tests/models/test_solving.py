"""Every user's ridge regression, against NumPy, however it is computed."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.interactions import Interactions, laid_out
from bgtplanner.models.solving import ridge

USERS, ITEMS = 30, 80


@pytest.mark.parametrize("layout", ["as they come", "in blocks", "accelerated"])
@pytest.mark.parametrize("width", [1, 4, 5, 8, 9, 20])
def test_solutions_of_all_users(width: int, layout: str) -> None:
    generator = np.random.default_rng(width)
    popularity = generator.normal(size=ITEMS)
    chosen = generator.random((USERS, ITEMS)) < 0.5 / (1 + np.exp(-popularity))
    chosen[3], chosen[4], chosen[5] = False, False, True  # none, one, all
    chosen[4, 7] = True
    user, item = np.nonzero(chosen)
    ratings = Ratings.from_arrays(
        user, item, generator.random(len(user)), users=range(USERS), items=range(ITEMS),
        scale=(0, 1),
    )  # fmt: skip
    arrival = generator.integers(0, 2, len(user)).astype(np.int32)
    if layout == "as they come":
        interactions = Interactions.of(ratings, arrival)
    else:
        interactions = laid_out(ratings, arrival, block=8, chunk=10_000)
        interactions = replace(interactions, accelerated=layout == "accelerated")
    table = generator.normal(size=(ITEMS, width)).astype(np.float32)
    table[:, 0] = 1.0
    shrinkage = (10.0 + 20.0 * generator.random(width)).tolist()

    @jax.jit
    def solved(interactions: Interactions, rows: jax.Array, popularity: jax.Array) -> jax.Array:
        solver = ridge(rows, shrinkage, interactions, popularity)
        return solver(interactions.value)

    found = solved(interactions, jnp.asarray(table), jnp.asarray(popularity, jnp.float32))
    for each in range(USERS):
        known = (ratings.user == each) & (arrival == 0)
        rows = table[ratings.item[known]].astype(float)
        weights = np.linalg.solve(
            rows.T @ rows + np.diag(shrinkage), rows.T @ ratings.value[known]
        )
        np.testing.assert_allclose(table @ np.asarray(found[each]), table @ weights, atol=2e-4)
