"""The commands about money: budget, ledger."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bgtplanner import Budget, Budgets, Ledger
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.witness import Witness
from command_line import Call
from privacy.ledgers import edited


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    budgets = Budgets.per_client([1.0, 10.0, 10.0], 1e-5)
    with Ledger.create(path, budgets, "gaussian/gdp") as ledger:
        for index in range(3):
            reservation = ledger.reserve(0.03, run="first", round=index)
            if index != 1:
                ledger.settle(reservation)
    return path


def test_budget_json_has_the_figures(command_line: Call) -> None:
    code, out, _ = command_line("budget", "--json", "--noise-multiplier", 5)
    accountants = json.loads(out)["rules"]
    assert code == 0
    assert accountants["gaussian/gdp"]["noise_multiplier"] == pytest.approx(4.99889, abs=1e-5)
    assert accountants["gaussian/gdp"]["at_noise_multiplier"]["rounds_affordable"] == 100
    code, out, _ = command_line("budget", "--noise-multiplier", 5, "--mechanism", "gaussian")
    assert "how many rounds the budget pays for" in out
    assert "laplace" not in out


def test_a_budget_is_divided_between_windows(command_line: Call) -> None:
    asked = ("budget", "--epsilon", 10, "--per", "90d", "--for", "1y")
    found = json.loads(command_line(*asked, "--json")[1])
    gdp = accountant_named("gaussian/gdp")
    charge = gdp.even_charge(Budget(10, 1e-5), 4)
    after = [gdp.epsilon_of_rounds(charge, number, 1e-5) for number in (1, 2, 3, 4)]
    assert found["windows"] == 4
    assert found["rules"]["gaussian/gdp"] == pytest.approx(after, abs=1e-6)
    out = command_line(*asked, "--mechanism", "laplace")[1]
    assert out.split("\n")[2].split()[:2] == ["1", "2.5"]
    for wrong in ("90", "d", "2y", "0d"):
        code, _, err = command_line("budget", "--per", wrong, "--for", "1y")
        assert (code, "--per" in err) == (2, True)


def test_ledger_show_and_export(command_line: Call, book: Path) -> None:
    code, out, _ = command_line("ledger", "show", book)
    assert code == 0
    assert "3 clients, accountant gaussian/gdp" in out
    code, out, _ = command_line("ledger", "show", book.parent, "--json")
    facts = json.loads(out)
    assert [entry["clients"] for entry in facts["classes"]] == [1, 2]
    assert facts["classes"][0]["epsilon_spent_most"] <= 1.0
    code, out, _ = command_line("ledger", "export", book, "--clients")
    poor = json.loads(out)[0]
    assert (poor["index"], poor["epsilon"]) == (0, 1.0)
    assert 0 < poor["left"] < 0.03
    code, out, _ = command_line("ledger", "export", book)
    assert [row["kind"] for row in json.loads(out)][:2] == ["open", "reserve"]
    code, out, _ = command_line("ledger", "export", book, "--clients", "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["epsilon"] for row in rows] == ["1.0", "10.0", "10.0"]
    code, out, err = command_line("ledger", "show", book, "--client", 1)
    assert (code, out) == (2, ""), "a client is never guessed"
    assert "give the folder of a run" in err


def test_a_client_is_named_by_its_label(command_line: Call, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    table = tmp_path / "ratings.csv"
    names = ["1", "zoe", "7", "zz", "2", "4"]
    lines = [f"{name},{item},{1 + (len(name) * item) % 5}" for name in names for item in range(8)]
    table.write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    out = tmp_path / "run"
    made_run(out, f"csv:{table}")
    code, shown, _ = command_line("ledger", "export", out, "--clients")
    balances = {entry["client"]: entry for entry in json.loads(shown)}
    assert set(balances) == set(names)
    assert balances["1"]["index"] == 0
    assert balances["2"]["epsilon"] != balances["1"]["epsilon"]
    for name in names:
        code, shown, _ = command_line("ledger", "show", out, "--client", name, "--json")
        assert json.loads(shown) == balances[name]
    shutil.copytree(out, left := tmp_path / "left")
    assert command_line("ledger", "forget", left, "--client", "zoe").code == 0
    code, shown, _ = command_line("ledger", "export", left, "--clients")
    left_over = {entry["client"]: entry["left"] for entry in json.loads(shown)}
    assert [name for name in names if left_over[name] != balances[name]["left"]] == ["zoe"]
    code, _, err = command_line("ledger", "show", out, "--client", "nobody")
    assert code == 2
    assert "--client nobody: not in the ratings" in err
    table.write_text(table.read_text().replace("zoe", "zoo").replace("\n1,0", "\n9,0"))
    code, _, err = command_line("ledger", "show", out, "--client", "1")
    assert code == 2
    assert "its people are not those that it was run with" in err
    code, shown, err = command_line("ledger", "export", out / "ledger.sqlite", "--clients")
    assert code == 0
    assert "client" not in json.loads(shown)[0]
    assert [entry["index"] for entry in json.loads(shown)] == list(range(6))
    # Verify finds what the run itself has kept, without being asked.
    code, shown, _ = command_line("ledger", "verify", out, "--json")
    said = json.loads(shown)
    assert [Path(one["from"]).name for one in said["heads"]] == ["checkpoint.npz", "summary.json"]
    assert said["newest_known"] == said["rows"] - 1
    shutil.copy(out / "ledger.sqlite", tmp_path / "copy.sqlite")
    cut_off(out / "ledger.sqlite", 1)
    code, shown, err = command_line("ledger", "verify", out)
    assert (code, shown) == (1, "")
    assert "checkpoint.npz: row" in err
    assert "which was seen before, is not in this ledger" in err


def made_run(path: Path, dataset: str) -> None:
    """A run's folder with a ledger, as a run with a budget leaves it behind."""
    from bgtplanner.runs.assembly import people_of, ratings_of
    from bgtplanner.runs.config import load_config
    from bgtplanner.runs.folder import RunFolder

    config = load_config(settings={"data.dataset": dataset, "federation.rounds": 2})
    ratings = ratings_of(config)
    budgets = Budgets.per_client([1.0 + index for index in range(ratings.n_clients)], 1e-5)
    with (
        RunFolder.create(path, config, people=people_of(ratings)) as folder,
        Ledger.create(path / "ledger.sqlite", budgets, "laplace/basic") as ledger,
    ):
        for number in range(2):
            ledger.settle(ledger.reserve(0.25, run="simulation", round=number))
        planned = json.dumps({"head": str(ledger.head)}).encode()
        folder.write_checkpoint({"planned": np.frombuffer(planned, dtype=np.uint8)})
        folder.write("summary.json", {"ledger_head": str(ledger.head)})


def cut_off(path: Path, kept: int) -> None:
    """Cut a chain so that it is a whole one still, as restoring a backup does."""
    for table in ("rows", "reservations", "unsettled"):
        edited(path, f"DELETE FROM {table} WHERE number >= ?", kept)
    edited(path, "DELETE FROM snapshot")
    newest = "REPLACE INTO newest SELECT 1, number, hash FROM rows WHERE number = ?"
    edited(path, newest, kept - 1)


def test_ledger_verify_with_and_without_a_head(command_line: Call, book: Path) -> None:
    code, out, _ = command_line("ledger", "verify", book, "--json")
    said = json.loads(out)
    assert (code, said["rows"], said["head_checked"], said["heads"]) == (0, 6, False, [])
    assert (said["newest_known"], said["warning"], said["unread"]) == (None, None, {})
    code, out, _ = command_line("ledger", "verify", book, "--head", said["head"])
    assert code == 0
    assert "6 rows, all as they were written" in out
    assert "has row 5, known from --head" in out
    assert "No row was cut off, unless the sources above were changed as well." in out
    code, out, _ = command_line("ledger", "verify", book)
    assert "It is not known whether rows after 5 were cut off" in out
    assert "none is recorded elsewhere" in out
    code, _, err = command_line("ledger", "verify", book, "--head", "9:" + "ab" * 32)
    assert code == 1
    assert "--head: row 9, which was seen before, is not in this ledger" in err
    code, _, err = command_line("ledger", "verify", book, "--head", "nonsense")
    assert code == 2


def test_verify_uses_what_a_client_and_its_witness_remember(
    command_line: Call, tmp_path: Path
) -> None:
    state = tmp_path / "client" / "state"
    (tmp_path / "elsewhere").mkdir()
    witness = Witness(tmp_path / "elsewhere" / "heads.txt")
    path = state / "ledger.sqlite"
    with Ledger.create(
        path, Budgets.same(Budget(5.0), 1), "laplace/basic", witness=witness
    ) as ledger:
        ledger.reserve(0.5, run="a", round=0)
        (state / "head").write_text(str(ledger.head))
        ledger.reserve(0.5, run="a", round=1)
    for where in (path, state, tmp_path / "client"):
        (tmp_path / "client" / "client.toml").unlink(missing_ok=True)
        if where == tmp_path / "client":
            (where / "client.toml").write_text("ratings = 'x.csv'\n")
        code, out, _ = command_line("ledger", "verify", where)
        assert code == 0
        assert f"has row 1, known from {state / 'head'}" in out
        assert "It is not known whether rows after 2 were cut off" in out
        assert "row 1 is the newest that is recorded elsewhere" in out
    code, out, _ = command_line("ledger", "verify", path, "--witness", witness.path)
    assert f"has row 2, known from {witness.path}" in out
    assert "No row was cut off" in out
    toml = "ratings = 'x.csv'\nwitness = '../elsewhere/heads.txt'\n"
    (tmp_path / "client" / "client.toml").write_text(toml)
    code, out, _ = command_line("ledger", "verify", path, "--json")
    assert [entry["heads"] for entry in json.loads(out)["heads"]] == [1, 3]
    cut_off(path, 2)
    code, out, err = command_line("ledger", "verify", path)
    assert (code, out) == (1, "")
    assert "heads.txt: row 2, which was seen before" in err


@pytest.mark.parametrize("name", ["head", "checkpoint.npz", "summary.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"PK\x03\x04"])
def test_a_source_of_heads_that_cannot_be_read_is_named(
    command_line: Call, book: Path, name: str, content: bytes
) -> None:
    (book.parent / name).write_bytes(content)
    code, out, _ = command_line("ledger", "verify", book)
    assert code == 0
    assert f"not read: {book.parent / name}: " in out
    assert "none is recorded elsewhere" in out
    assert command_line("ledger", "verify", book, "--witness", book.parent / "none")[0] == 0


def test_ledger_restore_states_the_loss(command_line: Call, book: Path) -> None:
    lost = "9:" + "ab" * 32
    code, _, err = command_line("ledger", "restore", book, "--head", lost, "--lost", "much")
    assert code == 2
    assert "--lost much" in err
    stated = ("ledger", "restore", book, "--head", lost, "--lost", "0.5", "--json")
    code, out, _ = command_line(*stated)
    assert code == 0
    left = json.loads(out)["left_most"]
    whole = accountant_named("gaussian/gdp").capacity(Budget(10.0, 1e-5))
    assert left == pytest.approx(whole - 3 * 0.03 - 0.5, abs=1e-9)
    code, _, _ = command_line("ledger", "verify", book, "--head", lost)
    assert code == 0
    code, out, _ = command_line("ledger", "restore", book, "--head", lost, "--lost", "all")
    assert "No client has more than a charge of 0 left" in out
    assert json.loads(command_line("ledger", "export", book).out)[-1]["kind"] == "loss"


def test_who_is_forgotten_is_away(command_line: Call, tmp_path: Path) -> None:
    path, labels = tmp_path / "people.sqlite", ["ann-9", "zoe-elsewhere", "7"]
    budgets = Budgets((Budget(1.0, 1e-5),), np.zeros(0, dtype=np.int32))
    with Ledger.create(path, budgets, "laplace/basic", neighbours="replace-special") as ledger:
        ledger.join(labels)
        ledger.settle(ledger.reserve(0.75, run="spring", round=0))
    assert command_line("ledger", "forget", path, "--client", "nobody").code == 2
    code, out, _ = command_line("ledger", "forget", path, "--client", "zoe-elsewhere", "--json")
    found = json.loads(out)
    assert (code, found["place"], found["epsilon_spent"]) == (0, 1, 0.75)
    assert "right in at most 68 % of cases (epsilon 0.75, delta 1e-05)" in found["letter"]
    assert not any(label.encode() in path.read_bytes() for label in labels[:2])
    assert command_line("ledger", "verify", path).code == 0
    assert command_line("ledger", "forget", path, "--client", "zoe-elsewhere").code == 0
    with Ledger.open(path) as ledger:
        assert ledger.left().tolist() == [0.25, 0.0, 0.25]
        ledger.leave("7")
        ledger.join(["7"])
    assert "3 joined, 2 left, 1 came back; 1 are away" in command_line("ledger", "show", path).out
    facts = json.loads(command_line("ledger", "show", path, "--json").out)
    assert facts["members"] == {"joined": 3, "left": 2, "returned": 1, "away": 1}
    assert facts["classes"][0]["exhausted"] == 0
    shown = command_line("ledger", "show", path, "--client", "zoe-elsewhere", "--json").out
    assert (json.loads(shown)["index"], json.loads(shown)["left"]) == (1, 0.0)
