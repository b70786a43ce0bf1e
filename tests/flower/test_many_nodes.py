"""Secure aggregation over twenty SuperNodes on this machine, with TLS and node keys. Minutes.

Twenty processes start for every step of a round, on a machine of few cores, which no federation
would have for all of its clients. Flower gives up on one that has not said within 30 s that it is
alive, and loses an answer for which its database is busy for 5 s. Here they have ten minutes and
one. The server's app starts before any of the machines is there, and they come one by one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployed import catalogue_of
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import simulate
from flower.doubles import SETTINGS
from flower.equality import same_ledgers, same_model
from flower.loopback import Loopback
from flower.test_sums import SUMMED, federation
from processes import PATIENCE, wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.usefixtures("compiled_once")]

NODES = 20
SETTLED: dict[str, object] = {"federation.rounds": 2}

# The first client's share is all of the noise that a simulation draws.
_CLIENT = f"""
from bgtplanner.flower.client import make_client_app
from flower.doubles import sum_of_simulation

client_app = make_client_app(noise=sum_of_simulation(7, {NODES}))
"""

_PATIENT = """
import flwr.common.constant
import flwr.supercore.constant as core

flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL = 600
core.SQLITE_PRAGMAS = tuple(dict(core.SQLITE_PRAGMAS, busy_timeout="60000").items())
"""


def test_twenty_super_nodes_end_as_their_simulation(tmp_path: Path) -> None:
    ratings = synthetic_ratings(clients=NODES, items=30, ratings_per_client=12, seed=1)
    waits = {
        "deployment.least_clients": NODES, "deployment.round_seconds": PATIENCE,
        "deployment.wait_seconds": 6 * PATIENCE,
    }  # fmt: skip
    config, files = federation(tmp_path, ratings, SETTLED | waits)
    catalogue = catalogue_of(load_config(file=config), tmp_path)
    for file in files:  # it would cost each of them two more processes
        Client(load_client(file)).hold(catalogue)
    out, loopback = tmp_path / "run", Loopback(tmp_path / "loopback", files)
    (tmp_path / "sitecustomize.py").write_text(_PATIENT, encoding="utf-8")
    places = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    loopback.environment["PYTHONPATH"] = os.pathsep.join(places)
    try:
        loopback.start_link()
        loopback.run(loopback.write_app("many", config, out, _CLIENT))
        wait_until((out / "config.toml").exists, "the server's app to start")
        for number, file in enumerate(files, start=1):
            loopback.register(number)
            loopback.start_node(number, file, key=number)
            wait_until(lambda: loopback.online() >= number, f"SuperNode {number} to connect")  # noqa: B023
        wait_until((out / "summary.json").exists, "the run to end", 6 * PATIENCE)
    finally:
        loopback.close()
    rounds = RunFolder(out).rounds()
    counts = [(one["asked"], one["clients"], one["refused"]) for one in rounds]
    assert counts == [(NODES, NODES, 0)] * 2
    told = {key: value for key, value in (SETTINGS | SUMMED | SETTLED).items()
            if key not in ("data.dataset", "run.seed", "deployment.roster")}  # fmt: skip
    simulated = simulate(ratings, seed=7, settings=told, out=tmp_path / "simulated")
    same_model(out, simulated)
    same_ledgers(out, tmp_path / "simulated", files)
