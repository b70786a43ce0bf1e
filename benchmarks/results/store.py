"""Results on the disk, one line of JSON for each finished run; what is there is not run again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import fingerprint, here
from benchmarks.results.plan import Run

__all__ = ["Store", "fingerprint"]


class Store:
    """What is known of finished runs.

    Args:
        path: The file.
        same_code: Whether only results of the present code count.
    """

    def __init__(self, path: Path, *, same_code: bool = False) -> None:
        self.path, self.same_code = path, same_code
        self._known: dict[str, dict[str, dict[str, Any]]] = {}  # by key, then by settings
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                row = json.loads(line)
                self._known.setdefault(row["key"], {})[row["mark"]] = row
            except (ValueError, KeyError, TypeError):
                continue  # cut short by a kill

    def get(self, run: Run) -> dict[str, Any] | None:
        """What came of a run with just these settings."""
        known = self._known.get(run.key)
        row = known.get(run.mark) if known else None
        if row is None or not self.same_code:
            return row
        return row if row.get("code") == fingerprint() else None

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Those not run yet."""
        return [run for run in runs if self.get(run) is None]

    def of_other_code(self, runs: Iterable[Run]) -> int:
        """How many known results are of other code than the present one."""
        found = [self.get(run) for run in runs]
        return sum(row is not None and row.get("code") != fingerprint() for row in found)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a result down, with the code, the libraries and the machine that it is of."""
        row = {**row, **here()}
        self._known.setdefault(row["key"], {})[row["mark"]] = dict(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            torn = False
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            # What was cut short by a kill is left alone on its line.
            file.write(b"\n" * torn + json.dumps(row).encode() + b"\n")

    def figures(self, runs: Sequence[Run], name: str) -> dict[int, float]:
        """A figure by seed, of the runs that are known."""
        rows = {run.seed: self.get(run) for run in runs}
        return {seed: float(row[name]) for seed, row in rows.items() if row and name in row}

    def seconds(self) -> dict[str, float]:
        """What a run took on average, by data set."""
        taken: dict[str, list[float]] = {}
        for key, rows in self._known.items():
            seconds = [float(row["seconds"]) for row in rows.values()]
            taken.setdefault(key.split()[0], []).extend(seconds)
        return {name: sum(values) / len(values) for name, values in taken.items()}
