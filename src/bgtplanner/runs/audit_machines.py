"""Clients on a disk, and a group of them with its server, as an audit attacks them.

Everything that a server can do is played against the real
:class:`~bgtplanner.flower.client.Client`: requests for new rounds, the same request again, others
in between, ratings that come and go, and a restart for every request. Beside the releases, an
audit looks at what carries *no* noise: whether there is an answer, and whether it has the bytes of
an earlier one. Both may depend on the requests alone, so guesses from them must be right half of
the time and no more.

Under secure aggregation the server sees the sum that is opened. The attacker is the server
together with as many clients as may collude: it subtracts what those have sent, and it makes as
many clients drop out as may. What is left is the upload of the audited client, and noise that must
be the full noise nevertheless.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import BGTPlannerError, ConfigError, MissingExtraError
from bgtplanner.privacy.accountants import to_ticks
from bgtplanner.privacy.audit import Check, at_least, told_apart
from bgtplanner.privacy.randomness import SeededNoise
from bgtplanner.privacy.shares import Shares
from bgtplanner.runs.audit_targets import SIZE, Setting, Target, Trials

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("flower", "an audit of clients") from error

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.federation.aggregation.masks import unpack
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.aggregation.messages import Upload
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import STEPS, Server
from bgtplanner.federation.client import upload_of
from bgtplanner.flower import client as flower_client
from bgtplanner.flower import clientfile
from bgtplanner.flower.identity import identity_in
from bgtplanner.flower.messages import Request, SentCatalogue, SentModel, SumStep
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Shared

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

EPSILON = 1e5
"""Of a client's policy: enough for any number of requests in an audit."""

CLIP = 0.1
"""Of every request: shorter than the upload of a client with one rating."""

_KEPT = 1  # answers that a client keeps
_TIMES = 16  # turns of a game: 2^-16 is below every risk
_ITEMS = 4 * SIZE
_MEAN = 0.5  # public; it makes ratings of 1 and 0 nearly opposite
_RAM = Path("/dev/shm")  # noqa: S108 - disks are slow
_EMPTY, _MOST_MEMBERS = "user,item,rating\n", 64


class _Site:
    """Where the folders of audited clients are, and what a server sends to them.

    The audited client has one rating, the highest or the lowest, in the model ``biases``.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, self.model = setting, Biases(mean=_MEAN)
        self.items = np.zeros((_ITEMS, 3), dtype=np.float32)
        where = _RAM if os.access(_RAM, os.W_OK) else None
        self._folders = tempfile.TemporaryDirectory(prefix="bgtplanner-audit-", dir=where)
        self.path, self.close = Path(self._folders.name), self._folders.cleanup
        self._made = 0

    def uploads(self) -> tuple[Floats, Floats]:
        """Return the clipped uploads of the two ratings; or of the highest one, and nothing."""

        def one(value: float) -> Floats:
            ratings = Ratings.from_arrays(
                [0], [0], [value], client=np.zeros(1), items=np.arange(_ITEMS), scale=(0.0, 1.0)
            )
            shared = Shared(self.items, np.zeros(0, dtype=np.float32))  # type: ignore[arg-type]
            upload = np.asarray(upload_of(self.model, shared, ratings), dtype=np.float64)
            order = 1 if self.setting.mechanism == "laplace" else 2
            return np.asarray(CLIP * upload / np.linalg.norm(upload, order))

        ahead = one(1.0)
        nothing = self.setting.trust == "secagg" and self.setting.against_nothing
        return ahead, np.zeros_like(ahead) if nothing else one(0.0)

    @cached_property
    def catalogue(self) -> SentCatalogue:
        """The items, which the policies of the clients name."""
        labels = tuple(f"item {index}" for index in range(_ITEMS))
        nothing = np.zeros((_ITEMS, 0), dtype=np.float32)
        return SentCatalogue(items=labels, low=0.0, high=1.0, features=nothing, names=())

    def request(self, index: int) -> Request:
        """Return what the server asks for in a round."""
        model = SentModel(
            name="biases",
            settings={"mean": _MEAN},
            catalogue=self.catalogue.digest,
            items=self.items,
            dense=np.zeros(0, dtype=np.float32),
        )
        return Request(
            run="audit",
            round=index,
            accountant=self.setting.accountant.name,
            trust=self.setting.trust,
            unit="client",
            charge=self.setting.charge,
            clip=CLIP,
            model=model,
        )

    def enroll(
        self, epsilon: float = EPSILON, group: Mapping[str, str | int] | None = None
    ) -> _Desk:
        """Return a new client without ratings that agrees to what this server asks for."""
        self._made += 1
        home = self.path / str(self._made)
        home.mkdir()
        policy = {
            "epsilon": epsilon,
            "delta": self.setting.budget.delta,
            "rule": json.dumps(self.setting.accountant.name),
            "neighbours": json.dumps(self.setting.neighbours),
            "largest_charge": self.setting.charge,
            "smallest_charge": self.setting.charge,
            "smallest_noise_multiplier": 1e-9,
            "scale": [0.0, 1.0],
            "models": '["biases"]',
            "catalogues": json.dumps([self.catalogue.digest]),
            "requests_per_hour": 1e12,
            "answers_kept": _KEPT,
        }
        lines = [f"{name} = {value}" for name, value in policy.items()]
        lines += ["[settings.biases]", f"mean = {_MEAN}", *(["[secagg]"] if group else [])]
        lines += [f"{name} = {json.dumps(value)}" for name, value in (group or {}).items()]
        (home / "policy.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (home / "client.toml").write_text('ratings = "ratings.csv"\n', encoding="utf-8")
        desk = _Desk(home)
        desk.rate(0)
        desk.client().enroll()
        desk.client().hold(self.catalogue)
        return desk


@dataclass
class _Desk:
    """One client's folder, and its answers; `mark` is the seed of its noise, if it has one."""

    home: Path
    mark: list[int] | None = None
    answers: set[bytes] = field(default_factory=set)
    _round: int = 0
    _asked: int = 0

    def client(self) -> Any:
        """Return the client as it is after its machine has started."""
        seed = self.seed
        noise = None if self.mark is None else lambda *_: SeededNoise(seed)
        return flower_client.Client(clientfile.load_client(self.home / "client.toml"), noise=noise)

    @property
    def seed(self) -> list[int]:
        """The seed of its noise in the next answer, if it has one."""
        return [*(self.mark or []), self._asked]

    def next_round(self) -> int:
        """Return a round that was never requested."""
        self._round += 1
        return self._round

    def rate(self, sign: float) -> None:
        """Replace the client's ratings: the highest one (1), the lowest one (-1), or none (0)."""
        self.write(_EMPTY + ("" if sign == 0 else f"u0,item 0,{float(sign > 0)}\n"))

    def write(self, text: str) -> None:
        """Replace the client's table of ratings."""
        (self.home / "ratings.csv").write_text(text, encoding="utf-8")

    def ask(self, request: Request) -> Floats | None:
        """Return the answer of a client that has just started, or None if it refuses."""
        try:
            return self.must(request)
        except BGTPlannerError:
            return None

    def must(self, request: Request) -> Floats:
        """Return the answer of a client that has just started and must not refuse."""
        self._asked += 1
        with _quiet():
            answer = np.asarray(self.client().answer(replace(request)), dtype=np.float64)
        self.answers.add(answer.tobytes())
        return answer

    def unpaid(self, charge: float) -> bool:
        """Return whether there are answers that the client's ledger has not booked."""
        with self.client().open_ledger() as ledger:
            booked = int(ledger.spent()[0, 0])
        return len(self.answers) * int(to_ticks(charge)) > booked


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep a client's log to itself: it is for its owner."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _paid_for(unpaid: int) -> Check:
    fault = "there are answers that the ledger did not book"
    return Check("paid for", 0.0 if unpaid else 1.0, float(unpaid), 0.0, fault)


_SAME = ("same request again", "whether an answer is repeated tells whether the ratings changed")
_SILENT = ("no ratings", "whether there is an answer tells whether there are ratings")


class ClientTarget(Target):
    """A client with one rating, the highest or the lowest possible."""

    n_games = 3
    most_trials = 20

    def __init__(self, setting: Setting) -> None:
        self.setting, self._site = setting, _Site(setting)
        self.scale = setting.scale * CLIP
        self._desk = self._site.enroll()
        self._unpaid = 0

    def release(self, number: int, mark: list[int] | None) -> Trials:
        """Send a request for a new round per trial to a client that is restarted each time."""
        ahead, behind = self._site.uploads()
        seen = np.empty((2, number, 1, len(ahead)))
        for side, sign in enumerate((1, -1)):
            self._desk.mark = None if mark is None else [*mark, side]
            for trial in range(number):
                self._desk.rate(sign)
                seen[side, trial, 0] = self._desk.must(self._site.request(self._desk.next_round()))
        return Trials(seen[0], seen[1], ahead, behind)

    def games(self) -> list[Check]:
        """Return what else a server can try: repeats, silence, and unpaid answers."""
        coins = np.random.default_rng(0)
        repeats = [self._played(coins, partial(self._repeat, others=n)) for n in (0, _KEPT + 1)]
        texts = (_EMPTY, "no table at all")
        silences = [self._played(coins, partial(self._silence, without=text)) for text in texts]
        self._played(coins, lambda desk, _: str(desk.ask(self._site.request(desk.next_round()))),
                     epsilon=self.setting.budget.epsilon)  # fmt: skip
        self._unpaid += self._desk.unpaid(self.setting.charge)
        return [
            told_apart(_SAME[0], repeats, _SAME[1]),
            told_apart(_SILENT[0], silences, _SILENT[1]),
            _paid_for(self._unpaid),
        ]

    def close(self) -> None:
        """Remove all folders."""
        self._site.close()

    def _played(
        self,
        coins: np.random.Generator,
        turn: Callable[[_Desk, bool], str],
        epsilon: float = EPSILON,
    ) -> tuple[list[str], NDArray[np.bool_]]:
        """Play turns in which the ratings change by the toss of a coin; return what they show."""
        desk = self._site.enroll(epsilon)
        changed = coins.integers(0, 2, _TIMES).astype(bool)
        outcomes = [turn(desk, bool(change)) for change in changed]
        self._unpaid += desk.unpaid(self.setting.charge)
        return outcomes, changed

    def _repeat(self, desk: _Desk, change: bool, others: int) -> str:
        """Repeat a request after the ratings have changed, or have not."""
        desk.rate(1)
        request = self._site.request(desk.next_round())
        before = desk.must(request)
        for _ in range(others):
            desk.must(self._site.request(desk.next_round()))
        desk.rate(-1 if change else 1)
        after = desk.ask(request)
        if after is None:
            return "refused"
        return "same" if before.tobytes() == after.tobytes() else "other"

    def _silence(self, desk: _Desk, change: bool, without: str) -> str:
        """Ask a client that has a rating, or one that has none or cannot read its file."""
        desk.rate(1)
        if change:
            desk.write(without)
        answer = desk.ask(self._site.request(desk.next_round()))
        return "refused" if answer is None else "answered"


def _without(shares: Shares, total: Words, known: list[Words], answered: int) -> Floats:
    """Return what the attacker makes of a sum: it takes away what it knows."""
    left = total - np.sum(known, axis=0, dtype=np.uint64) if known else total
    return shares.decode(left & shares.mask(len(left)), answered)


@dataclass
class _Asked:
    """A round that the members are asked for, and the audited member's masked upload."""

    request: Request
    agreed: SumRequest
    masked: bytes = b""


class Group:
    """The folders of the members, and a server that adds them up.

    The first member is the audited one, the next ones collude, and the last ones drop out. All but
    the first have no ratings.
    """

    def __init__(self, setting: Setting) -> None:
        for name, value in (("dropouts", setting.dropouts), ("colluders", setting.colluders)):
            ConfigError.unless(value >= 0, f"--{name}", value, "a whole number from 0")
        expected = f"fewer, for a group of at most {_MOST_MEMBERS} clients"
        fits = setting.members <= _MOST_MEMBERS
        ConfigError.unless(fits, "--dropouts", setting.dropouts, expected)
        # No fewer shares of the noise are accepted, and more help no one.
        self.shares = Shares.of(
            setting.accountant,
            setting.charge,
            CLIP,
            setting.neighbours,
            invited=setting.members,
            most_dropouts=setting.dropouts,
            most_colluders=setting.colluders,
        )
        self.setting = setting
        self.site = _Site(setting)
        self.size = len(self.site.uploads()[0])
        policy: dict[str, str | int] = {
            "roster": "../roster.txt",
            "smallest_group": setting.colluders + 2,
            "colluders": setting.colluders,
        }
        self.desks = [self.site.enroll(group=policy) for _ in range(setting.members)]
        self.roster = Roster(
            tuple(f"client {place}" for place in range(len(self.desks))),
            tuple(public_bytes(identity_in(desk.client().file.identity)) for desk in self.desks),
        )
        self.roster.write(self.site.path / "roster.txt")
        self._round = 0

    def seed(self, mark: list[int] | None) -> None:
        """Give every member noise of its own, and the colluders noise that the attacker knows."""
        for place, desk in enumerate(self.desks):
            colludes = 1 <= place <= self.setting.colluders
            own = [secrets.randbits(64)] if colludes else None
            desk.mark = own if mark is None else [*mark, place]

    def asked(self) -> _Asked:
        """Return a round that nobody was asked for before."""
        self._round += 1
        wanted, request = self.shares, self.site.request(self._round)
        agreed = SumRequest(
            run=request.run,
            round=request.round,
            roster=self.roster.digest,
            members=frozenset(range(len(self.desks))),
            bits=wanted.bits(self.size),
            size=self.size,
            dropouts=wanted.most_dropouts,
            colluders=wanted.most_colluders,
            context=SumStep.context(request, wanted.scale, wanted.clip),
        )
        return _Asked(request, agreed)

    def answer(self, asked: _Asked, place: int, step: str, message: bytes) -> bytes:
        """Return a member's answer to a step; it has just been started."""
        desk, shares = self.desks[place], self.shares
        sent = SumStep(
            step=step,
            round=asked.agreed.to_bytes(),
            message=message,
            catalogue=asked.request.model.catalogue,
            scale=shares.scale,
            largest_clip=shares.clip,
            request=asked.request if step == "upload" else None,
        )
        with _quiet():
            answer: bytes = desk.client().step(sent)
        if step == "upload":
            desk.answers.add(answer)
            asked.masked = asked.masked if place else answer
        return answer

    def played(self, asked: _Asked, leaving: str | None = None) -> Server:
        """Return the server at the end of a round, in which members leave before a step."""
        server = Server(asked.agreed, self.roster)
        messages, gone = dict.fromkeys(range(len(self.desks)), b""), range(0)
        for step in STEPS:
            if step == leaving:
                gone = range(len(self.desks) - self.setting.dropouts, len(self.desks))
            for place, message in messages.items():
                if place not in gone:
                    server.receive(place, self.answer(asked, place, step, message))
            messages = server.close_step()
        return server

    def known(self) -> list[Words]:
        """Return what each colluder has sent, under its mask, in the last round."""
        colluders = self.desks[1 : 1 + self.setting.colluders]
        nothing = np.zeros(self.size)
        return [self.shares.encode(nothing, SeededNoise(desk.seed)) for desk in colluders]


class GroupTarget(Target):
    """Every step of secure aggregation; members drop out before one of the steps `leaving`."""

    most_trials = 6
    n_games = 2

    def __init__(self, group: Group, leaving: tuple[str, ...]) -> None:
        self.setting = setting = group.setting
        self._group, self._leaving = group, leaving
        # Those who leave after their upload have added noise that nobody needs.
        answered = setting.members - (setting.dropouts if "upload" in leaving else 0)
        honest = setting.members - setting.dropouts - setting.colluders
        surplus = np.sqrt((answered - setting.colluders) / honest)
        self.scale = setting.scale * CLIP * float(surplus)
        self._turn, self._like_plain, self._looked = 0, 0, 0

    def release(self, number: int, mark: list[int] | None) -> Trials:
        """Play one round per trial; every member is restarted for every step."""
        group = self._group
        ahead, behind = group.site.uploads()
        seen = np.empty((2, number, 1, group.size))
        for side, sign in enumerate((1, 0 if self.setting.against_nothing else -1)):
            for trial in range(number):
                group.desks[0].rate(sign)
                group.seed(None if mark is None else [*mark, side, trial])
                asked, leaving = group.asked(), None
                if self._leaving:
                    leaving = self._leaving[self._turn % len(self._leaving)]
                    self._turn += 1
                opened = group.played(asked, leaving).finish()
                seen[side, trial, 0] = _without(
                    group.shares, opened.values, group.known(), len(opened.places)
                )
                self._look(asked)
        return Trials(seen[0], seen[1], ahead, behind)

    def games(self) -> list[Check]:
        """Return what else a server can try."""
        unpaid = sum(desk.unpaid(self.setting.charge) for desk in self._group.desks)
        return [self._masks(), _paid_for(unpaid)]

    def close(self) -> None:
        """Remove the folders of the group."""
        self._group.site.close()

    def _look(self, asked: _Asked) -> None:
        """Count how often the two highest bits of what the server saw first are equal.

        The bits are so many that an upload without a mask, with its noise, hardly ever reaches
        half of the range: its two highest bits are equal. Under a mask, half of them are.
        """
        bits = asked.agreed.bits
        words = unpack(Upload.from_bytes(asked.masked).values, self._group.size, bits)
        highest = words >> np.uint64(bits - 2)
        self._like_plain += int(((highest == 0) | (highest == 3)).sum())
        self._looked += len(words)

    def _masks(self) -> Check:
        """Check whether masked uploads look like plain ones, or like their negatives."""
        fault = "a masked upload is not uniform: its highest bits show what is under the mask"
        hits = max(self._like_plain, self._looked - self._like_plain)
        found = at_least("masked uploads", hits, self._looked, 0.5, fault)
        return found._replace(p_value=min(1.0, 2 * found.p_value))
