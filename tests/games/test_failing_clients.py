"""Clients that are silent or wrong at a step of a sum: it is opened exactly if few enough are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.aggregation.messages import Shares as Dealt
from bgtplanner.flower.client import client_app
from bgtplanner.flower.messages import SUM, SumStep
from bgtplanner.flower.server import Group
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.runs.deployed import carry_out
from federation.aggregation.members import identity, roster_of
from flower.in_process import InProcessGrid
from flower.test_sums import federation, rounds_of
from games.summing import CLIENTS, Table

TOLERATED = {"keys": 1, "shares": 1, "upload": 1, "sign": 1, "open": 2}
"""How many may be missing from a step. An upload counts if three can take its mask off."""


def silent(step: str, answer: bytes) -> None:
    return None


def garbled(step: str, answer: bytes) -> bytes:
    return answer[:5] + bytes([answer[5] ^ 1]) + answer[6:]  # in the session


def sealed_for_nobody(step: str, answer: bytes) -> bytes:
    """Shares that the server cannot tell from good ones."""
    if step != "shares":
        return garbled(step, answer)
    dealt = Dealt.from_bytes(answer)
    parcels = tuple(replace(one, sealed=bytes(len(one.sealed))) for one in dealt.parcels)
    return replace(dealt, parcels=parcels).to_bytes()


class Earlier:
    """Sends what was sent before."""

    sent = b""

    def __call__(self, step: str, answer: bytes) -> bytes:
        sent, self.sent = self.sent, answer
        return sent


def test_a_sum_is_opened_exactly_if_no_more_fail_than_are_tolerated(table: Table) -> None:
    faults, index = itertools.cycle([silent, garbled, sealed_for_nobody, Earlier()]), 0
    for step, most in TOLERATED.items():
        for failing in (most, most + 1, most, most + 1):
            fault, chosen, index = next(faults), list[int](), index + 1

            def change(now: str, place: int, answer: bytes) -> bytes | None:
                if now == step and len(chosen) < failing:  # noqa: B023 - called in this turn
                    chosen.append(place)  # noqa: B023
                    return fault(now, answer)  # type: ignore[operator, no-any-return]  # noqa: B023
                return answer

            opened = table.opened(table.round(index), change=change)
            assert opened == (failing <= most), (step, failing)
    assert table.opened(table.round(index + 1))
    table.check()


def test_what_can_never_make_a_sum_is_refused_before_a_run() -> None:
    roster = roster_of([identity(place) for place in range(9)])
    for tolerance, fewest in ((Tolerance(1, 1), 5), (Tolerance(0, 0), 2), (Tolerance(0.2, 1), 3)):
        assert Group(roster, tolerance, "replace-special").fewest == fewest
    with pytest.raises(ConfigError, match="9 members, of whom 5 may drop out"):
        Group(roster, Tolerance(5, 1), "replace-special").fewest  # noqa: B018


@pytest.fixture
def few() -> Ratings:
    return synthetic_ratings(clients=CLIENTS, items=30, ratings_per_client=12, seed=1)


@pytest.mark.usefixtures("compiled_once")
def test_a_round_without_a_sum_is_aborted_and_the_run_goes_on(
    tmp_path: Path, few: Ratings
) -> None:
    """Two of five uploads are lost in the second round, of which one may be."""
    settings = {"deployment.round_seconds": 0.05, "federation.most_dropouts": 1}
    config, files = federation(tmp_path, few, settings)
    records = tmp_path / "run" / "rounds.jsonl"

    def lose(node: int, asked: Message, answer: Message) -> list[Message]:
        second = records.exists() and len(rounds_of(tmp_path / "run")) == 1
        upload = (
            asked.metadata.message_type == SUM and SumStep.read(asked.content).step == "upload"
        )
        return [answer] * (not (second and upload and node <= 2))

    carry_out(InProcessGrid(client_app, files, lose), config, tmp_path / "run", poll_seconds=0)
    found = [(one.get("aborted", False), one["late"]) for one in rounds_of(tmp_path / "run")]
    assert found == [(False, 0), (True, 2), (False, 0)]
