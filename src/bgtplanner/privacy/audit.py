"""Lower bounds on epsilon by experiment, and checks that noise is what was stated.

Release two neighbouring inputs many times, let a test guess which one it was, and turn how often
it is right into a lower bound on epsilon that holds with high confidence. If the bound exceeds the
claim, the claim is wrong. An experiment can never prove a claim right, and the most that it can
show is known before it begins: the bound of a test that is never wrong.

Guesses alone need about exp(epsilon) releases. If the mechanism is known, a few hundred reveal
faults that guesses would miss: noise that is a tenth too small, a coordinate without noise, noise
that is reused, an upload beyond its clip. A :class:`Check` is a test with an exact distribution.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, chdtri, gammainc, gammaincc, stdtrit
from scipy.stats import binom

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.conversions import gdp_epsilon

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MOST = 1e5  # the largest epsilon that is reported: no budget may claim more

_CANDIDATES = 300
_PILOT = 10  # one release in ten chooses the test
_OF_WRONG = 0.9  # share of the risk for the rate of wrong guesses, which matters most
_OF_MEANS = 0.8  # share of the risk for the difference of the means; the rest for the variance
_CLOSE = 1e-6  # relative to the noise's scale; values that are closer count as equal


class Finding(NamedTuple):
    """Lower bounds from guesses alone, for any mechanism, and for Gaussian scores.

    `largest` is what `epsilon` would have been without a wrong guess.
    """

    epsilon: float
    epsilon_gaussian: float
    largest: float


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


# ---- right and wrong guesses


def bound_of_guesses(
    right: ArrayLike, wrong: ArrayLike, releases: int, *, delta: float, risk: float
) -> Floats:
    """Return a lower bound on epsilon from guesses, with half of the releases of each input.

    An (epsilon, delta)-private mechanism gives ``P[right] <= exp(epsilon) P[wrong] + delta``,
    averaged over both inputs, for any test that may also abstain. Each rate is replaced by its
    Clopper-Pearson bound, which also holds for the mean of unequal chances (Hoeffding 1956);
    `risk`, at most 1/3, is the probability with which the result may be too large.
    """
    hits, misses = np.asarray(right, float), np.asarray(wrong, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = betaincinv(hits, releases - hits + 1, risk * (1 - _OF_WRONG))
        most = betaincinv(misses + 1, releases - misses, 1 - risk * _OF_WRONG)
        excess = np.maximum(np.where(hits > 0, least, 0.0) - delta, 0.0)
        return np.maximum(np.log(excess / np.where(misses < releases, most, 1.0)), 0.0)


def largest_epsilon(releases: int, *, delta: float, confidence: float) -> float:
    """Return the most that a number of releases can show: the bound of a perfect test."""
    return float(bound_of_guesses(releases, 0, releases, delta=delta, risk=1 - confidence))


def releases_needed(epsilon: float, *, delta: float, confidence: float) -> int:
    """Return how many releases it takes to show more than an epsilon, if no guess is wrong.

    Those that choose the test are included. The result is at least 2^62 if it takes more.
    """

    def enough(releases: int) -> bool:
        return largest_epsilon(releases, delta=delta, confidence=confidence) > epsilon

    judged = bisect_left(range(2**62), True, key=enough)
    return judged + -(-judged // (_PILOT - 1)) + 2


def _guesses(first: Floats, second: Floats, thresholds: ArrayLike) -> tuple[Counts, Counts]:
    """Return how many guesses by the sign of a score are right and wrong, from each size on."""
    right, wrong = (
        sum(len(part) - np.searchsorted(np.sort(part), np.asarray(thresholds)) for part in parts)
        for parts in ((first, -second), (second, -first))
    )
    return np.asarray(right), np.asarray(wrong)


def bound_of_means(first: Floats, second: Floats, *, delta: float, risk: float) -> float:
    """Return a lower bound on epsilon from the distance of the means of Gaussian scores.

    For Gaussian scores of equal variance it is too large with probability at most `risk`: the
    difference of the means by Student's distribution, the variance by chi-square.
    """
    freedom, means = len(first) + len(second) - 2, (float(first.mean()), float(second.mean()))
    squares = len(first) * float(first.var()) + len(second) * float(second.var())
    deviation = math.sqrt(squares / freedom)
    error = deviation * math.sqrt(1 / len(first) + 1 / len(second))
    apart = means[0] - means[1] - float(stdtrit(freedom, 1 - risk * _OF_MEANS)) * error
    # chdtri returns the value that is exceeded with a probability.
    most = deviation * math.sqrt(freedom / float(chdtri(freedom, 1 - risk * (1 - _OF_MEANS))))
    rounding = 1e-12 * max(map(abs, means))
    if apart <= rounding:
        return 0.0
    mu = apart / most if most > rounding else math.inf
    return min(MOST, float(gdp_epsilon(mu**2, delta)))


def lower_bound(
    scores: ArrayLike,
    neighbour_scores: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.99,
    confidence_gaussian: float = 0.99,
) -> Finding:
    """Return lower bounds on epsilon from scores of releases of one input and of its neighbour.

    Larger scores mean "more like the first input". A guess is made of scores that are far enough
    from the middle between both inputs. One score in ten chooses how far that is, which costs no
    confidence, and the others judge. Each bound holds with its confidence.
    """
    both = [np.asarray(part, float).ravel() for part in (scores, neighbour_scores)]
    number = len(both[0])
    fits = number == len(both[1]) >= 4 and bool(np.isfinite(both).all())
    ConfigError.unless(fits, "scores", number, "at least 4 finite ones, equally many of both")
    pilot = np.arange(number) % _PILOT == 0
    middle = sum(float(np.median(part[pilot])) for part in both) / 2
    first, second = (part - middle for part in both)
    sizes = np.sort(np.abs(np.concatenate([first[pilot], second[pilot]])))
    sizes = sizes[-np.unique(np.geomspace(1, len(sizes), _CANDIDATES).astype(int))]
    thresholds = np.append(sizes[sizes > 0], np.inf)
    # A risk so small that the best of all candidates is not merely the luckiest.
    guesses = _guesses(first[pilot], second[pilot], thresholds)
    values = bound_of_guesses(*guesses, 2 * int(pilot.sum()), delta=delta, risk=1e-3)
    guesses = _guesses(first[~pilot], second[~pilot], thresholds[int(values.argmax())])
    judged = 2 * int((~pilot).sum())
    return Finding(
        min(MOST, float(bound_of_guesses(*guesses, judged, delta=delta, risk=1 - confidence))),
        bound_of_means(*both, delta=delta, risk=1 - confidence_gaussian),
        largest_epsilon(judged, delta=delta, confidence=confidence),
    )


# ---- is the noise what was stated?


def at_least(name: str, hits: int, number: int, chance: float, fault: str) -> Check:
    """Check whether something happened more often than with a probability of `chance`."""
    return Check(name, float(binom.sf(hits - 1, number, chance)), hits / number, chance, fault)


def fair_coins(name: str, coins: Iterable[NDArray[np.bool_]], fault: str) -> Check:
    """Check whether coins, each tossed many times, show both of their sides equally often.

    The worst coin counts, corrected for their number.
    """
    found = []
    for tosses in coins:
        most = max(int(tosses.sum()), int((~tosses).sum()))
        found.append((2 * float(binom.sf(most - 1, len(tosses), 0.5)), most / len(tosses)))
    p_value, measured = min(found)
    return Check(name, min(1.0, len(found) * p_value), measured, 0.5, fault)


def size_of_noise(first: Floats, second: Floats, *, laplace: bool) -> Check:
    """Check whether noise is as large as stated, no less and no more, in all and in every column.

    The noise of the releases of each input, ``[releases, columns]``, is in units of the stated
    scale. The sum of squares about the mean has a chi-square distribution, that of the absolute
    values of Laplace noise a Gamma one: Gaussian noise may be off by a constant.
    """
    if laplace:
        size = np.abs(first).sum(axis=0) + np.abs(second).sum(axis=0)
        freedom = float(len(first) + len(second))
    else:
        size = (len(first) * first.var(axis=0) + len(second) * second.var(axis=0)) / 2
        freedom = (len(first) + len(second)) / 2 - 1
    tails = ((gammainc, size.min(), "smaller"), (gammaincc, size.max(), "larger"))
    found = [
        (2 * number * float(tail(freedom * of, worst * of)), float(worst / freedom), word)
        for tail, extreme, word in tails
        for number, of, worst in ((1, len(size), size.mean()), (len(size), 1, extreme))
    ]
    p_value, measured, word = min(found)
    measured = measured if laplace else math.sqrt(measured)  # of scales, not of variances
    fault = f"the noise is {word} than stated"
    return Check("size of the noise", min(1.0, 2 * p_value), measured, 1.0, fault)


def fresh_noise(first: Floats, second: Floats) -> Check:
    """Check whether noise is drawn anew for every release, input and coordinate.

    The signs of independent differences agree in half of the cases, and no two rows or values of a
    row are ever equal. The worst relation counts, corrected for the number of relations.
    """
    # The difference of two releases has mean 0, and is as often positive as negative.
    one, other = (part[:-1:2] - part[1::2] > 0 for part in (first, second))
    signs = np.where(one, 1.0, -1.0)
    columns = (len(signs) + signs.T @ signs)[np.triu_indices(signs.shape[1], 1)] / 2
    agreeing = [
        ("inputs", np.array([(one == other).sum()]), one.size),
        ("clients", np.array([(one[:-1:2] == one[1::2]).sum()]), one[1::2].size),
        ("coordinates", columns, len(signs)),
    ]
    found = []
    for relation, agree, number in agreeing:  # the pair that agrees, or differs, most often
        worst = agree[np.abs(agree - number / 2).argmax()]
        tails = binom.cdf(worst, number, 0.5), binom.sf(worst - 1, number, 0.5)
        found.append((2 * float(min(tails)) * len(agree), relation, float(worst) / number))
    every = np.abs(np.concatenate([first, second]))
    rows = every[np.argsort(every[:, 0], kind="stable")]  # equal rows come next to each other
    equal = int((np.abs(np.diff(rows, axis=0)) <= _CLOSE).all(axis=1).sum())
    # Grids are fine enough that two numbers are this close with a chance far below 0.001.
    chance = 1e-3 ** (every.shape[1] - 1)
    found.append((float(binom.sf(equal - 1, len(every), chance)), "releases", equal / len(every)))
    p_value, place, measured = min(found)
    fault = f"noise is used more than once (between {place})"
    return Check("fresh noise", min(1.0, p_value * len(found)), measured, 0.5, fault)
