"""All clients' gradients at once, against one client at a time and against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN, FedGNNLocal
from bgtplanner.models.interactions import Interactions, Shared, copies
from bgtplanner.models.learner import Statistics, client_gradients

Float = NDArray[np.float64]
N_USERS, N_ITEMS = 7, 6

# Every pair of options occurs in one of these (an orthogonal array), without all 32 of them.
FEDGNN = [
    FedGNN(
        dim=4,
        heads=heads,
        bias=bias,
        loss_kind=loss_kind,
        score=score,
        self_loops=loops,
        decay=decay,
        mean=0.3,
        bias_shrinkage=1.5,
    )
    for heads, bias, loss_kind, score, loops, decay in [
        (1, True, "mse", "linear", 1, 0.1),
        (1, False, "mse", "sigmoid", 2, 0.2),
        (1, True, "rmse", "sigmoid", 2, 0.0),
        (1, False, "rmse", "linear", 1, 0.1),
        (2, True, "mse", "sigmoid", 1, 0.2),
        (2, False, "mse", "linear", 2, 0.0),
        (2, True, "rmse", "linear", 2, 0.0),
        (2, False, "rmse", "sigmoid", 1, 0.0),
    ]
]
FACTORIZATION = [Factorization(dim=3, mean=0.6), Factorization(dim=0)]
MODELS = [*FEDGNN, *FACTORIZATION]


def name_of(model: Any) -> str:
    if isinstance(model, Factorization):
        return f"factorization-{model.dim}"
    bias = "bias" if model.bias else "plain"
    return f"fedgnn-{model.heads}-{bias}-{model.loss_kind}-{model.score}-{model.self_loops}"


every_model = pytest.mark.parametrize("model", MODELS, ids=name_of)
# For what does not depend on the options: one of each kind.
some_models = pytest.mark.parametrize("model", [FEDGNN[4], FACTORIZATION[0]], ids=name_of)

# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
gradients_of = jax.jit(client_gradients, static_argnums=0, compiler_options=QUICK)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Finite differences need more digits than training does."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def some_ratings(clients: int | None = None) -> Ratings:
    """21 ratings of seven users: users 0 to 2 rated 1, 2 and all items, user 6 none at all."""
    generator = np.random.default_rng(3)
    rated = [[4], [1, 5], [0, 1, 2, 3, 4, 5], [0, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3, 5], []]
    user = np.repeat(np.arange(N_USERS), [len(own) for own in rated])
    item = np.concatenate([np.array(own, int) for own in rated])
    ratings = Ratings.from_arrays(
        user,
        item,
        generator.integers(1, 6, len(user)),
        users=np.arange(N_USERS),
        items=np.arange(N_ITEMS),
        scale=(0, 5),
    )
    return ratings if clients is None else deal_users(ratings, clients, seed=1)


def some_point(model: Any, seed: int = 0) -> tuple[Shared, Any]:
    """Parameters with every entry away from zero, so that no gradient vanishes by symmetry."""
    generator, dim = np.random.default_rng([seed, 17]), model.dim

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(generator.normal(0, 0.5, shape))

    if isinstance(model, Factorization):
        return Shared(drawn(N_ITEMS, 1 + dim), drawn(0)), drawn(N_USERS, 1 + dim)
    shared = Shared(drawn(N_ITEMS, dim + model.bias), drawn(dim * dim + 3 * dim))
    moments = (drawn(N_USERS), drawn(N_USERS, dim), drawn(N_USERS, dim))
    return shared, FedGNNLocal(drawn(N_USERS, dim), moments, drawn(N_USERS, dim))


# --- the oracle: one client's loss, rating by rating, in plain NumPy -------------------------


def graph_embedding(model: FedGNN, items: Float, dense: Float, own: Float, rated: Any) -> Float:
    """The formula in the docstring of fedgnn.py, head by head and neighbour by neighbour."""
    dim, size = model.dim, model.dim // model.heads
    weight = dense[: dim * dim].reshape(dim, dim)
    for_items, for_user, bias = (dense[dim * dim + k * dim :][:dim] for k in range(3))
    neighbours = [items[j, :dim] for j in rated] + [own] * model.self_loops
    parts = []
    for head in range(model.heads):
        block = slice(head * size, (head + 1) * size)
        logits = []
        for neighbour in neighbours:
            raw = (weight[block] @ neighbour) @ for_items[block]
            raw += (weight[block] @ own) @ for_user[block]
            logits.append(raw if raw > 0 else 0.2 * raw)
        shares = np.exp(logits) / np.exp(logits).sum()
        parts.append(
            sum(
                share * (weight[block] @ neighbour)
                for share, neighbour in zip(shares, neighbours, strict=True)
            )
        )
    return np.concatenate(parts) + bias


def loss_of_client(
    model: Any,
    client: int,
    ratings: Ratings,
    items: Float,
    dense: Float,
    users: Float,
    user_bias: Float | None = None,
) -> float:
    """One client's loss; `user_bias` is held fixed where the model does not differentiate it."""
    squares, penalty, count = 0.0, 0.0, 0
    for user in np.flatnonzero(ratings.client_of_user == client):
        rows = np.flatnonzero(ratings.user == user)
        rated, value = ratings.item[rows], ratings.value[rows].astype(np.float64)
        if isinstance(model, FedGNN):
            embedding = graph_embedding(model, items, dense, users[user], rated)
            score = model.mean + items[rated, : model.dim] @ embedding
            if model.bias:
                score = score + items[rated, model.dim]
                assert user_bias is not None
                score = score + user_bias[user]
                penalty += model.decay * len(rows) * users[user] @ users[user]
            if model.score == "sigmoid":
                score = 1 / (1 + np.exp(-score))
            penalty += model.decay * (items[rated] ** 2).sum()
        else:
            score = model.mean + items[rated, 0] + users[user, 0]
            score = score + items[rated, 1:] @ users[user, 1:]
        squares += float(((value - score) ** 2).sum())
        count += len(rows)
    if count == 0:
        return 0.0
    if isinstance(model, FedGNN) and model.loss_kind == "rmse":
        return float(np.sqrt(squares / count) + 0.5 * penalty / count)
    return 0.5 * (squares + penalty) / count


def fixed_user_biases(
    model: Any, ratings: Ratings, items: Float, dense: Float, users: Float
) -> Float | None:
    """Sum of a user's residuals over its ratings plus the shrinkage, where the model has one."""
    if not (isinstance(model, FedGNN) and model.bias):
        return None
    biases = np.zeros(len(users))
    for user in range(len(users)):
        rows = np.flatnonzero(ratings.user == user)
        rated = ratings.item[rows]
        embedding = graph_embedding(model, items, dense, users[user], rated)
        score = model.mean + items[rated, : model.dim] @ embedding + items[rated, model.dim]
        residual = (ratings.value[rows] - score).sum()
        biases[user] = residual / (len(rows) + model.bias_shrinkage)
    return biases


def slopes(function: Callable[[Float], float], point: Float, step: float = 1e-5) -> Float:
    """Central differences of a function of one array."""
    slope = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        ends = []
        for sign in (1, -1):
            moved = point.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


def users_of(local: Any) -> Float:
    return np.asarray(getattr(local, "embedding", local))


def full_table(gradients: Statistics, interactions: Interactions, client: int) -> Float:
    """A client's row gradients in the place of the items they belong to, zero elsewhere."""
    table = np.zeros((interactions.n_items, gradients.upload.rows.shape[1]))
    mine = np.asarray(interactions.pair_client) == client
    table[np.asarray(interactions.pair_item)[mine]] = np.asarray(gradients.upload.rows)[mine]
    return table


class TestAgainstFiniteDifferences:
    @every_model
    def test_every_client_of_several_users(self, model: Any) -> None:
        ratings = some_ratings(clients=3)
        shared, local = some_point(model)
        interactions = Interactions.of(ratings)
        gradients = gradients_of(model, shared, local, interactions)
        items, dense, users = np.asarray(shared.items), np.asarray(shared.dense), users_of(local)
        fixed = fixed_user_biases(model, ratings, items, dense, users)
        of_users = np.zeros_like(users)
        for client in range(ratings.n_clients):

            def loss(
                items: Float = items,
                dense: Float = dense,
                users: Float = users,
                client: int = client,
            ) -> float:
                return loss_of_client(model, client, ratings, items, dense, users, fixed)

            np.testing.assert_allclose(gradients.loss[client], loss(), rtol=1e-9)
            table = full_table(gradients, interactions, client)
            by_item = slopes(lambda point: loss(items=point), items)
            np.testing.assert_allclose(table, by_item, atol=1e-8)
            assert np.abs(by_item).max() > 1e-3  # the comparison is of something
            by_dense = slopes(lambda point: loss(dense=point), dense)
            np.testing.assert_allclose(gradients.upload.dense[client], by_dense, atol=1e-8)
            of_users += slopes(lambda point: loss(users=point), users)
        np.testing.assert_allclose(users_of(gradients.local), of_users, atol=1e-8)
        if isinstance(model, FedGNN):
            assert np.abs(np.asarray(gradients.upload.dense)).max() > 1e-4


class TestAgainstOneClientAtATime:
    @some_models
    def test_one_client_alone_with_the_full_item_table(self, model: Any) -> None:
        # Three clients of two users and the same shapes, so that the loop compiles once.
        generator = np.random.default_rng(5)
        rated = np.concatenate([generator.permutation(N_ITEMS)[:3] for _ in range(6)])
        together = Ratings.from_arrays(
            np.repeat(np.arange(6), 3),
            rated,
            generator.integers(1, 6, 18),
            client=np.repeat([0, 1, 0, 2, 1, 2], 3),
            items=np.arange(N_ITEMS),
            scale=(0, 5),
        )
        shared, local = some_point(model)
        local = jax.tree.map(lambda leaf: leaf[:6], local)
        interactions = Interactions.of(together)
        gradients = gradients_of(model, shared, local, interactions)
        assert not interactions.one_user_each

        def alone(shared: Shared, local: Any, interactions: Interactions) -> Any:
            loss = model.loss(copies(shared, interactions), local, interactions)
            return loss.sum()

        slope_alone = jax.jit(jax.value_and_grad(alone, argnums=(0, 1)), compiler_options=QUICK)
        for client in range(3):
            members = np.flatnonzero(together.client_of_user == client)
            rows = np.flatnonzero(together.client == client)
            only = replace(
                together.take(rows),
                user=np.searchsorted(members, together.user[rows]).astype(np.int32),
                client_of_user=np.zeros(len(members), np.int32),
            )
            own = jax.tree.map(lambda leaf, members=members: leaf[members], local)
            # Pairs one an edge, so that shapes do not depend on which items users share.
            tiny = replace(
                Interactions.of(only),
                pair=jnp.arange(len(rows), dtype=jnp.int32),
                pair_item=jnp.asarray(only.item),
                pair_client=jnp.zeros(len(rows), jnp.int32),
            )
            loss, (by_shared, by_local) = slope_alone(shared, own, tiny)
            np.testing.assert_allclose(gradients.loss[client], loss, rtol=1e-12)
            table = full_table(gradients, interactions, client)
            np.testing.assert_allclose(table, by_shared.items, atol=1e-13)
            np.testing.assert_allclose(gradients.upload.dense[client], by_shared.dense, atol=1e-13)
            np.testing.assert_allclose(
                users_of(gradients.local)[members], users_of(by_local), atol=1e-13
            )


class TestArrival:
    @some_models
    def test_garbage_that_has_not_arrived_changes_nothing(self, model: Any) -> None:
        ratings = some_ratings()
        late = (ratings.item == 5).astype(np.int32)
        shared, local = some_point(model)
        interactions = Interactions.of(ratings, late)
        wild = shared._replace(items=shared.items.at[5].set(1e6))
        one = gradients_of(model, shared, local, interactions)
        other = gradients_of(model, wild, local, interactions)
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(left, right)


class TestExtremes:
    def test_rmse_at_zero_error(self) -> None:
        """The root has no derivative at zero; the client rests, and no NaN spreads to others."""
        decay = 0.1
        model = FedGNN(dim=2, bias=False, mean=0.5, loss_kind="rmse", decay=decay)
        ratings = Ratings.from_arrays([0, 0, 1], [0, 1, 0], [1, 1, 2], scale=(0, 2))
        shared, local = some_point(model)
        # Every h_u is zero, so every score is 0.5: right for user 0, wrong for user 1.
        shared = Shared(shared.items[:2], jnp.zeros_like(shared.dense))
        local = jax.tree.map(lambda leaf: leaf[:2], local)
        interactions = Interactions.of(ratings)
        gradients = gradients_of(model, shared, local, interactions)
        penalty = 0.5 * decay * (np.asarray(shared.items) ** 2).sum(1)
        np.testing.assert_allclose(gradients.loss, [penalty.mean(), 0.5 + penalty[0]], rtol=1e-9)
        np.testing.assert_allclose(gradients.upload.rows[:2], decay * shared.items / 2, rtol=1e-9)
        assert np.asarray(gradients.upload.dense)[1].any()
        assert not np.asarray(gradients.upload.dense)[0].any()
        for leaf in jax.tree.leaves(gradients):
            assert np.isfinite(leaf).all()
        # Nor does anything blow up close to it: the slope of a root is bounded by one.
        for size in (1e-4, 1e-6, 1e-8):
            near = replace(interactions, value=interactions.value.at[:2].set(0.5 + size))
            for leaf in jax.tree.leaves(gradients_of(model, shared, local, near)):
                assert np.isfinite(leaf).all()
                assert np.abs(np.asarray(leaf)).max() < 10


class TestDefaults:
    """What a learner does that says nothing about features, sizes and rankings."""

    def test_features_are_those_of_the_catalogue_in_the_order_of_the_items(self) -> None:
        ratings = Ratings.from_arrays([1, 1], ["b", "a"], [1, 2], items=["b", "a"], scale=(0, 2))
        assert Interactions.of(ratings).features.shape == (2, 0)
        made = Catalogue.from_frame({"item": ["a", "x", "b"], "old": [0, 1, 1]})
        known = replace(ratings, catalogue=made.over(ratings.item_labels))
        expected = [[{"a": 0.0, "b": 1.0}[label]] for label in known.item_labels.tolist()]
        assert Interactions.of(known).features.tolist() == expected


rating_lists = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=20, unique=True
)


class TestEdges:
    @settings(max_examples=40, deadline=None)
    @given(rows=rating_lists, clients=st.integers(1, 6), seed=st.integers(0, 99))
    def test_pairs_of_dealt_clients(
        self, rows: list[tuple[int, int]], clients: int, seed: int
    ) -> None:
        user, item = (np.array(column) for column in zip(*rows, strict=True))
        value = 1 + (user * 3 + item) % 5
        ratings = Ratings.from_arrays(
            user, item, value, users=np.arange(6), items=np.arange(8), scale=(0, 5)
        )
        dealt = deal_users(ratings, clients, seed=seed)
        interactions = Interactions.of(dealt)
        assert (interactions.n_clients, interactions.n_users, interactions.n_items) == (
            clients,
            6,
            8,
        )
        assert interactions.one_user_each == (clients == 6)
        of_client = np.asarray(interactions.client_of_user)[np.asarray(interactions.user)]
        assert (np.diff(of_client) >= 0).all()
        pair, pair_client, pair_item = (
            np.asarray(array)
            for array in (interactions.pair, interactions.pair_client, interactions.pair_item)
        )
        # Every edge points to the pair of its client and its item, ...
        np.testing.assert_array_equal(pair_client[pair], of_client)
        np.testing.assert_array_equal(pair_item[pair], interactions.item)
        # ... there is one pair for every client and item that occur together, and no other, ...
        expected = sorted({(int(dealt.client_of_user[u]), i) for u, i in rows})
        found = list(zip(pair_client.tolist(), pair_item.tolist(), strict=True))
        assert found == expected  # sorted by client, then by item: pseudo_items relies on it
        # ... and nothing was lost or renamed on the way.
        triples = zip(
            *(np.asarray(a).tolist() for a in (interactions.user, interactions.item)), strict=True
        )
        assert sorted(triples) == sorted(rows)
        again = 1 + (np.asarray(interactions.user) * 3 + np.asarray(interactions.item)) % 5
        np.testing.assert_allclose(interactions.value, again / 5, rtol=1e-6)

    def test_sums_and_rows(self) -> None:
        ratings = some_ratings(clients=3)
        interactions = Interactions.of(ratings)
        number = jnp.arange(1.0, 22.0)
        np.testing.assert_allclose(
            interactions.sum_by_user(number), np.bincount(ratings.user, number, N_USERS)
        )
        np.testing.assert_allclose(
            interactions.sum_by_client(number), np.bincount(ratings.client, number, 3)
        )
        rows = jnp.arange(float(len(interactions.pair_item)))[:, None]
        np.testing.assert_array_equal(interactions.rows_of(rows)[:, 0], interactions.pair)
        single = Interactions.of(some_ratings())
        rows = jnp.arange(21.0)[:, None]
        np.testing.assert_array_equal(single.rows_of(rows), rows)
