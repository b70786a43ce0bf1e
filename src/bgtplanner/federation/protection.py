"""The guard of all clients at once: clip and noise, in arrays, inside the compiled round.

It does for a simulation what :mod:`bgtplanner.federation.guard` does for a real client. What a
client may release was reserved before; this module clips and noises it. The sensitivity, over the
whole upload or over another unit, is 2 * clip for the neighbouring relation ``replace-one`` and
clip for ``replace-special``. Under the latter, a client's upload is compared with zero: a client
without ratings, or whose upload is not finite, adds exactly that and is counted like the others.

The server only ever uses sums of uploads, so by default the noise of the sum is drawn directly,
with exactly its distribution. That is only a matter of speed: ``noise = per-client`` draws every
client's own noise, on every coordinate of its upload, and lets the server screen each upload.
Under ``secagg`` Gaussian noise is that of the shares of the clients which answer, on their grid
(:mod:`bgtplanner.privacy.shares`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.federation.client import as_shared, flat_upload
from bgtplanner.federation.screening import LEAST_SCALE, limits_of
from bgtplanner.federation.server import Aggregate
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.planning.plan import noise_of, weights_of
from bgtplanner.privacy.accountants import TICK, Accountant
from bgtplanner.privacy.allowed import UNITS, Choice, Unit, check
from bgtplanner.privacy.mechanisms import (
    Additive,
    Limits,
    Mechanism,
    Neighbours,
    clip_factor,
    mechanism_named,
)
from bgtplanner.privacy.shares import Shares, Tolerance

__all__ = [
    "ClippedSum",
    "KeyedNoise",
    "Protection",
    "Released",
    "Terms",
    "Uploads",
    "clipped_sum",
    "each_alone",
    "noise_of_mean",
    "release_sum",
    "release_whole",
    "shares_of",
    "terms_of",
]

Floats = NDArray[np.float64]


class Terms(NamedTuple):
    """The terms of a round: who may release, and with which clip and noise.

    Attributes:
        granted: 1 for a client that has paid and answers, ``[n_clients]``.
        clip: Bound on the norm, per budget class.
        scale: Scale of the noise, per budget class.
        class_of_client: Budget class of each client, ``[n_clients]``.
        parameters: Further parameters that the mechanism derives from each class's charge, if any.
        own: Ratio of each client's own clip and noise to those of its class, if the unit allows
            for that, ``[n_clients]``; None for 1.
        share: Standard deviation of each client's share of the noise in the sum, if it is drawn in
            shares; then `scale` is that of the full noise, which the promise takes.
        step: Step of the grid on which uploads and shares lie, with it.
    """

    granted: Array
    clip: Array
    scale: Array
    class_of_client: Array
    parameters: Array | None = None
    own: Array | None = None
    share: Array | None = None
    step: Array | None = None

    def as_answered(self) -> Terms:
        """Return the terms with the noise that the clients which answer add together."""
        if self.share is None:
            return self
        together = self.share * jnp.sqrt(self.granted.sum())
        return self._replace(scale=jnp.full_like(self.scale, together))

    def cut(self, values: Array) -> Array:
        """Return values cut towards zero to the grid, which increases no norm."""
        return values if self.step is None else jnp.trunc(values / self.step) * self.step

    def rounded(self, noised: Array) -> Array:
        """Return sums on the grid to which noise was added, with the noise in whole steps."""
        return noised if self.step is None else jnp.rint(noised / self.step) * self.step


class Released(NamedTuple):
    """What the server sees, and what it knows about the noise.

    Attributes:
        aggregate: The mean over the clients that answered, including noise.
        noise_std: Standard deviation of the noise on each coordinate; NaN if it differs between
            coordinates.
        dropped: Number of uploads that were not finite, or outside what clip and noise allow.
        own: The users' embeddings for the third party, each with its own noise, if requested.
        norms: Norm of each client's own noisy gradient, averaged over its blocks, if every client
            has a clip of its own.
    """

    aggregate: Aggregate
    noise_std: Array
    dropped: Array
    own: Array | None = None
    norms: Array | None = None


def terms_of(
    accountant: Accountant,
    trust: str,
    clip: float,
    charges: Floats,
    granted: NDArray[np.bool_],
    class_of_client: NDArray[np.int32],
    own: Floats | None = None,
    neighbours: Neighbours = "replace-one",
    *,
    invited: NDArray[np.bool_] | None = None,
    tolerance: Tolerance | None = None,
) -> Terms:
    """Return the terms under which a round costs each class its charge.

    Under ``secagg`` all clients share the noise in the sum. A class with a smaller charge
    therefore gets a smaller clip, by the ratio of the noise multipliers. The charges are for the
    neighbouring relation `neighbours`, which sets the sensitivity. The shares are for the clients
    that were invited, by default those `granted`, and for what is tolerated of them.
    """

    def single(values: ArrayLike | None) -> Any:
        return None if values is None else np.asarray(values, dtype=np.float32)

    bounds, scales = _bounds_and_scales(accountant, trust, clip, charges, neighbours)
    pays = (charges > 0)[class_of_client]
    number = int(((granted if invited is None else invited) & pays).sum())
    shares = shares_of(accountant, trust, bounds, scales, number, tolerance)
    return Terms(
        granted=single(granted & pays),
        clip=single(bounds),
        scale=single(scales),
        class_of_client=cast(Any, class_of_client),
        parameters=single(mechanism_named(accountant.mechanism).parameters(charges)),
        own=single(own),
        share=None if shares is None else single(shares.std_of_share),
        step=None if shares is None else single(shares.step),
    )


def shares_of(
    accountant: Accountant,
    trust: str,
    bounds: Floats,
    scales: Floats,
    invited: int,
    tolerance: Tolerance | None = None,
) -> Shares | None:
    """Return the shares of the noise in a round's sum, if it is drawn in shares.

    Only noise that has shares can be added where no one is trusted with it. Other noise is
    simulated as if someone were.
    """
    if not _divides(accountant, trust) or invited < 1 or scales.max(initial=0.0) <= 0:
        return None
    dropouts, colluders = (tolerance or Tolerance()).of(invited)
    return Shares(
        scale=float(scales.max()),
        clip=float(bounds.max()),
        invited=invited,
        most_dropouts=dropouts,
        most_colluders=colluders,
    )


def _divides(accountant: Accountant, trust: str) -> bool:
    """Return whether the noise of a sum is drawn in shares."""
    return trust == "secagg" and mechanism_named(accountant.mechanism).has_shares


def noise_of_mean(
    accountant: Accountant,
    trust: str,
    clip: float,
    charges: Floats,
    clients: NDArray[Any],
    neighbours: Neighbours = "replace-one",
    *,
    tolerance: Tolerance | None = None,
    answering: float = 1.0,
) -> float:
    """Return the standard deviation of the noise on the mean upload for these charges.

    It is a mean by weight, as in :meth:`Protection.mean`. Where the noise is drawn in shares,
    `answering` of the clients are expected to add theirs.
    """
    charges = np.where(charges >= TICK, charges, 0.0)
    bounds, scales = _bounds_and_scales(accountant, trust, clip, charges, neighbours)
    number = clients * (charges > 0)
    if not number.any():
        return float("inf")
    mechanism = mechanism_named(accountant.mechanism)
    common = trust == "secagg"
    weights = weights_of(bounds, scales, common)
    if _divides(accountant, trust):  # not yet on a grid, which depends on the charge
        invited = max(1, int(number.sum()))
        honest = (tolerance or Tolerance()).honest(invited)
        answers = max(1.0, answering * invited)
        share = (number * weights).sum() / number.sum()  # what an upload counts, on average
        return float(scales.max() / np.sqrt(honest * answers) / share)
    std = mechanism.std_of_sum(number, scales if common else weights * scales, common)
    return float(std / (number * weights).sum())


def _bounds_and_scales(
    accountant: Accountant, trust: str, clip: float, charges: Floats, neighbours: Neighbours
) -> tuple[Floats, Floats]:
    noise = noise_of(accountant, trust, clip, charges, neighbours)
    # A class that pays nothing releases nothing; its infinite noise must not reach the others.
    return noise.clip, np.where(np.isfinite(noise.scale), noise.scale, 0.0)


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

    def size(self, mechanism: Mechanism, own: Array | None = None) -> Array:
        """Return the sum of sizes in each client's upload, of which the norm is the root."""
        size, interactions = mechanism.sizes, self.interactions
        total: Array = interactions.sum_pairs(size(self.rows).sum(1)) + size(self.dense).sum(1)
        if own is not None:
            total = total + _by_client(size(own).sum(1), interactions)
        return total

    def norm(self, mechanism: Mechanism) -> Array:
        """Return the norm of each client's upload, as the mechanism measures it."""
        norm: Array = mechanism.root(self.size(mechanism))
        return norm

    def times(self, factor: Array) -> Uploads:
        """Return the uploads multiplied by one factor per client."""
        rows = self.rows * self.interactions.of_clients(factor)[:, None]
        return self._replace(rows=rows, dense=self.dense * factor[:, None])

    def cut(self, terms: Terms) -> Uploads:
        """Return the uploads on the grid of the terms."""
        return self._replace(rows=terms.cut(self.rows), dense=terms.cut(self.dense))

    def plus(self, other: Uploads) -> Uploads:
        """Return the sum of two, client by client."""
        return self._replace(rows=self.rows + other.rows, dense=self.dense + other.dense)

    def inner(self, other: Uploads) -> tuple[Array, Array]:
        """Return each client's inner products over rows and over the dense part, separately."""
        rows = (self.rows * other.rows).sum(1)
        of_rows = self.interactions.sum_pairs(rows)
        return of_rows, (self.dense * other.dense).sum(1)

    def normal(self, sources: Sequence[KeyedNoise]) -> Uploads:
        """Return standard normal noise of the same shape."""
        rows, dense = sources
        width = self.rows.shape[1]
        drawn = self.interactions.in_order(lambda number: rows.normal((number, width)))
        return Uploads(drawn, dense.normal(self.dense.shape), self.interactions)

    def total(self) -> tuple[Array, Array]:
        """Return the sum over the clients: the item rows, and the dense part."""
        return self.interactions.sum_by_item(self.rows), self.dense.sum(0)

    def covered(self, weight: Array) -> tuple[Array, Array]:
        """Return, for each coordinate, the sum of the weights of the clients that have it."""
        of_items = self.interactions.sum_by_item(self.interactions.of_clients(weight))
        return of_items[:, None], weight.sum()


class ClippedSum(NamedTuple):
    """The sum of clipped uploads, for mechanisms that add noise to it.

    Attributes:
        of_all: The sum.
        dropped: Number of uploads whose norm was not finite.
    """

    of_all: Shared
    dropped: Array

    def total(self) -> tuple[Array, Array]:
        """Return the item rows, and the dense part."""
        return self.of_all.items, self.of_all.dense


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How uploads are protected, as far as it is constant over a run.

    Attributes:
        mechanism: Name of the mechanism.
        trust: ``local`` or ``secagg``.
        unit: ``client``: one clip over the whole upload and noise on every coordinate; sound.
        noise: ``sum``, or ``per-client`` (slow: clients times items).
        validation: Share of the charge that pays for the validation error, which is released once
            the server has stepped; see :meth:`validate`.
    """

    mechanism: str
    trust: Literal["local", "secagg"] = "local"
    unit: str = "client"
    noise: Literal["sum", "per-client"] = "sum"
    validation: float = 0.0

    def __post_init__(self) -> None:
        check(Choice(self.mechanism, self.trust, self.unit, self.noise, self.validation))

    @property
    def kind(self) -> Mechanism:
        """The mechanism."""
        return mechanism_named(self.mechanism)

    @property
    def of(self) -> Unit:
        """The unit of protection."""
        return UNITS[self.unit]

    @property
    def sums(self) -> bool:
        """Whether uploads are clipped, randomised and added up whole, all at once."""
        whole = self.of.release == "bgtplanner.federation.protection:release_whole"
        return whole and self.noise == "sum"

    @property
    def adds_up(self) -> bool:
        """Whether it needs only the sum of clipped uploads, which is made in any order."""
        return self.sums and isinstance(self.kind, Additive)

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """Norm of the clip, in which the mechanism's sensitivity is measured."""
        return "l1" if self.kind.order == 1 else "l2"

    @property
    def common(self) -> bool:
        """Whether the sum is noised once, instead of every upload."""
        return self.trust == "secagg"

    def release(
        self,
        key: Array,
        upload: Upload,
        interactions: Interactions,
        terms: Terms,
        own: Array | None = None,
        *,
        blocks: tuple[int, ...] = (),
        combine: Callable[[Upload], Aggregate] | None = None,
    ) -> Released:
        """Clip and noise all uploads, unit by unit, and return their mean.

        Args:
            key: Key of the noise.
            upload: What the clients computed.
            interactions: The training ratings.
            terms: What was agreed and paid for.
            own: The users' embeddings, ``[n_users, dim]``, if they leave the clients too.
            blocks: Sizes of the tensors in the dense part.
            combine: How the server averages uploads that it sees one by one.
        """
        module, _, name = self.of.release.partition(":")
        release = getattr(importlib.import_module(module), name)
        released = release(
            self, key, upload, interactions, terms, own, blocks=blocks, combine=combine
        )
        return cast(Released, released)

    def mean(self, total: Shared, number: Array, terms: Terms) -> Released:
        """Return the mean upload from the sum of the noised uploads, as weighed, and their number.

        It is as long as if all uploads had the largest clip, whoever took part, so that rounds can
        be added up.
        """
        count = self.count(terms)
        mean = jax.tree.map(lambda part: part / count, total)
        usage = jnp.full(total.items.shape[0], number)
        std = self._std_of_sum(self.weighed(terms)) / count
        return Released(Aggregate(mean, usage), std, jnp.zeros(()))

    def weights(self, terms: Terms) -> Array:
        """Return the weights of the uploads of each class in a sum; see :meth:`mean`."""
        if self.common:
            return jnp.ones_like(terms.clip)
        weights: Array = weights_of(terms.clip, terms.scale, common=False)
        return weights

    def weighed(self, terms: Terms) -> Terms:
        """Return the clips and the noise of uploads that were multiplied by their weights."""
        weights = self.weights(terms)
        return terms._replace(clip=weights * terms.clip, scale=weights * terms.scale)

    def count(self, terms: Terms) -> Array:
        """Return the number of uploads that a sum is worth: those that count less are parts."""
        weights = weights_of(terms.clip, terms.scale, self.common)
        total: Array = (weights[terms.class_of_client] * terms.granted).sum()
        return jnp.where(total > 0, total, 1.0)

    def validate(self, key: Array, numbers: Array, terms: Terms) -> tuple[Array, Array]:
        """Return the noised mean over clients of a number from 0 to 1, and its noise's deviation.

        This is the second release of a round. It has the noise of the first and the rest of its
        bound, so that both together cost the round's charge: squared bounds add up for Gaussian
        noise, bounds for Laplace noise. The number is mapped to [-1, 1]: two of them differ by at
        most 2 * bound, and each from nothing in its place, which adds 0, by at most bound.
        """
        bound = terms.clip[terms.class_of_client] * self.kind.bound_share(self.validation)
        weight = bound * terms.granted
        centred = 2.0 * jnp.clip(jnp.where(jnp.isfinite(numbers), numbers, 1.0), 0.0, 1.0) - 1.0
        total = terms.cut(weight * centred).sum(keepdims=True)
        scales = terms.as_answered().scale
        noise = self.additive.noise_of_sum(
            KeyedNoise(key), [(0, 1), (1,)], scales, counts_of(terms), self.common
        )
        noisy = terms.rounded(total + noise[1])
        whole = jnp.maximum(2.0 * weight.sum(), 1e-30)
        return 0.5 + noisy[0] / whole, self._std_of_sum(terms) / whole

    def noise_of_users(
        self, key: Array, own: Array, interactions: Interactions, terms: Terms
    ) -> Array:
        """Return noise for every user's embedding: the third party sees each of them."""
        # A key that no part of the upload uses.
        key = jax.random.fold_in(key, interactions.n_clients + 2)
        scale = terms.scale[terms.class_of_client[interactions.client_of_user]]
        noise: Array = scale[:, None] * self.additive.draw(KeyedNoise(key), own.shape)
        return noise

    def limits(self, terms: Terms, coordinates: int) -> Limits:
        """Return the limits that an honest upload of each class stays within, ``[n_classes]``."""
        return limits_of(self.mechanism, terms.clip, terms.scale, coordinates, terms.parameters)

    def reach(self, terms: Terms, coordinates: int) -> Array:
        """Return how far one client can move a coordinate of the sum, whatever it sends.

        Under ``secagg`` that is the clip, if the aggregation enforces it. Under ``local`` it is
        the limit of the screen.
        """
        if self.common:
            return terms.clip.max()
        limits, scale = self.limits(terms, coordinates), self.weighed(terms).scale
        furthest: Array = (limits.coordinate * scale).max()
        return furthest

    def _std_of_sum(self, terms: Terms) -> Array:
        scales = terms.as_answered().scale
        std: Array = self.kind.std_of_sum(counts_of(terms), scales, self.common)
        return std

    @property
    def additive(self) -> Additive:
        """The mechanism, which must add noise; others can release whole uploads only."""
        kind, expected = self.kind, "one that adds noise, where more than the upload leaves"
        ConfigError.unless(isinstance(kind, Additive), "mechanism", self.mechanism, expected)
        return cast(Additive, kind)


def release_whole(
    protection: Protection,
    key: Array,
    upload: Upload,
    interactions: Interactions,
    terms: Terms,
    own: Array | None = None,
    **_: Any,
) -> Released:
    """Release for unit ``client``: clip each whole upload, noise every coordinate, average.

    The denominator is the number of clients that answered, which is public; it does not depend on
    whether a client rated an item, or anything at all. The users' embeddings are part of the
    upload: there is one clip over all of it, and one charge.
    """
    uploads, dropped, factor, own = _clipped(protection, upload, interactions, terms, own)
    if protection.noise == "per-client":
        total, accepted = each_alone(protection, key, uploads, terms)
        dropped = dropped + (terms.granted - accepted).sum()
        terms = terms._replace(granted=accepted)
    else:
        uploads = uploads.times(protection.weights(terms)[terms.class_of_client])
        total = _noised(protection, key, uploads, terms)
    if own is not None:
        own = own * factor[interactions.client_of_user, None]
        own = own + protection.noise_of_users(key, own, interactions, terms)
    released = protection.mean(total, terms.granted.sum(), terms)
    return released._replace(dropped=dropped, own=own)


def clipped_sum(
    protection: Protection, upload: Upload, interactions: Interactions, terms: Terms
) -> ClippedSum:
    """Return the sum of some clients' uploads, clipped and not yet noised.

    It does not leave the simulation: :func:`release_sum` adds up those of all clients, and noises.
    """
    uploads, dropped, _, _ = _clipped(protection, upload, interactions, terms, None)
    weights = protection.weights(terms)[terms.class_of_client]
    return ClippedSum(Shared(*uploads.times(weights).total()), dropped)


def release_sum(protection: Protection, key: Array, clipped: ClippedSum, terms: Terms) -> Released:
    """Release what :func:`release_whole` does, from the clipped sum of all clients."""
    total = _noised(protection, key, clipped, terms)
    released = protection.mean(total, terms.granted.sum(), terms)
    return released._replace(dropped=clipped.dropped)


def _clipped(
    protection: Protection,
    upload: Upload,
    interactions: Interactions,
    terms: Terms,
    own: Array | None,
) -> tuple[Uploads, Array, Array, Array | None]:
    """Return clipped uploads, how many were not finite, each client's factor, and finite `own`.

    A sum of sizes shows at once how long an upload is and whether all of it are numbers.
    """
    total = Uploads(upload.rows, upload.dense, interactions).size(protection.kind, own)
    finite = jnp.isfinite(total)
    bound = terms.clip[terms.class_of_client]
    if protection.validation:
        bound = bound * protection.kind.bound_share(1.0 - protection.validation)
    norm = protection.kind.root(jnp.where(finite, total, 0.0))
    factor = terms.granted * finite * clip_factor(norm, bound)
    kept = interactions.of_clients(factor)[:, None]
    uploads = Uploads(
        jnp.where(kept > 0, kept * upload.rows, 0.0),
        jnp.where(finite[:, None], factor[:, None] * upload.dense, 0.0),
        interactions,
    )
    if own is not None:
        own = jnp.where(finite[interactions.client_of_user, None], own, 0.0)
    return uploads.cut(terms), ((~finite) * terms.granted).sum(), factor, own


def _noised(
    protection: Protection, key: Array, uploads: Uploads | ClippedSum, terms: Terms
) -> Shared:
    """Return the sum of weighed uploads with its noise."""
    weighed = protection.weighed(terms).as_answered()
    parts = protection.kind.released_sum(
        KeyedNoise(key), uploads, weighed, counts=counts_of(terms), common=protection.common
    )
    return Shared(*map(terms.rounded, parts))


def each_alone(
    protection: Protection, key: Array, uploads: Uploads, terms: Terms
) -> tuple[Shared, Array]:
    """Add every client's own noise to its upload, screen it, and sum the accepted ones by weight.

    Returns:
        The sum, and 1 for each client whose upload is in it.
    """
    rows, dense, interactions = uploads
    width, size = rows.shape[1], dense.shape[1]
    coordinates = interactions.n_items * width + size
    limits_by_class, kind = protection.limits(terms, coordinates), protection.kind
    weights = protection.weights(terms)

    def one(total: Array, client: Array) -> tuple[Array, Array]:
        own = rows * (interactions.pair_client == client)[:, None]
        vector = flat_upload(own, dense[client], interactions)
        of_class = terms.class_of_client[client]
        scale = terms.scale[of_class]
        noised = kind.released_alone(
            KeyedNoise(jax.random.fold_in(key, client)),
            vector[None],
            clip=terms.clip[of_class],
            scale=scale,
            parameters=None if terms.parameters is None else terms.parameters[of_class],
        )[0]
        unit = jnp.maximum(scale, LEAST_SCALE)
        limits = jax.tree.map(lambda part: unit * part[of_class], limits_by_class)
        norm = kind.root(kind.sizes(noised).sum())
        good = (limits.low <= norm) & (norm <= limits.high)
        good = good & (jnp.abs(noised).max() <= limits.coordinate) & (terms.granted[client] > 0)
        return total + jnp.where(good, weights[of_class] * noised, 0.0), good

    total, good = jax.lax.scan(one, jnp.zeros(coordinates), jnp.arange(interactions.n_clients))
    return as_shared(total, interactions.n_items, width), good.astype(jnp.float32)


def counts_of(terms: Terms) -> Array:
    """Return how many clients of each class release something."""
    return jax.ops.segment_sum(terms.granted, terms.class_of_client, terms.scale.shape[0])


def _by_client(values: Array, interactions: Interactions) -> Array:
    """Return the sum of a quantity of the users over each client."""
    return jax.ops.segment_sum(values, interactions.client_of_user, interactions.n_clients)
