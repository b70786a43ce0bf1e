"""All that a finished run is, to be compared with another one, for tests of whole runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TIMES = ("seconds", "ledger_head")  # what is never the same twice


def timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a round, or a summary, without what is never the same twice."""
    return {key: value for key, value in record.items() if not key.startswith(TIMES)}


def state_of(folder: Path) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """All that a finished run is, except how long it took."""
    with np.load(folder / "checkpoint.npz", allow_pickle=False) as stored:
        arrays = {
            name: (str(stored[name].dtype), stored[name].shape, stored[name].tobytes())
            for name in stored.files
            if name not in ("seconds", "planned")
        }
        if "planned" in stored.files:
            arrays["planned"] = _policy_of(stored["planned"])
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    return arrays, [timeless(json.loads(line)) for line in lines], timeless(summary)


def _policy_of(stored: np.ndarray) -> dict[str, Any]:
    """What the planner knows, without its ledger, whose key is secret and random, and its seal."""
    state = json.loads(bytes(stored))
    return {key: value for key, value in state["policy"].items() if key not in ("ledger", "seal")}
