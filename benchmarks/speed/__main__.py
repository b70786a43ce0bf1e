"""Run the measurements, print the tables, write them into the page, and say what was missed.

python -m benchmarks.speed --plan              say what would be measured, and for how long
python -m benchmarks.speed                     what takes no more than a minute or two
python -m benchmarks.speed --long              everything
python -m benchmarks.speed --only memory       one question
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from benchmarks.speed import memory, planner
from benchmarks.speed.child import available_cpus
from benchmarks.speed.page import Progress, Question, Section, answer_all, with_quartiles


def measure_memory(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """What a whole run needs."""
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


def measure_ledger(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """What a durable round costs."""
    section = Section(
        "What it costs to reserve and settle a round in a durable ledger",
        *("comparison", "ratio", "target"),
    )
    result = progress("the ledger", "ledger")
    for name, ratio, target in result["comparisons"]:
        section.add(name, f"{ratio:.2f}", f"{target:g} or less", met=ratio <= target)
    return section, [result]


def measure_planner(progress: Progress) -> tuple[Section, list[dict[str, Any]]]:
    """What ask and tell cost."""
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


QUESTIONS = {
    "memory": Question(lambda progress, _: measure_memory(progress), (60, 60), quick=False),
    "ledger": Question(lambda progress, _: measure_ledger(progress), (15, 15)),
    "planner": Question(lambda progress, _: measure_planner(progress), (45, 45)),
}


if __name__ == "__main__":
    sys.exit(answer_all("speed", __doc__, QUESTIONS, None))
