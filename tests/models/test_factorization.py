"""Factorization: the users' closed form, why no gradient of it is needed, and that it learns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.interactions import Interactions, Shared, Upload, laid_out
from bgtplanner.models.learner import client_gradients
from models.people import N_USERS, some_ratings

Float = NDArray[np.float64]
N_ITEMS = 6

# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
personalise = jax.jit(Factorization.personalise, static_argnums=0, compiler_options=QUICK)
gradients_of = jax.jit(client_gradients, static_argnums=0, compiler_options=QUICK)
train = jax.jit(Factorization.train, static_argnums=0, compiler_options=QUICK)
predict = jax.jit(Factorization.predict, static_argnums=0, compiler_options=QUICK)


def some_items(width: int, dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(2).normal(0, 0.5, (N_ITEMS, width)), dtype)


def ridge(model: Factorization, items: Float, ratings: Ratings, user: int) -> Float:
    """One user's ridge problem as least squares on an extended system, by LAPACK."""
    rows = ratings.user == user
    rated = items[ratings.item[rows]]
    features = np.column_stack([np.ones(len(rated)), rated[:, 1:]])
    target = ratings.value[rows].astype(np.float64) - model.mean - rated[:, 0]
    shrinkage = np.array([model.bias_shrinkage] + [model.factor_shrinkage] * model.dim)
    system = np.vstack([features, np.diag(np.sqrt(shrinkage))])
    right = np.concatenate([target, np.zeros(1 + model.dim)])
    return np.asarray(np.linalg.lstsq(system, right)[0])


class TestUsersPart:
    @pytest.mark.parametrize("dim", [0, 1, 3])
    def test_ridge_of_every_user(self, dim: int) -> None:
        model = Factorization(dim=dim, mean=0.6, bias_shrinkage=2.0, factor_shrinkage=0.5)
        ratings = some_ratings(several=True)
        items = some_items(1 + dim)
        solved = personalise(model, Shared(items, jnp.zeros(0)), None, Interactions.of(ratings))
        assert solved.shape == (N_USERS, 1 + dim)
        for user in range(N_USERS):
            expected = ridge(model, np.asarray(items, float), ratings, user)
            np.testing.assert_allclose(solved[user], expected, atol=1e-5)
        assert not np.asarray(solved)[4].any()  # nothing rated, nothing assumed


class TestGradient:
    def test_a_loss_of_ones_own_is_used(self) -> None:
        class Twice(Factorization):
            def loss(self, copies: Upload, local: Any, interactions: Interactions) -> Array:
                return 2.0 * super().loss(copies, local, interactions)

        interactions, shared = (
            Interactions.of(some_ratings(several=True)),
            Shared(some_items(4), jnp.zeros(0)),
        )
        local = personalise(Factorization(dim=3), shared, None, interactions)
        once, twice = (
            model.train(shared, local, interactions).upload.rows
            for model in (Factorization(dim=3), Twice(dim=3))
        )
        np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-4, atol=1e-8)

    @pytest.mark.parametrize(("block", "dim"), [(None, 3), (4, 3), (4, 9)])
    def test_is_that_of_the_loss(self, block: int | None, dim: int) -> None:
        """Derived by hand, and by JAX; one rating has not arrived yet."""
        model, ratings = Factorization(dim=dim), some_ratings(several=True)
        late = (np.arange(len(ratings)) == 4).astype(np.int32)
        if block is None:
            interactions = Interactions.of(ratings, late)
        else:
            interactions = laid_out(ratings, late, block=block)
        shared = Shared(some_items(1 + dim), jnp.zeros(0))
        local = personalise(model, shared, None, interactions)
        found = train(model, shared, local, interactions)
        expected = gradients_of(model, shared, local, interactions)
        there = np.asarray(interactions.pair_item) < N_ITEMS  # the others are padding
        for mine, theirs in (
            (found.upload.rows[there], expected.upload.rows[there]),
            (found.upload.dense, expected.upload.dense),
            (found.loss, expected.loss),
        ):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, atol=1e-7)
        assert np.abs(np.asarray(found.upload.rows)).max() > 1e-2


class TestPredictions:
    def test_formula_and_clipping(self) -> None:
        model = Factorization(dim=2, mean=0.5)
        items = some_items(3)
        users = jnp.asarray(np.random.default_rng(3).normal(0, 0.7, (N_USERS, 3)), jnp.float32)
        user, item = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
        interactions = Interactions.of(some_ratings(several=True))
        got = np.asarray(
            predict(model, Shared(items, jnp.zeros(0)), users, interactions, user, item)
        )
        table, parts = np.asarray(items), np.asarray(users)
        for k in range(len(user)):
            row, own = table[item[k]], parts[user[k]]
            score = 0.5 + row[0] + own[0] + row[1] * own[1] + row[2] * own[2]
            assert got[k] == pytest.approx(min(max(score, 0.0), 1.0), abs=1e-6)
        assert got.min() == 0
        assert got.max() == 1
