"""Rounds that are planned and paid for: the ledger before the upload, and never twice."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, split_ratings
from bgtplanner.errors import ConfigError, SchemaError
from bgtplanner.federation.coordinator import Coordinator, _Forecast
from bgtplanner.federation.parameters import RoundParameters, noise_of_mean
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.server import Server
from bgtplanner.federation.simulation import Simulation
from bgtplanner.federation.validation import rmse_of
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.posterior import Posterior
from bgtplanner.paper import rows
from bgtplanner.paper.extras import PaperExtras
from bgtplanner.planning.adaptive import Adap
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.context import ReleasedContext
from bgtplanner.planning.policy import Choice, LedgerPolicy, Plan
from bgtplanner.planning.schedules import Uniform, Unlimited
from bgtplanner.privacy.accountants import TICK, accountant_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

CLIENTS, ITEMS, ROUNDS = 12, 8, 6
RULE = "laplace/basic"  # charges are epsilons: what is spent can be told at a glance
SERVER = Server(optimizer="sgd", aggregation="clients", item_prior=0.0)
FEDERATION = Federation(
    model=Factorization(dim=0), server=SERVER, protection=Protection(mechanism="laplace")
)
SAME = Budgets.same(Budget(1.0, 1e-5), CLIENTS)
TWO = Budgets.per_client([1.0] * 4 + [4.0] * 8, 1e-5)


pytestmark = pytest.mark.usefixtures("quick_compilation")


def made_ratings(generator: np.random.Generator) -> Ratings:
    """Six ratings of each client."""
    return Ratings.from_arrays(
        np.repeat(np.arange(CLIENTS), 6),
        np.concatenate([generator.permutation(ITEMS)[:6] for _ in range(CLIENTS)]),
        generator.integers(1, 6, 6 * CLIENTS),
        users=range(CLIENTS),
        items=range(ITEMS),
        scale=(0, 5),
    )


@pytest.fixture(scope="module")
def split() -> Split:
    """Everybody has a rating from the start, so that who takes part can be counted."""
    return split_ratings(made_ratings(np.random.default_rng(3)), seed=3, rounds=ROUNDS)


@dataclass(kw_only=True, eq=False)
class Scripted(LedgerPolicy):
    """Charges as they are written down; remembers what it was shown and told."""

    script: list[Any]
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contexts: list[NDArray[np.float64]] = []
        self.rewards: list[float | None] = []

    def choose(self, context: NDArray[np.float64], left: NDArray[np.float64]) -> Choice | None:
        del left
        self.contexts.append(context.copy())
        charges = np.broadcast_to(
            np.asarray(self.script[self.round], dtype=np.float64), len(self.budgets.classes)
        )
        return Choice(charges)

    def learn(self, plan: Plan, reward: float | None) -> None:
        del plan
        self.rewards.append(reward)


def planned(
    split: Split,
    script: list[Any],
    *,
    budgets: Budgets = SAME,
    federation: Federation = FEDERATION,
    ledger: Ledger | None = None,
    mark: bytes = b"mark",
    **options: Any,
) -> Coordinator:
    simulation = Simulation(federation, split, seed=5, device="cpu")
    ledger = Ledger.in_memory(budgets, RULE) if ledger is None else ledger
    policy = Scripted(script=script, ledger=ledger)
    options.setdefault("trust", "local")
    return Coordinator(simulation, policy, ledger, run="run", mark=mark, **options)


def played(rounds: Coordinator, number: int) -> list[RoundResult]:
    found = [rounds.step() for _ in range(number)]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


def shared(rounds: Coordinator) -> NDArray[np.float32]:
    return rounds.engine.arrays()["shared/items"]


def local(rounds: Coordinator) -> NDArray[np.float32]:
    return rounds.engine.arrays()["local"]


def spent(rounds: Coordinator) -> NDArray[np.float64]:
    return np.asarray(rounds.ledger.epsilon_spent())


class TestPaying:
    def test_reserved_before_and_settled_after(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds = planned(split, [0.25] * ROUNDS)
        seen: list[tuple[int, float]] = []
        before = rounds.engine.step

        def watched(terms: RoundParameters, plan: Plan) -> Any:
            seen.append((rounds.ledger.unsettled, float(spent(rounds).min())))
            return before(terms, plan)

        monkeypatch.setattr(rounds.engine, "step", watched)
        played(rounds, 2)
        assert seen == [(1, 0.25), (1, 0.5)]
        assert rounds.ledger.unsettled == 0
        kinds = [entry["kind"] for entry in rounds.ledger.history()]
        assert kinds == ["open", "reserve", "settle", "reserve", "settle"]

    def test_a_round_that_fails_stays_spent(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds = planned(split, [0.25] * ROUNDS)

        def fails(terms: RoundParameters, plan: Plan) -> Any:
            raise OSError("no power")

        monkeypatch.setattr(rounds.engine, "step", fails)
        with pytest.raises(OSError, match="no power"):
            rounds.step()
        assert rounds.ledger.unsettled == 1
        assert spent(rounds).tolist() == [0.25] * CLIENTS

    def test_what_was_planned_is_what_is_done(self, split: Split) -> None:
        rounds = planned(split, [0.25, 0.5])
        for one, charge in zip(played(rounds, 2), (0.25, 0.5), strict=True):
            assert one.plan is not None
            assert (one.plan.charge, one.paid, one.clients) == (charge, CLIENTS, CLIENTS)
            # Laplace of scale 2 * clip / epsilon on each of the uploads, then the mean.
            std = 2**0.5 * 2 * one.plan.clip / charge / CLIENTS**0.5
            assert one.seen.noise_std == pytest.approx(std, rel=1e-5)
        assert spent(rounds).tolist() == [0.75] * CLIENTS

    def test_who_cannot_pay_stays_out_and_others_go_on(self, split: Split) -> None:
        """Three clients have spent most of it elsewhere."""
        ledger = Ledger.in_memory(SAME, RULE)
        ledger.reserve(0.875, run="elsewhere", round=0, clients=[0, 1, 2])
        rounds = planned(split, [0.25] * ROUNDS, ledger=ledger)
        (one,) = played(rounds, 1)
        assert (one.paid, one.clients) == (CLIENTS - 3, CLIENTS - 3)
        assert spent(rounds).tolist() == [0.875] * 3 + [0.25] * (CLIENTS - 3)

    def test_nobody_can_pay(self, split: Split) -> None:
        ledger = Ledger.in_memory(SAME, RULE)
        ledger.reserve(0.875, run="elsewhere", round=0)
        rounds = planned(split, [0.25] * ROUNDS, ledger=ledger)
        one, two = played(rounds, 2)
        assert one.plan is not None
        assert (one.plan.charge, one.paid) == (0.125, CLIENTS)  # what is left
        assert spent(rounds).tolist() == [1.0] * CLIENTS
        assert (two.plan, two.paid, two.clients) == (None, 0, 0)
        assert len(two.seen.aggregate) == 0

    @pytest.mark.parametrize("trust", ["local", "secagg"])
    def test_classes(self, split: Split, trust: Any) -> None:
        """The poor can pay for two rounds, the rich for more."""
        federation = Federation(
            model=FEDERATION.model,
            server=SERVER,
            protection=Protection(mechanism="laplace", trust=trust),
        )
        script = [[0.5, 1.0]] * ROUNDS
        rounds = planned(split, script, budgets=TWO, federation=federation, trust=trust)
        found = played(rounds, 5)
        assert [one.paid for one in found] == [12, 12, 8, 8, 0]
        assert [one.clients for one in found] == [12, 12, 8, 8, 0]
        assert spent(rounds).tolist() == [1.0] * 4 + [4.0] * 8
        first, third = found[0].seen.noise_std, found[2].seen.noise_std
        if trust == "local":  # precisions of 4 with scale 4 and 8 with scale 2
            assert first == pytest.approx((4 / (2 * 16) + 8 / (2 * 4)) ** -0.5, rel=1e-5)
            assert third == pytest.approx((2 * 8 * 4) ** 0.5 / 8, rel=1e-5)
        else:  # of scale 2, once; the poor clip to a half and count as much
            assert first == pytest.approx(2**0.5 * 2 / (4 / 2 + 8), rel=1e-5)
            assert third == pytest.approx(2**0.5 * 2 / 8, rel=1e-5)


class TestWithoutUploads:
    def test_a_skipped_round(self, split: Split) -> None:
        rounds = planned(split, [0.25, 0.0, 0.25])
        played(rounds, 1)
        before, own = shared(rounds), local(rounds)
        (one,) = played(rounds, 1)
        assert one.plan is not None
        assert (one.plan.skip, one.paid, one.clients) == (True, 0, 0)
        assert spent(rounds).tolist() == [0.25] * CLIENTS
        assert np.array_equal(shared(rounds), before)
        assert not np.array_equal(local(rounds), own)  # ratings have arrived meanwhile
        played(rounds, 1)
        assert not np.array_equal(shared(rounds), before)

    def test_after_the_budget(self, split: Split) -> None:
        rounds = planned(split, [0.5] * ROUNDS)
        played(rounds, 2)
        before = shared(rounds)
        head, memory = rounds.ledger.head, local(rounds)
        for index, one in enumerate(played(rounds, 3)):
            assert (one.plan, one.paid, one.reward) == (None, 0, None)
            assert (one.round, one.clients) == (2 + index, 0)
            assert np.array_equal(shared(rounds), before)
        assert rounds.over
        assert rounds.ledger.head == head
        assert not np.array_equal(local(rounds), memory)

    def test_or_the_run_ends(self, split: Split) -> None:
        rounds = planned(split, [0.5] * ROUNDS, stops=True)
        played(rounds, 2)
        before = rounds.engine.arrays()
        assert rounds.step() is None
        assert rounds.step() is None
        assert all(
            np.array_equal(before[name], now) for name, now in rounds.engine.arrays().items()
        )


class TestAgain:
    def test_the_same_rounds_are_not_charged_again(self, split: Split, tmp_path: Path) -> None:
        script = [0.125, 0.25, 0.0, 0.125]
        with Ledger.create(tmp_path / "ledger.sqlite", SAME, RULE) as ledger:
            first = planned(split, script, ledger=ledger, participation=0.5, dropout=0.3)
            once = played(first, 4)
            before, head = ledger.spent(), ledger.head
        with Ledger.open(tmp_path / "ledger.sqlite", budgets=SAME, accountant=RULE) as ledger:
            again = planned(split, script, ledger=ledger, participation=0.5, dropout=0.3)
            twice = played(again, 4)
            assert np.array_equal(ledger.spent(), before)
            assert ledger.head == head
            assert twice == once
            for mine, theirs in zip(twice, once, strict=True):
                assert np.array_equal(mine.seen.aggregate, theirs.seen.aggregate)
            assert np.array_equal(shared(again), shared(first))
            other = planned(
                split, script, ledger=ledger, participation=0.5, dropout=0.3, mark=b"other"
            )
            played(other, 4)
            assert np.array_equal(ledger.spent(), 2 * before)

    def test_after_a_crash_in_the_middle(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was reserved and not released is released now, and paid for once."""
        ledger = Ledger.in_memory(SAME, RULE)
        broken = planned(split, [0.25] * 3, ledger=ledger)
        played(broken, 1)
        monkeypatch.setattr(broken.engine, "step", lambda terms, plan: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken.step()
        again = planned(split, [0.25] * 3, ledger=ledger)
        assert [one.paid for one in played(again, 3)] == [CLIENTS] * 3
        assert spent(again).tolist() == [0.75] * CLIENTS
        assert ledger.unsettled == 0

    def test_going_on_from_a_state(self, split: Split) -> None:
        """Context, reward and policy go on where they were."""
        options: dict[str, Any] = {"context": "released", "reward": "released"}
        whole = planned(split, [0.125] * ROUNDS, **options)
        played(whole, 2)
        state, arrays = whole.state_dict(), whole.engine.arrays()
        rest = played(whole, 3)
        later = planned(split, [0.125] * ROUNDS, ledger=whole.ledger, **options)
        later.load_state_dict(state)
        later.engine.restore(arrays)
        found = played(later, 3)
        assert found == rest
        assert isinstance(whole.policy, Scripted)
        assert isinstance(later.policy, Scripted)
        np.testing.assert_array_equal(whole.policy.contexts[2:], later.policy.contexts)


class TestWhoTakesPart:
    def test_who_drops_out_has_paid(self, split: Split) -> None:
        rounds = planned(split, [0.125] * ROUNDS, dropout=0.5)
        found = played(rounds, 4)
        assert [one.paid for one in found] == [CLIENTS] * 4
        answering = [one.clients for one in found]
        assert all(0 < number < CLIENTS for number in answering)
        assert len(set(answering)) > 1
        assert spent(rounds).tolist() == [0.5] * CLIENTS
        for one in found:  # the mean is over who answered, and so is the noise
            std = 2**0.5 * 16 / one.clients**0.5
            assert one.seen.noise_std == pytest.approx(std, rel=1e-5)

    def test_who_is_late_has_paid_and_is_mostly_the_same(self, split: Split) -> None:
        rounds = planned(split, [0.125] * ROUNDS, stragglers=0.4)
        found = played(rounds, 4)
        assert [one.paid for one in found] == [CLIENTS] * 4
        assert all(one.clients == CLIENTS - one.late for one in found)
        assert sum(one.late for one in found) > 0
        assert spent(rounds).tolist() == [0.5] * CLIENTS
        many = Ledger.in_memory(Budgets.same(Budget(1.0, 1e-5), 4000), RULE)
        rounds.ledger = many
        once, twice = rounds._late(0), rounds._late(1)
        assert once.mean() == pytest.approx(0.4, abs=0.03)
        assert (once & twice).mean() > 0.4 * 0.4 + 0.05
        assert not np.array_equal(once, twice)

    def test_only_who_is_asked_pays(self, split: Split) -> None:
        rounds = planned(split, [0.125] * ROUNDS, participation=0.5)
        before, patterns = spent(rounds), set()
        for _ in range(4):
            (one,) = played(rounds, 1)
            now = spent(rounds)
            assert sorted(now - before) == [0.0] * 6 + [0.125] * 6
            assert (one.paid, one.clients) == (6, 6)
            patterns.add(tuple(now - before))
            before = now
        assert len(patterns) > 1  # not the same ones every time

    def test_a_budget_lasts_for_the_rounds_that_a_client_takes_part_in(self, split: Split) -> None:
        """Asked in half of six rounds: a third of the budget each time, and then no more."""
        ledger = Ledger.in_memory(SAME, RULE)
        policy = Uniform(ledger=ledger, rounds=ROUNDS, participation=0.5)
        simulation = Simulation(FEDERATION, split, seed=5, device="cpu")
        options: dict[str, Any] = {"participation": 0.5, "trust": "local"}
        rounds = Coordinator(simulation, policy, ledger, run="run", mark=b"", **options)
        times = np.zeros(CLIENTS)
        for index in range(ROUNDS):
            invited = rounds._invited(index)
            (one,) = played(rounds, 1)
            assert one.plan is not None
            assert one.plan.charge_by_class == pytest.approx([1 / 3], rel=1e-9)
            assert one.paid == (invited & (times < 3)).sum()
            assert not (one.plan.participants & ~invited).any()
            times += invited
            paid = np.minimum(times, 3) / 3
            assert spent(rounds) == pytest.approx(paid, rel=1e-9)
            # What is left is the mean client's, by the only ledger there is.
            assert policy.share_left() == pytest.approx([1 - paid.mean()], rel=1e-9)
        assert times.max() > 3  # somebody sat out
        assert times.min() < 3  # and somebody has something left


class Careless(Unlimited):
    """Plans a charge, and reserves nothing."""

    def plan(self, *arguments: Any) -> Plan | None:
        found = super().plan(*arguments)
        charges = np.full(1, 0.25)
        return found and replace(found, accountant=RULE, charge_by_class=charges, largest_clip=1.0)


def test_who_reserves_nothing_is_charged_all_the_same(split: Split) -> None:
    ledger = Ledger.in_memory(SAME, RULE)
    simulation = Simulation(FEDERATION, split, seed=5, device="cpu")
    policy = Careless(SAME, rounds=ROUNDS)
    rounds = Coordinator(simulation, policy, ledger, run="run", mark=b"", trust="local")
    found = played(rounds, 5)
    assert [one.paid for one in found] == [CLIENTS] * 4 + [0]
    assert [one.clients for one in found] == [CLIENTS] * 4 + [0]
    assert spent(rounds).tolist() == [1.0] * CLIENTS


def test_a_policy_with_a_ledger_of_its_own_is_refused(split: Split) -> None:
    simulation = Simulation(FEDERATION, split, seed=5, device="cpu")
    policy, ledger = Uniform(SAME, rounds=3, accounting=RULE), Ledger.in_memory(SAME, RULE)
    with pytest.raises(ConfigError, match="make the policy with ledger"):
        Coordinator(simulation, policy, ledger, run="run", mark=b"", trust="local")


def test_a_checkpoint_of_two_ledgers_is_refused_with_a_sentence(split: Split) -> None:
    rounds = planned(split, [0.25] * ROUNDS)
    state = rounds.state_dict()
    del state["version"]
    with pytest.raises(SchemaError, match=r"earlier release.*: finish the run with that release"):
        rounds.load_state_dict(state)


def in_use(split: Split, index: int) -> NDArray[np.float64]:
    matrix = np.zeros((CLIENTS, ITEMS))
    known = split.arrival <= index
    matrix[split.train.client[known], split.train.item[known]] = 1
    return matrix


class TestContext:
    def contexts(self, rounds: Coordinator, number: int) -> list[NDArray[np.float64]]:
        played(rounds, number)
        assert isinstance(rounds.policy, Scripted)
        return rounds.policy.contexts

    def test_usage(self, split: Split) -> None:
        rounds = planned(split, [0.0] * ROUNDS, context="usage", values=3)
        for index, found in enumerate(self.contexts(rounds, 3)):
            expected = np.linalg.svd(in_use(split, index), compute_uv=False)[:3]
            np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_usage_with_what_is_pretended(self, split: Split) -> None:
        federation = Federation(
            model=FEDERATION.model, server=SERVER, extras=PaperExtras(pseudo_items=2)
        )
        rounds = planned(split, [0.0] * ROUNDS, federation=federation, context="usage", values=4)
        client, item = rounds.engine.shown_pairs()
        shown = np.zeros((CLIENTS, ITEMS))
        np.add.at(shown, (client, item), 1)
        real = in_use(split, 0)
        assert shown.max() == 1  # nobody pretends what is so
        assert (shown >= real).all()
        assert (shown.sum(1) - real.sum(1)).tolist() == [2] * CLIENTS
        (found,) = self.contexts(rounds, 1)
        expected = np.linalg.svd(shown, compute_uv=False)[:4]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        without = np.linalg.svd(real, compute_uv=False)[:4]
        assert not np.allclose(found, without)

    def test_released(self, split: Split) -> None:
        rounds = planned(split, [0.25] * ROUNDS, context="released")
        one, two = played(rounds, 2)
        assert isinstance(rounds.policy, Scripted)
        first, second = rounds.policy.contexts
        assert first.tolist() == [0, 1, 0, 0, 0, 0]
        expected = ReleasedContext()
        expected.released(one.seen.aggregate, one.seen.noise_std)
        np.testing.assert_array_equal(second, expected.vector(progress=1 / ROUNDS, left=0.75))
        assert two.plan is not None

    def test_none(self, split: Split) -> None:
        rounds = planned(split, [0.25] * ROUNDS, context="none")
        assert [len(found) for found in self.contexts(rounds, 2)] == [0, 0]


class TestReward:
    def rewards(self, rounds: Coordinator) -> list[float | None]:
        assert isinstance(rounds.policy, Scripted)
        return rounds.policy.rewards

    def test_of_the_test_ratings(self, split: Split) -> None:
        rounds = planned(split, [0.25, 0.0, 0.25], reward="test")
        before = rounds.engine.evaluate().rmse
        found = played(rounds, 3)
        errors = [before, *(one.metrics.rmse for one in found)]
        assert self.rewards(rounds) == pytest.approx(-np.diff(errors))
        assert self.rewards(rounds) == [one.reward for one in found]

    def test_of_the_loss(self, split: Split) -> None:
        rounds = planned(split, [0.25, 0.0, 0.25], reward="loss")
        losses = [one.loss for one in played(rounds, 3)]
        first, *later = self.rewards(rounds)
        assert first is None  # there is nothing to compare it with
        assert later == pytest.approx(-np.diff(losses))

    def test_of_what_was_released(self, split: Split) -> None:
        rounds = planned(split, [0.25, 0.0, 0.5], reward="released")
        found = played(rounds, 3)
        signals = [
            float((one.seen.aggregate**2).sum()) - ITEMS * one.seen.noise_std**2 for one in found
        ]
        assert self.rewards(rounds) == [
            pytest.approx(np.sign(signals[0])),
            None,  # nothing was
            pytest.approx(signals[2] / abs(signals[0]), rel=1e-4),
        ]

    def test_of_what_was_set_aside(self, split: Split) -> None:
        federation = Federation(
            model=Factorization(dim=0),
            server=SERVER,
            protection=Protection(mechanism="laplace", validation=0.5),
        )
        simulation = Simulation(federation, split, seed=5, device="cpu", validation=0.5)
        ledger = Ledger.in_memory(SAME, RULE)
        policy = Scripted(script=[0.125] * ROUNDS, ledger=ledger)
        rounds = Coordinator(
            simulation, policy, ledger, run="run", mark=b"", trust="local", reward="validation"
        )
        found = played(rounds, 3)
        said = [one.seen.validation for one in found]
        assert all(pair is not None and pair[1] > 0 for pair in said)
        assert found[0].reward is None  # nothing to compare with
        assert found[0].validation_rmse is not None
        assert said[1] is not None
        expected = found[0].validation_rmse - rmse_of(said[1][0])
        assert found[1].reward == pytest.approx(expected)
        assert spent(rounds).tolist() == [0.375] * CLIENTS  # within the charge, not on top of it

    def test_of_rows_nothing_can_be_estimated(self, split: Split) -> None:
        federation = Federation(
            model=FEDERATION.model,
            server=SERVER,
            protection=Protection(mechanism="laplace", unit="row"),
        )
        rounds = planned(split, [0.25] * 2, federation=federation, reward="released")
        (one,) = played(rounds, 1)
        assert np.isnan(one.seen.noise_std)
        assert self.rewards(rounds) == [None]

    def test_none(self, split: Split) -> None:
        rounds = planned(split, [0.25, 0.25], reward="none")
        played(rounds, 2)
        assert self.rewards(rounds) == [None, None]


def of_adap(split: Split, unit: Any) -> tuple[RoundResult, RoundResult]:
    """Two rounds of ADAP with Laplace noise."""
    protection = Protection(mechanism="laplace", unit=unit)
    federation = Federation(model=FEDERATION.model, server=SERVER, protection=protection)
    simulation = Simulation(federation, split, seed=5, device="cpu")
    ledger = Ledger.in_memory(SAME, RULE)
    policy = Adap(ledger=ledger, rounds=ROUNDS, noise_multiplier=20.0)
    rounds = Coordinator(simulation, policy, ledger, trust="local", run="run", mark=b"")
    one, two = played(rounds, 2)
    return one, two


def test_adap_clips_all_clients_alike_where_only_their_mean_is_seen(split: Split) -> None:
    one, two = of_adap(split, "client")
    assert two.plan is not None
    assert two.plan.clip == pytest.approx(float(np.linalg.norm(one.seen.aggregate)), rel=1e-5)
    scale = accountant_named(RULE).noise_multiplier(two.plan.charge) * 2 * two.plan.clip
    assert two.seen.noise_std == pytest.approx(2**0.5 * scale / CLIENTS**0.5, rel=1e-5)


def test_adap_clips_every_client_by_its_own_noisy_gradient(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm of what it released, averaged over the rows that were clipped one by one."""
    sent: list[tuple[Any, Any, RoundParameters]] = []
    noise_rows = rows.noise_rows

    def noted(
        self: Protection, key: Any, upload: Any, interactions: Any, terms: Any, *more: Any
    ) -> Any:
        noised = noise_rows(self, key, upload, interactions, terms, *more)
        jax.debug.callback(
            lambda *seen: sent.append(seen), noised.rows, interactions.present, terms
        )
        return noised

    monkeypatch.setattr(rows, "noise_rows", noted)
    jax.clear_caches()
    try:
        one, two = of_adap(split, "row")
        jax.effects_barrier()
    finally:
        jax.clear_caches()
    pairs = split.pairs()
    known = pairs.first <= 0
    squares = np.bincount(
        pairs.client[known], (np.asarray(sent[0][0])[known] ** 2).sum(1), minlength=CLIENTS
    )
    number = np.bincount(pairs.client[known], minlength=CLIENTS)
    expected = squares[number > 0] ** 0.5 / number[number > 0]
    assert two.plan is not None
    clip = np.asarray(two.plan.clip)[:, 0][number > 0]
    assert clip == pytest.approx(expected, rel=1e-5)
    assert np.ptp(clip) > 0.1 * clip.mean()
    scale = np.asarray(two.plan.noise_scale)[:, 0][number > 0]
    assert scale / clip == pytest.approx(np.full(len(clip), 20.0))
    last = sent[1][2]
    assert np.asarray(last.clip)[0] * np.asarray(last.own)[number > 0] == pytest.approx(clip)
    assert one.plan is not None
    assert two.plan.charge == one.plan.charge


class OwnClips(Scripted):
    """Wants a clip of its own for every client."""

    def choose(self, context: NDArray[np.float64], left: NDArray[np.float64]) -> Choice | None:
        found = super().choose(context, left)
        return None if found is None else found._replace(own_clip=np.full(CLIENTS, 0.5))


def test_clips_that_would_be_passed_over_are_refused_before_anything_is_paid(split: Split) -> None:
    simulation = Simulation(FEDERATION, split, seed=5, device="cpu")
    ledger = Ledger.in_memory(SAME, RULE)
    policy = OwnClips(ledger=ledger, script=[0.25])
    rounds = Coordinator(simulation, policy, ledger, trust="local", run="run", mark=b"")
    with pytest.raises(ConfigError, match="own_clip = 'one per client': expected none, unless"):
        rounds.step()
    assert not ledger.spent().any()


# ---- forecasts


POSTERIOR = Server(optimizer="posterior", aggregation="clients")
GAUSSIAN = "gaussian/gdp"
SUMS = np.array([0.0, 1e-2, 1.0, 1e2, 1e6])  # of precision


class Forecasting(Scripted):
    """Remembers the forecasts that it was given, and what they said at the time."""

    forecasts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.given: list[Any] = []
        self.said: list[dict[str, Any]] = []

    def choose(self, context: NDArray[np.float64], left: NDArray[np.float64]) -> Choice | None:
        self.given.append(self.forecast)
        if self.forecast is not None:
            self.said.append(said(self.forecast))
        return super().choose(context, left)


def said(forecast: Any) -> dict[str, Any]:
    """All that a forecast says."""
    left = forecast.left()
    return {
        "left": left.tolist(),
        "precision": [forecast.precision(share * left) for share in (0.01, 1 / 3, 1.0)],
        "gain": forecast.gain(SUMS).tolist(),
        "pooled": forecast.pooled(np.array([0.0, 1.0, 5.0])).tolist(),
        "steps": forecast.steps,
    }


def forecasting(
    split: Split,
    script: list[Any],
    *,
    model: Any = None,
    server: Server = POSTERIOR,
    policy: type[Scripted] = Forecasting,
    accountant: str = GAUSSIAN,
    epsilons: Any = 20.0,
    trust: Any = "secagg",
    **options: Any,
) -> Coordinator:
    mechanism: Any = accountant.split("/")[0]
    protection = Protection(mechanism=mechanism, trust=trust)
    model = Biases() if model is None else model
    federation = Federation(model=model, server=server, protection=protection)
    simulation = Simulation(federation, split, seed=5, device="cpu")
    budgets = Budgets.per_client(np.broadcast_to(epsilons, CLIENTS).tolist(), 1e-5)
    plans = policy(ledger=Ledger.in_memory(budgets, accountant), script=script, trust=trust)
    return Coordinator(
        simulation, plans, plans.ledger, trust=trust, run="run", mark=b"", **options
    )


def forecasts_of(rounds: Coordinator) -> list[dict[str, Any]]:
    assert isinstance(rounds.policy, Forecasting)
    return rounds.policy.said


def test_forecasts_of_a_server_that_knows_its_noise(split: Split) -> None:
    """As things are, if all that is left were spent at once, and in a few rounds."""
    rounds = forecasting(split, [0.1, 0.0, 0.5])
    played(rounds, 3)
    first, second, third = forecasts_of(rounds)
    for one in (first, second, third):
        assert np.isfinite(one["gain"]).all()
        assert (np.diff(one["gain"]) >= 0).all()
        assert one["gain"][-1] > one["gain"][0]
        whole, third_of_it = one["precision"][2], one["precision"][1]
        assert 3 * third_of_it == pytest.approx(whole, rel=1e-6)  # Gaussian: splitting is free
        assert one["pooled"] == [1.0, 1.0, 1.0]  # all are there
        assert one["steps"] == 3
    assert first["gain"][0] == 0  # nothing is known before the first round
    assert second["gain"][0] > 0
    assert second == third  # nothing was released, nothing was spent
    assert second["left"][0] == pytest.approx(first["left"][0] - 0.1, rel=1e-6)


def test_splitting_costs_where_charges_are_epsilons(split: Split) -> None:
    rounds = forecasting(split, [0.1], accountant=RULE)
    played(rounds, 1)
    (one,) = forecasts_of(rounds)
    assert 9 * one["precision"][1] == pytest.approx(one["precision"][2], rel=1e-6)


def test_only_who_wants_forecasts_is_given_them(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not computed for others; one that does not look only learns that there are some."""
    made: list[int] = []

    def counted(*arguments: Any) -> Any:
        made.append(len(arguments[1]))
        return asked(*arguments)

    asked = Posterior.forecast
    monkeypatch.setattr(Posterior, "forecast", counted)
    played(forecasting(split, [0.1, 0.0, 0.5], policy=Scripted), 3)
    assert made == []

    class Indifferent(Scripted):
        forecasts = True

    rounds = forecasting(split, [0.1, 0.0, 0.5], policy=Indifferent)
    played(rounds, 3)
    assert made == [1]
    assert rounds.policy.forecast is not None


def test_no_forecasts_of_another_server(split: Split) -> None:
    rounds = forecasting(split, [0.1, 0.0, 0.5], model=Factorization(dim=0), server=SERVER)
    played(rounds, 3)
    assert isinstance(rounds.policy, Forecasting)
    assert rounds.policy.given == [None, None, None]


def other_ratings(seed: int) -> Split:
    """As many clients and items, and other ratings of other items: more of them, too."""
    generator = np.random.default_rng(seed)
    ratings = Ratings.from_arrays(
        np.repeat(np.arange(CLIENTS), 7),
        np.concatenate([generator.permutation(ITEMS)[:7] for _ in range(CLIENTS)]),
        generator.integers(1, 6, 7 * CLIENTS),
        users=range(CLIENTS),
        items=range(ITEMS),
        scale=(0, 5),
    )
    return split_ratings(ratings, seed=seed, rounds=ROUNDS)


@pytest.mark.parametrize("accountant", [GAUSSIAN, RULE])
@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_forecasts_come_from_releases_and_public_numbers_alone(
    split: Split, trust: Any, accountant: str
) -> None:
    """Of two federations with other data and the same memory, the forecasts are the same."""
    one, other = (
        forecasting(
            data,
            [0.1, 0.2, 0.3],
            accountant=accountant,
            trust=trust,
            epsilons=[5.0] * 4 + [20.0] * 8,
        )
        for data in (split, other_ratings(8))
    )
    for rounds in (one, other):
        played(rounds, 2)
    assert said(_Forecast(one))["gain"] != said(_Forecast(other))["gain"]  # of what they were told
    assert isinstance(other.engine, Simulation)
    other.engine.state = other.engine.state._replace(memory=one.engine.state.memory)
    assert said(_Forecast(one)) == said(_Forecast(other))


@pytest.mark.parametrize("participation", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize("accountant", [GAUSSIAN, "laplace/either"])
def test_precision_is_forecast_as_it_will_be(
    split: Split, accountant: str, trust: Any, participation: float
) -> None:
    """Summed over the rounds in which everyone is invited once."""
    rounds = forecasting(
        split, [0.05] * 4, accountant=accountant, trust=trust, participation=participation
    )
    rounds.policy.participation = participation  # type: ignore[attr-defined]
    before = _Forecast(rounds).precision(np.array([0.05]))
    number = round(1 / participation)
    precision = sum(1 / one.seen.noise_std**2 for one in played(rounds, number))
    assert before == pytest.approx(precision, rel=1e-3)  # shares are whole steps


# ---- who has joined


@pytest.fixture(scope="module")
def joining() -> Split:
    """Clients join one after the other: each has its ratings after those of the one before."""
    generator = np.random.default_rng(3)
    ratings = made_ratings(generator)
    times = 10.0 * ratings.user + generator.permutation(len(ratings)) % 30
    timed = replace(ratings, time=times)
    return split_ratings(timed, seed=3, rounds=ROUNDS, initial_share=0.3, arrival="time")


def first_rounds(split: Split) -> NDArray[np.int64]:
    """The oracle, one rating after the other."""
    first = np.full(CLIENTS, 10**9)
    for client, arrival in zip(split.train.client, split.arrival, strict=True):
        first[client] = min(first[client], arrival)
    return first


def test_who_has_not_joined_is_neither_asked_nor_charged(joining: Split) -> None:
    first = first_rounds(joining)
    assert len(set(first)) > 3
    rounds = forecasting(joining, [0.1] * ROUNDS)
    before = rounds.ledger.spent()
    for index in range(ROUNDS):
        assert rounds.engine.present().tolist() == (first <= index).tolist()
        (one,) = played(rounds, 1)
        assert one.plan is not None
        now = rounds.ledger.spent()
        assert ((now - before).any(axis=0) == (first <= index)).all()
        assert (one.plan.participants == (first <= index)).all()
        assert one.paid == (first <= index).sum()
        before = now
    assert rounds.joined_first == (first == 0).sum()


def test_without_an_order_all_are_there_from_the_start(joining: Split) -> None:
    rounds = forecasting(replace(joining, in_order=False), [0.1])
    assert rounds.engine.present().all()
    assert played(rounds, 1)[0].paid == CLIENTS


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_whether_a_client_is_asked_depends_on_who_has_joined_and_on_nothing_else(
    joining: Split, participation: float
) -> None:
    """Other ratings, fewer or later ones: as long as nobody joins at another time."""
    first, train = first_rounds(joining), joining.train
    generator = np.random.default_rng(0)
    changed = replace(train, value=generator.permutation(train.value))
    opening = np.zeros(len(train), dtype=bool)  # with which each client has joined
    for client in range(CLIENTS):
        opening[
            np.flatnonzero((train.client == client) & (joining.arrival == first[client]))[0]
        ] = 1
    fewer = opening | (generator.random(len(train)) < 0.3)
    later = np.where(opening, joining.arrival, ROUNDS - 1)
    asked = []
    for data in (
        joining,
        replace(joining, train=changed),
        replace(joining, train=train.take(fewer), arrival=joining.arrival[fewer]),
        replace(joining, arrival=later),
    ):
        rounds = forecasting(data, [0.1] * ROUNDS, participation=participation)
        asked.append(
            [one.plan.participants.tolist() for one in played(rounds, ROUNDS) if one.plan]
        )
    assert asked[0] == asked[1] == asked[2] == asked[3]


def test_those_who_joined_late_can_still_pay_when_the_first_cannot(joining: Split) -> None:
    """The run waits for them; it does not end with the budget of those who came first."""
    first = first_rounds(joining)
    whole = float(accountant_named(RULE).capacity(Budget(20.0, 1e-5)))
    rounds = forecasting(joining, [whole] * ROUNDS, accountant=RULE)
    for index, one in enumerate(played(rounds, ROUNDS)):
        assert one.paid == (first == index).sum()
    assert not rounds.over
    assert (first < ROUNDS).all()
    assert spent(rounds) == pytest.approx(20.0)


def test_forecasts_are_of_those_who_have_joined(joining: Split) -> None:
    first = first_rounds(joining)
    rounds = forecasting(joining, [0.1] * ROUNDS)
    played(rounds, ROUNDS)
    for index, one in enumerate(forecasts_of(rounds)):
        there = int((first <= index).sum())
        missing = CLIENTS - there
        rate = missing / (ROUNDS - index)
        if index >= 5:
            rate = (there - (first == 0).sum()) / index
        coming = np.minimum(rate * np.array([0.0, 1.0, 5.0]), missing)
        # The others have spent as much as there were rounds since they joined.
        whole = float(rounds.ledger.accountant.capacity(Budget(20.0, 1e-5)))
        left = whole - 0.1 * (index - first[first <= index])
        assert one["left"] == pytest.approx([left.max()])
        assert one["pooled"] == pytest.approx(
            (1 + coming / np.sqrt(left / whole).sum()).tolist(), rel=1e-6
        )
        # Gaussian: lengths are the roots of charges, and the lengths of all uploads add up.
        assert one["precision"][1] == pytest.approx(np.sqrt(left / 3).sum() ** 2 / 4, rel=1e-6)


@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_each_pays_by_what_it_has_left(joining: Split, participation: float, trust: Any) -> None:
    """As planned, so booked; and the noise of each is at least what its own charge asks for."""
    epsilon, accountant = 2000.0, accountant_named(GAUSSIAN)
    federation = Federation(
        model=Biases(), server=POSTERIOR, protection=Protection(mechanism="gaussian", trust=trust)
    )
    simulation = Simulation(federation, joining, seed=5, device="cpu")
    ledger = Ledger.in_memory(Budgets.same(Budget(epsilon, 1e-5), CLIENTS), GAUSSIAN)
    policy = BGTPlanner(ledger=ledger, rounds=ROUNDS, trust=trust, participation=participation)
    rounds = Coordinator(
        simulation, policy, ledger, trust=trust, run="run", mark=b"", context="none",
        reward="none", participation=participation,
    )  # fmt: skip
    asked: list[RoundParameters] = []
    step = simulation.step

    def noted(terms: RoundParameters, plan: Any) -> Any:
        asked.append(terms)
        return step(terms, plan)

    simulation.step = noted  # type: ignore[method-assign]
    own = 0
    for _ in range(ROUNDS):
        before, left = TICK * ledger.spent()[0], ledger.left()
        (one,) = played(rounds, 1)
        paid = TICK * ledger.spent()[0] - before
        if one.plan is None or one.plan.skip:
            assert not paid.any()
            continue
        terms, plan = asked[-1], one.plan
        charges = np.broadcast_to(np.asarray(plan.charge).ravel(), CLIENTS)
        np.testing.assert_allclose(np.where(plan.participants, charges, 0.0), paid, rtol=1e-9)
        assert (paid <= left * (1 + 1e-9)).all()
        who, index = np.flatnonzero(paid), np.asarray(terms.class_of_client)
        assert np.asarray(terms.granted)[who].all()
        shares = paid[who] / left[who]
        np.testing.assert_allclose(shares, shares[0], rtol=1e-6)
        multiplier = np.asarray(terms.scale)[index] / 2 / np.asarray(terms.clip)[index]
        np.testing.assert_allclose(accountant.charge(multiplier[who]), paid[who], rtol=1e-5)
        own += len(set(paid[who])) > 1
        weights = plan.weights[who]
        assert one.seen.noise_std == pytest.approx(
            float(np.max(plan.noise_std)) / weights.sum()
            if trust == "secagg"
            else float(np.min(plan.noise_std)) / weights.sum() ** 0.5,
            rel=1e-3,  # shares are whole steps
        )
    assert own > 0
    assert (ledger.epsilon_spent() <= epsilon * (1 + 1e-9)).all()


@pytest.mark.parametrize("objective", ["served", "last"])
@pytest.mark.parametrize("timed", [False, True])
def test_the_planner_as_a_whole(split: Split, joining: Split, timed: bool, objective: Any) -> None:
    """It plans by forecasts, spends the budget and goes on from its state."""
    found = []
    for again in (False, True):
        federation = Federation(
            model=Biases(),
            server=POSTERIOR,
            protection=Protection(mechanism="gaussian", trust="secagg"),
        )
        simulation = Simulation(federation, joining if timed else split, seed=5, device="cpu")
        ledger = Ledger.in_memory(Budgets.same(Budget(2000.0, 1e-5), CLIENTS), GAUSSIAN)
        policy = BGTPlanner(ledger=ledger, rounds=ROUNDS, trust="secagg", objective=objective)
        rounds = Coordinator(
            simulation, policy, ledger, trust="secagg", run="run", mark=b"", context="none",
            reward="none",
        )  # fmt: skip
        charges = []
        for _ in range(ROUNDS):
            (one,) = played(rounds, 1)
            charges.append(0.0 if one.plan is None else float(one.plan.charge_by_class[0]))
            if again:
                rounds.load_state_dict(json.loads(json.dumps(rounds.state_dict())))
        found.append(charges)
        assert (ledger.epsilon_spent() <= 2000.0 * (1 + 1e-9)).all()
        assert policy.note is not None
        assert policy.note.startswith("aimed at ")
        if not timed:
            assert sum(charges) > 0.95 * policy.accountant.capacity(Budget(2000.0, 1e-5))
    assert found[0] == found[1]


@pytest.mark.parametrize("budgets", [SAME, TWO], ids=["one class", "two classes"])
@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize("accountant", ["gaussian/gdp", "laplace/either"])
def test_noise_is_forecast_as_it_will_be(
    split: Split, accountant: str, trust: Any, budgets: Budgets
) -> None:
    mechanism: Any = accountant.split("/")[0]
    protection = Protection(mechanism=mechanism, trust=trust)
    federation = Federation(model=FEDERATION.model, server=SERVER, protection=protection)
    simulation = Simulation(federation, split, seed=5, device="cpu")
    script = [0.01, 0.02] if budgets is SAME else [[0.01, 0.03], [0.02, 0.0]]
    ledger = Ledger.in_memory(budgets, accountant)
    policy = Scripted(ledger=ledger, script=script, clip=0.5)
    rounds = Coordinator(simulation, policy, ledger, trust=trust, run="run", mark=b"")
    sizes = np.bincount(budgets.class_of_client)
    for one in played(rounds, 2):
        assert one.plan is not None
        assert one.paid == (sizes * (one.plan.charge_by_class > 0)).sum()
        forecast = noise_of_mean(ledger.accountant, trust, 0.5, one.plan.charge_by_class, sizes)
        assert one.seen.noise_std == pytest.approx(forecast, rel=1e-3)  # shares are whole steps


def test_without_anybody_there_is_nothing_but_noise() -> None:
    for trust in ("local", "secagg"):
        sizes = np.array([3, 4])
        assert noise_of_mean(accountant_named(RULE), trust, 1.0, np.zeros(2), sizes) == np.inf


def test_who_abstains_gets_back_what_was_sent_at_first(split: Split) -> None:
    """What a probe found is not worth having."""

    class Abstaining(Scripted):
        abstained = False

        def choose(self, context: NDArray[np.float64], left: NDArray[np.float64]) -> Choice | None:
            if self.round == 1:
                self.abstained = True
                return None
            return super().choose(context, left)

    federation = Federation(
        model=Biases(),
        server=Server(optimizer="posterior"),
        protection=Protection(mechanism="laplace"),
    )
    simulation = Simulation(federation, split, seed=5, device="cpu")
    policy = Abstaining(Budgets.same(Budget(1e5, 1e-5), CLIENTS), script=[5e4], accounting=RULE)
    rounds = Coordinator(simulation, policy, policy.ledger, run="run", mark=b"", trust="local")
    played(rounds, 1)
    assert shared(rounds).any()
    played(rounds, 1)
    assert not shared(rounds).any()
    assert rounds.over
