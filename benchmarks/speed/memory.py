"""The memory of a whole run at the size of MovieLens 1M, evaluation included."""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.speed.child import peak_bytes, stopwatch

SIZE = {"clients": 605, "users_per_client": 10, "ratings_per_client": 1653, "items": 3706}
ROUNDS = 15
TARGET_BYTES = 2e9
MODELS = ("factorization", "fedgnn")


class PeakAfterEachRound:
    """Watches a run and notes the largest resident size so far."""

    def __init__(self) -> None:
        self.peaks: list[int] = []

    def round(self, *_: object) -> None:
        self.peaks.append(peak_bytes())

    def _nothing(self, *_: object) -> None:
        """Nothing to note."""

    started = finished = _nothing


def run(model: str) -> dict[str, Any]:
    """Train as a user would, from ratings to summary, and look at this process's memory."""
    from bgtplanner import simulate
    from bgtplanner.data.synthetic import synthetic_ratings

    ratings = synthetic_ratings(**SIZE)
    after_data, watch = peak_bytes(), PeakAfterEachRound()
    with stopwatch() as seconds:
        result = simulate(
            ratings, model=model, mechanism="none", rounds=ROUNDS, seed=0, observer=watch
        )
    return {
        "model": model,
        "ratings": len(ratings),
        "rounds": ROUNDS,
        "seconds": seconds[0],
        "rmse_final": result.summary["rmse_final"],
        "peak_bytes_after_data": after_data,
        "peak_bytes_after_rounds": watch.peaks,
        "peak_bytes": peak_bytes(),
        "target_bytes": TARGET_BYTES,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    print(json.dumps(run(parser.parse_args().model)))
