"""Which mechanisms, trusts and units go together: one table, checked here.

Everything that protects uploads calls :func:`check`: the config, the simulator, the guard, a
deployment and a real client. What is refused depends on names alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.mechanisms import MECHANISMS, SENSITIVITY, Neighbours, mechanism_named
from bgtplanner.registry import Registry

_SHARED = (
    "gaussian, with trust = secagg: every client adds a share of the noise, so that no one holds "
    "all of it, and only Gaussian noise is drawn in shares"
)

_LOCAL = (
    "replace-one, with trust = local: the server sees each upload with its sender, so that what "
    "has to be hidden is what it says, and not only whether there is one"
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one clip, and with it one guarantee, covers."""

    name: str
    release: str = ""  # the address of a function that protects uploads in a way of its own
    sound: bool = True  # it is the whole client: the guarantee covers all that it sends
    own_clips: bool = False  # clients may have clips of their own


UNITS: Registry[Unit] = Registry(
    "unit",
    {"client": Unit(name="client")},
    expected="a Unit",
    fits=lambda thing: isinstance(thing, Unit),
)
"""The units by name."""


class Choice(NamedTuple):
    """What is to be used together."""

    mechanism: str
    trust: str = "local"  # each upload carries its noise; secagg: the sum does, once
    unit: str = "client"  # what one clip covers
    deployed: bool = False  # for real clients, and a server that sees what they send
    neighbours: str = "replace-one"


def check(choice: Choice, prefix: str = "") -> None:
    """Refuse a combination that is not allowed, and name the first setting at fault."""
    for name, fits, expected in _table(choice):
        ConfigError.unless(fits, f"{prefix}{name}", getattr(choice, name), expected)


def allows(choice: Choice) -> bool:
    """Return whether a combination is allowed."""
    return all(fits for _, fits, _ in _table(choice))


def neighbours_of(trust: str, wanted: str | None = None, name: str = "neighbours") -> Neighbours:
    """Return the neighbouring relation to use under a trust, if it is the wanted one.

    With None or ``auto`` it is ``replace-special`` under ``secagg`` and ``replace-one`` under
    ``local``. `name` is that of the setting, for the error.
    """
    if wanted in (None, "auto"):
        return "replace-special" if trust == "secagg" else "replace-one"
    for fits, expected in _neighbours_fit(str(wanted), trust):
        ConfigError.unless(fits, name, wanted, expected)
    return cast(Neighbours, wanted)


def best_mechanism(trust: str, unit: str) -> str:
    """Return the mechanism with the least noise among those that this trust and unit allow."""
    return "privunit" if allows(Choice("privunit", trust, unit)) else "gaussian"


def _neighbours_fit(neighbours: str, trust: str) -> Iterator[tuple[bool, str]]:
    """Yield whether a relation exists and goes with the trust, and what would."""
    yield neighbours in SENSITIVITY, " or ".join(SENSITIVITY)
    yield neighbours == "replace-one" or trust == "secagg", _LOCAL


def _table(choice: Choice) -> Iterator[tuple[str, bool, str]]:
    """Yield a setting, whether it fits the others, and what would; later rows rely on earlier."""
    local, summed = choice.trust == "local", choice.trust == "secagg"
    if choice.deployed:
        protects = choice.mechanism != "none"
        yield "mechanism", protects, "one that protects: real clients release nothing unprotected"
        divides = choice.mechanism in MECHANISMS and MECHANISMS[choice.mechanism].has_shares
        yield "mechanism", divides or not summed, _SHARED
        yield "unit", choice.unit == "client", "client"
    yield "trust", local or summed, "local or secagg"
    for fits, expected in _neighbours_fit(choice.neighbours, choice.trust):
        yield "neighbours", fits, expected
    yield "unit", choice.unit in UNITS, " or ".join(UNITS)
    yield "unit", UNITS[choice.unit].sound or local, "client, with trust = secagg"
    mechanism = mechanism_named(choice.mechanism)
    units = mechanism.units or (choice.unit,)
    where = f"trust = {' or '.join(mechanism.trusts)} and unit = {' or '.join(units)}"
    fits = choice.trust in mechanism.trusts and choice.unit in units
    yield "mechanism", fits, f"gaussian or laplace, unless {where}"
