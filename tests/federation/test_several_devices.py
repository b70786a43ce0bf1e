"""Clients divided among several devices: the same rounds as on one, up to rounding.

JAX makes several devices of one CPU only if it is told so before it is imported, so that all of it
is computed in a process of its own (:func:`main`), which prints what it found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.federation.test_layouts import LEARNERS, some_ratings

from bgtplanner.data.split import split_ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.simulation import Simulation, pick_devices
from bgtplanner.models import interactions
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from processes import Processes

DEVICES, ROUNDS = 4, 3
NAMES = ["tastes", "factorization"]
PRIVATE = Protection(mechanism="gaussian", trust="secagg", validation=0.2)


def made(name: str, devices: int, clients: int | None = None) -> Coordinator:
    """A planned run of one learner on so many devices."""
    model, server = LEARNERS[name]
    ratings, _ = some_ratings(clients)
    split = split_ratings(ratings, seed=3, rounds=ROUNDS)
    federation = Federation(model=model, server=server, protection=PRIVATE)
    engine = Simulation(federation, split, seed=1, device="cpu", validation=0.2, devices=devices)
    ledger = Ledger.in_memory(Budgets.same(Budget(8.0, 1e-5), engine.n_clients), "gaussian/rdp")
    policy = Uniform(rounds=ROUNDS, ledger=ledger)
    return Coordinator(engine, policy, ledger, trust="secagg", run="run", mark=b"mark")


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of two states, relative to the largest number of each array."""
    assert one.keys() == other.keys()
    return max(
        float(np.abs(value - other[name]).max() / max(np.abs(value).max(), 1e-6))
        for name, value in one.items()
        if value.size
    )


def of_learner(name: str) -> dict[str, Any]:
    """Three private rounds on one device and on several, and one more with states exchanged."""
    several = made(name, DEVICES, 11 if name == "tastes" else None)
    one = made(name, 1, 11 if name == "tastes" else None)
    runs = (one, several)
    for run in runs:
        for _ in range(ROUNDS - 1):
            run.step()
    states = [run.engine.arrays() for run in runs]
    found: dict[str, Any] = {"apart": apart(*states)}
    for run, state in zip(runs, reversed(states), strict=True):
        run.engine.restore(state)
        run.step()
    engines: list[Any] = [run.engine for run in runs]
    resumed = [engine.arrays() for engine in engines]
    found["resumed"] = apart(*resumed)
    found["moved"] = apart(states[0], resumed[0])
    found["spent"] = [run.ledger.epsilon_spent().tolist() for run in runs]
    found["scores"] = [dict(engine.evaluate()) for engine in engines]
    users, items = np.arange(40), np.arange(40) % 30
    found["predicted"] = [engine.predict(users, items).tolist() for engine in engines]
    found["ranked"] = [engine.rank([9, 0, 39]).tolist() for engine in engines]
    known = engines[1]._known
    found["bytes"] = [shard.data.nbytes for shard in known.value.addressable_shards]
    found["devices"] = {
        field: len({str(shard.index) for shard in getattr(known, field).addressable_shards})
        for field in ("user", "item", "value", "arrival", "present", "pair", "pair_item")
    }
    found["chunks"] = known.chunks
    return found


def main() -> None:
    """Print what is found on several devices, as JSON."""
    interactions._CHUNK["cpu"] = 64  # so that every device has more than one
    print(json.dumps({name: of_learner(name) for name in NAMES}))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    root = Path(__file__).resolve().parents[2]
    paths = [str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-m", "tests.federation.test_several_devices"]
    with Processes() as processes:
        done = processes.run(command, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.parametrize("name", NAMES)
def test_several_devices_compute_what_one_does(name: str, found: dict[str, Any]) -> None:
    of = found[name]
    assert of["apart"] < 1e-4
    assert of["resumed"] < 1e-4 < of["moved"], "another number of devices goes on"
    one, several = of["spent"]
    assert one == several
    assert min(one) > 0
    for what in ("predicted", "ranked"):
        one, several = of[what]
        np.testing.assert_allclose(several, one, rtol=1e-4, atol=1e-5)
    one, several = of["scores"]
    assert several == pytest.approx(one, rel=1e-4)
    assert set(of["devices"].values()) == {DEVICES}  # each has its share of the ratings
    assert len(of["bytes"]) == DEVICES
    assert len(set(of["bytes"])) == 1
    assert of["chunks"] == 2 * DEVICES


def test_more_devices_than_there_are() -> None:
    number = len(jax.devices("cpu")) + 1
    with pytest.raises(
        ConfigError, match=rf"run.devices = {number}: expected at most .*JAX_NUM_CPU_DEVICES"
    ):
        pick_devices("cpu", number, 0)
    assert len(pick_devices("cpu", None, 1_999_999)) == 1


CORES = """
import sys, jax
from bgtplanner.federation.simulation import pick_devices
if "begun" in sys.argv:
    jax.devices()
many = pick_devices("cpu", None, 2_000_000)
print(len(many), len(jax.devices("cpu")))
"""


@pytest.mark.parametrize(
    ("changed", "how", "expected"),
    [
        ({"NPROC": "3"}, "", [2, 3]),  # one for each million ratings
        ({"NPROC": "3", "JAX_NUM_CPU_DEVICES": "1"}, "", [1, 1]),
        ({"NPROC": "3", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "", [2, 2]),
        ({"NPROC": "3"}, "begun", [1, 1]),  # too late, and no harm
    ],
)
def test_every_core_is_a_device_for_large_data(
    changed: dict[str, str], how: str, expected: list[int], processes: Processes
) -> None:
    usual = {name: os.environ[name] for name in os.environ if name not in ("XLA_FLAGS", "NPROC")}
    environment = usual | {"JAX_PLATFORMS": "cpu"} | changed
    done = processes.run([sys.executable, "-c", CORES, how], env=environment)
    assert done.returncode == 0, done.stderr
    assert [int(number) for number in done.stdout.split()] == expected


def test_single_uploads_stay_on_one_device() -> None:
    model, server = LEARNERS["factorization"]
    each = Federation(
        model=model, server=server, protection=Protection(mechanism="gaussian", unit="row")
    )
    split = split_ratings(some_ratings(None)[0], seed=3, rounds=ROUNDS)
    with pytest.raises(ConfigError, match=r"run.devices = 2: expected 1"):
        Simulation(each, split, seed=1, device="cpu", devices=2)


if __name__ == "__main__":
    main()
