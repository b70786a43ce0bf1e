"""The neighbouring relation on a real client: its own policy and its own ledger decide."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import ConfigError, LedgerError
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployable import check_deployable, check_server
from flower.doubles import SETTINGS, agreed, first_request, write_client, write_federation

pytestmark = pytest.mark.usefixtures("compiled_once")

LOCAL = "neighbours = 'replace-special': expected replace-one, with trust = local"


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=2, items=400, ratings_per_client=20, seed=1)


def test_a_policy_file_cannot_choose_the_weaker_relation(few: Ratings, tmp_path: Path) -> None:
    unsaid = load_client(write_client(tmp_path / "old", few, 0, agreed(few))).agreed()
    assert unsaid.neighbours == "replace-one"
    said = agreed(few, {"neighbours": "replace-one"})
    assert load_client(write_client(tmp_path / "new", few, 0, said)).agreed() == unsaid
    with pytest.raises(ConfigError, match=LOCAL):
        write_client(tmp_path / "weak", few, 0, agreed(few, {"neighbours": "replace-special"}))


def test_a_client_does_not_use_a_ledger_for_another_relation(few: Ratings, tmp_path: Path) -> None:
    file = load_client(write_client(tmp_path / "home", few, 0, agreed(few)))
    with Client(file).open_ledger() as ledger:
        assert ledger.neighbours == "replace-one"
    file.ledger.unlink()
    budgets, rule = file.agreed().budgets, file.agreed().rule
    Ledger.create(file.ledger, budgets, rule, neighbours="replace-special").close()
    with pytest.raises(LedgerError, match="kept for neighbours = replace-special, not replace-on"):
        Client(file).answer(first_request(few, {}))


def test_no_message_names_a_relation_and_the_noise_is_that_of_the_stronger_one(
    few: Ratings, tmp_path: Path
) -> None:
    """Whatever a server may believe, each answer carries the multiplier times twice the clip."""
    assert "neighbours" not in {entry.name for entry in fields(Request)}
    file = load_client(write_client(tmp_path / "home", few, 0, agreed(few)))
    answer = Client(file).answer(first_request(few, {}))  # charge 1, clip 0.1: sigma 0.2
    assert np.linalg.norm(answer) / len(answer) ** 0.5 == pytest.approx(0.2, rel=0.12)


def test_a_server_cannot_be_set_to_the_weaker_relation(few: Ratings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected replace-one, with trust = local"):
        load_config(settings=SETTINGS | {"privacy.neighbours": "replace-special"})
    together = {"privacy.trust": "secagg", "privacy.noise": "sum"}
    with pytest.raises(ConfigError, match=r"^deployment.roster = None: expected a roster"):
        check_deployable(load_config(settings=SETTINGS | together))
    config, _ = write_federation(tmp_path / "server", few)
    promise = check_server(config)[0].note
    assert "epsilon 5000 (replace-one)" in promise
    assert "with nothing in a client's place" in promise
