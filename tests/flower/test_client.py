"""The client trusts nobody: what it refuses, what it repeats, what it never says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replace_file
from bgtplanner.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    LedgerError,
    LedgerTamperedError,
    MessageError,
    NothingLearnedError,
    StaleRoundError,
)
from bgtplanner.federation.answers import Answers
from bgtplanner.flower import client as module
from bgtplanner.flower import clientfile, training
from bgtplanner.flower.client import Client, client_app, make_client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import (
    CATALOGUE,
    HELLO,
    KEEP,
    TRAIN,
    Request,
    SentCatalogue,
    SentModel,
)
from bgtplanner.models.fedgnn import FedGNN
from flower.doubles import (
    AGREE_TO_TASTES,
    HELLO_REQUEST,
    POLICY,
    agreed,
    catalogue_for,
    first_request,
    spent,
    taste_request,
    write_client,
    write_toml,
)

pytestmark = pytest.mark.usefixtures("compiled_once")

Make = Callable[[Request], Request]


def of_model(**changes: Any) -> Make:
    return lambda request: replace(request, model=replace(request.model, **changes))


def send(file: Path, kind: str, content: RecordDict, app: Any = client_app) -> RecordDict:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    message = Message(content, 1, kind)
    context = Context(1, 1, {"client-file": str(file)}, RecordDict(), {"client-file": "/nowhere"})
    reply = app(message, context)
    assert not reply.has_error()
    return reply.content


@pytest.mark.parametrize(
    "change",
    [
        lambda request: replace(request, accountant="laplace/basic"),
        lambda request: replace(request, accountant="gaussian/authors"),
        lambda request: replace(request, accountant="gaussian/unheard-of"),
        lambda request: replace(request, trust="secagg"),
        lambda request: replace(request, unit="row"),
        lambda request: replace(request, charge=3.0),  # above largest_charge
        lambda request: replace(request, charge=1e-7),  # below smallest_charge
        lambda request: replace(request, clip=0.0001),
        lambda request: replace(request, clip=100.0),
        of_model(name="factorization"),
        of_model(settings={"mean": 2.0}),
        of_model(settings={"unheard-of": 2.0}),
        of_model(settings={"mean": 0.7, "level_shrinkage": 5.5}),
        of_model(catalogue="0" * 64),
        of_model(items=np.zeros((30, 4), dtype=np.float32)),
        of_model(dense=np.zeros(1, dtype=np.float32)),
    ],
)
def test_refuses_what_its_policy_does_not_allow(
    client: Client, request_of_server: Request, change: Make, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"largest_charge": 2.0}))
    file = client.file.ratings.parent / "client.toml"
    reply = send(file, TRAIN, change(request_of_server).record())
    assert dict(reply) == {"reply": ConfigRecord({"status": "refused"})}
    assert spent(file) == 0


def test_refuses_less_noise_than_its_policy_allows(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"smallest_noise_multiplier": 2.0}))
    with pytest.raises(MessageError, match="smallest_noise_multiplier"):
        Client(client.file).answer(request_of_server)
    assert len(Client(client.file).answer(replace(request_of_server, charge=0.2))) == 60


def test_refuses_a_longer_catalogue(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"most_items": 29}))
    with pytest.raises(MessageError, match="most_items"):
        Client(client.file).answer(request_of_server)


def test_refuses_what_its_ledger_cannot_pay(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"epsilon": 2.0}))  # lowered since it was made
    poor, file = Client(client.file), client.file.ratings.parent / "client.toml"
    poor.answer(replace(request_of_server, charge=0.15))
    before = spent(file)
    with pytest.raises(BudgetExceeded):
        poor.answer(replace(request_of_server, charge=0.15, round=1))
    reply = send(file, TRAIN, replace(request_of_server, charge=0.15, round=1).record())
    assert dict(reply) == {"reply": ConfigRecord({"status": "refused"})}
    assert spent(file) == before > 0


def test_the_same_request_is_answered_with_the_same_bytes_and_paid_once(
    client: Client, request_of_server: Request
) -> None:
    first = client.answer(request_of_server)
    file = client.file.ratings.parent / "client.toml"
    assert spent(file) == pytest.approx(1.0)
    np.testing.assert_array_equal(client.answer(request_of_server), first)
    rate(client, "u0,i1,2.0")  # a new rating has come meanwhile: what was sent was sent
    np.testing.assert_array_equal(Client(client.file).answer(request_of_server), first)
    assert spent(file) == pytest.approx(1.0)


def killed(*_: Any, **__: Any) -> None:
    raise SystemExit


@pytest.mark.parametrize("changed", [False, True])
def test_killed_before_it_could_keep_its_answer(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """The charge is on the disk, the answer is not, and nothing was sent: it stays that way."""
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "keep", killed)
        with pytest.raises(SystemExit):
            client.answer(request_of_server)
    file = client.file.ratings.parent / "client.toml"
    assert spent(file) == pytest.approx(1.0)
    if changed:
        rate(client, "u0,i1,2.0")
    with pytest.raises(StaleRoundError):
        Client(client.file).answer(request_of_server)
    assert spent(file) == pytest.approx(1.0)
    Client(client.file).answer(replace(request_of_server, round=1))
    assert spent(file) == pytest.approx(2.0)


@pytest.mark.parametrize("round_", [0, 3, 4])
def test_rounds_of_a_run_only_go_up(
    client: Client, request_of_server: Request, round_: int
) -> None:
    fourth = replace(request_of_server, round=4)
    client.answer(fourth)
    other = of_model(items=np.full((30, 3), 0.001, dtype=np.float32))(fourth)
    with pytest.raises(StaleRoundError):
        client.answer(replace(other, round=round_))
    assert spent(client.file.ratings.parent / "client.toml") == pytest.approx(1.0)
    client.answer(replace(other, run="another", round=round_))
    client.answer(replace(other, round=5))
    assert spent(client.file.ratings.parent / "client.toml") == pytest.approx(3.0)


def test_the_newest_answers_are_kept_and_no_more(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"answers_kept": 3}))
    client = Client(client.file)
    requests = [replace(request_of_server, round=index) for index in range(5)]
    answers = [client.answer(request) for request in requests]
    assert len(list((client.file.state / "answers").iterdir())) == 3
    for request in requests[:2]:
        with pytest.raises(StaleRoundError):
            client.answer(request)
    for request, answer in zip(requests[2:], answers[2:], strict=True):
        np.testing.assert_array_equal(Client(client.file).answer(request), answer)
    assert spent(client.file.ratings.parent / "client.toml") == pytest.approx(5.0)


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_damaged_answer_is_not_made_anew(
    client: Client, request_of_server: Request, content: bytes | None
) -> None:
    client.answer(request_of_server)
    (kept,) = (client.file.state / "answers").iterdir()
    if content is None:
        content = kept.read_bytes()[:-8]
    kept.write_bytes(content)
    with pytest.raises(StaleRoundError):
        client.answer(request_of_server)


def test_no_more_requests_than_agreed(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"requests_per_hour": 2.0}))
    now = 1e9

    def ask(index: int) -> Any:
        asked = Client(client.file, clock=lambda: now)
        return asked.answer(replace(request_of_server, round=index))

    Client(client.file, clock=lambda: now)._pacing.start()
    ask(0), ask(1)
    for _ in range(3):
        with pytest.raises(MessageError, match="requests_per_hour"):
            ask(2)
    ask(1)  # what is kept is sent again, however often
    now -= 1e8  # a clock that is set back gives nothing
    with pytest.raises(MessageError, match="requests_per_hour"):
        ask(2)
    now += 1800
    ask(2)
    with pytest.raises(MessageError, match="requests_per_hour"):
        ask(3)
    now += 1e9  # one that jumps ahead gives an hour's worth
    ask(3), ask(4)
    with pytest.raises(MessageError, match="requests_per_hour"):
        ask(5)
    (client.file.state / "pace.json").write_text("[nonsense")
    with pytest.raises(MessageError, match="requests_per_hour"):
        ask(5)
    assert spent(client.file.ratings.parent / "client.toml") == pytest.approx(5.0)


def rate(client: Client, row: str) -> None:
    with client.file.ratings.open("a", encoding="utf-8") as table:
        table.write(row + "\n")


@pytest.mark.parametrize(
    "content", ["user,item,rating\n", "", "nonsense\n", "user,item,rating\nu,i1,five\n", None]
)
def test_a_client_without_ratings_answers_with_noise_like_the_others(
    client: Client,
    request_of_server: Request,
    content: str | None,
    flower_log: pytest.LogCaptureFixture,
) -> None:
    if content is None:
        client.file.ratings.unlink()
    else:
        client.file.ratings.write_text(content, encoding="utf-8")
    file = client.file.ratings.parent / "client.toml"
    reply = send(file, TRAIN, request_of_server.record())
    upload = reply["upload"]["upload"].numpy()  # type: ignore[index,union-attr]
    assert upload.shape == (60,)
    assert (upload != 0).all()
    assert spent(file) == pytest.approx(1.0)
    assert "the answer is noise alone" in flower_log.text


def test_whatever_goes_wrong_with_the_ratings_shows_in_the_log_alone(
    client: Client,
    request_of_server: Request,
    monkeypatch: pytest.MonkeyPatch,
    flower_log: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("user u0 gave item i3 a 5.0")

    monkeypatch.setattr(training, "train_client", broken)
    file = client.file.ratings.parent / "client.toml"
    assert "upload" in send(file, TRAIN, request_of_server.record())
    assert "ValueError" in flower_log.text
    assert "u0" not in flower_log.text


def test_two_processes_that_answer_for_one_client_pay_once(
    client: Client, request_of_server: Request
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: Client(client.file).answer(request_of_server), range(8)))
    assert all(np.array_equal(answer, found[0]) for answer in found)
    assert spent(client.file.ratings.parent / "client.toml") == pytest.approx(1.0)


def test_charge_is_on_the_disk_before_a_rating_is_read(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = client.file.ratings.parent / "client.toml", []

    def read(*_: Any) -> Any:
        seen.append(spent(file))
        raise OSError

    monkeypatch.setattr(Client, "_ratings_for", read)
    client.answer(request_of_server)
    assert seen == [pytest.approx(1.0)]


def test_charge_is_on_the_disk_before_noise_is_drawn(
    federation: tuple[Path, list[Path]], request_of_server: Request, few: Ratings
) -> None:
    file, seen = federation[1][0], []

    class Watching:
        def normal(self, shape: tuple[int, ...]) -> Any:
            seen.append(spent(file))
            return np.zeros(shape)

    client = Client(load_client(file), noise=lambda *_: Watching())
    client.hold(catalogue_for(few))
    client.answer(request_of_server)
    assert seen == [pytest.approx(1.0)]


def test_noise_is_on_every_coordinate(client: Client, request_of_server: Request) -> None:
    upload = client.answer(replace(request_of_server, charge=0.01))
    assert (upload != 0).all()
    assert upload.std() == pytest.approx(2 * 0.1 / 0.01**0.5, rel=0.4)


def test_no_seed_can_be_set_from_outside(
    federation: tuple[Path, list[Path]], request_of_server: Request, few: Ratings
) -> None:
    for name in ("seed", "noise"):
        write_toml(federation[1][0].parent / "policy.toml", agreed(few, {name: 1}))
        file = load_client(federation[1][0])
        with pytest.raises(ConfigError, match=name):
            Client(file)
    write_toml(federation[1][0].parent / "policy.toml", agreed(few))
    content = request_of_server.record()
    content["plan"] = ConfigRecord({**content["plan"], "seed": 1})  # type: ignore[dict-item]
    assert "upload" not in send(federation[1][0], TRAIN, content)


@pytest.mark.parametrize("kind", [HELLO, TRAIN, KEEP])
def test_whatever_goes_wrong_is_one_word_to_the_server(
    client: Client,
    request_of_server: Request,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    flower_log: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("user u0 gave item i3 a 5.0")

    monkeypatch.setattr(Client, {HELLO: "hello", TRAIN: "answer", KEEP: "keep"}[kind], broken)
    content = HELLO_REQUEST.record() if kind == HELLO else request_of_server.record()
    if kind == KEEP:
        content = request_of_server.model.record()
    reply = send(client.file.ratings.parent / "client.toml", kind, content)
    assert dict(reply) == {"reply": ConfigRecord({"status": "refused"})}
    assert "ValueError" in flower_log.text
    assert "u0" not in flower_log.text


def test_a_missing_client_file_is_a_refusal(
    client: Client, request_of_server: Request, tmp_path: Path
) -> None:
    file = client.file.ratings.parent / "client.toml"
    assert "upload" not in send(tmp_path / "nowhere.toml", TRAIN, request_of_server.record())
    assert spent(file) == 0
    app = make_client_app(find=lambda context: Path(str(context.node_config["other"])))
    assert "name" not in send(file, HELLO, HELLO_REQUEST.record(), app)["reply"]


def test_without_a_ledger_nothing_is_answered_and_none_is_made(
    client: Client, request_of_server: Request
) -> None:
    client.answer(request_of_server)
    client.file.ledger.unlink()
    with pytest.raises(LedgerError, match="deploy enroll"):
        client.answer(replace(request_of_server, round=1))
    with pytest.raises(LedgerError, match="gone, though it was used"):
        client.enroll()
    assert not client.file.ledger.exists()


def test_a_ledger_from_a_backup_is_refused_until_the_loss_is_stated(
    client: Client, request_of_server: Request, tmp_path: Path
) -> None:
    client.answer(request_of_server)
    shutil.copy(client.file.ledger, tmp_path / "backup")
    client.answer(replace(request_of_server, round=1))
    shutil.copy(tmp_path / "backup", client.file.ledger)
    for rest in ("-wal", "-shm"):
        Path(f"{client.file.ledger}{rest}").unlink(missing_ok=True)
    with pytest.raises(LedgerTamperedError, match="ledger restore"):
        client.answer(replace(request_of_server, round=2))


def test_a_client_moves_to_another_machine_with_its_spending_and_its_name(
    client: Client, request_of_server: Request, tmp_path: Path
) -> None:
    first, name = client.answer(request_of_server), client.hello(HELLO_REQUEST).name
    shutil.copytree(client.file.ratings.parent, tmp_path / "new machine")
    moved = Client(load_client(tmp_path / "new machine" / "client.toml"))
    assert moved.hello(HELLO_REQUEST).name == name
    assert moved.enroll() is False
    np.testing.assert_array_equal(moved.answer(request_of_server), first)
    moved.answer(replace(request_of_server, round=1))
    assert spent(tmp_path / "new machine" / "client.toml") == pytest.approx(2.0)


def test_a_budget_can_be_lowered_and_never_raised(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, {"epsilon": POLICY["epsilon"] + 1}))
    with pytest.raises(LedgerError, match="lowered, never raised"):
        Client(client.file).answer(request_of_server)


def test_items_and_ratings_outside_the_catalogue_are_left_out(
    client: Client, few: Ratings
) -> None:
    given = catalogue_for(few)
    before, none = client.file.ratings_over(given.items, given.low, given.high)
    with client.file.ratings.open("a", encoding="utf-8") as table:
        table.write("u0,brand-new,2.0\nu0,i1,99\nsomebody,brand-new,3\n")
    after, left_out = client.file.ratings_over(given.items, given.low, given.high)
    assert (none, left_out) == (0, 3)
    assert len(after) == len(before)
    assert (after.n_users, after.n_clients) == (before.n_users + 1, 1)


def test_users_of_one_file_are_one_client(
    few: Ratings, tmp_path: Path, request_of_server: Request
) -> None:
    everybody = replace(few, client_of_user=np.zeros(3, dtype=np.int32))
    file = write_client(tmp_path / "all", everybody, 0, agreed(few))
    client = Client(load_client(file))
    upload = client.answer(replace(request_of_server, charge=9e3))  # hardly any noise
    assert np.linalg.norm(upload) == pytest.approx(0.1, rel=0.2)  # one clip over all of them
    assert spent(file) == pytest.approx(9e3)


def test_recommends_what_was_not_rated(client: Client, request_of_server: Request) -> None:
    with pytest.raises(ConfigError, match="no model has come yet"):
        client.recommend("u0", 3)
    items = np.zeros((30, 3), dtype=np.float32)
    items[:, 0] = np.linspace(-0.3, 0.3, 30)
    client.keep(replace(request_of_server.model, items=items))
    best = client.recommend("u0", 3)
    rated = client.file.ratings.read_text(encoding="utf-8")
    assert len(best) == 3
    assert all(f"u0,{item}," not in rated for item, _ in best)
    assert [value for _, value in best] == sorted((value for _, value in best), reverse=True)
    assert client.recommend(None, 3) == best
    assert len(client.recommend("u0", 100)) < 30
    with pytest.raises(ConfigError, match="--client nobody"):
        client.recommend("nobody", 3)


def test_recommends_with_its_own_titles_and_features(
    client: Client, request_of_server: Request, flower_log: pytest.LogCaptureFixture
) -> None:
    """A model that has learned nothing: only the features in the client's own table help."""
    client.keep(request_of_server.model)
    with pytest.raises(NothingLearnedError, match="nothing was learned from others"):
        client.recommend("u0", 3)
    home = client.file.ratings.parent
    genres = "".join(f"i{item},The {item}th,{'AB'[item % 2]}\n" for item in range(30))
    (home / "items.csv").write_text(f"item,title,genre\n{genres}")
    write_toml(home / "client.toml", {"ratings": "ratings.csv", "items": "items.csv"})
    titled = Client(load_client(home / "client.toml"))
    (block,) = titled.recommender().blocks([0], 3)
    assert block.bases == ["features"]
    assert [row.title for row in block.lists[0]] == [
        f"The {row.item[1:]}th" for row in block.lists[0]
    ]
    assert [item for item, _ in titled.recommend("u0", 3)] == [row.item for row in block.lists[0]]
    assert "own ratings lean towards" in flower_log.text
    items = np.zeros((30, 3), dtype=np.float32)
    items[:, 0] = np.linspace(-0.3, 0.3, 30)
    titled.keep(replace(request_of_server.model, items=items))
    (block,) = titled.recommender().blocks([0], 3)
    assert block.bases == ["model"]
    (home / "items.csv").write_text("item,title\nx,y\n")
    with pytest.raises(DataError, match="none of the items"):
        titled.recommender()


def test_keeps_no_model_that_it_does_not_agree_to(
    client: Client, request_of_server: Request
) -> None:
    file = client.file.ratings.parent / "client.toml"
    bad = of_model(items=np.zeros((30, 4), dtype=np.float32))(request_of_server).model
    assert send(file, KEEP, bad.record())["reply"]["status"] == "refused"
    assert not (client.file.state / "model.npz").exists()
    assert send(file, KEEP, request_of_server.model.record())["reply"]["status"] == "kept"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"epsilon": 0.0}, "policy.toml: epsilon = 0.0: expected a number from 1e-9 to 100,000"),
        ({"rule": "gaussian/authors"}, "rule = 'gaussian/authors': expected a sound accountant"),
        ({"rule": "nonsense"}, "rule"),
        ({"largest_chargee": 1.0}, "largest_chargee"),
        ({"smallest_charge": 1e6}, "smallest_charge = 1000000.0: expected at most largest_charge"),
        ({"scale": [5.0, 1.0]}, r"scale = \[5.0, 1.0\]: expected the lower rating first"),
        ({"catalogues": []}, "catalogues"),
        ({"catalogues": ["abc"]}, "catalogues = 'abc': expected SHA-256"),
        ({"requests_per_hour": 0.0}, "requests_per_hour"),
        ({"answers_kept": 0}, "answers_kept"),
    ],
)
def test_a_policy_that_cannot_be_used_says_so(
    client: Client, values: dict[str, Any], problem: str, few: Ratings
) -> None:
    write_toml(client.file.policy, agreed(few, values))
    with pytest.raises(ConfigError, match=problem):
        Client(client.file)


def test_a_policy_must_say_how_much(client: Client) -> None:
    write_toml(client.file.policy, {"delta": 1e-5})
    with pytest.raises(ConfigError, match=r"policy\.toml: epsilon: expected a value"):
        Client(client.file)
    client.file.policy.write_text("epsilon = ", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        Client(client.file)
    client.file.policy.unlink()
    with pytest.raises(ConfigError, match="deploy init"):
        Client(client.file)


def test_the_installed_app_has_the_systems_noise() -> None:
    assert module.client_app is client_app
    assert make_client_app.__kwdefaults__["noise"] is None


def test_a_witness_notices_that_the_whole_folder_comes_from_a_backup(
    few: Ratings, request_of_server: Request, tmp_path: Path
) -> None:
    path = write_client(tmp_path / "client", few, 0, agreed(few))
    shutil.rmtree(path.parent / "state")
    with path.open("a", encoding="utf-8") as file:
        file.write(f'witness = "{tmp_path / "heads.txt"}"\n')
    client = Client(load_client(path))
    client.enroll()
    client.hold(catalogue_for(few))
    client.answer(request_of_server)
    shutil.copytree(client.file.state, tmp_path / "backup")
    client.answer(replace(request_of_server, round=1))
    shutil.rmtree(client.file.state)
    shutil.copytree(tmp_path / "backup", client.file.state)
    with pytest.raises(LedgerTamperedError):
        Client(client.file).answer(replace(request_of_server, round=2))


# ---- the catalogue, which comes once


def test_a_catalogue_is_asked_for_if_the_policy_names_it_and_it_is_not_here(
    federation: tuple[Path, list[Path]], request_of_server: Request, few: Ratings
) -> None:
    file, catalogue = federation[1][0], catalogue_for(few)
    unknown = {"reply": ConfigRecord({"status": "unknown"})}
    assert dict(send(file, TRAIN, request_of_server.record())) == unknown
    assert dict(send(file, KEEP, request_of_server.model.record())) == unknown
    with pytest.raises(MessageError, match="a catalogue that has not come yet"):
        Client(load_client(file)).answer(request_of_server)
    other = of_model(catalogue="0" * 64)(request_of_server)
    assert dict(send(file, TRAIN, other.record())) == {
        "reply": ConfigRecord({"status": "refused"})
    }
    assert spent(file) == 0
    assert send(file, CATALOGUE, catalogue.record())["reply"]["status"] == "kept"
    assert "upload" in send(file, TRAIN, request_of_server.record())
    assert send(file, KEEP, request_of_server.model.record())["reply"]["status"] == "kept"
    stored = file.parent / "state" / f"catalogue-{catalogue.digest}.npz"
    for content in (b"", stored.read_bytes()[:-30], b"nonsense"):  # damaged: it can be had again
        stored.write_bytes(content)
        assert dict(send(file, TRAIN, request_of_server.record())) == unknown


def test_another_catalogue_than_the_policys_is_not_stored(client: Client, few: Ratings) -> None:
    catalogue, file = catalogue_for(few), client.file.ratings.parent / "client.toml"
    before = sorted(client.file.state.iterdir())
    for other in (
        replace(catalogue, items=catalogue.items[::-1]),
        replace(catalogue, titles=tuple(f"The {name}" for name in catalogue.items)),
        replace(catalogue, high=catalogue.high + 1),
        catalogue_for(few, features(1)),
    ):
        assert send(file, CATALOGUE, other.record())["reply"]["status"] == "refused"
        with pytest.raises(MessageError, match="a catalogue that the policy does not name"):
            client.hold(other)
    assert sorted(client.file.state.iterdir()) == before


def test_what_is_stored_under_another_digest_is_not_used(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    other = catalogue_for(few, features(1))
    write_toml(client.file.policy, agreed(few, {"catalogues": [other.digest]}))
    Client(client.file).hold(other)
    (stored,) = client.file.state.glob("catalogue-*")  # the former one is gone
    stored.rename(stored.with_name(f"catalogue-{request_of_server.model.catalogue}.npz"))
    write_toml(client.file.policy, agreed(few))
    assert Client(client.file).lacks(request_of_server.model.catalogue)


def test_a_catalogue_of_another_scale_than_the_policys_is_refused(
    client: Client, few: Ratings
) -> None:
    other = replace(catalogue_for(few), high=50.0)
    write_toml(client.file.policy, agreed(few, {"catalogues": [other.digest]}))
    with pytest.raises(MessageError, match="another scale"):
        Client(client.file).hold(other)


def test_recommends_with_titles_and_features_of_the_catalogue(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    plain = catalogue_for(few, features(2))
    catalogue = replace(plain, titles=tuple(f"The {name}" for name in plain.items))
    write_toml(client.file.policy, agreed(few, {"catalogues": [catalogue.digest]}))
    titled = Client(client.file)
    titled.hold(catalogue)
    titled.keep(of_model(catalogue=catalogue.digest)(request_of_server).model)
    (block,) = titled.recommender().blocks([0], 3)
    assert block.bases == ["features"]
    assert [row.title for row in block.lists[0]] == [f"The {row.item}" for row in block.lists[0]]


@pytest.fixture
def taster(few: Ratings, tmp_path: Path) -> Client:
    """A client whose policy names whatever catalogue a test makes."""
    policy = agreed(few, AGREE_TO_TASTES | {"most_features": 3})
    return Client(load_client(write_client(tmp_path / "taster", few, 0, policy)))


def agreeing(client: Client, few: Ratings, catalogue: SentCatalogue) -> Client:
    policy = {"most_features": 3, "catalogues": [catalogue.digest]}
    write_toml(client.file.policy, agreed(few, AGREE_TO_TASTES | policy))
    return Client(client.file)


def features(columns: int, value: float = 1.0) -> Any:
    made = np.zeros((30, columns))
    made[:: max(columns, 1)] = value
    return made


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_features_come_with_the_catalogue(taster: Client, few: Ratings, columns: int) -> None:
    catalogue = catalogue_for(few, features(columns))
    taster = agreeing(taster, few, catalogue)
    taster.hold(catalogue)
    request = taste_request(few, catalogue)
    answer = taster.answer(replace(request, charge=9e3))  # hardly any noise
    assert answer.shape == (30 * (2 + 2),)  # nothing is told about features
    assert np.linalg.norm(answer) == pytest.approx(0.1, rel=0.3)  # one clip over all of it
    with np.load(taster.file.state / "local.npz") as stored:
        assert stored["leaf0"].shape == (1, 3 + 2 + columns)
    ratings = taster._ratings_for(request.model)
    model, shared = taster._model_of(request.model)
    assert shared.items.shape == (30, 7 + columns)
    local = taster._local(model, shared, request.model, ratings, request.run)
    assert np.asarray(local).any()  # what was kept fits what is asked for next
    assert len(taster.recommend(None, 3)) == 3


@pytest.mark.parametrize(
    "sent",
    [
        features(4),  # above most_features
        features(2, np.nan),
        features(2, np.inf),
        features(2, -np.inf),
        features(2, 1e30),
        features(2, np.nextafter(np.float32(1), np.float32(2))),
        features(2, -1.1),
    ],
)
def test_features_that_no_catalogue_has_are_refused(
    taster: Client, few: Ratings, sent: Any
) -> None:
    """Even if the policy names them: they would only make the arithmetic overflow."""
    catalogue = catalogue_for(few, sent)
    taster = agreeing(taster, few, catalogue)
    with pytest.raises(MessageError, match=r"most_features|not finite, or too large"):
        taster.hold(catalogue)
    file = taster.file.ratings.parent / "client.toml"
    assert send(file, CATALOGUE, catalogue.record())["reply"]["status"] == "refused"
    assert send(file, TRAIN, taste_request(few, catalogue).record())["reply"]["status"] == (
        "unknown"
    )
    assert spent(file) == 0
    assert not (taster.file.state / "model.npz").exists()


def test_a_server_can_send_no_features_with_its_parameters(taster: Client, few: Ratings) -> None:
    request = taste_request(few)
    items = np.concatenate([request.model.items, features(2)], axis=1).astype(np.float32)
    with pytest.raises(MessageError, match="parameters of another shape"):
        taster.answer(of_model(items=items)(request))


@pytest.mark.parametrize("column", range(7))
@pytest.mark.parametrize("value", [np.nan, np.inf, 1.1e6, -1e30])
def test_absurd_parameters_are_refused(
    taster: Client, few: Ratings, column: int, value: float
) -> None:
    request = taste_request(few)
    request.model.items[7, column] = value
    with pytest.raises(MessageError, match="not finite, or too large"):
        taster.answer(request)


def test_other_axes_than_the_policys_are_refused(taster: Client, few: Ratings) -> None:
    request = taste_request(few)
    for settings in ({}, {"axes": 2}, {"axes": 3, "taste_share": 0.6}, {"axes": 2, "boldness": 1}):
        changed = replace(request.model, settings=settings)
        with pytest.raises(MessageError):
            taster.answer(replace(request, model=changed))


def test_features_alone_are_nothing_that_was_learned(taster: Client, few: Ratings) -> None:
    catalogue = catalogue_for(few, features(2))
    taster = agreeing(taster, few, catalogue)
    taster.hold(catalogue)
    request = taste_request(few, catalogue)
    taster.keep(request.model)
    assert taster.recommender().learned
    request.model.items[:] = 0.0
    taster.keep(request.model)
    assert not taster.recommender().learned


# ---- ratings that arrive, and users who come


def test_ratings_count_from_the_next_request_on(
    client: Client, request_of_server: Request
) -> None:
    quiet = replace(request_of_server, charge=4e3)  # hardly any noise
    client.file.ratings.write_text("user,item,rating\nu0,i1,2.0\n", encoding="utf-8")
    first = client.answer(quiet).reshape(30, 2)
    rate(client, "u0,i7,4.0")
    second = client.answer(replace(quiet, round=1)).reshape(30, 2)
    assert np.abs(first[7]).max() < 0.01 < np.abs(second[7]).max()


@pytest.mark.parametrize("cut", ["u0,i7,4", "u0,i7", "u", "u0,i7,4.0"])
def test_a_line_that_is_half_written_is_no_rating(
    client: Client, request_of_server: Request, cut: str, flower_log: pytest.LogCaptureFixture
) -> None:
    """As any other client, to the server: the answer is noise, and was paid for."""
    with client.file.ratings.open("a", encoding="utf-8") as table:
        table.write(cut)
    with pytest.raises(DataError):
        client.file.table()
    file = client.file.ratings.parent / "client.toml"
    assert "upload" in send(file, TRAIN, request_of_server.record())
    assert spent(file) == pytest.approx(1.0)
    assert "the answer is noise alone" in flower_log.text


def test_a_table_that_is_replaced_while_it_is_read_is_read_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = client.file.ratings
    real, times = clientfile.read_table, [2]

    def replaced(path: Path, layout: Any) -> Any:
        found = real(path, layout)
        if times[0]:
            times[0] -= 1
            replace_file(path, b"user,item,rating\nu0,i%d,2.0\n" % times[0])
        return found

    monkeypatch.setattr(clientfile, "read_table", replaced)
    assert client.file.table().item_labels.tolist() == ["i0"]
    times[0] = 100
    with pytest.raises(DataError, match="changing all the time"):
        client.file.table()
    assert table.exists()


def test_users_who_come_to_a_client_take_nothing_from_those_who_were_there(
    few: Ratings, tmp_path: Path
) -> None:
    own = {"dim": 2}
    policy = agreed(few, {"models": ["fedgnn"], "settings": {"fedgnn": own}})
    client = Client(load_client(write_client(tmp_path / "home", few, 0, policy)))
    model = FedGNN(**own)
    shared, _ = model.initial(jax.random.key(1), 1, 30)
    sent = SentModel(
        name="fedgnn", settings=own, catalogue=catalogue_for(few).digest,
        items=np.asarray(shared.items), dense=np.asarray(shared.dense),
    )  # fmt: skip
    request = replace(first_request(few, {}), model=sent)

    def kept() -> tuple[list[str], Any, list[float]]:
        """Users, their embeddings, and how many steps each has taken."""
        with np.load(client.file.state / "local.npz") as stored:
            about = json.loads(bytes(stored["about"]))
            return about["users"], stored["leaf0"], stored["leaf1"].tolist()

    client.answer(request)
    users, first, steps = kept()
    assert (users, steps) == (["u0"], [1.0])
    text = client.file.ratings.read_text(encoding="utf-8")
    head, _, rows = text.partition("\n")
    client.file.ratings.write_text(f"{head}\na-new-one,i3,4.0\n{rows}", encoding="utf-8")
    client.answer(replace(request, round=1))
    users, second, steps = kept()
    assert dict(zip(users, steps, strict=True)) == {"a-new-one": 1.0, "u0": 2.0}
    moved = np.abs(second[users.index("u0")] - first[0]).max()
    assert 0 < moved <= 0.0101  # one step of its optimizer
    client.answer(replace(request, run="another"))  # a new run begins anew
    assert kept()[2] == [1.0, 1.0]
