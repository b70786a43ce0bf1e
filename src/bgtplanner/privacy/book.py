"""What the rows of a ledger amount to: the sums, what was never settled, which losses were stated.

A book reads rows one after the other, checks that each is the one that was written after the one
before, and knows nothing of files. Whoever reads the same rows has the same book, and what it
amounts to at some row can be packed into a snapshot and taken up again there.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

from bgtplanner.errors import InputError, LedgerError, LedgerTamperedError
from bgtplanner.privacy.accounting import CEILING, Rule, rule_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.entries import Payment, Ticks, named_values, pack, settled_by, unpack
from bgtplanner.privacy.journal import Head, Row, Snapshot
from bgtplanner.privacy.spending import Spending

__all__ = ["Book", "first_row"]


class Book:
    """The state that a ledger's rows lead to.

    Args:
        first: The first row, which says by which rule and for which budgets it is kept.
        key: The ledger's key.

    Attributes:
        rule: How charges add up.
        budgets: What the clients may spend by now.
        first_budgets: What they could at first. Rows by the class mean these classes.
        spending: Sums of what was charged.
        unsettled: How many reservations were never settled.
        forgiven: Heads that were lost, of which that was stated.
        head: The newest row that was read.

    Raises:
        LedgerTamperedError: If the first row is not as it was written, or the key is another.
        LedgerError: If there is no first row, or a later version's.
    """

    def __init__(self, first: Row | None, key: bytes) -> None:
        nothing = "the ledger has no first row; it was never finished or was emptied"
        if first is None:
            raise LedgerError(nothing)
        self.head = _checked(first, None)
        if first.kind != "open":
            raise LedgerError(nothing)
        about, classes = unpack(first.payload)
        try:
            self.rule: Rule = rule_named(str(about["rule"]))
            self.first_budgets = Budgets(
                tuple(Budget(epsilon, delta) for epsilon, delta in about["budgets"]),
                np.frombuffer(classes, dtype="<i4"),
            )
            same_key = about["key"] == _mark_of_key(key)
        except InputError as error:
            raise LedgerError(f"the ledger's first row cannot be used: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTamperedError("the first row cannot be read: edited or damaged") from error
        if not same_key:
            raise LedgerTamperedError("the ledger's key is not the one it was created with")
        self.budgets = self.first_budgets
        self.spending = Spending(self.rule, self.budgets)
        self.unsettled = 0
        self.forgiven: set[Head] = set()
        self._first, self._key = self.head, key
        self._first_classes = True

    @property
    def largest_limit(self) -> int:
        """The largest capacity of any sum under the first budgets, in ticks."""
        return int(max(self.rule.limit_ticks(one).max() for one in self.first_budgets.classes))

    def lower(self, budgets: Budgets) -> None:
        """Go on with smaller budgets.

        Raises:
            LedgerError: If they are larger, or for another number of clients.
        """
        if len(budgets) != len(self.budgets):
            raise LedgerError(f"kept for {len(self.budgets)} clients, not {len(budgets)}")
        lowered = Spending(self.rule, budgets, self.spending.spent())
        if (lowered.limits() > self.spending.limits()).any():
            raise LedgerError(
                "created with a smaller budget; a budget can be lowered, never raised"
            )
        self._first_classes = np.array_equal(
            budgets.class_of_client, self.first_budgets.class_of_client
        )
        self.spending, self.budgets = lowered, budgets

    # ---- rows

    def read(self, row: Row) -> None:
        """Take in the next row, as whoever has written it.

        Raises:
            LedgerTamperedError: If it is not the row that was written next, or makes no sense.
        """
        head = _checked(row, self.head)
        try:
            self._take_in(row)
        except (KeyError, ValueError) as error:
            raise LedgerTamperedError(f"row {row.number} cannot be read: {error}") from error
        self.head = head

    def booked(self, row: Row, payment: Payment, adds: Ticks | None = None) -> None:
        """Take in a reservation of one's own, once it is on the disk."""
        self._charge(payment, adds)
        self.head = Head(row.number, row.hash)

    def payment(self, row: Row) -> Payment:
        """What a reserve row says, by the classes that are in force."""
        payment = Payment.unpacked(row.payload, len(self.budgets))
        if payment.by_class and not self._first_classes:
            return payment.by_client(self.first_budgets.class_of_client)
        return payment

    def written(self, payment: Payment) -> bytes:
        """A payment by the classes that are in force as a row says it."""
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
                raise ValueError("a loss of no size")
            self.spending.add(Payment(0, b"", None, np.asarray(ticks)))
            self.forgiven.add(Head.parse(str(about["head"])))
        else:
            raise ValueError(f"unknown kind {row.kind!r}")

    def _charge(self, payment: Payment, adds: Ticks | None = None) -> None:
        self.spending.add(payment, adds)
        self.unsettled += 1

    # ---- snapshots

    def snapshot(self) -> Snapshot:
        """What all rows so far amount to."""
        spending = self.spending
        if not self._first_classes:
            spending = Spending(self.rule, self.first_budgets, spending.spent())
        by_class, sums = spending.shortest()
        about = {
            "by_class": by_class,
            "unsettled": self.unsettled,
            "forgiven": sorted(str(head) for head in self.forgiven),
        }
        state = pack(about, sums.astype("<i8").tobytes())
        return Snapshot(*self.head, state, self._mark(self.head, state))

    def go_to(self, snapshot: Snapshot) -> None:
        """Take up where a snapshot was made, instead of reading the rows up to there.

        Raises:
            LedgerTamperedError: If it is not one that was made of this ledger.
        """
        head = Head(snapshot.number, snapshot.hash)
        if not hmac.compare_digest(snapshot.mark, self._mark(head, snapshot.state)):
            raise LedgerTamperedError("the snapshot is not the one that was written: edited")
        about, sums = unpack(snapshot.state)
        self.spending = Spending(self.rule, self.first_budgets).of_shortest(
            about["by_class"], np.frombuffer(sums, dtype="<i8").astype(np.int64)
        )
        self.unsettled = about["unsettled"]
        self.forgiven = {Head.parse(text) for text in about["forgiven"]}
        self.head = head

    def _mark(self, head: Head, state: bytes) -> bytes:
        """By which a snapshot is known to be of this ledger: made with its key."""
        text = f"bgtplanner ledger snapshot {self._first} {head} ".encode()
        return hmac.digest(self._key, text + state, hashlib.sha256)


def first_row(budgets: Budgets, rule: Rule, key: bytes) -> Row:
    """The row that a ledger begins with."""
    for budget in budgets.classes:
        rule.limit_ticks(budget)
    about = {
        "rule": rule.name,
        "budgets": [[budget.epsilon, budget.delta] for budget in budgets.classes],
        "key": _mark_of_key(key),
    }
    payload = pack(about, budgets.class_of_client.astype("<i4").tobytes())
    return Row.after(None, "open", "", 0, payload)


def _mark_of_key(key: bytes) -> str:
    """By which the key is known again; does not give it away."""
    return hashlib.sha256(b"bgtplanner ledger key" + bytes(key)).hexdigest()


def _checked(row: Row, head: Head | None) -> Head:
    if not row.follows(head):
        raise LedgerTamperedError(
            f"row {row.number} is not the one that was written after row "
            f"{-1 if head is None else head.number}: rows were edited, removed or reordered"
        )
    return Head(row.number, row.hash)
