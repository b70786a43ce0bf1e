"""What the tests of the federation on Flower have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request
from flower.doubles import catalogue_for, first_request, write_federation


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
def client(federation: tuple[Path, list[Path]], few: Ratings) -> Client:
    """One of them, which has received the catalogue."""
    client = Client(load_client(federation[1][0]))
    client.hold(catalogue_for(few))
    return client


@pytest.fixture
def request_of_server(few: Ratings) -> Request:
    """What an honest server asks for in the first round."""
    return first_request(few, {"mean": 0.7})
