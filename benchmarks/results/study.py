"""What the planner is worth, cell by cell, beside hindsight, the client alone and its rivals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.results.plan import Cell, Place, Study
from benchmarks.results.store import Store
from bgtplanner.runs.statistics import Estimate, estimate

WORTH = 0.005  # share of the client's own RMSE that hindsight has to gain
CLOSED, CLOSED_IN = 0.80, 0.90
ABSTAIN = 0.10
APART = 3.0  # times by which uniform's own best number of rounds differs from all
_ROUNDING = 1e-6


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Ours less theirs, on the seeds that both have."""
    return estimate([ours[seed] - theirs[seed] for seed in sorted(ours) if seed in theirs])


def verdict(difference: Estimate | None) -> str:
    """What a difference of RMSEs says of ours: ``better``, ``worse``, or ``same`` if unsure."""
    if difference is None or difference.low is None or difference.high is None:
        return "same"
    if difference.high < 0:
        return "better"
    return "worse" if difference.low > 0 else "same"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cell of the planner's study.

    Attributes:
        place: Where.
        seeds: How many have been run with everything.
        alone: Mean RMSE of the client alone.
        planner: Of the planner.
        hindsight: Of the best fixed schedule, chosen on the test set.
        schedule: That schedule's name.
        flat: Of flat schedules, the best number of rounds.
        spent: Share of the budget that the planner spent, mean over seeds.
        less_alone: The planner's RMSE less the client's, paired.
        less: The same for each rival.
        rounds: Of a run.
    """

    place: Place
    seeds: int
    alone: float
    planner: float
    hindsight: float
    schedule: str
    flat: int
    spent: float
    less_alone: Estimate | None
    less: Mapping[str, Estimate | None] = field(default_factory=dict)
    rounds: int = 100

    @property
    def worth(self) -> bool:
        """Whether there is something to gain."""
        return self.alone - self.hindsight > WORTH * self.alone

    @property
    def closed(self) -> float:
        """How much of what hindsight gains the planner gains."""
        return (self.alone - self.planner) / (self.alone - self.hindsight)

    @property
    def apart(self) -> bool:
        """Whether all rounds are far from the best number of them."""
        return self.rounds / self.flat > APART

    def misses(self) -> list[str]:
        """Targets that this cell misses, in words."""
        found = []
        if self.worth and self.closed < CLOSED:
            found.append(f"closes {100 * self.closed:.0f} % of the gap")
        if not self.worth and self.spent >= ABSTAIN:
            found.append(f"spends {100 * self.spent:.0f} % where little is to be gained")
        if not self.worth and self.less_alone is not None and self.less_alone.mean > _ROUNDING:
            how = "significantly " if verdict(self.less_alone) == "worse" else ""
            found.append(f"{how}worse than the client alone by {self.less_alone.mean:.2g}")
        if self.apart and "uniform" in self.less and verdict(self.less["uniform"]) != "better":
            found.append(f"not significantly better than uniform, whose best T is {self.flat}")
        found += [
            f"significantly worse than {name} by {difference.mean:.5f}"
            for name, difference in self.less.items()
            if difference is not None and verdict(difference) == "worse"
        ]
        return found


def findings(study: Study, store: Store) -> list[Finding]:
    """Of all cells of which everything has been run, for at least one seed."""
    found = (_finding(study, store, cell) for cell in study.cells)
    return [finding for finding in found if finding is not None]


def _finding(study: Study, store: Store, cell: Cell) -> Finding | None:
    names = (study.planner, *study.others, *study.schedules)

    def figure(name: str, what: str = "rmse_final") -> dict[int, float]:
        return store.figures([study.planned(cell.place, name, seed) for seed in cell.seeds], what)

    rmse = {name: figure(name) for name in names}
    seeds = set(cell.seeds).intersection(*(set(values) for values in rmse.values()))
    if not seeds:
        return None
    rmse = {name: {seed: values[seed] for seed in seeds} for name, values in rmse.items()}

    def mean(name: str) -> float:
        return statistics.fmean(rmse[name].values())

    alone = figure(study.planner, "rmse_client_alone")
    spent = figure(study.planner, "budget_share")
    best = min(study.schedules, key=mean)
    flat = min((name for name in study.schedules if name.endswith("flat")), key=mean)
    ours = rmse[study.planner]
    return Finding(
        place=cell.place,
        seeds=len(seeds),
        alone=statistics.fmean(alone[seed] for seed in seeds),
        planner=mean(study.planner),
        hindsight=mean(best),
        schedule=best,
        flat=int(flat.split()[0]),
        spent=statistics.fmean(spent[seed] for seed in seeds),
        less_alone=paired(ours, alone),
        less={name: paired(ours, rmse[name]) for name in study.others},
        rounds=study.rounds,
    )


@dataclass(frozen=True, kw_only=True)
class Count:
    """A target over all cells."""

    target: str
    met: int
    cells: int
    good: bool


def counts(found: list[Finding]) -> list[Count]:
    """In how many cells each target is met."""
    rivals = list(found[0].less) if found else []
    worth = [one for one in found if one.worth]
    idle = [one for one in found if not one.worth]
    apart = [one for one in found if one.apart and "uniform" in one.less]
    closed = sum(one.closed >= CLOSED for one in worth)
    saved = sum(one.spent < ABSTAIN for one in idle)
    harmless = sum(one.less_alone is None or one.less_alone.mean <= _ROUNDING for one in idle)
    ahead = sum(verdict(one.less["uniform"]) == "better" for one in apart)
    gain, share = f"{100 * WORTH:g} %", f"{100 * CLOSED:g} %"
    every = [
        Count(
            target=f"hindsight gains more than {gain}: the planner closes at least {share} of "
            f"the gap, in at least {100 * CLOSED_IN:g} % of these cells",
            met=closed,
            cells=len(worth),
            good=closed >= CLOSED_IN * len(worth),
        ),
        Count(
            target=f"elsewhere: less than {100 * ABSTAIN:g} % of the budget is spent",
            met=saved,
            cells=len(idle),
            good=saved == len(idle),
        ),
        Count(
            target="elsewhere: never worse than the client alone",
            met=harmless,
            cells=len(idle),
            good=harmless == len(idle),
        ),
        Count(
            target="uniform's own best number of rounds is more than "
            f"{APART:g} times less: significantly better than uniform",
            met=ahead,
            cells=len(apart),
            good=ahead == len(apart),
        ),
    ]
    for name in rivals:
        fine = sum(verdict(one.less[name]) != "worse" for one in found)
        every.append(
            Count(
                target=f"never significantly worse than {name}",
                met=fine,
                cells=len(found),
                good=fine == len(found),
            )
        )
    return every
