"""Alternating least squares: both halves against plain least squares, and what noise does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner import simulate
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.rounds import Federation, Heldout
from bgtplanner.models.als import Als, Cmf, Equations
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.learner import Aggregate, Noise
from bgtplanner.models.optimizers import Server
from bgtplanner.runs.config import load_config
from bgtplanner.testing import LearnerContract

Float = NDArray[np.float64]
SERVER = Server(optimizer="posterior", aggregation="clients")
N_USERS, N_ITEMS, N_FEATURES = 30, 8, 3
# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
personalise = jax.jit(Als.personalise, static_argnums=0, compiler_options=QUICK)
train = jax.jit(Als.train, static_argnums=0, compiler_options=QUICK)
server_update = jax.jit(
    lambda model, shared, memory, mean, noise: model.server_update(
        shared, memory, mean, Noise(*noise, "l2"), SERVER
    ),
    static_argnums=0,
    compiler_options=QUICK,
)
CLEAR = (1e-9, 1.0, 30.0)  # standard deviation of the noise, clip, clients
FLAT = {"quality_spread": 1e3, "factor_spread": 1e3}  # no shrinkage


class TestRankingContract(LearnerContract):
    learner, optimizer = Als(task="ranking", dim=2), "posterior"


class TestPublishedContract(LearnerContract):
    learner, optimizer = Als(task="ratings", dim=2, gramian="items", adaptive=0.3), "posterior"


def some_ratings(several: bool = False, share: float = 0.6) -> Ratings:
    """Thirty users, in clients of one or three, of whom the last rated nothing."""
    generator = np.random.default_rng(1)
    rated = generator.random((N_USERS, N_ITEMS)) < share
    rated[-1] = False
    user, item = np.nonzero(rated)
    return Ratings.from_arrays(
        user,
        item,
        generator.integers(1, 6, len(user)),
        client=user // 3 if several else None,
        users=range(N_USERS),
        items=range(N_ITEMS),
        scale=(0, 5),
    )


def some_features() -> Float:
    return np.random.default_rng(3).integers(0, 2, (N_ITEMS, N_FEATURES)).astype(float)


def started(model: Als, ratings: Ratings | None = None) -> tuple[Shared, Any, Interactions]:
    """Return the parameters of a first round, with features if the model uses them."""
    interactions = Interactions.of(some_ratings() if ratings is None else ratings)
    shared, local = model.initial(jax.random.key(0), N_USERS, N_ITEMS)
    shared, local = model.with_features(shared, local, jnp.asarray(some_features(), jnp.float32))
    known = np.random.default_rng(4).normal(0, 0.3, (N_ITEMS, 1 + model.dim))
    shared = shared._replace(items=shared.items.at[:, 1 : 2 + model.dim].set(known))
    return shared, personalise(model, shared, local, interactions), interactions


def summed(upload: Any, interactions: Interactions) -> Shared:
    """Return the mean upload, as the server gets it without noise."""
    rows = jax.ops.segment_sum(upload.rows, interactions.pair_item, N_ITEMS)
    number = interactions.n_clients
    return Shared(rows / number, upload.dense.sum(0) / number)


def solved(model: Als, ratings: Ratings | None = None) -> tuple[Any, ...]:
    """Return what was sent out, what users solved for, and the items after a round."""
    shared, local, interactions = started(model, ratings)
    upload = train(model, shared, local, interactions).upload
    mean = Aggregate(summed(upload, interactions), jnp.ones(N_ITEMS))
    memory = model.server_initial(shared, SERVER)
    after, memory = server_update(model, shared, memory, mean, CLEAR)
    return shared, np.asarray(local, float), np.asarray(after.items, float), upload


def of_items(model: Als, shared: Shared) -> tuple[Float, Float, Float]:
    """Return quality, factors and features of the items, by their columns."""
    items = np.asarray(shared.items, float)
    return items[:, 1], items[:, 2 : 2 + model.dim], items[:, 2 + model.dim :]


def weights_of_users(upload: Any, interactions: Interactions) -> Float:
    """Return how much each user counts: the dense part's first entry adds them up."""
    users = np.asarray(interactions.sum_by_user(interactions.present)) > 0
    client = np.asarray(interactions.client_of_user)
    number = np.maximum(np.bincount(client, weights=users), 1.0)
    return (np.asarray(upload.dense, float)[:, 0] / number)[client] * users


class TestUsers:
    def test_ratings_by_least_squares(self) -> None:
        model = Cmf(task="ratings", dim=2, level_shrinkage=2.0, factor_shrinkage=0.4)
        shared, local, _ = started(model)
        quality, factors, features = of_items(model, shared)
        ratings = some_ratings()
        for user in (0, 7, N_USERS - 1):
            mine = ratings.user == user
            at = ratings.item[mine]
            system = np.column_stack([np.ones(len(at)), features[at], factors[at]])
            ridge = [2.0] + [10.0] * features.shape[1] + [0.4] * 2
            system = np.vstack([system, np.diag(np.sqrt(ridge))])
            left = ratings.value[mine] - model.mean - quality[at]
            found = np.linalg.lstsq(system, np.r_[left, np.zeros(len(ridge))])[0]
            np.testing.assert_allclose(local[user], found, atol=2e-4)

    def test_ranking_by_weighted_least_squares_over_all_items(self) -> None:
        model = Cmf(
            task="ranking",
            dim=2,
            unobserved_weight=0.2,
            observed_weight=1.0,
            feature_shrinkage=1e-3,
        )
        shared, local, _ = started(model)
        _, factors, features = of_items(model, shared)
        ratings, items = some_ratings(), np.column_stack([features, factors])
        for user in (0, 7):
            mine = ratings.user == user
            wanted = (ratings.value[mine] / model.mean) ** model.favour
            system = np.vstack([items[ratings.item[mine]], np.sqrt(0.2) * items])
            found = np.linalg.lstsq(system, np.r_[wanted, np.zeros(N_ITEMS)])[0]
            np.testing.assert_allclose(local[user, 1:], found, rtol=0.02, atol=5e-3)
        assert not local[-1].any()


class TestUploads:
    @pytest.mark.parametrize(("task", "several"), [("ratings", False), ("ranking", True)])
    def test_every_client_with_a_rating_sends_length_1(self, task: Any, several: bool) -> None:
        shared, local, interactions = started(Cmf(task=task, dim=2), some_ratings(several))
        upload = train(Cmf(task=task, dim=2), shared, local, interactions).upload
        squares = (upload.dense**2).sum(1) + jax.ops.segment_sum(
            (upload.rows**2).sum(1), interactions.pair_client, interactions.n_clients
        )
        rates = np.asarray(interactions.ratings_of_clients) > 0
        np.testing.assert_allclose(squares, rates.astype(float), atol=1e-5)

    def test_adaptive_weights_favour_rare_items(self) -> None:
        model = Als(task="ratings", dim=0, adaptive=0.5, memory=1.0)
        shared, _, items, _ = solved(model)
        counts = np.bincount(some_ratings().item, minlength=N_ITEMS)
        assert (np.asarray(shared.items)[:, 0] == 1).all()
        assert np.corrcoef(items[:, 0], counts)[0, 1] < -0.9

    def test_weights_cancel_in_the_next_round(self) -> None:
        """The server divides by the weights that it gave, so that rounds can be added up."""
        rows, std = jnp.ones((3, 2)), jnp.asarray(0.5)
        empty = Equations(jnp.zeros((3, 2)), jnp.zeros(()), jnp.zeros(3))
        weights = jnp.array([1.0, 2.0, 0.5])
        plain = empty.plus(rows, std, jnp.ones(3), 1.0)
        both = plain.plus(rows * weights[:, None], std, weights, 1.0)
        mean, spread = both.mean()
        np.testing.assert_allclose(mean, np.ones((3, 2)), rtol=1e-6)
        expected = 0.5 * np.sqrt(1 + 1 / np.asarray(weights) ** 2) / 2
        np.testing.assert_allclose(spread, expected, rtol=1e-6)


class TestItems:
    """Without noise and shrinkage, what is published is exact alternating least squares."""

    @pytest.mark.parametrize(
        ("model", "ratings"),
        [
            (Cmf(dim=1, gramian="items", max_norm=1e3, **FLAT), some_ratings(several=True)),
            # One mean gramian is exact if all clients rate an item.
            (Als(dim=1, max_norm=1e3, **FLAT), some_ratings(share=1.0)),
        ],
        ids=["as published", "shared gramian"],
    )
    def test_ratings(self, model: Als, ratings: Ratings) -> None:
        shared, local, items, upload = solved(model, ratings)
        _, _, features = of_items(model, shared)
        weights = weights_of_users(upload, Interactions.of(ratings))
        for item in range(N_ITEMS):
            mine = ratings.item == item
            user = ratings.user[mine]
            public = local[user, 1 : local.shape[1] - 1] @ features[item]
            left = ratings.value[mine] - model.mean - local[user, 0] - public
            root = np.sqrt(weights[user])
            system = root[:, None] * np.column_stack([np.ones(len(user)), local[user, -1]])
            found = np.linalg.lstsq(system, root * left)[0]
            np.testing.assert_allclose(items[item, 1:3], found, rtol=0.02, atol=5e-3)

    def test_ranking(self) -> None:
        model = Cmf(
            task="ranking", dim=2, gramian="items", item_shrinkage=0.0, observed_weight=1.0
        )
        shared, local, items, upload = solved(model)
        _, _, features = of_items(model, shared)
        ratings = some_ratings()
        users, leanings = local[:, -2:], local[:, 1:-2]
        length = np.maximum(np.linalg.norm(users, axis=1), 1e-9)
        weights = weights_of_users(upload, Interactions.of(ratings)) / length
        exact = np.zeros((N_ITEMS, 2))
        for item in range(N_ITEMS):
            mine = ratings.item == item
            at, public = ratings.user[mine], leanings @ features[item]
            wanted = (ratings.value[mine] / model.mean) ** model.favour
            root, all_ = np.sqrt(weights[at]), np.sqrt(0.3 * weights)
            system = np.vstack([root[:, None] * users[at], all_[:, None] * users])
            right = np.r_[root * (wanted - public[at]), -all_ * public]
            exact[item] = np.linalg.lstsq(system, right)[0]
        counts = np.array([weights_of_users(upload, Interactions.of(ratings))[
            ratings.user[ratings.item == item]].sum() for item in range(N_ITEMS)])  # fmt: skip
        exact /= np.sqrt((counts / counts.sum()) @ (exact**2).sum(1))
        np.testing.assert_allclose(items[:, 2:4], exact, rtol=0.02, atol=5e-3)


class TestNoise:
    @pytest.mark.parametrize("task", ["ratings", "ranking"])
    def test_nothing_but_noise_says_nothing(self, task: Any) -> None:
        """Qualities and factors stay small, or are not there at all."""
        model = Als(task=task, dim=2)
        shared, _, _ = started(model)
        memory = model.server_initial(shared, SERVER)
        size = memory.rows.shape, shared.dense.shape
        draws = [
            jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(size)
        ]  # of standard deviation 1, beside sums of at most 1
        mean = Aggregate(Shared(*draws), jnp.ones(N_ITEMS))
        noise = (1.0, 0.1, 30.0)
        items = server_update(model, shared, memory, mean, noise)[0].items
        assert np.isfinite(items).all()
        if task == "ratings":
            assert np.abs(items[:, 1]).max() < 0.06

    def test_a_round_without_answers_changes_nothing(self) -> None:
        model = Als(task="ranking", dim=2)
        shared, _, _ = started(model)
        memory = model.server_initial(shared, SERVER)
        mean = Aggregate(
            Shared(jnp.zeros(memory.rows.shape), jnp.zeros(shared.dense.shape)), jnp.ones(N_ITEMS)
        )
        lost = (jnp.inf, 0.1, 1.0)
        after, memory = server_update(model, shared, memory, mean, lost)
        np.testing.assert_array_equal(after.items, shared.items)
        assert float(memory.precision) == 0


class TestLearning:
    def test_ranking_finds_groups_of_users(self) -> None:
        """Half of the users rate the even items, the others the odd ones."""
        user, item = np.divmod(np.arange(40 * 12), 12)
        generator = np.random.default_rng(2)
        kept = (user % 2 == item % 2) & (generator.random(len(user)) < 0.7)
        ratings = Ratings.from_arrays(
            user[kept], item[kept], np.full(kept.sum(), 4), scale=(0, 5), items=range(12)
        )
        interactions = Interactions.of(ratings)
        federation = Federation(model=Als(task="ranking", dim=2), server=SERVER)
        state = federation.initial(jax.random.key(0), interactions)
        heldout = Heldout(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.zeros(1))
        play = jax.jit(Federation.round, static_argnums=0, compiler_options=QUICK)
        for index in range(3):
            state, _ = play(
                federation, state, interactions, heldout, jnp.int32(index), jax.random.key(1)
            )
        scores = federation.model.rank(state.shared, state.local, interactions, jnp.arange(40))
        own = (np.arange(40)[:, None] % 2) == (np.arange(12) % 2)
        assert (np.where(own, scores, np.inf).min(1) > np.where(own, -np.inf, scores).max(1)).all()

    def test_a_private_run_by_name(self) -> None:
        result = simulate(
            "demo",
            model="als",
            rounds=3,
            policy="uniform",
            settings={"model.options": {"dim": 1, "memory": 1.0}, "data.initial_share": 1.0},
        )
        assert result.summary["rmse_final"] < result.summary["rmse_user_mean"]
        assert result.summary["epsilon_spent_max"] <= 10.0


class TestSettings:
    def test_the_preset_keeps_its_server(self) -> None:
        config = load_config(settings={"model.name": "als"})
        assert config.server.optimizer == "posterior"

    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"task": "both"}, "task"),
            ({"gramian": "none"}, "gramian"),
            ({"dim": 0, "task": "ranking"}, "dim"),
            ({"dim": 1000}, "dim"),
            ({"memory": 1.5}, "memory"),
            ({"level_shrinkage": 0.0}, "level_shrinkage"),
        ],
    )
    def test_bad_ones_are_refused(self, settings: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            Als(**settings)

    def test_an_optimizer_would_be_ignored(self) -> None:
        model = Als()
        shared, _ = model.initial(jax.random.key(0), 2, 2)
        with pytest.raises(ConfigError, match="posterior, for the model als"):
            model.server_initial(shared, Server(optimizer="adam"))
