"""A server that wants more from a client that adds to sums than its part of a sum it has paid for.

Each attack is played against real clients on real files, and against clients without the defence,
where it gives the server what it wanted. Every message finds a new process: whatever a client
knows of a round is on its disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import masks
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.federation.aggregation.messages import STEPS, Survivors, Upload
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.flower import state
from bgtplanner.flower.client import Client
from bgtplanner.flower.messages import Request, SumStep
from bgtplanner.privacy.ledger import Reservation
from flower.doubles import agreed, catalogue_for, first_request, write_client
from games import summing
from games.summing import (
    CHARGE,
    CLIENTS,
    CLIP,
    POLICY,
    SIZE,
    Asked,
    Table,
    asked_for,
    least_scale,
    plan_of,
    stand_in,
    write_summing,
)
from games.worlds import (
    DEFENCELESS_IN_SUMS,
    Move,
    Sums,
    both,
    paid_releases_tell_nothing,
    some_moves,
)

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def before_upload(memory: Path) -> Table:
    """Clients whose uploads are asked for next, in their first round; to be copied."""
    shutil.copytree(memory / "template", memory / "before upload")
    table = Table(memory / "before upload")
    with stand_in():
        table.play(table.round(), until="upload")
    return table


@pytest.fixture
def begun(before_upload: Table, memory: Path) -> Iterator[Table]:
    """A copy of them."""
    shutil.copytree(before_upload.home, memory / "begun")
    with stand_in():
        yield Table(memory / "begun", got=dict(before_upload.got))
    shutil.rmtree(memory / "begun")


def test_what_an_honest_server_gets_is_the_sum(table: Table) -> None:
    for index, drops in enumerate(({}, {"upload": [1]}, {"open": [2]}, {"shares": [4]})):
        assert table.opened(table.round(index), drops=drops)
    assert not table.opened(table.round(9), drops={"shares": [0], "upload": [1]})
    table.check()


# ---- alone, or with too few


def test_a_client_that_adds_to_sums_sends_nothing_outside_of_them(table: Table) -> None:
    for trust in ("secagg", "local"):
        with pytest.raises(MessageError):
            table.client(0).answer(plan_of(trust=trust))
    assert table.paid(0) == []


class AnswersAlone(Client):
    """Takes the trust of a plain request for what it says: a sum, of one client."""

    def answer(self, request: Request) -> Any:
        self._agree(request)
        with self.open_ledger() as ledger:
            guard, reservation = self._pay(ledger, request)
            upload, _ = self._train(None, request)  # type: ignore[arg-type]
            return guard.protect(reservation, upload[None], clip=request.clip)


def test_without_that_one_client_is_a_sum_with_too_little_noise(home: Path) -> None:
    """It hides whether the client is in the sum, and not what it uploads instead of another."""
    released = Table(home, AnswersAlone).client(0).answer(plan_of())
    assert released.values.shape == (1, SIZE)
    assert released.noise_scale < 0.6 * 2 * least_scale(CHARGE, CLIP)


FOREIGN = b"r" * 32


@pytest.mark.parametrize(
    "changes",
    [
        {"roster": FOREIGN},
        {"members": frozenset({0}), "dropouts": 0, "colluders": 0},
        {"members": frozenset({0, 1}), "dropouts": 0, "colluders": 0},
        {"members": frozenset({0, 1, 2, 3})},  # one may drop out, and three are not enough
        {"members": frozenset({1, 2, 3, 4}), "dropouts": 0},
        {"members": frozenset({0, 1, 2, 3, 4, 5})},
        {"dropouts": 2, "colluders": 0},
        {"dropouts": 4},
        {"dropouts": 99_999},
        {"colluders": 0},
        {"colluders": 99_999},
    ],
    ids=str,
)
def test_rounds_that_a_client_does_not_begin(table: Table, changes: dict[str, Any]) -> None:
    asked = table.round(**changes)
    assert table.refuses(0, asked.step("keys"))
    assert table.refuses(0, table.round().step("keys"))  # this round is over for it
    table.step(0, table.round(1).step("keys"))  # and the next one is not


def test_without_a_smallest_group_the_server_reads_a_client(
    home: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Member, "_check_request", lambda *_: None)
    monkeypatch.setattr(Member, "_check_survivors", lambda *_: None)
    table = Table(home)
    pair = table.round(members=frozenset({0, 1}), dropouts=0, colluders=0)
    found = table.play(pair).finish()  # client 1 is on the server's side
    (own,), (others,) = (
        [made for (who, _), made in table.put.items() if who == n] for n in (0, 1)
    )
    assert masks.reduced(found.values - others, pair.agreed.bits).tolist() == own.tolist()


class EagerServer(Server):
    """Is content with any number of clients."""

    def _check_enough(self, found: int, what: str) -> None:
        pass


def _few_survivors(folder: Path, monkeypatch: Patch) -> tuple[Table, bool]:
    """Whether a sum of five of seven is opened, of whom one may drop out, and one is false."""
    monkeypatch.setattr(summing, "Server", EagerServer)
    table = Table(write_summing(folder, 7))
    return table, table.opened(table.round(), drops={"upload": [5, 6]})


def test_no_sum_is_opened_that_has_too_little_noise(home: Path, monkeypatch: Patch) -> None:
    table, opened = _few_survivors(home / "seven", monkeypatch)
    assert not opened
    asked = table.round(1)
    table.play(asked, until="sign")
    five = Survivors(asked.agreed.session, frozenset(range(5))).to_bytes()
    assert all(table.refuses(place, asked.step("sign", five)) for place in range(5))


def test_without_counting_survivors_a_sum_with_too_little_noise_is_opened(
    home: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Member, "_check_survivors", lambda *_: None)
    table, opened = _few_survivors(home / "seven", monkeypatch)
    assert opened
    shares = table.round().shares
    four, five = (answered**0.5 * shares.std_of_share for answered in (5 - 1, 6 - 1))
    assert four < shares.scale <= five


# ---- another upload than was agreed


def _plan(**changes: Any) -> Callable[[Asked], dict[str, Any]]:
    return lambda asked: {"request": replace(asked.plan, **changes)}


def _model(**changes: Any) -> Callable[[Asked], dict[str, Any]]:
    return lambda asked: {
        "request": replace(asked.plan, model=replace(asked.plan.model, **changes))
    }


OTHERWISE: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "a larger scale": lambda asked: {"scale": 2 * asked.scale},
    "a smaller scale": lambda asked: {"scale": asked.scale / 2},
    "a scale of nearly nothing": lambda asked: {"scale": 1e-99},
    "a scale without end": lambda asked: {"scale": float("inf")},
    "a scale that is no number": lambda asked: {"scale": float("nan")},
    "a larger largest clip": lambda asked: {"largest_clip": 2 * CLIP},
    "a smaller largest clip": lambda asked: {"largest_clip": CLIP / 2},
    "a larger clip": _plan(clip=2 * CLIP),
    "a huge clip": _plan(clip=1e9),
    "a clip that is no number": _plan(clip=float("nan")),
    "a charge for which there is too little noise": _plan(charge=0.9 * CHARGE),
    "no charge": _plan(charge=0.0),
    "a charge that is no number": _plan(charge=float("nan")),
    "a negative charge": _plan(charge=-1.0),
    "a charge that the policy does not allow": _plan(charge=2.1),
    "a huge charge": _plan(charge=1e300),
    "another accountant": _plan(accountant="laplace/basic"),
    "another trust": _plan(trust="local"),
    "another unit": _plan(unit="row"),
    "another run": _plan(run="another"),
    "another round": _plan(round=1),
    "no request": lambda _: {"request": None},
    "another model": _model(name="tastes"),
    "other settings": _model(settings={"mean": 0.6}),
    "other parameters": _model(items=np.ones((2, 3), np.float32)),
    "other dense parameters": _model(dense=np.ones(1, np.float32)),
    "another catalogue": _model(catalogue="1" * 64),
}


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_uploaded_is_what_the_round_was_begun_for(
    begun: Table, change: Callable[[Asked], dict[str, Any]]
) -> None:
    table, asked, message = begun, begun.round(), begun.got[0, "upload"]
    table.rate(0, "u0,b,5\n")  # between its keys and its upload: a user may, at any time
    assert table.refuses(0, asked.step("upload", message, **change(asked)))
    assert table.refuses(0, asked.step("upload", message))  # the round is over for it
    assert (table.put, table.paid(0)) == ({}, [])
    table.step(0, table.round(1).step("keys"))  # and the next one is not


def _told_of_less_noise(table: Table) -> tuple[Asked, bool]:
    """Client 0 is told of its noise; others of an eighth of it, for clips that are as small."""
    full = table.round()
    plan = replace(full.plan, clip=CLIP / 8)
    little = replace(full, plan=plan, scale=full.scale / 8, largest=CLIP / 8)
    assert little.shares.bits(SIZE) == full.agreed.bits  # nothing else gives it away
    return little, table.opened(full, tell=dict.fromkeys(range(1, CLIENTS), little))


def test_no_client_adds_to_a_sum_in_which_others_add_less_noise(table: Table) -> None:
    _, opened = _told_of_less_noise(table)
    assert not opened
    assert {place for place, _ in table.put} == {0}  # under a mask that nobody can take off


def test_without_a_digest_of_what_was_agreed_noise_is_missing(
    table: Table, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(SumStep, "context", lambda *_: bytes(32))
    little, opened = _told_of_less_noise(table)
    full = table.round().shares
    there = (full.std_of_share**2 + (CLIENTS - 1) * little.shares.std_of_share**2) ** 0.5
    assert opened
    assert there < 0.7 * full.scale


def test_without_a_check_of_shares_noise_is_missing(table: Table, monkeypatch: Patch) -> None:
    little = replace(table.round(), scale=least_scale(CHARGE, CLIP) / 8).sealed()
    assert table.refuses(0, little.step("keys")) is False
    assert not table.opened(replace(table.round(1), scale=little.scale).sealed())
    assert table.put == {}
    monkeypatch.setattr(Randomizer, "check_shares", lambda *_, **__: None)
    assert table.opened(replace(table.round(2), scale=little.scale).sealed())
    assert CLIENTS**0.5 * little.shares.std_of_share < least_scale(CHARGE, CLIP) / 2


# ---- a second time


def _other_rounds(table: Table) -> list[Asked]:
    """The same round with other parameters, everything else made to fit."""
    asked = table.round()
    other = replace(asked.plan, model=replace(asked.plan.model, items=np.ones((2, 3), "f4")))
    return [
        replace(asked, scale=2 * asked.scale).sealed(),
        replace(asked, plan=other).sealed(),
        replace(asked, largest=2 * asked.largest, scale=2 * asked.scale).sealed(),
        asked.sealed(members=frozenset({0, 1, 2, 3}), dropouts=0),
        asked.sealed(dropouts=0),
        asked.sealed(colluders=2, dropouts=0),
        asked.sealed(roster=FOREIGN),
        asked.sealed(size=SIZE + 1),
    ]


@pytest.mark.parametrize("until", ["shares", "upload", "sign", "open", None])
def test_a_round_is_not_played_again_with_other_parameters(
    table: Table, until: str | None
) -> None:
    asked, paid = table.round(), int(until not in ("shares", "upload"))
    table.play(asked, until=until)
    for place, other in zip((0, 1, 2, 3, 4, 0, 1, 2), _other_rounds(table), strict=True):
        for step in ("keys", until or "open"):
            message = table.got.get((place, step), b"")
            assert table.refuses(place, other.step(step, message))
            assert table.refuses(place, asked.step(step, message))  # over, as well
    table.check()
    assert all(len(table.paid(place)) == paid for place in range(CLIENTS))


# ---- rounds that a client has forgotten


def _forget(table: Table) -> None:
    """Open so many rounds that clients forget those before."""
    known = {path for place in range(CLIENTS) for path in table.sums(place).iterdir()}
    for index in range(state._ROUNDS_KEPT):
        later = asked_for(table.roster, plan_of(run=f"to fill a store, {index}"))
        for place in range(CLIENTS):
            table.step(place, later.step("keys"))
    assert not any(path.exists() for path in known)


def _delete(table: Table) -> None:
    for place in range(CLIENTS):
        shutil.rmtree(table.sums(place))


def _set_back(table: Table) -> None:
    """Bring the stores back from a copy that was made before the upload."""
    _delete(table)
    for place in range(CLIENTS):
        shutil.copytree(table.sums(place).with_name("copy"), table.sums(place))


LOST = (_forget, _delete, _set_back)


def _upload_with_a_copy(table: Table, asked: Asked) -> None:
    """Ask for uploads, after a copy was made of what is stored."""
    for place in range(CLIENTS):
        shutil.copytree(table.sums(place), table.sums(place).with_name("copy"))
        table.step(place, asked.step("upload", table.got[place, "upload"]))


@pytest.mark.parametrize("lose", LOST)
def test_a_round_that_was_paid_for_is_not_played_again_when_it_is_forgotten(
    begun: Table, lose: Callable[[Table], None]
) -> None:
    table, asked = begun, begun.round()
    _upload_with_a_copy(table, asked)
    lose(table)
    for place in range(CLIENTS):
        table.rate(place, "u0,b,5\n")
        if lose is not _set_back:
            assert table.refuses(place, asked.step("keys"))
        assert table.refuses(place, asked.step("upload", table.got[place, "upload"]))
    assert not table.opened(asked)
    assert not table.opened(replace(asked, scale=2 * asked.scale).sealed())
    table.check()
    assert len(table.put) == CLIENTS
    assert table.opened(table.round(1))


@pytest.mark.parametrize("lose", LOST[:2])
@pytest.mark.parametrize("until", ["shares", "upload"])
def test_a_round_that_is_forgotten_before_its_upload_is_played_once(
    table: Table, lose: Callable[[Table], None], until: str
) -> None:
    """With fresh keys and masks, and never with those that were shown before."""
    asked = table.round()
    table.play(asked, until=until)
    before = {place: table.sent.pop((place, "keys", asked.agreed.session)) for place in range(5)}
    table.sent.clear()
    lose(table)
    assert table.opened(asked)
    assert table.opened(table.round(1))
    table.check()
    for place, keys in before.items():
        assert table.sent[place, "keys", asked.agreed.session] != keys


class PaysOnceAddsTwice(Client):
    """Takes a round for paid that is in its ledger, and adds to the sum again."""

    def _begin(self, ledger: Any, agreed: Any) -> None:
        pass

    def _pay(self, ledger: Any, request: Request) -> tuple[Randomizer, Reservation]:
        guard = Randomizer(ledger, trust="secagg")
        return guard, guard.reserve(request.charge, run=request.run, round=request.round)


@pytest.mark.parametrize("lose", LOST)
def test_without_a_ledger_that_only_rises_an_upload_is_made_twice(
    begun: Table, lose: Callable[[Table], None]
) -> None:
    table, asked = replace(begun, kind=PaysOnceAddsTwice), begun.round()
    _upload_with_a_copy(table, asked)
    lose(table)
    if lose is not _set_back:
        table.play(asked, until="sign")
    else:
        table.step(0, asked.step("upload", table.got[0, "upload"]))
    with pytest.raises(AssertionError, match="in two ways"):
        table.check()
    if lose is _set_back:  # under one mask, so that it falls out of the difference
        one, two = (
            masks.unpack(Upload.from_bytes(sent).values, SIZE, asked.agreed.bits)
            for sent in table.sent[0, "upload", asked.agreed.session]
        )
        first, second = (made for (place, _), made in table.put.items() if place == 0)
        bits = asked.agreed.bits
        assert (
            masks.reduced(one - two, bits).tolist() == masks.reduced(first - second, bits).tolist()
        )


@pytest.mark.parametrize("part", ["state", "begun"])
@pytest.mark.parametrize("until", ["shares", "upload", "sign"])
def test_a_store_of_which_a_part_is_lost_ends_the_round(
    table: Table, part: str, until: str
) -> None:
    asked = table.round()
    table.play(asked, until=until)
    for path in table.sums(0).glob(f"*-{part}"):
        path.unlink()
    for step in ("keys", until):
        assert table.refuses(0, asked.step(step, table.got.get((0, step), b"")))


def test_a_damaged_store_ends_the_round(begun: Table) -> None:
    table, asked = begun, begun.round()
    (path,) = table.sums(0).glob("*-state")
    for content in (b"", b"BSA1", path.read_bytes()[:-1], path.read_bytes() + b"0", bytes(99)):
        path.write_bytes(content)
        assert table.refuses(0, asked.step("upload", table.got[0, "upload"]))


# ---- how fast


def test_a_request_for_huge_masks_is_refused_before_they_are_made(
    table: Table, monkeypatch: Patch
) -> None:
    asked = table.round(size=masks.MOST_COORDINATES)
    table.play(asked, until="upload")
    monkeypatch.setattr(masks, "mask", lambda *_: pytest.fail("masks were made"))
    assert table.refuses(0, asked.step("upload", table.got[0, "upload"]))


# ---- two worlds, which differ in what the user has rated


ALLOWED = {"smallest_charge": 1e-6, "largest_charge": 5.0, "requests_per_hour": 1000.0}


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=3, items=30, ratings_per_client=20, seed=1)


@pytest.fixture(scope="module")
def rated(few: Ratings, memory: Path) -> Path:
    """The folder of a client with ratings and a model, to be copied."""
    agrees = {
        "neighbours": "replace-special",
        "secagg": POLICY["secagg"] | {"roster": "roster.txt"},
    }
    file = write_client(memory / "rated", few, 0, agreed(few, ALLOWED | agrees))
    (file.parent / "state" / "identity").write_text(summing.identity(0).private_bytes_raw().hex())
    shutil.copy(memory / "template" / "roster.txt", file.parent)
    return file.parent


def _moves(seed: int, few: Ratings, roster: Roster) -> list[Move]:
    honest, first = replace(first_request(few, {}), trust="secagg"), catalogue_for(few)
    sums_of = Sums(lambda plan: asked_for(roster, plan, size=60))
    return some_moves(np.random.default_rng(seed), honest, MOVES, [first], sums_of)


GAMES, MOVES = 5, 60


@pytest.mark.usefixtures("compiled_once")
def test_nothing_is_learned_from_sums_that_was_not_paid_for(
    few: Ratings, rated: Path, memory: Path, monkeypatch: Patch
) -> None:
    paid_releases_tell_nothing(monkeypatch)
    steps: set[str] = set()
    for seed in range(GAMES):
        moves = _moves(seed, few, Roster.read(rated / "roster.txt"))
        one, other = both(rated, memory / "worlds", Client, moves)
        assert one == other, f"game {seed}"
        steps |= {seen[1] for seen in one if seen and seen[0] == "answered"}
    assert steps == set(STEPS)


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("kind", DEFENCELESS_IN_SUMS)
def test_without_the_defence_sums_tell_the_two_worlds_apart(
    kind: type[Client], few: Ratings, rated: Path, memory: Path, monkeypatch: Patch
) -> None:
    paid_releases_tell_nothing(monkeypatch)
    for seed in range(3 * GAMES):
        moves = _moves(seed, few, Roster.read(rated / "roster.txt"))
        one, other = both(rated, memory / "worlds" / str(seed), kind, moves)
        if one != other:
            return
    pytest.fail("the server has learned nothing: the game cannot be won")
