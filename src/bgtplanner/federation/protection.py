"""The protection of all clients at once: clip and noise, in arrays, inside the compiled round.

It does for a simulation what :mod:`bgtplanner.federation.randomizer` does for a real client. What
a client may release was reserved before; this module clips and noises it.

The server only ever uses sums of uploads, so the noise of the sum is drawn directly, with exactly
its distribution.

Under local trust a real server sees every noised upload. An honest one, divided by the scale of
its noise, is ``y = u + z``: a part u no longer than ``c = clip / scale``, and noise z of a known
law. So its norm lies in a range, and none of its coordinates is beyond a limit; each mechanism has
its own. The limit on coordinates is also how far one hostile client can move an item, whatever it
sends. Noise that only looks honest cannot be told from honest noise: docs/concepts/poisoning.md
describes what a client within the limits can still do.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.optimizers import Aggregate
from bgtplanner.planning.plan import weights_of
from bgtplanner.privacy.compatibility import UNITS, Choice, Unit, check
from bgtplanner.privacy.mechanisms import Additive, Limits, Mechanism, clip_factor, mechanism_named

FALSE_ALARM = 1e-6
"""Largest probability that an honest upload is rejected."""

_LEAST_SCALE = 1e-30  # replaces a scale of zero, which a class of clients that pays nothing has
_EVENTS = 7.0  # at least as many as share FALSE_ALARM: low norm, high norm (2), coordinates


class Released(NamedTuple):
    """What the server sees, and what it knows about the noise."""

    aggregate: Aggregate  # the mean over the clients that answered, including noise
    noise_std: Array  # on each coordinate; 0 without noise, NaN if it differs (unit ``row``)
    dropped: Array  # number of uploads that were not finite
    norms: Array | None = None  # of each client's own noisy gradient, if it has a clip of its own


class KeyedNoise:
    """Noise from a JAX key, for one draw; a second draw needs another key."""

    def __init__(self, key: Array) -> None:
        self.key = key

    def split(self, number: int) -> list[KeyedNoise]:
        return [KeyedNoise(key) for key in jax.random.split(self.key, number)]

    def normal(self, shape: tuple[int, ...]) -> Any:
        return jax.random.normal(self.key, shape)

    def laplace(self, shape: tuple[int, ...]) -> Any:
        return jax.random.laplace(self.key, shape)

    def uniform(self, shape: tuple[int, ...]) -> Any:
        return jax.random.uniform(self.key, shape, minval=1e-12)

    def gamma(self, concentration: Array, shape: tuple[int, ...]) -> Array:
        """Return gamma variates of scale 1."""
        return jax.random.gamma(self.key, concentration, shape)


class Uploads(NamedTuple):
    """All clients' uploads without the coordinates that are zero; mechanisms work on this."""

    rows: Array
    dense: Array
    interactions: Interactions

    def size(self, mechanism: Mechanism) -> Array:
        """Return the sum of sizes in each client's upload, of which the norm is the root."""
        size, known = mechanism.sizes, self.interactions
        total: Array = known.sum_pairs(size(self.rows)).sum(1) + size(self.dense).sum(1)
        return total

    def times(self, factor: Array) -> Uploads:
        """Return the uploads multiplied by one factor per client."""
        rows = self.rows * self.interactions.of_clients(factor)[:, None]
        return self._replace(rows=rows, dense=self.dense * factor[:, None])

    def plus(self, other: Uploads) -> Uploads:
        """Return the sum of two, client by client."""
        return self._replace(rows=self.rows + other.rows, dense=self.dense + other.dense)

    def inner(self, other: Uploads) -> tuple[Array, Array]:
        """Return each client's inner products over rows and over the dense part, separately."""
        of_rows = self.interactions.sum_pairs((self.rows * other.rows).sum(1))
        return of_rows, (self.dense * other.dense).sum(1)

    def normal(self, sources: Sequence[KeyedNoise]) -> Uploads:
        """Return standard normal noise of the same shape."""
        rows, dense = sources
        drawn = rows.normal(self.rows.shape)
        return Uploads(drawn, dense.normal(self.dense.shape), self.interactions)

    def total(self) -> tuple[Array, Array]:
        """Return the sum over the clients: the item rows, and the dense part."""
        return self.interactions.sum_by_item(self.rows), self.dense.sum(0)

    def covered(self, weight: Array) -> tuple[Array, Array]:
        """Return, for each coordinate, the sum of the weights of the clients that have it."""
        of_items = self.interactions.of_clients(weight)[:, None]
        return self.interactions.sum_by_item(of_items), weight.sum()


class Clipped(NamedTuple):
    """What clients have clipped; the sums of parts of the clients may be added up."""

    uploads: Uploads | Shared  # the sum, if noise is only added to it
    dropped: Array  # how many of them were not finite


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How uploads are protected, as far as it is constant over a run.

    Attributes:
        mechanism: Name of the mechanism.
        trust: ``local`` or ``secagg``.
        unit: ``client``: one clip over the whole upload and noise on every coordinate; sound.
    """

    mechanism: str
    trust: Literal["local", "secagg"] = "local"
    unit: str = "client"

    def __post_init__(self) -> None:
        check(Choice(self.mechanism, self.trust, self.unit))

    @property
    def kind(self) -> Mechanism:
        """The mechanism."""
        return mechanism_named(self.mechanism)

    @property
    def additive(self) -> Additive:
        """The mechanism, which must add noise; others can release whole uploads only."""
        kind, expected = self.kind, "one that adds noise, where more than the upload leaves"
        ConfigError.unless(isinstance(kind, Additive), "mechanism", self.mechanism, expected)
        return cast(Additive, kind)

    @property
    def of(self) -> Unit:
        """The unit of protection."""
        return UNITS[self.unit]

    @property
    def adds_up(self) -> bool:
        """Whether it needs only the sum of clipped uploads, which is made in any order."""
        return self.unit == "client" and isinstance(self.kind, Additive)

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """Norm of the clip, in which the mechanism's sensitivity is measured."""
        return "l1" if self.kind.order == 1 else "l2"

    @property
    def common(self) -> bool:
        """Whether the sum is noised once, instead of every upload."""
        return self.trust == "secagg"

    def release(
        self, key: Array, upload: Upload, interactions: Interactions, parameters: RoundParameters,
        **more: Any,
    ) -> Released:  # fmt: skip
        """Clip and noise all uploads, unit by unit, and return their mean.

        `more` is for units that do not protect whole uploads: the `blocks` of the dense part, and
        how to `combine` uploads.
        """
        if not self.of.release:
            return self.noised(key, self.clipped(upload, interactions, parameters), parameters)
        module, _, name = self.of.release.partition(":")
        released: Released = getattr(importlib.import_module(module), name)(
            self, key, upload, interactions, parameters, **more
        )
        return released

    def clipped(
        self, upload: Upload, interactions: Interactions, parameters: RoundParameters
    ) -> Clipped:
        """Return the uploads clipped on their grid and multiplied by their weights, or their sum.

        A sum of sizes shows at once how long an upload is and whether all of it are numbers.
        """
        total = Uploads(upload.rows, upload.dense, interactions).size(self.kind)
        finite = jnp.isfinite(total)
        bound = parameters.clip[parameters.class_of_client]
        norm = self.kind.root(jnp.where(finite, total, 0.0))
        factor = parameters.granted * finite * clip_factor(norm, bound)
        kept = interactions.of_clients(factor)[:, None]
        rows = jnp.where(kept > 0, kept * upload.rows, 0.0)
        dense = jnp.where(finite[:, None], factor[:, None] * upload.dense, 0.0)
        uploads: Uploads | Shared
        uploads = Uploads(parameters.cut(rows), parameters.cut(dense), interactions)
        uploads = uploads.times(self.weights(parameters)[parameters.class_of_client])
        if isinstance(self.kind, Additive):  # which needs no more than that
            uploads = Shared(*uploads.total())
        return Clipped(uploads, ((~finite) * parameters.granted).sum())

    def noised(self, key: Array, clipped: Clipped, parameters: RoundParameters) -> Released:
        """Return the mean of clipped uploads of all clients, with its noise."""
        parts = self.kind.released_sum(
            KeyedNoise(key), clipped.uploads, self.weighed(parameters).as_answered(),
            counts=_counts(parameters), common=self.common,
        )  # fmt: skip
        total = Shared(*map(parameters.rounded, parts))
        released = self.mean(total, parameters.granted.sum(), parameters)
        return released._replace(dropped=clipped.dropped)

    def mean(self, total: Shared, number: Array, parameters: RoundParameters) -> Released:
        """Return the mean upload from the sum of the noised uploads, as weighed, and their number.

        It is as long as if all uploads had the largest clip, whoever took part, so that rounds can
        be added up.
        """
        count = self.count(parameters)
        mean = jax.tree.map(lambda part: part / count, total)
        usage = jnp.full(total.items.shape[0], number)
        scales = self.weighed(parameters).as_answered().scale
        std = self.kind.std_of_sum(_counts(parameters), scales, self.common)
        return Released(Aggregate(mean, usage), std / count, jnp.zeros(()))

    def weights(self, parameters: RoundParameters) -> Array:
        """Return the weights of the uploads of each class in a sum; see :meth:`mean`."""
        if self.common:
            return jnp.ones_like(parameters.clip)
        weights: Array = weights_of(parameters.clip, parameters.scale, common=False)
        return weights

    def weighed(self, parameters: RoundParameters) -> RoundParameters:
        """Return the clips and the noise of uploads that were multiplied by their weights."""
        weights = self.weights(parameters)
        clip, scale = weights * parameters.clip, weights * parameters.scale
        return parameters._replace(clip=clip, scale=scale)

    def count(self, parameters: RoundParameters) -> Array:
        """Return the number of uploads that a sum is worth: those that count less are parts."""
        weights = weights_of(parameters.clip, parameters.scale, self.common)
        total: Array = (weights[parameters.class_of_client] * parameters.granted).sum()
        return jnp.where(total > 0, total, 1.0)

    def limits(self, parameters: RoundParameters, coordinates: int) -> Limits:
        """Return the limits that all but `FALSE_ALARM` of each class's honest uploads keep."""
        reach = parameters.clip / jnp.maximum(parameters.scale, _LEAST_SCALE)
        rare = jnp.full_like(reach, np.log(_EVENTS / FALSE_ALARM))
        return self.kind.limits(reach, rare, coordinates, parameters=parameters.parameters)

    def is_possible(self, upload: NDArray[np.float64], scale: float, limits: Limits) -> bool:
        """Return whether clip and noise of this scale can have produced an upload."""
        with np.errstate(over="ignore"):
            own = upload / scale
        norm = self.kind.norm(own[None])[0]
        return bool(limits.low <= norm <= limits.high and np.abs(own).max() <= limits.coordinate)


def _counts(parameters: RoundParameters) -> Array:
    """Return how many clients of each class release something."""
    of_class, classes = parameters.class_of_client, parameters.scale.shape[0]
    return jax.ops.segment_sum(parameters.granted, of_class, classes)
