"""What was sent out before a payment was worth, as the payment shows: no bias, a known error."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.models.axes import Axes
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Shared
from bgtplanner.models.posterior import Posterior
from bgtplanner.models.tastes import TasteMemory, Tastes

ITEMS, CLIP, PRECISION = 120, 1.0, 2.5e7
MODEL, TASTES = Biases(), Tastes(axes=2, taste_items=20)
WEIGHT = 0.05 / (np.arange(ITEMS) + 3.0)
QUALITY = np.random.default_rng(0).normal(0, 0.15, ITEMS)


def known(seemed: np.ndarray, sent: np.ndarray, uploads: np.ndarray, payments: int) -> Posterior:
    """A server that was told so much by so many payments, and sent out the same each time."""
    empty = Posterior.initial(Shared(jnp.zeros((ITEMS, 3)), jnp.zeros(0)))
    gained = jnp.full(ITEMS, payments * PRECISION)
    return empty._replace(
        told=jnp.asarray(PRECISION * uploads), sent=gained * sent, precision=gained,
        weight=jnp.asarray(seemed),
    )  # fmt: skip


def test_estimates_have_no_bias_and_the_error_that_they_say() -> None:
    generator = np.random.default_rng(1)
    seemed = WEIGHT * generator.uniform(0.3, 1.0, ITEMS)
    sent = QUALITY * generator.uniform(-0.2, 1.0, ITEMS)
    sent -= seemed @ sent / seemed.sum()
    upload = np.stack([WEIGHT * (QUALITY - sent), MODEL.count_weight * WEIGHT], axis=1)
    before = known(seemed, sent, 0.0 * upload, 1)
    found = []
    for _ in range(60):
        noise = generator.normal(0, PRECISION**-0.5, upload.shape)
        found.append(MODEL.came(before, known(WEIGHT, sent, upload + noise, 2), CLIP, "l2"))
    fall = WEIGHT @ (QUALITY**2 - (QUALITY - sent) ** 2) / WEIGHT.sum()
    share, listed = WEIGHT / WEIGHT.sum(), np.argsort(-seemed)[:10]
    lists = (share[listed].sum() - 10 / ITEMS) / (share[:10].sum() - 10 / ITEMS)
    for name, truth in (("ratings", 0.5 * fall / (0.2**2 + 0.1**2 / 2)), ("lists", lists)):
        values, errors = np.array([of[name] for of in found]).T
        assert np.std(values) == pytest.approx(errors.mean(), rel=0.3)
        assert np.mean(values) == pytest.approx(truth, abs=0.5 * errors.mean())
    assert MODEL.came(before, before, CLIP, "l2") == {}
    first = known(0.0 * seemed, 0.0 * sent, 0.0 * upload, 0)
    assert math.isinf(MODEL.came(first, before, CLIP, "l2")["lists"][1])
    # Lists are popularity for three quarters; nothing is known of the axes.
    one, two = (
        TasteMemory(of, Axes.initial(20, 2)) for of in (before, known(WEIGHT, sent, upload, 2))
    )
    mass, error = two.posterior.came(one.posterior, "l2", TASTES.count_weight)["lists"]
    lists, smaller = TASTES.came(one, two, CLIP, "l2")["lists"]
    assert 0.75 * mass <= lists < mass
    assert smaller == pytest.approx(0.75 * error)
