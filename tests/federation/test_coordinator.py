"""Rounds that are planned and paid for: the ledger before the upload, and never twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, split_ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.coordinator import Coordinator, _Forecast
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.optimizers import Server
from bgtplanner.paper.baselines import Adap
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.context import ReleasedContext
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy
from bgtplanner.planning.schedules import Uniform, Unlimited
from bgtplanner.privacy.accountants import TICK, accountant_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.shares import Tolerance

CLIENTS, ITEMS, ROUNDS = 12, 8, 6
RULE = "laplace/basic"  # charges are epsilons: what is spent can be told at a glance
SERVER = Server(optimizer="sgd", aggregation="clients", item_prior=0.0)
FEDERATION = Federation(
    model=Factorization(dim=0), server=SERVER, protection=Protection(mechanism="laplace")
)
SAME = Budgets.same(Budget(1.0, 1e-5), CLIENTS)
TWO = Budgets.per_client([1.0] * 4 + [4.0] * 8, 1e-5)


def made_ratings(generator: np.random.Generator, each: int = 6) -> Ratings:
    """As many ratings of each client."""
    return Ratings.from_arrays(
        np.repeat(np.arange(CLIENTS), each),
        np.concatenate([generator.permutation(ITEMS)[:each] for _ in range(CLIENTS)]),
        generator.integers(1, 6, each * CLIENTS),
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


def coordinated(
    split: Split, policy: Any, *, federation: Federation = FEDERATION, mark: bytes = b"mark",
    **options: Any,
) -> Coordinator:  # fmt: skip
    """A coordinator of a simulation, on the policy's ledger."""
    simulation = Simulation(federation, split, seed=5, device="cpu")
    options = {"trust": "local", "run": "run", "ledger": policy.ledger} | options
    return Coordinator(simulation, policy, mark=mark, **options)


def planned(
    split: Split, script: list[Any], *, budgets: Budgets = SAME, ledger: Ledger | None = None,
    kind: type[Scripted] = Scripted, **options: Any,
) -> Coordinator:  # fmt: skip
    ledger = Ledger.in_memory(budgets, RULE) if ledger is None else ledger
    return coordinated(split, kind(script=script, ledger=ledger), **options)


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

    def test_who_cannot_pay_stays_out_and_others_go_on(self, split: Split) -> None:
        """Three clients have spent most of it elsewhere."""
        ledger = Ledger.in_memory(SAME, RULE)
        ledger.reserve(0.875, run="elsewhere", round=0, clients=[0, 1, 2])
        rounds = planned(split, [0.25] * ROUNDS, ledger=ledger)
        (one,) = played(rounds, 1)
        assert (one.paid, one.clients) == (CLIENTS - 3, CLIENTS - 3)
        assert spent(rounds).tolist() == [0.875] * 3 + [0.25] * (CLIENTS - 3)

    @pytest.mark.parametrize("trust", ["local", "secagg"])
    def test_classes(self, split: Split, trust: Any) -> None:
        """The poor can pay for two rounds, the rich for more."""
        protection = Protection(mechanism="laplace", trust=trust)
        federation, script = replace(FEDERATION, protection=protection), [[0.5, 1.0]] * ROUNDS
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
        """The second round takes what is left, and the others take nothing."""
        rounds = planned(split, [0.875] * ROUNDS)
        one, two = played(rounds, 2)
        assert [one.charge, two.charge] == [0.875, 0.125]
        assert spent(rounds).tolist() == [1.0] * CLIENTS
        before = shared(rounds)
        head, memory = rounds.ledger.head, local(rounds)
        for index, one in enumerate(played(rounds, 3)):
            assert (one.plan, one.paid, one.reward) == (None, 0, None)
            assert (one.round, one.clients, len(one.seen.aggregate)) == (2 + index, 0, 0)
            assert np.array_equal(shared(rounds), before)
        assert rounds.over
        assert rounds.ledger.head == head
        assert not np.array_equal(local(rounds), memory)


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
            how: dict[str, Any] = {"participation": 0.5, "dropout": 0.3, "mark": b"other"}
            played(planned(split, script, ledger=ledger, **how), 4)
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

    def test_a_budget_lasts_for_the_rounds_that_a_client_takes_part_in(self, split: Split) -> None:
        """Asked in half of six rounds: a third of the budget each time, and then no more."""
        ledger = Ledger.in_memory(SAME, RULE)
        policy = Uniform(ledger=ledger, rounds=ROUNDS, participation=0.5)
        rounds = coordinated(split, policy, participation=0.5)
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


def test_a_round_that_too_many_drop_out_of_is_paid_for_and_not_opened(split: Split) -> None:
    policy = Scripted(
        ledger=Ledger.in_memory(Budgets.same(Budget(20.0), CLIENTS), GAUSSIAN),
        script=[0.1] * ROUNDS, trust="secagg",
    )  # fmt: skip
    protection = Protection(mechanism="gaussian", trust="secagg")
    rounds = coordinated(
        split, policy, federation=replace(FEDERATION, protection=protection), trust="secagg",
        dropout=0.3, tolerance=Tolerance(3),
    )  # fmt: skip
    opened = []
    for number in range(1, ROUNDS + 1):
        before, signals = shared(rounds).copy(), [rounds.state_dict()["first_signal"]]
        (record,) = played(rounds, 1)
        assert TICK * rounds.ledger.spent()[0].max() == pytest.approx(0.1 * number, rel=1e-6)
        assert (record.paid, record.charge) == (CLIENTS, pytest.approx(0.1))
        opened.append(not record.aborted)
        assert opened[-1] == (rounds.policy.rewards[-1] is not None)  # type: ignore[attr-defined]
        assert opened[-1] != np.array_equal(shared(rounds), before)
        if record.aborted:
            assert (record.clients, record.released_norm, record.surplus) == (0, None, None)
            assert rounds.state_dict()["first_signal"] in signals
            assert record.as_json()["aborted"] is True
        else:
            assert record.clients >= CLIENTS - 3
            expected = (record.clients / 9) ** 0.5 - 1
            assert record.surplus == pytest.approx(expected, abs=2e-3)
            assert "aborted" not in record.as_json()
    assert set(opened) == {True, False}


class Careless(Unlimited):
    """Plans a charge, and reserves nothing."""

    def plan(self, *arguments: Any) -> Plan | None:
        found = super().plan(*arguments)
        charges = np.full(1, 0.25)
        return found and replace(found, accountant=RULE, charge_by_class=charges, largest_clip=1.0)


def test_who_reserves_nothing_is_charged_all_the_same(split: Split) -> None:
    ledger = Ledger.in_memory(SAME, RULE)
    rounds = coordinated(split, Careless(SAME, rounds=ROUNDS), ledger=ledger)
    found = played(rounds, 5)
    assert [one.paid for one in found] == [CLIENTS] * 4 + [0]
    assert [one.clients for one in found] == [CLIENTS] * 4 + [0]
    assert spent(rounds).tolist() == [1.0] * CLIENTS


def test_a_policy_with_a_ledger_of_its_own_is_refused(split: Split) -> None:
    policy, ledger = Uniform(SAME, rounds=3, accounting=RULE), Ledger.in_memory(SAME, RULE)
    with pytest.raises(ConfigError, match="make the policy with ledger"):
        coordinated(split, policy, ledger=ledger)


def test_the_context_is_what_was_released(split: Split) -> None:
    rounds = planned(split, [0.25] * ROUNDS, context="released")
    one, _ = played(rounds, 2)
    assert isinstance(rounds.policy, Scripted)
    first, second = rounds.policy.contexts
    assert first.tolist() == [0, 1, 0, 0, 0, 0]
    expected = ReleasedContext()
    expected.released(one.seen.aggregate, one.seen.noise_std)
    np.testing.assert_array_equal(second, expected.vector(progress=1 / ROUNDS, left=0.75))


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


def test_adap_clips_all_clients_alike_where_only_their_mean_is_seen(split: Split) -> None:
    ledger = Ledger.in_memory(SAME, RULE)
    policy = Adap(ledger=ledger, rounds=ROUNDS, noise_multiplier=20.0)
    one, two = played(coordinated(split, policy), 2)
    assert two.plan is not None
    assert two.plan.clip == pytest.approx(float(np.linalg.norm(one.seen.aggregate)), rel=1e-5)


class OwnClips(Scripted):
    """Wants a clip of its own for every client."""

    def choose(self, context: NDArray[np.float64], left: NDArray[np.float64]) -> Choice | None:
        found = super().choose(context, left)
        return None if found is None else found._replace(own_clip=np.full(CLIENTS, 0.5))


def test_clips_that_would_be_passed_over_are_refused_before_anything_is_paid(split: Split) -> None:
    rounds = planned(split, [0.25], kind=OwnClips)
    with pytest.raises(ConfigError, match="own_clip = 'one per client': expected none, unless"):
        rounds.step()
    assert not rounds.ledger.spent().any()


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
        "gain": {name: of.tolist() for name, of in forecast.gain(SUMS).items()},
        "pooled": forecast.pooled(np.array([0.0, 1.0, 5.0])).tolist(),
        "steps": forecast.steps,
    }


def summed(accountant: str = GAUSSIAN, trust: Any = "secagg") -> Federation:
    protection = Protection(mechanism=accountant.split("/")[0], trust=trust)
    return Federation(model=Biases(), server=POSTERIOR, protection=protection)


def forecasting(
    split: Split, script: list[Any], *, accountant: str = GAUSSIAN, epsilons: Any = 20.0,
    trust: Any = "secagg", **options: Any,
) -> Coordinator:  # fmt: skip
    budgets = Budgets.per_client(np.broadcast_to(epsilons, CLIENTS).tolist(), 1e-5)
    policy = Forecasting(ledger=Ledger.in_memory(budgets, accountant), script=script, trust=trust)
    return coordinated(split, policy, federation=summed(accountant, trust), trust=trust, **options)


@pytest.mark.parametrize("accountant", [GAUSSIAN, RULE])
@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_forecasts_come_from_releases_and_public_numbers_alone(
    split: Split, trust: Any, accountant: str
) -> None:
    """Of two federations with other data and the same memory, the forecasts are the same."""
    more = split_ratings(made_ratings(np.random.default_rng(8), 7), seed=8, rounds=ROUNDS)
    how: dict[str, Any] = {"accountant": accountant, "trust": trust}
    how |= {"epsilons": [5.0] * 4 + [20.0] * 8}
    one, other = (forecasting(data, [0.1, 0.2, 0.3], **how) for data in (split, more))
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


def joined_within(rounds: int) -> Split:
    generator = np.random.default_rng(3)
    ratings = made_ratings(generator)
    times = 10.0 * ratings.user + generator.permutation(len(ratings)) % 30
    timed = replace(ratings, time=times)
    return split_ratings(timed, seed=3, rounds=rounds, initial_share=0.3, arrival="time")


@pytest.fixture(scope="module")
def joining() -> Split:
    """Clients join one after the other: each has its ratings after those of the one before."""
    return joined_within(ROUNDS)


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


@pytest.mark.parametrize(("accountant", "power"), [(GAUSSIAN, 0.5), (RULE, 1.0)])
def test_waiting_brings_those_who_join_meanwhile(accountant: str, power: float) -> None:
    """As fast as all would join by the end or, from the fifth round on, as they did so far."""
    split, number, after = joined_within(9), 9, np.array([0.0, 1.0, 5.0])
    first = first_rounds(split)
    two = [5.0] * 4 + [20.0] * 8
    rounds = forecasting(split, [0.4] * number, accountant=accountant, epsilons=two)
    policy: Any = rounds.policy
    policy.rounds, whole = number, rounds.ledger.left()
    for index in range(number):
        now, missing = first <= index, int((first > index).sum())
        rate = missing / (number - index)
        if index >= 5:
            rate = (now.sum() - (first == 0).sum()) / index
        left = (rounds.ledger.left() / whole)[now]  # of each client within reach
        played(rounds, 1)
        expected = 1 + np.minimum(rate * after, missing) / (left**power).sum()
        np.testing.assert_allclose(policy.said[index]["pooled"], expected)
        assert missing or index > 5
    for trust, everyone_joins in (("local", True), ("secagg", False)):  # spare places
        alone: Any = forecasting(split, [0.4], trust=trust)
        alone.engine.everyone_joins = everyone_joins
        played(alone, 1)
        assert alone.policy.said[0]["pooled"] == [1, 1, 1]


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


@pytest.mark.parametrize("trust", ["local", "secagg"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_each_pays_by_what_it_has_left(joining: Split, participation: float, trust: Any) -> None:
    """As planned, so booked; and the noise of each is at least what its own charge asks for."""
    epsilon, accountant = 2000.0, accountant_named(GAUSSIAN)
    ledger = Ledger.in_memory(Budgets.same(Budget(epsilon, 1e-5), CLIENTS), GAUSSIAN)
    policy = BGTPlanner(ledger=ledger, rounds=ROUNDS, trust=trust, participation=participation)
    rounds = coordinated(
        joining, policy, federation=summed(trust=trust), trust=trust, context="none",
        reward="none", participation=participation,
    )  # fmt: skip
    asked: list[RoundParameters] = []
    step = rounds.engine.step

    def noted(terms: RoundParameters, plan: Any) -> Any:
        asked.append(terms)
        return step(terms, plan)

    rounds.engine.step = noted  # type: ignore[method-assign]
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
