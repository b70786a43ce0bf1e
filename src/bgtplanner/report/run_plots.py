"""Pictures of a run: quality, budget, the planner's reasons, noise and participation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from bgtplanner.report.course import Course, Curve
from bgtplanner.report.drawing import (
    WIDE,
    Line,
    Picture,
    around,
    around_alone,
    in_percent,
    lines,
    mark_series,
    round_axes,
    shades,
)
from bgtplanner.report.looks import ABOVE, BESIDE, BLUE, GREEN, GREY, VERMILLION, YELLOW, look_of
from bgtplanner.report.outcome import on_the_scale, unit_of
from bgtplanner.text import visible

__all__ = ["gain_pictures", "run_pictures"]

_MOST_CLASSES = 5
_MOST_NOTES = 5
_DOTS: Mapping[str, Any] = {"ls": "", "marker": "o", "ms": 5}
_TICKS: Mapping[str, Any] = {"ls": "", "marker": "_", "ms": 11, "mew": 2, "zorder": 3}
_LEAST_GAIN = 0.05  # what an axis of gains covers at least
_SPENT_UP = 1e-3  # share of the budget below which it counts as used up


def run_pictures(view: Course) -> Iterator[Picture]:
    """Every picture for which this run has data."""
    if not view.rounds:
        return
    for metric in view.curves:
        if view.scored and None not in view.column(metric.name):
            yield _curve(view, metric)
    yield from gain_pictures(view)
    if not view.private:
        return
    if view.left().size:
        yield _budget(view)
    if (spent := view.epsilon()) is not None:
        yield _epsilon(view, spent)
    chances = any(_why(record).get("probability") for record in view.rounds)
    by_forecast = any(_forecast(record) is not None for record in view.rounds)
    yield _drawn_levels(view) if chances and not by_forecast else _choices(view)
    if any(_chosen(record) is not None for record in view.rounds):
        yield _rewards(view, by_forecast)
    if by_forecast:
        yield _forecasts(view)
    if any(_norms(record) for record in view.rounds):
        yield _noise(view)
    if any("paid" in record for record in view.rounds):
        yield _clients(view)


def _colour(view: Course) -> str:
    return look_of(view.summary["policy"]).colour


def _curve(view: Course, metric: Curve) -> Picture:
    summary, key, values = view.summary, metric.name, view.column(metric.name)
    known = {of: summary.get(f"{key}_{of}") for of in view.references}
    beside = {of: value for of, value in known.items() if value is not None}
    model, steps = str(summary["model"]), view.steps
    drawn = [Line(model, values, _colour(view), steps=steps, lw=2.2, zorder=3)]
    for of, value in beside.items():
        shade, dashes = BESIDE[of]
        drawn.append(Line(view.references[of], value, shade, of, ls=dashes, lw=1.5))
    said = ", ".join(f"{view.references[of]} {value:.4f}" for of, value in beside.items())
    served = summary.get(f"{key}_served")
    if served is not None:
        style: dict[str, Any] = {"ls": (0, (6, 2)), "lw": 1.3}
        drawn.append(Line("mean, as served", served, _colour(view), "served", **style))
        said = f"mean over all rounds, as served, {served:.4f}; {said or 'no references'}"
    unit = unit_of(summary) if metric.unit == "ratings" else ""
    span, note = around_alone([*values, *beside.values()], beside.get("client_alone"))

    def scale(axes: Axes) -> None:
        if unit:
            axes.yaxis.set_major_formatter(lambda at, _: _two_scales(summary, at))

    return Picture(
        name=key,
        title=f"{metric.label} on the held-out ratings ({metric.better} is better)",
        alt=f"{metric.label} by round: from {values[0]:.4f} to {values[-1]:.4f}; "
        f"{said or 'no references'}."
        + (
            f" {metric.label} {values[-1]:.4f} is {on_the_scale(summary, values[-1])}."
            * bool(unit)
        ),
        draw=lines(
            drawn,
            f"{metric.label} · {unit}" if unit else metric.label,
            total=view.total,
            limits=span,
            then=scale,
        ),
        note=note,
    )


def _two_scales(summary: Mapping[str, Any], value: float) -> str:
    return f"{value:.2f} · {on_the_scale(summary, value, unit=False)}"


def _gain_picture(view: Course, by: str) -> Picture:
    """The gain of each group over its clients alone, with intervals."""
    groups = [group for group in view.gains(by) if group["gain"] is not None]
    colour = _colour(view)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=GREY, lw=1.4, ls="-.")
        for place, group in enumerate(reversed(groups)):
            gain = group["gain"]
            arms = [[gain - group["low"]], [group["high"] - gain]]
            shade = colour if group["high"] >= 0 else VERMILLION
            axes.errorbar(gain, place, xerr=arms, color=shade, marker="o", ms=6, capsize=4, lw=2)
        axes.set_yticks(range(len(groups)), [group["name"] for group in reversed(groups)])
        axes.set_ylim(-0.6, len(groups) - 0.4)
        low = min(-_LEAST_GAIN / 5, *(group["low"] for group in groups))
        high = max(_LEAST_GAIN, *(group["high"] for group in groups))
        axes.set_xlim(*around(low, high, 0.05))
        in_percent(axes.xaxis)
        axes.set_xlabel("error below a client alone; dashed: no gain")
        axes.grid(axis="x", alpha=0.25, lw=0.7)

    said = "; ".join(
        f"{group['name']}: {group['gain']:.1%} ({group['low']:.1%} to {group['high']:.1%})"
        for group in groups
    )
    what = {"ratings": "number of ratings", "budget": "budget"}[by]
    return Picture(
        name=f"gain-{by}",
        title=f"Gain over a client alone, by {what}",
        alt=f"How far the error is below that of a client alone, by {what}, with 95 % intervals: "
        f"{said}.",
        draw=draw,
        size=(WIDE[0], 1.1 + 0.36 * max(3, len(groups))),
        note=f"The axis includes zero and reaches at least to {_LEAST_GAIN:.0%}. "
        "Intervals are 95 %, over clients.",
    )


def gain_pictures(view: Course) -> Iterator[Picture]:
    """The gains of groups, as far as there are groups to compare."""
    for by in ("ratings", "budget"):
        if sum(group["gain"] is not None for group in view.gains(by)) > 1:
            yield _gain_picture(view, by)


def _classes(view: Course, columns: int) -> list[tuple[int, str, str]]:
    """Column, name and colour of each budget class; of many classes, a selection."""
    epsilons = view.class_epsilons()
    if len(epsilons) != columns:
        epsilons = [float("nan")] * columns
    order = sorted(range(columns), key=lambda column: epsilons[column])
    if columns > _MOST_CLASSES:
        picked = np.linspace(0, columns - 1, _MOST_CLASSES).round().astype(int)
        order = [order[place] for place in picked]
    tints = shades(_colour(view), len(order)) if len(order) > 1 else [_colour(view)]
    named = [f"budget ε {epsilons[column]:g}" for column in order]
    return list(zip(order, named, tints, strict=True))


def _budget(view: Course) -> Picture:
    left = view.left()
    drawn = [
        Line(name, left[:, column].tolist(), colour, name, view.steps, 1.0, lw=2.2)
        for column, name, colour in _classes(view, left.shape[1])
    ]
    half = _first(left.max(axis=1) <= 0.5)
    when = "" if half is None else f" Half of it was gone after round {view.steps[half]}."
    return Picture(
        name="budget",
        title="Budget left"
        + (", mean over clients" if view.participation < 1 else ""),
        alt=f"Share of the budget left by round: {left[-1].max():.0%} at the end.{when}",
        draw=lines(
            drawn, "budget left", total=view.total, limits=(-0.02, 1.05), percent=True,
            named=len(drawn) > 1,
        ),
    )  # fmt: skip


def _epsilon(view: Course, spent: NDArray[np.float64]) -> Picture:
    promised = view.class_epsilons()
    drawn = []
    for column, name, colour in _classes(view, spent.shape[1]):
        drawn.append(Line("", spent[:, column].tolist(), colour, name, view.steps, 0.0, lw=2.2))
        if column < len(promised):
            said = f"promised ε {promised[column]:g}"
            drawn.append(Line(said, promised[column], colour, name, ls=":", lw=1.3))
    return Picture(
        name="epsilon",
        title="Epsilon spent after each round"
        + (", by the client that spent most" if view.participation < 1 else ""),
        alt=f"Epsilon spent at most by round: {float(spent[-1].max()):.3g} at the end"
        + (f" of {max(promised):g} promised." if promised else "."),
        draw=lines(drawn, "ε spent", total=view.total, limits=(0, None)),
    )


def _choices(view: Course) -> Picture:
    """The share of the budget that each round was given."""
    shares, colour = _spent_shares(view), _colour(view)
    phases = _phases(view)

    def draw(figure: Figure) -> None:
        axes = round_axes(figure, view.total, "share of the budget")
        axes.vlines(view.steps, 0, shares, color=colour, lw=max(1.2, min(6, 240 / view.total)))
        top = float(max(shares.max(), 1e-9))
        axes.set_ylim(0, 1.22 * top)
        in_percent(axes.yaxis, decimals=0 if top > 0.05 else 1)
        for first, last, note in phases:
            place = min(max((first + last) / 2, 0.09 * view.total), 0.92 * view.total)
            axes.text(place, 1.1 * top, visible(note), ha="center", fontsize=9)
            if first > 1:
                axes.axvline(first - 0.5, color=GREY, lw=0.8, ls=":")

    said = "; ".join(f"rounds {first} to {last}: {note}" for first, last, note in phases)
    return Picture(
        name="choices",
        title="Share of the budget per round",
        alt=f"Share of the budget by round: {int((shares > 0).sum())} of {len(shares)} rounds "
        f"were paid for, the most expensive with {shares.max():.1%}. {said}".strip(),
        draw=draw,
    )


def _drawn_levels(view: Course) -> Picture:
    """The levels that the policy chose, and the probabilities with which it drew them."""
    chances = [_why(record).get("probability") or () for record in view.rounds]
    levels, number = view.column("level"), max(map(len, chances))
    shade = np.zeros((number, len(view.rounds), 4))
    look = look_of(view.summary["policy"])
    shade[..., :3] = colors.to_rgb(look.colour)
    for column, found in enumerate(chances):
        shade[: len(found), column, 3] = 0.55 * np.asarray(found)
    charges = next(
        (of for record in view.rounds if len(of := _why(record).get("charges", ())) == number), ()
    )

    def draw(figure: Figure) -> None:
        axes, steps = round_axes(figure, view.total, "level (its charge)"), view.steps
        axes.imshow(
            shade, extent=(steps[0] - 0.5, steps[-1] + 0.5, -0.5, number - 0.5), origin="lower",
            aspect="auto", interpolation="nearest",
        )  # fmt: skip
        known = [pair for pair in zip(steps, levels, strict=True) if pair[1] is not None]
        if known:
            dots: dict[str, Any] = {"ls": "", "marker": look.mark, "ms": 2.6, "color": look.colour}
            axes.plot(*zip(*known, strict=True), **dots)
        names = ["skip" if charge == 0 else f"{charge:.2g}" for charge in charges]
        axes.set_yticks(range(number), names or [str(level) for level in range(number)])
        axes.set_xlim(0, view.total + 1)

    chosen = sorted({level for level in levels if level is not None})
    said = ", ".join(f"level {level} in {levels.count(level)} rounds" for level in chosen)
    return Picture(
        name="choices",
        title="The level chosen in each round, and the probabilities of all levels",
        alt=f"Level by round, as dots over the probabilities: {said}.",
        draw=draw,
    )


def _rewards(view: Course, by_forecast: bool) -> Picture:
    """The predicted reward of the chosen level, its price, and the actual reward if there is one.

    Where not every round is paid for there are dots only, since a line would claim something about
    the rounds between them.
    """
    chosen = [
        (step, *found, record.get("reward"))
        for step, record in zip(view.steps, view.rounds, strict=True)
        if (found := _chosen(record)) is not None
    ]
    steps, predicted, price, _ = zip(*chosen, strict=True)
    real = [(step, reward) for step, _, _, reward in chosen if reward is not None]
    gaps = by_forecast or len(steps) < len(view.rounds)
    own, other = ({}, {"ls": "--", "lw": 1.5}) if not gaps else (_DOTS, _TICKS)
    shade = VERMILLION if by_forecast else BLUE
    drawn = [
        Line("predicted", predicted, _colour(view), "predicted-reward", steps, **own),
        Line("price", price, shade, "price", steps, **other),
    ]
    if real:
        at, rewards = zip(*real, strict=True)
        dots: dict[str, Any] = {"ls": "", "marker": "o", "ms": 3, "zorder": 1}
        drawn.append(Line("actual", rewards, GREY, "real-reward", at, **dots))
    every = np.array([*predicted, *price, *(reward for _, reward in real)])
    every = every[np.isfinite(every)]
    low, high = np.percentile(every, [2, 98]) if len(every) else (0.0, 1.0)
    wide = by_forecast and every.min() > 0 and every.max() > 20 * every.min()

    def scale(axes: Axes) -> None:
        if wide:
            axes.set_yscale("log")
            axes.set_ylim(every.min() / 1.5, 1.5 * every.max())
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if by_forecast:
            _legend(axes, drawn)

    off = [abs(expected - reward) for _, expected, _, reward in chosen if reward is not None]
    error = f"; mean error of the prediction {np.mean(off):.3g}" if off else ""
    actual = "predicted and actual reward" if real else "the predicted reward"
    rounds = f" in the {len(steps)} rounds with a prediction" if by_forecast else ""
    return Picture(
        name="rewards",
        title=f"Why: {actual}, and the price of the charge",
        alt=f"Of the chosen level{rounds}: predicted reward {np.mean(predicted):.3g} on average, "
        f"price {np.mean(price):.3g}{error}.",
        draw=lines(
            drawn, "reward", total=view.total, limits=None if wide else around(low, high, 0.12),
            named=not by_forecast, then=scale,
        ),
    )  # fmt: skip


def _legend(axes: Axes, drawn: list[Line]) -> None:
    axes.legend([line.name for line in drawn], **ABOVE)


def _forecasts(view: Course) -> Picture:
    """By how much the error was forecast to fall when it was paid for, and by how much it fell."""
    found = [
        (step, forecast)
        for step, record in zip(view.steps, view.rounds, strict=True)
        if (forecast := _forecast(record)) is not None
    ]
    steps, values = [step for step, _ in found], [value for _, value in found]
    alone = view.summary.get("rmse_client_alone")
    came = [1 - rmse / alone for rmse in view.column("rmse")] if alone else []
    drawn = [
        Line(
            "forecast, if the plan is followed", values, _colour(view), "forecast", steps, **_DOTS
        )
    ]
    limits = None
    if came:
        drawn.append(Line("actual", came, GREEN, "actual", view.steps, lw=1.4))
        low = min(0.0, *values, float(np.percentile(came, 5)))
        limits = around(low, max(_LEAST_GAIN, *values, *came), 0.06)
    last = f"it came to {came[-1]:.1%}" if came else "the actual value is not known"
    return Picture(
        name="forecasts",
        title="Why: the forecast gain of spending, and the actual gain",
        alt=f"Forecast of how far the error falls below a client's own if the plan is followed: "
        f"{values[0]:.1%} at first, {values[-1]:.1%} at the last payment; {last}.",
        draw=lines(
            drawn, "error below a client's own", total=view.total, limits=limits, percent=True,
            named=False,
            then=lambda axes: _legend(axes, drawn),
        ),
        note=f"The axis includes zero, a client alone, and reaches at least to {_LEAST_GAIN:.0%}.",
    )  # fmt: skip


def _noise(view: Course) -> Picture:
    seen = [
        (step, *norms)
        for step, record in zip(view.steps, view.rounds, strict=True)
        if (norms := _norms(record))
    ]
    steps, released, noise = zip(*seen, strict=True)
    signal = [max(all_of**2 - part**2, 0.0) for _, all_of, part in seen]
    # Dots only: between them lie rounds in which nothing was sent, and nothing was noised.
    dots: dict[str, Any] = {**_DOTS, "ms": 5 if len(steps) < 40 else 3}
    drawn = [
        Line("what the server saw", released, _colour(view), "released", steps, **dots),
        Line("noise alone, expected", noise, GREY, "noise", steps, **_TICKS),
    ]

    def scale(axes: Axes) -> None:
        if max(released) > 20 * min(released):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.12 * max(*released, *noise))
        _legend(axes, drawn)

    share = sum(signal) / sum(value**2 for value in released)
    return Picture(
        name="noise",
        title="Noise against signal",
        alt=f"Norm of what the server saw in {len(seen)} rounds beside that of the noise alone: "
        f"about {share:.0%} of its power was signal.",
        draw=lines(drawn, "norm of the mean upload", total=view.total, named=False, then=scale),
    )


def _clients(view: Course) -> Picture:
    paid, late = (np.array([of or 0 for of in view.column(key)]) for key in ("paid", "late"))
    everybody = view.summary.get("clients") or int(paid.max())
    answered = np.where(paid > 0, [of or 0 for of in view.column("clients")], 0)
    silent = np.maximum(paid - late - answered, 0)
    colour = _colour(view)
    layers = [
        ("took part", answered, colour),
        ("too late", late, YELLOW),
        ("paid, but no answer", silent, VERMILLION if colour != VERMILLION else BLUE),
    ]
    layers = [layer for layer in layers if layer[1].any()] or layers[:1]
    ended = list(_spent_up(view))

    def draw(figure: Figure) -> None:
        axes = round_axes(figure, view.total, "clients")
        edges = np.array([[step - 0.5, step + 0.5] for step in view.steps]).ravel()
        base = np.zeros(len(edges))
        for name, count, shade in layers:
            top = base + np.repeat(count, 2)
            area = axes.fill_between(edges, base, top, color=shade, lw=0, label=name, alpha=0.85)
            mark_series(area, name)
            base = top
        axes.set_ylim(0, 1.05 * everybody)
        for step, name in ended:
            axes.axvline(step + 0.5, color=GREY, ls="--", lw=1.2)
            axes.text(step + 0.5, 1.04 * everybody, f" {name}", fontsize=8, ha="right", va="top",
                      rotation=90)  # fmt: skip
        axes.legend(**ABOVE)

    gone = "".join(f" {name} after round {step}." for step, name in ended)
    return Picture(
        name="clients",
        title="Clients that took part",
        alt=f"Clients by round: clients took part in {int((paid > 0).sum())} rounds, up to "
        f"{int(answered.max())} of {everybody}; {int(late.sum() + silent.sum())} paid uploads "
        f"were late or never came.{gone}",
        draw=draw,
    )


def _spent_up(view: Course) -> Iterator[tuple[int, str]]:
    """When a class of clients had used up its budget while others continued."""
    left = view.left()
    if left.ndim != 2 or left.shape[1] < 2:
        return
    for column, name, _ in _classes(view, left.shape[1]):
        place = _first(left[:, column] < _SPENT_UP)
        if place is not None and place + 1 < len(left):
            yield view.steps[place], f"{name} used up"


def _first(which: Any) -> int | None:
    found = np.flatnonzero(which)
    return int(found[0]) if len(found) else None


def _why(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("why") or {}


def _norms(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """The norms of a release and of its noise; None if there was no noise."""
    released, noise = record.get("released_norm"), record.get("noise_norm")
    return (released, noise) if released and noise else None


def _forecast(record: Mapping[str, Any]) -> float | None:
    """The forecast that a payment was made by, if there was one."""
    found = _why(record).get("forecast") or (math.nan,)
    return found[0] if math.isfinite(found[0]) else None


def _chosen(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Predicted reward and price of the chosen level."""
    level, why = record.get("level"), _why(record)
    predicted, price = why.get("predicted", ()), why.get("price", ())
    if level is None or not level < min(len(predicted), len(price)):
        return None
    found = predicted[level], price[level]
    return found if all(map(math.isfinite, found)) else None


def _spent_shares(view: Course) -> NDArray[np.float64]:
    """Share of the budget spent in each round, by the class that spent the largest share."""
    left = view.left()
    if left.size:
        taken = np.nan_to_num(-np.diff(left, axis=0, prepend=1.0))
        return np.asarray(np.maximum(taken.max(axis=1), 0.0))
    charges = np.array([charge or 0.0 for charge in view.column("charge")])
    return np.asarray(charges / (charges.sum() or 1.0))


def _phases(view: Course) -> list[tuple[int, int, str]]:
    """First and last round of each phase with one note, if there are few phases."""
    noted = ((step, str(_why(of).get("note", ""))) for step, of in zip(
        view.steps, view.rounds, strict=True))  # fmt: skip
    found = []
    for note, group in groupby(noted, key=lambda entry: entry[1]):
        steps = [step for step, _ in group]
        if note:
            found.append((steps[0], steps[-1], note))
    return found if len(found) <= _MOST_NOTES else []
