"""What reads bytes of strangers, each as a function of bytes that may raise nothing of its own.

``test_corpus.py`` gives them the kept corpus and bytes that hypothesis makes up, in every run of
the tests; ``make fuzz`` gives them to atheris, which looks for bytes that reach new code.
"""

from __future__ import annotations

import atexit
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from bgtplanner.errors import BGTPlannerError, MessageError
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.flower.messages import (
    Hello,
    HelloRequest,
    Request,
    SentCatalogue,
    SentModel,
    SumStep,
    Upload,
)
from bgtplanner.privacy._rows import Payment, pack
from bgtplanner.privacy.budget import Budget, Budgets
from federation.aggregation.members import Members, Memory
from games.summing import Table, stand_in, write_summing

__all__ = ["TARGETS"]


class Bytes:
    """Takes values from bytes, as long as they last; then zeros."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, number: int) -> bytes:
        part = self.data[self.place : self.place + number]
        self.place += number
        return part.ljust(number, b"\0")

    def rest(self) -> bytes:
        return self.take(max(0, min(len(self.data) - self.place, 4096)))

    def below(self, number: int) -> int:
        return self.take(1)[0] % number

    def value(self) -> Any:
        """A value of any kind that a record can hold."""
        kind = self.below(9)
        if kind == 0:
            return int.from_bytes(self.take(8), "little", signed=True)
        if kind == 1:
            return struct.unpack("<d", self.take(8))[0]
        if kind == 2:
            return self.take(self.below(64)).decode("latin-1")
        if kind == 3:
            return self.take(self.below(64))
        if kind == 4:
            return bool(self.below(2))
        if kind == 5:
            return [float("nan"), float("inf"), -0.0, 5e-324, 1e308][self.below(5)]
        if kind == 6:
            texts = ["", "\n", "[" * 5000, "{" * 50, '{"mean": 1e999}', "gaussian/gdp"]
            return texts[self.below(6)]
        if kind == 7:
            return [0, -1, 2**31, 2**62, 1][self.below(5)]
        return [struct.unpack("<d", self.take(8))[0] for _ in range(self.below(4))]


def _model() -> SentModel:
    return SentModel(
        name="biases",
        settings={"mean": 0.7},
        catalogue="0" * 64,
        items=np.zeros((30, 3), dtype=np.float32),
        dense=np.zeros(0, dtype=np.float32),
    )


def _catalogue() -> SentCatalogue:
    return SentCatalogue(
        items=tuple(f"i{number}" for number in range(30)),
        low=1.0,
        high=5.0,
        features=np.zeros((30, 3), dtype=np.float32),
        names=("a", "b", "c"),
        titles=tuple(f"Item {number}" for number in range(30)),
    )


def message(data: bytes) -> None:
    """What a server or a client reads from the network is what was agreed, or a `MessageError`."""
    given = Bytes(data)
    kind = given.below(7)
    request = Request(
        run="r", round=0, accountant="gaussian/gdp", trust="local", unit="client", charge=1.0,
        clip=0.1, model=_model(),
    )  # fmt: skip
    hello = Hello(name="0" * 64, accountant="gaussian/gdp")
    upload = Upload(np.zeros(60))
    messages = [request, _model(), upload, hello, HelloRequest("r", bytes(32)), _catalogue()]
    with suppress(MessageError):
        if kind == len(messages):
            SentCatalogue.read(_packed(given.rest()))
        else:
            sent = messages[kind]
            read = type(sent).read(_packed(_edited(sent.to_bytes(), given)))
            assert type(read).read(read.record()).to_bytes() == read.to_bytes()


def _packed(content: bytes) -> RecordDict:
    """The bytes of a message as Flower carries them."""
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return RecordDict({"message": ArrayRecord({"bytes": array})})


def ledger_row(data: bytes) -> None:
    """What a row of a ledger says is a payment that can be booked, or one of our errors."""
    given = Bytes(data)
    number = 1 + given.below(20)
    if given.below(4):
        about: dict[str, Any] = {"attempt": 0, "fingerprint": "", "everybody": True, "ticks": 1}
        for _ in range(given.below(4)):
            name = ["attempt", "fingerprint", "nonce", "everybody", "ticks", "by_class"]
            value = given.value()
            about[name[given.below(6)]] = value.hex() if isinstance(value, bytes) else value
        payload = pack(about, given.rest())
    else:
        payload = given.rest()
    with suppress(BGTPlannerError):
        budgets = Budgets.same(Budget(1.0), number)
        Payment.unpacked(payload, budgets).packed(budgets)


def _edited(content: bytes, data: Bytes) -> bytes:
    """Bytes that were right, with some of them replaced, added and taken away."""
    for _ in range(data.below(4)):
        place = int.from_bytes(data.take(2), "little") % (len(content) + 1)
        deed, part = data.below(4), data.take(1 + data.below(8))
        if deed == 0:
            content = content[:place] + part + content[place + len(part) :]
        elif deed == 1:
            content = content[:place] + part + content[place:]
        elif deed == 2:
            content = content[:place] + content[place + len(part) :]
        else:
            content = content[:place]
    return content


@cache
def _round(step: str) -> tuple[Members, Server]:
    """Members of a round that are asked for a step next, and the server that asks."""
    members = Members(5)
    return members, members.play(until=step)


@cache
def _clients() -> tuple[Table, dict[str, dict[Path, bytes]]]:
    """Clients on files, and what one of them has stored before each step."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    table, stored = Table(write_summing(Path(folder.name))), {}
    with stand_in():
        for step in STEPS:
            table.play(table.round(), until=step)
            stored[step] = table.stored(0)
    return table, stored


def sum_member(data: bytes) -> None:
    """A member answers a message of the server's, and the server takes an answer, or refuses."""
    given = Bytes(data)
    step = STEPS[given.below(len(STEPS))]
    members, asking = _round(step)
    place = min(place for name, place in members.got if name == step)
    stores, members.stores[place] = members.stores[place], Memory(members.stores[place])
    try:
        answer = b""
        with suppress(MessageError):
            answer = members.answer(step, place, _edited(members.got[step, place], given))
        with suppress(MessageError):
            deepcopy(asking).receive(place, _edited(answer, given))
    finally:
        members.stores[place] = stores


def sum_step(data: bytes) -> None:
    """A step of a sum is what was agreed, and a client answers it or refuses."""
    given = Bytes(data)
    step, kind = STEPS[given.below(len(STEPS))], given.below(3)
    table, stored = _clients()
    table.set_back(0, stored[step])
    asked = table.round().step(step, table.got.get((0, step), b""))
    if kind in (1, 2):
        entry = ["round", "message"][kind - 1]
        asked = replace(asked, **{entry: _edited(getattr(asked, entry), given)})
    content = _edited(asked.to_bytes(), given) if kind == 0 else asked.to_bytes()
    with suppress(MessageError):
        asked = SumStep.read(_packed(content))
        with stand_in(), suppress(BGTPlannerError):
            table.client(0).step(asked)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "message": message,
    "ledger_row": ledger_row,
    "sum_member": sum_member,
    "sum_step": sum_step,
}
"""By the name of the folder with their corpus."""
