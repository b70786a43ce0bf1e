"""What the planner is worth, cell by cell, beside hindsight, the client alone and its rivals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.results.plan import OBJECTIVES, Cell, Place, Study
from benchmarks.results.store import Store
from bgtplanner.runs.statistics import Estimate, estimate

WORTH = 0.005  # share of the client's own error that hindsight has to gain
CLOSED, CLOSED_IN = 0.90, 0.90
_ALONE = "1 last"  # nothing is paid before the last round: until then, clients are alone


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
    """One cell of the planner's study, for one objective.

    Attributes:
        place: Where.
        objective: What was planned for.
        seeds: How many have been run with everything.
        alone: Mean error of the client alone.
        planner: Of the planner.
        hindsight: Of the best fixed schedule, chosen on the test set.
        schedule: That schedule's name.
        uniform: Mean error of an even schedule.
        spent: Epsilon of the client that paid the planner most, over its budget; mean over seeds.
        less: The planner's error minus that of each rival, paired.
    """

    place: Place
    objective: str
    seeds: int
    alone: float
    planner: float
    hindsight: float
    schedule: str
    uniform: float
    spent: float
    less: Mapping[str, Estimate | None] = field(default_factory=dict)

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
        """Whether an even schedule is clearly not the best."""
        return self.uniform - self.hindsight > WORTH * self.uniform

    def misses(self) -> list[str]:
        """Targets that this cell misses, in words."""
        found = []
        if self.worth and self.closed < CLOSED:
            found.append(f"closes {100 * self.closed:.0f} % of the gap")
        if self.apart and verdict(self.less.get("uniform")) != "better":
            found.append("not significantly better than uniform")
        found += [
            f"significantly worse than {name} by {difference.mean:.5f}"
            for name, difference in self.less.items()
            if difference is not None and verdict(difference) == "worse"
        ]
        return found


def findings(study: Study, store: Store) -> list[Finding]:
    """Of all cells of which everything has been run, for at least one seed."""
    found = (
        _finding(study, store, cell, objective) for cell in study.cells for objective in OBJECTIVES
    )
    return [finding for finding in found if finding is not None]


def _finding(study: Study, store: Store, cell: Cell, objective: str) -> Finding | None:
    planner, error = study.planners[objective], OBJECTIVES[objective]
    names = (planner, *study.rivals, *study.schedules)

    def figure(name: str, what: str) -> dict[int, float]:
        return store.figures([study.planned(cell.place, name, seed) for seed in cell.seeds], what)

    errors = {name: figure(name, error) for name in names}
    seeds = set(cell.seeds).intersection(*(set(values) for values in errors.values()))
    if not seeds:
        return None
    errors = {name: {seed: values[seed] for seed in seeds} for name, values in errors.items()}

    def mean(name: str) -> float:
        return statistics.fmean(errors[name].values())

    alone = figure(planner, "rmse_client_alone") if objective == "last" else errors[_ALONE]
    spent = figure(planner, "epsilon_spent_max")
    best = min(study.schedules, key=mean)
    return Finding(
        place=cell.place,
        objective=objective,
        seeds=len(seeds),
        alone=statistics.fmean(alone[seed] for seed in seeds),
        planner=mean(planner),
        hindsight=mean(best),
        schedule=best,
        uniform=mean("uniform"),
        spent=statistics.fmean(spent[seed] for seed in seeds) / cell.place.epsilon,
        less={name: paired(errors[planner], errors[name]) for name in study.rivals},
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
    every = []
    gain, share = f"{100 * WORTH:g} %", f"{100 * CLOSED:g} %"
    for objective in OBJECTIVES:
        here = [one for one in found if one.objective == objective]
        worth, apart = [one for one in here if one.worth], [one for one in here if one.apart]
        closed = sum(one.closed >= CLOSED for one in worth)
        ahead = sum(verdict(one.less.get("uniform")) == "better" for one in apart)
        every += [
            Count(
                target=f"{objective}: where hindsight gains more than {gain}, the planner closes "
                f"at least {share} of the gap, in at least {100 * CLOSED_IN:g} % of these cells",
                met=closed,
                cells=len(worth),
                good=closed >= CLOSED_IN * len(worth),
            ),
            Count(
                target=f"{objective}: where hindsight is more than {gain} better than uniform, "
                "the planner is significantly better than uniform",
                met=ahead,
                cells=len(apart),
                good=ahead == len(apart),
            ),
        ]
        for name in here[0].less if here else ():
            fine = sum(verdict(one.less[name]) != "worse" for one in here)
            every.append(
                Count(
                    target=f"{objective}: never significantly worse than {name}",
                    met=fine,
                    cells=len(here),
                    good=fine == len(here),
                )
            )
    return every
