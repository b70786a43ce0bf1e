"""The result of a round: one record from the device to ``rounds.jsonl`` and to observers.

The engine creates it, the coordinator fills in what was planned and paid, and the loop of a run
fills in how long it took; then it is written and shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.models.metrics import Metrics, of_ratings
from bgtplanner.planning.plan import Plan

_ALWAYS = ("loss", "clients", "ratings", "seconds")
_IF_KNOWN = ("rmse_arriving", "why", "spent", "split", "asked", "refused", "dropped_by_kind",
             "aborted", "surplus")  # fmt: skip


class Seen(NamedTuple):
    """What the server saw in a round."""

    aggregate: NDArray[np.float32] = np.zeros(0, dtype=np.float32)  # the released mean, flat
    noise_std: float = 0.0  # of the noise on each of its coordinates; NaN if it differs
    norms: NDArray[np.float32] | None = None  # of each client's own gradient, with its own clip

    @classmethod
    def of(cls, released: Any) -> Self:
        """Return what a round released, in plain numbers."""
        flat = np.concatenate([np.asarray(of).ravel() for of in released.aggregate.gradient])
        return cls(flat, float(released.noise_std), released.norms)


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The result of a round. Fields about a budget are None in a run without one."""

    round: int
    metrics: Metrics  # on the held-out ratings after the round; empty on real machines
    loss: float | None  # mean of the participating clients, before the round
    clients: int
    ratings: int | None  # training ratings known; None, like the loss, on real machines
    rmse_arriving: float | None = None  # on the ratings that arrive, predicted before they do
    charge: float | None = None  # of a client of the class that paid most
    charges: list[float] | None = None  # of each class of budgets, or all different ones
    paid: int = 0
    late: int = 0  # how many of those who paid answered too late
    dropped: int = 0  # uploads that the server did not accept
    level: int | None = None
    clip: float | list[float] | None = None  # the largest
    noise_multiplier: float | list[float] | None = None  # the smallest
    released_norm: float | None = None  # of the aggregate that the server used
    noise_norm: float | None = None  # that its noise alone is expected to have
    reward: float | None = None
    left: list[float] = field(default_factory=list)  # share of its budget, for each class
    why: dict[str, str | list[float]] | None = None
    spent: list[list[int]] | None = None  # largest sums of each class, in ticks
    split: dict[str, float] | None = None  # of the charge between the parts of an upload
    asked: int | None = None  # real machines, of which some refused
    refused: int | None = None
    dropped_by_kind: dict[str, int] | None = None
    aborted: bool | None = None  # too many dropped out: it was paid for, and nothing was learned
    surplus: float | None = None  # by which share the shared noise was above the promised
    seconds: float = 0.0
    plan: Plan | None = field(default=None, compare=False, repr=False)
    seen: Seen | None = field(default=None, compare=False, repr=False)

    def planned(
        self, plan: Plan | None, seen: Seen, *, reward: float | None = None, paid: int = 0
    ) -> Self:
        """Return the result with what was planned, paid and released."""
        norm = noise = None
        if len(seen.aggregate) and math.isfinite(seen.noise_std):
            norm = float(np.linalg.norm(seen.aggregate))
            noise = seen.noise_std * math.sqrt(len(seen.aggregate))
        of_plan: dict[str, Any] = {"charge": 0.0, "charges": []}
        if plan is not None:
            least = None if plan.skip else float(plan.noise_by_class.multiplier.min())
            why = plan.why._asdict().items()
            of_plan = {
                "charge": float(plan.charge_by_class.max()) if paid else 0.0,
                "charges": plan.charge_by_class.tolist(), "level": plan.level,
                "clip": plan.largest_clip, "noise_multiplier": least,
                "why": {of: it if isinstance(it, str) else list(it) for of, it in why if it},
            }  # fmt: skip
        return replace(
            self, paid=paid, released_norm=norm, noise_norm=noise, reward=reward, plan=plan,
            seen=seen, **of_plan,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return a line of ``rounds.jsonl``, which is what observers and the report see."""
        scores = {name: self.metrics.get(name) for name in of_ratings()}
        line: dict[str, Any] = {"round": self.round, **scores}
        for name in (entry.name for entry in fields(self) if entry.compare):
            value = getattr(self, name)
            known = value is not None if name in _IF_KNOWN else self.charge is not None
            if name not in line and name != "metrics" and (name in _ALWAYS or known):
                line[name] = value
        return line
