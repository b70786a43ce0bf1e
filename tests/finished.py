"""All that a finished run is, to be compared with another one, for tests of whole runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.runs.folder import MODEL

TIMES = ("seconds", "ledger_head")  # what is never the same twice


def timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a round, or a summary, without what is never the same twice."""
    return {key: value for key, value in record.items() if not key.startswith(TIMES)}


def state_of(folder: Path) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """All that a finished run is, except how long it took; and all that it was, if that is there.

    A test that compares the states of clients and planners keeps `RunFolder.forget` from deleting
    the checkpoint.
    """
    model, checkpoint = folder / MODEL, folder / "checkpoint.npz"
    arrays: dict[str, Any] = {MODEL: model.read_bytes()} if model.exists() else {}
    if checkpoint.exists():
        with np.load(checkpoint, allow_pickle=False) as stored:
            for name in set(stored.files) - {"seconds", "planned"}:
                array = stored[name]
                arrays[name] = (str(array.dtype), array.shape, array.tobytes())
            if "planned" in stored.files:
                arrays["planned"] = _policy_of(stored["planned"])
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    return arrays, [timeless(json.loads(line)) for line in lines], timeless(summary)


def _policy_of(stored: np.ndarray) -> dict[str, Any]:
    """What the planner knows, without its ledger, whose key is secret and random, and its seal."""
    state = json.loads(bytes(stored))
    return {key: value for key, value in state["policy"].items() if key not in ("ledger", "seal")}
