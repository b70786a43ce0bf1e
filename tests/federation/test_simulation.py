"""The simulation: reproducible, resumable to the bit, and honest about its scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.data.split import Split, deal_users, split_ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import RunFolderError
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.metrics import metrics
from bgtplanner.models.optimizers import Server

# Everything that is drawn at random or kept from round to round is in one of these.
FEDGNN = Federation(
    model=FedGNN(dim=2, stale_predictions=True), server=Server(), participation=0.5
)
FACTORIZATION = Federation(model=Factorization(dim=1), server=Server(optimizer="sgd"))


@pytest.fixture(scope="module")
def split() -> Split:
    ratings = synthetic_ratings(clients=24, items=15, ratings_per_client=8, seed=3)
    return split_ratings(deal_users(ratings, 12, seed=3), seed=3, rounds=6)


class Run(NamedTuple):
    """A run of six rounds and all that could be seen of it on the way."""

    records: list[RoundResult]
    arrays: list[dict[str, NDArray[Any]]]  # before the first round and after every one
    copies: list[dict[str, NDArray[Any]]]  # the same, copied at once


@pytest.fixture(scope="module", params=[FEDGNN, FACTORIZATION], ids=["fedgnn", "factors"])
def federation(request: pytest.FixtureRequest) -> Federation:
    result: Federation = request.param
    return result


@pytest.fixture(scope="module")
def whole(federation: Federation, split: Split) -> Run:
    simulation = Simulation(federation, split, seed=5)
    result = Run([], [], [])
    for index in range(7):
        result.arrays.append(simulation.arrays())
        result.copies.append({name: a.copy() for name, a in result.arrays[-1].items()})
        if index < 6:
            result.records.append(simulation.step())
    return result


@pytest.fixture(scope="module")
def second(federation: Federation, split: Split, whole: Run) -> Simulation:
    """Another simulation of the same run. It compiles once; tests set it to where they want."""
    simulation = Simulation(federation, split, seed=5)
    assert same(simulation.arrays(), whole.arrays[0])
    return simulation


def same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(array, other[name]) and array.dtype == other[name].dtype
        for name, array in one.items()
    )


class TestResuming:
    @pytest.mark.parametrize("start", [3, 0])
    def test_goes_on_bit_for_bit(self, whole: Run, second: Simulation, start: int) -> None:
        second.restore(whole.arrays[start])
        assert second.next_round == start
        for index in range(start, 6):
            assert second.step() == whole.records[index]
        assert same(second.arrays(), whole.arrays[6])

    def test_arrays_are_not_touched_by_later_rounds(self, whole: Run, second: Simulation) -> None:
        """The state's memory is reused from round to round; what was handed out is not."""
        second.restore(whole.arrays[2])
        second.step()
        second.restore(whole.arrays[2])
        second.step()
        for taken, copied in zip(whole.arrays, whole.copies, strict=True):
            assert same(taken, copied)
        assert not same(whole.arrays[2], whole.arrays[3])

    @pytest.mark.parametrize("trouble", ["missing", "shape", "type", "round"])
    def test_what_does_not_fit_is_refused(self, split: Split, trouble: str) -> None:
        arrays = Simulation(FACTORIZATION, split, seed=5).arrays()
        name = "next_round" if trouble == "round" else "shared/items"
        if trouble in ("missing", "round"):
            del arrays[name]
        elif trouble == "shape":
            arrays[name] = arrays[name][:-1]
        else:
            arrays[name] = arrays[name].astype(np.float64)
        untouched = Simulation(FACTORIZATION, split, seed=6)
        before = untouched.arrays()
        with pytest.raises(RunFolderError, match=f"'{name}'"):
            untouched.restore(arrays)
        assert same(untouched.arrays(), before)  # nothing half done


def test_whether_anything_was_learned(split: Split) -> None:
    simulation = Simulation(FACTORIZATION, split, seed=5)
    assert not simulation.learned, "though a model starts with numbers drawn at random"
    for _ in range(2):
        simulation.step()
    assert simulation.learned


@pytest.fixture(scope="module")
def in_order() -> Split:
    ratings = synthetic_ratings(clients=24, items=15, ratings_per_client=8, seed=3)
    time = np.random.default_rng(0).integers(0, 50, len(ratings)).astype(np.float64)
    timed = deal_users(replace(ratings, time=time), 12, seed=3)
    return split_ratings(timed, seed=3, rounds=6, initial_share=0.3, arrival="time")


class TestArriving:
    """What arrives in the order of its times is predicted before it is learned."""

    def test_by_the_state_before(self, federation: Federation, in_order: Split) -> None:
        """The oracle: ask for predictions before the round, and compare with what comes."""
        simulation, train = Simulation(federation, in_order, seed=5), in_order.train
        for index in range(8):
            new = in_order.arrival == index
            predicted = simulation.predict(train.user[new], train.item[new])
            played = simulation.step() if index != 3 else simulation.rest()
            if index in (0, 6, 7):  # history; and nothing comes after the last round planned
                assert played.rmse_arriving is None
                assert "rmse_arriving" not in played.as_json()
            else:
                expected = metrics(predicted, train.value[new]).rmse
                assert played.rmse_arriving == pytest.approx(expected, rel=1e-5)
                assert played.as_json()["rmse_arriving"] == played.rmse_arriving
