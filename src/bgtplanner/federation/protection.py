"""The guard of all clients at once: clip and noise, in arrays, inside the compiled round.

The same door as :mod:`bgtplanner.federation.guard`, for a simulation: what a client may release
was reserved before, here is what is done to it. Neighbouring relation: replace one client.
Sensitivity: 2 * clip, over the whole upload (unit ``client``) or over each block on its own (unit
``row``).

The server only ever uses sums of uploads, so by default the sum's noise is drawn at once with
exactly its distribution. That is a matter of speed alone: ``noise = per-client`` draws every
client's own, on every coordinate of its upload, and lets the server look at each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr, ndtri
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.federation.client import as_shared, flat_upload
from bgtplanner.federation.screening import LEAST_SCALE, Limits, limits_of
from bgtplanner.federation.server import Aggregate
from bgtplanner.models.learner import Edges, Shared, Upload
from bgtplanner.planning.plan import noise_of
from bgtplanner.privacy.accounting import TICK, Rule
from bgtplanner.privacy.mechanisms import clip_factor, mechanism_named
from bgtplanner.privacy.privunit import cap_of

__all__ = ["Protection", "Released", "Terms", "noise_of_mean", "terms_of"]

Floats = NDArray[np.float64]

_FAR = 8.0  # standard deviations


class Terms(NamedTuple):
    """What was agreed for a round: who may release, and under which clip and noise.

    Attributes:
        granted: 1 for a client that has paid and answers, ``[n_clients]``.
        clip: Bound on the norm, for each class of budgets.
        scale: Scale of the noise, for each class of budgets.
        class_of_client: ``[n_clients]``.
        cap: With ``privunit``: threshold and chance of each class's cap, ``[n_classes, 2]``.
        own: With unit ``row``, each client's own clip and noise over those of its class,
            ``[n_clients]``; None: 1.
    """

    granted: Array
    clip: Array
    scale: Array
    class_of_client: Array
    cap: Array | None = None
    own: Array | None = None


class Released(NamedTuple):
    """What the server gets to see, and what it knows about its noise.

    Attributes:
        aggregate: The mean over the clients that answered, noise included.
        noise_std: Standard deviation of the noise on each of its coordinates.
        dropped: Uploads that were not numbers, or not within the band that clip and noise allow.
        own: The users' embeddings for the third party, each with its own noise, if asked for.
    """

    aggregate: Aggregate
    noise_std: Array
    dropped: Array
    own: Array | None = None


def terms_of(
    rule: Rule,
    trust: str,
    clip: float,
    charges: Floats,
    granted: NDArray[np.bool_],
    class_of_client: NDArray[np.int32],
    own: Floats | None = None,
) -> Terms:
    """The terms that make a round cost each class its charge.

    Under ``secagg`` the noise in the sum is common to all: a class that pays less clips harder, by
    the ratio of the noise multipliers, instead of paying more than it has.
    """
    bounds, scales = _bounds_and_scales(rule, trust, clip, charges)
    paying = charges > 0
    cap = None
    if rule.mechanism == "privunit":
        found = cap_of(np.where(paying, charges, 1.0))
        cap = jnp.asarray(np.stack([found.threshold, found.chance], axis=1), dtype=jnp.float32)
    return Terms(
        granted=jnp.asarray(granted & paying[class_of_client], dtype=jnp.float32),
        clip=jnp.asarray(bounds, dtype=jnp.float32),
        scale=jnp.asarray(scales, dtype=jnp.float32),
        class_of_client=jnp.asarray(class_of_client),
        cap=cap,
        own=None if own is None else jnp.asarray(own, dtype=jnp.float32),
    )


def noise_of_mean(
    rule: Rule, trust: str, clip: float, charges: Floats, clients: NDArray[np.int64]
) -> float:
    """Standard deviation of the noise that a round of such charges leaves on the mean upload.

    Args:
        rule: By which charges are booked.
        trust: ``local`` or ``secagg``.
        clip: Bound on an upload.
        charges: Of each class of budgets.
        clients: How many there are in each.
    """
    charges = np.where(charges >= TICK, charges, 0.0)
    scales = _bounds_and_scales(rule, trust, clip, charges)[1]
    number = clients * (charges > 0)
    if not number.any():
        return float("inf")
    variance = scales.max() ** 2 if trust == "secagg" else float((number * scales**2).sum())
    per_unit = mechanism_named(rule.mechanism).std_of_scale
    return float(per_unit * variance**0.5 / number.sum())


def _bounds_and_scales(
    rule: Rule, trust: str, clip: float, charges: Floats
) -> tuple[Floats, Floats]:
    noise = noise_of(rule, trust, clip, charges)
    # A class that pays nothing releases nothing: its noise must not spoil the others' arithmetic.
    return noise.clip, np.where(np.isfinite(noise.scale), noise.scale, 0.0)


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How uploads are protected: all of it that is constant over a run.

    Attributes:
        mechanism: ``gaussian``, ``laplace`` or, with trust ``local``, ``privunit``.
        trust: ``local``: each upload is noised on its own. ``secagg``: the server sees the sum
            only, and the noise is in there once.
        unit: ``client``: one clip over the whole upload, every coordinate noised, the sound one.
            ``row``: each tensor and each item row that a client rated on its own, as the authors'
            code does; the item ids show, and so does which rows are pseudo.
        noise: ``sum``, or ``per-client`` (slow: clients times items).
        validation: Share of the charge that pays for what clients say of their validation ratings
            once the server has stepped; see :meth:`validate`.
    """

    mechanism: Literal["gaussian", "laplace", "privunit"]
    trust: Literal["local", "secagg"] = "local"
    unit: Literal["client", "row"] = "client"
    noise: Literal["sum", "per-client"] = "sum"
    validation: float = 0.0

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(0 <= self.validation < 1, "validation", self.validation, "from 0 to below 1")
        fits = not self.validation or self.unit == "client"
        unless(fits, "validation", self.validation, "0, with unit = row")
        additive = mechanism_named(self.mechanism).additive
        alone = self.unit == "client" and self.trust == "local" and not self.validation
        expected = "gaussian or laplace, unless trust = local, unit = client, nothing validated"
        unless(additive or alone, "mechanism", self.mechanism, expected)
        both = self.unit == "row" and self.trust == "secagg"
        unless(not both, "unit", self.unit, "client, with trust = secagg")
        single = self.noise == "per-client"
        fits = not single or (self.unit == "client" and self.trust == "local")
        unless(fits, "noise", self.noise, "sum, unless trust = local, unit = client")

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """Of the clip: that in which the noise's sensitivity is measured."""
        return "l1" if self.mechanism == "laplace" else "l2"

    # ---- unit client

    def release(
        self, key: Array, upload: Upload, edges: Edges, terms: Terms, own: Array | None = None
    ) -> Released:
        """One clip over each client's whole upload, noise on every coordinate, then the mean.

        The denominator is the number of clients that answered, which is public; whether a client
        rated an item, or anything at all, makes no difference to who counts.

        Args:
            key: Of the noise.
            upload: What the clients computed.
            edges: The training ratings.
            terms: What was agreed and paid for.
            own: The users' embeddings, ``[n_users, dim]``, where they leave too. They are part of
                the upload: one clip over all of it, one charge.
        """
        finite = self._finite(upload, edges)
        if own is not None:
            bad = self._by_client((~jnp.isfinite(own)).any(1).astype(jnp.int32), edges)
            finite = finite & (bad <= 0)
            own = jnp.where(finite[edges.client_of_user, None], own, 0.0)
        rows = jnp.where(finite[edges.pair_client, None], upload.rows, 0.0)
        dense = jnp.where(finite[:, None], upload.dense, 0.0)
        bound = terms.clip[terms.class_of_client]
        if self.validation:
            bound = bound * self._bound_share(1.0 - self.validation)
        factor = terms.granted * clip_factor(self._norm(rows, dense, edges, own), bound)
        rows, dense = rows * factor[edges.pair_client, None], dense * factor[:, None]
        dropped = ((~finite) * terms.granted).sum()
        number = terms.granted.sum()
        if self.noise == "per-client":
            total, number, outside = self._each(key, rows, dense, edges, terms)
            dropped = dropped + outside
        elif terms.cap is not None:
            total = self._turned(key, rows, dense, edges, terms)
        else:
            total = _sum_of(rows, dense, edges)
            total = jax.tree.map(jnp.add, total, self._noise_of_sum(key, total, terms))
        if own is not None:
            own = own * factor[edges.client_of_user, None]
            own = own + self._noise_of_users(key, own, edges, terms)
        return self.mean(total, number, terms)._replace(dropped=dropped, own=own)

    def mean(self, total: Shared, number: Array, terms: Terms) -> Released:
        """The mean upload, as the server has it from the noised uploads' sum and their number."""
        count = jnp.maximum(number, 1.0)
        mean = jax.tree.map(lambda part: part / count, total)
        usage = jnp.full(total.items.shape[0], number)
        std = self._std_of_sum(terms) / count
        return Released(Aggregate(mean, usage), std, jnp.zeros(()))

    def validate(self, key: Array, numbers: Array, terms: Terms) -> tuple[Array, Array]:
        """Mean over the clients of a number from 0 to 1, noised, and the noise's deviation.

        The second release of a round. It has the noise of the first and the rest of its bound, so
        that both together cost the round's charge: squares of the bounds add up for Gaussian
        noise, bounds for Laplace. The number is taken as from -1 to 1, which 2 * bound covers.
        """
        bound = terms.clip[terms.class_of_client] * self._bound_share(self.validation)
        weight = bound * terms.granted
        centred = 2.0 * jnp.clip(jnp.where(jnp.isfinite(numbers), numbers, 1.0), 0.0, 1.0) - 1.0
        total = Shared(jnp.zeros((0, 1)), (weight * centred).sum(keepdims=True))
        noisy = total.dense + self._noise_of_sum(key, total, terms).dense
        whole = jnp.maximum(2.0 * weight.sum(), 1e-30)
        return 0.5 + noisy[0] / whole, self._std_of_sum(terms) / whole

    def _bound_share(self, of_charge: float) -> float:
        """Which share of the bound costs a share of the charge, with the noise as it is."""
        return of_charge if self.mechanism == "laplace" else float(np.sqrt(of_charge))

    def _finite(self, upload: Upload, edges: Edges) -> Array:
        bad = jax.ops.segment_max(
            (~jnp.isfinite(upload.rows)).any(1).astype(jnp.int32),
            edges.pair_client,
            edges.n_clients,
        )
        return (bad <= 0) & jnp.isfinite(upload.dense).all(1)

    def _by_client(self, values: Array, edges: Edges) -> Array:
        """Sum of a quantity of the users over each client."""
        return jax.ops.segment_sum(values, edges.client_of_user, edges.n_clients)

    def _norm(self, rows: Array, dense: Array, edges: Edges, own: Array | None = None) -> Array:
        """Norm of each client's whole upload: L2 for Gaussian noise, L1 for Laplace."""

        def size(values: Array) -> Array:
            return (jnp.abs(values) if self.mechanism == "laplace" else values**2).sum(1)

        total = jax.ops.segment_sum(size(rows), edges.pair_client, edges.n_clients) + size(dense)
        if own is not None:
            total = total + self._by_client(size(own), edges)
        return total if self.mechanism == "laplace" else jnp.sqrt(total)

    def _draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        draw = jax.random.laplace if self.mechanism == "laplace" else jax.random.normal
        return draw(key, shape)

    def _noise_of_users(self, key: Array, own: Array, edges: Edges, terms: Terms) -> Array:
        """Every user's own noise: who matches embeddings sees each of them."""
        key = jax.random.fold_in(key, edges.n_clients + 2)  # one that no part of the upload uses
        scale = terms.scale[terms.class_of_client[edges.client_of_user]]
        return scale[:, None] * self._draw(key, own.shape)

    def _noise_of_sum(self, key: Array, like: Shared, terms: Terms) -> Shared:
        """Noise of the sum over all clients, drawn at once."""
        keys = jax.random.split(key, 2)
        if self.trust == "secagg" or self.mechanism == "gaussian":
            scale = terms.scale.max() if self.trust == "secagg" else self._std_of_sum(terms)
            drawn = [scale * self._draw(k, part.shape) for k, part in zip(keys, like, strict=True)]
        else:  # a Laplace variable is the difference of two exponential ones
            counts = self._counts(terms)
            drawn = []
            for k, part in zip(keys, like, strict=True):
                shape = (2, len(counts), *part.shape)
                per_class = counts.reshape(1, -1, *[1] * part.ndim)
                gammas = jax.random.gamma(k, jnp.maximum(per_class, 1.0), shape)
                gammas = jnp.where(per_class > 0, gammas, 0.0)
                drawn.append(jnp.tensordot(terms.scale, gammas[0] - gammas[1], axes=1))
        return Shared(*drawn)

    def _turned(self, key: Array, rows: Array, dense: Array, edges: Edges, terms: Terms) -> Shared:
        """Sum of what all clients release by PrivUnit.

        Only the coordinates of an upload matter to how it is turned. All others carry plain
        noise, and their sum is drawn at once. A client that has nothing to send, which takes any
        direction by chance, is taken to send plain noise: that differs in one coordinate of all.
        """
        row_key, dense_key, rest_key, rest_dense_key, along_key = jax.random.split(key, 5)
        clip, scale = terms.clip[terms.class_of_client], terms.scale[terms.class_of_client]
        length = self._norm(rows, dense, edges)
        speaks = terms.granted * (length > 0)
        along = _along(along_key, self._caps(terms)[terms.class_of_client], length / clip)
        of_pair = edges.pair_client
        inverse = 1.0 / jnp.maximum(length, 1e-30)
        unit_rows, unit_dense = rows * inverse[of_pair, None], dense * inverse[:, None]
        noise_rows = jax.random.normal(row_key, rows.shape)
        noise_dense = jax.random.normal(dense_key, dense.shape)
        inner = jax.ops.segment_sum((noise_rows * unit_rows).sum(1), of_pair, edges.n_clients)
        part = along - inner - (noise_dense * unit_dense).sum(1)
        size = speaks * scale
        released = size[of_pair, None] * (noise_rows + part[of_pair, None] * unit_rows)
        released_dense = size[:, None] * (noise_dense + part[:, None] * unit_dense)
        spoken = jax.ops.segment_sum(size[of_pair] ** 2, edges.pair_item, edges.n_items)
        everybody = (terms.granted * scale**2).sum()
        rest = jnp.sqrt(jnp.maximum(everybody - spoken, 0.0))[:, None]
        silent = jnp.sqrt(jnp.maximum(everybody - (size**2).sum(), 0.0))
        others = Shared(
            rest * jax.random.normal(rest_key, (edges.n_items, rows.shape[1])),
            silent * jax.random.normal(rest_dense_key, dense.shape[1:]),
        )
        total: Shared = jax.tree.map(jnp.add, _sum_of(released, released_dense, edges), others)
        return total

    def _caps(self, terms: Terms) -> Array:
        if terms.cap is None:
            raise ConfigError("the terms are not for privunit: they have no caps")
        return terms.cap

    def _turn_one(self, key: Array, vector: Array, terms: Terms, client: Array) -> Array:
        """What one client releases by PrivUnit; without anything to send, any direction."""
        noise_key, any_key, along_key = jax.random.split(key, 3)
        clip, scale = (part[terms.class_of_client[client]] for part in (terms.clip, terms.scale))
        length = jnp.sqrt((vector**2).sum())
        anywhere = jax.random.normal(any_key, vector.shape)
        direction = jnp.where(length > 0, vector, anywhere)
        direction = direction / jnp.maximum(jnp.sqrt((direction**2).sum()), 1e-30)
        noise = jax.random.normal(noise_key, vector.shape)
        cap = self._caps(terms)[terms.class_of_client[client]]
        along = _along(along_key, cap, length / clip)
        turned: Array = scale * (noise + (along - (noise * direction).sum()) * direction)
        return turned

    def _counts(self, terms: Terms) -> Array:
        return jax.ops.segment_sum(terms.granted, terms.class_of_client, terms.scale.shape[0])

    def _std_of_sum(self, terms: Terms) -> Array:
        per_unit = mechanism_named(self.mechanism).std_of_scale
        if self.trust == "secagg":
            return per_unit * terms.scale.max()
        return per_unit * jnp.sqrt((self._counts(terms) * terms.scale**2).sum())

    def _each(
        self, key: Array, rows: Array, dense: Array, edges: Edges, terms: Terms
    ) -> tuple[Shared, Array, Array]:
        """Every client's own noise on its whole upload, looked at before it is added up."""
        width, size = rows.shape[1], dense.shape[1]
        coordinates = edges.n_items * width + size
        limits_by_class = self.limits(terms, coordinates)

        def one(total: Array, client: Array) -> tuple[Array, Array]:
            own = rows * (edges.pair_client == client)[:, None]
            vector = flat_upload(own, dense[client], edges)
            of_class = terms.class_of_client[client]
            scale = terms.scale[of_class]
            own_key = jax.random.fold_in(key, client)
            if terms.cap is None:
                noised = vector + scale * self._draw(own_key, vector.shape)
            else:
                noised = self._turn_one(own_key, vector, terms, client)
            unit = jnp.maximum(scale, LEAST_SCALE)
            limits = jax.tree.map(lambda part: unit * part[of_class], limits_by_class)
            sizes = jnp.abs(noised)
            norm = sizes.sum() if self.norm == "l1" else jnp.sqrt((noised**2).sum())
            good = (limits.low <= norm) & (norm <= limits.high)
            good = good & (sizes.max() <= limits.coordinate) & (terms.granted[client] > 0)
            return total + jnp.where(good, noised, 0.0), good

        start = jnp.zeros(coordinates)
        total, good = jax.lax.scan(one, start, jnp.arange(edges.n_clients))
        number = good.sum().astype(jnp.float32)
        return as_shared(total, edges.n_items, width), number, terms.granted.sum() - number

    def limits(self, terms: Terms, coordinates: int) -> Limits:
        """What an honest upload of each class stays within, ``[n_classes]``."""
        return limits_of(self.mechanism, terms.clip, terms.scale, coordinates, terms.cap)

    def reach(self, terms: Terms, coordinates: int) -> Array:
        """How far one client can move a coordinate of the uploads' sum, whatever it sends.

        Under ``secagg`` that is the clip, if whoever aggregates enforces it. Under ``local`` it is
        what the server lets pass.
        """
        if self.trust == "secagg":
            return terms.clip.max()
        furthest: Array = (self.limits(terms, coordinates).coordinate * terms.scale).max()
        return furthest

    # ---- unit row

    def noise_rows(
        self,
        key: Array,
        upload: Upload,
        edges: Edges,
        terms: Terms,
        blocks: tuple[int, ...],
    ) -> Upload:
        """Each item row and each dense tensor clipped and noised on its own, as the authors do."""
        row_key, dense_key = jax.random.split(key)
        clip, scale = terms.clip[terms.class_of_client], terms.scale[terms.class_of_client]
        if terms.own is not None:
            clip, scale = clip * terms.own, scale * terms.own
        of_pair = edges.pair_client
        rows = self._noise_block(row_key, upload.rows, clip[of_pair], scale[of_pair])
        parts = [
            self._noise_block(jax.random.fold_in(dense_key, number), part, clip, scale)
            for number, part in enumerate(_split(upload.dense, blocks))
        ]
        dense = jnp.concatenate(parts, axis=1) if parts else upload.dense
        return Upload(rows * _known(edges)[:, None], dense)

    def norm_of_average(self, noised: Upload, edges: Edges, blocks: tuple[int, ...]) -> Array:
        """L2 norm of each client's own noisy gradient, averaged over the blocks it clips."""
        own = jax.ops.segment_sum((noised.rows**2).sum(1), edges.pair_client, edges.n_clients)
        number = jax.ops.segment_sum(_known(edges), edges.pair_client, edges.n_clients)
        size = jnp.sqrt(own + (noised.dense**2).sum(1))
        return size / jnp.maximum(number + len(blocks), 1.0)

    def noise_users(self, key: Array, own: Array, edges: Edges, terms: Terms) -> Array:
        """Each user's embedding clipped and noised on its own: one block more a user."""
        of_user = terms.class_of_client[edges.client_of_user]
        clipped = self._clip_block(own, terms.clip[of_user])
        return clipped + self._noise_of_users(key, own, edges, terms)

    def _noise_block(self, key: Array, block: Array, clip: Array, scale: Array) -> Array:
        return self._clip_block(block, clip) + scale[:, None] * self._draw(key, block.shape)

    def _clip_block(self, block: Array, clip: Array) -> Array:
        block = jnp.where(jnp.isfinite(block).all(1, keepdims=True), block, 0.0)
        sizes = jnp.abs(block) if self.mechanism == "laplace" else block**2
        norm = sizes.sum(1) if self.mechanism == "laplace" else jnp.sqrt(sizes.sum(1))
        clipped: Array = block * clip_factor(norm, clip)[:, None]
        return clipped


def _known(edges: Edges) -> Array:
    """1 for each pair of a client and an item whose rating has arrived, else 0."""
    return jax.ops.segment_max(edges.present, edges.pair, edges.pair_item.shape[0])


def _split(dense: Array, blocks: tuple[int, ...]) -> list[Array]:
    """The dense part of uploads, tensor by tensor."""
    ends = np.cumsum(blocks)
    return [dense[:, end - size : end] for size, end in zip(blocks, ends, strict=True)]


def _sum_of(rows: Array, dense: Array, edges: Edges) -> Shared:
    """All clients' uploads added up."""
    return Shared(jax.ops.segment_sum(rows, edges.pair_item, edges.n_items), dense.sum(0))


def _along(key: Array, cap: Array, length: Array) -> Array:
    """Part of each release along its upload; see :mod:`bgtplanner.privacy.privunit`.

    Args:
        key: Of the draws.
        cap: Threshold and chance of each, ``[..., 2]``.
        length: Of each upload, over the clip: shorter ones are turned round at times.
    """
    threshold, chance = cap[..., 0], cap[..., 1]
    turn, inside, where = jax.random.uniform(key, (3, *length.shape), minval=1e-12)
    far = jnp.sqrt(threshold**2 - 2.0 * jnp.log(where))  # where the tail is too thin for floats
    near = -ndtri(where * ndtr(-jnp.minimum(threshold, _FAR)))
    above = jnp.where(threshold < _FAR, near, far)
    along = jnp.where(inside < chance, above, ndtri(where * ndtr(threshold)))
    ahead = turn < 0.5 * (1.0 + jnp.minimum(length, 1.0))
    return jnp.where(ahead, along, -along)
