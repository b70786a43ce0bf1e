"""What the rows of a ledger amount to: a state machine that knows nothing of files.

A *payment* is what a reserve row says, in few bytes: who pays how much. A round in which everyone
pays the same takes one short row, whether there are ten clients or a million. Who pays takes one
bit per client, and charges are listed one by one only where they differ.

*Spending* holds the sums of what was paid. The clients of a class start with the same budget and
nothing spent, and stay alike as long as every payment covers whole classes. Until a payment splits
a class, a single column stands for all its members, and a round takes time per class, not per
client.

A *book* reads the rows in order, checks that each one follows the one before it, and decides what
may be reserved. Two readers of the same rows have the same book. Its state at any row can be
packed into a snapshot, and reading can go on from there.
"""

from __future__ import annotations

import hashlib
import hmac
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import BudgetExceeded, ConfigError, InputError, LedgerError, quoted
from bgtplanner.errors import LedgerTamperedError as Tampered
from bgtplanner.privacy._journal import (
    Head,
    Made,
    Row,
    Snapshot,
    attempt_of,
    damaged,
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

__all__ = ["Book", "Decision", "Payment", "Request", "Spending", "first_row"]

_CEILING = np.array(CEILING)  # an operation with a plain number takes twice as long

Mask = NDArray[np.bool_]
Ticks = NDArray[np.int64]
Classes = NDArray[np.int32]


class Payment(NamedTuple):
    """Who pays how much: what a reserve row says.

    Attributes:
        attempt: Which attempt at the same round.
        fingerprint: Of the inputs; empty if none was given.
        clients: Who pays; None for everyone, or for all members of each class that pays.
        ticks: What each of them pays: one number, one per paying client, or one per class.
        by_class: Whether `ticks` has one number per class, 0 for a class that pays nothing.
    """

    attempt: int
    fingerprint: bytes
    clients: Mask | None
    ticks: Ticks
    by_class: bool = False

    @classmethod
    def of(cls, attempt: int, fingerprint: bytes, clients: Mask, ticks: Ticks) -> Payment:
        """Return the shortest form of a payment; `ticks` is one number, or one per client."""
        everybody = bool(clients.all())
        if ticks.ndim:
            ticks = ticks if everybody else ticks[clients]
            if (ticks == ticks[0]).all():
                ticks = ticks[0]
        return cls(attempt, fingerprint, None if everybody else clients, np.asarray(ticks))

    @property
    def whole(self) -> bool:
        """Whether all clients of a class pay the same, or none of them pays."""
        return self.clients is None and (self.by_class or not self.ticks.ndim)

    def by_client(self, class_of_client: Classes) -> Payment:
        """Return the same payment client by client, for a ledger with other classes."""
        who, ticks = self.over(len(class_of_client), class_of_client)
        return Payment.of(self.attempt, self.fingerprint, who, ticks)

    def over(self, columns: int, class_of_client: Classes | None = None) -> tuple[Mask, Ticks]:
        """Return who pays, and the ticks as one number or one per column.

        There is one column per client, or one per class without `class_of_client`. The ticks of a
        column that does not pay have no meaning.
        """
        who = np.ones(columns, dtype=bool) if self.clients is None else self.clients
        ticks = self.ticks
        try:
            if self.by_class:
                ticks = ticks if class_of_client is None else ticks[class_of_client]
                who = who & (ticks > 0)
            elif ticks.ndim and self.clients is not None:
                ticks = np.zeros(columns, dtype=np.int64)
                ticks[who] = self.ticks
        except (IndexError, ValueError) as error:
            raise damaged() from error
        if ticks.ndim and ticks.shape != who.shape:
            raise damaged()
        return who, ticks

    def packed(self) -> bytes:
        if self.whole and not self.by_class:  # the usual row: no JSON encoder is needed
            mark, ticks = self.fingerprint.hex(), int(self.ticks)
            return pack(
                f'{{"attempt": {self.attempt}, "everybody": true, "fingerprint": "{mark}", '
                f'"ticks": {ticks}}}'
            )
        about: dict[str, Any] = {
            "attempt": self.attempt,
            "fingerprint": self.fingerprint.hex(),
            "everybody": self.clients is None,
        }
        if self.by_class:  # without "ticks": a reader that knows no classes stops there
            about["by_class"] = True
        else:
            about["ticks"] = None if self.ticks.ndim else int(self.ticks)
        data = b"" if self.clients is None else np.packbits(self.clients).tobytes()
        return pack(about, data + (self.ticks.astype("<i8").tobytes() if self.ticks.ndim else b""))

    @classmethod
    def unpacked(cls, payload: bytes, n_clients: int) -> Payment:
        """Read the payload of a row. The nonce in older rows is ignored."""
        about, data = unpack(payload)
        attempt, mark = attempt_of(about)
        try:
            size = 0 if about["everybody"] else (n_clients + 7) // 8
            by_class = bool(about.get("by_class", False))
            single = None if by_class else about["ticks"]
            if len(data) < size or not (single is None or type(single) is int):
                raise damaged()
            bits = np.frombuffer(data[:size], dtype=np.uint8)
            clients = np.unpackbits(bits, count=n_clients).astype(bool) if size else None
            listed = np.frombuffer(data[size:], dtype="<i8").astype(np.int64)
            ticks = listed if single is None else np.asarray(single, np.int64)
        except (KeyError, ValueError, OverflowError) as error:
            raise damaged() from error
        somebody = ticks.size and (clients is None or clients.any())
        somebody = somebody and (not by_class or (ticks > 0).any())
        if not somebody or (ticks < (0 if by_class else 1)).any() or (ticks > CEILING).any():
            raise damaged()
        return cls(attempt, mark, clients, ticks, by_class)


class Spending:
    """Sums of what was charged, and their limits, ``[sums, columns]``.

    While all clients of each class have spent the same (`alike`), there is one column per class;
    otherwise one per client. `class_of` is the class of each column.
    """

    def __init__(
        self, accountant: Accountant, budgets: Budgets, spent: Ticks | None = None
    ) -> None:
        self.accountant, self.class_of_client = accountant, budgets.class_of_client
        self.class_sizes = np.bincount(self.class_of_client, minlength=len(budgets.classes))
        self._member = np.zeros(len(self.class_sizes), dtype=np.int64)  # one member of each class
        self._member[self.class_of_client] = np.arange(len(self.class_of_client))
        self._some = self.class_sizes > 0
        self._classes = int(np.count_nonzero(self._some))  # with at least one client
        self.alike = True
        self.class_of: Classes = np.arange(len(budgets.classes), dtype=np.int32)
        self.limits: Ticks = np.stack(
            [accountant.limit_ticks(one) for one in budgets.classes], axis=1
        )
        self.sums: Ticks = np.zeros_like(self.limits)
        self._fitting: NDArray[np.float64] | None = None  # computed once for the present sums
        if spent is not None:
            by_class = self._by_class(spent)
            if by_class is None:
                self._split()
            self.sums = spent if by_class is None else by_class

    def _largest_fitting(self) -> NDArray[np.float64]:
        """Return the largest charge that each column can pay; the caller must not change it."""
        if self._fitting is None:
            self._fitting = self.accountant.largest_fitting(self.sums, self.limits)
        return self._fitting

    def by_client(self) -> Spending:
        made = copy(self)
        if made.alike:
            made._split()
        return made

    def _split(self) -> None:
        self.sums, self.limits = self.spent(), self.limits[:, self.class_of_client]
        self.class_of, self.alike, self._fitting = self.class_of_client, False, None

    # ---- columns

    def everybody(self) -> Mask:
        """Return the columns that stand for at least one client; the caller must not change it."""
        return self._some if self.alike else np.ones(len(self.class_of), dtype=bool)

    def count(self, mask: Mask) -> int:
        return int(self.class_sizes[mask].sum() if self.alike else np.count_nonzero(mask))

    def each(self, mask: Mask) -> Mask:
        if not self.alike:
            return mask
        chosen, number = np.count_nonzero(mask), len(self.class_of_client)
        if chosen == 0 or chosen == len(mask):  # much cheaper with many clients
            same = np.empty(number, dtype=bool)
            same.fill(chosen > 0)
            return same
        return np.asarray(mask[self.class_of_client])

    def paid(self, payment: Payment) -> tuple[Mask, Ticks]:
        """Return which columns pay, and how much; columns of classes take whole payments only."""
        return payment.over(len(self.class_of), None if self.alike else self.class_of_client)

    def of_clients(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values that the last axis has per column, one per client."""
        return np.asarray(values[..., self.class_of_client]) if self.alike else values

    # ---- sums

    def spent(self) -> Ticks:
        """Return a copy of the sums in ticks, ``[sums, clients]``."""
        return self.of_clients(self.sums) if self.alike else self.sums.copy()

    def left(self) -> NDArray[np.float64]:
        """Return the largest charge that each client can still pay."""
        left = self._largest_fitting()
        return self.of_clients(left) if self.alike else left.copy()

    def left_by_class(self) -> NDArray[np.float64]:
        """Return the largest charge that any member of each class can pay; 0 if it is empty."""
        left = self._largest_fitting()
        if self.alike and self._classes == len(self.class_sizes):
            return left.copy()
        if self.alike:
            return np.where(self._some, left, 0.0)
        most = np.zeros(len(self.class_sizes))
        np.maximum.at(most, self.class_of_client, left)
        return most

    def least_spent_by_class(self) -> Ticks:
        """Return the sums of the member of each class with the most left; 0 if it is empty."""
        sums = self.sums
        if self.alike and self._classes == len(self.class_sizes):
            return sums.copy()
        if not self.alike:
            most = self.left_by_class()[self.class_of_client]
            richest = np.flatnonzero(self._largest_fitting() == most)
            chosen = np.zeros(len(self.class_sizes), dtype=np.int64)
            chosen[self.class_of_client[richest]] = richest
            sums = sums[:, chosen]
        return np.where(self._some, sums, 0)

    def shortest(self) -> tuple[bool, Ticks]:
        """Return whether all clients of each class have spent the same, and the sums.

        These are per class or per client. Equal sums give equal results, however they came about.
        """
        by_class = self.sums if self.alike else self._by_class(self.sums)
        if by_class is None:
            return False, self.sums
        return True, np.where(self._some, by_class, 0)

    def of_shortest(self, by_class: bool, sums: Ticks) -> Spending:
        """Return a copy with the sums that :meth:`shortest` returned, flattened."""
        made = copy(self) if by_class else self.by_client()
        made.sums, made._fitting = sums.reshape(len(self.sums), -1).copy(), None
        return made

    def adds(self, ticks: Ticks, who: Mask) -> Ticks:
        """Return what charges add to each sum, ``[sums, columns]``; only meaningful for `who`."""
        if ticks.ndim:
            return self.accountant.sums_of(np.where(who, ticks, 1))
        return self.accountant.sums_of(ticks)[:, None]

    def add(self, payment: Payment, adds: Ticks | None = None) -> None:
        """Charge those who pay; `adds` is what that adds to each sum, if already known."""
        if self.alike and not payment.whole:
            who, ticks = payment.over(len(self.class_of_client), self.class_of_client)
            by_class = self._by_class(np.where(who, ticks, 0)[None])
            if by_class is None:
                self._split()
            else:  # it happens to cover whole classes evenly
                payment = payment._replace(clients=None, ticks=by_class[0], by_class=True)
        self._fitting = None
        if adds is not None and payment.clients is None and not payment.ticks.ndim:
            self.sums = np.minimum(self.sums + adds, _CEILING)  # the usual case: everyone, evenly
            return
        who, ticks = self.paid(payment)
        adds = self.adds(ticks, who) if adds is None else adds
        if np.count_nonzero(who) == len(who):
            self.sums += adds
            np.minimum(self.sums, CEILING, out=self.sums)
        else:
            self.sums = np.where(who, np.minimum(self.sums + adds, CEILING), self.sums)

    def payment(
        self, attempt: tuple[int, bytes], pays: Mask, ticks: Ticks, *, by_class: bool
    ) -> Payment:
        """Return the shortest payment that says which columns pay how much."""
        if self.alike:
            if not ticks.ndim and np.count_nonzero(pays) == self._classes:
                return Payment(*attempt, None, ticks)  # the usual case
            counts = np.where(pays, self.class_sizes, 0)
        elif by_class:
            counts = np.bincount(self.class_of_client[pays], minlength=len(self.class_sizes))
        else:
            return Payment.of(*attempt, pays, ticks)
        paying, full = counts > 0, counts == self.class_sizes
        first = ticks[paying][0] if ticks.ndim else ticks
        even = not ticks.ndim or bool((ticks[paying] == first).all())
        if even and full.all():
            return Payment(*attempt, None, np.asarray(first))
        whole = bool((full | ~paying).all())
        # A number of 8 bytes per class, or a bit per client.
        if even and not (whole and 64 * len(self.class_sizes) <= len(self.class_of_client)):
            return Payment.of(*attempt, self.each(pays), np.asarray(first))
        listed = np.where(paying, ticks, 0)
        return Payment(*attempt, None if whole else pays, listed, by_class=True)

    def _by_class(self, values: Ticks) -> Ticks | None:
        """Return values per client as values per class; None if members of a class differ."""
        if not len(self.class_of_client):
            return np.zeros((len(values), len(self.class_sizes)), dtype=np.int64)
        by_class = np.where(self._some, values[:, self._member], 0)
        return by_class if (by_class[:, self.class_of_client] == values).all() else None


class Request(NamedTuple):
    """What a caller wants to reserve; the ticks are one number, or one per client or class."""

    run: str
    round: int
    ticks: Ticks
    by_class: bool
    clients: Mask | None
    mark: bytes

    @classmethod
    def of(
        cls,
        budgets: Budgets,
        charge: ArrayLike,
        place: tuple[str, int],
        clients: ArrayLike | None,
        fingerprint: bytes | None,
        by_class: bool,
    ) -> Request:
        chosen = None if clients is None else _mask(clients, len(budgets))
        run, number = place
        text = isinstance(run, str) and (
            run.isascii() or run.encode(errors="ignore").decode() == run
        )
        ConfigError.unless(text, "run", run, "a text")
        whole = isinstance(number, int | np.integer) and 0 <= number < 2**62
        ConfigError.unless(bool(whole), "round", number, "a whole number from 0")
        ticks = _class_ticks(charge, len(budgets.classes)) if by_class else to_ticks(charge)
        fits = by_class or ticks.shape in ((), (len(budgets),))
        ConfigError.unless(fits, "charge", ticks.shape, f"one number, or {len(budgets)}")
        mark = b"" if fingerprint is None else bytes(fingerprint)
        return cls(run, int(number), ticks, by_class and ticks.ndim > 0, chosen, mark)


def _class_ticks(charge: ArrayLike, classes: int) -> Ticks:
    """Return the ticks of each class, 0 if it is not asked; one number if all are equal."""
    array = np.asarray(charge, dtype=np.float64)
    expected = f"one number for each of {classes} classes"
    ConfigError.unless(array.shape == (classes,), "charge", array.shape, expected)
    if np.count_nonzero(array) < classes:
        asked = array != 0
        return np.where(asked, to_ticks(np.where(asked, array, 1.0)), 0)
    ticks = to_ticks(array)
    even = classes == 1 or not np.count_nonzero(ticks != ticks[0])
    return ticks[:1].reshape(()) if even else ticks


def _mask(clients: ArrayLike, n_clients: int) -> Mask:
    array = np.asarray(clients)
    if array.dtype == bool:
        fits = array.shape == (n_clients,)
        ConfigError.unless(fits, "clients", array.shape, f"a mask of {n_clients}")
        return array.copy()
    fits = array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer))
    fits = fits and bool(((array >= 0) & (array < n_clients)).all())
    ConfigError.unless(fits, "clients", "indices", f"numbers from 0 to {n_clients - 1}")
    mask = np.zeros(n_clients, dtype=bool)
    mask[array.astype(np.int64)] = True
    return mask


class Decision(NamedTuple):
    """Who pays now, who cannot, who has paid already; the ticks, and what they add to the sums."""

    columns: Spending
    wanted: Ticks
    adds: Ticks
    pays: Mask
    refused: Mask
    replayed: Mask
    made: Made | None


class Book:
    """The state that a ledger's rows lead to, beginning with the first one.

    Attributes:
        first_budgets: The budgets that the ledger was created with. Rows refer to their classes.
        unsettled: How many reservations were never settled.
        forgiven: Lost heads whose loss was stated.
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
            same_key = about["key"] == _mark_of_key(key)
            # Before ledgers named the relation, all noise was scaled for this one.
            named = about.get("neighbours", "replace-one")
            if str(named) not in SENSITIVITY:
                raise LedgerError(f"neighbours = {quoted(named)}: not a relation of this version")
            self.neighbours: Neighbours = named
        except InputError as error:
            raise LedgerError(f"the ledger's first row cannot be used: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise Tampered("the first row cannot be read: edited or damaged") from error
        if not same_key:
            raise Tampered("the ledger's key is not the one it was created with")
        self.budgets = self.first_budgets
        self.spending = Spending(self.accountant, self.budgets)
        self.unsettled = 0
        self.forgiven: set[Head] = set()
        self._first, self._key = self.head, key
        self._first_classes = True

    @property
    def largest_limit(self) -> int:
        return int(
            max(self.accountant.limit_ticks(one).max() for one in self.first_budgets.classes)
        )

    def lower(self, budgets: Budgets) -> None:
        if len(budgets) != len(self.budgets):
            raise LedgerError(f"kept for {len(self.budgets)} clients, not {len(budgets)}")
        lowered = Spending(self.accountant, budgets, self.spending.spent())
        if (lowered.by_client().limits > self.spending.by_client().limits).any():
            raise LedgerError(
                "created with a smaller budget; a budget can be lowered, never raised"
            )
        self._first_classes = np.array_equal(
            budgets.class_of_client, self.first_budgets.class_of_client
        )
        self.spending, self.budgets = lowered, budgets

    # ---- what may be reserved

    def decide(
        self, request: Request, repeats: list[tuple[Made, Payment]], *, strict: bool
    ) -> Decision:
        """Decide who has paid already, who can pay now and who is refused; book nothing.

        `repeats` are the earlier reservations for the same inputs.
        """
        columns, wanted = self.spending, request.ticks
        evenly = request.clients is None and (request.by_class or not wanted.ndim)
        if not (evenly and all(payment.whole for _, payment in repeats)) and columns.alike:
            columns = columns.by_client()
        asked = columns.everybody() if request.clients is None else request.clients
        if request.by_class:
            wanted = wanted[columns.class_of]
            asked = asked & (wanted > 0)
        made, replayed = _made_before(repeats, columns, wanted, asked)
        new = asked & ~replayed if repeats else asked
        adds = columns.adds(wanted, asked)
        pays = new & self.accountant.fits(columns.sums, adds, columns.limits)
        refused = new & ~pays
        if np.count_nonzero(refused) and (strict or not (pays | replayed).any()):
            least = float(from_ticks(wanted[refused].min() if wanted.ndim else wanted))
            left = float(
                self.accountant.largest_fitting(columns.sums, columns.limits)[refused].max()
            )
            raise BudgetExceeded(
                f"{columns.count(refused)} of {columns.count(asked)} clients cannot pay "
                f"{least:.6g}: at most {left:.6g} is left",
                charge=least,
                left=left,
            )
        return Decision(columns, wanted, adds, pays, refused, replayed, made)

    def booked(self, row: Row, payment: Payment, decision: Decision) -> None:
        """Add a reservation of this process, once it is on the disk."""
        known = decision.columns is self.spending
        self._charge(payment, decision.adds if known else None)
        self.head = Head(row.number, row.hash)

    def settled(self, row: Row) -> None:
        """Note that a reservation was settled by this process, once that is on the disk."""
        self.unsettled = max(0, self.unsettled - 1)
        self.head = Head(row.number, row.hash)

    # ---- rows

    def read(self, row: Row) -> None:
        """Add the next row, whichever process wrote it."""
        head = _checked(row, self.head)
        try:
            self._take_in(row)
        except (KeyError, ValueError) as error:
            raise Tampered(f"row {row.number} cannot be read: {error}") from error
        self.head = head

    def payment(self, row: Row) -> Payment:
        """Return what a row charges, in the classes that are in force; a loss, to every client."""
        if row.kind == "loss":
            return Payment(0, b"", None, np.asarray(named_values(row.payload)["ticks"]))
        payment = Payment.unpacked(row.payload, len(self.budgets))
        if payment.by_class and not self._first_classes:
            return payment.by_client(self.first_budgets.class_of_client)
        return payment

    def written(self, payment: Payment) -> bytes:
        """Return the payload of a payment in the classes that are in force."""
        if payment.by_class and not self._first_classes:
            payment = payment.by_client(self.budgets.class_of_client)
        return payment.packed()

    def _take_in(self, row: Row) -> None:
        if row.kind == "reserve":
            self._charge(self.payment(row))
        elif row.kind == "settle":
            settled_by(named_values(row.payload))
            self.unsettled = max(0, self.unsettled - 1)
        elif row.kind == "loss":
            about = named_values(row.payload)
            ticks = about["ticks"]
            if type(ticks) is not int or not 0 < ticks <= CEILING:
                raise ValueError("a loss of no charge")
            self.spending.add(self.payment(row))
            self.forgiven.add(Head.parse(str(about["head"])))
        else:
            raise ValueError(f"unknown kind {row.kind!r}")

    def _charge(self, payment: Payment, adds: Ticks | None = None) -> None:
        self.spending.add(payment, adds)
        self.unsettled += 1

    # ---- snapshots

    def snapshot(self) -> Snapshot:
        spending = self.spending
        if not self._first_classes:
            spending = Spending(self.accountant, self.first_budgets, spending.spent())
        by_class, sums = spending.shortest()
        about = {
            "by_class": by_class,
            "unsettled": self.unsettled,
            "forgiven": sorted(str(head) for head in self.forgiven),
        }
        state = pack(about, sums.astype("<i8").tobytes())
        return Snapshot(*self.head, state, self._mark(self.head, state))

    def go_to(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, instead of reading the rows before it."""
        head = Head(snapshot.number, snapshot.hash)
        if not hmac.compare_digest(snapshot.mark, self._mark(head, snapshot.state)):
            raise Tampered("the snapshot is not the one that was written: it was edited")
        about, sums = unpack(snapshot.state)
        self.spending = Spending(self.accountant, self.first_budgets).of_shortest(
            about["by_class"], np.frombuffer(sums, dtype="<i8").astype(np.int64)
        )
        self.unsettled = about["unsettled"]
        self.forgiven = {Head.parse(text) for text in about["forgiven"]}
        self.head = head

    def _mark(self, head: Head, state: bytes) -> bytes:
        """Return the keyed hash that shows that a snapshot belongs to this ledger."""
        text = f"bgtplanner ledger snapshot {self._first} {head} ".encode()
        return hmac.digest(self._key, text + state, hashlib.sha256)


def first_row(
    budgets: Budgets, accountant: Accountant, key: bytes, neighbours: str = "replace-one"
) -> Row:
    ConfigError.unless(
        neighbours in SENSITIVITY, "neighbours", neighbours, " or ".join(SENSITIVITY)
    )
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
    if not row.follows(head):
        raise Tampered(
            f"row {row.number} is not the one that was written after row "
            f"{-1 if head is None else head.number}: rows were edited, removed or reordered"
        )
    return Head(row.number, row.hash)


def _made_before(
    repeats: list[tuple[Made, Payment]], columns: Spending, wanted: Ticks, asked: Mask
) -> tuple[Made | None, Mask]:
    """Return the earlier reservation for the same inputs, and which of those asked hold it.

    If any client paid another charge in an attempt, it is repeated for no one: the same noise (in
    a simulation, from the same seed) would be released at two scales, and the right difference of
    the two releases has no noise.
    """
    made, others = [], set()
    for entry, payment in repeats:
        who, paid = columns.paid(payment)
        who = who & columns.everybody()
        if (who & (wanted != paid) & (wanted > 0)).any():
            others.add(entry.attempt)
        made.append((entry, who))
    found: Made | None = None
    replayed = np.zeros(len(asked), dtype=bool)
    for entry, who in made:
        if entry.attempt in others or (found and entry.attempt != found.attempt):
            continue
        found, replayed = entry, replayed | (asked & who)
    return found, replayed
