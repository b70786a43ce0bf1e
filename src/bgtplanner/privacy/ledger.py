"""The filter: reserve, then release, then settle; a charge that does not fit is refused.

* A reservation is written down before anything is computed for release. One that is never settled
  counts as spent, so a crash at any instant can only overstate what was spent.
* Reservations are keyed by run, round and client. Asking again for the same thing (after a resume,
  or for a repeated message) gives the same reservation at no further charge, but only if the
  fingerprint of its inputs, which must be public, is unchanged. Otherwise it is a new attempt and
  a fresh charge.
* Where a run must go forward, a round that is not above every earlier one is refused.
* What is promised is the budget. ``epsilon_spent`` is a reading.
* What a call costs does not grow with the number of rows: opening reads the newest snapshot and
  the few rows after it. :meth:`Ledger.verify` alone reads them all.

The ledger holds no rating, no item id and no gradient, only who paid how much in which round.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import LedgerError, LedgerTamperedError, StaleRoundError
from bgtplanner.privacy._book import (
    Book,
    Decision,
    Mask,
    Payment,
    Request,
    Spending,
    Ticks,
    first_row,
)
from bgtplanner.privacy._journal import Head, Journal, Made, Row, named_values, pack
from bgtplanner.privacy.accountants import Accountant, accountant_named, from_ticks, to_ticks
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.witness import Witness

__all__ = ["SNAPSHOT_EVERY", "Head", "Ledger", "Reservation"]

SNAPSHOT_EVERY = 64
"""So many rows are written before the sums are noted anew: at most twice as many are read when a
ledger is opened."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reservation:
    """Leave to release once, for the clients that could pay.

    Attributes:
        run: Which run.
        round: Which round of it.
        attempt: 0 for the first; a retry on changed inputs is a new one, charged afresh.
        charge: What each granted client pays, as granted (in whole ticks); one entry per client,
            0 for a class that was not asked.
        granted: Who may release.
        refused: Who asked and could not pay.
        replayed: Who had this very reservation already and is not charged again.
        number: Row of the ledger, to settle it by.
    """

    run: str
    round: int
    attempt: int
    charge: NDArray[np.float64]
    granted: Mask
    refused: Mask
    replayed: Mask
    number: int


class Ledger:
    """Who has spent how much, and who can still pay.

    Use :meth:`in_memory`, :meth:`create` or :meth:`open`.

    Example:
        >>> from bgtplanner import Budget
        >>> ledger = Ledger.in_memory(Budgets.same(Budget(1.0, 1e-5), clients=3), "laplace/basic")
        >>> leave = ledger.reserve(0.75, run="a", round=0)
        >>> ledger.settle(leave)
        >>> ledger.left().tolist()
        [0.25, 0.25, 0.25]
        >>> ledger.reserve(0.5, run="a", round=1)
        Traceback (most recent call last):
        ...
        bgtplanner.errors.BudgetExceeded: 3 of 3 clients cannot pay 0.5: at most 0.25 is left
    """

    def __init__(self, journal: Journal, *, witness: Witness | None = None) -> None:
        self._journal = journal
        self._witness = witness
        self._lock = threading.RLock()
        self._book = Book(journal.row(0), journal.key)
        self._snapshot_at = 0
        snapshot = journal.snapshot()
        if snapshot is not None:
            self._book.go_to(snapshot)
            self._snapshot_at = snapshot.number
            if journal.head_at(snapshot.number) != self._book.head:
                raise LedgerTamperedError(
                    f"row {snapshot.number}, up to which the sums were noted, is not in this "
                    "ledger: rows were cut, edited or removed"
                )
        self._catch_up()
        if witness is not None and (seen := witness.newest()) is not None:
            self.check_head(seen)

    @classmethod
    def in_memory(cls, budgets: Budgets, accountant: Accountant | str) -> Self:
        """A ledger that lives as long as the process."""
        key = secrets.token_bytes(32)
        return cls(Journal.in_memory([first_row(budgets, _rule(accountant), key)], key))

    @classmethod
    def create(
        cls,
        path: Path | str,
        budgets: Budgets,
        accountant: Accountant | str,
        *,
        witness: Witness | None = None,
    ) -> Self:
        """A new durable ledger; see :meth:`open` for the witness.

        Raises:
            LedgerError: If the file exists: a ledger is never silently started anew.
        """
        key = secrets.token_bytes(32)
        first = first_row(budgets, _rule(accountant), key)  # checked before a file is made
        if witness is not None and witness.newest() is not None:
            raise LedgerError(f"{witness.path}: knows of a ledger already; name another file")
        made = cls(Journal.create(path, key, first), witness=witness)
        if witness is not None:
            witness.append(made.head)
        return made

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        budgets: Budgets | None = None,
        accountant: Accountant | str | None = None,
        head: Head | None = None,
        witness: Witness | None = None,
        read_only: bool = False,
        rebuild: bool = False,
    ) -> Self:
        """A durable ledger that exists.

        Args:
            path: The file.
            budgets: What the clients may spend by now. May be less than it was created with (then
                who has spent more can pay nothing further), never more.
            accountant: If given, must be the one it was created with.
            head: The newest row that somebody else remembers; refused if it has lost that.
            witness: A file elsewhere that is told every head before a reservation is granted.
                Refused if the ledger has lost the newest of them.
            read_only: For looking only; nothing is written.
            rebuild: Derive everything anew from the rows that are there, before a loss is stated:
                for a file whose rows were cut, or whose snapshot or index is damaged.

        Raises:
            LedgerError: If the file is missing, foreign or damaged, or does not fit the arguments.
            LedgerTamperedError: If its chain is broken, or it has lost the head.
        """
        journal = Journal.open(path, read_only=read_only, rebuild=rebuild)
        try:
            ledger = cls(journal, witness=witness)
            if accountant is not None and _rule(accountant).name != ledger.accountant.name:
                wanted, kept = _rule(accountant).name, ledger.accountant.name
                raise LedgerError(f"{path}: kept by the rule {kept}, not {wanted}")
            if budgets is not None:
                try:
                    ledger._book.lower(budgets)
                except LedgerError as error:
                    raise LedgerError(f"{path}: {error}") from error
            if head is not None:
                ledger.check_head(head)
        except BaseException:
            journal.close()
            raise
        return ledger

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A ledger in memory as it was when :meth:`state_dict` was called.

        Raises:
            LedgerTamperedError: If the state is not as it was written.
            LedgerError: If it is the state of a durable ledger, which lies in its file.
        """
        if "rows" not in state:
            raise LedgerError("the state holds no rows: open the durable ledger file instead")
        journal = Journal.from_state(state)
        if str(journal.head_at(len(state["rows"]) - 1)) != state.get("head"):
            raise LedgerTamperedError("the state has lost its newest rows, or was given others")
        return cls(journal)

    def state_dict(self) -> dict[str, Any]:
        """All of a ledger in memory as plain values, for :meth:`from_state`: keep it secret.

        It holds the key of the fingerprints. A durable ledger is in its file, and its key
        leaves it for nowhere: of that one, only the head is told.

        Example:
            >>> from bgtplanner import Budget
            >>> ledger = Ledger.in_memory(Budgets.same(Budget(1.0), clients=3), "laplace/basic")
            >>> _ = ledger.reserve(0.75, run="a", round=0)
            >>> Ledger.from_state(ledger.state_dict()).left().tolist()
            [0.25, 0.25, 0.25]
        """
        with self._lock:
            self._catch_up()
            rows = {} if self.durable else self._journal.state_dict()
            return {"head": str(self.head)} | rows

    @property
    def durable(self) -> bool:
        """Whether it lies in a file and outlives the process."""
        return self._journal.durable

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    @property
    def accountant(self) -> Accountant:
        """How charges add up."""
        return self._book.accountant

    @property
    def budgets(self) -> Budgets:
        """What the clients may spend by now."""
        return self._book.budgets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.budgets)

    @property
    def head(self) -> Head:
        """The newest row: keep it elsewhere, and give it to :meth:`open` next time."""
        return self._book.head

    def reserve(
        self,
        charge: ArrayLike,
        *,
        run: str,
        round: int,  # noqa: A002 - the word of the domain
        clients: ArrayLike | None = None,
        fingerprint: bytes | None = None,
        strict: bool = False,
        rising: bool = False,
        by_class: bool = False,
    ) -> Reservation:
        """Book a charge for everybody who can pay it, before anything is released.

        Args:
            charge: What the round costs each client; one number, or one a client, or (see
                `by_class`) one a class.
            run: Which run.
            round: Which round of it.
            clients: Who is asked, as a mask or as indices; by default everybody.
            fingerprint: Of the public inputs that the release will be computed from (see
                :meth:`fingerprint`). Whether something is charged must not depend on data that
                are to be protected. Without one, every call is a new attempt.
            strict: Refuse all if one cannot pay.
            rising: Refuse a round that is not above every round of the run that was reserved
                before, by whichever process.
            by_class: `charge` has one entry for each of ``budgets.classes``, which every client
                of the class pays. A class whose entry is 0 is not asked.

        Returns:
            Who may release and who may not.

        Raises:
            BudgetExceeded: If nobody can pay (or one cannot, if `strict`). Nothing was booked.
            StaleRoundError: If the round must be above an earlier one and is not.
            ConfigError: If a charge, a client, the run or the round makes no sense.
        """
        request = Request.of(self.budgets, charge, (run, round), clients, fingerprint, by_class)
        with self._lock:
            booked: tuple[Row, Payment] | None = None
            with self._journal.writing():
                self._catch_up()
                if rising:
                    self._refuse_stale(request)
                decision = self._book.decide(request, self._repeats(request), strict=strict)
                made = decision.made
                attempt = made.attempt if made else self._journal.attempts(*request[:2])
                if decision.pays.any():
                    booked = self._write(request, decision, attempt)
            if booked is not None:  # it is on the disk: only now does the memory follow
                self._book.booked(*booked, decision)
                if self._witness is not None:
                    self._witness.append(self.head)
        columns, number = decision.columns, made.number if made else -1
        return Reservation(
            run=request.run,
            round=request.round,
            attempt=attempt,
            charge=columns.charge(decision.wanted),
            granted=columns.each(decision.pays | decision.replayed),
            refused=columns.each(decision.refused),
            replayed=columns.each(decision.replayed),
            number=booked[0].number if booked else number,
        )

    def _refuse_stale(self, request: Request) -> None:
        newest = self._journal.newest_round(request.run)
        if newest is not None and request.round <= newest:
            raise StaleRoundError(
                f"round = {request.round}: the run has had round {newest}; its rounds only go up"
            )

    def _write(self, request: Request, decision: Decision, attempt: int) -> tuple[Row, Payment]:
        payment = decision.columns.payment(
            (attempt, request.mark), decision.pays, request.ticks, by_class=request.by_class
        )
        row = self._append("reserve", *request[:2], self._book.written(payment))
        return row, payment

    def _repeats(self, request: Request) -> list[tuple[Made, Payment]]:
        """The reservations that were made for the same inputs, as their rows say.

        The index only tells where to look: what counts is the row, if it is one of the chain.
        """
        if not request.mark:
            return []
        found = []
        for made in self._journal.made_for(*request[:2], request.mark):
            row = self._journal.row(made.number)
            before = self._journal.head_at(made.number - 1)
            if row is None or row.kind != "reserve" or not row.follows(before):
                raise LedgerTamperedError(
                    f"row {made.number}, which the index names, is not a reservation of this "
                    "ledger: edited or damaged"
                )
            if Made.by(row) == made:
                found.append((made, self._book.payment(row)))
        return found

    def _append(self, kind: str, run: str, round_: int, payload: bytes) -> Row:
        """Write the next row, and before it a snapshot of all that came before if one is due."""
        head = self._book.head
        if self._journal.durable and head.number - self._snapshot_at >= SNAPSHOT_EVERY:
            self._journal.keep_snapshot(self._book.snapshot())
            self._snapshot_at = head.number
        row = Row.after(head, kind, run, round_, payload)
        self._journal.append(row)
        return row

    def settle(self, reservation: Reservation) -> None:
        """Note that what was reserved has been released. Doing it twice does no harm."""
        if reservation.number < 0:  # nobody was asked, nothing was booked
            return
        key = (reservation.run, reservation.round)
        with self._lock:
            with self._journal.writing():
                self._catch_up()
                made = self._journal.row(reservation.number)
                if made is None or made[1:4] != ("reserve", *key):
                    raise LedgerError(f"settle: there is no reservation {reservation.number} here")
                if not self._journal.is_unsettled(reservation.number):
                    return
                row = self._append("settle", *key, pack({"settles": reservation.number}))
            self._book.read(row)

    def fingerprint(self, *parts: bytes) -> bytes:
        """A keyed mark of a release's inputs; shows nothing about them without the ledger."""
        digest = hmac.new(self._journal.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def newest_round(self, run: str) -> int | None:
        """The highest round of a run that was ever reserved, by whichever process; None: none."""
        with self._lock:
            return self._journal.newest_round(run)

    def spent(self) -> Ticks:
        """Sums of all charges in ticks, ``[sums, clients]``, unsettled ones included."""
        return self._book.spending.spent()

    def spending(self, run: str | None = None, before: int = 0) -> Spending:
        """Sums of what clients have spent, to be read only.

        Args:
            run: Leave out what this run has reserved for the rounds from `before` on, which it
                is about to play again after a crash.
            before: A round of that run.
        """
        with self._lock:
            newest = None if run is None else self._journal.newest_round(run)
            if newest is None or newest < before:
                return self._book.spending
            known = Spending(self.accountant, self.budgets)
            for row in self._journal.rows():
                if row.kind == "loss":
                    ticks = np.asarray(named_values(row.payload)["ticks"])
                    known.add(Payment(0, b"", None, ticks))
                elif row.kind == "reserve" and (row.run != run or row.round < before):
                    known.add(self._book.payment(row))
            return known

    def left(self) -> NDArray[np.float64]:
        """Largest charge that each client can still pay."""
        return self._book.spending.left()

    def left_by_class(self) -> NDArray[np.float64]:
        """Largest charge that somebody of each class can still pay; 0 for an empty class.

        Example:
            >>> budgets = Budgets.per_client([1.0, 2.0, 2.0], delta=1e-5)
            >>> ledger = Ledger.in_memory(budgets, "laplace/basic")
            >>> _ = ledger.reserve([0.25, 0.5], run="a", round=0, by_class=True)
            >>> ledger.left_by_class().tolist()
            [0.75, 1.5]
        """
        return self._book.spending.left_by_class()

    def least_spent_by_class(self) -> Ticks:
        """Sums in ticks, ``[sums, classes]``, of who can still pay the most in each class."""
        return self._book.spending.least_spent_by_class()

    def epsilon_spent(self, delta: float | None = None) -> NDArray[np.float64]:
        """Each client's epsilon so far: a reading at its own delta, or at the one given."""
        columns = self._book.spending
        result = np.zeros(len(columns.class_of))
        for index, budget in enumerate(self.budgets.classes):
            members = np.flatnonzero(columns.class_of == index)
            at = budget.delta if delta is None else delta
            distinct, back = np.unique(columns.sums[:, members], axis=1, return_inverse=True)
            result[members] = self.accountant.epsilon(distinct, at)[back]
        return columns.of_clients(result)

    @property
    def unsettled(self) -> int:
        """How many reservations were never settled. They count as spent."""
        return self._book.unsettled

    def history(self) -> Iterator[dict[str, Any]]:
        """What happened, row by row, for people: no data of any client but what it paid."""
        with self._lock:
            self._catch_up()
            unsettled = self._journal.unsettled()
        classes = Spending(self.accountant, self._book.first_budgets)
        clients = classes.by_client()
        for row in itertools.islice(self._journal.rows(), self.head.number + 1):
            entry: dict[str, Any] = dict(zip(Row._fields[:4], row, strict=False))
            if row.kind == "reserve":
                payment = Payment.unpacked(row.payload, len(self))
                columns = classes if payment.whole else clients
                who, ticks = columns.paid(payment)
                paid = from_ticks(ticks[who] if ticks.ndim else ticks)
                entry |= {
                    "clients": columns.count(who),
                    "charge_least": float(paid.min()),
                    "charge_most": float(paid.max()),
                    "attempt": payment.attempt,
                    "settled": row.number not in unsettled,
                }
            elif row.kind == "loss":
                entry["charge_most"] = float(from_ticks(named_values(row.payload)["ticks"]))
            yield entry

    def verify(self, head: Head | None = None) -> int:
        """Read every row again and check all that can be checked; returns how many there are.

        That is: the chain; that the file is whole; that the index, the snapshot and the sums in
        memory are what the rows say.

        Raises:
            LedgerTamperedError: If a row was edited, removed or reordered, or the head is lost, or
                what is derived from the rows is not what they say.
        """
        with self._lock:
            snapshot = self._journal.snapshot()
            self._read_on()
            known = self._book
            gone = LedgerTamperedError("the newest rows are gone since the ledger was opened")
            rows = itertools.islice(self._journal.rows(), known.head.number + 1)
            first = next(rows, None)
            if first is None:
                raise gone
            book = Book(first, self._journal.key)
            same = True
            for row in rows:
                book.read(row)
                if snapshot is not None and snapshot.number == row.number:
                    same = book.snapshot() == snapshot
            if book.head != known.head:
                raise gone
            if not same or not np.array_equal(book.spending.spent(), known.spending.spent()):
                raise LedgerTamperedError(
                    "the sums that were noted are not what the rows say: edited or damaged"
                )
            self._catch_up()
            self._journal.check()
            if head is not None:
                self.check_head(head)
            return book.head.number + 1

    def check_head(self, head: Head) -> None:
        """Refuse a ledger that has lost a row somebody remembers, unless its loss was stated."""
        if head not in self._book.forgiven and self._journal.head_at(head.number) != head:
            raise LedgerTamperedError(
                f"row {head.number}, which was seen before, is not in this ledger (its newest is "
                f"{self.head.number}): rows were cut, or a backup was restored. State the loss "
                "first: bgtplanner ledger restore"
            )

    def state_loss(self, head: Head, charge: float | None = None) -> None:
        """Go on with a restored backup, having charged everybody for what it has forgotten.

        `head` is the newest row that somebody remembers, `charge` at most what any client spent
        since; by default everything that is left.
        """
        # A charge of 1 or more is no larger than its square: it uses up the sum of squares, too.
        everything = max(self._book.largest_limit, int(to_ticks(1.0)))
        ticks = everything if charge is None else int(to_ticks(charge))
        with self._lock:
            with self._journal.writing():
                self._catch_up()
                row = self._append("loss", "", 0, pack({"head": str(head), "ticks": ticks}))
            self._book.read(row)

    def _catch_up(self) -> None:
        """Read and check the rows that others have written meanwhile."""
        known, newest = self._book.head, self._journal.newest()
        self._read_on()
        head = self._book.head
        # What this ledger has read before must still be there: the file may have been replaced.
        if newest != head and (
            newest is None
            or any(self._journal.head_at(one.number) != one for one in (newest, known))
        ):
            raise LedgerTamperedError(
                "the newest row is not the one that was noted: rows were cut, or the file is "
                "damaged"
            )

    def _read_on(self) -> None:
        for row in self._journal.rows(self._book.head.number + 1):
            self._book.read(row)


def _rule(accountant: Accountant | str) -> Accountant:
    return accountant_named(accountant) if isinstance(accountant, str) else accountant
