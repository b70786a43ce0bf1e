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
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from bgtplanner.errors import BGTPlannerError, MessageError
from bgtplanner.federation.aggregation.server import STEPS, Server
from bgtplanner.flower.messages import (
    Hello,
    HelloRequest,
    Request,
    SentCatalogue,
    SentModel,
    SumStep,
    read_hello,
    read_step,
    read_upload,
    step_record,
    upload_record,
)
from bgtplanner.privacy._book import Payment
from bgtplanner.privacy._journal import pack
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

    def array(self) -> Array:
        """An array, or bytes that only say they are one."""
        kind = self.below(4)
        if kind == 0:
            dtype = ["<f4", "<f8", "<i8", "<U3", "?", "<c16", "O"][self.below(6)]
            shape = [(30, 3), (0,), (60,), (), (30, 0), (1, 1, 1)][self.below(6)]
            return Array(np.zeros(shape, dtype=dtype))
        if kind == 1:
            content = np.frombuffer(self.take(4 * 90), dtype="<f4").reshape(30, 3)
            return Array(content)
        shapes = [(30, 3), (2**40,), (-1,), (60,)]
        return Array("float32", shapes[self.below(4)], "numpy.ndarray", self.rest())


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


def _changed(content: RecordDict, data: Bytes) -> RecordDict:
    """A record that was right, with entries changed, added and taken away."""
    for _ in range(1 + data.below(4)):
        names = sorted(content)
        if not names:
            break
        name = names[data.below(len(names))]
        record: Any = content[name]
        deed = data.below(6)
        if deed == 0:
            del content[name]
        elif deed == 1:
            content.pop("more", None)
            content["more"] = MetricRecord({"loss": 1.0})
        elif isinstance(record, ArrayRecord):
            arrays = sorted(record) or ["items"]
            record[arrays[data.below(len(arrays))] if deed < 5 else "extra"] = data.array()
        else:
            entries = sorted(record) or ["entry"]
            entry = entries[data.below(len(entries))] if deed < 5 else "extra"
            if deed == 2:
                record.pop(entry, None)
            else:
                del content[name]
                content[name] = ConfigRecord({**record, entry: data.value()})
    return content


def _message(content: RecordDict) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Message(content, reply_to=Message(RecordDict(), 1, "train"))


def _text(data: Bytes) -> str:
    """The text of a catalogue with some of its letters replaced by others."""
    small = SentCatalogue(
        items=("a", "b"), low=1.0, high=5.0, names=("x",), titles=("A", "B"),
        features=np.zeros((2, 1), dtype=np.float32),
    )  # fmt: skip
    letters = list(small.text)
    for _ in range(1 + data.below(4)):
        place = data.below(len(letters))
        letters[place] = data.take(1 + data.below(3)).decode("latin-1")
    return "".join(letters)


def message(data: bytes) -> None:
    """What a server or a client reads from the network is what was agreed, or a `MessageError`."""
    given = Bytes(data)
    kind = given.below(7)
    request = Request(
        run="r", round=0, accountant="gaussian/gdp", trust="local", unit="client", charge=1.0,
        clip=0.1, model=_model(),
    )  # fmt: skip
    content = [
        request.record,
        _model().record,
        lambda: upload_record(np.zeros(60)),
        Hello(name="0" * 64, accountant="gaussian/gdp").record,
        HelloRequest("r").record,
        _catalogue().record,
        _catalogue().record,
    ][kind]()
    changed = content if kind == 6 else _changed(content, given)
    readers: list[Callable[[], Any]] = [
        lambda: Request.read(changed).digest,
        lambda: SentModel.read(changed),
        lambda: read_upload(_message(changed), 60),
        lambda: read_hello(_message(changed)),
        lambda: HelloRequest.read(changed),
        lambda: SentCatalogue.read(changed).digest,
        lambda: SentCatalogue.parse(_text(given), {"features": np.zeros((2, 1), "f4")}).digest,
    ]
    with suppress(MessageError):
        readers[kind]()


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
        payment = Payment.unpacked(payload, number)
        payment.over(number, np.zeros(number, dtype=np.int32))


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
            stored[step] = {path: path.read_bytes() for path in table.sums(0).glob("*")}
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
    step, kind = STEPS[given.below(len(STEPS))], given.below(4)
    table, stored = _clients()
    for path in table.sums(0).glob("*"):
        path.unlink()
    for path, content in stored[step].items():
        path.write_bytes(content)
    asked = table.round().step(step, table.got.get((0, step), b""))
    content = asked.record()
    if kind == 0:
        content = _changed(content, given)
    elif kind < 3:
        entry = ["round", "message"][kind - 1]
        about = dict(content.pop("sum"))
        content["sum"] = ConfigRecord(about | {entry: _edited(about[entry], given)})
    else:
        said = _message(_changed(step_record(given.rest()), given))
        with suppress(MessageError):
            read_step(said)
    with suppress(MessageError):
        asked = SumStep.read(content)
        with stand_in(), suppress(BGTPlannerError):
            table.client(0).step(asked)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "message": message,
    "ledger_row": ledger_row,
    "sum_member": sum_member,
    "sum_step": sum_step,
}
"""By the name of the folder with their corpus."""
