"""How the runs of a study went, round by round: means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import RunFolderError
from bgtplanner.runs.cells import Outcome
from bgtplanner.runs.folder import RunFolder

__all__ = ["Curve", "mean_curves"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One policy on one data set, over the rounds that all its seeds have.

    Attributes:
        rmse: On the test ratings, by round.
        f1: The same.
        left: Share of the budget that is left; empty without one.
        seeds: How many runs it is the mean of.
    """

    rmse: Floats
    f1: Floats
    left: Floats
    seeds: int


def mean_curves(out: Path, outcomes: Sequence[Outcome]) -> dict[tuple[str, str, str], Curve]:
    """By data set, mechanism and policy. A run whose rounds cannot be read is left out."""
    runs: dict[tuple[str, str, str], list[list[dict[str, Any]]]] = {}
    for outcome in outcomes:
        if outcome.summary is None:
            continue
        cell = outcome.cell
        try:
            records = RunFolder(out / cell.place).rounds()
        except RunFolderError:
            continue
        if records and all(_scored(record) for record in records):
            runs.setdefault((cell.dataset, cell.mechanism, cell.policy), []).append(records)
    return {place: _mean(several) for place, several in runs.items()}


def _scored(record: Mapping[str, Any]) -> bool:
    return record.get("rmse") is not None and record.get("f1") is not None


def _mean(runs: Sequence[Sequence[Mapping[str, Any]]]) -> Curve:
    common = min(map(len, runs))

    def mean_of(key: str) -> Floats:
        values = [[record[key] for record in run[:common]] for run in runs]
        return np.asarray(np.mean(values, axis=0))

    shares = [[record.get("left") or [] for record in run[:common]] for run in runs]
    known = all(left for run in shares for left in run)
    left = np.mean([[max(each) for each in run] for run in shares], axis=0) if known else None
    return Curve(
        rmse=mean_of("rmse"),
        f1=mean_of("f1"),
        left=np.zeros(0) if left is None else left,
        seeds=len(runs),
    )
