"""Heads of a ledger that were recorded elsewhere: each names a row that must still be there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bgtplanner.errors import BGTPlannerError, LedgerTamperedError
from bgtplanner.privacy.ledger import Head, Ledger
from bgtplanner.privacy.witness import Witness


class Source(NamedTuple):
    """Heads from one source, oldest first, or why it could not be read."""

    name: str
    heads: tuple[Head, ...] = ()
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"not read: {self.name}: {self.problem}"
        if len(self.heads) == 1:
            return f"has row {self.heads[0].number}, known from {self.name}"
        return f"has {len(self.heads)} rows up to {self.heads[-1].number}, known from {self.name}"


def heads_around(ledger: Path, witness: Path | None = None) -> list[Source]:
    """Return the heads of a ledger that are recorded beside it and in its witness.

    The sources are ``head`` beside a client's ledger, ``checkpoint.npz`` and ``summary.json`` in a
    run folder, the given witness, and the one that a ``client.toml`` names. Sources without a head
    are left out.
    """
    readers: dict[Path, Callable[[Path], list[Head]]] = {
        ledger.parent / "head": lambda path: [Head.parse(path.read_text(encoding="ascii"))],
        ledger.parent / "checkpoint.npz": lambda path: _named(_planned(path), "head"),
        ledger.parent / "summary.json": lambda path: _named(
            json.loads(path.read_text(encoding="utf-8")), "ledger_head"
        ),
    }
    for place in (witness, _witness_of_client(ledger.parent.parent / "client.toml")):
        if place is not None:
            readers[place] = lambda path: Witness(path).heads()
    found = []
    for path, read in readers.items():
        if path != witness and not path.exists():
            continue
        try:
            found.append(Source(str(path), tuple(read(path))))
        except BGTPlannerError as error:
            found.append(Source(str(path), problem=str(error)))
        except Exception as error:  # a damaged archive can fail in many ways
            found.append(Source(str(path), problem=f"cannot be read ({type(error).__name__})"))
    return [source for source in found if source.heads or source.problem]


def check_heads(ledger: Ledger, around: list[Source]) -> Head | None:
    """Check that the ledger still has every recorded row, and return the newest of them.

    Raises:
        LedgerTamperedError: If it has lost one; names the source.
    """
    for source in around:
        for head in source.heads:
            try:
                ledger.check_head(head)
            except LedgerTamperedError as error:
                raise LedgerTamperedError(f"{source.name}: {error}") from error
    heads = [head for source in around for head in source.heads]
    return max(heads, key=lambda head: head.number, default=None)


def _planned(path: Path) -> dict[str, Any]:
    """The planner's state in a checkpoint."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        state = bytes(np.asarray(stored.get("planned", []), dtype=np.uint8))
    return dict(json.loads(state)) if state else {}


def _named(values: dict[str, Any], name: str) -> list[Head]:
    text = values.get(name)
    return [] if text is None else [Head.parse(str(text))]


def _witness_of_client(path: Path) -> Path | None:
    """The witness that a client's file names, if there is one."""
    try:
        named = tomllib.loads(path.read_text(encoding="utf-8")).get("witness")
    except (OSError, ValueError):
        return None
    return path.parent / named if isinstance(named, str) else None
