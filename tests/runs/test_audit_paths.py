"""The audit of the simulator and of a client folder: both hold, and broken ones are refuted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bgtplanner.federation import protection
from bgtplanner.federation.protection import Protection
from bgtplanner.flower import client as flower_client
from bgtplanner.flower.client import Client
from bgtplanner.flower.messages import Request
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.mechanisms import Gaussian, Mechanism
from bgtplanner.privacy.noise import SeededNoise
from bgtplanner.runs import clientdoor
from bgtplanner.runs.audits import audit
from bgtplanner.runs.clientdoor import ClientDoor
from bgtplanner.runs.doors import Setting
from games.worlds import RefusesWithoutRatings, ReplaysIfNothingChanged

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALLER = "the noise is smaller than stated"
FURTHER = "an upload reaches further than its clip allows"

# ---- the simulator


@pytest.mark.parametrize(
    ("mechanism", "trust", "beside", "rounds"),
    [
        ("gaussian", "local", None, 1),
        ("privunit", "local", 4.0, 1),
        ("laplace", "local", 0.5, 1),
        ("gaussian", "secagg", 10.0, 2),
        ("laplace", "secagg", 5.0, 1),
    ],
)
def test_the_simulator_keeps_its_promise(
    mechanism: Any, trust: Any, beside: float | None, rounds: int
) -> None:
    # Beside clients who may spend more or less: the claim is the audited client's own.
    found = audit(
        path="simulation", mechanism=mechanism, trust=trust, beside=beside, rounds=rounds,
        releases=20_000, seed=1,
    )  # fmt: skip
    assert found.verdict == "holds"
    assert found.faults == []
    assert 0.7 < found.epsilon_lower <= 1.0
    assert (found.path, found.beside) == ("simulation", beside)
    assert [check["name"] for check in found.checks][-1] == "who is absent"


def test_many_canaries_of_the_simulator_hold_too() -> None:
    found = audit(
        path="simulation", mechanism="laplace", trust="secagg", canaries=4, beside=8.0, delta=0.0,
        epsilon=2.0, releases=30_000, seed=0,
    )  # fmt: skip
    assert found.verdict == "holds"
    assert 1.7 < found.epsilon_lower <= 2.0


def less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Gaussian.draw
    monkeypatch.setattr(Gaussian, "draw", lambda *args: 0.9 * real(*args))


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "draw", lambda self, source, shape: jax.numpy.zeros(shape))


def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Protection.release
    monkeypatch.setattr(
        Protection, "release", lambda self, key, *rest: real(self, jax.random.key(3), *rest)
    )


def rated_items_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Gaussian.released_sum

    def released(self: Any, source: Any, uploads: Any, *rest: Any, **more: Any) -> Any:
        noised = real(self, source, uploads, *rest, **more)
        pairs = zip(noised, uploads.total(), strict=True)
        return [jax.numpy.where(own == 0, 0, part) for part, own in pairs]

    monkeypatch.setattr(Gaussian, "released_sum", released)


def same_clip_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    real = protection._bounds_and_scales

    def bounds(accountant: Any, trust: str, clip: float, charges: Any, relation: Any) -> Any:
        return np.full(len(charges), clip), real(accountant, trust, clip, charges, relation)[1]

    monkeypatch.setattr(protection, "_bounds_and_scales", bounds)


def everybody_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    real = protection.terms_of

    def terms(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        # With the noise of those who should be heard: nobody else has added a share.
        return found._replace(granted=jax.numpy.ones_like(found.granted), share=None)

    monkeypatch.setattr(protection, "terms_of", terms)


@pytest.mark.parametrize(
    ("broken", "fault", "epsilon"),
    [
        (less_noise, SMALLER, 1.0),
        (no_noise, SMALLER, 10.0),
        (one_key, "noise is used more than once (between clients)", 1.0),
        (rated_items_only, SMALLER, 1.0),
        (same_clip_for_all, FURTHER, 1.0),
        (everybody_is_heard, "a client that does not take part is visible nevertheless", 1.0),
    ],
)
def test_a_broken_simulator_is_refuted(
    broken: Any, fault: str, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    found = audit(
        path="simulation", trust="secagg", epsilon=epsilon, beside=4 * epsilon, releases=8000,
        seed=0,
    )  # fmt: skip
    assert found.verdict == "refuted"
    assert fault in found.faults


# ---- a client's folder


@pytest.mark.parametrize("mechanism", ["gaussian", "privunit"])
def test_a_client_keeps_its_promise(mechanism: Any) -> None:
    found = audit(path="client", mechanism=mechanism, releases=40, seed=0)
    assert found.verdict == "holds"
    assert found.faults == []
    assert (found.path, found.releases) == ("client", 40)
    names = [check["name"] for check in found.checks]
    assert names[-3:] == ["same request again", "no ratings", "paid for"]
    assert sum(check["risk"] for check in found.checks) < 0.005 + 1e-12


def test_a_claim_that_a_client_can_hardly_be_asked_about_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clientdoor, "_TIMES", 1)
    made: list[Path] = []
    real = tempfile.TemporaryDirectory

    def folder(**options: Any) -> Any:
        found = real(**options)
        made.append(Path(found.name))
        return found

    monkeypatch.setattr(clientdoor.tempfile, "TemporaryDirectory", folder)
    found = audit(path="client", mechanism="laplace", epsilon=4.0, releases=40, seed=0)
    assert found.verdict == "inconclusive"
    assert len(made) == 1
    assert not made[0].exists()  # ratings of nobody, but what is made is also removed


@pytest.mark.parametrize("kind", ["less", "again"])
def test_a_client_with_broken_noise_is_refuted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clientdoor, "_TIMES", 1)
    if kind == "less":
        real = Mechanism.scale
        monkeypatch.setattr(Mechanism, "scale", lambda *args, **kw: real(*args, **kw) * 0.9)
    else:  # noise by the name of the run, whatever the round
        monkeypatch.setattr(clientdoor, "SeededNoise", lambda _: SeededNoise(0))
    found = audit(path="client", releases=40, seed=0)
    assert found.verdict == "refuted"
    again = "noise is used more than once (between clients)"
    assert (SMALLER if kind == "less" else again) in found.faults


class Generous(Client):
    """Answers every second request without asking its ledger."""

    def answer(self, request: Request) -> Any:
        if request.round % 2:
            return super().answer(request)
        return np.random.default_rng(request.round).normal(size=2 * len(request.model.catalogue))


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (ReplaysIfNothingChanged, "same request again"),
        (RefusesWithoutRatings, "no ratings"),
        (Generous, "paid for"),
    ],
)
def test_a_client_that_tells_without_noise_is_refuted(
    broken: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_client, "Client", broken)
    accountant = default_accountant("gaussian")
    setting = Setting(
        mechanism="gaussian", trust="local", unit="client", accountant=accountant,
        budget=Budget(1.0, 1e-5), rounds=1, blocks=1, size=2, canaries=1,
    )  # fmt: skip
    door = ClientDoor(setting)
    checks = {check.name: check.p_value for check in door.games()}
    door.close()
    assert checks[name] < 5e-4  # below the risk of a check at the default confidence
    assert [other for other in checks if checks[other] < 5e-4] == [name]
