"""Which uploads can be honest: those whose length and coordinates clip and noise can produce.

Under local trust the server sees every noised upload. An honest one, divided by the scale of its
noise, is ``y = u + z``: a part u no longer than ``c = clip / scale``, and noise z of a known law.
So its norm lies in a range, and none of its coordinates is beyond a limit; each mechanism has its
own. The limit on coordinates is also how far one hostile client can move an item, whatever it
sends. Noise that only looks honest cannot be told from honest noise: docs/concepts/poisoning.md
describes what a client within the limits can still do.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.privacy.mechanisms import Limits, mechanism_named

FALSE_ALARM = 1e-6
"""Largest probability that an honest upload is rejected."""

_LEAST_SCALE = 1e-30  # replaces a scale of zero, which a class of clients that pays nothing has
_EVENTS = 7.0  # at least as many as share FALSE_ALARM: low norm, high norm (2), coordinates


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
    reach = jnp.asarray(clip) / jnp.maximum(scale, _LEAST_SCALE)
    rare = jnp.full_like(reach, np.log(_EVENTS / FALSE_ALARM))
    return mechanism_named(mechanism).limits(reach, rare, size, parameters=parameters)


def is_possible(mechanism: str, upload: NDArray[np.float64], scale: float, limits: Limits) -> bool:
    """Return whether clip and noise of this scale can have produced an upload."""
    with np.errstate(over="ignore"):
        own = upload / scale
    norm = mechanism_named(mechanism).norm(own[None])[0]
    return bool(limits.low <= norm <= limits.high and np.abs(own).max() <= limits.coordinate)
