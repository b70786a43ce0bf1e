"""A study to look at: its progress, its tables for terminals and for Markdown, its files."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from bgtplanner.errors import MissingExtraError
from bgtplanner.paper.table2 import NAMES
from bgtplanner.report.screen import words
from bgtplanner.report.story import REFERENCES
from bgtplanner.runs.cells import Cell, Outcome, folder_name
from bgtplanner.runs.execute import StudyObserver, run_study
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Estimate, summed_up
from bgtplanner.runs.study import Study, Variation, default_policies, in_words
from bgtplanner.text import visible

__all__ = [
    "Comparison",
    "Sheet",
    "StudyView",
    "as_code",
    "compare",
    "cut",
    "duration",
    "group_name",
    "in_markdown",
    "markdown",
    "need_pictures",
    "picture",
    "sheets",
    "short_key",
    "tables",
    "write_files",
]

_NOTHING = "–"
_WIDEST = 27  # what 80 columns leave for names
_LONGEST = 12  # and for a value


def compare(
    datasets: str | Iterable[str] = "demo",
    policies: str | Iterable[str] | None = None,
    *,
    mechanisms: str | Iterable[str] = "gaussian",
    seeds: Iterable[int] = range(5),
    preset: str = "recommended",
    epsilon: float | None = None,
    settings: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    backend: str = "loky",
    observer: StudyObserver | None = None,
) -> Comparison:
    """Run every policy on every data set, with every mechanism and seed, and compare them.

    A cell of the study that fails is in the result's `failed` and does not stop the others.

    Args:
        datasets: Names of data sets, or ``csv:PATH``.
        policies: Names of policies, or ``package.module:Class``; by default the one that a run
            has by default, ``bgt``, ``uniform``, ``adpml``, ``adap`` and ``unlimited``.
        mechanisms: Out of ``gaussian`` and ``laplace``; ``unlimited`` is run once, without.
        seeds: Of the split and of all that is drawn at random.
        preset: ``recommended`` or ``paper``.
        epsilon: What a client may spend in all.
        settings: Any other config keys, such as ``{"federation.rounds": 50}``.
        baseline: The policy that the others are compared with.
        out: Folder for the runs and tables. Called again with the same folder, only what is not
            finished is run. By default nothing is kept.
        jobs: How many cells at a time.
        backend: ``loky`` for processes here; ``ray`` or ``dask``.
        observer: Somebody to tell about every cell.

    Raises:
        ConfigError: If something cannot be run, before anything is.
        InterruptedRunError: If it was stopped from outside; the same call goes on.

    Example:
        >>> found = compare("demo", "unlimited", seeds=[0], settings={"federation.rounds": 2})
        >>> found.rows[0].policy, found.rows[0].figures["rmse_final"].seeds
        ('unlimited', 1)
    """
    given = dict(settings or {}) | ({} if epsilon is None else {"privacy.epsilon": epsilon})
    study = Study(
        datasets=_names(datasets),
        mechanisms=_names(mechanisms),
        policies=default_policies(preset, given) if policies is None else _names(policies),
        seeds=tuple(seeds),
        preset=preset,
        settings=given,
        baseline=baseline,
    )
    with contextlib.ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="bgtplanner-"))
        place = Path(out)
        done = run_study(study, place, jobs=jobs, backend=backend, observer=observer)
        found = summed_up(study, done)
        write_files(found, place)
    return found


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def need_pictures(study: Study) -> None:
    """Say which extra is missing for the pictures of a sweep, before hours are spent.

    Raises:
        MissingExtraError: If there are pictures to be drawn, and nothing to draw them with.
    """
    if study.variations and importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("report", "The pictures of a sweep")


def write_files(found: Comparison, out: Path) -> list[str]:
    """Write ``comparison.json``, ``.csv`` and ``.md``; of a sweep ``sweep.*``, with pictures.

    Returns:
        The names of the pictures.
    """
    study, drawn = found.study, {}
    for dataset, mechanism in study.places() if study.variations else ():
        name = f"{folder_name(dataset)}-{mechanism}.svg"
        write_whole(out / name, picture(found, dataset, mechanism))
        drawn[name] = f"![{in_markdown(f'{dataset}, {mechanism}')}]({name})\n"
    text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
    write_whole(out / f"{study.kind}.json", text)
    write_whole(out / f"{study.kind}.csv", found.as_csv())
    write_whole(out / f"{study.kind}.md", "\n".join([markdown(found), *drawn.values()]))
    return list(drawn)


def picture(found: Comparison, dataset: str, mechanism: str) -> str:
    """RMSE and F1 over the first key of each variation, as SVG for light or dark paper."""
    need_pictures(found.study)
    from bgtplanner.report.drawing import as_file
    from bgtplanner.report.study_figures import sweep_picture

    return as_file(sweep_picture(found, dataset, mechanism))


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table before it is known where it will be shown.

    Attributes:
        title: What it shows.
        columns: Heads of its columns; the first is text, the others are figures.
        groups: Rows under the name of their group.
        note: What is to be known about it.
    """

    title: str
    columns: Sequence[str]
    groups: dict[str, list[list[str]]] = field(default_factory=dict)
    note: str = ""

    def add(self, group: str, cells: list[str]) -> None:
        """Another row, under the others of its group."""
        self.groups.setdefault(group, []).append(cells)


def sheets(found: Comparison) -> Iterator[Sheet]:
    """What is to be shown, one after the other: of a sweep, a table for each variation."""
    for variation in found.study.variations or (Variation(),):
        yield _means(found, variation)
    if found.study.variations:
        return
    rmse, f1 = found.reported
    if any(entry.figures[rmse] is not None for entry in found.differences):
        apart = Sheet(
            title=f"Difference to {found.study.against}, seed by seed",
            columns=("policy", "n", "RMSE", "±95 %", "F1", "±95 %"),
            note="A lower RMSE and a higher F1 are better. * marks intervals without zero.",
        )
        for entry in found.differences:
            ours = entry.figures[rmse]
            cells = [entry.policy, str(0 if ours is None else ours.seeds)]
            for metric in (rmse, f1):
                cells += _difference(entry.figures[metric])
            apart.add(group_name(entry.dataset, entry.mechanism), cells)
        yield apart
    if any(row.paper is not None for row in found.rows):
        beside = Sheet(
            title="Beside the paper's Table 2",
            columns=("policy", "RMSE", "paper", "diff.", "F1", "paper", "diff."),
            note="Ours is the mean over seeds of the best round; the difference is ours less its."
            + _changed(found.study),
        )
        for row in found.rows:
            if row.paper is None:
                continue
            cells = [f"{row.policy} ({NAMES[row.policy]})"]
            for metric, theirs in (("rmse_best", row.paper.rmse), ("f1_best", row.paper.f1)):
                ours, minus = row.figures[metric], row.minus_paper(metric)
                cells.append(_figure(None if ours is None else ours.mean))
                cells += [_figure(theirs), _figure(minus, "+.4f")]
            beside.add(group_name(row.dataset, row.mechanism), cells)
        yield beside


def _means(found: Comparison, variation: Variation) -> Sheet:
    """Means over seeds; where settings are varied, these take the place of the intervals."""
    rmse, f1 = found.reported
    best = rmse.endswith("best")
    when = "best round by the test set, as the paper reports" if best else "last round"
    keys = variation.keys
    shown, said = (
        {"sd": "std", "±95 %": "half"},
        "mean, standard deviation, half of the t-interval",
    )
    if keys:
        shown, said = {"sd": "std"}, "mean and standard deviation over them"
    sheet = Sheet(
        title=f"{' x '.join(keys) or 'Error and F1'} ({when})",
        columns=("policy", *map(short_key, keys), "n", "RMSE", *shown, "F1", *shown),
        note=f"n seeds done of those asked for; {said}.",
    )
    for row in found.rows_of(variation) if keys else found.rows:
        ours = row.figures[rmse]
        cells = [REFERENCES[row.policy] if row.reference else row.policy]
        cells += [cut(in_words(row.varied[key])) for key in keys]
        cells.append(f"{0 if ours is None else ours.seeds}/{row.asked}")
        for metric in (rmse, f1):
            if ours is None and not row.reference:
                cells += ["failed", *("" for _ in shown)]
            else:
                of = row.figures[metric]
                cells += [_figure(getattr(of, name, None)) for name in ("mean", *shown.values())]
        place = f"{row.dataset}, no sharing" if row.reference else None
        sheet.add(place or group_name(row.dataset, row.mechanism), cells)
    return sheet


def _changed(study: Study) -> str:
    """What is not as the paper has it, or is at least given anew."""
    own = ("data.data_dir", "run.", "privacy.epsilon")
    names = [key for key in study.settings if not key.startswith(own)]
    return f" Run with other settings than the preset's: {', '.join(names)}." if names else ""


def group_name(dataset: str, mechanism: str) -> str:
    """A data set with what protected the uploads, as headings have it."""
    return f"{dataset}, {'no privacy' if mechanism == 'none' else mechanism}"


def _figure(value: float | None, form: str = ".4f") -> str:
    return _NOTHING if value is None else f"{value:{form}}"


def _difference(found: Estimate | None) -> list[str]:
    if found is None or found.half is None:
        return [_figure(None if found is None else found.mean, "+.4f"), _NOTHING]
    visible = abs(found.mean) >= 0.00005  # what rounds to zero is marked by no star
    mark = "*" if visible and abs(found.mean) > found.half else " "
    return [_figure(found.mean, "+.4f"), _figure(found.half) + mark]


def tables(found: Comparison) -> Iterator[Table]:
    """The same for a terminal, 80 columns wide at most: long heads are broken."""
    for sheet in sheets(found):
        table = Table(
            title=words(sheet.title),
            caption=words(sheet.note),
            box=None,
            pad_edge=False,
            header_style="bold",
            title_justify="left",
            caption_justify="left",
        )
        for number, head in enumerate(sheet.columns):
            table.add_column(
                words(head.replace("_", "_\n"), keep="\n"),
                justify="right" if number else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=None if number else _WIDEST,
            )
        for group, rows in sheet.groups.items():
            table.add_row(words((cut(group, _WIDEST), "bold")))
            for row in rows:
                first = words(f"  {cut(row[0], _WIDEST - 2)}")
                table.add_row(first, *(words(cell) for cell in row[1:]))
        yield table


def cut(name: str, most: int = _LONGEST) -> str:
    """The end of a long name says most: of a path, and of a class in its module."""
    name = visible(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def short_key(key: str) -> str:
    """A config key without its section."""
    return key.rpartition(".")[2]


def markdown(found: Comparison) -> str:
    """The same tables as Markdown, with what was asked for and what failed."""
    study = found.study
    settings = "".join(
        f", {as_code(f'{key} = {in_words(of)}')}" for key, of in study.settings.items()
    )
    seeds = ", ".join(map(str, study.seeds))
    asked = f"Preset {as_code(study.preset)}, seeds {seeds}{settings}."
    lines = [f"# {study.kind.capitalize()}", "", asked, ""]
    for sheet in sheets(found):
        lines += _sheet_lines(sheet)
    for axis in (axis for variation in study.variations for axis in variation.axes):
        lines += [
            f"{as_code(key)} is {share:g} of {as_code(axis.key)}.\n"
            for key, share in axis.along.items()
            if key not in study.settings
        ]
    if found.failed:
        said = [f"- {in_markdown(f'{of.cell.name}: {of.error}')}" for of in found.failed]
        lines += ["## Failed", "", *said, ""]
    return "\n".join(lines)


def in_markdown(text: str) -> str:
    """Text that Markdown takes for nothing else: no tag, no link, no new line."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`\[\]])", r"\\\1", shown)


def as_code(text: str) -> str:
    """Text between the marks that Markdown has for code."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _sheet_lines(sheet: Sheet) -> list[str]:
    """A sheet as lines of Markdown."""
    columns = ["data set", *sheet.columns]
    marks = ["---", "---", *["---:"] * (len(sheet.columns) - 1)]
    lines = [f"## {in_markdown(sheet.title)}", "", _piped(columns), _piped(marks)]
    for group, rows in sheet.groups.items():
        lines += [_piped([group, *row]) for row in rows]
    return [*lines, "", in_markdown(sheet.note), ""]


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(in_markdown(cell.strip().replace('|', '/')) for cell in cells)} |"


def duration(seconds: float) -> str:
    """A length of time as one says it.

    Example:
        >>> duration(42), duration(400), duration(9000)
        ('42 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class StudyView:
    """Tells the user how a study is going: on a terminal a live line, elsewhere a line a cell.

    Args:
        console: Where to write.
        quiet: Write nothing at all.
    """

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self._live: Progress | None = None
        self._task: Any = None
        self._done = 0
        self._total = 0
        self._told = False

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        """Say how much there is to do."""
        self._done, self._total = finished, total
        if self.quiet:
            return
        before = f", {finished} of them finished before" if finished else ""
        self.console.print(f"{total} cells{before}{_left(left)}", highlight=False)
        self._told = left is not None
        if self.console.is_terminal and finished < total:
            self._live = Progress(
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                transient=True,
            )
            self._live.start()
            self._task = self._live.add_task("", total=total, completed=finished, left="")

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        """Say where the present cell is."""
        if self._live is not None:
            where = f"{cut(cell.name, 34)}, {done}/{total}"
            self._live.update(self._task, description=where)

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        """Say what came of a cell, and how long the others will take."""
        self._done += 1
        if self.quiet:
            return
        said: list[str | tuple[str, str]] = [f"{outcome.cell.name}: "]
        if outcome.summary is None:
            said += [("failed", "red"), f": {outcome.error or ''}"]
        else:
            said += [f"RMSE {outcome.summary['rmse_final']:.4f}, {duration(outcome.seconds)}"]
        rest = "" if self._done >= self._total else _left(left)
        if self._live is None:
            count = f"{self._done}/{self._total}  "
            self.console.print(words(count, *said, rest), highlight=False)
            return
        self._live.update(self._task, completed=self._done, left=rest.removeprefix(", "))
        if outcome.summary is None or not self._told:
            self.console.print(words(*said, rest), highlight=False)
            self._told = self._told or outcome.summary is not None

    def close(self) -> None:
        """Take the live line away, whatever happened."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)} left"
