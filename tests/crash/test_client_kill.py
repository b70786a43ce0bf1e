"""What a client keeps of a run survives kill -9: it lies beside its ledger, old or new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import StaleRoundError
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request, SentModel
from bgtplanner.models.fedgnn import FedGNN
from flower.doubles import agreed, catalogue_for, first_request, spent, write_client
from processes import PATIENCE

pytestmark = pytest.mark.usefixtures("compiled_once")

# Killed when a file is about to take its place: its content is written, its name is not.
CHILD = """
import os, pickle, signal, sys
from pathlib import Path
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client

home, victim = Path(sys.argv[1]), sys.argv[2]
real = Path.replace

def replaced(self, target):
    if Path(target).name == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)

Path.replace = replaced
request = pickle.loads((home / "request").read_bytes())
Client(load_client(home / "client.toml")).answer(request)
"""


def fedgnn_request(ratings: Any) -> Request:
    own = {"dim": 2}
    shared, _ = FedGNN(**own).initial(jax.random.key(1), 1, ratings.n_items)
    model = SentModel(
        name="fedgnn", settings=own, catalogue=catalogue_for(ratings).digest,
        items=np.asarray(shared.items), dense=np.asarray(shared.dense),
    )  # fmt: skip
    return replace(first_request(ratings, {}), model=model)


def steps(client: Client) -> float:
    """How many steps the client's user has taken, by what it has kept."""
    with np.load(client.file.state / "local.npz") as stored:
        assert json.loads(bytes(stored["about"]))["run"] == "first"
        return float(stored["leaf1"][0])


def test_a_client_that_is_killed_while_it_writes_goes_on_from_what_it_kept(tmp_path: Path) -> None:
    import pickle  # of our own test, and never anybody else's

    ratings = synthetic_ratings(clients=1, items=30, ratings_per_client=20, seed=1)
    policy = agreed(ratings, {"models": ["fedgnn"], "settings": {"fedgnn": {"dim": 2}}})
    file = write_client(tmp_path / "home", ratings, 0, policy)
    client, request = Client(load_client(file)), fedgnn_request(ratings)
    client.answer(request)
    assert steps(client) == 1
    asked = replace(request, round=1)
    (file.parent / "request").write_bytes(pickle.dumps(asked))
    child = [sys.executable, "-c", CHILD, str(file.parent), "local.npz"]
    killed = subprocess.run(child, check=False, capture_output=True, timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert steps(Client(load_client(file))) == 1  # the old file
    assert spent(file) == pytest.approx(2)
    Client(load_client(file)).answer(asked)  # its answer was kept, and is sent again
    assert spent(file) == pytest.approx(2)
    Client(load_client(file)).answer(replace(request, round=3))
    assert steps(client) == 2
    with pytest.raises(StaleRoundError):
        Client(load_client(file)).answer(replace(request, round=2, charge=0.5))
