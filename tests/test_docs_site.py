"""The documentation builds without a warning, and what it says of the code is so."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import statistics
import sys
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from benchmarks.limits.findings import stored
from benchmarks.limits.plan import SEEDS, cell
from benchmarks.paper.page import body_of

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from writing import blocks, reference  # noqa: E402

import bgtplanner  # noqa: E402
from bgtplanner.runs.config import Config  # noqa: E402
from bgtplanner.runs.settings import FLAGS  # noqa: E402
from processes import Processes  # noqa: E402

NOTEBOOKS = {
    "recommender": "Any two users share",
    "compare": "RMSE 0.",
}
"""With what each of them says in an output."""


EXECUTED = "compare"
"""The one that is executed by a kernel of its own; the others would each start another."""


def built(processes: Processes, out: Path) -> Path:
    """The pages, as `make docs` has them but for the output of all notebooks except one."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    others = [f"notebooks/{name}.md" for name in NOTEBOOKS if name != EXECUTED]
    quick = {"PYTHONWARNINGS": "default"}
    few = {"NOTEBOOKS_NOT_EXECUTED": " ".join(others)}
    done = processes.run(
        [*command, "-d", out / "trees", DOCS, out / "html"], env=os.environ | quick | few
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
    for name in NOTEBOOKS:
        source = (DOCS / "notebooks" / f"{name}.md").read_text(encoding="utf-8")
        html = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        assert html.count("cell_input") == source.count("{code-cell}")
        if name == EXECUTED:  # to its end
            assert html.count("cell_output") >= 2
            assert NOTEBOOKS[name] in unescape(re.sub(r"<[^>]+>", "", html))
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


@pytest.mark.parametrize("name", sorted(set(NOTEBOOKS) - {EXECUTED}))
def test_the_notebook(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its cells work from top to bottom, in a folder of its own, and say what they should."""
    monkeypatch.chdir(tmp_path)
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    page = DOCS / "notebooks" / f"{name}.md"
    module = ModuleType(f"notebook_{name.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where its classes are looked up
    cells = [
        block
        for block in blocks.blocks_of(page.read_text(encoding="utf-8"))
        if block.language == "{code-cell} ipython3"
    ]
    for block in cells:
        code = ast.parse("\n" * block.line + block.text, str(page))
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, page, "exec", dont_inherit=True), vars(module))
        if isinstance(last, ast.Expr):  # is shown
            value = ast.Expression(last.value)
            print(eval(compile(value, page, "eval", dont_inherit=True), vars(module)))
    pyplot.close("all")
    assert len(cells) > 2
    assert NOTEBOOKS[name] in capsys.readouterr().out


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
    def test_every_room_is_in_the_picture(self) -> None:
        picture = ARCHITECTURE.partition("```text")[2].partition("```")[0]
        rooms = [
            path.parent.name for path in (DOCS.parent / "src/bgtplanner").glob("*/__init__.py")
        ]
        assert len(rooms) >= 10
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
        of = {(row[0], row[1]): row for row in reversed(self.rows_of_results(11))}
        special, one = "secagg, epsilon 10, replace-special", "secagg, epsilon 10, replace-one"
        small, local = "secagg, epsilon 1, replace-special", "local, epsilon 10, privunit"
        alone = of[special, "ML-100K"]
        self.quoted("each client alone, with features", [5 * float(alone[5])], places=[1])
        self.quoted("what is popular, counted without privacy", [float(alone[7])], places=[3])
        for label, guarantee in {
            "**ours, epsilon 10** (the default)": special,
            "ours, epsilon 10, the stronger reading (`--neighbours replace-one`)": one,
            "ours, epsilon 1": small,
            "ours, epsilon 10, no one trusted (`--trust local`)": local,
            "ours, without privacy": "without privacy",
        }.items():
            row = of[guarantee, "ML-100K"]
            figures = [5 * float(row[3].split()[0]), float(row[6].split()[0])]
            self.quoted(label, figures, places=[1, 3])

    def test_the_readme_quotes_the_rivals(self) -> None:
        mean = {tuple(row[:4]): float(row[4]) for row in self.rows_of_results(6)}
        for label, name in {
            "private least squares (`als`), epsilon 10": "als",
            "the same with features (`cmf`), epsilon 10": "cmf",
        }.items():
            rmse, ndcg = (mean["ml-100k", "10", of, name] for of in ("rmse", "ndcg_at_10"))
            self.quoted(label, [5 * rmse, ndcg], places=[1, 3])
        lists = {name: mean["ml-100k", "1", "ndcg_at_10", name] for name in ("ours", "als", "cmf")}
        assert max(lists, key=lambda name: lists[name]) == "ours"  # as the text says
        part = body_of((DOCS / "results.md").read_text(encoding="utf-8"), "nonprivate")
        table = part.partition("ML-1M")[0].splitlines()
        stars, lists_of_others = (
            [float(found[1]) for row in table if (found := re.match(column, row))]
            for column in (r"(?:\|[^|]*){3}\| (\.\d+)", r"(?:\|[^|]*){4}\| (\.\d+)")
        )
        best = [min(stars), max(lists_of_others)]
        self.quoted("best of LensKit and Surprise, without privacy", best, places=[1, 3])

    def test_the_readme_quotes_what_was_served(self) -> None:
        rows = stored(DOCS.parent / "benchmarks" / "limits" / "runs.jsonl")
        labels = {"**ours, epsilon 10** (the default)": 10.0, "ours, epsilon 1": 1.0}
        for label, epsilon in labels.items():
            runs = [rows[cell("ml-100k", epsilon, seed).key] for seed in SEEDS]
            rmse, ndcg = (
                statistics.fmean(run[name] for run in runs)
                for name in ("rmse_served", "ndcg_at_10_served")
            )
            self.quoted(label, [5 * rmse, ndcg], places=[0, 2])

    @staticmethod
    def rows_of_results(cells: int) -> list[list[str]]:
        """The rows of all tables of the page with so many cells."""
        text = (DOCS / "results.md").read_text(encoding="utf-8")
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()]
        at = 3 if cells == 11 else 4
        return [row for row in rows if len(row) == cells and re.match(r"\d?\.\d", row[at])]

    @staticmethod
    def quoted(label: str, figures: list[float], places: list[int]) -> None:
        """See that a row of the README has these figures in these columns."""
        readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
        line = next(row for row in readme.splitlines() if row.startswith(f"| {label} |"))
        said = [cell.strip(" *") for cell in line.split("|")[2:-1]]
        for place, figure in zip(places, figures, strict=True):
            assert abs(float(said[place]) - figure) <= 5.01e-4, f"{label}: {figure}"

    def test_what_is_wrong_quotes_the_paper_page(self) -> None:
        text = (DOCS / "paper.md").read_text(encoding="utf-8")
        measured, _, page = text.partition("## What is wrong with the published setting")
        paper = numbers(measured)
        for figure in ("294", "2,439", "415", "3,797", "297", "21"):
            assert figure in numbers(page), figure
            assert figure in paper, figure
