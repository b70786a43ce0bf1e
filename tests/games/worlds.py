"""Two worlds that differ in one client's ratings and in nothing else, and a server that may do
whatever it likes in both.

What a server may learn about ratings is what it has paid for. So every paid release is replaced by
numbers that do not depend on any world; whatever then still differs between the two transcripts
was learned for nothing. There is no noise in that, hence no statistics: the transcripts must be
equal, bit for bit, whatever the server does.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from Crypto.Protocol import SecretSharing
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bgtplanner.errors import BGTPlannerError, MessageError
from bgtplanner.federation.aggregation import client as member_module
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.client import Policy
from bgtplanner.federation.aggregation.messages import STEPS as STEPS_OF_A_SUM
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.randomizer import Randomizer, Release
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import HelloRequest, ModelFile, Request, SentCatalogue, SumStep
from bgtplanner.flower.state import RoundStore
from bgtplanner.privacy.ledger import Ledger
from federation.aggregation.members import Members
from games.summing import Asked

Generator = np.random.Generator
HEADER = "user,item,rating\n"


class Crash(BaseException):
    """The machine stops here."""


# ---- what the user does: the two worlds' only difference

CHANGES: tuple[Callable[[str], str | None], ...] = (
    lambda table: table,  # nothing
    lambda table: table + "u0,i7,1.0\n",
    lambda table: table + "u0,i8,4.0\nu1,i3,2.0\n",
    lambda table: table.rpartition("u")[0],  # one rating fewer
    lambda table: table.replace(",4.0", ",1.0"),
    lambda table: table + "u0,an item that no catalogue has,3.0\n",
    lambda table: HEADER,
    lambda table: "",
    lambda table: table + "u0,i2,not a number\n",
    lambda table: table + "u0,i2,3",  # half of a line, or a whole one
    lambda table: "\x00" * 100,
    lambda table: None,  # the file is gone
    lambda table: HEADER + "".join(f"u0,i{item},{1 + item % 4}.0\n" for item in range(30)),
)


@dataclass(frozen=True)
class Move:
    """What happens next, in both worlds alike: all of it is public.

    The kinds are ``ask``, ``sum``, ``keep``, ``hello``, ``hold``, ``change``, ``lose`` (what was
    kept last), ``copy`` and ``restore`` (the rounds of sums), ``forget`` (the catalogues) and
    ``age``. `crash` is the step of the answer at which the machine stops, `changes` is what the
    user of each world does.
    """

    kind: str
    request: Request | None = None
    step: Step | None = None
    catalogue: SentCatalogue | None = None
    crash: str | None = None
    changes: tuple[int, int] = (0, 0)
    seconds: float = 0.0


@dataclass(frozen=True)
class Step:
    """A step of a sum, with the message that fits, that of the step before, a part, or none."""

    name: str
    asked: Asked
    message: str = "next"


STEPS = ("reserve", "upload", "protect", "answers", "model", "settle", None)
STOPS_IN_SUMS = ("reserve", "upload", "share", "begun", "state", "model", "settle")


class Accomplices:
    """The other members of a round, all of them on the server's side, and the server itself.

    The client that is attacked has the first place in the roster.
    """

    def __init__(self, agreed: SumRequest, roster: Roster) -> None:
        self.members = Members(len(roster), coordinates=agreed.size)
        self.members.request, self.members.policy = agreed, Policy(2, colluders=0)
        self.messages = {"keys": dict.fromkeys(agreed.members, b"")}
        self.heard: dict[str, bytes] = {}
        self.server: Server | None = None
        with contextlib.suppress(BGTPlannerError):  # a round that there cannot be
            self.server = Server(agreed, roster)

    def message(self, step: str) -> bytes:
        """What the client is sent at a step, once all steps before are closed."""
        while self.server is not None and self.server.step and step not in self.messages:
            self._close(self.server, self.server.step)
        return self.messages.get(step, {}).get(0, b"")

    def _close(self, server: Server, step: str) -> None:
        with contextlib.suppress(BGTPlannerError):
            for place, message in self.messages[step].items():
                heard = self.heard.get(step, b"")
                answer = self.members.answer(step, place, message) if place else heard
                with contextlib.suppress(MessageError):
                    server.receive(place, answer)
            following = server.close_step()
            if server.step is not None:
                self.messages[server.step] = following


@dataclass
class World:
    """One client with its folder, and everything a server sees of it."""

    folder: Path
    kind: type[Client] = Client
    seen: list[Any] = field(default_factory=list)
    now: float = 1e9
    sums: dict[bytes, Accomplices] = field(default_factory=dict)

    def play(self, moves: list[Move], side: int) -> list[Any]:
        for move in moves:
            self.seen.append(self._do(move, side))
        with Ledger.open(self.folder / "state" / "ledger.sqlite", read_only=True) as ledger:
            self.seen.append((ledger.spent().tolist(), ledger.unsettled, ledger.head.number))
        return self.seen

    def _do(self, move: Move, side: int) -> Any:
        if move.kind == "change":
            self._change(CHANGES[move.changes[side]])
        elif move.kind == "lose":
            for folder in ("answers", "sums"):
                for path in sorted((self.folder / "state" / folder).glob("*"))[-1:]:
                    path.unlink()
        elif move.kind in ("copy", "restore"):
            for name in ("sums", "sums-begun"):
                own, copy = self.folder / "state" / name, self.folder / f"copy of {name}"
                one, other = (own, copy) if move.kind == "copy" else (copy, own)
                if one.exists():
                    shutil.rmtree(other, ignore_errors=True)
                    shutil.copytree(one, other)
        elif move.kind == "forget":
            for path in (self.folder / "state").glob("catalogue-*"):
                path.unlink()
        elif move.kind == "age":
            self.now += move.seconds
        else:
            return self._message(move)
        return None

    def _change(self, change: Callable[[str], str | None]) -> None:
        path = self.folder / "ratings.csv"
        table = change(path.read_text(encoding="utf-8") if path.exists() else HEADER)
        if table is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(table, encoding="utf-8")

    def _message(self, move: Move) -> Any:
        client = self.kind(load_client(self.folder / "client.toml"), clock=lambda: self.now)
        try:
            if move.kind == "hello":
                return ("here", client.hello(HelloRequest("run", bytes(32))))
            if move.catalogue is not None:
                client.hold(move.catalogue)
                return "kept"
            if move.step is not None:
                return self._step(client, move.step, move.crash)
            assert move.request is not None
            if move.kind == "keep":
                kept = client.file.model  # made of requests alone, so the server has the same
                client.keep(ModelFile(kept.read_bytes() if kept.exists() else b""))
                return "kept"
            if client.lacks(move.request.model.catalogue):
                return "unknown"
            with _stopping(move.crash):
                answer = client.answer(move.request)
            return ("released", hashlib.sha256(answer.tobytes()).hexdigest())
        except Crash:
            return "no answer"
        except Exception:  # as the client app does: one word, whatever the reason
            return "refused"

    def _step(self, client: Client, step: Step, crash: str | None) -> Any:
        agreed = step.asked.agreed
        if agreed.session not in self.sums:
            roster = Roster.read(self.folder / "roster.txt")
            self.sums[agreed.session] = Accomplices(agreed, roster)
        others, place = self.sums[agreed.session], STEPS_OF_A_SUM.index(step.name)
        told = STEPS_OF_A_SUM[max(place - (step.message == "last"), 0)]
        message = b"" if step.message == "none" else others.message(told)
        asked = step.asked.step(step.name, message[: -1 if step.message == "cut" else None])
        if client.lacks(asked.catalogue):
            return "unknown"
        with _stopping(crash):
            answer = client.step(asked)
        others.heard.setdefault(step.name, answer)
        return ("answered", step.name, hashlib.sha256(answer).hexdigest())


PLACES = {
    "reserve": (Randomizer, "reserve"),
    "upload": (Client, "_train"),
    "protect": (Randomizer, "protect"),
    "answers": (Client, "_keep_answer"),
    "model": (Client, "_keep"),
    "settle": (Randomizer, "settle"),
    "share": (Randomizer, "share"),
    "begun": (RoundStore, "save"),
    "state": (RoundStore, "save"),
}


@contextlib.contextmanager
def _stopping(step: str | None) -> Iterator[None]:
    """The machine stops at a step of an answer, before that step is done."""
    with pytest.MonkeyPatch.context() as patch:
        if step is not None:
            real = getattr(*PLACES[step])

            def stop(*given: Any, **options: Any) -> None:
                if step not in ("begun", "state") or given[1].endswith(step):
                    raise Crash
                real(*given, **options)

            patch.setattr(*PLACES[step], stop)
        yield


def paid_releases_tell_nothing(patch: pytest.MonkeyPatch) -> None:
    """Replace what was paid for by numbers that go by the reservation alone."""

    def nothing(name: str, made_up: Callable[..., Any]) -> None:
        real = getattr(Randomizer, name)

        def released(self: Randomizer, reservation: Any, upload: Any, **options: Any) -> Release:
            release: Release = real(self, reservation, upload, **options)
            rng = np.random.default_rng(reservation.number)
            return replace(release, values=made_up(rng, release.values.shape))

        patch.setattr(Randomizer, name, released)

    nothing("protect", lambda rng, shape: rng.normal(size=shape))
    nothing("share", lambda rng, shape: rng.integers(2**20, size=shape).astype(np.uint64))


@contextlib.contextmanager
def keys_by_number() -> Iterator[None]:
    """Keys, seeds and shares of sums are those of a seed, in the order in which they are made.

    A world in which one more is made, or one fewer, has others from there on.
    """
    rng = np.random.default_rng(0)
    made = SimpleNamespace(urandom=rng.bytes)
    private = SimpleNamespace(
        generate=lambda: X25519PrivateKey.from_private_bytes(rng.bytes(32)),
        from_private_bytes=X25519PrivateKey.from_private_bytes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "os", made)
        patch.setattr(member_module, "os", made)
        patch.setattr(member_module, "X25519PrivateKey", private)
        patch.setattr(SecretSharing, "rng", rng.bytes)
        yield


def both(
    home: Path, to: Path, kind: type[Client], moves: list[Move]
) -> tuple[list[Any], list[Any]]:
    """The transcripts of two worlds that begin with the same folder and the same keys."""
    transcripts = []
    for side in (0, 1):
        folder = to / f"world {side}"
        shutil.copytree(home, folder)
        with keys_by_number():
            transcripts.append(World(folder, kind).play(moves, side))
        shutil.rmtree(folder)
    return transcripts[0], transcripts[1]


# ---- what a hostile server tries


def some_moves(
    rng: Generator, honest: Request, number: int, catalogues: Sequence[SentCatalogue] = (),
    sums: Sums | None = None,
) -> list[Move]:  # fmt: skip
    """Messages in any order, repeated, renamed, altered, with crashes and a jumping clock.

    Requests are about any of the catalogues, which come now and then, and are lost now and then.
    With `sums`, most of them are steps of sums.
    """
    moves: list[Move] = [Move("change", changes=_two(rng)), Move("ask", request=honest)]
    asked: list[Request] = [honest]
    while len(moves) < number:
        dice = rng.random()
        if catalogues and rng.random() < (0.2 if sums is None else 0.05):
            sent = catalogues[int(rng.integers(len(catalogues)))]
            moves.append(Move("hold", catalogue=sent) if dice < 0.9 else Move("forget"))
            continue
        if sums is not None and rng.random() < 0.65:
            moves.append(sums.move(rng, honest))
            continue
        if dice < (0.25 if sums is None else 0.6):
            moves.append(Move("change", changes=_two(rng)))
        elif dice < 0.30:
            moves.append(Move("lose"))
        elif dice < 0.35:
            moves.append(Move("age", seconds=float(rng.choice([-1e8, -60, 60, 3600, 1e8]))))
        elif dice < 0.38:
            moves.append(Move("hello"))
        elif dice < 0.40:
            moves.append(Move("keep", request=honest))
        else:
            again = rng.random() < 0.6
            request = asked[int(rng.integers(len(asked)))] if again else _request(rng, honest)
            if catalogues and not again:
                about = catalogues[int(rng.integers(len(catalogues)))].digest
                request = replace(request, model=replace(request.model, catalogue=about))
            asked.append(request)
            crash = STEPS[int(rng.integers(len(STEPS)))] if rng.random() < 0.2 else None
            moves.append(Move("ask", request=request, crash=crash))
    return moves


@dataclass
class Sums:
    """What a server tries with sums: several rounds at once, mostly a step further in one."""

    begin: Callable[[Request], Asked]
    rounds: list[tuple[Asked, int]] = field(default_factory=list)

    def move(self, rng: Generator, honest: Request) -> Move:
        dice = rng.random()
        if dice < 0.03:
            return Move("copy" if rng.random() < 0.7 else "restore")
        chosen = len(self.rounds) - 1 - int(rng.integers(3))  # one of the newest
        over = chosen < 0 or (self.rounds[chosen][1] > len(STEPS_OF_A_SUM) and dice < 0.9)
        if dice < 0.15 or over:
            self.rounds.append((self._another(rng, honest), 0))
            chosen = len(self.rounds) - 1
        asked, done = self.rounds[chosen]
        done = int(rng.integers(len(STEPS_OF_A_SUM))) if rng.random() < 0.05 else done
        if rng.random() < 0.2:  # what was asked before
            done = max(0, done - 1)
        name = STEPS_OF_A_SUM[min(done, len(STEPS_OF_A_SUM) - 1)]
        self.rounds[chosen] = (asked, done + 1)
        if rng.random() < 0.05:  # what was agreed does not change, what is asked for does
            asked = replace(asked, plan=_request(rng, asked.plan), scale=asked.scale * 1.5)
        crash = None
        if rng.random() < 0.07:
            crash = STOPS_IN_SUMS[int(rng.integers(len(STOPS_IN_SUMS)))]
        message = str(rng.choice(["next", "last", "cut", "none"], p=[0.97, 0.01, 0.01, 0.01]))
        return Move("sum", step=Step(name, asked, message), crash=crash)

    def _another(self, rng: Generator, honest: Request) -> Asked:
        """A round, mostly one that the client agrees to, or one that was begun in another way."""
        if self.rounds and rng.random() < 0.1:
            asked = self.rounds[int(rng.integers(len(self.rounds)))][0]
            changes: list[dict[str, Any]] = [
                {"dropouts": 0}, {"colluders": 2, "dropouts": 0}, {"roster": bytes(32)},
                {"members": frozenset({0, 1, 2, 3}), "dropouts": 0}, {"members": frozenset({0})},
            ]  # fmt: skip
            return asked.sealed(**changes[int(rng.integers(len(changes)))])
        plan = replace(honest, run=str(rng.choice(["first", "second"])), round=len(self.rounds))
        if rng.random() < 0.2:
            plan = _request(rng, plan)
        return self.begin(replace(plan, charge=min(plan.charge, 5.0)))


def _two(rng: Generator) -> tuple[int, int]:
    first, second = rng.integers(len(CHANGES), size=2)
    return int(first), int(second)


def _request(rng: Generator, honest: Request) -> Request:
    model = honest.model
    items = np.zeros_like(model.items)
    if rng.random() < 0.5:  # all the weight on one item
        items[int(rng.integers(len(items)))] = 10.0 ** float(rng.integers(-3, 30))
    model = replace(model, items=items)
    if model.name == "tastes":
        model = replace(model, items=hostile_axes(model.items, cut=rng.random() < 0.1))
    if rng.random() < 0.05:
        model = replace(model, catalogue="0" * 64)
    if rng.random() < 0.05:
        model = replace(model, settings={"mean": 0.6})
    return replace(
        honest,
        run=str(rng.choice(["first", "second", "[/]"])),
        round=int(rng.integers(6)),
        charge=float(rng.choice([2.0**-44, 1e-6, 1.0, 5.0, 1e9], p=[0.1, 0.3, 0.4, 0.1, 0.1])),
        clip=float(rng.choice([1e-9, 0.1, 1.0, 1e9], p=[0.05, 0.5, 0.4, 0.05])),
        model=model,
    )


HOSTILE = ("none", "of one item", "not a number", "too many")


def hostile_catalogue(honest: SentCatalogue, kind: str, item: int = 7) -> SentCatalogue:
    """The items with features that are meant to single one out, or to break something."""
    number = len(honest.items)
    one = np.zeros((number, 1), dtype=np.float32)
    one[item] = 1.0
    features = {
        "none": np.zeros((number, 0)),
        "of one item": one,
        "not a number": one * np.nan,
        "too many": np.ones((number, number + 1)),
    }[kind].astype(np.float32)
    names = tuple(str(place) for place in range(features.shape[1]))
    return replace(honest, features=features, names=names)


def hostile_axes(items: Any, item: int = 7, *, cut: bool = False) -> Any:
    """Parameters of the model `tastes` with an axis of one item alone.

    Tastes are then uploaded by those who have rated it.
    """
    own = items.copy()
    own[:, 5:] = 0.0
    own[item, 5] = 1.0
    return own[:, :6] if cut else own


# ---- clients with a defence taken away


class ReplaysIfNothingChanged(Client):
    """Repeats, unpaid, what it has sent if the upload has not changed; charges anew if it has.

    The client of 29ffb3e: an upload's hash was part of what made two requests the same.
    """

    sent: ClassVar[dict[tuple[str, bytes], Any]] = {}

    def answer(self, request: Request) -> Any:
        self._agree(request)
        upload, _ = self._train(self._model_of(request.model), request)
        key = (str(self.file.state), hashlib.sha256(request.digest + upload.tobytes()).digest())
        if key not in self.sent:
            with self.open_ledger() as ledger:
                guard = Randomizer(ledger)
                paid = guard.reserve(request.charge, run=request.run, round=request.round)
                self._remember(ledger, request.digest)
                released = guard.protect(paid, upload[None], clip=request.clip)
                self.sent[key] = released.values[0]
        return self.sent[key]


class RefusesWithoutRatings(Client):
    """Reads its ratings first, and refuses if it has none."""

    def answer(self, request: Request) -> Any:
        self.file.table()
        return super().answer(request)

    def step(self, asked: SumStep) -> bytes:
        if asked.step == "upload":
            self.file.table()
        return super().step(asked)


class PaysOnlyIfThereIsSomethingToSend(Client):
    """Takes a rest if none of its ratings is in the catalogue: nothing would be learned."""

    def answer(self, request: Request) -> Any:
        if not self._train(self._model_of(request.model), request)[0].any():
            return np.zeros(60)
        return super().answer(request)

    def _share(self, ledger: Any, asked: SumStep, agreed: Any, paid: Any) -> Any:
        assert asked.request is not None
        if not self._train(self._model_of(asked.request.model), asked.request)[0].any():
            return np.zeros(agreed.size, dtype=np.uint64)
        return super()._share(ledger, asked, agreed, paid)


class AsksForItemsThatItHasRated(Client):
    """Wants another catalogue if it has rated an item that this one does not have."""

    def lacks(self, digest: str) -> bool:
        found = self._find(digest)
        try:
            known = None if found is None else (found.items, found.low, found.high)
            return super().lacks(digest) or bool(known and self.file.ratings_over(*known)[1])
        except BGTPlannerError:
            return super().lacks(digest)


class GoesOnOnlyIfNothingChanged(Client):
    """Repeats an upload, and helps to open its sum, only if it would still be the same."""

    made: ClassVar[dict[tuple[str, bytes], bytes]] = {}

    def step(self, asked: SumStep) -> bytes:
        if asked.step not in ("keys", "shares"):
            now = self.file.ratings.read_bytes() if self.file.ratings.exists() else b""
            key = (str(self.file.state), asked.round)
            if self.made.setdefault(key, now) != now:
                raise MessageError("ratings have changed")
        return super().step(asked)


DEFENCELESS_IN_SUMS = (
    RefusesWithoutRatings,
    PaysOnlyIfThereIsSomethingToSend,
    AsksForItemsThatItHasRated,
    GoesOnOnlyIfNothingChanged,
)

DEFENCELESS = (
    ReplaysIfNothingChanged,
    RefusesWithoutRatings,
    PaysOnlyIfThereIsSomethingToSend,
    AsksForItemsThatItHasRated,
)
