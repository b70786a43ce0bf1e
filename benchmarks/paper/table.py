"""Table 2, ours beside theirs, and how much it varies. A part without results is None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from benchmarks.paper.plan import (
    DATASETS,
    FIGURES,
    GRIDS,
    MECHANISMS,
    METHODS,
    OF_DATASET,
    RUNS,
    SEEDS,
    Job,
    Method,
)
from benchmarks.paper.results import Results
from bgtplanner.experiments.comparison import Estimate
from bgtplanner.experiments.table2 import published

FEDSGD = METHODS[-1]
REFERENCES = {
    "constant": "*one constant for all*",
    "user_mean": "*each user's own mean, nothing shared*",
}
NOTHING = "–"


def short(value: float, digits: int = 4) -> str:
    """A figure below 1 without its zero; what is printed with a 5 is rounded up.

    Example:
        >>> short(0.3683), short(-0.0005), short(0.6685, 3), short(1.25, 1)
        ('.3683', '-.0005', '.669', '1.3')
    """
    exact = Decimal(f"{value:.10f}").quantize(Decimal(10) ** -digits, ROUND_HALF_UP)
    return str(exact).replace("0.", ".", 1) if abs(exact) < 1 else str(exact)


def signed(value: float, digits: int = 4) -> str:
    """The same with its sign."""
    return ("+" if value >= 0 else "") + short(value, digits)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as Markdown; the first is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def column(dataset: str, mechanism: str) -> str:
    """Head of a column."""
    return f"{DATASETS[dataset]} {MECHANISMS[mechanism]}"


def table2(results: Results) -> str | None:
    """RMSE and F1, ours / theirs; then what is not there, or with fewer seeds."""
    if not results.columns:
        return None
    text = [
        f"**RMSE** of the best round, ours / theirs; {_seeds(results)}. G is Gaussian noise, "
        "L Laplace.",
        _beside(results, "rmse", 4),
        "**F1** of the best round, ours / theirs:",
        _beside(results, "f1", 3),
    ]
    return "\n\n".join([*text, *_missing(results)])


def _beside(results: Results, kind: str, digits: int) -> str:
    rows = [["", *(column(*place) for place in results.columns)]]
    for method in METHODS:
        rows.append([method.label])
        for dataset, mechanism in results.columns:
            once = method == FEDSGD
            if once and mechanism != "gaussian":
                rows[-1].append("")
                continue
            ours = results.figure(method, dataset, mechanism, f"{kind}_best")
            cell = NOTHING if ours is None else short(ours.mean, digits)
            theirs = published(dataset, "none" if once else mechanism, method.policy)
            value = None if theirs is None else getattr(theirs, kind)
            rows[-1].append(f"{cell} / {NOTHING if value is None else short(value, digits)}")
    for name, label in REFERENCES.items():
        rows.append([label])
        for dataset, mechanism in results.columns:
            found = results.reference(dataset, f"{kind}_{name}")
            shown = found is not None and mechanism == "gaussian"
            rows[-1].append(short(found.mean, digits) if found is not None and shown else "")
    return table(rows)


def deviations(results: Results) -> str | None:
    """How much the figures vary over seeds, and how many rounds the budget lasted."""
    if not results.columns:
        return None
    rows = [["", *(column(*place) for place in results.columns)]]
    for method in METHODS:
        rows.append([method.label])
        for place in results.columns:
            if method == FEDSGD and place[1] != "gaussian":
                rows[-1].append("")
                continue
            found = [
                results.figure(method, *place, name)
                for name in ("rmse_best", "f1_best", "rounds_run")
            ]
            rows[-1].append(_varies(*found))
    return "Standard deviation over seeds of RMSE and of F1, and rounds played:\n\n" + table(rows)


def _varies(rmse: Estimate | None, f1: Estimate | None, rounds: Estimate | None) -> str:
    if rmse is None or f1 is None or rounds is None:
        return NOTHING
    spread = [
        NOTHING if found.std is None else short(found.std, digits)
        for found, digits in ((rmse, 4), (f1, 3))
    ]
    return ", ".join([*spread, f"{rounds.mean:.0f}"])


def _counts(results: Results) -> dict[tuple[Method, str], int]:
    """Seeds done, the fewest of both mechanisms, of every method and data set."""
    return {
        (method, dataset): min(len(results.of(method, dataset, kind)) for kind in MECHANISMS)
        for method in METHODS
        for dataset in results.datasets
    }


def _seeds(results: Results) -> str:
    most = max(_counts(results).values())
    return f"mean of {most} seed{'s' if most != 1 else ''}"


def _missing(results: Results) -> list[str]:
    """Which cells have fewer seeds, which grids are not there, and how to come by them."""
    counts = _counts(results)
    most = max(counts.values())
    fewer = [
        f"{method.label} on {DATASETS[dataset]} ({done})"
        for (method, dataset), done in counts.items()
        if done < most and any(results.of(method, dataset, kind) for kind in MECHANISMS)
    ]
    text = [f"Fewer seeds: {', '.join(fewer)}."] if fewer else []
    absent = [
        Job(part=grid, dataset=dataset, seeds=SEEDS)
        for grid in GRIDS
        for dataset in results.datasets
        if not any(
            results.of(method, dataset, kind)
            for method in METHODS
            if method.grid == grid.name
            for kind in MECHANISMS
        )
    ]
    text += not_run(absent)
    if whole := [name for key, name in DATASETS.items() if key not in results.datasets]:
        text.append(f"Nothing of {' and '.join(whole)} yet; `make paper` runs it.")
    return text + [
        f"{grid} on {DATASETS.get(dataset, dataset)} was run with {', '.join(other)}."
        for (grid, dataset), settings in results.settings.items()
        if (other := _other(grid, dataset, settings))
    ]


def _other(grid: str, dataset: str, settings: Mapping[str, Any]) -> list[str]:
    """What was set otherwise than planned."""
    planned = {**OF_DATASET.get(dataset, {})}
    planned |= next(dict(one.settings) for one in GRIDS if one.name == grid)
    keys = [
        key for key in {**planned, **settings} if not key.startswith(("data.data_dir", "run."))
    ]
    return [
        f"`{key} = {settings.get(key, 'as in the preset')}`"
        for key in keys
        if settings.get(key) != planned.get(key)
    ]


def not_run(jobs: Sequence[Job]) -> list[str]:
    """What is missing, with the commands that bring it."""
    if not jobs:
        return []
    lines = "\n".join(job.command(RUNS) for job in jobs)
    return ["Not run yet; `make paper` does it all, these do it one by one:", f"```\n{lines}\n```"]


def how_to_run(name: str) -> str:
    """For a part of which there is nothing."""
    part = next((one for one in (*GRIDS, *FIGURES) if one.name == name), GRIDS[0])
    return "\n\n".join(not_run([Job(part=part, dataset=key, seeds=SEEDS) for key in DATASETS]))
