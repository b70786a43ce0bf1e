"""Clip one upload, calibrate noise to a charge, add it.

Neighbouring relation: replace one client's data by any other. One upload is clipped *as a whole*
to norm C (L2 for Gaussian, L1 for Laplace), so two clients' uploads differ by at most 2C: that is
the sensitivity, and ``noise scale = noise multiplier * 2C``. Noise goes on every coordinate of a
fixed, public index set; noise on the rated items only would show which they are.

Doubles are not real numbers: the last bits of ``upload + noise`` can tell what the upload was
(Mironov 2012). So what is released lies on a grid far coarser than those bits and far finer than
the noise. The upload is cut to the grid towards zero, which lengthens no norm. The noise of a real
client is drawn on the grid, in whole steps and exactly (:mod:`bgtplanner.privacy.noise`), with a
scale of whole steps that is rounded up. Simulated noise is drawn in doubles and rounded to the
grid. Uploads are cut before they are summed: two sums cut afterwards may differ by more than their
uploads do.

With ``trust = local`` every upload carries the full noise. With ``trust = secagg`` the server sees
only the sum, and the noise is in there once. ``privunit`` adds no noise to an upload but turns it
(:mod:`bgtplanner.privacy.privunit`); it is for ``local`` only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError, quoted
from bgtplanner.privacy.noise import ExactNoise, NoiseSource

__all__ = ["MECHANISMS", "Mechanism", "clip_factor", "mechanism_named"]

Floats = NDArray[np.float64]

# Clip a little below the bound: rounding to float32 must not push an upload over it.
_MARGIN = 1e-6
_GRID_BITS = 24  # of what is released lie below the noise's scale; a double has 53


def clip_factor(norm: Any, bound: Any) -> Any:
    """What to multiply uploads by, so that none is longer than the bound.

    Works on arrays of NumPy and of JAX, one entry an upload.
    """
    limit = bound * (1 - _MARGIN)
    return limit / norm.__array_namespace__().maximum(norm, limit)


@dataclass(frozen=True)
class Mechanism:
    """A kind of noise, and the norm in which uploads are clipped for it.

    Attributes:
        name: ``gaussian``, ``laplace`` or ``privunit``.
        order: 2 for the L2 norm, 1 for the L1 norm.

    Example:
        >>> gaussian = mechanism_named("gaussian")
        >>> gaussian.clip(np.array([[30.0, 40.0], [0.3, 0.4]]), bound=1.0).round(3).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
        >>> float(gaussian.scale(noise_multiplier=5.0, bound=0.5))
        5.0
    """

    name: Literal["gaussian", "laplace", "privunit"]
    order: Literal[1, 2]

    @property
    def additive(self) -> bool:
        """Whether it adds noise that does not depend on the upload, so that sums can share it."""
        return self.name != "privunit"

    @property
    def std_of_scale(self) -> float:
        """Standard deviation of a coordinate's noise of scale 1."""
        return 2.0**0.5 if self.name == "laplace" else 1.0

    def scale(self, noise_multiplier: ArrayLike, bound: ArrayLike) -> Floats:
        """Noise scale (standard deviation, or Laplace's b) for uploads clipped at `bound`.

        The sensitivity is 2 * bound: replace one client by another. For ``privunit``, what a
        coordinate of the release deviates by from the upload.
        """
        multiplier = _positive("noise_multiplier", noise_multiplier)
        return _positive("scale", multiplier * 2 * _positive("clip", bound))

    def norm(self, uploads: ArrayLike) -> Floats:
        """Norm of each upload over all its coordinates; no overflow, NaN where one is NaN."""
        largest, length, _ = self.polar(_flat(uploads))
        with np.errstate(over="ignore"):
            return largest * length

    def clip(self, uploads: ArrayLike, bound: ArrayLike) -> Floats:
        """Every upload shortened to the bound, as a whole, direction kept.

        An upload with a NaN or an infinity becomes zero: whatever happened there, it must neither
        leave the client nor lengthen the upload.

        Args:
            uploads: One upload a row.
            bound: One bound for all, or one an upload.
        """
        flat = _flat(uploads)
        limit = np.broadcast_to(_positive("clip", bound), len(flat)) * (1 - _MARGIN)
        flat = np.where(np.isfinite(flat).all(axis=1, keepdims=True), flat, 0.0)
        largest, length, unit = self.polar(flat)
        with np.errstate(over="ignore"):  # an infinite norm is longer than any bound
            short = largest * length <= limit
        return np.where(short[:, None], flat, unit * (limit / length)[:, None])

    def polar(self, flat: Floats) -> tuple[Floats, Floats, Floats]:
        """Largest entry, norm of the upload over it, and the upload over it: all of good size.

        Squares of tiny entries would have no digits left, and those of large ones overflow.
        """
        largest = np.abs(flat).max(axis=1, initial=0.0)
        with np.errstate(invalid="ignore"):
            unit = flat / np.where(largest > 0, largest, 1.0)[:, None]
            sizes = np.abs(unit)
            sums = sizes.sum(axis=1) if self.order == 1 else np.sqrt((sizes**2).sum(axis=1))
        return largest, np.maximum(sums, 1.0), unit  # 0 where all are: 1 is as good

    def noise(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> Floats:
        """Independent noise of at least this scale on every coordinate.

        Exact noise lies on the scale's grid; simulated noise is rounded to it when it is added.
        """
        expected = "a mechanism that adds noise: privunit turns each upload instead"
        ConfigError.unless(self.additive, "mechanism", self.name, expected)
        scale = float(_positive("scale", scale))
        if isinstance(source, ExactNoise):
            steps = source.normal_steps if self.name == "gaussian" else source.laplace_steps
            return np.asarray(steps(_steps(scale), shape) * _grid(scale))
        draw = source.normal if self.name == "gaussian" else source.laplace
        return scale * draw(shape)

    def on_grid(self, clipped: ArrayLike, scale: float) -> Floats:
        """Clipped uploads cut to the grid that belongs to noise of this scale, towards zero."""
        grid = _grid(scale)
        return np.asarray(np.trunc(np.asarray(clipped, dtype=np.float64) / grid) * grid)

    def add_noise(self, clipped: ArrayLike, source: NoiseSource, scale: float) -> Floats:
        """Clipped uploads with noise of this scale on every coordinate.

        Args:
            clipped: Clipped uploads; or a sum of some, each of them already :meth:`on_grid`.
            source: Where random numbers come from.
            scale: Of the noise.
        """
        values = self.on_grid(clipped, scale)
        return self.rounded(self.noise(source, scale, values.shape), scale) + values

    def rounded(self, values: Floats, scale: float) -> Floats:
        """Values rounded to the grid that belongs to noise of this scale."""
        grid = _grid(scale)
        return np.asarray(np.rint(values / grid) * grid)

    def check_sums(self, clients: int, bound: float, scale: float) -> None:
        """Refuse sums of so many uploads on the grid that doubles could not hold them exactly.

        A rounded sum may differ between neighbours by more than their uploads do. Only public
        numbers decide.

        Raises:
            ConfigError: If the clients' bounds add up to 2^53 steps of the grid or more.
        """
        most = 2**53 / (float(_positive("clip", bound)) / _grid(scale))
        expected = f"below {most:.3g}, or more noise: sums of these would not be exact"
        ConfigError.unless(clients < most * (1 - 1e-12), "clients", clients, expected)


MECHANISMS: dict[str, Mechanism] = {
    "gaussian": Mechanism("gaussian", 2),
    "laplace": Mechanism("laplace", 1),
    "privunit": Mechanism("privunit", 2),
}
"""The mechanisms by name."""


def mechanism_named(name: str) -> Mechanism:
    """A mechanism by its name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in MECHANISMS:
        raise ConfigError(f"mechanism = {name!r}: expected one of {', '.join(MECHANISMS)}")
    return MECHANISMS[name]


def _grid(scale: float) -> float:
    _, exponent = math.frexp(float(_positive("scale", scale)))
    return math.ldexp(1.0, exponent - 1 - _GRID_BITS)


def _steps(scale: float) -> int:
    """The scale in whole steps of its grid, rounded up.

    A product of floats may be half a unit in the last place too small; the next double is not.
    """
    return int(np.ceil(np.nextafter(float(scale), np.inf) / _grid(scale)))


def _flat(uploads: ArrayLike) -> Floats:
    array = np.asarray(uploads, dtype=np.float64)
    ConfigError.unless(array.ndim >= 2, "uploads", array.shape, "one upload a row")
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _positive(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if not ((array >= 1e-100) & (array <= 1e100)).all():
        shown = quoted(array.tolist())
        raise ConfigError(f"{name} = {shown}: expected a number from 1e-100 to 1e100")
    return array
