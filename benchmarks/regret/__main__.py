"""Play the planner and its rivals in environments whose optimum is known, and say how they did.

    python -m benchmarks.regret                     everything; about half an hour on one core
    python -m benchmarks.regret --seeds 3 --rounds 250 500

Results are kept in `benchmarks/results/regret.jsonl`: a run that was stopped goes on where it was.
The exit code is 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.paper.page import put
from benchmarks.regret.environments import KINDS, ROUNDS, SEEDS
from benchmarks.regret.play import POLICIES, Cell, Results
from benchmarks.regret.report import Report, cells_of

_SECONDS_A_ROUND = {"planner": 2.2, "paper": 1.3}  # in proportion, to guess what is left


def _weight(cell: Cell) -> float:
    return cell.rounds * _SECONDS_A_ROUND.get(cell.policy, 0.3)


def play_all(results: Results, cells: list[Cell], jobs: int, console: Console) -> None:
    """Play what is missing; says every few seconds how much time is left."""
    missing = results.missing(cells)
    known, left = len(cells) - len(missing), sum(map(_weight, missing))
    whole, begun, said = left, time.perf_counter(), 0.0
    console.print(f"{known:,} of {len(cells):,} runs are known already", highlight=False)
    for number, (cell, _) in enumerate(results.fill(missing, jobs), start=known + 1):
        left -= _weight(cell)
        spent = time.perf_counter() - begun
        if spent - said >= 20 or number == len(cells):
            said = spent
            minutes = spent * left / max(whole - left, 1e-9) / 60
            text = f"{number:,} of {len(cells):,} runs; about {minutes:.0f} minutes left"
            console.print(text, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.regret",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many; all by default")
    parser.add_argument("--rounds", type=int, nargs="+", default=list(ROUNDS), choices=ROUNDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-play", action="store_true", help="report on what is known already")
    parser.add_argument(
        "--any-code", action="store_true", help="take known results whatever code they are of"
    )
    parser.add_argument("--no-check", action="store_true", help="exit with 0 whatever comes out")
    default = Path("benchmarks/results/regret.jsonl")
    parser.add_argument("--results", type=Path, default=default, help="where results are kept")
    parser.add_argument(
        "--docs", type=Path, help="where to write; docs for the whole, else build/bench"
    )
    given = parser.parse_args()
    if not 1 <= given.seeds <= len(SEEDS):
        parser.error(f"--seeds {given.seeds}: 1 to {len(SEEDS)}")

    console = Console()
    results = Results(given.results, any_code=given.any_code)
    rounds, seeds = sorted(given.rounds), SEEDS[: given.seeds]
    if not given.no_play:
        cells = cells_of(KINDS, rounds, seeds, tuple(POLICIES))
        play_all(results, cells, given.jobs, console)
    report = Report(results, rounds, seeds)
    if not report.seeds:
        console.print("there is no seed of which everything is known yet")
        return 1
    console.print(f"{len(report.seeds)} of {len(SEEDS)} seeds", highlight=False)
    for table in report.as_tables():
        console.print(table)
    whole = len(report.seeds) == len(SEEDS) and tuple(rounds) == ROUNDS
    docs = given.docs or Path("docs" if whole else "build/bench")
    report.draw(docs / "figures" / "regret.svg")
    if (page := docs / "benchmarks.md").exists():
        page.write_text(put(page.read_text("utf-8"), "regret", report.as_markdown()), "utf-8")
    else:
        (page := docs / "regret.md").write_text(report.as_markdown() + "\n", encoding="utf-8")
    console.print(f"written to {page} and {docs / 'figures' / 'regret.svg'}", highlight=False)
    missed = not all(good for _, _, good in report.targets())
    return 1 if missed and not given.no_check else 0


if __name__ == "__main__":
    sys.exit(main())
