"""The audit of what the model `tastes` uploads: axes and features, along all three paths."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.federation.protection import Uploads
from bgtplanner.privacy.mechanisms import Gaussian, Mechanism
from bgtplanner.runs import clientdoor
from bgtplanner.runs.audits import audit
from bgtplanner.runs.canaries import PICKED, TASTE_WIDTH, picked_together, taste_size
from games.worlds import tastes_are_not_clipped, tastes_are_not_noised

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALLER = "the noise is smaller than stated"
FURTHER = "an upload reaches further than its clip allows"


def test_the_two_clients_differ_in_tastes_and_in_nothing_else() -> None:
    canary = picked_together(7)
    ahead, behind = (way.reshape(7, TASTE_WIDTH) for way in canary.uploads())
    np.testing.assert_allclose(ahead[:, :2], behind[:, :2], atol=1e-6)
    assert np.abs(ahead[:PICKED, :2]).min() > 0.01  # residuals and counts are there
    assert not ahead[PICKED:].any()
    assert np.linalg.norm(ahead) == pytest.approx(1.0, abs=1e-6)
    apart = np.linalg.norm(ahead - behind)
    assert apart == pytest.approx(np.sqrt(2 * 0.95), abs=1e-5)  # orthogonal, all of the share
    assert sorted(item for _, item, _ in canary.ahead) == sorted(i for _, i, _ in canary.behind)
    assert canary.items.shape == (7, 9)
    assert canary.items[:, 7:].any(axis=0).all()  # features are sent


def test_dimensions_are_those_of_whole_items() -> None:
    assert [taste_size(n) for n in (1, 24, 25, 28)] == [24, 24, 28, 28]


@pytest.mark.parametrize(
    ("path", "trust", "mechanism", "rounds"),
    [
        ("guard", "local", "gaussian", 1),
        ("guard", "local", "privunit", 1),
        ("guard", "secagg", "laplace", 2),
        ("simulation", "local", "gaussian", 1),
        ("simulation", "secagg", "gaussian", 2),
    ],
)
def test_tastes_are_protected(path: Any, trust: Any, mechanism: Any, rounds: int) -> None:
    found = audit(
        path=path, trust=trust, mechanism=mechanism, rounds=rounds, uploads="tastes",
        releases=8000, seed=1,
    )  # fmt: skip
    assert found.verdict == "holds"
    assert found.faults == []
    assert found.uploads == "tastes"
    assert 0.1 < found.epsilon_lower <= 1.0


@pytest.mark.parametrize("mechanism", ["gaussian", "privunit"])
def test_a_clients_tastes_are_protected(mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clientdoor, "_TIMES", 4)
    found = audit(path="client", mechanism=mechanism, uploads="tastes", releases=40, seed=0)
    assert found.verdict == "holds"
    assert found.faults == []


@pytest.mark.parametrize("path", ["guard", "client"])
@pytest.mark.parametrize(
    ("broken", "fault"), [(tastes_are_not_clipped, FURTHER), (tastes_are_not_noised, SMALLER)]
)
def test_a_guard_that_knows_the_bias_model_alone_is_refuted(
    path: Any, broken: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientdoor, "_TIMES", 1)
    broken(monkeypatch)
    releases = 40 if path == "client" else 4000
    found = audit(path=path, uploads="tastes", epsilon=4.0, releases=releases, seed=0)
    assert found.verdict == "refuted"
    assert fault in found.faults


def clips_by_ratings(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Uploads.size

    def size(self: Uploads, mechanism: Mechanism, own: Any = None) -> Any:
        return real(self._replace(rows=self.rows[:, :2]), mechanism, own)

    monkeypatch.setattr(Uploads, "size", size)


def noises_ratings(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Gaussian.released_sum

    def released(self: Any, source: Any, uploads: Any, *rest: Any, **more: Any) -> Any:
        (items, dense), total = real(self, source, uploads, *rest, **more), uploads.total()
        return [jnp.concatenate([items[:, :2], total[0][:, 2:]], axis=1), dense]

    monkeypatch.setattr(Gaussian, "released_sum", released)


@pytest.mark.parametrize(
    ("broken", "fault"), [(clips_by_ratings, FURTHER), (noises_ratings, SMALLER)]
)
def test_a_simulator_that_knows_the_bias_model_alone_is_refuted(
    broken: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    found = audit(path="simulation", trust="secagg", uploads="tastes", releases=4000, seed=0)
    assert found.verdict == "refuted"
    assert fault in found.faults


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"uploads": "biases"}, "--uploads = 'biases': expected worst or tastes"),
        ({"trust": "secagg", "canaries": 2}, "--canaries = 2: expected 1, with --uploads tastes"),
        ({"unit": "row"}, "--unit = 'row': expected client, with --uploads tastes"),
    ],
)
def test_what_cannot_be_audited_says_so(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        audit(**({"uploads": "tastes"} | options))
    assert str(caught.value) == problem
