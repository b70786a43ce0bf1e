"""What server and clients say to each other: the one place that knows how it looks on the wire.

Neither side trusts the other. Whatever comes is checked here, name by name, kind by kind and
number by number, before anybody computes with it; what does not fit is a `MessageError`.

=============  ============================================  ==================================
message        from the server                               from the client
=============  ============================================  ==================================
``HELLO``      which protocol                                its name, and its ledger's rule
``TRAIN``      the model, the plan of a round                its noised upload, or a refusal
``KEEP``       the model                                     that it was kept, or a refusal
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
    "PROTOCOL",
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
"""Raised with every change of what is written here; the two sides must have the same."""

HELLO, TRAIN, KEEP = "query.hello", "train", "query.keep"

_LONGEST_NAME = 200

Floats = NDArray[np.float64]
Setting = bool | int | float | str


def catalogue_hash(items: Sequence[str]) -> str:
    """SHA-256 of a list of items, in its order: what a client's policy names it by.

    For a file with a name on every line it is what `sha256sum` says.

    Example:
        >>> catalogue_hash(["Alien", "Brazil"])[:16]
        '21e55d3c7e5c97b4'
    """
    return hashlib.sha256("".join(f"{name}\n" for name in items).encode()).hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class SentModel:
    """What the server sends of the model.

    Attributes:
        name: Of the model, such as ``biases``.
        settings: Its settings.
        low: Raw rating that counts as 0.
        high: Raw rating that counts as 1.
        catalogue: Public name of every item, in the order of the rows.
        items: One row an item.
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
        """As it is sent."""
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
        """From what was sent.

        Raises:
            MessageError: If it is not a model of this protocol.
        """
        kinds = {"protocol": int, "name": str, "settings": str, "low": float, "high": float}
        about = _config(content, "model", kinds | {"catalogue": str})
        _unless(about["protocol"] == PROTOCOL, "another protocol")
        low, high = about["low"], about["high"]
        _unless(math.isfinite(low) and math.isfinite(high) and low < high, "no scale of ratings")
        # Whatever passes by the byte, where a catalogue is read, passes by the letter here.
        longest = max(len(about["catalogue"]), len(about["settings"]))
        _unless(longest <= MOST_BYTES_OF_A_CATALOGUE, "a catalogue that is too long")
        catalogue = tuple(about["catalogue"].split("\n"))
        _unless(max(map(len, catalogue)) <= LONGEST_LABEL, "an item with too long a name")
        _unless(len(set(catalogue)) == len(catalogue) and all(catalogue), "no catalogue of items")
        try:
            settings = json.loads(about["settings"])
        except (ValueError, RecursionError) as error:
            raise MessageError("settings that cannot be read") from error
        plain = isinstance(settings, dict) and all(
            type(value) in (bool, int, float, str) for value in settings.values()
        )
        _unless(plain, "settings that are neither numbers nor words")
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
    """What the server asks a client for in a round.

    Attributes:
        run: Name of the run; the same after the server was started again.
        round: Which round of it.
        accountant: By which the charge is booked, such as ``gaussian/gdp``.
        trust: ``local``: the upload is noised on the client.
        unit: ``client``: one clip over the whole upload.
        charge: What the round costs this client.
        clip: Bound on the norm of its upload.
        model: What to compute it from.
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
        """As it is sent."""
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
        """From what was sent.

        Raises:
            MessageError: If it is not a request of this protocol.
        """
        words = dict.fromkeys(("run", "rule", "trust", "unit"), str)
        numbers = {"round": int, "charge": float, "clip": float}
        plan = _config(content, "plan", words | numbers)
        _unless(set(content) == {"model", "shared", "plan"}, "other records than agreed")
        _unless(0 < len(plan["run"]) <= _LONGEST_NAME, "no name of a run")
        _unless(0 <= plan["round"] < 2**31, "no round")
        for name in ("charge", "clip"):
            _unless(math.isfinite(plan[name]) and plan[name] > 0, f"no {name}")
        return cls(accountant=plan.pop("rule"), **plan, model=SentModel.read(content))

    @cached_property
    def digest(self) -> bytes:
        """One hash over all of it: equal requests, and only those, have equal ones."""
        model = self.model
        about = [self._plan(), model.name, dict(model.settings), model.low, model.high]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for part in ("\n".join(model.catalogue).encode(), model.items, model.dense):
            data = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Who a client is to the server.

    Attributes:
        name: A secret between the two: whoever has the client's ledger has its name.
        accountant: By which its ledger is kept.
    """

    name: str
    accountant: str

    def record(self) -> RecordDict:
        """As it is sent."""
        about: dict[str, Any] = {"status": "here", "name": self.name, "rule": self.accountant}
        return RecordDict({"reply": ConfigRecord(about)})


def hello_request() -> RecordDict:
    """What the server asks a machine that it does not know."""
    return RecordDict({"hello": ConfigRecord({"protocol": PROTOCOL})})


def read_hello_request(content: RecordDict) -> None:
    """Refuse a server that speaks another protocol."""
    about = _config(content, "hello", {"protocol": int})
    _unless(about["protocol"] == PROTOCOL, "another protocol")


def read_hello(message: Message) -> Hello:
    """Who answered.

    Raises:
        MessageError: If it is no answer, or a refusal.
    """
    about = _config(_content(message), "reply", {"status": str, "name": str, "rule": str})
    name = about["name"]
    _unless(about["status"] == "here" and is_sha256(name), "no name")
    return Hello(name=name, accountant=about["rule"])


def reply(status: Literal["kept", "refused"]) -> RecordDict:
    """An answer of one word. A refusal never says why: reasons are about the client's data."""
    return RecordDict({"reply": ConfigRecord({"status": status})})


def upload_record(upload: Floats) -> RecordDict:
    """A noised upload as it is sent, to the last bit."""
    content = RecordDict({"reply": ConfigRecord({"status": "released"})})
    content["upload"] = ArrayRecord({"upload": Array(upload)})
    return content


def read_upload(message: Message, coordinates: int) -> Floats | None:
    """The upload that a client sent; None if it refused.

    Raises:
        MessageError: If it is neither: an error, other records, another shape, not all numbers.
    """
    content = _content(message)
    status = _config(content, "reply", {"status": str})["status"]
    if status == "refused":
        return None
    _unless(status == "released" and set(content) == {"reply", "upload"}, "no upload")
    upload = _arrays(content, "upload", {"upload": "float64"})["upload"]
    _unless(upload.shape == (coordinates,), "an upload of another shape")
    return upload


def _content(message: Message) -> RecordDict:
    _unless(message.has_content(), "an error")
    return message.content


def _config(content: RecordDict, name: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """A record of exactly these entries, each of its kind."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord) or set(record) != set(kinds):
        raise MessageError(f"record '{name}' is missing or has other entries than agreed")
    for entry, kind in kinds.items():
        _unless(type(record[entry]) is kind, f"entry '{entry}' of another kind")
    return dict(record)


def _arrays(content: RecordDict, name: str, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """A record of exactly these arrays, all of them finite numbers."""
    record = content.get(name)
    if not isinstance(record, ArrayRecord) or set(record) != set(kinds):
        raise MessageError(f"record '{name}' is missing or has other arrays than agreed")
    found = {}
    for entry, kind in kinds.items():
        try:
            array = record[entry].numpy()
        except Exception as error:  # bytes of a stranger: the reader may fail in any way
            raise MessageError(f"array '{entry}' cannot be read") from error
        fits = isinstance(array, np.ndarray) and str(array.dtype) == kind
        _unless(fits and bool(np.isfinite(array).all()), "no finite numbers")
        found[entry] = array
    return found


def _unless(fits: bool, problem: str) -> None:
    if not fits:
        raise MessageError(problem)
