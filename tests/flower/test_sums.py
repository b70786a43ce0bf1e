"""Secure aggregation over Flower: sums that the server can open, and uploads that it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from bgtplanner import load_model
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import RunFolderError
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.client import client_app, make_client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.identity import identity_in
from bgtplanner.flower.messages import HELLO, Hello
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployed import agreed_settings, carry_out
from bgtplanner.runs.run import simulate
from flower.doubles import SETTINGS, spent, sum_of_simulation, write_federation
from flower.equality import LEARNERS, begin_as_simulated, same_ledgers, same_model
from flower.in_process import InProcessGrid
from games.summing import Table, write_summing

pytestmark = pytest.mark.usefixtures("compiled_once")

CLIENTS = 8
GROUP: dict[str, Any] = {"roster": "../../roster.txt", "smallest_group": 4, "colluders": 1}
PROMISED = {
    "private": True, "delta": 1e-5, "trust": "secagg", "neighbours": "replace-special",
    "unit": "client", "mechanism": "gaussian", "accounting": "gaussian/gdp", "people": CLIENTS,
    "most_dropouts": 0.05, "most_colluders": 1.0,
    "not_accounted": ["other trainings on the same ratings"],
}  # fmt: skip
SUMMED = {"privacy.trust": "secagg", "deployment.roster": "roster.txt", "run.seed": 7}


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=CLIENTS, items=30, ratings_per_client=12, seed=1)


def federation(
    folder: Path, ratings: Ratings, settings: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
) -> tuple[Path, list[Path]]:  # fmt: skip
    agreed = {"neighbours": "replace-special", **(policy or {}), "secagg": GROUP}
    config, files = write_federation(folder, ratings, SUMMED | (settings or {}), agreed)
    keys = [public_bytes(identity_in(load_client(file).identity)) for file in files]
    names = tuple(f"client {place}" for place in range(len(keys)))
    Roster(names, tuple(keys)).write(folder / "roster.txt")
    return config, files


def rounds_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("model", "epsilon"), [("biases", 10.0), ("tastes", 5000.0)])
def test_the_same_model_as_a_simulation(
    tmp_path: Path, few: Ratings, model: str, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With masks, shares and sums, and one client's share being all of the simulation's noise."""
    chosen: dict[str, Any] = {"model.name": model, "privacy.epsilon": epsilon}
    chosen |= LEARNERS.get(model, {})
    whole = load_config(settings=SETTINGS | SUMMED | chosen | {"deployment.clients": CLIENTS})
    settings = {model: agreed_settings(whole, few.n_items)}
    policy = {"models": [model], "settings": settings, "epsilon": epsilon}
    config, files = federation(tmp_path, few, chosen, policy)
    begin_as_simulated(monkeypatch, few, seed=7)
    app = make_client_app(noise=sum_of_simulation(7, CLIENTS))
    carry_out(InProcessGrid(app, files), config, tmp_path / "run", poll_seconds=0)
    told = {key: value for key, value in (SETTINGS | SUMMED | chosen).items()
            if key not in ("data.dataset", "run.seed", "deployment.roster")}  # fmt: skip
    simulated = simulate(few, seed=7, settings=told, out=tmp_path / "simulated")
    same_model(tmp_path / "run", simulated)
    same_ledgers(tmp_path / "run", tmp_path / "simulated", files)
    published, expected = load_model(tmp_path / "run" / "run.model"), simulated.model
    assert np.allclose(published.released, expected.released, rtol=1e-4, atol=1e-5)
    assert (published.ranker, published.learned) == (expected.ranker, True)
    assert {name: published.guarantee[name] for name in PROMISED} == PROMISED
    assert published.guarantee["epsilon"] == epsilon
    assert published.guarantee["epsilon_other_reading"] > epsilon
    assert 0 < published.guarantee["epsilon_spent"] <= epsilon
    told = " ".join(published.guarantee["sentences"])
    assert "the server saw sums only" in told
    assert "was trusted with them" not in told
    ours, theirs = rounds_of(tmp_path / "run"), rounds_of(tmp_path / "simulated")
    assert not any(one.get("aborted") or one["refused"] for one in ours)
    for name in ("charge", "clients", "surplus"):
        assert [one[name] for one in ours] == pytest.approx([one[name] for one in theirs])


class Comings:
    """What happens between the rounds: someone comes, a user rates, someone goes in mid-round.

    All the time there is one machine more, which says that it is the first client.
    """

    def __init__(self, grid: InProcessGrid, late: int, gone: int) -> None:
        self.grid, self.late, self.gone, self.left = grid, late, gone, False
        grid.online.discard(late)
        grid.tamper = self.tamper

    def round(self, record: dict[str, Any], total: int) -> None:
        del total
        self.grid.online.add(self.late)
        self.left = record["round"] == 1
        if not record["round"]:
            with (self.grid.files[1].parent / "ratings.csv").open("a") as table:
                table.write("somebody new,i3,4.0\n")

    def tamper(self, node: int, asked: Message, answer: Message) -> list[Message]:
        if node > CLIENTS and asked.metadata.message_type == HELLO:
            key = public_bytes(identity_in(load_client(self.grid.files[1]).identity))
            hello = replace(Hello.read(answer.content), name=key.hex())
            return [Message(hello.record(), reply_to=asked)]
        return [answer] * (not self.left or node != self.gone)


def test_clients_come_late_and_go_and_users_come_and_rate(tmp_path: Path, few: Ratings) -> None:
    """Nobody is waited for; each pays for the rounds that it was asked in, and for no other."""
    settings = {"deployment.round_seconds": 0.05, "federation.most_dropouts": 1}
    config, files = federation(tmp_path, few, settings)
    grid = InProcessGrid(client_app, [*files, files[1]])
    comings = Comings(grid, late=CLIENTS, gone=2)
    carry_out(grid, config, tmp_path / "run", observer=comings, poll_seconds=0)
    records = rounds_of(tmp_path / "run")
    assert [one["asked"] for one in records] == [CLIENTS - 1, CLIENTS, CLIENTS]
    assert [one["clients"] for one in records] == [CLIENTS - 1, CLIENTS, CLIENTS - 1]
    assert not any(one.get("aborted") for one in records)
    charges = [one["charge"] for one in records]
    assert spent(files[0]) == pytest.approx(sum(charges))
    assert spent(files[1]) == pytest.approx(sum(charges[:2]))  # it had not come to its upload
    assert 0 < spent(files[-1]) <= spent(files[0])
    with np.load(files[0].parent / "state" / "local.npz") as stored:
        assert "somebody new" in json.loads(bytes(stored["about"]))["users"]
    asked = {node for node, sent in grid.asked if sent.metadata.message_type != HELLO}
    assert asked == set(range(1, CLIENTS + 1))


def test_a_run_goes_on_with_its_own_roster_only(tmp_path: Path, few: Ratings) -> None:
    """In another order of the clients, the server's ledger would be about others."""
    config, files = federation(tmp_path, few)
    grid = InProcessGrid(client_app, files)
    carry_out(grid, config, tmp_path / "run", poll_seconds=0)
    known = Roster.read(tmp_path / "roster.txt")
    Roster(known.names[::-1], known.keys[::-1]).write(tmp_path / "roster.txt")
    with pytest.raises(RunFolderError, match="other settings, items or clients"):
        carry_out(grid, config, tmp_path / "run", poll_seconds=0)


_WITHOUT_A_MODEL = """
import sys
from pathlib import Path
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import HelloRequest, SumStep

def client():
    return Client(load_client(Path(sys.argv[1])))

client().hello(HelloRequest("run"))
kind = {"round": bytes.fromhex(sys.argv[2]), "catalogue": "0" * 64}
asked = {**kind, "scale": 1.0, "largest_clip": 0.1}
client().step(SumStep(step="keys", message=b"", **asked))
sys.exit("jax" in sys.modules)
"""


def test_steps_that_need_no_model_need_no_jax(tmp_path: Path) -> None:
    """Flower starts a process for each of them, and JAX is almost half of what that takes."""
    table = Table(write_summing(tmp_path / "group"))
    file, agreed = tmp_path / "group" / "0" / "client.toml", table.round().agreed
    command = [sys.executable, "-c", _WITHOUT_A_MODEL, str(file), agreed.to_bytes().hex()]
    assert subprocess.run(command, check=False).returncode == 0
