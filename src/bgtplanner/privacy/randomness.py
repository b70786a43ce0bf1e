"""Where random numbers for noise come from, and how noise is drawn from them.

Anyone who can predict the noise can remove it. A real client therefore draws from the operating
system (:class:`SystemNoise`). Seeds (:class:`SeededNoise`) are for tests, and for what is marked
as not private: the same noise on changed data would cancel in the difference. A simulation has
noise of its own, in arrays (:class:`bgtplanner.federation.protection.KeyedNoise`).

Noise is drawn *exactly* (:class:`ExactNoise`): in whole steps of a grid, by integer arithmetic,
with exactly the probabilities that the proofs use. The samplers are those
of Canonne, Kamath and Steinke (2020) for Laplace noise and of Karney (2016) for Gaussian noise,
for many coordinates at once. A draw that is still undecided takes further random words; none is
cut short. The proofs are in ``docs/proofs``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError

Bools = NDArray[np.bool_]
Steps = NDArray[np.int64]
Words = NDArray[np.uint64]
Big = NDArray[np.object_]
Shape = tuple[int, ...]
T = TypeVar("T", bound=np.generic)

_FINE = 2**48  # steps per unit of fine variates, before a word is added to each

FINE_BITS = 112
"""Bits of a fine variate below the point: those of its digit, and one word."""


class ExactNoise:
    """Noise in whole steps of a grid, drawn without any rounding from uniform random words.

    `randomness` returns the given number of random bytes. With words of fewer than 64 `bits`, ties
    and rejections are common, for tests.
    """

    def __init__(self, randomness: Callable[[int], bytes], *, bits: int = 64) -> None:
        self._randomness = randomness
        self._bits = bits

    # ---- uniform

    def words(self, number: int) -> Words:
        """Draw uniform whole numbers below 2^bits."""
        words = np.frombuffer(self._randomness(8 * number), dtype="<u8").astype(np.uint64)
        return words >> np.uint64(64 - self._bits)

    def below(self, bound: ArrayLike, number: int) -> Words:
        """Draw uniform whole numbers below a bound, or each below a bound of its own."""
        bounds = np.asarray(bound, dtype=np.uint64)
        most = np.uint64(2**self._bits - 1)
        # Larger words would make small numbers more likely: they are drawn again.
        last = np.broadcast_to(most - (most % bounds + np.uint64(1)) % bounds, number)
        words = self.words(number)
        while len(again := np.flatnonzero(words > last)):
            words[again] = self.words(len(again))
        return np.asarray(words % bounds)

    def below_any(self, bound: int, number: int) -> Big:
        """Draw uniform whole numbers below a bound of any size, as Python integers."""
        bits = (bound - 1).bit_length()
        size = bits // 8 + 1
        found: list[int] = []
        while len(found) < number:
            drawn = self._randomness(size * (number - len(found)))
            parts = (drawn[start : start + size] for start in range(0, len(drawn), size))
            values = (int.from_bytes(part, "little") >> (8 * size - bits) for part in parts)
            found += [value for value in values if value < bound]
        return np.array(found, dtype=object)

    def coins(self, chances: ArrayLike) -> Bools:
        """Return True with probability chance / 2^64, exactly."""
        numerators = np.asarray(chances, dtype=np.uint64)
        return np.asarray(self.words(numerators.size).reshape(numerators.shape) < numerators)

    # ---- noise

    def laplace_steps(self, scale: int, shape: Shape) -> Steps:
        """Draw discrete Laplace noise: z with probability proportional to exp(-abs(z) / scale)."""
        scale = _whole(scale)
        return self.accepted(lambda tries: self._try_laplace(scale, tries), 0.6, shape)

    def normal_steps(self, scale: int, shape: Shape) -> Steps:
        """Draw normal variates of this standard deviation, rounded to whole numbers."""

        def rounded(size: Steps, fraction: Words) -> Steps:
            return size + (fraction >> np.uint64(self._bits - 1)).astype(np.int64)

        scale = _whole(scale)
        return self.accepted(lambda tries: self._try_normal(scale, tries, rounded), 0.48, shape)

    def fine_normal(self, shape: Shape) -> Big:
        """Draw standard normal variates in units of 2^-112, cut towards zero, as integers."""

        def joined(size: Steps, fraction: Words) -> Big:
            return np.asarray((size.astype(object) << 64) + fraction.astype(object))

        return self.accepted(lambda tries: self._try_normal(_FINE, tries, joined), 0.48, shape)

    def accepted(
        self, tried: Callable[[int], NDArray[T]], rate: float, shape: Shape
    ) -> NDArray[T]:
        """Return as many independent draws as the shape holds, of those that `tried` accepts.

        `tried` makes a number of tries; the rate that it accepts affects only the speed.
        """
        wanted = math.prod(shape)
        parts = [tried(int(wanted / rate) + 8)]
        while (missing := wanted - sum(map(len, parts))) > 0:
            parts.append(tried(int(missing / rate) + 8))
        return np.concatenate(parts)[:wanted].reshape(shape)

    def _try_laplace(self, scale: int, tries: int) -> Steps:
        """Return what algorithm 2 of Canonne, Kamath and Steinke accepts, for a whole scale."""
        rest = self.below(scale, tries)
        rest = rest[self.exp_coins(lambda at: self.below(scale, len(at)) < rest[at], tries)]
        times = self.count(len(rest), lambda at: self.exp_coins(sure, len(at)))
        size = rest.astype(np.int64) + scale * times
        minus = self._heads(len(size))
        once = ~(minus & (size == 0))  # otherwise zero would come up twice as often
        return np.asarray(np.where(minus, -size, size)[once])

    def _try_normal(
        self, scale: int, tries: int, join: Callable[[Steps, Words], NDArray[T]]
    ) -> NDArray[T]:
        """Return what Karney's algorithm N accepts, with coins of Canonne, Kamath and Steinke."""
        whole = self._try_whole(tries)
        part = _Part(self, scale, len(whole))
        kept = self._gaussian_heads(whole, part.above_fresh)
        size = join((scale * whole + part.digit.astype(np.int64))[kept], part.fraction[kept])
        return np.asarray(np.where(self._heads(len(size)), np.negative(size), size))

    def _try_whole(self, tries: int) -> Steps:
        """Draw whole numbers k with a probability proportional to exp(-k^2 / 2)."""

        def coins(at: Steps) -> Bools:
            return self.exp_coins(self._half, len(at))

        whole = self.count(tries, coins)
        return whole[self.all_heads(whole * (whole - 1), coins)]

    def _gaussian_heads(self, whole: Steps, part: Callable[[Steps], Bools]) -> Bools:
        """Throw coins of probability exp(-x (2k + x) / 2), for `whole` k; `part` throws x."""
        twice = (2 * whole).astype(np.uint64)

        def share(at: Steps) -> Bools:
            """Throw coins of probability x (2k + x) / (2k + 2): x, then one of 2k + 2 cases."""
            heads, choice = part(at), self.below(twice[at] + np.uint64(2), len(at))
            heads &= choice <= twice[at]
            ask = np.flatnonzero(heads & (choice == twice[at]))
            heads[ask] = part(at[ask])
            return heads

        def one(at: Steps) -> Bools:
            return self.exp_coins(lambda open_: share(at[open_]), len(at))

        return self.all_heads(whole + 1, one)

    # ---- coins

    def _heads(self, number: int) -> Bools:
        return np.asarray(self.below(2, number) == 1)

    def _half(self, at: Steps) -> Bools:
        return self._heads(len(at))

    def exp_coins(self, coin: Callable[[Steps], Bools], number: int) -> Bools:
        """Throw coins of probability exp(-g), given coins of probability g, which `coin` throws.

        Algorithm 1 of Canonne, Kamath and Steinke: count throws of probability g / 1, g / 2, ...
        until one fails; an even number of successes has probability exp(-g).
        """
        result, open_, count = np.zeros(number, dtype=np.bool_), np.arange(number), 1
        while len(open_):
            heads = coin(open_)
            if count > 1:
                heads[heads] = self.below(count, int(heads.sum())) == 0
            result[open_[~heads]] = count % 2 == 1
            open_, count = open_[heads], count + 1
        return result

    def count(self, number: int, coin: Callable[[Steps], Bools]) -> Steps:
        """Return how often each coin comes up heads before its first tails."""
        number_of, open_ = np.zeros(number, dtype=np.int64), np.arange(number)
        while len(open_):
            open_ = open_[coin(open_)]
            number_of[open_] += 1
        return number_of

    def all_heads(self, times: Steps, coin: Callable[[Steps], Bools]) -> Bools:
        """Return whether each coin comes up heads the given number of times in a row."""
        result, open_, thrown = np.ones(len(times), dtype=np.bool_), np.flatnonzero(times > 0), 0
        while len(open_):
            result[open_] = coin(open_)
            thrown += 1
            open_ = open_[result[open_] & (times[open_] > thrown)]
        return result


class _Part:
    """Uniform real numbers x = (digit + fraction) / scale below 1, drawn as far as needed.

    The digit is below the scale. The fraction's first word is drawn at once, further ones when two
    numbers agree so far, as one in 2^64 comparisons of equal digits does.
    """

    def __init__(self, source: ExactNoise, scale: int, number: int) -> None:
        self._source = source
        self._scale = scale
        self.digit = source.below(scale, number)
        self.fraction = source.words(number)
        self._further: dict[int, list[int]] = {}

    def above_fresh(self, at: Steps) -> Bools:
        """Return whether each number is above a fresh uniform one: true with probability x."""
        fresh, own = self._source.below(self._scale, len(at)), self.digit[at]
        heads = fresh < own
        ties = np.flatnonzero(fresh == own)
        if len(ties):
            fresh, own = self._source.words(len(ties)), self.fraction[at[ties]]
            heads[ties] = fresh < own
            for tie in ties[np.flatnonzero(fresh == own)]:
                heads[tie] = self._still_above(int(at[tie]))
        return np.asarray(heads)

    def _still_above(self, index: int) -> bool:
        known = self._further.setdefault(index, [])
        place = 0
        while True:
            if place == len(known):
                known.append(int(self._source.words(1)[0]))
            fresh = int(self._source.words(1)[0])
            if fresh != known[place]:
                return fresh < known[place]
            place += 1


class SystemNoise(ExactNoise):
    """Exact noise from the operating system's generator, which no one can repeat."""

    def __init__(self) -> None:
        super().__init__(lambda number: os.urandom(number))


class SeededNoise(ExactNoise):
    """Exact noise from a seed, which everyone who knows the seed can repeat."""

    def __init__(self, seed: int | list[int]) -> None:
        super().__init__(np.random.default_rng(seed).bytes)


def sure(at: Steps) -> Bools:
    """Throw coins that are always heads; :meth:`ExactNoise.exp_coins` makes exp(-1) of them."""
    return np.ones(len(at), dtype=np.bool_)


def _whole(scale: int) -> int:
    good = isinstance(scale, int) and 1 <= scale <= 2**50
    ConfigError.unless(good, "scale", scale, f"a whole number from 1 to {2**50}")
    return scale
