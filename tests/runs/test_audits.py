"""The audit of the doors: it holds for the code as it is, and refutes every kind of broken one.

All seeds are fixed; with other seeds an honest door is refuted with a probability of 1 in 100 at
most, as its confidence says.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.federation import guard
from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy import privunit
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.audit import releases_needed
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.mechanisms import Additive, Mechanism
from bgtplanner.privacy.noise import SeededNoise
from bgtplanner.runs import audits
from bgtplanner.runs.audits import Audit, audit

Floats = NDArray[np.float64]

SETTINGS = [(mechanism, trust) for mechanism in ("gaussian", "laplace") for trust in
            ("local", "secagg")]  # fmt: skip
SOUND = [*SETTINGS, ("privunit", "local")]

SMALLER = "the noise is smaller than stated"
FURTHER = "an upload reaches further than its clip allows"
ABSENT = "a client that does not take part is visible nevertheless"


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}$")


# ---- what holds


@pytest.mark.parametrize(("mechanism", "trust"), SOUND)
@pytest.mark.parametrize("seed", [0, None])
def test_the_guard_keeps_its_promise(mechanism: Any, trust: Any, seed: int | None) -> None:
    # Without a seed it must not fail once in a hundred runs of this test.
    confidence, releases = (0.99, 100_000) if seed is not None else (1 - 1e-9, 40_000)
    found = audit(
        mechanism=mechanism, trust=trust, path="guard", releases=releases, seed=seed,
        dimensions=3, confidence=confidence,
    )  # fmt: skip
    assert found.verdict == "holds"
    assert found.faults == []
    least = 0.85 if seed is not None else 0.5  # so sure a bound is a low one
    assert least < found.epsilon_lower <= 1.0
    assert abs(found.epsilon_lower - found.epsilon_expected) < 0.2
    assert found.epsilon_largest > 7
    assert (found.claimed_epsilon, found.client_level_epsilon) == (1.0, 1.0)
    assert (found.mechanism, found.trust, found.unit) == (mechanism, trust, "client")
    assert found.accounting == default_accountant(mechanism).name
    assert (found.path, found.rounds, found.blocks, found.releases) == ("guard", 1, 1, releases)
    assert (found.delta, found.confidence) == (1e-5, confidence)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "privunit"])
def test_a_budget_over_several_rounds_holds_too(mechanism: Any) -> None:
    found = audit(mechanism=mechanism, rounds=3, epsilon=4.0, releases=30_000, seed=1)
    assert found.verdict == "holds"
    assert 2.0 < found.epsilon_lower <= 4.0
    assert found.rounds == 3


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_many_canaries_in_one_sum_hold_too(mechanism: Any) -> None:
    found = audit(
        mechanism=mechanism, trust="secagg", canaries=10, epsilon=2.0, releases=40_000, seed=1,
        delta=1e-5 if mechanism == "gaussian" else 0.0,
    )  # fmt: skip
    assert found.verdict == "holds"
    assert 1.7 < found.epsilon_lower <= 2.0
    assert (found.canaries, found.releases) == (10, 40_000)


@pytest.mark.parametrize(("mechanism", "trust"), SETTINGS)
def test_single_rows_spend_more_than_was_booked(mechanism: Any, trust: Any) -> None:
    found = audit(
        mechanism=mechanism, trust=trust, unit="row", releases=20_000, seed=2, blocks=8,
        dimensions=2,
    )  # fmt: skip
    assert found.verdict == "refuted"
    assert found.faults == []  # each row is as stated: the statement is wrong
    assert 2.0 < found.epsilon_lower <= found.client_level_epsilon
    accountant = default_accountant(mechanism)
    multiplier = float(accountant.noise_multiplier(accountant.even_charge(Budget(1.0, 1e-5), 1)))
    expected = client_level(mechanism, [multiplier], 8, 1e-5).epsilon
    assert found.client_level_epsilon == expected
    assert found.blocks == 8


def test_one_row_over_several_rounds_is_what_was_booked() -> None:
    found = audit(unit="row", blocks=1, rounds=4, releases=2000, seed=0)
    assert found.client_level_epsilon == pytest.approx(1.0, rel=1e-9)
    assert found.verdict == "holds"


# ---- what could not have been shown


def test_a_claim_above_what_can_be_shown_is_inconclusive() -> None:
    found = audit(epsilon=10.0, releases=20_000, seed=0)
    assert found.verdict == "inconclusive"
    assert found.faults == []
    assert found.epsilon_lower_any < found.epsilon_largest < 10.0
    assert found.releases_needed is not None
    assert 100_000 < found.releases_needed < 200_000
    judged = releases_needed(10.0, delta=1e-5, confidence=0.995)
    assert found.releases_needed == judged + -(-judged // 9) + 2


def test_so_many_releases_as_are_said_to_be_needed_are_enough() -> None:
    few = audit(epsilon=7.0, mechanism="laplace", releases=1000, seed=0)
    assert few.verdict == "inconclusive"
    enough = audit(epsilon=7.0, mechanism="laplace", releases=few.releases_needed, seed=0)
    assert enough.verdict == "holds"
    assert enough.epsilon_largest > 7.0


def test_by_default_a_claim_of_ten_can_be_refuted() -> None:
    assert audits.RELEASES["guard"] == audits.RELEASES["simulation"] == 200_000
    setting = audit(epsilon=10.0, releases=1000, seed=0)
    assert setting.releases_needed is not None
    assert setting.releases_needed <= 200_000


def test_canaries_and_a_delta_may_never_be_enough() -> None:
    found = audit(trust="secagg", canaries=5, epsilon=10.0, releases=2000, seed=0)
    assert found.verdict == "inconclusive"
    assert found.releases_needed is None


# ---- broken guards: each of them was let through by an audit of error rates, or might be


def scaled(factor: float) -> Any:
    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Mechanism.scale
        monkeypatch.setattr(Mechanism, "scale", lambda *args, **kw: real(*args, **kw) * factor)

    return broken


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Additive, "noise", lambda self, source, scale, shape: np.zeros(shape))


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(self: Mechanism, uploads: Floats, bound: float) -> Floats:
        return np.array(uploads, dtype=np.float64)

    monkeypatch.setattr(Mechanism, "clip", clip)


def clipped_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Mechanism.clip
    monkeypatch.setattr(Mechanism, "clip", lambda self, up, bound: real(self, up, 2 * bound))


def clipped_by_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(self: Mechanism, uploads: Floats, bound: float) -> Floats:
        return np.clip(uploads, -bound, bound)

    monkeypatch.setattr(Mechanism, "clip", clip)


def sensitivity_of_half(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled(0.5)(monkeypatch)  # C in place of 2 C


def noise_of(change: Any) -> Any:
    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Additive.noise

        def noise(self: Additive, source: Any, scale: float, shape: tuple[int, ...]) -> Floats:
            def draw(shape: tuple[int, ...], source: Any = source) -> Floats:
                return real(self, source, scale, shape)

            return np.array(change(draw, shape))

        monkeypatch.setattr(Additive, "noise", noise)

    return broken


def not_everywhere(draw: Any, shape: tuple[int, ...]) -> Floats:
    noise = draw(shape)
    noise[..., -1] = 0.0
    return np.asarray(noise)


def same_in_every_call(draw: Any, shape: tuple[int, ...]) -> Floats:
    return np.asarray(draw(shape, SeededNoise(7)))


def same_for_all_clients(draw: Any, shape: tuple[int, ...]) -> Floats:
    return np.broadcast_to(draw((1, *shape[1:])), shape)


def same_on_all_coordinates(draw: Any, shape: tuple[int, ...]) -> Floats:
    return np.broadcast_to(draw((*shape[:-1], 1)), shape)


def refused_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    real = guard.Guard.protect

    def protect(self: guard.Guard, reservation: Any, *args: Any, **options: Any) -> Any:
        everybody = dataclasses.replace(reservation, granted=np.ones_like(reservation.granted))
        return real(self, everybody, *args, **options)

    monkeypatch.setattr(guard.Guard, "protect", protect)


FAULTS: list[tuple[Any, str, float]] = [
    (scaled(0.9), SMALLER, 1.0),  # missed at epsilon 1 by error rates
    (scaled(0.9), SMALLER, 10.0),
    (scaled(0.7), SMALLER, 10.0),
    (sensitivity_of_half, SMALLER, 1.0),
    (silent, SMALLER, 10.0),  # the raw upload: passed at epsilon 10 by error rates
    (unclipped, FURTHER, 1.0),
    (clipped_at_twice, FURTHER, 1.0),
    (noise_of(not_everywhere), SMALLER, 1.0),
    (noise_of(same_in_every_call), "noise is used more than once (between inputs)", 1.0),
    (noise_of(same_for_all_clients), "noise is used more than once (between clients)", 1.0),
    (noise_of(same_on_all_coordinates), "noise is used more than once (between coordinates)", 1.0),
]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize(("broken", "fault", "epsilon"), FAULTS)
def test_a_broken_guard_is_refuted(
    broken: Any, fault: str, epsilon: float, mechanism: Any, trust: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    broken(monkeypatch)
    found = audit(
        mechanism=mechanism, trust=trust, path="guard", epsilon=epsilon, releases=10_000, seed=0,
        dimensions=4,
    )  # fmt: skip
    assert found.verdict == "refuted"
    assert fault in found.faults


def test_noise_of_an_earlier_round_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_of(same_in_every_call)(monkeypatch)
    found = audit(rounds=2, releases=1000, seed=0)
    assert "noise is used more than once (between rounds)" in found.faults


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_a_client_that_cannot_pay_must_not_be_heard(
    trust: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_are_heard(monkeypatch)
    found = audit(trust=trust, path="guard", epsilon=4.0, releases=4000, seed=0)
    assert found.faults == [ABSENT]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_without_noise_guesses_alone_show_as_much_as_they_can(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    found = audit(mechanism=mechanism, epsilon=8.0, releases=40_000, seed=0)
    assert found.epsilon_lower_any == found.epsilon_largest > 8.0
    monkeypatch.undo()
    assert audit(mechanism=mechanism, epsilon=8.0, releases=40_000, seed=0).verdict == "holds"


def test_a_raw_upload_at_epsilon_ten_is_refuted_by_guesses_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent(monkeypatch)
    found = audit(mechanism="laplace", epsilon=10.0, seed=0, dimensions=1)
    assert found.epsilon_lower_any > 10.0


@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize(
    ("broken", "mechanism"),
    [
        (scaled(0.5), "gaussian"),
        (scaled(0.5), "laplace"),
        (unclipped, "gaussian"),
        (unclipped, "laplace"),
        (clipped_by_coordinate, "gaussian"),
    ],
)
def test_the_bound_itself_is_above_the_claim(
    broken: Any, mechanism: Any, trust: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    found = audit(
        mechanism=mechanism, trust=trust, path="guard", releases=50_000, seed=0, dimensions=8
    )
    assert found.epsilon_lower > 1.2


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_an_upload_that_is_not_on_the_grid_is_refuted(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mechanism, "on_grid", lambda self, clipped, scale: clipped)
    found = audit(mechanism=mechanism, releases=1000, seed=0)
    assert found.faults == ["the last bits of a release are not covered by noise"]


@pytest.mark.parametrize("change", [0.9, 0.5])
def test_a_weaker_cap_is_refuted(change: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = privunit.randomise

    def randomise(*args: Any, epsilon: float, **options: Any) -> Any:
        return real(*args, epsilon=epsilon / change, **options)

    monkeypatch.setattr(privunit, "randomise", randomise)
    found = audit(mechanism="privunit", epsilon=2.0, releases=40_000, seed=0, dimensions=5)
    assert found.verdict == "refuted"
    assert SMALLER in found.faults
    assert found.epsilon_lower > 2.0


# ---- arguments and results


def test_the_better_bound_counts() -> None:
    found = audit(releases=2000, seed=3, epsilon=2.0)
    assert found.epsilon_lower_gaussian is not None
    assert found.epsilon_lower == max(found.epsilon_lower_any, found.epsilon_lower_gaussian)
    laplace = audit(releases=2000, seed=3, epsilon=2.0, mechanism="laplace")
    assert laplace.epsilon_lower_gaussian is None
    assert laplace.epsilon_lower == laplace.epsilon_lower_any


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_all_risks_together_are_the_risk_that_was_stated(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[audits._Risks] = []
    real = audits._concluded

    def recorded(*args: Any) -> Any:
        seen.append(args[5])
        return real(*args)

    monkeypatch.setattr(audits, "_concluded", recorded)
    found = audit(releases=1000, seed=0, confidence=0.9, mechanism=mechanism)
    bounds = seen[0].any + (seen[0].each if mechanism == "gaussian" else 0.0)
    assert bounds + sum(check["risk"] for check in found.checks) == pytest.approx(0.1)
    assert found.confidence == 0.9


def test_a_seed_makes_it_repeatable() -> None:
    def found(seed: int | None) -> float:
        return audit(releases=3000, epsilon=8.0, seed=seed).epsilon_lower

    assert found(5) == found(5)
    assert found(6) != found(5)
    free = [found(None) for _ in range(2)]
    assert min(free) > 5.0
    assert free[0] != free[1]


@pytest.mark.parametrize("releases", [1000, 1001, 2500])
def test_memory_is_bounded(releases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_BATCH", 300)
    largest = 0
    real = audits.GuardDoor.release

    def release(self: Any, signs: Floats, **options: Any) -> Floats:
        nonlocal largest
        largest = max(largest, len(signs) if not options.get("absent") else 0)
        return real(self, signs, **options)

    monkeypatch.setattr(audits.GuardDoor, "release", release)
    shares: list[float] = []
    found = audit(releases=releases, seed=0, on_progress=shares.append)
    assert largest <= 300
    assert found.releases in (releases, releases + 1)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > releases / 600


def test_results_are_plain_values() -> None:
    found = audit(releases=1000, seed=0)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain == found.to_json()
    assert set(plain) == {field.name for field in dataclasses.fields(Audit)}
    names = [check["name"] for check in plain["checks"]]
    seen = ["size of the noise", "fresh noise", "within the clip", "last bits", "who is absent"]
    assert names == seen


def test_senseless_arguments_are_refused() -> None:
    with refused("--releases = 999: expected at least 1,000"):
        audit(releases=999)
    with refused("--releases = 39: expected at least 40"):
        audit(releases=39, path="client")
    with refused("--path = 'x': expected guard or simulation or client"):
        audit(path="x")  # type: ignore[arg-type]
    for name in ("rounds", "blocks", "dimensions", "canaries"):
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
    with pytest.raises(
        ConfigError, match=r"^--canaries = 2: expected 1, unless --trust is secagg"
    ):
        audit(canaries=2)
    with refused("--canaries = 2: expected 1, with --unit row"):
        audit(canaries=2, trust="secagg", unit="row")
    with pytest.raises(ConfigError, match=r"^--beside = 3\.0: expected none, with --path guard"):
        audit(beside=3.0)
    with refused("--unit = 'row': expected client, with --path simulation"):
        audit(unit="row", path="simulation")
    for options, said in (
        ({"unit": "row"}, "--unit = 'row': expected client"),
        ({"rounds": 2}, "--rounds = 2: expected 1"),
        ({"beside": 2.0}, "--beside = 2.0: expected None"),
    ):
        with refused(f"{said}, with --path client"):
            audit(path="client", **options)  # type: ignore[arg-type]


def test_the_path_of_a_client_needs_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(MissingExtraError, match="--path client needs the extra 'flower'"):
        audit(path="client")
