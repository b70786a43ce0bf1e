"""The coordinator: it plans each round, invites clients, reserves their charges and settles them.

There is one ledger. A charge that does not fit is refused, whatever was planned, and a round that
is played again after a crash is not charged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, RunFolderError, SchemaError
from bgtplanner.federation.parameters import RoundParameters, noise_of_mean, round_parameters
from bgtplanner.federation.result import RoundResult, Seen
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.models.learner import Learner
from bgtplanner.models.metrics import Metrics
from bgtplanner.planning.arguments import Floats, context_of
from bgtplanner.planning.plan import GROUPS, Mask, Plan, in_groups, reserved
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import CONTEXTS
from bgtplanner.planning.states import recall, remembered
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.ledger import Ledger, Spending
from bgtplanner.privacy.shares import Tolerance

STATE_VERSION = 3
"""Version of :meth:`Coordinator.state_dict`."""

_LONG_ENOUGH = 5  # rounds, after which it can be told how fast clients join

RewardKind = Literal["none", "test", "loss", "released"]


class Engine(Protocol):
    """What carries rounds out once they are paid for: a simulation, or real machines.

    `step` plays a round under terms that a plan paid for, `rest` one without uploads; `present`
    are the clients within reach, which is public.
    If `everyone_joins`, the ledger has as many places as there will be clients, and each upload
    follows from who is invited; otherwise a client repeats its answer, whichever others are asked.
    """

    everyone_joins: ClassVar[bool]

    federation: Federation
    n_clients: int
    n_items: int
    next_round: int
    seen: Seen
    state: State

    def step(self, terms: RoundParameters, plan: Plan) -> RoundResult: ...
    def rest(self) -> RoundResult: ...
    def present(self) -> Mask: ...
    def divide(self, split: Mapping[str, float]) -> None: ...
    def evaluate(self) -> Metrics: ...
    def shown_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as named plain arrays, enough to go on bit for bit."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self.state)
        named = {_name_of(path): np.array(leaf) for path, leaf in leaves}
        return named | {"next_round": np.asarray(self.next_round)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the result of :meth:`arrays`, with leaves of the same shape and type."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(self.state)
        restored: list[jax.Array] = []
        for name, leaf in ((_name_of(path), leaf) for path, leaf in leaves):
            stored = arrays.get(name)
            if stored is None or stored.shape != leaf.shape or stored.dtype != leaf.dtype:
                why = "it was written for other data, another model or by another version"
                other = f"'{name}' is missing or of another shape or type"
                raise RunFolderError(f"checkpoint entry {other}: {why}")
            restored.append(jax.device_put(stored, leaf.device))
        if "next_round" not in arrays:
            raise RunFolderError("checkpoint entry 'next_round' is missing")
        self.state = jax.tree_util.tree_unflatten(tree, restored)
        self.next_round = int(arrays["next_round"])


def _name_of(path: Any) -> str:
    """Return the name of a leaf of the state."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


@dataclass(eq=False, repr=False)
class Coordinator:
    """A federation whose rounds are planned and paid for.

    Args:
        engine: What carries the rounds out; its protection says how uploads are made private.
        policy: Plans on this ledger.
        mark: Identifies all inputs of the run; with the number of a round, those of the round.
        context: What the policy may look at, by its name in :data:`CONTEXTS`.
        reward: What the policy is told: by how much the RMSE on the ``test`` ratings or the mean
            training ``loss`` fell, which are not accounted for; or the signal in the ``released``
            aggregate, which says nothing to a policy that plans by forecasts.
        participation: Share of the clients that are invited to a round.
        dropout: Share of the clients that pay and then fail to answer.
        tolerance: How many clients may drop out or collude under ``secagg``. If more drop out,
            the sum is not opened: the charge is spent, and nothing is learned.
        stops: Whether the run ends with the budget. Otherwise each client learns from its own.
    """

    engine: Engine
    policy: Policy
    ledger: Ledger
    _: KW_ONLY
    trust: str
    run: str
    mark: bytes
    context: Any = "released"
    reward: RewardKind = "released"
    values: int = 5
    participation: float = 1.0
    dropout: float = 0.0
    tolerance: Tolerance = field(default=Tolerance())
    stops: bool = False
    seed: int = 0

    remembers: ClassVar = ("context", "_last", "_first_signal", "joined_first", "over")

    def __post_init__(self) -> None:
        learns = self.policy.learns
        self.context = CONTEXTS[self.context if learns else "none"](self.values, seed=self.seed)
        self.reward = self.reward if learns else "none"
        self.present = np.ones(len(self.ledger), dtype=bool)
        self.joined_first, self.over = len(self.ledger), False
        self._last: float | None = None
        self._first_signal: float | None = None
        self.policy = self._told(self.policy)

    def _told(self, policy: Policy) -> Policy:
        """Return the policy, after telling it about the run; refuse one with another ledger."""
        same = policy.ledger is None or policy.ledger is self.ledger
        expected = "the run's: make the policy with ledger=..."
        ConfigError.unless(same, "ledger of the policy", "one of its own", expected)
        policy.run, policy.replays = self.run, True
        return policy

    @property
    def _own_clips(self) -> bool:
        """Whether clients can have clips of their own."""
        protection = self.engine.federation.protection
        return protection is not None and protection.of.own_clips

    def spending(self) -> Spending:
        """Return what every client has spent up to the last round played."""
        return self.ledger.spending(self.run, self.engine.next_round)

    def step(self) -> RoundResult | None:
        """Plan, reserve, play, settle and learn; None if the run ends with the budget."""
        engine, index = self.engine, self.engine.next_round
        self.present = engine.present()
        if index == 0:
            self.joined_first = int(self.present.sum())
        if self.reward == "test" and self._last is None:
            self._last = engine.evaluate().rmse
        invited, forecast = self._invited(index), _Forecast(self)
        plan = None if self.over else self._planned(invited, forecast)
        if plan is None:
            self.over = True
            return None if self.stops else engine.rest().planned(None, engine.seen)
        plan = reserved(plan, self.ledger, self.run, self._inputs(index, invited))
        record = self._played(plan, index, forecast)
        paid = plan.reservation is not None
        if plan.reservation is not None:
            self.ledger.settle(plan.reservation)
        reward, seen = self._reward(record, plan), engine.seen
        if paid and not record.aborted:
            if seen.noise_std > 0 and np.isfinite(seen.aggregate).all():
                self.context.released(seen.aggregate, seen.noise_std)
            if self.policy.follows_norms:
                alone = None if seen.norms is None else seen.norms.astype(np.float64)
                mean = np.linalg.norm(seen.aggregate.astype(np.float64))
                self.policy.saw(float(mean) if alone is None else alone)
        self.policy.learn(plan, reward)
        number = int(plan.participants.sum()) if paid else 0
        return record.planned(plan, seen, reward=reward, paid=number)

    def _inputs(self, index: int, invited: Mask) -> bytes:
        """Return a hash of all that the uploads of a round follow from."""
        who = (invited.tobytes(),) if self.engine.everyone_joins else ()
        return self.ledger.fingerprint(self.mark, str(index).encode(), *who)

    def _planned(self, invited: Mask, forecast: _Forecast) -> Plan | None:
        """Return what the policy proposes for the invited clients; None: it has stopped."""
        policy = self.policy
        policy.present = None if self.present.all() else self.present
        if policy.forecasts and (policy.forecast is not None or forecast.gain(np.zeros(1))):
            policy.forecast = forecast
        context = context_of(self.context.of(self))
        plan = policy.plan(context, None if invited.all() else invited)
        if plan is None:
            return None
        fits = plan.own_clip is None or self._own_clips
        ConfigError.unless(fits, "own_clip", "one per client", "none, unless privacy.unit = row")
        return replace(plan, participants=plan.participants & invited, reservation=None)

    def _played(self, plan: Plan, index: int, forecast: _Forecast) -> RoundResult:
        """Play a round, if it is paid for and enough clients answer; return its result."""
        if plan.reservation is None:
            return self.engine.rest()
        fails = self._drawn(0xD407, index).random(len(self.ledger)) < self.dropout
        answers = plan.participants & ~fails
        own = plan.own_clip
        if own is None and self._own_clips and self.policy.follows_norms:
            own = np.ones(len(self.ledger))
        charges = plan.charge_by_class
        if plan.class_of_client is not self.ledger.budgets.class_of_client:
            # Always as many charges of their own, so that rounds are compiled once.
            charges = np.pad(charges, (0, 1 + GROUPS - len(charges)))
        terms = round_parameters(
            self.ledger.accountant, self.trust, plan.largest_clip, charges, answers,
            plan.class_of_client, own, self.ledger.neighbours, invited=plan.participants,
            tolerance=self.tolerance,
        )  # fmt: skip
        split = forecast.split()
        self.engine.divide(split)
        invited, answered = int(plan.participants.sum()), int(terms.granted.sum())
        if terms.share is not None and answered < invited - self.tolerance.of(invited)[0]:
            record = replace(self.engine.rest(), aborted=True)  # too few shares of the noise
        else:
            record = self.engine.step(terms, plan)
            if terms.share is not None and not record.aborted:
                together = float(terms.share) * max(record.clients, 1) ** 0.5
                surplus = max(0.0, together / float(terms.scale.max()) - 1)
                record = replace(record, surplus=surplus)
        return replace(record, split=split or None)

    def _invited(self, index: int) -> Mask:
        """Return the invited clients, out of those that can be reached."""
        if self.participation >= 1:
            return self.present
        order = self._drawn(0x1417, index).permutation(len(self.ledger))
        order[~self.present] = len(order)
        wanted = max(1, round(self.participation * int(self.present.sum())))
        chosen = np.zeros(len(order), dtype=bool)
        chosen[np.argsort(order, kind="stable")[:wanted]] = True
        return chosen & self.present

    def _drawn(self, *of: int) -> np.random.Generator:
        """Return a generator that the seed and these numbers determine, also after a resume."""
        return np.random.default_rng([self.seed, *of])

    def _reward(self, record: RoundResult, plan: Plan) -> float | None:
        """Return what the policy is told about a round; None if nothing is known."""
        if self.reward in ("test", "loss"):
            now = record.metrics.rmse if self.reward == "test" else record.loss
            if now is None or not np.isfinite(now):
                return None  # the run reports elsewhere that it diverged
            before, self._last = self._last, now
            return None if before is None or not np.isfinite(before) else before - now
        seen = self.engine.seen
        if plan.reservation is None or record.aborted:
            return None
        if self.reward == "none" or self.policy.forecast is not None:
            return None
        signal = float(seen.aggregate @ seen.aggregate) - len(seen.aggregate) * seen.noise_std**2
        if not np.isfinite(signal):
            return None
        self._first_signal = self._first_signal or abs(signal) or 1.0
        return signal / self._first_signal

    def state_dict(self) -> dict[str, Any]:
        """Return everything that rounds pass on, as plain data, without the ledger."""
        policy = self.policy.state_dict()
        return {"version": STATE_VERSION, "policy": policy, **remembered(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned; refuse that of an earlier release."""
        if state.get("version") != STATE_VERSION:
            then = "finish the run with that release, or start a new one"
            raise SchemaError(f"the checkpoint is of an earlier release: {then}")
        self.policy = self._told(type(self.policy).from_state(state["policy"], ledger=self.ledger))
        recall(self, state)


class _Forecast:
    """The learner's forecast for the clients within reach, from what was released before a round.

    Where a share of the clients is invited to a round, a payment lasts until all were invited.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._of, self._learner = coordinator, coordinator.engine.federation.model
        self.steps = self._learner.steps
        protection = coordinator.engine.federation.protection
        norm: Literal["l1", "l2"] = "l2" if protection is None else protection.norm
        # The memory of now, also if the forecast is looked at later.
        self._known = coordinator.engine.state.memory, coordinator.policy.clip, norm
        budgets, left = coordinator.ledger.budgets, coordinator.spending().left()
        self._left = [
            left[coordinator.present & (budgets.class_of_client == index)]
            for index in range(len(budgets.classes))
        ]
        """What the clients within reach can still pay, for each class of budgets."""

    def left(self) -> Floats:
        """Return what the client of each class that has most left can still pay."""
        return np.array([left.max(initial=0.0) for left in self._left])

    def precision(self, charges: Floats) -> float:
        """Return 1 / noise variance of the mean upload, summed until everyone was invited.

        The charges are those of the clients with most left; each pays the same share of its own.
        """
        of, share = self._of, self._of.participation
        parts, number = self._parts
        std = noise_of_mean(
            of.ledger.accountant, of.trust, of.policy.clip, (charges[:, None] * parts).ravel(),
            share * number, of.ledger.neighbours, tolerance=of.tolerance,
            answering=1 - of.dropout,
        )  # fmt: skip
        return float(1.0 / share / std**2)

    @cached_property
    def _parts(self) -> tuple[Floats, Floats]:
        """What clients have left over the most of their class, and how many do, in groups."""
        groups = [in_groups(left, None) for left in self._left]
        parts = np.zeros((len(groups), max(len(values) for values, _ in groups)))
        number = np.zeros_like(parts)
        for row, (values, index) in enumerate(groups):
            parts[row, : len(values)] = values / max(values[-1], TICK)
            number[row, : len(values)] = np.bincount(index, minlength=len(values))
        return parts, number.ravel()

    def pooled(self, after: Floats) -> Floats:
        """Return by which factor a payment's precision grows if it is made so much later.

        More clients will have joined by then, as fast as they did so far. As long as that cannot
        be told, all who are missing join by the end, or no one if the ledger has spare places.

        They can pay without the others, too. So waiting brings only what paying together does:
        under ``secagg`` precisions of a and b, in root, give (a + b)^2 and not a^2 + b^2. Of the
        difference, half is counted here; the other half is that of those who join.
        """
        of, index = self._of, self._of.engine.next_round
        if of.trust != "secagg":  # each upload has its own noise
            return np.ones(len(after))
        now, missing = int(of.present.sum()), int((~of.present).sum())
        rate = missing / max(of.policy.rounds - index, 1) if of.engine.everyone_joins else 0.0
        if index >= _LONG_ENOUGH:
            rate = (now - of.joined_first) / index
        # How many clients with a whole budget would buy as much as those within reach.
        accountant, classes = of.ledger.accountant, of.ledger.budgets.classes
        power = 1.0 if accountant.counts_epsilons else 0.5
        there = sum(
            ((left / accountant.capacity(budget)) ** power).sum()
            for left, budget in zip(self._left, classes, strict=True)
        )
        return np.asarray(1.0 + np.minimum(rate * after, missing) / max(float(there), 1e-9))

    def gain(self, precision: Floats) -> dict[str, Floats]:
        """Return what the learner expects of some precisions, by measure; empty: not known."""
        memory, clip, norm = self._known
        return self._learner.forecast(memory, precision, clip, norm)

    def came(self) -> dict[str, tuple[float, float]]:
        """Return what was sent before this round was worth, as the round has shown since."""
        before, clip, norm = self._known
        return self._learner.came(before, self._of.engine.state.memory, clip, norm)

    def split(self) -> dict[str, float]:
        """Return how what was left is best divided between the parts of an upload."""
        if type(self._learner).split is Learner.split:  # of one part: the default
            return {}
        memory, clip, norm = self._known
        return self._learner.split(memory, self.precision(self.left()), clip, norm)
