"""What makes an upload private: one class per mechanism, with everything that depends on it.

An upload is clipped *as a whole* to norm C (L2 for Gaussian, L1 for Laplace). Two uploads of
neighbours differ by at most the sensitivity: 2C for ``replace-one`` (one client's data against any
other data), C for ``replace-special`` (one client's upload against nothing in its place; only
where the server sees sums alone). ``noise scale = noise multiplier * sensitivity``. Every
coordinate of a fixed, public index set carries noise: noise on the rated items alone would show
which they are. With ``trust = secagg`` the sum carries it once, with ``local`` every upload does.

The last bits of a double ``upload + noise`` can reveal the upload (Mironov 2012). So a release
lies on a grid far coarser than those bits and far finer than the noise. The upload is cut to the
grid towards zero, which increases no norm, and before it is summed. A real client's noise is drawn
in whole steps of the grid (:mod:`bgtplanner.privacy.randomness`), with a scale that is rounded up;
simulated noise is rounded to it. The simulator's part of a mechanism works on JAX arrays.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.randomness import ExactNoise
from bgtplanner.registry import Registry

Floats = NDArray[np.float64]
Array = Any  # of NumPy or JAX; this package does not depend on JAX
Neighbours = Literal["replace-special", "replace-one"]

SENSITIVITY: Mapping[str, float] = MappingProxyType({"replace-special": 1.0, "replace-one": 2.0})
"""The neighbouring relations by name, each with its sensitivity in units of the clip."""

# Clip a little below the bound: rounding to float32 must not push an upload over it.
_MARGIN = 1e-6
_GRID_BITS = 24  # bits of a release below the noise's scale; a double has 53


def clip_factor(norm: Array, bound: Array) -> Array:
    """Return one factor per upload, so that none is longer than the bound."""
    limit = bound * (1 - _MARGIN)
    return limit / norm.__array_namespace__().maximum(norm, limit)


def special_of(array: Array) -> Any:
    """Return SciPy's special functions from the library of the array."""
    library = array.__array_namespace__().__name__
    home = "scipy" if library == "numpy" else f"{library.removesuffix('.numpy')}.scipy"
    return importlib.import_module(f"{home}.special")


class Limits(NamedTuple):
    """Limits that an honest upload stays within; lengths are in units of the noise's scale."""

    low: Array  # the smallest norm, in the mechanism's own norm
    high: Array  # the largest
    coordinate: Array  # the largest coordinate


class Mechanism:
    """Everything that depends on the mechanism; stateless, with one instance of each.

    Example:
        >>> gaussian = mechanism_named("gaussian")
        >>> gaussian.clip(np.array([[30.0, 40.0], [0.3, 0.4]]), bound=1.0).round(3).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
    """

    __slots__ = ()

    name: ClassVar[str]
    order: ClassVar[Literal[1, 2]]  # of the norm in which uploads are clipped
    accountant: ClassVar[str]  # that is used unless another is named
    pure: ClassVar[bool] = True  # whether its releases have an epsilon with delta = 0
    std_of_scale: ClassVar[float] = 1.0  # deviation of noise of scale 1 in one coordinate
    trusts: ClassVar[tuple[str, ...]] = ("local", "secagg")
    units: ClassVar[tuple[str, ...] | None] = None  # None for all
    has_shares: ClassVar[bool] = False  # clients can draw the noise of a sum in shares

    def sizes(self, values: Array) -> Array:
        """Return what each value adds to the norm before :meth:`root` is taken."""
        return abs(values) if self.order == 1 else values**2

    def root(self, total: Array) -> Array:
        """Return the norm, given the sum of the :meth:`sizes`."""
        return total if self.order == 1 else total.__array_namespace__().sqrt(total)

    def norm(self, uploads: ArrayLike) -> Floats:
        """Return the norm of each upload, without overflow; NaN if a coordinate is NaN."""
        largest, length, _ = self.polar(_flat(uploads))
        with np.errstate(over="ignore"):
            return largest * length

    def clip(self, uploads: ArrayLike, bound: ArrayLike) -> Floats:
        """Return every upload, one per row, shortened as a whole to the bound (or its own bound).

        An upload with a NaN or an infinity becomes zero: neither must leave the client.
        """
        flat = _flat(uploads)
        limit = np.broadcast_to(_positive("clip", bound), len(flat)) * (1 - _MARGIN)
        flat = np.where(np.isfinite(flat).all(axis=1, keepdims=True), flat, 0.0)
        largest, length, unit = self.polar(flat)
        with np.errstate(over="ignore"):  # an infinite norm is longer than any bound
            short = largest * length <= limit
        return np.where(short[:, None], flat, unit * (limit / length)[:, None])

    def polar(self, flat: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the largest entry, and the norm and the upload divided by it.

        The squares of tiny entries would lose all digits, and those of large ones overflow.
        """
        largest = np.abs(flat).max(axis=1, initial=0.0)
        with np.errstate(invalid="ignore"):
            unit = flat / np.where(largest > 0, largest, 1.0)[:, None]
            sums = self.root(self.sizes(unit).sum(axis=1))
        return largest, np.maximum(sums, 1.0), unit  # 0 if all entries are 0, where 1 does as well

    def scale(
        self,
        noise_multiplier: ArrayLike,
        bound: ArrayLike,
        neighbours: Neighbours = "replace-one",
    ) -> Floats:
        """Return the noise scale: the multiplier times the sensitivity of bounded uploads."""
        known = neighbours in SENSITIVITY
        ConfigError.unless(known, "neighbours", neighbours, " or ".join(SENSITIVITY))
        fits = neighbours == "replace-one" or "secagg" in self.trusts
        expected = f"replace-one, with mechanism {self.name}, which is for single uploads"
        ConfigError.unless(fits, "neighbours", neighbours, expected)
        multiplier = _positive("noise_multiplier", noise_multiplier)
        factor = SENSITIVITY[neighbours]
        return _positive("scale", multiplier * factor * _positive("clip", bound))

    def multiplier_of(self, epsilon: Floats) -> Floats:
        """Return the noise multiplier of a release of this pure epsilon."""
        raise NotImplementedError

    def epsilon_of(self, multiplier: Floats) -> Floats:
        """Return the pure epsilon of a release with this noise multiplier."""
        raise NotImplementedError

    def parameters(self, charges: Floats) -> Floats | None:  # noqa: ARG002
        """Return what a release needs beside clip and scale, ``[charges, numbers]``, or None."""
        return None

    def std_of_sum(self, counts: Array, scales: Array, common: bool) -> Array:
        """Return the deviation of a sum of `counts` uploads per class; `common`: noised once."""
        if common:
            return self.std_of_scale * scales.max()
        return self.std_of_scale * scales.__array_namespace__().sqrt((counts * scales**2).sum())

    def randomise(
        self, clipped: ArrayLike, source: ExactNoise, *, scale: float, bound: float, charge: float
    ) -> Floats:
        """Return the releases of clipped uploads, one per row, or of sums of those on the grid."""
        raise NotImplementedError

    def on_grid(self, clipped: ArrayLike, scale: float) -> Floats:
        """Return clipped uploads, cut towards zero to the grid of noise of this scale."""
        grid = grid_of(scale)
        return np.asarray(np.trunc(np.asarray(clipped, dtype=np.float64) / grid) * grid)

    def check_sums(self, clients: int, bound: float, scale: float) -> None:
        """Refuse sums of more uploads on the grid than doubles hold exactly, in 2^53 steps."""
        most = 2**53 / (float(_positive("clip", bound)) / grid_of(scale))
        expected = f"below {most:.3g}, or more noise: sums of these would not be exact"
        ConfigError.unless(clients < most * (1 - 1e-12), "clients", clients, expected)

    def released_sum(
        self, source: Any, uploads: Any, terms: Any, *, counts: Array, common: bool
    ) -> Sequence[Array]:
        """Return the sum of what all clients release: the rows of items, and the dense rest.

        It takes clipped :class:`~bgtplanner.federation.protection.Uploads`, or their sum if noise
        is only added, with `counts` clients per class. If `common`, the sum carries it once.
        """
        raise NotImplementedError

    def limits(
        self, reach: Array, rare: Array, size: int, *, parameters: Array | None = None
    ) -> Limits:
        """Return limits that an honest release exceeds with probability exp(-rare) each.

        The reach is clip over scale. For Gaussian noise: norms by Laurent and Massart (2000), else
        P[z > t] <= exp(-t^2 / 2) / 2.
        """
        del parameters
        xp = reach.__array_namespace__()
        tail, spread = xp.sqrt(2.0 * rare), 2.0 * xp.sqrt(size * rare)
        mean = size / (size + 1.0) ** 0.5  # at most the mean norm; better for a small size
        alone, many = (xp.sqrt(2.0 * (rare + np.log(2.0 * number))) for number in (1, size))
        return Limits(
            low=xp.maximum(xp.sqrt(xp.maximum(size - spread, 0.0)), mean - tail),
            high=xp.hypot(reach + tail, xp.sqrt(size + spread)),
            coordinate=xp.maximum(reach + alone, many),
        )


class Additive(Mechanism):
    """A mechanism whose noise does not depend on the upload, so that a sum can carry it once."""

    __slots__ = ()

    law: ClassVar[str]  # of the noise, as sources call it

    def draw(self, source: Any, shape: tuple[int, ...]) -> Array:
        """Draw noise of scale 1, independent for every coordinate."""
        return getattr(source, self.law)(shape)

    def draw_steps(self, source: ExactNoise, scale: int, shape: tuple[int, ...]) -> Array:
        """Draw noise exactly, in whole steps, for a scale of whole steps."""
        return getattr(source, f"{self.law}_steps")(scale, shape)

    def draw_sum(self, source: Any, shape: tuple[int, ...], counts: Array, scales: Array) -> Array:
        """Draw the sum of `counts` independent draws of each scale."""
        raise NotImplementedError

    def noise(self, source: ExactNoise, scale: float, shape: tuple[int, ...]) -> Floats:
        """Draw independent noise of at least this scale, on its grid, for every coordinate."""
        return np.asarray(self.draw_steps(source, _steps(scale), shape) * grid_of(scale))

    def randomise(
        self, clipped: ArrayLike, source: ExactNoise, *, scale: float, **_: Any
    ) -> Floats:
        values = self.on_grid(clipped, scale)
        return self.noise(source, scale, values.shape) + values

    def released_sum(
        self, source: Any, uploads: Any, terms: Any, *, counts: Array, common: bool
    ) -> Sequence[Array]:
        scale, parts = terms.scale, zip(source.split(len(uploads)), uploads, strict=True)
        if common:
            return [part + scale.max() * self.draw(own, part.shape) for own, part in parts]
        return [part + self.draw_sum(own, part.shape, counts, scale) for own, part in parts]


class Gaussian(Additive):
    """Normal noise, for the sensitivity in L2: Gaussian differential privacy."""

    __slots__ = ()
    name, order, accountant, law = "gaussian", 2, "gaussian/gdp", "normal"
    pure, has_shares = False, True

    def draw_sum(self, source: Any, shape: tuple[int, ...], counts: Array, scales: Array) -> Array:
        return self.std_of_sum(counts, scales, False) * source.normal(shape)


class Laplace(Additive):
    """Laplace noise, for the sensitivity in L1: pure epsilon."""

    __slots__ = ()
    name, order, accountant, law = "laplace", 1, "laplace/zcdp", "laplace"
    std_of_scale = 2.0**0.5

    def multiplier_of(self, epsilon: Floats) -> Floats:
        return np.asarray(1 / epsilon)

    def epsilon_of(self, multiplier: Floats) -> Floats:
        return np.asarray(1 / multiplier)

    def draw_sum(self, source: Any, shape: tuple[int, ...], counts: Array, scales: Array) -> Array:
        # A Laplace variate is the difference of two exponential ones, whose sums are gamma.
        xp = counts.__array_namespace__()
        per_class = counts.reshape(1, -1, *[1] * len(shape))
        gammas = source.gamma(xp.maximum(per_class, 1.0), (2, len(counts), *shape))
        gammas = xp.where(per_class > 0, gammas, 0.0)
        return xp.tensordot(scales, gammas[0] - gammas[1], axes=1)

    def limits(self, reach: Array, rare: Array, size: int, **_: Any) -> Limits:
        xp = reach.__array_namespace__()
        spread = xp.sqrt(2.0 * size * rare)
        return Limits(
            low=xp.maximum(size - spread, 0.0),
            high=size + spread + rare + reach,
            coordinate=xp.maximum(reach + rare + np.log(2.0), rare + np.log(2.0 * size)),
        )


MECHANISMS: Registry[Mechanism] = Registry(
    "mechanism",
    {
        "gaussian": Gaussian(),
        "laplace": Laplace(),
        "privunit": "bgtplanner.privacy.privunit:PRIVUNIT",
    },
    expected="a Mechanism",
    fits=lambda thing: isinstance(thing, Mechanism),
)
"""The mechanisms by name."""


def mechanism_named(name: str) -> Mechanism:
    """Return a mechanism by its name, or refuse it with a list of them all."""
    if name not in MECHANISMS:
        raise ConfigError(f"mechanism = {name!r}: expected one of {', '.join(MECHANISMS)}")
    return MECHANISMS[name]


def grid_of(scale: float) -> float:
    """Return the grid of releases with noise of this scale: a power of two far below it."""
    _, exponent = math.frexp(float(_positive("scale", scale)))
    return math.ldexp(1.0, exponent - 1 - _GRID_BITS)


def _steps(scale: float) -> int:
    """Return the scale in whole steps of its grid, rounded up."""
    # A product of floats may be half a unit in the last place too small; the next double is not.
    return int(np.ceil(np.nextafter(float(scale), np.inf) / grid_of(scale)))


def _flat(uploads: ArrayLike) -> Floats:
    array = np.asarray(uploads, dtype=np.float64)
    ConfigError.unless(array.ndim >= 2, "uploads", array.shape, "one upload per row")
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _positive(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    good = bool(((array >= 1e-100) & (array <= 1e100)).all())
    ConfigError.unless(good, name, array.tolist(), "a number from 1e-100 to 1e100")
    return array
