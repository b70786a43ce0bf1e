"""The mutation runner: which faults it makes, and that it tells noticed from unnoticed ones."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from benchmarks.mutation.__main__ import ROOT, SURVIVORS
from benchmarks.mutation.mutants import Mutant, mutants_of
from benchmarks.mutation.report import argued, printed, read_records, reason_for
from benchmarks.mutation.suites import in_order, targets


def faults(source: str) -> list[str]:
    return [mutant.after for mutant in mutants_of("a.py", textwrap.dedent(source).encode())]


def record(mutant: Mutant) -> dict[str, object]:
    return {name: getattr(mutant, name) for name in ("file", "function", "before", "after")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a <= b <= c", ["x = a < b <= c", "x = a <= b < c"]),
        ("x = a == b", ["x = a != b"]),
        ("x = a is not None", ["x = a is None"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a + b * c", ["x = a - b * c", "x = a + b / c"]),
        ("x = y / a**b", ["x = y * a**b", "x = y / (a*b)"]),
        ("x = a // b", ["x = a / b"]),
        ("x += a", ["pass", "x -= a"]),
        ("x = a and b and c", ["x = (a or b or c)"]),
        ("x = not a", ["x = (a)"]),
        ("x = ~a & b", ["x = (~a | b)", "x = (a) & b"]),
        ("x = 0", ["x = 1"]),
        ("x = 0.25", ["x = 0.5"]),
        ("x = True", ["x = False"]),
        ("x = -1", ["x = (1)", "x = -2"]),
        ("x = 'a text'", []),
        ("x = y == 'key'", ["x = y != 'key'", "x = y == 'XXkey'"]),
        ("x = y['key']", ["x = y['XXkey']"]),
        ("x = {'key': y}", ["x = {'XXkey': y}"]),
        ("x = y.get('key')", ["x = y.get('XXkey')"]),
        ("x = y[a:b]", ["x = y[(a) + 1:b]", "x = y[a:(b) + 1]"]),
        ("x = y[1:]", ["x = y[2:]"]),
        ("x = min(a, b)", ["x = max(a, b)"]),
        ("x = np.ceil(a)", ["x = np.floor(a)"]),
        ("x = (a > b).any()", ["x = (a > b).all()", "x = (a >= b).any()"]),
        ("x = np.nextafter(a, np.inf)", ["x = np.nextafter(a, -(np.inf))"]),
        ("x = np.nextafter(a, 0)", ['x = np.nextafter(a, float("inf"))']),
        ("x = a if b else c", ["x = a if not (b) else c"]),
        ("f(a)", ["pass"]),
        ("x[a] = b", ["pass"]),
        ("del x[a:]", ["pass", "del x[(a) + 1:]"]),
        ("raise ValueError('a text', 3)", ["pass"]),
        ("E.unless(a > b, 'name', 3, 'text')", ["pass", "E.unless(a >= b, 'name', 3, 'text')"]),
        ("x = isinstance(a, int | float)", []),
        ("x = zip(a, b, strict=True)", []),
    ],
)  # fmt: skip
def test_the_faults_of_a_line(line: str, expected: list[str]) -> None:
    assert sorted(faults(line)) == sorted(expected)


def test_what_is_no_logic_is_left_alone() -> None:
    source = '''
        """A docstring with 1 + 1."""
        from typing import TYPE_CHECKING, Literal
        if TYPE_CHECKING:
            import a
            b = 1
        __all__ = ["f"]
        Kind = Literal["a", "b"]
        x: Literal["c"]

        def f(a: Literal[1], b: "int" = None) -> Literal[2]:
            """Another with x < y."""
            _log.warning("%d of %d", 1 + 1, 2)
            text = f"{1 + 1} of {2}"
        '''
    assert faults(source) == []


def test_faults_of_functions_and_handlers() -> None:
    source = """
        @dataclass(frozen=True, slots=True)
        class A:
            x: float = 2.0

            def f(self, a=3, *, b="key"):
                try:
                    return a
                except (KeyError, ValueError):
                    raise
                except OSError:
                    return self
                for c in a:
                    continue

            def g(self) -> bool:
                return self.x
        """
    assert faults(source) == [
        "@dataclass(frozen=False, slots=True)",
        "x: float = 4.0",
        "def f(self, a=4, *, b=\"key\"):",
        "def f(self, a=3, *, b='XXkey'):",
        "return None",
        "except (ValueError,):",
        "except (KeyError,):",
        "pass",
        "except ():",
        "break",
        "return not (self.x)",
    ]  # fmt: skip
    names = {mutant.function for mutant in mutants_of("a.py", textwrap.dedent(source).encode())}
    assert names == {"", "A", "A.f", "A.g"}


@pytest.mark.parametrize("file", targets(ROOT))
def test_faults_of_our_files_compile_and_differ(file: str) -> None:
    source = (ROOT / file).read_bytes()
    mutants = mutants_of(file, source)
    assert len({mutant.key for mutant in mutants}) == len(mutants) > 0
    before = ast.dump(ast.parse(source))
    for mutant in mutants[::50]:
        changed = mutant.applied(source)
        compile(changed, file, "exec", dont_inherit=True)
        assert ast.dump(ast.parse(changed)) != before, mutant


def test_every_argued_survivor_is_still_a_fault_of_the_code() -> None:
    entries = argued(SURVIVORS)
    files = {entry["file"] for entry in entries}
    records = [record(m) for file in files for m in mutants_of(file, (ROOT / file).read_bytes())]
    stale = [e for e in entries if not any(reason_for(r, [e]) for r in records)]
    assert stale == []


def test_tests_named_after_a_file_come_first_and_oracles_last() -> None:
    seconds = {
        "tests/oracles/test_x.py::o": 0.1,
        "tests/privacy/test_other.py::slow": 3.0,
        "tests/privacy/test_other.py::fast": 0.1,
        "tests/privacy/test_thing_more.py::b": 0.5,
        "tests/privacy/test_thing.py::a": 0.2,
    }
    assert in_order("src/p/thing.py", seconds) == [
        ["tests/privacy/test_thing.py::a", "tests/privacy/test_thing_more.py::b"],
        ["tests/privacy/test_other.py::fast"],
        ["tests/privacy/test_other.py::slow"],
        ["tests/oracles/test_x.py::o"],
    ]


THING = """
import functools

LIMIT = 10
ONE, TWO = range(1, 3)

def clipped(value, most=LIMIT):
    if value < 0:
        raise ValueError("negative")
    return min(value, most)

@functools.lru_cache
def doubled(value):
    return value + value

def unused(value):
    return value - 1

def counted(value):
    found = 0
    while found < value:
        found += 1
    return found
"""
TESTS = """
import subprocess, sys
import pytest
from bgtplanner_toy.thing import clipped, counted, doubled

@pytest.fixture(scope="module")
def shared():
    return doubled(2)

def test_clipped():
    assert clipped(3) == 3 and clipped(12) == 10
    with pytest.raises(ValueError):
        clipped(-1)

def test_first(shared):
    assert shared

def test_second(shared):
    assert shared == 4

def test_counted():
    assert counted(2) == 2

def test_elsewhere():
    code = "from bgtplanner_toy.thing import clipped; assert clipped(10, 20) == 10"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_that_fails():
    assert False
"""
SCRIPT = """
import json, sys
from pathlib import Path
from benchmarks.mutation import child, play
from benchmarks.mutation.baseline import baseline_of
from benchmarks.mutation.mutants import mutants_of
from benchmarks.mutation.suites import Suite

root = Path(sys.argv[1])
child._LOADED_BEFORE = ("pytest", "hypothesis")
play._PATIENCE = 0.3
child.prepare(root)
file = "src/bgtplanner_toy/thing.py"
baseline = baseline_of(Suite("toy", (file,), ("tests",)), root, root, 5)
sources = {file: (root / file).read_bytes()}
mutants = mutants_of(file, sources[file])
options = dict(root=root, scratch=root, jobs=2, examples=5, stages=9)
keep = lambda record: print("RECORD", json.dumps(record))
play.play(mutants, {file: baseline}, sources, keep=keep, **options)
print("LEFT OUT", *baseline.left_out)
"""


def test_a_small_package_from_end_to_end(tmp_path: Path) -> None:
    for folder in ("src/bgtplanner_toy", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/bgtplanner_toy/__init__.py").touch()
    source = tmp_path / "src/bgtplanner_toy/thing.py"
    source.write_text(THING)
    (tmp_path / "tests/test_thing.py").write_text(TESTS)
    (tmp_path / "tests/test_oracle.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --doctest-modules\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "LEFT OUT tests/test_oracle.py tests/test_thing.py::test_that_fails" in lines
    records = [json.loads(line[7:]) for line in lines if line.startswith("RECORD")]
    assert source.read_text() == THING
    outcomes = {(r["function"], r["after"]): r["outcome"] for r in records}
    assert outcomes == {
        ("", "LIMIT = 11"): "killed",
        ("", "ONE, TWO = range(2, 3)"): "killed",  # cannot be imported
        ("", "ONE, TWO = range(1, 4)"): "killed",
        ("clipped", "if value <= 0:"): "survived",
        ("clipped", "if value < 1:"): "survived",
        ("clipped", "pass"): "killed",
        ("clipped", "return None"): "killed",
        ("clipped", "return max(value, most)"): "killed",
        ("doubled", "return None"): "killed",
        ("doubled", "return value - value"): "killed",
        ("unused", "return None"): "unreached",
        ("unused", "return value + 1"): "unreached",
        ("unused", "return value - 2"): "unreached",
        ("counted", "found = 1"): "survived",
        ("counted", "while found <= value:"): "killed",
        ("counted", "pass"): "timeout",
        ("counted", "found -= 1"): "timeout",
        ("counted", "found += 2"): "survived",
        ("counted", "return None"): "killed",
    }
    kept = tmp_path / "records.jsonl"
    kept.write_text("".join(json.dumps(r) + "\n" for r in records))
    entries = [{"file": records[0]["file"], "after": "if value <= 0:", "why": "0 is 0"}]
    text = printed(read_records([kept]).values(), entries)
    rows = [line.split() for line in text.splitlines()]
    assert ["all", "19", "10", "2", "4", "3", "63.2%", "66.7%"] in rows
    assert "Nothing notices: 6" in text
