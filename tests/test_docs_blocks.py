"""Every command and every code block of README and documentation works as it stands.

A page is played from top to bottom in a folder of its own: Python blocks in one namespace, our
commands in process, with few rounds where the block does not show what they print. A block that
says why it is not run has its commands checked all the same: they and their flags must exist.
"""

from __future__ import annotations

import functools
import pkgutil
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from bgtplanner import cli
from bgtplanner.testing import PolicyContract

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from writing import blocks  # noqa: E402
from writing.blocks import CODE, REPOSITORY, Block, Command, blocks_of, commands_of  # noqa: E402
from writing.output import SOMETIMES, shown_outputs  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled_once")

ELSEWHERE = {
    "docs/deployment.md": "minutes, by tests/flower/test_guide.py",
    "docs/paper.md": "hours, by make paper",
    "docs/results.md": "hours, by make results",
    **{
        f"docs/notebooks/{path.name}": "minutes, by tests/test_docs_site.py"
        for path in (DOCS / "notebooks").glob("*.md")
    },
}
"""Pages whose blocks are written, or run, by something else; what they name is checked here."""
FEW = {
    "run": ["--rounds", "4"],
    "compare": ["--rounds", "4", "--seeds", "0"],
    "sweep": ["--set", "federation.rounds=4", "--seeds", "0"],
    "audit": ["--releases", "20000", "--seed", "0"],  # an honest client may be refuted: 1 in 100
}
"""Appended where nobody sees the figures: the last one given counts."""

DRAWN = ("docs/howto/report.md", "docs/start.md")
"""Pages whose reports have their pictures: they are about them."""

PAGES = [path.relative_to(REPOSITORY).as_posix() for path in blocks.pages()]


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def reason_of(page: str, block: Block) -> str | None:
    return ELSEWHERE.get(page, block.reason)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_exists(page: str) -> None:
    for block in blocks_of(read(page)):
        if block.language not in CODE or reason_of(page, block) is None:
            continue
        text = block.text
        if block.language == "python" or block.language.startswith("{"):
            compile(text, page, "exec")
            continue
        if block.language == "bash":  # our own commands, out of whatever the script does
            text = "\n".join(re.findall(r"bgtplanner [^;|&>\n]*", text.replace("\\\n", " ")))
        for command in commands_of(text):
            check(command, f"{page}, line {block.line}")


def check(command: Command, where: str) -> None:
    """See that a command exists and takes these words, without running it."""
    program, *words = command.words
    if program == "bgtplanner":
        parse(words, where)
    elif program == "make":
        accountants = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
        for word in words:
            assert "=" in word or re.search(rf"^{re.escape(word)}:", accountants, re.M), where
    elif program in ("pip", ".venv/bin/pip"):
        extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
        for names in re.findall(r"bgtplanner\[(.*?)\]", " ".join(words)):
            assert set(names.split(",")) <= set(extras["project"]["optional-dependencies"]), where
    elif Path(program).name in ("python", "python3"):
        check_python(words, where)
    else:
        raise AssertionError(f"{where}: {program}: whose command is that?")


def check_python(words: list[str], where: str) -> None:
    """A module of the benchmarks with its flags, or a script."""
    if words[0] != "-m":
        assert (REPOSITORY / words[0]).is_file(), where
        return
    folder = REPOSITORY.joinpath(*words[1].split("."))
    files = [path for path in (folder.with_suffix(".py"), *folder.glob("*.py")) if path.is_file()]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert source, where
    if "answer_all(" in source:  # the command line that several benchmarks share
        source += (REPOSITORY / "benchmarks/speed/page.py").read_text(encoding="utf-8")
    for word in words[2:]:
        assert not word.startswith("--") or f'"{word}"' in source, f"{where}: {word}"


@functools.cache
def own_commands() -> Any:
    """For these tests alone: a command that has parsed something keeps the names of its help."""
    return typer.main.get_command.__wrapped__(cli.app)  # type: ignore[attr-defined]


def parse(words: list[str], where: str) -> None:
    command: Any = own_commands()
    path = ["bgtplanner"]
    while isinstance(command, click.Group):
        assert words, f"{where}: which command of {' '.join(path)}?"
        assert words[0] in command.commands, f"{where}: {words[0]}: no such command"
        path.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context(" ".join(path), list(words))
    except click.ClickException as error:
        raise AssertionError(f"{where}: {error.format_message()}") from error


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """As the shell would, but in this process."""
    monkeypatch.setattr(sys, "argv", list(words))
    monkeypatch.setattr(typer, "launch", lambda *_, **__: 0)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a reader's own tables in it, on a terminal of 80 columns."""
    blocks.write_tables(tmp_path)
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def played() -> list[str]:
    """Pages with something to run."""
    return [
        page
        for page in PAGES
        if any(
            block.language in CODE and reason_of(page, block) is None
            for block in blocks_of(read(page))
        )
    ]


FIRST_PAGES = ("README.md", "docs/start.md")
"""Pages that are executed at every commit; the others by `make test-all`."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in FIRST_PAGES else [pytest.mark.full])
        for page in played()
    ],
)
def test_the_page_works(
    page: str,
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if page not in DRAWN:
        request.getfixturevalue("undrawn")
    text = read(page)
    outputs = {tuple(command.words): block for command, block in shown_outputs(text) if block}
    names: dict[str, Any] = {"__name__": page}
    for block in blocks_of(text):
        if block.language not in CODE or reason_of(page, block) is not None:
            continue
        where = f"{page}, line {block.line}"
        if block.language == "python":
            padded = "\n" * block.line + block.text  # so that a traceback names the page's line
            exec(compile(padded, REPOSITORY / page, "exec", dont_inherit=True), names)
            continue
        for command in commands_of(block.text):
            assert command.words[0] == "bgtplanner", f"{where}: not ours to run; say who does"
            pasted = outputs.get(tuple(command.words))
            few = FEW.get(command.words[1], []) if pasted is None else []
            capfd.readouterr()
            code = run_command([*command.words, *few], monkeypatch)
            printed, trouble = capfd.readouterr()
            assert code == command.exit_code, f"{where}: {command.words}: {trouble}"
            if pasted is not None:
                assert shape(printed) == shape(pasted.text), f"{where}: run `make docs-output`"
    for contract in [value for value in names.values() if is_contract(value)]:
        keep(contract, desk)


def shape(printed: str) -> str:
    """What is printed but for the figures, the seconds and where lines are broken."""
    text = re.sub(rf"^{SOMETIMES}.*\n", "", printed, flags=re.M)
    text = re.sub(r", about \S+ \w+ left", "", text)
    text = re.sub(r"\b[0-9a-f]{12,}", "#", text)
    text = re.sub(r"[▁-█]+", "█", text)
    text = re.sub(r"[-+]?\d[\d.,:]*(?:e-?\d+)?", "#", text)
    return " ".join(text.split())


def is_contract(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, PolicyContract)
        and value is not PolicyContract
    )


def keep(contract: type[PolicyContract], folder: Path) -> None:
    """Run the tests of a contract that a page makes."""
    for name in dir(contract):
        if name.startswith("test_"):
            check = getattr(contract(), name)
            arguments = [folder / name] if "tmp_path" in check.__code__.co_varnames else []
            for argument in arguments:
                argument.mkdir()
            check(*arguments)


def test_links_and_pictures_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(page)):
            if not re.match(r"https?://", target):
                assert ((REPOSITORY / page).parent / target).exists(), f"{page}: {target}"


PACKAGES = "commands|data|federation|flower|models|paper|planning|privacy|published|report|runs"
NAMES = re.compile(rf"`((?:{PACKAGES})(?:\.\w+)+)`")
SETTINGS = re.compile(r"(planning|privacy)\.(options\.)?\w+$")
FILES = re.compile(r"`((?:\w+/)+\w+\.py)`")


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/paper.md", "CONTRIBUTING.md"])
def test_names_and_files_of_the_source_exist(page: str) -> None:
    text = read(page)
    for name in NAMES.findall(text):
        if page == "docs/paper.md" and SETTINGS.match(name):
            continue
        home, _, last = f"bgtplanner.{name}".rpartition(".")
        try:
            holder = pkgutil.resolve_name(home)
            if last not in getattr(holder, "__annotations__", ()):  # a field has no value
                pkgutil.resolve_name(f"bgtplanner.{name}")
        except (AttributeError, ImportError) as error:
            pytest.fail(f"{page}: {name}: {error}")
    for file in FILES.findall(text):
        places = (REPOSITORY, REPOSITORY / "src" / "bgtplanner")
        assert any((place / file).is_file() for place in places), f"{page}: {file}"
