"""A federation over Flower ends with the model and the ledgers of our simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bgtplanner.experiments.deployed import carry_out
from bgtplanner.experiments.runner import Result, simulate
from bgtplanner.flower.client import make_client_app
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.recsys.synthetic import synthetic_ratings
from flower.doubles import SETTINGS, noise_of_simulation, write_federation
from flower.in_process import InProcessGrid

pytestmark = pytest.mark.usefixtures("compiled_once")


def same_model(out: Path, simulated: Result) -> None:
    """Whether a deployed run has the shared parameters and the server's memory of a simulated one.

    Within what single precision leaves: one adds up in another order than the other.
    """
    with np.load(out / "checkpoint.npz") as stored:
        ours = dict(stored)
    theirs = simulated.simulation.arrays()
    assert np.abs(theirs["shared/items"]).max() > 0.01
    for name in sorted(name for name in theirs if name.startswith(("shared", "memory"))):
        size = max(np.abs(theirs[name]).max(initial=0.0), 1e-6)
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-4 * size)


@pytest.mark.parametrize("users", [1, 2])
def test_same_model_and_ledgers(tmp_path: Path, users: int) -> None:
    ratings = synthetic_ratings(
        clients=4, items=30, ratings_per_client=24, users_per_client=users, seed=1
    )
    config, files = write_federation(tmp_path, ratings, {"run.seed": 7})
    grid = InProcessGrid(make_client_app(noise=noise_of_simulation(7)), files)
    summary = carry_out(grid, config, tmp_path / "run", poll_seconds=0.0)

    simulated = simulate(
        ratings,
        seed=7,
        settings={key: value for key, value in SETTINGS.items() if key != "data.dataset"},
        out=tmp_path / "simulated",
    )
    same_model(tmp_path / "run", simulated)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        server = ledger.spent()
    with Ledger.open(tmp_path / "simulated" / "ledger.sqlite", read_only=True) as ledger:
        np.testing.assert_array_equal(server, ledger.spent())
    for number, file in enumerate(files):
        with Ledger.open(file.parent / "state" / "ledger.sqlite", read_only=True) as ledger:
            np.testing.assert_array_equal(ledger.spent()[:, 0], server[:, number])
            assert ledger.unsettled == 0
    assert summary["epsilon_spent_max"] == simulated.summary["epsilon_spent_max"]
    assert summary["rmse_final"] is None
    assert summary["clients_with_last_model"] == 4
