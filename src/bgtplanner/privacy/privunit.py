"""A randomiser of directions, for uploads that are seen one by one: far less noise than additive.

PrivUnit (Bhowmick et al. 2018; the best there is in high dimensions: Asi, Feldman and Talwar 2022,
whose Gaussian form this is). For an upload of direction u, draw z standard normal in every
coordinate and replace its part along u by a number a,

    release = scale * (z + (a - <z, u>) u),        scale = clip / strength,

where a is a standard normal above a threshold x with probability p, and one below it otherwise.
For any two directions the densities of the release differ by a factor of at most

    p Phi(x) / ((1 - p) Phi(-x)) = exp(epsilon),

whatever the dimension: pure epsilon, replace one client by another. The mean of a is the
strength, so that the release has the mean clip * u. An upload that is shorter than the clip is
reversed at random, with the probability that makes its mean right. A zero upload takes a uniformly
random direction. Both only mix inputs, each of which is protected.

For a real client the choices are exact coins of 64 bits whose odds are rounded down, z and a are
exact to 112 bits below the point, and the release is computed in whole numbers and rounded to 24
bits; ``docs/proofs/privunit.md`` bounds what remains, which is a delta of at most 2^-40: a release
of a larger one is refused. It is for ``trust = local``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, erfcx, log_ndtr

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.mechanisms import Limits, Mechanism, grid_of, special_of
from bgtplanner.privacy.randomness import FINE_BITS, ExactNoise, sure

Floats = NDArray[np.float64]
Big = NDArray[np.object_]
Array = Any  # of NumPy, or of JAX

_LOG_ROOT_TAU = 0.5 * np.log(2 * np.pi)
_THIN = 8.0  # standard deviations beyond which single precision has no tail
_FAR = 30.0  # standard deviations beyond which a series is as good as exact
_SAFETY = 1e-9  # relative to epsilon: more than rounding can add to it
_LEAST, _MOST = 1e-14, 1e7  # epsilons
_RELEASED_BITS = 24  # bits of a release below its scale
_INPUT_BITS = 60  # bits of an upload's direction that are used
_ROUNDED = 2.0**42  # the most that (1 + exp(epsilon)) * coordinates may be: 2^-40 over 2^-82


class Cap(NamedTuple):
    """Which part of the sphere is preferred, and how strongly; one entry for each epsilon.

    The lead is by how much a release in the cap is more likely than one outside: p - (1 - p). For
    a small epsilon p itself is next to 1/2, where doubles are too sparse.
    """

    threshold: Floats  # where the cap begins: x
    lead: Floats
    strength: Floats  # the mean of the part along the upload

    @property
    def chance(self) -> Floats:
        """The probability p of the cap, as a double."""
        return np.asarray(0.5 + 0.5 * self.lead)

    @property
    def chance_words(self) -> NDArray[np.uint64]:
        """The probability p in units of 2^-64, rounded down, which is the safe side."""
        return _words(self.lead)


def cap_of(epsilon: ArrayLike) -> Cap:
    """Return the cap with the least noise at an epsilon."""
    wanted = np.asarray(epsilon, dtype=np.float64)
    good = bool(((wanted >= _LEAST) & (wanted <= _MOST)).all())
    ConfigError.unless(good, "epsilon", epsilon, f"from {_LEAST:g} to {_MOST:g}")
    different, which = np.unique(wanted, return_inverse=True)  # clients mostly pay the same
    return Cap(*(np.asarray(part[which]) for part in _caps_of(tuple(different.tolist()))))


@lru_cache(maxsize=256)  # and mostly the same again
def _caps_of(epsilons: tuple[float, ...]) -> Cap:
    wanted = np.array(epsilons) * (1 - _SAFETY)
    low, high = np.zeros_like(wanted), np.sqrt(2 * wanted) + 1.0
    for _ in range(70):
        middle = (low + high) / 2
        weak = _best_epsilon(middle) <= wanted
        low, high = np.where(weak, middle, low), np.where(weak, high, middle)
    return Cap(low, _lead(low, wanted), _strength(low, wanted))


def epsilon_of(strength: ArrayLike) -> Floats:
    """Return the epsilon of a release of this strength, rounded up."""
    found = _best_epsilon(np.asarray(strength, dtype=np.float64))
    return np.asarray(found * (1 + _SAFETY / 2))  # a cap is weaker than allowed by this much


def _best_epsilon(threshold: Floats) -> Floats:
    """Return the epsilon for which this threshold is the best one, and then also the strength.

    There exp(epsilon) = (phi(x) + x Phi(x)) / (phi(x) - x Phi(-x)): the derivative is zero.
    """
    near, far = np.minimum(threshold, _FAR), np.maximum(threshold, _FAR)
    density = np.exp(-0.5 * near**2 - _LOG_ROOT_TAU)
    mills = np.sqrt(np.pi / 2) * erfcx(near / np.sqrt(2))  # Phi(-x) / phi(x)
    small = np.log1p(near / (density * (1 - near * mills)))
    with np.errstate(over="ignore"):  # infinity is the right answer there
        # x + phi(x) - x Phi(-x) is x, and phi(x) - x Phi(-x) is phi(x) (1/x^2 - 3/x^4 + ...)
        tail = -np.log1p(-3 / far**2 + 15 / far**4 - 105 / far**6)
        large = 0.5 * far**2 + _LOG_ROOT_TAU + 3 * np.log(far) + tail
    return np.asarray(np.where(threshold < _FAR, small, large))


def randomise(clipped: ArrayLike, source: ExactNoise, *, bound: float, epsilon: float) -> Floats:
    """Release uploads within the bound in L2, one per row, each for a pure epsilon."""
    uploads = np.asarray(clipped, dtype=np.float64)
    cap, bound = cap_of(float(epsilon)), float(bound)
    largest, norm, direction = PRIVUNIT.polar(uploads)
    length = largest * norm
    short = bool((length <= bound * (1 + 1e-9)).all())  # false for NaN
    ConfigError.unless(short, "uploads", "longer", "uploads that were clipped to the bound")
    most = math.log(_ROUNDED / max(uploads.shape[1], 1) - 1)
    expected = f"at most {most:.4g} for an upload of so many coordinates"
    ConfigError.unless(float(epsilon) <= most, "epsilon", float(epsilon), expected)
    scale = bound / float(cap.strength)
    return np.asarray(scale * _turned_exactly(direction, length / bound, cap, source))


def _along(source: Any, threshold: Array, chance: Array, share: Array) -> Array:
    """Return the part of each release along its upload; shorter uploads are reversed at times."""
    xp, special = share.__array_namespace__(), special_of(share)
    turn, inside, where = source.uniform((3, *share.shape))
    far = xp.sqrt(threshold**2 - 2.0 * xp.log(where))  # where the tail is too thin for floats
    near = -special.ndtri(where * special.ndtr(-xp.minimum(threshold, _THIN)))
    above = xp.where(threshold < _THIN, near, far)
    below = special.ndtri(where * special.ndtr(threshold))
    along = xp.where(inside < chance, above, below)
    ahead = turn < 0.5 * (1.0 + xp.minimum(share, 1.0))
    return xp.where(ahead, along, -along)


def _turned_exactly(direction: Floats, share: Floats, cap: Cap, source: ExactNoise) -> Floats:
    """Return releases over their scale, computed in whole numbers up to the last rounding.

    Which whole vector represents a direction affects only accuracy: the release is private for any
    two of them.
    """
    toward = np.rint(direction * 2.0**_INPUT_BITS).astype(np.int64).astype(object)
    anywhere = source.fine_normal(direction.shape)
    vector = np.where((direction != 0).any(axis=1, keepdims=True), toward, anywhere)
    vector = np.where(source.coins(_words(share))[:, None], vector, -vector)
    normal = source.fine_normal(direction.shape)
    along = _along_exactly(cap, len(direction), source)
    square = np.maximum((vector * vector).sum(axis=1), 1)
    length = np.array([math.isqrt(int(value) << 128) for value in square], dtype=object)
    part = along * length - ((normal * vector).sum(axis=1) << 64)
    turned = normal + part[:, None] * vector // (square << 64)[:, None]
    dropped = FINE_BITS - _RELEASED_BITS
    steps = (turned + (1 << (dropped - 1))) >> dropped
    return np.asarray(steps.astype(np.float64) * 2.0**-_RELEASED_BITS)


def _along_exactly(cap: Cap, number: int, source: ExactNoise) -> Big:
    """Draw the parts along the uploads, in units of 2^-112."""
    threshold = int(Fraction(float(cap.threshold)) * 2**FINE_BITS)
    inside = source.coins(np.full(number, cap.chance_words))
    along = np.empty(number, dtype=object)
    above, below = int(inside.sum()), number - int(inside.sum())

    def normal(tries: int, ahead: bool) -> Big:
        drawn = source.fine_normal((tries,))
        return np.asarray(drawn[(drawn >= threshold) == ahead])

    def tail(tries: int) -> Big:
        return normal(tries, True) if near else _try_tail(threshold, tries, source)

    near = threshold < 2 ** (FINE_BITS - 1)
    along[inside] = source.accepted(tail, 0.3 if near else 0.43, (above,))
    along[~inside] = source.accepted(lambda tries: normal(tries, False), 0.5, (below,))
    return along


def _try_tail(threshold: int, tries: int, source: ExactNoise) -> Big:
    """Draw normal variates beyond a threshold x by Marsaglia (1964): x + e / x, e exponential.

    They are accepted with probability exp(-e^2 / (2 x^2)).
    """
    one = 1 << FINE_BITS
    rest = source.below_any(one, tries)
    rest = rest[source.exp_coins(lambda at: source.below_any(one, len(at)) < rest[at], tries)]
    times = source.count(len(rest), lambda at: source.exp_coins(sure, len(at)))
    size = rest + times.astype(object) * one
    below, above = size * size, 2 * threshold * threshold
    whole, left = (below // above).astype(np.int64), below % above
    good = source.all_heads(whole, lambda at: source.exp_coins(sure, len(at)))
    good &= source.exp_coins(lambda at: source.below_any(above, len(at)) < left[at], len(size))
    return np.asarray(threshold + (size[good] << FINE_BITS) // threshold)


def _words(lead: Floats) -> NDArray[np.uint64]:
    """Return (1 + lead) / 2 in units of 2^-64, rounded down; a lead above 1 counts as 1."""
    half = np.floor(np.minimum(lead, 1 - 2.0**-53) * 2.0**63)
    return np.asarray(half.astype(np.uint64) + np.uint64(2**63))


def _lead(threshold: Floats, epsilon: Floats) -> Floats:
    """Return 2p - 1 for the p with p Phi(x) / ((1 - p) Phi(-x)) = exp(epsilon).

    The logarithm of p / (1 - p) is epsilon - log(Phi(x) / Phi(-x)). Both are of the size of x for
    a small x, where the second is twice the area hyperbolic tangent of 2 Phi(x) - 1.
    """
    small = 2 * np.arctanh(erf(np.minimum(threshold, 1.0) / np.sqrt(2)))
    large = log_ndtr(threshold) - log_ndtr(-threshold)
    odds = epsilon - np.where(threshold < 1, small, large)
    return np.asarray(np.tanh(np.maximum(odds, 0.0) / 2))


def _strength(threshold: Floats, epsilon: Floats) -> Floats:
    """Return the mean of a: phi(x) (p / Phi(-x) - (1 - p) / Phi(x)), without cancellation.

    With p = e^eps Phi(-x) / (Phi(x) + e^eps Phi(-x)) that is
    phi(x) (e^eps - 1) / (Phi(x) + e^eps Phi(-x)).
    """
    density = -0.5 * threshold**2 - _LOG_ROOT_TAU
    below, beyond = log_ndtr(threshold), log_ndtr(-threshold)
    whole = np.logaddexp(below - epsilon, beyond)
    return np.asarray(-np.expm1(-epsilon) * np.exp(density - whole))


class PrivUnit(Mechanism):
    """Uploads whose directions are randomised, one by one."""

    __slots__ = ()
    name, order, accountant = "privunit", 2, "privunit/zcdp"
    trusts, units = ("local",), ("client",)

    def multiplier_of(self, epsilon: Floats) -> Floats:
        return np.asarray(0.5 / cap_of(epsilon).strength)

    def epsilon_of(self, multiplier: Floats) -> Floats:
        return epsilon_of(0.5 / multiplier)

    def parameters(self, charges: Floats) -> Floats:
        """Return the threshold and chance of the cap of each charge, which is an epsilon."""
        cap = cap_of(np.where(charges > 0, charges, 1.0))
        return np.stack([cap.threshold, cap.chance], axis=1)

    def randomise(
        self, clipped: ArrayLike, source: ExactNoise, *, scale: float, bound: float, charge: float
    ) -> Floats:
        released, grid = randomise(clipped, source, bound=bound, epsilon=charge), grid_of(scale)
        return np.asarray(np.rint(released / grid) * grid)

    def released_sum(self, source: Any, uploads: Any, terms: Any, **_: Any) -> Sequence[Array]:
        """Return the sum of what all clients release.

        The direction is randomised within the coordinates of an upload; the others carry plain
        noise, whose sum is drawn at once. An empty upload is plain noise in all of them.
        """
        *of_noise, of_rest, of_dense_rest, of_along = source.split(5)
        clip, scale, cap = (
            part[terms.class_of_client]
            for part in (terms.clip, terms.scale, _caps(terms.parameters))
        )
        length = self.root(uploads.size(self))
        xp = length.__array_namespace__()
        part = _along(of_along, cap[:, 0], cap[:, 1], length / clip)
        unit = uploads.times(1.0 / xp.maximum(length, 1e-30))
        normal = uploads.normal(of_noise)
        for inner in normal.inner(unit):
            part = part - inner
        size = terms.granted * (length > 0) * scale
        total = normal.plus(unit.times(part)).times(size).total()
        everybody, covered = (terms.granted * scale**2).sum(), uploads.covered(size**2)
        return [
            part + xp.sqrt(xp.maximum(everybody - own, 0.0)) * rest.normal(part.shape)
            for part, own, rest in zip(total, covered, (of_rest, of_dense_rest), strict=True)
        ]

    def limits(
        self, reach: Array, rare: Array, size: int, *, parameters: Array | None = None
    ) -> Limits:
        # The density is at most chance / P[z >= threshold] times that of plain noise, and so is
        # any probability; nothing is shifted.
        xp, cap = reach.__array_namespace__(), _caps(parameters)
        rare = rare + xp.log(cap[..., 1]) - special_of(reach).log_ndtr(-cap[..., 0])
        return super().limits(xp.zeros_like(reach), rare, size)


def _caps(parameters: Array | None) -> Array:
    if parameters is None:
        raise ConfigError("the terms have no caps: they are not for privunit")
    return parameters


PRIVUNIT = PrivUnit()
