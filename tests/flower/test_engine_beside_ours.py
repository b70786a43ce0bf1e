"""The task of benchmarks/peers on Flower's simulation engine has the sum that ours has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from processes import Processes

SCRIPT = """
import json, pathlib, sys
from benchmarks.peers.rounds import compare
from bgtplanner.data.synthetic import synthetic_ratings

ratings = synthetic_ratings(clients=12, items=20, ratings_per_client=6)
found = compare(ratings, 2, 1, 5, pathlib.Path(sys.argv[1]), ["flower"])
print(json.dumps(found))
"""


@pytest.mark.deploy
def test_the_engine_is_timed_once_its_sum_is_equal(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed; see make test-deploy")
    repository = Path(__file__).parents[2]
    with Processes() as processes:
        done = processes.run([sys.executable, "-c", SCRIPT, tmp_path], cwd=repository)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["apart"]["flower"] < 1e-4
    assert len(found["seconds"]["flower"]) == 2
    assert found["peers"]["flower"]["scaled"] == pytest.approx(12 / 5)
