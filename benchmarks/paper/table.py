"""Table 2, ours beside theirs, and how much it varies. A part without results is None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from benchmarks.paper.plan import (
    COMPARED,
    DATASETS,
    FIGURES,
    MECHANISMS,
    READINGS,
    RUNS,
    SEEDS,
    TEN_USERS,
    Job,
    Reading,
)
from benchmarks.paper.printed import Published, published
from benchmarks.paper.results import Results
from bgtplanner.runs.config import INDIFFERENT
from bgtplanner.runs.statistics import Estimate

REFERENCES = {
    "half": "*0.5 for everything*",
    "constant": "*one constant for all*",
    "user_mean": "*each user's own mean, nothing shared*",
}
NOTHING = "–"


def short(value: float, digits: int = 4) -> str:
    """A figure below 1 without its zero; what is printed with a 5 is rounded up.

    Example:
        >>> short(0.3683), short(-0.0005), short(0.6685, 3), short(1.25, 1)
        ('.3683', '-.0005', '.669', '1.3')
    """
    exact = Decimal(f"{value:.10f}").quantize(Decimal(10) ** -digits, ROUND_HALF_UP)
    return str(exact).replace("0.", ".", 1) if abs(exact) < 1 else str(exact)


def signed(value: float, digits: int = 4) -> str:
    """The same with its sign."""
    return ("+" if value >= 0 else "") + short(value, digits)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as Markdown; the first is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def column(dataset: str, mechanism: str) -> str:
    """Head of a column."""
    return f"{DATASETS.get(dataset, 'ML-1M')} {MECHANISMS[mechanism]}"


def print_of(reading: Reading, dataset: str, mechanism: str) -> Published | None:
    """What the paper has for a reading's method, in a column."""
    if not reading.method:
        return None
    if reading.policy == "unlimited":
        return published(dataset, "none", reading.policy) if mechanism == "gaussian" else None
    policy = "bgt" if reading.method == "BGTplanner" else reading.policy
    return published(dataset, mechanism, policy)


def table2(results: Results) -> str | None:
    """RMSE and F1 of the readings that are compared with print; what is not there."""
    shown = tuple(COMPARED.values())
    if not results.columns:
        return None
    text = [
        f"**RMSE** of the best round, ours / theirs; {_seeds(results)}. G is Gaussian noise, "
        f"L Laplace. {results.provenance(*shown)}",
        _beside(results, "rmse", 4, results.columns, shown),
        "**F1** of the best round, ours / theirs:",
        _beside(results, "f1", 3, results.columns, shown),
    ]
    return "\n\n".join([*text, *_missing(results, shown)])


def other_readings(results: Results) -> str | None:
    """RMSE and F1 of all other readings, and of ML-1M with ten users in each client."""
    others = tuple(reading for reading in READINGS if not reading.compared)
    if not results.complete():
        return None
    ten = [(TEN_USERS, mechanism) for mechanism in MECHANISMS]
    text = [
        f"**RMSE** of the other readings, ours / theirs. {results.provenance(*others)}",
        _beside(results, "rmse", 4, results.columns, others),
        "**F1**:",
        _beside(results, "f1", 3, results.columns, others),
        "**ML-1M with ten users in each client**, who stay apart; RMSE and F1:",
        _beside(results, "rmse", 4, ten, tuple(COMPARED.values())),
        _beside(results, "f1", 3, ten, tuple(COMPARED.values())),
    ]
    return "\n\n".join([*text, *_missing(results, others)])


def _beside(
    results: Results,
    kind: str,
    digits: int,
    places: Sequence[tuple[str, str]],
    readings: Sequence[Reading],
) -> str:
    rows = [["", *(column(*place) for place in places)]]
    for reading in readings:
        rows.append([reading.label])
        for place in places:
            ours = results.figure(reading, *place, f"{kind}_best")
            theirs = print_of(reading, *place)
            if ours is None:
                rows[-1].append("")
                continue
            beside = "" if theirs is None else f" / {short(getattr(theirs, kind), digits)}"
            rows[-1].append(f"{short(ours.mean, digits)}{beside}")
    for name, label in REFERENCES.items():
        if kind == "f1" and name == "half":
            continue
        rows.append([label])
        for dataset, mechanism in places:
            found = results.reference(dataset, f"{kind}_{name}")
            shown = found is not None and mechanism == "gaussian"
            rows[-1].append(short(found.mean, digits) if found is not None and shown else "")
    return table(rows)


def deviations(results: Results) -> str | None:
    """How much the figures vary over seeds, and how many rounds the budget lasted."""
    if not results.columns:
        return None
    rows = [["", *(column(*place) for place in results.columns)]]
    for reading in COMPARED.values():
        rows.append([reading.label])
        for place in results.columns:
            found = [
                results.figure(reading, *place, name)
                for name in ("rmse_best", "f1_best", "rounds_run")
            ]
            rows[-1].append(_varies(*found))
    return "Standard deviation over seeds of RMSE and of F1, and rounds played:\n\n" + table(rows)


def _varies(rmse: Estimate | None, f1: Estimate | None, rounds: Estimate | None) -> str:
    if rmse is None or f1 is None or rounds is None:
        return ""
    spread = [
        NOTHING if found.std is None else short(found.std, digits)
        for found, digits in ((rmse, 4), (f1, 3))
    ]
    return ", ".join([*spread, f"{rounds.mean:.0f}"])


def _counts(results: Results, readings: Sequence[Reading]) -> dict[tuple[Reading, str], int]:
    """Seeds done, the fewest of its mechanisms, of every reading and data set."""
    return {
        (reading, dataset): min(len(results.of(reading, dataset, k)) for k in reading.mechanisms)
        for reading in readings
        for dataset in results.datasets
    }


def _seeds(results: Results) -> str:
    most = max(_counts(results, READINGS).values())
    return f"mean of {most} seed{'s' if most != 1 else ''}"


def _missing(results: Results, readings: Sequence[Reading]) -> list[str]:
    """Which cells have fewer seeds, which are not there at all, and how to come by them."""
    counts = _counts(results, readings)
    most = max(counts.values())
    fewer = [
        f"{reading.label} on {DATASETS[dataset]} ({done})"
        for (reading, dataset), done in counts.items()
        if 0 < done < most
    ]
    text = [f"Fewer seeds: {', '.join(fewer)}."] if fewer else []
    text += not_run(
        [
            Job(part=reading, dataset=dataset, seeds=SEEDS)
            for (reading, dataset), done in counts.items()
            if not done
        ]
    )
    if whole := [name for key, name in DATASETS.items() if key not in results.datasets]:
        text.append(f"Nothing of {' and '.join(whole)} yet; `make paper` runs it.")
    return text + [
        f"{reading.label} on {DATASETS.get(dataset, dataset)} was run with {', '.join(other)}."
        for (reading, dataset), settings in results.settings.items()
        if reading in readings and (other := _other(reading, settings))
    ]


def _other(reading: Reading, settings: Mapping[str, Any]) -> list[str]:
    """What was set otherwise than planned."""
    return [
        f"`{key} = {settings.get(key, 'as in the preset')}`"
        for key in {**reading.settings, **settings}
        if settings.get(key) != reading.settings.get(key) and key not in INDIFFERENT
    ]


def not_run(jobs: Sequence[Job]) -> list[str]:
    """What is missing, with the commands that bring it."""
    if not jobs:
        return []
    lines = "\n".join(job.command(RUNS) for job in jobs)
    return ["Not run yet; `make paper` does it all, these do it one by one:", f"```\n{lines}\n```"]


def how_to_run(name: str) -> str:
    """For a part of which there is nothing."""
    part = next((one for one in FIGURES if one.name == name), READINGS[0])
    return "\n\n".join(not_run([Job(part=part, dataset=key, seeds=SEEDS) for key in DATASETS]))


def commands(results: Results) -> str | None:
    """The command behind every cell of the table."""
    if not results.columns:
        return None
    rows = [["row", "command"]]
    for reading in READINGS:
        words = Job(part=reading, dataset="DATASET", seeds=SEEDS).plain_words()
        rows.append([reading.label, f"`bgtplanner {words}`"])
    return table(rows)
