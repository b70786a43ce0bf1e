"""What a client leaves behind: on its disk, in its own log, and of whom it shuts out meanwhile."""

from __future__ import annotations

import fcntl
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError, LedgerError, MessageError
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.flower.client import Client, _file_of
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import HELLO, KEEP, SUM, TRAIN, Request
from flower.doubles import HELLO_REQUEST, agreed, spent, write_toml
from flower.test_client import of_model, rate, send
from games.summing import Table, stand_in, write_summing

pytestmark = pytest.mark.usefixtures("compiled_once")


def file_of(client: Client) -> Path:
    return client.file.ratings.parent / "client.toml"


def said_in(log: pytest.LogCaptureFixture) -> list[str]:
    """Its lines, each once: where Flower's log passes them on, they come twice."""
    return list(dict.fromkeys(log.messages))


# ---- on its disk


def test_what_was_answered_is_settled_and_its_model_kept(
    client: Client, request_of_server: Request
) -> None:
    items = np.arange(90, dtype=np.float32).reshape(30, 3)
    asked = of_model(items=items)(request_of_server)
    client.answer(asked)
    with client.open_ledger() as ledger:
        assert (ledger.unsettled, ledger.newest_round("first")) == (0, 0)
    kept = client._kept()
    np.testing.assert_array_equal(kept.items, items)
    for name in ("name", "settings", "catalogue"):
        assert getattr(kept, name) == getattr(asked.model, name)
    assert kept.dense.shape == (0,)
    assert len(client.recommend(None, 3)) == 3


def test_what_is_to_be_kept_is_kept(client: Client, request_of_server: Request) -> None:
    reply = send(file_of(client), KEEP, request_of_server.model.record())
    assert dict(reply) == {"reply": ConfigRecord({"status": "kept"})}
    assert client._kept().catalogue == request_of_server.model.catalogue
    assert spent(file_of(client)) == 0


def test_objects_are_never_unpickled_or_pickled(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def noted(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(options["allow_pickle"])
            return real(*arguments, **options)

        return call

    monkeypatch.setattr(np, "load", noted(np.load))
    monkeypatch.setattr(np, "savez", noted(np.savez))
    Client(client.file).keep(request_of_server.model)
    client._kept()
    assert calls == [False] * 3


def test_a_new_clients_folder_is_its_own_wherever_it_is(tmp_path: Path, few: Ratings) -> None:
    write_toml(tmp_path / "policy.toml", agreed(few))
    settings = {"ratings": "own.csv", "state": "far/away/state"}
    client = Client(load_client(write_toml(tmp_path / "client.toml", settings)))
    assert client.enroll() is True
    assert stat.S_IMODE(client.file.state.stat().st_mode) == 0o700
    assert client.enroll() is False
    client.file.ledger.unlink()  # before it was ever used: nothing is forgotten with it
    assert client.enroll() is True


def test_enrolling_again_says_what_is_wrong_with_the_ledger(client: Client, few: Ratings) -> None:
    write_toml(client.file.policy, agreed(few, {"epsilon": 6000.0}))
    with pytest.raises(LedgerError, match="lowered, never raised"):
        Client(client.file).enroll()


def test_a_client_without_its_folder_is_told_what_to_do(
    tmp_path: Path, few: Ratings, request_of_server: Request
) -> None:
    write_toml(tmp_path / "policy.toml", agreed(few))
    client = Client(load_client(write_toml(tmp_path / "client.toml", {"ratings": "own.csv"})))
    with pytest.raises(LedgerError, match="'bgtplanner deploy enroll'"):
        client.hello(HELLO_REQUEST)
    with pytest.raises(MessageError):
        client.answer(request_of_server)
    assert not client.file.state.exists()


def test_no_other_process_answers_meanwhile(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.file.state / "lock"

    def upload(*_: Any) -> Any:
        with lock.open("ab") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return np.zeros(60), None

    monkeypatch.setattr(Client, "_train", upload)
    client.answer(request_of_server)
    with lock.open("ab") as file:  # and afterwards whoever comes
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_other_process_takes_a_step_of_a_sum_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(write_summing(tmp_path))
    asked, locked = table.round(), list[str]()

    def noted(real: Any) -> Any:
        def call(member: Member, step: int, *rest: Any) -> Any:
            home = member._store._folder.parent  # type: ignore[attr-defined]
            with (home / "lock").open("ab") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.append(home.parent.name)
            return real(member, step, *rest)

        return call

    with stand_in():
        monkeypatch.setattr(Member, "_step", noted(Member._step))
        table.play(asked)
    assert locked.count("0") in (4, 5)  # of which one is a witness's
    with (table.state(0) / "lock").open("ab") as file:  # and afterwards whoever comes
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_client_keeps_of_sums_is_its_own(tmp_path: Path) -> None:
    table = Table(write_summing(tmp_path))
    with stand_in():
        table.play(table.round())
    assert stat.S_IMODE(table.sums(0).stat().st_mode) == 0o700
    assert {path.name.partition("-")[2] for path in table.sums(0).iterdir()} == {"begun", "state"}
    with table.client(0).open_ledger() as ledger:
        assert (ledger.unsettled, ledger.newest_round("run")) == (0, 0)


# ---- what it agrees to


def test_a_model_that_the_policy_does_not_name_is_refused_whoever_knows_it(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"models": ["factorization"]}))
    for name in ("biases", "fedgnn", "somebody:Model"):
        with pytest.raises(MessageError, match="a model that the policy does not name"):
            Client(client.file).answer(of_model(name=name)(request_of_server))


def test_a_catalogue_as_long_as_agreed_is_not_too_long(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"most_items": 30}))
    assert len(Client(client.file).answer(request_of_server)) == 60


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"settings": {"unheard-of": 2.0}}, "settings that the model does not have"),
        ({"settings": {"mean": 0.6}}, "other settings of the model than the policy's"),
        ({"catalogue": "0" * 64}, "a catalogue that the policy does not name"),
        ({"dense": np.zeros(1, dtype=np.float32)}, "parameters of another shape than the model's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_a_model_is_refused(
    client: Client, request_of_server: Request, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(MessageError, match=f"^{problem}$"):
        client.keep(of_model(**changes)(request_of_server).model)


# ---- through the app, and in its own log


def test_the_app_says_who_it_is_to_who_speaks_its_protocol(client: Client) -> None:
    said = send(file_of(client), HELLO, HELLO_REQUEST.record())
    assert dict(said) == dict(client.hello(HELLO_REQUEST).record())
    for content in (RecordDict(), RecordDict({"hello": ConfigRecord({"protocol": 1})})):
        reply = send(file_of(client), HELLO, content)
        assert dict(reply) == {"reply": ConfigRecord({"status": "refused"})}


def test_the_owner_reads_why_something_was_refused(
    client: Client, request_of_server: Request, flower_log: pytest.LogCaptureFixture
) -> None:
    send(file_of(client), TRAIN, replace(request_of_server, clip=100.0).record())
    assert said_in(flower_log) == ["refused: a clip outside smallest_clip and largest_clip"]


@pytest.mark.parametrize("config", [{}, {"client-file": 3}, {"other": "client.toml"}])
def test_the_machine_has_to_name_the_client_file(config: dict[str, Any]) -> None:
    ours = {"client-file": "client.toml"}  # of the run: what a server sends does not count
    with pytest.raises(ConfigError, match=r'^--node-config: expected client-file="/path'):
        _file_of(Context(1, 1, config, RecordDict(), ours))
    assert _file_of(Context(1, 1, ours, RecordDict(), {})) == Path("client.toml")


def test_the_owner_reads_why_an_answer_was_noise_alone(
    client: Client, request_of_server: Request, flower_log: pytest.LogCaptureFixture
) -> None:
    client.file.ratings.unlink()
    client.answer(request_of_server)
    (line,) = said_in(flower_log)
    assert line.startswith(f"the answer is noise alone: {client.file.ratings}: ")


def test_the_owner_reads_how_many_ratings_were_left_out(
    client: Client, request_of_server: Request, flower_log: pytest.LogCaptureFixture
) -> None:
    client.answer(request_of_server)
    assert said_in(flower_log) == []
    rate(client, "u0,brand-new,2.0")
    client.answer(replace(request_of_server, round=1))
    assert said_in(flower_log) == ["1 ratings left out: not in this run's catalogue or scale"]


def test_the_owner_reads_why_a_step_of_a_sum_was_refused(
    tmp_path: Path, flower_log: pytest.LogCaptureFixture
) -> None:
    table = Table(write_summing(tmp_path))
    file, asked = tmp_path / "0" / "client.toml", table.round(colluders=0)
    with stand_in():
        reply = send(file, SUM, asked.step("keys").record())
        plain = send(file, TRAIN, asked.plan.record())
    assert dict(reply) == dict(plain) == {"reply": ConfigRecord({"status": "refused"})}
    sum_refused, plain_refused = said_in(flower_log)
    assert sum_refused.startswith("refused: round 0 of secure aggregation: it protects from 0")
    assert plain_refused.startswith("refused: an upload outside of a sum")
