"""A federation over Flower ends with the model and the ledgers of our simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import registry
from bgtplanner.data.catalogue import read_items
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import MessageError
from bgtplanner.federation.compilation import compiled
from bgtplanner.flower.client import Client, make_client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployed import agreed_settings, carry_out
from bgtplanner.runs.run import simulate
from flower.doubles import SETTINGS, draw_one_by_one, lists, noise_of_simulation, write_federation
from flower.equality import (
    LEARNERS,
    OWN,
    STEPS,
    begin_as_simulated,
    genres,
    same_ledgers,
    same_model,
)
from flower.in_process import InProcessGrid

pytestmark = pytest.mark.usefixtures("compiled_once")


def ends_as_simulated(
    home: Path, users: int = 1, policy: dict[str, Any] | None = None, *, titled: bool = False,
    **chosen: Any,
) -> tuple[Client, dict[str, Any]]:  # fmt: skip
    """Check a deployment of four clients against its simulation; return a client, the summary."""
    ratings = synthetic_ratings(
        clients=4, items=30, ratings_per_client=24, users_per_client=users, seed=1
    )
    whole = load_config(settings=SETTINGS | chosen | {"deployment.clients": 4})
    model = whole.model.name
    pinned = {"models": [model], "settings": {json.dumps(model): agreed_settings(whole, 30)}}
    table = genres(ratings) if titled else None
    given = chosen | {"run.seed": 7}
    config, files = write_federation(home, ratings, given, pinned | (policy or {}), table)
    with pytest.MonkeyPatch.context() as patch:
        begin_as_simulated(patch, ratings, seed=7)
        draw_one_by_one(patch)
        grid = InProcessGrid(make_client_app(noise=noise_of_simulation(7)), files)
        summary = carry_out(grid, config, home / "run", poll_seconds=0.0)
        if titled:
            items = read_items(home / "items.csv")
            catalogue = replace(items, labels=ratings.item_labels.astype(str))
            ratings = replace(ratings, catalogue=catalogue)
        settings = {
            key: value for key, value in SETTINGS.items() if key != "data.dataset"
        } | chosen
        simulated = simulate(ratings, seed=7, settings=settings, out=home / "simulated")
    compiled.cache_clear()
    same_model(home / "run", simulated)
    same_ledgers(home / "run", home / "simulated", files)
    assert summary["epsilon_spent_max"] == simulated.summary["epsilon_spent_max"]
    kept = 4 * (home / "run" / "run.model").exists()  # some learners publish none
    assert (summary["uploads_dropped"], summary["clients_with_last_model"]) == (0, kept)
    assert summary["rmse_final"] is None
    return Client(load_client(files[0])), summary


@pytest.mark.parametrize(
    ("users", "mechanism", "accountant"),
    [(2, "gaussian", "gaussian/gdp"), (1, "laplace", "laplace/zcdp"),
     (2, "privunit", "privunit/zcdp")],
)  # fmt: skip
def test_every_mechanism(tmp_path: Path, users: int, mechanism: str, accountant: str) -> None:
    policy = {"rule": accountant}
    ends_as_simulated(tmp_path, users, policy, **{"privacy.mechanism": mechanism})


@pytest.mark.parametrize("model", ["fedgnn", OWN])
def test_a_learner_with_local_state_and_one_of_somebodys_own(tmp_path: Path, model: str) -> None:
    """Users of fedgnn begin at random: every client draws that, here as the simulation does."""
    client, _ = ends_as_simulated(tmp_path, **{"model.name": model} | LEARNERS[model] | STEPS)
    if model == "fedgnn":  # what a client keeps has moved from where it began
        with np.load(client.file.state / "local.npz") as stored:
            assert float(stored["leaf1"][0]) == 3  # steps of the optimizer
    else:
        assert len(lists(client)) == 3


def test_tastes(tmp_path: Path) -> None:
    """The server reads features from a table of items; what is left open is chosen alike.

    With features there is a single axis. Several begin as a basis of the features' leading
    directions, and which basis that is depends on the last bit of the sums.
    """
    chosen = {"model.name": "tastes", "tastes.axes": 1}
    client, _ = ends_as_simulated(tmp_path, 2, titled=True, **chosen)
    kept = client.file.last_model()
    assert (kept.released.shape, kept.features.shape) == ((30, 5 + 1), (30, 3))
    assert np.abs(kept.released[:, 5]).max() > 0.001  # an axis is asked about
    assert len(lists(client)) == 3


def test_a_client_imports_nothing_that_its_policy_does_not_name(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, real = list[str](), registry.importlib.import_module

    def noted(name: str) -> Any:
        imported.append(name)
        return real(name)

    monkeypatch.setattr(registry.importlib, "import_module", noted)
    sent = replace(request_of_server.model, name="somebody.elses:Code")
    with pytest.raises(MessageError, match="a model that the policy does not name"):
        client.answer(replace(request_of_server, model=sent))
    assert "somebody.elses" not in imported
