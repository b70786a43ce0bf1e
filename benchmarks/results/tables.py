"""The parts of the page, from results. A part without any is None."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from benchmarks.paper.page import NOT_RUN
from benchmarks.paper.table import NOTHING, short, signed, table
from benchmarks.results.plan import (
    CONSTANTS,
    DATASETS,
    PARTS,
    WITHOUT_PRIVACY,
    Place,
    Removal,
    Run,
    Study,
    TableRow,
    Target,
)
from benchmarks.results.store import Store
from benchmarks.results.study import counts, findings, paired, verdict
from bgtplanner.runs.config import load_config
from bgtplanner.runs.statistics import Estimate, estimate

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


def results_table(study: Study, store: Store) -> str | None:
    """RMSE of the planner beside all else, then differences and targets."""
    first = [
        [
            "guarantee",
            "data",
            "planner",
            "seeds",
            "constant",
            "user mean",
            "client alone",
            "the paper's model without privacy",
        ]
    ]
    second = [
        [
            "guarantee",
            "data",
            "less user mean",
            "less client alone",
            "target",
            "",
            "F1",
            "F1, constant",
            "F1 never below",
        ]
    ]
    for row in study.table:
        for dataset in study.datasets:
            runs = [study.run(row.place(dataset), study.planner, seed) for seed in study.seeds]
            ours = store.figures(runs, "rmse_final")
            if not ours:
                continue
            where = [row.place(dataset).guarantee, dataset_name(dataset)]
            of = {
                name: store.figures(runs, f"rmse_{name}")
                for name in ("constant", "user_mean", "client_alone")
            }
            means = [short(statistics.fmean(values.values())) for values in of.values()]
            theirs = WITHOUT_PRIVACY.get(dataset)
            first.append([*where, spread(estimate(list(ours.values()))), str(len(ours)), *means])
            first[-1].append(NOTHING if theirs is None else short(theirs))
            second.append(
                [
                    *where,
                    change(paired(ours, of["user_mean"])),
                    change(paired(ours, of["client_alone"])),
                    *_judged(row, dataset, ours, of),
                    *_f1(store, runs),
                ]
            )
    if len(first) == 1:
        return None
    text = [
        "RMSE on the test ratings after the last round, mean ± half the 95 % interval:",
        table(first),
        "Differences are paired by seed; less is better:",
        table(second),
    ]
    return "\n\n".join([*_unfinished(study, store, "table"), *text])


def _judged(
    row: TableRow, dataset: str, ours: Mapping[int, float], of: Mapping[str, Mapping[int, float]]
) -> list[str]:
    target = row.targets.get(dataset)
    if target is None:
        return [NOTHING, ""]
    over = excess(target, ours, of)
    return [str(target), "reached" if over <= 0 else f"**missed** by {short(over, 5)}"]


def excess(
    target: Target, ours: Mapping[int, float], of: Mapping[str, Mapping[int, float]]
) -> float:
    """By how much a target is missed; 0 or less where it is reached."""
    other = dict.fromkeys(ours, 0.0) if target.less is None else of[target.less]
    apart = [ours[seed] - other[seed] for seed in ours]
    return (max(apart) if target.every_seed else statistics.fmean(apart)) - target.at_most


def _f1(store: Store, runs: list[Run]) -> list[str]:
    ours, constant = store.figures(runs, "f1_final"), store.figures(runs, "f1_constant")
    below = sum(ours[seed] < constant[seed] for seed in ours)
    means = [short(statistics.fmean(values.values())) for values in (ours, constant)]
    return [*means, f"**no**: in {below} of {len(ours)}" if below else "yes"]


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
    rivals = [["", "significantly better", "no difference", "significantly worse"]]
    for name in study.others:
        said = [verdict(one.less[name]) for one in found]
        rivals.append([name, *(str(said.count(kind)) for kind in ("better", "same", "worse"))])
    missed = [
        f"* {dataset_name(one.place.dataset)}, {one.place.guarantee}: {'; '.join(misses)}"
        for one in found
        if (misses := one.misses())
    ]
    text = [
        *_unfinished(study, store, "planner"),
        table(rows),
        f"The planner against each rival, cells of {len(found)}:",
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
    head = ["data", "guarantee", "seeds", "client alone", "hindsight", "its schedule", "planner"]
    head += ["gap closed", "spent", "less client alone", "uniform's best T"]
    rows = [[*head, *study.others]]
    rows += [
        [
            dataset_name(one.place.dataset),
            one.place.guarantee,
            str(one.seeds),
            short(one.alone),
            short(one.hindsight),
            one.schedule,
            short(one.planner),
            f"{100 * one.closed:.0f} %" if one.worth else NOTHING,
            f"{100 * one.spent:.0f} %",
            change(one.less_alone, 5),
            str(one.flat),
            *(_SIGNS[verdict(one.less[name])] for name in study.others),
        ]
        for one in found
    ]
    text = (
        "RMSE, means over seeds. The last columns: the planner is significantly better (+), no "
        "different (=) or significantly worse (−) than this policy, by the 95 % interval of the "
        "paired difference. A gap is closed only where there is one."
    )
    return f"{text}\n\n{table(rows)}"


def ablation_table(study: Study, store: Store) -> str | None:
    """Mean RMSE without each part, and the paired difference to the full one."""
    columns = dict.fromkeys(_column(one) for one in study.removals)
    every = {column: _figures(study, store, column, study.planner) for column in columns}
    full = {column: figures for column, figures in every.items() if figures}
    if not full:
        return None
    rows = [["removed", *(f"{dataset_name(place[0])}, {place.guarantee}" for place, _ in full)]]
    rows.append(
        ["nothing", *(spread(estimate(list(values.values()))) for values in full.values())]
    )
    for ablation in dict.fromkeys(one.ablation.name for one in study.removals):
        label = next(one.ablation.label for one in study.removals if one.ablation.name == ablation)
        asked = {_column(one) for one in study.removals if one.ablation.name == ablation}
        rows.append([label])
        for column, figures in full.items():
            without = _figures(study, store, column, ablation) if column in asked else {}
            difference = paired(without, figures)
            mean = statistics.fmean(without.values()) if without else 0.0
            shown = f"{short(mean)} ({change(difference)})" if without else NOTHING
            rows[-1].append(shown)
    text = (
        "RMSE, mean over seeds; in brackets the paired difference to the full preset ± half the "
        "95 % interval. Above zero: the part that was removed helps."
    )
    return "\n\n".join([*_unfinished(study, store, "ablation"), text, table(rows)])


def constants_table(study: Study, store: Store) -> str | None:
    """RMSE of the paper's planner in all its forms, beside an even schedule."""
    rows = [["data", "guarantee", "uniform", *CONSTANTS.values()]]
    for place in study.sound:
        column = (place, study.seeds)
        found = [_figures(study, store, column, name) for name in ("uniform", *CONSTANTS)]
        if any(found):
            shown = [spread(estimate(list(values.values()))) for values in found]
            rows.append([dataset_name(place.dataset), place.guarantee, *shown])
    if len(rows) == 1:
        return None
    text = "RMSE after the last round, mean over seeds ± half the 95 % interval:"
    return "\n\n".join([*_unfinished(study, store, "constants"), text, table(rows)])


def _column(removal: Removal) -> tuple[Place, tuple[int, ...]]:
    return removal.place, removal.seeds


def _figures(
    study: Study, store: Store, column: tuple[Place, tuple[int, ...]], name: str
) -> dict[int, float]:
    place, seeds = column
    return store.figures([study.run(place, name, seed) for seed in seeds], "rmse_final")


TABLES: Mapping[str, Callable[[Study, Store], str | None]] = {
    "protocol": protocol,
    "table": results_table,
    "targets": planner_targets,
    "cells": planner_cells,
    "ablation": ablation_table,
    "constants": constants_table,
}
TITLES = {
    "protocol": "Settings",
    "table": "How good it is",
    "targets": "What the planner is worth",
    "cells": "Cell by cell",
    "ablation": "What each part adds",
    "constants": "The paper's planner in this setting",
}


def command(part: str) -> str:
    """What runs a part."""
    return f"python -m benchmarks.results --run --parts {part}"


def how_to_run(name: str) -> str:
    """For a part of which there is nothing."""
    part = name if name in PARTS else "planner"
    return f"{NOT_RUN} `{command(part)}` runs it, `make results` runs all."
