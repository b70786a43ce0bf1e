"""Run the measurements, print the tables, write them into the page, and say what was missed.

python -m benchmarks.speed --plan              say what would be measured, and for how long
python -m benchmarks.speed                     what takes no more than a minute or two
python -m benchmarks.speed --long              everything
python -m benchmarks.speed --only memory       one question
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.speed import memory, planner, scaling, sums
from benchmarks.speed.child import available_cpus
from benchmarks.speed.page import (
    DOCS,
    Progress,
    Section,
    machine,
    verdict,
    with_quartiles,
    write_parts,
)


def measure_memory(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """Question 2."""
    section = Section(
        "Memory of a whole run at the size of ML-1M",
        *("model", "peak, MB", "of it after round 5", "target"),
    )
    results = []
    for model in memory.MODELS:
        result = progress(f"memory of a run, {model}", "memory", "--model", model)
        results.append(result)
        peak, after = result["peak_bytes"], result["peak_bytes_after_rounds"]
        section.add(
            model,
            f"{peak / 1e6:,.0f}",
            f"{(after[-1] - after[4]) / 1e6:,.0f}",
            f"< {result['target_bytes'] / 1e6:,.0f}",
            met=peak < result["target_bytes"],
        )
    return section, results


def measure_scaling(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """Question 3."""
    section = Section(
        "What a rating costs in a training round, as the data grow",
        *("model", "ratings", "ns", "bytes", "growth of time", "target"),
    )
    results = []
    with tempfile.TemporaryDirectory() as folder:
        where = ("--folder", folder)
        progress("scaling: making up the ratings", "scaling", *where)
        for model in scaling.MODELS:
            result = progress(f"scaling: time, {model}", "scaling", *where, "--model", model)
            result["peak_bytes"] = {
                size: progress(
                    f"scaling: memory at {size:,} ratings, {model}",
                    *("scaling", *where, "--model", model, "--memory-of", size),
                )["peak_bytes"]
                for size in (scaling.NEXT_TO_NOTHING, *scaling.SIZES)
            }
            results.append(result)
            nothing = result["peak_bytes"][scaling.NEXT_TO_NOTHING]
            for size in scaling.SIZES:
                last = size == scaling.SIZES[-1]
                section.add(
                    model,
                    f"{size:,}",
                    f"{median(result['nanoseconds_per_rating'][str(size)]):,.0f}",
                    f"{(result['peak_bytes'][size] - nothing) / size:,.0f}",
                    with_quartiles(result, digits=2) if last else "",
                    f"<= {result['target_ratio']:.1f}" if last else "",
                    met=result["ratio"] <= result["target_ratio"] if last else None,
                )
    return section, results


def measure_ledger(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """Question 4."""
    section = Section(
        "What it costs to reserve and settle a round in a durable ledger",
        *("comparison", "ratio", "target"),
    )
    result = progress("the ledger", "ledger")
    for name, ratio, target in result["comparisons"]:
        section.add(name, f"{ratio:.2f}", f"{target:g} or less", met=ratio <= target)
    return section, [result]


def measure_planner(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """Question 5."""
    section = Section("What planning a round costs", *("", "ms", "ratio", "target"))
    clients = progress("planner: a million clients", "planner", "clients")
    many, few = clients["many"], clients["few"]
    section.add(
        f"{clients['clients']:,} clients against 3, {clients['classes']} classes",
        f"{1e3 * many['seconds'] / many['rounds']:.1f}",
        f"{many['seconds'] / few['seconds']:.1f}",
        "",
    )
    growth = progress("planner: as rounds go by", "planner", "growth")
    section.add(
        "after 2,000 rounds against 1,000",
        f"{1e3 * median(growth['late_seconds']):.1f}",
        f"{growth['ratio']:.2f}",
        f"<= {growth['target_ratio']:g}",
        met=growth["ratio"] <= growth["target_ratio"],
    )
    threads = ("--threads", min(2, available_cpus()))
    shares = progress("planner: beside a training round", "planner", "shares", *threads)
    what = {"planner": "ask and tell", "context": "context"}
    for name, share in shares["shares"].items():
        part, model = name.split(", ")
        milliseconds = 1e3 * median(shares["seconds"][part])
        least = planner.TARGET_MILLISECONDS if part == "planner" else 0.0
        section.add(
            f"{what[part]} against {model}",
            f"{milliseconds:.1f}",
            with_quartiles(share, digits=3),
            f"< {share['target_ratio']:g}" + (f" or < {least:g} ms" if least else ""),
            met=share["ratio"] < share["target_ratio"] or milliseconds < least,
        )
    return section, [clients, growth, shares]


def measure_sums(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """Question 9."""
    section = Section(
        "What a round of secure aggregation costs, 3,364 numbers in an upload",
        *("", "clients", "kB up", "kB down", "ms a client", "ms of the server, a client"),
    )
    results = []
    for clients in sums.CLIENTS:
        for way, what in sums.WHAT.items():
            with tempfile.TemporaryDirectory() as folder:
                where = ("--folder", folder, "--way", way, "--clients", clients)
                result = progress(f"sums: {what}, {clients:,}", "sums", *where)
            results.append(result)
            section.add(
                what,
                f"{clients:,}",
                f"{result['bytes_up'] / 1e3:.1f}",
                f"{result['bytes_down'] / 1e3:.1f}",
                f"{1e3 * result['client_seconds']:.0f}",
                f"{1e3 * result['server_seconds'] / clients:.0f}",
            )
    return section, results


class Question(NamedTuple):
    """One table of the page.

    Attributes:
        answer: Measures it.
        seconds: About how long that takes on two cores.
        quick: Whether it belongs to the quick form.
    """

    answer: Callable[[Progress], tuple[Section, list[dict[str, Any]]]]
    seconds: float
    quick: bool = False


QUESTIONS = {
    "memory": Question(measure_memory, 60),
    "scaling": Question(measure_scaling, 180),
    "ledger": Question(measure_ledger, 15, quick=True),
    "planner": Question(measure_planner, 45, quick=True),
    "sums": Question(measure_sums, 900),
}


def plan(*, long: bool, only: str | None = None) -> dict[str, Question]:
    """Return the questions that are asked."""
    if only is not None:
        return {only: QUESTIONS[only]}
    return {name: asked for name, asked in QUESTIONS.items() if long or asked.quick}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--long", action="store_true", help="answer all of the questions")
    parser.add_argument("--only", choices=list(QUESTIONS), help="answer one of the questions")
    parser.add_argument("--plan", action="store_true", help="only say what would be measured")
    parser.add_argument("--no-check", action="store_true", help="exit with 0 whatever comes out")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the page; default %(default)s")
    given = parser.parse_args(arguments)

    console = Console()
    asked = plan(long=given.long, only=given.only)
    expected = sum(question.seconds for question in asked.values()) / 60
    console.print(f"{', '.join(asked)}: about {expected:.1f} min on two cores")
    if given.plan:
        return 0
    sections, measurements = {}, {}
    begun = time.perf_counter()
    for name, question in asked.items():
        sections[name], measurements[name] = question.answer(Progress(console, "benchmarks.speed"))
        console.print()
        console.print(sections[name].as_table())
        console.print()

    given.out.mkdir(parents=True, exist_ok=True)
    seconds = time.perf_counter() - begun
    everything = {"machine": machine(), "seconds": seconds, "measurements": measurements}
    (given.out / "speed.json").write_text(json.dumps(everything, indent=2), encoding="utf-8")
    flags = ["--only", given.only] if given.only else ["--long"] if given.long else []
    write_parts(given.docs, sections, " ".join(["python -m benchmarks.speed", *flags]))
    console.print(f"{seconds:.0f} s; written to {given.docs} and {given.out}/speed.json")
    good = verdict(console, list(sections.values()))
    return 0 if good or given.no_check else 1


if __name__ == "__main__":
    sys.exit(main())
