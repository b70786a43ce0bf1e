"""How the server takes a step along a mean gradient: the default for every learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.interactions import Shared
from bgtplanner.models.settings import check

if TYPE_CHECKING:  # takes long to import, and the default model does not need it
    import optax

Memory = Any  # what the server remembers from round to round: a tree of arrays

_DOUBT = 4.0  # squared: anything within two standard deviations is taken for noise


class Aggregate(NamedTuple):
    """The mean of all uploads, and how many uploaded ratings each item row is made from."""

    gradient: Shared
    usage: Array


class Noise(NamedTuple):
    """What the server knows about the protection of the uploads."""

    std: Array | float  # standard deviation of the noise on the mean upload
    clip: Array | float  # the length that uploads were scaled to
    clients: Array | float  # how many are in the mean
    norm: Literal["l1", "l2"] | None  # of the clip: l2 for Gaussian noise, l1 for Laplace


NO_NOISE = Noise(0.0, jnp.inf, 1.0, None)  # of uploads that were neither clipped nor noised


class Shrunk(NamedTuple):
    """The memory of steps that count only as far as they rise above their own noise.

    The server adds up the aggregates and the variance of their noise. Each item row (and each
    dense entry) is then multiplied by the share of it that noise does not explain,
    max(0, 1 - noise / size^2), which is James-Stein shrinkage. A row that is all noise stays where
    it began, so that no round can do harm.
    """

    start: Shared
    total: Shared
    variance: Array

    def parameters(self) -> Shared:
        """Return the start plus the shrunk sum."""
        items, dense = self.total

        def kept(squares: Array, entries: int) -> Array:
            noise = _DOUBT * entries * self.variance
            return jnp.maximum(1 - noise / jnp.maximum(squares, 1e-30), 0.0)

        rows = kept((items**2).sum(1, keepdims=True), items.shape[1]) * items
        return Shared(self.start.items + rows, self.start.dense + kept(dense**2, 1) * dense)


@dataclass(frozen=True, kw_only=True)
class Server:
    """What the server does with uploads, unless the learner has an update rule of its own.

    Attributes:
        optimizer: ``"adam"``, ``"adagrad"`` or ``"sgd"`` (with `momentum`), all with a memory
            across rounds; ``"sign"``, which is what the authors' fresh Adam in every round amounts
            to; or ``"shrunk"``, for noisy aggregates: see :class:`Shrunk`. The model `biases` has
            an update rule of its own, ``"posterior"``, without a step size: see
            :mod:`bgtplanner.models.bias`.
        learning_rate: Step size.
        momentum: Momentum of ``"sgd"``.
        weight_decay: Multiple of the parameter that is added to its gradient (the authors: 1e-4).
        aggregation: How uploads are weighted. ``"clients"``: all the same; ``"ratings"``: by the
            number of a client's ratings; ``"item-usage"``: item rows by the ratings of that item.
        item_prior: With ``"item-usage"``, every item starts with this many imaginary ratings in
            favour of a row of zeros, so that rarely rated items stay near zero.
    """

    optimizer: Literal["adam", "adagrad", "sgd", "sign", "shrunk", "posterior"] = "adam"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    aggregation: Literal["item-usage", "ratings", "clients"] = "item-usage"
    item_prior: float = 6.0

    def __post_init__(self) -> None:
        check(
            self,
            learning_rate=(1e-12, 1e6),
            momentum=(0, 0.999999),
            weight_decay=(0, 1e6),
            item_prior=(0, 1e9),
        )

    def initial(self, shared: Shared) -> Memory:
        """Return the optimizer's memory before the first round."""
        if self.optimizer == "shrunk":
            start = jax.tree.map(jnp.array, shared)
            return Shrunk(start, jax.tree.map(jnp.zeros_like, shared), jnp.zeros(()))
        return self._transform().init(shared)

    def step(
        self, shared: Shared, memory: Memory, aggregated: Aggregate, noise: Noise = NO_NOISE
    ) -> tuple[Shared, Memory]:
        """Return shared parameters and memory after a step along a mean gradient."""
        gradient = aggregated.gradient
        if self.optimizer == "shrunk":
            rate, kept = self.learning_rate, self.momentum
            total = jax.tree.map(lambda old, new: kept * old - rate * new, memory.total, gradient)
            variance = kept**2 * memory.variance + (rate * jnp.asarray(noise.std)) ** 2
            memory = Shrunk(memory.start, total, variance)
            return memory.parameters(), memory
        if self.aggregation == "item-usage" and self.item_prior:
            usage = aggregated.usage[:, None]
            pulled = gradient.items * usage + self.item_prior * shared.items
            gradient = gradient._replace(items=pulled / (usage + self.item_prior))
        import optax

        updates, memory = self._transform().update(gradient, memory, shared)
        return optax.apply_updates(shared, updates), memory

    def _transform(self) -> optax.GradientTransformation:
        import optax

        def signs(updates: Shared, _: Shared | None) -> Shared:
            found: Shared = jax.tree.map(lambda g: g / (jnp.abs(g) + 1e-8), updates)
            return found

        kinds = {
            "adam": optax.scale_by_adam(),
            "adagrad": optax.scale_by_rss(initial_accumulator_value=1e-6),
            "sgd": optax.trace(decay=self.momentum),
            "sign": optax.stateless(signs),
        }
        expected = "another one: only the model biases has it"
        known = self.optimizer in kinds
        ConfigError.unless(known, "server.optimizer", self.optimizer, expected)
        decay = optax.add_decayed_weights(self.weight_decay) if self.weight_decay else None
        rate = optax.scale(-self.learning_rate)
        return optax.chain(decay or optax.identity(), kinds[self.optimizer], rate)
