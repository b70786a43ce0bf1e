"""The page "The paper's system": its functions exist, and no defining equation is missing."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
SYSTEM = PAGE.partition("## Where we differ")[0]
NOTATION = PAGE.partition("\n## Notation")[2]
NAMES = sorted(
    set(
        re.findall(
            r"`((?:paper|planning|privacy|federation|models|data|runs|benchmarks)\.[a-z_.]+\w[\w.]*)"
            r"(?:\((\w+)\))?`",
            SYSTEM + NOTATION,
        )
    )
)
SETTINGS = re.compile(r"planning\.(?:T0|T_min|A|d|s|alpha|options\.\w+|context_size)$")


def find(name: str) -> object:
    """Import what a dotted name means: the longest module, then its attributes."""
    parts = (name if name.startswith("benchmarks.") else f"bgtplanner.{name}").split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            own = isinstance(found, type) and not hasattr(found, part)
            if own and re.search(rf"\b{part}\b *[:=,]", inspect.getsource(found)):  # a field
                return found
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no module for {name}")


@pytest.mark.parametrize(("name", "argument"), NAMES)
def test_every_function_of_its_tables_exists(name: str, argument: str) -> None:
    if SETTINGS.match(name):
        return
    found = find(name)
    if argument:
        assert callable(found)
        assert argument in inspect.signature(found).parameters


def test_every_equation_that_defines_a_computation_has_a_function() -> None:
    """They are numbered by LaTeX, subequations by letters; 1, 2, 16 and 17 compute nothing."""
    table = SYSTEM.partition("## Equations")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| ")]
    listed = {number for row in rows for number in re.findall(r"\d+[a-f]?", row[0])}
    wanted = {"3a", "3b", "3c", "3d", "9a", "9b", "9c", "9d", "9e", "9f"}
    wanted |= {str(number) for number in (4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15)}
    assert listed == wanted
    for row in rows[2:]:
        assert "`" in row[2], row


def test_every_line_of_the_algorithms_is_in_it() -> None:
    table = SYSTEM.partition("## Lines of the algorithms")[2].partition("\n## ")[0]
    for algorithm, lines in ((1, 23), (3, 15)):
        found: set[int] = set()
        for row in re.findall(rf"^\| Alg\. {algorithm}\.([^|]*)", table, re.M):
            numbers = [int(one.rpartition(".")[2]) for one in re.findall(r"[\d.]+", row)]
            found |= set(range(numbers[0], numbers[-1] + 1)) if "to" in row else set(numbers)
        assert found == set(range(1, lines + 1))


def test_the_share_of_close_cells_in_the_readme_is_that_of_the_page() -> None:
    table = PAGE.partition("<!-- begin: closeness -->")[2].partition("<!-- end: closeness -->")[0]
    cells, _, within = re.findall(r"^\| RMSE \| (\d+) \| (\d+) \| (\d+) \|", table, re.M)[0]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{within} of the {cells} RMSE cells within 5 %" in readme


def test_the_numbers_of_schedules_that_are_played_are_those_of_the_tests() -> None:
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    games = (ROOT / "tests" / "games" / "test_schedules.py").read_text(encoding="utf-8")
    played = int(re.findall(r'"BGTPLANNER_SCHEDULES", "(\d+)"', games)[0])
    share = int(re.findall(r"SCHEDULES // (\d+)", games)[0])
    said = [int(one) for one in re.findall(r"(\d+) schedules of four rounds", security)]
    assert sorted(said) == sorted([played, played // share])
