"""What a study has shown, in one sentence and a few figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bgtplanner.report.story import Tile
from bgtplanner.report.study import group_name
from bgtplanner.runs.statistics import Comparison, Row
from bgtplanner.runs.study import in_words

__all__ = ["headline", "tiles"]


def headline(found: Comparison) -> str:
    """Which policy has the lowest error and where, or at which values of what is varied."""
    return _of_sweep(found) if found.study.variations else _of_comparison(found)


def _private_groups(rows: Sequence[Row], metric: str) -> dict[str, list[tuple[float, Row]]]:
    """Errors of the policies that have a budget, by data set and mechanism."""
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        found = row.figures[metric]
        if not row.reference and row.mechanism != "none" and found is not None:
            name = group_name(row.dataset, row.mechanism)
            groups.setdefault(name, []).append((found.mean, row))
    return groups


def _of_comparison(comparison: Comparison) -> str:
    metric, _ = comparison.reported
    groups = _private_groups(comparison.rows, metric)
    contested = {name: min(rows, key=_error) for name, rows in groups.items() if len(rows) > 1}
    if not contested:
        count = len(comparison.outcomes)
        return f"{count} {'cell is' if count == 1 else 'cells are'} finished."
    if len(contested) == 1:
        (name, (error, best)) = next(iter(contested.items()))
        return (
            f"{best.policy} has the lowest mean error of {len(groups[name])} policies on {name}: "
            f"RMSE {error:.4f}{_below_alone(comparison, best.dataset, error, metric)}."
        )
    wins = Counter(best.policy for _, best in contested.values())
    policy, times = wins.most_common(1)[0]
    others = ", ".join(f"{name} in {won}" for name, won in wins.most_common()[1:])
    rest = f" ({others})" if others else ""
    return f"{policy} has the lowest mean error in {times} of {len(contested)} settings{rest}."


def _error(entry: tuple[float, Row]) -> float:
    return entry[0]


def _below_alone(comparison: Comparison, dataset: str, error: float, metric: str) -> str:
    for row in comparison.rows:
        found = row.figures[metric]
        if row.policy == "client_alone" and row.dataset == dataset and found is not None:
            share = error / found.mean - 1 if found.mean else 0.0
            return (
                f", {100 * abs(share):.1f} % {'below' if share <= 0 else 'above'} a client alone"
            )
    return ""


def _of_sweep(found: Comparison) -> str:
    keys = ", ".join(dict.fromkeys(key for of in found.study.variations for key in of.keys))
    metric, _ = found.reported
    known = [
        (value.mean, row)
        for row in found.rows
        if (value := row.figures[metric]) is not None and row.mechanism != "none"
    ]
    if not known:
        return f"What {keys} does: no cell is finished yet."
    error, row = min(known, key=_error)
    where = ", ".join(f"{key} = {in_words(value)}" for key, value in row.varied.items())
    return f"What {keys} does: the lowest error, RMSE {error:.4f}, is {row.policy}'s at {where}."


def tiles(found: Comparison, cells: int) -> list[Tile]:
    """How much of it is done, how sure it is, what failed."""
    done, seeds = len(found.outcomes), len(set(found.study.seeds))
    said = "intervals are over them" if seeds > 1 else "one says nothing about chance"
    tiles = [
        Tile("Cells finished", f"{done} of {cells}", "one run each", warn=done < cells),
        Tile("Seeds", str(seeds), said, warn=seeds < 2),
    ]
    if found.study.variations:
        number = sum(1 for _ in found.study.points())
        tiles.append(Tile("Combinations", str(number), "of the settings varied"))
    else:
        tiles += _apart(found)
    if found.failed:
        tiles.append(Tile("Failed", str(len(found.failed)), "see below why", warn=True))
    return tiles


def _apart(found: Comparison) -> list[Tile]:
    """How many policies differ from the baseline by more than chance."""
    metric, _ = found.reported
    apart = [
        value
        for entry in found.differences
        if entry.policy != "unlimited"
        and (value := entry.figures[metric]) is not None
        and value.half is not None
    ]
    if not apart:
        return []
    worse = sum(value.mean > (value.half or 0.0) for value in apart)
    better = sum(value.mean < -(value.half or 0.0) for value in apart)
    return [
        Tile(
            f"Against {found.study.against}",
            f"{better} better, {worse} worse",
            f"of {len(apart)} differences, at 95 %; the rest could be chance",
        )
    ]
