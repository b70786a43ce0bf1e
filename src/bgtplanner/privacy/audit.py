"""How much privacy is lost at least, by experiment: an audit that can catch us.

Release two neighbouring inputs many times, let a test tell them apart, and turn how well it does
into a lower bound on epsilon that holds with high confidence. If it exceeds the claim, the claim
is wrong. It can never prove a claim right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.conversions import gdp_epsilon

__all__ = ["Finding", "lower_bound"]

Floats = NDArray[np.float64]

_CANDIDATES = 400


class Finding(NamedTuple):
    """What an audit found.

    Attributes:
        epsilon: Lower bound from the test's error rates alone; holds for any mechanism.
        epsilon_gaussian: Lower bound that takes the noise to be Gaussian (Nasr et al. 2023): much
            closer, since the rates may be measured where there are plenty of samples.
        releases: How many releases there were.
        confidence: With which both hold.
    """

    epsilon: float
    epsilon_gaussian: float
    releases: int
    confidence: float


def lower_bound(
    scores: ArrayLike, neighbour_scores: ArrayLike, *, delta: float, confidence: float = 0.99
) -> Finding:
    """Lower bounds on epsilon from scores of releases of one input and of its neighbour.

    The threshold is chosen on one half of the scores and judged on the other (Jagielski et al.
    2020), with exact binomial intervals (Clopper and Pearson), so choosing costs no confidence.

    Args:
        scores: What a test gave to releases of one input; larger means "more like this one".
        neighbour_scores: The same for releases of the neighbouring input.
        delta: At which epsilon is bounded.
        confidence: Probability with which the bound holds.

    Example:
        >>> noise = np.random.default_rng(0).laplace(size=(2, 20_000))
        >>> found = lower_bound(noise[0] + 1, noise[1], delta=0.0)   # epsilon is exactly 1
        >>> 0.8 < found.epsilon <= 1.0
        True
    """
    first, second = (
        np.asarray(values, np.float64).ravel() for values in (scores, neighbour_scores)
    )
    enough = min(len(first), len(second)) >= 4
    ConfigError.unless(enough, "releases", min(len(first), len(second)), "at least 4 of each")
    ConfigError.unless(0 < confidence < 1, "confidence", confidence, "between 0 and 1")
    ConfigError.unless(0 <= delta < 1, "delta", delta, "from 0 to below 1")
    finite = bool(np.isfinite(first).all() and np.isfinite(second).all())
    ConfigError.unless(finite, "scores", "NaN or infinity", "finite numbers")
    risk = (1 - confidence) / 2  # one for each of the two rates
    choose = (first[0::2], second[0::2])
    judge = (first[1::2], second[1::2])

    def log_ratio(high: Floats, low: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(high - delta, 0.0) / low))

    def separation(high: Floats, low: Floats) -> Floats:
        return np.asarray(ndtri(high) - ndtri(low))

    epsilon = max(0.0, _judged(choose, judge, risk, log_ratio))
    mu = max(0.0, _judged(choose, judge, risk, separation))
    return Finding(epsilon, float(gdp_epsilon(mu**2, delta)), len(first) + len(second), confidence)


def _judged(
    choose: tuple[Floats, Floats],
    judge: tuple[Floats, Floats],
    risk: float,
    estimate: Callable[[Floats, Floats], Floats],
) -> float:
    """Pick the test that looks best on one half; return what it shows on the other."""
    thresholds = np.quantile(np.concatenate(choose), np.linspace(0, 1, _CANDIDATES))
    best, winner = -np.inf, (thresholds[0], 1.0)
    for sign in (1.0, -1.0):
        rates = [_rates(half * sign, thresholds * sign, risk) for half in choose]
        pair = (rates[0], rates[1]) if sign > 0 else (rates[1], rates[0])
        values = estimate(pair[0][0], pair[1][1])
        if values.max() > best:
            best, winner = float(values.max()), (thresholds[int(values.argmax())], sign)
    threshold, sign = winner
    rates = [_rates(half * sign, np.array([threshold * sign]), risk) for half in judge]
    pair = (rates[0], rates[1]) if sign > 0 else (rates[1], rates[0])
    return float(estimate(pair[0][0], pair[1][1])[0])


def _rates(values: Floats, thresholds: Floats, risk: float) -> tuple[Floats, Floats]:
    """Clopper-Pearson bounds on P[value >= threshold], each missed with probability `risk`."""
    ordered = np.sort(values)
    number = len(values)
    hits = number - np.searchsorted(ordered, thresholds, side="left")
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), number - hits + 1, risk), 0.0)
        high = np.where(
            hits < number, betaincinv(hits + 1, np.maximum(number - hits, 1), 1 - risk), 1.0
        )
    return np.asarray(low), np.asarray(high)
