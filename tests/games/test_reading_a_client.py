"""A server that tries to read a client: it may send what it likes, while the user rates."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import BGTPlannerError
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request, SentCatalogue
from federation.aggregation.members import identity
from flower.doubles import (
    AGREE_TO_TASTES,
    agreed,
    catalogue_for,
    first_request,
    taste_request,
    write_client,
)
from games.summing import asked_for
from games.worlds import (
    DEFENCELESS,
    DEFENCELESS_IN_SUMS,
    HOSTILE,
    Move,
    ReplaysIfNothingChanged,
    Sums,
    both,
    hostile_catalogue,
    paid_releases_tell_nothing,
    some_moves,
)

pytestmark = pytest.mark.usefixtures("compiled_once")

ALLOWED = {"smallest_charge": 1e-6, "largest_charge": 5.0, "requests_per_hour": 30.0}


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=3, items=30, ratings_per_client=20, seed=1)


@pytest.fixture(scope="module")
def home(few: Ratings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's folder, to be copied."""
    folder = tmp_path_factory.mktemp("client") / "home"
    named = {"catalogues": [catalogue.digest for catalogue in _catalogues(few)[:2]]}
    write_client(folder, few, 0, agreed(few, ALLOWED | named))
    return folder


def _catalogues(few: Ratings) -> list[SentCatalogue]:
    """Two that the policy names, of which the client has the first, and one that it does not."""
    first = catalogue_for(few)
    titles = tuple(f"The {name}" for name in first.items)
    return [first, replace(first, items=first.items[::-1]), replace(first, titles=titles)]


@pytest.fixture(scope="module")
def honest(few: Ratings) -> Request:
    return first_request(few, {})


@pytest.fixture
def told_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    paid_releases_tell_nothing(monkeypatch)
    return


@pytest.fixture(scope="module")
def together(few: Ratings, memory: Path) -> Path:
    """The folder of a client that adds to sums, to be copied."""
    group = {"roster": "roster.txt", "smallest_group": 4, "colluders": 1}
    agrees = ALLOWED | {"requests_per_hour": 1000.0, "neighbours": "replace-special"}
    folder = memory / "together"
    write_client(folder, few, 0, agreed(few, agrees | {"secagg": group}))
    (folder / "state" / "identity").write_text(identity(0).private_bytes_raw().hex())
    shutil.copy(memory / "template" / "roster.txt", folder)
    return folder


def _moves(seed: int, honest: Request, few: Ratings, home: Path) -> list[Move]:
    rng, roster = np.random.default_rng(seed), home / "roster.txt"
    if not roster.exists():
        return some_moves(rng, honest, 40, _catalogues(few))
    sums = Sums(lambda plan: asked_for(Roster.read(roster), plan, size=60))
    return some_moves(rng, replace(honest, trust="secagg"), 60, _catalogues(few)[:1], sums)


@pytest.mark.usefixtures("told_nothing")
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_learned_that_was_not_paid_for(
    seed: int, home: Path, honest: Request, few: Ratings, tmp_path: Path
) -> None:
    one, other = both(home, tmp_path, Client, _moves(seed, honest, few, home))
    assert one == other
    assert any(seen and seen[0] == "released" for seen in one)


@pytest.mark.usefixtures("told_nothing")
def test_nothing_is_learned_from_sums_that_was_not_paid_for(
    together: Path, honest: Request, few: Ratings, tmp_path: Path
) -> None:
    steps: set[str] = set()
    for seed in range(5):
        one, other = both(together, tmp_path, Client, _moves(seed, honest, few, together))
        assert one == other, f"game {seed}"
        steps |= {seen[1] for seen in one if seen and seen[0] == "answered"}
    assert steps == set(STEPS)


@pytest.mark.usefixtures("told_nothing")
@pytest.mark.parametrize(
    ("kind", "of_sums"),
    [*((kind, False) for kind in DEFENCELESS), *((kind, True) for kind in DEFENCELESS_IN_SUMS)],
)
def test_without_the_defence_the_two_worlds_can_be_told_apart(
    kind: type[Client], of_sums: bool, home: Path, together: Path, honest: Request, few: Ratings,
    tmp_path: Path,
) -> None:  # fmt: skip
    template = together if of_sums else home
    for seed in range(20):
        moves = _moves(seed, honest, few, template)
        one, other = both(template, tmp_path / str(seed), kind, moves)
        if one != other:
            return
    pytest.fail("the server has learned nothing: the game cannot be won")


# ---- the oracle itself, with real noise

TRIALS = 32  # guesses; all of them are right with a chance of 5e-10
CHARGE = 1e-6


def _same_request(request: Request, _: int) -> tuple[Request, Request]:
    return request, request


def _another_round_between(request: Request, trial: int) -> tuple[Request, Request]:
    return replace(request, round=2 * trial), replace(request, round=2 * trial)


def _renamed_run(request: Request, trial: int) -> tuple[Request, Request]:
    return replace(request, run=f"a{trial}"), replace(request, run=f"b{trial}")


def _later_round(request: Request, trial: int) -> tuple[Request, Request]:
    run = f"later {trial}"
    return replace(request, run=run), replace(request, run=run, round=1)


def _two_servers(request: Request, trial: int) -> tuple[Request, Request]:
    first = replace(request, run=f"server 1 {trial}")
    return first, replace(first, charge=2 * CHARGE)


def _another_catalogue(request: Request, _: int) -> tuple[Request, Request]:
    return request, replace(request, model=replace(request.model, catalogue="0" * 64))


PATTERNS = (
    _same_request,
    _another_round_between,
    _renamed_run,
    _later_round,
    _two_servers,
    _another_catalogue,
)
RULES = ("gaussian/gdp", "laplace/basic", "privunit/either")


def _guesses(home: Path, kind: type[Client], pattern: Callable[..., Any], honest: Request) -> int:
    """How often a server guesses whether the user has rated one item between two requests.

    It goes by whether the answers are equal, whether one is missing, and else tosses a coin.
    """
    rng = np.random.default_rng(7)
    file = load_client(home / "client.toml")
    table = file.ratings.read_text(encoding="utf-8")
    right = 0
    for trial in range(TRIALS):
        items = np.zeros((30, 3), dtype=np.float32)
        items[trial % 30] = 1e6  # one item at a time
        asked = replace(
            honest, run=f"trial {trial}", charge=CHARGE, model=replace(honest.model, items=items)
        )
        rated = bool(rng.integers(2))
        seen: list[bytes | None] = []
        for moment, request in enumerate(pattern(asked, trial)):
            extra = "u0,i7,1.0\n" if rated and moment else ""
            file.ratings.write_text(table + extra, encoding="utf-8")
            try:
                seen.append(kind(file).answer(request).tobytes())
            except BGTPlannerError:
                seen.append(None)
        answered = seen[0] is not None and seen[1] is not None
        changed = seen[0] != seen[1] if answered else bool(rng.integers(2))
        right += changed == rated
    file.ratings.write_text(table, encoding="utf-8")
    return right


def _chance_of(right: int) -> float:
    """Of guessing so well, or so badly, with no more than what two tiny charges have bought.

    A Gaussian release of this charge buys the most: mu is its root.
    """
    mu = (3 * CHARGE) ** 0.5
    bought = 2 * scipy.stats.norm.cdf(mu / 2) - 1
    likely = scipy.stats.binom(TRIALS, 0.5 + bought / 2)
    return float(min(likely.sf(max(right, TRIALS - right) - 1) * 2, 1.0))


@pytest.mark.parametrize(
    ("pattern", "accountant"),
    [
        *((pattern, RULES[0]) for pattern in PATTERNS),
        *(
            (pattern, accountant)
            for pattern in (_same_request, _later_round)
            for accountant in RULES[1:]
        ),
    ],
)
def test_asking_twice_does_not_show_what_was_rated_in_between(
    pattern: Callable[..., Any], accountant: str, few: Ratings, honest: Request, tmp_path: Path
) -> None:
    home = write_client(tmp_path / "client", few, 0, agreed(few, {"rule": accountant})).parent
    assert (
        _chance_of(_guesses(home, Client, pattern, replace(honest, accountant=accountant))) > 1e-9
    )


@pytest.mark.parametrize("accountant", RULES)
def test_the_client_that_replays_if_nothing_changed_is_read_by_it(
    accountant: str, few: Ratings, honest: Request, tmp_path: Path
) -> None:
    home = write_client(tmp_path / "client", few, 0, agreed(few, {"rule": accountant})).parent
    asked = replace(honest, accountant=accountant)
    assert _chance_of(_guesses(home, ReplaysIfNothingChanged, _same_request, asked)) < 1e-9


# ---- axes, which the server chooses, and features, which whoever wrote the policy has let pass


@pytest.mark.usefixtures("told_nothing")
@pytest.mark.parametrize("seed", range(3))
def test_features_are_no_way_around_the_charge(seed: int, few: Ratings, tmp_path: Path) -> None:
    """Also where they are not finite, absurd, or of another number: all of that is public."""
    catalogues = [hostile_catalogue(catalogue_for(few), kind) for kind in HOSTILE]
    named = {"catalogues": [catalogue.digest for catalogue in catalogues], "most_features": 30}
    policy = agreed(few, ALLOWED | AGREE_TO_TASTES | named)
    home = write_client(tmp_path / "home", few, 0, policy).parent
    moves = [Move("hold", catalogue=catalogue) for catalogue in catalogues]
    moves += some_moves(np.random.default_rng(seed), taste_request(few), 30, catalogues)
    one, other = both(home, tmp_path, Client, moves)
    assert one == other
    assert any(seen and seen[0] == "released" for seen in one)
