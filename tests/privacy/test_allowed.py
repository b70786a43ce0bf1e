"""One table of what goes together, for whoever asks."""

from __future__ import annotations

import re
import sys

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.allowed import UNITS, Choice, allows, best_mechanism, check

ANYWHERE = ("gaussian", "laplace")
PROTECTS = "expected one that protects: real clients release nothing unprotected"
NO_ROWS = "validation = 0.1: expected 0, with unit = row"


def test_the_units_are_these() -> None:
    assert list(UNITS) == ["client", "row"]  # the second is the paper's
    assert [UNITS[name].name for name in UNITS] == ["client", "row"]
    assert [unit.sound for unit in UNITS.values()] == [True, False]
    assert [unit.axes for unit in UNITS.values()] == [1, 2]


@pytest.mark.parametrize(
    "choice",
    [
        *(
            Choice(name, trust)
            for name in ("gaussian", "laplace")
            for trust in ("local", "secagg")
        ),
        *(Choice(name, "local", "row", "sum") for name in ANYWHERE),
        Choice("gaussian", "secagg", "row"),  # sums of blocks, as the guard makes them
        Choice("laplace", "secagg", "client", "sum", 0.9),
        Choice("gaussian", "local", "client", "per-client", 0.1),
        Choice("privunit", "local", "client", "per-client"),
        Choice("privunit", "local", deployed=True),
        Choice("laplace", "local", deployed=True),
    ],
)
def test_what_goes_together(choice: Choice) -> None:
    check(choice)
    assert allows(choice)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("gaussian", "none"), "trust = 'none': expected local or secagg"),
        (Choice("gaussian", "local", "rating"), "unit = 'rating': expected client or row"),
        (Choice("none"), "mechanism = 'none': expected one of gaussian, laplace, privunit"),
        (Choice("laplace", validation=1.0), "validation = 1.0: expected from 0 to below 1"),
        (Choice("laplace", validation=-0.1), "validation = -0.1: expected from 0 to below 1"),
        (Choice("laplace", unit="row", validation=0.1), NO_ROWS),
        *(
            (
                Choice("privunit", *where),
                "mechanism = 'privunit': expected gaussian or laplace, unless trust = local and "
                "unit = client",
            )
            for where in (("secagg",), ("local", "row"), ("secagg", "row"))
        ),
        (
            Choice("privunit", validation=0.1),
            "mechanism = 'privunit': expected gaussian or laplace, unless nothing is validated",
        ),
        (
            Choice("gaussian", "secagg", "row", "sum"),
            "unit = 'row': expected client, with trust = secagg",
        ),
        *(
            (
                Choice("gaussian", *where, "per-client"),
                "noise = 'per-client': expected sum, unless trust = local, unit = client",
            )
            for where in (("secagg", "client"), ("local", "row"))
        ),
        (
            Choice("none", deployed=True),
            f"mechanism = 'none': {PROTECTS}",
        ),
        (Choice("gaussian", unit="row", deployed=True), "unit = 'row': expected client"),
        *(
            (
                Choice(mechanism, "secagg", deployed=True),
                f"mechanism = {mechanism!r}: expected gaussian, with trust = secagg: every client "
                "adds a share of the noise, so that no one holds all of it, and only Gaussian "
                "noise is drawn in shares",
            )
            for mechanism in ("laplace", "privunit")
        ),
    ],
)  # fmt: skip
def test_what_does_not(choice: Choice, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check(choice)
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(choice, "privacy.")


def test_a_server_cannot_make_a_client_import_anything() -> None:
    for trust, unit in (("local", "this:d"), ("this:d", "client"), ("local", "row")):
        assert not allows(Choice("gaussian", trust, unit, deployed=True))
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("trust", "unit", "validates", "best"),
    [
        ("local", "client", False, "privunit"),
        ("local", "client", True, "gaussian"),
        ("local", "row", False, "gaussian"),
        ("secagg", "client", False, "gaussian"),
        ("nobody", "nothing", False, "gaussian"),
    ],
)
def test_the_least_noise(trust: str, unit: str, validates: bool, best: str) -> None:
    assert best_mechanism(trust, unit, validates=validates) == best
