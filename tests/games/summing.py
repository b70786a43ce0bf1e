"""Clients that add up on real files, with a stand-in for the model, and a server that asks them.

The client, its ledger and its store of rounds are the real ones. Identities are made of numbers,
so that who is whose neighbour, and who is a witness, is the same whenever a game is played.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import BGTPlannerError, MessageError
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.randomizer import Randomizer, Release
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request, SentModel, SumStep
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.privacy.shares import Shares
from federation.aggregation.members import identity, roster_of
from flower.doubles import write_toml
from made import tastes

SIZE = 4  # coordinates of an upload
CLIENTS, DROPOUTS, COLLUDERS = 5, 1, 1
CHARGE, CLIP = 1.0, 0.1

POLICY: dict[str, Any] = {
    "epsilon": 1000.0,
    "delta": 1e-5,
    "neighbours": "replace-special",
    "largest_charge": 2.0,
    "smallest_charge": 0.1,
    "smallest_noise_multiplier": 0.1,
    "scale": [1.0, 5.0],
    "requests_per_hour": 1e9,
    "catalogues": ["0" * 64],
    "secagg": {"roster": "../roster.txt", "smallest_group": 4, "colluders": COLLUDERS},
}


def write_summing(
    folder: Path, clients: int = CLIENTS, policy: Mapping[str, Any] | None = None
) -> Path:
    """Clients in folders of their numbers, and the roster beside them; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    roster_of([identity(place) for place in range(clients)]).write(folder / "roster.txt")
    for place in range(clients):
        home = folder / str(place)
        (home / "state").mkdir(parents=True, mode=0o700)
        (home / "state" / "identity").write_text(identity(place).private_bytes_raw().hex())
        (home / "ratings.csv").write_text(f"user,item,rating\nu{place},a,3\n", encoding="utf-8")
        agreed = {**POLICY, **(policy or {})}
        write_toml(home / "policy.toml", {key: of for key, of in agreed.items() if of is not None})
        write_toml(home / "client.toml", {"ratings": "ratings.csv"})
        Client(load_client(home / "client.toml")).enroll()
    return folder


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """No model: an upload is made of the ratings as they are, and of the round."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in = SimpleNamespace(coordinates=SIZE, model=lambda _: tastes())
        patch.setattr(Client, "_model_of", lambda *_: stand_in)
        patch.setattr(Client, "lacks", lambda *_: False)
        patch.setattr(Client, "_train", _trained)
        yield


def _trained(self: Client, _trainer: Any, request: Request) -> Any:
    upload = upload_of(self.file.ratings.read_bytes(), request.round)
    return upload, {"upload": upload, "round": np.array(request.round)}


def upload_of(ratings: bytes, index: int) -> Any:
    """What the stand-in uploads, shorter than the clip."""
    digest = hashlib.sha256(ratings + b"%d" % index).digest()
    return np.frombuffer(digest[:SIZE], "i1").astype(np.float64) * (CLIP / 256 / SIZE**0.5)


# ---- what a server asks for


@dataclass(frozen=True)
class Asked:
    """A round as a server tells of it; any part of it may be a lie.

    Attributes:
        plan: What it asks a client for.
        agreed: What the protocol is told.
        scale: The scale of the full noise.
        largest: The largest clip.
    """

    plan: Request
    agreed: SumRequest
    scale: float
    largest: float

    def step(self, name: str, message: bytes = b"", **changes: Any) -> SumStep:
        asked = SumStep(
            step=name, round=self.agreed.to_bytes(), message=message,
            catalogue=self.plan.model.catalogue, scale=self.scale, largest_clip=self.largest,
            request=self.plan if name == "upload" else None,
        )  # fmt: skip
        return replace(asked, **changes)

    @property
    def shares(self) -> Shares:
        return Shares(
            scale=self.scale, clip=self.largest, invited=len(self.agreed.members),
            most_dropouts=self.agreed.dropouts, most_colluders=self.agreed.colluders,
        )  # fmt: skip

    def sealed(self, **changes: Any) -> Asked:
        """The same with other parameters of the protocol, everything else made to fit."""
        agreed = replace(self.agreed, **changes)
        context = SumStep.context(self.plan, self.scale, self.largest)
        agreed = replace(agreed, run=self.plan.run, round=self.plan.round, context=context)
        fits = replace(self, agreed=agreed)
        with contextlib.suppress(BGTPlannerError):
            fits = replace(fits, agreed=replace(agreed, bits=fits.shares.bits(agreed.size)))
        return fits


def least_scale(charge: float, clip: float) -> float:
    """The least noise in the sum with which a client pays no more than its charge."""
    rule = accountant_named("gaussian/gdp")
    multiplier = float(rule.noise_multiplier(charge))
    return float(mechanism_named(rule.mechanism).scale(multiplier, clip, "replace-special"))


def plan_of(**changes: Any) -> Request:
    """What an honest server asks clients with the stand-in for."""
    model = SentModel(
        name="biases", settings={}, catalogue="0" * 64, items=np.zeros((2, 3), np.float32),
        dense=np.zeros(0, np.float32),
    )  # fmt: skip
    plan = Request(
        run="run", round=0, accountant="gaussian/gdp", trust="secagg", unit="client",
        charge=CHARGE, clip=CLIP, model=model,
    )  # fmt: skip
    return replace(plan, **changes)


def asked_for(roster: Roster, plan: Request, size: int = SIZE) -> Asked:
    """The round that an honest server makes of a plan."""
    agreed = SumRequest(
        run=plan.run, round=plan.round, roster=roster.digest,
        members=frozenset(range(len(roster))), bits=1, size=size, dropouts=DROPOUTS,
        colluders=COLLUDERS, context=bytes(32),
    )  # fmt: skip
    return Asked(plan, agreed, least_scale(plan.charge, plan.clip), plan.clip).sealed()


# ---- a server and its clients


@dataclass
class Table:
    """The clients of a folder, each a new process whenever it is asked.

    Attributes:
        put: What each client has put into a sum, by its place and the reservation.
        sent: All that has left each client, by its place, its step and the round's session.
    """

    home: Path
    kind: type[Client] = Client
    put: dict[tuple[int, int], Any] = field(default_factory=dict)
    sent: dict[tuple[int, str, bytes], list[bytes]] = field(default_factory=dict)
    got: dict[tuple[int, str], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roster = Roster.read(self.home / "roster.txt")

    def round(self, index: int = 0, **changes: Any) -> Asked:
        """A round of an honest server, with some of its parameters changed."""
        return asked_for(self.roster, plan_of(round=index)).sealed(**changes)

    def client(self, place: int) -> Client:
        return self.kind(load_client(self.home / str(place) / "client.toml"), clock=lambda: 1e9)

    def step(self, place: int, asked: SumStep) -> bytes:
        with self.noting(place):
            answer = self.client(place).step(asked)
        self.heard(place, asked, answer)
        return answer

    def heard(self, place: int, asked: SumStep, answer: bytes) -> None:
        """Note what has left a client."""
        session = SumRequest.from_bytes(asked.round).session
        self.sent.setdefault((place, asked.step, session), []).append(answer)

    def newest(self, place: int) -> Any:
        """What a client has put into a sum last."""
        return self.put[place, max(number for who, number in self.put if who == place)]

    @contextlib.contextmanager
    def noting(self, place: int) -> Iterator[None]:
        """Note what a client puts into a sum meanwhile."""
        real = Randomizer.share

        def share(guard: Randomizer, *args: Any, **options: Any) -> Release:
            made = real(guard, *args, **options)
            self.put[place, made.reservation.number] = made.values
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Randomizer, "share", share)
            yield

    def refuses(self, place: int, asked: SumStep) -> bool:
        """Whether a client refuses, having paid nothing for it."""
        before = self.paid(place)
        try:
            self.step(place, asked)
        except BGTPlannerError:
            assert self.paid(place) == before, "a refusal was paid for"
            return True
        return False

    def play(
        self, asked: Asked, *, until: str | None = None,
        drops: Mapping[str, Collection[int]] | None = None,
        tell: Mapping[int, Asked] | None = None,
        change: Callable[[str, int, bytes], bytes | None] = lambda step, place, answer: answer,
    ) -> Server:  # fmt: skip
        """Play the steps of a round; `tell` says which client is told of another one.

        `change` says what becomes of an answer on its way; None: nothing arrives.

        What each client was sent at a step is in `got`, also that of the step not played.
        """
        server = Server(asked.agreed, self.roster)
        messages, gone = dict.fromkeys(asked.agreed.members, b""), set[int]()
        for step in STEPS:
            self.got |= {(place, step): message for place, message in messages.items()}
            if step == until:
                break
            gone |= set((drops or {}).get(step, ()))
            for place, message in messages.items():
                if place in gone:
                    continue
                with contextlib.suppress(BGTPlannerError):
                    told = (tell or {}).get(place, asked)
                    answer = change(step, place, self.step(place, told.step(step, message)))
                    if answer is not None:
                        server.receive(place, answer)
            messages = server.close_step()
        return server

    def opened(self, asked: Asked, **options: Any) -> bool:
        """Whether a round comes to a sum; if so, it is the sum of what its clients put in."""
        try:
            found = self.play(asked, **options).finish()
        except MessageError:
            return False
        plain = sum(self.newest(place) for place in found.places)
        modulus = 1 << asked.agreed.bits
        assert found.values.tolist() == [int(value) % modulus for value in plain]
        return True

    # ---- what is on the disks

    def state(self, place: int) -> Path:
        return self.home / str(place) / "state"

    def stored(self, place: int, of: str = "sums*") -> dict[Path, bytes]:
        """What a client keeps of its rounds, in both of its folders or in one of them."""
        return {path: path.read_bytes() for path in self.state(place).glob(f"{of}/*")}

    def set_back(self, place: int, stored: Mapping[Path, bytes], of: str = "sums*") -> None:
        """Bring back what a client has kept, instead of what it keeps now."""
        for path in self.stored(place, of):
            path.unlink()
        for path, content in stored.items():
            path.write_bytes(content)

    def paid(self, place: int) -> list[tuple[str, int]]:
        """The rounds that a client has paid for, and whose charge can never come back."""
        with Ledger.open(self.state(place) / "ledger.sqlite", read_only=True) as ledger:
            rows = [row for row in ledger.history() if row["kind"] == "reserve"]
        return [(row["run"], row["round"]) for row in rows]

    def rate(self, place: int, line: str) -> None:
        with (self.home / str(place) / "ratings.csv").open("a", encoding="utf-8") as file:
            file.write(line)

    def check(self, paid_step: str = "upload") -> None:
        """What must hold whatever was asked: one upload for each payment, and one answer each."""
        for (place, step, session), answers in self.sent.items():
            assert len(set(answers)) == 1, f"{place}: {step} of {session.hex()[:8]} in two ways"
        for place in range(len(self.roster)):
            rounds = self.paid(place)
            assert len(set(rounds)) == len(rounds), "a round was paid for twice"
            uploads = {key for key in self.sent if key[:2] == (place, paid_step)}
            assert len(uploads) <= len(rounds), "an upload was not paid for"


def known(path: Path) -> int:
    """The round of a client's local state; raises if it is not whole."""
    with np.load(path, allow_pickle=False) as stored:
        assert stored["upload"].shape == (SIZE,)
        return int(stored["round"])
