"""The documentation builds without a warning, and what it says of the code is so."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any, get_type_hints

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from writing import reference  # noqa: E402

import bgtplanner  # noqa: E402
import compiled  # noqa: E402
from bgtplanner.runs.config import FLAGS, Config  # noqa: E402
from processes import Processes  # noqa: E402

NOTEBOOKS = {
    "recommender": "Any two users share",
    "compare": "RMSE 0.",
    "own-policy": "RMSE 0.",
    "own-model": "RMSE 0.",
    "deployment": "6 of them new",
}
"""With what each of them says in an output."""


def built(processes: Processes, out: Path) -> Path:
    """The pages, as `make docs` has them; the notebooks are executed in folders of their own."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    quick = compiled.quick_environment() | {"PYTHONWARNINGS": "default"}
    done = processes.run(
        [*command, "-d", out / "trees", DOCS, out / "html"], env=os.environ | quick
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out / "html"


def test_the_site(processes: Processes, tmp_path: Path) -> None:
    """One test, since a build takes half a minute."""
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install --group docs")
    assert sorted(NOTEBOOKS) == sorted(path.stem for path in (DOCS / "notebooks").glob("*.md"))
    site = built(processes, tmp_path)
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page
    for name, said in NOTEBOOKS.items():  # were executed, to their end
        source = (DOCS / "notebooks" / f"{name}.md").read_text(encoding="utf-8")
        html = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        assert html.count("cell_input") == source.count("{code-cell}")
        assert html.count("cell_output") >= 2
        assert said in unescape(re.sub(r"<[^>]+>", "", html)), name
    assert (site / "_images" / "report-run.png").is_file()
    assert 'alt="The report of a run' in (site / "index.html").read_text(encoding="utf-8")
    html = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in bgtplanner.__all__:
        kind = "module-" if inspect.ismodule(getattr(bgtplanner, name)) else ""
        assert f'id="{kind}bgtplanner.{name}"' in html, name
    for page in site.rglob("*.html"):  # nothing from elsewhere is needed to read them
        html = page.read_text(encoding="utf-8")
        assert not re.search(
            r"<(?:script|img)[^>]*src=\"https?:|<link[^>]*href=\"https?:", html
        ), page


class TestReference:
    @pytest.mark.parametrize("page", reference.PAGES)
    def test_the_pages_are_those_of_the_code(self, page: str) -> None:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert text == reference.written(page, text), "run `make docs-output`"

    def test_every_command_with_its_flags(self) -> None:
        page = reference.commands_page()
        seen = 0
        for path, command in reference.commands():
            name = " ".join(("bgtplanner", *path))
            assert f"# {name}\n" in page
            part = page.split(f"# {name}\n", 1)[1].split("\n## ")[0]
            for option in command.params:
                if option.param_type_name == "option":
                    assert f"`{option.opts[0]}" in part, f"{name} {option.opts[0]}"
                    seen += 1
        assert seen > 80

    def test_every_setting_with_its_meaning(self) -> None:
        page = reference.settings_page()
        for name, entry in Config.model_fields.items():
            if name == "preset":
                continue
            part = page.split(f"## [{name}]\n", 1)[1].split("\n## ")[0]
            meanings = reference.meanings(entry.annotation)  # type: ignore[arg-type]
            keys = list(inspect.signature(type(getattr(Config(), name))).parameters)
            assert list(meanings) == keys, f"Attributes of [{name}]"
            for key in keys:
                assert f"| `{key}` |" in part, f"{name}.{key}"
        for key, flag in FLAGS.items():
            assert f"Flag: `{flag}`" in page, key

    def test_values_are_those_of_the_presets(self) -> None:
        page = reference.settings_page()
        assert "| `clip` | number > 0, ≤ 1e+06 | `0.1` | `0.1` |" in page
        assert "| `unit` | `client` or `row` | `client` | `row` |" in page
        assert "| `model.name` | `tastes` | `tastes` | `factorization` | `fedgnn` |" in page


NOTATION = (DOCS / "notation.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ") for line in NOTATION.splitlines() if re.match(r"\| [^s-]", line)]


class TestNotation:
    @pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("| ") for row in ROWS])
    def test_every_name_exists(self, row: list[str]) -> None:
        for name in re.findall(r"`([^`]+)`", row[-1]):
            assert exists(name), name

    def test_symbols_of_the_paper(self) -> None:
        assert len(ROWS) > 45
        symbols = " ".join(row[0] for row in ROWS)
        for symbol in (*"τ𝜾𝝂𝝎𝒱Λγα", "𝐗ᵗ", "𝒙ᵗ", "𝒛ᵗ", "𝝀ᵗ", "T₀", "βᵗ(a)", "pᵗ(a)", "T_min"):
            assert symbol in symbols, symbol

    def test_names_that_do_not_exist_are_found(self) -> None:
        for name in ("planning.bgt.Nothing", "planning.bgt.BGTPlanner(nothing)", "[run] nothing"):
            assert not exists(name)


ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")


class TestArchitecture:
    def test_every_hop_is_in_the_code(self) -> None:
        for way in ("rating", "charge"):
            section = ARCHITECTURE.partition(f"## The way of a {way}")[2].partition("\n## ")[0]
            assert len(re.findall(r"^\d+\. ", section, flags=re.MULTILINE)) == 10
            names = re.findall(r"`(\w+(?:\.\w+)+)`", section.replace("`rounds.jsonl`", ""))
            assert len(names) >= 10
            for name in names:
                assert exists(name), name

    def test_every_file_that_a_change_goes_to_is_there(self) -> None:
        home = DOCS.parent / "src" / "bgtplanner"
        files = re.findall(r"`(\w+/\w+\.py)`", ARCHITECTURE)
        assert len(files) > 10
        for file in files:
            assert (home / file).is_file(), file

    def test_every_room_is_in_the_picture(self) -> None:
        picture = ARCHITECTURE.partition("```text")[2].partition("```")[0]
        rooms = [
            path.parent.name for path in (DOCS.parent / "src/bgtplanner").glob("*/__init__.py")
        ]
        assert len(rooms) > 10
        for room in rooms:
            assert re.search(rf"\b{room}\b", picture), room


def exists(name: str) -> bool:
    """Whether a name of the page is in the code: a setting, an object, or its argument."""
    if setting := re.fullmatch(r"\[(\w+)\] (\w+)", name):
        return hasattr(getattr(Config(), setting[1], None), setting[2])
    path, _, argument = name.removesuffix(")").partition("(")
    found = resolved(path)
    if found is None or not argument:
        return found is not None
    kinds = found.__mro__ if inspect.isclass(found) else [found]
    return any(
        argument in inspect.signature(kind).parameters for kind in kinds if kind is not object
    )


def resolved(path: str) -> Any:
    """The object of that name, or the type of a field; None if there is none."""
    parts = path.split(".")
    home = "" if parts[0] == "benchmarks" else "bgtplanner."
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(home + ".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            fields = get_type_hints(found) if inspect.isclass(found) else {}
            found = fields[part] if part in fields else getattr(found, part, None)
        return found
    return None


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d.,]*\d|\d", text))


class TestFiguresAgree:
    """Figures that are quoted are those of the page that a command writes."""

    def test_the_readme_quotes_the_results(self) -> None:
        readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
        results = (DOCS / "results.md").read_text(encoding="utf-8")
        rows = [[cell.strip() for cell in row.split("|")] for row in results.splitlines()]
        of = {(row[1], row[2]): row for row in reversed(rows) if len(row) == 13}
        special, one = "secagg, epsilon 10, replace-special", "secagg, epsilon 10, replace-one"
        small, local = "secagg, epsilon 1, replace-special", "local, epsilon 10, privunit"
        for label, guarantee in {
            "ours, secure aggregation, epsilon 10": special,
            "the same, `replace-one`": one,
            "ours, secure aggregation, epsilon 1": small,
            "ours, local trust (`--trust local`), epsilon 10": local,
        }.items():
            line = next(row for row in readme.splitlines() if row.startswith(f"| {label} |"))
            quoted = re.findall(r"0(\.\d{4})", line)
            sets = ("ML-100K", "FilmTrust", "ML-1M, 605 clients")
            assert quoted == [of[guarantee, data][4][:5] for data in sets], label
        for label, guarantee in {
            "ours, epsilon 10, secure aggregation (the default)": special,
            "ours, the stronger reading of epsilon 10 (`--neighbours replace-one`)": one,
            "ours, epsilon 1 (`--epsilon 1`)": small,
            "ours, epsilon 10, no one trusted (`--trust local`)": local,
            "ours, without privacy (`--mechanism none`)": "without privacy",
        }.items():
            line = next(row for row in readme.splitlines() if row.startswith(f"| {label} |"))
            quoted = [float(figure) for figure in re.findall(r"\d\.\d+", line)]
            row = of[guarantee, "ML-100K"]
            lists, recall, shared, rmse = (float(row[at][:5]) for at in (7, 9, 10, 4))
            for said, measured, half in zip(
                quoted, (lists, recall, shared, rmse), (5e-4, 5e-4, 5e-2, 0.0), strict=True
            ):
                assert abs(said - measured) <= half + 1e-9, label

    def test_the_readme_quotes_the_benchmarks(self) -> None:
        readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
        page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
        row = next(row for row in page.splitlines() if row.startswith("| stationary | 4,000 |"))
        planner, _, even = re.findall(r"(0\.\d+) ±", row)[:3]
        said = f"{100 * float(planner):.0f} % of it over 4,000 rounds, and an even schedule"
        assert f"{said} {100 * float(even):.0f} %" in " ".join(readme.split())

    def test_what_is_wrong_quotes_the_paper_page(self) -> None:
        page = (DOCS / "concepts" / "published-setting.md").read_text(encoding="utf-8")
        paper = numbers((DOCS / "paper.md").read_text(encoding="utf-8"))
        for figure in ("294", "2,439", "415", "3,797", "297", "21"):
            assert figure in numbers(page), figure
            assert figure in paper, figure
