"""`bgtplanner compare` on a local cluster of Dask, and on one of Ray, as on several machines.

The cluster is started first, and the command finds it as it would find a real one. It runs in a
process of its own: both leave threads and warnings behind. Where the packages are not installed,
as in the environment of `make test`, this is skipped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import compiled
from finished import timeless
from processes import Processes

TINY = (
    "synthetic.clients=30", "synthetic.items=15", "synthetic.ratings_per_client=8",
    "federation.rounds=4", "run.device=cpu",
)  # fmt: skip
COMPARE = [
    *("compare", "--dataset", "synthetic", "--policy", "uniform,bgt", "--seeds", "0-1"),
    *(word for setting in TINY for word in ("--set", setting)),
    *("--json", "--out"),
]
ALONE = "import sys\nfrom bgtplanner.cli import main\nmain()\n"
ON = {
    "dask": """
import dask
from distributed import LocalCluster
from bgtplanner.cli import main

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with dask.config.set({"scheduler-address": cluster.scheduler_address}):
            main()
""",
    "ray": """
import ray
from bgtplanner.cli import main

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        main()
    finally:
        ray.shutdown()
""",
}
PACKAGES = {"dask": "distributed", "ray": "ray"}


def compared(folder: Path, name: str, script: str, *flags: str) -> dict[str, Any]:
    """Return the summaries of all cells after `compare` has run by way of a script."""
    out, program = folder / name, folder / f"compare_{name}.py"
    program.write_text(script, encoding="utf-8")
    settings = os.environ | compiled.quick_environment() | {"RAY_USAGE_STATS_ENABLED": "0"}
    with Processes() as processes:
        done = processes.run(
            [sys.executable, program, *COMPARE, out, *flags], env=settings, cwd=folder
        )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout[done.stdout.index("{") :])
    assert said["failed"] == []
    return {
        str(path.parent.relative_to(out)): timeless(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(out.rglob("summary.json"))
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return compared(tmp_path_factory.mktemp("alone"), "alone", ALONE)


@pytest.mark.parametrize("backend", list(ON))
def test_a_cluster_finds_what_one_process_finds(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    package = PACKAGES[backend]
    pytest.importorskip(package, reason=f"no local cluster: {package} is not installed")
    found = compared(tmp_path, backend, ON[backend], "--backend", backend, "--jobs", "2")
    alone = request.getfixturevalue("alone")
    assert len(found) == 4
    assert found.keys() == alone.keys()
    for cell, summary in found.items():
        assert summary.keys() == alone[cell].keys()
        for name, value in summary.items():
            if isinstance(value, float):  # workers have other numbers of threads, and so round
                assert value == pytest.approx(alone[cell][name], rel=1e-4, nan_ok=True), name
            else:
                assert value == alone[cell][name], name
