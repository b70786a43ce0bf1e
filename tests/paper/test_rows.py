"""The authors' unit: every tensor and every item row with a clip and noise of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, Upload
from bgtplanner.paper.rows import noise_rows
from bgtplanner.privacy.mechanisms import mechanism_named
from small_federation import MECHANISMS, QUICK, WIDTH, some_interactions, some_terms


class TestRows:
    """What the authors' code does: every block on its own."""

    BLOCKS = FedGNN(dim=2).dense_blocks

    def upload(self, interactions: Interactions) -> Upload:
        generator = np.random.default_rng(3)
        rows = generator.normal(0, 1, (len(interactions.pair_item), WIDTH))
        rows[::3] *= 0.01  # some are short enough as they are
        dense = generator.normal(0, 1, (interactions.n_clients, sum(self.BLOCKS)))
        return Upload(jnp.asarray(rows, jnp.float32), jnp.asarray(dense, jnp.float32))

    def noised(
        self, mechanism: Any, upload: Upload, interactions: Interactions, terms: RoundParameters
    ) -> Upload:
        protection = Protection(mechanism=mechanism, unit="row")
        work = jax.jit(
            lambda key, u, e, t: noise_rows(protection, key, u, e, t, self.BLOCKS),
            compiler_options=QUICK,
        )
        result: Upload = work(jax.random.key(0), upload, interactions, terms)
        return result

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_each_block_is_clipped_on_its_own(self, mechanism: Any) -> None:
        assert len(self.BLOCKS) == 4
        interactions = some_interactions().at(9)  # all have arrived
        upload = self.upload(interactions)
        upload = upload._replace(rows=upload.rows.at[1, 0].set(jnp.nan))
        classes = np.array([0, 1, 0, 1, 1, 0])
        terms = some_terms(clip=[0.5, 0.1], scale=[0.0, 0.0], classes=classes)
        found = self.noised(mechanism, upload, interactions, terms)
        clip = mechanism_named(mechanism).clip
        bounds = np.where(classes == 0, 0.5, 0.1)
        rows = clip(upload.rows, bounds[np.asarray(interactions.pair_client)])
        np.testing.assert_allclose(found.rows, rows, rtol=1e-4, atol=1e-6)
        assert not rows[1].any()
        start = 0
        for size in self.BLOCKS:
            part = clip(np.asarray(upload.dense)[:, start : start + size], bounds)
            np.testing.assert_allclose(
                np.asarray(found.dense)[:, start : start + size], part, rtol=1e-4, atol=1e-6
            )
            start += size
        # Together that is more than one clip: the client as a whole is not bounded by it.
        order = mechanism_named(mechanism).order
        assert np.linalg.norm(np.asarray(found.dense)[0], order) > 1.5 * 0.5

    @pytest.mark.parametrize("clients", [None, 3], ids=["users", "clients of users"])
    def test_pairs_still_to_arrive_release_nothing(self, clients: int | None) -> None:
        interactions = some_interactions(clients=clients)
        terms = some_terms(scale=1.0, clients=interactions.n_clients)
        found = self.noised("gaussian", self.upload(interactions), interactions, terms)
        known = np.zeros(len(interactions.pair_item), dtype=bool)
        known[np.asarray(interactions.pair)[np.asarray(interactions.present) > 0]] = True
        assert 0 < known.sum() < len(known)
        assert not np.asarray(found.rows)[~known].any()
        assert np.asarray(found.rows)[known].all()

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_the_noise_on_each(self, mechanism: Any) -> None:
        number, unit = 2000, {"gaussian": 1.0, "laplace": 2**0.5}[mechanism]
        ratings = Ratings.from_arrays(
            np.arange(number), np.zeros(number, int), np.ones(number), scale=(0, 1)
        )
        interactions = Interactions.of(ratings)
        classes = np.arange(number) % 2
        terms = some_terms([0.5, 0.5], [0.2, 0.6], classes=classes, clients=number)
        upload = Upload(jnp.zeros((number, WIDTH)), jnp.zeros((number, sum(self.BLOCKS))))
        found = self.noised(mechanism, upload, interactions, terms)
        for kind, scale in ((0, 0.2), (1, 0.6)):
            for part in (found.rows, found.dense):
                drawn = np.asarray(part)[classes == kind]
                assert drawn.std() == pytest.approx(scale * unit, rel=0.07)
        dense = np.asarray(found.dense)
        assert abs(np.corrcoef(dense[:, 4], dense[:, 6])[0, 1]) < 0.1  # of two tensors
