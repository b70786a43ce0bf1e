"""Lower bounds on epsilon by experiment, and checks that noise is what was stated.

Release two neighbouring inputs many times, let a test guess which one it was, and turn how often
it is right into a lower bound on epsilon that holds with high confidence. If the bound exceeds the
claim, the claim is wrong. An experiment can never prove a claim right, and the most that it can
show is known before it begins: the bound of a test that is never wrong.

Guesses alone need about exp(epsilon) releases. If the mechanism is known, a few hundred reveal
faults that guesses would miss: noise that is a tenth too small, a coordinate without noise, noise
that is reused, an upload beyond its clip. A :class:`Check` is a test with an exact distribution.

=================  ==============================================================================
bound              valid for
=================  ==============================================================================
guesses            any mechanism; trials independent of each other
means              Gaussian scores only: far tighter, and without a limit
=================  ==============================================================================
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, chdtri, gammainc, stdtrit
from scipy.stats import binom

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.conversions import gdp_epsilon

Floats = NDArray[np.float64]

MOST = 1e5
"""The largest epsilon that is reported: no budget may claim more."""

_CANDIDATES = 300
_PILOT = 10  # one release in ten chooses the test
_OF_WRONG = 0.9  # share of the risk for the rate of wrong guesses, which matters most
_OF_MEANS = 0.8  # share of the risk for the difference of the means; the rest for the variance
_CLOSE = 1e-6  # relative to the noise's scale; values that are closer count as equal


class Finding(NamedTuple):
    """Lower bounds from guesses alone (for any mechanism) and for Gaussian scores.

    `largest` is what `epsilon` would have been without a wrong guess.
    """

    epsilon: float
    epsilon_gaussian: float
    largest: float
    releases: int
    confidence: float


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


def interval(hits: ArrayLike, number: ArrayLike, risk: float) -> tuple[Floats, Floats]:
    """Return Clopper-Pearson bounds on a probability, each wrong with probability at most `risk`.

    The trials need not have the same probability. The bounds are then on the mean probability, for
    a risk of up to 1/3 (Hoeffding 1956: sums of unequal chances are more concentrated).
    """
    found, total = np.broadcast_arrays(
        np.asarray(hits, dtype=np.float64), np.asarray(number, dtype=np.float64)
    )
    missed = total - found
    low = np.where(found > 0, betaincinv(found, missed + 1, risk), 0.0)
    high = np.where(missed > 0, betaincinv(found + 1, missed, 1 - risk), 1.0)
    return np.asarray(low), np.asarray(high)


def bound_of_guesses(
    correct: ArrayLike, wrong: ArrayLike, releases: ArrayLike, *, delta: float, risk: float
) -> Floats:
    """Return a lower bound on epsilon from guesses, with half of the releases of each input.

    An (epsilon, delta)-private mechanism gives ``P[right] <= exp(epsilon) P[wrong] + delta``,
    averaged over both inputs, for any test that may also abstain. Each rate is replaced by its
    exact bound; `risk` is the probability with which the result may be too large.
    """
    low, _ = interval(correct, releases, risk * (1 - _OF_WRONG))
    _, high = interval(wrong, releases, risk * _OF_WRONG)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(np.maximum(low - delta, 0.0) / high), 0.0))


def largest_epsilon(releases: int, *, delta: float, confidence: float) -> float:
    """Return the most that a number of releases can show: the bound of a perfect test.

    Example:
        >>> round(largest_epsilon(180_000, delta=1e-5, confidence=0.99), 1)
        10.6
    """
    return float(bound_of_guesses(releases, 0, releases, delta=delta, risk=1 - confidence))


def releases_needed(epsilon: float, *, delta: float, confidence: float) -> int:
    """Return how many releases it takes to show more than an epsilon, if no guess is wrong.

    Those that choose the test are included. The result is at least 2^62 if it takes more than
    that.
    """

    def enough(releases: int) -> bool:
        return largest_epsilon(releases, delta=delta, confidence=confidence) > epsilon

    judged = bisect_left(range(2**62), True, key=enough)
    return judged + -(-judged // (_PILOT - 1)) + 2


def _chosen_test(first: Floats, second: Floats, delta: float) -> tuple[float, float]:
    """Return the thresholds above and below which guesses look best on a few scores."""
    pooled = np.sort(np.concatenate([first, second]))
    number = len(pooled)
    tail = np.unique(np.geomspace(1, number // 2, _CANDIDATES).astype(int))
    upper, lower = pooled[number - tail], pooled[tail - 1]
    none = np.full(len(tail), np.inf)
    above, below = np.concatenate([upper, upper, none]), np.concatenate([lower, -none, lower])
    apart = above > below  # otherwise some scores would be guessed to be both
    above, below = above[apart], below[apart]
    right, wrong = _guesses(first, second, above, below)
    # A risk so small that the best of all candidates is not merely the luckiest.
    values = bound_of_guesses(right, wrong, number, delta=delta, risk=1e-3)
    best = int(values.argmax())
    return float(above[best]), float(below[best])


def _guesses(
    first: Floats, second: Floats, above: ArrayLike, below: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many guesses of each test are right and wrong; between the thresholds is none."""
    counts = []
    for part in (np.sort(first), np.sort(second)):
        high = len(part) - np.searchsorted(part, np.asarray(above))
        counts.append((high, np.searchsorted(part, np.asarray(below), side="right")))
    right, wrong = counts[0][0] + counts[1][1], counts[1][0] + counts[0][1]
    return np.asarray(right), np.asarray(wrong)


def bound_of_means(
    scores: ArrayLike, neighbour_scores: ArrayLike, *, delta: float, risk: float
) -> float:
    """Return a lower bound on epsilon from the distance of the means of Gaussian scores.

    For Gaussian scores of equal variance it is too large with probability at most `risk`: the
    difference of the means by Student's distribution, the variance by chi-square.
    """
    first, second = _checked(scores, neighbour_scores)
    freedom = len(first) + len(second) - 2
    if freedom < 1 or not len(first) or not len(second):
        return 0.0
    means = float(first.mean()), float(second.mean())
    squares = float(((first - means[0]) ** 2).sum() + ((second - means[1]) ** 2).sum())
    deviation = math.sqrt(squares / freedom)
    error = deviation * math.sqrt(1 / len(first) + 1 / len(second))
    apart = means[0] - means[1] - float(stdtrit(freedom, 1 - risk * _OF_MEANS)) * error
    # chdtri returns the value that is exceeded with a probability.
    most = deviation * math.sqrt(freedom / float(chdtri(freedom, 1 - risk * (1 - _OF_MEANS))))
    scale = max(abs(means[0]), abs(means[1]))
    if apart <= 1e-12 * scale:  # a difference below rounding is none
        return 0.0
    mu = apart / most if most > 1e-12 * scale else math.inf
    return min(MOST, float(gdp_epsilon(mu**2, delta)))


def lower_bound(
    scores: ArrayLike,
    neighbour_scores: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.99,
    confidence_gaussian: float | None = None,
) -> Finding:
    """Return lower bounds on epsilon from scores of releases of one input and of its neighbour.

    Larger scores mean "more like the first input". One score in ten chooses the test, which costs
    no confidence, and the others judge. Each bound holds with its confidence.

    Example:
        >>> noise = np.random.default_rng(0).laplace(size=(2, 20_000))
        >>> found = lower_bound(noise[0] + 1, noise[1], delta=0.0)   # epsilon is exactly 1
        >>> 0.8 < found.epsilon <= 1.0
        True
    """
    first, second = _checked(scores, neighbour_scores)
    fits = len(first) == len(second) >= 4
    given = (len(first), len(second))
    ConfigError.unless(fits, "releases", given, "at least 4 of each, and equally many of both")
    ConfigError.unless(0.5 <= confidence < 1, "confidence", confidence, "from 0.5 to below 1")
    ConfigError.unless(0 <= delta < 1, "delta", delta, "from 0 to below 1")
    judge = np.arange(len(first)) % _PILOT != 0
    test = _chosen_test(first[~judge], second[~judge], delta)
    right, wrong = _guesses(first[judge], second[judge], *test)
    judged = 2 * int(judge.sum())
    gaussian = confidence if confidence_gaussian is None else confidence_gaussian
    bound = bound_of_guesses(right, wrong, judged, delta=delta, risk=1 - confidence)
    return Finding(
        epsilon=min(MOST, float(bound)),
        epsilon_gaussian=bound_of_means(first, second, delta=delta, risk=1 - gaussian),
        largest=largest_epsilon(judged, delta=delta, confidence=confidence),
        releases=2 * len(first),
        confidence=confidence,
    )


def _checked(*scores: ArrayLike) -> tuple[Floats, ...]:
    arrays = tuple(np.asarray(values, np.float64).ravel() for values in scores)
    finite = all(bool(np.isfinite(array).all()) for array in arrays)
    ConfigError.unless(finite, "scores", "NaN or infinity", "finite numbers")
    return arrays


# ---- is the noise what was stated?


def at_least(name: str, hits: int, number: int, chance: float, fault: str) -> Check:
    """Check whether something happened more often than with a probability of `chance`."""
    p_value = float(binom.sf(hits - 1, number, chance)) if number else 1.0
    return Check(name, p_value, hits / max(number, 1), chance, fault)


def told_apart(name: str, games: list[tuple[list[str], NDArray[np.bool_]]], fault: str) -> Check:
    """Check whether an outcome reveals which of two worlds it was, more often than a coin."""
    worst, measured, looked = 1.0, 0.5, 0
    for labels, worlds in games:
        for label in sorted(set(labels)):
            guess = np.array([other == label for other in labels])
            right = int((guess == worlds).sum())
            best = max(right, len(worlds) - right)
            looked += 2
            p_value = float(binom.sf(best - 1, len(worlds), 0.5))
            if p_value < worst:
                worst, measured = p_value, best / len(worlds)
    return Check(name, min(1.0, worst * looked), measured, 0.5, fault)


def size_of_noise(noises: list[Floats], kind: Literal["gaussian", "laplace"]) -> Check:
    """Check whether noise is as large as stated, in all and in every column.

    The sum of squares about the mean (of absolute values, for Laplace) has a chi-square (Gamma)
    distribution.

    Args:
        noises: Of the releases of each input, ``[releases, columns]``, in units of the stated
            scale, with the stated upload subtracted.
        kind: Gaussian noise may be off by a constant; Laplace noise may not.
    """
    columns = noises[0].shape[1]
    if kind == "laplace":
        size = np.sum([np.abs(noise).sum(axis=0) for noise in noises], axis=0)
        freedom = float(sum(map(len, noises)))
    else:
        size = np.sum([((n - n.mean(axis=0)) ** 2).sum(axis=0) / 2 for n in noises], axis=0)
        freedom = (sum(map(len, noises)) - len(noises)) / 2
    whole = float(gammainc(freedom * columns, size.sum()))
    single = float(gammainc(freedom, size).min()) * columns
    ratios = size / freedom
    measured = float(ratios.min() if single < whole else ratios.mean())
    if kind == "gaussian":  # from variances to scales
        measured = math.sqrt(measured)
    p_value = min(1.0, 2 * min(whole, single))
    return Check("size of the noise", p_value, measured, 1.0, "the noise is smaller than stated")


def fresh_noise(first: Floats, second: Floats) -> Check:
    """Check whether noise is drawn anew for every release, input and coordinate.

    The signs of independent differences agree in half of the cases, and no two rows or values of a
    row are ever equal. The worst relation counts, corrected for the number of relations.
    """
    trials = min(len(first), len(second))
    # The difference of two releases has mean 0, and is as often positive as negative.
    one, other = (part[: trials - 1 : 2] - part[1:trials:2] for part in (first, second))
    signs = np.where(one > 0, 1.0, -1.0)
    alike = (len(signs) + signs.T @ signs)[np.triu_indices(signs.shape[1], 1)] / 2  # by columns
    clients = min(len(one[::2]), len(one[1::2]))
    found = [
        _signs_agree("inputs", np.array([((one > 0) == (other > 0)).sum()]), one.size),
        _signs_agree(
            "clients",
            np.array([((one[::2][:clients] > 0) == (one[1::2] > 0)).sum()]),
            one[1::2].size,
        ),
        _signs_agree("coordinates", alike, len(signs)),
    ]
    every = np.abs(np.concatenate([first, second]))
    rows = every[np.argsort(every[:, 0], kind="stable")]  # equal rows come next to each other
    equal = int((np.abs(np.diff(rows, axis=0)) <= _CLOSE).all(axis=1).sum())
    # Grids are fine enough that two numbers are this close with a chance far below 0.001.
    chance = 1e-3 ** (every.shape[1] - 1)
    p_value = float(binom.sf(equal - 1, len(every), chance))
    found.append((p_value, "releases", equal / len(every)))
    p_value, place, measured = min(found)
    fault = f"noise is used more than once (between {place})"
    return Check("fresh noise", min(1.0, p_value * len(found)), measured, 0.5, fault)


def _signs_agree(relation: str, agree: NDArray[Any], number: int) -> tuple[float, str, float]:
    """Return the p-value of the pair whose signs agree, or differ, more often than by chance."""
    if not number or not len(agree):
        return 1.0, relation, 0.5
    worst = agree[np.abs(agree - number / 2).argmax()]
    tails = binom.cdf(worst, number, 0.5), binom.sf(worst - 1, number, 0.5)
    return 2 * float(min(tails)) * len(agree), relation, float(worst) / number
