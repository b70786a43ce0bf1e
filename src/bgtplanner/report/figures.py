"""Pictures of a run: how good it got, how the budget went, why, through what noise, with whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter, StrMethodFormatter

from bgtplanner.report.choice_figures import choice_pictures
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
from bgtplanner.report.rounds import by_round, single
from bgtplanner.report.story import Story

__all__ = ["run_pictures"]

_MOST_CLASSES = 5
_SPENT_UP = 1e-3  # share of the budget that counts as nothing left
_BESIDE = {"constant": ("#E69F00", "--"), "user_mean": (GREEN, ":"), "client_alone": (GREY, "-.")}
_YELLOW = "#E69F00"


def run_pictures(story: Story) -> Iterator[Picture]:
    """Every picture that this run has something to show in."""
    if not story.rounds:
        return
    if story.scored:
        yield _curve(story, "rmse", "RMSE", "lower")
        yield _curve(story, "f1", "F1", "higher")
    if not story.private:
        return
    if story.left().size:
        yield _budget(story)
    if story.epsilon() is not None:
        yield _epsilon(story)
    yield from choice_pictures(story)
    if any(record.get("released_norm") and record.get("noise_norm") for record in story.rounds):
        yield _noise(story)
    if any("paid" in record for record in story.rounds):
        yield _clients(story)


def _curve(story: Story, key: str, name: str, better: str) -> Picture:
    summary, colour = story.summary, look_of(story.summary["policy"]).colour
    values = [record[key] for record in story.rounds]
    beside = {of: summary[f"{key}_{of}"] for of in story.references}
    said = ", ".join(f"{story.references[of]} {value:.4f}" for of, value in beside.items())

    def draw(figure: Figure) -> None:
        axes = by_round(figure, story)
        (line,) = axes.plot(story.steps, values, color=colour, lw=2.2, **single(values))
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
        axes = by_round(figure, story)
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
        title="The budget burning down"
        + (", the mean client's" if story.config.federation.participation < 1 else ""),
        alt=f"Share of the budget left by round: {left[-1].max():.0%} at the end.{when}",
        draw=draw,
    )


def _epsilon(story: Story) -> Picture:
    read = story.epsilon()
    spent = np.zeros((0, 1)) if read is None else read
    promised = story.class_epsilons()

    def draw(figure: Figure) -> None:
        axes = by_round(figure, story)
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
        title="Epsilon as it reads after each round"
        + (", of who has spent most" if story.config.federation.participation < 1 else ""),
        alt=f"Epsilon spent at most by round: {most:.3g} at the end"
        + (f" of {max(promised):g} promised." if promised else "."),
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
        axes = by_round(figure, story)
        marker: dict[str, Any] = {"marker": "o", "ms": 4} if len(steps) < 15 else {}
        mark_series(axes.plot(steps, released, color=colour, **marker), "released")
        mark_series(axes.plot(steps, noise, color=GREY, ls="--", **marker), "noise")
        if min(released, default=1) > 0 and max(released) > 20 * min(released):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
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
        axes = by_round(figure, story)
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
