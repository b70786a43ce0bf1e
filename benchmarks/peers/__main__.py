"""Compare with peers, print the tables, write them into the page, and say what was missed.

python -m benchmarks.peers --plan              say what would be measured, and for how long
python -m benchmarks.peers                     a few turns; slow peers have a part
python -m benchmarks.peers --long              more turns, all clients
python -m benchmarks.peers --only rounds-1m    one question
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from benchmarks.peers.rounds import PEERS, TARGET_SIZE, missing
from benchmarks.speed.page import (
    Progress,
    Question,
    Section,
    about_ratio,
    answer_all,
    with_quartiles,
)

ALL = 1_000_000  # more clients than there are


class Form(NamedTuple):
    """How long the measurements are.

    Attributes:
        rounds: For each size: turns, rounds of ours in a turn, clients of slow peers.
    """

    rounds: dict[str, tuple[int, int, int]]


QUICK = Form({"ML-100K": (5, 20, 100), "ML-1M": (5, 5, 200)})
LONG = Form({"ML-100K": (7, 20, ALL), "ML-1M": (5, 10, ALL)})

Answer = tuple[Section, list[dict[str, Any]]]


SIZE_OF = {"rounds-100k": "ML-100K", "rounds-1m": "ML-1M"}


def measure_rounds(progress: Progress, form: Form, size: str) -> Answer:
    """What a round costs at one size."""
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


def _rounds(size: str) -> Callable[[Progress, bool], Answer]:
    return lambda progress, long: measure_rounds(progress, LONG if long else QUICK, size)


QUESTIONS = {
    "rounds-100k": Question(_rounds("ML-100K"), (45, 120)),
    "rounds-1m": Question(_rounds("ML-1M"), (75, 600)),
}


def main(arguments: list[str] | None = None) -> int:
    """Answer them, and name the peers that are not installed."""
    absent = missing().items()
    lines = [f"{PEERS[of].what}: left out, since {name} is not installed" for of, name in absent]
    about, prefix = __doc__, "peers "
    return answer_all("peers", about, QUESTIONS, arguments, prefix=prefix, left_out=lines)


if __name__ == "__main__":
    sys.exit(main())
