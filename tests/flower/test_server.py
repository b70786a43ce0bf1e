"""The server survives its clients, and goes on where it was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from bgtplanner import load_model
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError, InterruptedRunError, RunFolderError
from bgtplanner.flower.client import Client, client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import CATALOGUE, TRAIN, Reply, Upload, read_word
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.config import load_config, to_toml
from bgtplanner.runs.deployed import (
    agreed_settings,
    carry_out,
    catalogue_of,
    check_deployable,
    server_app,
)
from bgtplanner.runs.folder import RunFolder
from flower.doubles import (
    AGREE_TO_TASTES,
    HELLO_REQUEST,
    TASTES,
    agreed,
    spent,
    write_client,
    write_federation,
    write_toml,
)
from flower.in_process import InProcessGrid, Tamper
from flower.test_messages import bad_uploads

pytestmark = pytest.mark.usefixtures("compiled_once")

Federation = tuple[Path, list[Path]]


def play(federation: Federation, grid: InProcessGrid, out: Path) -> dict[str, Any]:
    return carry_out(grid, federation[0], out, poll_seconds=0.01)


def rounds_of(out: Path) -> list[dict[str, Any]]:
    return RunFolder(out).rounds()


def one_round(federation: Federation, out: Path, kind: Any, *how: Any) -> dict[str, Any]:
    """The record of the only round of a run on a grid of this kind."""
    set_keys(federation, federation__rounds=1)
    play(federation, kind(client_app, federation[1], *how), out)
    (record,) = rounds_of(out)
    return record


def set_keys(federation: Federation, **settings: Any) -> None:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    config = load_config(file=federation[0], settings=given)
    federation[0].write_text(to_toml(config), encoding="utf-8")


def only_in_training(tamper: Tamper) -> Tamper:
    """What becomes of answers to requests, once clients have the catalogue."""

    def tampered(node: int, request: Message, reply: Message) -> Iterable[Message]:
        asked = request.metadata.message_type == TRAIN and read_word(reply) != "unknown"
        return tamper(node, request, reply) if asked else [reply]

    return tampered


@pytest.mark.parametrize("kind", ["nan", "shape", "endless", "error", "too short", "huge"])
def test_a_bad_reply_is_dropped_and_counted(
    federation: Federation, tmp_path: Path, kind: str
) -> None:
    """One client is hostile: the others' uploads make the model, and the run goes on."""
    set_keys(federation, federation__rounds=1, privacy__epsilon=5.0)
    lengths = {"too short": 0.0, "huge": 1e200}

    @only_in_training
    def hostile(node: int, request: Message, reply: Message) -> Iterable[Message]:
        if node != 2:
            return [reply]
        if kind in lengths:
            return [Message(Upload(np.full(60, lengths[kind])).record(), reply_to=request)]
        return [Message(bad_uploads()[kind], reply_to=request)]

    grid = InProcessGrid(client_app, federation[1], hostile)
    summary = play(federation, grid, tmp_path / "run")
    (record,) = rounds_of(tmp_path / "run")
    expected = "outside" if kind in lengths else "error" if kind == "error" else "malformed"
    assert record["dropped_by_kind"] == {expected: 1}
    assert (record["asked"], record["clients"], record["refused"]) == (3, 2, 0)
    assert summary["uploads_dropped"] == 1
    checkpoint = RunFolder(tmp_path / "run").checkpoint()
    assert checkpoint is not None
    assert all(np.isfinite(array).all() for array in checkpoint.values())


def test_the_model_file_holds_what_is_public_and_what_is_promised(
    federation: Federation, tmp_path: Path
) -> None:
    play(federation, InProcessGrid(client_app, federation[1]), tmp_path / "run")
    model = load_model(tmp_path / "run" / "run.model")
    sent = catalogue_of(load_config(file=federation[0]), federation[0].parent)
    assert (tuple(model.items), model.low, model.high) == (sent.items, sent.low, sent.high)
    promise = model.guarantee
    assert (promise["trust"], promise["neighbours"]) == ("local", "replace-one")
    assert (promise["epsilon"], promise["delta"]) == (5000.0, 1e-5)
    assert promise["epsilon_other_reading"] < 5000
    assert (promise["most_dropouts"], promise["most_colluders"]) == (None, None)
    assert "no one was trusted" in " ".join(promise["sentences"])
    assert model.training["rounds"] == len(rounds_of(tmp_path / "run"))
    history = {sent.items[0]: sent.high, sent.items[1]: sent.low}
    listed = [row.item for row in model.recommend(history, top=100)]
    assert set(listed) == set(sent.items[2:])
    published = (tmp_path / "run" / "run.model").read_bytes()
    for file in federation[1]:  # byte for byte
        assert load_client(file).model.read_bytes() == published


def test_duplicates_and_strangers_are_dropped_and_counted(
    federation: Federation, tmp_path: Path
) -> None:
    @only_in_training
    def noisy(node: int, request: Message, reply: Message) -> Iterable[Message]:
        stranger = Message(RecordDict(), reply_to=request)
        stranger.metadata.__dict__["_reply_to_message_id"] = "nobody asked"
        in_his_name = Message(Upload(np.zeros(60)).record(), reply_to=request)
        in_his_name.metadata.__dict__["_src_node_id"] = 3
        return [in_his_name, reply, reply, stranger] if node == 1 else [reply]

    record = one_round(federation, tmp_path / "run", InProcessGrid, noisy)
    assert record["dropped_by_kind"] == {"duplicate": 1, "unknown": 2}
    assert record["clients"] == 3


def test_a_reply_that_cannot_be_unpacked_is_given_up_alone(
    federation: Federation, tmp_path: Path
) -> None:
    class Breaking(InProcessGrid):
        """As the network: a reply that cannot be unpacked breaks whatever it is pulled with."""

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            wanted = set(message_ids)
            asked = {message.metadata.message_id: node for node, message in self.asked}
            kinds = {m.metadata.message_id: m.metadata.message_type for _, m in self.asked}
            if any(asked[one] == 2 and kinds[one] == TRAIN for one in wanted):
                raise ValueError("cannot be unpacked")
            found = [r for r in self.replies if r.metadata.reply_to_message_id in wanted]
            self.replies = [r for r in self.replies if r not in found]
            return found

    record = one_round(federation, tmp_path / "run", Breaking)
    assert record["dropped_by_kind"] == {"unreadable": 1}
    assert (record["clients"], record["late"]) == (2, 0)


def test_who_does_not_answer_in_time_is_late(federation: Federation, tmp_path: Path) -> None:
    set_keys(federation, deployment__round_seconds=0.2)

    @only_in_training
    def silent(node: int, request: Message, reply: Message) -> Iterable[Message]:
        return [] if node == 3 else [reply]

    record = one_round(federation, tmp_path / "run", InProcessGrid, silent)
    assert (record["clients"], record["late"], record["dropped"]) == (2, 1, 0)
    assert spent(federation[1][2]) > 0  # it has paid: nobody can know that its answer was lost


def test_a_server_that_asks_for_too_much_is_refused_by_every_client(
    few: Ratings, tmp_path: Path
) -> None:
    even = {"largest_charge": 1.0}
    federation = write_federation(tmp_path / "federation", few, policy=even)
    grid = InProcessGrid(client_app, federation[1])
    summary = play(federation, grid, tmp_path / "run")
    records = rounds_of(tmp_path / "run")
    assert [record["refused"] for record in records] == [3, 3, 3]
    assert all(spent(file) == 0 for file in federation[1])
    checkpoint = RunFolder(tmp_path / "run").checkpoint()
    assert checkpoint is not None
    assert not checkpoint["shared/items"].any()
    assert summary["rounds_run"] == 3


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours can catch it."""


def test_a_killed_server_goes_on_and_nobody_pays_twice(
    federation: Federation, tmp_path: Path
) -> None:
    """Killed in its second round, with two uploads made and none of them noted."""
    made: list[tuple[int, Any]] = []

    @only_in_training
    def killing(node: int, request: Message, reply: Message) -> Iterable[Message]:
        made.append((node, Upload.read(reply.content).to_bytes()))
        if len(made) == 3 + 2:
            raise Killed
        return [reply]

    out = tmp_path / "run"
    with pytest.raises(Killed):
        play(federation, InProcessGrid(client_app, federation[1], killing), out)
    even = spent(federation[1][0]) / 2
    again: dict[int, Any] = {}

    @only_in_training
    def noting(node: int, request: Message, reply: Message) -> Iterable[Message]:
        again.setdefault(node, Upload.read(reply.content).to_bytes())
        return [reply]

    grid = InProcessGrid(client_app, federation[1], noting)
    grid.online = {1, 2}  # asked for the same round again, at the same charge
    summary = play(federation, grid, out)
    assert all(again[node] == upload for node, upload in made[3:])  # the same bytes
    assert [record["round"] for record in rounds_of(out)] == [0, 1, 2]
    assert [record["clients"] for record in rounds_of(out)] == [3, 2, 2]
    assert [spent(file) / even for file in federation[1]] == pytest.approx([3, 3, 1])
    with Ledger.open(out / "ledger.sqlite", read_only=True) as ledger:
        assert (ledger.spent()[0, :2] / 2**44 / even).tolist() == pytest.approx([3, 3])
    assert play(federation, grid, out) == summary  # and a third start has nothing to do


def test_clients_that_come_and_go_and_come_back_elsewhere(
    federation: Federation, tmp_path: Path, few: Ratings
) -> None:
    """Client 3 comes in the second round, 1 leaves for good, 2 moves to another machine."""
    set_keys(federation, federation__rounds=4, deployment__clients=3)
    home = federation[1][1].parent
    moved = tmp_path / "elsewhere"

    class Changing(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            played = len(rounds_of(tmp_path / "run"))
            self.online = {0: {1, 2}, 1: {1, 2, 3}, 2: {2, 3}}.get(played, {3, 4})
            if 4 in self.online and not moved.exists():
                shutil.copytree(home, moved)
                self.files[4] = moved / "client.toml"
            return super().get_node_ids()

    play(federation, Changing(client_app, federation[1]), tmp_path / "run")
    assert [record["clients"] for record in rounds_of(tmp_path / "run")] == [2, 3, 2, 2]
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        noted = ledger.spent()[0] / 2**44
    own = [spent(federation[1][0]), spent(moved / "client.toml"), spent(federation[1][2])]
    assert noted == pytest.approx(own)
    even = own[0] / 2
    assert own == pytest.approx([2 * even, 4 * even, 3 * even])


def test_the_catalogue_travels_once(federation: Federation, tmp_path: Path) -> None:
    """Each client gets it when it lacks it: before its first round, or after it was lost."""

    class Losing(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            if len(rounds_of(tmp_path / "run")) == 1:
                for path in federation[1][1].parent.glob("state/catalogue-*"):
                    path.unlink()
            return super().get_node_ids()

    grid = Losing(client_app, federation[1])
    summary = play(federation, grid, tmp_path / "run")
    sent = [node for node, message in grid.asked if message.metadata.message_type == CATALOGUE]
    assert sent == [1, 2, 3, 2]
    assert [record["clients"] for record in rounds_of(tmp_path / "run")] == [3, 3, 3]
    assert summary["clients_with_last_model"] == 3
    again = InProcessGrid(client_app, federation[1])  # another run about the same catalogue
    play(federation, again, tmp_path / "second")
    assert all(message.metadata.message_type != CATALOGUE for _, message in again.asked)


def test_a_client_that_refuses_the_catalogue_refuses(
    federation: Federation, tmp_path: Path, few: Ratings
) -> None:
    """One whose policy names another one, and one that says it lacks it again and again."""
    set_keys(federation, federation__rounds=2)
    write_toml(federation[1][0].parent / "policy.toml", agreed(few, {"catalogues": ["0" * 64]}))

    def insisting(node: int, request: Message, answer: Message) -> Iterable[Message]:
        if node == 2 and request.metadata.message_type == TRAIN:
            return [Message(Reply("unknown").record(), reply_to=request)]
        return [answer]

    grid = InProcessGrid(client_app, federation[1], insisting)
    summary = play(federation, grid, tmp_path / "run")
    records = rounds_of(tmp_path / "run")
    assert [(record["clients"], record["refused"]) for record in records] == [(1, 2)] * 2
    assert summary["clients_with_last_model"] == 2
    assert (spent(federation[1][0]), spent(federation[1][2]) > 0) == (0, True)


def test_more_clients_than_places_and_other_rules_are_left_out(
    federation: Federation, tmp_path: Path, few: Ratings, flower_log: pytest.LogCaptureFixture
) -> None:
    set_keys(federation, federation__rounds=1, deployment__clients=2)
    other = write_client(tmp_path / "other", few, 0, agreed(few, {"rule": "laplace/basic"}))
    play(federation, InProcessGrid(client_app, [other, *federation[1]]), tmp_path / "run")
    (record,) = rounds_of(tmp_path / "run")
    assert record["asked"] == 2
    assert "ledger uses 'laplace/basic'" in flower_log.text
    assert "deployment.clients = 2" in flower_log.text


def test_clients_without_a_ledger_do_not_say_who_they_are(
    federation: Federation, tmp_path: Path
) -> None:
    set_keys(federation, deployment__least_clients=3, deployment__wait_seconds=0.05)
    Client(load_client(federation[1][0])).file.ledger.unlink()
    with pytest.raises(InterruptedRunError, match="2 clients are connected") as caught:
        play(federation, InProcessGrid(client_app, federation[1]), tmp_path / "run")
    assert "deployment.least_clients = 3" in str(caught.value)


def test_rounds_are_paced(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()
    set_keys(federation, federation__rounds=2, deployment__pause_seconds=1000.0)
    monkeypatch.setattr("bgtplanner.flower.server.time.sleep", slept.append)
    play(federation, InProcessGrid(client_app, federation[1]), tmp_path / "run")
    assert slept == [0.0, pytest.approx(1000.0, abs=100.0)]


def test_what_flower_calls_and_what_is_on_the_servers_disk(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    flower_log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("bgtplanner.flower.machines._AT_ONCE", 2)
    client = Client(load_client(federation[1][0]))
    name, (pinned,) = client.hello(HELLO_REQUEST).name, client.policy.catalogues
    grid = InProcessGrid(client_app, federation[1])
    paths = {"config": str(federation[0]), "out": str(tmp_path / "run")}
    server_app(grid, Context(1, 1, {}, RecordDict(), paths))
    assert f"policies must name catalogue {pinned}, settings " in flower_log.text
    assert "round 3/3: 3 asked, 3 clients, 0 refused" in flower_log.text
    for file in (tmp_path / "run").iterdir():
        assert name.encode() not in file.read_bytes()
    noted = json.loads((tmp_path / "run" / "clients.json").read_text(encoding="utf-8"))
    assert len(noted["clients"]) == 3
    set_keys(federation, privacy__trust="secagg")
    with pytest.raises(ConfigError, match="expected a roster"):
        server_app(grid, Context(1, 1, {}, RecordDict(), paths))
    assert "error: deployment.roster" in flower_log.text
    with pytest.raises(ConfigError, match="config, out = "):
        server_app(grid, Context(1, 1, {}, RecordDict(), {}))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"privacy.unit": "row"}, "privacy.unit = 'row'"),
        ({"privacy.mechanism": "none"}, "privacy.mechanism = 'none'"),
        ({"privacy.accounting": "authors"}, "privacy.accounting = 'authors'"),
        ({"privacy.budgets": "1:0.5,2:0.5"}, "privacy.budgets"),
        ({"model.pseudo_items": 2}, "model.pseudo_items = 2"),
        ({"planning.policy": "bgt", "planning.context": "usage"}, "planning.context = 'usage'"),
        ({"planning.policy": "bgt", "planning.reward": "test"}, "planning.reward = 'test'"),
        ({"federation.dropout": 0.1}, "federation.dropout = 0.1"),
        ({"deployment.clients": 2, "deployment.least_clients": 3}, "deployment.least_clients"),
    ],
)
def test_what_cannot_be_on_real_machines_says_so(settings: dict[str, Any], problem: str) -> None:
    local = {"privacy.trust": "local", "planning.policy": "uniform", "model.name": "biases"}
    if settings.get("privacy.mechanism") == "none":
        del local["planning.policy"]
    config = load_config(settings={**local, **settings})
    with pytest.raises(ConfigError) as caught:
        check_deployable(config)
    assert problem in str(caught.value)


@pytest.mark.parametrize("scale", [{}, {"data.scale": "max"}], ids=str)
def test_the_scale_must_be_said(tmp_path: Path, scale: dict[str, Any]) -> None:
    config = load_config(settings={"deployment.items": "items.txt"} | scale)
    with pytest.raises(ConfigError, match="LOW:HIGH"):
        catalogue_of(config, tmp_path)


def test_features_stay_when_the_server_is_restarted(few: Ratings, tmp_path: Path) -> None:
    """The same table goes on with the run, and another one does not."""
    chosen = {"model.name": "tastes", "tastes.axes": 2, "tastes.taste_share": 0.6}
    chosen |= {"federation.rounds": 2}
    rows = [f"i{label},{int(number % 3 == 0)}" for number, label in enumerate(few.item_labels)]
    table = "\n".join(["item,new", *rows]) + "\n"
    federation = write_federation(tmp_path, few, chosen, AGREE_TO_TASTES, table)
    assert agreed_settings(load_config(file=federation[0]), 30) == TASTES

    class Stops:
        def round(self, record: Any, total: int) -> None:
            raise KeyboardInterrupt

    grid = InProcessGrid(client_app, federation[1])
    with pytest.raises((KeyboardInterrupt, InterruptedRunError)):
        carry_out(grid, federation[0], tmp_path / "run", poll_seconds=0.0, observer=Stops())
    (tmp_path / "items.csv").write_text(table.replace(",1\n", ",0\n", 1), encoding="utf-8")
    with pytest.raises(RunFolderError, match="other settings, items or clients"):
        play(federation, grid, tmp_path / "run")
    (tmp_path / "items.csv").write_text(table, encoding="utf-8")
    summary = play(federation, grid, tmp_path / "run")
    assert (summary["rounds_run"], summary["uploads_dropped"]) == (2, 0)
    client = Client(load_client(federation[1][0]))
    features = client.file.last_model().features
    np.testing.assert_array_equal(features[:, 0], np.arange(30) % 3 == 0)
