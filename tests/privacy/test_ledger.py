"""The filter: nothing is ever granted twice, forgotten, or beyond the budget."""

from __future__ import annotations

import hashlib
import json
import math
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bgtplanner.errors import (
    BudgetExceeded,
    ConfigError,
    LedgerError,
    LedgerTamperedError,
    StaleRoundError,
    StorageError,
)
from bgtplanner.privacy._rows import Head, Row, unpack
from bgtplanner.privacy.accountants import TICK, accountant_named, from_ticks
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.conversions import gdp_epsilon
from bgtplanner.privacy.ledger import Ledger
from privacy.ledgers import budgets_of, charges, says

ONE = 2**44  # ticks of a charge of 1
BASIC, EITHER, GDP = "laplace/basic", "laplace/either", "gaussian/gdp"
MARK = b"m" * 32

Make = Callable[..., Ledger]


# ---- reserve and settle


def test_if_nobody_can_pay_nothing_is_booked(make: Make) -> None:
    ledger = make(budgets_of(1.0, 0.5))
    ledger.reserve(0.25, run="a", round=0)
    before, head = ledger.spent(), ledger.head
    message = "2 of 2 clients cannot pay 0.875: at most 0.75 is left"
    with says(BudgetExceeded, message) as caught:
        ledger.reserve(0.875, run="a", round=1)
    assert (caught.value.charge, caught.value.left) == (0.875, 0.75)
    assert (ledger.spent() == before).all()
    assert ledger.head == head
    assert ledger.unsettled == 1
    assert ledger.verify() == 2


@pytest.mark.parametrize(
    "clients", [[1, 3], np.array([3, 1, 1]), np.array([False, True, False, True]), (1, 3)]
)
def test_clients_are_asked_by_mask_or_index(make: Make, clients: Any) -> None:
    ledger = make(budgets_of(1.0, 1.0, 1.0, 1.0))
    reservation = ledger.reserve(0.25, run="a", round=0, clients=clients)
    assert reservation.granted.tolist() == [False, True, False, True]
    assert not reservation.refused.any()
    assert charges(ledger) == [0.0, 0.25, 0.0, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": [2]}, "clients = 'indices': expected numbers from 0 to 1"),
        ({"clients": 1}, "clients = 'indices': expected numbers from 0 to 1"),
        ({"clients": [True]}, "clients = (1,): expected a mask of 2"),
        ({"charge": [0.1, 0.1, 0.1]}, "charge = (3,): expected one number, or 2"),
        ({"run": 7}, "run = 7: expected a text"),
        ({"run": "\ud800"}, "run = '\\ud800': expected a text"),
        ({"round": -1}, "round = -1: expected a whole number from 0"),
        ({"round": 2**62}, f"round = {2**62}: expected a whole number from 0"),
    ],
)
def test_senseless_arguments_are_refused(
    make: Make, options: dict[str, Any], message: str
) -> None:
    ledger = make(budgets_of(1.0, 1.0))
    with says(ConfigError, message):
        ledger.reserve(**{"charge": 0.1, "run": "a", "round": 0} | options)
    assert ledger.head.number == 0
    assert not ledger.spent().any()


@pytest.mark.parametrize("charge", [0.0, -1.0, math.nan, math.inf, 1e-300, 2e5])
def test_senseless_charges_are_refused(make: Make, charge: float) -> None:
    ledger = make(budgets_of(1.0, 1.0))
    for asked in (charge, [0.1, charge]):
        if charge or asked is charge:  # one number of several may be 0: a client not asked
            with pytest.raises(ConfigError, match=r"^charge = "):
                ledger.reserve(asked, run="a", round=0)
    assert not ledger.spent().any()


def test_settling_what_was_never_reserved_here_is_refused(make: Make) -> None:
    ledger = make(budgets_of(1.0))
    reservation = ledger.reserve(0.25, run="a", round=0)
    for other in (
        replace(reservation, number=99),
        replace(reservation, number=0),
        replace(reservation, run="b"),
        replace(reservation, round=1),
    ):
        with says(LedgerError, f"settle: this ledger has no reservation {other.number}"):
            ledger.settle(other)
    ledger.settle(replace(reservation, number=-1))  # nobody was asked
    assert ledger.unsettled == 1
    ledger.settle(reservation)


# ---- fingerprints


def test_fingerprints(make: Make) -> None:
    ledger, other = make(budgets_of(1.0)), make(budgets_of(1.0))
    assert ledger.fingerprint(b"x") != other.fingerprint(b"x")
    assert ledger.fingerprint(b"a", b"b") == ledger.fingerprint(b"a", b"b")
    marks = {
        ledger.fingerprint(*parts)
        for parts in [(b"a", b"b"), (b"ab",), (b"ab", b""), (b"", b"ab"), (b"b", b"a"), ()]
    }
    assert len(marks) == 6
    assert {len(mark) for mark in marks} == {32}


# ---- budgets and readings


def test_readings_are_taken_at_each_clients_own_delta(make: Make) -> None:
    budgets = Budgets((Budget(9.0, 1e-5), Budget(9.0, 1e-2)), np.array([0, 1, 1, 0]))
    ledger = make(budgets, GDP)
    assert ledger.epsilon_spent().tolist() == [0.0] * 4
    ledger.reserve([0.25, 0.25, 0.5, 0.5], run="a", round=0)
    expected = [gdp_epsilon(0.25, 1e-5), gdp_epsilon(0.25, 1e-2), gdp_epsilon(0.5, 1e-2),
                gdp_epsilon(0.5, 1e-5)]  # fmt: skip
    assert ledger.epsilon_spent().tolist() == pytest.approx([float(x) for x in expected])


def test_a_budget_may_be_lowered_but_never_raised(path: Path) -> None:
    with Ledger.create(path, budgets_of(2.0, 2.0), BASIC) as ledger:
        ledger.reserve(1.0, run="a", round=0)
    with Ledger.open(path, budgets=budgets_of(1.5, 0.5)) as lowered:
        assert lowered.budgets == budgets_of(1.5, 0.5)
        assert lowered.left().tolist() == [0.5, 0.0]
        reservation = lowered.reserve(0.25, run="a", round=1)
        assert reservation.granted.tolist() == [True, False]
        with pytest.raises(BudgetExceeded):
            lowered.reserve(TICK, run="a", round=2, clients=[1])
    raised = f"{path}: created with a smaller budget; a budget can be lowered, never raised"
    for budgets in (budgets_of(2.0, 2.1), budgets_of(9.0, 1.0)):
        with says(LedgerError, raised):
            Ledger.open(path, budgets=budgets)
    for budgets, number in ((budgets_of(2.0), 1), (budgets_of(2.0, 2.0, 2.0), 3)):
        with says(LedgerError, f"{path}: kept for 2 clients, not {number}"):
            Ledger.open(path, budgets=budgets)
    with Ledger.open(path, budgets=budgets_of(2.0, 2.0)) as ledger:
        assert charges(ledger) == [1.25, 1.0]


def test_a_rule_is_the_one_it_was_created_with(path: Path) -> None:
    Ledger.create(path, budgets_of(2.0), accountant_named(GDP)).close()
    for same in (GDP, accountant_named(GDP), None):
        with Ledger.open(path, accountant=same) as ledger:
            assert ledger.accountant is accountant_named(GDP)
    for other in (BASIC, accountant_named(BASIC)):
        with says(LedgerError, f"{path}: kept with the accountant {GDP}, not {BASIC}"):
            Ledger.open(path, accountant=other)


# ---- order and chance: never beyond the budget


class Model:
    """The filter in plain whole numbers, one client at a time."""

    def __init__(self, limits: list[list[int]], powers: tuple[int, ...]) -> None:
        self.limits, self.powers = limits, powers
        self.spent = [[0] * len(limits[0]) for _ in powers]
        self.made: list[dict[str, Any]] = []

    def adds(self, ticks: int) -> list[int]:
        return [math.ceil(Fraction(ticks, ONE) ** power * ONE) for power in self.powers]

    def fits(self, client: int, ticks: int) -> bool:
        return any(
            self.spent[row][client] + add <= self.limits[row][client]
            for row, add in enumerate(self.adds(ticks))
        )

    def reserve(
        self, ticks: dict[int, int], asked: set[int], key: tuple[str, int], mark: bytes,
    ) -> tuple[set[int], set[int], set[int], int] | None:  # fmt: skip
        """Who is granted, refused, repeated, in which attempt; None: it is refused as a whole."""
        attempt, repeated = None, set()
        same = [
            entry for entry in self.made if mark and (entry["key"], entry["mark"]) == (key, mark)
        ]
        others = {
            entry["attempt"]
            for entry in same
            if any(ticks[client] not in (0, paid) for client, paid in entry["paid"].items())
        }
        for entry in same:
            if entry["attempt"] not in others and attempt in (None, entry["attempt"]):
                attempt = entry["attempt"]
                repeated |= asked & set(entry["paid"])
        new = asked - repeated
        pays = {client for client in new if self.fits(client, ticks[client])}
        refused = new - pays
        if refused and not pays | repeated:
            return None
        if attempt is None:
            attempt = len({entry["attempt"] for entry in self.made if entry["key"] == key})
        if pays:
            paid = {client: ticks[client] for client in pays}
            self.made.append({"key": key, "mark": mark, "attempt": attempt, "paid": paid})
        for client in pays:
            for row, add in enumerate(self.adds(ticks[client])):
                self.spent[row][client] += add
        return pays | repeated, refused, repeated, attempt


CLIENTS = 4
units = st.integers(1, 24)


class Machine(RuleBasedStateMachine):
    """Random games against the model; in a file, closed and opened in between."""

    in_file = False

    @initialize(
        name=st.sampled_from([BASIC, EITHER, "laplace/filter"]),
        epsilons=st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=CLIENTS, max_size=CLIENTS),
    )
    def begin(self, name: str, epsilons: list[float]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger.sqlite"
        budgets = budgets_of(*epsilons, delta=1e-2)
        self.classes = budgets.class_of_client.tolist()
        if self.in_file:
            self.ledger = Ledger.create(self.path, budgets, name)
        else:
            self.ledger = Ledger.in_memory(budgets, name)
        rule_ = accountant_named(name)
        each = [rule_.limit_ticks(Budget(epsilon, 1e-2)).tolist() for epsilon in epsilons]
        self.model = Model([list(row) for row in zip(*each, strict=True)], rule_.powers)
        self.epsilons = np.array(epsilons)
        self.leaves: list[Any] = []
        self.settled: set[int] = set()

    @rule(
        charge=st.one_of(units, st.lists(st.just(0) | units, min_size=CLIENTS, max_size=CLIENTS)),
        asked=st.one_of(st.none(), st.sets(st.integers(0, CLIENTS - 1))),
        number=st.integers(0, 2),
        mark=st.sampled_from([b"", b"one", b"two"]),
        rising=st.booleans(),
    )
    def reserve(
        self, charge: Any, asked: set[int] | None, number: int, mark: bytes,
        rising: bool,
    ) -> None:  # fmt: skip
        each = [charge] * CLIENTS if isinstance(charge, int) else charge
        self.play(each, charge, asked, number, mark, rising)

    @rule(
        charge=st.lists(st.just(0) | units, min_size=CLIENTS, max_size=CLIENTS),
        number=st.integers(0, 2),
        mark=st.sampled_from([b"", b"one", b"two"]),
    )
    def reserve_by_class(self, charge: list[int], number: int, mark: bytes) -> None:
        """As the coordinator does, whose rows name classes."""
        each = [charge[index] for index in self.classes]
        self.play(each, each, None, number, mark)

    def play(
        self, each: list[int], charge: Any, asked: set[int] | None, number: int, mark: bytes,
        rising: bool = False,
    ) -> None:  # fmt: skip
        ticks = {client: unit * ONE // 128 for client, unit in enumerate(each)}
        clients = None if asked is None else sorted(asked)
        who = set(range(CLIENTS)) if asked is None else asked
        who = {client for client in who if ticks[client]}
        newest = max((made["key"][1] for made in self.model.made), default=None)
        head, unsettled = self.ledger.head, self.ledger.unsettled
        assert self.ledger.newest_round("run") == newest
        arguments: dict[str, Any] = {
            "charge": np.asarray(charge) / 128, "run": "run", "round": number, "clients": clients,
            "fingerprint": mark or None, "rising": rising,
        }  # fmt: skip
        late = rising and newest is not None and number <= newest
        expected = None
        if not late:
            expected = self.model.reserve(ticks, who, ("run", number), mark)
        if expected is None:
            with pytest.raises(StaleRoundError if late else BudgetExceeded):
                self.ledger.reserve(**arguments)
            assert (self.ledger.head, self.ledger.unsettled) == (head, unsettled)
            return
        reservation = self.ledger.reserve(**arguments)
        found = tuple(
            set(np.flatnonzero(part).tolist())
            for part in (reservation.granted, reservation.refused, reservation.replayed)
        )
        assert (*found, reservation.attempt) == expected
        assert reservation.charge.tolist() == [unit / 128 for unit in each]
        booked = self.ledger.head.number - head.number  # what is repeated is not booked again
        assert booked == bool(expected[0] - expected[2])
        assert not booked or reservation.number == self.ledger.head.number
        self.leaves.append(reservation)

    @precondition(lambda self: self.leaves)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        before, unsettled = self.ledger.spent(), self.ledger.unsettled
        chosen = data.draw(st.sampled_from(self.leaves))
        self.ledger.settle(chosen)
        assert (self.ledger.spent() == before).all()
        new = chosen.number >= 0 and chosen.number not in self.settled
        assert self.ledger.unsettled == unsettled - new  # settling twice does no harm
        self.settled.add(chosen.number)

    @precondition(lambda self: self.in_file)
    @rule()
    def reopen(self) -> None:
        before, unsettled, head = self.ledger.spent(), self.ledger.unsettled, self.ledger.head
        self.ledger.close()
        self.ledger = Ledger.open(self.path, head=head)
        assert (self.ledger.spent() == before).all()
        assert (self.ledger.unsettled, self.ledger.head) == (unsettled, head)

    @precondition(lambda self: not self.in_file)
    @rule()
    def rebuild(self) -> None:
        before, state = self.ledger, json.loads(json.dumps(self.ledger.state_dict()))
        self.ledger = again = Ledger.from_state(state)
        assert (again.spent() == before.spent()).all()
        assert (again.unsettled, again.head) == (before.unsettled, before.head)
        assert list(again.history()) == list(before.history())
        assert again.fingerprint(b"inputs") == before.fingerprint(b"inputs")
        assert again.state_dict() == state

    @invariant()
    def agrees_and_is_within_the_budget(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.spent().tolist() == self.model.spent
        left = self.ledger.accountant.largest_fitting(self.model.spent, self.model.limits)
        assert self.ledger.left().tolist() == left.tolist()
        for client in range(CLIENTS):
            assert any(
                self.model.spent[row][client] <= self.model.limits[row][client]
                for row in range(len(self.model.powers))
            )

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            assert (self.ledger.epsilon_spent() <= self.epsilons).all()
            assert self.ledger.verify() == self.ledger.head.number + 1
            self.ledger.close()
            self.folder.cleanup()


class FileMachine(Machine):
    in_file = True


Machine.TestCase.settings = settings(
    deadline=None, derandomize=True, max_examples=25, stateful_step_count=30
)
FileMachine.TestCase.settings = settings(
    deadline=None, derandomize=True, max_examples=8, stateful_step_count=25
)
TestInMemory = Machine.TestCase
TestInFile = FileMachine.TestCase


# ---- by the class


THREE = Budgets((Budget(1.0), Budget(2.0), Budget(4.0)), np.array([0, 1, 2, 1, 0]))


def test_rows_mean_the_classes_of_the_first_row(path: Path) -> None:
    """Two processes with other classes in force read the same rows in the same way."""
    other = Budgets((Budget(0.75), Budget(0.5)), np.array([1, 0, 0, 0, 1]))
    lone: dict[str, Any] = {"run": "a", "round": 0, "fingerprint": MARK}
    Ledger.create(path, THREE, BASIC).close()
    first = Ledger.open(path)
    with Ledger.open(path, budgets=other) as lowered:
        first.reserve([0.25, 0.125, 0.0, 0.125, 0.25], **lone)
        lowered.reserve([0.25, 0.0625, 0.0625, 0.0625, 0.25], run="a", round=1)
        assert charges(lowered) == [0.5, 0.1875, 0.0625, 0.1875, 0.5]
        again = lowered.reserve([0.25, 0.125, 0.5, 0.125, 0.25], **lone)
        assert again.replayed.tolist() == [True, True, False, True, True]
        assert lowered.left().tolist() == [0.0, 0.5625, 0.1875, 0.5625, 0.0]
    assert first.reserve([0.25, 0.125, 0.5, 0.125, 0.25], **lone).replayed.all()
    assert first.verify() == 4
    first.close()
    with Ledger.open(path) as last:
        assert charges(last) == [0.5, 0.1875, 0.5625, 0.1875, 0.5]


def test_rounds_that_will_be_played_again_do_not_count_as_spent_yet(make: Make) -> None:
    ledger = make(THREE)
    ledger.state_loss(ledger.head, 0.0625)
    ledger.reserve(0.125, run="other", round=7)
    for number in range(3):
        ledger.reserve(0.25, run="a", round=number, clients=[0, 2])
    whole = ledger.spent()
    assert (ledger.spending().spent() == whole).all()
    assert (ledger.spending("a", 3).spent() == whole).all()  # it is not behind the ledger
    assert (ledger.spending("nobody", 0).spent() == whole).all()
    for number, paid in ((0, 0.0), (1, 0.25), (2, 0.5)):
        found = from_ticks(ledger.spending("a", number).spent()[0])
        others = np.zeros(len(THREE))
        others[[0, 2]] = paid
        assert found.tolist() == (0.1875 + others).tolist()
    assert (ledger.spent() == whole).all()  # looking changes nothing


# ---- plain state


def test_a_durable_ledger_tells_its_head_and_never_its_key(path: Path) -> None:
    with Ledger.create(path, THREE, BASIC) as ledger:
        ledger.reserve(0.25, run="a", round=0)
        assert ledger.durable
        assert ledger.state_dict() == {"head": str(ledger.head)}
        message = "the state holds no rows: open the durable ledger file instead"
        with says(LedgerError, message):
            Ledger.from_state(ledger.state_dict())


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["rows"].pop(1),
        lambda state: state["rows"][1].__setitem__(3, 9),
        lambda state: state["rows"][2].__setitem__(4, "!AAAA"),
        lambda state: state["rows"][0].__setitem__(5, None),
        lambda state: state.pop("head"),
        lambda state: state.update(head="2:" + "00" * 32),
        lambda state: state.update(key="AAAA"),
        lambda state: state.update(rows=[[1, 2]]),
    ],
    ids=range(8),
)
def test_a_state_that_was_edited_is_refused(change: Any) -> None:
    ledger = Ledger.in_memory(THREE, BASIC)
    ledger.settle(ledger.reserve(0.25, run="a", round=0))
    state = json.loads(json.dumps(ledger.state_dict()))
    change(state)
    with pytest.raises(LedgerTamperedError):
        Ledger.from_state(state)


# ---- many at once


def test_threads_on_one_ledger_spend_exactly_what_was_granted(make: Make) -> None:
    ledger = make(budgets_of(0.5, 1.0, 1.0))
    granted = np.zeros((6, 3), dtype=np.int64)
    failures: list[BaseException] = []

    def spend(index: int) -> None:
        generator = random.Random(index)
        try:
            for number in range(100):
                charge = generator.randint(1, 9) / 64
                clients = generator.sample(range(3), 2)
                reservation = ledger.reserve(charge, run=str(index), round=number, clients=clients)
                granted[index] += reservation.granted * round(charge * 64)
                ledger.settle(reservation)
        except BudgetExceeded:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=spend, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (ledger.spent()[0] * 64 // ONE == granted.sum(axis=0)).all()
    assert (granted.sum(axis=0) <= [32, 64, 64]).all()
    assert ledger.unsettled == 0
    assert ledger.verify() == ledger.head.number + 1


def test_readers_are_not_blocked_and_cannot_write(path: Path) -> None:
    writer = Ledger.create(path, budgets_of(1.0), BASIC)
    writer.reserve(0.25, run="a", round=0)
    with writer._journal.writing():
        reader = Ledger.open(path, read_only=True)
        assert charges(reader) == [0.25]
        assert reader.verify() == 2
    with pytest.raises(StorageError, match="readonly"):
        reader.reserve(0.25, run="a", round=1)
    writer.reserve(0.25, run="a", round=1)
    assert len(list(reader.history())) == 3
    assert charges(reader) == [0.5]
    reader.close()
    writer.close()


FORKED = """
import os, sys
from bgtplanner.errors import LedgerError
from bgtplanner.privacy.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
child = os.fork()
if child == 0:
    for call in (
        lambda: ledger.reserve(0.25, run="a", round=0),
        lambda: ledger.settle(ledger.reserve(0.25, run="a", round=0)),
        lambda: ledger.state_loss(ledger.head),
    ):
        try:
            call()
            os._exit(1)
        except LedgerError as error:
            if "opened by another process" not in str(error):
                os._exit(2)
    with Ledger.open(sys.argv[1]) as own:
        own.reserve(0.25, run="a", round=0)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
ledger.reserve(0.25, run="a", round=1)
sys.exit(code)
"""


def test_a_child_that_was_forked_must_open_it_itself(path: Path) -> None:
    Ledger.create(path, budgets_of(1.0), BASIC).close()
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(path)], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    with Ledger.open(path) as ledger:
        assert charges(ledger) == [0.5]


# ---- opening again


def test_history_for_people(make: Make) -> None:
    ledger = make(budgets_of(1.0, 1.0, 1.0))
    ledger.settle(ledger.reserve([0.5, 0.25, 0.125], run="a", round=7, clients=[0, 2]))
    ledger.reserve(0.25, run="b", round=0)
    ledger.reserve(0.125, run="b", round=0)
    ledger.state_loss(ledger.head, 0.0625)
    assert list(ledger.history()) == [
        {"number": 0, "kind": "open", "run": "", "round": 0},
        {"number": 1, "kind": "reserve", "run": "a", "round": 7, "clients": 2,
         "charge_least": 0.125, "charge_most": 0.5, "attempt": 0, "settled": True},
        {"number": 2, "kind": "settle", "run": "a", "round": 7},
        {"number": 3, "kind": "reserve", "run": "b", "round": 0, "clients": 3,
         "charge_least": 0.25, "charge_most": 0.25, "attempt": 0, "settled": False},
        {"number": 4, "kind": "reserve", "run": "b", "round": 0, "clients": 3,
         "charge_least": 0.125, "charge_most": 0.125, "attempt": 1, "settled": False},
        {"number": 5, "kind": "loss", "run": "", "round": 0, "charge_most": 0.0625},
    ]  # fmt: skip


def test_only_who_paid_how_much_is_stored(path: Path) -> None:
    with Ledger.create(path, budgets_of(1.0, 2.0), BASIC) as ledger:
        mark = ledger.fingerprint(b"the inputs themselves")
        ledger.settle(ledger.reserve(0.25, run="a", round=0, fingerprint=mark))
        ledger.reserve([0.25, 0.5], run="a", round=1)
        ledger.state_loss(ledger.head, 0.125)
        head = ledger.head
    connection = sqlite3.connect(path)
    rows = [Row._make(row) for row in connection.execute("SELECT * FROM rows ORDER BY number")]
    (key,) = connection.execute("SELECT key FROM secret").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert tables == {"rows", "secret", "reservations", "unsettled", "snapshot", "newest"}
    fields = [(row.kind, sorted(unpack(row.payload)[0]), unpack(row.payload)[1]) for row in rows]
    reserve = ["attempt", "everybody", "fingerprint", "ticks"]
    by_class = ["attempt", "by_class", "everybody", "fingerprint"]
    own = np.array([ONE // 4, ONE // 2], dtype="<i8").tobytes()
    assert fields == [
        (
            "open",
            ["budgets", "key", "neighbours", "rule"],
            np.array([0, 1], dtype="<i4").tobytes(),
        ),
        ("reserve", reserve, b""),
        ("settle", ["settles"], b""),
        ("reserve", by_class, own),
        ("loss", ["head", "ticks"], b""),
    ]
    assert unpack(rows[0].payload)[0] == {
        "rule": BASIC,
        "budgets": [[1.0, 1e-5], [2.0, 1e-5]],
        "neighbours": "replace-one",
        "key": hashlib.sha256(b"bgtplanner ledger key" + key).hexdigest(),
    }
    assert unpack(rows[2].payload)[0] == {"settles": 1}
    assert unpack(rows[4].payload)[0] == {
        "head": str(Head(3, rows[3].hash)), "ticks": ONE // 8
    }  # fmt: skip
    assert head == Head(4, rows[4].hash)
    assert b"the inputs themselves" not in path.read_bytes()
