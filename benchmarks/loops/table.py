"""The table of a study: means over seeds, and how far each policy is from an even schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bgtplanner.runs.statistics import estimate

FIGURES = {"test_loss": "test loss", "mean_loss": "its mean over rounds", "accuracy": "accuracy"}
_EVEN = "uniform"


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown; differences are paired by seed, with 95 % intervals."""
    head = ["loop", "epsilon", "policy", "reward"]
    for name in FIGURES.values():
        head += [name, "minus uniform", ""]
    lines = [_line(head), "|" + "---|" * len(head)]
    places = dict.fromkeys((row["loop"], row["epsilon"]) for row in found)
    for loop, epsilon in places:
        here = [row for row in found if (row["loop"], row["epsilon"]) == (loop, epsilon)]
        for policy, reward in dict.fromkeys((row["policy"], row["reward"]) for row in here):
            told = reward if policy == "bgt" else ""
            cells = [loop, f"{epsilon:g}", policy, told]
            for figure in FIGURES:
                cells += _compared(here, policy, reward, figure)
            lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def verdict(found: Sequence[dict[str, Any]], policy: str, reward: str, figure: str) -> str:
    """Return better, same or worse than an even schedule, by whether the interval has 0 in it."""
    return _compared(found, policy, reward, figure)[2]


def _compared(
    rows: Sequence[dict[str, Any]], policy: str, reward: str, figure: str
) -> tuple[str, str, str]:
    values, even = _by_seed(rows, policy, reward, figure), _by_seed(rows, _EVEN, "none", figure)
    mean = estimate(list(values.values()))
    shown = "–" if mean is None else f"{mean.mean:.4f}"
    if policy == _EVEN:
        return shown, "", ""
    away = estimate([values[seed] - even[seed] for seed in values if seed in even])
    if away is None or away.low is None or away.high is None:
        return shown, "–", ""
    sign = -1.0 if figure == "accuracy" else 1.0
    low, high = sorted((sign * away.low, sign * away.high))
    said = "better" if high < 0 else "worse" if low > 0 else "same"
    return shown, f"{away.mean:+.4f} ({away.low:+.4f} to {away.high:+.4f})", said


def _by_seed(
    rows: Sequence[dict[str, Any]], policy: str, reward: str, figure: str
) -> dict[int, float]:
    return {
        row["seed"]: row[figure]
        for row in rows
        if (row["policy"], row["reward"]) == (policy, reward)
    }


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
