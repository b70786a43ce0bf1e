"""Pictures of what a policy decided, and why: its choices, what it expected, what came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bgtplanner.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    Picture,
    label_ends,
    look_of,
    mark_series,
)
from bgtplanner.report.rounds import by_round, single
from bgtplanner.report.story import Story
from bgtplanner.text import visible

__all__ = ["choice_pictures"]

_MOST_NOTES = 5


def choice_pictures(story: Story) -> Iterator[Picture]:
    """What each round was given and, where the policy says so, for what reason."""
    yield _choices(story)
    if any(_chosen(record) is not None for record in story.rounds):
        yield _rewards(story)
    elif any(_forecast(record) for record in story.rounds):
        yield _forecasts(story)


def _choices(story: Story) -> Picture:
    """What the policy chose; where it drew lots, with which chances."""
    if any(_why(record).get("probability") for record in story.rounds):
        return _drawn_levels(story)
    shares, colour = _spent_shares(story), look_of(story.summary["policy"]).colour

    def draw(figure: Figure) -> None:
        axes = by_round(figure, story)
        axes.vlines(story.steps, 0, shares, color=colour, lw=max(1.2, min(6, 240 / story.total)))
        top = float(max(shares.max(), 1e-9))
        axes.set_ylim(0, 1.22 * top)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if top > 0.05 else 1))
        axes.set_ylabel("of the budget")
        for first, last, note in _phases(story):
            middle = (first + last) / 2
            place = min(max(middle, 0.06 * story.total), 0.92 * story.total)
            axes.text(place, 1.1 * top, visible(note), ha="center", fontsize=9)
            if first > 1:
                axes.axvline(first - 0.5, color=GREY, lw=0.8, ls=":")

    paid = int((shares > 0).sum())
    phases = "; ".join(f"rounds {first} to {last}: {note}" for first, last, note in _phases(story))
    return Picture(
        name="choices",
        title="What each round was given",
        alt=f"Share of the budget by round: {paid} of {len(shares)} rounds were paid for, the "
        f"dearest with {shares.max():.1%}. {phases}".strip(),
        draw=draw,
    )


def _drawn_levels(story: Story) -> Picture:
    chances = [_why(record).get("probability") or () for record in story.rounds]
    levels = [record.get("level") for record in story.rounds]
    number = max(map(len, chances))
    chance = np.zeros((number, len(story.rounds)))
    for column, found in enumerate(chances):
        chance[: len(found), column] = found
    charges = next(
        (of for record in story.rounds if len(of := _why(record).get("charges", ())) == number), ()
    )
    look = look_of(story.summary["policy"])

    def draw(figure: Figure) -> None:
        axes = by_round(figure, story)
        shade = np.zeros((*chance.shape, 4))
        shade[..., :3] = colors.to_rgb(look.colour)
        shade[..., 3] = 0.55 * chance
        steps = story.steps
        axes.imshow(
            shade,
            extent=(steps[0] - 0.5, steps[-1] + 0.5, -0.5, number - 0.5),
            origin="lower",
            aspect="auto",
            interpolation="nearest",
        )
        known = [
            (step, level) for step, level in zip(steps, levels, strict=True) if level is not None
        ]
        if known:
            axes.plot(
                *zip(*known, strict=True), ls="", marker=look.mark, ms=2.6, color=look.colour
            )
        names = ["skip" if charge == 0 else f"{charge:.2g}" for charge in charges]
        axes.set_yticks(range(number), names or [str(level) for level in range(number)])
        axes.set_xlim(0, story.total + 1)
        axes.set_ylabel("level (its charge)")

    chosen = sorted({level for level in levels if level is not None})
    counts = {level: levels.count(level) for level in chosen}
    said = ", ".join(f"level {level} in {times} rounds" for level, times in counts.items())
    return Picture(
        name="choices",
        title="The level chosen each round, and the chances of all of them",
        alt=f"Level by round, dots on a shade of its chance: {said}.",
        draw=draw,
    )


def _rewards(story: Story) -> Picture:
    """Why: what the chosen level was expected to bring, its price, and what came."""
    chosen = [
        (step, found, record.get("reward"))
        for step, record in zip(story.steps, story.rounds, strict=True)
        if (found := _chosen(record)) is not None
    ]
    steps = [step for step, _, _ in chosen]
    predicted = [found[0] for _, found, _ in chosen]
    price = [found[1] for _, found, _ in chosen]
    real = [(step, reward) for step, _, reward in chosen if reward is not None]
    colour = look_of(story.summary["policy"]).colour

    def draw(figure: Figure) -> None:
        axes = by_round(figure, story)
        if real:
            dots = axes.plot(*zip(*real, strict=True), ls="", marker="o", ms=3, color=GREY)
            mark_series(dots, "real-reward")
        mark_series(axes.plot(steps, predicted, color=colour, **single(steps)), "predicted-reward")
        mark_series(axes.plot(steps, price, color=BLUE, ls="--", lw=1.5), "price")
        every = np.array([*predicted, *price, *(reward for _, reward in real)])
        every = every[np.isfinite(every)]
        low, high = np.percentile(every, [2, 98]) if len(every) else (0.0, 1.0)
        axes.set_ylim(low - 0.12 * (high - low or 1), high + 0.12 * (high - low or 1))
        axes.set_ylabel("reward")
        ends = [
            (predicted[-1], "predicted", colour, "predicted-reward"),
            (price[-1], "price", BLUE, "price"),
        ]
        if real:
            ends.append((real[-1][1], "real", GREY, "real-reward"))
        label_ends(axes, ends)

    off = [abs(found[0] - reward) for _, found, reward in chosen if reward is not None]
    error = f"; mean error of the prediction {np.mean(off):.3g}" if off else ""
    return Picture(
        name="rewards",
        title="Why: predicted against real reward, and the price of budget",
        alt=f"Of the level that was chosen: predicted reward {np.mean(predicted):.3g} on average, "
        f"price {np.mean(price):.3g}{error}.",
        draw=draw,
    )


def _forecasts(story: Story) -> Picture:
    """Why: by how much the error was forecast to fall, and by how much it did."""
    names = ("as things are", "rest in one round", "rest in a few")
    found = [
        (step, forecast)
        for step, record in zip(story.steps, story.rounds, strict=True)
        if (forecast := _forecast(record))
    ]
    steps, values = [step for step, _ in found], np.array([value for _, value in found])
    alone = story.summary.get("rmse_client_alone")
    came = [1 - record["rmse"] / alone for record in story.rounds] if alone else []
    look = look_of(story.summary["policy"])
    styles = [(GREY, ":"), (look.colour, "-"), (VERMILLION, "--")]
    # Where splitting costs nothing the last two are one line.
    shown = 2 if np.allclose(values[:, 1], values[:, 2], rtol=1e-3, atol=1e-4) else 3

    def draw(figure: Figure) -> None:
        axes = by_round(figure, story)
        ends = []
        for column in range(shown):
            shade, dashes = styles[column]
            name = "if all is spent" if shown == 2 and column else names[column]
            line = axes.plot(steps, values[:, column], color=shade, ls=dashes, **single(steps))
            mark_series(line, names[column])
            ends.append((float(values[-1, column]), name, shade, names[column]))
        if came:
            mark_series(axes.plot(story.steps, came, color=GREEN, lw=1.4), "what-came")
            ends.append((came[-1], "what came", GREEN, "what-came"))
            low = min(float(values.min()), float(np.percentile(came, 5)))
            high = max(float(values.max()), max(came))
            axes.set_ylim(low - 0.1 * (high - low or 1), high + 0.1 * (high - low or 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylabel("error below a client's own")
        label_ends(axes, ends)

    last = f"{came[-1]:.1%} came" if came else "what came is not known"
    return Picture(
        name="forecasts",
        title="Why: what spending was forecast to bring, and what came",
        alt=f"Forecast of the error below a client's own if all is spent: {values[0, 1]:.1%} at "
        f"first, {values[-1, 1]:.1%} at last; {last}.",
        draw=draw,
    )


def _why(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("why") or {}


def _forecast(record: Mapping[str, Any]) -> Sequence[float]:
    """What spending was forecast to bring, in three ways; empty where nothing was."""
    found = _why(record).get("predicted", ())
    return found if len(found) == 3 and all(map(math.isfinite, found)) else ()


def _chosen(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Predicted reward and price of the level that was chosen."""
    level, why = record.get("level"), _why(record)
    predicted, price = why.get("predicted", ()), why.get("price", ())
    if level is None or not level < min(len(predicted), len(price)):
        return None
    found = predicted[level], price[level]
    return found if all(map(math.isfinite, found)) else None


def _spent_shares(story: Story) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Share of its budget that each round took from the class that pays most of it."""
    left = story.left()
    if left.size:
        taken = np.nan_to_num(-np.diff(left, axis=0, prepend=1.0))
        return np.asarray(np.maximum(taken.max(axis=1), 0.0))
    charges = np.array([record.get("charge") or 0.0 for record in story.rounds])
    return np.asarray(charges / (charges.sum() or 1.0))


def _phases(story: Story) -> list[tuple[int, int, str]]:
    """First and last round under one note, if there are few such phases."""
    notes = [str(_why(record).get("note", "")) for record in story.rounds]
    found, place = [], 0
    for note, group in groupby(notes):
        length = len(list(group))
        if note:
            found.append((story.steps[place], story.steps[place + length - 1], note))
        place += length
    return found if len(found) <= _MOST_NOTES else []
