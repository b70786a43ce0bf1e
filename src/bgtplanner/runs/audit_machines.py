"""Clients on a disk, and a group of them with its server, as an audit attacks them.

Beside the releases of the real :class:`~bgtplanner.flower.client.Client`, which is started again
for every message, an audit looks at what carries *no* noise: whether there is an answer, and
whether it has the bytes of an earlier one. Both may depend on the requests alone, so guesses from
them must be right half of the time and no more.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import BGTPlannerError, MissingExtraError
from bgtplanner.privacy.accountants import to_ticks
from bgtplanner.privacy.audit import Check, at_least, told_apart
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.privacy.randomness import NoiseSource, SeededNoise
from bgtplanner.privacy.shares import Shares
from bgtplanner.runs.audit_targets import COLLUDERS, DROPOUTS, MEMBERS, Setting, Trials

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("flower", "an audit of clients") from error

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.federation.aggregation.masks import unpack
from bgtplanner.federation.aggregation.messages import STEPS, Upload
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.client import upload_of
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.identity import identity_in
from bgtplanner.flower.messages import Request, SentCatalogue, SentModel, SumStep
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Shared

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

_PLENTY = 1e5  # epsilon of a policy: enough for any number of requests
_CLIP = 0.1  # shorter than the upload of a client with one rating
_KEPT = 1  # answers that a client keeps
_TURNS = 16  # of a game: 2^-16 is below every risk
_ITEMS = 32
_MEAN = 0.5  # public; it makes ratings of 1 and 0 nearly opposite
_NONE = "user,item,rating\n"
_RATED = {1: _NONE + "u,item 0,1.0\n", 0: _NONE, -1: _NONE + "u,item 0,0.0\n"}


class _Folder:
    """One client's folder, and what the client has answered."""

    def __init__(self, home: Path, noise: NoiseSource | None) -> None:
        self.home, self.noise, self.answers = home, noise, set[bytes]()

    def client(self) -> Client:
        """Return the client as it is after its machine has started."""
        noise = self.noise
        noise_for = None if noise is None else lambda *_: noise
        return Client(load_client(self.home / "client.toml"), noise=noise_for)

    def rate(self, table: str) -> None:
        """Replace the client's table of ratings."""
        (self.home / "ratings.csv").write_text(table, encoding="utf-8")

    def ask(self, request: Request) -> bytes | None:
        """Return the answer of a client that has just started, or None if it refuses."""
        try:
            answer = self.client().answer(request).tobytes()
        except BGTPlannerError:
            return None
        self.answers.add(answer)
        return answer


class _Folders:
    """Folders of clients, the first of which is audited, and a server that sends them requests.

    The audited client has one rating, the highest or the lowest; for ``replace-special``, or none.
    """

    def __init__(self, setting: Setting, site: Path, noise: NoiseSource | None) -> None:
        self.setting, self.noise, self.scale = setting, noise, setting.scale * _CLIP
        self.site, self.folders = Path(tempfile.mkdtemp(dir=site)), list[_Folder]()
        self._rounds = itertools.count(1)
        none = np.zeros((_ITEMS, 0), dtype=np.float32)
        items = tuple(f"item {index}" for index in range(_ITEMS))
        self.catalogue = SentCatalogue(items=items, low=0.0, high=1.0, features=none)
        self.ahead = self._upload(1.0)
        self.behind = self._upload(0.0) if setting.other_side else 0 * self.ahead
        for _ in range(1 if setting.trust == "local" else MEMBERS):
            self._enroll()

    def _upload(self, value: float) -> Floats:
        """Return the clipped upload of a client with this rating."""
        ratings = Ratings.from_arrays(
            [0], [0], [value], client=np.zeros(1), items=np.arange(_ITEMS), scale=(0.0, 1.0)
        )
        model = self._request().model
        shared = Shared(model.items, model.dense)  # type: ignore[arg-type]
        upload = np.asarray(upload_of(Biases(mean=_MEAN), shared, ratings), dtype=np.float64)
        order = 1 if self.setting.mechanism == "laplace" else 2
        return np.asarray(_CLIP * upload / np.linalg.norm(upload, order))

    def _request(self) -> Request:
        """Return a request for a round that nobody was asked for before."""
        setting = self.setting
        model = SentModel(
            name="biases", settings={"mean": _MEAN}, catalogue=self.catalogue.digest,
            items=np.zeros((_ITEMS, 3), dtype=np.float32), dense=np.zeros(0, dtype=np.float32),
        )  # fmt: skip
        return Request(
            run="audit", round=next(self._rounds), accountant=setting.accountant.name,
            trust=setting.trust, unit="client", charge=setting.charge, clip=_CLIP, model=model,
        )  # fmt: skip

    def _enroll(self, epsilon: float = _PLENTY) -> _Folder:
        """Return a new client without ratings that agrees to what this server asks for."""
        setting, home = self.setting, Path(tempfile.mkdtemp(dir=self.site))
        policy = {
            "epsilon": epsilon, "delta": setting.budget.delta, "rule": setting.accountant.name,
            "neighbours": setting.neighbours, "largest_charge": setting.charge,
            "smallest_charge": setting.charge, "smallest_noise_multiplier": 1e-9,
            "scale": [0.0, 1.0], "models": ["biases"], "catalogues": [self.catalogue.digest],
            "requests_per_hour": 1e12, "answers_kept": _KEPT,
        }  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}" for name, value in policy.items()]
        lines += ["[settings.biases]", f"mean = {_MEAN}"]
        if setting.trust == "secagg":
            lines += ["[secagg]", 'roster = "../roster.txt"', f"colluders = {COLLUDERS}"]
            lines.append(f"smallest_group = {COLLUDERS + 2}")
        (home / "policy.toml").write_text("\n".join(lines), encoding="utf-8")
        (home / "client.toml").write_text('ratings = "ratings.csv"\n', encoding="utf-8")
        self.folders.append(folder := _Folder(home, self.noise))
        folder.rate(_NONE)
        folder.client().enroll()
        folder.client().hold(self.catalogue)
        return folder

    def trials(self, number: int) -> Trials:
        """Play one round per trial; every client is restarted for every message."""
        seen = np.empty((2, number, 1, len(self.ahead)))
        for side, sign in enumerate((1, self.setting.other_side)):
            for trial in range(number):
                self.folders[0].rate(_RATED[sign])
                seen[side, trial, 0] = self._released()
        ahead, behind = (np.tile(way, (number, 1, 1)) for way in (self.ahead, self.behind))
        return Trials(self.setting, self.scale, seen[0], seen[1], ahead, behind)

    def _released(self) -> Floats:
        raise NotImplementedError

    def games(self) -> list[Check]:
        """Return whether all that was ever answered was paid for."""
        charge, unpaid = int(to_ticks(self.setting.charge)), 0
        for folder in self.folders:
            with folder.client().open_ledger() as ledger:
                unpaid += len(folder.answers) * charge > int(ledger.spent()[0, 0])
        fault = "there are answers that the ledger did not book"
        return [Check("paid for", 0.0 if unpaid else 1.0, float(unpaid), 0.0, fault)]


class ClientTarget(_Folders):
    """A client whose noised uploads the server sees."""

    def _released(self) -> Floats:
        answer = self.folders[0].ask(self._request())
        if answer is None:
            raise BGTPlannerError("the audited client refused a request that its policy allows")
        return np.frombuffer(answer)

    def games(self) -> list[Check]:
        """Return what else a server can try: repeats, silence, and more than the budget."""
        worlds = np.random.default_rng(0).integers(0, 2, _TURNS).astype(bool)

        def played(table: str, asked: int, epsilon: float = _PLENTY) -> list[str]:
            """Let a client have these ratings, or the usual ones, by the toss of a coin."""
            folder = self._enroll(epsilon)
            return [self._outcome(folder, table if of else _RATED[1], asked) for of in worlds]

        repeats = [played(_RATED[-1], asked) for asked in (1, _KEPT + 2)]
        silences = [played(table, 0) for table in (_NONE, "no table")]
        played(_NONE, 0, epsilon=self.setting.budget.epsilon)
        told = "whether an answer is repeated tells whether the ratings changed"
        silent = "whether there is an answer tells whether there are ratings"
        return [
            told_apart("same request again", repeats, worlds, told),
            told_apart("no ratings", silences, worlds, silent),
            *super().games(),
        ]

    def _outcome(self, folder: _Folder, table: str, asked: int) -> str:
        """Change the ratings after so many requests, and then ask for the first of them."""
        folder.rate(_RATED[1])
        requests = [self._request() for _ in range(max(1, asked))]
        before = [folder.ask(request) for request in requests[:asked]]
        folder.rate(table)
        answer = folder.ask(requests[0])
        return "refused" if answer is None else "same" if answer in before else "other"


class GroupTarget(_Folders):
    """Every step of secure aggregation; members drop out before one of the steps `leaving`.

    The attacker is the server with as many clients as may collude, the first ones after the
    audited: it subtracts what they have sent. As many as may, the last ones, drop out. What is
    left is the upload of the audited client, and noise that must be the full noise nevertheless.
    """

    def __init__(
        self, setting: Setting, site: Path, noise: NoiseSource | None, leaving: tuple[str, ...]
    ) -> None:
        super().__init__(setting, site, noise)
        self._leaving, self._highest = itertools.cycle(leaving), list[Words]()
        files = [folder.client().file for folder in self.folders]
        names = tuple(f"client {place}" for place in range(MEMBERS))
        keys = tuple(public_bytes(identity_in(file.identity)) for file in files)
        self._roster = Roster(names, keys)
        self._roster.write(self.site / "roster.txt")
        # No fewer shares of the noise are accepted, and more help no one.
        multiplier = setting.accountant.noise_multiplier(setting.charge)
        scale = float(mechanism_named("gaussian").scale(multiplier, _CLIP, setting.neighbours))
        self._shares = Shares(
            scale=scale, clip=_CLIP, invited=MEMBERS, most_dropouts=DROPOUTS,
            most_colluders=COLLUDERS,
        )  # fmt: skip
        # Those who leave after their upload have added noise that nobody needs.
        extra = DROPOUTS if "open" in leaving else 0
        self.scale *= float(np.sqrt(1 + extra / (MEMBERS - DROPOUTS - COLLUDERS)))

    def _released(self) -> Floats:
        """Return what the attacker makes of the sum of a round: it takes away what it knows."""
        shares, request = self._shares, self._request()
        size, members = len(self.ahead), range(MEMBERS)
        colluders = members[1 : 1 + COLLUDERS]
        agreed = SumRequest(
            run=request.run, round=request.round, roster=self._roster.digest,
            members=frozenset(members), bits=shares.bits(size), size=size,
            dropouts=DROPOUTS, colluders=COLLUDERS,
            context=SumStep.context(request, shares.scale, shares.clip),
        )  # fmt: skip
        server, leaving, gone = Server(agreed, self._roster), next(self._leaving), range(0)
        messages = dict.fromkeys(members, b"")
        for step in STEPS:
            if step == leaving:
                gone = members[-DROPOUTS:]
            for place in messages.keys() - set(gone):
                asked = SumStep(
                    step=step, round=agreed.to_bytes(), message=messages[place],
                    catalogue=self.catalogue.digest, scale=shares.scale,
                    largest_clip=shares.clip, request=request if step == "upload" else None,
                )  # fmt: skip
                folder = self.folders[place]
                if place in colluders:  # their noise is known to the attacker
                    folder.noise = SeededNoise([place, request.round])
                answer = folder.client().step(asked)
                server.receive(place, answer)
                if step == "upload":
                    folder.answers.add(answer)
                if step == "upload" and place == 0:
                    words = unpack(Upload.from_bytes(answer).values, size, agreed.bits)
                    self._highest.append(words >> np.uint64(agreed.bits - 2))
            messages = server.close_step()
        opened = server.finish()
        left = opened.values
        for place in colluders:
            left = left - shares.encode(np.zeros(size), SeededNoise([place, request.round]))
        return shares.decode(left & shares.mask(size), len(opened.places))

    def games(self) -> list[Check]:
        """Return whether masked uploads look like plain ones, or like their negatives.

        The bits are so many that an upload without a mask, with its noise, hardly ever reaches
        half of the range: its two highest bits are equal. Under a mask, half of them are.
        """
        alike = np.concatenate([(highest == 0) | (highest == 3) for highest in self._highest])
        hits = max(int(alike.sum()), int((~alike).sum()))
        fault = "a masked upload is not uniform: its highest bits show what is under the mask"
        found = at_least("masked uploads", hits, len(alike), 0.5, fault)
        return [found._replace(p_value=min(1.0, 2 * found.p_value)), *super().games()]
