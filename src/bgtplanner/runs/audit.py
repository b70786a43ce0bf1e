"""Audit the code that uploads really pass through, and say what the audit could have shown.

Attacked are ledger, clip, noise and grid of a client (``guard``) or, under secure aggregation, a
group of clients on a disk and their server (``client``). *Guesses* about which of two neighbouring
inputs was released bound epsilon from below. *Checks* compare the releases with what is stated,
which is computed here from the charge alone, without the audited code. Together, they refute
honest code with probability at most 1 - confidence. An upload is longer than the clip.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.privacy.accountants import Accountant, default_accountant
from bgtplanner.privacy.audit import (
    Check,
    at_least,
    fresh_noise,
    lower_bound,
    releases_needed,
    size_of_noise,
)
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.compatibility import neighbours_of
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.randomness import ExactNoise, SeededNoise

Floats = NDArray[np.float64]

DROPOUTS, COLLUDERS = 1, 1
MEMBERS = 2 * DROPOUTS + COLLUDERS + 2  # the smallest group in which so many may do so
RELEASES = {"guard": 200_000, "client": 80}  # by default: they suffice for claims of 10 and 1.5
_FEWEST = {"guard": 1000, "client": 40}
_WORDS = {
    "mechanism": ("gaussian", "laplace"), "trust": ("local", "secagg"),
    "neighbours": ("auto", "replace-special", "replace-one"),
}  # fmt: skip
_RAM = Path("/dev/shm")  # noqa: S108 - disks are slow
_SIZE = 8  # coordinates of an upload
_LOUD = 16.0  # the length of an upload; the clip is 1
_BITS = 30  # below the noise's scale: no release has more of them


def audit(
    *, mechanism: str = "gaussian", trust: str = "local", neighbours: str = "auto",
    epsilon: float = 1.0, delta: float = 1e-5, releases: int | None = None,
    confidence: float = 0.99, seed: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Attack with many releases of neighbouring inputs, and compare them with the claim.

    The neighbours are the worst case: an upload with the full norm, and its opposite (of sums, as
    far as ratings allow) or, for ``replace-special``, nothing in its place. The arguments are
    the options of ``bgtplanner audit``, and the result is what it prints with ``--json``.

    Raises:
        ConfigError: If this cannot be audited, naming the flag.
        MissingExtraError: If sums are attacked without the extra ``flower``.
    """
    given = locals()
    for name, words in _WORDS.items():
        ConfigError.unless(given[name] in words, f"--{name}", given[name], " or ".join(words))
    summed = trust == "secagg"
    path = "client" if summed else "guard"
    number = RELEASES[path] if releases is None else releases
    setting = Setting(
        mechanism, trust, neighbours_of(trust, neighbours, "--neighbours"),
        default_accountant(mechanism), Budget(epsilon, delta),
    )  # fmt: skip
    for good, name, value, wanted in (
        (_FEWEST[path] <= number <= 1e8, "releases", number, f"from {_FEWEST[path]} to 1e8"),
        (0.5 <= confidence < 1, "confidence", confidence, "from 0.5 to below 1"),
        (seed is None or seed >= 0, "seed", seed, "a whole number from 0"),
        (mechanism == "gaussian" or not summed, "mechanism", mechanism,
         "gaussian, with --trust secagg: no other noise is drawn in shares"),
    ):  # fmt: skip
        ConfigError.unless(good, f"--{name}", value, wanted)
    noise = None if seed is None else SeededNoise(seed)
    logging.disable(logging.CRITICAL)  # a client's log is for its owner
    try:
        where = _RAM if os.access(_RAM, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="bgtplanner-audit-", dir=where) as site:
            if not summed:
                trials = guard_trials(setting, -(-number // 2), noise)
                checks = trials.checks()
            else:
                from bgtplanner.runs.audit_machines import GroupTarget

                target = GroupTarget(setting, Path(site), noise)
                trials = target.trials(-(-number // 2))
                checks = [*trials.checks(), *target.games()]
    finally:
        logging.disable(logging.NOTSET)
    return _concluded(setting, path, trials, checks, confidence)


def _concluded(
    setting: Setting, path: str, trials: Trials, checks: list[Check], confidence: float
) -> dict[str, Any]:
    """Return what the releases and checks show together."""
    risk = (1 - confidence) / 2  # one half for guesses, one for everything else
    guesses, each = 1 - risk, risk / (len(checks) + 1)
    claim, delta, number = setting.budget.epsilon, setting.budget.delta, 2 * len(trials.first)
    scores = trials.scores(trials.first), trials.scores(trials.second)
    found = lower_bound(*scores, delta=delta, confidence=guesses, confidence_gaussian=1 - each)
    most = 2 if setting.mechanism == "gaussian" else 1  # the second one is for Gaussian noise
    lower = max(found[:most])
    refuted = lower > claim or any(check.p_value <= each for check in checks)
    group = {"members": MEMBERS, "dropouts": DROPOUTS, "colluders": COLLUDERS}
    return {
        "mechanism": setting.mechanism, "trust": setting.trust, "neighbours": setting.neighbours,
        "path": path, "accounting": setting.accountant.name, "delta": delta, "releases": number,
        "confidence": confidence, "claimed_epsilon": claim,
        "epsilon_lower": lower, "epsilon_lower_any": found.epsilon,
        "epsilon_lower_gaussian": found.epsilon_gaussian if most == 2 else None,
        "epsilon_largest": found.largest,
        "releases_needed": releases_needed(claim, delta=delta, confidence=guesses),
        **{name: of if setting.trust == "secagg" else None for name, of in group.items()},
        "checks": [
            check._asdict() | {"risk": each, "refuted": check.p_value <= each}
            for check in checks
        ],
        "verdict": "refuted" if refuted else "inconclusive" if found.largest < claim else "holds",
    }  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What is audited; see :func:`bgtplanner.runs.audit.audit`."""

    mechanism: str
    trust: str
    neighbours: Neighbours
    accountant: Accountant
    budget: Budget

    @property
    def other_side(self) -> int:
        """The neighbour of 1: nothing in the place of an upload, or its opposite."""
        return 0 if self.neighbours == "replace-special" else -1

    @cached_property
    def charge(self) -> float:
        """The charge of one release."""
        return self.accountant.even_charge(self.budget, 1)

    @cached_property
    def scale(self) -> float:
        """The noise on every coordinate for a clip of 1, by the definition of each charge."""
        apart = 1 - self.other_side
        return apart / (self.charge if self.mechanism == "laplace" else math.sqrt(self.charge))


@dataclass(frozen=True, eq=False)
class Trials:
    """Releases of two neighbouring inputs, ``[trials, coordinates]``, and their judgement.

    The scale is that of the stated noise in every trial. `ahead` and `behind` are the clipped
    uploads of the first and of the second input; zero stands for nothing in the place of one.
    """

    setting: Setting
    scale: Floats
    first: Floats
    second: Floats
    ahead: Floats
    behind: Floats

    def scores(self, values: Floats) -> Floats:
        """Return how much each release looks like the first input: the exact privacy loss."""
        ahead, behind = self.ahead, self.behind
        if self.setting.mechanism == "gaussian":
            each = (values - (ahead + behind) / 2) * (ahead - behind) / self.scale**2
        else:
            each = (np.abs(values - behind) - np.abs(values - ahead)) / self.scale
        # Laplace noise has many equal scores; they stay equal.
        return np.asarray(each.sum(axis=1).round(9))

    def checks(self) -> list[Check]:
        """Compare the releases with the mechanism that the claim rests on."""
        first = (self.first - self.ahead) / self.scale
        second = (self.second - self.behind) / self.scale
        beyond = self._beyond(self.first, self.ahead)
        if self.setting.other_side:  # nothing in the place of an upload does not reach anywhere
            beyond = np.append(beyond, self._beyond(self.second, self.behind))
        far = "an upload reaches further than its clip allows"
        step = 2.0 ** (np.floor(np.log2(self.scale)) - _BITS)
        off = sum(int((of / step % 1 != 0).sum()) for of in (self.first, self.second))
        grid = "the last bits of a release are not covered by noise"
        return [
            size_of_noise(first, second, laplace=self.setting.mechanism == "laplace"),
            fresh_noise(first, second),
            at_least("within the clip", int(beyond.sum()), beyond.size, 0.5, far),
            Check("last bits", 0.0 if off else 1.0, float(off), 0.0, grid),
        ]

    def _beyond(self, values: Floats, upload: Floats) -> NDArray[np.bool_]:
        """Return which releases reach as far as the upload."""
        length = np.linalg.norm(upload, axis=1)
        return np.asarray((values * upload).sum(axis=1) / length >= length)


def guard_trials(setting: Setting, number: int, noise: ExactNoise | None) -> Trials:
    """Pass trials of either input through a client's randomizer, with its ledger.

    An upload points along one coordinate, the worst case for Laplace noise, or along half of them,
    drawn anew for every trial: they reveal a clip that is missing on some, or applied to each.
    """
    used = 1 if setting.mechanism == "laplace" else _SIZE // 2
    way = np.repeat([1 / math.sqrt(used), 0.0], [used, _SIZE - used])
    ahead = np.random.default_rng(0).permuted(np.broadcast_to(way, (number, _SIZE)), axis=1)
    budgets, seen = Budgets.same(setting.budget, number), []
    for sign in (1, setting.other_side):
        ledger = Ledger.in_memory(budgets, setting.accountant, neighbours=setting.neighbours)
        guard = Randomizer(ledger, noise=noise)
        given = sign * _LOUD * ahead
        release = guard.release(given, charge=setting.charge, clip=1.0, run="audit", round=0)
        seen.append(np.asarray(release.values))
    scale = np.full((number, 1), setting.scale)
    return Trials(setting, scale, seen[0], seen[1], ahead, setting.other_side * ahead)
