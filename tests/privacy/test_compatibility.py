"""One table of what goes together, for whoever asks."""

from __future__ import annotations

import re
import sys

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.compatibility import UNITS, Choice, allows, best_mechanism, check

BOTH = ("gaussian", "laplace")


def test_the_units_are_these() -> None:
    found = {name: (unit.name, unit.sound, unit.own_clips) for name, unit in UNITS.items()}
    assert found == {"client": ("client", True, False), "row": ("row", False, True)}  # the paper's


@pytest.mark.parametrize(
    "choice",
    [
        *(Choice(name, trust) for name in BOTH for trust in ("local", "secagg")),
        *(Choice(name, "local", "row") for name in BOTH),
        Choice("privunit", "local", "client"),
        Choice("privunit", "local", deployed=True),
        Choice("laplace", "local", deployed=True),
    ],
)
def test_what_goes_together(choice: Choice) -> None:
    check(choice)
    assert allows(choice)


@pytest.mark.parametrize(
    ("choice", "at_fault", "instead"),
    [
        (Choice("gaussian", "none"), "trust", "local or secagg"),
        (Choice("gaussian", "local", "rating"), "unit", "client or row"),
        (Choice("none"), "mechanism", "one of gaussian, laplace, privunit"),
        *((Choice("privunit", *where), "mechanism",
           "gaussian or laplace, unless trust = local and unit = client")
          for where in (("secagg",), ("local", "row"))),
        (Choice("gaussian", "secagg", "row"), "unit", "client, with trust = secagg"),
        (Choice("none", deployed=True), "mechanism", "one that protects"),
        (Choice("gaussian", unit="row", deployed=True), "unit", "client"),
        *((Choice(mechanism, "secagg", deployed=True), "mechanism", "gaussian, with trust")
          for mechanism in ("laplace", "privunit")),
        (Choice("gaussian", neighbours="replace-special"), "neighbours", "replace-one"),
        (Choice("gaussian", "secagg", neighbours="add"), "neighbours", "replace-special or"),
    ],
)  # fmt: skip
def test_what_does_not(choice: Choice, at_fault: str, instead: str) -> None:
    said = re.escape(f"{at_fault} = {getattr(choice, at_fault)!r}: expected {instead}")
    with pytest.raises(ConfigError, match=f"^{said}"):
        check(choice)
    known = choice != Choice("none")  # an unknown name is refused by who looks it up
    with pytest.raises(ConfigError, match=f"^privacy.{said}" if known else said):
        check(choice, "privacy.")


def test_a_server_cannot_make_a_client_import_anything() -> None:
    for trust, unit in (("local", "this:d"), ("this:d", "client"), ("local", "row")):
        assert not allows(Choice("gaussian", trust, unit, deployed=True))
    assert "this" not in sys.modules


def test_the_least_noise() -> None:
    assert best_mechanism("local", "client") == "privunit"
    for trust, unit in (("local", "row"), ("secagg", "client"), ("nobody", "nothing")):
        assert best_mechanism(trust, unit) == "gaussian"
