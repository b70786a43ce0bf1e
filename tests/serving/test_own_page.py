"""A person's own page: theirs alone, for one tab, with the numbers of their own ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bgtplanner.flower.clientfile import load_client
from command_line import Call
from flower.doubles import own_page, taken_part
from processes import Processes

Ask = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return taken_part(tmp_path / "own")


@pytest.fixture
def own(folder: Path, processes: Processes) -> tuple[str, Ask]:
    """The address that was printed, and a way to ask there for what is the person's own."""
    address = own_page(folder, processes)
    host = urlsplit(address).netloc

    def ask(token: str = "", path: str = "/mine", method: str = "POST", **headers: str) -> Any:
        given = {"Origin": f"http://{host}", "Authorization": f"Bearer {token}"} | headers
        with closing(HTTPConnection(host, timeout=60)) as connection:
            connection.request(method, path, headers=given)
            answer: Any = connection.getresponse()
            answer.text = answer.read().decode(errors="replace")
            return answer

    return address, ask


def test_the_address_works_once_and_then_for_one_tab_alone(own: tuple[str, Ask]) -> None:
    address, ask = own
    assert address.startswith("http://127.0.0.1:")
    token = address.partition("#token=")[2]
    for wrong in ("", "x", "é", token[:-1], token + "x"):
        assert ask(wrong).status == 403
    strangers: list[dict[str, Any]] = [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": address[:-1] + "1"},
        {"Authorization": f"Basic {token}"}, {"Authorization": ""},
    ]  # fmt: skip
    assert [ask(token, **of).status for of in strangers] == [403] * 5
    for host in ("evil.example", "localhost", "127.0.0.1.evil.example", ""):
        refused = ask(token, Host=host)
        assert (refused.status, "ratings" in refused.text) == (421, False)
    preflight = ask(token, method="OPTIONS")
    assert preflight.status == 405
    assert not any(name.lower().startswith("access-control") for name in preflight.headers)
    assert ask(token, method="GET").status == 404
    first = ask(token)  # no refused request has used it up
    assert first.status == 200
    secret = json.loads(first.text)["secret"]
    assert ask(token).status == 403
    assert json.loads(ask(secret).text) == json.loads(first.text)
    for path in ("/", "/index.html", "/page.js", "/public.model", "/mine", "/nothing"):
        headers = ask(path=path, method="POST" if path == "/mine" else "GET").headers
        assert (headers["cache-control"], headers["set-cookie"]) == ("no-store", None)
    assert token not in ask(path="/", method="GET").text


def test_it_has_the_ratings_and_the_ledger_of_the_person(
    own: tuple[str, Ask], folder: Path, command_line: Call
) -> None:
    address, ask = own
    found = json.loads(ask(address.partition("#token=")[2]).text)
    rows = [line.split(",") for line in (folder / "ratings.csv").read_text().splitlines()[1:]]
    assert found["ratings"] == {item: float(rating) for _, item, rating in rows}
    spent, ledger = found["spent"], folder / "state" / "ledger.sqlite"
    shown = json.loads(command_line("ledger", "show", ledger, "--json").out)["classes"][0]
    assert (spent["epsilon"], spent["delta"]) == (shown["epsilon"], shown["delta"])
    assert spent["spent"] == shown["epsilon_spent_most"]
    assert spent["left"] == shown["left_least"] / shown["capacity"]
    last = spent["rows"][-1]
    assert (last["epsilon"], last["left"]) == (spent["spent"], spent["left"])
    exported = json.loads(command_line("ledger", "export", ledger).out)
    paid = [row for row in exported if row["kind"] == "reserve"]
    assert len(spent["rows"]) == len(paid) == 5
    for row, of in zip(spent["rows"], paid, strict=True):
        assert row == row | of
        assert len(row["time"]) == len("2026-01-01T00:00:00Z")
    epsilons = [row["epsilon"] for row in spent["rows"]]
    assert 0 < epsilons[0] < epsilons[-1] < 8
    assert epsilons == sorted(epsilons)
    assert 0.5 < spent["guesses"][0] < spent["guesses"][1] == pytest.approx(0.79758, abs=1e-5)
    file = load_client(folder / "client.toml")
    assert ask(path="/public.model", method="GET").status == 200
    (file.state / "times").unlink()  # as of a client that was enrolled before they were noted
    file.ratings.write_text(file.ratings.read_text() + "u0,i29,1.5\n")
    later = json.loads(ask(found["secret"]).text)
    assert later["ratings"]["i29"] == 1.5
    assert {row["time"] for row in later["spent"]["rows"]} == {None}


def test_a_page_of_ones_own_is_for_nobody_else(command_line: Call, folder: Path) -> None:
    for flags in ("--host 0.0.0.0", "--allow-host a.example", "--cors https://a.example"):
        done = command_line("serve", folder, *flags.split())
        assert (done.code, "a person's page is theirs alone" in done.err) == (2, True), done.err
    with (folder / "ratings.csv").open("a") as table:
        table.write("somebody else,i29,1.5\n")
    for flags in ("", "--user nobody"):
        done = command_line("serve", folder, *flags.split())
        assert (done.code, "--user" in done.err) == (2, True), done.err
    ledger, content = folder / "state" / "ledger.sqlite", (folder / "ratings.csv").read_text()
    (folder / "ratings.csv").write_text(content.replace("somebody else", "u0"))
    ledger.write_bytes(ledger.read_bytes()[:-2000])
    assert command_line("serve", folder).code in (1, 2)
    (folder / "state" / "public.model").unlink()
    assert "no model has come yet" in command_line("serve", folder).err
