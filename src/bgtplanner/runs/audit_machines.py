"""A group of clients on a disk and its server, as an audit attacks them.

The clients are real ones (:class:`~bgtplanner.flower.client.Client`), each started again for every
message.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import MissingExtraError
from bgtplanner.privacy.accountants import to_ticks
from bgtplanner.privacy.audit import Check, fair_coins
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.privacy.randomness import ExactNoise, SeededNoise
from bgtplanner.privacy.shares import Shares
from bgtplanner.runs.audit import COLLUDERS, DROPOUTS, MEMBERS, Setting, Trials

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("flower", "an audit of sums") from error

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.aggregation.keys import public_bytes, self_key
from bgtplanner.federation.aggregation.masks import mask, reduced, unpack
from bgtplanner.federation.aggregation.messages import STEPS, Opened, Upload
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
Bools = NDArray[np.bool_]

_PLENTY = 1e5  # epsilon of a policy: enough for any number of requests
_CLIP = 1e-3  # far shorter than the upload of a client with one rating
_KNOWN = 8  # rounds in which the attacker knows all noise
_ITEMS = 32
_COLLUDERS = range(1, 1 + COLLUDERS)  # the first ones after the audited client
_MEAN = 0.5  # public; it makes ratings of 1 and 0 nearly opposite
_ZEROS = np.zeros((_ITEMS, 3), np.float32)


class _Folder:
    """One client's folder, and what the client has answered."""

    def __init__(self, home: Path, noise: ExactNoise | None) -> None:
        self.home, self.noise, self.answers = home, noise, set[bytes]()

    def client(self) -> Client:
        """Return the client as it is after its machine has started."""
        noise = self.noise
        noise_for = None if noise is None else lambda *_: noise
        return Client(load_client(self.home / "client.toml"), noise=noise_for)

    def rate(self, sign: int, *items: int) -> None:
        """Let the client rate items, with the highest or the lowest rating of all, or none."""
        rows = [f"u,item {item},{(sign + 1) / 2}\n" * abs(sign) for item in items]
        table = "".join(["user,item,rating\n", *rows])
        (self.home / "ratings.csv").write_text(table, encoding="utf-8")


class GroupTarget:
    """Every step of secure aggregation; members drop out before one of the steps, in turn.

    The first client is audited: it has one rating, the highest or the lowest; for
    ``replace-special``, or none. The attacker is the server with as many clients as may collude,
    the first ones after the audited: it subtracts what they have sent. As many as may, the last
    ones, drop out. What is left is the upload of the audited client, and noise that must be the
    full noise nevertheless.
    """

    def __init__(self, setting: Setting, site: Path, noise: ExactNoise | None) -> None:
        self.setting, self.noise = setting, noise
        self.site, self.folders = Path(tempfile.mkdtemp(dir=site)), list[_Folder]()
        self._rounds = itertools.count(1)
        none = np.zeros((_ITEMS, 0), dtype=np.float32)
        items = tuple(f"item {index}" for index in range(_ITEMS))
        self.catalogue = SentCatalogue(items=items, low=0.0, high=1.0, features=none)
        for _ in range(MEMBERS):
            self._enroll()
        self._alike: dict[str, list[Bools]] = {}
        files = [folder.client().file for folder in self.folders]
        keys = tuple(public_bytes(identity_in(file.identity)) for file in files)
        self._roster = Roster(tuple(f"client {place}" for place in range(MEMBERS)), keys)
        self._roster.write(self.site / "roster.txt")
        # No fewer shares of the noise are accepted, and more help no one.
        multiplier = setting.accountant.noise_multiplier(setting.charge)
        scale = float(mechanism_named("gaussian").scale(multiplier, _CLIP, setting.neighbours))
        self._shares = Shares(
            scale=scale, clip=_CLIP, invited=MEMBERS, most_dropouts=DROPOUTS,
            most_colluders=COLLUDERS,
        )  # fmt: skip

    def _upload(self, value: float) -> Floats:
        """Return the clipped upload of a client with this rating of the first item, by items."""
        ratings = Ratings.from_arrays(
            [0], [0], [value], client=np.zeros(1), items=np.arange(_ITEMS), scale=(0.0, 1.0)
        )
        shared = Shared(_ZEROS, np.zeros(0, np.float32))  # type: ignore[arg-type]
        upload = np.asarray(upload_of(Biases(mean=_MEAN), shared, ratings), dtype=np.float64)
        return np.asarray(_CLIP * upload / np.linalg.norm(upload)).reshape(_ITEMS, -1)

    def _request(self) -> Request:
        """Return a request for a round that nobody was asked for before."""
        setting = self.setting
        model = SentModel(
            name="biases", settings={"mean": _MEAN}, catalogue=self.catalogue.digest,
            items=_ZEROS, dense=np.zeros(0, np.float32),
        )  # fmt: skip
        return Request(
            run="audit", round=next(self._rounds), accountant=setting.accountant.name,
            trust=setting.trust, unit="client", charge=setting.charge, clip=_CLIP, model=model,
        )  # fmt: skip

    def _enroll(self) -> None:
        """Add a new client without ratings that agrees to what this server asks for."""
        setting, home = self.setting, Path(tempfile.mkdtemp(dir=self.site))
        policy = {
            "epsilon": _PLENTY, "delta": setting.budget.delta, "rule": setting.accountant.name,
            "neighbours": setting.neighbours, "largest_charge": setting.charge,
            "smallest_charge": setting.charge, "smallest_noise_multiplier": 1e-9,
            "scale": [0.0, 1.0], "models": ["biases"], "catalogues": [self.catalogue.digest],
            "requests_per_hour": 1e12, "answers_kept": 1,
        }  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}" for name, value in policy.items()]
        lines += ["[settings.biases]", f"mean = {_MEAN}"]
        lines += ["[secagg]", 'roster = "../roster.txt"', f"colluders = {COLLUDERS}"]
        lines.append(f"smallest_group = {COLLUDERS + 2}")
        (home / "policy.toml").write_text("\n".join(lines), encoding="utf-8")
        (home / "client.toml").write_text('ratings = "ratings.csv"\n', encoding="utf-8")
        self.folders.append(folder := _Folder(home, self.noise))
        folder.rate(0)
        folder.client().enroll()
        folder.client().hold(self.catalogue)

    def trials(self, number: int) -> Trials:
        """Play one round per trial; every client is restarted for every message.

        Each trial is about an item of its own, so that no coordinate stays unused.
        """
        setting, items = self.setting, np.random.default_rng(0).integers(_ITEMS, size=number)
        seen, ways, scales = [], [], np.ones((number, 1))
        for sign in (1, setting.other_side):
            upload = self._upload((sign + 1) / 2) * abs(sign)
            for trial, item in enumerate(items):
                self.folders[0].rate(sign, item)
                values, surplus = self._released(trial)
                seen.append(values)
                ways.append(np.roll(upload, item, axis=0).ravel())
                scales[trial] = setting.scale * _CLIP * surplus
        first, second = np.array(seen).reshape(2, number, -1)
        return Trials(setting, scales, first, second, *np.array(ways).reshape(2, number, -1))

    def _clipped(self) -> Check:
        """Return whether uploads keep to their clip, of a random half of the items each."""
        draw, lengths = np.random.default_rng(1), list[float]()
        for trial in range(_KNOWN):
            self.folders[0].rate(1, *draw.permutation(_ITEMS)[: _ITEMS // 2])
            lengths.append(float(np.linalg.norm(self._released(trial, range(MEMBERS))[0])))
        longest, far = max(lengths) / _CLIP, "an upload without its noise is longer than its clip"
        return Check("clip", float(longest <= 1 + 1e-9), longest, 1.0, far)

    def _released(self, trial: int, known: range = _COLLUDERS) -> tuple[Floats, float]:
        """Return what is left of a round's sum after the noise of those that is known."""
        shares, request, leaving = self._shares, self._request(), trial % len(STEPS)
        size, members = _ITEMS * 2, range(MEMBERS)
        agreed = SumRequest(
            run=request.run, round=request.round, roster=self._roster.digest,
            members=frozenset(members), bits=shares.bits(size), size=size,
            dropouts=DROPOUTS, colluders=COLLUDERS,
            context=SumStep.context(request, shares.scale, shares.clip),
        )  # fmt: skip
        server, messages = Server(agreed, self._roster), dict.fromkeys(members, b"")
        uploads, opened = dict[int, Words](), list[int]()
        for step in STEPS:
            left = set(members[-DROPOUTS:] if STEPS.index(step) >= leaving else ())
            for place in messages.keys() - left:
                asked = SumStep(
                    step=step, round=agreed.to_bytes(), message=messages[place],
                    catalogue=self.catalogue.digest, scale=shares.scale,
                    largest_clip=shares.clip, request=request if step == "upload" else None,
                )  # fmt: skip
                folder, told = self.folders[place], SeededNoise([place, request.round])
                folder.noise = told if place in known else self.noise
                answer = folder.client().step(asked)
                server.receive(place, answer)
                if step == "upload":
                    folder.answers.add(answer)
                    uploads[place] = unpack(Upload.from_bytes(answer).values, size, agreed.bits)
                    self._look("as sent", uploads[place], agreed.bits)
                if step == "open":
                    seen = Opened.from_bytes(answer)
                    uploads[place] -= mask(self_key(seen.seed, seen.session, place), size)
                    opened.append(place)
            messages = server.close_step()
        values, places = server.finish()
        for number in range(1, min(len(opened), len(places) - 1) + 1):
            for chosen in itertools.combinations(sorted(opened), number):
                total = sum((uploads[place] for place in chosen), np.zeros(size, np.uint64))
                self._look(str(chosen), reduced(total, agreed.bits), agreed.bits)
        for place in set(known).intersection(places):
            values = values - shares.encode(np.zeros(size), SeededNoise([place, request.round]))
        # Those who leave after their upload have added noise that nobody needs.
        surplus = math.sqrt((len(places) - COLLUDERS) / (MEMBERS - DROPOUTS - COLLUDERS))
        return shares.decode(values & shares.mask(size), len(places)), surplus

    def _look(self, what: str, words: Words, bits: int) -> None:
        """Note whether the two highest bits of numbers are equal: half of them are under a mask.

        Without masks they nearly always are, since sums hardly ever reach half of the range.
        """
        highest = words >> np.uint64(bits - 2)
        self._alike.setdefault(what, []).append((highest == 0) | (highest == 3))

    def games(self) -> list[Check]:
        """Return whether uploads are hidden, and whether all that was answered was paid for."""
        charge, unpaid = int(to_ticks(self.setting.charge)), 0
        for folder in self.folders:
            with folder.client().open_ledger() as ledger:
                unpaid += len(folder.answers) * charge > int(ledger.spent()[0, 0])
        unbooked = "there are answers that the ledger did not book"
        alike = {what: np.concatenate(found) for what, found in self._alike.items()}
        sent, fault = alike.pop("as sent"), "is not uniform: its highest bits show what is under"
        return [
            self._clipped(),
            fair_coins("masked uploads", [sent], f"a masked upload {fault} the masks"),
            fair_coins("pairwise masks", alike.values(), f"a sum of some uploads {fault} them"),
            Check("paid for", 0.0 if unpaid else 1.0, float(unpaid), 0.0, unbooked),
        ]
