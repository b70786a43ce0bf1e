"""Biases: the users' closed form, what clients add up for the server, and what they predict."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.models import bias as biases
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.learner import Learner
from bgtplanner.models.optimizers import Server
from bgtplanner.models.posterior import COUNT_WEIGHT
from models.people import N_USERS, some_ratings

Float = NDArray[np.float64]
N_ITEMS = 6
MODEL = Biases(
    mean=0.6,
    level_shrinkage=2.0,
    popularity_shrinkage=0.7,
    quality_shrinkage=0.2,
    item_shrinkage=1.5,
    known_item_shrinkage=6.0,
)

# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
personalise = jax.jit(Biases.personalise, static_argnums=0, compiler_options=QUICK)
train = jax.jit(Biases.train, static_argnums=0, compiler_options=QUICK)
predict = jax.jit(Biases.predict, static_argnums=0, compiler_options=QUICK)

find_pair = jax.jit(Interactions.find_pair, compiler_options=QUICK)


def some_shared(spread: float = 0.5) -> Shared:
    items = np.random.default_rng(2).normal(0, spread, (N_ITEMS, 2))
    sure = np.random.default_rng(4).uniform(-0.2, 1.2, (N_ITEMS, 1))
    return Shared(jnp.asarray(np.c_[items, sure], jnp.float32), jnp.zeros(0))


def some_users(spread: float = 0.3) -> Float:
    return np.random.default_rng(3).normal(0, spread, (N_USERS, 3))


def score(model: Biases, row: Float, own: Float) -> float:
    """mean + q + b + s p + t q, as it is written down."""
    quality, popularity, _ = row
    level, by_popularity, by_quality = own
    return float(model.mean + quality + level + by_popularity * popularity + by_quality * quality)


def ridge(model: Biases, items: Float, ratings: Ratings, user: int, beside: Float) -> Float:
    """One user's ridge problem as least squares on an extended system, by LAPACK."""
    mine = ratings.user == user
    rated = items[ratings.item[mine]]
    features = np.column_stack([np.ones(len(rated)), rated[:, 1], rated[:, 0]])
    target = ratings.value[mine].astype(np.float64) - model.mean - rated[:, 0] - beside[mine]
    shrinkage = [model.level_shrinkage, model.popularity_shrinkage, model.quality_shrinkage]
    system = np.vstack([features, np.diag(np.sqrt(shrinkage))])
    right = np.concatenate([target, np.zeros(3)])
    return np.asarray(np.linalg.lstsq(system, right)[0])


def own_views(
    model: Biases, items: Float, ratings: Ratings, users: Float
) -> dict[tuple[int, int], float]:
    """What each client's ratings of an item leave unexplained, rating by rating."""
    left: dict[tuple[int, int], list[float]] = {}
    for user, item, value in zip(ratings.user, ratings.item, ratings.value, strict=True):
        pair = int(ratings.client_of_user[user]), int(item)
        left.setdefault(pair, []).append(float(value) - score(model, items[item], users[user]))
    views = {}
    for pair, all_ in left.items():
        sure = min(max(items[pair[1], 2], 0.0), 1.0)
        trusted = (1 - sure) / model.item_shrinkage + sure / model.known_item_shrinkage
        views[pair] = sum(all_) / (len(all_) + 1 / trusted)
    return views


def alternated(model: Biases, items: Float, ratings: Ratings, sweeps: int) -> Float:
    """Users given the clients' own views, these given the users, and so on."""
    beside = np.zeros(len(ratings))
    for _ in range(sweeps):
        users = np.array(
            [ridge(model, items, ratings, user, beside) for user in range(ratings.n_users)]
        )
        views = own_views(model, items, ratings, users)
        pairs = zip(ratings.client.tolist(), ratings.item.tolist(), strict=True)
        beside = np.array([views[pair] for pair in pairs])
    return users


def table(rows: jax.Array, interactions: Interactions) -> dict[tuple[int, int], Float]:
    """Uploaded rows by client and item; those of nothing but zeros left out."""
    pairs = zip(interactions.pair_client.tolist(), interactions.pair_item.tolist(), strict=True)
    return {
        pair: row for pair, row in zip(pairs, np.asarray(rows, float), strict=True) if row.any()
    }


class TestUsersPart:
    def test_ridge_of_every_user(self) -> None:
        ratings, shared = some_ratings(several=False), some_shared()
        solved = np.asarray(personalise(MODEL, shared, None, Interactions.of(ratings)))
        assert solved.shape == (N_USERS, 3)
        items, nothing = np.asarray(shared.items, float), np.zeros(len(ratings))
        for user in range(N_USERS):
            expected = ridge(MODEL, items, ratings, user, nothing)
            np.testing.assert_allclose(solved[user], expected, atol=1e-5)
        assert np.abs(solved[:4]).min() > 1e-4
        assert not solved[4].any()  # nothing rated, nothing assumed


class TestPredictions:
    @pytest.mark.parametrize("several", [False, True])
    def test_formula_and_clipping(self, several: bool) -> None:
        ratings, shared, users = some_ratings(several), some_shared(), some_users(0.7)
        user, item = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
        interactions, local = Interactions.of(ratings), jnp.asarray(users, jnp.float32)
        got = np.asarray(predict(MODEL, shared, local, interactions, user, item))
        items = np.asarray(shared.items, float)
        views = own_views(MODEL, items, ratings, users) if several else {}
        for k in range(len(user)):
            client = int(ratings.client_of_user[user[k]])
            expected = score(MODEL, items[item[k]], users[user[k]])
            expected += views.get((client, int(item[k])), 0.0)
            assert got[k] == pytest.approx(min(max(expected, 0.0), 1.0), abs=1e-5)
        assert got.min() == 0
        assert got.max() == 1


class TestUploads:
    @pytest.mark.parametrize("several", [False, True])
    def test_sums_by_hand(self, several: bool) -> None:
        ratings, shared = some_ratings(several), some_shared()
        interactions = Interactions.of(ratings)
        items = np.asarray(shared.items, float)
        users = alternated(MODEL, items, ratings, sweeps=biases._SWEEPS if several else 1)
        expected: dict[tuple[int, int], Float] = {}
        squares = np.zeros(ratings.n_clients)
        for user, item, value in zip(ratings.user, ratings.item, ratings.value, strict=True):
            client = int(ratings.client_of_user[user])
            left = float(value) - score(MODEL, items[item], users[user])
            pair = client, int(item)
            expected.setdefault(pair, np.zeros(2))[:] += left, COUNT_WEIGHT
            squares[client] += left**2
        gradients = train(
            MODEL, shared, personalise(MODEL, shared, None, interactions), interactions
        )
        got = table(gradients.upload.rows, interactions)
        assert got.keys() == expected.keys()
        for pair, row in expected.items():
            np.testing.assert_allclose(got[pair], row, atol=3e-5)
        assert max(row[1] for row in expected.values()) == pytest.approx(0.2 if several else 0.1)
        assert gradients.upload.dense.shape == (ratings.n_clients, 0)
        counts = np.maximum(np.bincount(ratings.client, minlength=ratings.n_clients), 1)
        np.testing.assert_allclose(gradients.loss, squares / counts / 2, atol=1e-5)


@pytest.mark.parametrize("number", [1, 2, 20, 45])
def test_pairs_are_found_as_in_a_dictionary(number: int) -> None:
    """All pairs that there are, the first and last among them, and all that there are not."""
    for seed in range(10):
        keys = np.random.default_rng(seed).choice(45, number, replace=False)
        client, item = np.divmod(keys, 9)
        ratings = Ratings.from_arrays(
            np.r_[client, client + 5],  # two users each, who rated the same
            np.r_[item, item],
            np.ones(2 * number),
            client=np.r_[client, client],
            users=range(10),
            items=range(9),
            scale=(0, 5),
        )
        some = Interactions.of(ratings)
        pairs = zip(some.pair_client.tolist(), some.pair_item.tolist(), strict=True)
        expected = {pair: index for index, pair in enumerate(pairs)}
        assert len(expected) == number
        who, what = np.divmod(np.arange(ratings.n_clients * 9), 9)
        got = np.asarray(find_pair(some, who, what))
        wanted = zip(who.tolist(), what.tolist(), strict=True)
        assert got.tolist() == [expected.get(pair, number) for pair in wanted]


class TestSettings:
    @pytest.mark.parametrize("model", [Factorization(), FedGNN()], ids=["factorization", "fedgnn"])
    def test_gradients_are_no_sums(self, model: Learner) -> None:
        server = Server(optimizer="posterior", aggregation="clients")
        with pytest.raises(ConfigError, match=r"^server.optimizer = '?posterior"):
            model.server_initial(model.initial(jax.random.key(0), 2, 3)[0], server)

    def test_rows_on_their_own_would_show_the_items(self) -> None:
        rows = Protection(mechanism="gaussian", unit="row")
        server = Server(optimizer="posterior", aggregation="clients")
        with pytest.raises(ConfigError, match=r"^unit = '?row.*client"):
            Federation(model=Biases(), server=server, protection=rows)
