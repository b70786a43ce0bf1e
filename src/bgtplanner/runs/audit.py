"""Audit the code that uploads really pass through, and say what the audit could have shown.

Two paths are attacked: ``guard`` (ledger, clip, noise and grid of a client) and ``client`` (a
client folder on a disk that is asked again and again while its ratings change; under secure
aggregation, a group of such clients and their server). *Guesses* about which of two neighbouring
inputs was released bound epsilon from below, whatever the mechanism is. *Checks* compare the
releases with the mechanism that the claim rests on, and need only a few of them. Together, they
refute honest code with probability at most 1 - confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.audit import (
    Check,
    Finding,
    at_least,
    fresh_noise,
    lower_bound,
    releases_needed,
    size_of_noise,
)
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.compatibility import neighbours_of
from bgtplanner.runs.audit_targets import BLOCKS, GuardTarget, Setting, Target, Trials

Floats = NDArray[np.float64]
Progress = Callable[[float], None]

RELEASES = {"guard": 200_000, "row": 20_000, "client": 300, "sum": 80}
"""Default numbers of releases: they take seconds and suffice for claims of 10, 8, 3 and 1.5."""

_FEWEST = {"guard": 1000, "row": 1000, "client": 40, "sum": 40}
_PATHS = ("auto", "guard", "client")
_BATCH = 2000  # trials at a time; each batch has a worst case of its own
_BITS = 30  # below the noise's scale: no release has more of them


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was audited, what is claimed, what was found and what could have been found.

    Attributes:
        path: ``guard`` or ``client``.
        accounting: The accountant with which the claim was booked.
        neighbours: The relation that the claim is about: which inputs were released.
        claimed_epsilon: What the ledger booked and promises to the audited client.
        client_level_epsilon: What the whole client spends by theory; differs from the claim for
            unit ``row`` only.
        epsilon_lower: The lower bound on epsilon at the stated confidence: the better of the two
            below.
        epsilon_lower_any: From right and wrong guesses alone; holds for any mechanism.
        epsilon_lower_gaussian: Assumes Gaussian noise; None for other mechanisms.
        epsilon_largest: What `epsilon_lower_any` would have been without a wrong guess.
        epsilon_expected: About what `epsilon_lower` is if the code does exactly what it states.
        releases_needed: The number of releases from which `epsilon_largest` exceeds the claim.
        parts: What the releases are, each with their number; there are several where real machines
            make sums. `epsilon_largest` is that of the part with the most of them.
        members: The clients of a group on real machines; None on other paths.
        dropouts: How many of them drop out.
        colluders: How many of them tell the attacker what they have sent.
        checks: The comparisons with the stated mechanism, each with its p-value, its share of the
            risk, the part it is about, and whether it is refuted.
        verdict: ``refuted``: a bound is above the claim, or a check failed. ``inconclusive``:
            nothing is refuted, but guesses could not have shown as much as is claimed. ``holds``:
            they could have, and did not.
    """

    mechanism: str
    trust: str
    neighbours: str
    unit: str
    path: str
    accounting: str
    delta: float
    releases: int
    confidence: float
    claimed_epsilon: float
    client_level_epsilon: float
    epsilon_lower: float
    epsilon_lower_any: float
    epsilon_lower_gaussian: float | None
    epsilon_largest: float
    epsilon_expected: float
    releases_needed: int
    parts: tuple[dict[str, Any], ...]
    members: int | None
    dropouts: int | None
    colluders: int | None
    checks: tuple[dict[str, Any], ...]
    verdict: Literal["holds", "refuted", "inconclusive"]

    @property
    def faults(self) -> list[str]:
        """What is wrong, for each refuted check."""
        return [check["fault"] for check in self.checks if check["refuted"]]

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain values."""
        return asdict(self) | {"checks": list(self.checks), "parts": list(self.parts)}


class _Part(NamedTuple):
    """Some of the releases: what they are, of which target, and how many."""

    what: str
    target: Target
    releases: int


class _Seen(NamedTuple):
    """What a part has shown: its bounds, those of an ideal mechanism, and its checks."""

    found: Finding
    ideal: Finding
    checks: list[Check]


def audit(
    *,
    mechanism: Literal["gaussian", "laplace", "privunit"] = "gaussian",
    trust: Literal["local", "secagg"] = "local",
    neighbours: Literal["auto", "replace-special", "replace-one"] = "auto",
    unit: Literal["client", "row"] = "client",
    path: Literal["auto", "guard", "client"] = "auto",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    releases: int | None = None,
    dropouts: int | None = None,
    colluders: int | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
    on_progress: Progress | None = None,
) -> Audit:
    """Attack a path with many releases of neighbouring inputs, and compare them with its claim.

    The neighbours are the worst case: a client whose upload points one way with the full norm, and
    for ``replace-one`` a client whose upload points the other way (with ``path = client``, as far
    as ratings allow), for ``replace-special`` nothing in its place. Each trial is a new client, or
    under secagg a new sum.

    Args:
        mechanism: ``gaussian``, ``laplace`` or ``privunit``.
        trust: ``local`` or ``secagg``.
        neighbours: The relation that the claim is about; ``auto``: the one of the trust.
        unit: ``client``, or ``row``: the paper's, in which each row is clipped and charged alone.
        path: ``guard``, or ``client``, which needs the extra `flower`; ``auto``: client for
            Gaussian noise under secagg, otherwise guard.
        epsilon: The budget to audit; with ``path = client``, what one request may cost.
        delta: Its delta.
        releases: Number of trials, half of them per neighbour; see :data:`RELEASES`.
        dropouts: With path ``client`` under secagg, how many of the group drop out; default 1.
        colluders: Likewise, how many tell the attacker what they have sent; default 1.
        confidence: Probability with which honest code is not refuted.
        seed: For a repeatable audit; by default the noise is secret, as on a client.
        on_progress: Called with the share that is done.

    Raises:
        ConfigError: If this cannot be audited, naming the flag.
        MissingExtraError: If the path needs an extra that is not installed.
    """
    ConfigError.unless(path in _PATHS, "--path", path, " or ".join(_PATHS))
    if path == "auto":
        machines = trust == "secagg" and mechanism == "gaussian" and unit == "client"
        path = "client" if machines else "guard"
    summed = trust == "secagg" and path == "client"
    kind = "sum" if summed else "row" if unit == "row" else path
    number, fewest = RELEASES[kind] if releases is None else releases, _FEWEST[kind]
    for fits, name, value, wanted in (
        (number >= fewest, "releases", number, f"at least {fewest:,}"),
        (0.5 <= confidence < 1, "confidence", confidence, "from 0.5 to below 1"),
        (seed is None or seed >= 0, "seed", seed, "a whole number from 0"),
        (unit == "client" or path == "guard", "unit", unit, "client, with --path client"),
    ):
        ConfigError.unless(fits, f"--{name}", value, wanted)
    only = "none, except with --path client and --trust secagg"
    for name, given in (("dropouts", dropouts), ("colluders", colluders)):
        ConfigError.unless(summed or given is None, f"--{name}", given, only)
    setting = Setting(
        mechanism=mechanism,
        trust=trust,
        unit=unit,
        neighbours=neighbours_of(trust, neighbours, "--neighbours"),
        accountant=default_accountant(mechanism),
        budget=Budget(epsilon, delta),
        dropouts=1 if dropouts is None else dropouts,
        colluders=1 if colluders is None else colluders,
    )
    parts = _parts(setting, path, number)
    try:
        return _attacked(setting, path, parts, confidence, seed, on_progress or (lambda _: None))
    finally:
        for part in parts:
            part.target.close()


def _parts(setting: Setting, path: str, releases: int) -> list[_Part]:
    """Return what is attacked, each part with guesses and checks of its own."""
    if path == "guard":
        return [_Part("releases", GuardTarget(setting), releases)]
    from bgtplanner.runs.audit_machines import ClientTarget, Group, GroupTarget

    if setting.trust == "local":
        return [_Part("releases", ClientTarget(setting), releases)]
    group = Group(setting)
    if not setting.dropouts:
        return [_Part("no drop-outs", GroupTarget(group, ()), releases)]
    before = GroupTarget(group, ("keys", "shares", "upload"))  # not in the sum
    after = GroupTarget(group, ("sign", "open"))  # in the sum
    return [
        _Part("drop-outs before the upload", before, releases - releases // 2),
        _Part("drop-outs after the upload", after, releases // 2),
    ]


def _attacked(
    setting: Setting,
    path: str,
    parts: list[_Part],
    confidence: float,
    seed: int | None,
    on_progress: Progress,
) -> Audit:
    risk = (1 - confidence) / 2  # one half for guesses, one for everything else
    guesses = 1 - risk / len(parts)
    each = risk / sum(6 + part.target.n_games for part in parts)
    total, done = sum(part.releases for part in parts), 0
    seen = list[_Seen]()
    for place, part in enumerate(parts):
        trials = []
        for batch, number in enumerate(_batches(part)):
            # A seed is never used twice, so that no part repeats the noise of another.
            mark = None if seed is None else [seed, place, batch]
            trials.append(part.target.release(number, mark))
            done += 2 * number
            on_progress(min(0.95, 0.95 * done / total))
        seen.append(_look(setting, part.target, trials, guesses, 1 - each))
    on_progress(1.0)
    return _concluded(setting, path, parts, seen, each, confidence)


def _batches(part: _Part) -> Iterator[int]:
    """Yield how many trials of either input to make at a time, two or more."""
    trials, most = max(2, -(-part.releases // 2)), part.target.most_trials or _BATCH
    while trials > 0:
        number = trials if trials <= most + 1 else most
        yield number
        trials -= number


def _look(
    setting: Setting, target: Target, batches: list[Trials], guesses: float, each: float
) -> _Seen:
    """Return what the batches of a part show."""
    delta, scale = setting.budget.delta, target.scale
    scores = [
        np.concatenate([_scores(setting, batch, batch[side], scale) for batch in batches])
        for side in (0, 1)
    ]
    ideal = _ideal_scores(setting, batches[0], scale, len(scores[0]))
    noise = [np.concatenate([_noise(setting, b, side, scale) for b in batches]) for side in (0, 1)]
    kind: Any = "laplace" if setting.mechanism == "laplace" else "gaussian"
    off = sum(_off_grid(values, scale) for b in batches for values in (b.first, b.second))
    grid = "the last bits of a release are not covered by noise"
    checks = [
        size_of_noise(noise, kind),
        fresh_noise(*noise),
        _reach(setting, batches, scale),
        Check("last bits", 0.0 if off else 1.0, float(off), 0.0, grid),
        *target.games(),
    ]
    stated = {"delta": delta, "confidence": guesses, "confidence_gaussian": each}
    return _Seen(lower_bound(*scores, **stated), lower_bound(*ideal, **stated), checks)


def _scores(setting: Setting, trials: Trials, values: Floats, scale: float) -> Floats:
    """Return how much each trial looks like the first input: the exact privacy loss."""
    apart, middle = trials.ahead - trials.behind, (trials.ahead + trials.behind) / 2
    if setting.mechanism == "gaussian":
        return np.asarray(((values - middle) @ apart).sum(axis=1) / scale**2)
    if setting.cap is not None:
        length = float(setting.cap.threshold) * scale
        inside = [values @ _unit(way) >= length for way in (trials.ahead, trials.behind)]
        return np.asarray((inside[0] * 1.0 - inside[1]).sum(axis=1) * setting.charge)
    nearer = np.abs(values - trials.behind) - np.abs(values - trials.ahead)
    return np.asarray(nearer.sum(axis=(1, 2)) / scale)


def _ideal_scores(
    setting: Setting, trials: Trials, scale: float, number: int
) -> tuple[Floats, Floats]:
    """Return scores of releases that are exactly as stated, from an independent generator."""
    draw, shape = np.random.default_rng(0), (number, *trials.first.shape[1:])
    if setting.cap is not None:
        chance = float(setting.cap.chance)
        back = chance * np.exp(-setting.charge)
        steps = draw.choice([1.0, 0.0, -1.0], (2, *shape[:2]), p=[chance, 1 - chance - back, back])
        scores = steps.sum(axis=2) * setting.charge
        return np.asarray(scores[0]), np.asarray(-scores[1])
    noise, step = draw.laplace if setting.mechanism == "laplace" else draw.normal, _step(scale)
    first, second = (
        _scores(setting, trials, way + np.rint(noise(0.0, scale, shape) / step) * step, scale)
        for way in (trials.ahead, trials.behind)
    )
    return first, second


def _unit(vector: Floats) -> Floats:
    return np.asarray(vector / np.sqrt((vector**2).sum()))


def _noise(setting: Setting, trials: Trials, side: int, scale: float) -> Floats:
    """Return releases minus the stated uploads, in units of the noise's scale, a block a row."""
    values = trials[side].reshape(-1, trials.first.shape[-1])
    if setting.cap is None:
        return np.asarray((values - (trials.ahead, trials.behind)[side]) / scale)
    # PrivUnit's release is plain noise across the direction of the upload, and along it is not.
    along = _unit(trials.ahead)
    used = np.argsort(np.abs(along), kind="stable")  # what the upload does not use stays as it is
    basis, _ = np.linalg.qr(np.column_stack([along, np.eye(len(along))[:, used]]))
    return np.asarray(values @ basis[:, 1 : len(along)] / scale)


def _reach(setting: Setting, batches: list[Trials], scale: float) -> Check:
    """Check whether releases lie beyond the clip more often than those of clipped uploads."""
    cap, beyond, number = setting.cap, 0, 0
    for trials in batches:
        for values, way in ((trials.first, trials.ahead), (trials.second, trials.behind)):
            if way.any():  # nothing in the place of an upload does not reach anywhere
                length = float(np.linalg.norm(way)) if cap is None else cap.threshold * scale
                beyond += int((values @ _unit(way) >= length).sum())
                number += values.shape[0] * values.shape[1]
    chance = 0.5 if cap is None else float(cap.chance)
    fault = "an upload reaches further than its clip allows"
    return at_least("within the clip", beyond, number, chance, fault)


def _off_grid(values: Floats, scale: float) -> int:
    """Return how many numbers have bits that are too far below the scale of the noise."""
    steps = values / _step(scale)
    return int((steps != np.rint(steps)).sum())


def _step(scale: float) -> float:
    """Return a power of two that is as far below the scale of the noise as releases may reach."""
    return float(np.ldexp(1.0, int(np.floor(np.log2(scale))) - _BITS))


def _concluded(
    setting: Setting,
    path: str,
    parts: list[_Part],
    seen: list[_Seen],
    each: float,
    confidence: float,
) -> Audit:
    claim, gaussian = setting.budget.epsilon, setting.mechanism == "gaussian"
    lower_any = max(one.found.epsilon for one in seen)
    lower = max([lower_any, *(one.found.epsilon_gaussian for one in seen if gaussian)])
    largest = max(one.found.largest for one in seen)
    checks = tuple(
        check._asdict() | {"risk": each, "part": part.what, "refuted": check.p_value <= each}
        for part, one in zip(parts, seen, strict=True)
        for check in one.checks
    )
    refuted = lower > claim or any(check["refuted"] for check in checks)
    guesses = 1 - (1 - confidence) / 2 / len(parts)
    summed = path == "client" and setting.trust == "secagg"
    return Audit(
        mechanism=setting.mechanism,
        trust=setting.trust,
        neighbours=setting.neighbours,
        unit=setting.unit,
        path=path,
        accounting=setting.accountant.name,
        delta=setting.budget.delta,
        releases=sum(one.found.releases for one in seen),
        confidence=confidence,
        claimed_epsilon=claim,
        client_level_epsilon=_of_whole_client(setting),
        epsilon_lower=lower,
        epsilon_lower_any=lower_any,
        epsilon_lower_gaussian=max(one.found.epsilon_gaussian for one in seen)
        if gaussian
        else None,
        epsilon_largest=largest,
        epsilon_expected=max(
            max(one.ideal.epsilon, one.ideal.epsilon_gaussian if gaussian else 0.0) for one in seen
        ),
        releases_needed=releases_needed(claim, delta=setting.budget.delta, confidence=guesses),
        parts=tuple(
            {"what": part.what, "releases": one.found.releases}
            for part, one in zip(parts, seen, strict=True)
        ),
        members=setting.members if summed else None,
        dropouts=setting.dropouts if summed else None,
        colluders=setting.colluders if summed else None,
        checks=checks,
        verdict="refuted" if refuted else "inconclusive" if largest < claim else "holds",
    )


def _of_whole_client(setting: Setting) -> float:
    """Return what one release costs a client, all of whose rows are charged alone."""
    if setting.unit == "client":
        return setting.budget.epsilon
    multiplier = float(setting.accountant.noise_multiplier(setting.charge))
    return client_level(setting.mechanism, [multiplier], BLOCKS, setting.budget.delta).epsilon
