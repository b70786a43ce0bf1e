"""Aggregation against a loop over clients; optimisers against their formulas."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.federation.rounds import ExtraRows, sums_of
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.optimizers import Aggregate, Server, Shrunk
from small_federation import DENSE, QUICK, WIDTH, some_interactions, some_upload

Float = NDArray[np.float64]
N_ITEMS = 6


@partial(jax.jit, static_argnums=3, compiler_options=QUICK)
def aggregated(
    upload: Upload, known: Interactions, takes_part: Any, how: Any, extra: ExtraRows | None
) -> Aggregate:
    return sums_of(upload, known, takes_part, how, extra).mean(how)


def some_pseudo(interactions: Interactions) -> ExtraRows:
    """Three each, of which client 1 has but one."""
    item = np.array([[5, 4, 3], [5, -1, -1]] + [[5, 3, 2]] * 4)[: interactions.n_clients]
    rows = np.random.default_rng(2).normal(0, 1, (interactions.n_clients, 3, WIDTH))
    return ExtraRows(jnp.asarray(item), jnp.asarray(rows))


class Plain(NamedTuple):
    items: Float
    dense: Float
    usage: Float


def plain(
    upload: Upload, interactions: Interactions, takes_part: Any, how: str, pseudo: ExtraRows | None
) -> Plain:
    """The same average, one client and one row at a time."""
    items, usage = np.zeros((N_ITEMS, WIDTH)), np.zeros(N_ITEMS)
    dense, total = np.zeros(DENSE), 0.0
    client_of_edge = np.asarray(interactions.client_of_user)[np.asarray(interactions.user)]
    for client in range(interactions.n_clients):
        own = np.flatnonzero((client_of_edge == client) & (np.asarray(interactions.present) > 0))
        if not takes_part[client] or len(own) == 0:
            continue
        extra = []
        if pseudo is not None:
            extra = [k for k in range(3) if pseudo.item[client, k] >= 0]
        weight = 1.0 if how == "clients" else float(len(own) + len(extra))
        total += weight
        dense += weight * np.asarray(upload.dense)[client]
        for pair in np.flatnonzero(np.asarray(interactions.pair_client) == client):
            items[interactions.pair_item[pair]] += weight * np.asarray(upload.rows)[pair]
        for edge in own:
            usage[interactions.item[edge]] += 1
        for k in extra:
            assert pseudo is not None
            items[pseudo.item[client, k]] += weight * np.asarray(pseudo.rows)[client, k]
            usage[pseudo.item[client, k]] += 1
    total = max(total, 1.0)
    over = np.maximum(usage, 1)[:, None] if how == "item-usage" else total
    return Plain(items / over, dense / total, usage)


class TestAggregate:
    @pytest.mark.parametrize("how", ["item-usage", "ratings", "clients"])
    @pytest.mark.parametrize("with_pseudo", [False, True], ids=["real", "pseudo"])
    @pytest.mark.parametrize("clients", [None, 3], ids=["user", "several"])
    def test_loop_over_clients(self, how: Any, with_pseudo: bool, clients: int | None) -> None:
        interactions = some_interactions(N_ITEMS, clients)
        upload = some_upload(interactions)
        pseudo = some_pseudo(interactions) if with_pseudo else None
        n = interactions.n_clients
        for takes_part in (np.ones(n), np.arange(n) % 2, np.arange(n) == 1, np.zeros(n)):
            got = aggregated(
                upload, interactions, jnp.asarray(takes_part, jnp.float32), how, pseudo
            )
            expected = plain(upload, interactions, takes_part, how, pseudo)
            np.testing.assert_allclose(got.gradient.items, expected.items, atol=1e-5)
            np.testing.assert_allclose(got.gradient.dense, expected.dense, atol=1e-5)
            np.testing.assert_array_equal(got.usage, expected.usage)
        assert not np.asarray(got.gradient.items).any()  # the last one: nobody took part


def some_shared(seed: int = 0) -> Shared:
    generator = np.random.default_rng(seed)
    return Shared(
        jnp.asarray(generator.normal(0, 1, (N_ITEMS, WIDTH)), jnp.float32),
        jnp.asarray(generator.normal(0, 1, DENSE), jnp.float32),
    )


USAGE = jnp.array([0.0, 1.0, 2.0, 6.0, 30.0, 1e6])


def steps(server: Server, gradients: list[Shared]) -> list[Shared]:
    """Parameters before the first and after every step."""
    shared = some_shared()
    memory = server.initial(shared)
    path = [shared]
    for gradient in gradients:
        shared, memory = server.step(shared, memory, Aggregate(gradient, USAGE))
        path.append(shared)
    return path


def flat(shared: Shared) -> Float:
    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in shared])


def _adam(first: Float, second: Float) -> Float:
    mean = (0.09 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999e-3 * first**2 + 1e-3 * second**2) / (1 - 0.999**2)
    return np.asarray(mean / np.sqrt(square))


class TestServer:
    @pytest.mark.parametrize("decay", [0.0, 0.05])
    @pytest.mark.parametrize("kind", ["adam", "adagrad", "sgd", "sign"])
    def test_the_first_two_steps_by_hand(self, kind: Any, decay: float) -> None:
        server = Server(
            optimizer=kind, learning_rate=0.02, momentum=0.7, weight_decay=decay,
            aggregation="ratings",
        )  # fmt: skip
        one, two = some_shared(1), some_shared(2)
        start, after, last = map(flat, steps(server, [one, two]))
        first, second = flat(one) + decay * start, flat(two) + decay * after
        expected = {
            "sgd": (first, 0.7 * first + second),
            "sign": (np.sign(first), np.sign(second)),
            "adagrad": (np.sign(first), second / np.hypot(first, second)),
            "adam": (np.sign(first), _adam(first, second)),
        }[kind]
        near = np.abs(first) > 1e-2  # where a small constant under the root does not show
        for slope, before, now in zip(expected, (start, after), (after, last), strict=True):
            np.testing.assert_allclose((before - now)[near], 0.02 * slope[near], rtol=6e-3)

    def test_item_prior_pulls_rare_items_to_zero(self) -> None:
        prior, rate = 6.0, 0.1
        server = Server(optimizer="sgd", momentum=0.0, learning_rate=rate, item_prior=prior)
        gradient = some_shared(3)
        before, after = steps(server, [gradient])
        usage = np.asarray(USAGE)[:, None]
        items, slope = np.asarray(before.items), np.asarray(gradient.items)
        # As if `prior` more ratings said: half the squared row.
        expected = items - rate * (usage * slope + prior * items) / (usage + prior)
        np.testing.assert_allclose(after.items, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after.items[0], 0.9 * items[0], rtol=1e-5)  # never rated
        np.testing.assert_allclose(after.items[5], (items - rate * slope)[5], atol=1e-4)
        np.testing.assert_allclose(
            after.dense, np.asarray(before.dense) - rate * np.asarray(gradient.dense), rtol=1e-5
        )


class TestShrunk:
    """Steps count as far as they rise above their own noise."""

    def test_without_noise_it_is_plain_descent(self) -> None:
        ours, theirs = (
            steps(Server(optimizer=name, learning_rate=0.1, item_prior=0.0), [some_shared(1)])
            for name in ("shrunk", "sgd")
        )
        np.testing.assert_allclose(flat(ours[1]), flat(theirs[1]), rtol=1e-5)

    def test_by_hand(self) -> None:
        """A row of length 10 with a variance of 1 in each of 2 entries: 1 - 4 * 2 / 100."""
        zero = Shared(jnp.zeros((3, 2)), jnp.zeros(2))
        total = Shared(jnp.array([[6.0, 8.0], [1.0, 0.0], [0.0, 0.0]]), jnp.array([10.0, 1.0]))
        found = Shrunk(zero, total, jnp.ones(())).parameters()
        np.testing.assert_allclose(found.items, [[0.92 * 6, 0.92 * 8], [0, 0], [0, 0]], rtol=1e-6)
        np.testing.assert_allclose(found.dense, [0.96 * 10, 0], rtol=1e-6)
