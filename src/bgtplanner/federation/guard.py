"""What a client does to protect itself: reserve in its ledger, clip, noise, release, settle.

Everything that leaves a client passes this door, in a simulation with all clients at once as on a
real device with one. A client that cannot pay sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.mechanisms import Mechanism, mechanism_named
from bgtplanner.privacy.noise import NoiseSource, SystemNoise
from bgtplanner.privacy.privunit import randomise

__all__ = ["Guard", "Release"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Release:
    """What leaves, and what it was paid with.

    Attributes:
        values: With trust ``local`` one noised upload a client, zeros for who was refused; with
            ``secagg`` one noised sum a group.
        reservation: To be settled once the values have been sent.
        noise_scale: Scale of the noise on every coordinate.
    """

    values: Floats
    reservation: Reservation
    noise_scale: float


class Guard:
    """The one door.

    Args:
        ledger: Who can still pay. Its rule says whose noise it is for.
        trust: ``local``: each upload is noised on its own. ``secagg``: only sums are seen, and the
            noise is in each sum once.
        unit: ``client``: one clip over the whole upload, the sound one. ``row``: every block of
            the upload is clipped and noised on its own with the full charge, as the authors' code
            does; for the reproduction only.
        noise: Where noise comes from; by default the operating system. Give a seeded one in
            simulations only.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        trust: Literal["local", "secagg"] = "local",
        unit: Literal["client", "row"] = "client",
        noise: NoiseSource | None = None,
    ) -> None:
        ConfigError.unless(trust in ("local", "secagg"), "trust", trust, "local or secagg")
        ConfigError.unless(unit in ("client", "row"), "unit", unit, "client or row")
        self.ledger = ledger
        self.trust = trust
        self.unit = unit
        self.mechanism: Mechanism = mechanism_named(ledger.rule.mechanism)
        alone = trust == "local" and unit == "client"
        expected = "gaussian or laplace, unless trust = local and unit = client"
        name = self.mechanism.name
        ConfigError.unless(self.mechanism.additive or alone, "mechanism", name, expected)
        self._noise = noise

    def release(
        self,
        uploads: ArrayLike,
        *,
        charge: float,
        clip: float,
        run: str,
        round: int,  # noqa: A002 - the word of the domain
        groups: ArrayLike | None = None,
        fingerprint: bytes | None = None,
    ) -> Release:
        """Reserve, clip and noise; refuse who cannot pay before anything is computed.

        Args:
            uploads: One upload a client, ``[n_clients, size]``, over a fixed public set of
                coordinates; with unit ``row``, ``[n_clients, blocks, size]``.
            charge: What each client pays.
            clip: Bound on the norm of an upload (of a block, with unit ``row``).
            run: Which run.
            round: Which round of it.
            groups: With trust ``secagg``, the group of each client; by default one for all.
            fingerprint: Of no effect; every release is charged.

        Raises:
            BudgetExceeded: If nobody can pay. Nothing was computed.
        """
        array = np.asarray(uploads, dtype=np.float64)
        shape = array.shape[:1] == (len(self.ledger),) and array.ndim == (
            3 if self.unit == "row" else 2
        )
        expected = f"{len(self.ledger)} clients and {'blocks, ' * (self.unit == 'row')}coordinates"
        ConfigError.unless(shape, "uploads", array.shape, expected)
        multiplier = float(self.ledger.rule.noise_multiplier(charge))
        scale = float(self.mechanism.scale(multiplier, clip))
        index = _checked_groups(groups, len(array))
        del fingerprint  # noise is never the same again: every release is charged afresh
        secagg = self.trust == "secagg"
        reservation = self.ledger.reserve(charge, run=run, round=round)

        blocks = array.reshape(-1, array.shape[-1]) if self.unit == "row" else array
        clipped = self.mechanism.clip(blocks, clip).reshape(array.shape)
        clipped[~reservation.granted] = 0.0
        source = SystemNoise() if self._noise is None else self._noise
        if secagg:
            clipped = _sums(self.mechanism.on_grid(clipped, scale), index)
        if self.mechanism.additive:
            values = self.mechanism.add_noise(clipped, source, scale)
        else:
            values = randomise(clipped, source, bound=clip, epsilon=charge)
            values = self.mechanism.rounded(values, scale)
        if not secagg:
            values[~reservation.granted] = 0.0
        return Release(values, reservation, scale)

    def settle(self, release: Release) -> None:
        """Note that a release was sent."""
        self.ledger.settle(release.reservation)


def _checked_groups(groups: ArrayLike | None, n_clients: int) -> NDArray[np.int64]:
    if groups is None:
        return np.zeros(n_clients, dtype=np.int64)
    index = np.asarray(groups)
    whole = index.shape == (n_clients,) and np.issubdtype(index.dtype, np.integer)
    whole = whole and index.min() >= 0 and index.max() < n_clients
    ConfigError.unless(bool(whole), "groups", groups, f"one number below {n_clients} a client")
    return index.astype(np.int64)


def _sums(clipped: Floats, groups: NDArray[np.int64]) -> Floats:
    if not groups.any():
        return np.asarray(clipped.sum(axis=0, keepdims=True))
    total = np.zeros((int(groups.max()) + 1, *clipped.shape[1:]))
    np.add.at(total, groups, clipped)
    return total
