"""README's table of results, from stored figures: `make docs-output` writes it.

``headline.json`` has our own figures, to three digits, and the command that measures each row;
what others reach is read where ``benchmarks`` keeps it. Change a figure there, not in README.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from writing.blocks import DOCS, REPOSITORY

__all__ = ["commands", "facts", "table", "write"]

EPSILONS = (10.0, 3.0, 1.0)
_STORED = REPOSITORY / "benchmarks" / "results"
_OPTIONS = "--policy bgt --vary privacy.epsilon=10,3,1 --objective last"


def facts() -> dict[str, Any]:
    """Return what is stored of ours: rows, and errors in stars."""
    stored: dict[str, Any] = _read(DOCS / "writing" / "headline.json")
    return stored


def table() -> str:
    """Return the table: lists of ours, of the best private rival, and without privacy."""
    rivals, open_models = _read(_STORED / "rivals.json"), _read(_STORED / "nonprivate.json")
    lines = [
        "| NDCG@10; three figures are of epsilon 10, 3 and 1 | popularity | **ours** "
        "| best private rival | EASE, not private |",
        "|---|---|---|---|---|",
    ]
    for row in facts()["rows"]:
        first, *others = (f"{figure:.3f}" for figure in row["ours"])
        rival, ease = "–", "–"
        if known := row["known"]:
            best = [_best(rivals, known, epsilon) for epsilon in EPSILONS]
            rival = ", ".join(best) if all(best) else "–"
            seeds = open_models["datasets"][known]["LensKit EASE"].values()
            ease = f"{fmean(seed['ndcg_at_10'] for seed in seeds):.3f}"
        ours = ", ".join([f"**{first}**", *others])
        lines.append(f"| {row['data']} | {row['popularity']:.3f} | {ours} | {rival} | {ease} |")
    return "\n".join(lines)


def commands() -> str:
    """Return the commands that measure our part of each row."""
    return "\n".join(f"{row['command']} {_OPTIONS}" for row in facts()["rows"])


def write() -> None:
    """Put the table into README, and the commands into the page of results."""
    for page, name, text in (
        (REPOSITORY / "README.md", "headline", table()),
        (DOCS / "results.md", "commands", f"```console\n{commands()}\n```"),
    ):
        old = page.read_text(encoding="utf-8")
        page.write_text(replaced(old, name, text), encoding="utf-8")


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with another text between its two marks."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", page, flags=re.S)


def _best(rivals: list[dict[str, Any]], data: str, epsilon: float) -> str | None:
    """Return the best mean of the rivals that had a run for lists alone."""
    found: dict[str, list[float]] = {}
    for run in rivals:
        if (run["dataset"], run["epsilon"], run["task"]) == (data, epsilon, "ranking"):
            found.setdefault(run["model"], []).append(run["ndcg_at_10"])
    return f"{max(map(fmean, found.values())):.3f}" if found else None


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
