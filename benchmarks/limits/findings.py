"""What came out: gains by the number of clients and epsilon, as a table and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.limits.plan import CLIENTS, EPSILONS, REAL, SEEDS, cell
from benchmarks.paper.table import NOTHING, table
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Figures(NamedTuple):
    """A gain: of which figure over which other one, and whether more of it is better."""

    title: str
    ours: str
    theirs: str
    higher: bool

    def of(self, row: Mapping[str, Any]) -> float | None:
        """The gain in percent; None if one of both is not known."""
        if not row.get(self.theirs) or row.get(self.ours) is None:
            return None
        share = float(row[self.ours]) / float(row[self.theirs]) - 1
        return 100 * (share if self.higher else -share)


GAINS = {
    "served": Figures("RMSE served", "rmse_served", "rmse_client_alone_served", False),
    "last": Figures("RMSE after the last round", "rmse_final", "rmse_client_alone", False),
    "lists": Figures("NDCG@10", "ndcg_at_10", "ndcg_at_10_popularity_released", True),
}
_OVER = {"served": "a client alone", "last": "a client alone", "lists": "popularity as released"}


Rows = Mapping[str, dict[str, Any]]
"""What came of runs, by their keys."""


def stored(path: Path) -> dict[str, dict[str, Any]]:
    """Read what came of all runs; of those with the same key, the newest.

    Figures stay on the page when a setting is added that makes no difference to them. Whether they
    are of the present settings is for `--plan` to say.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return {row["key"]: row for row in map(json.loads, lines)}


def gain(rows: Rows, service: int | str, epsilon: float, what: str) -> Estimate | None:
    """The mean gain over seeds, in percent; None if one of them has none.

    Where nothing was released with some seed, the mean of the others would be of the lucky ones.
    """
    keys = [cell(service, epsilon, seed).key for seed in SEEDS]
    found = [GAINS[what].of(rows[key]) for key in keys if key in rows]
    known = [value for value in found if value is not None]
    return estimate(known) if known and len(known) == len(found) else None


def as_markdown(rows: Rows) -> str:
    """The table of all gains."""
    parts = []
    for what, figures in GAINS.items():
        lines = [["clients", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]]
        named: dict[int | str, str] = {clients: f"{clients:,}" for clients in CLIENTS}
        named |= {name: f"{clients:,}: {title}" for name, (title, clients) in REAL.items()}
        for service, title in named.items():
            shown = [gain(rows, service, epsilon, what) for epsilon in EPSILONS]
            if any(shown):
                lines.append([title, *map(_text, shown)])
        parts += [f"{figures.title}, gain over {_OVER[what]} in percent:", table(lines)]
    return "\n\n".join(parts)


def _text(found: Estimate | None) -> str:
    """A gain with one digit, and half its interval."""
    if found is None:
        return NOTHING
    half = "" if found.half is None else f" ± {found.half:.1f}"
    return f"{found.mean:+.1f}{half}".replace("-", "−")


def write_picture(rows: Rows, path: Path) -> None:
    """Draw the picture of all gains."""
    from bgtplanner.report.pictures import Picture, as_file

    picture = Picture(
        name=path.stem,
        title="Gain by the number of clients",
        alt="gain over a client alone and over popularity, by the number of clients and epsilon",
        draw=lambda figure: draw(rows, figure),
        size=(8.4, 3.4),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, as_file(picture))


def _short(clients: float, _: object = None) -> str:
    """A number of clients that fits under an axis."""
    return f"{clients / 1000:g}k" if clients >= 1000 else f"{clients:g}"


def draw(rows: Rows, figure: Figure) -> None:
    """Fill a figure: one panel for each gain, one line for each epsilon."""
    from matplotlib.ticker import FuncFormatter

    from bgtplanner.report.pictures import BLUE, GREY, shades

    marks: Sequence[str] = ("o", "s", "^", "D", "v")
    panels = figure.subplots(1, len(GAINS))
    for axes, (what, figures) in zip(panels, GAINS.items(), strict=True):
        axes.axhline(0, color=GREY, linewidth=0.8)
        for epsilon, colour, mark in zip(EPSILONS, shades(BLUE, 5), marks, strict=True):
            known = {n: gain(rows, n, epsilon, what) for n in CLIENTS}
            line = {n: found.mean for n, found in known.items() if found is not None}
            axes.plot(
                list(line), list(line.values()), color=colour, marker=mark, markersize=4,
                label=f"epsilon {epsilon:g}",
            )  # fmt: skip
            beside = {n: gain(rows, name, epsilon, what) for name, (_, n) in REAL.items()}
            points = {n: found.mean for n, found in beside.items() if found is not None}
            axes.plot(
                list(points), list(points.values()), color=colour, marker=mark, markersize=6,
                markerfacecolor="none", linestyle="none",
            )  # fmt: skip
        for name, (title, clients) in REAL.items():
            real = {epsilon: gain(rows, name, epsilon, what) for epsilon in EPSILONS}
            top = max((found.mean for found in real.values() if found is not None), default=None)
            if top is not None:
                axes.annotate(
                    title, (clients, top), (0, 6), textcoords="offset points", fontsize=7,
                    ha={"ml-100k": "right", "filmtrust": "left"}.get(name, "center"),
                )  # fmt: skip
        axes.margins(y=0.09)
        axes.set_xscale("log")
        axes.set_xlabel("clients")
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.set_title(f"{figures.title}\nover {_OVER[what]}", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
