"""Graph expansion: what the third party gets, what it gives back, and that it is paid for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, deal_users, split_ratings
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection, Released
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, Upload
from bgtplanner.models.optimizers import Server
from bgtplanner.paper import expansion, extras
from bgtplanner.paper.expansion import Expansion, believed, item_tokens, match, matching_key
from bgtplanner.paper.extras import PaperExtras
from bgtplanner.paper.rows import noise_users
from bgtplanner.planning.policy import Choice, LedgerPolicy
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.ledger import Ledger

Float = NDArray[np.float64]
USERS, ITEMS, ROUNDS, DIM = 12, 30, 6, 4
MODEL = FedGNN(dim=DIM, init_scale=1.0)
SERVER = Server(optimizer="sgd", aggregation="clients", item_prior=0.0, learning_rate=0.1)
QUICK = {"xla_backend_optimization_level": 0}
TWICE = Expansion(times=2, rounds=ROUNDS, max_neighbours=3)  # in rounds 2 and 4


def some_ratings(users: int = USERS) -> Ratings:
    generator = np.random.default_rng(3)
    return Ratings.from_arrays(
        np.repeat(np.arange(users), 6),
        np.concatenate([generator.permutation(ITEMS)[:6] for _ in range(users)]),
        generator.integers(1, 6, 6 * users),
        users=range(users),
        items=range(ITEMS),
        scale=(0, 5),
    )


@pytest.fixture(scope="module")
def split() -> Split:
    return split_ratings(some_ratings(), seed=3, rounds=ROUNDS)


class TestWhen:
    def test_evenly_and_not_at_first(self) -> None:
        for times, rounds in ((1, 2), (3, 100), (7, 8), (5, 23)):
            chosen = Expansion(times=times, rounds=rounds)
            due = [index for index in range(rounds) if chosen.due(index)]
            assert len(due) == times
            assert due[0] >= 1
            assert np.ptp(np.diff([0, *due, rounds])) <= 1


def by_hand(rated: list[set[int]], most: int) -> list[list[int]]:
    """Who has most in common with each; of equals, the first."""
    found = []
    for user, mine in enumerate(rated):
        common = {
            other: len(mine & theirs)
            for other, theirs in enumerate(rated)
            if other != user and mine & theirs
        }
        found.append(sorted(common, key=lambda other: (-common[other], other))[:most])
    return found


class TestMatch:
    @given(
        st.lists(st.sets(st.integers(0, 9), max_size=6), min_size=1, max_size=12),
        st.integers(1, 14),
        st.integers(1, 40),
        st.randoms(use_true_random=False),
    )
    def test_those_who_rated_the_same(
        self, rated: list[set[int]], most: int, cells: int, random: Any
    ) -> None:
        pairs = [(user, item) for user, items in enumerate(rated) for item in items]
        pairs += pairs[:2]  # sent twice
        random.shuffle(pairs)
        sender = np.array([user for user, _ in pairs], dtype=np.int64)
        embeddings = np.arange(1.0, 1 + len(rated), dtype=np.float32)[:, None] * [1, -2]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(expansion, "_CELLS_AT_ONCE", cells)  # a few users at a time
            tokens = item_tokens(b"key", [item for _, item in pairs])
            found, present = match(tokens, sender, embeddings.astype(np.float32), most=most)
        assert found.shape == (len(rated), most, 2)
        for user, expected in enumerate(by_hand(rated, most)):
            assert present[user].tolist() == [1] * len(expected) + [0] * (most - len(expected))
            assert found[user, : len(expected)].tolist() == embeddings[expected].tolist()
            assert not found[user, len(expected) :].any()


def test_believed() -> None:
    given = np.array([[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [0.0, -2.0]]], np.float32)
    np.testing.assert_allclose(
        believed(given, 1.0), [[[0.6, 0.8], [0.3, 0.4]], [[0, 0], [0, -1]]], rtol=1e-5
    )


def some_terms(
    interactions: Interactions, clip: float, scale: Any, granted: Any = 1.0
) -> RoundParameters:
    """Half the clients in each of two classes."""
    scales = np.broadcast_to(np.asarray(scale, np.float32), 2)
    return RoundParameters(
        granted=jnp.broadcast_to(jnp.asarray(granted, jnp.float32), interactions.n_clients),
        clip=jnp.full(2, clip),
        scale=jnp.asarray(scales),
        class_of_client=jnp.arange(interactions.n_clients, dtype=jnp.int32) % 2,
    )


def some_upload(interactions: Interactions, size: float = 1.0) -> tuple[Upload, jax.Array]:
    generator = np.random.default_rng(1)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(generator.normal(0, size, shape), jnp.float32)

    return Upload(drawn(len(interactions.pair_item), 2), drawn(interactions.n_clients, 3)), drawn(
        interactions.n_users, DIM
    )


def several_users_each() -> Interactions:
    return Interactions.of(deal_users(some_ratings(), 5, seed=2))


def release(protection: Protection, seed: int, *given: Any) -> Released:
    compiled = jax.jit(protection.release, compiler_options=QUICK)
    released: Released = compiled(jax.random.key(seed), *given)
    return released


def norms(rows: Any, mechanism: str) -> Float:
    values = np.asarray(rows, float)
    return np.abs(values).sum(1) if mechanism == "laplace" else np.sqrt((values**2).sum(1))


class TestDoor:
    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    @pytest.mark.parametrize("clip", [0.5, 1e6])
    def test_one_clip_over_gradient_and_embeddings(self, mechanism: Any, clip: float) -> None:
        interactions = several_users_each()
        upload, own = some_upload(interactions)
        granted = np.array([1, 1, 0, 1, 1.0])
        terms = some_terms(interactions, clip, 0.0, granted)
        released = release(Protection(mechanism=mechanism), 0, upload, interactions, terms, own)
        total_rows, total_dense = np.zeros((ITEMS, 2)), np.zeros(3)
        for client in range(5):
            pairs = np.asarray(interactions.pair_client) == client
            users = np.asarray(interactions.client_of_user) == client
            rows, dense, mine = upload.rows[pairs], upload.dense[client], own[users]
            whole = np.concatenate([np.ravel(rows), dense, np.ravel(mine)])[None]
            factor = granted[client] * min(1.0, clip / norms(whole, mechanism)[0])
            np.testing.assert_allclose(released.own[users], factor * mine, rtol=1e-5)
            np.add.at(total_rows, np.asarray(interactions.pair_item)[pairs], factor * rows)
            total_dense += factor * dense
        gradient = released.aggregate.gradient
        np.testing.assert_allclose(gradient.items, total_rows / 4, atol=1e-5)
        np.testing.assert_allclose(gradient.dense, total_dense / 4, atol=1e-5)

    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    @pytest.mark.parametrize("unit", ["client", "row"])
    def test_noise_of_each_users_class(self, mechanism: Any, unit: Any) -> None:
        interactions = Interactions.of(deal_users(some_ratings(4000), 800, seed=2))
        upload, own = some_upload(interactions, size=0.0)
        terms = some_terms(interactions, 1.0, [3.0, 0.5])
        protection = Protection(mechanism=mechanism, unit=unit)
        if unit == "row":
            noised = noise_users(protection, jax.random.key(4), own, interactions, terms)
        else:
            noised = release(protection, 4, upload, interactions, terms, own).own
        per_unit = 2**0.5 if mechanism == "laplace" else 1.0
        odd = np.asarray(interactions.client_of_user) % 2 == 1
        for scale, users in ((3.0, ~odd), (0.5, odd)):
            assert np.std(noised[users]) == pytest.approx(per_unit * scale, rel=0.05)
        assert abs(np.corrcoef(noised[1:].ravel(), noised[:-1].ravel())[0, 1]) < 0.05

    def test_the_same_noise_is_in_nothing_else(self) -> None:
        """Or the server could take it off."""
        interactions = Interactions.of(some_ratings(1))
        upload, own = some_upload(interactions, size=0.0)
        terms = some_terms(interactions, 1.0, 1.0)
        released = release(Protection(mechanism="gaussian"), 0, upload, interactions, terms, own)
        sums = np.concatenate([np.ravel(part) for part in released.aggregate.gradient])
        assert released.own is not None
        assert not np.isin(np.abs(sums), np.abs(np.ravel(released.own))).any()


class Sent:
    """A third party that writes down what it gets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        patch.setattr(extras, "match", self)

    def __call__(self, tokens: Any, sender: Any, embeddings: Any, *, most: int) -> Any:
        self.calls.append((tokens, sender, embeddings))
        return match(tokens, sender, embeddings, most=most)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def federation(**options: Any) -> Federation:
    """Half of the clients take part in a round, unless something else says who does."""
    usual = {"model": MODEL, "server": SERVER, "participation": 0.5}
    paper = PaperExtras(expansion=options.pop("expansion", TWICE), seed=5)
    return Federation(**(usual | {"extras": paper} | options))


def neighbours(of: Simulation) -> NDArray[np.float32]:
    found = of.arrays()["local/neighbours/present"]
    assert isinstance(found, np.ndarray)
    return found


class TestSimulation:
    def test_tokens_of_what_is_known_and_embeddings(self, split: Split, sent: Sent) -> None:
        trained = Simulation(federation(), split, seed=5, device="cpu")
        before: list[Any] = []
        for index in range(ROUNDS):
            own = trained.arrays()["local/embedding"]
            trained.step()
            if TWICE.due(index):
                before.append((index, own))
        assert [index for index, _ in before] == [2, 4]
        assert len(sent.calls) == 2
        names = item_tokens(matching_key(5), range(ITEMS))
        for (index, own), (tokens, sender, embeddings) in zip(before, sent.calls, strict=True):
            known = (split.arrival <= index) & np.isin(split.train.user, sender)
            assert np.array_equal(tokens, names[split.train.item[known]])
            assert np.array_equal(sender, split.train.user[known])
            assert len(set(sender.tolist())) == USERS // 2
            assert np.array_equal(embeddings, own)  # nothing protects it here

    def test_who_sends_nothing_gets_nothing_new(self, split: Split, sent: Sent) -> None:
        trained = Simulation(federation(), split, seed=5, device="cpu")
        for _ in range(5):
            before = trained.arrays()
            trained.step()
        (_, first, _), (_, senders, _) = sent.calls
        silent = np.setdiff1d(np.arange(USERS), senders)
        assert len(silent) == USERS // 2
        after = trained.arrays()
        for name in ("local/neighbours/embedding", "local/neighbours/present"):
            assert np.array_equal(before[name][silent], after[name][silent])
        assert before["local/neighbours/present"][np.intersect1d(silent, first)].any()

    def test_goes_on_bit_for_bit(self, split: Split) -> None:
        cut = 3
        whole, first, second = (
            Simulation(federation(), split, seed=5, device="cpu") for _ in range(3)
        )
        for _ in range(cut):
            first.step()
        second.restore(first.arrays())
        for _ in range(ROUNDS):
            whole.step()
        for _ in range(ROUNDS - cut):
            second.step()
        for name, array in whole.arrays().items():
            assert np.array_equal(array, second.arrays()[name]), name


RULE = "laplace/basic"  # charges are epsilons


class Even(LedgerPolicy):
    """The same charge in every round."""

    def choose(self, context: Any, left: Any) -> Choice | None:
        return Choice(np.full(len(self.budgets.classes), 0.25))


def planned(split: Split, ledger: Ledger, **options: Any) -> Coordinator:
    protected = federation(protection=Protection(mechanism="laplace", **options))
    return Coordinator(
        Simulation(protected, split, seed=5, device="cpu"),
        Even(ledger=ledger, rounds=ROUNDS, clip=0.01),
        ledger,
        trust="local",
        run="run",
        mark=b"mark",
    )


class TestPaidFor:
    @pytest.mark.parametrize("unit", ["client", "row"])
    def test_the_round_that_expands_costs_its_charge(
        self, split: Split, sent: Sent, unit: str
    ) -> None:
        """And the embeddings carry the noise that the charge demands: 2 * clip / 0.25."""
        plenty = Budgets.per_client([8.0] * 3 + [9.0] * 9, 1e-5)
        ledger = Ledger.in_memory(plenty, RULE)
        rounds = planned(split, ledger, unit=unit)
        for number in range(1, ROUNDS + 1):
            rounds.step()
            np.testing.assert_allclose(ledger.epsilon_spent(), 0.25 * number)
        assert len(sent.calls) == 2
        arrived = np.concatenate([embeddings.ravel() for *_, embeddings in sent.calls])
        # Clipped to 0.01, embeddings of norm 2 are lost in it.
        assert arrived.std() == pytest.approx(2**0.5 * 0.08, rel=0.3)
        # Which the clients know, and do not believe it.
        kept = rounds.engine.arrays()["local/neighbours/embedding"].reshape(-1, DIM)
        assert norms(kept, "gaussian").max() == pytest.approx(0.01, rel=1e-3)

    def test_who_cannot_pay_sends_nothing(self, split: Split, sent: Sent) -> None:
        """Three have paid for all that they could."""
        poor = Budgets.per_client([0.5] * 3 + [9.0] * 9, 1e-5)
        ledger = Ledger.in_memory(poor, RULE)
        rounds = planned(split, ledger)
        for _ in range(3):
            rounds.step()
        ((_, senders, _),) = sent.calls
        assert set(senders.tolist()) == set(range(3, USERS))
        assert not neighbours(rounds.engine)[:3].any()
        np.testing.assert_allclose(ledger.epsilon_spent(), [0.5] * 3 + [0.75] * 9)
