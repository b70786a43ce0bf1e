"""The messages between server and clients, and their wire format, which is defined only here.

Neither side trusts the other. Every message is checked here, entry by entry, by type and by value,
before it is used; what does not fit raises a `MessageError`.

=============  ============================================  ==================================
message        from the server                               from the client
=============  ============================================  ==================================
``HELLO``      the protocol version, the run, a nonce        its name, its accountant, and under
                                                             secure aggregation a proof of both
``TRAIN``      the model, the plan of a round                its noised upload, or a refusal
``KEEP``       the model                                     a confirmation, or a refusal
``CATALOGUE``  items, titles, features, scale                a confirmation, or a refusal
``SUM``        a step of secure aggregation, and in the      its answer to the step, or a refusal
               step of the upload the model and the plan
=============  ============================================  ==================================

A model names its catalogue by its digest. A client that does not hold that one answers
``unknown``; the server then sends it, once, and asks again.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.errors import MessageError
from bgtplanner.text import LONGEST_LABEL, MOST_BYTES_OF_A_CATALOGUE, is_sha256

__all__ = [
    "CATALOGUE",
    "HELLO",
    "KEEP",
    "SUM",
    "TRAIN",
    "Hello",
    "HelloRequest",
    "Request",
    "SentCatalogue",
    "SentModel",
    "Setting",
    "SumStep",
    "read_hello",
    "read_status",
    "read_step",
    "read_upload",
    "reply",
    "step_record",
    "upload_record",
]

PROTOCOL = 4
"""Increased with every change of the wire format; both sides must have the same version."""

HELLO, TRAIN, KEEP = "query.hello", "train", "query.keep"
CATALOGUE, SUM = "query.catalogue", "query.sum"

_LONGEST_NAME = 200
_NONCE = 32  # bytes
_PROOF = 64  # a signature

Floats = NDArray[np.float64]
Setting = bool | int | float | str


@dataclass(frozen=True, eq=False, kw_only=True)
class SentCatalogue:
    """All that is public about the items and their ratings: sent once, known by its digest.

    Attributes:
        items: Name of every item, in the order of the rows.
        low: Raw rating that counts as 0.
        high: Raw rating that counts as 1.
        features: Public features of the items, ``[n_items, n_features]``; there may be none.
        names: Names of the features.
        titles: Titles of the items, or none.
    """

    items: tuple[str, ...]
    low: float
    high: float
    features: NDArray[np.float32]
    names: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Catalogue, low: float, high: float) -> SentCatalogue:
        """Return the catalogue of a table of items, and of a scale."""
        titles = () if table.titles is None else tuple(table.titles.tolist())
        items = tuple(table.labels.tolist())
        return cls(
            items=items, low=low, high=high, features=table.features, names=table.names,
            titles=titles,
        )  # fmt: skip

    @cached_property
    def text(self) -> str:
        """Everything but the features, as it is sent and stored."""
        about = {
            "items": self.items,
            "low": float(self.low),
            "high": float(self.high),
            "names": self.names,
            "titles": self.titles,
        }
        return json.dumps(about, sort_keys=True, ensure_ascii=False)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 by which policies and models name it.

        Example:
            >>> catalogue = SentCatalogue(
            ...     items=("Alien", "Brazil"), low=1, high=5, features=np.zeros((2, 0), np.float32)
            ... )
            >>> catalogue.digest[:16]
            'f1c8236d3d350627'
        """
        about = f"{self.text}\n{self.features.shape}\n".encode()
        return hashlib.sha256(about + self.features.astype("<f4").tobytes()).hexdigest()

    def record(self) -> RecordDict:
        """Return the catalogue as it is sent."""
        about = ConfigRecord({"protocol": PROTOCOL, "text": self.text})
        features = ArrayRecord({"features": Array(self.features)})
        return RecordDict({"catalogue": about, "features": features})

    @classmethod
    def read(cls, content: RecordDict) -> SentCatalogue:
        """Return the catalogue in a message.

        Raises:
            MessageError: If it is not a catalogue of this protocol.
        """
        about = _config(content, "catalogue", {"protocol": int, "text": str})
        _unless(about["protocol"] == PROTOCOL, "another protocol")
        _unless(set(content) == {"catalogue", "features"}, "other records than expected")
        return cls.parse(about["text"], _arrays(content, "features", {"features": "float32"}))

    @classmethod
    def parse(cls, text: str, arrays: Mapping[str, NDArray[Any]]) -> SentCatalogue:
        """Return the catalogue of a text and an array of features.

        Raises:
            MessageError: If they are not a catalogue.
        """
        _unless(len(text) <= MOST_BYTES_OF_A_CATALOGUE, "a catalogue that is too long")
        about = _json(text, "catalogue")
        lists, scale = ("items", "names", "titles"), ("low", "high")
        _unless(set(about) == {*lists, *scale}, "a catalogue with other entries than expected")
        for name in lists:
            plain = isinstance(about[name], list) and all(type(e) is str for e in about[name])
            _unless(plain, f"{name} that are not texts")
            about[name] = tuple(about[name])
            _unless(max(map(len, about[name]), default=0) <= LONGEST_LABEL, "too long a name")
        floats = all(type(about[name]) is float for name in scale)
        finite = floats and math.isfinite(about["low"]) and math.isfinite(about["high"])
        _unless(finite and about["low"] < about["high"], "an invalid scale")
        items, features = about["items"], arrays["features"]
        different = len(set(items)) == len(items) > 0 and all(items)
        _unless(different, "a catalogue with empty or repeated names")
        _unless(len(about["titles"]) in (0, len(items)), "titles of other items")
        shaped = features.shape == (len(items), len(about["names"]))
        _unless(shaped and features.dtype == np.float32, "features of another shape")
        return cls(**about, features=features)


@dataclass(frozen=True, eq=False, kw_only=True)
class SentModel:
    """The model as the server sends it, without what is in the catalogue.

    Attributes:
        name: Name of the model, such as ``biases``.
        settings: Settings of the model.
        catalogue: Digest of the catalogue.
        items: One row per item: the model's own columns.
        dense: Everything else, flat.
    """

    name: str
    settings: Mapping[str, Setting]
    catalogue: str
    items: NDArray[np.float32]
    dense: NDArray[np.float32]

    def record(self) -> RecordDict:
        """Return the model as it is sent."""
        about: dict[str, Any] = {
            "protocol": PROTOCOL,
            "name": self.name,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "catalogue": self.catalogue,
        }
        arrays = {"items": Array(self.items), "dense": Array(self.dense)}
        return RecordDict({"model": ConfigRecord(about), "shared": ArrayRecord(arrays)})

    @classmethod
    def read(cls, content: RecordDict) -> SentModel:
        """Return the model in a message.

        Raises:
            MessageError: If it is not a model of this protocol.
        """
        kinds = {"protocol": int, "name": str, "settings": str, "catalogue": str}
        about = _config(content, "model", kinds)
        _unless(about.pop("protocol") == PROTOCOL, "another protocol")
        _unless(is_sha256(about["catalogue"]), "an invalid digest of a catalogue")
        about["settings"] = settings = _json(about["settings"], "settings")
        plain = all(type(value) in (bool, int, float, str) for value in settings.values())
        _unless(plain, "settings that are neither numbers nor strings")
        arrays = _arrays(content, "shared", {"items": "float32", "dense": "float32"})
        flat = arrays["items"].ndim == 2 and arrays["dense"].ndim == 1
        _unless(flat, "parameters of another shape")
        return cls(**about, items=arrays["items"], dense=arrays["dense"])

    @property
    def about(self) -> dict[str, Any]:
        """What the model is, without its parameters."""
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "catalogue": self.catalogue,
        }

    @cached_property
    def digest(self) -> bytes:
        """Hash of the whole model: equal models, and only those, have the same."""
        about = [self.name, dict(self.settings), self.catalogue, self.items.shape]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for part in (self.items, self.dense):
            data = np.ascontiguousarray(part).tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """The server's request to a client in a round.

    Attributes:
        run: Name of the run; it stays the same when the server is restarted.
        round: Index of the round.
        accountant: Name of the accountant, such as ``gaussian/gdp``.
        trust: ``local``: the upload is noised on the client.
        unit: ``client``: one clip over the whole upload.
        charge: What the round costs this client.
        clip: Bound on the norm of its upload.
        model: The model to train.
    """

    run: str
    round: int
    accountant: str
    trust: str
    unit: str
    charge: float
    clip: float
    model: SentModel

    def record(self) -> RecordDict:
        """Return the request as it is sent."""
        content = self.model.record()
        content["plan"] = ConfigRecord(dict(self._plan()))
        return content

    def _plan(self) -> dict[str, str | int | float]:
        return {
            "run": self.run,
            "round": self.round,
            "rule": self.accountant,
            "trust": self.trust,
            "unit": self.unit,
            "charge": float(self.charge),
            "clip": float(self.clip),
        }

    @classmethod
    def read(cls, content: RecordDict) -> Request:
        """Return the request in a message.

        Raises:
            MessageError: If it is not a request of this protocol.
        """
        words = dict.fromkeys(("run", "rule", "trust", "unit"), str)
        numbers = {"round": int, "charge": float, "clip": float}
        plan = _config(content, "plan", words | numbers)
        _unless(set(content) == {"model", "shared", "plan"}, "other records than expected")
        _unless(0 < len(plan["run"]) <= _LONGEST_NAME, "an invalid name of a run")
        _unless(0 <= plan["round"] < 2**31, "an invalid round")
        for name in ("charge", "clip"):
            _unless(math.isfinite(plan[name]) and plan[name] > 0, f"an invalid {name}")
        return cls(accountant=plan.pop("rule"), **plan, model=SentModel.read(content))

    @cached_property
    def digest(self) -> bytes:
        """Hash of the whole request: equal requests, and only those, have the same."""
        plan = json.dumps(self._plan(), sort_keys=True).encode()
        return hashlib.sha256(self.model.digest + plan).digest()


@dataclass(frozen=True, kw_only=True)
class SumStep:
    """A step of secure aggregation.

    Attributes:
        step: Its name; see :data:`bgtplanner.federation.aggregation.server.STEPS`.
        round: The round of secure aggregation, as bytes.
        message: What the step is about, as bytes; empty in the first.
        catalogue: Digest of the catalogue, which a client has to hold from the first step on.
        scale: Scale of the full noise in the sum.
        largest_clip: The largest clip of a member.
        request: The model and the plan, in the step of the upload only.
    """

    step: str
    round: bytes
    message: bytes
    catalogue: str
    scale: float
    largest_clip: float
    request: Request | None = None

    def record(self) -> RecordDict:
        """Return the step as it is sent."""
        content = RecordDict({}) if self.request is None else self.request.record()
        about: dict[str, Any] = {"protocol": PROTOCOL}
        about |= {name: getattr(self, name) for name in _STEP}
        content["sum"] = ConfigRecord(about)
        return content

    @classmethod
    def read(cls, content: RecordDict) -> SumStep:
        """Return the step in a message.

        Raises:
            MessageError: If it is not a step of this protocol.
        """
        about = _config(content, "sum", {"protocol": int, **_STEP})
        _unless(about.pop("protocol") == PROTOCOL, "another protocol")
        _unless(is_sha256(about["catalogue"]), "an invalid digest of a catalogue")
        for name in ("scale", "largest_clip"):
            _unless(math.isfinite(about[name]) and about[name] > 0, f"an invalid {name}")
        request = None
        if about["step"] == "upload":
            rest = {name: record for name, record in content.items() if name != "sum"}
            request = Request.read(RecordDict(rest))
            _unless(request.model.catalogue == about["catalogue"], "two catalogues")
        else:
            _unless(set(content) == {"sum"}, "other records than expected")
        return cls(**about, request=request)

    @staticmethod
    def context(model: SentModel, plan: Request, scale: float, largest_clip: float) -> bytes:
        """Return the digest of all that the members of a round have in common."""
        common = [plan.run, plan.round, plan.accountant, plan.trust, plan.unit]
        about = json.dumps([*common, scale, largest_clip]).encode()
        return hashlib.sha256(model.digest + about).digest()


_STEP: dict[str, type] = {
    "step": str,
    "round": bytes,
    "message": bytes,
    "catalogue": str,
    "scale": float,
    "largest_clip": float,
}


@dataclass(frozen=True, kw_only=True)
class Hello:
    """How a client identifies itself to the server.

    Attributes:
        name: A secret between the two, derived from the client's ledger; under secure aggregation
            its public key, which everybody knows.
        accountant: Name of the ledger's accountant.
        proof: Under secure aggregation, that the client has the key; else empty.
    """

    name: str
    accountant: str
    proof: bytes = b""

    def record(self) -> RecordDict:
        """Return the reply as it is sent."""
        about: dict[str, Any] = {"status": "here", "name": self.name, "rule": self.accountant}
        return RecordDict({"reply": ConfigRecord(about | {"proof": self.proof})})


@dataclass(frozen=True)
class HelloRequest:
    """What the server asks a machine that it does not know.

    Attributes:
        run: Name of the run.
        nonce: Random bytes that it asks no other machine with, and never again.
    """

    run: str
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(_NONCE))

    def record(self) -> RecordDict:
        """Return the question as it is sent."""
        about: dict[str, Any] = {"protocol": PROTOCOL, "run": self.run, "nonce": self.nonce}
        return RecordDict({"hello": ConfigRecord(about)})

    @classmethod
    def read(cls, content: RecordDict) -> HelloRequest:
        """Return the question in a message.

        Raises:
            MessageError: If the server speaks another protocol.
        """
        about = _config(content, "hello", {"protocol": int, "run": str, "nonce": bytes})
        _unless(about["protocol"] == PROTOCOL, "another protocol")
        _unless(0 < len(about["run"]) <= _LONGEST_NAME, "an invalid name of a run")
        _unless(len(about["nonce"]) == _NONCE, "an invalid nonce")
        return cls(about["run"], about["nonce"])


def read_hello(message: Message) -> Hello:
    """Return the identity of the client that answered.

    Raises:
        MessageError: If it is not an answer of this protocol, or a refusal.
    """
    kinds = {"status": str, "name": str, "rule": str, "proof": bytes}
    about = _config(_content(message), "reply", kinds)
    name, proof = about["name"], about["proof"]
    _unless(about["status"] == "here" and is_sha256(name), "an invalid name")
    _unless(len(proof) in (0, _PROOF), "an invalid proof")
    return Hello(name=name, accountant=about["rule"], proof=proof)


def reply(status: Literal["kept", "refused", "unknown"]) -> RecordDict:
    """Return an answer of one word. A refusal gives no reason; that is in the client's log."""
    return RecordDict({"reply": ConfigRecord({"status": status})})


def read_status(message: Message) -> str | None:
    """Return the word that a client answered with; None if the answer is something else."""
    try:
        return str(_config(_content(message), "reply", {"status": str})["status"])
    except MessageError:
        return None


def step_record(answer: bytes) -> RecordDict:
    """Return the answer to a step of secure aggregation as it is sent."""
    about: dict[str, Any] = {"status": "answered", "answer": answer}
    return RecordDict({"reply": ConfigRecord(about)})


def read_step(message: Message) -> bytes | None:
    """Return a client's answer to a step; None if it refused.

    Raises:
        MessageError: If it is neither.
    """
    if read_status(message) in ("refused", "unknown"):
        return None
    about = _config(_content(message), "reply", {"status": str, "answer": bytes})
    _unless(about["status"] == "answered", "not an answer to a step")
    return bytes(about["answer"])


def upload_record(upload: Floats) -> RecordDict:
    """Return a noised upload as it is sent, to the last bit."""
    content = RecordDict({"reply": ConfigRecord({"status": "released"})})
    content["upload"] = ArrayRecord({"upload": Array(upload)})
    return content


def read_upload(message: Message, coordinates: int) -> Floats | None:
    """Return the upload that a client sent; None if it refused, or still has no catalogue.

    Raises:
        MessageError: If it is neither, or has another shape, or numbers that are not finite.
    """
    content = _content(message)
    status = _config(content, "reply", {"status": str})["status"]
    if status in ("refused", "unknown"):
        return None
    _unless(status == "released" and set(content) == {"reply", "upload"}, "not an upload")
    upload = _arrays(content, "upload", {"upload": "float64"})["upload"]
    _unless(upload.shape == (coordinates,), "an upload of another shape")
    return upload


def _json(text: str, what: str) -> dict[str, Any]:
    """Return an object of JSON that someone else wrote, all of it text that can be written."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # refuses halves of characters
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{what} that cannot be read") from error
    if not isinstance(found, dict):
        raise MessageError(f"{what} that cannot be read")
    return found


def _content(message: Message) -> RecordDict:
    _unless(message.has_content(), "an error instead of an answer")
    return message.content


def _config(content: RecordDict, name: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the entries of a record, which must be exactly these, each of its type."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord) or set(record) != set(kinds):
        raise MessageError(f"record '{name}' is missing or has other entries than expected")
    for entry, kind in kinds.items():
        _unless(type(record[entry]) is kind, f"entry '{entry}' of another type")
    return dict(record)


def _arrays(content: RecordDict, name: str, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record, which must be exactly these, all of them finite."""
    record = content.get(name)
    if not isinstance(record, ArrayRecord) or set(record) != set(kinds):
        raise MessageError(f"record '{name}' is missing or has other arrays than expected")
    found = {}
    for entry, kind in kinds.items():
        try:
            array = record[entry].numpy()
        except Exception as error:  # a stranger's bytes may break the reader in any way
            raise MessageError(f"array '{entry}' cannot be read") from error
        fits = isinstance(array, np.ndarray) and str(array.dtype) == kind
        expected = f"array '{entry}' of another type, or not finite"
        _unless(fits and bool(np.isfinite(array).all()), expected)
        found[entry] = array
    return found


def _unless(fits: bool, problem: str) -> None:
    if not fits:
        raise MessageError(problem)
