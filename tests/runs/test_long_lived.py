"""A process that plays run after run does not grow without end.

Every compiled program keeps memory maps, and the compiler dies of a segmentation fault when the
kernel has no more of them.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.federation import compilation
from bgtplanner.federation.compilation import clear_programs, memory_maps
from bgtplanner.runs.compare import run_study
from bgtplanner.runs.result import Result
from bgtplanner.runs.study import Study

pytestmark = pytest.mark.usefixtures("quick_compilation")

TINY = {
    "synthetic.items": 6,
    "synthetic.ratings_per_client": 4,
    "model.name": "factorization",
    "run.device": "cpu",
}


@pytest.fixture
def cleared() -> int:
    """No program of other tests is kept; returns how many maps there are then."""
    if not memory_maps():
        pytest.skip("nobody counts memory maps here: no /proc/self/maps")
    clear_programs(0)
    return memory_maps()


def train(clients: int) -> Result:
    settings = TINY | {"synthetic.clients": clients}
    return simulate("synthetic", mechanism="none", rounds=1, settings=settings)


@pytest.mark.usefixtures("cleared")
def test_programs_are_let_go() -> None:
    """Programs of sixty shapes, with room for those of ten."""
    double = jax.jit(lambda value: value * 2)
    double(np.zeros(1))  # and whatever else is mapped once
    floor = memory_maps()
    for shape in range(2, 12):
        double(np.zeros(shape))
    ten = memory_maps() - floor
    assert ten > 0, "programs without maps: this test shows nothing"
    most = gone = 0
    for shape in range(12, 62):
        double(np.zeros(shape))
        most = max(most, memory_maps())
        gone += clear_programs(floor + ten)
    assert gone >= 2
    assert most < floor + 2 * ten


def test_nothing_is_let_go_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "map_limit", lambda: 4 * memory_maps() + 4000)
    monkeypatch.setattr(jax, "clear_caches", lambda: pytest.fail("there is room for a thousand"))
    assert not clear_programs()


@pytest.fixture
def room(cleared: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """A kernel that allows so little that the second run is too many; how much a run takes."""
    train(5)
    each = memory_maps() - cleared
    assert each > 30, "a run without maps: these tests show nothing"
    monkeypatch.setattr(compilation, "map_limit", lambda: 4 * (cleared + each // 2))
    return cleared + 2 * each


def test_runs_of_different_shapes(room: int) -> None:
    for clients in range(6, 9):
        train(clients)
        assert memory_maps() < room


def test_cells_of_a_grid(room: int, tmp_path: Path) -> None:
    """As `compare` and `sweep` run them; in a pool every process does the same."""

    class Watch:
        def study_started(self, *_: object) -> None: ...

        def cell_round(self, *_: object) -> None: ...

        def cell_finished(self, *_: object) -> None:
            assert memory_maps() < room

    for clients in range(6, 9):
        settings = TINY | {"synthetic.clients": clients, "federation.rounds": 1}
        request = Study(
            datasets=("synthetic",),
            mechanisms=("none",),
            policies=("unlimited",),
            seeds=(0,),
            settings=settings,
        )
        run_study(request, tmp_path / str(clients), observer=Watch())


@pytest.mark.usefixtures("cleared")
def test_a_service_that_recommends_to_everybody() -> None:
    """Whatever number of items is asked about, there are few programs."""
    simulation = train(5).simulation
    simulation.predict([0], [0])
    before = memory_maps()
    for number in range(1, 40):
        simulation.predict([0] * number, [1] * number)
    assert memory_maps() < before + 50  # thirty-nine programs have hundreds
