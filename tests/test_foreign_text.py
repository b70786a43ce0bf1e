"""Names and labels that somebody else chose: on a terminal, in CSV and on a page they are text.

Every command that shows something is let loose on folders, files, ledgers, grids and ratings whose
names are made to be obeyed by whatever shows them. None of them may come out as it went in.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bgtplanner import Budget, Budgets, Ledger, simulate
from bgtplanner.runs.study import Study
from bgtplanner.text import visible
from command_line import Call, Done
from made_runs import make_run, make_study

pytestmark = pytest.mark.usefixtures("compiled_once")

NASTY = {
    "markup": "[/]",
    "style": "[bold red]x[/bold red]",
    "link": "[link=https://evil.example]x",
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "backwards": "ab\u202efdp.exe",
    "formula": "=cmd|' /C calc'!A0",
    "at": "@SUM(A1)",
    "tag": "<script>alert(1)</script>",
    "attribute": '" onload="alert(1)',
    "math": r"$\frac{1}{0}$",
    "template": "{{ 7*7 }}{% raw %}",
    "line": "a\nerror: b",
    "end": "--></style></pre>",
}
FIGURES = {"federation.rounds": 3}
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

ALL = " ".join(NASTY.values())

each = pytest.mark.parametrize("name", [ALL, NASTY["markup"]], ids=["all", "markup"])


class Tags(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def plain(text: str) -> None:
    """Nothing that a terminal would obey."""
    found = OBEYED.search(text)
    assert found is None, f"{found[0]!r} came out as it went in"


def shown(done: Done) -> Done:
    """The same, if it is for a terminal as it is, and no traceback."""
    plain(done.out)
    plain(done.err)
    for line in (*done.out.splitlines(), *done.err.splitlines()):
        assert not line.startswith("error: b"), "a name has made a line of its own"
    assert "Traceback" not in done.err
    assert done.code in (0, 1, 2)
    return done


def safe_page(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    plain(text)
    found = Tags()
    found.feed(text)
    assert "script" not in found.tags
    assert found.tags.count("body") == 1
    assert not {name for name in found.attributes if name.startswith("on")}
    assert "49" not in re.findall(r"<title>(.*?)</title>", text, re.DOTALL)[0]


def safe_csv(text: str) -> None:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            plain(cell)
            number = re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", cell)
            assert number or not cell.startswith(("=", "+", "-", "@")), cell


def as_file_name(name: str) -> str:
    return name.replace("/", "_")


@each
@pytest.mark.usefixtures("undrawn")
def test_a_run(name: str, tmp_path: Path, command_line: Call) -> None:
    """The name of its data, and of its folder."""
    folder = make_run(tmp_path / as_file_name(name), FIGURES | {"data.dataset": name})
    done = shown(command_line("report", folder))
    assert done.code == 0
    safe_page(folder / "report.html")
    shown(command_line("report", folder, "--json"))


@pytest.mark.usefixtures("undrawn")
@each
def test_a_comparison(name: str, tmp_path: Path, command_line: Call) -> None:
    request = Study(
        datasets=(f"csv:{name}", f"csv:{name}2"),
        policies=("bgt", "uniform"),
        seeds=(0,),
        settings=FIGURES | {"data.delimiter": name},
    )
    folder = make_study(tmp_path / "grid", request)
    done = shown(command_line("compare", "--out", folder))
    assert done.code == 0
    shown(command_line("compare", "--out", folder, "--json"))
    assert shown(command_line("report", folder)).code == 2, "it has no page"


@each
def test_a_ledger(name: str, tmp_path: Path, command_line: Call) -> None:
    """A server names its runs as it likes, and a client's ledger keeps the names."""
    book = tmp_path / as_file_name(name) / "ledger.sqlite"
    book.parent.mkdir()
    with Ledger.create(book, Budgets.same(Budget(5, 1e-5), clients=2), "gaussian/gdp") as ledger:
        ledger.settle(ledger.reserve(0.01, run=name, round=0))
    for command in (
        ("ledger", "show", book),
        ("ledger", "show", book, "--json"),
        ("ledger", "show", book.parent),
        ("ledger", "verify", book),
        ("ledger", "export", book),
    ):
        assert shown(command_line(*command)).code == 0
    safe_csv(shown(command_line("ledger", "export", book, "--csv")).out)


@each
def test_what_is_typed(name: str, tmp_path: Path, command_line: Call) -> None:
    """An error quotes what was given, so that it can only be read."""
    done = tmp_path / "done"
    make_run(done, FIGURES)
    (tmp_path / "ratings.csv").write_text("user,item,rating\na,b,1\na,c,2\nb,b,3\nb,c,1\n")
    ratings = f"csv:{tmp_path}/ratings.csv"
    for command in (
        ("run", "--dataset", f"x{name}"),
        ("run", "--set", f"x{name}"),
        ("run", "--set", f"{name}.x=1"),
        ("run", "--budgets", f"x{name}"),
        ("run", "--policy", f"x{name}"),
        ("run", "--model", f"x{name}"),
        ("run", "--config", f"x{name}"),
        ("run", "--show-config", "--set", f"data.delimiter={name}"),
        ("report", f"x{name}"),
        ("recommend", done, "--client", f"x{name}"),
        ("compare", "--seeds", f"x{name}", "--out", tmp_path / "c"),
        ("sweep", "--vary", f"x{name}", "--out", tmp_path / "s"),
        ("data", "info", f"x{name}"),
        ("data", "info", ratings, "--set", f"data.user_column={name}"),
        ("data", "info", ratings, "--set", f"data.scale={name}"),
        ("ledger", "show", f"x{name}"),
        ("ledger", "verify", done, "--head", f"x{name}"),
        (f"x{name}",),
        ("run", f"--x{name}"),
    ):
        shown(command_line(*command))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory, compiled_once: Path) -> Path:
    """A run on ratings whose users and items have such names."""
    home = tmp_path_factory.mktemp("labelled")
    items = [*NASTY.values(), *(f"item {number}" for number in range(6))]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["user", "item", "rating"])
    for (place, user), (number, item) in itertools.product(
        enumerate(NASTY.values()), enumerate(items)
    ):
        if (place + number) % 3:
            writer.writerow([user, item, 1 + (place * number) % 5])
    (home / "\x1b[31m=ratings.csv").write_text(buffer.getvalue())
    simulate(
        f"csv:{home}/\x1b[31m=ratings.csv",
        rounds=2,
        settings={"data.scale": "1:5", "run.device": "cpu"},
        out=home / "run",
    )
    return home


def test_labels(labelled: Path, command_line: Call) -> None:
    every = ""
    for user in itertools.islice(NASTY.values(), 3):  # together they have every item left to rate
        done = shown(command_line("recommend", labelled / "run", "--user", user, "--top", 50))
        assert done.code == 0
        every += done.out
    for name in NASTY.values():
        assert visible(name) in every, "it is shown, as text"
    shown(command_line("recommend", labelled / "run", "--user", NASTY["escape"], "--json"))
    done = command_line("predict", labelled / "run", "--user", "[/]", "--item", NASTY["line"])
    assert shown(done).code == 0
    (file,) = labelled.glob("*.csv")
    assert shown(command_line("data", "info", f"csv:{file}")).code == 0
    assert shown(command_line("data", "info", f"csv:{file}", "--json")).code == 0
