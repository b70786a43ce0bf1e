"""Play the planner in federations that nobody tuned it for, and compare it with an even schedule.

    python -m benchmarks.worlds                        families for tuning, three seeds
    python -m benchmarks.worlds --kept --seeds 10      those kept for the end
    python -m benchmarks.worlds --only clicks --policies bgt,early,late

Each policy that has an objective plays twice: planned for all rounds, and for the last one. Gains
are over an even schedule, paired by seed, in units of .0001 of RMSE (0 to 1) and .001 of NDCG@10,
with the half width of their 95 % interval. A gain below -3 is marked with !, one that is
significantly negative (Holm, over all cells of the table) with !!. The last column is the best
of all policies played, as hindsight has it. The exit code is 1 if anything is marked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ttest_1samp

from benchmarks.worlds.families import KEPT, TUNING, Family
from bgtplanner import simulate
from bgtplanner.runs.statistics import estimate

ROUNDS = 40
FIGURES = {
    "RMSE served": ("served", "rmse_served", -1e4),
    "RMSE last": ("last", "rmse_final", -1e4),
    "NDCG served": ("served", "ndcg_at_10_served", 1e3),
    "NDCG last": ("last", "ndcg_at_10", 1e3),
}
"""By name: the objective, the key of the summary, and what a gain is multiplied by."""

EVEN, _TOO_LOW, _SURE = "uniform", -3.0, 0.05

Row = dict[str, Any]


class Cell(NamedTuple):
    """One run."""

    world: str
    policy: str
    objective: str
    seed: int
    rounds: int = ROUNDS


def cells_of(
    worlds: Iterable[str], policies: Iterable[str], seeds: int, rounds: int = ROUNDS
) -> list[Cell]:
    """Return all runs; only the planner has an objective."""
    every = [(EVEN, "any"), *((one, "any") for one in policies if one not in (EVEN, "bgt"))]
    every += [("bgt", one) for one in ("served", "last") if "bgt" in policies]
    return [
        Cell(world, policy, objective, seed, rounds)
        for world in worlds
        for seed in range(seeds)
        for policy, objective in every
    ]


def play(cell: Cell, family: Family) -> Row:
    """Return what came of one run."""
    ratings = family.drawn(cell.world, cell.seed)
    settings = dict(family.all_settings)
    if cell.objective != "any":
        settings["planning.objective"] = cell.objective
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = simulate(
            ratings, policy=cell.policy, rounds=cell.rounds, seed=cell.seed, settings=settings
        )
    keys = ["planner_note", "rmse_client_alone", *(key for _, key, _ in FIGURES.values())]
    figures = {key: found.summary.get(key) for key in keys}
    if ratings.implicit:  # an error of clicks that are all 1 says nothing
        figures |= {key: None for key in keys if key.startswith("rmse")}
    return {**cell._asdict(), **figures}


def played(cells: Sequence[Cell], families: dict[str, Family], path: Path | None) -> Iterator[Row]:
    """Yield what came of each run; what the file has is not played again."""
    lines = path.read_text("utf-8").splitlines() if path is not None and path.exists() else []
    rows = (json.loads(line) for line in lines)
    known = {Cell(*(row[name] for name in Cell._fields)): row for row in rows}
    for cell in cells:
        if cell not in known:
            known[cell] = play(cell, families[cell.world])
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[cell]) + "\n")
        yield known[cell]


def gains(rows: Sequence[Row], world: str, policy: str, figure: str) -> list[float]:
    """Return by how much a policy beats an even schedule, seed by seed."""
    objective, key, unit = FIGURES[figure]

    def values(of: str) -> dict[int, float]:
        return {
            row["seed"]: unit * row[key]
            for row in rows
            if (row["world"], row["policy"]) == (world, of)
            and row["objective"] in ("any", objective)
            and row[key] is not None
        }

    ours, even = values(policy), values(EVEN)
    return [ours[seed] - even[seed] for seed in sorted(ours) if seed in even]


def marks(found: dict[tuple[str, str], list[float]]) -> dict[tuple[str, str], str]:
    """Return how each cell is marked."""
    chances = {
        at: float(ttest_1samp(of, 0.0, alternative="less").pvalue)
        for at, of in found.items()
        if len(of) > 1 and np.ptp(of) > 0
    }
    said = {at: "!" if of and statistics.fmean(of) < _TOO_LOW else "" for at, of in found.items()}
    for rank, at in enumerate(sorted(chances, key=lambda one: chances[one])):
        if chances[at] * (len(chances) - rank) > _SURE:
            break
        said[at] = "!!"
    return said


def table(rows: Sequence[Row], policy: str = "bgt") -> tuple[str, bool]:
    """Return the table in Markdown, and whether no cell is marked."""
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    others = list(dict.fromkeys(row["policy"] for row in rows))
    found = {
        (world, name): gains(rows, world, policy, name) for world in worlds for name in FIGURES
    }
    said = marks(found)
    lines = [f"| world | {' | '.join(FIGURES)} | the best of all |", "|---" * 6 + "|"]
    for world in worlds:
        cells, best = [], []
        for name in FIGURES:
            away = estimate(found[world, name])
            if away is None:
                cells.append("–")
                continue
            wide = "" if away.high is None else f" ± {away.high - away.mean:.1f}"
            cells.append(f"{away.mean:+.1f}{wide} {said[world, name]}".strip())
            every = [statistics.fmean(gains(rows, world, one, name)) for one in others]
            best.append(f"{max(every):+.1f}")
        lines.append(f"| {world} | {' | '.join(cells)} | {', '.join(best)} |")
    return "\n".join(lines) + "\n", not any(said.values())


def main(
    arguments: Sequence[str] | None = None, say: Callable[[str], object] = sys.stdout.write
) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.worlds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kept", action="store_true", help="the families kept for the end")
    parser.add_argument("--only", help="some of the families, with commas")
    parser.add_argument("--policies", default="bgt", help="with commas; default %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="where results are kept, one a line")
    given = parser.parse_args(arguments)
    families = KEPT if given.kept else TUNING
    worlds = list(families) if given.only is None else given.only.split(",")
    if not set(worlds) <= set(families):
        parser.error(f"--only: expected some of {', '.join(families)}")
    cells = cells_of(worlds, given.policies.split(","), given.seeds, given.rounds)
    rows = list(played(cells, families, given.out))
    text, fine = table(rows, given.policies.split(",")[0])
    say(text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
