"""Pictures of a run: how good it got, how the budget went, why, through what noise, with whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bgtplanner.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    End,
    Picture,
    label_ends,
    look_of,
    mark_series,
    shades,
)
from bgtplanner.report.story import Story

__all__ = ["run_pictures"]

_MOST_CLASSES = 5
_MOST_NOTES = 5
_SPENT_UP = 1e-3  # share of the budget that counts as nothing left
_BESIDE = {"constant": ("#E69F00", "--"), "user_mean": (GREEN, ":"), "client_alone": (GREY, "-.")}
_YELLOW = "#E69F00"


def run_pictures(story: Story) -> Iterator[Picture]:
    """Every picture that this run has something to show in."""
    if not story.rounds:
        return
    yield _curve(story, "rmse", "RMSE", "lower")
    yield _curve(story, "f1", "F1", "higher")
    if not story.private:
        return
    if story.left().size:
        yield _budget(story)
    if story.epsilon() is not None:
        yield _epsilon(story)
    yield _choices(story)
    if any(_chosen(record) is not None for record in story.rounds):
        yield _rewards(story)
    elif sum(len(_why(record).get("predicted", ())) == 3 for record in story.rounds):
        yield _forecasts(story)
    if any(record.get("released_norm") for record in story.rounds):
        yield _noise(story)
    if any("paid" in record for record in story.rounds):
        yield _clients(story)


def _curve(story: Story, key: str, name: str, better: str) -> Picture:
    summary, colour = story.summary, look_of(story.summary["policy"]).colour
    values = [record[key] for record in story.rounds]
    beside = {of: summary[f"{key}_{of}"] for of in story.references}
    said = ", ".join(f"{story.references[of]} {value:.4f}" for of, value in beside.items())

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        (line,) = axes.plot(story.steps, values, color=colour, lw=2.2, **_alone(values))
        ends: list[End] = [(values[-1], str(summary["model"]), colour, None)]
        for of, value in beside.items():
            shade, dashes = _BESIDE[of]
            mark_series(axes.axhline(value, color=shade, ls=dashes, lw=1.5), of)
            ends.append((value, story.references[of], shade, of))
        line.set_zorder(3)
        axes.set_ylabel(name)
        label_ends(axes, ends)

    return Picture(
        name=key,
        title=f"{name} on the held-out ratings ({better} is better)",
        alt=f"{name} by round: from {values[0]:.4f} to {values[-1]:.4f}; {said or 'alone'}.",
        draw=draw,
    )


def _classes(story: Story, columns: int) -> list[tuple[int, str, str]]:
    """Column, name and colour of each class of budgets; of many, some from least to most."""
    epsilons = story.class_epsilons()
    if len(epsilons) != columns:
        epsilons = [float("nan")] * columns
    order = sorted(range(columns), key=lambda column: epsilons[column])
    if columns > _MOST_CLASSES:
        picked = np.linspace(0, columns - 1, _MOST_CLASSES).round().astype(int)
        order = [order[place] for place in picked]
    colour = look_of(story.summary["policy"]).colour
    tints = shades(colour, len(order)) if len(order) > 1 else [colour]
    return [
        (column, f"budget ε {epsilons[column]:g}", tint)
        for column, tint in zip(order, tints, strict=True)
    ]


def _budget(story: Story) -> Picture:
    left = story.left()

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        ends = []
        for column, name, colour in _classes(story, left.shape[1]):
            line = axes.step(
                [0, *story.steps], [1.0, *left[:, column]], where="post", color=colour, lw=2.2
            )
            mark_series(line, name)
            ends.append((float(left[-1, column]), name, colour, name))
        axes.set_ylim(-0.02, 1.05)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel("budget left")
        if len(ends) > 1:
            label_ends(axes, ends)

    half = _first(left.max(axis=1) <= 0.5)
    when = "" if half is None else f" Half of it was gone after round {story.steps[half]}."
    return Picture(
        name="budget",
        title="The budget burning down",
        alt=f"Share of the budget left by round: {left[-1].max():.0%} at the end.{when}",
        draw=draw,
    )


def _epsilon(story: Story) -> Picture:
    read = story.epsilon()
    spent = np.zeros((0, 1)) if read is None else read
    promised = story.class_epsilons()

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        ends = []
        for column, name, colour in _classes(story, spent.shape[1]):
            line = axes.step(
                [0, *story.steps], [0.0, *spent[:, column]], where="post", color=colour, lw=2.2
            )
            mark_series(line, name)
            if column < len(promised):
                cap = axes.axhline(promised[column], color=colour, ls=":", lw=1.3)
                mark_series(cap, name)
                ends.append((promised[column], f"promised ε {promised[column]:g}", colour, name))
        axes.set_ylim(0, None)
        axes.set_ylabel("ε spent (reading)")
        label_ends(axes, ends)

    most = float(spent[-1].max()) if len(spent) else 0.0
    return Picture(
        name="epsilon",
        title="Epsilon as it reads after each round",
        alt=f"Epsilon spent at most by round: {most:.3g} at the end"
        + (f" of {max(promised):g} promised." if promised else "."),
        draw=draw,
    )


def _choices(story: Story) -> Picture:
    """What the policy chose; where it drew lots, with which chances."""
    if any(_why(record).get("probability") for record in story.rounds):
        return _drawn_levels(story)
    shares, colour = _spent_shares(story), look_of(story.summary["policy"]).colour

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        axes.vlines(story.steps, 0, shares, color=colour, lw=max(1.2, min(6, 240 / story.total)))
        top = float(max(shares.max(), 1e-9))
        axes.set_ylim(0, 1.22 * top)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if top > 0.05 else 1))
        axes.set_ylabel("of the budget")
        for first, last, note in _phases(story):
            middle = (first + last) / 2
            place = min(max(middle, 0.06 * story.total), 0.92 * story.total)
            axes.text(place, 1.1 * top, note, ha="center", fontsize=9)
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
    number = max(len(_why(record).get("charges", ())) for record in story.rounds)
    chance = np.zeros((number, len(story.rounds)))
    for column, record in enumerate(story.rounds):
        found = _why(record).get("probability", ())
        chance[: len(found), column] = found
    charges = next(
        why["charges"] for why in map(_why, story.rounds) if len(why.get("charges", ())) == number
    )
    levels = [record.get("level") for record in story.rounds]
    look = look_of(story.summary["policy"])

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
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
        axes.plot(*zip(*known, strict=True), ls="", marker=look.mark, ms=2.6, color=look.colour)
        names = ["skip" if charge == 0 else f"{charge:.2g}" for charge in charges]
        axes.set_yticks(range(number), names)
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
        axes = _by_round(figure, story)
        if real:
            dots = axes.plot(*zip(*real, strict=True), ls="", marker="o", ms=3, color=GREY)
            mark_series(dots, "real-reward")
        mark_series(axes.plot(steps, predicted, color=colour, **_alone(steps)), "predicted-reward")
        mark_series(axes.plot(steps, price, color=BLUE, ls="--", lw=1.5), "price")
        every = np.array([*predicted, *price, *(reward for _, reward in real)])
        low, high = np.percentile(every, [2, 98])
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
        (step, _why(record)["predicted"])
        for step, record in zip(story.steps, story.rounds, strict=True)
        if len(_why(record).get("predicted", ())) == 3
    ]
    steps, values = [step for step, _ in found], np.array([value for _, value in found])
    alone = story.summary.get("rmse_client_alone")
    came = [1 - record["rmse"] / alone for record in story.rounds] if alone else []
    look = look_of(story.summary["policy"])
    styles = [(GREY, ":"), (look.colour, "-"), (VERMILLION, "--")]
    # Where splitting costs nothing the last two are one line.
    shown = 2 if np.allclose(values[:, 1], values[:, 2], rtol=1e-3, atol=1e-4) else 3

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        ends = []
        for column in range(shown):
            shade, dashes = styles[column]
            name = "if all is spent" if shown == 2 and column else names[column]
            line = axes.plot(steps, values[:, column], color=shade, ls=dashes, **_alone(steps))
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


def _noise(story: Story) -> Picture:
    seen = [
        (step, record["released_norm"], record["noise_norm"])
        for step, record in zip(story.steps, story.rounds, strict=True)
        if record.get("released_norm") and record.get("noise_norm")
    ]
    steps, released, noise = zip(*seen, strict=True) if seen else ((), (), ())
    signal = [max(all_of**2 - part**2, 0.0) ** 0.5 for _, all_of, part in seen]
    colour = look_of(story.summary["policy"]).colour

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        marker: dict[str, Any] = {"marker": "o", "ms": 4} if len(steps) < 15 else {}
        mark_series(axes.plot(steps, released, color=colour, **marker), "released")
        mark_series(axes.plot(steps, noise, color=GREY, ls="--", **marker), "noise")
        if min(released, default=1) > 0 and max(released) > 20 * min(released):
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, None)
        axes.set_ylabel("norm of the mean upload")
        axes.legend(
            ["what the server saw", "noise alone, expected"],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            fontsize=9,
            borderaxespad=0.1,
            columnspacing=1.2,
        )

    power = sum(value**2 for value in released)
    share = sum(value**2 for value in signal) / power if power else 0.0
    return Picture(
        name="noise",
        title="Noise against signal",
        alt=f"Norm of what the server saw in {len(seen)} rounds beside that of the noise alone: "
        f"about {share:.0%} of its power was signal.",
        draw=draw,
    )


def _clients(story: Story) -> Picture:
    everybody = story.summary.get("clients") or max(r.get("paid", 0) for r in story.rounds)
    paid = np.array([record.get("paid", 0) for record in story.rounds])
    late = np.array([record.get("late", 0) for record in story.rounds])
    answered = np.where(paid > 0, [record.get("clients", 0) for record in story.rounds], 0)
    silent = np.maximum(paid - late - answered, 0)
    colour = look_of(story.summary["policy"]).colour
    layers = [
        ("took part", answered, colour),
        ("too late", late, _YELLOW),
        ("paid, no answer", silent, VERMILLION if colour != VERMILLION else BLUE),
    ]
    layers = [layer for layer in layers if layer[1].any()] or layers[:1]
    ended = list(_spent_up(story))

    def draw(figure: Figure) -> None:
        axes = _by_round(figure, story)
        edges = np.array([[step - 0.5, step + 0.5] for step in story.steps]).ravel()
        base = np.zeros(len(edges))
        for name, count, shade in layers:
            top = base + np.repeat(count, 2)
            area = axes.fill_between(edges, base, top, color=shade, lw=0, label=name, alpha=0.85)
            mark_series(area, name)
            base = top
        axes.set_ylim(0, 1.05 * everybody)
        axes.set_ylabel("clients")
        for step, name in ended:
            axes.axvline(step + 0.5, color=GREY, ls="--", lw=1.2)
            axes.text(step + 0.5, 1.04 * everybody, f" {name}", fontsize=8, ha="right", va="top",
                      rotation=90)  # fmt: skip
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=9,
                    borderaxespad=0.1, columnspacing=1.2, handlelength=1.2)  # fmt: skip

    rounds = int((paid > 0).sum())
    lost = int(late.sum() + silent.sum())
    gone = "".join(f" {name} after round {step}." for step, name in ended)
    return Picture(
        name="clients",
        title="Who took part, who dropped out when",
        alt=f"Clients by round: in {rounds} rounds somebody took part, up to "
        f"{int(answered.max())} of {everybody}; {lost} paid uploads were late or never came."
        + gone,
        draw=draw,
    )


def _by_round(figure: Figure, story: Story) -> Axes:
    axes = figure.subplots()
    axes.set_xlabel("round")
    axes.set_xlim(0, story.total + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="y", alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    return axes


def _alone(values: Any) -> dict[str, Any]:
    """A single point is seen only with a mark."""
    return {"marker": "o", "ms": 4} if len(values) == 1 else {}


def _why(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("why") or {}


def _chosen(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Predicted reward and price of the level that was chosen."""
    level, why = record.get("level"), _why(record)
    predicted, price = why.get("predicted", ()), why.get("price", ())
    if level is None or not level < min(len(predicted), len(price)):
        return None
    return predicted[level], price[level]


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


def _spent_up(story: Story) -> Iterator[tuple[int, str]]:
    """When a class of clients had nothing left, where others went on."""
    left = story.left()
    if left.ndim != 2 or left.shape[1] < 2:
        return
    for column, name, _ in _classes(story, left.shape[1]):
        place = _first(left[:, column] < _SPENT_UP)
        if place is not None and place + 1 < len(left):
            yield story.steps[place], f"{name} used up"


def _first(which: Any) -> int | None:
    found = np.flatnonzero(which)
    return int(found[0]) if len(found) else None
