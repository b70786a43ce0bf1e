"""The filter: reserve, then release, then settle; a charge that does not fit is refused.

* A reservation is written down before anything is computed for release. One that is never settled
  counts as spent, so a crash at any instant can only overstate what was spent.
* Reservations are keyed by run, round and client. Asking again for the same thing (after a resume,
  or for a repeated message) gives the same reservation at no further charge, but only if the
  fingerprint of its inputs, which must be public, is unchanged. Otherwise it is a new attempt and
  a fresh charge.
* Where a run must go forward, a round that is not above every earlier one is refused.
* What is promised is the budget. ``epsilon_spent`` is a reading.

The ledger holds no rating, no item id and no gradient, only who paid how much in which round.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import (
    BudgetExceeded,
    ConfigError,
    InputError,
    LedgerError,
    LedgerTamperedError,
    StaleRoundError,
)
from bgtplanner.privacy.accounting import Rule, from_ticks, rule_named, to_ticks
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.entries import Mask, Payment, Reservation, Ticks, pack, unpack
from bgtplanner.privacy.journal import Head, Journal, MemoryJournal, Row, SqliteJournal
from bgtplanner.privacy.spending import Columns, Spending

__all__ = ["Ledger", "Reservation"]


class _Earlier(NamedTuple):
    """A reservation that was made before, without the list of who made it."""

    number: int
    attempt: int
    fingerprint: bytes


class Ledger:
    """Who has spent how much, and who can still pay.

    Use :meth:`in_memory`, :meth:`create` or :meth:`open`.

    Example:
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

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._head: Head | None = None
        self._lock = threading.RLock()
        self._index: dict[tuple[str, int], list[_Earlier]] = {}
        self._newest: dict[str, int] = {}
        self._unsettled: set[int] = set()
        self._forgiven: set[Head] = set()
        first = next(iter(journal.rows()), None)
        if first is None or first.kind != "open":
            raise LedgerError("the ledger has no first row; it was never finished or was emptied")
        _checked(first, None)
        about, classes = unpack(first.payload)
        try:
            self.rule: Rule = rule_named(str(about["rule"]))
            self.budgets = Budgets(
                tuple(Budget(epsilon, delta) for epsilon, delta in about["budgets"]),
                np.frombuffer(classes, dtype="<i4"),
            )
            same_key = about["key"] == _mark_of_key(journal.key)
        except InputError as error:
            raise LedgerError(f"the ledger's first row cannot be used: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTamperedError("the first row cannot be read: edited or damaged") from error
        if not same_key:
            raise LedgerTamperedError("the ledger's key is not the one it was created with")
        # Rows by the class mean the classes of the first row, whatever budgets are in force now.
        self._first_budgets = self.budgets
        self._first_classes = True
        self._spending = Spending(self.rule, self.budgets)
        self._first_limit = int(self._spending.limits_by_class.max())
        self._catch_up()

    @classmethod
    def in_memory(cls, budgets: Budgets, rule: Rule | str) -> Self:
        """A ledger that lives as long as the process."""
        journal = MemoryJournal()
        with journal.writing():
            journal.append(_first_row(budgets, rule, journal.key))
        return cls(journal)

    @classmethod
    def create(cls, path: Path | str, budgets: Budgets, rule: Rule | str) -> Self:
        """A new durable ledger.

        Raises:
            LedgerError: If the file exists: a ledger is never silently started anew.
        """
        key = secrets.token_bytes(32)
        first = _first_row(budgets, rule, key)  # checked before a file is made
        return cls(SqliteJournal.create(path, key, first))

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        budgets: Budgets | None = None,
        rule: Rule | str | None = None,
        head: Head | None = None,
        read_only: bool = False,
    ) -> Self:
        """A durable ledger that exists.

        Args:
            path: The file.
            budgets: What the clients may spend by now. May be less than it was created with (then
                who has spent more can pay nothing further), never more.
            rule: If given, must be the one it was created with.
            head: The newest row that somebody else remembers; refused if it has lost that.
            read_only: For looking only; never blocks a writer.

        Raises:
            LedgerError: If the file is missing, foreign or damaged, or does not fit the arguments.
            LedgerTamperedError: If its chain is broken, or it has lost the head.
        """
        journal = SqliteJournal.open(path, read_only=read_only)
        try:
            ledger = cls(journal)
            if rule is not None and _rule(rule).name != ledger.rule.name:
                raise LedgerError(
                    f"{path}: kept by the rule {ledger.rule.name}, not {_rule(rule).name}"
                )
            if budgets is not None:
                ledger._lower(budgets, path)
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
        journal = MemoryJournal.from_state(state)
        last: Head | None = None
        for row in journal.rows():
            last = _checked(row, last)
        if str(last) != state.get("head"):
            raise LedgerTamperedError("the state has lost its newest rows, or was given others")
        return cls(journal)

    def state_dict(self) -> dict[str, Any]:
        """All of a ledger in memory as plain values, for :meth:`from_state`: keep it secret.

        It holds the key of the fingerprints. A durable ledger is in its file, and its key
        leaves it for nowhere: of that one, only the head is told.

        Example:
            >>> ledger = Ledger.in_memory(Budgets.same(Budget(1.0), clients=3), "laplace/basic")
            >>> _ = ledger.reserve(0.75, run="a", round=0)
            >>> Ledger.from_state(ledger.state_dict()).left().tolist()
            [0.25, 0.25, 0.25]
        """
        with self._lock:
            self._catch_up()
            head = {"head": str(self.head)}
            journal = self._journal
            return head | (journal.state_dict() if isinstance(journal, MemoryJournal) else {})

    @property
    def durable(self) -> bool:
        """Whether it lies in a file and outlives the process."""
        return self._journal.durable

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.budgets)

    @property
    def head(self) -> Head:
        """The newest row: keep it elsewhere, and give it to :meth:`open` next time."""
        if self._head is None:
            raise LedgerError("the ledger has no row")
        return self._head

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
        chosen = self._mask(clients)
        text = isinstance(run, str) and run.encode(errors="ignore").decode() == run
        ConfigError.unless(text, "run", run, "a text")
        whole = isinstance(round, int | np.integer) and 0 <= round < 2**62
        ConfigError.unless(bool(whole), "round", round, "a whole number from 0")
        ticks = self._ticks(charge, by_class)
        by_class = by_class and ticks.ndim > 0
        mark = b"" if fingerprint is None else bytes(fingerprint)
        key = (run, int(round))
        with self._lock:
            row = None
            with self._journal.writing():
                self._catch_up()
                newest = self._newest.get(run)
                if rising and newest is not None and key[1] <= newest:
                    raise StaleRoundError(
                        f"round = {key[1]}: the run has had round {newest}; its rounds only go up"
                    )
                earlier = self._index.get(key, [])
                repeats = self._with_mark(earlier, mark)
                evenly = chosen is None and (by_class or not ticks.ndim)
                columns = self._spending.columns(
                    by_class=evenly and all(payment.whole for _, payment in repeats)
                )
                asked = columns.everybody() if chosen is None else chosen
                wanted = ticks
                if by_class:
                    wanted = ticks if columns.sizes is not None else ticks[columns.class_of_client]
                    asked &= wanted > 0
                same, replayed = _made_before(repeats, columns, wanted, asked)
                new = asked & ~replayed if same else asked
                adds = self._spending.adds(wanted, asked)
                pays = new & self.rule.fits(columns.spent, adds, columns.limits)
                refused = new & ~pays
                if refused.any() and (strict or not (pays | replayed).any()):
                    raise self._exceeded(columns, wanted, asked, refused)
                attempt = same.attempt if same else len({entry.attempt for entry in earlier})
                if pays.any():
                    payment = self._spending.payment(
                        (attempt, mark), columns, pays, ticks, by_class=by_class
                    )
                    if payment.by_class and not self._first_classes:
                        payment = payment.by_client(self.budgets.class_of_client)
                    row = Row.after(self._head, "reserve", *key, payment.packed())
                    self._journal.append(row)
            if row is not None:  # it is on the disk: only now does the memory follow
                reusable = columns.sizes is not None or not self._spending.alike
                self._book(row, payment, adds if reusable else None)
                self._head = Head(row.number, row.hash)
            number = row.number if row is not None else same.number if same else -1
        return Reservation(
            run=run,
            round=key[1],
            attempt=attempt,
            charge=columns.charge(wanted),
            granted=columns.each(pays | replayed),
            refused=columns.each(refused),
            replayed=columns.each(replayed),
            number=number,
        )

    def settle(self, reservation: Reservation) -> None:
        """Note that what was reserved has been released. Doing it twice does no harm."""
        if reservation.number < 0:  # nobody was asked, nothing was booked
            return
        key = (reservation.run, reservation.round)
        with self._lock:
            # Not forced to the disk: if this is lost, it still counts as spent.
            with self._journal.writing(durable=False):
                self._catch_up()
                known = {entry.number for entry in self._index.get(key, [])}
                if reservation.number not in known:
                    raise LedgerError(f"settle: there is no reservation {reservation.number} here")
                if reservation.number not in self._unsettled:
                    return
                row = Row.after(self._head, "settle", *key, pack({"settles": reservation.number}))
                self._journal.append(row)
            self._unsettled.discard(reservation.number)
            self._head = Head(row.number, row.hash)

    def fingerprint(self, *parts: bytes) -> bytes:
        """A keyed mark of a release's inputs; shows nothing about them without the ledger."""
        digest = hmac.new(self._journal.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def newest_round(self, run: str) -> int | None:
        """The highest round of a run that was ever reserved, by whichever process; None: none.

        Example:
            >>> ledger = Ledger.in_memory(Budgets.same(Budget(1.0), clients=3), "laplace/basic")
            >>> _ = ledger.reserve(0.25, run="a", round=7, rising=True)
            >>> ledger.newest_round("a"), ledger.newest_round("b")
            (7, None)
        """
        with self._lock:
            self._catch_up()
            return self._newest.get(run)

    def spent(self) -> Ticks:
        """Sums of all charges in ticks, ``[sums, clients]``, unsettled ones included."""
        return self._spending.spent()

    def left(self) -> NDArray[np.float64]:
        """Largest charge that each client can still pay."""
        return self._spending.left()

    def left_by_class(self) -> NDArray[np.float64]:
        """Largest charge that somebody of each class can still pay; 0 for an empty class.

        Example:
            >>> budgets = Budgets.per_client([1.0, 2.0, 2.0], delta=1e-5)
            >>> ledger = Ledger.in_memory(budgets, "laplace/basic")
            >>> _ = ledger.reserve([0.25, 0.5], run="a", round=0, by_class=True)
            >>> ledger.left_by_class().tolist()
            [0.75, 1.5]
        """
        return self._spending.left_by_class()

    def least_spent_by_class(self) -> Ticks:
        """Sums in ticks, ``[sums, classes]``, of who can still pay the most in each class."""
        return self._spending.least_spent_by_class()

    def epsilon_spent(self, delta: float | None = None) -> NDArray[np.float64]:
        """Each client's epsilon so far: a reading at its own delta, or at the one given."""
        result = np.zeros(len(self))
        alike = self._spending.least_spent_by_class() if self._spending.alike else None
        spent = self.spent() if alike is None else alike
        for index, budget in enumerate(self.budgets.classes):
            members = np.flatnonzero(self.budgets.class_of_client == index)
            at = budget.delta if delta is None else delta
            if alike is not None:
                result[members] = self.rule.epsilon(alike[:, [index]], at)
                continue
            distinct, back = np.unique(spent[:, members], axis=1, return_inverse=True)
            result[members] = self.rule.epsilon(distinct, at)[back]
        return result

    @property
    def unsettled(self) -> int:
        """How many reservations were never settled. They count as spent."""
        return len(self._unsettled)

    def history(self) -> Iterator[dict[str, Any]]:
        """What happened, row by row, for people: no data of any client but what it paid."""
        with self._lock:
            self._catch_up()
        classes = self._first_budgets.class_of_client
        sizes = np.bincount(classes, minlength=len(self._first_budgets.classes))
        for row in itertools.islice(self._journal.rows(), self.head.number + 1):
            entry: dict[str, Any] = {
                "number": row.number,
                "kind": row.kind,
                "run": row.run,
                "round": row.round,
            }
            if row.kind == "reserve":
                payment = Payment.unpacked(row.payload, len(self))
                whole = payment.whole
                who, ticks = (
                    payment.over(len(sizes)) if whole else payment.over(len(self), classes)
                )
                paid = from_ticks(ticks[who] if ticks.ndim else ticks)
                entry |= {
                    "clients": int(sizes[who].sum() if whole else who.sum()),
                    "charge_least": float(paid.min()),
                    "charge_most": float(paid.max()),
                    "attempt": payment.attempt,
                    "settled": row.number not in self._unsettled,
                }
            elif row.kind == "loss":
                entry["charge_most"] = float(from_ticks(unpack(row.payload)[0]["ticks"]))
            yield entry

    def verify(self, head: Head | None = None) -> int:
        """Read every row again and check the chain; returns how many there are.

        Raises:
            LedgerTamperedError: If a row was edited, removed or reordered, or the head is lost.
        """
        known, last, found = self._head, None, False
        for row in self._journal.rows():
            last = _checked(row, last)
            found = found or last == known
        if last is None or not found:  # others may have written more; nobody may have written less
            raise LedgerTamperedError("the newest rows are gone since the ledger was opened")
        if head is not None:
            self.check_head(head)
        return last.number + 1

    def check_head(self, head: Head) -> None:
        """Refuse a ledger that has lost a row somebody remembers.

        Raises:
            LedgerTamperedError: If that row is not in the chain and its loss was not stated.
        """
        if head in self._forgiven:
            return
        row = next(iter(self._journal.rows(head.number)), None)
        if row is None or row.hash != head.hash:
            newest = self.head.number
            raise LedgerTamperedError(
                f"row {head.number}, which was seen before, is not in this ledger (its newest is "
                f"{newest}): rows were cut, or a backup was restored. State the loss first: "
                "bgtplanner ledger restore"
            )

    def state_loss(self, head: Head, charge: float | None = None) -> None:
        """Go on with a restored backup, having charged everybody for what it has forgotten.

        Args:
            head: The newest row that somebody else remembers.
            charge: At most what any client spent since; by default everything that is left.
        """
        # A charge of 1 or more is no larger than its square: it uses up the sum of squares, too.
        everything = max(self._first_limit, int(to_ticks(1.0)))
        ticks = everything if charge is None else int(to_ticks(charge))
        with self._lock:
            with self._journal.writing():
                self._catch_up()
                payload = pack({"head": str(head), "ticks": ticks})
                row = Row.after(self._head, "loss", "", 0, payload)
                self._journal.append(row)
            self._apply(row)

    def _catch_up(self) -> None:
        """Read and check the rows that others have written meanwhile."""
        start = 0 if self._head is None else self._head.number + 1
        for row in self._journal.rows(start):
            self._apply(row)

    def _apply(self, row: Row) -> None:
        head = _checked(row, self._head)
        try:
            self._read(row)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTamperedError(f"row {row.number} cannot be read: {error}") from error
        self._head = head

    def _read(self, row: Row) -> None:
        if row.kind == "reserve":
            self._book(row, self._payment(row))
        elif row.kind == "settle":
            self._unsettled.discard(int(unpack(row.payload)[0]["settles"]))
        elif row.kind == "loss":
            about, _ = unpack(row.payload)
            ticks = np.asarray(about["ticks"])
            self._spending.add(Payment(0, b"", None, ticks))
            self._forgiven.add(Head.parse(str(about["head"])))
        elif row.number:
            raise ValueError(f"unknown kind {row.kind!r}")

    def _payment(self, row: Row) -> Payment:
        """What a row says, by the classes that are in force."""
        payment = Payment.unpacked(row.payload, len(self))
        if payment.by_class and not self._first_classes:
            return payment.by_client(self._first_budgets.class_of_client)
        return payment

    def _book(self, row: Row, payment: Payment, adds: Ticks | None = None) -> None:
        self._spending.add(payment, adds)
        entry = _Earlier(row.number, payment.attempt, payment.fingerprint)
        self._newest[row.run] = max(row.round, self._newest.get(row.run, row.round))
        self._index.setdefault((row.run, row.round), []).append(entry)
        self._unsettled.add(row.number)

    def _with_mark(self, earlier: list[_Earlier], mark: bytes) -> list[tuple[_Earlier, Payment]]:
        """The reservations that were made for the same inputs."""
        return [
            (entry, self._payment(next(iter(self._journal.rows(entry.number)))))
            for entry in earlier
            if mark and hmac.compare_digest(entry.fingerprint, mark)
        ]

    def _ticks(self, charge: ArrayLike, by_class: bool) -> Ticks:
        """Ticks of a charge: one number, or one a client (a class, if it is by the class)."""
        if not by_class:
            ticks = to_ticks(charge)
            shape = ticks.shape in ((), (len(self),))
            ConfigError.unless(shape, "charge", ticks.shape, f"one number, or {len(self)}")
            return ticks
        array, classes = np.asarray(charge, dtype=np.float64), len(self.budgets.classes)
        ConfigError.unless(
            array.shape == (classes,),
            "charge",
            array.shape,
            f"one number for each of {classes} classes",
        )
        if array.all():  # what every class pays is said as one number
            ticks = to_ticks(array)
            return ticks if (ticks != ticks[0]).any() else np.asarray(ticks[0])
        asked = array != 0
        return np.where(asked, to_ticks(np.where(asked, array, 1.0)), 0)

    def _mask(self, clients: ArrayLike | None) -> Mask | None:
        if clients is None:
            return None
        array = np.asarray(clients)
        if array.dtype == bool:
            ConfigError.unless(
                array.shape == (len(self),), "clients", array.shape, f"a mask of {len(self)}"
            )
            return array.copy()
        fits = array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer))
        fits = fits and (array.size == 0 or (array.min() >= 0 and array.max() < len(self)))
        ConfigError.unless(bool(fits), "clients", "indices", f"numbers from 0 to {len(self) - 1}")
        mask = np.zeros(len(self), dtype=bool)
        mask[array.astype(np.int64)] = True
        return mask

    def _lower(self, budgets: Budgets, path: Path | str) -> None:
        if len(budgets) != len(self):
            raise LedgerError(f"{path}: kept for {len(self)} clients, not {len(budgets)}")
        lowered = Spending(self.rule, budgets, self.spent())
        if (lowered.limits() > self._spending.limits()).any():
            raise LedgerError(
                f"{path}: created with a smaller budget; a budget can be lowered, never raised"
            )
        self._first_classes = np.array_equal(
            budgets.class_of_client, self._first_budgets.class_of_client
        )
        self._spending, self.budgets = lowered, budgets

    def _exceeded(
        self, columns: Columns, ticks: Ticks, asked: Mask, refused: Mask
    ) -> BudgetExceeded:
        least = float(from_ticks(ticks[refused].min() if ticks.ndim else ticks))
        left = float(self.rule.largest_fitting(columns.spent, columns.limits)[refused].max())
        return BudgetExceeded(
            f"{columns.count(refused)} of {columns.count(asked)} clients cannot pay {least:.6g}: "
            f"at most {left:.6g} is left",
            charge=least,
            left=left,
        )


def _made_before(
    repeats: list[tuple[_Earlier, Payment]],
    columns: Columns,
    wanted: Ticks,
    asked: Mask,
) -> tuple[_Earlier | None, Mask]:
    """The reservation that was made for the same inputs, and who of those asked has it.

    Where somebody paid another charge in an attempt, it is not repeated for anybody: noise that is
    the same again (a simulation's, by its seed) would go out at two scales, whose difference has
    none.
    """
    made, others = [], set()
    for entry, payment in repeats:
        classes = None if columns.sizes is not None else columns.class_of_client
        who, paid = payment.over(len(asked), classes)
        who = who & columns.everybody()
        if (who & (wanted != paid) & (wanted > 0)).any():
            others.add(entry.attempt)
        made.append((entry, who))
    found: _Earlier | None = None
    replayed = np.zeros(len(asked), dtype=bool)
    for entry, who in made:
        if entry.attempt in others or (found and entry.attempt != found.attempt):
            continue
        found, replayed = entry, replayed | (asked & who)
    return found, replayed


def _rule(rule: Rule | str) -> Rule:
    return rule_named(rule) if isinstance(rule, str) else rule


def _first_row(budgets: Budgets, rule: Rule | str, key: bytes) -> Row:
    chosen = _rule(rule)
    for budget in budgets.classes:
        chosen.limit_ticks(budget)
    about = {
        "rule": chosen.name,
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
