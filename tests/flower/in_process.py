"""A grid within the process: the same apps and the same messages, and nothing that is slow.

What it shows is what server and clients do, and not what Flower and a network do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, Message, Message], Iterable[Message]]


class InProcessGrid(Grid):
    """Nodes that answer at once; a node's id is the place of its client file, from 1.

    Every node runs `app`; `tamper` says what becomes of a reply to a request to a node.
    """

    run = set_run = create_message = None  # type: ignore[assignment]  # nothing of ours needs them

    def __init__(
        self, app: ClientApp, files: Sequence[Path], tamper: Tamper | None = None
    ) -> None:
        self.app, self.tamper = app, tamper
        self.files = dict(enumerate(files, start=1))
        self.online = set(self.files)
        self.asked: list[tuple[int, Message]] = []
        self.replies: list[Message] = []
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages; those to nodes that are not connected are lost."""
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
        """Let a node answer."""
        reply = self.app(message, self.context(node))
        self.replies += [reply] if self.tamper is None else self.tamper(node, message, reply)

    def context(self, node: int) -> Context:
        """Return what a node's owner has set."""
        return Context(1, node, {"client-file": str(self.files[node])}, RecordDict(), {})

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return all replies that have not been returned yet."""
        del message_ids
        found, self.replies = self.replies, []
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))
