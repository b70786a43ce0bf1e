"""Run the paper's Table 2 and its figures, and write what came out into the documentation.

    python -m benchmarks.paper                      write what has been run into docs/paper.md
    python -m benchmarks.paper --run --jobs 16      run what is missing first
    python -m benchmarks.paper --run --quick        one data set, one seed, a corner of the figures
    python -m benchmarks.paper --plan               say what would be run

Finished runs are kept in `runs/paper` and never run again. A part without results is left as it
is. Until Table 2 is there with five seeds of all three data sets, the page is `build/paper.md`
instead of `docs/paper.md`, unless told otherwise by --docs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.paper.claims import claims
from benchmarks.paper.figures import figure_part
from benchmarks.paper.findings import clip_effect, closeness, gains, misses
from benchmarks.paper.guarantees import guarantee, theorem
from benchmarks.paper.page import blank, write_parts
from benchmarks.paper.plan import COMPARED, DATASETS, FIGURES, RUNS, TEN_USERS, Job, jobs_of
from benchmarks.paper.results import PROVENANCE, Results, finished, write_halves
from benchmarks.paper.table import commands, deviations, how_to_run, other_readings, table2
from benchmarks.provenance import here
from bgtplanner.errors import BGTPlannerError, InterruptedRunError
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.study import Cell, check_settings, parse_seeds, run_cells

TABLES = {
    "table2": table2,
    "readings": other_readings,
    "deviations": deviations,
    "commands": commands,
    "closeness": closeness,
    "misses": misses,
    "clip": clip_effect,
    "gains": gains,
    "theorem": theorem,
    "guarantee": guarantee,
    "claims": claims,
}
TITLES = {
    "table2": "Table 2",
    "readings": "Other readings",
    "deviations": "Deviations",
    "commands": "The commands",
    "closeness": "How near print is",
    "misses": "What is far from print",
    "clip": "What the clip does",
    "gains": "The headline gains",
    "theorem": "The theorem's condition",
    "guarantee": "What is guaranteed",
    "claims": "Claim by claim",
    **{figure.name: figure.title for figure in FIGURES},
}


def tell(jobs: Sequence[Job], runs: Path) -> None:
    """Say how much there is to do."""
    total = sum(len(job.asked.cells()) for job in jobs)
    left = total - sum(len(finished(job.asked, job.folder(runs))) for job in jobs)
    print(f"{total:,} runs in {len(jobs)} grids, {left:,} of them to do", flush=True)


@dataclass(frozen=True, kw_only=True)
class _Placed(Cell):
    """A cell of one of many grids, which are run together."""

    folder: str

    @property
    def place(self) -> Path:
        return Path(self.folder, super().place)


def run(jobs: Sequence[Job], runs: Path, at_once: int) -> bool:
    """Run everything that is not finished, all grids together: no core waits for a grid's end.

    Returns:
        Whether all went well; what fails does not keep the others from being run.

    Raises:
        ConfigError: If a run is there with other settings, before anything is done.
        InterruptedRunError: If it was stopped; the same call goes on.
    """
    for job in jobs:
        for cell, config in job.asked.cells().items():
            check_settings(cell, config, job.folder(runs))
    todo: dict[Cell, Config] = {}
    for job in jobs:
        folder, asked = job.folder(runs), job.asked
        folder.mkdir(parents=True, exist_ok=True)
        asked.write(folder)
        done = {outcome.cell for outcome in finished(asked, folder)}
        where = str(folder.relative_to(runs))
        todo |= {
            _Placed(**vars(cell), folder=where): config
            for cell, config in asked.cells().items()
            if cell not in done
        }
    good, begun, number = True, time.monotonic(), 0
    for outcome in run_cells(todo, runs, jobs=at_once):
        number += 1
        good = good and outcome.error is None
        if outcome.error is None:
            noted = runs / outcome.cell.place / PROVENANCE
            write_whole(noted, json.dumps(here()) + "\n")
        left = (time.monotonic() - begun) / number * (len(todo) - number) / 60
        what = f"FAILED: {outcome.error}" if outcome.error else f"{outcome.seconds:.0f} s"
        place = outcome.cell.place
        print(f"{number}/{len(todo)} {place}: {what}; {left:.0f} min left", flush=True)
    if number < len(todo):
        raise InterruptedRunError(f"stopped after {number} of {len(todo)} runs; go on likewise")
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=Path, help="where runs are kept; runs/paper")
    parser.add_argument("--docs", type=Path, help="the page to write; see above")
    parser.add_argument("--run", action="store_true", help="run what is missing first")
    parser.add_argument("--plan", action="store_true", help="only say what would be run")
    parser.add_argument("--quick", action="store_true", help="a corner of it, in build")
    parser.add_argument("--seeds", help="such as 0-4, the default")
    parser.add_argument("--datasets", help=f"default {','.join(DATASETS)}")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--data-dir", help="where the data sets are; then $BGTPLANNER_DATA")
    given = parser.parse_args(arguments)
    if given.data_dir:
        os.environ["BGTPLANNER_DATA"] = given.data_dir
    quick = given.quick
    runs = given.runs or (Path("runs/paper-quick") if quick else RUNS)
    datasets = (given.datasets or ("ml-100k" if quick else ",".join(DATASETS))).split(",")
    for name in datasets:
        if name not in DATASETS:
            parser.error(f"--datasets {name}: expected some of {', '.join(DATASETS)}")
    try:
        seeds = parse_seeds(given.seeds or ("0" if quick else "0-4"))
        jobs = list(jobs_of(datasets, seeds, quick=quick))
        good = True
        if given.run or given.plan:
            tell(jobs, runs)
        if given.plan:
            print("\n".join(job.command(runs, given.jobs) for job in jobs))
            return 0
        if given.run:
            good = run(jobs, runs, given.jobs)
            write_halves(runs, [*datasets, TEN_USERS], seeds)
        results = Results(runs)
    except (BGTPlannerError, KeyboardInterrupt) as error:
        print(str(error) or "interrupted; the same command goes on", file=sys.stderr)
        return 1
    whole = results.complete(COMPARED.values())
    usual = Path("build/paper-quick.md" if quick else "build/paper.md")
    docs = given.docs or (Path("docs/paper.md") if whole and not quick else usual)
    parts = {name: partial(make, results) for name, make in TABLES.items()}
    parts |= {of.name: partial(figure_part, of, results, docs) for of in FIGURES}
    empty = blank("The paper's tables and figures, as far as they were run", TITLES)
    written = write_parts(docs, empty, parts, how_to_run)
    print(f"{docs}: {', '.join(written) or 'nothing to write'}")
    if left := [name for name in TITLES if name not in written]:
        print(f"no results yet, left as they are: {', '.join(left)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
