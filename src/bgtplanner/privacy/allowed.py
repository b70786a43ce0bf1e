"""Which mechanisms, trusts, units and kinds of noise go together: one table, checked here.

Whoever protects uploads asks :func:`check`: the config, the simulator, the guard, a deployment and
a real client. What is refused depends on names alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.mechanisms import MECHANISMS, mechanism_named
from bgtplanner.registry import Registry

__all__ = ["UNITS", "Choice", "Unit", "allows", "best_mechanism", "check"]

_SECAGG = (
    "local. Secure aggregation would take pairwise masks that survive clients dropping out; "
    "Flower's SecAgg+ is tied to its old workflow, so nothing here would hide single uploads"
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one clip is for, and so one guarantee.

    Attributes:
        name: Under which it is registered.
        release: Address of what a simulation does with uploads; see
            :func:`bgtplanner.federation.protection.release_whole`.
        sound: Whether it is the whole client, so that the guarantee is for everything it sends.
        axes: Of one client's upload: 1, or 2 where it has blocks, each with the full charge.
        own_clips: Whether clients may have clips of their own.
    """

    name: str
    release: str
    sound: bool = True
    axes: int = 1
    own_clips: bool = False


UNITS: Registry[Unit] = Registry(
    "unit",
    {"client": Unit(name="client", release="bgtplanner.federation.protection:release_whole")},
    expected="a Unit",
    fits=lambda thing: isinstance(thing, Unit),
)
"""The units by name."""


class Choice(NamedTuple):
    """What is to be used together.

    Attributes:
        mechanism: What makes uploads private.
        trust: ``local``: each upload is noised on its own. ``secagg``: the server sees the sum
            only, and the noise is in there once.
        unit: What one clip is for.
        noise: In a simulation, ``sum`` or ``per-client``; None: this is none.
        validation: Share of the charge that pays for a second release.
        deployed: Whether it is for real clients and a server that sees what they send.
    """

    mechanism: str
    trust: str = "local"
    unit: str = "client"
    noise: str | None = None
    validation: float = 0.0
    deployed: bool = False


def check(choice: Choice, prefix: str = "") -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: Naming the first at fault, after the prefix, its value, and what is possible.
    """
    for name, fits, expected in _table(choice):
        ConfigError.unless(fits, f"{prefix}{name}", getattr(choice, name), expected)


def allows(choice: Choice) -> bool:
    """Whether all of it goes together; names may be anybody's, and nothing is imported by them."""
    return all(fits for _, fits, _ in _table(choice))


def best_mechanism(trust: str, unit: str, *, validates: bool) -> str:
    """The mechanism that leaves the least noise, out of those that can be used so."""
    alone = allows(Choice("privunit", trust, unit, validation=0.5 * validates))
    return "privunit" if alone else "gaussian"


def _table(choice: Choice) -> Iterator[tuple[str, bool, str]]:
    """Name, whether it fits the others, and what would; rows below may take those above as met."""
    local, summed = choice.trust == "local", choice.trust == "secagg"
    if choice.deployed:
        protects = choice.mechanism != "none"
        yield "mechanism", protects, "one that protects: real clients release nothing as it is"
        yield "trust", local, _SECAGG
        yield "unit", choice.unit == "client", "client"
    yield "trust", local or summed, "local or secagg"
    yield "unit", choice.unit in UNITS, " or ".join(UNITS)
    mechanism, unit = mechanism_named(choice.mechanism), UNITS[choice.unit]
    validates = choice.validation > 0
    yield "validation", 0 <= choice.validation < 1, "from 0 to below 1"
    yield "validation", unit.sound or not validates, f"0, with unit = {unit.name}"
    every = " or ".join(name for name, of in MECHANISMS.items() if of.validates)
    units = mechanism.units or (choice.unit,)
    where = f"trust = {' or '.join(mechanism.trusts)} and unit = {' or '.join(units)}"
    fits = choice.trust in mechanism.trusts and choice.unit in units
    yield "mechanism", fits, f"{every}, unless {where}"
    fits = mechanism.validates or not validates
    yield "mechanism", fits, f"{every}, unless nothing is validated"
    if choice.noise is not None:
        yield "unit", unit.sound or local, "client, with trust = secagg"
        alone = choice.noise == "sum" or (local and unit.sound)
        yield "noise", alone, "sum, unless trust = local, unit = client"
