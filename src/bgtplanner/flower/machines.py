"""The machines of the clients: which are connected, who they are, and how to exchange messages.

Nothing that a machine sends, or fails to send, ends a run: unusable answers are dropped and
counted.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from bgtplanner.errors import InterruptedRunError, MessageError, quoted
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.identity import check_proof
from bgtplanner.flower.messages import HELLO, Hello, HelloRequest, Sent, read_answer

_log = logging.getLogger("flwr")  # what `flwr log` shows

_ASK_AGAIN_SECONDS = 60.0
_AT_ONCE = 200  # messages in one request: more may exceed the SuperLink's limit


class Machines:
    """All clients of a run, each with a place of its own in the server's ledger.

    A client is known by the name that belongs to its ledger, not by its machine, because it may
    move. Places are given in the order in which clients arrive; only hashes of names are stored:
    `known` are those that have places, and `save` is called with all of them before a new client
    is asked for anything. Clients whose ledgers use another accountant are left out, and under
    secure aggregation those that do not prove that they are in the roster.
    """

    def __init__(
        self, grid: Grid, *, places: int, accountant: str, run: str, roster: Roster | None = None,
        known: Sequence[str] = (), save: Callable[[Sequence[str]], None] = lambda _: None,
        seconds: float = 60.0, poll_seconds: float = 0.5,
    ) -> None:  # fmt: skip
        self.grid, self.places, self.accountant = grid, places, accountant
        self._run, self._roster = run, roster
        self._place_of_name = {name: place for place, name in enumerate(known)}
        self._save, self._seconds, self._poll_seconds = save, seconds, poll_seconds
        self._name_of_node: dict[int, str] = {}
        self._ask_again: dict[int, tuple[float, float]] = {}  # when, and the pause after that
        self._node_of_place: dict[int, int] = {}

    @property
    def known(self) -> int:
        """How many clients have a place; places are filled from the first."""
        return len(self._place_of_name)

    def look(self) -> NDArray[np.bool_]:
        """Return which places have a connected client; unknown machines are asked who they are."""
        nodes = set(self.grid.get_node_ids())
        self._name_of_node = {n: name for n, name in self._name_of_node.items() if n in nodes}
        self._ask_again = {n: when for n, when in self._ask_again.items() if n in nodes}
        now, strangers = time.monotonic(), nodes - self._name_of_node.keys()
        self._introduce(sorted(n for n in strangers if self._ask_again.get(n, (now,))[0] <= now))
        # If two machines have one name, the one that said so last has the place.
        self._node_of_place = {
            self._place_of_name[name]: node for node, name in self._name_of_node.items()
        }
        present = np.zeros(self.places, dtype=bool)
        present[list(self._node_of_place)] = True
        return present

    def wait_for(self, least: int, seconds: float) -> NDArray[np.bool_]:
        """Wait for enough connected clients, and return the same as :meth:`look`."""
        deadline = time.monotonic() + seconds
        while (present := self.look()).sum() < least:
            if time.monotonic() >= deadline:
                raise InterruptedRunError(
                    f"{int(present.sum())} clients are connected and deployment.least_clients = "
                    f"{least}; no more came within {seconds:g} s. Start the run again once they "
                    "are back"
                )
            time.sleep(self._poll_seconds)
        return present

    def exchange(
        self, contents: Mapping[int, Sent], kind: str, seconds: float
    ) -> tuple[dict[int, Message], Counter[str]]:
        """Send messages of a kind to some places, and wait so long for their answers.

        Returns:
            The first answer of each place, and the number of useless answers by kind.
        """
        reached = {node: at for at, node in self._node_of_place.items() if at in contents}
        sent = {node: contents[place] for node, place in reached.items()}
        answers, useless = self._send(sent, kind, seconds)
        useless["late"] += len(contents) - len(answers) - useless["unreadable"]
        return {reached[node]: answer for node, answer in answers.items()}, useless

    def _introduce(self, nodes: Sequence[int]) -> None:
        """Ask machines who they are; those that do not answer are asked again, ever less often.

        A machine that does not answer delays the others, which must not happen in every round.
        """
        if not nodes:
            return
        for node in nodes:
            _, pause = self._ask_again.get(node, (0.0, _ASK_AGAIN_SECONDS))
            self._ask_again[node] = (time.monotonic() + pause, 2 * pause)
        asked = {node: HelloRequest(self._run) for node in nodes}
        answers, _ = self._send(asked, HELLO, self._seconds)
        before = self.known
        for node, answer in sorted(answers.items()):
            try:
                name = self._name_in(answer, asked[node])
            except MessageError as error:
                _log.warning("a machine is left out: %s", error)
                continue
            self._place_of_name.setdefault(name, self.known)
            self._name_of_node = {n: of for n, of in self._name_of_node.items() if of != name}
            self._name_of_node[node] = name
        if self.known > before:
            self._save(list(self._place_of_name))

    def _name_in(self, answer: Message, asked: HelloRequest) -> str:
        """Return the name, hashed, of a client that may take part."""
        hello = read_answer(Hello, answer)
        if hello is None:
            raise MessageError("it did not say who it is")
        if self._roster is not None:
            check_proof(hello, self._roster, asked)
        if hello.accountant != self.accountant:
            raise MessageError(f"its ledger uses {quoted(hello.accountant)}")
        name = hashlib.sha256(hello.name.encode()).hexdigest()
        if name not in self._place_of_name and self.known >= self.places:
            raise MessageError(f"it has no place: deployment.clients = {self.places}")
        return name

    def _send(
        self, contents: Mapping[int, Sent], kind: str, seconds: float
    ) -> tuple[dict[int, Message], Counter[str]]:
        """Send messages; return the first timely answer to each, and counts of useless ones."""
        messages = [Message(of.record(), node, kind, ttl=seconds) for node, of in contents.items()]
        sent, useless = set[str](), Counter[str]()
        for start in range(0, len(messages), _AT_ONCE):
            sent.update(self.grid.push_messages(messages[start : start + _AT_ONCE]))
        each = ((one.metadata.message_id, one.metadata.dst_node_id) for one in messages)
        node_of_message = {name: node for name, node in each if name in sent}
        waiting, answers = set(node_of_message), dict[int, Message]()
        deadline = time.monotonic() + seconds
        while waiting:
            for answer in self._pull(waiting, useless):
                # Flower's own errors name another sender, so match by the message they answer.
                to, sender = answer.metadata.reply_to_message_id, answer.metadata.src_node_id
                asked = node_of_message.get(to)
                if asked is None or (answer.has_content() and sender != asked):
                    useless["unknown"] += 1
                elif to not in waiting:
                    useless["duplicate"] += 1
                else:
                    waiting.discard(to)
                    answers[asked] = answer
            if not waiting or time.monotonic() >= deadline:
                break
            time.sleep(self._poll_seconds)
        return answers, useless

    def _pull(self, waiting: set[str], useless: Counter[str]) -> list[Message]:
        """Return the answers that have arrived, without those that cannot be unpacked."""
        try:
            return list(self.grid.pull_messages(waiting))
        except Exception:  # a stranger's bytes may break the reader in any way
            self.grid.get_node_ids()  # raises if the connection is the reason
        found: list[Message] = []
        for message_id in sorted(waiting):
            try:
                found += self.grid.pull_messages([message_id])
            except Exception as error:
                _log.warning("an answer cannot be unpacked: %s", type(error).__name__)
                waiting.discard(message_id)
                useless["unreadable"] += 1
        return found
