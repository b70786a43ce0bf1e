"""What server and clients say to each other is checked on both sides, entry by entry."""

from __future__ import annotations

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
    ModelFile,
    Reply,
    Request,
    Sent,
    SentCatalogue,
    SentModel,
    StepAnswer,
    SumStep,
    Upload,
    read_answer,
    read_word,
)

DIGEST = "0f" * 32
MODEL = SentModel(
    name="biases", settings={"mean": 0.7, "axes": 2}, catalogue=DIGEST,
    items=np.arange(6, dtype=np.float32).reshape(3, 2), dense=np.ones(1, dtype=np.float32),
)  # fmt: skip
REQUEST = Request(
    run="first", round=0, accountant="gaussian/gdp", trust="local", unit="client", charge=1.0,
    clip=0.1, model=MODEL,
)  # fmt: skip
CATALOGUE = SentCatalogue(
    items=("x" * 256, "b\nc"), low=1.0, high=5.0, names=("new",), titles=("Ä", ""),
    features=np.array([[0.5], [1.0]], dtype=np.float32),
)  # fmt: skip
STEP = SumStep(
    step="upload", round=b"round", message=b"", catalogue=DIGEST, scale=1.0, largest_clip=0.1,
    request=REQUEST,
)  # fmt: skip
EXAMPLES: list[Sent] = [
    MODEL, REQUEST, CATALOGUE, STEP, replace(STEP, step="keys", request=None),
    HelloRequest("run", bytes(32)), Hello(name=DIGEST, accountant="r", proof=b"1" * 64),
    Hello(name=DIGEST, accountant="r"), Reply("refused"), Upload(np.array([0.1, -5e-324])),
    StepAnswer(b"masked"), ModelFile(b"of a run"),
]  # fmt: skip


def message(content: RecordDict | Error) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Message(content, reply_to=Message(RecordDict(), 1, "train"))


def packed(content: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return RecordDict({"message": ArrayRecord({"bytes": array})})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_message_comes_as_it_was_sent_and_as_nothing_else(example: Sent) -> None:
    content = example.to_bytes()
    assert type(example).read(example.record()).to_bytes() == content
    for kind in {type(other) for other in EXAMPLES} - {type(example)}:
        with pytest.raises(MessageError, match="is no message"):
            kind.read(example.record())
    for length in range(0, len(content), 1 + len(content) // 50):
        with pytest.raises(MessageError):
            type(example).read(packed(content[:length]))
    for wrong in (content + b"\0", b"BGT5" + content[4:]):
        with pytest.raises(MessageError):
            type(example).read(packed(wrong))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"message": ConfigRecord({"bytes": REQUEST.to_bytes()})}),
        RecordDict({"message": ArrayRecord({})}),
        RecordDict({"message": ArrayRecord({"other": Array(np.zeros(1))})}),
        RecordDict({**REQUEST.record(), "more": MetricRecord({"loss": 1.0})}),
        packed(b""),
    ],
)
def test_records_that_are_not_one_message_are_refused(content: RecordDict) -> None:
    with pytest.raises(MessageError):
        Request.read(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"charge": float("nan")}, {"charge": float("inf")}, {"charge": -1.0}, {"clip": 0.0},
        {"model": replace(MODEL, settings={"mean": None})},
        {"model": replace(MODEL, settings={"mean": [0.7]})},
        {"model": replace(MODEL, items=np.full((3, 2), np.nan, dtype=np.float32))},
        {"model": replace(MODEL, dense=np.full(1, np.inf, dtype=np.float32))},
    ],
)  # fmt: skip
def test_a_request_that_is_out_of_range_is_not_read(changes: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        Request.read(replace(REQUEST, **changes).record())
    for wrong in (replace(STEP, scale=0.0), replace(STEP, largest_clip=float("inf"))):
        with pytest.raises(MessageError):
            SumStep.read(wrong.record())


@pytest.mark.parametrize("text", [b"[", b"[]", b'{"mean":0.7}', b"\xff\xff"])
def test_settings_have_one_form(text: bytes) -> None:
    own, other = b'{"axes": 2, "mean": 0.7}', len(text).to_bytes(4, "big") + text
    content = MODEL.to_bytes().replace(len(own).to_bytes(4, "big") + own, other)
    with pytest.raises(MessageError, match="settings"):
        SentModel.read(packed(content))


def test_only_equal_requests_have_equal_digests() -> None:
    changes: list[dict[str, Any]] = [
        {"run": "second"}, {"round": 1}, {"charge": 1.0000000001}, {"clip": 0.2},
        {"accountant": "laplace/basic"}, {"model": replace(MODEL, items=MODEL.items + 1)},
        {"model": replace(MODEL, catalogue="0" * 64)},
        {"model": replace(MODEL, settings={"mean": 0.6})},
    ]  # fmt: skip
    others = {replace(REQUEST, **change).digest for change in changes}
    assert len(others | {REQUEST.digest}) == len(changes) + 1
    assert Request.read(REQUEST.record()).digest == REQUEST.digest


def test_members_of_a_sum_may_differ_in_their_charge_and_clip_only() -> None:
    context = SumStep.context(REQUEST, 1.0, 0.1)
    assert SumStep.context(replace(REQUEST, charge=0.5, clip=0.01), 1.0, 0.1) == context
    others = [replace(REQUEST, round=1), replace(REQUEST, model=replace(MODEL, name="other"))]
    assert context not in [SumStep.context(other, 1.0, 0.1) for other in others]
    assert context not in [SumStep.context(REQUEST, 2.0, 0.1), SumStep.context(REQUEST, 1.0, 0.2)]


def test_the_digest_of_a_catalogue_is_that_of_every_version() -> None:
    """Policies have it."""
    assert CATALOGUE.digest.startswith("33ec1ee14bf18da7")
    changes: list[dict[str, Any]] = [
        {"items": CATALOGUE.items[::-1]}, {"low": 0.0}, {"high": 6.0}, {"names": ("old",)},
        {"features": CATALOGUE.features[::-1]}, {"features": CATALOGUE.features.T},
        {"titles": ()}, {"titles": ("Ä", " ")},
    ]  # fmt: skip
    others = {replace(CATALOGUE, **change).digest for change in changes}
    assert len(others | {CATALOGUE.digest}) == len(changes) + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"items": ()}, {"items": ("a", "a")}, {"titles": ("one",)}, {"names": ()},
        {"high": float("inf")}, {"features": np.full((2, 1), np.nan, np.float32)},
    ],
)  # fmt: skip
def test_a_catalogue_that_is_not_as_agreed_is_not_read(changes: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        SentCatalogue.read(replace(CATALOGUE, **changes).record())


def test_an_answer_of_one_word() -> None:
    for word in ("kept", "refused", "unknown"):
        assert read_word(message(Reply(word).record())) == word
    assert read_answer(Upload, message(Reply("unknown").record())) is None
    for other in (RecordDict(), Error(2, "no"), Upload(np.zeros(1)).record()):
        assert read_word(message(other)) is None


def bad_uploads() -> dict[str, RecordDict | Error]:
    """Every kind of reply that a server must survive; its uploads have 60 numbers."""
    good = np.zeros(60)
    return {
        "nan": Upload(np.where(np.arange(60) == 7, np.nan, good)).record(),
        "infinite": Upload(np.where(np.arange(60) == 7, np.inf, good)).record(),
        "shape": Upload(np.zeros(61)).record(),
        "beside": RecordDict({**Upload(good).record(), "loss": MetricRecord({"loss": 1.0})}),
        "kept": Reply("kept").record(),
        "damaged": packed(Upload(good).to_bytes()[:-1]),
        "endless": packed(Upload(good).to_bytes()[:5] + b"\xff" * 20),
        "empty": RecordDict(),
        "error": Error(2, "user u0 gave item i3 a 5.0"),
    }


@pytest.mark.parametrize("kind", sorted(set(bad_uploads()) - {"shape"}))
def test_an_upload_that_is_not_as_agreed_is_not_read(kind: str) -> None:
    with pytest.raises(MessageError) as caught:
        read_answer(Upload, message(bad_uploads()[kind]))
    assert "u0" not in str(caught.value)


def test_who_a_machine_is_is_asked_with_a_nonce_of_its_own() -> None:
    assert HelloRequest("run").nonce != HelloRequest("run").nonce
