"""The guard of all clients at once, against plain clipping, client by client, and known noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.chunks import Heldout
from bgtplanner.federation.parameters import RoundParameters, round_parameters
from bgtplanner.federation.protection import Protection, Released
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.federation.rounds import Federation
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.interactions import Interactions, Upload
from bgtplanner.models.optimizers import Server
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.privacy.privunit import cap_of
from bgtplanner.privacy.randomness import SeededNoise
from one_round import one_round
from small_federation import (
    MECHANISMS,
    N_CLIENTS,
    QUICK,
    WIDTH,
    flat,
    nothing,
    some_interactions,
    some_terms,
    some_upload,
)

Float = NDArray[np.float64]
MANY = 4000  # items: enough coordinates to measure a deviation to a percent


@cache
def compiled(protection: Protection) -> Any:
    return jax.jit(protection.release, compiler_options=QUICK)


def release(
    protection: Protection, upload: Upload, interactions: Interactions, terms: RoundParameters,
    seed: int = 0,
) -> Released:  # fmt: skip
    released: Released = compiled(protection)(jax.random.key(seed), upload, interactions, terms)
    return released


def whole_uploads(upload: Upload, interactions: Interactions) -> Float:
    """Each client's upload as it would send it: a row for every item, zeros if not rated."""
    rows = np.zeros((interactions.n_clients, interactions.n_items, WIDTH))
    rows[np.asarray(interactions.pair_client), np.asarray(interactions.pair_item)] = np.asarray(
        upload.rows
    )
    return np.concatenate(
        [rows.reshape(interactions.n_clients, -1), np.asarray(upload.dense)], axis=1
    )


class TestClip:
    @pytest.mark.parametrize(
        ("mechanism", "clients"), [("gaussian", None), ("laplace", None), ("gaussian", 3)]
    )
    def test_mean_of_whole_clipped_uploads(self, mechanism: Any, clients: int | None) -> None:
        interactions = some_interactions(clients=clients)
        upload = some_upload(interactions)
        upload = upload._replace(dense=upload.dense.at[0].multiply(1e-3))
        upload = upload._replace(
            rows=jnp.where(
                (interactions.pair_client == 0)[:, None], 1e-3 * upload.rows, upload.rows
            )
        )
        uploads = whole_uploads(upload, interactions)
        clipped = mechanism_named(mechanism).clip(uploads, 0.5)
        assert np.array_equal(clipped[0], uploads[0])  # short enough as it is
        assert not np.isclose(clipped[1:], uploads[1:]).all(axis=1).any()
        protection = Protection(mechanism=mechanism)
        terms = some_terms(scale=1e-9, clients=interactions.n_clients)
        released = release(protection, upload, interactions, terms)
        np.testing.assert_allclose(flat(released), clipped.mean(axis=0), rtol=1e-4, atol=1e-6)
        assert released.dropped == 0

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_one_client_moves_the_sum_by_twice_the_clip_at_most(self, mechanism: Any) -> None:
        interactions = some_interactions()
        clip, protection = 0.5, Protection(mechanism=mechanism)
        terms = some_terms(clip)
        order = mechanism_named(mechanism).order
        furthest = 0.0
        for seed in range(40):
            generator = np.random.default_rng(seed)
            client = seed % N_CLIENTS
            size = 10.0 ** generator.uniform(-3, 30)
            mine, other = (
                some_upload(interactions, seed),
                some_upload(interactions, seed + 1000, size),
            )
            if seed % 4 == 0:  # the very opposite: as far apart as can be
                other = jax.tree.map(lambda part: -part, mine)
            of_client = np.asarray(interactions.pair_client) == client
            item = np.asarray(interactions.pair_item).copy()
            if of_client.any() and seed % 4:  # other items, too
                item[of_client] = generator.permutation(interactions.n_items)[: of_client.sum()]
            replaced = Upload(
                jnp.where(of_client[:, None], other.rows, mine.rows),
                mine.dense.at[client].set(other.dense[client]),
            )
            neighbour = replace(interactions, pair_item=jnp.asarray(item))
            one = flat(release(protection, mine, interactions, terms))
            two = flat(release(protection, replaced, neighbour, terms))
            distance = float(np.linalg.norm(N_CLIENTS * (one - two), order))
            furthest = max(furthest, distance)
        assert 1.99 * clip < furthest <= 2 * clip * (1 + 1e-6)

    def test_what_is_no_number_is_dropped_and_counted(self) -> None:
        interactions = some_interactions()
        good = some_upload(interactions)
        pair = int(np.flatnonzero(np.asarray(interactions.pair_client) == 0)[0])
        upload = Upload(
            good.rows.at[pair, 1].set(jnp.nan),
            good.dense.at[2, 0].set(jnp.inf).at[4, 1].set(jnp.nan).at[5, 0].set(1e30),
        )
        uploads = whole_uploads(good, interactions)
        uploads[[0, 2, 4, 5]] = 0.0  # nothing of it, but they are there; the last is too long
        expected = mechanism_named("gaussian").clip(uploads, 0.5).mean(axis=0)
        granted = [1, 1, 1, 1, 1, 1]
        protection = Protection(mechanism="gaussian")
        released = release(protection, upload, interactions, some_terms(granted=granted))
        np.testing.assert_allclose(flat(released), expected, rtol=1e-4, atol=1e-6)
        assert released.dropped == 4
        released = release(
            protection, upload, interactions, some_terms(granted=[0, 1, 1, 1, 1, 1])
        )
        assert released.dropped == 3  # who is not in it cannot drop out of it


class TestNoise:
    @pytest.mark.parametrize("answering", [6, 1])
    @pytest.mark.parametrize("trust", ["local", "secagg"])
    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_distribution_of_the_sum(self, mechanism: Any, trust: Any, answering: int) -> None:
        interactions = some_interactions(MANY)
        protection = Protection(mechanism=mechanism, trust=trust)
        scale = 0.7
        granted = np.arange(N_CLIENTS) < answering
        terms = some_terms(scale=scale, granted=granted)
        released = release(protection, nothing(interactions), interactions, terms, seed=4)
        drawn = answering * flat(released)
        copies = 1 if trust == "secagg" else answering
        unit = {"gaussian": 1.0, "laplace": 2**0.5}[mechanism]
        std = scale * unit * copies**0.5
        assert drawn.std() == pytest.approx(std, rel=0.04)
        assert abs(drawn.mean()) < 5 * std / len(drawn) ** 0.5
        assert float(released.noise_std) * answering == pytest.approx(std, rel=1e-5)
        # A sum of n Laplace variables has an excess kurtosis of 3 / n.
        excess = 3 / copies if mechanism == "laplace" else 0.0
        assert stats.kurtosis(drawn) == pytest.approx(excess, abs=0.15 + excess / 4)
        if copies == 1 or mechanism == "gaussian":
            name = "laplace" if mechanism == "laplace" else "norm"
            expected = (0, scale if mechanism == "laplace" else std)
            assert stats.kstest(drawn, name, args=expected).pvalue > 1e-3
        assert (drawn != 0).all()  # also of items that nobody rated, and of the dense part
        assert released.dropped == 0

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_classes_count_by_their_precision(self, mechanism: Any) -> None:
        """Of means with these weights, none has less noise; plainly it would be 4.58 / 5."""
        interactions = some_interactions(MANY)
        protection = Protection(mechanism=mechanism)
        terms = some_terms(
            clip=[0.5] * 3,
            scale=[1.0, 3.0, 50.0],
            classes=[0, 0, 0, 1, 1, 2],
            granted=[1, 1, 1, 1, 1, 0],
        )
        released = release(protection, nothing(interactions), interactions, terms)
        variance = (2 if mechanism == "laplace" else 1) / (3 / 1.0 + 2 / 9.0)
        assert flat(released).std() == pytest.approx(variance**0.5, rel=0.04)
        assert float(released.noise_std) == pytest.approx(variance**0.5, rel=1e-5)

    @pytest.mark.parametrize("unit", ["client", "row"])
    def test_every_round_has_its_own(self, unit: Any) -> None:
        """With the same parameters and ratings, what differs between rounds is the noise."""
        ratings = Ratings.from_arrays(
            [0, 1, 1], [0, 1, 2], [1, 0, 1], items=range(3), scale=(0, 1)
        )
        interactions = Interactions.of(ratings)
        federation = Federation(
            model=Factorization(dim=0),
            server=Server(optimizer="sgd"),
            protection=Protection(mechanism="gaussian", unit=unit),
        )
        state = federation.initial(jax.random.key(0), interactions)
        heldout = Heldout(jnp.array([0]), jnp.array([0]), jnp.array([0.5]))
        terms = some_terms(scale=1.0, clients=2)
        play = jax.jit(partial(one_round, federation), compiler_options=QUICK)
        seen = [
            np.concatenate(
                [
                    np.ravel(part)
                    for part in play(
                        state, interactions, heldout, jnp.int32(index), jax.random.key(key), terms
                    )[1].released.aggregate.gradient
                ]
            )
            for index, key in ((0, 1), (0, 1), (1, 1), (0, 2))
        ]
        assert np.array_equal(seen[0], seen[1])
        assert (seen[0] != seen[2]).all()
        assert (seen[0] != seen[3]).all()


class TestTurning:
    """PrivUnit: the sum drawn at once, and every client's own, against the guard's."""

    EPSILON, CLIP, TIMES = 4.0, 0.5, 3000

    def sums(self, upload: Upload, interactions: Interactions, granted: Any) -> Float:
        accountant = accountant_named("privunit/either")
        classes = np.zeros(interactions.n_clients, np.int32)
        terms = round_parameters(
            accountant, "local", self.CLIP, np.array([self.EPSILON]), granted, classes
        )
        protection = Protection(mechanism="privunit")
        keys = jax.random.split(jax.random.key(5), self.TIMES)
        found = jax.vmap(lambda key: compiled(protection)(key, upload, interactions, terms))(keys)
        assert not np.asarray(found.dropped).any()
        parts = [np.asarray(part, float) for part in found.aggregate.gradient]
        return granted.sum() * np.concatenate([p.reshape(self.TIMES, -1) for p in parts], axis=1)

    def test_mean_and_covariance_are_the_guards(self) -> None:
        interactions = some_interactions()
        upload = some_upload(interactions)
        short = jnp.where((interactions.pair_client == 0)[:, None], 0.1, 1.0)
        upload = Upload(upload.rows * short, upload.dense.at[0].multiply(0.1).at[5].set(0.0))
        granted = np.array([1, 1, 0, 1, 1, 1], bool)  # the last has nothing to send
        found = self.sums(upload, interactions, granted)
        uploads = mechanism_named("privunit").clip(whole_uploads(upload, interactions), self.CLIP)
        budgets = Budgets.same(Budget(self.EPSILON, 1e-5), N_CLIENTS * self.TIMES)
        guard = Randomizer(Ledger.in_memory(budgets, "privunit/either"), noise=SeededNoise(3))
        one_by_one = guard.release(
            np.tile(uploads, (self.TIMES, 1)), charge=self.EPSILON, clip=self.CLIP, run="", round=0
        ).values.reshape(self.TIMES, N_CLIENTS, -1)
        expected = one_by_one[:, granted].sum(axis=1)
        error = expected.std() / self.TIMES**0.5
        mean = uploads[granted].sum(axis=0)
        np.testing.assert_allclose(found.mean(axis=0), mean, atol=5 * error)
        size = expected.var()
        np.testing.assert_allclose(np.cov(found.T) / size, np.cov(expected.T) / size, atol=0.16)

    def test_terms_say_what_is_left_of_an_upload(self) -> None:
        interactions, granted = some_interactions(MANY), np.ones(N_CLIENTS, bool)
        terms = round_parameters(
            accountant_named("privunit/either"), "local", 0.5, np.array([1.0, 8.0]), granted,
            np.array([0, 0, 0, 1, 1, 1], np.int32),
        )  # fmt: skip
        released = release(
            Protection(mechanism="privunit"), some_upload(interactions), interactions, terms
        )
        precision = 3 * (np.square(cap_of([1.0, 8.0]).strength) / 0.25).sum()
        assert flat(released).std() == pytest.approx(precision**-0.5, rel=0.05)
        assert float(released.noise_std) == pytest.approx(precision**-0.5, rel=1e-5)


def test_only_whole_clients_noise_that_is_added_adds_up() -> None:
    kinds = (("gaussian", "client"), ("gaussian", "row"), ("privunit", "client"))
    found = [Protection(mechanism=name, unit=unit).adds_up for name, unit in kinds]
    assert found == [True, False, False]


class TestTerms:
    CLASSES = np.array([0, 0, 1, 1, 2], np.int32)
    EVERYBODY = np.ones(5, dtype=bool)

    def terms(
        self, accountant: str, trust: str, charges: list[float], granted: Any = None
    ) -> RoundParameters:
        who = self.EVERYBODY if granted is None else np.asarray(granted, dtype=bool)
        return round_parameters(
            accountant_named(accountant), trust, 0.5, np.array(charges), who, self.CLASSES
        )

    @pytest.mark.parametrize(
        ("accountant", "multipliers"),
        [
            ("gaussian/gdp", [1.0, 2.0, 4.0]),
            ("gaussian/rdp", [2**-0.5, 2**0.5, 8**0.5]),
            ("gaussian/authors", [1.0, 2.0, 4.0]),
            ("laplace/basic", [1.0, 4.0, 16.0]),
            ("laplace/either", [1.0, 4.0, 16.0]),
            ("laplace/filter", [1.0, 2.0, 4.0]),
        ],
    )
    @pytest.mark.parametrize("trust", ["local", "secagg"])
    def test_noise_over_sensitivity(
        self, trust: str, accountant: str, multipliers: list[float]
    ) -> None:
        """Whoever pays a charge gets the protection of that charge."""
        terms = self.terms(accountant, trust, [1.0, 1 / 4, 1 / 16])
        ratio = np.asarray(terms.scale) / (2 * np.asarray(terms.clip))
        np.testing.assert_allclose(ratio, multipliers, rtol=1e-6)
        if trust == "local":  # the same clip, each its own noise
            np.testing.assert_allclose(terms.clip, 0.5)
        else:  # the same noise, each its own clip
            np.testing.assert_allclose(terms.scale, multipliers[0], rtol=1e-6)
            expected = 0.5 * multipliers[0] / np.array(multipliers)
            np.testing.assert_allclose(terms.clip, expected, rtol=1e-6)
        assert np.asarray(terms.granted).tolist() == [1] * 5
        assert np.asarray(terms.class_of_client).tolist() == self.CLASSES.tolist()

    @pytest.mark.parametrize("trust", ["local", "secagg"])
    def test_who_pays_nothing_releases_nothing(self, trust: str) -> None:
        terms = self.terms("gaussian/gdp", trust, [1.0, 0.0, 0.25], [1, 0, 1, 1, 1])
        assert np.asarray(terms.granted).tolist() == [1, 0, 0, 0, 1]
        assert np.isfinite(np.asarray(terms.scale)).all()
        assert (np.asarray(terms.clip) > 0).all()
        scale = np.asarray(terms.scale)
        np.testing.assert_allclose(scale[0] / (2 * np.asarray(terms.clip)[0]), 1.0, rtol=1e-6)
