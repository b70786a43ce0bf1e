"""How charges add up: one additive currency for each rule.

A rule turns a budget into a *capacity*, a *charge* into a noise multiplier, and what was spent
back into an epsilon. Everything above this layer speaks of charges only.

==================  ================================  ==============================  ==========
rule                charge of a release               capacity of (epsilon, delta)    adaptive
==================  ================================  ==============================  ==========
gaussian/gdp        1 / multiplier^2                  mu^2 of the exact curve         yes
gaussian/rdp        1 / (2 multiplier^2)              largest rho over the orders     yes
laplace/basic       1 / multiplier                    epsilon                         yes
laplace/filter      1 / multiplier^2                  s: sqrt(2 ln(1/d) s)+s/2 = e    yes
laplace/either      1 / multiplier; two sums          epsilon, or s for the squares   yes
laplace/zcdp        1 / multiplier; two sums          epsilon, or 2 rho for squares   yes
privunit/either     epsilon of the cap; two sums      epsilon, or s for the squares   yes
privunit/zcdp       epsilon of the cap; two sums      epsilon, or 2 rho for squares   yes
==================  ================================  ==============================  ==========

The multiplier is the noise's scale (standard deviation for Gaussian, scale for Laplace) over the
replace-one sensitivity 2 * clip, in L2 for Gaussian and L1 for Laplace. PrivUnit adds no noise to
an upload but turns it; there the multiplier is what each coordinate of the release deviates by,
over 2 * clip. Sub-sampling of clients claims no amplification.

The rules ``either`` and ``zcdp`` hold for any releases of pure epsilons, chosen one after another.
Their sum bounds the loss surely. Their squares bound it up to delta: under ``either`` by theorem 2
of Whitehouse et al. (2023), under ``zcdp`` by concentrated differential privacy and its exact
conversion, which allows for more (``docs/proofs/zcdp.md``). ``either`` stays for ledgers that were
made with it.

Charges are counted in whole *ticks*: a charge is rounded up to ticks and a capacity down, and
integers add without error, in any order. So no sum of charges is ever too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy import conversions
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.mechanisms import MECHANISMS, mechanism_named
from bgtplanner.registry import Registry

__all__ = [
    "CEILING",
    "RULES",
    "TICK",
    "Rule",
    "default_rule",
    "from_ticks",
    "rule_named",
    "to_ticks",
]

Floats = NDArray[np.float64]
Ticks = NDArray[np.int64]

TICK = 2.0**-44
"""The smallest charge, about 6e-14; a power of two, so that ticks and floats convert exactly."""

CEILING = 2**61
"""Sums stop here instead of overflowing: so many ticks or more. Every capacity is below."""

_MOST = CEILING * TICK  # the largest charge, or power of a charge
_HIGHEST_LIMIT = CEILING - 2**8  # the next double below


def to_ticks(charge: ArrayLike) -> Ticks:
    """Charges in whole ticks, rounded up.

    Raises:
        ConfigError: If a charge is zero, negative, NaN, infinite, below a tick or absurdly large.

    Example:
        >>> int(to_ticks(0.5)) * TICK
        0.5
    """
    array = np.asarray(charge, dtype=np.float64)
    good = np.isfinite(array) & (array >= TICK) & (array <= _MOST)
    if not good.all():
        bad = float(array[~good].flat[0])
        raise ConfigError(f"charge = {bad!r}: expected a number from {TICK:.2g} to {_MOST:,.0f}")
    return np.asarray(np.ceil(array / TICK), dtype=np.int64)


def from_ticks(ticks: ArrayLike) -> Floats:
    """Ticks as charges: exactly up to 2^53 of them (a charge of 512), then to 16 digits."""
    return np.asarray(np.asarray(ticks, dtype=np.int64) * np.float64(TICK), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One way of adding up charges.

    Attributes:
        name: ``mechanism/rule``.
        mechanism: Whose noise it is for.
        sound: Whether staying within the capacity gives (epsilon, delta) for adaptively chosen
            charges, replace-one, one clip over the whole upload.
        powers: A charge x adds x^p to the sum kept for each power p.
        limits: The capacity of each sum, from (epsilon, delta).
        readings: Epsilon that each sum amounts to at delta.
        multiplier_of: Noise multiplier that makes a release cost a charge.
        charge_of: Charge of a release with a noise multiplier.

    A charge fits while at least one of the sums stays within its limit.

    Example:
        >>> rule = rule_named("gaussian/gdp")
        >>> round(float(rule.noise_multiplier(rule.even_charge(Budget(10, 1e-5), 100))), 5)
        4.99889
    """

    name: str
    mechanism: str
    sound: bool
    powers: tuple[int, ...]
    limits: tuple[Callable[[float, float], ArrayLike], ...]
    readings: tuple[Callable[[Floats, float], Floats], ...]
    multiplier_of: Callable[[Floats], Floats]
    charge_of: Callable[[Floats], Floats]

    @property
    def counts_epsilons(self) -> bool:
        """Whether a charge is a release's own epsilon."""
        return self.limits[0] is _itself

    def limit_ticks(self, budget: Budget) -> Ticks:
        """Capacity of each sum in ticks, rounded down; shape ``[sums]``.

        Raises:
            ConfigError: If the budget has no delta and the rule needs one.
        """
        if not MECHANISMS[self.mechanism].pure and self.sound and budget.delta <= 0:
            raise ConfigError(f"delta = 0: expected a positive one, which {self.name} needs")
        return np.array(_limits(self.limits, budget), dtype=np.int64)

    def sum_ticks(self, charge: ArrayLike) -> Ticks:
        """What a charge adds to each sum, rounded up; shape ``[sums, ...]``."""
        ticks = to_ticks(charge)
        exact = from_ticks(ticks)
        parts = [
            ticks if power == 1 else np.ceil(np.minimum(exact**power, _MOST) / TICK)
            for power in self.powers
        ]
        return np.stack([np.asarray(part, dtype=np.int64) for part in parts])

    def fits(self, spent: Ticks, adds: Ticks, limits: Ticks) -> NDArray[np.bool_]:
        """Whether the sums, with this added, stay within at least one limit.

        Args:
            spent: Sums so far, ``[sums, clients]``.
            adds: What the charge adds, ``[sums, clients]``.
            limits: Capacity of each sum, ``[sums, clients]``.
        """
        return np.asarray((spent + adds <= limits).any(axis=0))

    def capacity(self, budget: Budget) -> float:
        """Largest charge that a budget can pay at all, in one round."""
        return float(self.largest_fitting(np.zeros(len(self.powers)), self.limit_ticks(budget)))

    def largest_fitting(self, spent: ArrayLike, limits: ArrayLike) -> Floats:
        """Largest charge that still fits, 0 where none does; sums and limits in ticks."""
        left = np.maximum(np.asarray(limits, np.int64) - np.asarray(spent, np.int64), 0)
        every = zip(left, self.powers, strict=True)
        best = np.maximum.reduce(
            [row if power == 1 else _root_ticks(row, power) for row, power in every]
        )
        charge = from_ticks(best)
        # Past 2^53 ticks it may be rounded up; compared as a float, `best` would be as well.
        too_large = (charge / TICK).astype(np.int64) > best
        return np.where(too_large, np.nextafter(charge, 0), charge)

    def even_charge(self, budget: Budget, rounds: int) -> float:
        """Largest charge of which `rounds` equal ones fit a budget.

        Raises:
            ConfigError: If the budget is too small for so many rounds.
        """
        whole = isinstance(rounds, int | np.integer) and rounds >= 1
        ConfigError.unless(bool(whole), "rounds", rounds, "a whole number, at least 1")
        share = np.array([int(limit) // int(rounds) for limit in self.limit_ticks(budget)])
        charge = float(self.largest_fitting(np.zeros_like(share), share))
        ConfigError.unless(charge > 0, "rounds", rounds, f"fewer, for {budget}")
        return charge

    def noise_multiplier(self, charge: ArrayLike) -> Floats:
        """Smallest multiplier whose release costs no more than the charge (rounded up)."""
        exact = from_ticks(to_ticks(charge))
        return np.asarray(np.nextafter(self.multiplier_of(exact) * (1 + 1e-15), np.inf))

    def charge(self, noise_multiplier: ArrayLike) -> Floats:
        """Charge of a release with this noise multiplier, in whole ticks, rounded up.

        Raises:
            ConfigError: If the multiplier is not a positive number.
        """
        array = np.asarray(noise_multiplier, dtype=np.float64)
        if not (np.isfinite(array) & (array > 0)).all():
            bad = float(array[~(np.isfinite(array) & (array > 0))].flat[0])
            raise ConfigError(f"noise_multiplier = {bad!r}: expected a positive number")
        with np.errstate(over="ignore", divide="ignore"):  # infinite is too large a charge
            return from_ticks(to_ticks(self.charge_of(array)))

    def epsilon(self, spent: ArrayLike, delta: float) -> Floats:
        """Epsilon that was spent, at delta: a reading, while the promise is the budget.

        Args:
            spent: Sums in ticks, ``[sums, ...]``.
            delta: Of the reading.
        """
        sums = from_ticks(spent)
        return self._reading(np.where(sums < _MOST, sums, np.inf), delta)

    def epsilon_of_rounds(self, charge: float, rounds: int, delta: float) -> float:
        """Epsilon, at delta, of so many rounds of one charge, however much that is."""
        adds = self.sum_ticks(charge)
        powers = np.array([float(charge) ** power for power in self.powers])
        sums = np.where(adds < CEILING, from_ticks(adds), powers)
        return float(self._reading(sums * float(rounds), delta))

    def _reading(self, sums: Floats, delta: float) -> Floats:
        every = [reading(row, delta) for reading, row in zip(self.readings, sums, strict=True)]
        return np.asarray(np.minimum.reduce(every))


@lru_cache(maxsize=4096)
def _limits(limits: tuple[Callable[[float, float], ArrayLike], ...], budget: Budget) -> list[int]:
    """Each found once: the exact ones take milliseconds."""
    exact = [float(np.asarray(limit(budget.epsilon, budget.delta))) for limit in limits]
    return [min(math.floor(limit / TICK), _HIGHEST_LIMIT) for limit in exact]


def _root_ticks(ticks: Ticks, power: int) -> Ticks:
    """Ticks of the largest charge whose power fits into so many ticks."""
    root = np.floor((from_ticks(ticks) ** (1 / power)) / TICK).astype(np.int64)
    for _ in range(2):  # the float root may be a tick or two too large
        over = np.ceil(from_ticks(root) ** power / TICK).astype(np.int64) > ticks
        root = np.where(over, root - 1, root)
    return np.asarray(np.maximum(root, 0), dtype=np.int64)


def _inverse(value: Floats) -> Floats:
    return np.asarray(1 / value)


def _inverse_root(value: Floats) -> Floats:
    return np.asarray(1 / np.sqrt(value))


def _inverse_square(value: Floats) -> Floats:
    return np.asarray(1 / np.square(value))


def _itself(epsilon: float, _: float) -> float:
    return epsilon


def _sum_itself(spent: Floats, _: float) -> Floats:
    return spent


def _of_epsilons(mechanism: str, squares: Literal["either", "zcdp"]) -> Rule:
    """A rule for releases of pure epsilons: by their sum, or by their squares."""
    capacity, epsilon = {
        "either": (conversions.filter_capacity, conversions.filter_epsilon),
        "zcdp": (conversions.squares_capacity, conversions.squares_epsilon),
    }[squares]
    return Rule(
        name=f"{mechanism}/{squares}",
        mechanism=mechanism,
        sound=True,
        powers=(1, 2),
        limits=(_itself, capacity),
        readings=(_sum_itself, epsilon),
        multiplier_of=lambda epsilon: MECHANISMS[mechanism].multiplier_of(epsilon),
        charge_of=lambda multiplier: MECHANISMS[mechanism].epsilon_of(multiplier),
    )


_RULES = {
    rule.name: rule
    for rule in (
        Rule(
            name="gaussian/gdp",
            mechanism="gaussian",
            sound=True,
            powers=(1,),
            limits=(conversions.gdp_capacity,),
            readings=(conversions.gdp_epsilon,),
            multiplier_of=_inverse_root,
            charge_of=_inverse_square,
        ),
        Rule(
            name="gaussian/rdp",
            mechanism="gaussian",
            sound=True,
            powers=(1,),
            limits=(conversions.renyi_capacity,),
            readings=(conversions.renyi_epsilon,),
            multiplier_of=lambda charge: _inverse_root(2 * charge),
            charge_of=lambda multiplier: _inverse_square(multiplier) / 2,
        ),
        Rule(
            name="laplace/basic",
            mechanism="laplace",
            sound=True,
            powers=(1,),
            limits=(_itself,),
            readings=(_sum_itself,),
            multiplier_of=_inverse,
            charge_of=_inverse,
        ),
        Rule(
            name="laplace/filter",
            mechanism="laplace",
            sound=True,
            powers=(1,),
            limits=(conversions.filter_capacity,),
            readings=(conversions.filter_epsilon,),
            multiplier_of=_inverse_root,
            charge_of=_inverse_square,
        ),
        _of_epsilons("laplace", "either"),
        _of_epsilons("laplace", "zcdp"),
        _of_epsilons("privunit", "either"),
        _of_epsilons("privunit", "zcdp"),
    )
}
RULES: Registry[Rule] = Registry("accounting", _RULES, expected="a Rule")
"""All rules by name."""


def rule_named(name: str) -> Rule:
    """A rule by its name.

    Raises:
        ConfigError: If there is none; lists them all.
    """
    if name not in RULES:
        raise ConfigError(f"accounting = {name!r}: expected one of {', '.join(RULES)}")
    return RULES[name]


def default_rule(mechanism: str) -> Rule:
    """The rule to use for a mechanism unless another is asked for."""
    return RULES[mechanism_named(mechanism).accountant]
