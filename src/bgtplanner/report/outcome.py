"""What came of a run, in words and figures: for the terminal, the page and the notebook.

What was planned for comes first. Errors are shown on the scale of the data, in stars if it is one
of stars, beside the scale from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bgtplanner.models.metrics import METRICS, shown
from bgtplanner.models.references import REFERENCES

__all__ = [
    "Scores",
    "about_scores",
    "error_in_words",
    "gain_in_words",
    "gained",
    "is_served",
    "lists_in_words",
    "nothing_learned",
    "on_the_scale",
    "planned_key",
    "scores_of",
    "target_in_words",
    "unit_of",
    "what_helps",
]

_STARS = frozenset({(0.0, 5.0), (0.5, 5.0), (1.0, 5.0)})


def is_served(summary: Mapping[str, Any]) -> bool:
    """Whether what counts is the error that people were served with over all rounds.

    Runs of earlier versions planned for the last round.
    """
    return summary.get("objective") == "served" and summary.get("rmse_served") is not None


def planned_key(summary: Mapping[str, Any], name: str = "rmse") -> str:
    """The key of the figure that was planned for; that of the last round if it has no other."""
    if is_served(summary) and summary.get(f"{name}_served") is not None:
        return f"{name}_served"
    return f"{name}_final" if METRICS[name].sums else name


def unit_of(summary: Mapping[str, Any]) -> str:
    """The name of the data's own scale; empty if it is not known, or is the one from 0 to 1.

    Example:
        >>> unit_of({"scale": [1, 5]}), unit_of({"scale": [0, 100]}), unit_of({"scale": None})
        ('stars', 'on 0 to 100', '')
    """
    scale = summary.get("scale")
    if scale is None or tuple(scale) == (0, 1):
        return ""
    return "stars" if tuple(map(float, scale)) in _STARS else f"on {scale[0]:g} to {scale[1]:g}"


def on_the_scale(summary: Mapping[str, Any], error: float | None, unit: bool = True) -> str | None:
    """An error on the scale of the data; None if that is not known, or nothing else.

    Example:
        >>> on_the_scale({"scale": [0, 5]}, 0.1864)
        '0.93 stars'
    """
    name, scale = unit_of(summary), summary.get("scale")
    if error is None or scale is None or not name:
        return None
    raw = error * (scale[1] - scale[0])
    figure = f"{raw:.2f}" if raw < 10 else f"{raw:.3g}"
    return f"{figure} {name}" if unit else figure


def error_in_words(summary: Mapping[str, Any], error: float) -> str:
    """An error on the scale of the data, or else on that from 0 to 1."""
    return on_the_scale(summary, error) or f"RMSE {error:.4f}"


def _alone(summary: Mapping[str, Any]) -> float | None:
    """The error of a client alone, over the same rounds as what was planned for."""
    alone: float | None = summary.get("rmse_client_alone")
    if is_served(summary) and summary.get("rmse_client_alone_served") is not None:
        alone = summary["rmse_client_alone_served"]
    return alone


def gained(summary: Mapping[str, Any]) -> tuple[float, float] | None:
    """The error that was planned for and that of a client alone; None if either is missing."""
    together, alone = summary.get(planned_key(summary)), _alone(summary)
    return None if together is None or alone is None else (together, alone)


def gain_in_words(summary: Mapping[str, Any], space: str = " ") -> str:
    """How much lower or higher the error is than that of a client alone, over the same rounds."""
    together, alone = summary[planned_key(summary)], _alone(summary) or 0.0
    gain = f"{100 * abs(1 - together / alone):.1f}{space}% " if alone else ""
    return f"{gain}{'lower' if together <= alone else 'higher'}"


def nothing_learned(summary: Mapping[str, Any]) -> bool:
    """Whether clients end with what each could do alone: the shared parameters never changed.

    Earlier versions did not note that; where no round was paid for, it is so.
    """
    if (learned := summary.get("learned")) is not None:
        return not learned
    return summary.get("mechanism", "none") != "none" and summary.get("rounds_paid") == 0


def what_helps(summary: Mapping[str, Any]) -> str:
    """What to try if nothing was learned."""
    ways = []
    if summary.get("epsilon") is not None:
        ways.append(f"a larger --epsilon than {summary['epsilon']:g}")
    ways.append("more clients")
    if summary.get("trust") == "local":
        ways.append("--trust secagg, which needs far less noise")
    return f"What helps: {', '.join(ways[:-1])}{' or ' if ways[:-1] else ''}{ways[-1]}."


def target_in_words(summary: Mapping[str, Any]) -> str | None:
    """Whether and when the target was reached, and how much of the budget was kept."""
    if summary.get("target") is None:
        return None
    said, when = f"Target RMSE {summary['target']:g}", summary.get("target_round")
    if not summary["target_reached"]:
        return f"{said}: not reached."
    left = summary.get("budget_left")
    kept = "" if left is None else f"; {100 * left:.0f} % of the budget was kept"
    return f"{said}: reached{'' if when is None else f' in round {when + 1}'}{kept}."


class Scores(NamedTuple):
    """The table of results beside the references.

    Attributes:
        labels: Headings of the columns of figures.
        rows: Name, figures, and whether it is what was planned for.
    """

    labels: list[str]
    rows: list[tuple[str, list[str], bool]]

    def narrowed(self, labels: set[str], names: set[str] | None = None) -> Scores:
        """Only some columns, and of the rows only those named that still have a figure."""
        places = [place for place, label in enumerate(self.labels) if label in labels]
        rows = [(name, [of[place] for place in places], ours) for name, of, ours in self.rows]
        kept = [row for row in rows if set(row[1]) != {"–"} and (names is None or row[0] in names)]
        return Scores([self.labels[place] for place in places], kept)


def scores_of(summary: Mapping[str, Any]) -> Scores:
    """The reference predictors and the result; what was planned for comes before the other one.

    Errors come first, each also on the scale of the data, then the metrics of lists.
    """
    metrics = dict(sorted(shown(summary["preset"]).items(), key=lambda of: not of[1].sums))

    def key(name: str, when: str) -> str:
        return name if when in ("final", "best") and not metrics[name].sums else f"{name}_{when}"

    def figures(when: str) -> list[str]:
        found = []
        for name, metric in metrics.items():
            value = summary.get(key(name, when))
            found.append(metric.in_words(value))
            if metric.unit == "ratings" and unit_of(summary):
                found.append(on_the_scale(summary, value, unit=False) or "–")
        return found

    labels = []
    for metric in metrics.values():
        labels.append(metric.label)
        if metric.unit == "ratings" and unit_of(summary):
            labels.append(unit_of(summary))
    every = []
    for of, name in REFERENCES.items():
        every.append((name, figures(of), False))
        if is_served(summary) and summary.get(f"rmse_{of}_served") is not None:
            every.append((f"{name}, as served", figures(f"{of}_served"), False))
    rows = [row for row in every if set(row[1]) != {"–"}]
    model, served = summary["model"], is_served(summary)
    ours = [(f"{model}, last round", figures("final"), not served)]
    if summary["preset"] != "paper" and summary.get("rmse_served") is not None:
        ours.insert(0 if served else 1, (f"{model}, as served", figures("served"), served))
    rows += ours
    if summary["preset"] == "paper":
        rows.append(("best round on the test set, as in the paper", figures("best"), False))
    return Scores(labels, rows)


def lists_in_words(summary: Mapping[str, Any]) -> str | None:
    """How good the lists are, beside what is popular; None if that is not known or not shown."""
    name = "ndcg_at_10"
    keys = planned_key(summary, name), f"{name}_popularity"
    ours, popular = (summary.get(key) for key in keys)
    if ours is None or popular is None or name not in (metrics := shown(summary["preset"])):
        return None
    metric = metrics[name]
    of = metric.in_words
    return f"{metric.label} {of(ours)} (what is popular has {of(popular)})"


def about_scores(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on what counts, on the scale of the data, and on the lists."""
    said = []
    if is_served(summary):
        said.append("What counts is the error that people were served with, over all rounds.")
    error, scale = summary.get(planned_key(summary)), summary.get("scale")
    if (raw := on_the_scale(summary, error)) is not None and scale is not None:
        on = f", on the scale of the data, {scale[0]:g} to {scale[1]:g}" * raw.endswith("stars")
        said.append(f"RMSE {error:.4f} is {raw}{on}.")
    if (served := summary.get("rmse_served")) is not None and not is_served(summary):
        said.append(f"Over all rounds, people were served with a mean RMSE of {served:.4f}.")
    if (arriving := summary.get("rmse_arriving")) is not None:
        said.append(
            f"Ratings that arrived were predicted, before they were learned, with RMSE "
            f"{arriving:.4f}."
        )
    drawn, users = summary.get("users_ranked"), summary.get("users")
    if drawn is not None and users is not None and drawn < users:
        said.append(f"The lists are those of {drawn:,} of {users:,} users, drawn at random.")
    return said
