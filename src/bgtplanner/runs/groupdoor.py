"""Sums of a group as doors: of shares of the noise alone, and as clients and a server make them.

The server's view under secure aggregation is the sum that is opened, and the attacker is the
server together with as many clients as may collude: it subtracts what those have sent. It also
makes as many clients drop out as may. What is left is the audited client's upload, which the
attacker has chosen, and noise that must be the full noise nevertheless.

Two doors lead there. :class:`SharesDoor` adds up what clients would send, without masks: it is
quick. :class:`MachinesDoor` is the real thing, with the folders, identity keys and ledgers of
:class:`~bgtplanner.flower.client.Client`, and every step of
:class:`~bgtplanner.federation.aggregation.server.Server`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.privacy.accountants import to_ticks
from bgtplanner.privacy.noise import SeededNoise, SystemNoise
from bgtplanner.privacy.noisecheck import Check
from bgtplanner.privacy.shares import Shares, sum_of_shares
from bgtplanner.runs.clientdoor import CLIP, EPSILON, Site, need_flower, quiet, told_apart
from bgtplanner.runs.doors import Door, Setting, Signs, directions, pointing, stated_multiplier

if TYPE_CHECKING:
    from bgtplanner.federation.aggregation.messages import Request as SumRequest
    from bgtplanner.flower.messages import Request, SumStep

__all__ = ["Group", "MachinesDoor", "SharesDoor", "check_group", "members_of"]

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Words = NDArray[np.uint64]

BEFORE = ("keys", "shares", "upload")
"""The steps at which a member can drop out and is not in the sum."""

AFTER = ("sign", "open")
"""The steps at which it can, after its upload: it is in the sum."""

_MOST_MEMBERS = 64
_TIMES = 16  # turns of a game: 2^-16 is below every risk
_STOCK = 4096  # rows of noise that are drawn at once


def members_of(setting: Setting) -> int:
    """Return the size of the smallest group in which so many may drop out and collude."""
    return 2 * setting.dropouts + setting.colluders + 2


def check_group(setting: Setting) -> None:
    """Refuse what real machines do not do under secure aggregation, naming the flag.

    Raises:
        MissingExtraError: If Flower is not installed.
        ConfigError: If this setting does not exist there.
    """
    need_flower("--trust secagg without --path guard or simulation")
    where = "with --path client and --trust secagg"
    for name, value, only in (
        ("mechanism", setting.mechanism, "gaussian"),
        ("unit", setting.unit, "client"),
        ("rounds", setting.rounds, 1),
        ("canaries", setting.canaries, 1),
        ("beside", setting.beside and setting.beside.epsilon, None),
    ):
        ConfigError.unless(value == only, f"--{name}", value, f"{only}, {where}")
    for name in ("dropouts", "colluders"):
        value = getattr(setting, name)
        ConfigError.unless(value >= 0, f"--{name}", value, "a whole number from 0")
    most = _MOST_MEMBERS - 2 - setting.colluders
    expected = f"at most {max(0, most // 2)}, for a group of at most {_MOST_MEMBERS} clients"
    fits = members_of(setting) <= _MOST_MEMBERS
    ConfigError.unless(fits, "--dropouts", setting.dropouts, expected)


def _shares_of(setting: Setting, clip: float) -> Shares:
    """Return the shares that a server asks for: no fewer are accepted, and more help no one."""
    return Shares.of(
        setting.accountant,
        setting.charge,
        clip,
        setting.neighbours,
        invited=members_of(setting),
        most_dropouts=setting.dropouts,
        most_colluders=setting.colluders,
    )


def _without(shares: Shares, total: Words, known: list[Words], answered: int) -> Floats:
    """Return what the attacker makes of a sum: it takes away what it knows."""
    left = total - np.sum(known, axis=0, dtype=np.uint64) if known else total
    return shares.decode(left & shares.mask(len(left)), answered)


class _Stock(SystemNoise):
    """The noise of the operating system, many rows at a time: single rows take far longer."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[int, ...], list[Steps]] = {}

    def normal_steps(self, scale: int, shape: tuple[int, ...]) -> Steps:
        rows = self._rows.setdefault((scale, *shape), [])
        if not rows:
            rows += list(super().normal_steps(scale, (_STOCK, *shape)))
        return rows.pop()


class SharesDoor(Door):
    """Sums of what clients send before they mask it, with the fewest shares that may be there.

    As many members as may have dropped out before their upload.
    """

    can_be_absent = False
    most_trials = 2000

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._ways = directions(setting, list(range(max(1, (setting.size + 1) // 2))))
        scale = setting.sensitivity * stated_multiplier(setting.mechanism, setting.charge)
        self.stated = self._states(*self._ways, 1.0, scale, on_grid=True)
        self.numbers_per_trial = setting.size
        self._shares = _shares_of(setting, 1.0)

    def release(self, signs: Signs, *, mark: list[int] | None, absent: bool = False) -> Floats:
        """Add up one group per trial; its first member is the audited one."""
        del absent
        setting, shares = self.setting, self._shares
        uploads = np.zeros((shares.fewest, setting.size))
        secret = _Stock() if mark is None else SeededNoise(mark)
        seen = np.empty((1, len(signs), setting.size))
        for trial, upload in enumerate(pointing(self._ways, signs)[:, 0]):
            uploads[0] = upload
            # Colluders have noise that the attacker knows.
            seeds = [secrets.randbits(64) for _ in range(setting.colluders)]
            honest = [secret] * (shares.fewest - setting.colluders)
            total = sum_of_shares(shares, uploads, [*honest, *map(SeededNoise, seeds)])
            known = [shares.encode(np.zeros(setting.size), SeededNoise(seed)) for seed in seeds]
            seen[0, trial] = _without(shares, total, known, shares.fewest)
        return seen


@dataclass
class _Asked:
    """A round that the members are asked for."""

    request: Request
    agreed: SumRequest
    shares: Shares
    masked: dict[int, bytes] = field(default_factory=dict)

    def step(self, name: str, message: bytes) -> SumStep:
        from bgtplanner.flower.messages import SumStep

        return SumStep(
            step=name,
            round=self.agreed.to_bytes(),
            message=message,
            catalogue=self.request.model.catalogue,
            scale=self.shares.scale,
            largest_clip=self.shares.clip,
            request=self.request if name == "upload" else None,
        )


class Group:
    """The folders of the members, and a server that adds them up.

    The first member is the audited one, the next ones collude, and the last ones drop out. All but
    the first have no ratings.

    Attributes:
        shares: The shares of the noise that the server asks for.
    """

    def __init__(self, setting: Setting, epsilon: float = EPSILON) -> None:
        from bgtplanner.federation.aggregation.keys import public_bytes
        from bgtplanner.federation.aggregation.roster import Roster
        from bgtplanner.flower.sums import identity_in

        self.setting, self.shares = setting, _shares_of(setting, CLIP)
        self.site = Site(setting)
        self.size = self.site.canary.uploads()[0].shape[1]
        policy: dict[str, str | int] = {
            "roster": "../roster.txt",
            "smallest_group": setting.colluders + 2,
            "colluders": setting.colluders,
        }
        self.desks = [self.site.enroll(epsilon, group=policy) for _ in range(members_of(setting))]
        self.roster = Roster(
            tuple(f"client {place}" for place in range(len(self.desks))),
            tuple(public_bytes(identity_in(desk.client().file.identity)) for desk in self.desks),
        )
        self.roster.write(self.site.path / "roster.txt")
        self.uploads = [set[bytes]() for _ in self.desks]
        self._round = 0

    def seed(self, mark: list[int] | None) -> None:
        """Give every member noise of its own, and the colluders noise that the attacker knows."""
        for place, desk in enumerate(self.desks):
            colludes = 1 <= place <= self.setting.colluders
            own = [secrets.randbits(64)] if colludes else None
            desk.mark = own if mark is None else [*mark, place]

    def asked(self, *, shares: Shares | None = None, clip: float = CLIP) -> _Asked:
        """Return a round that nobody was asked for before, by default the one that they accept."""
        from bgtplanner.federation.aggregation.messages import Request as SumRequest
        from bgtplanner.flower.messages import SumStep

        self._round += 1
        wanted = self.shares if shares is None else shares
        request = replace(self.site.request(self._round), clip=clip)
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
        return _Asked(request, agreed, wanted)

    def answer(self, asked: _Asked, place: int, step: str, message: bytes) -> bytes:
        """Return a member's answer to a step; it has just been started."""
        with quiet():
            answer: bytes = self.desks[place].client().step(asked.step(step, message))
        if step == "upload":
            self.uploads[place].add(answer)
            asked.masked.setdefault(place, answer)
        return answer

    def tried(self, asked: _Asked, step: str, message: bytes) -> bytes | None:
        """Return the audited member's answer to a step, or None if it refuses."""
        try:
            return self.answer(asked, 0, step, message)
        except BGTPlannerError:
            return None

    def opened(self, asked: _Asked, leaving: str | None = None) -> tuple[Words, frozenset[int]]:
        """Return the sum of a round, modulo 2^bits, and whose uploads are in it.

        Args:
            asked: The round.
            leaving: The step from which on as many members as may do not answer.
        """
        server = self._played(asked, leaving)
        found = server.finish()
        return found.values, found.places

    def message_for_upload(self, asked: _Asked) -> bytes:
        """Return what the server sends to the audited member before its upload."""
        return bytes(self._played(asked, None, until="upload")[0])

    def _played(self, asked: _Asked, leaving: str | None, until: str | None = None) -> Any:
        """Play a round to its end and return the server, or the messages of the step `until`."""
        from bgtplanner.federation.aggregation.server import STEPS, Server

        server = Server(asked.agreed, self.roster)
        messages, gone = dict.fromkeys(range(len(self.desks)), b""), range(0)
        for step in STEPS:
            if step == until:
                return messages
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

    def unpaid(self) -> int:
        """Return how many members have answered more than their ledgers have booked."""
        found = 0
        for desk, uploads in zip(self.desks, self.uploads, strict=True):
            with desk.client().open_ledger() as ledger:
                booked = int(ledger.spent()[0, 0])
            found += len(uploads) * int(to_ticks(self.setting.charge)) > booked
        return found


class MachinesDoor(Door):
    """Every step of secure aggregation, between client folders and a server.

    Args:
        group: The members.
        leaving: The steps at which members drop out, one after the other; empty if none do.
        last: Whether this door is the last of the group: it plays the games.
    """

    can_be_absent = False
    most_trials = 6

    def __init__(self, group: Group, leaving: tuple[str, ...], *, last: bool) -> None:
        self.setting = setting = group.setting
        self._group, self._leaving = group, leaving
        self.n_games = 5 if last else 0
        ahead, behind = group.site.canary.uploads()
        multiplier = stated_multiplier(setting.mechanism, setting.charge)
        # Those who leave after their upload have added noise that nobody needs.
        answered = members_of(setting) - (setting.dropouts if "upload" in leaving else 0)
        honest = members_of(setting) - setting.dropouts - setting.colluders
        surplus = np.sqrt((answered - setting.colluders) / honest)
        scale = setting.sensitivity * CLIP * multiplier * float(surplus)
        behind = behind * (not setting.against_nothing)
        self.stated = self._states(ahead, behind, CLIP, scale, on_grid=True)
        self.numbers_per_trial = ahead.shape[1]
        self._turn, self._like_plain, self._looked = 0, 0, 0

    def release(self, signs: Signs, *, mark: list[int] | None, absent: bool = False) -> Floats:
        """Play one round per trial; every member is restarted for every step."""
        del absent
        group, seen = self._group, np.empty((1, len(signs), self.numbers_per_trial))
        for trial, sign in enumerate(signs[:, 0]):
            group.desks[0].rate(group.site.rows(sign))
            group.seed(None if mark is None else [*mark, trial])
            asked, leaving = group.asked(), None
            if self._leaving:
                leaving = self._leaving[self._turn % len(self._leaving)]
                self._turn += 1
            total, places = group.opened(asked, leaving)
            seen[0, trial] = _without(group.shares, total, group.known(), len(places))
            self._look(asked)
        return seen

    def _look(self, asked: _Asked) -> None:
        """Count how often the two highest bits of what the server saw first are equal.

        The bits are so many that an upload without a mask, with its noise, hardly ever reaches
        half of the range: its two highest bits are equal. Under a mask, half of them are.
        """
        from bgtplanner.federation.aggregation.masks import unpack
        from bgtplanner.federation.aggregation.messages import Upload

        bits = asked.agreed.bits
        words = unpack(Upload.from_bytes(asked.masked[0]).values, self._group.size, bits)
        highest = words >> np.uint64(bits - 2)
        self._like_plain += int(((highest == 0) | (highest == 3)).sum())
        self._looked += len(words)

    def games(self) -> list[Check]:
        """Return what else a server can try; nothing before the last of the group's doors."""
        if not self.n_games:
            return []
        return [self._masks(), *self._steps_again(), self._less_noise(), self._payments()]

    def close(self) -> None:
        """Remove the folders of the group."""
        self._group.site.close()

    def _masks(self) -> Check:
        """Check whether masked uploads look like plain ones, or like their negatives."""
        hits, number = self._like_plain, self._looked
        tails = binom.cdf(hits, number, 0.5), binom.sf(hits - 1, number, 0.5)
        fault = "a masked upload is not uniform: its highest bits show what is under the mask"
        p_value = min(1.0, 2 * float(min(tails))) if number else 1.0
        return Check("masked uploads", p_value, hits / max(number, 1), 0.5, fault)

    def _steps_again(self) -> list[Check]:
        """Ask for uploads with and without ratings, and for the same again when they changed."""
        group, coins = self._group, np.random.default_rng(0)
        group.seed(None)
        desk, site = group.desks[0], group.site
        changed, empty = coins.integers(0, 2, (2, _TIMES)).astype(bool)
        repeats, answers = list[str](), list[str]()
        for turn in range(_TIMES):
            desk.rate(site.rows(1))
            if empty[turn]:
                desk.write("no table at all" if turn % 2 else "user,item,rating\n")
            asked = group.asked()
            message = group.message_for_upload(asked)
            before = group.tried(asked, "upload", message)
            answers.append("refused" if before is None else "answered")
            if changed[turn]:
                desk.rate(site.rows(-1))
            after = group.tried(asked, "upload", message)
            repeats.append("refused" if after is None else "same" if after == before else "other")
        return [
            told_apart(
                "same request again",
                [(repeats, changed)],
                "whether an answer is repeated tells whether the ratings have changed",
            ),
            told_apart(
                "no ratings",
                [(answers, empty)],
                "whether there is an answer tells whether there are ratings",
            ),
        ]

    def _less_noise(self) -> Check:
        """Ask for a little less noise than the charge pays for, in each way that there is."""
        group, shares = self._group, self._group.shares
        wider = replace(shares, clip=1.01 * CLIP)
        tries = [
            group.asked(shares=replace(shares, scale=shares.scale * 0.99)),
            group.asked(shares=wider, clip=wider.clip),
            group.asked(clip=1.01 * CLIP),
        ]
        if self.setting.colluders:
            fewer = replace(shares, most_colluders=self.setting.colluders - 1)
            tries.append(group.asked(shares=fewer))
        answered = 0
        for asked in tries:
            try:
                message = group.message_for_upload(asked)
            except BGTPlannerError:
                continue
            answered += group.tried(asked, "upload", message) is not None
        fault = "a client answers although it is to add less noise than it has paid for"
        return Check("less noise", 0.0 if answered else 1.0, float(answered), 0.0, fault)

    def _payments(self) -> Check:
        """Count members with answers that their ledgers did not book, also when poor."""
        poor = Group(self.setting, self.setting.budget.epsilon)
        try:
            for _ in range(2):  # the second is too much
                asked = poor.asked()
                poor.tried(asked, "upload", poor.message_for_upload(asked))
            unpaid = self._group.unpaid() + poor.unpaid()
        finally:
            poor.site.close()
        fault = "there are answers that the ledger did not book"
        return Check("paid for", 0.0 if unpaid else 1.0, float(unpaid), 0.0, fault)
