"""Audit the door that a client's uploads really go through: same ledger, same clip, same noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.federation.guard import Guard
from bgtplanner.privacy.accounting import default_rule
from bgtplanner.privacy.audit import lower_bound
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.exposure import client_level
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.noise import SeededNoise

__all__ = ["Audit", "audit"]

Floats = NDArray[np.float64]
_BATCH = 50_000
_GROUP = 3  # clients in a sum; only the first one's data differ between the neighbours


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was audited, what is claimed and what was found.

    Attributes:
        claimed_epsilon: What the ledger booked and promises.
        client_level_epsilon: What the whole client really spends by the theory; differs from the
            claim for unit ``row`` only.
        epsilon_lower: What the experiment shows to be spent at least, with the confidence stated:
            the best of the two below.
        epsilon_lower_any: From error rates alone; holds for any mechanism.
        epsilon_lower_gaussian: Taking the noise to be Gaussian; None for other mechanisms.
        holds: Whether the experiment is consistent with the claim.
    """

    mechanism: str
    trust: str
    unit: str
    accounting: str
    rounds: int
    blocks: int
    delta: float
    releases: int
    confidence: float
    claimed_epsilon: float
    client_level_epsilon: float
    epsilon_lower: float
    epsilon_lower_any: float
    epsilon_lower_gaussian: float | None
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def audit(
    *,
    mechanism: Literal["gaussian", "laplace", "privunit"] = "gaussian",
    trust: Literal["local", "secagg"] = "local",
    unit: Literal["client", "row"] = "client",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    rounds: int = 1,
    releases: int = 100_000,
    blocks: int = 32,
    dimensions: int = 8,
    confidence: float = 0.99,
    seed: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Audit:
    """Lower-bound the epsilon of the real client path by many releases of neighbouring inputs.

    The neighbours are the worst case: a client whose upload points one way with the full norm, and
    one whose upload points the other way. For Gaussian noise and PrivUnit the direction makes no
    difference, so it is spread over all coordinates, where a clip of each one on its own would
    show; for Laplace noise one coordinate is the worst. Each trial is a client (or, under secagg,
    a group) of its own, with its own budget, so all of them pass the real ledger.

    Args:
        mechanism: ``gaussian``, ``laplace`` or ``privunit``.
        trust: ``local`` or ``secagg``.
        unit: ``client`` or ``row``.
        epsilon: The budget to audit.
        delta: Its delta.
        rounds: Rounds that the budget is spread over; all are seen by the attacker.
        releases: Number of trials, half for each neighbour.
        blocks: With unit ``row``: blocks in an upload.
        dimensions: Coordinates of an upload, or of a block.
        confidence: Of the lower bound.
        seed: For a repeatable audit; by default the noise is secret, as on a client.
        on_progress: Called with the share that is done.
    """
    ConfigError.unless(releases >= 1000, "--releases", releases, "at least 1,000")
    for name, value in (("--rounds", rounds), ("--blocks", blocks), ("--dimensions", dimensions)):
        ConfigError.unless(value >= 1, name, value, "at least 1")
    ConfigError.unless(0 < confidence < 1, "--confidence", confidence, "between 0 and 1")
    ConfigError.unless(seed is None or seed >= 0, "--seed", seed, "a whole number from 0")
    budget = Budget(epsilon, delta)
    rule = default_rule(mechanism)
    charge = rule.even_charge(budget, rounds)
    shape = (blocks, dimensions) if unit == "row" else (dimensions,)
    ahead = np.zeros(shape)
    ahead[..., : 1 if mechanism == "laplace" else dimensions] = 2.0  # longer than the clip
    clients_of_trial = _GROUP if trust == "secagg" else 1
    scores: list[list[Floats]] = [[], []]
    done = 0
    while done < releases:
        trials = min(_BATCH, releases - done + 1) // 2
        for side, upload in enumerate((ahead, -ahead)):
            budgets = Budgets.same(budget, trials * clients_of_trial)
            noise = None if seed is None else SeededNoise([seed, done, side])
            guard = Guard(Ledger.in_memory(budgets, rule), trust=trust, unit=unit, noise=noise)
            scores[side].append(_scores(guard, upload, trials, charge, rounds))
        done += 2 * trials
        if on_progress is not None:
            on_progress(min(1.0, done / releases))
    is_gaussian = mechanism == "gaussian"
    # Two bounds are looked at for Gaussian noise: each gets half of the risk.
    each = 1 - (1 - confidence) / 2 if is_gaussian else confidence
    found = lower_bound(
        np.concatenate(scores[0]), np.concatenate(scores[1]), delta=delta, confidence=each
    )
    multiplier = float(rule.noise_multiplier(charge))
    real = epsilon
    if unit == "row":
        real = client_level(mechanism, [multiplier] * rounds, blocks, delta).epsilon
    gaussian = found.epsilon_gaussian if is_gaussian else None
    lower = max(found.epsilon, gaussian or 0.0)
    return Audit(
        mechanism=mechanism,
        trust=trust,
        unit=unit,
        accounting=rule.name,
        rounds=rounds,
        blocks=blocks if unit == "row" else 1,
        delta=delta,
        releases=found.releases,
        confidence=confidence,
        claimed_epsilon=epsilon,
        client_level_epsilon=real,
        epsilon_lower=lower,
        epsilon_lower_any=found.epsilon,
        epsilon_lower_gaussian=gaussian,
        holds=lower <= epsilon,
    )


def _scores(guard: Guard, upload: Floats, trials: int, charge: float, rounds: int) -> Floats:
    """How much each trial's releases look like the neighbour that points ahead: the exact test.

    For Gaussian noise that is the sum of the coordinates in which the neighbours differ, and for
    one release by PrivUnit, too; for Laplace the difference of absolute distances.
    """
    size = _GROUP if guard.trust == "secagg" else 1
    uploads = np.zeros((trials * size, *upload.shape))
    uploads[::size] = upload
    groups = np.repeat(np.arange(trials), size)
    total = np.zeros(trials)
    for index in range(rounds):
        release = guard.release(
            uploads, charge=charge, clip=1.0, run="audit", round=index, groups=groups
        )
        guard.settle(release)
        seen = release.values
        if guard.mechanism.name == "laplace":
            seen = np.abs(seen[..., 0] + 1) - np.abs(seen[..., 0] - 1)
        total += seen.reshape(trials, -1).sum(axis=1)
    return total
