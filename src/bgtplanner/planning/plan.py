"""Plans: what one round may cost each client, with the clip and the noise that cost as much.

A plan holds one charge per class of budgets; clip and noise are derived from the charges, so that
they cannot disagree. With equal budgets they are plain numbers. With unequal budgets each client
has its own, as a :class:`PerClient`: the same lines of a training loop are right for both.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import Floats, whole
from bgtplanner.privacy.accountants import TICK, Accountant, accountant_named
from bgtplanner.privacy.ledger import Reservation
from bgtplanner.privacy.mechanisms import Neighbours, mechanism_named

__all__ = [
    "GROUPS",
    "ClientPlan",
    "Floats",
    "Noise",
    "PerClient",
    "Plan",
    "Untold",
    "Why",
    "in_groups",
    "noise_of",
    "weights_of",
]

Mask = NDArray[np.bool_]
Trust = Literal["local", "secagg"]

GROUPS = 63
"""The most different charges of a round."""

_LEAST = 1 / 1024  # of the largest charge: a smaller one would add next to nothing


class PerClient(np.ndarray[tuple[int, ...], np.dtype[np.float64]]):
    """One number per client, as a column of shape ``(clients, 1)``.

    It is a column because NumPy aligns arrays by their last axis: if there happened to be as many
    coordinates as clients, a flat array would give every upload, a row of ``[clients,
    coordinates]``, the noise of other clients. A column stays aligned with the clients even where
    an array loses its class, as in ``generator.normal(0.0, plan.noise_std, uploads.shape)``, in
    torch and in JAX; and a plain number can take its place.

    In arithmetic it is aligned with the first axis, however many axes there are. An operand
    without one row per client is refused, such as a single upload or flat norms (compute them with
    ``keepdims=True``), and so is its use as a single number. ``column[7]`` is a number,
    ``column[mask]`` a column, ``column[:, None]`` and ``column[:, 0]`` are plain arrays.

    Example:
        >>> column = PerClient.of([1.0, 2.0])
        >>> (column * np.ones((2, 3))).tolist()
        [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
        >>> float(column)
        Traceback (most recent call last):
        ...
        bgtplanner.errors.ConfigError: one number for each of 2 clients is not a single \
number, because they pay different charges: use each client's own, plan.of(client), or all at \
once on uploads of shape (2, ...)
    """

    @classmethod
    def of(cls, values: Any) -> PerClient:
        """Return these values as a column that cannot be written to."""
        column = np.array(values, dtype=np.float64).reshape(-1, 1)
        column.flags.writeable = False
        return column.view(cls)

    @property
    def _lies_along_clients(self) -> bool:
        """Whether it is still a column; reshaped, it is an array like any other."""
        return self.ndim == 2 and self.shape[1] == 1

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(one) if isinstance(one, PerClient) else one for one in inputs]
        if "out" in options:
            options["out"] = tuple(
                np.asarray(one) if isinstance(one, PerClient) else one for one in options["out"]
            )
        own = [isinstance(one, PerClient) and one._lies_along_clients for one in inputs]
        if method != "__call__" or ufunc.signature is not None or not any(own):
            return getattr(ufunc, method)(*plain, **options)
        clients = next(len(one) for one, column in zip(plain, own, strict=True) if column)
        shapes = [np.shape(one) for one, column in zip(inputs, own, strict=True) if not column]
        shapes = [shape for shape in shapes if shape]  # plain numbers go with everything
        lengths = {len(one) for one, column in zip(plain, own, strict=True) if column}
        rows = all(len(shape) >= 2 and shape[0] == clients for shape in shapes)
        if not rows or len(lengths) > 1:
            raise ConfigError(
                f"one number for each of {clients} clients does not go with an array of shape "
                f"{next(iter(shapes), (sorted(lengths)[-1],))}: uploads need one row per client, "
                f"({clients}, ...); compute norms with keepdims=True; for the upload of a single "
                "client use plan.of(client)"
            )
        along = (clients, *[1] * (max(map(len, shapes), default=2) - 1))
        plain = [
            one.reshape(along) if column else one for one, column in zip(plain, own, strict=True)
        ]
        found = ufunc(*plain, **options)
        kept = not shapes and "out" not in options and isinstance(found, np.ndarray)
        return found.view(PerClient) if kept and found.dtype == np.float64 else found

    def __getitem__(self, key: Any) -> Any:
        column = np.asarray(self)
        by_axes = isinstance(key, tuple) and not any(part is None for part in key)
        by_axes = by_axes or (isinstance(key, np.ndarray) and key.ndim > 1)
        if by_axes or not self._lies_along_clients:
            return column[key]
        found = column[:, 0][key]
        return PerClient.of(found) if np.ndim(found) == 1 else found

    def _alone(self) -> float:
        """Return the number, if there is only one."""
        if self.size != 1:
            raise ConfigError(
                f"one number for each of {len(self)} clients is not a single number, because they "
                "pay different charges: use each client's own, plan.of(client), or all at once "
                f"on uploads of shape ({len(self)}, ...)"
            )
        return float(np.asarray(self).reshape(()))

    __float__ = _alone

    def __int__(self) -> int:
        return int(self._alone())

    def __complex__(self) -> complex:
        return complex(self._alone())

    def __format__(self, spec: str) -> str:
        return format(self._alone(), spec) if spec else str(self)


class Why(NamedTuple):
    """Why a plan is what it is, level by level.

    Attributes:
        note: The reason in words.
        charges: Charge of each level, for the class that pays most.
        predicted: Predicted reward of each level.
        price: The reward that each level's charge would bring in other rounds.
        score: The score by which the levels were compared.
        probability: The probability with which each level was drawn.
        forecast: One number, if there is a forecast: how far the error falls below that of a
            client alone, as a share of it, if the plan is followed.
    """

    note: str = ""
    charges: tuple[float, ...] = ()
    predicted: tuple[float, ...] = ()
    price: tuple[float, ...] = ()
    score: tuple[float, ...] = ()
    probability: tuple[float, ...] = ()
    forecast: tuple[float, ...] = ()


class Noise(NamedTuple):
    """Clip and noise per class of budgets; the noise of a class that pays nothing is infinite.

    Attributes:
        clip: Bound on the norm of an upload.
        multiplier: Noise scale over the sensitivity: 2 * clip for ``replace-one``, clip for
            ``replace-special``.
        scale: Scale of the noise (for Laplace noise its b, not its deviation).
        std: Standard deviation of the noise.
    """

    clip: Floats
    multiplier: Floats
    scale: Floats
    std: Floats


def noise_of(
    accountant: Accountant,
    trust: str,
    clip: float,
    charges: Floats,
    neighbours: Neighbours = "replace-one",
) -> Noise:
    """Return the clip and the noise with which a round costs each class its charge.

    With trust ``local`` each upload carries its own noise: the smaller the charge, the larger the
    noise. Under ``secagg`` the noise in the sum is the same for everyone, so a class with a
    smaller charge has a smaller clip instead, by the ratio of the noise multipliers. The
    neighbouring relation is the one that the charges are for; it sets the sensitivity, and with it
    the noise, for all classes alike.

    Example:
        >>> charges, basic = np.array([0.25, 1.0]), accountant_named("laplace/basic")
        >>> noise_of(basic, "local", 1.0, charges).scale.round(6).tolist()
        [8.0, 2.0]
        >>> noise_of(basic, "secagg", 1.0, charges).clip.round(6).tolist()
        [0.25, 1.0]
        >>> noise_of(basic, "secagg", 1.0, charges, "replace-special").scale.round(6).tolist()
        [1.0, 1.0]
    """
    mechanism = mechanism_named(accountant.mechanism)
    paying = charges > 0
    multipliers = np.full(len(charges), np.inf)
    bounds, scales = np.full(len(charges), float(clip)), np.full(len(charges), np.inf)
    if np.count_nonzero(paying):
        multipliers[paying] = accountant.noise_multiplier(charges[paying])
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

    Example:
        >>> weights_of(np.ones(2), np.array([8.0, 2.0]), common=False).tolist()
        [0.0625, 1.0]
    """
    if common:
        return clip / clip.max()
    xp = scale.__array_namespace__()
    noisy = (scale > 0) & xp.isfinite(scale)
    least = xp.where(noisy, scale, xp.inf).min()
    return xp.where(noisy, (least / xp.where(noisy, scale, 1.0)) ** 2, 1.0)


def in_groups(charges: Floats, clients: Mask) -> tuple[Floats, NDArray[np.int32]]:
    """Return a few charges, and the index of the one that each client pays.

    A client pays its own charge, or the next one below it where there are too many different ones.
    The first is 0, for those who are not among `clients` or would pay next to nothing.

    Example:
        >>> charges, index = in_groups(np.array([0.5, 0.25, 0.5, 0.5]), np.arange(4) < 3)
        >>> charges[index].tolist()
        [0.5, 0.25, 0.5, 0.0]
    """
    index = np.zeros(len(charges), dtype=np.int32)
    most = float(charges[clients].max(initial=0.0))
    pays = clients & (charges >= max(_LEAST * most, TICK))
    levels, place = np.unique(charges[pays], return_inverse=True)
    if len(levels) > GROUPS:
        # In bands of equal ratios, everyone pays what the one with the least can pay.
        bands = np.log(levels / (_LEAST * most)) / -np.log(_LEAST) * (GROUPS - 1)
        _, first, band = np.unique(bands.astype(int), return_index=True, return_inverse=True)
        levels, place = levels[first], band[place]
    index[pays] = 1 + place
    return np.append(0.0, levels), index


class ClientPlan(NamedTuple):
    """What a plan means for one client.

    Attributes:
        takes_part: Whether the client has paid; otherwise it must not upload anything.
        charge: What it pays.
        clip: Bound on the norm of its whole upload.
        noise_multiplier: Noise scale over the sensitivity.
        noise_scale: Scale of its noise; under ``secagg``, of the noise in the sum.
        noise_std: The noise as a standard deviation.
    """

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
    they are the same for every client, and otherwise a :class:`PerClient`. A client that does not
    take part pays 0 and has infinite noise (trust ``local``) or a clip of 0 (trust ``secagg``), so
    that its upload would be useless.

    Attributes:
        round: The number of the round, from 0.
        accountant: Name of the accountant that books the charges; None without any privacy.
        largest_clip: The clip of the class that pays most.
        charge_by_class: What a client of each class of budgets pays.
        participants: The clients that have paid, and so take part.
        class_of_client: Class of each client; None if there is one class only.
        trust: ``local``: each client adds its own noise. ``secagg``: the server sees a sum that
            carries the noise once, and a client that pays less has a smaller clip.
        neighbours: The neighbouring relation that the noise is for: with ``replace-one`` the
            sensitivity is 2 * clip, with ``replace-special`` (trust ``secagg`` only) it is clip.
        own_charge: Whether the classes are of charges and not of budgets, since clients of one
            budget have different amounts left and pay by that.
        own_clip: Each client's clip over that of its class, where a policy gives clients different
            clips (trust ``local`` only). The noise changes by the same factor, so the charge does
            not change.
        level: The level that was chosen, for policies that have levels.
        why: The numbers behind the plan.
        reservation: The ledger's reservation; None if nothing was charged.
        token: Distinguishes this plan from all others; see :class:`Untold`.
    """

    round: int
    accountant: str | None
    largest_clip: float
    charge_by_class: Floats
    participants: Mask
    class_of_client: NDArray[np.int32] | None = None
    trust: Trust = "local"
    neighbours: Neighbours = "replace-one"
    own_charge: bool = False
    own_clip: Floats | None = None
    level: int | None = None
    why: Why = field(default=Why())
    reservation: Reservation | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def skip(self) -> bool:
        """Whether this round is skipped: nothing is released and nothing was charged."""
        return self.accountant is not None and not np.count_nonzero(self.charge_by_class)

    @cached_property
    def noise_by_class(self) -> Noise:
        """Clip and noise per class of budgets."""
        if self.accountant is None:
            none = np.zeros(len(self.charge_by_class))
            return Noise(none + self.largest_clip, none, none, none)
        return noise_of(
            accountant_named(self.accountant),
            self.trust,
            self.largest_clip,
            self.charge_by_class,
            self.neighbours,
        )

    @cached_property
    def charge(self) -> float | PerClient:
        """What the round costs each client in all."""
        return self._each(self.charge_by_class, 0.0)

    @cached_property
    def clip(self) -> float | PerClient:
        """Bound on the norm of each client's whole upload."""
        absent = 0.0 if self.trust == "secagg" else None
        return self._each(self.noise_by_class.clip, absent, self.own_clip)

    @cached_property
    def noise_multiplier(self) -> float | PerClient:
        """Noise scale over the sensitivity; infinite for absent clients."""
        return self._each(self.noise_by_class.multiplier, np.inf)

    @cached_property
    def noise_scale(self) -> float | PerClient:
        """The noise as the mechanism's own scale (for Laplace noise its b, not its deviation).

        With the mechanism ``privunit`` there is no noise to add: pass each client's clipped
        upload, with its `clip` and its `charge` from :meth:`of`, to
        :func:`bgtplanner.privacy.privunit.randomise`.
        """
        absent = None if self.trust == "secagg" else np.inf
        return self._each(self.noise_by_class.scale, absent, self.own_clip)

    @cached_property
    def noise_std(self) -> float | PerClient:
        """Standard deviation of the noise to add to each upload clipped at `clip`.

        It is the noise multiplier times the sensitivity of the relation `neighbours`: 2 * clip for
        ``replace-one`` and clip for ``replace-special`` (times sqrt(2) for Laplace noise).

        With trust ``secagg``, it is that of the noise in the sum, one number for everyone. With
        ``local`` it is infinite for absent clients, so that their uploads would be useless.
        """
        absent = None if self.trust == "secagg" else np.inf
        return self._each(self.noise_by_class.std, absent, self.own_clip)

    @cached_property
    def weights(self) -> Floats:
        """What each client's upload counts in the mean, ``[clients]``: 1, or less if it pays less.

        With trust ``local`` average with these weights. With ``secagg``, where an upload with a
        smaller clip is shorter already, divide the sum by the sum of the weights. Both estimate
        the mean of uploads clipped at `largest_clip`. A client that does not take part has 0.
        """
        noise = self.noise_by_class
        each = weights_of(noise.clip, noise.scale, self.trust == "secagg")
        if self.class_of_client is not None:
            each = each[self.class_of_client]
        return np.where(self.participants, each, 0.0)

    def of(self, client: int) -> ClientPlan:
        """Return what the plan means for one client, counted from 0, in plain numbers."""
        client = whole("client", client, 0, len(self.participants) - 1)
        index = 0 if self.class_of_client is None else int(self.class_of_client[client])
        noise = self.noise_by_class
        takes_part, together = bool(self.participants[client]), self.trust == "secagg"
        if not takes_part:
            scales = (float(noise.scale[index]), float(noise.std[index]))
            clip = 0.0 if together else float(noise.clip[index])
            return ClientPlan(False, 0.0, clip, np.inf, *(scales if together else (np.inf,) * 2))
        own = 1.0 if self.own_clip is None else float(self.own_clip[client])
        clip, multiplier, scale, std = (float(part[index]) for part in noise)
        charge = float(self.charge_by_class[index])
        return ClientPlan(True, charge, own * clip, multiplier, own * scale, own * std)

    def __repr__(self) -> str:
        noise = self.noise_by_class
        shown = {"charge": self.charge_by_class, "clip": noise.clip, "noise_std": noise.std}
        texts = ", ".join(f"{name}={_span(values)}" for name, values in shown.items())
        return f"Plan(round={self.round}, level={self.level}, skip={self.skip}, {texts})"

    @cached_property
    def _everybody(self) -> bool:
        return bool(self.participants.all())

    def _each(
        self, by_class: Floats, absent: float | None, own: Floats | None = None
    ) -> float | PerClient:
        """Return each client's number, or a plain number if it is the same for everyone.

        Args:
            by_class: One number per class.
            absent: The number of a client that does not take part; None: that of its class.
            own: A factor per client; None: no factor.
        """
        first = float(by_class[0])
        same = bool((by_class == first).all())
        if own is None and same and (absent is None or first == absent or self._everybody):
            return first  # the usual case: no array as long as the number of clients
        each = np.full(len(self.participants), first)
        if self.class_of_client is not None:
            each = by_class[self.class_of_client]
        if own is not None:
            each = each * own
        if absent is not None:
            each = np.where(self.participants, each, absent)
        return float(each[0]) if (each == each[0]).all() else PerClient.of(each)


def _span(values: Floats) -> str:
    least, most = float(values.min()), float(values.max())
    return f"{least:.6g}" if least == most else f"{least:.6g} to {most:.6g} by client"


class Untold:
    """The plans that were asked for and have not been told yet.

    Each is identified by a hash of its token and its numbers, so that the plan of another planner,
    or a copy with other numbers, is detected. The hashes are plain data: a plan may be told to the
    same planner after it was restored from its state.
    """

    def __init__(self, marks: Mapping[int, str] | None = None) -> None:
        # What a plan says, until it has to be written down: then only its hash.
        self._marks: dict[int, str | tuple[Any, ...]] = dict(marks or {})

    def add(self, plan: Plan) -> None:
        """Note that a plan was asked for."""
        self._marks[plan.round] = _said(plan)

    def check(self, plan: object) -> Plan:
        """Return the plan if it was asked for here, is unchanged and was not told yet."""
        if not isinstance(plan, Plan):
            raise ConfigError(f"plan = {type(plan).__name__}: expected a Plan returned by ask")
        known = self._marks.get(plan.round)
        expected = "one that was asked for and not told yet"
        ConfigError.unless(known is not None, "plan", plan.round, expected)
        expected = "the plan of this round as this planner gave it, not another's or a changed one"
        told = _said(plan)
        same = known == (_hash(told) if isinstance(known, str) else told)
        ConfigError.unless(same, "plan", plan.round, expected)
        return plan

    def remove(self, plan: Plan) -> None:
        """Note that a plan was told."""
        self._marks.pop(plan.round, None)

    def state_dict(self) -> dict[str, str]:
        """Return rounds and hashes, as plain data."""
        marks = {at: self._marks[at] for at in sorted(self._marks)}
        return {
            str(at): mark if isinstance(mark, str) else _hash(mark) for at, mark in marks.items()
        }

    @classmethod
    def from_state(cls, state: Any, rounds: int) -> Untold:
        """Restore what :meth:`state_dict` returned; only rounds below `rounds` are accepted."""
        named = isinstance(state, Mapping) and all(
            isinstance(at, str) and at.isdecimal() and len(at) < 12 and isinstance(mark, str)
            for at, mark in state.items()
        )
        expected = "a mark for each round not told yet"
        ConfigError.unless(named, "pending", type(state).__name__, expected)
        return cls({whole("pending", int(at), 0, rounds - 1): mark for at, mark in state.items()})


def _said(plan: Plan) -> tuple[Any, ...]:
    """Return what a plan says, as numbers and copies that no one can change."""
    paid = plan.reservation
    granted = paid is None or plan.participants is paid.granted
    return (
        plan.token,
        plan.round,
        plan.accountant,
        plan.trust,
        # As before for the relation that used to be the only one: old plans can still be told.
        *(() if plan.neighbours == "replace-one" else (plan.neighbours,)),
        plan.largest_clip,
        None if plan.own_clip is None else plan.own_clip.tobytes(),
        plan.level,
        *((plan.class_of_client.tobytes(),) if plan.own_charge else ()),  # type: ignore[union-attr]
        np.asarray(plan.charge_by_class, dtype=np.float64).tobytes(),
        paid and (paid.run, paid.round, paid.attempt, paid.number),
        # By identity where possible: a mask of a million clients need not be compared.
        granted or (paid is not None and np.array_equal(plan.participants, paid.granted)),
    )


def _hash(said: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(said).encode()).hexdigest()
