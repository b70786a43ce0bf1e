"""The parts of the page, from results. A part without any is None."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.paper.page import NOT_RUN
from benchmarks.paper.table import NOTHING, short, signed, table
from benchmarks.results.plan import CONSTANTS, DATASETS, OBJECTIVES, PARTS, Place, Removal, Study
from benchmarks.results.store import Store
from benchmarks.results.study import counts, findings, paired, verdict
from benchmarks.rivals.comparison import table as compared
from bgtplanner.runs.config import load_config
from bgtplanner.runs.statistics import Estimate, estimate

_HERE = Path(__file__).parent
_SIGNS = {"better": "+", "same": "=", "worse": "**−**"}


def dataset_name(name: str) -> str:
    return DATASETS.get(name, name)


def spread(found: Estimate | None, digits: int = 4) -> str:
    """A mean with half its interval."""
    if found is None:
        return NOTHING
    half = "" if found.half is None else f" ± {short(found.half, digits)}"
    return short(found.mean, digits) + half


def change(found: Estimate | None, digits: int = 4) -> str:
    """A difference with half its interval."""
    if found is None:
        return NOTHING
    half = "" if found.half is None else f" ± {short(found.half, digits)}"
    return signed(found.mean, digits) + half


def protocol(study: Study, store: Store) -> str | None:
    """Under which settings all of it is run."""
    del store
    config = load_config(preset="recommended", settings=study.settings)
    privacy = config.privacy
    return (
        f"Preset `{config.preset}`, model `{config.model.name}`, planner `{study.planner}`, "
        f"{study.rounds} rounds, delta {privacy.delta:g}, unit `{privacy.unit}`, seeds "
        f"{study.seeds[0]} to {study.seeds[-1]} unless a table says fewer."
    )


def _unfinished(study: Study, store: Store, part: str) -> list[str]:
    runs = study.runs([part])
    left = len(store.missing(runs))
    if not left:
        return []
    done = len(runs) - left
    return [
        f"**Not finished:** {done:,} of {len(runs):,} runs; `{command(part)}` runs the others."
    ]


_FIGURES = {"rmse": "rmse_final", "ndcg": "ndcg_at_10"}
_BESIDE = ("user_mean", "features_alone", "popularity")


def results_table(study: Study, store: Store) -> str | None:
    """RMSE and ranking of the preset beside what needs no one else."""
    first = [["guarantee", "data", "seeds", "RMSE", "user mean", "client alone, with features"]]
    first[0] += ["NDCG@10", "popularity, not private", "recall@10", "shared of 10", "near-twins"]
    first[0] += ["RMSE minus user mean", "NDCG@10 minus popularity"]
    for row in study.table:
        for dataset in study.datasets:
            runs = [study.run(row.place(dataset), "full", seed) for seed in study.seeds]
            ours = {name: store.figures(runs, key) for name, key in _FIGURES.items()}
            if not ours["rmse"]:
                continue
            where = [row.place(dataset).guarantee, dataset_name(dataset)]
            beside = {
                "rmse": {name: store.figures(runs, f"rmse_{name}") for name in _BESIDE[:2]},
                "ndcg": {"popularity": store.figures(runs, "ndcg_at_10_popularity")},
            }
            first.append([*where, str(len(ours["rmse"])), _mean(ours["rmse"])])
            first[-1] += [_mean(beside["rmse"][name], half=False) for name in _BESIDE[:2]]
            first[-1] += [_mean(ours["ndcg"]), _mean(beside["ndcg"]["popularity"], half=False)]
            first[-1] += [
                _mean(store.figures(runs, name), half=False, digits=digits)
                for name, digits in (("recall_at_10", 4), ("overlap", 2), ("twins", 3))
            ]
            first[-1] += [
                change(paired(ours["rmse"], beside["rmse"]["user_mean"])),
                change(paired(ours["ndcg"], beside["ndcg"]["popularity"])),
            ]
    if len(first) == 1:
        return None
    text = [
        "After the last round, mean ± half the 95 % interval. *Shared of 10* is how many of ten "
        "items two users' lists share on average, *near-twins* the share of users whose list has "
        "eight of ten items in common with someone else's. Differences are paired by seed:",
        table(first),
    ]
    return "\n\n".join([*_unfinished(study, store, "table"), *text])


def _mean(figures: Mapping[int, float], *, half: bool = True, digits: int = 4) -> str:
    if not figures:
        return NOTHING
    values = list(figures.values())
    return spread(estimate(values), digits) if half else short(statistics.fmean(values), digits)


def planner_targets(study: Study, store: Store) -> str | None:
    """In how many cells the targets are met, and which cells miss one."""
    found = findings(study, store)
    if not found:
        return None
    rows = [["target", "met", ""]]
    rows += [
        [
            one.target,
            f"{one.met} of {one.cells}",
            ("met" if one.good else "**missed**") if one.cells else NOTHING,
        ]
        for one in counts(found)
    ]
    rivals = [["planned for", "rival", "significantly better", "no difference", "worse"]]
    for objective in OBJECTIVES:
        for name in study.rivals:
            said = [verdict(one.less[name]) for one in found if one.objective == objective]
            counted = (str(said.count(kind)) for kind in ("better", "same", "worse"))
            rivals.append([objective, name, *counted])
    missed = [
        f"* {one.objective}: {dataset_name(one.place.dataset)}, {one.place.guarantee}: "
        f"{'; '.join(misses)}"
        for one in found
        if (misses := one.misses())
    ]
    text = [
        *_unfinished(study, store, "planner"),
        table(rows),
        "The planner against each rival, in so many cells:",
        table(rivals),
    ]
    if missed:
        text += ["Cells that miss a target:", "\n".join(missed)]
    else:
        text.append("No cell misses a target.")
    return "\n\n".join(text)


def planner_cells(study: Study, store: Store) -> str | None:
    """One row a cell."""
    found = findings(study, store)
    if not found:
        return None
    head = ["planned for", "data", "guarantee", "seeds", "client alone", "hindsight"]
    head += ["its schedule", "planner", "gap closed", "spent"]
    rows = [[*head, *study.rivals]]
    rows += [
        [
            one.objective,
            dataset_name(one.place.dataset),
            one.place.guarantee,
            str(one.seeds),
            short(one.alone),
            short(one.hindsight),
            one.schedule,
            short(one.planner),
            f"{100 * one.closed:.0f} %" if one.worth else NOTHING,
            f"{100 * one.spent:.0f} %",
            *(_SIGNS[verdict(one.less[name])] for name in study.rivals),
        ]
        for one in found
    ]
    text = (
        "RMSE, means over seeds: of all rounds where these were planned for, and else of the "
        "last. The last columns: the planner is significantly better (+), no "
        "different (=) or significantly worse (−) than this policy, by the 95 % interval of the "
        "paired difference. A gap is closed only where there is one."
    )
    return f"{text}\n\n{table(rows)}"


def ablation_table(study: Study, store: Store) -> str | None:
    """Mean RMSE and NDCG@10 without each part, and the paired difference to the full preset."""
    columns = dict.fromkeys(_column(one) for one in study.removals)
    labels = {one.ablation.name: one.ablation.label for one in study.removals}
    parts = []
    for figure, title in (("rmse", "RMSE, less is better"), ("ndcg", "NDCG@10, more is better")):
        every = {column: _figures(study, store, column, "full", figure) for column in columns}
        full = {column: figures for column, figures in every.items() if figures}
        if not full:
            continue
        rows = [["removed", *(f"{dataset_name(at[0])}, {at.guarantee}" for at, _ in full)]]
        rows.append(["nothing", *(_mean(values) for values in full.values())])
        for name, label in labels.items():
            asked = {_column(one) for one in study.removals if one.ablation.name == name}
            rows.append([label])
            for column, figures in full.items():
                without = _figures(study, store, column, name, figure) if column in asked else {}
                difference = change(paired(without, figures))
                shown = f"{_mean(without, half=False)} ({difference})" if without else NOTHING
                rows[-1].append(shown)
        parts += [f"{title}:", table(rows)]
    if not parts:
        return None
    text = (
        "Means over seeds; in brackets the paired difference to the full preset ± half the 95 % "
        "interval."
    )
    return "\n\n".join([*_unfinished(study, store, "ablation"), text, *parts])


def constants_table(study: Study, store: Store) -> str | None:
    """What people are served by the paper's planner in all its forms, and by even payments."""
    rows = [["data", "guarantee", "uniform", *CONSTANTS.values()]]
    for place in study.sound:
        column = (place, study.seeds)
        found = [_planned(study, store, column, name) for name in ("uniform", *CONSTANTS)]
        if any(found):
            shown = [spread(estimate(list(values.values()))) for values in found]
            rows.append([dataset_name(place.dataset), place.guarantee, *shown])
    if len(rows) == 1:
        return None
    text = "RMSE of all rounds, mean over seeds ± half the 95 % interval:"
    return "\n\n".join([*_unfinished(study, store, "constants"), text, table(rows)])


def _column(removal: Removal) -> tuple[Place, tuple[int, ...]]:
    return removal.place, removal.seeds


def _figures(
    study: Study, store: Store, column: tuple[Place, tuple[int, ...]], name: str, figure: str
) -> dict[int, float]:
    place, seeds = column
    return store.figures([study.run(place, name, seed) for seed in seeds], _FIGURES[figure])


def _planned(
    study: Study, store: Store, column: tuple[Place, tuple[int, ...]], name: str
) -> dict[int, float]:
    place, seeds = column
    return store.figures([study.planned(place, name, seed) for seed in seeds], "rmse_served")


def rivals_table(study: Study, store: Store) -> str | None:
    """Ours beside private alternating least squares, from what was kept of `benchmarks.rivals`."""
    del study, store
    file = _HERE / "rivals.json"
    return compared(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def nonprivate_table(study: Study, store: Store) -> str | None:
    """Standard models without privacy, from what was kept of a study with LensKit and Surprise."""
    del study, store
    file = _HERE / "nonprivate.md"
    return file.read_text(encoding="utf-8") if file.exists() else None


TABLES: Mapping[str, Callable[[Study, Store], str | None]] = {
    "protocol": protocol,
    "table": results_table,
    "targets": planner_targets,
    "cells": planner_cells,
    "ablation": ablation_table,
    "constants": constants_table,
    "rivals": rivals_table,
    "nonprivate": nonprivate_table,
}
TITLES = {
    "protocol": "Settings",
    "table": "How good it is",
    "targets": "What the planner is worth",
    "cells": "Cell by cell",
    "ablation": "What each part adds",
    "constants": "The paper's planner in this setting",
    "rivals": "Beside other private recommenders",
    "nonprivate": "The price of privacy",
}


def command(part: str) -> str:
    """What runs a part."""
    return f"python -m benchmarks.results --run --parts {part}"


def how_to_run(name: str) -> str:
    """For a part of which there is nothing."""
    if name in ("rivals", "nonprivate"):
        return f"{NOT_RUN} `python -m benchmarks.{name}` runs it."
    part = name if name in PARTS else "planner"
    return f"{NOT_RUN} `{command(part)}` runs it, `make results` runs all."
