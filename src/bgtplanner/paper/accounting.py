"""The unit and the accountant of the paper's authors; neither is sound for a whole client.

Their code clips and noises every tensor and every item row on its own with the full charge of the
round (unit ``row``). A client that is replaced changes *all* of its rows, so at the level of the
client the charges of its rows add up. (Even that treats the item ids, which such an upload
reveals, as public.)

They book epsilon as a Renyi divergence of order 2 and never convert it, so that their "10" is
mu^2 = 10 in the accountant ``gaussian/gdp``: this is the accountant ``gaussian/authors``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.privacy.accountants import PURE, Accountant
from bgtplanner.privacy.compatibility import Unit
from bgtplanner.privacy.conversions import filter_epsilon, gdp_epsilon, squares_epsilon
from bgtplanner.privacy.mechanisms import mechanism_named

ROW = Unit(name="row", release="bgtplanner.paper.rows:release_rows", sound=False, own_clips=True)
"""Each tensor, and each row of an item that the client rated, on its own."""


class GaussianAuthors(Accountant):
    """The charges of ``gaussian/gdp`` against epsilon, not converted; promises nothing."""

    name, mechanism, sound = "gaussian/authors", "gaussian", False
    sums = (PURE,)


GAUSSIAN_AUTHORS = GaussianAuthors()

AUTHORS = {"gaussian": GAUSSIAN_AUTHORS.name, "laplace": "laplace/basic"}
"""The authors' accountant of each mechanism."""


class Spent(NamedTuple):
    """What several releases amount to: epsilon at a delta, and pure epsilon if there is one."""

    epsilon: float
    pure: float | None


def client_level(
    mechanism: str, noise_multipliers: ArrayLike, blocks: ArrayLike, delta: float
) -> Spent:
    """Return the client-level epsilon of rounds in which a client released several blocks.

    The noise multipliers are scales over 2 * clip, and blocks are tensors and rows, per round.

    Example:
        >>> client_level("gaussian", [10**0.5] * 100, [56] * 100, 1e-5).epsilon > 300
        True
    """
    multipliers, number = np.broadcast_arrays(
        np.asarray(noise_multipliers, dtype=np.float64), np.asarray(blocks, dtype=np.float64)
    )
    kind = mechanism_named(mechanism)
    if not kind.pure:
        return Spent(float(gdp_epsilon((number / multipliers**2).sum(), delta)), None)
    epsilons = kind.epsilon_of(multipliers)
    pure, squares = float((number * epsilons).sum()), (number * epsilons**2).sum()
    bounds = filter_epsilon(squares, delta), squares_epsilon(squares, delta)
    return Spent(min(pure, *map(float, bounds)), pure)
