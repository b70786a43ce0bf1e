"""The client trusts nobody: what it refuses, what it repeats, what it never says."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import (
    BGTPlannerError,
    BudgetExceeded,
    ConfigError,
    LedgerError,
    LedgerTamperedError,
    MessageError,
    NothingLearnedError,
    StaleRoundError,
)
from bgtplanner.flower import training
from bgtplanner.flower.client import Client, client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import (
    CATALOGUE,
    HELLO,
    KEEP,
    SUM,
    TRAIN,
    Hello,
    ModelFile,
    Reply,
    Request,
    Sent,
    SentCatalogue,
    SentModel,
    Upload,
)
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.published.model import load_model
from flower.doubles import (
    AGREE_TO_TASTES,
    HELLO_REQUEST,
    POLICY,
    agreed,
    catalogue_for,
    first_request,
    lists,
    published,
    spent,
    taste_request,
    write_client,
    write_toml,
)
from made import tastes

pytestmark = pytest.mark.usefixtures("compiled_once")

Make = Callable[[Request], Request]
REFUSED, UNKNOWN, KEPT = Reply("refused"), Reply("unknown"), Reply("kept")


def of_model(**changes: Any) -> Make:
    return lambda request: replace(request, model=replace(request.model, **changes))


def file_of(client: Client) -> Path:
    return client.file.ratings.parent / "client.toml"


def send(file: Path, kind: str, content: Sent | RecordDict) -> Sent:
    """What the installed app answers, whoever sends it what."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    message = Message(content if isinstance(content, RecordDict) else content.record(), 1, kind)
    context = Context(1, 1, {"client-file": str(file)}, RecordDict(), {"client-file": "/nowhere"})
    answer = client_app(message, context).content
    for expected in (Reply, Upload, Hello):
        try:
            return expected.read(answer)
        except MessageError:
            continue
    raise AssertionError("no answer of a client")


def rate(client: Client, row: str) -> None:
    with client.file.ratings.open("a", encoding="utf-8") as table:
        table.write(row + "\n")


def agreeing(client: Client, few: Ratings, **changes: Any) -> Client:
    """The client once its policy has changed."""
    write_toml(client.file.policy, agreed(few, changes))
    return Client(client.file)


# ---- what it refuses


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda asked: replace(asked, accountant="laplace/basic"), "another rule"),
        (lambda asked: replace(asked, trust="secagg"), "another trust"),
        (lambda asked: replace(asked, unit="row"), "another trust or unit"),
        (lambda asked: replace(asked, charge=3.0), "a charge above"),
        (of_model(name="somebody:Model"), "a model that the policy does not name"),
        (of_model(settings={"mean": 0.6}), "other settings"),
        (of_model(settings={"unheard-of": 2.0}), "settings that the model does not have"),
        (of_model(catalogue="0" * 64), "a catalogue that the policy does not name"),
        (of_model(items=np.zeros((30, 4), dtype=np.float32)), "parameters of another shape"),
        (of_model(dense=np.zeros(1, dtype=np.float32)), "parameters of another shape"),
    ],
)
def test_refuses_what_its_policy_does_not_allow(
    client: Client, request_of_server: Request, change: Make, problem: str, few: Ratings
) -> None:
    client = agreeing(client, few, largest_charge=2.0)
    with pytest.raises(MessageError, match=problem):
        client.answer(change(request_of_server))
    assert send(file_of(client), TRAIN, change(request_of_server)) == REFUSED
    assert spent(file_of(client)) == 0


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"smallest_noise_multiplier": 2.0}, "smallest_noise_multiplier"),
        ({"most_items": 29}, "most_items"),
        ({"scale": [1.0, 50.0]}, "another scale"),
        ({"epsilon": POLICY["epsilon"] + 1}, "lowered, never raised"),
        ({"models": ["factorization"]}, "a model that the policy does not name"),
    ],
)
def test_refuses_by_the_policy_as_it_is_now(
    client: Client, request_of_server: Request, few: Ratings, policy: Any, problem: str
) -> None:
    with pytest.raises(BGTPlannerError, match=problem):
        agreeing(client, few, **policy).answer(request_of_server)
    assert len(agreeing(client, few, most_items=30).answer(request_of_server)) == 60


def test_refuses_what_its_ledger_cannot_pay(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    poor, asked = agreeing(client, few, epsilon=2.0), replace(request_of_server, charge=0.15)
    poor.answer(asked)
    before = spent(file_of(client))
    with pytest.raises(BudgetExceeded):
        poor.answer(replace(asked, round=1))
    assert send(file_of(client), TRAIN, replace(asked, round=1)) == REFUSED
    assert spent(file_of(client)) == before > 0


def test_no_more_requests_than_agreed(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    agreeing(client, few, requests_per_hour=2.0)
    limited = Client(client.file, clock=lambda: 1e9)
    limited._pacing.start()
    for index in (0, 1, 1):  # what is kept is sent again, however often
        limited.answer(replace(request_of_server, round=index))
    with pytest.raises(MessageError, match="requests_per_hour"):
        limited.answer(replace(request_of_server, round=2))
    assert spent(file_of(client)) == pytest.approx(2.0)


@pytest.mark.parametrize(("column", "value"), [(0, np.nan), (6, 1.1e6), (0, -1e30)])
def test_absurd_parameters_are_refused(
    taster: Client, few: Ratings, column: int, value: float
) -> None:
    request = taste_request(few)
    request.model.items[7, column] = value
    with pytest.raises(MessageError, match="not finite, or too large"):
        taster.answer(request)


# ---- what it repeats


def test_the_same_request_is_answered_with_the_same_bytes_and_paid_once(
    client: Client, request_of_server: Request
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: Client(client.file).answer(request_of_server), range(8)))
    rate(client, "u0,i1,2.0")  # a new rating has come meanwhile: what was sent was sent
    first = client.answer(request_of_server)
    assert all(np.array_equal(answer, first) for answer in found)
    assert spent(file_of(client)) == pytest.approx(1.0)


def test_the_newest_answers_are_kept_and_no_other_is_made_anew(
    client: Client, request_of_server: Request, few: Ratings
) -> None:
    client = agreeing(client, few, answers_kept=2)
    requests = [replace(request_of_server, round=index) for index in range(3)]
    answers = [client.answer(request) for request in requests[:2]]
    folder = client.file.state / "answers"
    half = folder / ".half-written"  # by a process that was killed
    half.write_bytes(b"secret")
    answers.append(client.answer(requests[2]))
    assert not half.exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for request, answer in zip(requests[1:], answers[1:], strict=True):
        assert Client(client.file).answer(request).tobytes() == answer.tobytes()
    for kept in folder.iterdir():
        kept.write_bytes(kept.read_bytes()[:-8])
    for request in requests:
        with pytest.raises(StaleRoundError):
            client.answer(request)
    assert spent(file_of(client)) == pytest.approx(3.0)


# ---- what it never says


@pytest.mark.parametrize("content", ["", "u,i1,five\n", None, "u0,i3,5.0\n"])
def test_a_client_whose_ratings_cannot_be_used_answers_with_noise_like_the_others(
    client: Client, request_of_server: Request, content: str | None,
    flower_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client.file.ratings.unlink()
    if content is not None:
        client.file.ratings.write_text("user,item,rating\n" + content, encoding="utf-8")
    told = Mock(side_effect=ValueError("user u0 gave item i3 a 5.0"))
    monkeypatch.setattr(training, "train_client", told)
    upload = send(file_of(client), TRAIN, replace(request_of_server, charge=0.01))
    assert isinstance(upload, Upload)
    assert (upload.values != 0).all()
    assert upload.values.std() == pytest.approx(2 * 0.1 / 0.01**0.5, rel=0.4)
    assert spent(file_of(client)) == pytest.approx(0.01)
    assert "the answer is noise alone" in flower_log.text
    assert ("ValueError" in flower_log.text) == told.called == (content == "u0,i3,5.0\n")
    assert "u0" not in flower_log.text


@pytest.mark.parametrize("kind", [HELLO, TRAIN, KEEP, SUM])
def test_whatever_goes_wrong_is_one_word_to_the_server(
    client: Client, request_of_server: Request, kind: str, monkeypatch: pytest.MonkeyPatch,
    flower_log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for method in ("hello", "answer", "keep", "step"):
        told = Mock(side_effect=ValueError("user u0 gave item i3 a 5.0"))
        monkeypatch.setattr(Client, method, told)
    contents: dict[str, Sent] = {HELLO: HELLO_REQUEST, KEEP: ModelFile(b"")}
    for content in (contents.get(kind, request_of_server), RecordDict()):
        assert send(file_of(client), kind, content) == REFUSED
    assert "u0" not in flower_log.text


def test_the_owner_reads_why_something_was_refused_or_left_out(
    client: Client, request_of_server: Request, flower_log: pytest.LogCaptureFixture
) -> None:
    send(file_of(client), TRAIN, replace(request_of_server, clip=100.0))
    assert "refused: a clip outside smallest_clip and largest_clip" in flower_log.messages
    rate(client, "u0,brand-new,2.0")
    client.answer(request_of_server)
    left_out = "1 ratings left out: not in this run's catalogue or scale"
    assert left_out in flower_log.messages


# ---- its ledger and its folder


def test_charge_is_on_the_disk_before_a_rating_is_read_or_noise_is_drawn(
    federation: tuple[Path, list[Path]], request_of_server: Request, few: Ratings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file, seen = federation[1][0], []

    def note(*_: Any) -> Any:
        seen.append(spent(file))
        raise OSError

    class Watching:
        def normal_steps(self, _: int, shape: tuple[int, ...]) -> Any:
            seen.append(spent(file))
            return np.zeros(shape, dtype=np.int64)

    monkeypatch.setattr(Client, "_ratings_for", note)
    client = Client(load_client(file), noise=lambda *_: Watching())
    client.hold(catalogue_for(few))
    client.answer(request_of_server)
    assert seen == [pytest.approx(1.0)] * 2
    with client.open_ledger() as ledger:
        assert (ledger.unsettled, ledger.newest_round("first")) == (0, 0)


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


def test_a_new_clients_folder_is_its_own_wherever_it_is(tmp_path: Path, few: Ratings) -> None:
    write_toml(tmp_path / "policy.toml", agreed(few))
    settings = {"ratings": "own.csv", "state": "far/away/state"}
    client = Client(load_client(write_toml(tmp_path / "client.toml", settings)))
    with pytest.raises(LedgerError, match="'bgtplanner deploy enroll'"):
        client.hello(HELLO_REQUEST)
    assert not client.file.state.exists()
    assert client.enroll() is True
    assert stat.S_IMODE(client.file.state.stat().st_mode) == 0o700
    assert client.enroll() is False
    client.file.ledger.unlink()  # before it was ever used: nothing is forgotten with it
    assert client.enroll() is True


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_used_ledger_without_its_head_is_refused(
    client: Client, request_of_server: Request, tmp_path: Path, rounds: int
) -> None:
    """Also one from before the first round, if an answer or what was kept shows that it is old."""
    shutil.copy(client.file.ledger, tmp_path / "backup")
    for index in range(2):
        client.answer(replace(request_of_server, round=index))
    if not rounds:
        shutil.copy(tmp_path / "backup", client.file.ledger)
        shutil.rmtree(client.file.state / "answers")
    (client.file.state / "head").unlink()
    with pytest.raises(LedgerError, match="has taken part in a round"):
        client.answer(replace(request_of_server, round=2))


@pytest.mark.parametrize("summed", [False, True])
def test_a_ledger_older_than_the_newest_answer_is_refused(
    client: Client, request_of_server: Request, tmp_path: Path, summed: bool
) -> None:
    """Also if the head that lies beside it is as old as the ledger."""
    state = client.file.state
    client.answer(request_of_server)
    for name in ("ledger.sqlite", "head"):
        shutil.copy(state / name, tmp_path / name)
    later = replace(request_of_server, round=1)
    if summed:  # such an answer is stored elsewhere, and paid for in the same way
        with client.open_ledger() as ledger:
            client._pay(ledger, later)
    else:
        client.answer(later)
    for name in ("ledger.sqlite", "head"):
        shutil.copy(tmp_path / name, state / name)
    with pytest.raises(LedgerTamperedError, match="row 3, which was seen before"):
        client.answer(replace(request_of_server, round=2))


def test_a_client_that_was_killed_before_its_first_head_goes_on(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Client, "_remember", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            client.answer(request_of_server)
    assert client.file.ledger.exists()
    assert not (client.file.state / "head").exists()
    client.answer(replace(request_of_server, round=1))
    assert client.open_ledger().spent()[0, 0] / 2**44 == pytest.approx(2.0)


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


def test_a_client_takes_the_stronger_relation_and_no_other(few: Ratings, tmp_path: Path) -> None:
    """No message names one: its own policy and its own ledger decide."""
    assert "neighbours" not in {entry.name for entry in fields(Request)}
    file = load_client(write_client(tmp_path / "home", few, 0, agreed(few)))
    with pytest.raises(ConfigError, match="expected replace-one, with trust = local"):
        write_client(tmp_path / "weak", few, 0, agreed(few, {"neighbours": "replace-special"}))
    file.ledger.unlink()
    budgets, rule = file.agreed().budgets, file.agreed().rule
    Ledger.create(file.ledger, budgets, rule, neighbours="replace-special").close()
    with pytest.raises(LedgerError, match="kept for neighbours = replace-special, not replace-on"):
        Client(file).answer(first_request(few, {}))


# ---- the catalogue, which comes once


def features(columns: int, value: float = 1.0) -> Any:
    made = np.zeros((30, columns))
    made[:: max(columns, 1)] = value
    return made


def naming(client: Client, few: Ratings, catalogue: SentCatalogue) -> Client:
    pinned = {"most_features": 3, "catalogues": [catalogue.digest]}
    return agreeing(client, few, **(AGREE_TO_TASTES | pinned))


@pytest.fixture
def taster(few: Ratings, tmp_path: Path) -> Client:
    """A client that agrees to learn tastes."""
    policy = agreed(few, AGREE_TO_TASTES)
    return Client(load_client(write_client(tmp_path / "taster", few, 0, policy)))


def test_a_catalogue_is_asked_for_if_the_policy_names_it_and_it_is_not_here(
    federation: tuple[Path, list[Path]], request_of_server: Request, few: Ratings
) -> None:
    file, catalogue = federation[1][0], catalogue_for(few)
    assert send(file, TRAIN, request_of_server) == UNKNOWN
    assert send(file, TRAIN, of_model(catalogue="0" * 64)(request_of_server)) == REFUSED
    assert spent(file) == 0
    assert send(file, CATALOGUE, catalogue) == KEPT
    assert isinstance(send(file, TRAIN, request_of_server), Upload)
    stored = file.parent / "state" / f"catalogue-{catalogue.digest}"
    other = catalogue_for(few, features(1))
    for content in (b"", stored.read_bytes()[:-30], other.to_bytes()):  # it can be had again
        stored.write_bytes(content)
        assert send(file, TRAIN, request_of_server) == UNKNOWN
    for wrong in (replace(catalogue, high=catalogue.high + 1), other):
        assert send(file, CATALOGUE, wrong) == REFUSED


@pytest.mark.parametrize("columns", [0, 3])
def test_features_come_with_the_catalogue(taster: Client, few: Ratings, columns: int) -> None:
    catalogue = catalogue_for(few, features(columns))
    taster = naming(taster, few, catalogue)
    taster.hold(catalogue)
    request = taste_request(few, catalogue)
    answer = taster.answer(replace(request, charge=9e3))  # hardly any noise
    assert answer.shape == (30 * (2 + 2),)  # nothing is told about features
    assert np.linalg.norm(answer) == pytest.approx(0.1, rel=0.3)  # one clip over all of it
    with np.load(taster.file.state / "local.npz") as stored:
        assert stored["leaf0"].shape == (1, 3 + 2 + columns)
    assert len(lists(taster)) == 3
    items = np.concatenate([request.model.items, features(2)], axis=1).astype(np.float32)
    with pytest.raises(MessageError, match="parameters of another shape"):  # only with it
        taster.answer(of_model(items=items)(request))


@pytest.mark.parametrize("sent", [features(4), features(2, np.nextafter(np.float32(1), 2))])
def test_features_that_no_catalogue_has_are_refused(
    taster: Client, few: Ratings, sent: Any
) -> None:
    """Even if the policy names them: they would only make the arithmetic overflow."""
    catalogue = catalogue_for(few, sent)
    taster = naming(taster, few, catalogue)
    with pytest.raises(MessageError, match=r"most_features|not finite, or too large"):
        taster.hold(catalogue)
    assert send(file_of(taster), TRAIN, taste_request(few, catalogue)) == UNKNOWN


# ---- ratings that arrive, and what is recommended


def test_ratings_count_from_the_next_request_on(
    client: Client, request_of_server: Request
) -> None:
    quiet = replace(request_of_server, charge=4e3)  # hardly any noise
    client.file.ratings.write_text("user,item,rating\nu0,i1,2.0\n", encoding="utf-8")
    first = client.answer(quiet).reshape(30, 2)
    rate(client, "u0,i7,4.0")
    second = client.answer(replace(quiet, round=1)).reshape(30, 2)
    assert np.abs(first[7]).max() < 0.01 < np.abs(second[7]).max()


def test_users_who_come_to_a_client_take_nothing_from_those_who_were_there(
    few: Ratings, tmp_path: Path
) -> None:
    own = {"dim": 2}
    policy = agreed(few, {"models": ["fedgnn"], "settings": {"fedgnn": own}})
    client = Client(load_client(write_client(tmp_path / "home", few, 0, policy)))
    shared, _ = FedGNN(**own).initial(jax.random.key(1), 1, 30)
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
    head, _, rows = client.file.ratings.read_text(encoding="utf-8").partition("\n")
    client.file.ratings.write_text(f"{head}\na-new-one,i3,4.0\n{rows}", encoding="utf-8")
    client.answer(replace(request, round=1))
    users, second, steps = kept()
    assert dict(zip(users, steps, strict=True)) == {"a-new-one": 1.0, "u0": 2.0}
    assert 0 < np.abs(second[users.index("u0")] - first[0]).max() <= 0.0101  # one step
    client.answer(replace(request, run="another"))  # a new run begins anew
    assert kept()[2] == [1.0, 1.0]


def test_recommends_what_was_not_rated(client: Client, request_of_server: Request) -> None:
    with pytest.raises(ConfigError, match="no model has come yet"):
        lists(client)
    client.answer(request_of_server)  # what it was sent, before anything was learned
    with pytest.raises(NothingLearnedError):
        lists(client)
    assert client.file.last_model().guarantee == client.policy.promise
    items = np.zeros((30, 3), dtype=np.float32)
    items[:, 0] = np.linspace(-0.3, 0.3, 30)
    client.answer(replace(of_model(items=items)(request_of_server), round=1))
    rated = client.file.ratings.read_text(encoding="utf-8")
    rate(client, "u0,i3,11.0")  # outside the scale, so left out
    everything = lists(client, 100)
    assert all(f"u0,{item}," not in rated for item in everything)
    assert everything == sorted(everything, key=lambda item: -int(item[1:]))
    assert 3 < len(everything) < 30


def test_a_run_s_model_file_is_kept_as_it_came_if_it_is_about_the_policy_s_catalogue(
    client: Client, few: Ratings
) -> None:
    file, sent = file_of(client), published(few)
    titles = [f"Film {at}" for at in range(30)]
    large = tastes(30).released * np.float32(1e9)
    wrong = [
        ModelFile(sent.file[:-1]), ModelFile(sent.file + b"x"), ModelFile(b""),
        *(published(few, **changes) for changes in (
            {"released": large}, {"evidence": {"axes": "many"}},
        )),
        replace(sent, file=published(few, learned=False).file.replace(b"i29", b"i30")),
    ]  # fmt: skip
    other = Path(file.parent / "other.model")
    for changes in ({"titles": titles}, {"high": 99.0}, {"items": [f"j{at}" for at in range(30)]}):
        replace(load_model(sent.file), **changes).save(other)
        wrong.append(ModelFile(other.read_bytes()))
    for bad in wrong:
        assert send(file, KEEP, bad) == REFUSED
        assert not client.file.model.exists()
    assert send(file, KEEP, sent) == KEPT
    assert client.file.model.read_bytes() == sent.file
    assert len(lists(client)) == 3
    assert spent(file) == 0
