"""How much is compiled: most of what a short run waits for."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from bgtplanner import simulate

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES = iter(range(13, 100))  # programs of their own: nothing that another test has compiled


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.name": "factorization"},
        {"model.name": "fedgnn"},
        {"preset": "paper"},
        {"privacy.mechanism": "none"},
    ],
    ids=lambda settings: "-".join(settings.values()) or "default",
)
def test_once(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    preset = settings.pop("preset", "recommended")
    size = {"synthetic.clients": next(SIZES), "synthetic.items": 9}
    few = {"synthetic.ratings_per_client": 6, "planning.policy": "uniform", "run.device": "cpu"}
    if settings.get("privacy.mechanism") == "none":
        del few["planning.policy"]
    with jax.log_compiles():
        simulate("synthetic", rounds=4, preset=preset, settings=size | few | settings)
    programs = [text.split()[1] for text in caplog.messages if text.startswith("Compiling jit(")]
    for part in ("uploaded", "stepped", "served"):  # of a round, with so few ratings
        assert programs.count(f"jit({part})") == 1
    assert len(programs) <= 10, programs  # one of them predicts, for who gains and who loses
