"""The server's part of a round: aggregate what came, and step the shared parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.federation.posterior import NO_NOISE, Noise, Posterior
from bgtplanner.models.learner import Edges, Shared, Upload

__all__ = ["Aggregate", "PseudoRows", "Server", "aggregate"]


_DOUBT = 4.0  # two standard deviations: less than that is taken for noise
_OPTIMIZERS = ("adam", "adagrad", "sgd", "sign", "shrunk", "posterior")
_AGGREGATIONS = ("item-usage", "ratings", "clients")


class PseudoRows(NamedTuple):
    """Rows that clients upload for items they did not rate; item -1 stands for no row.

    Attributes:
        item: ``[n_clients, number]``.
        rows: ``[n_clients, number, width]``.
    """

    item: Array
    rows: Array


class Aggregate(NamedTuple):
    """What the server makes of all uploads.

    Attributes:
        gradient: The averaged gradient of the shared parameters.
        usage: How many uploaded ratings stand behind each item row.
    """

    gradient: Shared
    usage: Array


def aggregate(
    upload: Upload,
    edges: Edges,
    takes_part: Array,
    how: Literal["item-usage", "ratings", "clients"],
    pseudo: PseudoRows | None = None,
) -> Aggregate:
    """Average the uploads of the clients that take part.

    Args:
        upload: Every client's gradients of its mean loss.
        edges: The training ratings.
        takes_part: 1 for a client that takes part, ``[n_clients]``.
        how: The weighting. ``"clients"``: every client the same. ``"ratings"``: a client counts by
            the number of its ratings and pseudo rows (the authors' rule).
            ``"item-usage"``: the same for the dense part, while each item row is averaged over the
            ratings of that very item (the paper's step 5, FedGNN).
        pseudo: Rows for pseudo items.
    """
    ratings = edges.ratings_of_clients
    active = takes_part * (ratings > 0)
    uploaded = ratings
    if pseudo is not None:
        uploaded = ratings + (pseudo.item >= 0).sum(1)
    weight = active if how == "clients" else active * uploaded

    rows = upload.rows * weight[edges.pair_client, None]
    items = jax.ops.segment_sum(rows, edges.pair_item, edges.n_items)
    usage = jax.ops.segment_sum(
        edges.present * active[edges.client_of_user[edges.user]], edges.item, edges.n_items
    )
    if pseudo is not None:
        target = jnp.where(
            pseudo.item < 0, edges.n_items, pseudo.item
        )  # -1: out of range, dropped
        items = items.at[target].add(pseudo.rows * weight[:, None, None], mode="drop")
        usage = usage.at[target].add(active[:, None], mode="drop")
    total = jnp.maximum(weight.sum(), 1.0)
    per_row = jnp.maximum(usage, 1.0)[:, None] if how == "item-usage" else total
    dense = (upload.dense * weight[:, None]).sum(0) / total
    return Aggregate(Shared(items / per_row, dense), usage)


class Shrunk(NamedTuple):
    """Steps that are only believed as far as they rise above their own noise.

    The server knows how noisy each aggregate is. It adds up what it was told, and the noise that
    has come in with it; each item row (and each dense entry) then counts by the share of it that
    noise does not explain, max(0, 1 - noise / size^2), as James and Stein have it. A row that is
    all noise stays where it began, so that no round can do harm.

    Attributes:
        start: Parameters before the first round.
        total: Sum of all steps.
        variance: Of the noise in each entry of that sum.
    """

    start: Shared
    total: Shared
    variance: Array

    def moved(
        self, gradient: Shared, rate: float, memory: float, noise_std: Array | float
    ) -> Shrunk:
        """After one more step; `memory` is the share of the sum that is kept."""
        total = jax.tree.map(lambda old, new: memory * old - rate * new, self.total, gradient)
        variance = memory**2 * self.variance + (rate * jnp.asarray(noise_std)) ** 2
        return Shrunk(self.start, total, variance)

    def parameters(self) -> Shared:
        """Where the believed part of the sum leads."""
        items, dense = self.total
        width = items.shape[1]
        rows = (items**2).sum(1, keepdims=True)
        kept = jnp.maximum(1 - _DOUBT * width * self.variance / jnp.maximum(rows, 1e-30), 0.0)
        single = jnp.maximum(1 - _DOUBT * self.variance / jnp.maximum(dense**2, 1e-30), 0.0)
        return Shared(self.start.items + kept * items, self.start.dense + single * dense)


@dataclass(frozen=True, kw_only=True)
class Server:
    """How the server turns an aggregate into a step.

    Attributes:
        optimizer: ``"adam"``, ``"adagrad"``, ``"sgd"`` (with `momentum`), all with a memory across
            rounds; ``"sign"``: what the authors' new Adam in every round amounts to; or
            ``"shrunk"``, for noisy aggregates: see :class:`Shrunk`. ``"posterior"`` is for the
            model `biases` and has no step size: see :mod:`bgtplanner.federation.posterior`.
        learning_rate: Step size.
        momentum: Of ``"sgd"``.
        weight_decay: Added to the gradient, times the parameter (the authors: 1e-4).
        aggregation: What uploads count by: ``"clients"``: all the same; ``"ratings"``: the number
            of a client's ratings; ``"item-usage"``: an item row by the ratings of that item.
        item_prior: With ``"item-usage"``: every item starts out with this many imaginary ratings
            in favour of a row of zeros, so that rarely rated items stay near it.
        hostile_clients: With ``"posterior"``: an item's quality leaves what its popularity
            suggests only as far as more clients than these agree. It costs accuracy, most of it
            under `secagg`: see the page on poisoning.
    """

    optimizer: Literal["adam", "adagrad", "sgd", "sign", "shrunk", "posterior"] = "adam"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    aggregation: Literal["item-usage", "ratings", "clients"] = "item-usage"
    item_prior: float = 6.0
    hostile_clients: int = 0

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(
            0 < self.learning_rate <= 1e6, "learning_rate", self.learning_rate, "above 0, to 1e6"
        )
        for name, known in (("optimizer", _OPTIMIZERS), ("aggregation", _AGGREGATIONS)):
            unless(getattr(self, name) in known, name, getattr(self, name), " or ".join(known))
        unless(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to below 1")
        unless(0 <= self.weight_decay <= 1e6, "weight_decay", self.weight_decay, "0 to 1e6")
        unless(0 <= self.item_prior <= 1e9, "item_prior", self.item_prior, "0 to 1e9")
        whole = isinstance(self.hostile_clients, int) and 0 <= self.hostile_clients <= 1_000_000
        unless(whole, "hostile_clients", self.hostile_clients, "a whole number, 0 to 1e6")

    def initial(self, shared: Shared) -> optax.OptState:
        """The optimiser's memory before the first round."""
        if self.optimizer == "shrunk":
            start = jax.tree.map(jnp.array, shared)
            return Shrunk(start, jax.tree.map(jnp.zeros_like, shared), jnp.zeros(()))
        if self.optimizer == "posterior":
            return Posterior.initial(shared, discounts=self.hostile_clients > 0)
        return self._transform().init(shared)

    def step(
        self,
        shared: Shared,
        memory: optax.OptState,
        aggregated: Aggregate,
        noise: Noise = NO_NOISE,
    ) -> tuple[Shared, optax.OptState]:
        """Shared parameters and memory after a round.

        Args:
            shared: Parameters before it.
            memory: The optimiser's memory.
            aggregated: What the uploads came to.
            noise: On it.
        """
        gradient = aggregated.gradient
        if self.optimizer == "posterior":
            after: tuple[Shared, Posterior] = memory.after(
                shared, gradient.items, noise, self.hostile_clients
            )
            return after
        if self.optimizer == "shrunk":
            memory = memory.moved(gradient, self.learning_rate, self.momentum, noise.std)
            return memory.parameters(), memory
        if self.aggregation == "item-usage" and self.item_prior:
            usage = aggregated.usage[:, None]
            pulled = gradient.items * usage + self.item_prior * shared.items
            gradient = gradient._replace(items=pulled / (usage + self.item_prior))
        updates, memory = self._transform().update(gradient, memory, shared)
        return optax.apply_updates(shared, updates), memory

    def _transform(self) -> optax.GradientTransformation:
        kinds = {
            "adam": optax.scale_by_adam(),
            "adagrad": optax.scale_by_rss(initial_accumulator_value=1e-6),
            "sgd": optax.trace(decay=self.momentum),
            "sign": optax.stateless(
                lambda updates, _: jax.tree.map(lambda g: g / (jnp.abs(g) + 1e-8), updates)
            ),
        }
        return optax.chain(
            optax.add_decayed_weights(self.weight_decay)
            if self.weight_decay
            else optax.identity(),
            kinds[self.optimizer],
            optax.scale(-self.learning_rate),
        )
