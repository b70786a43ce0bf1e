"""What Table 2 says: how near the paper is, and what the planner gains."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.paper.plan import DATASETS, MECHANISMS, METHODS, Method
from benchmarks.paper.results import Results
from benchmarks.paper.table import NOTHING, column, short, signed, table
from bgtplanner.experiments.comparison import Estimate, estimate
from bgtplanner.experiments.table2 import HEADLINE, published

BGT, AUTHORS, DPSGD, ADPML, _, _, ADAP, _, FEDSGD = METHODS
PRIVATE = METHODS[:-1]
BASELINES = [method for method in PRIVATE if method not in (BGT, AUTHORS)]


def closeness(results: Results) -> str | None:
    """How near the paper's figures are, and how near a constant is."""
    if not results.columns:
        return None
    lines = []
    for method, name in ((BGT, "BGTplanner"), (FEDSGD, "FedSGD")):
        for kind, digits in (("rmse", 4), ("f1", 3)):
            apart = {}
            for dataset, mechanism in results.columns:
                if method == FEDSGD and mechanism != "gaussian":
                    continue
                ours = results.figure(method, dataset, mechanism, f"{kind}_best")
                place = "none" if method == FEDSGD else mechanism
                theirs = published(dataset, place, method.policy)
                if ours is not None and theirs is not None:
                    where = DATASETS[dataset] if method == FEDSGD else column(dataset, mechanism)
                    apart[where] = ours.mean - getattr(theirs, kind)
            if apart:
                far = max(apart, key=lambda where: abs(apart[where]))
                near = statistics.median(abs(value) for value in apart.values())
                what = "RMSE" if kind == "rmse" else "F1"
                lines.append([f"{name}, {what}", str(len(apart)), short(near, digits), far])
                lines[-1].append(signed(apart[far], digits))
    head = ["", "cells", "median distance to the paper", "furthest", "there, ours less theirs"]
    worse, cells, theirs_worse, theirs_cells = 0, 0, 0, 0
    for dataset, mechanism in results.columns:
        constant = results.reference(dataset, "rmse_constant")
        for method in PRIVATE:
            ours = results.figure(method, dataset, mechanism, "rmse_best")
            if ours is not None and constant is not None:
                cells += 1
                worse += ours.mean > constant.mean
        for policy in dict.fromkeys(method.policy for method in PRIVATE):
            theirs = published(dataset, mechanism, policy)
            if theirs is not None and constant is not None:
                theirs_cells += 1
                theirs_worse += theirs.rmse > constant.mean
    return (
        f"{table([head, *lines])}\n\nPrivate cells with a higher RMSE than one constant for all: "
        f"{worse} of {cells} of ours, {theirs_worse} of {theirs_cells} of the paper's."
    )


class Gains(NamedTuple):
    """Average relative gains, in per cent; None where a cell is missing."""

    gaussian: float | None
    laplace: float | None
    f1: float | None


Lookup = Callable[[Method, str, str, str], float | None]


def gains_of(lookup: Lookup, baselines: Sequence[Method], datasets: Sequence[str]) -> Gains:
    """By how much BGTplanner is better than the best of some baselines, cell by cell, averaged.

    Args:
        lookup: RMSE or F1 of a method on a data set with a mechanism; None where there is none.
        baselines: Of which the best is taken; at least one must be there in every cell.
        datasets: Over which to average.
    """

    def gain(kind: str, dataset: str, mechanism: str) -> float | None:
        ours = lookup(BGT, dataset, mechanism, kind)
        found = [lookup(method, dataset, mechanism, kind) for method in baselines]
        theirs = [value for value in found if value is not None]
        if ours is None or not theirs:
            return None
        if kind == "rmse":
            return 100 * (min(theirs) - ours) / min(theirs)
        return 100 * (ours - max(theirs)) / max(theirs)

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(values) else None

    rmse = {kind: mean([gain("rmse", name, kind) for name in datasets]) for kind in MECHANISMS}
    f1 = mean([gain("f1", name, kind) for name in datasets for kind in MECHANISMS])
    return Gains(rmse["gaussian"], rmse["laplace"], f1)


def gains(results: Results) -> str | None:
    """The headline: as printed, from the paper's table, and from ours."""
    datasets = results.datasets
    if not datasets:
        return None

    def theirs(method: Method, dataset: str, mechanism: str, kind: str) -> float | None:
        found = published(dataset, mechanism, method.policy)
        return None if found is None else float(getattr(found, kind))

    def ours(method: Method, dataset: str, mechanism: str, kind: str) -> float | None:
        found = results.figure(method, dataset, mechanism, f"{kind}_best")
        return None if found is None else found.mean

    def line(label: str, found: Gains) -> list[str]:
        return [label, *(NOTHING if one is None else f"{one:.2f} %" for one in found)]

    every = [DPSGD, ADPML, ADAP]
    rows = [["", "RMSE, Gaussian", "RMSE, Laplace", "F1, both"]]
    rows.append(line("as the paper says", Gains(*HEADLINE)))
    rows.append(line("from the paper's table", gains_of(theirs, every, list(DATASETS))))
    for label, some in (
        ("ours, against DPSGD alone", [DPSGD]),
        ("ours, against DPSGD and ADPML", [DPSGD, ADPML]),
        ("ours, against DPSGD, ADPML and ADAP", every),
        ("ours, against the best of all readings", BASELINES),
    ):
        rows.append(line(label, gains_of(ours, some, datasets)))
    text = [
        "Average gain of BGTplanner over the best baseline of each cell; below zero it is worse. "
        f"{_over(datasets)}",
        table(rows),
        *_apart(results),
    ]
    return "\n\n".join(text)


def _over(datasets: Sequence[str]) -> str:
    names = ", ".join(DATASETS[name] for name in datasets)
    whole = len(datasets) == len(DATASETS)
    return "ADPML and ADAP are as by default." if whole else f"**Ours over {names} only.**"


def _apart(results: Results) -> list[str]:
    """BGTplanner less DPSGD, seed by seed."""
    found: dict[str, Estimate] = {}
    for place in results.columns:
        ours, theirs = results.of(BGT, *place), results.of(DPSGD, *place)
        both = [seed for seed in ours if seed in theirs]
        apart = estimate([ours[seed]["rmse_best"] - theirs[seed]["rmse_best"] for seed in both])
        if apart is not None:
            found[column(*place)] = apart
    if not found:
        return []
    rows = [["RMSE of BGTplanner less DPSGD", *found]]
    rows.append(["mean, seed by seed", *(signed(one.mean) for one in found.values())])
    halves = [NOTHING if one.half is None else f"± {short(one.half)}" for one in found.values()]
    rows.append(["half of the 95 % interval", *halves])
    return [table(rows)]
