"""The paper's sensitivity studies: a table that fits a page, and pictures beside it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from benchmarks.paper.plan import DATASETS, FIGURES, MECHANISMS, SEEDS, Figure, Job
from benchmarks.paper.printed import EPSILON
from benchmarks.paper.results import Results
from benchmarks.paper.table import NOTHING, not_run, short, table
from bgtplanner.models.metrics import METRICS
from bgtplanner.report.pictures import ABOVE, BLUE, GREEN, YELLOW, Picture, as_file
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Estimate, Row, metric_of
from bgtplanner.runs.study import folder_name, in_words

Lines = dict[tuple[str, str, str], dict[str, Estimate]]
_COLOURS = {"bgt": BLUE, "uniform": GREEN, "adpml": "#CC79A7", "adap": YELLOW}
_SHOWN = "ml-100k"  # the picture that is on the page itself, if it is there


def figure_part(figure: Figure, results: Results, docs: Path) -> str | None:
    """The tables of a figure; its pictures are written into ``figures/`` beside the page."""
    sweeps = results.sweeps.get(figure.name, [])
    if not sweeps:
        return None
    pictures: dict[tuple[str, str], str] = {}
    for found in sweeps:
        for dataset, mechanism in dict.fromkeys(place[:2] for place in _places(found)):
            pictures[dataset, mechanism] = _draw(figure, found, dataset, mechanism, docs)
    lines = [results.provenance(figure)]
    lines += [_varied(sweeps, key, pictures) for key in KEYS[figure.figure]]
    alt = next((place for place in pictures if place[0] == _SHOWN), next(iter(pictures)))
    lines.append(f"![{DATASETS.get(alt[0], alt[0])}, {alt[1]}]({pictures[alt]})")
    if said := trend(results, figure.figure):
        lines.append(said)
    known = {dataset for dataset, _ in pictures}
    lines += not_run(
        [Job(part=figure, dataset=name, seeds=SEEDS) for name in DATASETS if name not in known]
    )
    return "\n\n".join(lines)


def _places(found: Comparison) -> list[tuple[str, str, str]]:
    return [(row.dataset, row.mechanism, row.policy) for row in found.rows if not row.reference]


def _values(found: Comparison, key: str) -> list[object]:
    """All values of a setting in a sweep."""
    grids = found.study.variations
    return list(dict.fromkeys(value for grid in grids for value in grid.get(key, ())))


def _varied(sweeps: Sequence[Comparison], key: str, pictures: dict[tuple[str, str], str]) -> str:
    values = dict.fromkeys(in_words(of) for found in sweeps for of in _values(found, key))
    names = list(values)
    rows = [["", f"policy \\ {key}", *names, "range", "deviation"]]
    seeds: set[int] = set()
    for found in sweeps:
        for (dataset, mechanism, policy), line in _lines(found, key).items():
            means = [one.mean for one in line.values()]
            spread = [one.std for one in line.values() if one.std is not None]
            seeds |= {one.seeds for one in line.values()}
            title = f"{DATASETS.get(dataset, dataset)} {MECHANISMS.get(mechanism, mechanism)}"
            cells = [short(line[name].mean) if name in line else NOTHING for name in names]
            cells.append(short(max(means) - min(means)))
            cells.append(short(statistics.median(spread)) if spread else NOTHING)
            rows.append([f"[{title}]({pictures[dataset, mechanism]})", policy, *cells])
    budgets = _values(sweeps[0], "privacy.epsilon") if key != "privacy.epsilon" else []
    held = f" at `privacy.epsilon` = {_held(budgets)}" if budgets else ""
    number = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else _plural(max(seeds))
    about = (
        f"RMSE of the best round{held}, mean of {number}; *range* is from the lowest to the "
        "highest of a row, *deviation* the median standard deviation over seeds. The links lead "
        "to pictures, with F1" + (" and all budgets." if budgets else ".")
    )
    return f"{about}\n\n{table(rows)}"


def lines_of(results: Results, figure: str, key: str) -> Lines:
    """The rows of a figure's table, of all data sets."""
    found: Lines = {}
    for sweep in results.sweeps.get(f"figure-{figure}", []):
        found |= _lines(sweep, key)
    return found


KEYS = {
    "budget": ["privacy.epsilon"],
    "min-rounds": ["planning.min_rounds"],
    "rounds": ["federation.rounds"],
    "small": [key for grid in FIGURES[-1].grids for key in grid],
}
"""The settings on the horizontal axes of each figure."""

_IN_THE_PAPER = {
    "budget": "In the paper the RMSE falls as the budget grows.",
    "min-rounds": "In the paper the RMSE varies little with T_min, and tends to rise with it.",
    "rounds": "In the paper the RMSE falls with T for Gaussian noise and rises for Laplace noise.",
}


def falls(line: dict[str, Estimate]) -> bool:
    """Whether the RMSE is lower at the last value than at the first."""
    means = [one.mean for one in line.values()]
    return means[-1] < means[0]


def differs(line: dict[str, Estimate]) -> bool:
    """Whether it differs by more than the intervals of the first and the last value allow."""
    ends = list(line.values())
    apart = abs(ends[-1].mean - ends[0].mean)
    halves = [0.0 if one.high is None else one.high - one.mean for one in (ends[0], ends[-1])]
    return bool(apart > (halves[0] ** 2 + halves[1] ** 2) ** 0.5)


def small_constants(results: Results) -> list[dict[str, Estimate]]:
    """The rows of all tables of Appendix F."""
    return [line for key in KEYS["small"] for line in lines_of(results, "small", key).values()]


def trend(results: Results, figure: str) -> str | None:
    """What the paper sees in a figure, and how often the RMSE falls along ours."""
    if figure == "small":
        rows = small_constants(results)
        if not rows or any(map(differs, rows)):
            return None
        return (
            "The RMSE differs by more than its 95 % intervals from the first to the last value in "
            f"0 of {len(rows)} rows: these constants make no difference here."
        )
    lines = lines_of(results, figure, KEYS[figure][0])
    said = [_IN_THE_PAPER[figure]]
    for mechanism, name in (("gaussian", "Gaussian"), ("laplace", "Laplace")):
        some = [line for place, line in lines.items() if place[1] == mechanism and len(line) > 1]
        if some:
            down, sure = sum(map(falls, some)), sum(map(differs, some))
            said.append(
                f"Here, with {name} noise, it falls from the first to the last value in {down} of "
                f"{len(some)} rows, and differs by more than its 95 % intervals in {sure}."
            )
    return " ".join(said) if len(said) > 1 else None


def _lines(found: Comparison, key: str) -> Lines:
    """Estimates by value, of every data set, mechanism and policy; at the table's budget."""
    metric, _ = found.reported
    lines: Lines = {}
    held = _held(_values(found, "privacy.epsilon"))
    for row in found.rows:
        estimate = row.figures[metric]
        budget = held if key == "privacy.epsilon" else row.varied.get("privacy.epsilon", held)
        if estimate is not None and not row.reference and key in row.varied and budget == held:
            name = in_words(row.varied[key])
            lines.setdefault((row.dataset, row.mechanism, row.policy), {})[name] = estimate
    return lines


def _held(values: Sequence[object]) -> object:
    """Which value of a setting the table is about: the paper's budget, else the first."""
    return next((value for value in values if value == EPSILON), next(iter(values), None))


def _draw(figure: Figure, found: Comparison, dataset: str, mechanism: str, docs: Path) -> str:
    """Draw a picture; its place as seen from the page."""
    place = f"figures/{figure.figure}-{folder_name(dataset)}-{mechanism}.svg"
    path = docs.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = as_file(picture(figure, found, dataset, mechanism)).splitlines()
    write_whole(path, "\n".join(line.rstrip() for line in lines) + "\n")
    return place


def picture(figure: Figure, found: Comparison, dataset: str, mechanism: str) -> Picture:
    """Its two figures over every setting that it varies, one line per policy."""
    settings, metrics = KEYS[figure.figure], found.reported[:2]
    here = [
        row
        for row in found.rows
        if row.dataset == dataset and row.mechanism in (mechanism, "none") and not row.reference
    ]

    def draw(drawn: MatplotlibFigure) -> None:
        panels = drawn.subplots(len(settings), len(metrics), squeeze=False)
        for key, line in zip(settings, panels, strict=True):
            for axes, metric in zip(line, metrics, strict=True):
                rows = [row for row in here if key in row.varied and row.figures[metric]]
                _over(axes, key, _values(found, key), rows, metric)
        drawn.legend(*panels[0, 0].get_legend_handles_labels(), **ABOVE)

    size = (4.8 * len(metrics), 3.4 * len(settings))
    name = f"{dataset}, {mechanism}"
    return Picture(name="sweep", title=name, alt=name, draw=draw, size=size)


def _over(
    axes: Axes, setting: str, values: Sequence[object], rows: Sequence[Row], metric: str
) -> None:
    """Draw one figure over a setting: a line per policy and budget."""
    places = {in_words(value): number for number, value in enumerate(values)}
    axes.set_xticks(list(places.values()), [name[-12:] for name in places])
    axes.set(xlabel=setting, ylabel=METRICS[metric_of(metric)].label)
    axes.grid(axis="y")
    several = setting != "privacy.epsilon" and any("privacy.epsilon" in of.varied for of in rows)
    lines: dict[tuple[str, ...], list[tuple[int, Estimate]]] = {}
    for row in rows:
        own = [f"epsilon {in_words(row.varied['privacy.epsilon'])}"] if several else []
        if (known := row.figures[metric]) is not None:
            place = places[in_words(row.varied[setting])]
            lines.setdefault((row.policy, *own), []).append((place, known))
    for number, ((policy, *settings), points) in enumerate(lines.items()):
        axes.errorbar(
            [place for place, _ in points],
            [of.mean for _, of in points],
            yerr=[of.std or 0.0 for _, of in points],
            color=_COLOURS[policy],
            marker="os^DvPX"[number % 7],
            ls=("-", "--", "-.", ":")[number % 4],
            capsize=3,
            label=", ".join((policy, *settings)),
        )


def _plural(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
