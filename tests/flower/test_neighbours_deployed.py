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
from flower.doubles import agreed, first_request, write_client

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=2, items=400, ratings_per_client=20, seed=1)


def test_a_client_takes_the_stronger_relation_and_no_other(few: Ratings, tmp_path: Path) -> None:
    file = load_client(write_client(tmp_path / "home", few, 0, agreed(few)))
    assert file.agreed().neighbours == "replace-one"
    with pytest.raises(ConfigError, match="expected replace-one, with trust = local"):
        write_client(tmp_path / "weak", few, 0, agreed(few, {"neighbours": "replace-special"}))
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
