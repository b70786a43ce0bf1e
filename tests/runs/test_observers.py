"""What observers are told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bgtplanner.data.split import Split
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.observers import Several, figures_of
from bgtplanner.runs.result import Result
from followed import CONFIG, RECORDS, Done, follow


def test_figures_are_named_and_finite() -> None:
    found = figures_of(RECORDS[-1], CONFIG)
    assert found["rmse"] == RECORDS[-1]["rmse"]
    assert 0 < found["epsilon_spent"] <= 10
    assert all(isinstance(value, float) for value in found.values())
    assert {"level", "reward", "noise_multiplier", "left"} <= found.keys()
    planned = [figures_of(record, CONFIG) for record in RECORDS]
    assert any("predicted_reward" in figures for figures in planned)


def test_several() -> None:
    heard: list[str] = []

    class Ear:
        def __init__(self, name: str) -> None:
            self.name = name

        def started(self, config: Config, split: Split, first: int) -> None:
            heard.append(f"{self.name} started")

        def round(self, record: Mapping[str, Any], total: int) -> None:
            heard.append(f"{self.name} {record['round']}")

        def finished(self, result: Result) -> None:
            heard.append(f"{self.name} finished")

    both = Several(Ear("a"), Ear("b"))
    follow(both, last=1)
    both.finished(cast(Result, Done()))
    expected = ["started", "0", "finished"]
    assert heard == [f"{who} {what}" for what in expected for who in "ab"]


def test_nothing_but_numbers_leaves(tmp_path: Path) -> None:
    """Names and figures of a round: no label, no list of clients or items."""
    found = json.dumps([figures_of(record, CONFIG) for record in RECORDS])
    assert all(isinstance(value, float) for entry in json.loads(found) for value in entry.values())


def test_what_arrives_and_lists_of_some_rounds() -> None:
    config = load_config(settings={"privacy.mechanism": "none"})
    record = {"rmse": 0.2, "rmse_arriving": 0.3, "ndcg_at_10": 0.25}
    assert figures_of(record, config) == {
        "rmse": 0.2,
        "rmse_arriving": 0.3,
        "ndcg_at_10": 0.25,
    }
