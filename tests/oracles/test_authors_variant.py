"""The preset `paper`: its rounds against a re-implementation.

The re-implementation is in `authors.py`. It never looks at what the package has computed but the
initial parameters: after three rounds both must have come to the same place. Only the random draws
are shared, each from the key that the package draws it with.

The package computes in single precision (6e-8 of an entry, and entries are up to 5), and clips a
millionth below the bound, so that rounding cannot push an upload over it. Steps are signs, which
are as good as the smallest slope is: an error of 1e-7 in a slope of 1e-5 moves a parameter by
5e-7. Hence 2e-6, in what the server is told, in parameters and in rewards, over three rounds with
every slope above 1e-5 (which is asserted). Measured: 3.4e-7, 1.6e-7 and 5e-8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import authors
import jax
import numpy as np
import pytest
from authors import After, Draws, Float, Parameters, Rating, RoundParameters, World

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Draw, Federation
from bgtplanner.federation.simulation import Simulation
from bgtplanner.runs.assembly import coordinator_of, federation_of
from bgtplanner.runs.config import Config, load_config

DIM, PSEUDO, ROUNDS = 8, 3, 3
EPSILON, CLIP = 10.0, 0.1
CLOSE = 2e-6  # see above

# Client 2 soon has fewer items left to pretend with than it should name. Client 3 has nothing to
# train on in the first round, client 5 never has. Items 10 and 11 are rated by nobody.
STARS = [
    *[(0, 1, 4, 0), (1, 0, 2, 0), (1, 3, 5, 0), (1, 7, 3, 1), (3, 2, 4, 1)],
    *[(2, item, 1 + (3 * item) % 5, 0) for item in range(8)],
    *[(2, 8, 2, 1), (2, 9, 5, 2), (4, 5, 1, 0), (4, 6, 5, 0), (4, 9, 2, 0), (4, 2, 3, 2)],
]
HIDDEN = [(0, 0, 2), (0, 5, 1), (1, 4, 5), (2, 10, 3), (3, 3, 4), (4, 1, 2), (5, 0, 5)]
WORLD = World(
    users=6,
    items=12,
    train=[Rating(user, item, stars / 5, first) for user, item, stars, first in STARS],
    test=[Rating(user, item, stars / 5) for user, item, stars in HIDDEN],
)


def as_ratings(rows: list[Rating]) -> Ratings:
    user, item, value, _ = zip(*rows, strict=True)
    return Ratings.from_arrays(
        user, item, value, users=range(WORLD.users), items=range(WORLD.items), scale=(0, 1)
    )


def simulation_of(federation: Federation) -> Simulation:
    train = as_ratings(WORLD.train)
    first = {(one.user, one.item): one.arrival for one in WORLD.train}
    pairs = zip(train.user.tolist(), train.item.tolist(), strict=True)
    arrival = np.array([first[pair] for pair in pairs], np.int32)
    split = Split(train=train, test=as_ratings(WORLD.test), arrival=arrival)
    return Simulation(federation, split, seed=1)


def parameters_of(simulation: Any) -> Parameters:
    """The package's state as the tensors of the re-implementation."""
    arrays = {name: array.astype(np.float64) for name, array in simulation.arrays().items()}
    return Parameters(
        arrays["shared/items"], arrays["local/embedding"], *tensors_of(arrays["shared/dense"])
    )


def tensors_of(dense: Float) -> list[Float]:
    """The layer's tensors out of the flat array that the package has of them."""
    weight, *others = np.split(dense, [DIM * DIM, DIM * DIM + DIM, DIM * DIM + 2 * DIM])
    return [weight.reshape(DIM, DIM), *others]


def draws_of(simulation: Simulation, index: int) -> Draws:
    """What the coming round of the package draws, before it is scaled by anything."""
    interactions, federation = simulation._known, simulation.federation
    assert federation.protection is not None
    assert simulation.next_round == index
    laplace = federation.protection.mechanism == "laplace"
    unit = jax.random.laplace if laplace else jax.random.normal
    key = jax.random.fold_in(simulation._key, index)
    rows_key, dense_key = jax.random.split(jax.random.fold_in(key, Draw.NOISE))
    drawn = np.asarray(unit(rows_key, (len(WORLD.train), DIM)), np.float64)
    sizes = federation.model.dense_blocks
    blocks = [
        np.asarray(unit(jax.random.fold_in(dense_key, place), (WORLD.users, size)), np.float64)
        for place, size in enumerate(sizes)
    ]
    named: list[list[int]] = [[] for _ in range(WORLD.users)]
    for client, item in np.transpose(simulation.shown_pairs()).tolist():
        if item not in [one.item for one in WORLD.known(client, index)]:
            named[client].append(item)
    pseudo_key = jax.random.fold_in(key, Draw.PSEUDO_ROWS)
    pairs = zip(interactions.pair_client.tolist(), interactions.pair_item.tolist(), strict=True)
    return Draws(
        pseudo_items=named,
        pseudo_rows=np.asarray(
            jax.random.normal(pseudo_key, (WORLD.users, PSEUDO, DIM)), np.float64
        ),
        rows={pair: drawn[place] for place, pair in enumerate(pairs)},
        tensors={
            (client, name): tensor
            for client in range(WORLD.users)
            for name, tensor in zip(
                authors.TENSORS,
                tensors_of(np.concatenate([block[client] for block in blocks])),
                strict=True,
            )
        },
    )


def settings_of(mechanism: str) -> Config:
    """The preset, with pseudo items for a small catalogue, and each level tried once."""
    settings = {
        "privacy.mechanism": mechanism,
        "model.pseudo_items": PSEUDO,
        "planning.options": {"initial_rounds": 1},
    }
    return load_config(preset="paper", settings=settings)


class Played(NamedTuple):
    """One round: what it drew, what came of it, and all that was left by it."""

    draws: Draws
    context: Float
    went: RoundResult
    state: Parameters


class Run(NamedTuple):
    """A run of the package, and the parameters that it began with."""

    mechanism: Any
    planned: Coordinator
    start: Parameters
    rounds: list[Played]


@pytest.fixture(scope="module", params=["gaussian", "laplace"])
def run(request: pytest.FixtureRequest) -> Run:
    config = settings_of(request.param)
    simulation = simulation_of(federation_of(config, WORLD.items))
    planned = coordinator_of(config, simulation, "mark", None)
    start, rounds = parameters_of(simulation), list[Played]()
    for index in range(ROUNDS):
        draws, context = draws_of(simulation, index), np.asarray(planned.context.of(planned))
        went = planned.step()
        assert went is not None
        rounds.append(Played(draws, context, went, parameters_of(simulation)))
    return Run(request.param, planned, start, rounds)


@pytest.fixture(scope="module")
def expected(run: Run) -> list[After]:
    """The same rounds by the re-implementation, which goes on from its own parameters."""
    parameters, rounds = run.start, list[After]()
    for index, played in enumerate(run.rounds):
        terms = RoundParameters(run.mechanism, CLIP, epsilon_of(index))
        rounds.append(authors.one_round(WORLD, parameters, index, terms, played.draws))
        parameters = rounds[-1].parameters
    return rounds


def epsilon_of(index: int) -> float:
    """The levels in their order: from an even share of 100 rounds to one of 70, five of them."""
    low, high = EPSILON / 100, EPSILON / 70
    return low + index * (high - low) / 4


def test_the_context_is_what_the_uploads_will_show(run: Run) -> None:
    for index, played in enumerate(run.rounds):
        values = authors.context(WORLD, index, played.draws.pseudo_items)
        np.testing.assert_allclose(played.context, values, rtol=1e-9, atol=1e-12)


def test_the_plan_is_the_clip_and_the_noise_of_its_charge(run: Run) -> None:
    for index, played in enumerate(run.rounds):
        plan, terms = played.went.plan, RoundParameters(run.mechanism, CLIP, epsilon_of(index))
        assert plan is not None
        assert plan.level == index
        assert plan.charge == pytest.approx(terms.epsilon, abs=1e-11)
        assert plan.clip == CLIP
        assert plan.noise_scale == pytest.approx(terms.scale, rel=1e-11)


def test_what_the_server_is_told(run: Run, expected: list[After]) -> None:
    """Clip, noise, pseudo rows and weights; some blocks are longer than the clip, some are not."""
    terms = RoundParameters(run.mechanism, CLIP, 1.0)
    slopes = authors.gradient(run.start, 2, WORLD.known(2, 0))
    rows = [slopes.items[one.item] for one in WORLD.known(2, 0)]
    norms = [terms.norm(block) for block in (*rows, *slopes[2:])]
    assert min(norms) < CLIP < max(norms)
    for played, after in zip(run.rounds, expected, strict=True):
        told = played.went.seen.aggregate.astype(np.float64)
        items, dense = told[: WORLD.items * DIM], told[WORLD.items * DIM :]
        parts = [items.reshape(WORLD.items, DIM), *tensors_of(dense)]
        right = [after.aggregate.items, *after.aggregate[2:]]
        for part, other in zip(parts, right, strict=True):
            np.testing.assert_allclose(part, other, rtol=0, atol=CLOSE)


def test_where_the_rounds_lead(run: Run, expected: list[After]) -> None:
    for played, after in zip(run.rounds, expected, strict=True):
        for name in Parameters._fields:
            slope = np.abs(getattr(after.direction, name))[getattr(after.aggregate, name) != 0]
            assert slope.min() > 1e-5, name
            np.testing.assert_allclose(
                getattr(played.state, name),
                getattr(after.parameters, name),
                rtol=0,
                atol=CLOSE,
                err_msg=name,
            )
        assert played.went.loss == pytest.approx(after.loss, abs=CLOSE)
        assert played.went.clients == sum(np.abs(after.aggregate.users).max(axis=1) > 0)


def test_the_reward_is_the_fall_of_the_test_error(run: Run, expected: list[After]) -> None:
    """From the first round on: before it, users predict with the initial parameters."""
    before = authors.rmse(WORLD, authors.predictions(WORLD, run.start, run.start.items, 0))
    for played, after in zip(run.rounds, expected, strict=True):
        now = authors.rmse(WORLD, after.predicted)
        assert played.went.metrics.rmse == pytest.approx(now, abs=CLOSE)
        assert played.went.reward == pytest.approx(before - now, abs=CLOSE)
        before = now


def test_what_is_not_a_number_stays_on_its_client(run: Run) -> None:
    """All blocks of client 4 are lost: noise goes out in their place, and nothing for pseudo."""
    planned, simulation = run.planned, run.planned.engine
    assert isinstance(simulation, Simulation)
    local = simulation.state.local
    broken = local._replace(embedding=local.embedding.at[4].set(np.nan))
    simulation.state = simulation.state._replace(local=broken)
    draws, old = draws_of(simulation, ROUNDS), parameters_of(simulation)
    played = planned.step()
    terms = RoundParameters(run.mechanism, CLIP, epsilon_of(ROUNDS))
    after = authors.one_round(WORLD, old, ROUNDS, terms, draws)
    reached = parameters_of(simulation)
    assert played is not None
    for name in ("items", *authors.TENSORS):
        assert np.isfinite(getattr(reached, name)).all()
        np.testing.assert_allclose(
            getattr(reached, name), getattr(after.parameters, name), rtol=0, atol=CLOSE
        )
    assert np.isnan(played.metrics.rmse)
    assert played.reward is None  # there is no saying what the round brought
