"""The mean of uploads that the server sees one by one."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.optimizers import Aggregate


class ExtraRows(NamedTuple):
    """Rows that clients upload for items they did not rate; item -1 means no row."""

    item: Array  # [n_clients, number]
    rows: Array  # [n_clients, number, width]


How = Literal["item-usage", "ratings", "clients"]
"""How uploads are weighed. ``clients``: all clients the same. ``ratings``: by the number of a
client's ratings and further rows (the authors' rule). ``item-usage``: the same for the dense part,
while each item row is averaged over the ratings of that item (the paper's step 5, FedGNN)."""


class Sums(NamedTuple):
    """Weighted sums of uploads: those of several groups of clients can be added up."""

    total: Shared
    usage: Array  # how many uploaded ratings each item row is made from
    weight: Array

    def mean(self, how: How) -> Aggregate:
        """Return the mean; an item that nobody rated has a mean of zero."""
        total = jnp.maximum(self.weight, 1.0)
        per_row = jnp.maximum(self.usage, 1.0)[:, None] if how == "item-usage" else total
        gradient = Shared(self.total.items / per_row, self.total.dense / total)
        return Aggregate(gradient, self.usage)


def sums_of(
    upload: Upload, interactions: Interactions, takes_part: Array, how: How,
    extra: ExtraRows | None = None,
) -> Sums:  # fmt: skip
    """Return the weighted sums of the uploads, and further rows, of those who take part."""
    uploaded = interactions.ratings_of_clients
    active = takes_part * (uploaded > 0)
    if extra is not None:
        uploaded = uploaded + (extra.item >= 0).sum(1)
    weight = active if how == "clients" else active * uploaded

    rows = upload.rows * interactions.of_clients(weight)[:, None]
    items = interactions.sum_by_item(rows)
    usage = jax.ops.segment_sum(
        interactions.present * interactions.of_users(active[interactions.client_of_user]),
        interactions.item,
        interactions.n_items,
    )
    if extra is not None:
        # Rows out of range are dropped.
        target = jnp.where(extra.item < 0, interactions.n_items, extra.item)
        items = items.at[target].add(extra.rows * weight[:, None, None], mode="drop")
        usage = usage.at[target].add(active[:, None], mode="drop")
    dense = (upload.dense * weight[:, None]).sum(0)
    return Sums(Shared(items, dense), usage, weight.sum())
