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

__all__ = ["Kept", "check_heads", "heads_around"]


class Kept(NamedTuple):
    """Heads from one source, oldest first, or why it could not be read."""

    source: str
    heads: tuple[Head, ...] = ()
    problem: str | None = None


def heads_around(ledger: Path, witness: Path | None = None) -> list[Kept]:
    """Return the heads of a ledger that are recorded beside it and in its witness.

    The sources are ``head`` beside a client's ledger, ``checkpoint.npz`` and ``summary.json`` in a
    run folder, the given witness, and the one that a ``client.toml`` names. Sources without a head
    are left out.
    """
    sources: list[tuple[Path, Callable[[Path], list[Head]]]] = [
        (ledger.parent / "head", lambda path: [Head.parse(path.read_text(encoding="ascii"))]),
        (ledger.parent / "checkpoint.npz", _in_checkpoint),
        (ledger.parent / "summary.json", _in_summary),
    ]
    named = _witness_of_client(ledger.parent.parent / "client.toml")
    witnesses = [path for path in (witness, named) if path is not None]
    sources += [(path, lambda path: Witness(path).heads()) for path in witnesses]
    found = []
    for path, read in dict(sources).items():
        if path != witness and not path.exists():
            continue
        try:
            found.append(Kept(str(path), tuple(read(path))))
        except BGTPlannerError as error:
            found.append(Kept(str(path), problem=str(error)))
        except Exception as error:  # a damaged archive can fail in many ways
            found.append(Kept(str(path), problem=f"cannot be read ({type(error).__name__})"))
    return [kept for kept in found if kept.heads or kept.problem]


def check_heads(ledger: Ledger, around: list[Kept]) -> Head | None:
    """Check that the ledger still has every recorded row, and return the newest of them.

    Raises:
        LedgerTamperedError: If it has lost one; names the source.
    """
    newest: Head | None = None
    for kept in around:
        for head in kept.heads:
            try:
                ledger.check_head(head)
            except LedgerTamperedError as error:
                raise LedgerTamperedError(f"{kept.source}: {error}") from error
            newest = head if newest is None or head.number > newest.number else newest
    return newest


def _in_checkpoint(path: Path) -> list[Head]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if "planned" not in stored.files:
            return []
        state = json.loads(bytes(np.asarray(stored["planned"], dtype=np.uint8)))
    return _named(state, "head")


def _in_summary(path: Path) -> list[Head]:
    return _named(json.loads(path.read_text(encoding="utf-8")), "ledger_head")


def _named(values: dict[str, Any], name: str) -> list[Head]:
    text = values.get(name)
    return [] if text is None else [Head.parse(str(text))]


def _witness_of_client(path: Path) -> Path | None:
    """Return the witness that a client's file names, if there is one."""
    try:
        named = tomllib.loads(path.read_text(encoding="utf-8")).get("witness")
    except (OSError, ValueError):
        return None
    return path.parent / named if isinstance(named, str) else None
