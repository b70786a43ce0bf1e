"""Under which clip and noise a round is played, by what was agreed and paid for.

The sensitivity, over the whole upload or over another unit, is 2 * clip for the neighbouring
relation ``replace-one`` and clip for ``replace-special``. Under the latter, a client's upload is
compared with zero: a client without ratings, or whose upload is not finite, adds exactly that and
is counted like the others. Under ``secagg``, Gaussian noise is that of the shares of the clients
which answer, on their grid (:mod:`bgtplanner.privacy.shares`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bgtplanner.planning.plan import noise_of, weights_of
from bgtplanner.privacy.accountants import TICK, Accountant
from bgtplanner.privacy.mechanisms import Neighbours, mechanism_named
from bgtplanner.privacy.shares import Shares, Tolerance

Floats = NDArray[np.float64]


class RoundParameters(NamedTuple):
    """Who may release in a round, and with which clip and noise."""

    granted: Array  # 1 for a client that has paid and answers
    clip: Array  # bound on the norm, per budget class
    scale: Array  # of the noise, per budget class; with shares, that of the full noise
    class_of_client: Array
    parameters: Array | None = None  # that the mechanism derives from each class's charge
    own: Array | None = None  # ratio of each client's clip and noise to those of its class
    share: Array | None = None  # deviation of each client's share of the noise in the sum
    step: Array | None = None  # of the grid on which uploads and shares lie

    def as_answered(self) -> RoundParameters:
        """Return them with the noise that the clients which answer add together."""
        if self.share is None:
            return self
        together = self.share * jnp.sqrt(self.granted.sum())
        return self._replace(scale=jnp.full_like(self.scale, together))

    def cut(self, values: Array) -> Array:
        """Return values cut towards zero to the grid, which increases no norm."""
        if self.step is None:
            return values
        return jnp.copysign(jnp.floor(abs(values / self.step)), values) * self.step

    def rounded(self, noised: Array) -> Array:
        """Return sums on the grid to which noise was added, with the noise in whole steps."""
        return noised if self.step is None else jnp.rint(noised / self.step) * self.step


def round_parameters(
    accountant: Accountant, trust: str, clip: float, charges: Floats, granted: NDArray[np.bool_],
    class_of_client: NDArray[np.int32], own: Floats | None = None,
    neighbours: Neighbours = "replace-one", *, invited: NDArray[np.bool_] | None = None,
    tolerance: Tolerance | None = None,
) -> RoundParameters:  # fmt: skip
    """Return the parameters under which a round costs each class its charge.

    Under ``secagg`` all clients share the noise in the sum. A class with a smaller charge
    therefore gets a smaller clip, by the ratio of the noise multipliers. The charges are for the
    neighbouring relation `neighbours`, which sets the sensitivity. The shares are for the clients
    that were invited, by default those `granted`, and for what is tolerated of them.
    """

    def single(values: ArrayLike | None) -> Any:
        return None if values is None else np.asarray(values, dtype=np.float32)

    bounds, scales = _bounds_and_scales(accountant, trust, clip, charges, neighbours)
    pays = (charges > 0)[class_of_client]
    number = int(((granted if invited is None else invited) & pays).sum())
    shares = None
    if _divides(accountant, trust) and number and scales.max(initial=0.0) > 0:
        dropouts, colluders = (tolerance or Tolerance()).of(number)
        shares = Shares(
            scale=float(scales.max()), clip=float(bounds.max()), invited=number,
            most_dropouts=dropouts, most_colluders=colluders,
        )  # fmt: skip
    return RoundParameters(
        granted=single(granted & pays), clip=single(bounds), scale=single(scales),
        class_of_client=cast(Any, class_of_client),
        parameters=single(mechanism_named(accountant.mechanism).parameters(charges)),
        own=single(own),
        share=single(shares.std_of_share if shares else None),
        step=single(shares.step if shares else None),
    )  # fmt: skip


def _divides(accountant: Accountant, trust: str) -> bool:
    """Return whether the noise of a sum is drawn in shares, so that no one holds all of it.

    Other noise is simulated under ``secagg`` as if someone were trusted to add it.
    """
    return trust == "secagg" and mechanism_named(accountant.mechanism).has_shares


def noise_of_mean(
    accountant: Accountant, trust: str, clip: float, charges: Floats, clients: NDArray[Any],
    neighbours: Neighbours = "replace-one", *, tolerance: Tolerance | None = None,
    answering: float = 1.0,
) -> float:  # fmt: skip
    """Return the standard deviation of the noise on the mean upload for these charges.

    It is a mean by weight: see :meth:`bgtplanner.federation.protection.Protection.mean`. Where
    the noise is drawn in shares, `answering` of the clients are expected to add theirs.
    """
    charges = np.where(charges >= TICK, charges, 0.0)
    bounds, scales = _bounds_and_scales(accountant, trust, clip, charges, neighbours)
    number = clients * (charges > 0)
    if not number.any():
        return float("inf")
    mechanism = mechanism_named(accountant.mechanism)
    common = trust == "secagg"
    weights = weights_of(bounds, scales, common)
    if _divides(accountant, trust):  # not yet on a grid, which depends on the charge
        invited = max(1, int(number.sum()))
        honest = (tolerance or Tolerance()).honest(invited)
        answers = max(1.0, answering * invited)
        share = (number * weights).sum() / number.sum()  # what an upload counts, on average
        return float(scales.max() / np.sqrt(honest * answers) / share)
    std = mechanism.std_of_sum(number, scales if common else weights * scales, common)
    return float(std / (number * weights).sum())


def _bounds_and_scales(
    accountant: Accountant, trust: str, clip: float, charges: Floats, neighbours: Neighbours
) -> tuple[Floats, Floats]:
    """Return the clip and the noise scale of each class of budgets.

    A class that pays nothing releases nothing: its infinite noise must not reach the others.
    """
    noise = noise_of(accountant, trust, clip, charges, neighbours)
    return noise.clip, np.where(np.isfinite(noise.scale), noise.scale, 0.0)
