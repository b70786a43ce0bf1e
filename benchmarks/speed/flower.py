"""Question 7: what it costs to carry a round to clients that are each on their own.

The same run twice, 100 clients with as many items as ML-100K, every client's own noise: in our
simulation, all clients at once, and as server and client app on Flower's simulation engine, where
every client reads its file, pays from its own ledger and sends its own message.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

CLIENTS, ITEMS, RATINGS_PER_CLIENT = 100, 1682, 106
ROUNDS = 6

WHAT = {
    "simulation": "our simulation, all at once",
    "engine": "the same apps on Flower's simulation engine",
}


def prepare(folder: Path) -> Any:
    """Write the federation, if it is not there yet; returns its ratings."""
    from bgtplanner.data.synthetic import synthetic_ratings
    from bgtplanner.flower.client import Client
    from bgtplanner.flower.clientfile import load_client
    from bgtplanner.flower.example import write_example
    from bgtplanner.runs.config import load_config, to_toml

    ratings = synthetic_ratings(
        clients=CLIENTS, items=ITEMS, ratings_per_client=RATINGS_PER_CLIENT
    )
    home = folder / "federation"
    if not home.exists():
        write_example(home, clients=CLIENTS, address="127.0.0.1:1", trust="local", ratings=ratings)
        file = home / "server" / "config.toml"
        settings: dict[str, Any] = {"federation.rounds": ROUNDS, "data.initial_share": 1.0}
        settings |= {"planning.policy": "uniform"}  # everyone takes part in every round
        config = load_config(file=file, settings=settings)
        file.write_text(to_toml(config), encoding="utf-8")
        for client in (home / "clients").iterdir():
            Client(load_client(client / "client.toml")).enroll()
    return ratings


def in_simulation(folder: Path) -> list[dict[str, Any]]:
    from bgtplanner.runs.config import load_config
    from bgtplanner.runs.run import execute

    ratings = prepare(folder)
    config = load_config(
        file=folder / "federation" / "server" / "config.toml",
        settings={"privacy.noise": "per-client", "data.train_share": 0.999},
    )
    return execute(config, ratings=ratings, out=folder / "simulated").rounds


def on_engine(folder: Path) -> list[dict[str, Any]]:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from bgtplanner.flower.client import make_client_app
    from bgtplanner.runs.deployed import carry_out
    from bgtplanner.runs.folder import RunFolder

    prepare(folder)
    home = folder / "federation"
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        carry_out(grid, home / "server" / "config.toml", folder / "engine", poll_seconds=0.05)

    def find(context: Context) -> Path:
        number = int(context.node_config["partition-id"]) + 1
        return home / "clients" / str(number) / "client.toml"

    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, make_client_app(find=find), CLIENTS, backend_config=one_core)
    rounds = RunFolder(folder / "engine").rounds()
    if [record["clients"] for record in rounds] != [CLIENTS] * ROUNDS:
        raise SystemExit("not all clients took part in every round")
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--carrier", choices=list(WHAT), required=True)
    given = parser.parse_args()
    for switch in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ[switch] = "0"
    os.environ["FLWR_HOME"] = str(given.folder / "flower")
    carry = {"simulation": in_simulation, "engine": on_engine}[given.carrier]
    seconds = [record["seconds"] for record in carry(given.folder)]
    result = {
        "what": WHAT[given.carrier],
        "clients": CLIENTS,
        "items": ITEMS,
        "first_seconds": seconds[0],  # with what is compiled and started
        "seconds": seconds[2:],  # the second still starts and compiles, on some of the workers
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
