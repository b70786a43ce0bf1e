"""The public names, what importing them costs, and the error tree as it is drawn."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bgtplanner
from bgtplanner import errors
from bgtplanner.errors import BGTPlannerError, InputError

ROOT = Path(__file__).parents[1]
PUBLIC = sorted([*bgtplanner._HOMES, "errors"])


def error_classes() -> dict[str, type[BGTPlannerError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, BGTPlannerError)
    }


class TestNames:
    @pytest.mark.parametrize("name", PUBLIC)
    def test_every_name_is_there_and_says_what_it_is(self, name: str) -> None:
        value = getattr(bgtplanner, name)
        assert inspect.getdoc(value)
        assert getattr(bgtplanner, name) is value
        assert name in dir(bgtplanner)

    @pytest.mark.parametrize("name", ["Rating", "nonsense", "__wrapped__"])
    def test_unknown_attribute(self, name: str) -> None:
        with pytest.raises(AttributeError, match=f"'bgtplanner' has no attribute '{name}'"):
            getattr(bgtplanner, name)
        assert not hasattr(bgtplanner, name)


def test_the_reference_has_every_name_and_says_how_stable_it_is() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \| (.+) \|$", page, re.M)
    assert sorted(name for name, _, _ in rows if "." not in name) == PUBLIC
    assert {label for _, label, _ in rows} == {"stable", "provisional", "experimental"}
    for name, _, meaning in rows:
        thing = getattr(bgtplanner, name, None) or importlib.import_module(name)
        first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
        assert meaning == first.replace("``", "`"), name


IMPORTS = """
import json, sys
import bgtplanner
bare = sorted(sys.modules)
from bgtplanner import Ratings, load_ratings
load_ratings("demo")
with_ratings = sorted(sys.modules)
sys.modules["jax"] = None  # as if it were not installed
missing = {}
for name in ("compare", "simulate", "resume", "load", "Result", "Learner"):
    try:
        getattr(bgtplanner, name)
    except bgtplanner.errors.MissingExtraError as error:
        missing[name] = str(error)
print(json.dumps([bare, with_ratings, missing]))
"""


def test_importing_is_cheap_and_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    bare, with_ratings, missing = json.loads(done.stdout)
    heavy = {"jax", "optax", "matplotlib", "flwr", "pydantic", "typer", "rich", "pyarrow"}
    assert not heavy & set(bare)
    assert not heavy & set(with_ratings)
    assert set(missing) == {"compare", "simulate", "resume", "load", "Result", "Learner"}
    for name, message in missing.items():
        assert f"bgtplanner.{name}" in message
        assert "pip install 'bgtplanner[sim]'" in message


class TestErrorTree:
    def test_exit_codes(self) -> None:
        for name, error in error_classes().items():
            assert error.exit_code == (2 if issubclass(error, InputError) else 1), name

    def test_input_errors_are_value_errors(self) -> None:
        assert all(
            issubclass(error, ValueError) == issubclass(error, InputError)
            for error in error_classes().values()
        )
