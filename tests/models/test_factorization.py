"""Factorization: the users' closed form, why no gradient of it is needed, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator
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

Float = NDArray[np.float64]
N_USERS, N_ITEMS = 5, 6

# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
personalise = jax.jit(Factorization.personalise, static_argnums=0, compiler_options=QUICK)
gradients_of = jax.jit(client_gradients, static_argnums=0, compiler_options=QUICK)
train = jax.jit(Factorization.train, static_argnums=0, compiler_options=QUICK)
predict = jax.jit(Factorization.predict, static_argnums=0, compiler_options=QUICK)


@pytest.fixture
def double_precision() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def some_ratings() -> Ratings:
    """Five users behind three clients; user 4 rated nothing, user 0 everything."""
    user = [0] * 6 + [1] * 2 + [2] * 4 + [3] * 1
    item = [0, 1, 2, 3, 4, 5, 1, 4, 0, 2, 3, 5, 3]
    client = [0] * 6 + [1] * 2 + [0] * 4 + [1] * 1
    value = np.random.default_rng(1).integers(1, 6, len(user))
    return Ratings.from_arrays(
        user,
        item,
        value,
        client=client,
        users=range(N_USERS),
        items=range(N_ITEMS),
        scale=(0, 5),
    )


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
        ratings = some_ratings()
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

        interactions, shared = Interactions.of(some_ratings()), Shared(some_items(4), jnp.zeros(0))
        local = personalise(Factorization(dim=3), shared, None, interactions)
        once, twice = (
            model.train(shared, local, interactions).upload.rows
            for model in (Factorization(dim=3), Twice(dim=3))
        )
        np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-4, atol=1e-8)

    @pytest.mark.parametrize(("block", "dim"), [(None, 3), (4, 3), (4, 9)])
    def test_is_that_of_the_loss(self, block: int | None, dim: int) -> None:
        """Derived by hand, and by JAX; one rating has not arrived yet."""
        model, ratings = Factorization(dim=dim), some_ratings()
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


class TestEnvelope:
    """The users' part may be held fixed in the items' gradient, because it is optimal.

    What a client's users minimise, divided as the client's loss is, by its number of ratings n:

        F(items, w) = (1 / 2n) * ( sum of squared errors + sum over its users of w' diag(s) w )

    The shrinkage s counts in ratings, so it is divided by n too. With w*(items) the minimiser, the
    envelope theorem says d/d items F(items, w*(items)) = dF/d items at fixed w*. The ridge term
    has no items in it, so that is the gradient of the squared errors alone: our row gradient. The
    squared errors profiled *without* the ridge have another slope; the last test says so.
    """

    model = Factorization(dim=2, mean=0.6, bias_shrinkage=1.5, factor_shrinkage=0.4)

    def profiled(self, items: Float, ratings: Ratings, client: int, with_ridge: bool) -> float:
        shrinkage = np.array([1.5, 0.4, 0.4])
        total, count = 0.0, 0
        for user in np.flatnonzero(ratings.client_of_user == client):
            best = ridge(self.model, items, ratings, user)
            rows = ratings.user == user
            rated = items[ratings.item[rows]]
            score = 0.6 + rated[:, 0] + best[0] + rated[:, 1:] @ best[1:]
            total += float(((ratings.value[rows] - score) ** 2).sum())
            total += float(best @ (shrinkage * best)) if with_ridge else 0.0
            count += int(rows.sum())
        return 0.5 * total / count

    def slope(self, items: Float, ratings: Ratings, client: int, with_ridge: bool) -> Float:
        result = np.zeros_like(items)
        for index in np.ndindex(items.shape):
            step = np.zeros_like(items)
            step[index] = 1e-5
            up = self.profiled(items + step, ratings, client, with_ridge)
            down = self.profiled(items - step, ratings, client, with_ridge)
            result[index] = (up - down) / 2e-5
        return result

    def rows(self, items: jax.Array, ratings: Ratings, client: int) -> Float:
        interactions, shared = Interactions.of(ratings), Shared(items, jnp.zeros(0))
        local = personalise(self.model, shared, None, interactions)
        gradients = gradients_of(self.model, shared, local, interactions)
        table = np.zeros(items.shape)
        mine = np.asarray(interactions.pair_client) == client
        table[np.asarray(interactions.pair_item)[mine]] = np.asarray(gradients.upload.rows)[mine]
        half = self.profiled(np.asarray(items), ratings, client, with_ridge=False)
        assert gradients.loss[client] == pytest.approx(half, rel=1e-6)
        return table

    @pytest.mark.parametrize("client", [0, 1])
    def test_row_gradient_is_the_slope_of_the_profiled_objective(
        self, double_precision: None, client: int
    ) -> None:
        ratings, items = some_ratings(), some_items(3, np.float64)
        expected = self.slope(np.asarray(items), ratings, client, with_ridge=True)
        got = self.rows(items, ratings, client)
        np.testing.assert_allclose(got, expected, atol=3e-8)  # ratings are in single precision
        assert np.abs(got).max() > 1e-2


class TestPredictions:
    def test_formula_and_clipping(self) -> None:
        model = Factorization(dim=2, mean=0.5)
        items = some_items(3)
        users = jnp.asarray(np.random.default_rng(3).normal(0, 0.7, (N_USERS, 3)), jnp.float32)
        user, item = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
        interactions = Interactions.of(some_ratings())
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
