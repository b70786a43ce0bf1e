"""The audit of the real client path: holds for the sound setting, and catches what is broken."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.experiments import audits
from bgtplanner.experiments.audits import Audit, audit
from bgtplanner.privacy.accounting import default_rule
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.exposure import client_level
from bgtplanner.privacy.mechanisms import Mechanism

RELEASES = 100_000
SETTINGS = [(mechanism, trust) for mechanism in ("gaussian", "laplace") for trust in
            ("local", "secagg")]  # fmt: skip
SOUND = [*SETTINGS, ("privunit", "local")]


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(("mechanism", "trust"), SOUND)
@pytest.mark.parametrize("seed", [0, None])
def test_the_client_path_keeps_its_promise(mechanism: Any, trust: Any, seed: int | None) -> None:
    # Without a seed it must not fail once in a hundred runs of this test.
    confidence = 0.99 if seed is not None else 1 - 1e-9
    found = audit(
        mechanism=mechanism, trust=trust, releases=RELEASES, seed=seed, dimensions=3,
        confidence=confidence,
    )  # fmt: skip
    assert found.holds
    blind = 0.5 if seed is not None else 0.1  # so sure a bound is a low one
    assert blind < found.epsilon_lower <= 1.0
    assert (found.claimed_epsilon, found.client_level_epsilon) == (1.0, 1.0)
    assert (found.mechanism, found.trust, found.unit) == (mechanism, trust, "client")
    assert found.accounting == default_rule(mechanism).name
    assert (found.rounds, found.blocks, found.releases) == (1, 1, RELEASES)
    assert (found.delta, found.confidence) == (1e-5, confidence)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "privunit"])
def test_a_budget_over_several_rounds_holds_too(mechanism: Any) -> None:
    found = audit(mechanism=mechanism, rounds=3, epsilon=4.0, releases=30_000, seed=1)
    assert found.holds
    assert 1.5 < found.epsilon_lower <= 4.0
    assert found.rounds == 3


@pytest.mark.parametrize(("mechanism", "trust"), SETTINGS)
def test_single_rows_spend_more_than_was_booked(mechanism: Any, trust: Any) -> None:
    found = audit(
        mechanism=mechanism, trust=trust, unit="row", releases=RELEASES if trust == "local" else
        20_000, seed=2, blocks=8, dimensions=2,
    )  # fmt: skip
    assert found.claimed_epsilon == 1.0
    assert found.epsilon_lower > 1.5
    assert not found.holds
    assert found.epsilon_lower <= found.client_level_epsilon
    rule = default_rule(mechanism)
    multiplier = float(rule.noise_multiplier(rule.even_charge(Budget(1.0, 1e-5), 1)))
    expected = client_level(mechanism, [multiplier], 8, 1e-5).epsilon
    assert found.client_level_epsilon == expected
    assert found.blocks == 8


def test_one_row_over_several_rounds_is_what_was_booked() -> None:
    found = audit(unit="row", blocks=1, rounds=4, releases=2000, seed=0)
    assert found.client_level_epsilon == pytest.approx(1.0, rel=1e-9)
    assert found.holds


# ---- broken doors


def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Mechanism.scale
    monkeypatch.setattr(Mechanism, "scale", lambda *args, **kw: real(*args, **kw) / 2)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mechanism, "noise", lambda self, source, scale, shape: np.zeros(shape))


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(self: Mechanism, uploads: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
        return np.array(uploads, dtype=np.float64)

    monkeypatch.setattr(Mechanism, "clip", clip)


def clipped_by_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(self: Mechanism, uploads: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
        return np.clip(uploads, -bound, bound)

    monkeypatch.setattr(Mechanism, "clip", clip)


def without_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_noise(self: Mechanism, clipped: Any, source: Any, scale: float) -> Any:
        return clipped + self.noise(source, scale, np.shape(clipped))

    monkeypatch.setattr(Mechanism, "on_grid", lambda self, clipped, scale: clipped)
    monkeypatch.setattr(Mechanism, "add_noise", add_noise)


@pytest.mark.parametrize(
    ("broken", "mechanism"),
    [
        (halved, "gaussian"), (halved, "laplace"), (silent, "gaussian"), (silent, "laplace"),
        (unclipped, "gaussian"), (unclipped, "laplace"), (clipped_by_coordinate, "gaussian"),
        (without_grid, "laplace"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_a_broken_door_is_caught(
    broken: Any, mechanism: Any, trust: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    found = audit(mechanism=mechanism, trust=trust, releases=RELEASES // 2, seed=0, dimensions=4)
    assert not found.holds
    assert found.epsilon_lower > 1.2


# ---- arguments and results


def test_the_two_bounds_of_gaussian_noise_share_the_risk() -> None:
    found = audit(releases=2000, seed=3, epsilon=2.0)
    assert found.confidence == 0.99
    assert found.epsilon_lower_gaussian is not None
    assert found.epsilon_lower == max(found.epsilon_lower_any, found.epsilon_lower_gaussian)
    laplace = audit(releases=2000, seed=3, epsilon=2.0, mechanism="laplace")
    assert laplace.epsilon_lower_gaussian is None
    assert laplace.epsilon_lower == laplace.epsilon_lower_any


def test_half_of_the_risk_for_each_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = audits.lower_bound

    def recorded(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return real(*args, **options)

    monkeypatch.setattr(audits, "lower_bound", recorded)
    assert audit(releases=1000, seed=0, confidence=0.9).confidence == 0.9
    audit(releases=1000, seed=0, confidence=0.9, mechanism="laplace", delta=1e-3)
    assert [round(options["confidence"], 12) for options in seen] == [0.95, 0.9]
    assert [options["delta"] for options in seen] == [1e-5, 1e-3]


def test_a_seed_makes_it_repeatable() -> None:
    def found(seed: int | None) -> float | None:  # an epsilon that the bound is far above 0 for
        return audit(releases=3000, epsilon=8.0, seed=seed).epsilon_lower_gaussian

    assert found(5) == found(5)
    assert found(6) != found(5)
    free = [found(None) for _ in range(2)]
    assert min(filter(None, free), default=0.0) > 3.0
    assert free[0] != free[1]


@pytest.mark.parametrize("releases", [1000, 1001, 2500])
def test_large_audits_are_done_in_batches(releases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_BATCH", 600)
    shares: list[float] = []
    found = audit(releases=releases, seed=0, on_progress=shares.append)
    assert found.releases in (releases, releases + 1)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert len(shares) == math.ceil(releases / 600)


def test_results_are_plain_values() -> None:
    found = audit(releases=1000, seed=0)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain == found.to_json()
    assert set(plain) == {field.name for field in dataclasses.fields(Audit)}


def test_senseless_arguments_are_refused() -> None:
    with refused("--releases = 999: expected at least 1,000"):
        audit(releases=999)
    for name in ("rounds", "blocks", "dimensions"):
        with refused(f"--{name} = 0: expected at least 1"):
            audit(**{name: 0})
    with pytest.raises(ConfigError, match="mechanism = 'none'"):
        audit(mechanism="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trust = 'none'"):
        audit(trust="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unit = 'none'"):
        audit(unit="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="confidence = 1"):
        audit(confidence=1.0, releases=1000)
    with pytest.raises(ConfigError, match="epsilon = 0"):
        audit(epsilon=0.0)
