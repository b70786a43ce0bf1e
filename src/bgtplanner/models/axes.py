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
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

_RIDGE = 0.3  # as a share of the precision of all that was told
_STEPS, _TURNS = 4, 4  # of conjugate gradients, and pairs of those of subspace iteration
_SPREAD = 0.6  # of what chance reaches, over the noise of all that was told
_STANDS_OUT = 3.0  # noise alone does so with a chance below exp(-4.5), 1.1 percent


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
        same = (items[:, None] == self.items).astype(self.told.dtype)
        told, chance, asked = (same @ of @ same.T for of in (self.told, self.chance, self.asked))
        return self._replace(items=items, told=told, chance=chance, asked=asked), same

    def leading(
        self, start: Array, common: Array, sampled: Array | float = 0.0
    ) -> tuple[Array, Array, Axes]:
        """Return the axes, with which length each is sent out, and the memory of their sizes.

        Args:
            start: Axes to begin with.
            common: The direction that is no taste, of length 1.
            sampled: The size that people without any taste would reach, without noise.
        """
        told, chance = self._fitted(common)
        drawn = jax.random.normal(jax.random.key(1), start.shape)
        edge = jnp.abs(_leading(chance, drawn, 0.0)[1]).max()
        lowest = -_leading(told, drawn, 0.0)[1].min()  # a matrix without diagonal has such
        start = orthonormal(start - common @ (common.T @ start))
        start = start + 0.01 * orthonormal(drawn)  # no direction is lost for good
        turned, sizes = _leading(told, start, jnp.maximum(edge, lowest))
        precision = self.precision
        known, spread = precision > 0, _SPREAD / jnp.sqrt(jnp.maximum(precision, 1e-30))
        reached = jnp.hypot(edge, sampled)
        stands = sizes > jnp.maximum(reached + _STANDS_OUT * spread, 1e-3 * sizes[0])
        strength = jnp.sqrt(jnp.maximum(sizes**2 - edge**2, 0.0))
        strength = strength / jnp.maximum(strength[0], 1e-30)
        sure = jnp.maximum(1.0 - (edge / jnp.maximum(sizes, 1e-30)) ** 2, 0.0)
        strength = jnp.where(known & stands, jnp.maximum(strength * sure, 0.01), 0.0)
        return jnp.where(known, turned, start), strength, self._replace(sizes=sizes, edge=edge)

    def _fitted(self, common: Array) -> Array:
        """Return the matrices that fit best what was told, and what chance told."""

        def beyond(matrix: Array) -> Array:
            matrix = matrix - common @ (common.T @ matrix)
            return matrix - (matrix @ common) @ common.T

        scale = jnp.maximum(self.precision, 1e-30)
        asked, right = beyond(self.asked) / scale, beyond(jnp.stack([self.told, self.chance]))
        right = (right + jnp.swapaxes(right, 1, 2)) / scale

        def applied(matrix: Array) -> Array:
            half = matrix @ asked
            return half + jnp.swapaxes(half, 1, 2) + 2.0 * _RIDGE * matrix

        def squares(matrix: Array, other: Array) -> Array:
            return (matrix * other).sum((1, 2), keepdims=True)

        found, rest = jnp.zeros_like(right), right
        towards, size = rest, squares(rest, rest)
        for _ in range(_STEPS):
            image = applied(towards)
            step = size / jnp.maximum(squares(towards, image), 1e-30)
            found, rest = found + step * towards, rest - step * image
            left = squares(rest, rest)
            towards, size = rest + left / jnp.maximum(size, 1e-30) * towards, left
        return found


def _leading(matrix: Array, start: Array, shift: Array | float) -> tuple[Array, Array]:
    """Return the directions in which a symmetric matrix is largest, and how large it is there."""
    for _ in range(_TURNS):
        start = matrix @ start + shift * start
        start = orthonormal(matrix @ start + shift * start)
    sizes, turn = jnp.linalg.eigh(start.T @ matrix @ start)
    return start @ turn[:, ::-1], sizes[::-1]


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
