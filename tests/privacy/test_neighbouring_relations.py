"""The two neighbouring relations: what noise they ask for, who may use which, what a ledger knows.

How the readings of epsilon compare with dp-accounting's is in ``tests/oracles``.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Budget
from bgtplanner.errors import ConfigError, LedgerError
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.privacy._book import Book, first_row
from bgtplanner.privacy._rows import Row, pack, unpack
from bgtplanner.privacy.accountants import ACCOUNTANTS, CEILING, Accountant, accountant_named
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.compatibility import neighbours_of
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import mechanism_named

ASSETS = Path(__file__).parents[1] / "assets"
SAME = Budgets.same(Budget(1.0, 1e-5), 3)
BASIC = "laplace/basic"
ADDITIVE = [name for name, rule in ACCOUNTANTS.items() if rule.sound and "privunit" not in name]
REASON = r"expected replace-one, with trust = local: the server sees each upload"


def special(accountant: str = BASIC, budgets: Budgets = SAME) -> Ledger:
    return Ledger.in_memory(budgets, accountant, neighbours="replace-special")


# ---- noise


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_against_nothing_half_the_noise_is_enough(name: str) -> None:
    mechanism = mechanism_named(name)
    assert float(mechanism.scale(3.0, 0.25, "replace-one")) == 1.5
    assert float(mechanism.scale(3.0, 0.25, "replace-special")) == 0.75
    # Whoever forgets to say which relation it is gets too much noise, never too little.
    assert float(mechanism.scale(3.0, 0.25)) == 1.5


def test_other_relations_and_other_uses_of_them_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^neighbours = 'add-remove': expected replace-special"):
        mechanism_named("gaussian").scale(1.0, 1.0, "add-remove")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^neighbours = 'replace-special': expected replace-on"):
        mechanism_named("privunit").scale(1.0, 1.0, "replace-special")


# ---- what goes together


def test_the_trust_decides_unless_someone_does() -> None:
    for wanted in (None, "auto"):
        assert neighbours_of("secagg", wanted) == "replace-special"
        assert neighbours_of("local", wanted) == "replace-one"
    assert neighbours_of("secagg", "replace-one") == "replace-one"
    with pytest.raises(ConfigError, match=rf"^neighbours = 'replace-special': {REASON}"):
        neighbours_of("local", "replace-special")
    with pytest.raises(ConfigError, match=r"expected replace-special or replace-one$"):
        neighbours_of("secagg", "zero-out")


@pytest.mark.parametrize("accountant", ["gaussian/gdp", BASIC])
def test_a_guard_refuses_a_ledger_of_another_relation(accountant: str) -> None:
    with pytest.raises(ConfigError, match=REASON):
        Randomizer(special(accountant), trust="local")


# ---- the ledger


def test_a_ledger_keeps_its_relation_and_is_not_used_for_another(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, SAME, BASIC, neighbours="replace-special") as ledger:
        assert ledger.neighbours == "replace-special"
        ledger.settle(ledger.reserve(0.25, run="a", round=0))
    with pytest.raises(LedgerError, match=r"kept for neighbours = replace-special, not replace-o"):
        Ledger.open(path, neighbours="replace-one")
    with Ledger.open(path, neighbours="replace-special") as again:
        assert again.left().tolist() == [0.75] * 3
        assert again.verify() == 3
    with Ledger.open(path, read_only=True) as seen:
        assert seen.neighbours == "replace-special"
    memory = special()
    assert Ledger.from_state(memory.state_dict()).neighbours == "replace-special"
    with pytest.raises(ConfigError, match=r"^neighbours = 'none'"):
        Ledger.in_memory(SAME, BASIC, neighbours="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ledger-schema1", "ledger-schema2"])
def test_ledgers_of_earlier_versions_are_for_replace_one(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(ASSETS / f"{name}.sqlite", tmp_path / "ledger.sqlite"))
    with Ledger.open(path, neighbours="replace-one") as ledger:
        assert ledger.neighbours == "replace-one"
        ledger.settle(ledger.reserve(0.001, run="later", round=0))
    with pytest.raises(LedgerError, match="kept for neighbours = replace-one, not replace-spec"):
        Ledger.open(path, neighbours="replace-special")


def test_a_first_row_without_a_relation_is_an_older_one_and_unknown_ones_are_refused() -> None:
    key = bytes(32)
    about, classes = unpack(first_row(SAME, accountant_named(BASIC), key).payload)
    assert about.pop("neighbours") == "replace-one"

    def book(about: dict[str, Any]) -> Book:
        return Book(Row.after(None, "open", "", 0, pack(about, classes)), key)

    assert book(about).neighbours == "replace-one"
    for other in ("replace-none", 1, None, ["replace-one"]):
        with pytest.raises(LedgerError, match="not a relation of this version"):
            book(about | {"neighbours": other})


# ---- both readings


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_other_reading_is_that_of_the_other_noise(name: str) -> None:
    """Against another's data, noise of a multiplier is noise of half of it against nothing."""
    accountant = accountant_named(name)
    for multiplier in (0.7, 3.0, 41.0):
        wide, narrow = (accountant.charge(multiplier / by) for by in (1, 2))
        spent = sum(accountant.sum_ticks(wide) for _ in range(20))
        doubled = sum(accountant.sum_ticks(narrow) for _ in range(20))
        read = accountant.epsilon(spent, 1e-5, other_than="replace-special")
        back = accountant.epsilon(doubled, 1e-5, other_than="replace-one")
        assert read == pytest.approx(accountant.epsilon(doubled, 1e-5), rel=1e-9)
        assert back == pytest.approx(accountant.epsilon(spent, 1e-5), rel=1e-9)
        alike = accountant.epsilon_of_rounds(float(wide), 20, 1e-5, other_than="replace-special")
        assert alike == pytest.approx(float(read), rel=1e-9)


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_other_reading_of_a_promise_covers_all_that_the_ledger_lets_pass(name: str) -> None:
    accountant, budget = accountant_named(name), Budget(3.0, 1e-5)
    promised = accountant.other_promise(budget, "replace-special")
    assert promised is not None
    assert promised >= 2 * 3.0 * (1 - 1e-9) or "laplace" not in name
    generator = np.random.default_rng(4)
    for _ in range(6):
        ledger = special(name, Budgets.same(budget, 1))
        for round_ in range(40):
            left = float(ledger.left()[0])
            if left < 1e-9:
                break
            charge = left if round_ == 39 else left * generator.uniform(1e-3, 0.4)
            ledger.reserve(charge, run="a", round=round_)
        assert ledger.epsilon_spent()[0] <= 3.0 * (1 + 1e-9)
        assert ledger.epsilon_other_reading()[0] <= promised * (1 + 1e-9)
    once = special(name, Budgets.same(budget, 1))
    once.reserve(float(once.left()[0]), run="a", round=0)
    if len(accountant.sums) == 1:  # then the promise is exactly what can be reached
        assert once.epsilon_other_reading()[0] == pytest.approx(promised, rel=1e-6)


def test_what_is_not_known_is_not_stated() -> None:
    unit = accountant_named("privunit/zcdp")
    # Nothing in the place of an upload is a mixture of uploads: no worse than any other of them.
    assert unit.other_promise(Budget(3.0, 1e-5), "replace-one") == pytest.approx(3.0, rel=1e-6)
    assert unit.other_promise(Budget(3.0, 1e-5), "replace-special") is None

    class Odd(Accountant):
        name, mechanism = "laplace/odd", "laplace"
        sums = accountant_named(BASIC).sums

        def charge_of(self, multiplier: Any) -> Any:
            return np.log1p(1 / multiplier)

    assert Odd().other_promise(Budget(3.0, 1e-5), "replace-special") is None
    authors = accountant_named("gaussian/authors")
    assert authors.other_promise(Budget(3.0, 1e-5), "replace-one") is None
    full = np.array([[CEILING]])
    read = accountant_named(BASIC).epsilon(full, 1e-5, other_than="replace-one")
    assert math.isinf(float(read[0]))  # a sum that has stopped says nothing
