"""What the server makes of what clients tell about their tastes: axes, and how sure they are.

Clients are asked about axes Q, orthonormal, and tell ``M Q`` for a symmetric matrix M, plus noise.
The server keeps the sums over all payments, weighted by precision. The M that fits them best,
with a ridge, solves

    M G + G M + 2 ridge M = T + T'        G: sum of Q Q', T: sum of what was told times Q'

so that every payment counts, whatever it was asked about, and many small ones say as much as a
large one. Its leading eigenvectors are asked about next: what is seen of an axis, however faintly,
is looked at more closely. Beside what was told, the server adds up noise of the same size that it
draws itself. What comes of this noise is what chance alone looks like: an axis stands out if it is
clearly larger.

M is not written out: it takes few products to multiply by T + T', over a + b + 2 ridge in the
directions in which G is a and b, where that is nearly a polynomial of a and b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_RIDGE = 0.3  # as a share of the precision of all that was told
_DEPTH = 3  # products with M, in whose span the axes are looked for
_SPREAD = 0.6  # of what chance reaches, over the noise of all that was told
_STANDS_OUT = 3.0  # noise alone does so with a chance below exp(-4.5), 1.1 percent

_AT = np.array([0.0, 0.25, 0.75, 1.0])  # where the polynomial is exact; between, 1.4 percent off
_POWERS = np.linalg.inv(np.vander(_AT))  # its coefficients, those of the highest powers first


class Axes(NamedTuple):
    """All that was told about tastes, among the most popular items."""

    items: Array  # which these are
    told: Array  # what was told, times the axes that were asked about
    chance: Array  # the same of noise that the server has drawn
    asked: Array  # the projections on the axes that were asked about
    payments: Array  # how many there were
    sizes: Array  # of the axes
    edge: Array  # the size that noise alone reaches

    @classmethod
    def initial(cls, items: int, axes: int) -> Axes:
        """Return the memory before anything was told."""
        none, zero = jnp.zeros((items, items)), jnp.zeros(())
        return cls(jnp.arange(items), none, none, none, jnp.zeros((), int), jnp.zeros(axes), zero)

    @property
    def precision(self) -> Array:
        """The weight of what is known, of one axis: less if items that it was about have left."""
        return jnp.trace(self.asked) / max(len(self.sizes), 1)

    def after(self, asked: Array, told: Array, precision: Array) -> Axes:
        """Return the memory with one payment more: what was told about the axes `asked`."""
        drawn = jax.random.normal(jax.random.fold_in(jax.random.key(0), self.payments), told.shape)
        return self._replace(
            told=self.told + precision * told @ asked.T,
            chance=self.chance + jnp.sqrt(precision) * drawn @ asked.T,
            asked=self.asked + precision * asked @ asked.T,
            payments=self.payments + (precision > 0),
        )

    def moved(self, items: Array) -> tuple[Axes, Array]:
        """Return the memory among other items, and a matrix that takes the places of axes along.

        Nothing is known of items that are new.
        """
        same = items[:, None] == self.items
        there, place = same.any(1), same.argmax(1)
        known = there[:, None] & there
        told, chance, asked = (
            jnp.where(known, of[place[:, None], place], 0.0)
            for of in (self.told, self.chance, self.asked)
        )
        moved = self._replace(items=items, told=told, chance=chance, asked=asked)
        return moved, same.astype(told.dtype)

    def leading(
        self, start: Array, common: Array, sampled: Array | float = 0.0
    ) -> tuple[Array, Array, Axes]:
        """Return the axes, with which length each is sent out, and the memory of their sizes.

        It begins with the axes `start`. The direction `common`, of length 1, is no taste. An axis
        stands out if it is also larger than `sampled`, which people without tastes would reach.
        """
        drawn = jax.random.normal(jax.random.key(1), start.shape) / len(start) ** 0.5
        start = start - common @ (common.T @ start) + 0.01 * drawn  # none is lost for good
        times = self.fitted(common)
        with jax.default_matmul_precision("highest"):
            start, (told, _), sizes = _extreme(times, jnp.stack([start, start]))
        number, start, edge = start.shape[2], start[0], jnp.abs(sizes[1]).max()
        turned, sizes = told[:, :number], sizes[0, :number]
        precision = self.precision
        known, spread = precision > 0, _SPREAD / jnp.sqrt(jnp.maximum(precision, 1e-30))
        reached = jnp.hypot(edge, sampled)
        stands = sizes > jnp.maximum(reached + _STANDS_OUT * spread, 1e-3 * sizes[0])
        strength = jnp.sqrt(jnp.maximum(sizes**2 - edge**2, 0.0))
        strength = strength / jnp.maximum(strength[0], 1e-30)
        sure = jnp.maximum(1.0 - (edge / jnp.maximum(sizes, 1e-30)) ** 2, 0.0)
        strength = jnp.where(known & stands, jnp.maximum(strength * sure, 0.01), 0.0)
        return jnp.where(known, turned, start), strength, self._replace(sizes=sizes, edge=edge)

    def fitted(self, common: Array) -> Callable[[Array], Array]:
        """Return what multiplies columns by the M of what was told, and by that of chance."""
        scale = jnp.maximum(self.precision, 1e-30)
        asked, sums = self.asked / scale, jnp.stack([self.told, self.chance]) / scale
        sums, largest = sums + sums.mT, jnp.ones(len(asked))
        for _ in range(4):  # beyond 1 where items have left
            largest = asked @ (largest / jnp.maximum(jnp.linalg.norm(largest), 1e-30))
        top = jnp.maximum(jnp.linalg.norm(largest), 1.0)
        values = 1.0 / (top * (_AT[:, None] + _AT) + 2.0 * _RIDGE)
        polynomial = jnp.einsum("aj,jk,bk->ab", _POWERS, values, _POWERS, precision="highest")

        def beyond(columns: Array) -> Array:
            return columns - common @ (common.T @ columns)

        def times(columns: Array) -> Array:
            powers = [beyond(columns)]
            for _ in _AT[1:]:
                powers.insert(0, beyond(asked @ powers[0]) / top)
            mixed = [sum(map(jnp.multiply, row, powers)) for row in polynomial]
            found, *rest = jnp.split(beyond(sums @ jnp.concatenate(mixed, -1)), len(mixed), -1)
            for part in rest:
                found = part + beyond(asked @ found) / top
            return found

        return times


def _extreme(times: Callable[[Array], Array], start: Array) -> tuple[Array, Array, Array]:
    """Return what is begun with, orthonormal, and what is largest in the span of its products."""
    span = first = _apart(start, start)
    image = images = times(first)
    for _ in range(_DEPTH - 1):
        new = image
        for _ in range(2):  # the second time for what was lost to rounding
            new = new - span @ (span.mT @ new)
        new = _apart(new, image)
        image = times(new)
        span, images = jnp.concatenate([span, new], -1), jnp.concatenate([images, image], -1)
    sizes, turn = jnp.linalg.eigh(span.mT @ images)
    return first, span @ turn[:, :, ::-1], sizes[:, ::-1]


def _apart(columns: Array, before: Array) -> Array:
    """Return the columns made orthonormal, but for those of which next to nothing is left."""
    least = 1e-30 + 4e-6 * (before**2).sum((1, 2), keepdims=True)  # what rounding leaves
    lower = jnp.linalg.cholesky(columns.mT @ columns + least * jnp.eye(columns.shape[-1]))
    return jax.scipy.linalg.solve_triangular(lower, columns.mT, lower=True).mT


def unit(axes: Array) -> Array:
    """Return the columns, scaled to length 1."""
    return axes / jnp.maximum(jnp.linalg.norm(axes, axis=0), 1e-12)


def orthonormal(matrix: Array) -> Array:
    """Return the leading left singular vectors, in order; zeros in place of those of size zero."""
    squares, turn = jnp.linalg.eigh(matrix.T @ matrix)
    squares, turn = squares[::-1], turn[:, ::-1]
    size = jnp.sqrt(jnp.maximum(squares, 0.0))
    there = size > 1e-3 * jnp.maximum(size[0], 1e-20)  # squares have seven digits
    return jnp.where(there, (matrix @ turn) / jnp.maximum(size, 1e-30), 0.0)
