"""From how many clients on, and from which epsilon on, does learning together pay?

    python -m benchmarks.limits                        write the page and its picture from results
    python -m benchmarks.limits --run --jobs 11        run what is missing first
    python -m benchmarks.limits --run --only 30,100,ml-100k

The services are made up, so that they differ in the number of their clients only. Their people
have eight tastes, pick what suits them, and rate 50 of 2,000 items on average: between FilmTrust,
where it is 21 of 1,957, and ML-100K, where it is 106 of 1,682. Items have categories, which tell
half of what there is to know about them. The real sets are run beside them. On 16 cores all of it
takes about ten minutes, most of them for the service with 100,000 clients.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.paper.page import put
from benchmarks.paper.table import NOTHING, table
from benchmarks.results.plan import Place, Run
from benchmarks.results.play import run_all
from benchmarks.results.store import Store
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = (30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
EPSILONS = (0.5, 1.0, 3.0, 10.0, 20.0)
SEEDS = (0, 1, 2)
MADE = {"items": 2000, "ratings_per_client": 50, "dim": 8, "choosy": 1.0}
REAL = {
    "ml-100k": ("ML-100K", 943),
    "filmtrust": ("FilmTrust", 874),
    "ml-1m-users": ("ML-1M", 6040),
}
"""Names of the real sets, and how many clients they have: one for each user."""

Rows = Mapping[str, dict[str, Any]]
"""What came of runs, by their keys."""


class Figures(NamedTuple):
    """A gain: of which figure over which other one, and whether more of it is better."""

    title: str
    over: str
    ours: str
    theirs: str
    higher: bool

    def of(self, row: Mapping[str, Any]) -> float | None:
        """The gain in percent; None if one of both is not known."""
        if not row.get(self.theirs) or row.get(self.ours) is None:
            return None
        share = float(row[self.ours]) / float(row[self.theirs]) - 1
        return 100 * (share if self.higher else -share)


_RELEASED = "ndcg_at_10_popularity_released"
GAINS = (
    Figures("RMSE served", "a client alone", "rmse_served", "rmse_client_alone_served", False),
    Figures(
        "RMSE after the last round", "a client alone", "rmse_final", "rmse_client_alone", False
    ),
    Figures("NDCG@10", "popularity as released", "ndcg_at_10", _RELEASED, True),
)


def cell(service: int | str, epsilon: float, seed: int) -> Run:
    """The run of a made-up service with so many clients, or of a real set.

    The seed is that of the made-up people, too.
    """
    place = Place("synthetic", "secagg", "gaussian", epsilon, "replace-special")
    if isinstance(service, str):
        return Run(place=place._replace(dataset=service), name="real", seed=seed)
    made = {f"synthetic.{key}": value for key, value in (MADE | {"clients": service}).items()}
    return Run(place=place, name=f"clients={service}", seed=seed, settings=made)


def gain(rows: Rows, service: int | str, epsilon: float, figures: Figures) -> Estimate | None:
    """The mean gain over seeds, in percent; None if one of them has none.

    Where nothing was released with some seed, the mean of the others would be of the lucky ones.
    """
    keys = [cell(service, epsilon, seed).key for seed in SEEDS]
    found = [figures.of(rows[key]) for key in keys if key in rows]
    known = [value for value in found if value is not None]
    return estimate(known) if known and len(known) == len(found) else None


def as_markdown(rows: Rows) -> str:
    """The table of all gains."""
    named: dict[int | str, str] = {clients: f"{clients:,}" for clients in CLIENTS}
    named |= {name: f"{clients:,}: {title}" for name, (title, clients) in REAL.items()}
    parts = []
    for figures in GAINS:
        lines = [["clients", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]]
        for service, title in named.items():
            shown = [gain(rows, service, epsilon, figures) for epsilon in EPSILONS]
            if any(shown):
                lines.append([title, *map(_text, shown)])
        parts += [f"{figures.title}, gain over {figures.over} in percent:", table(lines)]
    return "\n\n".join(parts)


def _text(found: Estimate | None) -> str:
    """A gain with one digit, and half its interval."""
    if found is None:
        return NOTHING
    half = "" if found.half is None else f" ± {found.half:.1f}"
    return f"{found.mean:+.1f}{half}".replace("-", "−")


def draw(rows: Rows, figure: Figure) -> None:
    """Fill a figure: one panel for each gain, one line for each epsilon, marks for real sets."""
    from matplotlib.ticker import FuncFormatter

    from bgtplanner.report.pictures import BLUE, GREY, shades

    def short(clients: float, _: object = None) -> str:
        return f"{clients / 1000:g}k" if clients >= 1000 else f"{clients:g}"

    panels = figure.subplots(1, len(GAINS))
    for axes, figures in zip(panels, GAINS, strict=True):
        axes.axhline(0, color=GREY, linewidth=0.8)
        for epsilon, colour, mark in zip(EPSILONS, shades(BLUE, 5), "os^Dv", strict=True):
            known = {n: gain(rows, n, epsilon, figures) for n in CLIENTS}
            line = {n: found.mean for n, found in known.items() if found is not None}
            look = {"color": colour, "marker": mark}
            axes.plot(*_xy(line), markersize=4, label=f"epsilon {epsilon:g}", **look)
            beside = {n: gain(rows, name, epsilon, figures) for name, (_, n) in REAL.items()}
            points = {n: found.mean for n, found in beside.items() if found is not None}
            axes.plot(*_xy(points), markersize=6, markerfacecolor="none", linestyle="none", **look)
        for name, (title, clients) in REAL.items():
            real = [gain(rows, name, epsilon, figures) for epsilon in EPSILONS]
            if means := [found.mean for found in real if found is not None]:
                side = {"ml-100k": "right", "filmtrust": "left"}.get(name, "center")
                at = (clients, max(means))
                axes.annotate(title, at, (0, 6), textcoords="offset points", fontsize=7, ha=side)
        axes.margins(y=0.09)
        axes.set_xscale("log")
        axes.set_xlabel("clients")
        axes.xaxis.set_major_formatter(FuncFormatter(short))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.set_title(f"{figures.title}\nover {figures.over}", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)


def _xy(points: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(points), list(points.values())


def write(results: Path, page: Path, picture: Path) -> None:
    """Write the table into the page, and draw the picture, from what has been run.

    Figures stay when a setting is added that makes no difference to them: of results with the same
    key, the newest counts.
    """
    from bgtplanner.report.pictures import Picture, as_file

    lines = results.read_text(encoding="utf-8").splitlines()
    rows = {row["key"]: row for row in map(json.loads, lines)}
    drawn = Picture(
        name=picture.stem,
        title="Gain by the number of clients",
        alt="gain over a client alone and over popularity, by the number of clients and epsilon",
        draw=lambda figure: draw(rows, figure),
        size=(8.4, 3.4),
    )
    write_whole(picture, as_file(drawn))
    write_whole(page, put(page.read_text(encoding="utf-8"), "limits", as_markdown(rows)))
    print(f"{page}, {picture}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, if that is asked for, and write what has been run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    services = {str(name): name for name in (*CLIENTS, *REAL)}
    parser.add_argument("--run", action="store_true", help="run what is missing first")
    parser.add_argument("--only", default=",".join(services), help="services to run (all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "runs.jsonl")
    parser.add_argument("--page", type=Path, default=Path("docs/right-for-me.md"))
    parser.add_argument("--picture", type=Path, default=Path("docs/figures/limits.svg"))
    given = parser.parse_args(arguments)
    good = True
    if given.run:
        if unknown := set(given.only.split(",")) - set(services):
            parser.error(f"--only {unknown.pop()}: expected some of {', '.join(services)}")
        asked = [services[name] for name in given.only.split(",")]
        runs = [cell(name, of, seed) for name in asked for seed in SEEDS for of in EPSILONS]
        store = Store(given.results)
        good = run_all(store.missing(runs), store, given.jobs)
    write(given.results, given.page, given.picture)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
