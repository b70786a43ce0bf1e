"""Compare with peers, print the tables, write them into the page, and say what was missed.

python -m benchmarks.peers --plan              say what would be measured, and for how long
python -m benchmarks.peers                     a few turns; slow peers have a part
python -m benchmarks.peers --long              more turns, all clients
python -m benchmarks.peers --only ranking      one question
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.peers.rounds import PEERS, TARGET_SIZE, missing
from benchmarks.speed.page import (
    DOCS,
    Progress,
    Section,
    about_ratio,
    machine,
    verdict,
    with_quartiles,
    write_parts,
)

ALL = 1_000_000  # more clients than there are


class Form(NamedTuple):
    """How long the measurements are.

    Attributes:
        rounds: For each size: turns, rounds of ours in a turn, clients of slow peers.
        ranking: Size and turns of the lists.
    """

    rounds: dict[str, tuple[int, int, int]]
    ranking: tuple[str, int]


QUICK = Form({"ML-100K": (5, 20, 100), "ML-1M": (5, 5, 200)}, ("ML-100K", 5))
LONG = Form({"ML-100K": (7, 20, ALL), "ML-1M": (5, 10, ALL)}, ("ML-1M", 5))

Answer = tuple[Section, list[dict[str, Any]]]


SIZE_OF = {"rounds-100k": "ML-100K", "rounds-1m": "ML-1M"}


def measure_rounds(progress: Progress, form: Form, size: str) -> Answer:
    """Questions 1 and 2."""
    section = Section(
        f"A private round of the factorization model at the size of {size}",
        *("who", "ms a round", "ours, ms", "times as long as ours", "target"),
    )
    absent = missing()
    chosen = [name for name in PEERS if name not in absent]
    turns, rounds, part = form.rounds[size]
    result = progress(
        f"rounds: {size}",
        "rounds",
        *("--size", size, "--turns", turns, "--rounds", rounds),
        *("--part", part, "--peers", ",".join(chosen)),
    )
    ours = 1e3 * median(result["seconds"]["ours"])
    furthest = max(result["apart"].values())
    section.notes.append(
        f"{result['clients']:,} clients, {result['items']:,} items, {result['ratings']:,} ratings."
        f" Sums before noise are equal within {furthest:.0e} of their length."
    )
    whole = 1e3 * median(result["seconds"]["whole round"])
    section.notes.append(
        f"A whole round of ours, which also takes the server's step and solves for the users a "
        f"second time, takes {whole:,.1f} ms. Each of the others has one thread or all, whichever "
        "is faster."
    )
    for name in chosen:
        found, peer = result["peers"][name], PEERS[name]
        target = peer.target if size == TARGET_SIZE else None
        scaled = found["scaled"] > 1
        section.add(
            peer.what + (" (a part, scaled up)" if scaled else ""),
            f"{1e3 * median(result['seconds'][name]):,.0f}",
            f"{ours:,.1f}",
            with_quartiles(found, digits=about_ratio(found["ratio"])),
            "" if target is None else f">= {target:.0f}",
            met=None if target is None else found["ratio"] >= target,
        )
        if scaled:
            number = round(result["clients"] / found["scaled"])
            section.notes.append(
                f"{peer.what} had {number:,} of the {result['clients']:,} clients, and a quarter "
                "of these; the difference says what each of the others would take."
            )
    section.notes += [f"Not installed, and left out: {package}." for package in absent.values()]
    return section, [result]


def measure_ranking(progress: Progress, form: Form) -> Answer:
    """Question 3."""
    section = Section(
        "From scores to lists of ten and their NDCG, against LensKit",
        *("size", "LensKit, ms", "ours, ms", "times as long as ours"),
    )
    size, turns = form.ranking
    result = progress(f"ranking: {size}", "ranking", "--size", size, "--turns", turns)
    section.add(
        size,
        f"{1e3 * median(result['seconds']['LensKit']):,.0f}",
        f"{1e3 * median(result['seconds']['ours']):,.0f}",
        with_quartiles(result, digits=about_ratio(result["ratio"])),
    )
    same = result["ndcg_at_10"]
    section.notes.append(
        f"NDCG@10 is {same['ours']:.6f} by ours and {same['LensKit']:.6f} by LensKit."
    )
    return section, [result]


class Question(NamedTuple):
    """One table of the page.

    Attributes:
        answer: Measures it.
        needs: Packages without which there is nothing to compare with.
        seconds: About how long it takes on two cores, in the quick and in the long form.
    """

    answer: Callable[[Progress, Form], Answer]
    needs: tuple[str, ...]
    seconds: tuple[float, float]


QUESTIONS = {
    "rounds-100k": Question(partial(measure_rounds, size="ML-100K"), (), (45, 120)),
    "rounds-1m": Question(partial(measure_rounds, size="ML-1M"), (), (75, 600)),
    "ranking": Question(measure_ranking, ("lenskit",), (20, 90)),
}


def plan(*, long: bool, only: str | None = None) -> dict[str, float]:
    """Return the questions that are asked, and about how many seconds each takes."""
    names = QUESTIONS if only is None else [only]
    return {name: QUESTIONS[name].seconds[long] for name in names}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--long", action="store_true", help="more turns, and all clients")
    parser.add_argument("--only", choices=list(QUESTIONS), help="answer one of the questions")
    parser.add_argument("--plan", action="store_true", help="only say what would be measured")
    parser.add_argument("--no-check", action="store_true", help="exit with 0 whatever comes out")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the page; default %(default)s")
    given = parser.parse_args(arguments)

    console = Console()
    asked = plan(long=given.long, only=given.only)
    minutes = sum(asked.values()) / 60
    console.print(f"{', '.join(asked)}: about {minutes:.1f} min on two cores")
    for peer, package in missing().items():
        console.print(f"{PEERS[peer].what}: left out, since {package} is not installed")
    if given.plan:
        return 0
    sections, measurements = {}, {}
    begun = time.perf_counter()
    for name in asked:
        question = QUESTIONS[name]
        absent = [need for need in question.needs if importlib.util.find_spec(need) is None]
        if absent:
            console.print(f"{name}: left out, since {', '.join(absent)} is not installed")
            continue
        progress = Progress(console, "benchmarks.peers")
        sections[name], measurements[name] = question.answer(
            progress, LONG if given.long else QUICK
        )
        console.print()
        console.print(sections[name].as_table())
        console.print("\n".join(sections[name].notes), markup=False, highlight=False)
        console.print()
    given.out.mkdir(parents=True, exist_ok=True)
    seconds = time.perf_counter() - begun
    everything = {"machine": machine(), "seconds": seconds, "measurements": measurements}
    (given.out / "peers.json").write_text(json.dumps(everything, indent=2), encoding="utf-8")
    flags = [*(["--long"] if given.long else []), *(["--only", given.only] if given.only else [])]
    parts = {f"peers {name}": section for name, section in sections.items()}
    write_parts(given.docs, parts, " ".join(["python -m benchmarks.peers", *flags]))
    console.print(f"{seconds:.0f} s; written to {given.docs} and {given.out}/peers.json")
    good = verdict(console, list(sections.values()))
    return 0 if good or given.no_check else 1


if __name__ == "__main__":
    sys.exit(main())
