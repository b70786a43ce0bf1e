"""What the tests of the federation on Flower have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request, SentModel
from bgtplanner.recsys.ratings import Ratings
from bgtplanner.recsys.synthetic import synthetic_ratings
from flower.doubles import item_names, write_federation


@pytest.fixture
def flower_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is written to Flower's log, which keeps its lines to itself."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logger="flwr"):
        yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture(scope="session")
def few() -> Ratings:
    """Three clients' ratings."""
    return synthetic_ratings(clients=3, items=30, ratings_per_client=20, seed=1)


@pytest.fixture
def federation(tmp_path: Path, few: Ratings) -> tuple[Path, list[Path]]:
    """A server's config, and the files of three clients."""
    return write_federation(tmp_path / "federation", few)


@pytest.fixture
def client(federation: tuple[Path, list[Path]]) -> Client:
    """One of them."""
    return Client(load_client(federation[1][0]))


@pytest.fixture
def request_of_server(few: Ratings) -> Request:
    """What an honest server asks for in the first round."""
    model = SentModel(
        name="biases",
        settings={"mean": 0.7},
        low=few.low,
        high=few.high,
        catalogue=item_names(few),
        items=np.zeros((30, 3), dtype=np.float32),
        dense=np.zeros(0, dtype=np.float32),
    )
    return Request(
        run="first", round=0, rule="gaussian/gdp", trust="local", unit="client", charge=1.0,
        clip=0.1, model=model,
    )  # fmt: skip
