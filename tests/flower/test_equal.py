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
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import MessageError
from bgtplanner.flower.client import Client, client_app, make_client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.in_process import InProcessGrid
from bgtplanner.flower.messages import Request
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployable import agreed_settings
from bgtplanner.runs.deployed import carry_out
from bgtplanner.runs.run import simulate
from flower.doubles import SETTINGS, lists, noise_of_simulation, write_federation
from flower.equality import LEARNERS, begin_as_simulated, genres, same_ledgers, same_model

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.parametrize(
    ("users", "mechanism", "accountant"),
    [
        (1, "gaussian", "gaussian/gdp"),
        (2, "gaussian", "gaussian/gdp"),
        (1, "laplace", "laplace/zcdp"),
        (2, "privunit", "privunit/zcdp"),
    ],
)
def test_same_model_and_ledgers(
    tmp_path: Path, users: int, mechanism: str, accountant: str
) -> None:
    ratings = synthetic_ratings(
        clients=4, items=30, ratings_per_client=24, users_per_client=users, seed=1
    )
    kind = {"privacy.mechanism": mechanism}
    config, files = write_federation(
        tmp_path, ratings, {"run.seed": 7, **kind}, {"rule": accountant}
    )
    grid = InProcessGrid(make_client_app(noise=noise_of_simulation(7)), files)
    summary = carry_out(grid, config, tmp_path / "run", poll_seconds=0.0)

    settings = {key: value for key, value in SETTINGS.items() if key != "data.dataset"} | kind
    simulated = simulate(ratings, seed=7, settings=settings, out=tmp_path / "simulated")
    same_model(tmp_path / "run", simulated)
    same_ledgers(tmp_path / "run", tmp_path / "simulated", files)
    assert summary["epsilon_spent_max"] == simulated.summary["epsilon_spent_max"]
    assert summary["rmse_final"] is None
    assert summary["clients_with_last_model"] == 4


@pytest.mark.parametrize("model", LEARNERS)
def test_every_learner(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of somebody's own, which the server's config and the clients' policies name.

    All that differs is where users begin who begin at random, as those of fedgnn do: every client
    draws that for itself, and here as the simulation does.
    """
    ratings = synthetic_ratings(clients=4, items=30, ratings_per_client=24, seed=1)
    chosen = {"model.name": model} | LEARNERS[model]
    whole = load_config(settings=SETTINGS | chosen | {"deployment.clients": 4})
    policy = {"models": [model], "settings": {json.dumps(model): agreed_settings(whole, 30)}}
    table = genres(ratings) if model == "tastes" else None
    config, files = write_federation(tmp_path, ratings, chosen | {"run.seed": 7}, policy, table)

    begin_as_simulated(monkeypatch, ratings, seed=7)
    grid = InProcessGrid(make_client_app(noise=noise_of_simulation(7)), files)
    summary = carry_out(grid, config, tmp_path / "run", poll_seconds=0.0)
    assert (summary["uploads_dropped"], summary["clients_with_last_model"]) == (0, 4)

    catalogue = None
    if table is not None:
        items = read_items(tmp_path / "items.csv")
        catalogue = replace(items, labels=ratings.item_labels.astype(str))
    settings = {key: value for key, value in SETTINGS.items() if key != "data.dataset"} | chosen
    simulated = simulate(
        replace(ratings, catalogue=catalogue),
        seed=7,
        settings=settings,
        out=tmp_path / "simulated",
    )
    same_model(tmp_path / "run", simulated)
    same_ledgers(tmp_path / "run", tmp_path / "simulated", files)
    if model == "fedgnn":  # what a client keeps has moved from where it began
        with np.load(files[0].parent / "state" / "local.npz") as stored:
            assert float(stored["leaf1"][0]) == 3  # steps of the optimizer
    assert len(lists(Client(load_client(files[0])))) == 3


def test_a_client_imports_nothing_that_its_policy_does_not_name(
    client: Client, request_of_server: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, real = list[str](), registry.importlib.import_module

    def noted(name: str) -> Any:
        imported.append(name)
        return real(name)

    monkeypatch.setattr(registry.importlib, "import_module", noted)
    sent = replace(request_of_server.model, name="somebody.elses:Code")
    for ask in (lambda: client.answer(replace(request_of_server, model=sent)),
                lambda: client.keep(sent)):  # fmt: skip
        with pytest.raises(MessageError, match="a model that the policy does not name"):
            ask()
    assert "somebody.elses" not in imported


@pytest.mark.parametrize(("users", "features"), [(2, 3), (2, 0)])
def test_tastes(tmp_path: Path, users: int, features: int) -> None:
    """The server reads features from a table of items; what is left open is chosen alike.

    With features there is a single axis. Several begin as a basis of the features' leading
    directions, and which basis that is depends on the last bit of the sums.
    """
    ratings = synthetic_ratings(
        clients=4, items=30, ratings_per_client=24, users_per_client=users, seed=1
    )
    chosen = {"run.seed": 7, "model.name": "tastes"} | ({"tastes.axes": 1} if features else {})
    whole = load_config(settings=SETTINGS | chosen | {"deployment.clients": 4})
    pinned = agreed_settings(whole, 30)
    axes = 1 if features else 3
    assert pinned == {"axes": axes}
    policy = {"models": ["tastes"], "settings": {"tastes": pinned}}
    given = genres(ratings) if features else None
    config, files = write_federation(tmp_path, ratings, chosen, policy, given)
    grid = InProcessGrid(make_client_app(noise=noise_of_simulation(7)), files)
    summary = carry_out(grid, config, tmp_path / "run", poll_seconds=0.0)
    assert (summary["uploads_dropped"], summary["clients_with_last_model"]) == (0, 4)

    catalogue = None
    if features:
        table = read_items(tmp_path / "items.csv")
        catalogue = replace(table, labels=ratings.item_labels.astype(str))
    told = {key: value for key, value in (SETTINGS | chosen).items() if key != "data.dataset"}
    del told["run.seed"]
    simulated = simulate(
        replace(ratings, catalogue=catalogue), seed=7, settings=told, out=tmp_path / "simulated"
    )
    same_model(tmp_path / "run", simulated)
    same_ledgers(tmp_path / "run", tmp_path / "simulated", files)
    client = Client(load_client(files[0]))
    kept = client._kept()
    assert kept.items.shape == (30, 5 + axes)  # features are not sent again and again
    if features:
        shared = client._model_of(kept).shared
        np.testing.assert_array_equal(shared.items[:, 5 + axes :], table.features)
    assert np.abs(kept.items[:, 4 : 4 + axes]).max() > 0.01  # axes were found
    assert len(lists(client)) == 3


def test_the_presets_own_mechanism(tmp_path: Path, few: Ratings) -> None:
    """Without a seed, as the installed client has it."""
    chosen = {"privacy.mechanism": "privunit", "privacy.noise": "sum", "privacy.epsilon": 10.0}
    policy = {"rule": "privunit/zcdp", "epsilon": 10.0}
    config, files = write_federation(tmp_path, few, chosen, policy)
    summary = carry_out(
        InProcessGrid(client_app, files), config, tmp_path / "run", poll_seconds=0.0
    )
    assert (summary["accounting"], summary["uploads_dropped"]) == ("privunit/zcdp", 0)
    assert summary["epsilon_spent_max"] == pytest.approx(10.0)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as server:
        noted = server.spent()
    for number, file in enumerate(files):
        with Ledger.open(file.parent / "state" / "ledger.sqlite", read_only=True) as ledger:
            np.testing.assert_array_equal(ledger.spent()[:, 0], noted[:, number])
