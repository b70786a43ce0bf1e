"""Plans: what one round may cost each client, with the clip and the noise that cost as much.

A plan holds one charge per group of clients that pay the same; clip and noise are derived from the
charges. Where they are the same for everyone they are plain numbers, and otherwise arrays of shape
``(clients, 1)``, which fit uploads with one row per client.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import BudgetExceeded
from bgtplanner.planning.arguments import Floats, whole
from bgtplanner.privacy.accountants import TICK, Accountant, accountant_named
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.mechanisms import Neighbours, mechanism_named

Mask = NDArray[np.bool_]
Trust = Literal["local", "secagg"]

GROUPS = 63
"""The most different charges of a round."""

_LEAST = 1 / 1024  # of the largest charge: a smaller one would add next to nothing


class Explanation(NamedTuple):
    """Why a plan is what it is: a note in words, and numbers level by level.

    The price is what a level's charge would bring in other rounds. The forecast is one number: how
    far the error falls below that of a client alone, if the plan is followed.
    """

    note: str = ""
    charges: tuple[float, ...] = ()
    predicted: tuple[float, ...] = ()
    price: tuple[float, ...] = ()
    score: tuple[float, ...] = ()
    probability: tuple[float, ...] = ()
    forecast: tuple[float, ...] = ()


class Noise(NamedTuple):
    """Clip and noise per class; the noise of a class that pays nothing is infinite.

    The multiplier is the noise's scale (for Laplace noise its b) over the sensitivity.
    """

    clip: Floats
    multiplier: Floats
    scale: Floats
    std: Floats


def noise_of(
    rule: Accountant, trust: str, clip: float, charges: Floats,
    neighbours: Neighbours = "replace-one",
) -> Noise:  # fmt: skip
    """Return the clip and the noise with which a round costs each class its charge.

    With trust ``local`` each upload carries its own noise: the smaller the charge, the larger the
    noise. Under ``secagg`` the noise in the sum is the same for everyone, so a class with a
    smaller charge has a smaller clip instead, by the ratio of the noise multipliers.

    Example:
        >>> charges, basic = np.array([0.25, 1.0]), accountant_named("laplace/basic")
        >>> noise_of(basic, "local", 1.0, charges).scale.round(6).tolist()
        [8.0, 2.0]
        >>> noise_of(basic, "secagg", 1.0, charges).clip.round(6).tolist()
        [0.25, 1.0]
    """
    mechanism = mechanism_named(rule.mechanism)
    paying = charges > 0
    multipliers = np.full(len(charges), np.inf)
    bounds, scales = np.full(len(charges), float(clip)), np.full(len(charges), np.inf)
    if paying.any():
        multipliers[paying] = rule.noise_multiplier(charges[paying])
        if trust == "secagg":
            least = float(multipliers.min())
            bounds[paying] = clip * (least / multipliers[paying])
            scales[:] = float(mechanism.scale(least, clip, neighbours))
        else:
            scales[paying] = mechanism.scale(multipliers[paying], clip, neighbours)
    return Noise(bounds, multipliers, scales, scales * mechanism.std_of_scale)


def weights_of(clip: Any, scale: Any, common: bool) -> Any:
    """Return what an upload of each class counts in a mean; that of the class that pays most, 1.

    If the sum is noised once (`common`), an upload with a smaller clip is shorter and counts by
    that. An upload that carries its own noise counts by its precision: otherwise those of clients
    who pay little would drown the others.
    """
    if common:
        return clip / clip.max()
    xp = scale.__array_namespace__()
    noisy = (scale > 0) & xp.isfinite(scale)
    least = xp.where(noisy, scale, xp.inf).min()
    return xp.where(noisy, (least / xp.where(noisy, scale, 1.0)) ** 2, 1.0)


def in_groups(charges: Floats, clients: Mask | None) -> tuple[Floats, NDArray[np.int32]]:
    """Return a few charges, and the index of the one that each client pays.

    A client pays its own charge, or the next one below it where there are too many different ones.
    The first is 0, for those who are not among `clients` or would pay next to nothing.
    """
    asked = charges if clients is None else np.where(clients, charges, 0.0)
    index = np.zeros(len(charges), dtype=np.int32)
    most = float(asked.max(initial=0.0))
    pays = asked >= max(_LEAST * most, TICK)
    levels, place = np.unique(asked[pays], return_inverse=True)
    if len(levels) > GROUPS:
        # In bands of equal ratios, everyone pays what the one with the least can pay.
        bands = np.log(levels / (_LEAST * most)) / -np.log(_LEAST) * (GROUPS - 1)
        _, first, band = np.unique(bands.astype(int), return_index=True, return_inverse=True)
        levels, place = levels[first], band[place]
    index[pays] = 1 + place
    return np.append(0.0, levels), index


class ClientPlan(NamedTuple):
    """What a plan means for one client, in plain numbers; who takes no part must not upload."""

    takes_part: bool
    charge: float
    clip: float
    noise_multiplier: float
    noise_scale: float
    noise_std: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """What one round may cost, and the noise with which it costs that.

    `charge`, `clip`, `noise_multiplier`, `noise_scale` and `noise_std` are plain numbers where
    they are the same for every client, and otherwise arrays of shape ``(clients, 1)``. A client
    that does not take part pays 0 and has infinite noise (trust ``local``) or a clip of 0 (trust
    ``secagg``), so that its upload would be useless.

    Attributes:
        accountant: Name of the accountant that books the charges; None without any privacy.
        charge_by_class: What a client of each class pays: of each class of budgets or, where
            clients of one budget have different amounts left, of each group that pays the same.
        participants: The clients that pay, and so take part.
        own_clip: Each client's clip over that of its class, if they differ (trust ``local`` only).
            The noise changes by the same factor, so the charge does not change.
        reservation: The ledger's reservation; None if nothing was charged.
        token: Distinguishes this plan from all others.
    """

    round: int
    accountant: str | None
    largest_clip: float
    charge_by_class: Floats
    class_of_client: NDArray[np.int32]
    participants: Mask
    trust: Trust = "local"
    neighbours: Neighbours = "replace-one"
    own_clip: Floats | None = None
    level: int | None = None
    why: Explanation = field(default=Explanation())
    reservation: Reservation | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def skip(self) -> bool:
        """Whether this round is skipped: nothing is released and nothing was charged."""
        return self.accountant is not None and not self.charge_by_class.any()

    @cached_property
    def noise_by_class(self) -> Noise:
        """Clip and noise per class."""
        if self.accountant is None:
            none = np.zeros(len(self.charge_by_class))
            return Noise(none + self.largest_clip, none, none, none)
        return noise_of(
            accountant_named(self.accountant), self.trust, self.largest_clip,
            self.charge_by_class, self.neighbours,
        )  # fmt: skip

    @property
    def charge(self) -> Any:
        """What the round costs each client in all."""
        return self._each(self.charge_by_class, absent=0.0)

    @property
    def clip(self) -> Any:
        """Bound on the norm of each client's whole upload."""
        absent = 0.0 if self.trust == "secagg" else None
        return self._each(self.noise_by_class.clip, absent, self.own_clip)

    @property
    def noise_multiplier(self) -> Any:
        """Noise scale over the sensitivity; infinite for absent clients."""
        return self._each(self.noise_by_class.multiplier, absent=np.inf)

    @property
    def noise_scale(self) -> Any:
        """The noise as the mechanism's own scale (for Laplace noise its b, not its deviation).

        With ``privunit`` there is none: pass each client's clipped upload, with its `clip` and
        its `charge` from :meth:`of`, to :func:`bgtplanner.privacy.privunit.randomise`.
        """
        absent = None if self.trust == "secagg" else np.inf
        return self._each(self.noise_by_class.scale, absent, self.own_clip)

    @property
    def noise_std(self) -> Any:
        """Standard deviation of the noise to add to each upload clipped at `clip`.

        With trust ``secagg``, it is that of the noise in the sum, one number for everyone.
        """
        absent = None if self.trust == "secagg" else np.inf
        return self._each(self.noise_by_class.std, absent, self.own_clip)

    @property
    def weights(self) -> Floats:
        """What each client's upload counts in the mean, ``[clients]``: 1, or less if it pays less.

        With ``secagg`` an upload with a smaller clip is shorter already: divide by their sum.
        """
        noise = self.noise_by_class
        each = weights_of(noise.clip, noise.scale, self.trust == "secagg")
        return np.where(self.participants, each[self.class_of_client], 0.0)

    def of(self, client: int) -> ClientPlan:
        """Return what the plan means for one client, counted from 0, in plain numbers."""
        client = whole("client", client, 0, len(self.participants) - 1)
        each = (np.ravel(getattr(self, name)) for name in ClientPlan._fields[1:])
        own = (float(values[client if len(values) > 1 else 0]) for values in each)
        return ClientPlan(bool(self.participants[client]), *own)

    def __repr__(self) -> str:
        charges = self.charge_by_class.tolist()
        return f"Plan(round={self.round}, level={self.level}, skip={self.skip}, {charges=})"

    def _each(self, by_class: Floats, absent: float | None, own: Floats | None = None) -> Any:
        """Return each client's number, times its own factor; or one that is everybody's.

        Those who take no part have the number `absent`, or that of their class if it is None.
        """
        each = by_class[self.class_of_client] * (1.0 if own is None else own)
        if absent is not None:
            each = np.where(self.participants, each, absent)
        if (each == each[0]).all():
            return float(each[0])
        each.flags.writeable = False
        return each[:, None]


def reserved(
    plan: Plan, ledger: Ledger | None, run: str, fingerprint: bytes | None = None
) -> Plan:
    """Reserve what a plan costs; return it for the clients that can pay, with the reservation.

    If no one can pay, since others have spent from the ledger in the meantime, the round is
    skipped. For the same fingerprint of the round's inputs the ledger grants the same again, at no
    further charge.
    """
    if plan.accountant is None or plan.skip or ledger is None:
        return plan
    charges = np.maximum(plan.charge_by_class, TICK)[plan.class_of_client]
    clients = plan.participants
    try:
        reservation = ledger.reserve(
            charges[0] if (charges == charges[0]).all() else charges,
            run=run, round=plan.round, clients=None if clients.all() else clients,
            fingerprint=fingerprint,
        )  # fmt: skip
    except BudgetExceeded:
        nothing = np.zeros_like(plan.charge_by_class)
        return replace(plan, charge_by_class=nothing, participants=np.zeros_like(clients))
    return replace(plan, participants=reservation.granted, reservation=reservation)
