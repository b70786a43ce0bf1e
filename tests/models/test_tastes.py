"""Tastes: leanings, the ranking, private subspace iteration, and that no round does harm."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from scipy.special import softmax
from scipy.stats import norm

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError
from bgtplanner.models import solving
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.tastes import TasteMemory, Tastes
from learner_contract import LearnerContract
from models.people import N_USERS, some_ratings

Float = NDArray[np.float64]
SERVER = Server(optimizer="posterior", aggregation="clients")
N_ITEMS, N_AXES, N_FEATURES = 9, 2, 3
OWN = 5  # columns of an item before its axes and features
MODEL = Tastes(
    axes=N_AXES,
    taste_share=0.4,
    mean=0.6,
    feature_shrinkage=1.5,
    axis_shrinkage=2.5,
    interest_shrinkage=0.8,
    taste_shrinkage=2.0,
    boldness=0.7,
)

personalise = jax.jit(Tastes.personalise, static_argnums=0)
train = jax.jit(Tastes.train, static_argnums=0)
predict = jax.jit(Tastes.predict, static_argnums=0)
rank = jax.jit(Tastes.rank, static_argnums=0)


@partial(jax.jit, static_argnums=0, static_argnames="norm")
def update(
    model: Tastes,
    shared: Shared,
    memory: TasteMemory,
    uploads: Any,
    std: Any,
    clients: Any = 1000.0,
    norm: Any = "l2",
) -> tuple[Shared, TasteMemory]:
    """The server's part of a round; uploads have the length 1, so that the clip is 1."""
    mean = Aggregate(Shared(uploads, jnp.zeros(0)), jnp.zeros(uploads.shape[0]))
    return model.server_update(shared, memory, mean, Noise(std, 1.0, clients, norm), SERVER)


def single(values: Any) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def some_shared(axes: int = N_AXES, features: int = N_FEATURES) -> Shared:
    """Parameters of which every column plays a part."""
    draw = np.random.default_rng(2)
    own = [draw.normal(0, 0.1, N_ITEMS), draw.normal(size=N_ITEMS), draw.uniform(0, 1, N_ITEMS)]
    share = draw.dirichlet(np.ones(N_ITEMS))
    turned = np.linalg.qr(draw.normal(size=(N_ITEMS, axes)))[0] * np.linspace(1.0, 0.7, axes)
    public = (draw.random((N_ITEMS, features)) < 0.4).astype(float)
    asked = np.zeros(N_ITEMS)
    return Shared(single(np.column_stack([*own, share, asked, turned, public])), jnp.zeros(0))


class Known(NamedTuple):
    """The columns of the shared parameters, as they are written down in the docstring."""

    share: Float
    axes: Float
    features: Float

    @classmethod
    def of(cls, shared: Shared, axes: int = N_AXES) -> Known:
        items = np.asarray(shared.items, float)
        share = items[:, 3] / items[:, 3].sum()
        features = items[:, OWN + axes :]
        turned = items[:, OWN : OWN + axes] - share @ items[:, OWN : OWN + axes]
        spread = np.sqrt(share @ turned**2)
        squares = (items[:, OWN : OWN + axes] ** 2).sum(axis=0)
        strength = np.sqrt(np.clip((squares - 0.25) / 0.75, 0.0, 1.0))
        turned = strength * turned / np.where(spread, spread, 1.0)
        return cls(share, turned, features - share @ features)

    @property
    def table(self) -> Float:
        return np.concatenate([self.axes, self.features], axis=1)


def picked(share: Float) -> Float:
    """How much it says that somebody picked an item."""
    return np.asarray((share * len(share) + 0.05) ** -0.25)


# ---- the users' regressions


def table_of(items: int) -> tuple[Float, list[float]]:
    """Columns as models have them, correlated with each other, and how they are shrunk."""
    draw = np.random.default_rng(3)
    hidden = draw.normal(size=(items, 3))
    own = hidden @ draw.normal(size=(3, 19)) + 0.3 * draw.normal(size=(items, 19)) > 1
    popularity = hidden[:, 0] + 0.2 * draw.normal(size=items)
    level, quality = np.ones(items), 0.1 * draw.normal(size=items)
    axes, features = draw.normal(size=(items, 8)), own - own.mean(axis=0)
    columns = np.column_stack([level, popularity, quality, axes, features])
    return columns, [5.0, 20.0, 0.3] + [150.0] * 8 + [25.0] * 19


def test_many_columns_are_solved_far_below_the_error_of_ratings() -> None:
    """All users at once, and each on its own by LAPACK."""
    draw, items, counts = np.random.default_rng(0), 700, (0, 3, 30, 150, 600)
    item = np.concatenate([draw.permutation(items)[:count] for count in counts]).astype(int)
    rated = Ratings.from_arrays(
        np.repeat(np.arange(5), counts), item, draw.random(len(item)), users=range(5),
        items=range(items), scale=(0, 1),
    )  # fmt: skip
    table, shrinkage = table_of(items)
    interactions, target = Interactions.of(rated), rated.value - 0.5
    got = np.asarray(solving.ridge(single(table), shrinkage, interactions)(single(target)), float)
    assert not got[0].any()  # nothing rated, nothing assumed
    for user in range(1, 5):
        rows = table[rated.item[rated.user == user]]
        right = rows.T @ target[rated.user == user]
        predicted = table @ np.linalg.solve(rows.T @ rows + np.diag(shrinkage), right)
        assert user == 1 or predicted.std() > 0.02
        off = np.sqrt(((table @ got[user] - predicted) ** 2).mean())
        assert off < 3e-4  # ratings are off by 0.2


@pytest.mark.parametrize("several", [False, True])
def test_leanings_of_every_user(several: bool) -> None:
    """The whole model: what is left of a rating, by the columns that were written down."""
    ratings, shared = some_ratings(several, N_ITEMS), some_shared()
    interactions = Interactions.of(ratings)
    local = personalise(MODEL, shared, None, interactions)
    items, known = np.asarray(shared.items, float), Known.of(shared)
    table = np.column_stack([np.ones(N_ITEMS), items[:, 1], items[:, 0], known.table])
    shrinkage = [5.0, 20.0, 0.3] + [2.5] * N_AXES + [1.5] * N_FEATURES
    beside = np.zeros(len(ratings))
    if several:  # in turn with the clients' own views; the last are those before the users
        view = MODEL.own_view(shared, local, interactions)
        beside = np.asarray(view, float)[np.asarray(interactions.pair)]
    for user in range(N_USERS):
        mine = ratings.user == user
        rows = table[ratings.item[mine]]
        left = ratings.value[mine] - 0.6 - items[ratings.item[mine], 0] - beside[mine]
        normal = rows.T @ rows + np.diag(shrinkage)
        expected = np.linalg.solve(normal, rows.T @ left)
        np.testing.assert_allclose(local[user], expected, atol=2e-2 if several else 2e-5)
    assert np.abs(np.asarray(local)[:4, 3:]).min() > 1e-5
    assert not np.asarray(local)[4].any()


# ---- the ranking


def newton_step(known: Known, history: NDArray[np.int64], worth: Float, model: Tastes) -> Float:
    """One step from zero, by automatic differentiation of the likelihood as it is written.

    It is the mean over four strengths of the prior, by how likely a step from all other items
    makes each item of the history, where the likelihood is taken to second order.
    """
    table, share = jnp.asarray(known.table), jnp.asarray(known.share)
    penalty = np.r_[
        np.full(known.axes.shape[1], model.taste_shrinkage),
        np.full(known.features.shape[1], model.interest_shrinkage),
    ]

    def unlikely(weights: Any, item: Any) -> Any:
        utility = table @ weights
        return jnp.log((share * jnp.exp(utility)).sum()) - utility[item]

    zero = jnp.zeros(table.shape[1])
    slopes = np.array([jax.grad(unlikely)(zero, item) for item in history], float)
    slopes = slopes.reshape(len(history), len(penalty))
    curve = np.asarray(jax.hessian(unlikely)(zero, 0), float)
    usual = (worth**2).sum() / max(worth.sum(), 1e-12)  # each item counts as the mean item
    steps, likely = [], []
    for strength in (0.1, 0.3, 1.0, 3.0):
        first = 1 + 4 / max(worth.sum(), 0.7)  # what is picked first suits most
        prior, slope = np.diag(penalty) / strength / first, worth @ slopes
        steps.append(-np.linalg.solve(worth.sum() * curve + prior, slope))
        fewer = np.linalg.inv((worth.sum() - usual) * curve + prior)
        own, spread = worth[:, None] * slopes, fewer @ curve @ fewer
        told = sum(one @ fewer @ (slope - one) for one in own)
        lengths = sum(one @ spread @ one for one in own)
        likely.append(
            told - 0.5 * (worth.sum() - 2 * usual) * slope @ spread @ slope - 0.5 * usual * lengths
        )
    return np.asarray(softmax(likely) @ np.array(steps))


def worth_of(ratings: Ratings, model: Tastes) -> Float:
    """How much having picked an item says: the more, the better it was rated."""
    value = ratings.value.astype(float)
    return np.ones_like(value) if model.implicit else value / 0.7


class TestRanking:
    EVERYBODY = np.arange(N_USERS)

    def expected(self, model: Tastes, shared: Shared, ratings: Ratings, predicted: Float) -> Float:
        known, scores = Known.of(shared), []
        for user in range(N_USERS):
            mine = ratings.user == user
            worth = worth_of(ratings, model)[mine]
            weights = newton_step(known, ratings.item[mine], worth, model)
            score = np.log(known.share + 0.02 / N_ITEMS) + model.boldness * known.table @ weights
            if not model.implicit:
                score = score + norm.logcdf((predicted[user] - 0.75) / 0.2)
            scores.append(score)
        return np.array(scores)

    @pytest.mark.parametrize("several", [False, True])
    @pytest.mark.parametrize(
        "changed", [{}, {"boldness": 0.0}, {"implicit": True}, {"boldness": 2.0}], ids=str
    )
    def test_popularity_a_newton_step_and_what_would_be_liked(
        self, changed: dict[str, Any], several: bool
    ) -> None:
        model, shared, ratings = (
            replace(MODEL, **changed),
            some_shared(),
            some_ratings(several, N_ITEMS),
        )
        interactions = Interactions.of(ratings)
        local = personalise(model, shared, None, interactions)
        user, item = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
        predicted = predict(model, shared, local, interactions, user, item)
        found = np.asarray(rank(model, shared, local, interactions, self.EVERYBODY), float)
        wanted = self.expected(
            model, shared, ratings, np.asarray(predicted, float).reshape(N_USERS, N_ITEMS)
        )
        off = found - wanted  # up to a constant for each user
        np.testing.assert_allclose(off - off[:, :1], 0.0, atol=3e-4)
        assert np.ptp(wanted, axis=1).min() > 0.5
        some = rank(model, shared, local, interactions, np.array([3, 0]))
        np.testing.assert_allclose(some, found[[3, 0]], atol=1e-5)


# ---- uploads


def whole_uploads(shared: Shared, interactions: Interactions, model: Tastes = MODEL) -> Float:
    """Every client's upload over the whole catalogue, ``[n_clients, n_items, width]``."""
    local = personalise(model, shared, None, interactions)
    rows = np.asarray(train(model, shared, local, interactions).upload.rows, float)
    whole = np.zeros((interactions.n_clients, N_ITEMS, rows.shape[1]))
    pairs = np.asarray(interactions.pair_client), np.asarray(interactions.pair_item)
    np.add.at(whole, pairs, rows)
    return whole


@pytest.mark.parametrize("several", [False, True])
class TestUploads:
    def test_what_a_client_tells_about_tastes(self, several: bool) -> None:
        """``(x_u x_u' - diag) Q``, user by user, on the five most popular items."""
        ratings, shared = some_ratings(several, N_ITEMS), some_shared()
        model = replace(MODEL, taste_items=5)
        found = whole_uploads(shared, Interactions.of(ratings), model)
        popular = np.asarray(shared.items, float)[:, 3].argsort()[-5:]
        top = np.isin(np.arange(N_ITEMS), popular)
        axes = np.asarray(shared.items, float)[:, OWN : OWN + N_AXES] * top[:, None]
        axes /= np.linalg.norm(axes, axis=0)
        weight = top * picked(Known.of(shared).share)
        expected = np.zeros((ratings.n_clients, N_ITEMS, N_AXES))
        for user in range(N_USERS):
            vector = np.zeros(N_ITEMS)
            mine = ratings.user == user
            rated = ratings.item[mine]
            vector[rated] = weight[rated] * worth_of(ratings, model)[mine]
            vector /= max(np.linalg.norm(vector), 1e-9)
            together = np.outer(vector, vector) - np.diag(vector**2)
            expected[ratings.client_of_user[user]] += together @ axes
        lengths = np.linalg.norm(expected.reshape(ratings.n_clients, -1), axis=1)
        expected *= math.sqrt(0.4) / np.maximum(lengths, 1e-9)[:, None, None]
        np.testing.assert_allclose(found[:, :, 2:], expected, atol=1e-5)
        assert not found[:, ~top, 2:].any()
        assert expected.any()

    def test_without_axes_or_popularity_all_goes_to_residuals_and_counts(
        self, several: bool
    ) -> None:
        """Nothing is paid for tastes before they can be told."""
        shared = some_shared()
        silent = Shared(shared.items.at[:, OWN : OWN + N_AXES].set(0.0), shared.dense)
        found = whole_uploads(silent, Interactions.of(some_ratings(several, N_ITEMS)))
        assert not found[:, :, 2:].any()
        lengths = np.linalg.norm(found.reshape(len(found), -1), axis=1)
        np.testing.assert_allclose(lengths, found.any(axis=(1, 2)), atol=1e-5)


class _Contract(LearnerContract):
    """From a point where everything is known; compiled, since single operations take longer."""

    optimizer: ClassVar[Any] = "posterior"
    axes: ClassVar[int] = 0

    def initial(self, interactions: Any) -> tuple[Any, Any]:
        shared, local = super().initial(interactions)
        draw = np.random.default_rng(5)
        popularity = single(draw.dirichlet(np.ones(self.items)))
        axes = single(np.linalg.qr(draw.normal(size=(self.items, self.axes)))[0])
        items = shared.items.at[:, 3].set(popularity)
        return Shared(items.at[:, OWN : OWN + self.axes].set(axes), shared.dense), local


def compiled(**options: Any) -> Any:
    steps = ("personalise", "train", "predict", "rank")
    own = {name: jax.jit(getattr(Tastes, name), static_argnums=0) for name in steps}
    return type("Tastes", (Tastes,), own)(**options)


class TestContractWithFeaturesAndAxes(_Contract):
    learner, axes = compiled(axes=2, taste_share=0.5), 2
    features: ClassVar[Any] = (np.arange(21).reshape(7, 3) * 5 % 7 < 3).astype(float)


# ---- the server


CLIENTS, ITEMS, KINDS = 300, 60, 4
FREE = Tastes(axes=3, taste_share=0.4)


def planted(seed: int = 0, strength: float = 2.0) -> tuple[Ratings, Float]:
    """Four kinds of items and of people, who mostly pick their own kind and like it better."""
    draw = np.random.default_rng(seed)
    place = np.random.default_rng(0).permutation(ITEMS)
    kind, own = place % KINDS, np.arange(CLIENTS) % KINDS
    popularity = 1.0 / (place // KINDS + 3.0)
    chance = popularity * np.exp(strength * (kind == own[:, None]))
    number = draw.integers(12, 28, CLIENTS)
    item = [
        draw.choice(ITEMS, count, False, row / row.sum())
        for count, row in zip(number, chance, strict=True)
    ]
    user, items = np.repeat(np.arange(CLIENTS), number), np.concatenate(item)
    value = 0.6 + 0.1 * (kind[items] == own[user]) + 0.1 * draw.normal(size=len(user))
    ratings = Ratings.from_arrays(
        user,
        items,
        np.clip(value, 0, 1),
        users=range(CLIENTS),
        items=range(ITEMS),
        scale=(0, 1),
    )
    return ratings, np.eye(KINDS)[kind]


class Learned(NamedTuple):
    shared: Shared
    local: Any
    memory: TasteMemory

    def axes(self, model: Tastes, *, sent: bool = False) -> Float:
        """Of length 1, or as they are sent: weak ones, and those to begin with, are shorter."""
        found = np.asarray(self.shared.items, float)[:, OWN : OWN + (model.axes or 0)]
        return (
            found if sent else np.asarray(found / np.maximum(np.linalg.norm(found, axis=0), 1e-12))
        )


@partial(jax.jit, static_argnums=0)
def one_round(
    model: Tastes, known: Learned, interactions: Interactions, std: Any, key: Any, heard: Any
) -> tuple[Learned, jax.Array]:
    """All clients train, the server sees the mean with noise; `heard` 0 leaves the noise alone."""
    local = model.personalise(known.shared, known.local, interactions)
    rows = model.train(known.shared, local, interactions).upload.rows
    total = jax.ops.segment_sum(rows, interactions.pair_item, interactions.n_items)
    uploads = heard * total / interactions.n_clients + std * jax.random.normal(key, total.shape)
    mean = Aggregate(Shared(uploads, jnp.zeros(0)), jnp.zeros(interactions.n_items))
    noise = Noise(std, 1.0, float(interactions.n_clients), "l2")
    shared, memory = model.server_update(known.shared, known.memory, mean, noise, SERVER)
    return Learned(shared, model.personalise(shared, local, interactions), memory), uploads


def begun(model: Tastes, interactions: Interactions, features: Float | None = None) -> Learned:
    shared, local = model.initial(jax.random.key(0), interactions.n_users, interactions.n_items)
    if features is not None:
        shared, local = model.with_features(shared, local, single(features))
    return Learned(shared, local, model.server_initial(shared, SERVER))


def play(
    model: Tastes,
    interactions: Interactions,
    rounds: int,
    *,
    std: float,
    features: Float | None = None,
    seed: int = 0,
    heard: float = 1.0,
) -> list[Learned]:
    known = [begun(model, interactions, features)]
    for key in jax.random.split(jax.random.key(seed), rounds):
        known.append(one_round(model, known[-1], interactions, std, key, heard)[0])
    return known[1:]


class TestSubspaceIteration:
    @pytest.fixture
    def world(self) -> tuple[Ratings, Float]:
        return planted()

    @pytest.mark.parametrize("with_features", [False, True])
    def test_finds_what_was_planted(
        self, with_features: bool, world: tuple[Ratings, Float]
    ) -> None:
        """From features the kinds of items are there much sooner."""
        ratings, kinds = world
        features = kinds if with_features else None
        known = play(FREE, Interactions.of(ratings), 8, std=1e-6, features=features)
        share = np.asarray(known[-1].shared.items, float)[:, 3]
        shares = np.bincount(ratings.item) / len(ratings)
        np.testing.assert_allclose(share / share.sum(), shares, atol=6e-3)
        wanted = kinds * picked(shares)[:, None] * shares[:, None]
        angles = [float(subspace_angles(each.axes(FREE), wanted).max()) for each in known]
        assert (angles[0] < 0.5) == with_features
        assert angles[-1] < 0.35
        axes = known[-1].axes(FREE)
        np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-3)

    def test_two_payments_by_numpy(self, world: tuple[Ratings, Float]) -> None:
        """Noise of two sizes; what was told, and about what, is added up by precision."""
        model = replace(FREE, taste_items=50)
        interactions = Interactions.of(world[0])
        known = play(model, interactions, 1, std=1e-3)[0]
        sums, stds = np.zeros((2, ITEMS, ITEMS)), (4e-3, 3e-3)
        for std in stds:
            before = known
            known, uploads = one_round(model, known, interactions, std, jax.random.key(3), 1.0)
            top = np.isin(np.arange(ITEMS), np.asarray(before.memory.axes.items))
            asked = np.asarray(before.shared.items, float)[:, OWN : OWN + 3] * top[:, None]
            asked /= np.linalg.norm(asked, axis=0)
            told = top[:, None] * np.asarray(uploads, float)[:, 2:] / math.sqrt(0.4)
            sums += 0.4 / std**2 * np.stack([told @ asked.T, asked @ asked.T])
            left = np.isin(np.arange(ITEMS), np.asarray(known.memory.axes.items))
            sums *= left[:, None] & left  # nothing is kept of items that are no longer popular
        memory = known.memory.axes
        at = np.ix_(np.asarray(memory.items), np.asarray(memory.items))
        np.testing.assert_allclose(memory.told, sums[0][at], atol=1e-4 * abs(sums[0]).max())
        np.testing.assert_allclose(memory.asked, sums[1][at], atol=1e-4 * abs(sums[1]).max())
        assert float(memory.precision) == pytest.approx(np.trace(sums[1]) / 3, 1e-4)
        assert (memory.payments, bool((memory.sizes > memory.edge)[0])) == (2, True)

    def test_other_items_get_places_by_their_features(self, world: tuple[Ratings, Float]) -> None:
        """Items of one kind are near each other, whether tastes were learned on them or not."""
        ratings, kinds = world
        model = replace(FREE, taste_items=30)
        known = play(model, Interactions.of(ratings), 6, std=1e-5, features=kinds)[-1]
        items = np.asarray(known.shared.items, float)
        top = np.isin(np.arange(ITEMS), items[:, 3].argsort()[-30:])
        axes = items[:, OWN : OWN + 3]
        for kind in kinds.T > 0:
            ours, others = axes[top & kind].mean(axis=0), axes[top & ~kind].mean(axis=0)
            beyond = axes[~top & kind].mean(axis=0)
            assert np.linalg.norm(beyond - ours) < 0.5 * np.linalg.norm(beyond - others)
        alone = play(model, Interactions.of(ratings), 6, std=1e-5)[-1]
        away = np.asarray(alone.shared.items, float)
        outside = away[:, 3] < np.sort(away[:, 3])[-30]
        assert not away[outside, OWN : OWN + 3].any()

    def test_ratings_lean_on_features_and_not_on_axes(self) -> None:
        shared = some_shared()
        memory = MODEL.server_initial(shared, SERVER)
        told = single(np.random.default_rng(1).normal(0, 0.1, (N_ITEMS, 2 + N_AXES)))
        found = []
        for columns in (slice(0), slice(OWN, OWN + N_AXES), slice(OWN + N_AXES, None)):
            items = shared.items.at[:, columns].multiply(-0.5)
            items = items.at[0, columns].add(0.5)
            after, _ = update(MODEL, Shared(items, shared.dense), memory, told, 0.01)
            found.append(np.asarray(after.items[:, :3]))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
        assert np.abs(found[0] - found[2]).max() > 1e-3

    def test_a_round_that_nobody_answers_changes_nothing(
        self, world: tuple[Ratings, Float]
    ) -> None:
        known = play(FREE, Interactions.of(world[0]), 2, std=1e-4)[-1]
        shared, memory = update(
            FREE, known.shared, known.memory, jnp.zeros((ITEMS, 5)), jnp.inf, 1.0
        )
        np.testing.assert_allclose(shared.items[:, 3:], known.shared.items[:, 3:], atol=1e-6)
        for now, then in zip(memory.axes[:5], known.memory.axes[:5], strict=True):
            np.testing.assert_allclose(now, then, rtol=1e-5)

    def test_axes_come_back_with_popularity(self, world: tuple[Ratings, Float]) -> None:
        """Where counts no longer stand out, nothing is asked; once they do again, it is."""
        known = play(FREE, Interactions.of(world[0]), 3, std=1e-4)[-1]
        lost = Shared(known.shared.items.at[:, 3 : OWN + 3].set(0.0), known.shared.dense)
        counts = single(np.outer(np.arange(ITEMS) + 1.0, [0, 1e-2, 0, 0, 0]))
        sent, memory = update(FREE, lost, known.memory, counts, 1e-4)
        assert memory.axes.payments == known.memory.axes.payments
        assert (np.linalg.norm(sent.items[:, OWN : OWN + 3], axis=0) > 0.005).all()

    def test_rare_items_count_less(self) -> None:
        """Half as much at least; the server divides by it, so that the same is expected."""
        model, shared = replace(MODEL, taste_items=2), some_shared()
        share = np.asarray(shared.items, float)[:, 3]
        least = np.sort(share)[-4]
        interactions = Interactions.of(some_ratings(False, N_ITEMS))
        rows = whole_uploads(shared, interactions, model)[:, :, 1].sum(axis=0)
        plain = whole_uploads(shared, interactions)[:, :, 1].sum(axis=0)
        sure = np.sort(np.asarray(shared.items, float)[np.argsort(share)[-4:], 2]).mean()
        counts = np.clip(np.sqrt(share / least), 0.25 + 0.75 * sure, 1)
        wanted = counts / np.sqrt((share / share.sum()) @ counts**2)
        assert (rows <= plain * wanted * 1.001).all()
        assert rows[share.argmax()] > plain[share.argmax()]
        assert counts.min() < 0.9

    def told_once(self, seed: int, strength: float, std: float) -> Float:
        """Clear counts; of tastes `strength` times the largest that noise would show.

        So many people take part that what their sampling would show is far below it.
        """
        draw = np.random.default_rng(seed)
        counts = 1.0 / (np.arange(ITEMS) + 3.0)
        shared, _ = FREE.initial(jax.random.key(0), CLIENTS, ITEMS)
        axes = np.linalg.qr(draw.normal(size=(ITEMS, 3)))[0]
        items = shared.items.at[:, 3].set(single(counts / counts.sum()))
        shared = Shared(items.at[:, OWN : OWN + 3].set(0.01 * single(axes)), shared.dense)
        edge = std * (math.sqrt(ITEMS) + math.sqrt(3))
        signal = np.outer(axes[:, 0], [1.0, 0.0, 0.0]) * strength * edge
        uploads = np.column_stack([np.zeros(ITEMS), 0.2 * counts, signal])
        uploads[:, 2:] += std * draw.normal(size=(ITEMS, 3))
        none, clients = FREE.server_initial(shared, SERVER), 1e4 / std**2
        sent, _ = update(FREE, shared, none, single(uploads), std, clients)
        assert np.asarray(sent.items[:, 3]).any()  # popularity is sent all the same
        found = np.asarray(sent.items[:, OWN : OWN + 3], float)
        assert (np.linalg.norm(found, axis=0) > 0.005).all()  # all are asked for again
        return np.asarray((found**2).sum(axis=0) > 0.25)

    @pytest.mark.parametrize("std", [1e-4, 1e-3])
    def test_what_stands_out_of_noise_is_used_and_noise_is_not(self, std: float) -> None:
        """Noise alone passes once in ninety times at most."""
        noise = [self.told_once(seed, 0.0, std).any() for seed in range(60)]
        signal = [self.told_once(seed, 2.0, std).any() for seed in range(30)]
        assert np.sum(noise) <= 3  # more have a chance of 1 in 200
        assert all(signal)

    def test_what_few_picks_show_by_chance_is_no_taste(self) -> None:
        """Who picks three items by popularity alone seems to have tastes, even without noise."""
        model = replace(FREE, axes=8, implicit=True)
        used = []
        for strength in (0.0, 3.0):
            ratings = planted(1, strength)[0]
            draw = np.random.default_rng(7).random(len(ratings))
            first = np.lexsort((draw, ratings.user))
            start = np.searchsorted(ratings.user, np.arange(CLIENTS))[ratings.user]
            few = ratings.take(np.sort(first[np.arange(len(ratings)) - start < 3]))
            known = play(model, Interactions.of(few), 6, std=1e-6)[-1]
            sent = np.asarray(known.shared.items[:, OWN : OWN + 8], float)
            used.append(int(((sent**2).sum(axis=0) > 0.25).sum()))
        assert used[0] <= 1
        assert used[1] >= 3  # four kinds of people differ in three ways

    def test_a_forecast_divides_and_waits(self) -> None:
        interactions = Interactions.of(planted(strength=0.0)[0])
        known = play(FREE, interactions, 5, std=2e-2, seed=1)
        memory, more = known[-1].memory, np.array([0.0, 100.0])
        posterior, planned = memory.posterior, replace(FREE, taste_share=None)
        promised = FREE.forecast(memory, more, 1.0, "l2")
        assert 0 < promised["ratings"][0] < promised["ratings"][1]
        divided = posterior.forecast(0.6 * more, 1.0, "l2", 0.2)
        assert promised["ratings"].tolist() == divided.tolist()
        for precision in (1.0, 1e4, 1e8, 1e12):  # tastes are never given up
            assert 0.1 <= planned.split(memory, precision, 1.0, "l2")["tastes"] <= 0.9
        none = replace(FREE, axes=0)
        still = none.forecast(memory, more, 1.0, "l2")
        assert still["ratings"].tolist() == posterior.forecast(more, 1.0, "l2", 0.2).tolist()
        assert list(replace(none, implicit=True).forecast(memory, more, 1.0, "l2")) == ["lists"]
        assert (none.steps, FREE.steps) == (3, 4)  # axes turn a little further with each


# ---- age


def of_times(days: list[float]) -> Ratings:
    """One person with as many items as days; each was rated so many days after 1970-01-01."""
    items, when = range(len(days)), np.array(days) * 86_400.0
    value = np.full(len(days), 0.7)
    return Ratings.from_arrays(
        [0] * len(days), items, value, time=when, scale=(0, 1), items=range(N_ITEMS)
    )


def test_what_is_old_counts_less_and_makes_uploads_shorter() -> None:
    aged = Tastes(axes=0, implicit=True, half_life=10.0, date="1970-01-31")
    uploads = []
    for days in ([30.0, 40.0], [30.0, 20.0], [20.0, 10.0], [-9_000.0, 10.0]):
        interactions = Interactions.of(of_times(days))
        shared, _ = aged.initial(jax.random.key(0), 1, N_ITEMS)
        uploads.append(whole_uploads(shared, interactions, aged)[0, :2, 1])
    half, quarter = 0.2 + 0.8 * 0.5, 0.2 + 0.8 * 0.25
    wanted = np.array([[1.0, 1.0], [1.0, half], [half, quarter], [0.2, quarter]]) / 2**0.5
    np.testing.assert_allclose(uploads, wanted, rtol=1e-4)


def test_age_needs_times_and_a_public_date() -> None:
    for given in ({"half_life": 10.0}, {"half_life": 10.0, "date": "30 November"}):
        with pytest.raises(ConfigError, match="date"):
            Tastes(**given)
    aged = Tastes(axes=0, half_life=10.0, date="1970-01-31")
    timeless = Interactions.of(some_ratings(False, N_ITEMS))
    with pytest.raises(ConfigError, match="time_column"):
        whole_uploads(aged.initial(jax.random.key(0), N_USERS, N_ITEMS)[0], timeless, aged)


# ---- settings


class TestSettings:
    def test_more_noise_means_fewer_axes(self) -> None:
        """What else was left open is planned, not chosen once."""
        learners = [
            Tastes().suited(1000, 1500, noise)
            for noise in (0.0, 0.1, 0.3, 0.5, 1.0, 1.5, 1.7, 1.9, 3.0, 100.0)
        ]
        axes = [learner.axes or 0 for learner in learners]
        assert axes == sorted(axes, reverse=True)
        assert (axes[0], axes[-1], len(set(axes)) > 2) == (32, 0, True)
        among = [learner.taste_items or 0 for learner in learners]
        assert among == sorted(among, reverse=True)
        assert (among[0], among[-1]) == (632, 158)  # 20 and 5 times sqrt(1000)
        assert Tastes().suited(10**6, 20_000, 0.5).taste_items == 1000
        assert Tastes().suited(1000, 100, 0.5).taste_items == 100
        assert {learner.taste_share for learner in learners} == {None}

    def test_few_clients_learn_popularity_or_nothing(self) -> None:
        federations = (6040, 1500), (605, 1500), (605, 3700), (605, 100)
        weights = [Tastes().suited(*of, 3.7).count_weight for of in federations]
        assert weights == pytest.approx([0.2, 0.306, 0.5, 0.2], abs=0.001)

    def test_what_was_chosen_stays(self) -> None:
        for given in (Tastes(axes=3, taste_items=90), Tastes(axes=0, implicit=True)):
            assert given.suited(1000, 1500, 2.0) == given
        assert Tastes(count_weight=0.3).suited(100, 1500, 50.0).count_weight == 0.3
        assert Tastes().suited(1000, 1500, 0.5, implicit=True).implicit
