"""The paper's context: singular values against NumPy's own, refusals, states that go on."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, csr_matrix

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
    client, item = np.nonzero(dense)
    return context.of_pairs(client, item, clients=dense.shape[0], items=dense.shape[1])


class Counted:
    """A matrix that counts the products it is asked for."""

    def __init__(self, dense: Floats) -> None:
        self.matrix, self.columns = csr_array(dense), 0

    def times(self, vectors: Floats) -> Floats:
        self.columns += vectors.shape[1]
        product: Floats = self.matrix @ vectors
        return product

    def transposed_times(self, vectors: Floats) -> Floats:
        product: Floats = self.matrix.T @ vectors
        return product

    def ask(self, context: UsageContext) -> Floats:
        return context.of_operator(self.times, self.transposed_times, *self.matrix.shape)


# --- the values ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(150, 400), (400, 150), (200, 200)])
@pytest.mark.parametrize("share", [0.02, 0.3], ids=["sparse", "multiplied out"])
def test_cold_values_are_those_of_numpy(shape: tuple[int, int], share: float) -> None:
    dense = usage(*shape, share)
    found = of_dense(UsageContext(), dense)
    agree(found, dense)
    assert np.all(np.diff(found) <= 0)
    assert found.shape == (5,)
    assert found.dtype == np.float64


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 14), st.integers(0, 14), st.integers(1, 8), st.floats(0, 1), st.integers(0, 99)
)
def test_small_matrices_of_any_shape(
    clients: int, items: int, values: int, share: float, seed: int
) -> None:
    dense = (np.random.default_rng(seed).random((clients, items)) < share).astype(np.float64)
    agree(of_dense(UsageContext(values), dense), dense)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(60, 110), st.integers(60, 110), st.integers(1, 12), st.floats(0, 0.6), st.data()
)
def test_matrices_of_many_sizes_round_after_round(
    clients: int, items: int, values: int, share: float, data: st.DataObject
) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 999)))
    context, dense = UsageContext(values), np.zeros((clients, items))
    for _ in range(3):
        dense = np.maximum(dense, generator.random((clients, items)) < share / 3)
        agree(of_dense(context, dense), dense)


@pytest.mark.parametrize("seed", range(3))
def test_warm_values_are_those_of_numpy_while_pairs_arrive(seed: int) -> None:
    whole = usage(200, 300, 0.05, seed)
    arrival = np.random.default_rng(seed).random(whole.shape)
    context = UsageContext(seed=seed)
    for time in np.linspace(0.2, 1, 12):
        now = whole * (arrival <= time)
        agree(of_dense(context, now), now)


def test_another_matrix_of_the_same_size_is_no_trouble() -> None:
    context = UsageContext()
    for seed in range(4):
        dense = usage(150, 220, 0.05, seed)
        agree(of_dense(context, dense), dense)


@pytest.mark.parametrize("factor", [1.02, 1.1, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_large_value_that_the_last_vectors_cannot_see_is_found(factor: float, seed: int) -> None:
    """New clients with new items, the old ones unchanged: the old vectors are still perfect."""
    before = usage(300, 500, 0.08)
    before[220:] = before[:, 400:] = 0
    fifth = oracle(before)[-1]
    context = UsageContext(seed=seed)
    of_dense(context, before)
    of_dense(context, before)
    after = before.copy()
    after[240 : 240 + 12, 410 : 410 + round((factor * fifth) ** 2 / 12)] = 1
    assert not np.allclose(oracle(before), oracle(after), rtol=1e-3)
    agree(of_dense(context, after), after)


def test_sizes_may_change_from_round_to_round() -> None:
    context = UsageContext()
    for shape in [(100, 150), (120, 150), (150, 100), (3, 4), (120, 150)]:
        dense = usage(*shape, 0.1)
        agree(of_dense(context, dense), dense)


def test_many_equal_values() -> None:
    agree(of_dense(UsageContext(), np.eye(200)), np.eye(200))
    twins = np.kron(np.eye(8), np.ones((15, 20)))
    agree(of_dense(UsageContext(), twins), twins)


@pytest.mark.parametrize("rank", [1, 3])
def test_beyond_the_rank_there_are_zeros(rank: int) -> None:
    dense = np.kron(np.eye(rank), np.ones((100, 90)))
    for found in (of_dense(UsageContext(), dense), Counted(dense).ask(UsageContext())):
        agree(found, dense)
        assert found[rank:].tolist() == [0.0] * (5 - rank)
    assert UsageContext(3).of_pairs([0], [0], clients=1, items=1).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("clients", "items"), [(0, 0), (0, 7), (7, 0), (1, 900), (900, 1), (200, 300)]
)
def test_without_pairs_there_are_zeros(clients: int, items: int) -> None:
    context = UsageContext(4)
    assert context.of_pairs([], [], clients=clients, items=items).tolist() == [0.0] * 4
    assert context.of_matrix(csr_array((clients, items))).tolist() == [0.0] * 4


def test_one_client_or_one_item() -> None:
    ones = np.arange(36)
    one_client = UsageContext(2).of_pairs(0 * ones, ones, clients=1, items=50_000)
    one_item = UsageContext(2).of_pairs(ones, 0 * ones, clients=50_000, items=1)
    np.testing.assert_allclose(one_client, [6.0, 0.0])
    np.testing.assert_allclose(one_item, [6.0, 0.0])


def test_after_an_empty_round_the_next_is_right() -> None:
    context, dense = UsageContext(), usage(120, 130, 0.05)
    context.of_pairs([], [], clients=120, items=130)
    agree(of_dense(context, dense), dense)


@pytest.mark.parametrize("cells", [2**24, 0], ids=["by table", "by sorting"])
def test_repeated_pairs_count_once_in_any_order(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bgtplanner.paper.usage.DIRECTORY_CELLS", cells)
    dense = usage(120, 150, 0.05)
    client, item = np.nonzero(dense)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(client)), 3))
    found = UsageContext().of_pairs(
        client[order].astype(np.int16), item[order].astype(np.uint64), clients=120, items=150
    )
    agree(found, dense)


def test_a_matrix_of_all_pairs_whose_data_say_which_are_in_use() -> None:
    dense = usage(150, 200, 0.05)
    matrix, context = csr_array(dense), UsageContext()
    for share in (0.1, 0.5, 0.9, 1.0):
        matrix.data[:] = np.random.default_rng(1).random(matrix.nnz) < share
        data = matrix.data.copy()
        agree(context.of_matrix(matrix), matrix.toarray())
        assert np.array_equal(matrix.data, data)  # the caller's matrix stays as it was
        assert len(matrix.data) == len(data)


def test_other_sparse_matrices() -> None:
    dense = usage(120, 100, 0.05)
    client, item = np.nonzero(dense)
    twice = (np.tile(client, 2), np.tile(item, 2))
    repeated = coo_array((np.full(2 * len(client), 3), twice), shape=dense.shape)
    indptr = csr_array(dense).indptr * 2
    rows = [np.repeat(np.flatnonzero(row), 2) for row in dense]
    unsorted = csr_array((np.ones(indptr[-1]), np.concatenate(rows), indptr), shape=dense.shape)
    for matrix in (csr_matrix(dense * 7), csr_array(dense != 0), repeated, unsorted):
        agree(UsageContext().of_matrix(matrix), dense)


def test_the_operator_gives_the_same_without_the_matrix() -> None:
    for shape in [(150, 260), (260, 150), (20, 30)]:
        dense = usage(*shape, 0.05)
        agree(Counted(dense).ask(UsageContext()), dense)


def test_a_huge_operator_needs_no_matrix() -> None:
    """Everybody uses everything: 5 thousand million pairs, and one singular value."""
    found = UsageContext(3).of_operator(
        lambda vectors: np.broadcast_to(vectors.sum(0), (100_000, vectors.shape[1])),
        lambda vectors: np.broadcast_to(vectors.sum(0), (50_000, vectors.shape[1])),
        100_000,
        50_000,
    )
    np.testing.assert_allclose(found, [math.sqrt(5e9), 0, 0], rtol=1e-6)


def test_a_warm_start_and_a_looser_tolerance_save_products() -> None:
    dense = usage(300, 400, 0.05)
    after = np.maximum(dense, usage(300, 400, 0.0005, seed=1))
    asked = {}
    for tolerance in (1e-6, 1e-2):
        context = UsageContext(tolerance=tolerance)
        cold, warm = Counted(dense), Counted(after)
        agree(cold.ask(context), dense, tolerance)
        agree(warm.ask(context), after, tolerance)
        assert warm.columns < cold.columns
        asked[tolerance] = cold.columns
    assert asked[1e-2] < asked[1e-6]


# --- seeds and states ---------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    dense = usage(150, 200, 0.05)

    def twice(seed: int) -> list[float]:
        context = UsageContext(seed=seed)
        return [*of_dense(context, dense), *of_dense(context, dense)]

    assert twice(0) == twice(0)
    assert twice(0) != twice(1)


def test_a_restored_context_goes_on_exactly() -> None:
    context = UsageContext(seed=3)
    of_dense(context, usage(150, 200, 0.05))
    state = json.loads(json.dumps(context.state_dict()))
    restored = UsageContext(seed=3)
    restored.load_state_dict(state)
    later = usage(150, 200, 0.06, seed=1)
    expected = of_dense(context, later)
    assert of_dense(restored, later).tolist() == expected.tolist()
    assert of_dense(UsageContext(seed=3), later).tolist() != expected.tolist()
    assert restored.state_dict() == context.state_dict()
    new = UsageContext()
    new.load_state_dict(UsageContext().state_dict())
    assert new.state_dict() == {"calls": 0, "vectors": None}


@pytest.mark.parametrize("filling", [0.0, 1.0, 1e100])
def test_useless_vectors_in_a_state_do_no_harm(filling: float) -> None:
    context, dense = UsageContext(), usage(150, 200, 0.05)
    context.load_state_dict({"calls": 1, "vectors": [[filling] * 6] * 150})
    agree(of_dense(context, dense), dense)


@pytest.mark.parametrize("vectors", [[1.0], [[math.nan] * 6], [["a"] * 6], [[1.0] * 5]])
def test_a_broken_state_is_refused_and_changes_nothing(vectors: Any) -> None:
    context = UsageContext()
    with pytest.raises(ConfigError, match=r"^vectors = "):
        context.load_state_dict({"calls": 1, "vectors": vectors})
    with pytest.raises(ConfigError, match=r"^calls = -1"):
        context.load_state_dict({"calls": -1, "vectors": None})
    assert context.state_dict() == {"calls": 0, "vectors": None}


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize("values", [0, -1, 101, 2.0, True, None, "5"])
def test_a_number_of_values_that_cannot_be(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"^values = .*expected 1 to 100, whole$"):
        UsageContext(values)


@pytest.mark.parametrize("settings", [{"seed": -1}, {"seed": 0.5}, {"tolerance": math.nan}])
def test_other_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))} = "):
        UsageContext(**settings)


@pytest.mark.parametrize("size", [-1, 2.0, None, True])
@pytest.mark.parametrize("name", ["clients", "items"])
def test_sizes_that_cannot_be(name: str, size: Any) -> None:
    sizes = {"clients": 3, "items": 3, name: size}
    with pytest.raises(ConfigError, match=f"^{name} = .*expected a whole number, 0 or more$"):
        UsageContext().of_pairs([0], [0], **sizes)
    with pytest.raises(ConfigError, match=f"^{name} = "):
        UsageContext().of_operator(lambda v: v, lambda v: v, **sizes)


@pytest.mark.parametrize(
    "wrong", [[0, 777], [0, -777], [0.0, 2.0], [[0, 1]], 0, ["a", "b"], [True, False], [0, None]]
)
@pytest.mark.parametrize("name", ["client", "item"])
def test_indices_that_cannot_be_are_refused_and_not_shown(name: str, wrong: Any) -> None:
    pairs = {"client": [0, 1], "item": [0, 1], name: wrong}
    with pytest.raises(ConfigError, match=f"^{name} = .*whole numbers from 0 to below 3$") as info:
        UsageContext().of_pairs(**pairs, clients=3, items=3)
    assert "777" not in str(info.value)


def test_as_many_items_as_clients() -> None:
    with pytest.raises(ConfigError, match=r"^item = '1 of them': expected 2, as clients$"):
        UsageContext().of_pairs([0, 1], [0], clients=3, items=3)


@pytest.mark.parametrize("matrix", [np.eye(3), [[1]], None])
def test_what_is_no_sparse_matrix(matrix: Any) -> None:
    with pytest.raises(ConfigError, match=r"^matrix = .*expected a SciPy sparse matrix$"):
        UsageContext().of_matrix(matrix)


@pytest.mark.parametrize("clients", [4, 100])
def test_operators_that_break_their_word(clients: int) -> None:
    def good(vectors: Floats) -> Floats:
        return np.ones((clients, vectors.shape[1]))

    def short(vectors: Floats) -> Floats:
        return np.ones((clients - 1, vectors.shape[1]))

    def lost(vectors: Floats) -> Floats:
        return np.full((clients, vectors.shape[1]), np.nan)

    context = UsageContext()
    with pytest.raises(ConfigError, match=r"^times = .*expected products of shape"):
        context.of_operator(short, good, clients, clients)
    with pytest.raises(ConfigError, match=r"^transposed_times = .*expected finite products$"):
        context.of_operator(good, lost, clients, clients)
