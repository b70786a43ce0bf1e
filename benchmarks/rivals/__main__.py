"""Compare our recommender with private alternating least squares, on the same splits and ledger.

    python -m benchmarks.rivals --dataset ml-100k --epsilon 1,3,10 --seeds 0,1,2,3,4 --out FILE

The rivals are `als` (Chien et al. 2021, with the adaptive weights of Krichene et al. 2023) and
`cmf`, which is the same with public item features (Curmei et al. 2023). Ours is one run of the
preset, from which both figures come. A rival gets two runs with the whole budget each, one that
learns to predict ratings and one that learns to rank, and the better figure of the two counts.
All ratings are there from the first round on, and the last round counts.

The rivals' constants were chosen on held-out parts of the training ratings of MovieLens 100K and
1M, with the noise of the relation replace-special, and never on a test set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from benchmarks.rivals.comparison import OURS, Cell, cells_of, measured, table
from bgtplanner.errors import BGTPlannerError
from bgtplanner.runs.folder import write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="ml-100k", help="one or several, with commas")
    parser.add_argument("--data-dir", help="folder with the data sets")
    parser.add_argument("--epsilon", default="1,3,10")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--models", default=f"{OURS},als,cmf", help="default %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, help="where to keep the figures, as JSON")
    given = parser.parse_args(arguments)
    epsilons = [float(part) for part in given.epsilon.split(",")]
    seeds = [int(part) for part in given.seeds.split(",")]
    models = given.models.split(",")
    cells = cells_of(given.dataset.split(","), epsilons, seeds, models, given.data_dir)
    found: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    done = {tuple(row[name] for name in Cell._fields[:5]) for row in found}
    left = [cell for cell in cells if tuple(cell[:5]) not in done]
    parallel = Parallel(given.jobs, return_as="generator")
    try:
        for row in parallel(delayed(measured)(cell) for cell in left):
            found.append(row)
            print(json.dumps(row), flush=True)
            if given.out is not None:
                write_whole(given.out, json.dumps(found, indent=1))
    except BGTPlannerError as error:
        print(str(error), file=sys.stderr)
        return 2
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
