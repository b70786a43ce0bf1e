"""The task on Flower's simulation engine: a message to each client, an upload back, over Ray.

What a client computes is the NumPy of `task.py`, which takes a fraction of a millisecond, so that
next to nothing but the engine is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.task import Task


@cache
def task_in(path: str) -> Task:
    """Return the task, read once in each of the engine's processes."""
    return Task.load(Path(path))


class Flower:
    """Some of the clients of a task, as nodes of the engine, while the engine runs."""

    def __init__(self, task: Task, chosen: list[int], grid: Any) -> None:
        self.task, self.chosen, self.grid = task, chosen, grid
        self.noise = np.random.default_rng(0)
        while len(list(grid.get_node_ids())) < len(chosen):
            time.sleep(0.1)

    def total(self, clients: int | None = None) -> NDArray[np.float64]:
        from flwr.app import Array, ArrayRecord, Message, RecordDict

        sent = ArrayRecord({"items": Array(self.task.rows)})
        messages = [
            Message(RecordDict({"rows": sent}), dst_node_id=node, message_type="train")
            for node in list(self.grid.get_node_ids())[:clients]
        ]
        replies = list(self.grid.send_and_receive(messages))
        errors = [reply.error.reason for reply in replies if reply.has_error()]
        if errors or len(replies) != len(messages):
            raise RuntimeError(f"{len(replies)} of {len(messages)} answered; {errors[:1]}")
        found = np.zeros(self.task.rows.shape)
        for reply in replies:
            found += reply.content["upload"]["items"].numpy()
        return found

    def sum(self) -> NDArray[np.float64]:
        return self.total()

    def round(self, clients: int | None = None) -> None:
        total = self.total(clients)
        total += self.task.noise_std * self.noise.standard_normal(total.shape)


def with_flower(
    task: Task, chosen: list[int], folder: Path, play: Callable[[Flower], None]
) -> None:
    """Start the engine with one process for each CPU, and call `play` while it runs.

    Args:
        task: What is computed.
        chosen: The clients that are there; all of them are asked in a round.
        folder: Where the engine may write.
        play: What is done with it.
    """
    for switch in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ[switch] = "0"
    os.environ["FLWR_HOME"] = str(folder / "flower")
    here = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    path = str(folder / "task.npz")
    task.save(Path(path))
    clients, server = ClientApp(), ServerApp()

    @clients.train()
    def train(message: Message, context: Context) -> Message:
        from dataclasses import replace

        from benchmarks.peers.flower_side import task_in

        sent = replace(task_in(path), rows=message.content["rows"]["items"].numpy())
        upload = sent.upload(chosen[int(context.node_config["partition-id"])])
        record = ArrayRecord({"items": Array(upload)})
        return Message(RecordDict({"upload": record}), reply_to=message)

    ended: list[BaseException | None] = []

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        try:
            play(Flower(task, chosen, grid))
        except BaseException as error:  # of any kind: the engine's thread would swallow it
            ended.append(error)
        else:
            ended.append(None)

    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, clients, len(chosen), backend_config=one_core)
    if ended != [None]:
        reason = ended[0] if ended else "it never began"
        raise SystemExit(f"on Flower's engine: {reason}")
