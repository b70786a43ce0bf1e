"""Secure aggregation over twenty SuperNodes on this machine, with TLS and node keys. Minutes.

The model is that of a simulation, since one client's share is all of the noise that a simulation
draws; :mod:`flower.simulated_client` is what the SuperNodes start. The same federation within this
process shows in seconds whether that can be so.

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
from bgtplanner.data.datasets import load_ratings
from bgtplanner.data.split import deal_users
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.client import Client, make_client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployed import carry_out, catalogue_of
from bgtplanner.runs.example import write_example, write_ratings
from bgtplanner.runs.prepared import split_of
from bgtplanner.runs.result import Result
from bgtplanner.runs.run import execute
from flower import simulated_client
from flower.equality import same_ledgers, same_model
from flower.in_process import InProcessGrid
from flower.loopback import BIN, TESTS, Loopback
from processes import PATIENCE

pytestmark = [pytest.mark.deploy, pytest.mark.usefixtures("compiled_once")]

NODES = simulated_client.CLIENTS
ROUNDS = 2

_PATIENT = """
import flwr.common.constant
import flwr.supercore.constant as core

flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL = 600
core.SQLITE_PRAGMAS = tuple(dict(core.SQLITE_PRAGMAS, busy_timeout="60000").items())
"""


_SIMULATED = f"""#!/bin/sh
exec {BIN}/python -P -m flower.simulated_client "$@"
"""


class Many:
    """A federation as `deploy init` writes it, whose clients train as those of a simulation."""

    def __init__(self, folder: Path, address: str = "127.0.0.1:8443") -> None:
        self.home = folder / "home"
        clients = self.home / "clients"
        self.files = [clients / str(one) / "client.toml" for one in range(1, NODES + 1)]
        write_example(self.home, clients=NODES, address=address)
        self._change("rounds = 3", f"rounds = {ROUNDS}")
        least = load_config(file=self.server / "config.toml").deployment.least_clients
        self._change(f"least_clients = {least}", f"least_clients = {NODES}")
        self._change("round_seconds = 300.0", f"round_seconds = {PATIENCE}")
        # A simulation holds ratings back to test with, and clients have all of theirs at once.
        whole = {"data.initial_share": 1.0, "run.seed": simulated_client.SEED}
        self.config = load_config(file=self.server / "config.toml", settings=whole)
        self.ratings = deal_users(load_ratings("demo"), NODES, seed=0)
        train = split_of(self.config, self.ratings).train
        for client, file in enumerate(self.files):
            write_ratings(file.parent / "ratings.csv", train, client)

    @property
    def server(self) -> Path:
        return self.home / "server"

    @property
    def out(self) -> Path:
        return self.server / "run"

    def _change(self, old: str, new: str) -> None:
        file = self.server / "config.toml"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def call(self, *words: object) -> str:
        """In this process, since a new one takes seconds."""
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    def enroll(self) -> None:
        lines = [self.call("deploy", "enroll", file) for file in self.files]
        (self.home / "enrolled.txt").write_text("".join(lines), encoding="utf-8")
        home = self.server / "roster.txt"
        self.call("deploy", "roster", home, self.home / "enrolled.txt")
        for file in self.files:
            shutil.copy(home, file.parent)
        assert len(Roster.read(home)) == NODES
        sent = catalogue_of(self.config, self.server)
        for file in self.files:  # it would cost each of them two more processes
            Client(load_client(file)).hold(sent)

    def simulated(self) -> Result:
        return execute(self.config, ratings=self.ratings, out=self.home / "simulated")

    def check(self) -> None:
        """Whether it has ended as its simulation does, with the same model and ledgers."""
        summary = json.loads((self.out / "summary.json").read_text(encoding="utf-8"))
        found = {key: summary[key] for key in ("trust", "clients", "rounds_run", "rounds_aborted")}
        assert found == {
            "trust": "secagg", "clients": NODES, "rounds_run": ROUNDS, "rounds_aborted": 0,
        }  # fmt: skip
        rounds = (self.out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        records: list[dict[str, Any]] = [json.loads(line) for line in rounds]
        said = [(one["asked"], one["clients"], one["refused"]) for one in records]
        assert said == [(NODES, NODES, 0)] * ROUNDS
        simulated = self.simulated()
        assert summary["epsilon"] == simulated.summary["epsilon"] == 10.0
        assert summary["epsilon_spent_max"] == simulated.summary["epsilon_spent_max"]
        same_model(self.out, simulated)
        same_ledgers(self.out, self.home / "simulated", self.files)

    def shows_titles(self) -> None:
        """Whether there is a report, and a client has a list of its own."""
        self.call("report", self.out)
        assert (self.out / "report.html").exists()
        home = self.files[0].parent
        user = (home / "ratings.csv").read_text(encoding="utf-8").splitlines()[1].split(",")[0]
        listed = json.loads(self.call("recommend", home, "--client", user, "--top", 3, "--json"))
        assert [entry["title"] for entry in listed["items"]] == [
            f"Item {entry['item']}" for entry in listed["items"]
        ]


def test_twenty_clients_in_one_process_end_as_their_simulation(tmp_path: Path) -> None:
    many = Many(tmp_path)
    many.enroll()
    grid = InProcessGrid(make_client_app(noise=simulated_client.noise), many.files)
    carry_out(grid, many.server / "config.toml", many.out, poll_seconds=0)
    many.check()


class Nodes:
    """The same on as many SuperNodes."""

    def __init__(self, folder: Path) -> None:
        files = [folder / "home" / "clients" / str(one) / "client.toml"
                 for one in range(1, NODES + 1)]  # fmt: skip
        self.loopback = Loopback(folder / "loopback", files)
        self.many = Many(folder, self.loopback.address)
        (folder / "patience").mkdir()
        (folder / "patience" / "sitecustomize.py").write_text(_PATIENT, encoding="utf-8")
        places = [f"{folder}/patience", str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.loopback.environment["PYTHONPATH"] = os.pathsep.join(places)
        # As in the guide, one program runs whatever a run brings along, but here it is the tests'.
        (self.many.home / "pinned" / "flwr-clientapp").write_text(_SIMULATED, encoding="utf-8")

    def run(self) -> None:
        """Start everything, and return once the run has ended."""
        self.loopback.start_link()
        path = self.loopback.environment["PATH"]
        self.loopback.environment["PATH"] = f"{self.many.home}/pinned{os.pathsep}{path}"
        for number, file in enumerate(self.many.files, start=1):
            self.loopback.register(number)
            self.loopback.start_node(number, file, key=number)
        self.loopback.run(self.many.home / "app")
        for _ in range(int(6 * PATIENCE / 20)):  # rarely: every look starts a process
            if (self.many.out / "summary.json").exists():
                return
            assert "failed" not in self.loopback.status(), self.loopback.log("link")[-4000:]
            time.sleep(20)
        raise AssertionError(f"waited for the run to end; {self.loopback.log('link')[-4000:]}")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("many"))
    try:
        yield made
    finally:
        made.loopback.close()


def test_twenty_super_nodes_end_as_their_simulation(nodes: Nodes) -> None:
    nodes.many.enroll()
    nodes.run()
    nodes.many.check()
    nodes.many.shows_titles()
