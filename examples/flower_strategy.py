"""The planner in your own Flower app: a strategy that asks before a round and tells after it.

    pip install 'bgtplanner[flower]'
    python examples/flower_strategy.py

`Planned` can be used in any ServerApp, and `train` is what a client has to do. Each client has its
own ledger and refuses what it cannot pay for, so that it need not trust the server. Half of the
clients have a smaller budget: every client is told its own charge. Here all of them are in one
process, and `Loopback` replaces the network; the clients estimate a mean together.
"""

# ruff: noqa: T201

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from bgtplanner import BGTPlanner, Budgets, Ledger
from bgtplanner.errors import BudgetExceeded
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.privacy.accountants import default_accountant

CLIENTS, SIZE, ROUNDS, CLIP = 200, 4, 12, 0.5
REFUSED = 100
BUDGETS = Budgets.shares("4:0.5,10:0.5", CLIENTS, delta=1e-5, seed=0)
TRUTH = np.array([0.3, -0.2, 0.1, 0.0])  # public, so that there is a reward that costs nothing


class Planned(FedAvg):
    """FedAvg whose rounds are planned."""

    def __init__(self, planner: BGTPlanner) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1)
        self.planner = planner
        self.error = float(np.linalg.norm(TRUTH))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask what the round may cost, and tell each client its own charge."""
        self.plan = self.planner.ask()
        if self.plan is None or self.plan.skip:  # no one is asked, so no one sends anything
            return []
        asked = []
        for message in super().configure_train(server_round, arrays, config, grid):
            own = self.plan.of(client_of(message))
            if own.takes_part:
                terms = ConfigRecord({**config, "charge": own.charge, "clip": own.clip})
                message.content = RecordDict({"arrays": arrays, "config": terms})
                asked.append(message)
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Tell what the round brought, measured on public data."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if self.plan is not None:
            reward = None
            if arrays is not None:
                error = float(np.linalg.norm(arrays.to_numpy_ndarrays()[0] - TRUTH))
                reward, self.error = self.error - error, error
            self.planner.tell(self.plan, reward=reward)
        return arrays, metrics


def train(message: Message, data: np.ndarray, guard: Randomizer) -> Message:
    """Return a client's answer: its upload, paid for, clipped as a whole and noised."""
    content = message.content
    [now] = content["arrays"].to_numpy_ndarrays()
    asked = content["config"]
    try:
        release = guard.release(
            [data - now],
            charge=float(asked["charge"]),
            clip=float(asked["clip"]),
            run="example",
            round=int(asked["server-round"]),
        )
    except BudgetExceeded:
        return Message(Error(code=REFUSED), reply_to=message)  # nothing else leaves
    guard.settle(release)
    # The same weight for all: how much data a client has is private.
    weight = MetricRecord({"num-examples": 1})
    upload = ArrayRecord([now + 0.5 * release.values[0]])
    return Message(RecordDict({"arrays": upload, "metrics": weight}), reply_to=message)


def client_of(message: Message) -> int:
    """Return which of the planner's clients a message is for."""
    return message.metadata.dst_node_id - 1


class Loopback:
    """Clients in this process, in place of the network."""

    def __init__(self) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower would
        generator = np.random.default_rng(1)
        self.data = TRUTH + 0.1 * generator.standard_normal((CLIENTS, SIZE))
        accountant = default_accountant("gaussian")
        own = [Budgets.same(BUDGETS.classes[number], 1) for number in BUDGETS.class_of_client]
        self.guards = [Randomizer(Ledger.in_memory(budget, accountant)) for budget in own]

    def get_node_ids(self) -> list[int]:
        """Return all clients: all of them are connected."""
        return list(range(1, CLIENTS + 1))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask each client."""
        del timeout
        for message in messages:
            client = client_of(message)
            yield train(message, self.data[client], self.guards[client])


def main() -> None:
    """Train, and compare what the server planned with what clients have really paid."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    planner = BGTPlanner(BUDGETS, rounds=ROUNDS, clip=CLIP, seed=0)
    grid, strategy = Loopback(), Planned(planner)
    strategy.start(grid, ArrayRecord([np.zeros(SIZE)]), num_rounds=ROUNDS)
    planned = planner.ledger.epsilon_spent()
    paid = np.array([guard.ledger.epsilon_spent()[0] for guard in grid.guards])
    print(f"error {strategy.error:.3f}, at first {np.linalg.norm(TRUTH):.3f}")
    print(f"epsilon of the smaller budget: planned {planned.min():.2f}, paid {paid.min():.2f}")
    print(f"epsilon planned {planned.max():.2f}, paid {paid.max():.2f}")


if __name__ == "__main__":
    main()
