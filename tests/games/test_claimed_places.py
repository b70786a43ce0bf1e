"""A machine that is let in and claims to be another client, whose public key is in every roster.

It could not add to a sum in that client's name, which takes signatures. But the client whose place
it has would be asked for nothing, and would be missing from every sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.flower import machines as module
from bgtplanner.flower.client import client_app
from bgtplanner.flower.identity import check_proof, proof_of
from bgtplanner.flower.machines import Machines
from bgtplanner.flower.messages import HELLO, SUM, Hello, HelloRequest, read_answer
from bgtplanner.runs.deployed import names_in
from federation.aggregation.members import identity, roster_of
from flower.in_process import InProcessGrid
from games.summing import CLIENTS, Table, write_summing

RULE = "gaussian/gdp"
NODE = CLIENTS + 1  # of the impostor
VICTIM = 0
Claim = Callable[["Grid", HelloRequest], bytes]


class Grid(InProcessGrid):
    """Clients, and one more machine, which says that it is one of them."""

    def __init__(self, table: Table, claim: Claim) -> None:
        files = [table.home / str(place) / "client.toml" for place in range(CLIENTS)]
        super().__init__(client_app, [*files, files[1]])
        self.table, self.claim = table, claim

    def deliver(self, node: int, message: Message) -> None:
        if node != NODE:
            super().deliver(node, message)
        elif message.metadata.message_type == HELLO:
            proof = self.claim(self, HelloRequest.read(message.content))
            name = public_bytes(identity(VICTIM)).hex()
            hello = Hello(name=name, accountant=RULE, proof=proof)
            self.replies.append(Message(hello.record(), reply_to=message))

    def heard_before(self) -> Hello:
        """What the victim has said to the server, in answer to a question to itself."""
        asked = self.asked[VICTIM][1]
        hello = read_answer(Hello, self.app(asked, self.context(VICTIM + 1)))
        assert hello is not None
        return hello


def _own(grid: Grid, asked: HelloRequest) -> bytes:
    """As another client of the roster can: with its own key."""
    return proof_of(identity(1), grid.table.roster, asked)


CLAIMS: dict[str, Claim] = {
    "no proof": lambda grid, asked: b"",
    "any bytes": lambda grid, asked: bytes(64),
    "a proof with its own key": _own,
    "the victim's own proof, again": lambda grid, asked: grid.heard_before().proof,
}


@pytest.mark.parametrize("broken", [False, True], ids=["defended", "broken"])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_no_machine_has_the_place_of_another_client(
    tmp_path: Path, claim: Claim, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The impostor would be asked for the victim's keys, and the victim would not."""
    if broken:
        monkeypatch.setattr(module, "check_proof", lambda *_: None)
    table = Table(write_summing(tmp_path))
    grid = Grid(table, claim)
    machines = Machines(
        grid, places=CLIENTS, accountant=RULE, run="run", roster=table.roster,
        known=names_in(table.roster), poll_seconds=0.0, seconds=0.0,
    )  # fmt: skip
    assert machines.look().all()
    answers, _ = machines.exchange({VICTIM: table.round().step("keys")}, SUM, 0.0)
    asked = {node for node, message in grid.asked if message.metadata.message_type == SUM}
    assert (asked, len(answers)) == (({NODE}, 0) if broken else ({VICTIM + 1}, 1))


def test_a_proof_fits_one_question_one_run_and_one_roster(tmp_path: Path) -> None:
    table, asked = Table(write_summing(tmp_path / "group")), HelloRequest("run")
    hello = table.client(VICTIM).hello(asked)
    check_proof(hello, table.roster, asked)
    others = roster_of([identity(place) for place in range(CLIENTS + 1)])
    stranger = replace(hello, name=public_bytes(identity(CLIENTS)).hex())
    for said, roster, question in (
        (hello, table.roster, HelloRequest("run")),
        (hello, table.roster, replace(asked, run="another")),
        (hello, others, asked),
        (replace(hello, proof=b""), table.roster, asked),
        (stranger, table.roster, asked),
    ):
        with pytest.raises(MessageError, match="roster"):
            check_proof(said, roster, question)
