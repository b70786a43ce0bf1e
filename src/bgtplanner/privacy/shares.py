"""Noise that no one holds alone: each client adds a share of it, in whole steps of a grid.

Under secure aggregation the server sees the sum of what clients send, modulo 2^bits. A client
bounds its upload, cuts it to the grid towards zero, and adds *its share* of the noise: a normal
variate rounded to whole steps. Some clients drop out, and some may tell the server what they
added. The shares of the others are already the full noise, as long as both are no more than
stated:

    honest = invited - most_dropouts - most_colluders, or 1: one's own share is always there
    share  = full noise / sqrt(honest)

If fewer drop out or collude, the sum carries more noise than was promised: the surplus.

A sum of rounded normal variates is so close to one that every statement about Gaussian noise still
holds, for noise that is larger by a factor of 1 + 2^-40. The shares have that much to spare, since
none has fewer than 2^10 steps (``docs/proofs/shares.md``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.privacy.randomness import ExactNoise

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Words = NDArray[np.uint64]

ROOM = 2.0**-40
"""By how much, relative to itself, the noise is larger than one Gaussian's would have to be."""

_FINEST = 2**10  # steps of a share, times the square root of the clients
_WRAPS = 40  # a sum wraps with a probability of at most 2^-40
_MOST_BITS = 62  # so that no sum of two numbers overflows 64 bits
_MOST_CLIENTS = 2**31


class Tolerance(NamedTuple):
    """How many clients may fail to answer, and how many may tell what they added.

    Each is a number of clients, or, below 1, a share of those that were invited.
    """

    dropouts: float = 0.0
    colluders: float = 0.0

    def of(self, invited: int) -> tuple[int, int]:
        """Return both as numbers of clients, out of those invited."""
        numbers = []
        for name, value in self._asdict().items():
            good = math.isfinite(value) and value >= 0 and (value < 1 or value == int(value))
            expected = "a share below 1, or a whole number of clients"
            ConfigError.unless(good, f"most_{name}", value, expected)
            # A share of 0.29 of 100 clients is 29 of them, though its double is a little smaller.
            number = int(invited * value * (1 + 1e-12)) if value < 1 else int(value)
            numbers.append(min(number, invited - 1))
        return numbers[0], numbers[1]

    def honest(self, invited: int) -> int:
        """Return how many shares must be the full noise: at least the protected client's own."""
        return max(1, invited - sum(self.of(invited)))


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The shares of the noise in one round's sum; all clients of the round have the same.

    The scale is the deviation of the full noise, the clip the largest bound on an upload (L2).
    Of the clients that are invited, some may drop out, and some of the others tell their share.

    Example:
        >>> shares = Shares(scale=2.5, clip=0.5, invited=100, most_dropouts=10, most_colluders=9)
        >>> shares.honest, shares.fewest, shares.bits(size=1682)
        (81, 90, 24)
    """

    scale: float
    clip: float
    invited: int
    most_dropouts: int = 0
    most_colluders: int = 0

    def __post_init__(self) -> None:
        for name in ("invited", "most_dropouts", "most_colluders"):
            value, least, most = getattr(self, name), 0, self.invited - 1
            if name == "invited":
                least, most = 1, _MOST_CLIENTS
            good = isinstance(value, int | np.integer) and least <= value <= most
            ConfigError.unless(bool(good), name, value, f"a whole number from {least} to {most}")
        for name in ("scale", "clip"):
            value = getattr(self, name)
            good = isinstance(value, int | float) and 1e-100 <= value <= 1e100
            ConfigError.unless(good, name, value, "a number from 1e-100 to 1e100")
        fewer = 2.0 ** (_MOST_BITS - 2) * self.step / self.clip
        expected = f"at most {fewer:.3g}, or more noise: sums are of at most {_MOST_BITS} bits"
        ConfigError.unless(self.bits(1) <= _MOST_BITS, "invited", self.invited, expected)

    @property
    def honest(self) -> int:
        """The number of shares that are already the full noise."""
        return Tolerance(self.most_dropouts, self.most_colluders).honest(self.invited)

    @property
    def fewest(self) -> int:
        """The fewest answers with which the sum may be opened."""
        return self.invited - self.most_dropouts

    @cached_property
    def step(self) -> float:
        """The step of the grid, a power of two.

        Cutting all uploads moves the sum by less than a thousandth of the noise of their shares.
        """
        finest = _FINEST * math.sqrt(self.honest) * math.sqrt(self.invited)
        return math.ldexp(1.0, math.frexp(self.scale / finest)[1] - 1)

    @cached_property
    def share(self) -> int:
        """The standard deviation of a share in whole steps, rounded up."""
        # A product of floats may be half a unit in the last place too small; the next is not.
        full, unit = math.nextafter(self.scale, math.inf).as_integer_ratio()
        room, rooms = (1 + ROOM).as_integer_ratio()
        step, steps = self.step.as_integer_ratio()
        # In whole numbers: (full * room / step)^2 / honest, rounded up, and its root, rounded up.
        squared = -((full * room * steps) ** 2 // -((unit * rooms * step) ** 2 * self.honest))
        return math.isqrt(squared - 1) + 1

    def bits(self, size: int) -> int:
        """Return the bits of a sum of `size` coordinates, which wraps with probability 2^-40."""
        number = max(int(size), 1)
        # Noise exceeds t deviations with a probability of at most exp(-t^2 / 2).
        tail = math.sqrt(2 * math.log(2) * (_WRAPS + math.log2(number)))
        noise = math.ceil(tail * self.share * math.sqrt(self.invited) * (1 + 1e-9)) + 1
        clip, unit = self.clip.as_integer_ratio()
        step, steps = self.step.as_integer_ratio()
        uploads = self.invited * (clip * steps // (unit * step))
        return (uploads + noise + self.invited).bit_length() + 1

    def mask(self, size: int) -> np.uint64:
        """Return 2^bits - 1: sums are taken modulo 2^bits."""
        return np.uint64(2 ** self.bits(size) - 1)

    def encode(self, upload: ArrayLike, source: ExactNoise, *, clip: float | None = None) -> Words:
        """Return what one client sends, before it is masked: whole numbers below 2^bits.

        An upload that is not finite counts as zero; a client may have a bound of its own, below
        that of the round.
        """
        bound = self.clip if clip is None else float(clip)
        expected = f"a number above 0, at most {self.clip:g}"
        ConfigError.unless(0 < bound <= self.clip, "clip", bound, expected)
        flat = np.asarray(upload, dtype=np.float64)
        ConfigError.unless(flat.ndim == 1, "upload", flat.shape, "one axis")
        bounded = mechanism_named("gaussian").clip(flat[None], bound)[0]
        whole = np.trunc(bounded / self.step).astype(np.int64)
        sent = (whole + self.draw(source, len(flat))).astype(np.uint64)  # modulo 2^64
        return np.asarray(sent & self.mask(len(flat)))

    def draw(self, source: ExactNoise, size: int) -> Steps:
        """Draw one client's share of the noise, in whole steps."""
        return source.normal_steps(self.share, (size,))

    def decode(self, total: ArrayLike, answered: int) -> Floats:
        """Return the sum of uploads, with its noise, from the sum of `answered` clients.

        A sum of too few is refused: it would carry less noise than was promised.
        """
        fits = self.fewest <= answered <= self.invited
        expected = f"from {self.fewest} to {self.invited}: the noise is shared by that many"
        ConfigError.unless(fits, "answered", answered, expected)
        words = np.asarray(total, dtype=np.uint64)
        ConfigError.unless(words.ndim == 1, "total", words.shape, "one axis")
        # Shifted to the top, the sign bit is where that of a 64-bit integer is.
        unused = 64 - self.bits(len(words))
        signed = (words << np.uint64(unused)).view(np.int64) >> np.int64(unused)
        return np.asarray(signed * self.step, dtype=np.float64)

    @property
    def std_of_share(self) -> float:
        """The standard deviation of one client's share; rounding adds 1/12 to its variance."""
        return self.step * math.sqrt(self.share**2 + 1 / 12)
