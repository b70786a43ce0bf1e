"""What was sent out before a payment was worth, as the payment shows: no bias, a known error."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Shared
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.posterior import Posterior
from bgtplanner.models.tastes import Tastes

ITEMS, CLIENTS, CLIP, STD = 120, 500, 1.0, 2e-4
MODEL, SERVER = Biases(), Server(optimizer="posterior")


def paid(
    shared: Shared, memory: Posterior, weight: np.ndarray, quality: np.ndarray, seed: int
) -> tuple[Shared, Posterior]:
    """A payment: noisy counts, and residuals against what was sent out."""
    noise = np.random.default_rng(seed).normal(0, STD, (ITEMS, 2))
    sent = np.asarray(shared.items[:, 0])
    rows = np.stack([weight * (quality - sent), MODEL.count_weight * weight], axis=1) + noise
    mean = Aggregate(Shared(jnp.asarray(rows), jnp.zeros(0)), None)  # type: ignore[arg-type]
    told = Noise(jnp.asarray(STD), jnp.asarray(float(CLIENTS)), jnp.asarray(CLIP), "l2")
    return MODEL.server_update(shared, memory, mean, told, SERVER)


def test_estimates_have_no_bias_and_the_error_that_they_say() -> None:
    generator = np.random.default_rng(0)
    weight = 0.05 / (np.arange(ITEMS) + 3.0)
    quality = generator.normal(0, 0.15, ITEMS)
    start = Shared(jnp.zeros((ITEMS, 3)), jnp.zeros(0))
    shared, before = paid(start, MODEL.server_initial(start, SERVER), weight, quality, 0)
    first = before.came(MODEL.server_initial(start, SERVER), "l2", MODEL.count_weight)
    assert math.isinf(first["lists"][1])
    assert MODEL.came(before, before, CLIP, "l2") == {}
    found = [
        MODEL.came(before, paid(shared, before, weight, quality, seed)[1], CLIP, "l2")
        for seed in range(1, 41)
    ]
    seemed = np.asarray(before.weight)
    sent = np.asarray(shared.items[:, 0])
    sent = sent - seemed @ sent / seemed.sum()
    level = np.asarray(shared.items[:, 0]) - sent
    fall = weight @ (quality**2 - (quality - sent) ** 2) - 2 * weight @ (sent * level)
    ratings = 0.5 * fall / weight.sum() / (0.2**2 + 0.1**2 / 2)
    listed = np.argsort(-seemed)[:10]
    random = 10 / ITEMS
    lists = (weight[listed].sum() / weight.sum() - random) / (
        np.sort(weight)[-10:].sum() / weight.sum() - random
    )
    for name, truth in (("ratings", ratings), ("lists", lists)):
        values, errors = np.array([of[name] for of in found]).T
        assert np.std(values) == pytest.approx(errors.mean(), rel=0.35)
        assert np.mean(values) == pytest.approx(truth, abs=errors.mean())


def test_axes_are_taken_to_be_worth_what_is_known_of_them() -> None:
    tastes = Tastes(axes=2, taste_items=20)
    start = Shared(jnp.zeros((ITEMS, 7)), jnp.zeros(0))
    memory = tastes.server_initial(start, SERVER)
    weight = jnp.asarray(0.05 / (np.arange(ITEMS) + 3.0))
    one, two = (
        memory._replace(
            posterior=memory.posterior._replace(
                weight=weight, precision=precision * jnp.ones(ITEMS),
                told=precision * jnp.stack([0.0 * weight, tastes.count_weight * weight], axis=1),
            )
        )
        for precision in (1e6, 2e6)
    )  # fmt: skip
    mass = two.posterior.came(one.posterior, "l2", tastes.count_weight)["lists"]
    lists = tastes.came(one, two, CLIP, "l2")["lists"]
    assert mass[0] == pytest.approx(1.0, rel=1e-3)
    assert 0.75 * mass[0] <= lists[0] < mass[0]
    assert lists[1] == pytest.approx(0.75 * mass[1])
