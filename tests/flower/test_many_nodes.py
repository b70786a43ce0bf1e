"""Secure aggregation over twenty SuperNodes on this machine, with TLS and node keys. Minutes.

Twenty processes start for every step of a round. Flower gives up on one that has not said within
30 s that it is alive, and loses an answer for which its database is busy for 5 s. On a machine of
few cores, which no federation would have for all of its clients, they take turns for longer than
that, so here they have ten minutes and one. An answer that is lost all the same is a drop-out.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bgtplanner.cli import app
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.example import write_example
from bgtplanner.privacy.ledger import Ledger
from flower.doubles import spent
from flower.loopback import Loopback
from processes import PATIENCE

pytestmark = pytest.mark.deploy

NODES = 20
ROUNDS = 2

_PATIENT = """
import flwr.common.constant
import flwr.supercore.constant as core

flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL = 600
core.SQLITE_PRAGMAS = tuple(dict(core.SQLITE_PRAGMAS, busy_timeout="60000").items())
"""


class Many:
    """A federation as `deploy init` writes it, on as many SuperNodes as it has clients."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        clients = self.home / "clients"
        self.files = [clients / str(one) / "client.toml" for one in range(1, NODES + 1)]
        self.loopback = Loopback(folder / "loopback", self.files)
        write_example(self.home, clients=NODES, address=self.loopback.address)
        self._change("config.toml", "rounds = 3", f"rounds = {ROUNDS}")
        self._change("config.toml", "least_clients = 18", f"least_clients = {NODES}")
        self._change("config.toml", "round_seconds = 300.0", f"round_seconds = {PATIENCE}")
        (folder / "patience").mkdir()
        (folder / "patience" / "sitecustomize.py").write_text(_PATIENT, encoding="utf-8")
        places = [f"{folder}/patience", *filter(None, [os.environ.get("PYTHONPATH")])]
        self.loopback.environment["PYTHONPATH"] = os.pathsep.join(places)

    def _change(self, name: str, old: str, new: str) -> None:
        file = self.home / "server" / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def call(self, *words: object) -> str:
        """In this process, since a new one takes seconds."""
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    def enroll(self) -> Roster:
        lines = [self.call("deploy", "enroll", file) for file in self.files]
        (self.home / "enrolled.txt").write_text("".join(lines), encoding="utf-8")
        home = self.home / "server" / "roster.txt"
        self.call("deploy", "roster", home, self.home / "enrolled.txt")
        for file in self.files:
            shutil.copy(home, file.parent)
        return Roster.read(home)

    def run(self) -> Path:
        """Start everything, and return the run folder once the run has ended."""
        self.loopback.start_link()
        # As in the guide: only the installed client runs, whatever a run brings along.
        path = self.loopback.environment["PATH"]
        self.loopback.environment["PATH"] = f"{self.home}/pinned{os.pathsep}{path}"
        for number, file in enumerate(self.files, start=1):
            self.loopback.register(number)
            self.loopback.start_node(number, file, key=number)
        self.loopback.run(self.home / "app")
        out = self.home / "server" / "run"
        for _ in range(int(6 * PATIENCE / 20)):  # rarely: every look starts a process
            if (out / "summary.json").exists():
                return out
            assert "failed" not in self.loopback.status(), self.loopback.log("link")[-4000:]
            time.sleep(20)
        raise AssertionError(f"waited for the run to end; {self.loopback.log('link')[-4000:]}")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    made = Many(tmp_path_factory.mktemp("many"))
    try:
        yield made
    finally:
        made.loopback.close()


def test_twenty_clients_add_up(many: Many) -> None:
    roster = many.enroll()
    assert len(roster) == NODES
    out = many.run()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    found = {key: summary[key] for key in ("trust", "clients", "rounds_run", "rounds_aborted")}
    assert found == {
        "trust": "secagg", "clients": NODES, "rounds_run": ROUNDS, "rounds_aborted": 0,
    }  # fmt: skip
    assert summary["epsilon"] == 10.0
    rounds = (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in rounds]
    assert [one["asked"] for one in records] == [NODES] * ROUNDS
    lost = sum(NODES - one["clients"] for one in records)
    assert lost <= 2 * ROUNDS, "as many as may drop out"
    with Ledger.open(out / "ledger.sqlite", read_only=True) as ledger:
        booked = (ledger.spent()[0] / 2**44).tolist()
    own = [spent(file) for file in many.files]  # in the order of the roster
    assert all(0 < paid <= noted for paid, noted in zip(own, booked, strict=True))
    assert sum(paid != noted for paid, noted in zip(own, booked, strict=True)) <= lost
    many.call("report", out)
    assert (out / "report.html").exists()
    user = (many.files[0].parent / "ratings.csv").read_text().splitlines()[1].split(",")[0]
    home = many.files[0].parent
    listed = json.loads(many.call("recommend", home, "--client", user, "--top", 3, "--json"))
    assert [entry["title"] for entry in listed["items"]] == [
        f"Item {entry['item']}" for entry in listed["items"]
    ]
