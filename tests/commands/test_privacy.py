"""The commands about money: budget, ledger."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bgtplanner import Budget, Budgets, Ledger, cli


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bgtplanner", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    budgets = Budgets.per_client([1.0, 10.0, 10.0], 1e-5)
    with Ledger.create(path, budgets, "gaussian/gdp") as ledger:
        for index in range(3):
            leave = ledger.reserve(0.03, run="first", round=index)
            if index != 1:
                ledger.settle(leave)
    return path


def test_budget_prints_every_rule_in_80_columns(call: Any) -> None:
    code, out, _ = call("budget", "--epsilon", 10, "--rounds", 100)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for rule in ("gaussian/gdp", "gaussian/rdp", "laplace/basic", "laplace/filter"):
        assert rule in out
    assert "4.999" in out
    assert "(!) promises nothing" in out


def test_budget_json_has_the_figures(call: Any) -> None:
    code, out, _ = call("budget", "--json", "--noise-multiplier", 5)
    rules = json.loads(out)["rules"]
    assert code == 0
    assert rules["gaussian/gdp"]["noise_multiplier"] == pytest.approx(4.99889, abs=1e-5)
    assert rules["gaussian/gdp"]["at_noise_multiplier"]["rounds_affordable"] == 100
    code, out, _ = call("budget", "--noise-multiplier", 5, "--mechanism", "gaussian")
    assert "how far the budget goes" in out
    assert "laplace" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["budget", "--epsilon", "-1"], "epsilon = -1.0"),
        (["budget", "--epsilon", "nan"], "epsilon = nan"),
        (["budget", "--rounds", "0"], "rounds = 0"),
        (["budget", "--delta", "2"], "delta = 2.0"),
        (["budget", "--mechanism", "x"], "--mechanism = 'x'"),
        (["budget", "--noise-multiplier", "0"], "--noise-multiplier = 0.0"),
        (["ledger", "show", "nowhere.sqlite"], "no such ledger"),
        (["ledger", "verify", "nowhere.sqlite"], "no such ledger"),
    ],
)
def test_what_cannot_be_done_is_refused(call: Any, arguments: list[str], said: str) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert said in err


def test_ledger_show(call: Any, book: Path) -> None:
    code, out, _ = call("ledger", "show", book)
    assert code == 0
    assert "3 clients, rule gaussian/gdp" in out
    assert "(1, 1e-05) promised to 1 clients" in out
    assert "(10, 1e-05) promised to 2 clients" in out
    assert "1 reservations were never settled" in out
    assert "the last 3 of 3 reservations" in out
    code, out, _ = call("ledger", "show", book.parent, "--json")
    facts = json.loads(out)
    assert [entry["clients"] for entry in facts["classes"]] == [1, 2]
    assert facts["classes"][0]["epsilon_spent_most"] <= 1.0
    code, out, _ = call("ledger", "show", book, "--client", 0, "--json")
    poor = json.loads(out)
    assert (poor["client"], poor["epsilon"]) == (0, 1.0)
    assert 0 < poor["left"] < 0.03
    code, out, _ = call("ledger", "show", book, "--client", 2)
    assert "epsilon_spent" in out
    code, _, err = call("ledger", "show", book, "--client", 3)
    assert code == 2
    assert "--client = 3: expected an index from 0 to 2" in err


def test_ledger_verify_with_and_without_a_head(call: Any, book: Path) -> None:
    code, out, _ = call("ledger", "verify", book, "--json")
    said = json.loads(out)
    assert (code, said["rows"], said["head_checked"]) == (0, 6, False)
    code, out, _ = call("ledger", "verify", book, "--head", said["head"])
    assert code == 0
    assert "6 rows, each as it was written" in out
    code, out, _ = call("ledger", "verify", book)
    assert "only a head kept elsewhere can tell" in out
    code, _, err = call("ledger", "verify", book, "--head", "9:" + "ab" * 32)
    assert code == 1
    assert "is not in this ledger" in err
    code, _, err = call("ledger", "verify", book, "--head", "nonsense")
    assert code == 2


def test_ledger_restore_states_the_loss(call: Any, book: Path) -> None:
    lost = "9:" + "ab" * 32
    code, _, err = call("ledger", "restore", book, "--head", lost, "--lost", "much")
    assert code == 2
    assert "--lost much" in err
    code, out, _ = call("ledger", "restore", book, "--head", lost, "--lost", "0.5", "--json")
    assert code == 0
    left = json.loads(out)["left_most"]
    assert left == pytest.approx(full_capacity() - 3 * 0.03 - 0.5, abs=1e-9)
    code, _, _ = call("ledger", "verify", book, "--head", lost)
    assert code == 0
    code, out, _ = call("ledger", "restore", book, "--head", lost, "--lost", "all")
    assert "At most a charge of 0 is left" in out
    code, out, _ = call("ledger", "show", book)
    assert "(stated loss)" in out


def full_capacity() -> float:
    from bgtplanner.privacy.accounting import rule_named

    return rule_named("gaussian/gdp").capacity(Budget(10.0, 1e-5))


def test_ledger_export(call: Any, book: Path, tmp_path: Path) -> None:
    code, out, _ = call("ledger", "export", book)
    assert code == 0
    assert [row["kind"] for row in json.loads(out)][:2] == ["open", "reserve"]
    target = tmp_path / "spent.csv"
    code, out, _ = call("ledger", "export", book, "--clients", "--to", target, "--json")
    assert json.loads(out) == {"lines": 3, "file": str(target)}
    with target.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epsilon"] for row in rows] == ["1.0", "10.0", "10.0"]
    code, _, err = call("ledger", "export", book, "--to", target)
    assert code == 2
    assert "exists already" in err
    code, out, _ = call("ledger", "export", book, "--to", target, "--overwrite")
    assert "6 lines in" in out
    assert call("ledger", "export", book, "--to", tmp_path / "x.txt")[0] == 2
    assert call("ledger", "export", book, "--to", tmp_path / "no" / "x.json")[0] == 1
