"""Over a real SuperLink with three SuperNodes on this machine, TLS and node keys. Minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.config import load_config, to_toml
from bgtplanner.runs.folder import RunFolder
from flower.doubles import POLICY, spent, write_federation
from flower.loopback import Loopback
from processes import PATIENCE, wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.usefixtures("compiled_once")]

# Real noise; client 2 (the third) stops for good in round 1 the first time, having paid.
_STOPS_ONCE = """
import time
from bgtplanner.flower.client import Client, make_client_app

keep = Client._keep_answer

def stopping(self, *answer):
    state = self.file.state
    second = state.parent.name == "2" and (state / "was here").exists()
    if second and not (state / "stopped").exists():
        (state / "stopped").touch()
        time.sleep(3600)
    (state / "was here").touch()
    keep(self, *answer)

Client._keep_answer = stopping
client_app = make_client_app()
"""


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    return synthetic_ratings(clients=3, items=30, ratings_per_client=20, seed=1)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, ratings: Ratings) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    few = {"federation.rounds": 2, "privacy.epsilon": 2000.0}
    slow = {"deployment.round_seconds": 120.0, "deployment.least_clients": 3}
    write_federation(folder, ratings, {**few, **slow})
    return folder


@pytest.fixture(scope="module")
def loopback(federation: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    files = [federation / "clients" / str(number) / "client.toml" for number in range(3)]
    made = Loopback(tmp_path_factory.mktemp("loopback"), files)
    try:
        made.start_link()
        for number, file in enumerate(files, start=1):
            made.register(number)
            made.start_node(number, file, key=number)
        yield made
    finally:
        made.close()


def finish(loopback: Loopback, out: Path) -> None:
    done = out / "summary.json"
    wait_until(lambda: done.exists() or "failed" in loopback.status(), "the run to end")
    assert done.exists(), loopback.log("link")[-4000:]
    wait_until(lambda: loopback.status() == "finished:completed", "Flower to notice")


def test_a_node_without_a_registered_key_is_refused(loopback: Loopback) -> None:
    for name, key in ((8, 4), (9, None)):
        loopback.start_node(name, loopback.client_files[0], key=key, supervised=False)
        process = loopback.processes.pop(f"node-{name}")
        assert process.wait(PATIENCE) != 0


def test_killed_clients_and_a_killed_server(
    loopback: Loopback, federation: Path, tmp_path: Path
) -> None:
    """Both with SIGKILL in mid-round: nobody overspends, nothing is counted twice."""
    before = [spent(file) for file in loopback.client_files]
    more = {
        "federation.rounds": 4, "privacy.epsilon": 1000.0, "deployment.round_seconds": 45.0,
        "deployment.least_clients": 2,
    }  # fmt: skip
    config = load_config(file=federation / "config.toml", settings=more)
    (federation / "second.toml").write_text(to_toml(config), encoding="utf-8")
    out, third = tmp_path / "run", loopback.client_files[2]
    app = loopback.write_app("stops", federation / "second.toml", out, _STOPS_ONCE)
    loopback.run(app)

    wait_until((third.parent / "state" / "stopped").exists, "a client in mid-round")
    loopback.kill("node-3")
    wait_until(lambda: len(RunFolder(out).rounds()) >= 2, "the round to go on without it")
    record = RunFolder(out).rounds()[1]
    assert (record["clients"], record["late"] + record["dropped"]) == (2, 1)

    asked = spent(loopback.client_files[0])
    loopback.start_node(3, third, key=3)
    wait_until(lambda: spent(loopback.client_files[0]) > asked, "another round to begin")
    loopback.kill("link")  # all of the server, in the middle of the round
    assert not (out / "summary.json").exists()
    loopback.start_link()
    loopback.run(app)
    finish(loopback, out)

    rounds = RunFolder(out).rounds()
    assert [record["round"] for record in rounds] == [0, 1, 2, 3]
    even = rounds[0]["charge"]
    files = loopback.client_files
    own = [(spent(file) - was) / even for file, was in zip(files, before, strict=True)]
    assert own[:2] == pytest.approx([4.0, 4.0])
    assert 2.0 - 1e-9 <= own[2] <= 4.0 + 1e-9
    assert sum(record["clients"] for record in rounds) <= sum(own) + 1e-9
    with Ledger.open(out / "ledger.sqlite", read_only=True) as ledger:
        noted = ledger.spent()[0] / 2**44 / even
    assert noted.sum() >= sum(own) - 1e-9
    for file in files:
        with Ledger.open(file.parent / "state" / "ledger.sqlite", read_only=True) as ledger:
            assert ledger.epsilon_spent()[0] <= POLICY["epsilon"]
            ledger.verify()
