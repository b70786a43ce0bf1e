"""A randomiser of directions, for uploads that are seen one by one: far less noise than adding it.

PrivUnit (Bhowmick et al. 2018; the best there is in high dimensions: Asi, Feldman and Talwar 2022,
whose Gaussian form this is). For an upload of direction u, draw z standard normal in every
coordinate and replace its part along u by a number a,

    release = scale * (z + (a - <z, u>) u),        scale = clip / strength,

where a is a standard normal above a threshold x with probability p, and one below it otherwise. So
the release has the density of plain noise times p / P[a >= x] in the cap around u, and times
(1 - p) / P[a < x] outside. For any two directions the densities differ by a factor of at most

    p Phi(x) / ((1 - p) Phi(-x)) = exp(epsilon),

whatever the dimension: pure epsilon, replace one client by another. The mean of a is the
strength, so that the release is clip * u on average. Its noise is clip / strength in every
coordinate (but for the one along u), where Gaussian noise would need 2 * clip / mu.

An upload shorter than the clip is turned round at random, with the probability that makes its
mean right; no upload at all is any direction with equal probability. Both only mix inputs, each of
which is protected.

It cannot be spread over many clients as noise can: it is for ``trust = local``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit, log_ndtr, ndtri_exp

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.noise import NoiseSource

__all__ = ["Cap", "along_of", "cap_of", "epsilon_of", "randomise"]

Floats = NDArray[np.float64]

_LOG_ROOT_TAU = 0.5 * np.log(2 * np.pi)
_FAR = 30.0  # standard deviations, from where on a series is as good as exact
_SAFETY = 1e-9  # relative, of epsilon: more than rounding can add to it
_LEAST, _MOST = 1e-14, 1e7  # epsilons


class Cap(NamedTuple):
    """Which part of the sphere is preferred, and how strongly; one entry for each epsilon.

    Attributes:
        threshold: From where on the cap begins, x.
        chance: To be in it, p.
        strength: Mean of the part along the upload.
    """

    threshold: Floats
    chance: Floats
    strength: Floats


def cap_of(epsilon: ArrayLike) -> Cap:
    """The cap that leaves the least noise at an epsilon.

    Example:
        >>> [round(float(cap_of(epsilon).strength), 2) for epsilon in (1, 10)]
        [0.4, 3.26]
    """
    wanted = np.asarray(epsilon, dtype=np.float64)
    good = bool(((wanted >= _LEAST) & (wanted <= _MOST)).all())
    ConfigError.unless(good, "epsilon", epsilon, f"from {_LEAST:g} to {_MOST:g}")
    wanted = wanted * (1 - _SAFETY)
    low, high = np.zeros_like(wanted), np.sqrt(2 * wanted) + 1.0
    for _ in range(70):
        middle = (low + high) / 2
        weak = _best_epsilon(middle) <= wanted
        low, high = np.where(weak, middle, low), np.where(weak, high, middle)
    return Cap(low, _chance(low, wanted), _strength(low, wanted))


def epsilon_of(strength: ArrayLike) -> Floats:
    """The epsilon of a release of so much strength, rounded up."""
    found = _best_epsilon(np.asarray(strength, dtype=np.float64))
    return np.asarray(found * (1 + _SAFETY / 2))  # a cap is that much weaker than it may be


def _best_epsilon(threshold: Floats) -> Floats:
    """The epsilon for which this threshold is the best one; it is the strength then, too.

    The strength's derivative is zero where it equals x, and solving that for epsilon gives
    exp(epsilon) = (phi(x) + x Phi(x)) / (phi(x) - x Phi(-x)).
    """
    near, far = np.minimum(threshold, _FAR), np.maximum(threshold, _FAR)
    density = np.exp(-0.5 * near**2 - _LOG_ROOT_TAU)
    mills = np.sqrt(np.pi / 2) * erfcx(near / np.sqrt(2))  # Phi(-x) / phi(x)
    small = np.log1p(near / (density * (1 - near * mills)))
    with np.errstate(over="ignore"):  # infinite is a good answer there
        # x + phi(x) - x Phi(-x) is x, and phi(x) - x Phi(-x) is phi(x) (1/x^2 - 3/x^4 + ...)
        tail = -np.log1p(-3 / far**2 + 15 / far**4 - 105 / far**6)
        large = 0.5 * far**2 + _LOG_ROOT_TAU + 3 * np.log(far) + tail
    return np.asarray(np.where(threshold < _FAR, small, large))


def randomise(clipped: ArrayLike, source: NoiseSource, *, bound: float, epsilon: float) -> Floats:
    """Uploads of at most the bound's length, each released on its own for epsilon.

    Args:
        clipped: One upload a row, ``[n, size]``, none longer than the bound.
        source: Where random numbers come from.
        bound: The clip, in L2.
        epsilon: Pure, for each of them.
    """
    uploads = np.asarray(clipped, dtype=np.float64)
    cap, bound = cap_of(float(epsilon)), float(bound)
    length = np.sqrt((uploads**2).sum(axis=1))
    short = bool((length <= bound * (1 + 1e-9)).all())  # NaN is not
    ConfigError.unless(short, "uploads", "longer", "uploads that were clipped to the bound")
    normal = source.normal(uploads.shape)
    anywhere = source.normal(uploads.shape)
    turn, inside, where = source.uniform((3, len(uploads)))
    nothing = length <= 0
    anywhere /= np.sqrt((anywhere**2).sum(axis=1, keepdims=True))
    direction = np.where(
        nothing[:, None], anywhere, uploads / np.where(nothing, 1.0, length)[:, None]
    )
    direction *= np.where(turn < (1 + np.minimum(length / bound, 1.0)) / 2, 1.0, -1.0)[:, None]
    along = along_of(cap, inside, where)
    scale = bound / float(cap.strength)
    part = along - (normal * direction).sum(axis=1)
    return np.asarray(scale * (normal + part[:, None] * direction))


def along_of(cap: Cap, inside: Floats, where: Floats) -> Floats:
    """The part along the upload, from two uniform numbers between 0 and 1."""
    rank = np.log(where)
    above = -ndtri_exp(rank + log_ndtr(-cap.threshold))
    return np.asarray(
        np.where(inside < cap.chance, above, ndtri_exp(rank + log_ndtr(cap.threshold)))
    )


def _chance(threshold: Floats, epsilon: Floats) -> Floats:
    """P such that p Phi(x) / ((1 - p) Phi(-x)) = exp(epsilon)."""
    return np.asarray(expit(epsilon - log_ndtr(threshold) + log_ndtr(-threshold)))


def _strength(threshold: Floats, epsilon: Floats) -> Floats:
    """Mean of a: phi(x) (p / Phi(-x) - (1 - p) / Phi(x)), written so as not to cancel.

    With p = e^eps Phi(-x) / (Phi(x) + e^eps Phi(-x)) that is
    phi(x) (e^eps - 1) / (Phi(x) + e^eps Phi(-x)).
    """
    density = -0.5 * threshold**2 - _LOG_ROOT_TAU
    below, beyond = log_ndtr(threshold), log_ndtr(-threshold)
    whole = np.logaddexp(below - epsilon, beyond)
    return np.asarray(-np.expm1(-epsilon) * np.exp(density - whole))
