"""The figures of ``summary.json``: what a run was, what it reached, and what it spent on whom.

A mean over everybody can hide that those with few ratings, or with a small budget, are served
worse than they would be alone: so groups of clients are compared with themselves alone. A group
has at least :data:`FEWEST` clients, its bounds are rounded, and the first and the last group are
open, so that no bound is the number of ratings of the most active client.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models import references as beside
from bgtplanner.models.metrics import HEADLINE, drawn_users, of_ratings, ranked
from bgtplanner.paper.accounting import client_level
from bgtplanner.planning.objective import Objective
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.compatibility import UNITS
from bgtplanner.privacy.ledger import Ledger, Spending
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.runs.assembly import accountant_of, budgets_of, promise_of
from bgtplanner.runs.config import Config
from bgtplanner.runs.record import SCHEMA, identity_of

CLIENT_LEVEL_DELTA = 1e-5
"""The delta at which the epsilon of a whole client is computed, whatever the preset."""

FEWEST = 10
"""Of fewer clients than this, nothing is said."""

_MOST_GROUPS = 4
_Z95 = 1.96
_SAME = 1e-6  # share of an error below which a change of it says nothing
_LARGEST = 1e15  # the longest scale that figures are shown on
_OTHERS = (
    *("trust", "unit", "accounting", "epsilon", "delta", "neighbours", "epsilon_other_reading"),
    *("most_dropouts", "most_colluders", "noise_surplus", "rounds_aborted"),
    *("epsilon_spent_max", "epsilon_client_level", "epsilon_client_level_median"),
    *("epsilon_client_level_pure", "rounds_paid", "classes", "uploads_dropped", "ledger_head"),
    *("planner_note", "target", "target_reached", "target_round"),  # 0.2 had targets
)

Records = Sequence[Mapping[str, Any]]
"""One mapping per round, as in ``rounds.jsonl``."""


def facts_of(
    config: Config, clients: int, items: int, split: Split | None = None
) -> dict[str, Any]:
    """What is known about a run before its first round: what it is, and what it has to beat.

    On real machines there is no split: nobody knows how many ratings there are, or how others
    predict them.
    """
    about: dict[str, Any] = {"clients": clients, "users": None, "items": items, "ratings": None}
    scored: dict[str, Any] = dict.fromkeys(beside.References._fields)
    scale, public = None, frozenset({"scale", "catalogue"})
    if split is not None:
        data, number = split.train, len(split.train) + len(split.test)
        about |= {"dataset": data.name, "users": data.n_users, "ratings": number}
        scored, public = beside.references(data, split.test)._asdict(), data.public
        scale = [data.low, data.high] if data.high - data.low < _LARGEST else None
    budgets = budgets_of(config, clients).classes if config.private else ()
    return {
        "schema": SCHEMA,
        **identity_of(config),
        **about,
        **{
            f"{figure}_{name}": None if scores is None else scores[figure]
            for figure, metric in of_ratings().items()
            for name, scores in scored.items()
            if metric.shown
        },
        "scale": scale,
        "not_accounted": not_accounted(config, public),
        "simulated_noise": split is not None and config.private,  # it comes from a seed
        "class_epsilons": [budget.epsilon for budget in budgets],
    }


def not_accounted(config: Config, public: Collection[str]) -> list[str]:
    """What leaves the clients without being paid for; without a mechanism, all that leaves.

    `public` are those of ``scale`` and ``catalogue`` that were given and not read off the ratings:
    a client that rates another item, or higher than all others, visibly changes what was read
    off. With ``data.arrival = time``, whoever sees who takes part sees since when it has ratings.
    """
    rows = not config.private or not UNITS[config.privacy.unit].sound
    planning, learns = config.planning, config.learns
    leaves = {
        "item-ids": rows or (learns and planning.context == "usage"),
        "pseudo-rows": rows and bool(config.model.pseudo_items),
        "context": learns and planning.context == "usage",
        "reward": learns and planning.reward in ("test", "loss"),
        "scale": "scale" not in public,
        "catalogue": "catalogue" not in public,
        "arrival": config.data.arrival == "time",
    }
    return [name for name, is_so in leaves.items() if is_so]


def summarise(
    config: Config, facts: Mapping[str, Any], records: Records, seconds: float,
    spending: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The figures of a run so far; what it does not have, such as an epsilon, is None."""
    # The first round of a process includes compilation.
    later = [record["seconds"] for record in records[1:]] or [records[-1]["seconds"]]
    return {
        **facts,
        **dict.fromkeys(_OTHERS),
        "rounds_run": len(records),
        # Of several classes of clients, the share of the class that has the least left.
        "budget_left": min(records[-1].get("left") or [], default=None),
        "objective": config.planning.objective,
        **_scores(config.planning.goal, records, facts.get("scale")),
        "seconds_total": seconds,
        "seconds_per_round": statistics.median(later),
        **(spending or {}),
    }


def _scores(goal: Objective, records: Records, scale: Sequence[float] | None) -> dict[str, Any]:
    """The scores of the model; None if no one may look at ratings."""
    found: dict[str, Any] = {}
    for name, metric in of_ratings().items():
        values = [record.get(name) for record in records]
        last, known = values[-1], [value for value in values if value is not None]
        found[f"{name}_final"] = last
        if metric.shown:
            best = metric.best(known) if known else None
            found[f"{name}_best"] = best
            found[f"{name}_best_round"] = records[values.index(best)]["round"] if known else None
        if metric.unit == "ratings":
            raw = None if scale is None or last is None else last * (scale[1] - scale[0])
            found[f"{name}_final_raw"] = raw
            found[f"{name}_served"] = as_served(goal, values)
    planned = found["rmse_served" if goal.kind == "served" else "rmse_final"]
    return found | {"rmse_objective": planned, "rmse_arriving": _arriving(records)}


def as_served(goal: Objective, values: Sequence[float | None]) -> float | None:
    """The mean over rounds, weighted by their traffic; None if a round has no value."""
    known = [value for value in values if value is not None]
    whole = bool(known) and len(known) == len(values)
    return replace(goal, kind="served").of(known) if whole else None


def _arriving(records: Records) -> float | None:
    """The error on ratings that arrived in the order of time, each predicted before it did."""
    arrived = squares = before = 0.0
    for record in records:
        now, error = record.get("ratings") or 0, record.get("rmse_arriving")
        if error is not None:
            arrived, squares = arrived + now - before, squares + (now - before) * error**2
        before = now
    return (squares / arrived) ** 0.5 if arrived else None


def rounds_to_rank(rounds: int) -> list[int]:
    """The rounds, from 0, before the last, after which lists are made: fewer and fewer.

    Example:
        >>> rounds_to_rank(100)
        [0, 1, 3, 6, 13, 26, 51]
    """
    return sorted({round(rounds ** (step / 7)) - 1 for step in range(7)} - {rounds - 1})


def lists_served(goal: Objective, records: Records, last: float | None) -> float | None:
    """The NDCG@10 that people were served with: the mean over rounds, as :func:`as_served`.

    Lists are made in a few rounds only. Between two of these, NDCG@10 is taken to have come as far
    as the error has, which is known in every round; without any change of the error, as far as the
    rounds have. `last` is the NDCG@10 of the last round.
    """
    measured = [record.get(HEADLINE) for record in records[:-1]]
    errors = [record.get("rmse") for record in records]
    if last is None or None in errors or (measured and measured[0] is None):
        return None
    known = {index: value for index, value in enumerate([*measured, last]) if value is not None}
    error = np.array(errors, dtype=np.float64)
    every = np.interp(np.arange(len(records)), list(known), list(known.values()))
    for (begin, low), (end, high) in pairwise(known.items()):
        fell = error[begin] - error[end]
        if abs(fell) > _SAME * error[begin]:
            way = (error[begin] - error[begin : end + 1]) / fell
            every[begin : end + 1] = low + (high - low) * np.clip(way, 0, 1)
    return as_served(goal, every.tolist())


def alone_by_round(split: Split, rounds: int, last: float | None) -> list[float] | None:
    """The error of a client alone after each round; None if `last`, of all ratings, is not known.

    It is computed in a few rounds, from the ratings known by then, and changes evenly between.
    """
    if last is None:
        return None
    train = replace(split.train, catalogue=None)  # features are for another reference
    test = replace(split.test, catalogue=None)
    places = [*rounds_to_rank(rounds), rounds - 1]
    values = [
        float(last)
        if index == rounds - 1 and split.present(index).all()
        else beside.references(train.take(split.present(index)), test).client_alone.rmse
        for index in places
    ]
    return [float(value) for value in np.interp(range(rounds), places, values)]


def tested(
    simulation: Simulation, split: Split, records: Records, alone: float | None, goal: Objective,
    ledger: Ledger | None,
) -> dict[str, Any]:  # fmt: skip
    """What the held-out ratings say about a run that is over: of lists, of groups, of classes.

    `alone` is the error of each client alone, from all of its ratings.
    """
    number, lists = len(records), ranking_of(simulation, split)
    predicted = simulation.predict(split.test.user, split.test.item)
    found: dict[str, Any] = {"learned": simulation.learned, **lists}
    budgets = None
    if ledger is not None and len(ledger.budgets.classes) > 1:
        budgets = ledger.budgets
        found["classes"] = classes_of(ledger, split.test, predicted)
    found["gains"] = gains_of(split, predicted, number - 1, budgets)
    found[f"{HEADLINE}_served"] = lists_served(goal, records, lists.get(HEADLINE))
    every = alone_by_round(split, number, alone)
    return found | {"rmse_client_alone_served": as_served(goal, every or [])}


def ranking_of(simulation: Simulation, split: Split) -> dict[str, Any]:
    """The scores of the lists that users would be shown, and of the rankings beside them."""
    every = beside.rankings(split.train)
    released = simulation.federation.model.popularity(simulation.state.shared)
    if released is not None and np.ptp(released) > 0:  # nothing released ranks nothing
        every["popularity_released"] = beside.the_same_for_all(np.asarray(released))
    found = ranked(simulation.rank, split.train, split.test) | {
        f"{figure}_{name}": value
        for name, rank in every.items()
        for figure, value in ranked(rank, split.train, split.test, beside=True).items()
    }
    known = {name: value if math.isfinite(value) else None for name, value in found.items()}
    return {**known, "users_ranked": len(drawn_users(split.test.n_users))}


def gains_of(
    split: Split, predicted: NDArray[Any], last: int, budgets: Budgets | None
) -> dict[str, Any]:
    """The error of groups of clients in the last round, beside what they would reach alone.

    ``better`` is the share of the clients whose error is lower than alone; ``ratings`` and, if
    budgets differ, ``budget`` are the groups, each with its name, its number of clients, both
    errors, and the gain, a share of the error alone, with the bounds of its 95 % interval.
    `predicted` is for the test ratings, after the round `last`, from 0.
    """
    test, train = split.test, split.train.take(split.present(last))
    clients = train.n_clients
    ours, theirs = (
        np.bincount(test.client, (of.astype(np.float64) - test.value) ** 2, minlength=clients)
        for of in (predicted, beside.predicted_alone(train, test))
    )
    asked, rated = (np.bincount(of.client, minlength=clients) for of in (test, train))
    known = asked > 0
    named = {"ratings": _grouped(rated, known)}
    if budgets is not None:
        epsilon = np.array([of.epsilon for of in budgets.classes])[budgets.class_of_client]
        named["budget"] = ((f"ε {of:g}", known & (epsilon == of)) for of in np.unique(epsilon))
    found: dict[str, Any] = {
        by: [
            {"name": name, **_gain(ours[who], theirs[who], asked[who])}
            for name, who in groups
            if who.sum() >= FEWEST
        ]
        for by, groups in named.items()
    }
    better = float((ours < theirs)[known].mean()) if known.sum() >= FEWEST else None
    return {"better": better} | found


def _grouped(
    rated: NDArray[Any], known: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Groups of about equal size by ratings, with rounded bounds; the outer ones are open."""
    some = rated[known]
    number = min(_MOST_GROUPS, len(some) // FEWEST)
    shares = np.arange(1, number) / max(number, 1)
    wanted = {float(f"{of:.2g}") for of in np.quantile(some, shares)} if number > 1 else set()
    edges = [-math.inf]
    for edge in sorted(wanted):  # a bound that leaves too few on either side is left out
        if ((some > edges[-1]) & (some <= edge)).sum() >= FEWEST <= (some > edge).sum():
            edges.append(edge)
    for low, high in pairwise([*edges, math.inf]):
        name = f"{low + 1:g} to {high:g} ratings"
        if math.isinf(low):
            name = "all clients" if math.isinf(high) else f"up to {high:g} ratings"
        elif math.isinf(high):
            name = f"more than {low:g} ratings"
        yield name, known & (rated > low) & (rated <= high)


def _gain(ours: NDArray[Any], theirs: NDArray[Any], asked: NDArray[Any]) -> dict[str, Any]:
    """The errors of a group, and the gain with its interval: clients are the draws."""
    total, alone, together = float(asked.sum()), float(theirs.sum()), float(ours.sum())
    found: dict[str, Any] = {
        "clients": len(ours),
        "rmse": math.sqrt(together / total),
        "rmse_alone": math.sqrt(alone / total),
        "better": float((ours < theirs).mean()),
        **dict.fromkeys(("gain", "low", "high")),
    }
    if alone > 0 and together > 0:
        ratio = together / alone
        # The ratio of two sums over clients, linearised; its root is the ratio of the errors.
        spread = math.sqrt(len(ours)) * float(np.std(ours - ratio * theirs, ddof=1))
        gain, half = 1 - math.sqrt(ratio), _Z95 * spread / alone / (2 * math.sqrt(ratio))
        found |= {"gain": gain, "low": gain - half, "high": gain + half}
    return found


def spending_of(
    config: Config, ledger: Ledger, split: Split | None, records: Records,
    clients: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What was promised, what was spent, and what that means for a whole client.

    On real machines there is no split, and only the first `clients` places are taken. If clients
    share the noise, its surplus is the mean over the rounds that were opened.
    """
    privacy, tolerance = config.privacy, config.federation.tolerance
    epsilon = max(budget.epsilon for budget in ledger.budgets.classes)
    spent = ledger.epsilon_spent()[:clients]
    found: dict[str, Any] = {
        "trust": privacy.trust,
        "unit": privacy.unit,
        "accounting": accountant_of(config).name,
        "epsilon": epsilon,
        "delta": privacy.delta,
        **promise_of(config, epsilon),
        "rounds_paid": sum(record.get("charge", 0) > 0 for record in records),
        "epsilon_spent_max": float(spent.max()),
        "epsilon_client_level": float(spent.max()),
        "epsilon_client_level_median": float(np.median(spent)),
        "epsilon_client_level_pure": None,
        "ledger_head": str(ledger.head),
        "uploads_dropped": sum(record["dropped"] for record in records),
    }
    if privacy.trust == "secagg" and mechanism_named(privacy.mechanism).has_shares:
        surplus = [record["surplus"] for record in records if record.get("surplus") is not None]
        found |= {
            "most_dropouts": tolerance.dropouts,
            "most_colluders": tolerance.colluders,
            "noise_surplus": statistics.fmean(surplus) if surplus else None,
            "rounds_aborted": sum(record.get("aborted") is True for record in records),
        }
    sound = UNITS[privacy.unit].sound and ledger.accountant.sound
    return found if sound or split is None else found | _client_level(config, split, records)


def classes_of(
    ledger: Ledger, test: Ratings, predicted: NDArray[np.float32]
) -> list[dict[str, Any]]:
    """For each budget class: how many clients it has, what they spent, and their error."""
    spent, index = ledger.epsilon_spent(), ledger.budgets.class_of_client
    classes, squares = ledger.budgets.classes, (predicted.astype(np.float64) - test.value) ** 2
    owned = [(index == number, index[test.client] == number) for number in range(len(classes))]
    return [
        {
            "epsilon": budget.epsilon,
            "clients": int(own.sum()),
            "epsilon_spent_max": float(spent[own].max(initial=0.0)),
            "rmse_final": float(np.sqrt(squares[rated].mean())) if rated.any() else None,
        }
        for budget, (own, rated) in zip(classes, owned, strict=True)
    ]


def most_spent(spending: Spending) -> list[list[int]]:
    """The largest sums of each class, in the accountant's ticks, ``[sums, classes]``."""
    most = np.zeros((len(spending.sums), len(spending.class_sizes)), dtype=np.int64)
    for row, sums in zip(most, spending.sums, strict=True):
        np.maximum.at(row, spending.class_of, sums)
    return most.tolist()


def _client_level(config: Config, split: Split, records: Records) -> dict[str, Any]:
    """Epsilon of whole clients at delta 1e-5, if each row was noised on its own.

    It assumes that every client paid in every round; those that dropped out spent less.
    """
    paid = [record for record in records if record["charge"] > 0]
    multipliers = np.array([record["noise_multiplier"] for record in paid])
    rounds = np.array([record["round"] for record in paid])
    # How many rows each client had released by each of the paid rounds.
    blocks = np.zeros((len(rounds), split.train.n_clients))
    if UNITS[config.privacy.unit].sound:
        blocks += 1
    else:
        tensors = config.fedgnn.dense_blocks if config.model.name == "fedgnn" else ()
        pairs = split.pairs
        began = np.searchsorted(rounds, pairs.first)
        inside = began < len(rounds)
        np.add.at(blocks, (began[inside], pairs.client[inside]), 1)
        blocks = blocks.cumsum(axis=0) + len(tensors)
    order = np.argsort((blocks / multipliers[:, None] ** 2).sum(axis=0))
    most, median = (
        client_level(config.privacy.mechanism, multipliers, blocks[:, client], CLIENT_LEVEL_DELTA)
        for client in (order[-1], order[(len(order) - 1) // 2])
    )
    return {
        "epsilon_client_level": most.epsilon,
        "epsilon_client_level_median": median.epsilon,
        "epsilon_client_level_pure": median.pure,
    }
