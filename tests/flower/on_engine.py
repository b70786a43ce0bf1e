"""Run a federation on Flower's simulation engine: a process of its own, since Ray wants one.

Usage: python on_engine.py CONFIG OUT CLIENTS [SEED]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from bgtplanner.flower.client import make_client_app
from bgtplanner.runs.deployed import carry_out
from flower.doubles import noise_of_simulation


def main(config: str, out: str, clients: str, seed: str | None = None) -> None:
    home = Path(clients)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        carry_out(grid, config, out, poll_seconds=0.05)

    client = make_client_app(
        find=lambda context: home / str(context.node_config["partition-id"]) / "client.toml",
        noise=None if seed is None else noise_of_simulation(int(seed)),
    )
    one_core = {"num_cpus": 1, "num_gpus": 0.0}
    number = len(list(home.iterdir()))
    run_simulation(server, client, number, backend_config={"client_resources": one_core})


if __name__ == "__main__":
    main(*sys.argv[1:])
