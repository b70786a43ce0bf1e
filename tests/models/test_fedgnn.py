"""FedGNN: the attention layer, the local steps, what is predicted, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.fedgnn import FedGNN, FedGNNLocal
from bgtplanner.models.interactions import Interactions, Shared, where_users
from bgtplanner.models.learner import client_gradients

Float = NDArray[np.float64]
N_USERS, N_ITEMS = 4, 5
ALL = jnp.ones(N_USERS, bool)

# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
moved_by = jax.jit(FedGNN._moved, static_argnums=0, compiler_options=QUICK)
embedded = jax.jit(FedGNN._embed, static_argnums=0, compiler_options=QUICK)
predict = jax.jit(FedGNN.predict, static_argnums=0, compiler_options=QUICK)
gradients_of = jax.jit(client_gradients, static_argnums=0, compiler_options=QUICK)
initial = jax.jit(FedGNN.initial, static_argnums=(0, 2, 3), compiler_options=QUICK)


def some_edges(arrival: list[int] | None = None) -> Interactions:
    """Users 0 and 1 share client 0; user 3 rated nothing."""
    ratings = Ratings.from_arrays(
        [0, 0, 0, 1, 1, 2, 2, 2, 2],
        [0, 2, 3, 2, 4, 0, 1, 3, 4],
        [1, 4, 5, 2, 3, 5, 4, 3, 1],
        client=[7, 7, 7, 7, 7, 9, 9, 9, 9],
        users=range(N_USERS),
        items=range(N_ITEMS),
        scale=(0, 5),
    )
    late = None if arrival is None else np.array(arrival, np.int32)
    return Interactions.of(ratings, late)


def some_point(model: FedGNN, scale: float = 0.5, seed: int = 1) -> tuple[Shared, FedGNNLocal]:
    """All parameters random, none of them at a special value; nothing learned yet by Adam."""
    generator, dim = np.random.default_rng(seed), model.dim

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(generator.normal(0, scale, shape), jnp.float32)

    shared = Shared(drawn(N_ITEMS, dim + model.bias), drawn(dim * dim + 3 * dim))
    users, zeros = drawn(N_USERS, dim), np.zeros((N_USERS, dim), np.float32)
    moments = [jnp.asarray(part) for part in (zeros[:, 0], zeros, zeros)]
    return shared, FedGNNLocal(users, (moments[0], moments[1], moments[2]), jnp.asarray(zeros))


def step(
    model: FedGNN,
    point: tuple[Shared, FedGNNLocal],
    interactions: Interactions,
    slope: Any,
    active: jax.Array = ALL,
) -> FedGNNLocal:
    """What users keep of a round, with a given gradient of their embeddings."""
    shared, local = point
    moved = moved_by(model, jnp.asarray(slope), local, interactions)
    if model.stale_predictions:
        moved = moved._replace(graph_embedding=embedded(model, shared, local, interactions))
    result: FedGNNLocal = where_users(active, moved, local)
    return result


def attention(
    model: FedGNN, shared: Shared, local: FedGNNLocal, interactions: Interactions
) -> Float:
    """``h_u`` of every user by the formula in the module's docstring, one number at a time."""
    dim, size = model.dim, model.dim // model.heads
    items, users = np.asarray(shared.items, float), np.asarray(local.embedding, float)
    dense = np.asarray(shared.dense, float)
    weight = dense[: dim**2].reshape(model.heads, size, dim)
    a_item = dense[dim**2 : dim**2 + dim].reshape(model.heads, size)
    a_user = dense[dim**2 + dim : dim**2 + 2 * dim].reshape(model.heads, size)
    bias = dense[dim**2 + 2 * dim :]
    result = np.zeros((len(users), dim))
    for u, own in enumerate(users):
        known = (np.asarray(interactions.user) == u) & (np.asarray(interactions.present) > 0)
        neighbours = [items[j, :dim] for j in np.asarray(interactions.item)[known]]
        neighbours += [own] * model.self_loops
        for head in range(model.heads):
            logits = []
            for e_j in neighbours:
                raw = e_j @ (weight[head].T @ a_item[head]) + own @ (weight[head].T @ a_user[head])
                logits.append(max(raw, 0.0) + 0.2 * min(raw, 0.0))
            top = max(logits)
            powers = [math.exp(logit - top) for logit in logits]
            mixed = np.zeros(dim)
            for power, e_j in zip(powers, neighbours, strict=True):
                mixed += power / sum(powers) * e_j
            result[u, head * size : (head + 1) * size] = weight[head] @ mixed
        result[u] += bias
    return result


class TestAttention:
    @pytest.mark.parametrize(
        ("heads", "self_loops", "scale"), [(1, 1, 0.5), (2, 2, 20.0), (4, 1, 20.0)]
    )
    def test_layer_by_the_formula(self, heads: int, self_loops: int, scale: float) -> None:
        model = FedGNN(dim=4, heads=heads, self_loops=self_loops, stale_predictions=True)
        shared, local = some_point(model, scale)
        interactions = some_edges([0, 0, 1, 0, 0, 0, 1, 0, 0])  # two ratings are still to come
        # With stale predictions the layer's output is kept: a way to look at it from outside.
        kept = step(model, (shared, local), interactions, jnp.zeros((N_USERS, 4))).graph_embedding
        expected = attention(model, shared, local, interactions)
        np.testing.assert_allclose(kept, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
        # A user without a rating looks at itself only.
        weight = np.asarray(shared.dense)[:16].reshape(4, 4)
        alone = weight @ np.asarray(local.embedding)[3] + np.asarray(shared.dense)[24:]
        np.testing.assert_allclose(kept[3], alone, rtol=1e-4, atol=1e-5 * scale**2)

    def test_huge_embeddings(self) -> None:
        """Logits of about 1e9 and more: the softmax must neither overflow nor give NaN slopes."""
        model = FedGNN(dim=4, heads=2, bias=False, stale_predictions=True)
        shared, local = some_point(model, 1e3)
        interactions = some_edges([0, 0, 1, 0, 0, 0, 1, 0, 0])
        gradients = gradients_of(model, shared, local, interactions)
        for leaf in jax.tree.leaves(gradients):
            assert np.isfinite(leaf).all()
        kept = step(model, (shared, local), interactions, jnp.zeros((N_USERS, 4))).graph_embedding
        expected = attention(model, shared, local, interactions)
        np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        predicted = predict(model, shared, local, interactions, jnp.arange(4), jnp.arange(4))
        assert np.isfinite(predicted).all()


# Every pair of options occurs in one of these (an orthogonal array), without all 32 of them.
FEDGNN = [
    FedGNN(
        dim=4, heads=heads, bias=bias, loss_kind=kind, score=score, self_loops=loops, decay=decay,
        mean=0.3, bias_shrinkage=1.5,
    )
    for heads, bias, kind, score, loops, decay in [
        (1, True, "mse", "linear", 1, 0.1),
        (1, False, "rmse", "linear", 1, 0.1),
        (2, True, "mse", "sigmoid", 1, 0.2),
        (2, True, "rmse", "linear", 2, 0.0),
    ]
]  # fmt: skip


class TestLoss:
    @pytest.mark.parametrize("model", FEDGNN, ids=str)
    def test_of_every_client_rating_by_rating(self, model: FedGNN) -> None:
        shared, local = some_point(model)
        interactions = some_edges([0, 0, 1, 0, 0, 0, 1, 0, 0])
        graph = attention(model, shared, local, interactions)
        items, users = np.asarray(shared.items, float), np.asarray(local.embedding, float)
        known = np.asarray(interactions.present) > 0
        user, item = (np.asarray(of)[known] for of in (interactions.user, interactions.item))
        value = np.asarray(interactions.value, float)[known]
        score = model.mean + (graph[user] * items[item, :4]).sum(axis=1)
        if model.bias:
            score += items[item, 4]
            number = np.bincount(user, minlength=N_USERS)
            left = np.bincount(user, value - score, N_USERS)
            score += (left / (number + model.bias_shrinkage))[user]
        if model.score == "sigmoid":
            score = 1 / (1 + np.exp(-score))
        penalty = model.decay * (items[item] ** 2).sum(axis=1)
        if model.bias:
            penalty += model.decay * (users[user] ** 2).sum(axis=1)
        client = np.asarray(interactions.client_of_user)[user]
        ratings = np.bincount(client)
        mse = np.bincount(client, (value - score) ** 2) / ratings
        error = np.sqrt(mse) if model.loss_kind == "rmse" else 0.5 * mse
        expected = error + 0.5 * np.bincount(client, penalty) / ratings
        found = gradients_of(model, shared, local, interactions)
        np.testing.assert_allclose(found.loss[: len(expected)], expected, rtol=1e-5)

    def test_rmse_at_zero_error(self) -> None:
        """The root has no derivative at zero; the client rests, and no NaN spreads to others."""
        decay = 0.1
        model = FedGNN(dim=2, bias=False, mean=0.5, loss_kind="rmse", decay=decay)
        ratings = Ratings.from_arrays([0, 0, 1], [0, 1, 0], [1, 1, 2], scale=(0, 2))
        shared, local = some_point(model)
        # Every h_u is zero, so every score is 0.5: right for user 0, wrong for user 1.
        shared = Shared(shared.items[:2], jnp.zeros_like(shared.dense))
        local = jax.tree.map(lambda leaf: leaf[:2], local)
        gradients = gradients_of(model, shared, local, Interactions.of(ratings))
        penalty = 0.5 * decay * (np.asarray(shared.items) ** 2).sum(1)
        np.testing.assert_allclose(gradients.loss, [penalty.mean(), 0.5 + penalty[0]], rtol=1e-5)
        np.testing.assert_allclose(gradients.upload.rows[:2], decay * shared.items / 2, rtol=1e-5)
        assert np.asarray(gradients.upload.dense).any(axis=1).tolist() == [False, True]
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


class TestLocalSteps:
    def test_adam_is_optax_adam_for_every_user(self) -> None:
        """Users join in different rounds; each must see its own optimiser, not a common clock."""
        model = FedGNN(dim=4, local_learning_rate=0.03, local_weight_decay=0.1)
        shared, local = some_point(model)
        interactions = some_edges()
        generator = np.random.default_rng(3)
        takes_part = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]], bool)
        slopes = generator.normal(0, 1, (4, N_USERS, 4)).astype(np.float32)
        slopes[1] *= 1e-3  # the memory has to matter
        optimiser = optax.chain(optax.add_decayed_weights(0.1), optax.adam(0.03))
        expected = [np.asarray(row) for row in local.embedding]
        memory = [optimiser.init(jnp.asarray(row)) for row in expected]
        for slope, active in zip(slopes, takes_part, strict=True):
            local = step(model, (shared, local), interactions, slope, active=jnp.asarray(active))
            for user in range(3):
                if active[user]:
                    update, memory[user] = optimiser.update(
                        jnp.asarray(slope[user]), memory[user], jnp.asarray(expected[user])
                    )
                    expected[user] = expected[user] + np.asarray(update)
            np.testing.assert_allclose(local.embedding, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(local.moments[0], [3, 2, 3, 0])

    @pytest.mark.parametrize("optimizer", ["adam", "sign"])
    def test_who_does_not_move(self, optimizer: Any) -> None:
        model = FedGNN(dim=4, local_optimizer=optimizer, local_weight_decay=1.0)
        point = some_point(model)
        interactions = some_edges(
            [0, 0, 0, 1, 1, 0, 0, 0, 0]
        )  # user 1: nothing yet; user 3: never
        active = jnp.array([True, True, False, True])
        moved = step(model, point, interactions, jnp.ones((N_USERS, 4)), active=active)
        same = np.all(np.asarray(moved.embedding) == np.asarray(point[1].embedding), axis=1)
        assert same.tolist() == [False, True, True, True]
        for memory in moved.moments:  # nor does the optimiser's clock go on
            assert not np.asarray(memory)[1:].any()
