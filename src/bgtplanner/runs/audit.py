"""Audit the code that uploads really pass through, and say what the audit could have shown.

Two paths are attacked: ``guard`` (ledger, clip, noise and grid of a client) and ``client`` (a
client folder on a disk that is asked again and again while its ratings change; under secure
aggregation, a group of such clients and their server). *Guesses* about which of two neighbouring
inputs was released bound epsilon from below, whatever the mechanism is. *Checks* compare the
releases with the mechanism that the claim rests on, and need only a few of them. Together, they
refute honest code with probability at most 1 - confidence.
"""

from __future__ import annotations

import logging
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bgtplanner.errors import ConfigError
from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.audit import Check, lower_bound, releases_needed
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.compatibility import neighbours_of
from bgtplanner.privacy.randomness import NoiseSource, SeededNoise
from bgtplanner.runs.audit_targets import (
    BLOCKS,
    COLLUDERS,
    DROPOUTS,
    MEMBERS,
    Setting,
    Trials,
    guard_trials,
)

RELEASES = {"guard": 200_000, "row": 20_000, "client": 300, "sum": 80}
"""Default numbers of releases: they take seconds and suffice for claims of 10, 8, 3 and 1.5."""

_FEWEST = {"guard": 1000, "row": 1000, "client": 40, "sum": 40}
_WORDS = {
    "mechanism": ("gaussian", "laplace", "privunit"), "trust": ("local", "secagg"),
    "neighbours": ("auto", "replace-special", "replace-one"), "unit": ("client", "row"),
    "path": ("auto", "guard", "client"),
}  # fmt: skip
_RAM = Path("/dev/shm")  # noqa: S108 - disks are slow


def audit(
    *,
    mechanism: str = "gaussian",
    trust: str = "local",
    neighbours: str = "auto",
    unit: str = "client",
    path: str = "auto",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    releases: int | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
) -> dict[str, Any]:
    """Attack a path with many releases of neighbouring inputs, and compare them with its claim.

    The neighbours are the worst case: a client whose upload points one way with the full norm, and
    for ``replace-one`` a client whose upload points the other way (with ``path = client``, as far
    as ratings allow), for ``replace-special`` nothing in its place. Each trial is a new client, or
    under secagg a new sum. The arguments are the options of ``bgtplanner audit``, and the result
    is what it prints with ``--json``.

    Raises:
        ConfigError: If this cannot be audited, naming the flag.
        MissingExtraError: If the path needs an extra that is not installed.
    """
    given = locals()
    for name, words in _WORDS.items():
        ConfigError.unless(given[name] in words, f"--{name}", given[name], " or ".join(words))
    if path == "auto":
        machines = trust == "secagg" and mechanism == "gaussian" and unit == "client"
        path = "client" if machines else "guard"
    summed = trust == "secagg" and path == "client"
    kind = "sum" if summed else "row" if unit == "row" else path
    number = RELEASES[kind] if releases is None else releases
    setting = Setting(
        mechanism, trust, unit, neighbours_of(trust, neighbours, "--neighbours"),
        default_accountant(mechanism), Budget(epsilon, delta),
    )  # fmt: skip
    for good, name, value, wanted in (
        (number >= _FEWEST[kind], "releases", number, f"at least {_FEWEST[kind]:,}"),
        (0.5 <= confidence < 1, "confidence", confidence, "from 0.5 to below 1"),
        (seed is None or seed >= 0, "seed", seed, "a whole number from 0"),
        (unit == "client" or path == "guard", "unit", unit, "client, with --path client"),
    ):
        ConfigError.unless(good, f"--{name}", value, wanted)
    noise = None if seed is None else SeededNoise(seed)
    logging.disable(logging.CRITICAL)  # a client's log is for its owner
    try:
        where = _RAM if os.access(_RAM, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="bgtplanner-audit-", dir=where) as site:
            trials, games = _attacked(setting, path, -(-number // 2), Path(site), noise)
    finally:
        logging.disable(logging.NOTSET)
    return _concluded(setting, path, trials, [*trials.checks(), *games], confidence)


def _attacked(
    setting: Setting, path: str, number: int, site: Path, noise: NoiseSource | None
) -> tuple[Trials, list[Check]]:
    """Return trials of both inputs, and how well other attacks on the same code did."""
    if path == "guard":
        return guard_trials(setting, number, noise), []
    from bgtplanner.runs.audit_machines import ClientTarget, GroupTarget

    target = (ClientTarget if setting.trust == "local" else GroupTarget)(setting, site, noise)
    return target.trials(number), target.games()


def _concluded(
    setting: Setting, path: str, trials: Trials, checks: list[Check], confidence: float
) -> dict[str, Any]:
    """Return what the releases and checks show together."""
    risk = (1 - confidence) / 2  # one half for guesses, one for everything else
    guesses, each = 1 - risk, risk / (len(checks) + 1)
    claim, delta = setting.budget.epsilon, setting.budget.delta
    bound = partial(lower_bound, delta=delta, confidence=guesses, confidence_gaussian=1 - each)
    ideal = bound(*trials.ideal_scores())
    found = bound(trials.scores(trials.first), trials.scores(trials.second))
    most = 2 if setting.mechanism == "gaussian" else 1  # the second one is for Gaussian noise
    lower = max(found[:most])
    refuted = lower > claim or any(check.p_value <= each for check in checks)
    summed = path == "client" and setting.trust == "secagg"
    group = {"members": MEMBERS, "dropouts": DROPOUTS, "colluders": COLLUDERS}
    whole = claim  # of a client all of whose rows are charged alone
    if setting.unit == "row":
        multiplier = setting.accountant.noise_multiplier(setting.charge)
        whole = client_level(setting.mechanism, [multiplier], BLOCKS, delta).epsilon
    return {
        "mechanism": setting.mechanism, "trust": setting.trust, "neighbours": setting.neighbours,
        "unit": setting.unit, "path": path, "accounting": setting.accountant.name,
        "delta": delta, "releases": 2 * len(trials.first), "confidence": confidence,
        "claimed_epsilon": claim, "client_level_epsilon": whole,
        "epsilon_lower": lower, "epsilon_lower_any": found.epsilon,
        "epsilon_lower_gaussian": found.epsilon_gaussian if most == 2 else None,
        "epsilon_largest": found.largest, "epsilon_expected": max(ideal[:most]),
        "releases_needed": releases_needed(claim, delta=delta, confidence=guesses),
        "parts": [{"what": "releases", "releases": 2 * len(trials.first)}],
        **{name: number if summed else None for name, number in group.items()},
        "checks": [
            check._asdict() | {"risk": each, "part": "releases", "refuted": check.p_value <= each}
            for check in checks
        ],
        "verdict": "refuted" if refuted else "inconclusive" if found.largest < claim else "holds",
    }  # fmt: skip
