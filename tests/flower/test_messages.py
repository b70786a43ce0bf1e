"""What server and clients say to each other is checked on both sides, entry by entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from bgtplanner.errors import MessageError
from bgtplanner.flower.messages import (
    Hello,
    HelloRequest,
    Request,
    SentCatalogue,
    read_hello,
    read_status,
    read_upload,
    reply,
    upload_record,
)


def changed(record: str, **entries: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[record] = ConfigRecord({**content[record], **entries})  # type: ignore[dict-item]

    return change


def without(record: str, *entries: str) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        for entry in entries:
            del content[record][entry]
        if not entries:
            del content[record]

    return change


def shared(**arrays: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        for name, array in arrays.items():
            content["shared"][name] = array if isinstance(array, Array) else Array(array)

    return change


def message(content: RecordDict | Error) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Message(content, reply_to=Message(RecordDict(), 1, "train"))


def test_a_request_comes_as_it_was_sent(request_of_server: Request) -> None:
    read = Request.read(request_of_server.record())
    assert read.digest == request_of_server.digest
    assert (read.run, read.round, read.charge) == ("first", 0, 1.0)
    assert read.model.catalogue == request_of_server.model.catalogue


def test_only_equal_requests_have_equal_digests(request_of_server: Request) -> None:
    model = request_of_server.model
    others = [
        replace(request_of_server, **change)
        for change in (
            {"run": "second"},
            {"round": 1},
            {"charge": 1.0000000001},
            {"clip": 0.2},
            {"accountant": "laplace/basic"},
            {"model": replace(model, items=model.items + 1)},
            {"model": replace(model, catalogue="0" * 64)},
            {"model": replace(model, settings={"mean": 0.6})},
        )
    ]
    assert len({request.digest for request in [request_of_server, *others]}) == 9


@pytest.mark.parametrize(
    "change",
    [
        without("plan"),
        without("model"),
        without("shared"),
        without("plan", "charge"),
        without("shared", "dense"),
        changed("plan", seed=1),
        changed("plan", charge=float("nan")),
        changed("plan", charge=float("inf")),
        changed("plan", charge=-1.0),
        changed("plan", charge=1),
        changed("plan", charge=True),
        changed("plan", clip=0.0),
        changed("plan", round=-1),
        changed("plan", round=2**40),
        changed("plan", run=""),
        changed("plan", run="x" * 1000),
        changed("model", protocol=1),
        changed("model", low=5.0),
        changed("model", catalogue=""),
        changed("model", catalogue="F" * 64),
        changed("model", settings="{"),
        changed("model", settings="[" * 100_000),
        changed("model", settings="[]"),
        changed("model", settings='{"mean": null}'),
        changed("model", settings='{"mean": [0.7]}'),
        shared(items=np.full((30, 2), np.nan, dtype=np.float32)),
        shared(items=np.zeros((30, 2))),
        shared(items=np.zeros(60, dtype=np.float32)),
        shared(extra=np.zeros(1)),
        shared(items=Array("float32", (30, 2), "numpy.ndarray", b"nonsense")),
        shared(items=Array("float32", (30, 2), "pickle", b"nonsense")),
        lambda content: content.update(more=MetricRecord({"loss": 1.0})),
    ],
)
def test_a_request_that_is_not_as_agreed_is_not_read(
    request_of_server: Request, change: Callable[[RecordDict], None]
) -> None:
    content = request_of_server.record()
    change(content)
    with pytest.raises(MessageError):
        Request.read(content)


CATALOGUE = SentCatalogue(
    items=("x" * 256, "b\nc"),
    low=1.0,
    high=5.0,
    features=np.array([[0.5], [1.0]], dtype=np.float32),
    names=("new",),
    titles=("Ä", ""),
)


def test_a_catalogue_comes_as_it_was_sent() -> None:
    """With names as long as a table may have, and whatever letters and lines they have."""
    read = SentCatalogue.read(CATALOGUE.record())
    assert read.digest == CATALOGUE.digest
    for name in ("items", "low", "high", "names", "titles"):
        assert getattr(read, name) == getattr(CATALOGUE, name)
    np.testing.assert_array_equal(read.features, CATALOGUE.features)


def test_only_equal_catalogues_have_equal_digests() -> None:
    others = [
        replace(CATALOGUE, **change)
        for change in (
            {"items": CATALOGUE.items[::-1]},
            {"low": 0.0},
            {"high": 6.0},
            {"features": CATALOGUE.features[::-1]},
            {"features": CATALOGUE.features.T},
            {"names": ("old",)},
            {"titles": ()},
            {"titles": ("Ä", " ")},
        )
    ]
    assert len({catalogue.digest for catalogue in [CATALOGUE, *others]}) == 9


def text(**entries: Any) -> Callable[[RecordDict], None]:
    about = json.loads(CATALOGUE.text) | entries
    return changed("catalogue", text=json.dumps(about))


@pytest.mark.parametrize(
    "change",
    [
        without("catalogue"),
        without("features"),
        changed("catalogue", protocol=1),
        changed("catalogue", text="{"),
        changed("catalogue", text="[" * 100_000),
        changed("catalogue", text="[]"),
        changed("catalogue", text="{}"),
        changed("catalogue", text=CATALOGUE.text + " " * (32 << 20)),
        text(more=1),
        text(items=[]),
        text(items=["a", "a"]),
        text(items=["a", ""]),
        text(items=["a", 1]),
        text(items="ab"),
        text(items=["a", "x" * 257]),
        text(items=["a", "\ud800"]),
        text(titles=["one"]),
        text(titles=["one", "x" * 257]),
        text(names=[]),
        text(low=5.0),
        text(low=1),
        text(high=float("inf")),
        text(high=float("nan")),
        lambda content: content["features"].update(features=Array(np.zeros((2, 1)))),
        lambda content: content["features"].update(
            features=Array(np.full((2, 1), np.nan, dtype=np.float32))
        ),
        lambda content: content["features"].update(features=Array(np.zeros(2, np.float32))),
        lambda content: content.update(more=MetricRecord({"loss": 1.0})),
    ],
)
def test_a_catalogue_that_is_not_as_agreed_is_not_read(
    change: Callable[[RecordDict], None],
) -> None:
    content = CATALOGUE.record()
    change(content)
    with pytest.raises(MessageError):
        SentCatalogue.read(content)


def test_an_answer_of_one_word() -> None:
    for word in ("kept", "refused", "unknown"):
        assert read_status(message(reply(word))) == word
    assert read_upload(message(reply("unknown")), 60) is None
    hello = Hello(name="0" * 64, accountant="r").record()
    for other in (message(RecordDict()), message(Error(2, "no")), message(hello)):
        assert read_status(other) is None


def test_an_upload_comes_to_the_last_bit() -> None:
    upload = np.random.default_rng(0).normal(size=60)
    np.testing.assert_array_equal(read_upload(message(upload_record(upload)), 60), upload)
    assert read_upload(message(reply("refused")), 60) is None


def bad_uploads() -> dict[str, Message]:
    """Every kind of reply that a server must survive."""
    good = np.zeros(60)
    zipped = RecordDict({"reply": ConfigRecord({"status": "released"})})
    zipped["upload"] = ArrayRecord({"upload": Array("float64", (60,), "numpy.ndarray", b"PK\3\4")})
    extra = upload_record(good)
    extra["upload"]["more"] = Array(good)
    beside = upload_record(good)
    beside["loss"] = MetricRecord({"loss": 1.0})
    missing = upload_record(good)
    del missing["upload"]
    silent = upload_record(good)
    del silent["reply"]
    return {
        "nan": message(upload_record(np.where(np.arange(60) == 7, np.nan, good))),
        "infinite": message(upload_record(np.where(np.arange(60) == 7, np.inf, good))),
        "shape": message(upload_record(np.zeros(61))),
        "matrix": message(upload_record(np.zeros((30, 2)))),
        "type": message(upload_record(np.zeros(60, dtype=np.float32))),
        "text": message(upload_record(np.full(60, "x"))),  # type: ignore[arg-type]
        "extra array": message(extra),
        "beside": message(beside),
        "missing": message(missing),
        "no status": message(silent),
        "kept": message(reply("kept")),
        "damaged": message(zipped),
        "empty": message(RecordDict()),
        "error": message(Error(2, "user u0 gave item i3 a 5.0")),
    }


@pytest.mark.parametrize("kind", list(bad_uploads()))
def test_an_upload_that_is_not_as_agreed_is_not_read(kind: str) -> None:
    with pytest.raises(MessageError) as caught:
        read_upload(bad_uploads()[kind], 60)
    assert "u0" not in str(caught.value)


def test_a_client_says_who_it_is() -> None:
    hello = Hello(name="0" * 64, accountant="gaussian/gdp")
    assert read_hello(message(hello.record())) == hello
    for bad in (Hello(name="x", accountant="r"), Hello(name="g" * 64, accountant="r")):
        with pytest.raises(MessageError):
            read_hello(message(bad.record()))
    with pytest.raises(MessageError):
        read_hello(message(reply("refused")))
    proved = replace(hello, proof=b"1" * 64)
    assert read_hello(message(proved.record())) == proved
    with pytest.raises(MessageError, match="proof"):
        read_hello(message(replace(hello, proof=b"1" * 63).record()))


def test_who_a_machine_is_is_asked_with_a_nonce_of_its_own() -> None:
    one, other = HelloRequest("run"), HelloRequest("run")
    assert HelloRequest.read(one.record()) == one
    assert one.nonce != other.nonce
    for name, bad in (("protocol", 99), ("run", ""), ("run", "x" * 201), ("nonce", b"1" * 31)):
        content = one.record()
        content["hello"] = ConfigRecord({**content["hello"], name: bad})
        with pytest.raises(MessageError, match=name):
            HelloRequest.read(content)
