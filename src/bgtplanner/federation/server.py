"""The server's part of a round in which it sees single uploads: their mean."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.optimizers import Aggregate, Server

__all__ = ["Aggregate", "ExtraRows", "Server", "aggregate"]


class ExtraRows(NamedTuple):
    """Rows that clients upload for items they did not rate; item -1 means no row.

    Attributes:
        item: ``[n_clients, number]``.
        rows: ``[n_clients, number, width]``.
    """

    item: Array
    rows: Array


def aggregate(
    upload: Upload,
    interactions: Interactions,
    takes_part: Array,
    how: Literal["item-usage", "ratings", "clients"],
    extra: ExtraRows | None = None,
) -> Aggregate:
    """Return the mean upload of the clients that take part.

    Args:
        upload: Every client's statistics.
        interactions: The training ratings.
        takes_part: 1 for a client that takes part, ``[n_clients]``.
        how: The weighting. ``"clients"``: all clients the same. ``"ratings"``: by the number of a
            client's ratings and further rows (the authors' rule). ``"item-usage"``: the same for
            the dense part, while each item row is averaged over the ratings of that item (the
            paper's step 5, FedGNN).
        extra: Further rows.
    """
    uploaded = interactions.ratings_of_clients
    active = takes_part * (uploaded > 0)
    if extra is not None:
        uploaded = uploaded + (extra.item >= 0).sum(1)
    weight = active if how == "clients" else active * uploaded

    rows = upload.rows * weight[interactions.pair_client, None]
    items = jax.ops.segment_sum(rows, interactions.pair_item, interactions.n_items)
    usage = jax.ops.segment_sum(
        interactions.present * active[interactions.client_of_user[interactions.user]],
        interactions.item,
        interactions.n_items,
    )
    if extra is not None:
        # Rows out of range are dropped.
        target = jnp.where(extra.item < 0, interactions.n_items, extra.item)
        items = items.at[target].add(extra.rows * weight[:, None, None], mode="drop")
        usage = usage.at[target].add(active[:, None], mode="drop")
    total = jnp.maximum(weight.sum(), 1.0)
    per_row = jnp.maximum(usage, 1.0)[:, None] if how == "item-usage" else total
    dense = (upload.dense * weight[:, None]).sum(0) / total
    return Aggregate(Shared(items / per_row, dense), usage)
