"""Counts lines against the budgets in ``pyproject.toml``; `make lint` fails where one is exceeded.

`python .ci/lines.py --lower` writes today's numbers where they are lower: budgets never rise.
Lines may be moved from one package to another by hand, as long as their total does not grow.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
DOCSTRINGS = 0.2  # share of the lines of src that explain


def tracked(folder: str) -> list[Path]:
    """Return the files below a folder that git knows, or all of them where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", folder], cwd=ROOT, capture_output=True, check=False
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name] or list((ROOT / folder).rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def lines(paths: list[Path]) -> int:
    """Return how many lines the text files among the paths have."""
    contents = [path.read_bytes() for path in paths]
    return sum(content.count(b"\n") for content in contents if b"\0" not in content)


def packages() -> dict[str, list[Path]]:
    """Return the files of every package; those that lie at the top are one package, ``rest``."""
    top = ROOT / "src" / "bgtplanner"
    found: dict[str, list[Path]] = {}
    for path in tracked("src"):
        parts = path.relative_to(top).parts
        found.setdefault(parts[0] if len(parts) > 1 else "rest", []).append(path)
    return found


def docstring_share(paths: list[Path]) -> float:
    """Return which share of the lines of Python files is docstrings."""
    explained = total = 0
    for path in (path for path in paths if path.suffix == ".py"):
        text = path.read_text()
        total += text.count("\n")
        for node in ast.walk(
            ast.parse(text)
        ):  # of attributes, too, which follow what they explain
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                explained += (value.end_lineno or 0) - value.lineno + 1
    return explained / max(total, 1)


def counted() -> dict[str, int]:
    """Return today's numbers, by the names of the budgets."""
    found, page = packages(), tracked("src/bgtplanner/serving/page")
    found["serving"] = [path for path in found["serving"] if path not in page]
    numbers = {f"src.{name}": lines(paths) for name, paths in sorted(found.items())}
    numbers["src"] = sum(numbers.values())
    numbers["page"] = lines(page)  # JavaScript, HTML and CSS, with a budget of their own
    for folder in ("tests", "benchmarks"):
        numbers[folder] = lines([path for path in tracked(folder) if path.suffix == ".py"])
    numbers["docs.pages"] = sum(path.suffix == ".md" for path in tracked("docs"))
    return numbers


def main() -> int:
    """Compare, or lower the budgets; returns the exit code."""
    budgets = tomllib.loads(PYPROJECT.read_text())["tool"]["bgtplanner"]["lines"]
    numbers = counted()
    if "--lower" in sys.argv:
        text = PYPROJECT.read_text()
        for name, number in numbers.items():
            if number < budgets.get(name, 0):
                text = re.sub(
                    rf'^"{re.escape(name)}" = \d+$', f'"{name}" = {number}', text, flags=re.M
                )
        PYPROJECT.write_text(text)
        return 0
    over = [
        f"{name}: {number} lines, but the budget is {budgets.get(name, 0)}"
        for name, number in numbers.items()
        if number > budgets.get(name, 0)
    ]
    share = docstring_share(tracked("src"))
    if round(share, 2) < DOCSTRINGS:
        over.append(f"docstrings: {share:.3f} of the lines of src, but at least a fifth is wanted")
    for line in over:
        print(f"too long: {line}; make room (pyproject.toml, tool.bgtplanner.lines)")
    if not over:
        print(f"lines: src {numbers['src']}, tests {numbers['tests']}, all within their budgets")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
