"""What came out: tables, targets and the figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from scipy.stats import t as student

from benchmarks.regret.environments import KINDS, SEEDS
from benchmarks.regret.play import POLICIES, Cell, Results
from bgtplanner.report.pictures import BLUE, GREEN

TARGET_SLOPE, TARGET_RATIO = 0.75, 0.90
RIVALS = ("random", "uniform", "greedy")
NAMES = {
    "planner": "planner",
    "paper": "the paper's constants",
    "uniform": "uniform",
    "random": "random",
    "greedy": "greedy",
}
COLOURS = {  # of policies as everywhere; markers tell them apart without colour
    "planner": (BLUE, "o"),
    "paper": ("#0072B2", "s"),
    "uniform": (GREEN, "^"),
    "random": ("#AA4499", "v"),
    "greedy": ("#000000", "x"),
}
_LATE = 1000  # rounds from which on a second slope is given: does learning level off?


class Estimate(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Estimate:
        number = len(values)
        if number < 2:
            return cls(float(values.mean()), float("nan"))
        error = float(values.std(ddof=1)) / number**0.5
        return cls(float(values.mean()), float(student.ppf(0.975, number - 1)) * error)

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half:.3f}"


class Report:
    """What came out, for the seeds of which everything has been played."""

    def __init__(self, results: Results, rounds: Sequence[int], seeds: Sequence[int]) -> None:
        self.rounds = tuple(rounds)
        self.seeds = tuple(
            seed
            for seed in seeds
            if not results.missing(cells_of(KINDS, self.rounds, [seed], POLICIES))
        )
        self.wanted = len(seeds)
        self._results = results

    def values(self, kind: str, rounds: int, policy: str, what: str) -> NDArray[np.float64]:
        """One a seed."""
        rows = (self._results.get(Cell(kind, rounds, seed, policy)) for seed in self.seeds)
        return np.array([row[what] for row in rows if row is not None])

    def ratio(self, kind: str, rounds: int, policy: str) -> Estimate:
        """Reward over the optimum."""
        return Estimate.of(self.values(kind, rounds, policy, "ratio"))

    def slope(self, policy: str, *, least: int = 0) -> Estimate | None:
        """Of log regret over log rounds, where nothing changes; None if some is not positive.

        Args:
            policy: Whose.
            least: Fewest rounds to count.
        """
        counted = [rounds for rounds in self.rounds if rounds >= least]
        if len(counted) < 2:
            return None
        every = [self.values("stationary", rounds, policy, "regret") for rounds in counted]
        regret = np.stack(every, axis=1)  # [seeds, rounds]
        if not (regret > 0).all():
            return None
        logs = np.log(np.asarray(counted, dtype=np.float64))
        away = logs - logs.mean()
        return Estimate.of(np.log(regret) @ away / (away @ away))  # least squares, seed by seed

    def lead(self, kind: str, rounds: int, rival: str) -> Estimate:
        """By how much the planner's ratio is above a rival's, on the same seeds."""
        ours = self.values(kind, rounds, "planner", "ratio")
        return Estimate.of(ours - self.values(kind, rounds, rival, "ratio"))

    def targets(self) -> list[tuple[str, str, bool]]:
        """What was asked for, what came out, and whether that will do."""
        found = []
        slope, longest = self.slope("planner"), max(self.rounds)
        what = f"slope of the planner's regret, stationary, at most {TARGET_SLOPE}"
        if slope is None:
            found.append((what, "none: regret is not positive everywhere", True))
        else:
            found.append((what, str(slope), slope.mean <= TARGET_SLOPE))
        ratio = self.ratio("stationary", longest, "planner")
        what = f"reward over the optimum at T = {longest:,}, stationary, at least {TARGET_RATIO}"
        found.append((what, str(ratio), ratio.mean >= TARGET_RATIO))
        for rival in RIVALS:
            leads = [
                (self.lead(kind, rounds, rival), kind, rounds)
                for kind in KINDS
                for rounds in self.rounds
            ]
            won = sum(lead.mean - lead.half > 0 for lead, _, _ in leads)
            least, kind, rounds = min(leads, key=lambda one: one[0].mean)
            text = f"{won} of {len(leads)}; least lead {least} ({kind}, T = {rounds:,})"
            what = f"cases in which the planner beats {rival}, paired by seed"
            found.append((what, text, won == len(leads)))
        return found

    def rows(self) -> list[list[str]]:
        """Reward ratios, a row for each kind and number of rounds; then the slopes."""
        found = [
            [kind, f"{rounds:,}", *(str(self.ratio(kind, rounds, name)) for name in POLICIES)]
            for kind in KINDS
            for rounds in self.rounds
        ]
        slopes = [self.slope(name) for name in POLICIES]
        late = [self.slope(name, least=_LATE) for name in POLICIES]
        for what, every in (("all", slopes), (f"{_LATE:,} and more", late)):
            texts = ["" if slope is None else str(slope) for slope in every]
            found.append(["slope, stationary", what, *texts])
        return found

    def as_markdown(self) -> str:
        """For the documentation."""
        head = ["environment", "T", *NAMES.values()]
        rule = ["---", *["---:"] * (len(head) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (head, rule, *self.rows())]
        some = len(self.seeds) < self.wanted or self.wanted < len(SEEDS)
        few = f"**Not finished:** {len(self.seeds)} of {len(SEEDS)} seeds. " if some else ""
        text = (
            f"{few}Expected reward over the optimum, mean of {len(self.seeds)} seeds ± half the "
            "95 % interval; last rows: slope of log regret over log T.\n\n"
        )
        met = [
            f"| {what} | {value} | {'met' if good else 'MISSED'} |"
            for what, value, good in self.targets()
        ]
        targets = ["| target | measured | |", "|---|---|---|", *met]
        return text + "\n".join(lines) + "\n\n" + "\n".join(targets)

    def as_tables(self) -> list[Table]:
        """For the terminal."""
        first = Table(title="Reward over the optimum", title_justify="left", box=box.SIMPLE_HEAD)
        for index, column in enumerate(("environment", "T", *NAMES.values())):
            first.add_column(column, justify="right" if index else "left")
        for row in self.rows():
            first.add_row(*row)
        second = Table(title="Targets", title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("target", "measured", ""):
            second.add_column(column)
        for what, value, good in self.targets():
            second.add_row(what, value, "met" if good else "MISSED")
        return [first, second]

    def draw(self, path: Path) -> None:
        """Regret over rounds where nothing changes, reward ratios elsewhere."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        mpl.rcParams.update({"svg.hashsalt": "regret", "svg.fonttype": "none", "font.size": 9})
        figure, grid = plt.subplots(2, 3, figsize=(11, 7), layout="constrained")
        panels = grid.ravel()
        for panel in panels[len(KINDS) :]:
            panel.set_axis_off()
        for panel, kind in zip(panels, KINDS, strict=False):
            what = "regret" if kind == "stationary" else "ratio"
            for place, (name, (colour, marker)) in enumerate(COLOURS.items()):
                cells = [self.values(kind, rounds, name, what) for rounds in self.rounds]
                found = [Estimate.of(values) for values in cells]
                panel.errorbar(
                    np.multiply(self.rounds, 1.03 ** (place - 2)),  # side by side
                    [estimate.mean for estimate in found],
                    yerr=[np.nan_to_num(estimate.half) for estimate in found],
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linewidth=2 if name == "planner" else 1.2,
                    capsize=2,
                    label=NAMES[name],
                )
            panel.set_xscale("log", base=2)
            panel.set_xticks(self.rounds, [f"{rounds:,}" for rounds in self.rounds])
            panel.set_xlabel("rounds T")
            panel.set_title(kind)
            panel.grid(alpha=0.3)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
            if what == "regret":
                panel.set_yscale("log")
                panel.set_ylabel("regret")
            else:
                panel.set_ylabel("reward over the optimum")
                panel.set_ylim(0, 1)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def cells_of(
    kinds: Iterable[str], rounds: Iterable[int], seeds: Iterable[int], policies: Iterable[str]
) -> list[Cell]:
    """Seed by seed, so that a part of them is a smaller version of the whole."""
    return [
        Cell(kind, number, seed, policy)
        for seed in seeds
        for number in rounds
        for kind in kinds
        for policy in policies
    ]
