"""A server that tries to read a client: it may send what it likes, while the user rates."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.client import Client
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
    Sums,
    both,
    hostile_catalogue,
    paid_releases_tell_nothing,
    some_moves,
)

pytestmark = pytest.mark.usefixtures("compiled_once")

RULES = ("gaussian/gdp", "laplace/basic", "privunit/either")
ALLOWED = {"smallest_charge": 1e-6, "largest_charge": 5.0, "requests_per_hour": 30.0}


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=3, items=30, ratings_per_client=20, seed=1)


@pytest.fixture(scope="module")
def homes(few: Ratings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a client with each accountant, to be copied."""
    folder = tmp_path_factory.mktemp("client")
    named = ALLOWED | {"catalogues": [catalogue.digest for catalogue in _catalogues(few)[:2]]}
    return {
        rule: write_client(
            folder / rule.replace("/", " "), few, 0, agreed(few, named | {"rule": rule})
        ).parent
        for rule in RULES
    }


@pytest.fixture(scope="module")
def home(homes: dict[str, Path]) -> Path:
    return homes[RULES[0]]


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
    seed: int, homes: dict[str, Path], honest: Request, few: Ratings, tmp_path: Path
) -> None:
    rule = RULES[seed % len(RULES)]
    moves = _moves(seed, replace(honest, accountant=rule), few, homes[rule])
    one, other = both(homes[rule], tmp_path, Client, moves)
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
