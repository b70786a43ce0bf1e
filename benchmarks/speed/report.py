"""Question 7: what the page of a whole grid costs, beside reading its runs."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.made_runs import make_study
from bgtplanner.report.page import write_report
from bgtplanner.runs.execute import read_study
from bgtplanner.runs.statistics import mean_curves, summed_up
from bgtplanner.runs.study import Study

TARGET_BYTES = 3_000_000
TURNS = 3
GRID = Study(
    datasets=("filmtrust", "ml-100k", "ml-1m"),
    mechanisms=("gaussian", "laplace"),
    policies=("bgt", "uniform", "adpml", "adap"),
    preset="paper",
)


def run(asked: Study = GRID, turns: int = TURNS) -> dict[str, Any]:
    """Read the runs and make the page, by turns."""
    seconds: dict[str, list[float]] = {"reading the runs": [], "drawing and writing the page": []}
    with tempfile.TemporaryDirectory() as name:
        folder = make_study(Path(name) / "grid", asked)
        for _ in range(turns):
            begun = time.perf_counter()
            outcomes = read_study(asked, folder)
            summed_up(asked, outcomes)
            mean_curves(folder, outcomes)
            read = time.perf_counter() - begun
            begun = time.perf_counter()
            page = write_report(folder)
            seconds["reading the runs"].append(read)
            seconds["drawing and writing the page"].append(time.perf_counter() - begun - read)
        text = page.read_text(encoding="utf-8")
    return {
        "runs": len(outcomes),
        "seconds": seconds,
        "page_bytes": len(text.encode()),
        "pictures": text.count("<svg"),
        "target_bytes": TARGET_BYTES,
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(run()))
