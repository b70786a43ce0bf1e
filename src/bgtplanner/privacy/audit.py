"""Lower bounds on epsilon by experiment, and the most that an experiment could have shown.

Release two neighbouring inputs many times, let a test guess which one it was, and turn how often
it is right into a lower bound on epsilon that holds with high confidence. If the bound exceeds the
claim, the claim is wrong. An experiment can never prove a claim right. The most that it can show
is known before it begins: the bound of a test that is never wrong. It says nothing about a larger
claim.

======================  =========================================================================
bound                   valid for
======================  =========================================================================
:class:`Guesses`        any mechanism; trials independent of each other
:func:`one_run_bound`   any mechanism; guesses about many clients of the same release
:class:`Moments`        Gaussian scores only: far tighter, and without a limit
======================  =========================================================================
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, chdtri, ndtr, stdtrit
from scipy.stats import binom

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.conversions import gdp_epsilon
from bgtplanner.privacy.privunit import cap_of

__all__ = [
    "MOST",
    "Expected",
    "Finding",
    "Guesses",
    "Moments",
    "bound_of_guesses",
    "expected",
    "interval",
    "largest_epsilon",
    "lower_bound",
    "one_run_bound",
    "one_run_p_value",
    "releases_needed",
]

Floats = NDArray[np.float64]

MOST = 1e5
"""The largest epsilon that is reported: no budget may claim more."""

_CANDIDATES = 300
_PILOT = 10  # one release in ten chooses the test
_OF_WRONG = 0.9  # share of the risk for the rate of wrong guesses, which matters most
_OF_MEANS = 0.8  # share of the risk for the difference of the means; the rest for the variance


class Finding(NamedTuple):
    """Lower bounds from guesses alone (for any mechanism) and for Gaussian scores.

    `largest` is what `epsilon` would have been without a wrong guess.
    """

    epsilon: float
    epsilon_gaussian: float
    largest: float
    releases: int
    confidence: float


class Expected(NamedTuple):
    """Approximately what the two bounds will be, by theory.

    The best test guesses if the privacy loss is farther from zero than the threshold.
    """

    epsilon: float
    epsilon_gaussian: float
    threshold: float


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

    The result is 2^62 if it takes more than that.
    """

    def enough(releases: int) -> bool:
        return largest_epsilon(releases, delta=delta, confidence=confidence) > epsilon

    return bisect_left(range(2**62), True, key=enough)


class Guesses:
    """Counts of right and wrong guesses, with a test that was chosen before on other releases.

    The test guesses the first input if a score is at least `upper`, the second if it is at most
    `lower`, and abstains in between. Scores are not kept: memory does not grow with the number of
    releases. The choice costs no confidence.

    Args:
        scores: Scores of a few releases of the first input; larger means "more like this one".
            The test that looks best on these is chosen.
        neighbour_scores: Scores of releases of the second input.
        delta: The delta at which epsilon is bounded.
        expected: What is expected, if scores are privacy losses. Its test is used unless another
            one already shows more.
    """

    def __init__(
        self,
        scores: ArrayLike,
        neighbour_scores: ArrayLike,
        *,
        delta: float,
        expected: Expected | None = None,
    ) -> None:
        self.delta = delta
        self.correct = self.wrong = self.releases = 0
        first, second = _checked(scores, neighbour_scores)
        shown, chosen = self._chosen(np.sort(first), np.sort(second))
        if expected is not None and shown <= expected.epsilon:
            chosen = (expected.threshold, -expected.threshold)
        self.upper, self.lower = chosen

    def _chosen(self, first: Floats, second: Floats) -> tuple[float, tuple[float, float]]:
        pooled = np.sort(np.concatenate([first, second]))
        number = len(pooled)
        tail = np.unique(np.geomspace(1, number // 2, _CANDIDATES).astype(int))
        upper, lower = pooled[number - tail], pooled[tail - 1]
        none = np.full(len(tail), np.inf)
        above, below = np.concatenate([upper, upper, none]), np.concatenate([lower, -none, lower])
        apart = above > below  # otherwise some scores would be guessed to be both
        above, below = above[apart], below[apart]
        guessed = [
            (len(part) - np.searchsorted(part, above), np.searchsorted(part, below, side="right"))
            for part in (first, second)
        ]
        right, wrong = guessed[0][0] + guessed[1][1], guessed[1][0] + guessed[0][1]
        # A risk so small that the best of all candidates is not merely the luckiest.
        values = bound_of_guesses(right, wrong, number, delta=self.delta, risk=1e-3)
        best = int(values.argmax())
        return float(values[best]), (float(above[best]), float(below[best]))

    def count(self, scores: ArrayLike, neighbour_scores: ArrayLike) -> None:
        """Judge more releases: equally many of both inputs, or of inputs chosen at random."""
        first, second = (np.asarray(part, dtype=np.float64) for part in (scores, neighbour_scores))
        self.correct += int((first >= self.upper).sum() + (second <= self.lower).sum())
        self.wrong += int((second >= self.upper).sum() + (first <= self.lower).sum())
        self.releases += first.size + second.size

    def bound(self, risk: float) -> float:
        """Return a lower bound on epsilon that is too large with probability at most `risk`."""
        if not self.releases:
            return 0.0
        args = (self.correct, self.wrong, self.releases)
        return min(MOST, float(bound_of_guesses(*args, delta=self.delta, risk=risk)))


def _checked(*scores: ArrayLike) -> tuple[Floats, ...]:
    arrays = tuple(np.asarray(values, np.float64).ravel() for values in scores)
    finite = all(bool(np.isfinite(array).all()) for array in arrays)
    ConfigError.unless(finite, "scores", "NaN or infinity", "finite numbers")
    return arrays


# ---- many canaries in one release


def one_run_p_value(
    canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float
) -> float:
    """Return the probability of at least `correct` right guesses about (epsilon, delta)-DP bits.

    Every canary is a client that holds one of two uploads, by the toss of a fair coin, and all of
    them are in the same release. The guesses may depend on each other in any way (Steinke, Nasr
    and Jagielski 2023, theorem 5.2). The relation is the one by which the two uploads are
    neighbours (one of them is zero for ``replace-special``), for clients with a budget of their
    own each; the coordinates of one client's upload are not canaries, since they share one
    budget. A positive delta costs much: since the one release may fail for all canaries at once,
    no more than about ``log(p_value / (2 delta))`` can be refuted.

    Example:
        >>> one_run_p_value(100, 50, 50, epsilon=1.0, delta=0.0) < 1e-6
        True
    """
    counts = 0 <= correct <= guesses <= canaries
    fewer = "at most the number of guesses, which is at most that of canaries"
    ConfigError.unless(counts, "correct", correct, fewer)
    chance = 1 / (1 + math.exp(-epsilon))
    surely = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0 or correct == 0:
        return surely
    # The largest mean of the probabilities of correct-1, correct-2, ... Those far from what is
    # expected add nothing to the sum, so the mean can only fall there. The deviation is at most
    # sqrt(guesses) / 2, so this covers fourteen of them.
    reach = 60 + 7 * math.sqrt(guesses)
    middle = correct - guesses * chance
    near, far = np.clip([middle - reach, middle + reach], 1, correct).astype(int)
    steps = np.arange(near, far + 1)
    below = np.cumsum(binom.pmf(correct - steps, guesses, chance))
    worst = float((below / steps).max())
    return min(1.0, surely + worst * 2 * delta * canaries)


def one_run_bound(
    canaries: int, guesses: int, correct: int, *, delta: float, risk: float
) -> float:
    """Return the largest epsilon that these guesses refute, with confidence 1 - `risk`."""

    def refuted(epsilon: float) -> bool:
        p_value = one_run_p_value(canaries, guesses, correct, epsilon=epsilon, delta=delta)
        return p_value <= risk

    low, high = 0.0, 60.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


# ---- Gaussian scores


class Moments:
    """Mean and variance of the scores of either input, gathered without keeping them."""

    def __init__(self) -> None:
        self._number, self._mean, self._square = np.zeros(2), np.zeros(2), np.zeros(2)

    @classmethod
    def ideal(cls, mu: float, releases: int) -> Moments:
        """Return the expected moments of scores of inputs that are `mu` apart."""
        found = cls()
        found._number[:], found._mean[:], found._square[:] = releases / 2, (mu, 0.0), releases / 2
        return found

    def count(self, scores: ArrayLike, neighbour_scores: ArrayLike) -> None:
        """Add scores of both inputs."""
        for side, values in enumerate((scores, neighbour_scores)):
            array = np.asarray(values, dtype=np.float64)
            if not array.size:
                continue
            before, number = self._number[side], array.size
            mean = float(array.mean())
            off = mean - self._mean[side]
            total = before + number
            spread = float(((array - mean) ** 2).sum())
            self._square[side] += spread + off**2 * before * (number / total)
            self._mean[side] += off * number / total
            self._number[side] = total

    def mu_bound(self, risk: float) -> float:
        """Return a lower bound on the distance of the means, in standard deviations.

        For Gaussian scores of equal variance it is too large with probability at most `risk`: the
        difference of the means by Student's distribution, the variance by chi-square.
        """
        freedom = float(self._number.sum()) - 2
        if freedom < 1 or self._number.min() < 1:
            return 0.0
        deviation = math.sqrt(float(self._square.sum()) / freedom)
        error = deviation * math.sqrt(float((1 / self._number).sum()))
        quantile = float(stdtrit(freedom, 1 - risk * _OF_MEANS))
        apart = float(self._mean[0] - self._mean[1]) - quantile * error
        # chdtri returns the value that is exceeded with a probability.
        most = deviation * math.sqrt(freedom / float(chdtri(freedom, 1 - risk * (1 - _OF_MEANS))))
        # A difference below rounding is none.
        scale = float(np.abs(self._mean).max())
        if apart <= 1e-12 * scale:
            return 0.0
        return apart / most if most > 1e-12 * scale else math.inf

    def bound(self, delta: float, risk: float) -> float:
        """Return a lower bound on epsilon that is too large with probability at most `risk`."""
        return min(MOST, float(gdp_epsilon(self.mu_bound(risk) ** 2, delta)))


# ---- scores in memory


def lower_bound(
    scores: ArrayLike, neighbour_scores: ArrayLike, *, delta: float, confidence: float = 0.99
) -> Finding:
    """Return lower bounds on epsilon from scores of releases of one input and of its neighbour.

    Larger scores mean "more like the first input". One score in ten chooses the test, and the
    others judge. Each bound holds with the given confidence.

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
    guesses = Guesses(first[~judge], second[~judge], delta=delta)
    guesses.count(first[judge], second[judge])
    moments = Moments()
    moments.count(first, second)
    return Finding(
        epsilon=guesses.bound(1 - confidence),
        epsilon_gaussian=moments.bound(delta, 1 - confidence),
        largest=largest_epsilon(guesses.releases, delta=delta, confidence=confidence),
        releases=2 * len(first),
        confidence=confidence,
    )


# ---- what theory expects


def expected(
    mechanism: str,
    losses: ArrayLike,
    *,
    releases: int,
    delta: float,
    risk: float,
    risk_gaussian: float = 0.0,
) -> Expected:
    """Return approximately what the best test shows of a mechanism that is exactly as stated.

    Args:
        mechanism: ``gaussian``, ``laplace`` or ``privunit``.
        losses: One per release (or coordinate) of a trial: the distance of the inputs over the
            noise's scale; for ``privunit`` the epsilon of the cap.
        releases: Trials that are judged, of both inputs together.
        delta: Delta of the claim.
        risk: Risk of the bound from guesses.
        risk_gaussian: Risk of the bound from Gaussian scores; 0 if there is none.
    """
    parts = np.asarray(losses, dtype=np.float64).ravel()
    mu = math.sqrt(float((parts**2).sum()))
    if mechanism == "gaussian":  # the loss is normal, with mean mu^2 / 2 and deviation mu
        where = np.linspace(0.0, 8.0 + mu, 1601) * mu
        right, wrong = ndtr(mu / 2 - where / mu), ndtr(-mu / 2 - where / mu)
    else:
        where, right, wrong = _tails(mechanism, parts)
    # A sum of probabilities may be slightly above 1.
    hits, misses = (np.minimum(releases * part, releases) for part in (right, wrong))
    bounds = bound_of_guesses(hits, misses, releases, delta=delta, risk=risk)
    best = int(bounds.argmax())
    gaussian = 0.0
    if mechanism == "gaussian" and risk_gaussian > 0:
        gaussian = Moments.ideal(mu, releases).bound(delta, risk_gaussian)
    return Expected(float(bounds[best]), gaussian, float(where[best]))


def _tails(mechanism: str, losses: Floats) -> tuple[Floats, Floats, Floats]:
    """Return thresholds t, P[loss >= t] under the first input, and P[loss <= -t].

    The inputs are mirror images, so the last is P[loss >= t] under the second one. A threshold
    lies half a step below the losses that it is meant for.
    """
    chances, step = _loss_distribution(mechanism, losses)
    half = len(chances) // 2  # number of losses above zero: at least a thousand
    some = slice(None, half, half // 1000)  # always including the largest
    thresholds: Floats = (np.arange(half, dtype=np.float64)[::-1] + 0.5) * step
    above, below = np.cumsum(chances[::-1]), np.cumsum(chances)
    return thresholds[some], above[some], below[some]


def _loss_distribution(mechanism: str, losses: Floats) -> tuple[Floats, float]:
    """Return the probabilities of losses on a grid that is symmetric about zero, and its step."""
    points = int(np.clip(100_000 // len(losses), 20, 1000))
    step = float(losses.max()) / points
    parts = [_one_loss(mechanism, float(loss), step) for loss in losses]
    size = sum(len(part) - 1 for part in parts) + 1
    whole = np.ones(size // 2 + 1, dtype=complex)
    for part in parts:
        whole *= np.fft.rfft(part, size)
    return np.clip(np.fft.irfft(whole, size), 0.0, None), step


def _one_loss(mechanism: str, loss: float, step: float) -> Floats:
    """Return the probabilities of one release's losses from -loss to +loss, in steps."""
    steps = max(1, round(loss / step))
    found = np.zeros(2 * steps + 1)
    if mechanism == "privunit":  # in the cap, in the opposite one, or in neither
        cap = cap_of(loss)
        threshold, chance = float(cap.threshold), float(cap.chance)
        back = (1 - chance) * float(ndtr(-threshold) / ndtr(threshold))
        found[0], found[steps], found[-1] = back, 1 - chance - back, chance
        return found
    # P[loss <= x] is exp(-(loss - x) / 2) / 2 below the upper end, which has all the rest.
    places = np.linspace(-loss, loss, 2 * steps + 1)
    middles = np.concatenate([[-loss], (places[:-1] + places[1:]) / 2, [loss]])
    found += np.diff(np.exp(-(loss - middles) / 2) / 2)
    found[0] += math.exp(-loss) / 2
    found[-1] += 0.5
    return found
