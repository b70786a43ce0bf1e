"""The messages between server and clients, in the form of :mod:`..federation.aggregation.wire`.

Neither side trusts the other. Every message is one string of bytes, in which every entry is
checked as it is read; what does not fit raises a `MessageError`. A client says who it is
(``HELLO``), noises an upload (``TRAIN``), takes a step of secure aggregation (``SUM``), and stores
a catalogue (``CATALOGUE``) or the model file of a run (``KEEP``). It may refuse each of them.

A model names its catalogue by its digest. A client that does not hold that one answers
``unknown``; the server then sends it, once, and asks again.
"""

# ruff: noqa: RUF009 - forms are fields

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import wire
from bgtplanner.federation.aggregation.wire import Reader, array, blob, fixed, real, several, text
from bgtplanner.text import LONGEST_LABEL, MOST_LABELS

HELLO, TRAIN, KEEP = "query.hello", "train", "query.keep"
CATALOGUE, SUM = "query.catalogue", "query.sum"

_LONGEST_NAME = 200
_MOST_SETTINGS = 1 << 16  # bytes
_MOST_OF_A_STEP = (1 << 31) - 1  # bytes: a masked upload of the largest size fits

Setting = bool | int | float | str


class Sent(wire.Message):
    """A message that Flower carries, as bytes that it does not look into.

    The protocol is increased with every change of the form; both sides must have the same one.
    """

    protocol: ClassVar[bytes] = b"BGT6"

    def record(self) -> RecordDict:
        """Return the message as Flower carries it."""
        content = self.to_bytes()
        packed = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
        return RecordDict({"message": ArrayRecord({"bytes": packed})})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """Return the message of this kind and protocol that Flower has carried."""
        record = content.get("message")
        if not isinstance(record, ArrayRecord) or len(content) != 1 or set(record) != {"bytes"}:
            raise MessageError("records that are not one message")
        data = record["bytes"].data
        unless(isinstance(data, bytes), "a message that is not made of bytes")
        return cls.from_bytes(data)


def _sha256() -> Any:
    """Return the form of a digest, or a key, that is written in hexadecimal digits."""
    return wire.form(bytes.fromhex, lambda got: got.take(32).hex())


def _settings() -> Any:
    """Return the form of the settings of a model: JSON with sorted keys."""

    def write(value: Mapping[str, Setting]) -> bytes:
        return json.dumps(dict(value), sort_keys=True).encode()

    def read(content: bytes) -> dict[str, Setting]:
        try:
            found = json.loads(content)
            plain = all(type(value) in (bool, int, float, str) for value in found.values())
            if plain and write(found) == content:
                return dict(found)
        except (ValueError, AttributeError, RecursionError) as error:
            raise MessageError("settings that cannot be read") from error
        raise MessageError("settings that are neither numbers nor strings, or in another order")

    return wire.sized(_MOST_SETTINGS, write, read)


def _labels(**default: Any) -> Any:
    """Return the form of names or titles."""
    return several(text(4 * LONGEST_LABEL, least=0), MOST_LABELS, **default)


@dataclass(frozen=True, eq=False, kw_only=True)
class SentCatalogue(Sent):
    """All that is public about the items and their ratings: sent once, known by its digest.

    `items` and `names` are the names of the items and of their features, which are
    ``[n_items, n_features]``; `low` and `high` are the raw ratings that count as 0 and as 1.
    """

    kind = 1
    items: tuple[str, ...] = _labels()
    low: float = real(positive=False)
    high: float = real(positive=False)
    features: NDArray[np.float32] = array("<f4", 2)
    names: tuple[str, ...] = _labels(default=())
    titles: tuple[str, ...] = _labels(default=())

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
        """Everything but the features, as it is hashed."""
        about = {name: getattr(self, name) for name in ("items", "names", "titles")}
        about |= {"low": float(self.low), "high": float(self.high)}
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

    def without_ratings(self) -> Ratings:
        """Return no ratings, with these items and this scale, as a model file needs them."""
        known = Catalogue.of(self)
        empty = Ratings.from_arrays([], [], [], items=known.labels, scale=(self.low, self.high))
        return replace(empty, item_labels=known.labels, catalogue=known)

    @classmethod
    def decode(cls, got: Reader) -> Self:
        """Return the catalogue that comes next in these bytes."""
        found = super().decode(got)
        number, shape = len(found.items), (len(found.items), len(found.names))
        unless(len(set(found.items)) == number > 0, "a catalogue with no or repeated names")
        unless(len(found.titles) in (0, number), "titles of other items")
        unless(found.features.shape == shape, "features of another shape")
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class SentModel(Sent):
    """What a model's clients train, without what is in the catalogue, which it names.

    `items` has one row per item, with the model's own columns; all else is in `dense`, flat.
    """

    kind = 2
    name: str = text(_LONGEST_NAME)
    settings: Mapping[str, Setting] = _settings()
    catalogue: str = _sha256()
    items: NDArray[np.float32] = array("<f4", 2)
    dense: NDArray[np.float32] = array("<f4", 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Request(Sent):
    """The server's request to a client in a round: which model to train, for which charge.

    The name of the run stays the same when the server is restarted. The trust says whether the
    upload is noised on the client alone, and the unit is ``client``: one clip over all of it.
    """

    kind = 3
    run: str = text(_LONGEST_NAME)
    round: int = wire.number((1 << 31) - 1)
    accountant: str = text(_LONGEST_NAME)
    trust: str = text(_LONGEST_NAME)
    unit: str = text(_LONGEST_NAME)
    charge: float = real()
    clip: float = real()
    model: SentModel = wire.nested(SentModel)

    @property
    def catalogue(self) -> str:
        """Digest of the model's catalogue."""
        return self.model.catalogue

    @cached_property
    def digest(self) -> bytes:
        """Hash of the whole request: equal requests, and only those, have the same."""
        return hashlib.sha256(self.to_bytes()).digest()


@dataclass(frozen=True, kw_only=True)
class SumStep(Sent):
    """A step of secure aggregation, by its name in `STEPS`: the round and what the step is about.

    A client has to hold the catalogue from the first step on. `scale` is that of the full noise
    in the sum, and the model and the plan come in the step of the upload only.
    """

    kind = 4
    step: str = text(_LONGEST_NAME)
    round: bytes = blob(_MOST_OF_A_STEP)
    message: bytes = blob(_MOST_OF_A_STEP)
    catalogue: str = _sha256()
    scale: float = real()
    largest_clip: float = real()
    request: Request | None = wire.optional(Request)

    @staticmethod
    def context(request: Request, scale: float, largest_clip: float) -> bytes:
        """Return the digest of all that the members of a round have in common.

        Each of them has a charge and a clip of its own.
        """
        common = replace(request, charge=scale, clip=largest_clip)
        return hashlib.sha256(b"common" + common.to_bytes()).digest()


@dataclass(frozen=True)
class HelloRequest(Sent):
    """What the server asks a machine that it does not know, with a nonce for it alone."""

    kind = 5
    run: str = text(_LONGEST_NAME)
    nonce: bytes = fixed(32, default_factory=lambda: secrets.token_bytes(32))


@dataclass(frozen=True, kw_only=True)
class Hello(Sent):
    """How a client identifies itself to the server.

    The name is a secret between the two, derived from the client's ledger; under secure
    aggregation it is a public key, which everybody knows, with a proof that the client has it.
    """

    kind = 6
    name: str = _sha256()
    accountant: str = text(_LONGEST_NAME)
    proof: bytes = blob(64, default=b"")


@dataclass(frozen=True)
class Reply(Sent):
    """An answer of one word: ``kept``, ``refused`` or ``unknown``.

    A refusal gives no reason; that is in the client's log only.
    """

    kind = 7
    word: str = text(16)


@dataclass(frozen=True, eq=False)
class Upload(Sent):
    """A noised upload, to the last bit."""

    kind = 8
    values: NDArray[np.float64] = array("<f8", 1)


@dataclass(frozen=True, eq=False)
class ModelFile(Sent):
    """The model file of a run that is over, byte for byte as the server publishes it."""

    kind = 10
    file: bytes = blob(_MOST_OF_A_STEP)


@dataclass(frozen=True)
class StepAnswer(Sent):
    """The answer to a step of secure aggregation."""

    kind = 9
    answer: bytes = blob(_MOST_OF_A_STEP)


_Kind = TypeVar("_Kind", bound=Sent)


def read_word(message: Message) -> str | None:
    """Return the word that a client answered with; None if the answer is something else."""
    with contextlib.suppress(MessageError):
        return Reply.read(message.content).word if message.has_content() else None
    return None


def read_answer(kind: type[_Kind], message: Message) -> _Kind | None:
    """Return a client's answer; None if it refused, or still has no catalogue."""
    unless(message.has_content(), "an error instead of an answer")
    return None if read_word(message) in ("refused", "unknown") else kind.read(message.content)


def unless(fits: bool, problem: str) -> None:
    """Raise a MessageError about a problem, unless all is well."""
    if not fits:
        raise MessageError(problem)
