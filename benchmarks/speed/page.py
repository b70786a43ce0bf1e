"""Tables of figures, and how they come into docs/benchmarks.md: each with commit and machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.paper.page import put
from benchmarks.speed.child import available_cpus, measure
from bgtplanner.durable import replace_file

DOCS = Path("docs/benchmarks.md")


class Section:
    """One table of figures, and whether all its targets were met."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title, self.columns = title, columns
        self.rows: list[tuple[str, ...]] = []
        self.missed: list[str] = []
        self.notes: list[str] = []

    def add(self, *cells: str, met: bool | None = None) -> None:
        """Add a row; `met` says whether its target was met, where it has one."""
        self.rows.append((*cells, {True: "met", False: "MISSED", None: ""}[met]))
        if met is False:
            self.missed.append(f"{self.title}: {', '.join(cells)}")

    def as_table(self) -> Table:
        """Return it for a terminal."""
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        table.pad_edge, table.collapse_padding = False, True
        for index, column in enumerate((*self.columns, "")):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self, measured: str) -> str:
        """Return it for the page, under a line that says what was measured where."""
        head = (*self.columns, "")
        rule = ["---", *["---:"] * (len(head) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (head, rule, *self.rows)]
        notes = [f"{note}\n" for note in self.notes]
        return "\n".join([f"{self.title}. {measured}\n", *lines, "", *notes])


class Progress:
    """Says what is being measured, and how long it took."""

    def __init__(self, console: Console, package: str) -> None:
        self.console, self.package = console, package

    def __call__(self, what: str, module: str, *arguments: object) -> dict[str, Any]:
        begun = time.perf_counter()
        with self.console.status(what):
            result = measure(f"{self.package}.{module}", *arguments)
        self.console.print(f"{what}: {time.perf_counter() - begun:.0f} s", highlight=False)
        return result


def with_quartiles(result: Mapping[str, Any], *, digits: int) -> str:
    """Return the median ratio and, in brackets, how far apart the turns were."""
    low, high = result["ratio_quartiles"]
    return f"{result['ratio']:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def about_ratio(ratio: float) -> int:
    """Return how many digits of a ratio are worth showing."""
    return 0 if ratio >= 20 else 1 if ratio >= 2 else 2


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cpus": available_cpus(),
    }


def processor() -> str:
    """Return the name of the CPU, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "a CPU without a name"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """Return the commit that is checked out, and whether anything but pages was changed since.

    A merge is named with its parents: one that was made to measure is found nowhere else.
    """
    said = _git("log", "-1", "--format=%h %p")
    if said is None:
        return "unknown"
    head, *parents = said.split()
    name = f"{head} ({' merged with '.join(parents)})" if len(parents) > 1 else head
    changed = _git("status", "--porcelain", "--", ".", ":!docs", ":!build")
    return f"{name} with changes" if changed else name


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout.strip()


def measured_by(command: str) -> str:
    """Return the sentence that stands over a table: what was measured, where, when and how."""
    about = machine()
    cpus = f"{about['cpus']} CPU{'s' if about['cpus'] > 1 else ''}"
    load = os.getloadavg()[0]
    busy = f" Other work ran beside it (load {load:.0f})." if load > about["cpus"] + 1 else ""
    return (
        f"Measured at commit {commit()}, {datetime.now(UTC):%Y-%m-%d}, by `{command}` on {cpus} "
        f"({about['processor']}), Python {about['python']}.{busy}"
    )


def write_parts(docs: Path, sections: Mapping[str, Section], command: str) -> None:
    """Put tables in their places on a page, and leave all other parts as they are.

    Raises:
        SystemExit: If the page is not there, or has no place for one of them.
    """
    try:
        text = docs.read_text(encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"--docs {docs}: {error.strerror}; name the page to write") from error
    measured = measured_by(command)
    for name, section in sections.items():
        text = put(text, name, section.as_markdown(measured))
    replace_file(docs, text.encode())


class Question(NamedTuple):
    """One table of the page.

    Attributes:
        answer: Measures it, in the long form or in the quick one.
        seconds: About how long that takes on two cores, in the quick and in the long form.
        quick: Whether it belongs to the quick form.
    """

    answer: Callable[[Progress, bool], tuple[Section, list[dict[str, Any]]]]
    seconds: tuple[float, float]
    quick: bool = True


def answer_all(
    name: str,
    about: str | None,
    questions: Mapping[str, Question],
    arguments: Sequence[str] | None,
    *,
    prefix: str = "",
    left_out: Sequence[str] = (),
) -> int:
    """Answer the questions of a package from its command line, and return its exit code.

    Args:
        name: The package.
        about: What its help says.
        questions: The questions by their names.
        arguments: Those of the command line.
        prefix: What stands before a question's name on the page.
        left_out: What cannot be measured here, and why.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--long", action="store_true", help="everything, with more turns")
    parser.add_argument("--only", choices=list(questions), help="answer one of the questions")
    parser.add_argument("--plan", action="store_true", help="only say what would be measured")
    parser.add_argument("--no-check", action="store_true", help="exit with 0 whatever comes out")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the page; default %(default)s")
    given = parser.parse_args(arguments)

    console = Console()
    asked = {of: question for of, question in questions.items() if given.long or question.quick}
    if given.only:
        asked = {given.only: questions[given.only]}
    expected = sum(question.seconds[given.long] for question in asked.values()) / 60
    console.print(f"{', '.join(asked)}: about {expected:.1f} min on two cores")
    for line in left_out:
        console.print(line)
    if given.plan:
        return 0
    sections, measurements = {}, {}
    begun = time.perf_counter()
    for of, question in asked.items():
        progress = Progress(console, f"benchmarks.{name}")
        section, measurements[of] = question.answer(progress, given.long)
        sections[f"{prefix}{of}"] = section
        console.print()
        console.print(section.as_table())
        console.print("\n".join(section.notes), markup=False, highlight=False)
    given.out.mkdir(parents=True, exist_ok=True)
    seconds = time.perf_counter() - begun
    everything = {"machine": machine(), "seconds": seconds, "measurements": measurements}
    file = given.out / f"{name}.json"
    file.write_text(json.dumps(everything, indent=2), encoding="utf-8")
    flags = [*(["--long"] if given.long else []), *(["--only", given.only] if given.only else [])]
    write_parts(given.docs, sections, " ".join([parser.prog, *flags]))
    console.print(f"{seconds:.0f} s; written to {given.docs} and {file}")
    missed = [line for section in sections.values() for line in section.missed]
    for line in missed:
        console.print(f"missed: {line}", highlight=False, markup=False)
    return 1 if missed and not given.no_check else 0
