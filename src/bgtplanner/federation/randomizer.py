"""How a client protects itself: reserve in its ledger, bound, randomise, release, settle.

Everything that leaves a client passes the randomizer. The charge is booked before an upload is
even looked at, so whether something is refused depends on the ledger and on the request, which are
public, and never on the upload. Every release has its own noise: what has to be sent twice is
stored (:mod:`bgtplanner.flower.state`) and never computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.compatibility import Choice, check
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.mechanisms import Mechanism, mechanism_named
from bgtplanner.privacy.randomness import ExactNoise, SystemNoise
from bgtplanner.privacy.shares import Shares

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Release:
    """What leaves the clients: noised uploads, zeros for refused clients, or a share of a sum.

    Once they have been sent, the reservation that paid for them is to be settled.
    """

    values: NDArray[Any]
    reservation: Reservation
    noise_scale: float


class Randomizer:
    """Reserves, clips and noises everything that leaves the clients.

    The ledger's accountant determines the mechanism, and its relation the sensitivity. With trust
    ``local`` each upload is noised on its own (:meth:`protect`); under ``secagg`` the server sees
    sums only, of which each client noises its share (:meth:`share`). There is one clip over the
    whole upload. The noise is that of the operating system; a seeded source is for simulations.
    """

    def __init__(
        self, ledger: Ledger, *, trust: str = "local", noise: ExactNoise | None = None
    ) -> None:
        self.neighbours = ledger.neighbours
        check(Choice(ledger.accountant.mechanism, trust, neighbours=self.neighbours))
        self.ledger, self.trust = ledger, trust
        self.mechanism: Mechanism = mechanism_named(ledger.accountant.mechanism)
        self._noise = SystemNoise() if noise is None else noise
        self._paid: dict[int, float] = {}  # charges of reservations that are not used yet

    def release(
        self,
        uploads: ArrayLike,
        *,
        charge: float,
        clip: float,
        run: str,
        round: int,  # noqa: A002 - the word of the domain
    ) -> Release:
        """Call :meth:`reserve` and :meth:`protect` in one step.

        Raises:
            BudgetExceeded: If no client can pay. Nothing was computed.
        """
        # Bad arguments are refused before they cost anything.
        self._checked(uploads)
        self._scale(charge, clip)
        reservation = self.reserve(charge, run=run, round=round)
        return self.protect(reservation, uploads, clip=clip)

    def reserve(
        self,
        charge: float,
        *,
        run: str,
        round: int,  # noqa: A002 - the word of the domain
        rising: bool = False,
    ) -> Reservation:
        """Book the charge that each client pays for one release, before anything is computed.

        Raises:
            BudgetExceeded: If no client can pay.
            StaleRoundError: If `rising`, and the round is not above all earlier ones of its run.
        """
        reservation = self.ledger.reserve(charge, run=run, round=round, rising=rising)
        self._paid[reservation.number] = float(charge)
        return reservation

    def protect(self, reservation: Reservation, uploads: ArrayLike, *, clip: float) -> Release:
        """Clip and noise the uploads that a reservation has paid for. Each pays for one release.

        The uploads are one per client, ``[n_clients, size]``, over a fixed public set of
        coordinates.

        Raises:
            ConfigError: If the reservation is not from this randomizer, or was used before.
        """
        array, charge = self._checked(uploads), self._used(reservation)
        scale = self._scale(charge, clip)
        clipped = self.mechanism.clip(array, clip)
        clipped[~reservation.granted] = 0.0
        values = self.mechanism.randomise(
            clipped, self._noise, scale=scale, bound=clip, charge=charge
        )
        values[~reservation.granted] = 0.0
        return Release(values, reservation, scale)

    def check_shares(self, shares: Shares, *, charge: float, clip: float) -> None:
        """Refuse shares that are too small for a charge, or that this randomizer does not add.

        It is called before the charge is reserved, so that a bad request costs nothing.
        """
        unless = ConfigError.unless
        unless(self.trust == "secagg", "trust", self.trust, "secagg, for a share of the noise")
        expected = "gaussian: other noise is not drawn in shares"
        unless(self.mechanism.has_shares, "mechanism", self.mechanism.name, expected)
        unless(len(self.ledger) == 1, "clients", len(self.ledger), "1: each adds its own share")
        unless(clip <= shares.clip, "clip", clip, f"at most that of the shares, {shares.clip:g}")
        least = self._scale(charge, clip)
        unless(shares.scale >= least, "scale", shares.scale, f"at least {least!r}")

    def share(
        self, reservation: Reservation, upload: ArrayLike, *, clip: float, shares: Shares
    ) -> Release:
        """Return one client's flat upload, bounded and on the grid, with its share of the noise.

        The values are whole numbers below 2^bits; their sum over the clients is modulo 2^bits.
        It is not private on its own: it must not leave the client except under a mask that hides
        it in a sum of at least ``shares.fewest`` clients.
        """
        charge = self._used(reservation)
        self.check_shares(shares, charge=charge, clip=clip)
        values = shares.encode(upload, self._noise, clip=clip)
        return Release(values, reservation, shares.scale)

    def settle(self, release: Release) -> None:
        """Record that a release was sent."""
        self.ledger.settle(release.reservation)

    def _used(self, reservation: Reservation) -> float:
        """Return the charge of a reservation, which pays for one release only."""
        known = reservation.number in self._paid
        expected = "one that this randomizer has made and not used yet"
        ConfigError.unless(known, "reservation", reservation.number, expected)
        return self._paid.pop(reservation.number)

    def _scale(self, charge: float, clip: float) -> float:
        """Return the noise scale that a charge buys."""
        multiplier = float(self.ledger.accountant.noise_multiplier(charge))
        return float(self.mechanism.scale(multiplier, clip, self.neighbours))

    def _checked(self, uploads: ArrayLike) -> Floats:
        """Return the uploads as an array; refuse any but one per client, and sums of them."""
        expected = "local: under secagg a client adds its share to a sum"
        ConfigError.unless(self.trust == "local", "trust", self.trust, expected)
        array, number = np.asarray(uploads, dtype=np.float64), len(self.ledger)
        fits = array.ndim == 2 and len(array) == number
        ConfigError.unless(fits, "uploads", array.shape, f"{number} clients and coordinates")
        return array
