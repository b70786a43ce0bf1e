"""A client folder on a disk as a door: asked again and again while its ratings change.

Everything that a server can do is played against the real
:class:`~bgtplanner.flower.client.Client`: requests for new rounds, the same request again, others
in between, ratings that come and go, and a restart for every request. Beside the releases, an
audit looks at what carries *no* noise: whether there is an answer, and whether it has the bytes of
an earlier one. Both may depend on the requests alone, so guesses from them must be right half of
the time and no more.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from bgtplanner.errors import BGTPlannerError, ConfigError, MissingExtraError
from bgtplanner.privacy.accountants import to_ticks
from bgtplanner.privacy.noise import SeededNoise
from bgtplanner.privacy.noisecheck import Check
from bgtplanner.runs.canaries import TASTE_WIDTH, Rows, one_rating, picked_together
from bgtplanner.runs.doors import Door, Setting, Signs, stated_multiplier

if TYPE_CHECKING:
    from bgtplanner.flower.messages import Request, SentCatalogue

__all__ = ["CLIP", "EPSILON", "ClientDoor", "Desk", "Site", "need_flower", "quiet", "told_apart"]

Floats = NDArray[np.float64]
Outcomes = tuple[list[str], NDArray[np.bool_]]

EPSILON = 1e5
"""Of a client's policy: enough for any number of requests in an audit."""

CLIP = 0.1
"""Of every request: shorter than the upload of a client with one rating."""

_KEPT = 1  # answers that a client keeps
_TIMES = 16  # turns of a game: 2^-16 is below every risk
_ITEMS = 4  # items per requested dimension: they cost nothing here
_RAM = Path("/dev/shm")  # noqa: S108 - nothing here has to last, and disks are slow
_EMPTY = "user,item,rating\n"


def need_flower(what: str) -> None:
    """Refuse what needs a client's machine where Flower is not installed."""
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("flower", what) from error


class Site:
    """Where the folders of audited clients are, and what a server sends to them.

    Attributes:
        setting: What is audited.
        canary: The client with one rating, the highest or the lowest, or with one of two tastes.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        tastes = setting.uploads == "tastes"
        items = setting.size // TASTE_WIDTH if tastes else _ITEMS * setting.size
        self.canary = (picked_together if tastes else one_rating)(items)
        where = _RAM if os.access(_RAM, os.W_OK) else None
        self._folders = tempfile.TemporaryDirectory(prefix="bgtplanner-audit-", dir=where)
        self._made = 0

    @property
    def path(self) -> Path:
        """The folder of all of them."""
        return Path(self._folders.name)

    def close(self) -> None:
        """Remove everything."""
        self._folders.cleanup()

    def rows(self, sign: float) -> Rows:
        """Return the ratings of the one client (1), of the other (-1), or of nobody (0)."""
        return self.canary.ahead if sign > 0 else self.canary.behind if sign < 0 else ()

    @cached_property
    def catalogue(self) -> SentCatalogue:
        """The items, which the policies of the clients name."""
        import jax.numpy as jnp

        from bgtplanner.federation.client import features_in
        from bgtplanner.flower.messages import SentCatalogue

        features = np.asarray(features_in(self.canary.model, jnp.asarray(self.canary.items)))
        return SentCatalogue(
            items=tuple(f"item {index}" for index in range(len(self.canary.items))),
            low=0.0,
            high=1.0,
            features=features,
            names=tuple(f"feature {index}" for index in range(features.shape[1])),
        )

    def request(self, index: int) -> Request:
        """Return what the server asks for in a round."""
        from bgtplanner.flower.messages import Request, SentModel

        model = SentModel(
            name=self.canary.name,
            settings=self.canary.settings,
            catalogue=self.catalogue.digest,
            items=self.canary.items[:, : -self.catalogue.features.shape[1] or None],
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
        self, epsilon: float = EPSILON, *, group: Mapping[str, str | int] | None = None
    ) -> Desk:
        """Return a new client without ratings that agrees to what this server asks for.

        Args:
            epsilon: What it may spend in all.
            group: With whom it adds up, under secure aggregation.
        """
        self._made += 1
        home = self.path / str(self._made)
        home.mkdir()
        charge = self.setting.charge
        policy = {
            "epsilon": epsilon,
            "delta": self.setting.budget.delta,
            "rule": f'"{self.setting.accountant.name}"',
            "neighbours": f'"{self.setting.neighbours}"',
            "largest_charge": charge,
            "smallest_charge": charge,
            "smallest_noise_multiplier": 1e-9,
            "scale": [0.0, 1.0],
            "models": f'["{self.canary.name}"]',
            "catalogues": f'["{self.catalogue.digest}"]',
            "requests_per_hour": 1e12,
            "answers_kept": _KEPT,
        }
        lines = [f"{name} = {value}" for name, value in policy.items()]
        lines.append(f"[settings.{self.canary.name}]")
        lines += [f"{name} = {value}" for name, value in self.canary.settings.items()]
        lines += ["[secagg]"] * (group is not None)
        lines += [f"{name} = {json.dumps(value)}" for name, value in (group or {}).items()]
        (home / "policy.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (home / "client.toml").write_text('ratings = "ratings.csv"\n', encoding="utf-8")
        (home / "ratings.csv").write_text(_EMPTY, encoding="utf-8")
        desk = Desk(home)
        desk.client().enroll()
        desk.client().hold(self.catalogue)
        return desk


class ClientDoor(Door):
    """A client with one rating, the highest or the lowest possible, or with one of two tastes.

    Raises:
        MissingExtraError: If Flower is not installed.
        ConfigError: If the setting does not exist on a client's own machine.
    """

    can_be_absent = False  # a client that cannot pay is one of the games
    n_games = 3

    def __init__(self, setting: Setting) -> None:
        need_flower("--path client")
        for name, value, only in (
            ("trust", setting.trust, "local"),
            ("unit", setting.unit, "client"),
            ("rounds", setting.rounds, 1),
            ("canaries", setting.canaries, 1),
            ("beside", setting.beside and setting.beside.epsilon, None),
        ):
            ConfigError.unless(value == only, f"--{name}", value, f"{only}, with --path client")
        self.setting = setting
        self._site = Site(setting)
        self._desk: Desk | None = None
        self._unpaid = 0
        ahead, behind = self._site.canary.uploads()
        scale = 2 * CLIP * stated_multiplier(setting.mechanism, setting.charge)
        self.stated = self._states(ahead, behind, CLIP, scale, on_grid=True)
        self.numbers_per_trial = ahead.shape[1]

    def release(self, signs: Signs, *, mark: list[int] | None, absent: bool = False) -> Floats:
        """Send a request for a new round per trial to a client that is restarted each time."""
        del absent
        if self._desk is None:
            self._desk = self._site.enroll()
        self._desk.mark = mark
        seen = np.empty((1, len(signs), self.numbers_per_trial))
        for trial, sign in enumerate(signs[:, 0]):
            self._desk.rate(self._site.rows(sign))
            seen[0, trial] = self._desk.must(self._site.request(self._desk.next_round()))
        return seen

    def games(self) -> list[Check]:
        """Return what else a server can try: repeats, silence, and unpaid answers."""
        if self._desk is not None:
            self._close(self._desk)
        return [self._replays(), self._silences(), self._payments()]

    def close(self) -> None:
        """Remove all folders."""
        self._site.close()

    # ---- the games

    def _played(self, coins: np.random.Generator, turn: Callable[[Desk, bool], str]) -> Outcomes:
        """Play turns in which the ratings change by the toss of a coin; return what they show."""
        with self._client() as desk:
            changed = coins.integers(0, 2, _TIMES).astype(bool)
            return [turn(desk, change) for change in changed], changed

    def _replays(self) -> Check:
        """Repeat a request after the ratings have changed, or have not."""

        def turn(desk: Desk, change: bool, others: int) -> str:
            desk.rate(self._site.rows(1))
            request = self._site.request(desk.next_round())
            before = desk.must(request)
            for _ in range(others):
                desk.must(self._site.request(desk.next_round()))
            desk.rate(self._site.rows(-1 if change else 1))
            after = desk.ask(request)
            if after is None:
                return "refused"
            return "same" if before.tobytes() == after.tobytes() else "other"

        coins = np.random.default_rng(0)
        outcomes = [self._played(coins, partial(turn, others=n)) for n in (0, _KEPT + 1)]
        fault = "whether an answer is repeated tells whether the ratings have changed"
        return told_apart("same request again", outcomes, fault)

    def _silences(self) -> Check:
        """Ask a client that has a rating, and one that has none or cannot read its file."""

        def turn(desk: Desk, change: bool, without: str) -> str:
            desk.rate(self._site.rows(1))
            if change:
                desk.write(without)
            answer = desk.ask(self._site.request(desk.next_round()))
            return "refused" if answer is None else "answered"

        coins, texts = np.random.default_rng(1), (_EMPTY, "no table at all")
        outcomes = [self._played(coins, partial(turn, without=text)) for text in texts]
        fault = "whether there is an answer tells whether there are ratings"
        return told_apart("no ratings", outcomes, fault)

    def _payments(self) -> Check:
        """Count answers that the ledger did not book, also after the budget was spent."""
        with self._client(self.setting.budget.epsilon) as desk:
            for _ in range(4):
                desk.rate(self._site.rows(1))
                desk.ask(self._site.request(desk.next_round()))
        fault = "there are answers that the ledger did not book"
        unpaid = self._unpaid
        return Check("paid for", 0.0 if unpaid else 1.0, float(unpaid), 0.0, fault)

    # ---- the client

    @contextmanager
    def _client(self, epsilon: float = EPSILON) -> Iterator[Desk]:
        mark = None if self._desk is None or self._desk.mark is None else [*self._desk.mark, 7]
        desk = self._site.enroll(epsilon)
        desk.mark = mark
        yield desk
        self._close(desk)

    def _close(self, desk: Desk) -> None:
        """Count the client if not all of its answers were booked."""
        with desk.client().open_ledger() as ledger:
            booked = int(ledger.spent()[0, 0])
        owed = len(desk.answers) * int(to_ticks(self.setting.charge))
        self._unpaid += max(0, owed - booked) > 0


@dataclass
class Desk:
    """One client's folder, and its answers; `mark` is the seed of its noise, if it has one."""

    home: Path
    mark: list[int] | None = None
    answers: set[bytes] = field(default_factory=set)
    _round: int = 0
    _asked: int = 0

    def client(self) -> Any:
        """Return the client as it is after its machine has started."""
        from bgtplanner.flower import client, clientfile

        noise: Callable[..., Any] | None = None
        if self.mark is not None:
            seed = self.seed
            noise = lambda *_: SeededNoise(seed)  # noqa: E731
        return client.Client(clientfile.load_client(self.home / "client.toml"), noise=noise)

    @property
    def seed(self) -> list[int]:
        """The seed of its noise in the next answer, if it has one."""
        return [*(self.mark or []), self._asked]

    def next_round(self) -> int:
        """Return a round that was never requested."""
        self._round += 1
        return self._round

    def rate(self, rows: Rows) -> None:
        """Replace the client's ratings."""
        self.write(
            _EMPTY + "".join(f"u{user},item {item},{value}\n" for user, item, value in rows)
        )

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
        with quiet():  # its log is for its owner
            answer = np.asarray(self.client().answer(replace(request)), dtype=np.float64)
        self.answers.add(answer.tobytes())
        return answer


@contextmanager
def quiet() -> Iterator[None]:
    """Keep a client's log to itself: it is for its owner."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def told_apart(name: str, outcomes: list[Outcomes], fault: str) -> Check:
    """Check whether an outcome reveals which of two worlds it was, more often than a coin."""
    worst, measured, looked = 1.0, 0.5, 0
    for labels, worlds in outcomes:
        for label in sorted(set(labels)):
            guess = np.array([other == label for other in labels])
            right = int((guess == worlds).sum())
            best = max(right, len(worlds) - right)
            looked += 2
            p_value = float(binom.sf(best - 1, len(worlds), 0.5))
            if p_value < worst:
                worst, measured = p_value, best / len(worlds)
    return Check(name, min(1.0, worst * looked), measured, 0.5, fault)
