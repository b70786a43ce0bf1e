"""The runs of a comparison with rivals, and the table of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.rivals.als import Als, Cmf
from bgtplanner import simulate
from bgtplanner.data.ratings import Ratings
from bgtplanner.models.learner import Learner
from bgtplanner.models.metrics import METRICS
from bgtplanner.runs.assembly import ratings_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.statistics import estimate

OURS = "ours"
_RIVALS: dict[str, type[Als]] = {"als": Als, "cmf": Cmf}
_TASKS = ("ratings", "ranking")
_FIGURES = {"rmse": "rmse_final", "ndcg_at_10": "ndcg_at_10"}
_MADE_UP: dict[str, dict[str, float]] = {  # data sets of other sizes: ratings drawn from a model
    "made-up-20m": {"clients": 138_493, "items": 26_744, "ratings_per_client": 144},
    "made-up-1m": {"clients": 6_040, "items": 3_706, "ratings_per_client": 165},
}
_LIKE_PEOPLE = {"dim": 8, "choosy": 1.0}  # many tastes, by which people also pick
_OF_SUMS = {"server.optimizer": "posterior", "server.aggregation": "clients", "privacy.clip": 0.1}
_ROUNDS = 10  # of ours, whose planner decides in which of them it spends


class Cell(NamedTuple):
    """One run: on which data, under which budget, of which model."""

    dataset: str
    epsilon: float
    seed: int
    model: str
    task: str
    data_dir: str | None = None


class Choice(NamedTuple):
    """A rival's settings, and in which proportions its rounds share the budget."""

    learner: Als
    shares: tuple[int, ...]


def chosen(model: str, task: str, clients: int, epsilon: float) -> Choice:
    """Return what was best on training parts, by the number of clients and epsilon.

    What matters is how far a sum over clients stands out of its noise: clients times epsilon.
    """
    signal = clients * epsilon
    kind: type[Als] = _RIVALS[model]
    settings: dict[str, Any]
    if task == "ratings":
        dim = 0 if signal < 20_000 else 4
        return Choice(kind(task="ratings", dim=dim, adaptive=0.15, memory=1.0), (1,) * 4)
    if signal < 5_000:
        settings = {"dim": 6, "unobserved_weight": 0.6, "item_shrinkage": 2.0, "memory": 0.85}
        return Choice(kind(task="ranking", **settings), (1,) * 6)
    if signal < 30_000:
        return Choice(kind(task="ranking", dim=8), (1,) * 6)
    settings = {"dim": 16, "unobserved_weight": 0.2, "item_shrinkage": 0.5, "memory": 0.5}
    settings |= {"observed_weight": 1.0, "favour": 1.0}
    return Choice(kind(task="ranking", **settings), (1, 2, 3, 4, 5, 6))


def measured(cell: Cell, ratings: Ratings | None = None) -> dict[str, Any]:
    """Run one cell; return its figures, and how long it took."""
    started = time.monotonic()
    settings: dict[str, Any] = {"data.dataset": cell.dataset, "run.seed": cell.seed}
    if cell.data_dir is not None:
        settings["data.data_dir"] = cell.data_dir
    if cell.dataset in _MADE_UP:
        made = _MADE_UP[cell.dataset] | _LIKE_PEOPLE
        settings |= {"data.dataset": "synthetic"}
        settings |= {f"synthetic.{name}": value for name, value in made.items()}
    if ratings is None:
        ratings = ratings_of(load_config(settings=settings))
    settings |= {"data.initial_share": 1.0, "privacy.trust": "secagg"}
    settings |= {"privacy.mechanism": "gaussian", "federation.rounds": _ROUNDS}
    learner: Learner | str | None = None
    if cell.model in _RIVALS:
        choice = chosen(cell.model, cell.task, ratings.n_clients, cell.epsilon)
        learner = choice.learner
        settings |= {"federation.rounds": len(choice.shares), "planning.policy": "fixed"}
        settings |= {"planning.options": {"weights": list(choice.shares)}}
        settings |= _OF_SUMS
    elif cell.model != OURS:
        learner = cell.model
    result = simulate(ratings, model=learner, epsilon=cell.epsilon, settings=settings)
    figures = {name: result.summary.get(key) for name, key in _FIGURES.items()}
    seconds = round(time.monotonic() - started, 1)
    return cell._asdict() | {"data_dir": None} | figures | {"seconds": seconds}


def cells_of(
    datasets: Iterable[str],
    epsilons: Sequence[float],
    seeds: Sequence[int],
    models: Sequence[str],
    data_dir: str | None = None,
) -> list[Cell]:
    """Return all runs of a comparison; a rival has one for each task."""
    return [
        Cell(dataset, epsilon, seed, model, task, data_dir)
        for dataset in datasets
        for epsilon in epsilons
        for model in models
        for task in (_TASKS if model in _RIVALS else ("both",))
        for seed in seeds
    ]


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the table: means over seeds, and how far each rival is from ours on the same splits.

    Differences have 95 % intervals. A difference is in our favour if it is positive.
    """
    lines = ["| data set | epsilon | figure | model | mean | ours is ahead by |", "|" + "---|" * 6]
    models = list(dict.fromkeys(row["model"] for row in found))
    ours = next((model for model in models if model not in _RIVALS), None)
    for dataset, epsilon in dict.fromkeys((row["dataset"], row["epsilon"]) for row in found):
        for figure in _FIGURES:
            metric = METRICS[figure] if figure in METRICS else METRICS["rmse"]
            here = [row for row in found if (row["dataset"], row["epsilon"]) == (dataset, epsilon)]
            best = {model: _best(here, model, figure) for model in models}
            for model, by_seed in best.items():
                if not by_seed:
                    continue
                mean = estimate(list(by_seed.values()))
                ahead = "" if ours in (None, model) else _ahead(best[ours], by_seed, figure)
                shown = "–" if mean is None else f"{mean.mean:.{metric.digits}f}"
                lines.append(
                    f"| {dataset} | {epsilon:g} | {figure} | {model} | {shown} | {ahead} |"
                )
    return "\n".join(lines) + "\n"


def _best(rows: Sequence[dict[str, Any]], model: str, figure: str) -> dict[int, float]:
    """Return a model's figure by seed, in the task whose mean is the best."""
    by_task: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["model"] == model and row[figure] is not None:
            by_task.setdefault(row["task"], {})[row["seed"]] = row[figure]
    sign = 1.0 if figure == "rmse" else -1.0
    return min(by_task.values(), key=lambda of: sign * sum(of.values()) / len(of), default={})


def _ahead(ours: dict[int, float], theirs: dict[int, float], figure: str) -> str:
    sign = 1.0 if figure == "rmse" else -1.0
    found = estimate([sign * (theirs[seed] - ours[seed]) for seed in ours if seed in theirs])
    if found is None:
        return "–"
    spread = "" if found.low is None else f" ({found.low:+.4f} to {found.high:+.4f})"
    return f"{found.mean:+.4f}{spread}"
