"""What a client keeps in its folder: its ledger, what it was sent, what it has answered."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.durable import replace_file
from bgtplanner.errors import LedgerError, MessageError
from bgtplanner.flower.clientfile import ClientFile
from bgtplanner.flower.identity import write_identity
from bgtplanner.flower.messages import SentCatalogue, Upload
from bgtplanner.privacy.ledger import Head, Ledger
from bgtplanner.privacy.witness import Witness

_ONE_RESERVATION = 1  # number of the row that follows the one with which a ledger begins
_ROUNDS_KEPT = 8  # entries of two files each; the ledger refuses rounds that are over


class ClientState:
    """One client's files, each replaced as a whole or not at all."""

    def __init__(self, file: ClientFile, clock: Callable[[], float]) -> None:
        self.file, self.policy = file, file.agreed()
        self._held: dict[str, SentCatalogue] = {}
        self._witness = None if file.witness is None else Witness(file.witness)
        self._answers = RoundStore(file.state / "answers", most=self.policy.answers_kept)
        self._pacing = RateLimit(file.state / "pace.json", self.policy.requests_per_hour, clock)

    def enroll(self) -> bool:
        """Create the client's ledger, once, and return whether it was created now.

        This never happens automatically: a client that has lost its ledger must not start again
        with a full budget.
        """
        new = not self.file.ledger.exists()
        if not new:
            self.open_ledger().close()
        elif self._remembered() is not None:
            raise LedgerError(
                f"{self.file.ledger}: gone, though it was used before: bring it back from where "
                "it was moved to, or from a backup (see 'bgtplanner ledger restore --help')"
            )
        else:
            self.file.state.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._pacing.start()
        if not self.file.identity.exists():  # those enrolled before 0.2 have none
            write_identity(self.file.identity)
        if new:
            Ledger.create(
                self.file.ledger, self.policy.budgets, self.policy.rule,
                witness=self._witness, neighbours=self.policy.neighbours,
            ).close()  # fmt: skip
        return new

    def open_ledger(self) -> Ledger:
        """Open the client's ledger, which must exist and must not have lost an entry.

        The head after each payment is kept beside it, and with the answer that it paid for: an
        older ledger is noticed by either. Only a client that was killed between its first payment
        and the write of that head has a used ledger and no head.
        """
        if not self.file.ledger.exists():
            raise LedgerError(
                f"{self.file.ledger}: there is no ledger. If this client is new, create one with "
                "'bgtplanner deploy enroll'; if it was moved here, copy its state folder, too"
            )
        head = self._remembered()
        ledger = Ledger.open(
            self.file.ledger, budgets=self.policy.budgets, accountant=self.policy.rule,
            neighbours=self.policy.neighbours, head=head, witness=self._witness,
        )  # fmt: skip
        used = ledger.head.number > _ONE_RESERVATION or any(self.file.state.glob("answers/*"))
        try:
            if head is None and (used or (self.file.state / "local.npz").exists()):
                raise LedgerError(
                    f"{self.file.state / 'head'}: gone, though this client has taken part in a "
                    "round, so that an older ledger would not be noticed: bring it back, with the "
                    "ledger that was beside it"
                )
            for noted in self._noted()[-1:]:
                ledger.check_head(noted)
        except LedgerError:
            ledger.close()
            raise
        return ledger

    def _noted(self) -> list[Head]:
        """Return the ledger's heads after the payments for answers that are kept, in order."""
        found = []
        for path in (self.file.state / "answers").glob("*-head"):
            with contextlib.suppress(FileNotFoundError, LedgerError):  # forgotten, or damaged
                found.append(Head.parse(path.read_text(encoding="ascii")))
        return sorted(found)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock that keeps other processes from answering; a crash releases it."""
        with (self.file.state / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _remember(self, ledger: Ledger, digest: bytes) -> None:
        """Write the ledger's head beside it, to the request's answer, and to the list of times."""
        head = str(ledger.head).encode()
        replace_file(self.file.state / "head", head)
        self._answers.save(f"{digest.hex()}-head", head)
        Witness(self.file.state / "times").append(ledger.head)

    def _remembered(self) -> Head | None:
        """Return the ledger's head at the latest release."""
        try:
            return Head.parse((self.file.state / "head").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def _answered(self, digest: bytes) -> NDArray[np.float64] | None:
        """Return the answer to a request, bit for bit; None if it is not kept, or damaged.

        It is never computed again with the old noise: whether the result is the same would reveal,
        unpaid, whether the data has changed.
        """
        content = self._answers.load(f"{digest.hex()}-answer")
        with contextlib.suppress(MessageError):
            return None if content is None else Upload.from_bytes(content).values
        return None

    def _keep_answer(self, digest: bytes, answer: NDArray[np.float64]) -> None:
        """Write an answer to disk, before it is sent."""
        self._answers.save(f"{digest.hex()}-answer", Upload(answer).to_bytes())

    # ---- what was sent: it can be had again, so what is damaged counts as missing

    def _find(self, digest: str) -> SentCatalogue | None:
        """Return a stored catalogue, if it is here."""
        if digest not in self._held:
            with contextlib.suppress(OSError, MessageError):
                content = (self.file.state / f"catalogue-{digest}").read_bytes()
                if (found := SentCatalogue.from_bytes(content)).digest == digest:
                    self._held[digest] = found
        return self._held.get(digest)

    def _local(self) -> dict[str, NDArray[Any]]:
        """Return what was kept of the latest round, if anything."""
        try:
            with np.load(self.file.state / "local.npz", allow_pickle=False) as stored:
                return dict(stored)
        except Exception:  # zip and NumPy raise many kinds
            return {}


class RoundStore:
    """What a client has answered in files: secret, and durable when `save` returns.

    The part of a key before the dash names a round, or a request. Only the newest of them are
    kept. A server that makes a client forget one gains nothing: keys and masks of a round that is
    begun again are fresh, and the ledger pays for a round once. Which step was begun is in a
    folder of its own, so that neither can be set back unnoticed.
    """

    def __init__(self, folder: Path, most: int = _ROUNDS_KEPT) -> None:
        self._folder, self._most = folder, most

    def _path(self, key: str) -> Path:
        begun = "-begun" if key.endswith("-begun") else ""
        return self._folder.with_name(self._folder.name + begun) / key

    def load(self, key: str) -> bytes | None:
        """Return what was saved last under this key, if anything was."""
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def save(self, key: str, content: bytes) -> None:
        """Replace what is under this key, as a whole or not at all, and forget the oldest."""
        self._path(key).parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(self._path(key), content)
        ages: dict[str, int] = {}
        for path in list(self._folder.parent.glob(f"{self._folder.name}*/*")):
            if path.name.startswith("."):
                path.unlink()  # a killed process has left it, and it is secret
            else:
                name = path.name.partition("-")[0]
                ages[name] = max(ages.get(name, 0), path.stat().st_mtime_ns)
        ages.pop(key.partition("-")[0], None)
        oldest_first = sorted(ages, key=lambda name: ages[name])
        for name in oldest_first[: max(0, len(ages) + 1 - self._most)]:
            for path in sorted(self._folder.parent.glob(f"{self._folder.name}*/{name}-*")):
                path.unlink(missing_ok=True)  # one of two without the other is refused, too


class RateLimit:
    """A token bucket: a number of requests per hour, of which one hour's worth can be saved up.

    A budget bounds how much can be learned in total, this how fast. It depends on the clock and on
    earlier requests, never on data. A clock that is set back neither adds nor removes requests.
    What is saved up is in a file; after it is lost or damaged, that is nothing.
    """

    def __init__(self, path: Path, per_hour: float, clock: Callable[[], float]) -> None:
        self.path, self.per_hour, self._clock = path, per_hour, clock
        self._most = max(1.0, per_hour)  # that can be saved up: an hour of requests, or one

    def start(self) -> None:
        """Allow one hour's worth of requests, for a client that has never been asked."""
        self._note(self._most, self._clock())

    def take(self) -> bool:
        """Return whether one more request may be answered now, and count it if so."""
        now = self._clock()
        saved, then = self._noted(now)
        saved = min(self._most, saved + max(0.0, now - then) * self.per_hour / 3600)
        allowed = saved >= 1
        self._note(saved - 1 if allowed else saved, now)
        return allowed

    def _noted(self, now: float) -> tuple[float, float]:
        """Return how many requests were saved up, and when; none if the note is unreadable."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            noted = json.loads(self.path.read_bytes())
            saved, then = float(noted["saved"]), float(noted["time"])
            if 0 <= saved <= self._most and math.isfinite(then):
                return saved, then
        return 0.0, now

    def _note(self, saved: float, now: float) -> None:
        """Write down how many requests are saved up at a time."""
        replace_file(self.path, json.dumps({"saved": saved, "time": now}).encode())
