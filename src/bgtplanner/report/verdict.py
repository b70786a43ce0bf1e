"""What came of a run in words and figures, and what it guarantees and what it does not.

What was planned for comes first. Errors are shown on the scale of the data, in stars if it is one
of stars, beside that from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bgtplanner.models.metrics import METRICS, of_lists, of_ratings, shown
from bgtplanner.models.references import REFERENCES
from bgtplanner.privacy.accountants import ACCOUNTANTS, meaning_of
from bgtplanner.privacy.mechanisms import MECHANISMS
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
            "What helps: a larger --epsilon, more clients or, with --trust local, secagg.",
        ]
    served, lists, error = is_served(summary), _lists(summary), error_beside(summary)
    begun = f"Over {summary['rounds_run']} rounds of learning" if served else "Learning"
    number = summary["clients"]
    begun += f" together, {number:,} clients" if number > 2 else ", too few to learn together"
    begun += " were served" if served else " get"
    said = [f"{begun} {lists}."] if lists else []
    if error:
        how = "Predicted ratings have" if lists else f"{begun} predicted ratings with"
        said.append(f"{how} {error}.")
    if not said:
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


def error_beside(summary: Summary) -> str:
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


def scores(summary: Summary, *, judged: bool = False) -> Table:
    """Return the scores of the model below those of the references; bold is what was planned for.

    If `judged`, all but the error and the lists are left out, and of the references all but a
    client alone and popularity.
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
    return said


_NOT_ACCOUNTED = {
    "item-ids": "which items each client rated",
    "pseudo-rows": "rows of the pseudo items that a client adds, whose size gives them away",
    "context": "the planner's context, which is computed from who rated which item",
    "reward": "the planner's reward, which is computed from the ratings themselves",
    "user-gradients": "gradients of the users' own parameters",
    "expansion-matching": "which users rated the same items, shown to whoever matches users",
    "tuning": "settings that were chosen on the test ratings",
    "scale": "the scale, which was read off the ratings (give it as data.scale=LOW:HIGH)",
    "catalogue": "which items occur in the ratings at all",
    "arrival": "when each client joined, which is when its first rating came",
}
_TAKEN_AS_PUBLIC = frozenset({"scale", "catalogue", "arrival"})
"""What is often public, but was read off the ratings here: the guarantee holds if it is."""


def is_sound(summary: Mapping[str, Any]) -> bool:
    """Return whether the printed epsilon holds for whole clients and all that left them.

    The scale, the list of items and when clients joined may have been assumed to be public.
    """
    if summary.get("mechanism", "none") == "none" or not _adds_up(summary):
        return False
    return summary["unit"] == "client" and set(summary["not_accounted"]) <= _TAKEN_AS_PUBLIC


def _adds_up(summary: Mapping[str, Any]) -> bool:
    accountant = ACCOUNTANTS.get(summary["accounting"])
    return accountant is not None and accountant.sound


def not_covered(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence on what left the clients without being paid for, if anything did."""
    if not summary["not_accounted"]:
        return []
    named = "; ".join(_NOT_ACCOUNTED.get(name, name) for name in summary["not_accounted"])
    if is_sound(summary):
        return [f"This assumes that what was read off the ratings is public: {named}."]
    return [f"Not covered, so that no finite epsilon holds: {named}."]


def _relation(summary: Mapping[str, Any]) -> list[str]:
    """Return what epsilon means, and how large it is about the other relation, if known."""
    neighbours = summary.get("neighbours")
    if not neighbours or not _adds_up(summary) or summary["unit"] != "client":
        return []
    return [meaning_of(summary["epsilon"], neighbours, summary.get("epsilon_other_reading"))]


def shared_noise(summary: Mapping[str, Any]) -> list[str]:
    """Return who may drop out or collude where clients share the noise in a sum."""
    if summary.get("trust") != "secagg":
        return []
    mechanism = MECHANISMS.get(summary["mechanism"])
    if mechanism is None or not mechanism.has_shares:
        return [
            "No real federation can add this noise under secure aggregation, since someone would "
            "have to be trusted with all of it: use mechanism gaussian, or trust local."
        ]
    tolerated = summary.get("most_dropouts"), summary.get("most_colluders")
    if None in tolerated:  # an older run
        return []
    dropouts, colluders = tolerated
    said = (
        "Each client adds a share of the noise. The promise holds if in a round at most "
        f"{dropouts:g} drop out and at most {colluders:g} collude with the server (below 1: a "
        "share of the clients); if more drop out, the sum is not opened."
    )
    if surplus := summary.get("noise_surplus"):
        said += f" The noise was {100 * surplus:.2g} % above what that takes."
    if aborted := summary.get("rounds_aborted"):
        said += f" Rounds that were paid for and not opened: {aborted}."
    return [said]


def _cautions(summary: Mapping[str, Any]) -> list[str]:
    """Return what takes the worth from a guarantee: that clients are few, or delta is large."""
    clients, delta, said = summary.get("clients", 3), summary["delta"], []
    if clients < 3 and summary.get("trust") == "secagg":
        said.append("Secure aggregation hides nobody here: a sum takes three clients or more.")
    if delta * clients > 1:
        allowed = f"it allows giving away everything about {delta * clients:.0f} of them"
        said.append(f"Delta is above 1 in the number of clients: {allowed}.")
    return said


def guarantee(summary: Mapping[str, Any], *, short: bool = False) -> list[str]:
    """Return sentences on the guarantee, on what was spent, and on what is not covered.

    If it is to be `short`, how a guarantee that holds is to be read is left out.
    """
    if summary.get("mechanism", "none") == "none":
        return ["Guarantee: none. Uploads were neither clipped nor noised."]
    epsilon, delta, rule = summary["epsilon"], summary["delta"], summary["accounting"]
    drawn = ", if the noise were secret; this run is simulated, and its noise comes from a seed"
    drawn *= bool(summary.get("simulated_noise", True))
    rest = [*_cautions(summary), *_relation(summary), *shared_noise(summary)]
    rest += not_covered(summary)
    if is_sound(summary):
        seen = "only the sum of all uploads" if summary["trust"] == "secagg" else "every upload"
        known = summary.get("epsilon_spent_max")
        most = "an unknown part" if known is None else f"{known:.3g}"
        spent = f"Spent at most {most} of this epsilon, in {summary['rounds_paid']} rounds."
        promise = f"Guarantee: ({epsilon:g}, {delta:g})-differential privacy for each whole client"
        seen = f"against a server that sees {seen}"
        if short:
            rest = _cautions(summary) + not_covered(summary)
            return [f"{promise}, {seen}{drawn}. {spent}", *rest]
        seen += " (secure aggregation, secagg)" * (summary["trust"] == "secagg")
        promise = f"{promise}, over the whole run, {seen} ({rule}){drawn}."
        return [promise, *rest, spent, "Who takes part, and when, is not hidden."]
    if summary["unit"] == "row":
        pure = summary.get("epsilon_client_level_pure")
        without = "" if pure is None else f" ({pure:,.0f} as pure epsilon)"
        said = (
            f"epsilon {epsilon:g} is booked, but for each tensor and item row on its own. For the "
            f"whole client it is {summary['epsilon_client_level_median']:,.0f}{without} at delta "
            f"1e-5 for the median client, {summary['epsilon_client_level']:,.0f} for the most "
            "exposed one"
        )
    elif not _adds_up(summary):
        said = (
            f"epsilon {epsilon:g} is booked by {rule}, which does not bound it. It amounts to "
            f"{summary['epsilon_client_level']:.3g} at delta 1e-5 for the uploads of the most "
            "exposed client"
        )
    else:
        said = f"({epsilon:g}, {delta:g})-differential privacy of the uploads alone"
    return [f"Guarantee: {said}{drawn}.", *rest]
