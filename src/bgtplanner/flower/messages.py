"""The messages between server and clients, and their wire format, which is defined only here.

Neither side trusts the other. Every message is checked here, entry by entry, by type and by value,
before it is used; what does not fit raises a `MessageError`.

=============  ============================================  ==================================
message        from the server                               from the client
=============  ============================================  ==================================
``HELLO``      the protocol version                          its name, and its accountant
``TRAIN``      the model, the plan of a round                its noised upload, or a refusal
``KEEP``       the model                                     a confirmation, or a refusal
=============  ============================================  ==================================
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from bgtplanner.errors import MessageError
from bgtplanner.text import LONGEST_LABEL, MOST_BYTES_OF_A_CATALOGUE, is_sha256

__all__ = [
    "HELLO",
    "KEEP",
    "TRAIN",
    "Hello",
    "Request",
    "SentModel",
    "catalogue_hash",
    "hello_request",
    "read_hello",
    "read_hello_request",
    "read_upload",
    "reply",
    "upload_record",
]

PROTOCOL = 1
"""Increased with every change of the wire format; both sides must have the same version."""

HELLO, TRAIN, KEEP = "query.hello", "train", "query.keep"

_LONGEST_NAME = 200

Floats = NDArray[np.float64]
Setting = bool | int | float | str


def catalogue_hash(items: Sequence[str]) -> str:
    """Return the SHA-256 of a list of items, in its order, by which a policy identifies it.

    For a file with one name per line it is what `sha256sum` prints.

    Example:
        >>> catalogue_hash(["Alien", "Brazil"])[:16]
        '21e55d3c7e5c97b4'
    """
    return hashlib.sha256("".join(f"{name}\n" for name in items).encode()).hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class SentModel:
    """The model as the server sends it.

    Attributes:
        name: Name of the model, such as ``biases``.
        settings: Settings of the model.
        low: Raw rating that counts as 0.
        high: Raw rating that counts as 1.
        catalogue: Public name of every item, in the order of the rows.
        items: One row per item.
        dense: Everything else, flat.
    """

    name: str
    settings: Mapping[str, Setting]
    low: float
    high: float
    catalogue: tuple[str, ...]
    items: NDArray[np.float32]
    dense: NDArray[np.float32]

    def record(self) -> RecordDict:
        """Return the model as it is sent."""
        about: dict[str, Any] = {
            "protocol": PROTOCOL,
            "name": self.name,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "low": float(self.low),
            "high": float(self.high),
            "catalogue": "\n".join(self.catalogue),
        }
        arrays = {"items": Array(self.items), "dense": Array(self.dense)}
        return RecordDict({"model": ConfigRecord(about), "shared": ArrayRecord(arrays)})

    @classmethod
    def read(cls, content: RecordDict) -> SentModel:
        """Return the model in a message.

        Raises:
            MessageError: If it is not a model of this protocol.
        """
        kinds = {"protocol": int, "name": str, "settings": str, "low": float, "high": float}
        about = _config(content, "model", kinds | {"catalogue": str})
        _unless(about["protocol"] == PROTOCOL, "another protocol")
        low, high = about["low"], about["high"]
        _unless(math.isfinite(low) and math.isfinite(high) and low < high, "an invalid scale")
        # Files are limited in bytes, so whatever passes there also passes in characters here.
        longest = max(len(about["catalogue"]), len(about["settings"]))
        _unless(longest <= MOST_BYTES_OF_A_CATALOGUE, "a catalogue that is too long")
        catalogue = tuple(about["catalogue"].split("\n"))
        _unless(max(map(len, catalogue)) <= LONGEST_LABEL, "an item with too long a name")
        different = len(set(catalogue)) == len(catalogue) and all(catalogue)
        _unless(different, "a catalogue with empty or repeated names")
        try:
            settings = json.loads(about["settings"])
        except (ValueError, RecursionError) as error:
            raise MessageError("settings that cannot be read") from error
        plain = isinstance(settings, dict) and all(
            type(value) in (bool, int, float, str) for value in settings.values()
        )
        _unless(plain, "settings that are neither numbers nor strings")
        arrays = _arrays(content, "shared", {"items": "float32", "dense": "float32"})
        items, dense = arrays["items"], arrays["dense"]
        _unless(items.ndim == 2 and dense.ndim == 1, "parameters of another shape")
        _unless(len(items) == len(catalogue), "parameters of another shape")
        return cls(
            name=about["name"],
            settings=settings,
            low=low,
            high=high,
            catalogue=catalogue,
            items=items,
            dense=dense,
        )


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
        model = self.model
        about = [self._plan(), model.name, dict(model.settings), model.low, model.high]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for part in ("\n".join(model.catalogue).encode(), model.items, model.dense):
            data = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()


@dataclass(frozen=True, kw_only=True)
class Hello:
    """How a client identifies itself to the server.

    Attributes:
        name: A secret between the two, derived from the client's ledger.
        accountant: Name of the ledger's accountant.
    """

    name: str
    accountant: str

    def record(self) -> RecordDict:
        """Return the reply as it is sent."""
        about: dict[str, Any] = {"status": "here", "name": self.name, "rule": self.accountant}
        return RecordDict({"reply": ConfigRecord(about)})


def hello_request() -> RecordDict:
    """Return what the server asks a machine that it does not know."""
    return RecordDict({"hello": ConfigRecord({"protocol": PROTOCOL})})


def read_hello_request(content: RecordDict) -> None:
    """Refuse a server that speaks another protocol."""
    about = _config(content, "hello", {"protocol": int})
    _unless(about["protocol"] == PROTOCOL, "another protocol")


def read_hello(message: Message) -> Hello:
    """Return the identity of the client that answered.

    Raises:
        MessageError: If it is not an answer of this protocol, or a refusal.
    """
    about = _config(_content(message), "reply", {"status": str, "name": str, "rule": str})
    name = about["name"]
    _unless(about["status"] == "here" and is_sha256(name), "an invalid name")
    return Hello(name=name, accountant=about["rule"])


def reply(status: Literal["kept", "refused"]) -> RecordDict:
    """Return an answer of one word. A refusal gives no reason; that is in the client's log."""
    return RecordDict({"reply": ConfigRecord({"status": status})})


def upload_record(upload: Floats) -> RecordDict:
    """Return a noised upload as it is sent, to the last bit."""
    content = RecordDict({"reply": ConfigRecord({"status": "released"})})
    content["upload"] = ArrayRecord({"upload": Array(upload)})
    return content


def read_upload(message: Message, coordinates: int) -> Floats | None:
    """Return the upload that a client sent; None if it refused.

    Raises:
        MessageError: If it is neither, or has another shape, or numbers that are not finite.
    """
    content = _content(message)
    status = _config(content, "reply", {"status": str})["status"]
    if status == "refused":
        return None
    _unless(status == "released" and set(content) == {"reply", "upload"}, "not an upload")
    upload = _arrays(content, "upload", {"upload": "float64"})["upload"]
    _unless(upload.shape == (coordinates,), "an upload of another shape")
    return upload


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
