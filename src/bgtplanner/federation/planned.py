"""The two steps before training: what clients show, and what the policy plans and they pay for.

The policy plans on its own ledger, which is part of its state. What is really spent is written
down in a second ledger, the durable one of the run: a charge that does not fit there is refused,
whatever was planned, and a round that is played again after a crash is not charged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from bgtplanner.errors import BudgetExceeded, ConfigError
from bgtplanner.federation.protection import Terms, noise_of_mean, terms_of
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.federation.simulation import RoundRecord, Seen
from bgtplanner.federation.validation import Validated, Validation, rmse_of
from bgtplanner.models.metrics import Metrics
from bgtplanner.planning.baselines import Adap
from bgtplanner.planning.context import ReleasedContext, UsageContext
from bgtplanner.planning.policy import LedgerPolicy, Plan, Policy
from bgtplanner.privacy.ledger import Ledger, Reservation

__all__ = ["Carrier", "PlannedRound", "PlannedRounds"]

ContextKind = Literal["none", "usage", "released", "forecast"]
RewardKind = Literal["none", "test", "loss", "released", "validation"]


class Carrier(Protocol):
    """Whoever carries rounds out once they are paid for: a simulation, or real machines."""

    federation: Federation
    n_clients: int
    n_items: int
    next_round: int
    seen: Seen

    @property
    def state(self) -> State:
        """What the last round has left."""
        ...

    def step(self, terms: Terms, plan: Plan) -> RoundRecord:
        """Carry out the next round, under terms that were agreed and paid for by a plan."""
        ...

    def rest(self) -> RoundRecord:
        """A round in which nothing leaves any client."""
        ...

    def withdraw(self) -> None:
        """Send out what was sent at first."""
        ...

    def evaluate(self) -> Metrics:
        """Scores on held-out ratings, where there are any."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole state as named plain arrays."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`arrays` gave."""
        ...

    def shown_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Client and item of all that the clients will name in the coming round."""
        ...


class PlannedRound(NamedTuple):
    """One round as it was planned and as it went.

    Attributes:
        plan: What the policy planned; None for a round after the budget was gone.
        record: What came of it.
        seen: What the server saw.
        reward: What the policy was told.
        paid: How many clients paid.
        late: How many of them answered too late.
        validated: What is known of the error on the validation ratings.
    """

    plan: Plan | None
    record: RoundRecord
    seen: Seen
    reward: float | None
    paid: int
    late: int
    validated: Validated | None


class PlannedRounds:
    """A federation whose rounds are planned and paid for.

    Args:
        simulation: Who carries it out; its protection says what is done to the uploads.
        policy: Who plans.
        ledger: Who has really spent how much.
        trust: ``local`` or ``secagg``.
        run: Name of the run in the ledger.
        mark: Of all that the run is made of; with the number of a round it names its inputs.
        context: What the policy gets to look at. ``usage``: the singular values of the matrix of
            who trains on which item, which shows item ids. ``released``: statistics of what was
            released before, at no further charge. ``forecast``: by how much the error would fall,
            as the server's `posterior` has it from what was released: as things are, and if all
            that is left were spent in one round, or in a few.
        reward: What the policy is told. ``test``: by how much the RMSE on the test ratings fell
            (the paper's). ``loss``: by how much the mean training loss fell. Neither is accounted
            for. ``released``: the estimated signal in the noisy aggregate, relative to the first,
            at no further charge. ``validation``: by how much the RMSE on ratings that clients set
            aside fell, paid for by a share of the round's charge.
        values: How many singular values, d.
        participation: Share of the clients that are asked in a round.
        dropout: Share of the clients that pay and then fail to answer.
        stragglers: Share of the clients that pay and answer too late; mostly the same ones.
        stops: Whether the run ends with the budget. Otherwise ratings go on arriving, and each
            client learns from its own.
        seed: Of who fails.
    """

    def __init__(
        self,
        simulation: Carrier,
        policy: Policy,
        ledger: Ledger,
        *,
        trust: str,
        run: str,
        mark: bytes,
        context: ContextKind = "released",
        reward: RewardKind = "released",
        values: int = 5,
        participation: float = 1.0,
        dropout: float = 0.0,
        stragglers: float = 0.0,
        stops: bool = False,
        seed: int = 0,
    ) -> None:
        self.simulation, self.policy, self.ledger = simulation, policy, ledger
        self.trust, self.run = trust, run
        learns = getattr(policy, "learns", True)
        self.context: ContextKind = context if learns else "none"
        self.reward: RewardKind = reward if learns else "none"
        self.participation, self.dropout, self.seed = participation, dropout, seed
        self.stragglers = stragglers
        self.stops = stops
        self.over = False
        self._mark = mark
        budgets = ledger.budgets
        self._present = np.ones(len(ledger), dtype=bool)
        self._class_sizes = np.bincount(budgets.class_of_client, minlength=len(budgets.classes))
        self._known_forecasts: dict[bytes, NDArray[np.float64]] = {}
        self._usage = UsageContext(values, seed=seed)
        self._released = ReleasedContext()
        self.validation = Validation()
        self._last: float | None = None
        self._first_signal: float | None = None

    def step(self) -> PlannedRound | None:
        """Plan, reserve, play, settle and tell one round; None: the budget is gone, and so we."""
        simulation = self.simulation
        index = simulation.next_round
        if self.reward == "test" and self._last is None:
            self._last = simulation.evaluate().rmse
        plan = None if self.over else self.policy.ask(self._context())
        if plan is None:
            if getattr(self.policy, "abstained", False) and not self.over:
                simulation.withdraw()
            self.over = True
            if self.stops:
                return None
            return PlannedRound(None, simulation.rest(), simulation.seen, None, 0, 0, None)
        terms, reservation, late = (None, None, 0) if plan.skip else self._pay(plan, index)
        if terms is None:
            record = simulation.rest()
        else:
            record = simulation.step(terms, plan)
            self._known_forecasts.clear()  # the server knows more now
        if reservation is not None:
            self.ledger.settle(reservation)
        reward = self._reward(record) if terms is not None else None
        if terms is None and self.reward in ("test", "loss"):
            reward = self._reward(record)
        seen = simulation.seen
        if seen.validation is not None:
            self.validation.saw(*seen.validation)
        if terms is not None and seen.noise_std > 0 and np.isfinite(seen.aggregate).all():
            self._released.released(seen.aggregate, seen.noise_std)
        if isinstance(self.policy, Adap) and terms is not None:
            self.policy.saw(_norm_of(seen))
        self.policy.tell(plan, reward=reward)
        paid = 0 if reservation is None else int(reservation.granted.sum())
        return PlannedRound(plan, record, seen, reward, paid, late, self.validation.estimate)

    def _inputs(self, index: int, asked: NDArray[np.bool_]) -> bytes:
        """A mark of all that a round's uploads are made of."""
        return self.ledger.fingerprint(self._mark, str(index).encode(), asked.tobytes())

    def _pay(self, plan: Plan, index: int) -> tuple[Terms | None, Reservation | None, int]:
        """Reserve in the ledger that counts; who cannot pay there does not take part.

        Returns:
            The terms, the reservation, and how many have paid and answer too late.
        """
        own, asked = self._own_clips(plan), plan.participants & self._invited(index)
        try:
            reservation = self.ledger.reserve(
                plan.charge_by_class, run=self.run, round=index, clients=asked, by_class=True,
                fingerprint=self._inputs(index, asked),
            )  # fmt: skip
        except BudgetExceeded:
            return None, None, 0
        budgets = self.ledger.budgets
        late = reservation.granted & self._late(index)
        answers = reservation.granted & self._answers(index) & ~late
        terms = terms_of(
            self.ledger.rule, self.trust, plan.largest_clip, plan.charge_by_class, answers,
            budgets.class_of_client, own,
        )  # fmt: skip
        return terms, reservation, int(late.sum())

    def _own_clips(self, plan: Plan) -> NDArray[np.float64] | None:
        """Each client's own clip over that of its class, for a policy that follows their norms.

        Raises:
            ConfigError: If a policy asks for such clips where they would be passed over.
        """
        protection = self.simulation.federation.protection
        by_row = protection is not None and protection.unit == "row"
        if plan.own_clip is None and by_row and isinstance(self.policy, Adap):
            return np.ones(len(self.ledger))
        fits = plan.own_clip is None or by_row
        ConfigError.unless(fits, "own_clip", "one a client", "none, but with privacy.unit = row")
        return plan.own_clip

    def _invited(self, index: int) -> NDArray[np.bool_]:
        """Who is asked, out of those that can be reached."""
        if self.participation >= 1:
            return self._present
        order = np.random.default_rng([self.seed, 0x1417, index]).permutation(len(self.ledger))
        order[~self._present] = len(order)
        wanted = max(1, round(self.participation * int(self._present.sum())))
        chosen = np.zeros(len(order), dtype=bool)
        chosen[np.argsort(order, kind="stable")[:wanted]] = True
        return chosen & self._present

    def _answers(self, index: int) -> NDArray[np.bool_]:
        if not self.dropout:
            return np.ones(len(self.ledger), dtype=bool)
        draws = np.random.default_rng([self.seed, 0xD407, index]).random(len(self.ledger))
        return np.asarray(draws >= self.dropout)

    def _late(self, index: int) -> NDArray[np.bool_]:
        """Who takes too long: the time is lognormal, half of its spread is the client's own."""
        number = len(self.ledger)
        if not self.stragglers:
            return np.zeros(number, dtype=bool)
        own = np.random.default_rng([self.seed, 0x510]).standard_normal(number)
        luck = np.random.default_rng([self.seed, 0x1A7E, index]).standard_normal(number)
        return np.asarray((own + luck) / 2**0.5 > ndtri(1 - self.stragglers))

    def _context(self) -> NDArray[np.float64] | None:
        if self.context == "usage":
            client, item = self.simulation.shown_pairs()
            size = {"clients": self.simulation.n_clients, "items": self.simulation.n_items}
            return self._usage.of_pairs(client, item, **size)
        if self.context == "released":
            total = getattr(self.policy, "rounds", 1)
            left = getattr(self.policy, "share_left", lambda: np.ones(1))()
            return self._released.vector(
                progress=self.simulation.next_round / total, left=float(np.max(left))
            )
        if self.context == "forecast":
            return self._forecasts()
        return None

    def _forecasts(self) -> NDArray[np.float64] | None:
        known, policy = self.simulation.state.memory, self.policy
        if not isinstance(policy, LedgerPolicy):
            return None
        federation = self.simulation.federation
        learner, protection = federation.model, federation.protection
        norm = "l2" if protection is None else protection.norm
        left, rounds = policy.left(), getattr(policy, "at_end", 1)
        asked = left.tobytes() + self._class_sizes.tobytes()
        if asked in self._known_forecasts:  # nothing was released since: a third of such a round
            return self._known_forecasts[asked]
        gained = [0.0]
        for number in (1, rounds):
            std = noise_of_mean(
                self.ledger.rule, self.trust, policy.clip, left / number, self._class_sizes
            )
            gained.append(number / std**2)
        expected = [learner.forecast(known, more, policy.clip, norm) for more in gained]
        if None in expected:  # nothing is known of how it learns
            return None
        found = np.array(expected)
        self._known_forecasts[asked] = found
        return found

    def _reward(self, record: RoundRecord) -> float | None:
        if self.reward in ("test", "loss"):
            now = record.metrics.rmse if self.reward == "test" else record.loss
            if not np.isfinite(now):
                return None  # whoever carries the run out will say that it diverged
            before, self._last = self._last, now
            return None if before is None else before - now
        if self.reward == "released":
            aggregate, noise_std = self.simulation.seen[:2]
            power = float(aggregate @ aggregate)
            signal = power - len(aggregate) * noise_std**2
            if not np.isfinite(signal):
                return None
            if self._first_signal is None:
                self._first_signal = abs(signal) or 1.0
            return signal / self._first_signal
        if self.reward == "validation":
            so_far, said = self.validation.estimate, self.simulation.seen.validation
            return None if so_far is None or said is None else so_far.rmse - rmse_of(said[0])
        return None

    def state_dict(self) -> dict[str, Any]:
        """Everything that one round hands to the next, as plain data; the ledger is elsewhere."""
        return {
            "policy": self.policy.state_dict(),
            "usage": self._usage.state_dict(),
            "released": self._released.state_dict(),
            "validation": self.validation.state_dict(),
            "last": self._last,
            "first_signal": self._first_signal,
            "over": self.over,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._known_forecasts.clear()
        self.policy = type(self.policy).from_state(state["policy"])
        self._usage.load_state_dict(state["usage"])
        self._released.load_state_dict(state["released"])
        self.validation.load_state_dict(state["validation"])
        self._last, self._first_signal = state["last"], state["first_signal"]
        self.over = bool(state["over"])


def _norm_of(seen: Seen) -> float | NDArray[np.float64]:
    """Norm of each client's own release where the server sees them, else of their noisy mean."""
    if seen.norms is not None:
        return seen.norms.astype(np.float64)
    return float(np.linalg.norm(seen.aggregate.astype(np.float64)))
