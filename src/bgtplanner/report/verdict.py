"""What came of a run, in words and figures: what was planned for comes first.

Errors are shown on the scale of the data, in stars if it is one of stars, beside that from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bgtplanner.models.metrics import METRICS, of_lists, of_ratings, shown
from bgtplanner.models.references import REFERENCES

Summary = Mapping[str, Any]
ERROR = next(name for name, metric in of_ratings().items() if metric.unit == "ratings")
"""The error that is planned for, and compared."""
LISTS = next(iter(of_lists()))
"""The metric by which lists are judged."""

_STARS = frozenset({(0.0, 5.0), (0.5, 5.0), (1.0, 5.0)})


def is_served(summary: Summary) -> bool:
    """Return whether what counts is what people were served with over all rounds.

    Runs of earlier versions planned for the last round.
    """
    return summary.get("objective") == "served" and summary.get(f"{ERROR}_served") is not None


def planned_key(summary: Summary, name: str = ERROR) -> str:
    """Return the key of the figure that was planned for, or else that of the last round."""
    if is_served(summary) and summary.get(f"{name}_served") is not None:
        return f"{name}_served"
    return f"{name}_final" if METRICS[name].sums else name


def unit_of(summary: Summary) -> str:
    """Return the name of the data's own scale; empty if it is not known, or is from 0 to 1.

    Example:
        >>> unit_of({"scale": [1, 5]}), unit_of({"scale": [0, 100]}), unit_of({"scale": None})
        ('stars', 'on 0 to 100', '')
    """
    scale = summary.get("scale")
    if scale is None or tuple(scale) == (0, 1):
        return ""
    return "stars" if tuple(map(float, scale)) in _STARS else f"on {scale[0]:g} to {scale[1]:g}"


def on_the_scale(summary: Summary, error: float | None, unit: bool = True) -> str | None:
    """Return an error on the scale of the data; None if that is not known, or nothing else.

    Example:
        >>> on_the_scale({"scale": [0, 5]}, 0.1864)
        '0.93 stars'
    """
    name = unit_of(summary)
    if error is None or not name:
        return None
    raw = error * (summary["scale"][1] - summary["scale"][0])
    figure = f"{raw:.2f}" if raw < 10 else f"{raw:.3g}"
    return f"{figure} {name}" if unit else figure


def error_in_words(summary: Summary, error: float) -> str:
    """Return an error on the scale of the data, or else on that from 0 to 1."""
    return on_the_scale(summary, error) or f"{METRICS[ERROR].label} {error:.4f}"


def gained(summary: Summary) -> tuple[float, float] | None:
    """Return the error that was planned for and that of a client alone over the same rounds."""
    alone = summary.get(f"{ERROR}_client_alone")
    if is_served(summary) and summary.get(f"{ERROR}_client_alone_served") is not None:
        alone = summary[f"{ERROR}_client_alone_served"]
    together = summary.get(planned_key(summary))
    return None if together is None or alone is None else (together, alone)


def nothing_learned(summary: Summary) -> bool:
    """Return whether clients end with what each could do alone.

    Earlier versions did not note it; if no round was paid for, nothing was learned.
    """
    if (learned := summary.get("learned")) is not None:
        return not learned
    return summary.get("mechanism", "none") != "none" and summary.get("rounds_paid") == 0


def lists_in_words(summary: Summary) -> str | None:
    """Return how good the lists are, beside popularity; None if that is not known or shown."""
    keys = planned_key(summary, LISTS), f"{LISTS}_popularity"
    ours, popular = (summary.get(key) for key in keys)
    if ours is None or popular is None or LISTS not in (metrics := shown(summary["preset"])):
        return None
    metric = metrics[LISTS]
    return (
        f"{metric.label} {metric.in_words(ours)} (popularity reaches {metric.in_words(popular)})"
    )


def headline(summary: Summary) -> str:
    """Return the result of a finished run in one sentence."""
    if summary.get(f"{ERROR}_final") is None:
        return (
            f"{summary['clients']:,} clients learned together on their own machines. They did not "
            "report how good the model is: no budget was set aside for that."
        )
    if nothing_learned(summary):
        return "Nothing was learned from others."
    served, known, lists = is_served(summary), gained(summary), lists_in_words(summary)
    begun = f"Over {summary.get('rounds_run')} rounds of learning" if served else "Learning"
    begun = f"{begun} together, {summary['clients']:,} clients {'were ' * served}"
    if known is not None and known[1]:
        together, alone = known
        side = "lower" if together <= alone else "higher"
        gain = f"{100 * abs(1 - together / alone):.1f}% {side}"
        both = f"{METRICS[ERROR].label} {together:.4f} against {alone:.4f}"
        if unit := unit_of(summary):
            figures = [on_the_scale(summary, error, unit=False) for error in known]
            both = f"{figures[0]} instead of {figures[1]} {unit}"
        how = f"{'served' if served else 'end'} with an error {gain}"
        return f"{begun}{how} than each could reach alone ({both})."
    if lists is not None:
        return f"{begun}{'served' if served else 'get'} lists with {lists}."
    over = "as served over" if served else "after"
    error = f"{METRICS[ERROR].label} {summary[planned_key(summary)]:.4f}"
    return f"{error} {over} {summary['rounds_run']} rounds."


def lead(summary: Summary) -> list[str]:
    """Return what has to be said right after the headline: lists, or what helps."""
    if summary.get(f"{ERROR}_final") is None:
        return []
    lists, known = lists_in_words(summary), gained(summary)
    if nothing_learned(summary):
        error = error_in_words(summary, summary[planned_key(summary)])
        ways = ["more clients"]
        if summary.get("epsilon") is not None:
            ways.insert(0, f"a larger --epsilon than {summary['epsilon']:g}")
        if summary.get("trust") == "local":
            ways.append("--trust secagg, which needs far less noise")
        help_with = " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))
        return [
            f"Each client is served as if it were alone, with an error of {error}.",
            f"What helps: {help_with}.",
        ]
    said, better = [], (summary.get("gains") or {}).get("better")
    if lists is not None and known is not None and known[1]:
        said.append(f"Their lists {'had' if is_served(summary) else 'have'} {lists}.")
    if better is not None:
        said.append(f"Better off: {100 * better:.0f} % of the clients.")
    return said


def target_in_words(summary: Summary) -> str | None:
    """Return whether and when the target was reached, and how much of the budget was kept."""
    if summary.get("target") is None:
        return None
    said, when = f"Target RMSE {summary['target']:g}", summary.get("target_round")
    if not summary["target_reached"]:
        return f"{said}: not reached."
    left = summary.get("budget_left")
    kept = "" if left is None else f"; {100 * left:.0f} % of the budget was kept"
    return f"{said}: reached{'' if when is None else f' in round {when + 1}'}{kept}."


def scores(
    summary: Summary, *, judged: bool = False
) -> tuple[list[str], list[tuple[str, list[str]]], str]:
    """Return the results beside the references: headings, named rows, and what was planned for.

    Args:
        summary: The figures of the run.
        judged: Whether to leave out all but the error and the lists, and of the references all
            but a client alone and popularity.
    """
    metrics = dict(sorted(shown(summary["preset"]).items(), key=lambda of: not of[1].sums))
    if judged and summary["preset"] != "paper":
        metrics = {name: of for name, of in metrics.items() if name in (ERROR, LISTS)}
    unit = unit_of(summary)

    def figures(when: str) -> list[str]:
        found = []
        for name, metric in metrics.items():
            last = when in ("final", "best") and not metric.sums
            value = summary.get(name if last else f"{name}_{when}")
            found.append(metric.in_words(value))
            if metric.unit == "ratings" and unit:
                found.append(on_the_scale(summary, value, unit=False) or "–")
        return found

    labels = []
    for metric in metrics.values():
        labels += [metric.label, *[unit] * bool(metric.unit == "ratings" and unit)]
    served, paper, rows = is_served(summary), summary["preset"] == "paper", []
    for key, name in REFERENCES.items():
        if judged and not paper and key not in ("client_alone", "popularity"):
            continue
        too = served and summary.get(f"{ERROR}_{key}_served") is not None
        if not (too and judged):
            rows.append((name, figures(key)))
        if too:
            rows.append((f"{name}, as served", figures(f"{key}_served")))
    rows = [row for row in rows if set(row[1]) != {"–"}]
    model, best = summary["model"], f"{summary['model']}, last round"
    ours = [(best, figures("final"))]
    if not paper and summary.get(f"{ERROR}_served") is not None:
        ours.insert(0 if served else 1, (f"{model}, as served", figures("served")))
        best = ours[0][0]
    if paper:
        ours.append(("best round on the test set, as in the paper", figures("best")))
    return labels, rows + ours, best


def about_scores(summary: Summary) -> list[str]:
    """Return sentences on what counts, on ratings that arrived, and on the lists."""
    said, label = [], METRICS[ERROR].label
    if is_served(summary):
        said.append("What counts is the error that people were served with, over all rounds.")
    if (arriving := summary.get(f"{ERROR}_arriving")) is not None:
        said.append(
            "Ratings that arrived were predicted, before they were learned, with "
            f"{label} {arriving:.4f}."
        )
    drawn, users = summary.get("users_ranked"), summary.get("users")
    if drawn is not None and users is not None and drawn < users:
        said.append(f"The lists are those of {drawn:,} of {users:,} users, drawn at random.")
    return [*said, *filter(None, [target_in_words(summary)])]
