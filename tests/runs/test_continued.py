"""The next model from the last one: one ledger, items and people that come and go."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Budget, Budgets, Ledger, Model, Ratings, load_model, train
from bgtplanner.commands.recommend import with_items
from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import BudgetExceeded, ConfigError, DataError, LedgerError
from bgtplanner.federation.central import CentralTraining
from bgtplanner.models.continued import _merged, change_of
from bgtplanner.privacy.randomness import SeededNoise
from bgtplanner.runs.continuing import renamed_items

FEW: Any = {"settings": {"federation.rounds": 3}, "assume_public": ["catalogue", "scale"]}


def films(people: int = 300, first: int = 0) -> Ratings:
    """Return ratings of some of 400 people by their labels; rows come in no order."""
    sizes: Any = {"clients": 400, "items": 60, "ratings_per_client": 15, "choosy": 3.0}
    made = synthetic_ratings(**sizes, seed=0, catalogue=True)
    some = np.flatnonzero((made.user >= first) & (made.user < first + people))
    some = np.random.default_rng(first).permutation(some)
    assert made.catalogue is not None
    labels, names = [f"u{of}" for of in made.user[some]], [f"i{of}" for of in made.item[some]]
    table = Ratings.from_arrays(labels, names, made.to_raw(made.value[some]), scale=(1, 5))
    catalogue = replace(made.catalogue, labels=np.array([f"i{of}" for of in range(60)]))
    return table.with_catalogue(catalogue)


@pytest.fixture(autouse=True)
def always_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CentralTraining, "noise", SeededNoise(7))


@pytest.fixture(scope="module")
def spring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a first model, of epsilon 12, and the ledger that paid for it, up to 40."""
    folder = tmp_path_factory.mktemp("spring")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CentralTraining, "noise", SeededNoise(3))
        paid: Any = {"epsilon": 12.0, "ledger_epsilon": 40.0, "ledger": folder / "people.sqlite"}
        train(films(), **FEW, **paid, out=folder / "a.model")
    return folder


@pytest.fixture
def asked(spring: Path, tmp_path: Path) -> dict[str, Any]:
    """What a training needs to go on from the first model."""
    shutil.copytree(spring, tmp_path, dirs_exist_ok=True)
    ledger, before = tmp_path / "people.sqlite", tmp_path / "a.model"
    return {**FEW, "ratings": films(), "ledger": ledger, "continue_from": before, "epsilon": 12.02}


def alike(one: Model, other: Model, column: int = 0) -> float:
    return float(np.corrcoef(one.released[:, column], other.released[:, column])[0, 1])


def test_with_next_to_nothing_more_to_spend_lists_stay_as_they_were(asked: Any) -> None:
    old = load_model(asked["continue_from"])
    new = train(**asked, out=asked["ledger"].with_name("b.model"))
    assert min(alike(old, new), alike(old, new, 3)) > 0.999
    assert new.evidence["axes"] == old.evidence["axes"] > 0
    one, other = (of.training["sums"] for of in (old, new))
    for name in ("precision", "elsewhere", "edge", "sizes"):
        assert other[name] == pytest.approx(one[name], rel=0.1), name
    histories = [{f"i{at + of}": 5 - of for of in range(3)} for at in range(0, 57, 3)]
    pairs = [[{row.item for row in of.recommend(mine)} for of in (old, new)] for mine in histories]
    assert sum(len(one & other) for one, other in pairs) >= 180, "of 190 places"
    again = load_model(asked["ledger"].with_name("b.model"))
    assert again.sums is not None
    assert with_items(again, Catalogue.from_frame({"item": ["x", "y"]})).sums is not None
    anew = train(**(asked | {"continue_from": None, "epsilon": 12.04}))
    assert alike(old, anew, 3) < 0.9


def test_trainings_on_one_ledger_add_up_and_the_file_says_so(asked: Any) -> None:
    for number, epsilon in enumerate((14.0, 15.0), 2):
        made = train(**(asked | {"epsilon": epsilon}))
        asked["continue_from"] = made
        assert made.guarantee["epsilon_spent"] == pytest.approx(epsilon, abs=0.01)
        assert (made.guarantee["epsilon"], made.guarantee["people"]) == (epsilon, 300)
        assert any(f"all {number} trainings" in of for of in made.guarantee["sentences"])
    with Ledger.open(asked["ledger"], read_only=True) as ledger:
        spent = sum(row["charge_most"] for row in ledger.history() if row["kind"] == "reserve")
        assert float(ledger.spent()[0, 0]) * 2.0**-44 == pytest.approx(spent, rel=1e-12)
        assert ledger.accountant.capacity(Budget(15.0, 1e-5)) >= spent
    with pytest.raises(BudgetExceeded):
        train(**(asked | {"epsilon": 15.0}))
    with pytest.raises(LedgerError, match="never raised"):
        train(**(asked | {"epsilon": 41.0}))


def test_people_keep_their_places_and_what_they_have_spent(asked: Any) -> None:
    with Ledger.open(asked["ledger"], read_only=True) as ledger:
        places = [ledger.place(f"u{of}") for of in range(300)]
    made = train(**(asked | {"ratings": films(150, first=200), "epsilon": 14.0}))  # 100 stay
    counts = {"before": 300, "joined": 50, "returned": 0, "left": 200, "take_part": 150}
    assert made.training["people"] == counts | {"without_budget": 0}
    assert made.guarantee["people"] == 350, "those who have left are still in what was released"
    with Ledger.open(asked["ledger"], read_only=True) as ledger:
        assert [ledger.place(f"u{of}") for of in range(300)] == places
        spent = {of: ledger.epsilon_spent()[ledger.place(f"u{of}")] for of in (0, 250, 340)}
        assert spent == pytest.approx({0: 12.0, 250: 14.0, 340: 14.0}, abs=0.02)
    asked["continue_from"] = made
    with pytest.raises(BudgetExceeded):
        train(**(asked | {"ratings": films(150, first=200), "epsilon": 13.9}))
    made = train(**(asked | {"ratings": films(250), "epsilon": 12.5}))  # 200 are back
    counts = made.training["people"]
    assert (counts["returned"], counts["take_part"], counts["without_budget"]) == (200, 200, 50)


def test_a_renamed_or_merged_item_keeps_what_was_learned(asked: Any, tmp_path: Path) -> None:
    known, old = {"i0": "zero", "i1": "both", "i2": "both"}, load_model(asked["continue_from"])
    rated = films()
    rated = rated.take(rated.item_labels[rated.item] != "i3")
    names = [known.get(str(of), str(of)) for of in rated.item_labels[rated.item]]
    users, raw = rated.user_labels[rated.user], rated.to_raw(rated.value)
    table = Ratings.from_arrays(users, names, raw, scale=(1, 5))
    catalogue = Catalogue.from_frame({"item": ["new", *sorted(set(names))]})
    (tmp_path / "old.csv").write_text("old,new\ni0,zero\ni1,both\ni2,both\n")
    asked["ratings"] = table.with_catalogue(catalogue)
    made = train(**asked, renamed=tmp_path / "old.csv")
    was, now = ({str(of): at for at, of in enumerate(each.items)} for each in (old, made))
    assert ("i3" in now, "new" in now) == (False, True)
    first, second = (of.released[:, 3] / of.released[:, 3].sum() for of in (old, made))
    assert second[now["zero"]] == pytest.approx(first[was["i0"]], rel=0.15)
    assert second[now["both"]] == pytest.approx(first[was["i1"]] + first[was["i2"]], rel=0.15)
    quality = old.released[:, 0], made.released[:, 0]
    assert quality[1][now["zero"]] == pytest.approx(quality[0][was["i0"]], abs=0.02)
    low, high = sorted(quality[0][[was["i1"], was["i2"]]])
    assert low - 0.02 < quality[1][now["both"]] < high + 0.02
    with pytest.raises(DataError, match="renamed"):
        train(**asked, renamed={"i0": "nobody"})
    for text in ("a,b,c\n", "a,b\na,c\n"):
        (tmp_path / "old.csv").write_text(text)
        with pytest.raises(DataError, match="two labels"):
            renamed_items(tmp_path / "old.csv")


def test_what_was_not_paid_for_from_the_ledger_is_not_continued(asked: Any) -> None:
    with pytest.raises(LedgerError, match="--ledger"):
        train(**(asked | {"ledger": None}))
    biases: Any = asked | {"model": "biases", "ledger": None, "continue_from": None}
    seeded = train(**biases, seed=1)
    with pytest.raises(LedgerError, match="from a seed"):
        train(**(asked | {"continue_from": seeded}))
    other = asked["ledger"].with_name("other.sqlite")
    with pytest.raises(LedgerError, match="paid for the model"):
        train(**(asked | {"ledger": other}))
    assert not other.exists()
    Ledger.create(other, Budgets.same(Budget(40.0, 1e-5), 1), "gaussian/gdp").close()
    with pytest.raises(LedgerError, match="not the ledger that paid"):
        train(**(asked | {"ledger": other}))
    without = replace(load_model(asked["continue_from"]), sums=None)
    for wrong in ({"model": "biases"}, {"continue_from": without}):
        with pytest.raises(ConfigError, match="model"):
            train(**(asked | wrong))
    with pytest.raises(ConfigError, match="scale"):
        train(**(asked | {"ratings": replace(films(), low=0.0)}))
    again = train(**(biases | {"continue_from": seeded}), seed=1)
    assert (again.ranker, again.guarantee["private"]) == ("biases", False)
    assert alike(seeded, again) > 0.99


def test_a_crash_loses_nothing_and_spends_no_more(asked: Any, tmp_path: Path) -> None:
    seen: list[int] = []

    def progress(done: int, *_: Any) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise KeyError

    asked |= {"epsilon": 14.0, "out": tmp_path / "b.model", "progress": progress}
    with pytest.raises(KeyError):
        train(**asked)
    made = train(**asked)
    assert seen == [1, 2, 3], "two of three rounds were not lost"
    assert made.guarantee["epsilon_spent"] <= 14.0
    assert alike(load_model(asked["continue_from"]), made) > 0.9
    with Ledger.open(asked["ledger"], read_only=True) as ledger:
        assert ledger.unsettled == 0
        assert len([row for row in ledger.history() if row["kind"] == "reserve"]) == 6


# ---- what an old mean is worth


@pytest.mark.parametrize(("then", "now", "both"), [(40, 40, 40), (40, 60, 30), (40, 20, 0)])
def test_a_mean_of_then_differs_as_is_said(then: int, now: int, both: int) -> None:
    """By simulation: 20,000 worlds, with noise on the mean of then."""
    draw = np.random.default_rng(0)
    people = draw.normal(size=(20_000, then + now - both))
    told = people[:, :then].mean(axis=1) + draw.normal(0.0, 0.1, 20_000)
    difference = told - people[:, then - both :].mean(axis=1)
    sums = np.array([[0.0, 1.0, 0.0, 1 / 0.1**2, 1 / then]])
    worth = _merged(sums, np.array([0]), 1, change_of(then, now, both))[0, 3]
    assert 1 / worth == pytest.approx(difference.var(), rel=0.04)


def test_sums_of_merged_items_are_added_with_their_noise() -> None:
    sums = np.array([[0.1, 2.0, 0.5, 4.0, 0.0], [0.3, 6.0, 0.1, 4.0, 0.0], [9.0] * 5])
    found = _merged(sums, np.array([1, 1, -1]), 2, 0.0)
    assert found[0].tolist() == [0.0] * 5
    assert found[1] == pytest.approx([0.4, 8.0, (2 * 0.5 + 6 * 0.1) / 8, 2.0, 0.0])
