"""The error on the clients' validation sets: how it is measured, and how the server uses it.

A client's mean squared error on its validation ratings, from 0 to a public bound, is one number.
Its mean over the clients is released after the server's step, with noise, for a share of the
round's charge (:meth:`bgtplanner.federation.protection.Protection.validate`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.federation.chunks import Heldout
from bgtplanner.models.interactions import Interactions
from bgtplanner.planning.states import Remembers

WORST = 0.16
"""Bound on a client's mean squared error (an RMSE of 0.4); larger errors are clipped to it."""

_UNKNOWN = 0.25  # of WORST, an RMSE of 0.2: the value of a client without validation ratings
_MEMORY = 0.9  # of the average over rounds
_SURE = 3.0  # standard deviations: a run compares with its target a hundred times


def errors_of_clients(
    predicted: Array, validation: Heldout, interactions: Interactions, index: Array
) -> Array:
    """Return each client's mean squared error on its validation ratings, as a share of WORST."""
    arrival = jnp.zeros_like(validation.user) if validation.arrival is None else validation.arrival
    known = (arrival <= index).astype(jnp.float32)
    client = interactions.client_of_user[validation.user]
    squares, number = (
        jax.ops.segment_sum(known * part, client, interactions.n_clients)
        for part in ((predicted - validation.value) ** 2, jnp.ones_like(known))
    )
    error = squares / jnp.maximum(number, 1.0) / WORST
    return jnp.where(number > 0, jnp.clip(error, 0.0, 1.0), _UNKNOWN)


def rmse_of(share: float) -> float:
    """Return the RMSE that a share of the worst mean squared error stands for."""
    return float((WORST * max(share, 0.0)) ** 0.5)


class Validated(NamedTuple):
    """The estimated error so far, and an upper confidence bound that accounts for the noise."""

    rmse: float
    upper: float


class Validation(Remembers):
    """The server's moving average over rounds, because one round alone is mostly noise.

    It lags behind a model that improves, and so errs on the safe side.
    """

    remembers = ("_weight", "_square", "_total")

    def __init__(self) -> None:
        self._weight = self._square = self._total = 0.0

    def saw(self, value: float, noise_std: float) -> None:
        """Add one more released number, a share of the worst, with its noise."""
        precision = 1.0 / max(noise_std, 1e-6) ** 2
        self._weight = _MEMORY * self._weight + precision
        self._square = _MEMORY**2 * self._square + precision  # variance of the total
        self._total = _MEMORY * self._total + precision * value

    @property
    def estimate(self) -> Validated | None:
        """The current estimate; None before the first release."""
        if not self._weight:
            return None
        mean, deviation = self._total / self._weight, self._square**0.5 / self._weight
        return Validated(rmse_of(mean), rmse_of(mean + _SURE * deviation))
