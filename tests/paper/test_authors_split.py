"""The authors' file is read as numbers in containers: nothing that it names is ever run."""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.paper.authors_split import rows_of

TRAIN = {0: [(0, 0.5, -1)], 1: [(1, 1.0, -1), (0, 0.25, -1)], 2: []}
TEST: dict[int, Any] = {0: [(1, 0.75, -1)], 1: [], 2: []}
NONE: dict[int, Any] = {0: [], 1: [], 2: []}


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def written(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_rating_has_its_part(tmp_path: Path, protocol: int) -> None:
    content = [TRAIN, TEST, NONE, [0, 1, 2], [0, 1], defaultdict(None, {0: [1]})]
    path = written(tmp_path / "theirs.pkl", content, protocol)
    assert rows_of(path) == [
        (0, 0, 0.5, "train"), (1, 1, 1.0, "train"), (1, 0, 0.25, "train"), (0, 1, 0.75, "test"),
    ]  # fmt: skip


@pytest.mark.parametrize("place", [0, 3, 5])
def test_a_file_that_names_code_is_refused(tmp_path: Path, place: int) -> None:
    content: list[Any] = [TRAIN, TEST, NONE, [], [], {}]
    content[place] = Hostile(tmp_path / "was-run")
    with pytest.raises(ValueError, match=r"names .*mkdir, which is not a container"):
        rows_of(written(tmp_path / "hostile.pkl", content))
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("content", [[], 7, [TRAIN, TEST], [[1], [2], [3]], [TRAIN, TEST, TEST]])
def test_another_file_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match=r"other\.pkl"):
        rows_of(written(tmp_path / "other.pkl", content))
