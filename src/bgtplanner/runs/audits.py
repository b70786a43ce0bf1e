"""Audit the code that uploads really pass through, and say what the audit could have shown.

Three paths are attacked: ``guard`` (ledger, clip, noise and grid of a client), ``simulation`` (the
same inside the compiled rounds) and ``client`` (a client folder on a disk that is asked again and
again while its ratings change; under secure aggregation, a group of them and a server). Each is
attacked in two ways. *Guesses* about which of two neighbouring inputs was released bound epsilon
from below, whatever the mechanism is; how much they can show is limited by the number of releases.
*Checks* compare the releases with the mechanism that the claim rests on, and need only a few.
Together, they refute honest code with probability at most 1 - confidence.

A group of clients takes far longer than the sums of their shares without the masks. So most sums
are of that kind, and some are masked and opened; each of these parts has its own guesses and
checks, since a fault in the few must not be lost among the many.
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
from bgtplanner.privacy.allowed import neighbours_of
from bgtplanner.privacy.audit import (
    Expected,
    Guesses,
    Moments,
    expected,
    largest_epsilon,
    one_run_bound,
    one_run_p_value,
    releases_needed,
)
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.noisecheck import Check, NoiseWatch, at_least
from bgtplanner.runs.canaries import taste_size
from bgtplanner.runs.clientdoor import ClientDoor
from bgtplanner.runs.doors import Door, GuardDoor, Setting, SimulationDoor, Stated
from bgtplanner.runs.groupdoor import (
    AFTER,
    BEFORE,
    Group,
    MachinesDoor,
    SharesDoor,
    check_group,
    members_of,
)

__all__ = ["OPENED", "PATHS", "RELEASES", "SUMS", "UPLOADS", "Audit", "audit"]

Floats = NDArray[np.float64]
Progress = Callable[[float], None]

PATHS = ("guard", "simulation", "client")
"""The paths that can be attacked."""

UPLOADS = ("worst", "tastes")
"""What can be uploaded: the worst case, or what the model `tastes` makes of ratings."""

RELEASES = {"guard": 200_000, "simulation": 200_000, "client": 300}
"""Default numbers of releases: they take seconds and suffice for a claim of 10 (client: 3)."""

SUMS = 20_000
"""With path ``client`` under secagg, the default number of sums of shares without masks."""

OPENED = 80
"""With path ``client`` under secagg, the default number of sums that are masked and opened."""

_DOORS: dict[str, Callable[[Setting], Door]] = {
    "guard": GuardDoor,
    "simulation": SimulationDoor,
    "client": ClientDoor,
}
_FEWEST = {"guard": 1000, "simulation": 1000, "client": 40}
_FEWEST_OPENED = 20
_EFFORT = 300  # a sum that clients mask and a server opens takes as long as so many without
_PILOT = 100_000  # the most releases that choose the test; otherwise one in ten
_NUMBERS = 4_000_000  # numbers in memory at a time
_BATCH = 25_000  # trials at a time
_BITS = 30  # below the noise's scale: no release has more of them
_ABSENT = 20_000  # the most releases without the audited clients


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was audited, what is claimed, what was found and what could have been found.

    Attributes:
        path: ``guard``, ``simulation`` or ``client``.
        accounting: The accountant with which the claim was booked.
        neighbours: The relation that the claim is about: which inputs were released.
        beside: Epsilon of the other clients of the same rounds, if it is another one.
        canaries: Clients of one sum whose data were guessed.
        uploads: ``worst`` or ``tastes``: what the neighbouring inputs were.
        claimed_epsilon: What the ledger booked and promises to the audited client.
        client_level_epsilon: What the whole client spends by theory; differs from the claim for
            unit ``row`` only.
        epsilon_lower: The lower bound on epsilon at the stated confidence: the better of the two
            below.
        epsilon_lower_any: From right and wrong guesses alone; holds for any mechanism.
        epsilon_lower_gaussian: Assumes Gaussian noise; None for other mechanisms.
        epsilon_largest: What `epsilon_lower_any` would have been without a wrong guess.
        epsilon_expected: About what `epsilon_lower` is if the code does exactly what it states.
        releases_needed: The number of releases from which `epsilon_largest` exceeds the claim;
            None if no number is enough.
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
    rounds: int
    blocks: int
    canaries: int
    uploads: str
    beside: float | None
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
    releases_needed: int | None
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


class _Risks(NamedTuple):
    """Shares of the risk: of the guesses of a part, and of each other bound and check."""

    any: float
    each: float


class _Part(NamedTuple):
    """Some of the releases: through which door, how many, and how long each takes."""

    what: str
    door: Door
    releases: int
    effort: int = 1


def audit(
    *,
    mechanism: Literal["gaussian", "laplace", "privunit"] = "gaussian",
    trust: Literal["local", "secagg"] = "local",
    neighbours: Literal["auto", "replace-special", "replace-one"] = "auto",
    unit: Literal["client", "row"] = "client",
    path: Literal["auto", "guard", "simulation", "client"] = "auto",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    rounds: int = 1,
    releases: int | None = None,
    blocks: int = 32,
    dimensions: int = 8,
    canaries: int = 1,
    beside: float | None = None,
    uploads: Literal["worst", "tastes"] = "worst",
    dropouts: int | None = None,
    colluders: int | None = None,
    opened: int | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
    on_progress: Progress | None = None,
) -> Audit:
    """Attack a path with many releases of neighbouring inputs, and compare them with its claim.

    The neighbours are the worst case: a client whose upload points one way with the full norm, and
    for ``replace-one`` a client whose upload points the other way (with ``path = client``, as far
    as ratings allow), for ``replace-special`` nothing in its place. Each trial is a new client, or
    under secagg a new sum; the attacker sees all of its rounds.

    Args:
        mechanism: ``gaussian``, ``laplace`` or ``privunit``.
        trust: ``local`` or ``secagg``.
        neighbours: The relation that the claim is about; ``auto``: the one of the trust.
        unit: ``client`` or ``row``.
        path: ``guard``, ``simulation``, or ``client``, which needs the extra `flower`; ``auto``:
            client for Gaussian noise under secagg where the rest of the setting exists on real
            machines, otherwise guard.
        epsilon: The budget to audit; with ``path = client``, what one request may cost.
        delta: Its delta.
        rounds: Rounds that the budget is spread over.
        releases: Number of trials, half of them per neighbour; see :data:`RELEASES`. With path
            ``client`` under secagg, the number of sums without masks; see :data:`SUMS`.
        blocks: Blocks of an upload, with unit ``row``.
        dimensions: Coordinates of an upload, or of a block.
        canaries: Under secagg, the number of clients per sum to guess about, with a bound that
            holds although their guesses may depend on each other.
        beside: With ``path = simulation``, the budget of the other clients of the same rounds.
        uploads: ``worst``: as above. ``tastes``: those of the model of that name, with axes and
            features, of two clients that differ in which items go together and in nothing else.
        dropouts: With path ``client`` under secagg, how many of the group drop out; default 1.
        colluders: Likewise, how many tell the attacker what they have sent; default 1.
        opened: Likewise, how many sums clients mask and the server opens; see :data:`OPENED`.
        confidence: Probability with which honest code is not refuted.
        seed: For a repeatable audit; by default the noise is secret, as on a client.
        on_progress: Called with the share that is done.

    Raises:
        ConfigError: If this cannot be audited, naming the flag.
        MissingExtraError: If the path needs an extra that is not installed.
    """
    known = ("auto", *PATHS)
    ConfigError.unless(path in known, "--path", path, " or ".join(PATHS))
    many, tastes = canaries > 1, uploads == "tastes"
    summed = trust == "secagg" and path in ("auto", "client")
    if path == "auto":
        there = mechanism == "gaussian" and unit == "client" and rounds == 1
        summed = summed and there and not many and beside is None
        path = "client" if summed else "guard"
    number = (SUMS if summed else RELEASES[path]) if releases is None else releases
    fewest = _FEWEST["guard" if summed else path]
    alone = "1, unless --trust is secagg: one client has one budget"
    for fits, name, value, wanted in (
        (number >= fewest, "releases", number, f"at least {fewest:,}"),
        (rounds >= 1, "rounds", rounds, "at least 1"),
        (blocks >= 1, "blocks", blocks, "at least 1"),
        (dimensions >= 1, "dimensions", dimensions, "at least 1"),
        (canaries >= 1, "canaries", canaries, "at least 1"),
        (0.5 <= confidence < 1, "confidence", confidence, "from 0.5 to below 1"),
        (seed is None or seed >= 0, "seed", seed, "a whole number from 0"),
        (not many or trust == "secagg", "canaries", canaries, alone),
        (not many or unit == "client", "canaries", canaries, "1, with --unit row"),
        (uploads in UPLOADS, "uploads", uploads, " or ".join(UPLOADS)),
        (not tastes or not many, "canaries", canaries, "1, with --uploads tastes"),
        (not tastes or unit == "client", "unit", unit, "client, with --uploads tastes"),
    ):
        ConfigError.unless(fits, f"--{name}", value, wanted)
    only = "none, except with --path client and --trust secagg"
    for name, given in (("dropouts", dropouts), ("colluders", colluders), ("opened", opened)):
        ConfigError.unless(summed or given is None, f"--{name}", given, only)
    setting = Setting(
        mechanism=mechanism,
        trust=trust,
        unit=unit,
        accountant=default_accountant(mechanism),
        budget=Budget(epsilon, delta),
        rounds=rounds,
        blocks=blocks if unit == "row" else 1,
        size=canaries if many else taste_size(dimensions) if tastes else dimensions,
        canaries=canaries,
        beside=None if beside is None else Budget(beside, delta),
        neighbours=neighbours_of(trust, neighbours, "--neighbours"),
        uploads=uploads,
        dropouts=1 if dropouts is None else dropouts,
        colluders=1 if colluders is None else colluders,
    )
    if summed:
        parts = _sums(setting, number, OPENED if opened is None else opened)
    else:
        parts = [_Part("releases", _DOORS[path](setting), number)]
    try:
        return _attacked(setting, path, parts, confidence, seed, on_progress or (lambda _: None))
    finally:
        for part in parts:
            part.door.close()


def _sums(setting: Setting, releases: int, opened: int) -> list[_Part]:
    """Return the parts of an audit of sums: those of shares, and those that machines make."""
    check_group(setting)
    expected = f"at least {_FEWEST_OPENED}"
    ConfigError.unless(opened >= _FEWEST_OPENED, "--opened", opened, expected)
    shares = _Part("sums of shares, without masks", SharesDoor(setting), releases)
    group = Group(setting)
    made = "masked and opened"
    if not setting.dropouts:
        made = f"{made}, no drop-outs"
        return [shares, _Part(made, MachinesDoor(group, (), last=True), opened, _EFFORT)]
    before, after = MachinesDoor(group, BEFORE, last=False), MachinesDoor(group, AFTER, last=True)
    return [
        shares,
        _Part(f"{made}, drop-outs before the upload", before, opened - opened // 2, _EFFORT),
        _Part(f"{made}, drop-outs after the upload", after, opened // 2, _EFFORT),
    ]


def _attacked(
    setting: Setting,
    path: str,
    parts: list[_Part],
    confidence: float,
    seed: int | None,
    on_progress: Progress,
) -> Audit:
    half = (1 - confidence) / 2
    risks = _Risks(half / len(parts), half / sum(map(_n_checks, parts)))
    done, effort = 0.0, sum(part.effort * part.releases for part in parts) / 0.95
    seen, games = list[_Seen](), list[list[Check]]()
    for place, part in enumerate(parts):
        door, expects = part.door, _expects(setting, part, risks)
        found = _Seen(setting, door.stated, expects)
        # A seed is never used twice, so that no part repeats the noise of another.
        seeds = None if seed is None else [seed] + [place] * (place > 0)
        for batch, (trials, choosing) in enumerate(_batches(setting, door, part.releases)):
            signs = _signs(setting, trials, batch, seeds)
            marks = [None if seeds is None else [*seeds, batch, side] for side in (0, 1)]
            values = [door.release(signs[side], mark=mark) for side, mark in enumerate(marks)]
            found.look(values, signs, choosing=choosing)
            done += part.effort * 2 * trials * setting.canaries
            on_progress(min(0.95, done / effort))
        games.append(door.games())  # for a client, these include one that cannot pay
        if door.can_be_absent:
            found.absent(door, part.releases, seed)
        seen.append(found)
    on_progress(1.0)
    return _concluded(setting, path, parts, seen, games, risks, confidence)


def _n_checks(part: _Part) -> int:
    """Return how many bounds and checks there are beside the guesses of a part."""
    door = part.door
    is_gaussian = door.setting.mechanism == "gaussian"
    return 3 + door.stated.on_grid + door.can_be_absent + door.n_games + is_gaussian


def _expects(setting: Setting, part: _Part, risks: _Risks) -> Expected:
    stated, releases = part.door.stated, part.releases
    losses = np.array([setting.charge]) if stated.cap is not None else stated.losses
    return expected(
        setting.mechanism,
        np.tile(losses, setting.rounds * setting.blocks),
        releases=releases - min(releases // 10, _PILOT),
        delta=setting.budget.delta,
        risk=risks.any,
        risk_gaussian=risks.each if setting.mechanism == "gaussian" else 0.0,
    )


def _batches(setting: Setting, door: Door, releases: int) -> Iterator[tuple[int, bool]]:
    """Yield how many trials of either input to make, and whether they choose the test."""
    limit = door.most_trials or _BATCH
    most = max(2, min(limit, _NUMBERS // max(door.numbers_per_trial, 1)))
    trials = -(-releases // (2 * setting.canaries))
    pilot = max(1, min(-(-trials // 10), _PILOT // (2 * setting.canaries)))
    for part, choosing in ((pilot, True), (trials - pilot, False)):
        for start in range(0, part, most):
            yield min(most, part - start), choosing


def _signs(
    setting: Setting, trials: int, batch: int, seed: list[int] | None
) -> tuple[Floats, Floats]:
    """Return which way the uploads of either input point; for canaries, by the toss of a coin."""
    other = 0.0 if setting.against_nothing else -1.0
    if setting.canaries == 1:
        return np.ones((trials, 1)), np.full((trials, 1), other)
    coins = np.random.default_rng(None if seed is None else [*seed, batch, 2])
    shape = (2, trials, setting.canaries)
    first, second = np.where(coins.integers(0, 2, shape) > 0, 1.0, other)
    return first, second


class _Seen:
    """What is kept of the releases: counts and sums."""

    def __init__(self, setting: Setting, stated: Stated, expects: Expected) -> None:
        self.setting, self.stated, self.expects = setting, stated, expects
        self.guesses: Guesses | None = None
        self.moments = Moments()
        laplace = setting.mechanism == "laplace"
        self.watch = NoiseWatch("laplace" if laplace else "gaussian")
        self.releases = 0
        self._pilot: list[list[Floats]] = [[], []]
        self._beyond = self._beyond_of = 0
        self._shown = self._shown_of = 0
        self._off_grid = 0
        self._across = _complement(stated) if setting.mechanism == "privunit" else None

    def look(self, values: list[Floats], signs: tuple[Floats, Floats], *, choosing: bool) -> None:
        """Add a batch of both inputs."""
        scores = [self._scores(part) for part in values]
        first = np.concatenate([s[sign > 0] for s, sign in zip(scores, signs, strict=True)])
        second = np.concatenate([s[sign <= 0] for s, sign in zip(scores, signs, strict=True)])
        self.releases += first.size + second.size
        self.moments.count(first, second)
        if choosing:
            self._pilot[0].append(first)
            self._pilot[1].append(second)
        else:
            if self.guesses is None:
                pilot = [np.concatenate(part) for part in self._pilot]
                self.guesses = Guesses(
                    *pilot, delta=self.setting.budget.delta, expected=self.expects
                )
                self._pilot = [[], []]
            self.guesses.count(first, second)
        if values[0].shape[1] >= 2:
            self.watch.add(*(self._noise(v, s) for v, s in zip(values, signs, strict=True)))
        for part, sign in zip(values, signs, strict=True):
            self._reach(part, sign)
            steps = np.ldexp(part, _BITS - int(np.floor(np.log2(self.stated.scale))))
            self._off_grid += int((steps != np.rint(steps)).sum())

    def _scores(self, values: Floats) -> Floats:
        """Return how much each trial looks like the input ahead, ``[trials, canaries]``.

        This is the exact privacy loss, added up over everything that is seen.
        """
        stated = self.stated
        if stated.mechanism == "gaussian":
            apart = stated.ahead - stated.behind
            middle = (stated.ahead + stated.behind) / 2
            losses = values.sum(axis=0) @ apart.T - len(values) * (middle * apart).sum(axis=1)
            return np.asarray(losses / stated.scale**2)
        if stated.cap is not None:
            inside = [
                (values @ _unit(way).T >= float(stated.cap.threshold) * stated.scale).sum(axis=0)
                for way in (stated.ahead, stated.behind)
            ]
            return np.asarray((inside[0] - inside[1]) * self.setting.charge)
        columns = []
        for ahead, behind in zip(stated.ahead, stated.behind, strict=True):
            differ = ahead != behind
            of_these = values[..., differ]
            nearer = np.abs(of_these - behind[differ]) - np.abs(of_these - ahead[differ])
            columns.append(nearer.sum(axis=(0, 2)) / stated.scale)
        return np.stack(columns, axis=1)

    def _noise(self, values: Floats, signs: Floats) -> Floats:
        """Return releases minus the stated uploads, in units of the noise's scale."""
        if self._across is not None:
            return np.asarray(values @ self._across / self.stated.scale)
        centres = np.where(signs[:, :, None] > 0, self.stated.ahead, self.stated.behind)
        return np.asarray((values - centres.sum(axis=1)) / self.stated.scale)

    def _reach(self, values: Floats, signs: Floats) -> None:
        """Count releases beyond what an upload within its clip exceeds half of the time."""
        stated = self.stated
        for canary in range(signs.shape[1]):
            for ahead, way in ((True, stated.ahead[canary]), (False, stated.behind[canary])):
                norm = float(np.sqrt((way**2).sum()))
                if not norm:  # nothing in the place of an upload
                    continue
                cap = stated.cap
                length = norm if cap is None else float(cap.threshold) * stated.scale
                along = values[:, (signs[:, canary] > 0) == ahead] @ (way / norm)
                self._beyond += int((along >= length).sum())
                self._beyond_of += along.size

    def absent(self, door: Door, releases: int, seed: int | None) -> None:
        """Count releases that reveal clients which do not take part."""
        seeds = None if seed is None else [seed]
        trials = max(50, min(_ABSENT, releases // 10) // (2 * self.setting.canaries))
        apart = self.stated.ahead - self.stated.behind
        for side, signs in enumerate(_signs(self.setting, trials, 10**6, seeds)):
            mark = None if seed is None else [seed, 10**6, side]
            values = door.release(signs, mark=mark, absent=True)
            along = values @ apart.T * np.where(signs > 0, 1.0, -1.0)
            self._shown += int((along > 0).sum())
            self._shown_of += along.size

    def checks(self) -> list[Check]:
        """Return the comparisons with what is stated."""
        cap = self.stated.cap
        chance = 0.5 if cap is None else float(cap.chance)
        fault = "an upload reaches further than its clip allows"
        found = [self.watch.size_check(), self.watch.fresh_check()]
        found.append(at_least("within the clip", self._beyond, self._beyond_of, chance, fault))
        if self.stated.on_grid:
            off, fault = self._off_grid, "the last bits of a release are not covered by noise"
            found.append(Check("last bits", 0.0 if off else 1.0, float(off), 0.0, fault))
        if self._shown_of:
            fault = "a client that does not take part is visible nevertheless"
            found.append(at_least("who is absent", self._shown, self._shown_of, 0.5, fault))
        return found


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True)))


def _complement(stated: Stated) -> Floats:
    """Return orthonormal directions in which PrivUnit's release is plain noise, one per column."""
    size = stated.ahead.shape[1]
    along = np.concatenate([stated.ahead, stated.behind])
    rank = int(np.linalg.matrix_rank(along))
    # Coordinates that no upload uses come first and stay unchanged.
    order = np.argsort(np.abs(along).sum(axis=0), kind="stable")
    basis, _ = np.linalg.qr(np.concatenate([along[:rank].T, np.eye(size)[:, order]], axis=1))
    return np.asarray(basis[:, rank:size])


def _concluded(
    setting: Setting,
    path: str,
    parts: list[_Part],
    seen: list[_Seen],
    games: list[list[Check]],
    risks: _Risks,
    confidence: float,
) -> Audit:
    delta, claim = setting.budget.delta, setting.budget.epsilon
    bounds = [_bounds(setting, one, risks) for one in seen]
    any_bound, largest = max(one.any for one in bounds), max(one.largest for one in bounds)
    gaussian = None
    if setting.mechanism == "gaussian":
        gaussian = max(one.moments.bound(delta, risks.each) for one in seen)
    lower = max(any_bound, gaussian or 0.0)
    real = claim
    if setting.unit == "row":
        multiplier = float(setting.accountant.noise_multiplier(setting.charge))
        multipliers = [multiplier] * setting.rounds
        real = client_level(setting.mechanism, multipliers, setting.blocks, delta).epsilon
    checks = tuple(
        check._asdict()
        | {"risk": risks.each, "part": part.what, "refuted": check.p_value <= risks.each}
        for part, one, played in zip(parts, seen, games, strict=True)
        for check in [*one.checks(), *played]
    )
    refuted = lower > claim or any(check["refuted"] for check in checks)
    summed = path == "client" and setting.trust == "secagg"
    return Audit(
        mechanism=setting.mechanism,
        trust=setting.trust,
        neighbours=setting.neighbours,
        unit=setting.unit,
        path=path,
        accounting=setting.accountant.name,
        rounds=setting.rounds,
        blocks=setting.blocks,
        canaries=setting.canaries,
        uploads=setting.uploads,
        beside=None if setting.beside is None else setting.beside.epsilon,
        delta=delta,
        releases=sum(one.releases for one in seen),
        confidence=confidence,
        claimed_epsilon=claim,
        client_level_epsilon=real,
        epsilon_lower=lower,
        epsilon_lower_any=any_bound,
        epsilon_lower_gaussian=gaussian,
        epsilon_largest=largest,
        epsilon_expected=max(
            max(one.expects.epsilon, one.expects.epsilon_gaussian) for one in seen
        ),
        releases_needed=_needed(setting, risks),
        parts=tuple(
            {"what": part.what, "releases": one.releases}
            for part, one in zip(parts, seen, strict=True)
        ),
        members=members_of(setting) if summed else None,
        dropouts=setting.dropouts if summed else None,
        colluders=setting.colluders if summed else None,
        checks=checks,
        verdict="refuted" if refuted else "inconclusive" if largest < claim else "holds",
    )


class _Bounds(NamedTuple):
    """What guesses have shown, and the most that they could have."""

    any: float
    largest: float


def _bounds(setting: Setting, seen: _Seen, risks: _Risks) -> _Bounds:
    guesses, delta = seen.guesses, setting.budget.delta
    if guesses is None:  # cannot be: there is always a second batch
        raise ConfigError("--releases: expected more")
    if setting.canaries > 1:
        number, made = guesses.releases, guesses.correct + guesses.wrong
        return _Bounds(
            one_run_bound(number, made, guesses.correct, delta=delta, risk=risks.any),
            one_run_bound(number, number, number, delta=delta, risk=risks.any),
        )
    return _Bounds(
        guesses.bound(risks.any),
        largest_epsilon(guesses.releases, delta=delta, confidence=1 - risks.any),
    )


def _needed(setting: Setting, risks: _Risks) -> int | None:
    """Return how many releases could show more than the claim, including those for the choice."""
    claim, delta = setting.budget.epsilon, setting.budget.delta
    if setting.canaries == 1:
        judged: int | None = releases_needed(claim, delta=delta, confidence=1 - risks.any)
    else:
        powers = (2**power for power in range(30))
        enough = (n for n in powers if one_run_p_value(n, n, n, epsilon=claim, delta=delta)
                  <= risks.any)  # fmt: skip
        judged = next(enough, None)
    return None if judged is None else judged + min(-(-judged // 9), _PILOT) + 2
