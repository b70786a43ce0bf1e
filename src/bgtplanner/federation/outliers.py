"""Which uploads can be honest: the tests that reject what clip and noise cannot produce.

Under local trust the server sees every noised upload. An honest one, divided by the scale of its
noise, is ``y = u + z``: a part u no longer than ``c = clip / scale``, and noise z of a known law.

* **norm** and **coordinates** are within what u and z allow;
* **shape**: its sorted coordinates lie near the order statistics of the noise. Sorting never
  increases the distance between two vectors, so u moves them by at most c, and the distance
  itself varies no more than the noise does (Gaussian concentration of a 1-Lipschitz function);
* **agreement**: along the sum of all other uploads, and along each of them, which are independent
  of its noise, it reaches no further than c and a few standard deviations. Clients that push in
  the same direction stand out;
* **repeats**: no two honest uploads are equal to the last bit.

Each mechanism has its own limits; noise that is not Gaussian is transformed to Gaussian,
coordinate by coordinate, for shape and agreement. docs/concepts/poisoning.md describes what a
client within the limits can still do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.special import ndtri

from bgtplanner.privacy.mechanisms import Limits, mechanism_named

Floats = NDArray[np.float64]

FALSE_ALARM = 1e-6
"""Largest probability that an honest upload is rejected."""

LEAST_SCALE = 1e-30
"""Replaces a scale of zero, which a class of clients that pays nothing has."""

_EVENTS = 7.0  # low norm, high norm (2), coordinates, shape, agreement (2) share FALSE_ALARM
_DIGEST = 16  # bytes
_MOST_PRODUCTS = 1e12  # most multiplications to compare every upload with every other one
_AT_ONCE = 512  # uploads
_REMEMBERED = 1_000_000  # digests of earlier uploads


def limits_of(
    mechanism: str,
    clip: Array | float,
    scale: Array | float,
    size: int,
    parameters: Array | None = None,
) -> Limits:
    """Return the limits that all but `FALSE_ALARM` of honest uploads of `size` coordinates keep.

    It works inside a compiled round; `parameters` are further ones that the mechanism derives from
    a charge.
    """
    reach = jnp.asarray(clip) / jnp.maximum(scale, LEAST_SCALE)
    rare = jnp.full_like(reach, np.log(_EVENTS / FALSE_ALARM))
    return mechanism_named(mechanism).limits(reach, rare, size, parameters=parameters)


class OutlierTests:
    """Tests single uploads, round by round, and remembers which ones it has accepted.

    `seen` are the digests of those that were accepted before, from :attr:`seen`.
    """

    def __init__(self, mechanism: str, seen: NDArray[np.uint8] | None = None) -> None:
        self.mechanism = mechanism_named(mechanism)
        known = [] if seen is None else [row.tobytes() for row in seen]
        self._seen: dict[bytes, None] = dict.fromkeys(known)

    @property
    def seen(self) -> NDArray[np.uint8]:
        """Digests of the newest accepted uploads, one per row."""
        joined = b"".join(self._seen)
        return np.frombuffer(joined, dtype=np.uint8).reshape(-1, _DIGEST)

    def rejected(
        self,
        uploads: Mapping[int, Floats],
        scales: Mapping[int, float],
        limits: Mapping[int, Limits],
        beside: Floats | None = None,
    ) -> dict[int, str]:
        """Return the reason for each upload of a round that is rejected; remember the others.

        Of equal uploads the first is accepted, because one honest client may have sent it. All are
        finite; scale and limits are those of each, and `beside` is the sum of further uploads of
        the round, which are not tested.
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
        """Return whether clip and noise can produce an upload's norm, coordinates and shape."""
        with np.errstate(over="ignore"):
            own = upload / scale
        norm = self.mechanism.norm(own[None])[0]
        if not (limits.low <= norm <= limits.high) or np.abs(own).max() > limits.coordinate:
            return False
        apart = np.sort(self.mechanism.as_normal(own)) - _typical(len(own))
        return bool(np.sqrt(apart @ apart) <= limits.shape)

    def _agree(
        self, uploads: list[Floats], scales: Floats, limits: Floats, beside: Floats | None
    ) -> NDArray[np.bool_]:
        """Return which uploads agree too much with the sum of the others, or with one of them."""
        total = sum(uploads, start=np.zeros(1) if beside is None else beside)
        agrees = np.zeros(len(uploads), dtype=bool)
        for index, upload in enumerate(uploads):
            others = total - upload
            along = self.mechanism.as_normal(upload / scales[index]) @ others
            agrees[index] = abs(along) > limits[index] * np.sqrt(others @ others)
        if not uploads or len(uploads) ** 2 * uploads[0].size > _MOST_PRODUCTS:
            return agrees
        # sqrt(2 (t + log N)) <= sqrt(2 t) + log(N) / sqrt(2 t): a union bound over N others
        wider = limits + np.log(len(uploads)) / np.sqrt(2 * np.log(_EVENTS / FALSE_ALARM))
        rows = self.mechanism.as_normal(np.array(uploads) / scales[:, None])
        lengths = np.maximum(np.sqrt((rows**2).sum(axis=1)), 1e-30)
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            along = np.abs(rows[part] @ rows.T) / lengths
            along[np.arange(len(along)), np.arange(start, start + len(along))] = 0.0
            agrees[part] |= (along > wider[part, None]).any(axis=1)
        return agrees


@lru_cache(maxsize=4)
def _typical(size: int) -> Floats:
    """Return the expected order statistics of standard normal noise (Blom 1958)."""
    found = np.asarray(ndtri((np.arange(1, size + 1) - 0.375) / (size + 0.25)))
    found.setflags(write=False)
    return found
