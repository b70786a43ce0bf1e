"""Measure the preset `recommended` and its planner, and write docs/results.md.

    python -m benchmarks.results --plan                say how much there is to run, and stop
    python -m benchmarks.results --run --jobs 16       run what is missing, then write the page
    python -m benchmarks.results --write               write the page from what has been run
    python -m benchmarks.results --run --quick         a corner of it on made-up ratings, in build

Finished runs are kept in `build/results/runs.jsonl`, one a line, and never run again unless their
settings change. It can be run in pieces, by --parts or by --datasets, and the files of several
machines can be put together with `cat`. A part without results is left as it is on the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.paper.page import blank, write_parts
from benchmarks.results.plan import DATASETS, PARTS, Study, quick, whole
from benchmarks.results.play import estimate, run_all
from benchmarks.results.store import Store
from benchmarks.results.tables import TABLES, TITLES, how_to_run
from bgtplanner.errors import BGTPlannerError

_TITLE = "The preset `recommended`, measured"


def tell(study: Study, parts: Sequence[str], store: Store, jobs: int) -> None:
    """Say how much there is to do and how long it will take."""
    for part in parts:
        runs = study.runs([part])
        print(f"{part}: {len(runs):,} runs, {len(store.missing(runs)):,} of them to do")
    runs = study.runs(parts)
    left = store.missing(runs)
    seconds = estimate(left, store.seconds())
    text = f"all: {len(runs):,} runs, {len(left):,} of them to do"
    if left:
        text += f", about {seconds / 3600:.1f} hours of one core"
        text += f", {seconds / jobs / 3600:.1f} h with --jobs {jobs}" if jobs > 1 else ""
    print(text, flush=True)
    if other := store.of_other_code(runs):
        print(f"{other:,} known runs are of other code than this; --same-code runs them again")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", action="store_true", help="run what is missing first")
    parser.add_argument("--plan", action="store_true", help="only say what would be run")
    parser.add_argument("--write", action="store_true", help="only write the page (the default)")
    parser.add_argument("--quick", action="store_true", help="a corner of it, in build")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--parts", default=",".join(PARTS), help="default %(default)s")
    parser.add_argument("--datasets", help=f"to run; default {','.join(DATASETS)}")
    parser.add_argument(
        "--same-code", action="store_true", help="run again what is of other code than this"
    )
    parser.add_argument("--results", type=Path, help="where runs are kept; see above")
    parser.add_argument("--docs", type=Path, help="the page to write; docs/results.md")
    given = parser.parse_args(arguments)
    if given.run and given.write:
        parser.error("--write only writes; --run writes as well")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: at least 1")
    study = quick() if given.quick else whole()
    parts = given.parts.split(",")
    datasets = given.datasets.split(",") if given.datasets else list(study.datasets)
    for flag, names, known in (
        ("--parts", parts, PARTS),
        ("--datasets", datasets, study.datasets),
    ):
        for name in names:
            if name not in known:
                parser.error(f"{flag} {name}: expected some of {', '.join(known)}")
    place = Path("build/results-quick" if given.quick else "build/results")
    store = Store(given.results or place / "runs.jsonl", same_code=given.same_code)
    docs = given.docs or (place / "results.md" if given.quick else Path("docs/results.md"))
    good = True
    if given.run or given.plan:
        some = study.only(datasets)
        tell(some, parts, store, given.jobs)
        if given.plan:
            return 0
        left = store.missing(some.runs(parts))
        try:
            good = not left or run_all(left, store, given.jobs)
        except (BGTPlannerError, KeyboardInterrupt) as error:
            print(str(error) or "interrupted; the same command goes on", file=sys.stderr)
            return 1
    tables = {name: partial(TABLES[name], study, store) for name in TITLES}
    written = write_parts(docs, blank(_TITLE, TITLES), tables, how_to_run)
    print(f"{docs}: {', '.join(written) or 'nothing to write'}")
    if absent := [name for name in TITLES if name not in written]:
        print(f"no results yet: {', '.join(absent)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
