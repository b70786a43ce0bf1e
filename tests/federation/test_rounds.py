"""The round: who takes part, what reaches the server, and what the outcome says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.federation.chunks import Heldout
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Draw, Federation, Outcome, State
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Statistics
from bgtplanner.models.optimizers import Server
from bgtplanner.paper import pseudo, rows
from bgtplanner.paper.pseudo import PseudoItems
from one_round import one_round

# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
PLAIN = Server(optimizer="sgd", momentum=0.0, learning_rate=0.5, aggregation="clients")


@dataclass(frozen=True)
class Counter(Learner):
    """The smallest model there is: a score an item, and each user counts the rounds it was in.

    It also shows that nothing else is needed.
    """

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Array]:
        return Shared(jax.random.uniform(key, (n_items, 1)), jnp.zeros(0)), jnp.zeros(n_users)

    def loss(self, copies: Upload, local: Array, interactions: Interactions) -> Array:
        error = interactions.value - interactions.rows_of(copies.rows)[:, 0]
        mean = interactions.sum_by_client(interactions.present * error**2)
        return 0.5 * mean / jnp.maximum(interactions.ratings_of_clients, 1.0)

    def train(self, shared: Shared, local: Array, interactions: Interactions) -> Statistics:
        return super().train(shared, local, interactions)._replace(local=local + 1)

    def predict(
        self, shared: Shared, local: Array, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        return jnp.clip(shared.items[item, 0], 0.0, 1.0)


def some_ratings(n_users: int = 7, n_items: int = 8, each: int = 3, seed: int = 0) -> Ratings:
    generator = np.random.default_rng(seed)
    item = np.concatenate([generator.permutation(n_items)[:each] for _ in range(n_users)])
    value = generator.integers(1, 6, n_users * each)
    return Ratings.from_arrays(
        np.repeat(np.arange(n_users), each),
        item,
        value,
        users=range(n_users),
        items=range(n_items),
        scale=(0, 5),
    )


HELDOUT = Heldout(jnp.array([0, 1, 2]), jnp.array([0, 1, 2]), jnp.array([0.2, 0.6, 1.0]))


@cache
def compiled(federation: Federation) -> Any:
    return jax.jit(partial(one_round, federation), compiler_options=QUICK)


class Runner:
    """A federation at work: any round of it, from the start or from a given state."""

    def __init__(self, federation: Federation, interactions: Interactions, seed: int = 0) -> None:
        self.federation, self.interactions = federation, interactions
        self.start = federation.initial(jax.random.key(seed), interactions)
        self.key = jax.random.key(seed + 100)

    def __call__(
        self, index: int = 0, *, state: State | None = None,
        interactions: Interactions | None = None,
    ) -> tuple[State, Outcome]:  # fmt: skip
        state = self.start if state is None else state
        interactions = self.interactions if interactions is None else interactions
        after, _, outcome = compiled(self.federation)(
            state, interactions, HELDOUT, jnp.int32(index), self.key
        )
        return after, outcome

    def participants(self, index: int) -> list[int]:
        """Clients that took part, seen from how their users counted."""
        state, _ = self(index)
        counted = np.asarray(state.local) > 0
        of_user = np.asarray(self.interactions.client_of_user)
        taken = {client: set(counted[of_user == client].tolist()) for client in set(of_user)}
        assert all(len(answers) == 1 for answers in taken.values())  # a client as a whole
        return [int(client) for client, answers in sorted(taken.items()) if answers == {True}]


def same_bits(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(left, right)
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


class TestParticipation:
    @pytest.mark.parametrize(
        ("share", "users", "expected"),
        [(1.0, 7, 7), (0.5, 6, 3), (0.3, 7, 2), (0.01, 7, 1), (0.99, 7, 7), (0.8, 1, 1)],
    )
    def test_exactly_the_share_and_at_least_one(
        self, share: float, users: int, expected: int
    ) -> None:
        federation = Federation(model=Counter(), server=PLAIN, participation=share)
        runner = Runner(federation, Interactions.of(some_ratings(users)))
        for index in range(4):
            assert len(runner.participants(index)) == expected
            assert int(runner(index)[1].clients) == expected

    def test_a_client_without_ratings_is_not_counted(self) -> None:
        interactions = Interactions.of(
            some_ratings(4), np.repeat([0, 0, 1, 2], 3).astype(np.int32)
        )
        runner = Runner(Federation(model=Counter(), server=PLAIN), interactions)
        assert [int(runner(index)[1].clients) for index in range(3)] == [2, 3, 4]


class Fitted(Counter):
    """Counts instead how often each user is fitted."""

    def personalise(self, shared: Shared, local: Array, interactions: Interactions) -> Array:
        return local + 1

    def train(self, shared: Shared, local: Array, interactions: Interactions) -> Statistics:
        return super().train(shared, local, interactions)._replace(local=local)


@pytest.mark.parametrize(("late", "fits"), [(9, [2, 3, 4]), (2, [2, 3, 5])])
def test_users_are_fitted_to_what_they_received_once(late: int, fits: list[int]) -> None:
    """Before they train only in the first round, and where ratings have arrived since."""
    ratings = some_ratings()
    arrival = np.where(np.arange(len(ratings)) % 3 == 0, late, 0).astype(np.int32)
    play = Runner(Federation(model=Fitted(), server=PLAIN), Interactions.of(ratings, arrival))
    state = play.start
    for index, times in enumerate(fits):
        state, _ = play(index, state=state)
        np.testing.assert_array_equal(state.local, np.full(7, float(times)))


def changed(ratings: Ratings, clients: Any) -> Ratings:
    """The same ratings with other values for some clients."""
    turned = np.where(np.isin(ratings.client, clients), 1.2 - ratings.value, ratings.value)
    return replace(ratings, value=turned.astype(np.float32))


class TestWhatReachesTheServer:
    @pytest.mark.parametrize(
        ("model", "server", "pseudo_items"),
        [
            (Counter(), Server(aggregation="ratings", learning_rate=0.1), 2),
            (FedGNN(dim=2), Server(aggregation="item-usage", learning_rate=0.1), 0),
        ],
        ids=["counter", "fedgnn"],
    )
    def test_only_data_of_participants(
        self, model: Any, server: Server, pseudo_items: int
    ) -> None:
        ratings = deal_users(some_ratings(9), 5, seed=1)
        counting = Federation(model=Counter(), server=PLAIN, participation=0.4)
        seen = Runner(counting, Interactions.of(ratings)).participants(3)
        others = [client for client in range(5) if client not in seen]
        assert len(seen) == 2
        federation = Federation(
            model=model,
            server=server,
            participation=0.4,
            extras=PseudoItems(pseudo_items) if pseudo_items else None,
        )
        runner = Runner(federation, Interactions.of(ratings))
        state, outcome = runner(3)
        assert same_bits(runner(3), (state, outcome))  # the same arguments, the same bits
        assert not same_bits(runner(4)[0].shared, state.shared)
        # Whatever the others hold, the server cannot tell.
        hidden, hidden_outcome = runner(3, interactions=Interactions.of(changed(ratings, others)))
        assert same_bits(state.shared, hidden.shared)
        assert same_bits(state.memory, hidden.memory)
        assert outcome.loss == hidden_outcome.loss
        for client in seen:
            shown, _ = runner(3, interactions=Interactions.of(changed(ratings, [client])))
            assert not same_bits(state.shared, shown.shared)


class TestOneRound:
    def test_by_hand(self) -> None:
        """Two clients, FedSGD with equal weights: every number of it."""
        ratings = Ratings.from_arrays(
            [0, 0, 1], [0, 1, 1], [1.0, 0.5, 0.0], items=range(3), scale=(0, 1)
        )
        interactions = Interactions.of(ratings)
        runner = Runner(Federation(model=Counter(), server=PLAIN), interactions)
        start = State(
            Shared(jnp.array([[0.5], [0.5], [0.75]]), jnp.zeros(0)), jnp.zeros(2), runner.start[2]
        )
        state, outcome = runner(state=start)
        # Client 0: mean loss of errors (0.5, 0), slopes (-0.25, 0). Client 1: error -0.5.
        np.testing.assert_allclose(
            state.shared.items[:, 0], [0.5 + 0.5 * 0.25 / 2, 0.5 - 0.5 * 0.5 / 2, 0.75], rtol=1e-6
        )
        assert outcome.loss == pytest.approx((0.5 * 0.25 / 2 + 0.5 * 0.25) / 2)
        assert outcome.clients == 2
        np.testing.assert_array_equal(state.local, [1, 1])


def test_every_draw_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pseudo items are seen. Drawn with the noise's key, they would give the noise away."""
    protection = Protection(mechanism="gaussian", unit="row")
    interactions = Interactions.of(some_ratings())
    used: list[Array] = []

    def watch(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            key = next(one for one in arguments if isinstance(one, jax.Array))
            used.append(jax.random.key_data(key))
            return inner(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in (
        (pseudo, "pseudo_items"),
        (pseudo, "pseudo_rows"),
        (rows, "noise_rows"),
        (Federation, "_takes_part"),
    ):
        watch(owner, name)
    federation = Federation(
        model=FedGNN(dim=2),
        server=PLAIN,
        participation=0.5,
        protection=protection,
        extras=PseudoItems(2),
    )
    terms = RoundParameters(jnp.ones(7), jnp.ones(1), jnp.ones(1), jnp.zeros(7, jnp.int32))
    state = federation.initial(jax.random.key(0), interactions)

    @jax.jit
    def played(key: Array) -> list[Array]:
        one_round(federation, state, interactions, HELDOUT, jnp.int32(1), key, terms)
        seeds = jax.random.fold_in(key, 1)
        drawn = [jax.random.key_data(jax.random.fold_in(seeds, draw)) for draw in Draw]
        return used + drawn

    keys = [tuple(np.asarray(one).tolist()) for one in played(jax.random.key(1))]
    assert len(keys) == 4 + len(Draw)
    assert len(set(keys[:4])) == 4
    assert len(set(keys)) == len(set(keys[4:])) == len(Draw)
