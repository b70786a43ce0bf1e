"""Where random numbers for noise come from.

Whoever can predict the noise can remove it. A real client therefore draws from the operating
system, directly (:class:`SystemNoise`) or through a secret key drawn there once
(:class:`KeyedNoise`), which lets it repeat an answer word for word instead of releasing a second
one. Seeds (:class:`SeededNoise`) are for simulations: replaying seeded noise on changed data would
cancel it.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, gammaincinv, ndtri

from bgtplanner.errors import ConfigError

__all__ = ["KeyedNoise", "NoiseSource", "SeededNoise", "SystemNoise"]

Floats = NDArray[np.float64]
Shape = tuple[int, ...]

_RARE = np.uint64(2**47)  # of 2^63


class NoiseSource(Protocol):
    """Draws independent standard variates."""

    def normal(self, shape: Shape) -> Floats:
        """Standard normal: mean 0, standard deviation 1."""
        ...

    def laplace(self, shape: Shape) -> Floats:
        """Standard Laplace: mean 0, scale 1, standard deviation sqrt(2)."""
        ...

    def gamma(self, concentration: float, shape: Shape) -> Floats:
        """Gamma with this shape parameter and scale 1."""
        ...

    def uniform(self, shape: Shape) -> Floats:
        """Uniform between 0 and 1."""
        ...


class SeededNoise:
    """Noise by seed: fast and repeatable, for simulations only."""

    def __init__(self, seed: int | list[int]) -> None:
        self._generator = np.random.default_rng(seed)

    def normal(self, shape: Shape) -> Floats:
        return self._generator.standard_normal(shape)

    def laplace(self, shape: Shape) -> Floats:
        return self._generator.laplace(size=shape)

    def gamma(self, concentration: float, shape: Shape) -> Floats:
        return self._generator.standard_gamma(concentration, shape)

    def uniform(self, shape: Shape) -> Floats:
        return self._generator.uniform(size=shape)


class _InverseNoise:
    """Variates from uniform ones by the inverse of their distribution function.

    Both tails are as finely spaced as doubles are. With a plain uniform number of 53 bits, values
    far out would be so sparse that one of them can tell which upload it was added to.
    """

    def _words(self, number: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._bytes(8 * number), dtype="<u8").astype(np.uint64)

    def _bytes(self, number: int) -> bytes:
        raise NotImplementedError

    def _tails(self, shape: Shape) -> tuple[NDArray[np.bool_], Floats]:
        """Which tail, and how much probability lies further out: above 0, at most 1/2."""
        words = self._words(math.prod(shape))
        upper, rest = (words & np.uint64(1)).astype(bool), words >> np.uint64(1)
        beyond = np.asarray((rest + 0.5) * 2.0**-64, dtype=np.float64)
        rare = np.flatnonzero(rest < _RARE)
        if len(rare):  # in 1 of 65,536 cases 64 bits are too few: take as many again
            beyond[rare] = (rest[rare] + (self._words(len(rare)) + 0.5) * 2.0**-64) * 2.0**-64
        return upper.reshape(shape), beyond.reshape(shape)

    def normal(self, shape: Shape) -> Floats:
        upper, beyond = self._tails(shape)
        size = ndtri(beyond)
        return np.asarray(np.where(upper, -size, size))

    def laplace(self, shape: Shape) -> Floats:
        upper, beyond = self._tails(shape)
        size = np.log(2 * beyond)
        return np.asarray(np.where(upper, -size, size))

    def gamma(self, concentration: float, shape: Shape) -> Floats:
        upper, beyond = self._tails(shape)
        values = np.empty(shape)
        values[upper] = gammainccinv(concentration, beyond[upper])
        values[~upper] = gammaincinv(concentration, beyond[~upper])
        return values

    def uniform(self, shape: Shape) -> Floats:
        words = self._words(math.prod(shape)).reshape(shape)
        return np.asarray((words + 0.5) * 2.0**-64, dtype=np.float64)


class SystemNoise(_InverseNoise):
    """Noise from the operating system's generator; cannot be repeated by anybody."""

    def _bytes(self, number: int) -> bytes:
        return os.urandom(number)


class KeyedNoise(_InverseNoise):
    """Noise that only the holder of a secret key can repeat (SHAKE-256 of key and label).

    Args:
        key: At least 16 secret bytes, drawn from the operating system.
        label: What this noise is for. The same label gives the same noise, so it must name the
            release (run, round, attempt) and never be used for two different inputs.
    """

    def __init__(self, key: bytes, label: bytes) -> None:
        ConfigError.unless(len(key) >= 16, "key", f"{len(key)} bytes", "at least 16 bytes")
        self._prefix = len(key).to_bytes(8, "little") + key + label
        self._block = 0

    def _bytes(self, number: int) -> bytes:
        self._block += 1
        block = self._prefix + self._block.to_bytes(8, "little")
        return hashlib.shake_256(block).digest(number)
