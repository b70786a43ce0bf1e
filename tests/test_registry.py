"""Things by name, and what plugins add to them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest

from bgtplanner import registry
from bgtplanner.errors import ConfigError
from bgtplanner.registry import Registry


def shapes() -> Registry[type]:
    return Registry(
        "shape",
        {"whole": int, "ratio": "fractions:Fraction"},
        expected="a class",
        fits=lambda found: isinstance(found, type),
    )


def test_by_name_and_by_address() -> None:
    from fractions import Fraction

    assert shapes()["whole"] is int
    assert shapes()["ratio"] is Fraction
    assert shapes()["decimal:Decimal"].__name__ == "Decimal"
    assert list(shapes()) == ["whole", "ratio"]
    assert "whole" in shapes()
    assert "decimal:Decimal" not in shapes()
    assert len(shapes()) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hole", "expected one of whole, ratio, .* did you mean 'whole'"),
        ("", "expected one of whole, ratio"),
        (":", "expected one of"),
        ("no.such:Thing", "cannot be imported"),
        ("fractions:Nothing", "cannot be imported"),
        ("math:pi", "expected a class"),
    ],
)
def test_what_is_not_there(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"shape = .*{said}"):
        shapes()[name]


def test_a_name_is_taken_once() -> None:
    known = shapes()
    known.add("line", "decimal:Decimal")
    known.add("line", "decimal:Decimal")  # the same again: a plugin that is loaded twice
    assert list(known) == ["whole", "ratio", "line"]
    for name, thing in (("whole", float), ("a:b", int)):
        with pytest.raises(ConfigError, match="not taken"):
            known.add(name, thing)


class Plugin:
    """An entry point, as `importlib.metadata` has it."""

    def __init__(self, name: str, action: object) -> None:
        self.name, self.value, self._action = name, f"{name}:register", action

    def load(self) -> object:
        return self._action


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plugin]]:
    installed: list[Plugin] = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: installed)
    registry.load_plugins.cache_clear()
    yield installed
    monkeypatch.undo()
    registry.load_plugins.cache_clear()


def test_a_plugin_is_asked_once_before_the_first_lookup(plugins: list[Plugin]) -> None:
    known, calls = shapes(), []
    plugins.append(Plugin("mine", lambda: calls.append(known.add("mine", float))))
    assert "mine" in known
    assert known["mine"] is float
    assert len(calls) == 1


def test_a_plugin_that_fails_is_named_and_left_out(plugins: list[Plugin]) -> None:
    plugins.append(Plugin("broken", lambda: 1 / 0))
    with pytest.warns(RuntimeWarning, match=r"plugin broken .*left out: ZeroDivisionError"):
        assert shapes()["whole"] is int


def test_what_somebody_holds_has_a_name() -> None:
    class Own:
        pass

    known = shapes()
    before = list(known)
    assert known.named(known["ratio"]) == "ratio"
    address = known.named(Own)
    assert known[address] is Own  # in this process alone
    assert known.named(Own) == address
    assert list(known) == before
