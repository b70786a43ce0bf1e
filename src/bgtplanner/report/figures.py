"""Pictures of a run, as SVG that reads on light and on dark paper."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["STYLE", "as_svg", "error_curve", "score_curve", "spending_curve"]

# Okabe and Ito's colours: told apart by colour-blind readers too.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#808080"

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and scaled
    "svg.hashsalt": "bgtplanner",  # the same run gives the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "text.color": _GREY,
    "font.size": 11,
}


def error_curve(rounds: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """RMSE on the test ratings by round, with the predictors that share nothing to beat."""
    beside = {
        "one constant for all": summary["rmse_constant"],
        "each user's own mean": summary["rmse_user_mean"],
    }
    if summary["rmse_client_alone"] != summary["rmse_user_mean"]:
        beside["each client alone"] = summary["rmse_client_alone"]
    return _curve(rounds, "rmse", "RMSE", beside)


def score_curve(rounds: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """F1 on the test ratings by round, with the same lines to beat."""
    beside = {
        "one constant for all": summary["f1_constant"],
        "each user's own mean": summary["f1_user_mean"],
    }
    return _curve(rounds, "f1", "F1", beside)


def spending_curve(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Charge of each round as a share of the dearest, and what was left of the budget."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 2.8), layout="constrained")
        axes = figure.subplots()
        steps = [record["round"] + 1 for record in rounds]
        charges = [record.get("charge") or 0.0 for record in rounds]
        most = max(charges) or 1.0
        axes.bar(steps, [charge / most for charge in charges], color=_BLUE, label="charge")
        left = [(record.get("left") or [0.0])[-1] for record in rounds]
        axes.plot(steps, left, color=_ORANGE, ls="--", lw=1.5, label="budget left")
        axes.set_xlabel("round")
        axes.set_ylabel("share")
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return as_svg(figure)


def as_svg(figure: Figure) -> str:
    """A figure as text to put into a page or a file."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _curve(
    rounds: Sequence[Mapping[str, Any]], key: str, label: str, beside: Mapping[str, float]
) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 3.2), layout="constrained")
        axes = figure.subplots()
        steps = [record["round"] + 1 for record in rounds]
        axes.plot(steps, [record[key] for record in rounds], color=_BLUE, lw=2, label="learned")
        styles = [(_ORANGE, "--"), (_GREEN, ":"), (_GREY, "-.")]
        for (name, value), (colour, dashes) in zip(beside.items(), styles, strict=False):
            axes.axhline(value, color=colour, ls=dashes, lw=1.5, label=name)
        axes.set_xlabel("round")
        axes.set_ylabel(label)
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
        return as_svg(figure)
