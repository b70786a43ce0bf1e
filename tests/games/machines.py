"""A federation in one thread, driven by one seed.

Messages are delayed, lost, doubled and overtaken; machines stop at any write, with the file they
were writing torn; disks lose a name that was not flushed. The client, its ledger and the
coordinator's ledger are the real ones, on real files; only the model is a stand-in, time is a
number, and noise comes from the seed, so that whatever happens happens again when the seed is
played again.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import BGTPlannerError
from bgtplanner.federation import answers, ratelimit
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.flower import state as module
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request, SentModel
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy.accountants import to_ticks
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.randomness import SeededNoise

SIZE = 4  # coordinates of an upload
CHARGE = 1.0
CLIP = 0.1
ROUNDS = 3
CLIENTS = 3


class Stop(BaseException):
    """The machine stops here: nothing after this line is done, and nothing is tidied up."""


@dataclass
class Disk:
    """Counts writes, and stops the machine at one of them.

    Attributes:
        stop_at: Which write to stop at, counted from now; None: none.
        rng: Decides what a stop leaves behind.
    """

    rng: np.random.Generator
    stop_at: int | None = None

    def step(self) -> bool:
        """Whether the machine stops at this write."""
        if self.stop_at is None:
            return False
        self.stop_at -= 1
        return self.stop_at < 0

    def replace_file(self, target: Path, content: bytes) -> None:
        """As :func:`bgtplanner.durable.replace_file`, with every place at which it can stop."""
        temporary = target.parent / f".tmp-{self.rng.integers(2**62):x}"
        if self.step():
            raise Stop
        if self.step():
            temporary.write_bytes(content[: int(self.rng.integers(len(content) + 1))])
            raise Stop
        temporary.write_bytes(content)
        if self.step():  # the name was not flushed: the old file may be back, or the new one there
            if self.rng.random() < 0.5:
                temporary.replace(target)
            raise Stop
        temporary.replace(target)
        if self.step():
            raise Stop

    @contextlib.contextmanager
    def writing(self, journal: Journal, real: Callable[..., Any]) -> Iterator[None]:
        """As :meth:`Journal.writing`, with a stop before and after what it writes."""
        with real(journal):
            if self.step():
                raise Stop
            yield
            if self.step():
                raise Stop
        if self.step():
            raise Stop


def ledger_files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.parent.glob(f"{path.name}*")}


@dataclass
class Machine:
    """A client's machine: it answers, stops, and starts again."""

    folder: Path
    kind: type[Client]
    seed: int
    disk: Disk
    released: dict[bytes, set[bytes]] = field(default_factory=dict)
    draws: int = 0
    stops: int = 0

    def noise(self, *_: Any) -> SeededNoise:
        self.draws += 1  # never the same twice, as on a real machine
        return SeededNoise([self.seed, self.draws])

    def answer(self, request: Request, now: float) -> bytes | None:
        """The bytes that leave the machine, if any do."""
        file = load_client(self.folder / "client.toml")
        client = self.kind(file, noise=self.noise, clock=lambda: now)
        try:
            vector = client.answer(request)
        except BGTPlannerError:
            return None
        except Stop:
            self.stops += 1
            return None
        finally:
            self.disk.stop_at = None
        self.released.setdefault(request.digest, set()).add(vector.tobytes())
        return vector.tobytes()

    @property
    def ledger(self) -> Path:
        return self.folder / "state" / "ledger.sqlite"

    def can_pay(self) -> bool:
        with Ledger.open(self.ledger, read_only=True) as ledger:
            return bool(ledger.left()[0] >= CHARGE)


@dataclass
class Coordinator:
    """The server: asks a round of everybody, waits, adds up, writes down, goes on."""

    book: Path
    run: str = "run"
    done: int = 0
    total: bytes = b""
    sums: list[Any] = field(default_factory=list)
    heard: dict[int, bytes] = field(default_factory=dict)

    def request(self) -> Request:
        """What this round asks for: made of what is written down, so the same after a restart."""
        state = hashlib.sha256(self.total).digest()
        model = SentModel(
            name="biases",
            settings={},
            catalogue="0" * 64,
            items=np.frombuffer(state[:24], dtype="<u1").astype(np.float32).reshape(2, 12),
            dense=np.zeros(0, dtype=np.float32),
        )
        return Request(
            run=self.run, round=self.done, accountant="gaussian/gdp", trust="local", unit="client",
            charge=CHARGE, clip=CLIP, model=model,
        )  # fmt: skip

    def reserve(self) -> bool:
        """Note what will be asked; False if nobody could pay."""
        with Ledger.open(self.book) as ledger:
            mark = ledger.fingerprint(str(self.done).encode())
            with contextlib.suppress(BGTPlannerError):
                ledger.reserve(CHARGE, run=self.run, round=self.done, fingerprint=mark)
                return True
        return False

    def hear(self, place: int, request: Request, answer: bytes) -> None:
        if request.round == self.done and request.digest == self.request().digest:
            self.heard.setdefault(place, answer)

    def close_round(self) -> None:
        uploads = [np.frombuffer(answer) for _, answer in sorted(self.heard.items())]
        total = np.sum(uploads, axis=0) if uploads else np.zeros(SIZE)
        self.sums.append((dict(self.heard), total))
        self.total, self.done, self.heard = total.tobytes(), self.done + 1, {}


@dataclass
class Federation:
    """Everything, and what has happened in it."""

    home: Path
    kind: type[Client]
    seed: int
    trace: list[Any] = field(default_factory=list)
    able: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, 1])
        self.machines = [
            Machine(
                self.home / str(place),
                self.kind,
                1000 * self.seed + place,
                Disk(np.random.default_rng([self.seed, 2, place])),
            )
            for place in range(CLIENTS)
        ]
        self.server = Coordinator(self.home / "book.sqlite")

    def disk_of(self, path: Path) -> Disk | None:
        for machine in self.machines:
            if machine.folder in path.parents:
                return machine.disk
        return None

    def play(self) -> None:
        """Rounds with faults, then one without: whoever can pay must answer that one."""
        for _ in range(ROUNDS):
            self._round(faults=True)
        self.able = {place for place in range(CLIENTS) if self.machines[place].can_pay()}
        self._round(faults=False)

    def _round(self, *, faults: bool) -> None:
        if not self.server.reserve():
            return
        request, rng, queue = self.server.request(), self.rng, list[tuple[float, int, int, str]]()
        number = 0

        def send(place: int, kind: str, at: float) -> None:
            nonlocal number
            copies = int(rng.choice([0, 1, 2, 3], p=[0.1, 0.7, 0.15, 0.05])) if faults else 1
            for _ in range(copies):
                number += 1
                heapq.heappush(queue, (at + float(rng.exponential(1.0)), number, place, kind))

        for place in range(CLIENTS):
            send(place, "ask", 0.0)
        answers_of: dict[int, bytes] = {}
        deadline = 4.0 if faults else np.inf
        restarted = False
        while queue:
            at, _, place, kind = heapq.heappop(queue)
            now = 1e9 + 1e4 * self.server.done + at
            if kind == "ask":
                machine = self.machines[place]
                if faults and rng.random() < 0.35:
                    machine.disk.stop_at = int(rng.integers(24))
                answer = machine.answer(request, now)
                self.trace.append((round(at, 9), place, answer and answer.hex()))
                if answer is not None:
                    answers_of[place] = answer
                    send(place, "reply", at)
            elif at <= deadline:
                self.server.hear(place, request, answers_of[place])
            if faults and not restarted and rng.random() < 0.05:  # the server stops, starts again
                restarted = True
                self.server.heard = {}
                self.server.reserve()
                request = self.server.request()
                for other in range(CLIENTS):
                    send(other, "ask", at)
        self.server.close_round()

    # ---- what must hold whatever happened

    def check(self) -> None:
        with Ledger.open(self.server.book, read_only=True) as book:
            noted = book.spent()[0]
        for place, machine in enumerate(self.machines):
            with Ledger.open(machine.ledger) as ledger:
                ledger.verify()
                spent = int(ledger.spent()[0, 0])
                limit = int(ledger.accountant.limit_ticks(ledger.budgets.classes[0])[0])
                rounds = [row["round"] for row in ledger.history() if row["kind"] == "reserve"]
            for versions in machine.released.values():
                assert len(versions) == 1, "one request was answered in two ways"
            paid = len(machine.released) * int(to_ticks(CHARGE))
            assert paid <= spent, "something has left that was not paid for"
            assert spent <= limit, "more was spent than there was"
            assert rounds == sorted(set(rounds)), "a round was paid for twice"
            assert spent <= noted[place], "the coordinator's book shows less than the client's"
        for heard, total in self.server.sums:
            for place, answer in heard.items():
                assert any(answer in seen for seen in self.machines[place].released.values())
            expected = [np.frombuffer(answer) for _, answer in sorted(heard.items())]
            assert not heard or np.array_equal(total, np.sum(expected, axis=0))
        assert set(self.server.sums[-1][0]) == self.able, "who can pay must answer"


@contextlib.contextmanager
def writing_to(disk_of: Callable[[Path], Disk | None]) -> Iterator[None]:
    """All writes of clients go to disks that may stop."""
    patch = pytest.MonkeyPatch()
    real = Journal.writing

    def replace_file(target: Path, content: bytes) -> None:
        disk = disk_of(target)
        assert disk is not None
        disk.replace_file(target, content)

    def writing(self: Journal) -> Any:
        disk = disk_of(self.path)
        return real(self) if disk is None else disk.writing(self, real)

    for home in (answers, ratelimit, module):
        patch.setattr(home, "replace_file", replace_file)
    patch.setattr(Journal, "writing", writing)
    try:
        yield
    finally:
        patch.undo()


@contextlib.contextmanager
def simulated(federation: Federation) -> Iterator[None]:
    """Disks may stop, and the model is a stand-in."""
    patch = pytest.MonkeyPatch()

    def upload(self: Client, *_: Any) -> Any:
        digest = hashlib.sha256(str(self.file.ratings).encode()).digest()
        return np.frombuffer(digest[:SIZE], "i1"), None

    patch.setattr(Client, "_model_of", lambda *_: None)
    patch.setattr(Client, "_train", upload)
    try:
        with writing_to(federation.disk_of):
            yield
    finally:
        patch.undo()


def write_template(folder: Path) -> None:
    """Clients and the coordinator's book, to be copied for every schedule."""
    for place in range(CLIENTS):
        home = folder / str(place)
        home.mkdir(parents=True)
        (home / "ratings.csv").write_text("user,item,rating\nu,a,3\n", encoding="utf-8")
        (home / "client.toml").write_text('ratings = "ratings.csv"\n', encoding="utf-8")
        (home / "policy.toml").write_text(
            "epsilon = 9.0\ndelta = 1e-5\nlargest_charge = 2.0\nsmallest_charge = 0.1\n"
            "smallest_noise_multiplier = 0.1\nscale = [1.0, 5.0]\nrequests_per_hour = 1000\n"
            f'catalogues = ["{"0" * 64}"]\nanswers_kept = 2\n',
            encoding="utf-8",
        )
        Client(load_client(home / "client.toml")).enroll()
    budgets = Budgets.same(Budget(100.0, 1e-5), CLIENTS)
    Ledger.create(folder / "book.sqlite", budgets, "gaussian/gdp").close()


def played(template: Path, to: Path, seed: int, kind: type[Client] = Client) -> list[Any]:
    """Play a schedule and check it; what has happened."""
    shutil.copytree(template, to)
    try:
        federation = Federation(to, kind, seed)
        with simulated(federation):
            federation.play()
        federation.check()
        return federation.trace
    finally:
        shutil.rmtree(to)


# ---- clients with a defence taken away


class PaysAfterwards(Client):
    """Sends, and writes the charge down after that."""

    def answer(self, request: Request) -> Any:
        known = self._answers.find(request.digest)
        if known is not None:
            return known
        values = SeededNoise([hash(request.round), id(self)]).normal((SIZE,))
        self._answers.keep(request.digest, request.round, values)
        with contextlib.suppress(Stop), self.open_ledger() as ledger:
            Randomizer(ledger).reserve(request.charge, run=request.run, round=request.round)
        return values


class MakesLostAnswersAgain(Client):
    """Has paid for the round, cannot find the answer, and so makes another one."""

    def answer(self, request: Request) -> Any:
        try:
            return super().answer(request)
        except BGTPlannerError:
            return SeededNoise(self._noise(None, None).normal((1,)).view("u8").tolist()).normal(
                (SIZE,)
            )


class KeepsNothing(Client):
    """Answers each request once, charges each time: the same request gets two answers."""

    def answer(self, request: Request) -> Any:
        again = replace(request, run=f"{request.run} {self._pacing._clock()}")
        return super().answer(again)


DEFENCELESS = (PaysAfterwards, MakesLostAnswersAgain, KeepsNothing)
