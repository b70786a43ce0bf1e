"""What came of a run, in words and figures: what was planned for comes first.

Errors are shown on the scale of the data, in stars if it is one of stars, beside that from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bgtplanner.models.metrics import METRICS, of_lists, of_ratings, shown
from bgtplanner.models.references import REFERENCES
from bgtplanner.text import Table

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


def on_the_scale(summary: Summary, error: float) -> str:
    """Return an error on the scale of the data; on that from 0 to 1 if the other is not known.

    Example:
        >>> on_the_scale({"scale": [0, 5]}, 0.1864), on_the_scale({}, 0.1864)
        ('0.93', '0.1864')
    """
    if not unit_of(summary):
        return f"{error:.4f}"
    raw = error * (summary["scale"][1] - summary["scale"][0])
    return f"{raw:.2f}" if raw < 10 else f"{raw:.3g}"


def in_words(summary: Summary, error: float) -> str:
    """Return an error with its name or its unit."""
    if unit := unit_of(summary):
        return f"{on_the_scale(summary, error)} {unit}"
    return f"{METRICS[ERROR].label} {error:.4f}"


def nothing_learned(summary: Summary) -> bool:
    """Return whether clients end with what each could do alone.

    Earlier versions did not note it; if no round was paid for, nothing was learned.
    """
    if (learned := summary.get("learned")) is not None:
        return not learned
    return summary.get("mechanism", "none") != "none" and summary.get("rounds_paid") == 0


def verdict(summary: Summary) -> list[str]:
    """Return the result of a finished run: the headline, then what has to be said right after.

    The headline is about the lists, which are what people look at, if it is known how good they
    are, and otherwise about the error of predicted ratings.
    """
    if summary.get(f"{ERROR}_final") is None:
        return [
            f"{summary['clients']:,} clients learned together on their own machines. They did not "
            "report how good the model is: no budget was set aside for that."
        ]
    if nothing_learned(summary):
        return [
            "Nothing was learned from others.",
            "Each client is served as if it were alone, with an error of "
            f"{in_words(summary, summary[planned_key(summary)])}.",
            f"What helps: {_what_helps(summary)}.",
        ]
    served, lists, error = is_served(summary), _lists(summary), _error(summary)
    begun = f"Over {summary['rounds_run']} rounds of learning" if served else "Learning"
    begun = (
        f"{begun} together, {summary['clients']:,} clients {'were served' if served else 'get'}"
    )
    said = [f"{begun} {lists}."] if lists else []
    if lists and error:
        said.append(f"Predicted ratings have {error}.")
    elif error:
        said = [f"{begun} predicted ratings with {error}."]
    elif not lists:
        over = "as served over" if served else "after"
        label, value = METRICS[ERROR].label, summary[planned_key(summary)]
        said = [f"{label} {value:.4f} {over} {summary['rounds_run']} rounds."]
    better = (summary.get("gains") or {}).get("better")
    return said + ([] if better is None else [f"Better off: {100 * better:.0f} % of the clients."])


def _lists(summary: Summary) -> str:
    """Return how good the lists are, beside popularity; empty if that is not known or shown."""
    keys = planned_key(summary, LISTS), f"{LISTS}_popularity"
    ours, popular = (summary.get(key) for key in keys)
    if ours is None or popular is None or LISTS not in shown(summary["preset"]):
        return ""
    metric = METRICS[LISTS]
    told = f"{metric.label} {metric.in_words(ours)} against {metric.in_words(popular)}"
    better = "better" if ours > popular else "no better"
    return f"lists {better} than popularity's ({told}; perfect lists have 1)"


def _error(summary: Summary) -> str:
    """Return how large the error is beside that of a client alone; empty if that is not known."""
    error, alone = summary[planned_key(summary)], summary.get(f"{ERROR}_client_alone")
    if is_served(summary):
        alone = summary.get(f"{ERROR}_client_alone_served") or alone
    if not alone:
        return ""
    gain = f"{100 * abs(1 - error / alone):.1f}% {'lower' if error <= alone else 'higher'}"
    both = f"{METRICS[ERROR].label} {error:.4f} against {alone:.4f}"
    if unit_of(summary):
        both = f"{on_the_scale(summary, error)} instead of {in_words(summary, alone)}"
    return f"an error {gain} than each could reach alone ({both})"


def _what_helps(summary: Summary) -> str:
    """Return what to change if nothing was learned."""
    ways = ["more clients"]
    if summary.get("epsilon") is not None:
        ways.insert(0, f"a larger --epsilon than {summary['epsilon']:g}")
    if summary.get("trust") == "local":
        ways.append("--trust secagg, which needs far less noise")
    return " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))


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


def scores(summary: Summary, *, judged: bool = False) -> Table:
    """Return the scores of the model below those of the references; bold is what was planned for.

    Args:
        summary: The figures of the run.
        judged: Whether to leave out all but the error and the lists, and of the references all
            but a client alone and popularity.
    """
    served, paper, unit = is_served(summary), summary["preset"] == "paper", unit_of(summary)
    metrics = dict(sorted(shown(summary["preset"]).items(), key=lambda of: not of[1].sums))
    references = REFERENCES
    if judged and not paper:
        metrics = {name: of for name, of in metrics.items() if name in (ERROR, LISTS)}
        references = {key: REFERENCES[key] for key in ("client_alone", "popularity")}
    labels, rows = ["predictor"], []
    for metric in metrics.values():
        labels += [metric.label, unit] if metric.unit == "ratings" and unit else [metric.label]

    def add(name: str, when: str) -> None:
        found = []
        for key, metric in metrics.items():
            last = when in ("final", "best") and not metric.sums
            value = summary.get(key if last else f"{key}_{when}")
            found.append(metric.in_words(value))
            if metric.unit == "ratings" and unit:
                found.append("–" if value is None else on_the_scale(summary, value))
        if set(found) != {"–"}:
            rows.append(("", [name, *found]))

    for key, name in references.items():
        by_round = served and summary.get(f"{ERROR}_{key}_served") is not None
        if not (by_round and judged):
            add(name, key)
        if by_round:
            add(f"{name}, as served", f"{key}_served")
    model = summary["model"]
    if summary.get(f"{ERROR}_served") is not None and not paper:
        add(f"{model}, as served", "served")
    add(f"{model}, last round", "final")
    if paper:
        add("best round on the test set, as in the paper", "best")
    bold = f"{model}, {'as served' if served and not paper else 'last round'}"
    return Table("", labels, rows, bold=bold)


def about_scores(summary: Summary) -> list[str]:
    """Return sentences on what counts, on ratings that arrived, and on the lists."""
    said, drawn = [], summary.get("users_ranked")
    if is_served(summary):
        said.append("What counts is the error that people were served with, over all rounds.")
    if (new := summary.get(f"{ERROR}_arriving")) is not None:
        said.append(f"New ratings were predicted before they were learned, with RMSE {new:.4f}.")
    if drawn is not None and drawn < (summary.get("users") or 0):
        said.append(
            f"Lists are those of {drawn:,} of {summary['users']:,} users, drawn at random."
        )
    return [*said, *filter(None, [target_in_words(summary)])]
