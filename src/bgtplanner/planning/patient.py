"""The patient planner: save the budget for the end, when there is most to learn from, or keep it.

Where the server adds up rounds by their precision (:mod:`bgtplanner.models.bias`), early and late
rounds bring the same information about the same ratings. But ratings keep arriving, so the same
charge buys more late than early. And how much a round can bring under a given amount of noise can
be forecast early, from what was released. So this planner

1. probes in the first round, with a small part of the budget: clients have a model from then on;
2. asks for a forecast: by how much would the error fall if all of the remaining budget were spent?
   If the gain is negligible, it stops: every client continues alone, with almost all of its budget
   unspent;
3. otherwise waits, and spends the rest at the end: in one round if splitting the charge costs
   precision (with Laplace noise two rounds of half the epsilon are worth half of one round), and
   in a few rounds if it does not, so that the later ones can build on the earlier ones.

Without a forecast every round costs an even share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import whole
from bgtplanner.planning.plan import Floats, Why
from bgtplanner.planning.policy import Choice, LedgerPolicy

__all__ = ["Patient"]

_SPLITS_WELL = 0.97  # share of the gain that may be given up for several rounds instead of one


@dataclass(kw_only=True, eq=False, repr=False)
class Patient(LedgerPolicy):
    """Probe, then either abstain or save the budget for the end.

    The context is a forecast of the relative fall of the error in three cases: without spending
    more, with all that is left spent in one round, and with it spent in `at_end` rounds.

    Args:
        probe: Share of the budget that the first round costs.
        at_end: In how many rounds a client spends the rest, where splitting costs nothing.
        worthwhile: The smallest relative fall of the error that is worth the rest of the budget.

    Example:
        >>> from bgtplanner import Budget
        >>> planner = Patient(Budget(10.0, 1e-5), 1000, rounds=6, mechanism="gaussian")
        >>> spent = []
        >>> while (plan := planner.ask([0.01, 0.08, 0.08])) is not None:
        ...     spent.append(round(float(planner.share_of(plan.charge_by_class)[0]), 2))
        ...     planner.tell(plan)
        >>> spent
        [0.06, 0.0, 0.0, 0.31, 0.31, 0.31]
    """

    probe: float = 0.06
    at_end: int = 3
    worthwhile: float = 0.004

    def __post_init__(self) -> None:
        probe, at_end, worthwhile = self.probe, self.at_end, self.worthwhile
        ConfigError.unless(bool(0 < probe < 1), "probe", probe, "above 0 and below 1")
        fits = isinstance(at_end, int) and 1 <= at_end <= 1000
        ConfigError.unless(fits, "at_end", at_end, "a whole number from 1 to 1000")
        fits = bool(0 <= worthwhile < 1)
        ConfigError.unless(fits, "worthwhile", worthwhile, "from 0 to below 1")
        super().__post_init__()
        # So many rounds that each client takes part in `at_end` of them.
        self._window = math.ceil(min(at_end / self.participation, self.rounds))
        self._last_rounds: int | None = None

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge the probe, nothing while it waits, or an even part of the rest."""
        if len(context) != 3:
            return Choice(self._even, why=_why("an even share: there is no forecast", context))
        rounds_left = self.rounds - self.round
        if self.round == 1 and rounds_left >= self._window and not self.abstained:
            self._look_ahead(float(max(context[1:])))
        if self.abstained:
            return None
        if self._last_rounds is None and rounds_left <= self._window:
            well = context[2] >= _SPLITS_WELL * context[1]
            one = math.ceil(min(1 / self.participation, rounds_left))  # one round per client
            self._last_rounds = rounds_left if well else one
        if self._last_rounds is not None and rounds_left <= self._last_rounds:
            charges = left / rounds_left
            if self.participation < 1:  # `left` is the most that any invited client has
                # A client that paid for the probe must be able to pay for each of these rounds.
                saved = 1.0 if self._last_rounds == self.rounds else 1 - self.probe - 1e-9
                charges = saved * self.even_charges(self._last_rounds)
            return Choice(charges, why=_why("what was saved", context))
        if self.round == 0 and self._last_rounds is None:
            return Choice(self.probe * left, why=_why("a probe", context))
        return Choice(np.zeros(len(self.budgets.classes)), why=_why("saving", context))

    def _look_ahead(self, promised: float) -> None:
        """Decide once, after the probe, whether the rest of the budget is worth spending."""
        self.abstained = promised < self.worthwhile
        self.note = (
            f"abstained: spending the rest would lower the error by {promised:.1%}, less than the "
            f"{self.worthwhile:.1%} that is worth it"
            if self.abstained
            else f"saved for the last rounds: forecast of an error {promised:.1%} below a "
            "client's own"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything it is and has decided, as plain data."""
        own = {"note": self.note, "abstained": self.abstained, "last_rounds": self._last_rounds}
        return super().state_dict() | own

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        note, last, abstained = state["note"], state["last_rounds"], state["abstained"]
        named = note is None or isinstance(note, str)
        ConfigError.unless(named, "state: note", type(note).__name__, "a text, or None")
        decided = isinstance(abstained, bool)
        ConfigError.unless(decided, "state: abstained", type(abstained).__name__, "true or false")
        self.note, self.abstained = note, abstained
        if last is not None:
            self._last_rounds = whole("state: last_rounds", last, 1, self.rounds)


def _why(note: str, context: Floats) -> Why:
    """Return the reason, with the three forecasts in the place of levels."""
    return Why(note, predicted=tuple(context.tolist()))
