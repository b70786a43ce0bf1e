"""The unit ``row`` in a simulation: each item row and tensor is clipped and noised on its own.

The authors' code does so. It reveals the item ids, and which of the rows are pseudo.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import KeyedNoise, Protection, Released
from bgtplanner.models.interactions import Interactions, Upload
from bgtplanner.models.optimizers import Aggregate
from bgtplanner.privacy.mechanisms import clip_factor


def release_rows(
    protection: Protection, key: Array, upload: Upload, interactions: Interactions,
    terms: RoundParameters, *, blocks: tuple[int, ...],
    combine: Callable[[Upload], Aggregate],
) -> Released:  # fmt: skip
    """Noise every block on its own, and aggregate the single uploads."""
    noised = noise_rows(protection, key, upload, interactions, terms, blocks)
    norms = None if terms.own is None else norm_of_average(noised, interactions, blocks)
    return Released(combine(noised), jnp.full((), jnp.nan), jnp.zeros(()), norms)


def noise_rows(
    protection: Protection, key: Array, upload: Upload, interactions: Interactions,
    terms: RoundParameters, blocks: tuple[int, ...],
) -> Upload:  # fmt: skip
    """Clip and noise each item row and each dense tensor on its own."""
    row_key, dense_key = jax.random.split(key)
    clip, scale = terms.clip[terms.class_of_client], terms.scale[terms.class_of_client]
    if terms.own is not None:
        clip, scale = clip * terms.own, scale * terms.own

    def noised(key: Array, block: Array, clip: Array, scale: Array) -> Array:
        noise: Array = protection.additive.draw(KeyedNoise(key), block.shape)
        return _clipped(protection, block, clip) + scale[:, None] * noise

    of_pair = interactions.pair_client
    rows = noised(row_key, upload.rows, clip[of_pair], scale[of_pair])
    parts = [
        noised(jax.random.fold_in(dense_key, number), part, clip, scale)
        for number, part in enumerate(jnp.split(upload.dense, np.cumsum(blocks)[:-1], axis=1))
        if blocks
    ]
    dense = jnp.concatenate(parts, axis=1) if parts else upload.dense
    return Upload(rows * known_pairs(interactions)[:, None], dense)


def norm_of_average(noised: Upload, interactions: Interactions, blocks: tuple[int, ...]) -> Array:
    """Return the L2 norm of each client's noisy gradient, averaged over its clipped blocks."""
    own = jax.ops.segment_sum(
        (noised.rows**2).sum(1), interactions.pair_client, interactions.n_clients
    )
    number = interactions.sum_pairs(known_pairs(interactions))
    size = jnp.sqrt(own + (noised.dense**2).sum(1))
    return size / jnp.maximum(number + len(blocks), 1.0)


def _clipped(protection: Protection, block: Array, clip: Array) -> Array:
    kind = protection.kind
    block = jnp.where(jnp.isfinite(block).all(1, keepdims=True), block, 0.0)
    clipped: Array = block * clip_factor(kind.root(kind.sizes(block).sum(1)), clip)[:, None]
    return clipped


def known_pairs(interactions: Interactions) -> Array:
    """Return 1 per pair of client and item whose rating has arrived, 0 otherwise."""
    return jax.ops.segment_max(
        interactions.present, interactions.pair, interactions.pair_item.shape[0]
    )
