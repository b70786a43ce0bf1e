"""A server that tries to read a client: it may send what it likes, while the user rates."""

from __future__ import annotations

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
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.messages import Request, SentCatalogue
from bgtplanner.privacy.randomness import ExactNoise
from flower.doubles import (
    AGREE_TO_TASTES,
    agreed,
    catalogue_for,
    first_request,
    taste_request,
    write_client,
)
from games.worlds import (
    DEFENCELESS,
    HOSTILE,
    Move,
    ReplaysIfNothingChanged,
    both,
    hostile_axes,
    hostile_catalogue,
    paid_releases_tell_nothing,
    some_moves,
    tastes_are_not_clipped,
    tastes_are_not_noised,
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


@pytest.mark.usefixtures("told_nothing")
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_learned_that_was_not_paid_for(
    seed: int, home: Path, honest: Request, few: Ratings, tmp_path: Path
) -> None:
    moves = some_moves(np.random.default_rng(seed), honest, 40, _catalogues(few))
    one, other = both(home, tmp_path, Client, moves)
    assert one == other
    assert any(seen and seen[0] == "released" for seen in one)


@pytest.mark.usefixtures("told_nothing")
@pytest.mark.parametrize("kind", DEFENCELESS)
def test_without_the_defence_the_two_worlds_can_be_told_apart(
    kind: type[Client], home: Path, honest: Request, few: Ratings, tmp_path: Path
) -> None:
    for seed in range(20):
        moves = some_moves(np.random.default_rng(seed), honest, 40, _catalogues(few))
        one, other = both(home, tmp_path / str(seed), kind, moves)
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

TASTED = 60  # guesses


@pytest.fixture(scope="module")
def home_of_tastes(few: Ratings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a client that agrees to `tastes`, to be copied."""
    folder = tmp_path_factory.mktemp("tastes") / "home"
    named = {"catalogues": [catalogue.digest for catalogue in _hostile(few)]}
    policy = agreed(few, ALLOWED | AGREE_TO_TASTES | named | {"most_features": 30})
    write_client(folder, few, 0, policy)
    return folder


def _hostile(few: Ratings) -> list[SentCatalogue]:
    return [hostile_catalogue(catalogue_for(few), kind) for kind in HOSTILE]


@pytest.mark.usefixtures("told_nothing")
@pytest.mark.parametrize("seed", range(4))
def test_features_are_no_way_around_the_charge(
    seed: int, home_of_tastes: Path, few: Ratings, tmp_path: Path
) -> None:
    """Also where they are not finite, absurd, or of another number: all of that is public."""
    rng, catalogues = np.random.default_rng(seed), _hostile(few)
    moves = [Move("hold", catalogue=catalogue) for catalogue in catalogues]
    moves += some_moves(rng, taste_request(few), 30, catalogues)
    one, other = both(home_of_tastes, tmp_path, Client, moves)
    assert one == other
    assert any(seen and seen[0] == "released" for seen in one)


class Silence:
    """A source of no noise at all, to see what noise would have covered."""

    def normal(self, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape)


def _best_guesses(home: Path, few: Ratings, kind: str) -> int:
    """How often a server is right about one rating, with the best test on the taste part.

    It knows everything but that rating, so it knows both uploads that could be behind a release.
    The noise is drawn as on a real client, but from a seed: this game is always the same one.
    """
    rng = np.random.default_rng(3)
    noise = ExactNoise(np.random.default_rng(5).bytes)
    file = load_client(home / "client.toml")
    table = file.ratings.read_text(encoding="utf-8")
    catalogue = hostile_catalogue(catalogue_for(few), kind)
    Client(file).hold(catalogue)
    request = taste_request(few, catalogue)
    model = replace(request.model, items=hostile_axes(request.model.items))
    tables = (table, table + "u0,i7,1.0\n")
    request = replace(request, model=model, clip=0.02)  # what is not clipped stands out
    behind = []
    for number, text in enumerate(tables):
        file.ratings.write_text(text, encoding="utf-8")
        bare = Client(file, noise=lambda *_: Silence())
        behind.append(_taste_part(bare.answer(replace(request, run=f"bare {number}"))))
    apart, right = behind[1] - behind[0], 0
    for trial in range(TASTED):
        rated = int(rng.integers(2))
        file.ratings.write_text(tables[rated], encoding="utf-8")
        client = Client(file, noise=lambda *_: noise)
        seen = _taste_part(client.answer(replace(request, run=f"trial {trial}")))
        right += int(((seen - behind[0]) @ apart > apart @ apart / 2) == bool(rated))
    file.ratings.write_text(table, encoding="utf-8")
    assert request.charge == 1.0
    return right


def _taste_part(upload: Any) -> Any:
    return upload.reshape(30, 4)[:, 2:].ravel()


def _chance_of_the_best(right: int) -> float:
    """Of so many right guesses with all that a charge of 1 buys: mu = 1, by its definition."""
    return float(scipy.stats.binom.sf(right - 1, TASTED, scipy.stats.norm.cdf(0.5)))


@pytest.mark.parametrize("kind", HOSTILE[:3])
def test_hostile_axes_and_features_gain_no_more_than_the_charge_has_bought(
    kind: str, few: Ratings, tmp_path: Path
) -> None:
    home = _home_of(few, tmp_path / "client", kind)
    assert _chance_of_the_best(_best_guesses(home, few, kind)) > 1e-6


def _home_of(few: Ratings, folder: Path, kind: str) -> Path:
    digest = hostile_catalogue(catalogue_for(few), kind).digest
    policy = agreed(few, AGREE_TO_TASTES | {"catalogues": [digest]})
    return write_client(folder, few, 0, policy, holds=False).parent


@pytest.mark.parametrize("broken", [tastes_are_not_clipped, tastes_are_not_noised])
def test_tastes_that_are_not_protected_are_read(
    broken: Any, few: Ratings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    home = _home_of(few, tmp_path / "client", "of one item")
    assert _chance_of_the_best(_best_guesses(home, few, "of one item")) < 1e-6
