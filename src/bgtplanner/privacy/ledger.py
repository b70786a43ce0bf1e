"""The privacy filter: reserve, release, settle; a charge that does not fit is refused.

* A reservation is stored before anything is computed for release. One that is never settled
  counts as spent, so a crash at any instant can only overstate what was spent.
* Reservations are keyed by run, round and client. Asking for the same one again (after a resume,
  or for a repeated message) returns it at no further charge, but only if the fingerprint of its
  inputs, which must be public, is unchanged. Otherwise it is a new attempt with a new charge.
* If a run must move forward, a round that is not above every earlier one is refused.
* The first row names the neighbouring relation for which the noise of every release is scaled. A
  ledger whose first row names none is older, and its relation is ``replace-one``. A ledger is
  never used for another relation than its own.

* People may join and leave. Each label has a place, which is found again by a keyed hash of the
  label, in whatever order people come. Whoever leaves keeps the place and what was spent there.

The ledger holds no rating, no item id and no gradient, only who paid how much in which round.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import LedgerError, LedgerTamperedError, StaleRoundError
from bgtplanner.privacy._book import Book, Demand, Reservation, Spending, first_row
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy._rows import MARK, Head, Payment, Row, Ticks, pack, pack_members
from bgtplanner.privacy.accountants import Accountant, accountant_named, to_ticks
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.witness import Witness

__all__ = ["Head", "Ledger", "Reservation", "Spending", "Ticks"]


class Ledger:
    """The record of who has spent how much, and who can still pay.

    Use :meth:`in_memory`, :meth:`create` or :meth:`open`.

    Attributes:
        accountant: How charges add up.
        neighbours: The neighbouring relation that the budgets are a promise about.
        durable: Whether the ledger is in a file and outlives the process.

    Example:
        >>> from bgtplanner import Budget
        >>> ledger = Ledger.in_memory(Budgets.same(Budget(1.0, 1e-5), clients=3), "laplace/basic")
        >>> leave = ledger.reserve(0.75, run="a", round=0)
        >>> ledger.settle(leave)
        >>> ledger.left().tolist()
        [0.25, 0.25, 0.25]
    """

    def __init__(self, journal: Journal, *, witness: Witness | None = None) -> None:
        self._journal, self._witness, self.durable = journal, witness, journal.durable
        self._lock = threading.RLock()
        self._book = Book(next(journal.rows(), None), journal.key)
        self.accountant, self.neighbours = self._book.accountant, self._book.neighbours
        self._catch_up()
        if witness is not None and (seen := witness.newest()) is not None:
            self.check_head(seen)

    @classmethod
    def in_memory(
        cls, budgets: Budgets, accountant: Accountant | str, *,
        neighbours: Neighbours = "replace-one",
    ) -> Self:  # fmt: skip
        """Create a ledger that lives as long as the process; see :meth:`create`."""
        key = secrets.token_bytes(32)
        first = first_row(budgets, _rule(accountant), key, neighbours)
        return cls(Journal.in_memory([first], key))

    @classmethod
    def create(
        cls, path: Path | str, budgets: Budgets, accountant: Accountant | str, *,
        witness: Witness | None = None, neighbours: Neighbours = "replace-one",
    ) -> Self:  # fmt: skip
        """Create a durable ledger in a new file.

        The budgets are a promise about the relation `neighbours`, which never changes and for
        which all noise is to be scaled: ``replace-one`` (sensitivity 2 * clip) or
        ``replace-special`` (sensitivity clip; only where the server sees sums alone).
        """
        key = secrets.token_bytes(32)
        first = first_row(budgets, _rule(accountant), key, neighbours)  # before a file is made
        if witness is not None and witness.newest() is not None:
            taken = "already the witness of another ledger; name another file"
            raise LedgerError(f"{witness.path}: {taken}")
        made = cls(Journal.create(path, key, first), witness=witness)
        if witness is not None:
            witness.append(made.head)
        return made

    @classmethod
    def open(
        cls, path: Path | str, *, budgets: Budgets | None = None,
        accountant: Accountant | str | None = None, neighbours: Neighbours | None = None,
        head: Head | None = None, witness: Witness | None = None, read_only: bool = False,
        rebuild: bool = False,
    ) -> Self:  # fmt: skip
        """Open a durable ledger.

        The `budgets` are in force from now on; none may be larger than the ledger was created
        with. Its accountant and relation must be those that are given. A ledger without `head`,
        the newest row that is remembered elsewhere, is refused, and so is one that has lost the
        newest head in its witness, to which every head is appended before a reservation is
        granted. `rebuild` takes the rows for all there are, before a loss is stated: for a file
        whose newest rows were cut.
        """
        journal = Journal.open(path, read_only=read_only, rebuild=rebuild)
        try:
            ledger = cls(journal, witness=witness)
            kept = ledger.accountant.name
            if accountant is not None and (wanted := _rule(accountant).name) != kept:
                raise LedgerError(f"{path}: kept with the accountant {kept}, not {wanted}")
            if neighbours not in (None, ledger.neighbours):
                raise LedgerError(
                    f"{path}: kept for neighbours = {ledger.neighbours}, not {neighbours}: its "
                    "charges would mean something else; go on with that relation, or begin a new "
                    "ledger"
                )
            if budgets is not None:
                ledger.lower(budgets)
            if head is not None:
                ledger.check_head(head)
        except BaseException:
            journal.close()
            raise
        return ledger

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore a ledger in memory from :meth:`state_dict`; an edited state is refused."""
        if "rows" not in state:
            raise LedgerError("the state holds no rows: open the durable ledger file instead")
        try:
            rows = [
                Row._make([*told, _bytes(payload), bytes.fromhex(digest)])
                for *told, payload, digest in state["rows"]
            ]
            found = cls(Journal.in_memory(rows, _bytes(state["key"])))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LedgerTamperedError(
                "the state cannot be read: edited, damaged, or not that of a ledger"
            ) from error
        if str(found.head) != state.get("head"):
            raise LedgerTamperedError("the state has lost its newest rows, or they were replaced")
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return a ledger in memory as plain values, for :meth:`from_state`; keep them secret.

        They include the key of the fingerprints. Of a durable ledger only the head is returned.
        """
        with self._lock:
            self._catch_up()
            if self.durable:
                return {"head": str(self.head)}
            rows = [
                [*row[:4], base64.b64encode(row.payload).decode(), row.hash.hex()]
                for row in self._journal.rows()
            ]
            key = base64.b64encode(self._journal.key).decode()
            return {"head": str(self.head), "key": key, "rows": rows}

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    @property
    def budgets(self) -> Budgets:
        """The budgets that are in force."""
        return self._book.budgets

    def __len__(self) -> int:
        return len(self.budgets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def head(self) -> Head:
        """The head: keep it elsewhere, and pass it to :meth:`open` next time."""
        return self._book.head

    def reserve(
        self,
        charge: ArrayLike,
        *,
        run: str,
        round: int,  # noqa: A002 - the word of the domain
        clients: ArrayLike | None = None,
        fingerprint: bytes | None = None,
        rising: bool = False,
    ) -> Reservation:
        """Book a charge for every client that can pay it, before anything is released.

        The charge is one number, or one per client, which is 0 for a client that is not asked;
        `clients` says who is, as a mask or as indices. The fingerprint is that of the public
        inputs of the release (see :meth:`fingerprint`): whether something is charged must not
        depend on protected data. Without one, every call is a new attempt. If `rising`, a round
        is refused that is not above every round that the run has had.

        Raises:
            BudgetExceeded: If no one can pay. Nothing was booked.
            StaleRoundError: If `rising` and the round is not above the earlier ones.
        """
        demand = Demand.checked(len(self), charge, (run, round), clients, fingerprint)
        with self._lock:
            row: Row | None = None
            with self._journal.writing():
                self._catch_up()
                newest = self._book.newest_round.get(run) if rising else None
                if newest is not None and demand.round <= newest:
                    had = f"the run has already had round {newest}"
                    raise StaleRoundError(f"round = {demand.round}: {had}; rounds must rise")
                found, pays = self._book.decide(demand)
                if pays.any():
                    payment = Payment(found.attempt, demand.mark, pays, demand.ticks)
                    packed = payment.packed(self._book.first_budgets)
                    row = self._append("reserve", *demand[:2], packed)
            if row is not None:  # it is on the disk: only now is the memory updated
                self._book.read(row)
                if self._witness is not None:
                    self._witness.append(self.head)
        return replace(found, number=row.number) if row else found

    def _append(self, kind: str, run: str, round_: int, payload: bytes) -> Row:
        row = Row.after(self._book.head, kind, run, round_, payload)
        self._journal.append(row)
        return row

    def join(self, clients: Sequence[Any]) -> NDArray[np.int32]:
        """Return the place of each client, which is a new one for those who were never here.

        A client is named by its label, or by a tuple of those of its users. Whoever was here
        before has the place and the spending of then; a label that has changed is somebody new.
        New places have the first class of budgets: join before others are put in force.
        """
        labels = [one if isinstance(one, tuple) else (one,) for one in clients]
        marks = [[self._mark_of(label) for label in of_client] for of_client in labels]

        places: list[int] = []

        def joining() -> bytes | None:
            found, told = self._book.places_for(marks)
            places.extend(found)
            back = int(self.gone[[at for at in places if at < len(self)]].sum())
            said = {"joined": max([0, *(at + 1 - len(self) for at in places)]), "returned": back}
            return pack_members(said, list(told.values()), list(told)) if told else None

        self._note("join", joining)
        return np.array(places, dtype=np.int32)

    def leave(self, *who: str | int) -> None:
        """Note that some have left, by label or by place: nothing more is charged to them.

        What they have spent stays, and so does the keyed hash by which they are known if they
        come back. Leaving twice does no harm.
        """

        def leaving() -> bytes | None:
            places = [of if isinstance(of, int) else self.place(of) for of in who]
            if not all(of is not None and 0 <= of < len(self) for of in places):
                raise LedgerError("leave: nobody in this ledger is called so, or has the place")
            left = sorted({of for of in places if of is not None and not self.gone[of]})
            return pack_members({"left": len(left)}, left, []) if left else None

        self._note("leave", leaving)

    def _note(self, kind: str, payload_of: Callable[[], bytes | None]) -> None:
        """Write and read a row that charges no round, if there is one after the newest."""
        with self._lock:
            with self._journal.writing():
                self._catch_up()
                payload = payload_of()
                row = None if payload is None else self._append(kind, "", 0, payload)
            if row is not None:
                self._book.read(row)

    def lower(self, budgets: Budgets) -> None:
        """Put other budgets in force, of which none may be larger than it is now."""
        with self._lock:
            self._book.lower(budgets, self._journal.path)

    def place(self, label: Any) -> int | None:
        """Return the place of a label; None if nobody called so has joined."""
        return self._book.place_of.get(self._mark_of(label))

    @property
    def gone(self) -> NDArray[np.bool_]:
        """Who has left, by place; the caller must not change it."""
        return self._book.spending.gone

    def _mark_of(self, label: Any) -> bytes:
        """Return the keyed hash of a label."""
        return self.fingerprint(b"label", str(label).encode())[:MARK]

    def settle(self, reservation: Reservation) -> None:
        """Record that what was reserved has been released. Settling twice does no harm."""
        number, key = reservation.number, (reservation.run, reservation.round)
        if number < 0:  # no one was asked, nothing was booked
            return
        with self._lock:
            with self._journal.writing():
                self._catch_up()
                if all(made.number != number for made in self._book.made.get(key, [])):
                    raise LedgerError(f"settle: this ledger has no reservation {number}")
                if number not in self._book.unsettled:
                    return
                row = self._append("settle", *key, pack({"settles": number}))
            self._book.read(row)

    def fingerprint(self, *parts: bytes) -> bytes:
        """Return a keyed hash of a release's inputs, which reveals nothing without the key."""
        digest = hmac.new(self._journal.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def newest_round(self, run: str) -> int | None:
        """Return the highest round of a run that any process has reserved, or None."""
        with self._lock:
            self._catch_up()
            return self._book.newest_round.get(run)

    def spent(self) -> Ticks:
        """Return the sums of all charges in ticks, ``[sums, clients]``, settled or not."""
        return self._book.spending.spent()

    def left(self) -> NDArray[np.float64]:
        """Return the largest charge that each client can still pay."""
        return self._book.spending.left()

    def spending(self, run: str | None = None, before: int = 0) -> Spending:
        """Return the sums of what clients have spent; the caller must not change them.

        What the run has reserved for the rounds from `before` on, which it is about to repeat
        after a crash, is left out.
        """
        if run is None:
            return self._book.spending
        with self._lock:
            if self._book.newest_round.get(run, -1) < before:
                return self._book.spending
            known = Spending(self.accountant, self.budgets)
            known.gone = self.gone
            for row in self._journal.rows():
                again = row.kind == "reserve" and row.run == run and row.round >= before
                if row.kind in ("reserve", "loss") and not again:
                    known.add(self._book.payment(row))
            return known

    def epsilon_spent(self) -> NDArray[np.float64]:
        """Return each client's epsilon so far: a reading at its own delta."""
        return self._read(None)

    def epsilon_other_reading(self) -> NDArray[np.float64]:
        """Return what each client has spent, as epsilon at its own delta by the other relation.

        It is NaN where it is not known; see :meth:`Accountant.epsilon`.
        """
        return self._read(self.neighbours)

    def _read(self, other_than: Neighbours | None) -> NDArray[np.float64]:
        """Return each client's sums in words of epsilon; each reading is computed once."""
        result, sums = np.zeros(len(self)), self._book.spending.sums
        for number, budget in enumerate(self.budgets.classes):
            members = self.budgets.class_of_client == number
            if not members.any():
                continue
            distinct, back = np.unique(sums[:, members], axis=1, return_inverse=True)
            read = self.accountant.epsilon(distinct, budget.delta, other_than=other_than)
            result[members] = read[back]
        return result

    @property
    def unsettled(self) -> int:
        """How many reservations were never settled. They count as spent."""
        return len(self._book.unsettled)

    def history(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in readable form; the only data of a client is what it paid."""
        with self._lock:
            self._catch_up()
        for row in itertools.islice(self._journal.rows(), self.head.number + 1):
            yield self._book.described(row)

    def verify(self, head: Head | None = None) -> int:
        """Read every row again, have SQLite check the file, and return the number of rows."""
        with self._lock:
            self._catch_up()
            rows = itertools.islice(self._journal.rows(), self.head.number + 1)
            book = Book(next(rows, None), self._journal.key)
            for row in rows:
                book.read(row)
            if book.head != self.head:
                raise LedgerTamperedError("rows have changed since the ledger was opened")
            self._journal.check()
            if head is not None:
                self.check_head(head)
            return book.head.number + 1

    def check_head(self, head: Head) -> None:
        """Refuse a ledger that has lost a row known elsewhere, unless the loss was stated."""
        with self._lock:
            self._catch_up()
        if not (head in self._book.forgiven or self._book.has(head)):
            raise LedgerTamperedError(
                f"row {head.number}, which was seen before, is not in this ledger (its newest is "
                f"{self.head.number}): rows were cut, or a backup was restored. State the loss "
                "first: bgtplanner ledger restore"
            )

    def state_loss(self, head: Head, charge: float | None = None) -> None:
        """Charge every client for what a restored backup has forgotten, and go on with it.

        `head` is the newest row that anyone remembers. `charge` is at least what any client has
        spent since; by default everything that is left.
        """
        # A charge of at least 1 does not exceed its square: it uses up the sum of squares, too.
        limits = map(self.accountant.limit_ticks, self._book.first_budgets.classes)
        everything = max(int(to_ticks(1.0)), *(int(limit.max()) for limit in limits))
        ticks = everything if charge is None else int(to_ticks(charge))
        self._note("loss", lambda: pack({"head": str(head), "ticks": ticks}))

    def _catch_up(self) -> None:
        """Read and check the rows that other processes have written since."""
        known, newest = self._book.head, self._journal.newest()
        for row in self._journal.rows(known.number + 1):
            self._book.read(row)
        # The rows that were read before must still be there: the file may have been replaced.
        there = self._journal.head_at(known.number) == known
        if not there or newest is None or not self._book.has(newest):
            why = "rows were cut, or the file is damaged"
            raise LedgerTamperedError(f"the newest row is not the one that was noted: {why}")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _rule(accountant: Accountant | str) -> Accountant:
    return accountant_named(accountant) if isinstance(accountant, str) else accountant
