"""Question 9: what secure aggregation costs a client and the server, as the group grows.

The same round in three ways, on a grid within the process (no network, no processes to start):
every client with its own files, ledger, policy and masks, as on real machines; the same with plain
uploads, each of which carries its full noise; and the SecAgg+ workflow that comes with Flower, in
which a client has as many neighbours as in ours: no noise, no signatures, no ledger.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from tests.flower.in_process import InProcessGrid

from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.federation.aggregation.neighbourhood import Ring
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.client import Client, client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.identity import identity_in
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.runs.config import load_config, to_toml
from bgtplanner.runs.deployed import carry_out, catalogue_of

CLIENTS = (20, 100, 1000)
ITEMS, RATINGS, ROUNDS = 1682, 100, 3
DROPOUTS, COLLUDERS = 0.05, 1

WHAT = {
    "plain": "plain uploads, each with its full noise",
    "secagg": "secure aggregation",
    "secaggplus": "Flower's SecAgg+",
}


class CountingGrid(InProcessGrid):
    """Counts bytes, and the time that clients take, between one mark and the next."""

    def __init__(self, app: Any, files: Sequence[Any]) -> None:
        super().__init__(app, files)
        self.up = self.down = 0
        self.client_seconds, self._contexts = 0.0, dict[int, Context]()

    def deliver(self, node: int, message: Message) -> None:
        packed = recorddict_to_proto(message.content)
        message.content = recorddict_from_proto(packed)  # a client gets a copy, as on a network
        begun = time.process_time()
        super().deliver(node, message)
        self.client_seconds += time.process_time() - begun
        self.down += packed.ByteSize()
        self.up += recorddict_to_proto(self.replies[-1].content).ByteSize()

    def context(self, node: int) -> Context:
        file = {} if self.files[node] is None else {"client-file": str(self.files[node])}
        return self._contexts.setdefault(node, Context(1, node, file, RecordDict(), {}))

    def read(self) -> np.ndarray[Any, Any]:
        """Bytes up, bytes down, seconds of clients, seconds of the process so far."""
        return np.array([self.up, self.down, self.client_seconds, time.process_time()])


def write_federation(
    folder: Path, clients: int, trust: str, rounds: int = ROUNDS
) -> tuple[Path, list[Path]]:
    """Write a server's config, and folders of clients with as many ratings each."""
    summed = trust == "secagg"
    settings = {
        "data.dataset": "made-up", "data.scale": "1:5", "deployment.clients": clients,
        "deployment.items": "items.txt", "federation.rounds": rounds, "model.name": "biases",
        "planning.policy": "uniform", "privacy.trust": trust, "privacy.mechanism": "gaussian",
    }  # fmt: skip
    if summed:
        tolerated = {"federation.most_dropouts": DROPOUTS, "federation.most_colluders": COLLUDERS}
        settings |= tolerated | {"deployment.roster": "roster.txt"}
    config = load_config(settings=settings)
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    (folder / "items.txt").write_text("".join(f"i{item}\n" for item in range(ITEMS)))
    agreed = {
        "epsilon": 10.0, "delta": 1e-5, "neighbours": config.privacy.relation,
        "largest_charge": 1e5, "smallest_charge": 1e-6, "smallest_noise_multiplier": 1e-5,
        "requests_per_hour": 1e6, "scale": [1, 5],
        "catalogues": [catalogue_of(config, folder).digest],
    }  # fmt: skip
    policy = "".join(f"{name} = {json.dumps(value)}\n" for name, value in agreed.items())
    group = f'[secagg]\nroster = "{folder}/roster.txt"\nsmallest_group = {clients // 2}\n'
    rng, files, keys = np.random.default_rng(0), list[Path](), list[bytes]()
    for number in range(clients):
        home = folder / "clients" / str(number)
        home.mkdir(parents=True)
        rated = rng.choice(ITEMS, RATINGS, replace=False)
        with (home / "ratings.csv").open("w", newline="", encoding="utf-8") as file:
            rows = zip(rated.tolist(), rng.integers(1, 6, RATINGS).tolist(), strict=True)
            csv.writer(file).writerows([["user", "item", "rating"]])
            csv.writer(file).writerows([f"u{number}", f"i{item}", value] for item, value in rows)
        (home / "policy.toml").write_text(policy + (group if summed else ""), encoding="utf-8")
        (home / "client.toml").write_text('ratings = "ratings.csv"\n', encoding="utf-8")
        client = Client(load_client(home / "client.toml"))
        client.enroll()
        files.append(home / "client.toml")
        keys.append(public_bytes(identity_in(client.file.identity)))
    Roster(tuple(f"client {n}" for n in range(clients)), tuple(keys)).write(folder / "roster.txt")
    return folder / "config.toml", files


class _Marks:
    """Reads the grid after every round."""

    def __init__(self, grid: CountingGrid) -> None:
        self.grid, self.read = grid, [grid.read()]

    def round(self, record: dict[str, Any], total: int) -> None:
        del total
        if record["clients"] != record["asked"]:
            raise SystemExit("not all clients took part in every round")
        self.read.append(self.grid.read())


def ours(folder: Path, clients: int, trust: str, rounds: int) -> list[np.ndarray[Any, Any]]:
    """What each of our rounds took; the first, in which programs are compiled, is left out."""
    config, files = write_federation(folder, clients, trust, rounds)
    grid = CountingGrid(client_app, files)
    marks = _Marks(grid)
    carry_out(grid, config, folder / "run", observer=marks, poll_seconds=0.0)
    return [after - before for before, after in zip(marks.read[1:-1], marks.read[2:], strict=True)]


def secaggplus(clients: int) -> list[np.ndarray[Any, Any]]:
    """The same of Flower's workflow, for uploads of the same length."""
    import flwr.compat.common.recorddict_compat as compat
    from flwr.client import ClientApp, NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import ServerConfig, SimpleClientManager
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    size = 2 * ITEMS
    rows = np.clip(np.random.default_rng(0).normal(size=(clients, size)), -3, 3)

    class One(NumPyClient):
        def __init__(self, row: Any) -> None:
            self.row = row

        def fit(self, parameters: Any, config: Any) -> Any:
            del parameters, config
            return [self.row], 1, {}

    class Node:
        def __init__(self, node: int) -> None:
            self.node_id, self.cid = node, str(node)

    class Everybody(FedAvg):
        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            del server_round, client_manager
            return [(Node(node), FitIns(parameters, {})) for node in range(1, clients + 1)]

    app = ClientApp(
        client_fn=lambda context: One(rows[context.node_id - 1]).to_client(),
        mods=[secaggplus_mod],
    )
    dropouts, colluders = Tolerance(DROPOUTS, COLLUDERS).of(clients)
    ring = Ring(frozenset(range(clients)), bytes(32), dropouts, colluders)
    workflow = SecAggPlusWorkflow(
        ring.degree + 1, ring.threshold, clipping_range=3.0, max_weight=1.0
    )
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), ServerConfig(1), Everybody(), SimpleClientManager()
    )
    rounds = ConfigRecord({Key.CURRENT_ROUND: 1, Key.START_TIME: 0.0})
    context.state[MAIN_CONFIGS_RECORD] = rounds
    none = ndarrays_to_parameters([np.zeros(size)])
    context.state[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(none, True)
    grid = CountingGrid(app, [None] * clients)
    before = grid.read()
    workflow(grid, context)
    found = compat.arrayrecord_to_parameters(context.state[MAIN_PARAMS_RECORD], True)
    if np.abs(parameters_to_ndarrays(found)[0] - rows.mean(0)).max() > 1e-5:
        raise SystemExit("another mean than that of the uploads")
    return [grid.read() - before]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--way", choices=list(WHAT), required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the first is not counted")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if given.way == "secaggplus":
        taken = secaggplus(given.clients)
    else:
        trust = "local" if given.way == "plain" else "secagg"
        where = given.folder / f"{given.way}-{given.clients}"
        taken = ours(where, given.clients, trust, given.rounds)
    up, down, client, whole = (float(median(part)) for part in zip(*taken, strict=True))
    result = {
        "what": WHAT[given.way],
        "clients": given.clients,
        "bytes_up": up / given.clients,
        "bytes_down": down / given.clients,
        "client_seconds": client / given.clients,
        "server_seconds": whole - client,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
