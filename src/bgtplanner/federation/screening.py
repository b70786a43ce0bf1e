"""Which uploads can be honest: what clip and noise leave possible, and what they do not.

Under local trust the server sees every noised upload. An honest one, divided by the noise's scale,
is ``y = u + z``: a part u that is no longer than ``c = clip / scale``, and noise z of a known
distribution. All that can be tested is whether y may have come about like this:

* **norm** and **coordinates** are within what u and z allow;
* **shape**: its sorted coordinates lie near the order statistics of the noise. Sorting brings no
  two vectors further apart, so u moves them by at most c, and the distance itself varies no more
  than the noise does (Gaussian concentration of a 1-Lipschitz function);
* **agreement**: along the sum of all other uploads, and along each of them, on which its noise
  does not depend, it reaches no further than c and a few standard deviations. Clients that push
  the same way stand out;
* **repeats**: no two honest uploads are equal to the last bit.

Laplace noise is made Gaussian, coordinate by coordinate, for shape and agreement; this
map stretches u by at most sqrt(pi / 2). PrivUnit adds no noise, but the density of its release is
at most ``chance / P[z >= threshold]`` times that of plain noise, and so is any probability.

All limits are closed forms (Laurent and Massart 2000 for norms, ``P[z > t] <= exp(-t^2 / 2) / 2``
elsewhere), so that an honest upload fails any of them with a probability of at most `FALSE_ALARM`.
What a client that stays within them can still do is said in docs/concepts/poisoning.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr
from numpy.typing import NDArray
from scipy.special import ndtri, ndtri_exp

__all__ = ["FALSE_ALARM", "LEAST_SCALE", "Limits", "Screen", "limits_of"]

Floats = NDArray[np.float64]

FALSE_ALARM = 1e-6
"""Probability, at most, that an honest upload is rejected."""

LEAST_SCALE = 1e-30
"""Stands for no noise at all, which a class of clients has that pays nothing."""

_EVENTS = 7.0  # low norm, high norm (two), coordinates, shape, agreement (two): they share it
_EXPECTED_SHAPE = 2.5  # mean distance of sorted noise: 0.8 to 1.9 up to 200,000 coordinates
_STRETCH = (np.pi / 2) ** 0.5  # of Laplace noise made Gaussian, at most
_DIGEST = 16  # bytes
_MOST_PRODUCTS = 1e12  # multiplications to compare every upload with every other one
_AT_ONCE = 512  # uploads
_REMEMBERED = 1_000_000  # digests of earlier uploads


class Limits(NamedTuple):
    """What an honest upload stays within; lengths are in units of the noise's scale.

    Attributes:
        low: Least norm: L1 for Laplace noise, else L2.
        high: Largest norm.
        coordinate: Largest coordinate.
        shape: Largest distance of its sorted coordinates from those of typical noise.
        agreement: Furthest that it reaches along the sum of the others.
    """

    low: Any
    high: Any
    coordinate: Any
    shape: Any
    agreement: Any


def limits_of(
    mechanism: str, clip: Array | float, scale: Array | float, size: int, cap: Array | None = None
) -> Limits:
    """What clip and noise allow, but for a probability of `FALSE_ALARM`.

    Works inside a compiled round, and on arrays with an entry for each class of budgets.

    Args:
        mechanism: ``gaussian``, ``laplace`` or ``privunit``.
        clip: Bound on the norm of what was noised.
        scale: Of the noise.
        size: Number of coordinates.
        cap: With ``privunit``: threshold and chance.
    """
    reach = jnp.asarray(clip) / jnp.maximum(scale, LEAST_SCALE)
    rare = jnp.full_like(reach, np.log(_EVENTS / FALSE_ALARM))
    if cap is not None:  # no shift at all, but everything may be so many times as likely
        reach = jnp.zeros_like(reach)
        rare = rare + jnp.log(cap[..., 1]) - log_ndtr(-cap[..., 0])
    tail = jnp.sqrt(2.0 * rare)
    if mechanism == "laplace":
        spread = jnp.sqrt(2.0 * size * rare)
        shift = _STRETCH * reach
        return Limits(
            low=jnp.maximum(size - spread, 0.0),
            high=size + spread + rare + reach,
            coordinate=jnp.maximum(reach + rare + np.log(2.0), rare + np.log(2.0 * size)),
            shape=_EXPECTED_SHAPE + shift + tail,
            agreement=shift + tail,
        )
    spread = 2.0 * jnp.sqrt(size * rare)
    mean = size / (size + 1.0) ** 0.5  # of the noise's norm, at least; better where size is small
    alone, many = (jnp.sqrt(2.0 * (rare + np.log(2.0 * number))) for number in (1, size))
    return Limits(
        low=jnp.maximum(jnp.sqrt(jnp.maximum(size - spread, 0.0)), mean - tail),
        high=jnp.hypot(reach + tail, jnp.sqrt(size + spread)),
        coordinate=jnp.maximum(reach + alone, many),
        shape=_EXPECTED_SHAPE + reach + tail,
        agreement=reach + tail,
    )


class Screen:
    """Looks at single uploads, round by round, and remembers which it has accepted.

    Args:
        mechanism: That made them.
        seen: Digests of uploads that were accepted before, as :attr:`seen` gave them.
    """

    def __init__(self, mechanism: str, seen: NDArray[np.uint8] | None = None) -> None:
        self.mechanism = mechanism
        known = [] if seen is None else [row.tobytes() for row in seen]
        self._seen: dict[bytes, None] = dict.fromkeys(known)

    @property
    def seen(self) -> NDArray[np.uint8]:
        """Digests of the newest uploads that were accepted, one a row."""
        joined = b"".join(self._seen)
        return np.frombuffer(joined, dtype=np.uint8).reshape(-1, _DIGEST)

    def rejected(
        self,
        uploads: Mapping[int, Floats],
        scales: Mapping[int, float],
        limits: Mapping[int, Limits],
        beside: Floats | None = None,
    ) -> dict[int, str]:
        """Why uploads of a round cannot be used, for those that cannot; the others are noted.

        Of equal uploads the first is kept: their sum is what one honest client has sent.

        Args:
            uploads: Finite numbers, by client.
            scales: Of the noise on each.
            limits: For each.
            beside: Sum of further uploads of the round that are not looked at.
        """
        found: dict[int, str] = {}
        digests: dict[bytes, int] = {}
        for client, upload in uploads.items():
            digest = hashlib.blake2b(upload.tobytes(), digest_size=_DIGEST).digest()
            if digest in self._seen or digest in digests:
                found[client] = "repeated"
                continue
            digests[digest] = client
            if not self._plausible(upload, scales[client], limits[client]):
                found[client] = "outside"
        left = [client for client in uploads if client not in found]
        agrees = self._agree(
            [uploads[client] for client in left],
            np.array([scales[client] for client in left]),
            np.array([float(limits[client].agreement) for client in left]),
            beside,
        )
        found |= {client: "agreeing" for client, yes in zip(left, agrees, strict=True) if yes}
        self._seen |= dict.fromkeys(one for one, client in digests.items() if client not in found)
        for old in list(self._seen)[: max(len(self._seen) - _REMEMBERED, 0)]:
            del self._seen[old]
        return found

    def _plausible(self, upload: Floats, scale: float, limits: Limits) -> bool:
        """Whether an upload has a norm, coordinates and a shape that clip and noise can make."""
        with np.errstate(over="ignore"):
            own = upload / scale
            sizes = np.abs(own)
            norm = sizes.sum() if self.mechanism == "laplace" else np.sqrt((own**2).sum())
        if not (limits.low <= norm <= limits.high) or sizes.max() > limits.coordinate:
            return False
        apart = np.sort(self._gaussian(own)) - _typical(len(own))
        return bool(np.sqrt(apart @ apart) <= limits.shape)

    def _agree(
        self, uploads: list[Floats], scales: Floats, limits: Floats, beside: Floats | None
    ) -> NDArray[np.bool_]:
        """Which uploads say too much of what the others say, together or one of them."""
        total = sum(uploads, start=np.zeros(1) if beside is None else beside)
        agrees = np.zeros(len(uploads), dtype=bool)
        for index, upload in enumerate(uploads):
            others = total - upload
            along = self._gaussian(upload / scales[index]) @ others
            agrees[index] = abs(along) > limits[index] * np.sqrt(others @ others)
        if not uploads or len(uploads) ** 2 * uploads[0].size > _MOST_PRODUCTS:
            return agrees
        # sqrt(2 (t + log N)) is at most sqrt(2 t) + log(N) / sqrt(2 t): one of N others is enough
        wider = limits + np.log(len(uploads)) / np.sqrt(2 * np.log(_EVENTS / FALSE_ALARM))
        rows = self._gaussian(np.array(uploads) / scales[:, None])
        lengths = np.maximum(np.sqrt((rows**2).sum(axis=1)), 1e-30)
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            along = np.abs(rows[part] @ rows.T) / lengths
            along[np.arange(len(along)), np.arange(start, start + len(along))] = 0.0
            agrees[part] |= (along > wider[part, None]).any(axis=1)
        return agrees

    def _gaussian(self, own: Floats) -> Floats:
        """Coordinates whose noise is standard normal."""
        if self.mechanism != "laplace":
            return own
        return np.asarray(-np.sign(own) * ndtri_exp(np.log(0.5) - np.abs(own)))


@lru_cache(maxsize=4)
def _typical(size: int) -> Floats:
    """Expected order statistics of standard normal noise (Blom 1958)."""
    found = np.asarray(ndtri((np.arange(1, size + 1) - 0.375) / (size + 0.25)))
    found.setflags(write=False)
    return found
