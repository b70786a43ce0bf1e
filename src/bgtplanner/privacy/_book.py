"""What the rows of a ledger amount to: a state machine that knows nothing of files.

*Spending* holds the sums of what every client has paid. A *book* reads the rows in order, checks
that each one follows the one before it, and decides what may be reserved. Two readers of the same
rows have the same book.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import BudgetExceeded, ConfigError, InputError, LedgerError, quoted
from bgtplanner.errors import LedgerTamperedError as Tampered
from bgtplanner.privacy._rows import (
    Head,
    Mask,
    Payment,
    Row,
    Ticks,
    members_of,
    named_values,
    pack,
    settled_by,
    unpack,
)
from bgtplanner.privacy.accountants import (
    CEILING,
    Accountant,
    accountant_named,
    from_ticks,
    to_ticks,
)
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.mechanisms import SENSITIVITY, Neighbours


class Spending:
    """What every client has spent, ``[sums, clients]`` in ticks, and the limits of these sums."""

    def __init__(
        self, accountant: Accountant, budgets: Budgets, sums: Ticks | None = None
    ) -> None:
        self.accountant, self.class_of = accountant, budgets.class_of_client
        self.class_sizes = np.bincount(self.class_of, minlength=len(budgets.classes))
        limits = [accountant.limit_ticks(budget) for budget in budgets.classes]
        self.limits: Ticks = np.stack(limits, axis=1)[:, self.class_of]
        self.sums: Ticks = np.zeros_like(self.limits) if sums is None else sums
        self.gone: Mask = np.zeros(len(budgets), dtype=bool)  # who has left, and cannot pay

    def spent(self) -> Ticks:
        """Return a copy of the sums."""
        return self.sums.copy()

    def left(self) -> NDArray[np.float64]:
        """Return the largest charge that each client can still pay."""
        return np.where(self.gone, 0.0, self.accountant.largest_fitting(self.sums, self.limits))

    def grown(self, budgets: Budgets) -> Spending:
        """Return the same under these budgets, which may have places more at the end."""
        later = len(budgets) - len(self.gone)
        found = Spending(self.accountant, budgets, np.pad(self.sums, ((0, 0), (0, later))))
        found.gone[: len(self.gone)] = self.gone
        return found

    def add(self, payment: Payment) -> None:
        """Charge those who pay."""
        added = np.minimum(self.sums + self.adds(payment.ticks, payment.who), CEILING)
        self.sums = np.where(payment.who, added, self.sums)

    def adds(self, ticks: Ticks, who: Mask) -> Ticks:
        """Return what charges add to each sum, ``[sums, clients]``; only meaningful for `who`."""
        each = np.where(who, ticks, 1) if ticks.ndim else ticks[None]
        return self.accountant.sums_of(each)


class Demand(NamedTuple):
    """What a caller wants to reserve: one number of ticks or one per client, and who is asked."""

    run: str
    round: int
    ticks: Ticks
    asked: Mask
    mark: bytes  # the fingerprint of the inputs; empty if there is none

    @classmethod
    def checked(
        cls, size: int, charge: ArrayLike, place: tuple[str, int], clients: ArrayLike | None,
        fingerprint: bytes | None,
    ) -> Demand:  # fmt: skip
        """Check what a caller of a ledger with `size` clients gave."""
        asked = np.ones(size, dtype=bool) if clients is None else _mask(clients, size)
        run, number = place
        text = isinstance(run, str) and run.encode(errors="ignore").decode() == run
        ConfigError.unless(text, "run", run, "a text")
        whole = isinstance(number, int | np.integer) and 0 <= number < 2**62
        ConfigError.unless(bool(whole), "round", number, "a whole number from 0")
        charges = np.asarray(charge, dtype=np.float64)
        fits = charges.shape in ((), (size,))
        ConfigError.unless(fits, "charge", charges.shape, f"one number, or {size}")
        ticks = to_ticks(np.where(charges == 0, 1.0, charges) if charges.ndim else charges)
        if charges.ndim:
            ticks, asked = np.where(charges == 0, 0, ticks), asked & (charges != 0)
        return cls(run, int(number), ticks, asked, bytes(fingerprint or b""))


def _mask(clients: ArrayLike, size: int) -> Mask:
    """Return a mask of the clients that are given as a mask, or by their indices."""
    array = np.asarray(clients)
    if array.dtype == bool:
        ConfigError.unless(array.shape == (size,), "clients", array.shape, f"a mask of {size}")
    else:
        fits = array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer))
        fits = fits and bool(((array >= 0) & (array < size)).all())
        ConfigError.unless(fits, "clients", "indices", f"numbers from 0 to {size - 1}")
        array = array.astype(np.int64)
    mask = np.zeros(size, dtype=bool)
    mask[array] = True
    return mask


@dataclass(frozen=True, eq=False, kw_only=True)
class Reservation:
    """Permission to release once, for the clients that could pay.

    Attributes:
        attempt: 0 for the first attempt; a retry on changed inputs is a new one, charged again.
        granted: Who may release.
        refused: Who was asked and could not pay.
        replayed: Who held this reservation already and is not charged again.
        number: The row of the ledger by which it is settled.
        ticks: What each granted client pays, in whole ticks: one number, or one per client.
    """

    run: str
    round: int
    attempt: int
    granted: Mask
    refused: Mask
    replayed: Mask
    number: int
    ticks: Ticks

    @cached_property
    def charge(self) -> NDArray[np.float64]:
        """What each granted client pays; one entry per client, 0 for one that was not asked."""
        return np.broadcast_to(from_ticks(self.ticks), len(self.granted))


class Made(NamedTuple):
    """A reservation in as few bytes as its row has: who paid is in the payload."""

    attempt: int
    number: int
    fingerprint: bytes
    payload: bytes


class Book:
    """The state that a ledger's rows lead to, beginning with the first one.

    Rows refer to the classes of the first budgets, to which those who join are added; other
    budgets may be in force. Of each run and round, the reservations that were made are kept,
    oldest first. `place_of` has the places of those who joined, by the keyed hashes of labels.
    """

    def __init__(self, first: Row | None, key: bytes) -> None:
        nothing = "the ledger has no first row: its creation was never finished, or it was emptied"
        if first is None:
            raise LedgerError(nothing)
        self.head = _checked(first, None)
        if first.kind != "open":
            raise LedgerError(nothing)
        about, classes = unpack(first.payload)
        try:
            self.accountant: Accountant = accountant_named(str(about["rule"]))
            self.first_budgets = Budgets(
                tuple(Budget(epsilon, delta) for epsilon, delta in about["budgets"]),
                np.frombuffer(classes, dtype="<i4"),
            )
            if about["key"] != _mark_of_key(key):
                raise Tampered("the ledger's key is not the one it was created with")
            # Before ledgers named the relation, all noise was scaled for this one.
            named = about.get("neighbours", "replace-one")
            if str(named) not in SENSITIVITY:
                raise LedgerError(f"neighbours = {quoted(named)}: not a relation of this version")
            self.neighbours: Neighbours = named
        except InputError as error:
            raise LedgerError(f"the ledger's first row cannot be used: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise Tampered("the first row cannot be read: edited or damaged") from error
        self.budgets = self.first_budgets
        self.spending = Spending(self.accountant, self.budgets)
        self.made: dict[tuple[str, int], list[Made]] = {}
        self.newest_round: dict[str, int] = {}
        self.unsettled: set[int] = set()
        self.forgiven: set[Head] = set()  # lost heads whose loss was stated
        self.place_of: dict[bytes, int] = {}
        self._sizes = [(0, len(self.budgets))]  # how many places there are from which row on
        self._losses: list[Payment] = []
        self._hashes = [self.head.hash]

    def lower(self, budgets: Budgets, path: Path | str) -> None:
        """Put other budgets in force, of which none may be larger than it is now."""
        if len(budgets) != len(self.budgets):
            raise LedgerError(f"{path}: kept for {len(self.budgets)} clients, not {len(budgets)}")
        lowered = self.spending.grown(budgets)
        if (lowered.limits > self.spending.limits).any():
            smaller = "created with a smaller budget; a budget can be lowered, never raised"
            raise LedgerError(f"{path}: {smaller}")
        self.spending, self.budgets = lowered, budgets

    def decide(self, demand: Demand) -> tuple[Reservation, Mask]:
        """Return what a demand comes to, and who would pay for it now; book nothing.

        The reservation has the number of the earlier one that it repeats, or -1.
        """
        asked, sums, limits = demand.asked, self.spending.sums, self.spending.limits
        earlier = self.made.get(demand[:2], [])
        repeats = [
            (made, self._paid(made.number, made.payload))
            for made in earlier
            if demand.mark and made.fingerprint == demand.mark
        ]
        made, replayed = _made_before(repeats, demand)
        new = asked & ~replayed
        pays = self.accountant.fits(sums, self.spending.adds(demand.ticks, asked), limits)
        pays = pays & new & ~self.spending.gone
        refused = new & ~pays
        if refused.any() and not (pays | replayed).any():
            least = float(from_ticks(np.broadcast_to(demand.ticks, asked.shape)[refused].min()))
            left = float(self.spending.left()[refused].max())
            who = f"{refused.sum()} of {asked.sum()} clients"
            said = f"{who} cannot pay {least:.6g}: at most {left:.6g} is left"
            raise BudgetExceeded(said, charge=least, left=left)
        return Reservation(
            run=demand.run, round=demand.round, granted=pays | replayed, refused=refused,
            replayed=replayed, number=made.number if made else -1, ticks=demand.ticks,
            attempt=made.attempt if made else max((1 + one.attempt for one in earlier), default=0),
        ), pays  # fmt: skip

    def read(self, row: Row) -> None:
        """Add the next row, whichever process wrote it."""
        head = _checked(row, self.head)
        try:
            self._take_in(row)
        except LedgerError:
            raise
        except (KeyError, ValueError) as error:
            raise Tampered(f"row {row.number} cannot be read: {error}") from error
        self.head = head
        self._hashes.append(head.hash)

    def has(self, head: Head) -> bool:
        """Return whether a row with this number and hash was read."""
        return head.number < len(self._hashes) and self._hashes[head.number] == head.hash

    def places_for(self, clients: list[list[bytes]]) -> tuple[list[int], dict[bytes, int]]:
        """Return the place of each client, by the marks of its labels, and what is to be written.

        One whose labels have two places, or which shares its place with another, is refused: what
        it has spent could not be told from what others have.
        """
        places, told, size = list[int](), dict[bytes, int](), len(self.budgets)
        taken, new = set[int](), size
        for marks in clients:
            known = {self.place_of[mark] for mark in marks if mark in self.place_of}
            if len(known) > 1 or known & taken or told.keys() & set(marks):
                raise LedgerError(
                    "users have moved from one client to another since they joined this ledger: "
                    "what they spent together cannot be told apart; give them their old clients"
                )
            place = known.pop() if known else new
            new += place == new
            places.append(place)
            taken.add(place)
            back = place < size and self.spending.gone[place]
            told |= {mark: place for mark in marks if back or mark not in self.place_of}
        if new > size:
            self._can_grow()
        return places, told

    def _join(self, row: Row) -> None:
        """Add places to all budgets; one who is new may be one whose place was lost with rows."""
        size = len(self.budgets)
        places, marks = members_of(row.payload, size)
        told = dict(zip(marks, places, strict=True))
        if any(self.place_of.get(mark, place) != place for mark, place in told.items()):
            raise ValueError("a label has two places")
        if (new := max(places) + 1 - size) > 0:
            self._can_grow()
            index = np.pad(self.budgets.class_of_client, (0, new))  # all of the first class
            self.budgets = self.first_budgets = Budgets(self.budgets.classes, index)
            self.spending = self.spending.grown(self.budgets)
            for loss in self._losses:
                self.spending.add(loss._replace(who=np.arange(len(index)) >= size))
        self._sizes.append((row.number, len(self.budgets)))
        self.place_of |= told
        self.spending.gone[places] = False

    def _can_grow(self) -> None:
        """Refuse to add places where other budgets are in force, which say nothing of them."""
        if self.budgets is not self.first_budgets:
            raise LedgerError("people join this ledger while it is in use; open it again")

    def _paid(self, number: int, payload: bytes) -> Payment:
        """Return what a reserve row with this number says, for the places that there are now."""
        size = next(size for begin, size in reversed(self._sizes) if begin <= number)
        then = self.first_budgets
        if size < len(then):
            then = Budgets(then.classes, then.class_of_client[:size])
        return Payment.unpacked(payload, then).among(len(self.first_budgets))

    def payment(self, row: Row) -> Payment:
        """Return what a row charges; a loss, to every client, whenever it joins."""
        if row.kind != "loss":
            return self._paid(row.number, row.payload)
        ticks = named_values(row.payload)["ticks"]
        if type(ticks) is not int or not 0 < ticks <= CEILING:
            raise ValueError("a loss of no charge")
        return Payment(0, b"", np.ones(len(self.budgets), dtype=bool), np.asarray(ticks))

    def described(self, row: Row) -> dict[str, Any]:
        """Return a row in readable form; the only data of a client is what it paid."""
        entry: dict[str, Any] = dict(zip(Row._fields[:4], row, strict=False))
        if row.kind in ("reserve", "loss"):
            payment = self.payment(row)
            paid = from_ticks(np.broadcast_to(payment.ticks, payment.who.shape)[payment.who])
            entry["charge_most"] = float(paid.max())
        if row.kind in ("join", "leave"):
            entry = named_values(row.payload) | entry
        if row.kind == "reserve":
            entry |= {
                "clients": len(paid),
                "charge_least": float(paid.min()),
                "attempt": payment.attempt,
                "settled": row.number not in self.unsettled,
            }
        return entry

    def _take_in(self, row: Row) -> None:
        if row.kind == "reserve":
            payment = self.payment(row)
            self.spending.add(payment)
            made = Made(payment.attempt, row.number, payment.fingerprint, row.payload)
            self.made.setdefault((row.run, row.round), []).append(made)
            self.newest_round[row.run] = max(row.round, self.newest_round.get(row.run, 0))
            self.unsettled.add(row.number)
        elif row.kind == "settle":
            self.unsettled.discard(settled_by(row))
        elif row.kind == "loss":
            lost = Head.parse(str(named_values(row.payload)["head"]))
            self._losses.append(self.payment(row))
            self.spending.add(self._losses[-1])
            self.forgiven.add(lost)
        elif row.kind == "join":
            self._join(row)
        elif row.kind == "leave":
            places, _ = members_of(row.payload, len(self.budgets))
            if max(places) >= len(self.budgets):
                raise ValueError("somebody leaves who never joined")
            self.spending.gone[places] = True
        else:
            raise ValueError(f"unknown kind {row.kind!r}")


def first_row(
    budgets: Budgets, accountant: Accountant, key: bytes, neighbours: str = "replace-one"
) -> Row:
    """Return the row with which a ledger begins."""
    known = neighbours in SENSITIVITY
    ConfigError.unless(known, "neighbours", neighbours, " or ".join(SENSITIVITY))
    for budget in budgets.classes:
        accountant.limit_ticks(budget)
    about = {
        "rule": accountant.name,
        "budgets": [[budget.epsilon, budget.delta] for budget in budgets.classes],
        "key": _mark_of_key(key),
        "neighbours": neighbours,
    }
    payload = pack(about, budgets.class_of_client.astype("<i4").tobytes())
    return Row.after(None, "open", "", 0, payload)


def _mark_of_key(key: bytes) -> str:
    """Return a hash by which the key is recognised without giving it away."""
    return hashlib.sha256(b"bgtplanner ledger key" + bytes(key)).hexdigest()


def _checked(row: Row, head: Head | None) -> Head:
    """Return the head after a row, which must be the one that was written after this head."""
    if not row.follows(head):
        raise Tampered(
            f"row {row.number} is not the one that was written after row "
            f"{-1 if head is None else head.number}: rows were edited, removed or reordered"
        )
    return Head(row.number, row.hash)


def _made_before(repeats: list[tuple[Made, Payment]], demand: Demand) -> tuple[Made | None, Mask]:
    """Return the earlier reservation for the same inputs, and which of those asked hold it.

    If any client paid another charge in an attempt, it is repeated for no one: the same noise (in
    a simulation, from the same seed) would be released at two scales, and the right difference of
    the two releases has no noise.
    """
    others = {
        payment.attempt
        for _, payment in repeats
        if (payment.who & (demand.ticks != payment.ticks) & (demand.ticks > 0)).any()
    }
    found: Made | None = None
    replayed = np.zeros(len(demand.asked), dtype=bool)
    for made, payment in repeats:
        if made.attempt in others or (found and made.attempt != found.attempt):
            continue
        found, replayed = made, replayed | (demand.asked & payment.who)
    return found, replayed
