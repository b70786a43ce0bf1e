"""Is the noise what was stated: as large, on every coordinate, and fresh each time?

An audit by guesses alone needs exp(epsilon) releases. If the mechanism is known, a few hundred
reveal faults that guesses would miss: noise that is a tenth too small, a coordinate without noise,
noise that is reused, an upload that exceeds its clip. Each check is a test with an exact
distribution, one-sided if more does no harm, and each can refute the mechanism that the claim
rests on.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc
from scipy.stats import binom

__all__ = ["Check", "NoiseWatch", "at_least"]

Floats = NDArray[np.float64]
Signs = NDArray[np.bool_]

_CLOSE = 1e-6  # relative to the noise's scale; values that are closer count as equal
_RELATIONS = ("clients", "rounds", "coordinates", "inputs", "batches")  # ties: the first


class Check(NamedTuple):
    """One property of the releases that the claim rests on, as measured and as stated.

    The p-value is the probability of this or worse if everything is as stated. The fault says
    what is wrong if the check is refuted.
    """

    name: str
    p_value: float
    measured: float
    stated: float
    fault: str


def at_least(name: str, hits: int, number: int, chance: float, fault: str) -> Check:
    """Check whether something happened more often than with a probability of `chance`."""
    p_value = float(binom.sf(hits - 1, number, chance)) if number else 1.0
    return Check(name, p_value, hits / max(number, 1), chance, fault)


class NoiseWatch:
    """Statistics of noise, gathered batch by batch without keeping it.

    Noise is given in units of its stated scale, with the stated upload subtracted.

    Args:
        kind: ``gaussian`` or ``laplace``. For Gaussian noise the upload may be off by a constant:
            the variance about the mean is measured.
    """

    def __init__(self, kind: Literal["gaussian", "laplace"]) -> None:
        self.kind = kind
        self._size = np.zeros(1)  # half the sum of squares, or that of absolute values, per column
        self._freedom = 0.0  # degrees of freedom of each column
        self._agree = dict.fromkeys(_RELATIONS, 0)
        self._pairs = dict.fromkeys(_RELATIONS, 0)
        self._equal = dict.fromkeys(_RELATIONS, 0)
        self._rows = dict.fromkeys(_RELATIONS, 0)
        self._first: tuple[Floats, Floats] | None = None

    def add(self, first: Floats, second: Floats) -> None:
        """Add the noise on releases of either input, ``[rounds, trials, columns]``."""
        for noise in (first, second):
            self._measure(noise)
        # The difference of two trials has mean 0 and is as often positive as negative.
        pair = (_differences(first), _differences(second))
        for differences in pair:
            self._compare("rounds", differences[1:], differences[:-1])
            self._compare("coordinates", differences[..., 1:], differences[..., :-1])
            self._compare("clients", differences[:, ::2], differences[:, 1::2])
            self._count_equal("clients", differences)
        self._compare("inputs", *pair)
        if self._first is None:
            self._first = pair
            return
        for now, before in zip(pair, self._first, strict=True):
            self._compare("batches", now, before)

    def _measure(self, noise: Floats) -> None:
        if self.kind == "gaussian":
            squares = (noise - noise.mean(axis=1, keepdims=True)) ** 2
            self._size = self._size + squares.sum(axis=(0, 1)) / 2
            self._freedom += noise.shape[0] * (noise.shape[1] - 1) / 2
        else:
            self._size = self._size + np.abs(noise).sum(axis=(0, 1))
            self._freedom += noise.shape[0] * noise.shape[1]

    def _compare(self, relation: str, one: Floats, other: Floats) -> None:
        number = min(one.shape[1], other.shape[1])
        one, other = one[:, :number], other[:, :number]
        if not one.size:
            return
        self._agree[relation] += int(((one > 0) == (other > 0)).sum())
        self._pairs[relation] += one.size
        if one.shape[2] == len(self._size):  # whole rows: noise may be reused only now and then
            self._count_equal(relation, np.abs(one) - np.abs(other))

    def _count_equal(self, relation: str, apart: Floats) -> None:
        same = (np.abs(apart) <= _CLOSE).all(axis=2)
        self._equal[relation] += int(same.sum())
        self._rows[relation] += same.size

    def size_check(self) -> Check:
        """Check whether the noise is as large as stated, in all and in every column.

        The sum of squares (of absolute values, for Laplace) has a chi-square (Gamma) distribution.
        """
        name, fault = "size of the noise", "the noise is smaller than stated"
        if not self._freedom:
            return Check(name, 1.0, 1.0, 1.0, fault)
        whole = float(gammainc(self._freedom * len(self._size), self._size.sum()))
        single = float(gammainc(self._freedom, self._size).min()) * len(self._size)
        ratios = self._size / self._freedom
        measured = float(ratios.min() if single < whole else ratios.mean())
        if self.kind == "gaussian":  # from variances to scales
            measured = math.sqrt(measured)
        return Check(name, min(1.0, 2 * min(whole, single)), measured, 1.0, fault)

    def fresh_check(self) -> Check:
        """Check whether noise is drawn anew for every round, input, client and coordinate.

        The signs of independent differences agree in half of the cases, and whole rows are almost
        never equal. The worst relation counts, corrected for the number of relations.
        """
        name = "fresh noise"
        found = []
        for place, relation in enumerate(_RELATIONS):
            number = self._pairs[relation]
            if number:
                agree = self._agree[relation]
                tails = binom.cdf(agree, number, 0.5), binom.sf(agree - 1, number, 0.5)
                found.append((2 * float(min(tails)), place, agree / number, 0.5))
            if self._rows[relation]:
                # The density of a difference is at most 1/2, in units of the scale.
                chance = (4 * _CLOSE) ** len(self._size)
                rows, equal = self._rows[relation], self._equal[relation]
                p_value = float(binom.sf(equal - 1, rows, chance))
                found.append((p_value, place, equal / rows, chance))
        p_value, place, measured, stated = min(found, default=(1.0, 0, 0.5, 0.5))
        fault = f"noise is used more than once (between {_RELATIONS[place]})"
        return Check(name, min(1.0, p_value * max(len(found), 1)), measured, stated, fault)


def _differences(noise: Floats) -> Floats:
    """Return the differences of pairs of trials, with no trial in more than one pair."""
    return np.asarray(noise[:, :-1:2] - noise[:, 1::2])
