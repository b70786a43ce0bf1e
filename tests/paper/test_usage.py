"""The paper's context: singular values against NumPy's own, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.paper.usage import UsageContext

Floats = NDArray[np.float64]


def usage(clients: int, items: int, share: float, seed: int = 0) -> Floats:
    """A matrix of zeros and ones with busy and quiet clients and items."""
    generator = np.random.default_rng(seed)
    busy = np.outer(generator.pareto(2.0, clients) + 0.2, generator.pareto(1.5, items) + 0.1)
    chance = np.minimum(busy * (share / busy.mean()), 0.9)
    return (generator.random((clients, items)) < chance).astype(np.float64)


def oracle(dense: Floats, values: int = 5) -> Floats:
    found = np.linalg.svd(dense, compute_uv=False)[:values] if dense.size else np.zeros(0)
    padded: Floats = np.pad(found, (0, values - len(found)))
    return padded


def agree(found: Floats, dense: Floats, tolerance: float = 1e-6) -> None:
    expected = oracle(dense, len(found))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-6 * expected[0])


def of_dense(context: UsageContext, dense: Floats) -> Floats:
    """Its values for a matrix, whose pairs come repeated and in any order."""
    client, item = np.nonzero(dense)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(client)), 2))
    client, item = client[order].astype(np.int16), item[order].astype(np.uint64)
    return context.of_pairs(client, item, clients=dense.shape[0], items=dense.shape[1])


@pytest.mark.parametrize("shape", [(150, 400), (400, 150), (200, 200)])
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_values_are_those_of_numpy(shape: tuple[int, int], share: float) -> None:
    dense = usage(*shape, share)
    found = of_dense(UsageContext(), dense)
    agree(found, dense)
    assert np.all(np.diff(found) <= 0)
    assert found.shape == (5,)
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    ("clients", "items"), [(0, 0), (0, 7), (7, 0), (1, 900), (900, 1), (200, 300)]
)
def test_without_pairs_there_are_zeros(clients: int, items: int) -> None:
    context = UsageContext(4)
    assert context.of_pairs([], [], clients=clients, items=items).tolist() == [0.0] * 4


@pytest.mark.parametrize("values", [0, 101, 2.0])
def test_a_number_of_values_that_cannot_be(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"^values = .*expected 1 to 100, whole$"):
        UsageContext(values)
