"""A grid within the process: the same apps and the same messages, and nothing that is slow.

It carries real messages (packed and unpacked as on the network), but no network: what it shows is
what server and client do, not what Flower does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, Message, Message], Iterable[Message]]


class InProcessGrid(Grid):
    """Nodes that answer at once.

    Args:
        app: What every node runs.
        files: Client file of each node; the node's id is its place in the list, from 1.
        tamper: What becomes of a reply: called with node, request and reply.
    """

    def __init__(self, app: ClientApp, files: list[Path], tamper: Tamper | None = None) -> None:
        self.app, self.tamper = app, tamper
        self.files = dict(enumerate(files, start=1))
        self.online = set(self.files)
        self.asked: list[tuple[int, Message]] = []
        self.replies: list[Message] = []
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"message {len(self.asked)}"
            ids.append(message.metadata.message_id)
            self.asked.append((node, message))
            if node in self.online:
                self.deliver(node, message)
        return ids

    def deliver(self, node: int, message: Message) -> None:
        config = {"client-file": str(self.files[node])}
        context = Context(1, node, config, RecordDict(), {})
        reply = self.app(message, context)
        replies = [reply] if self.tamper is None else self.tamper(node, message, reply)
        self.replies += replies

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found, self.replies = self.replies, []
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Any:
        raise NotImplementedError
