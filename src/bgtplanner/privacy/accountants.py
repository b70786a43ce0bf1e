"""How charges add up, and how a total reads as an epsilon: one class per accountant.

An accountant turns a budget into a *capacity*, a *charge* into a noise multiplier, and what was
spent back into an epsilon. Everything above this layer deals in charges only.

==================  ================================  ==============================  ==========
accountant          charge of a release               capacity of (epsilon, delta)    adaptive
==================  ================================  ==============================  ==========
gaussian/gdp        1 / multiplier^2                  mu^2 of the exact curve         yes
gaussian/rdp        1 / (2 multiplier^2)              largest rho over the orders     yes
laplace/basic       1 / multiplier                    epsilon                         yes
laplace/filter      1 / multiplier^2                  s: sqrt(2 ln(1/d) s)+s/2 = e    yes
laplace/either      1 / multiplier; two sums          epsilon, or s for the squares   yes
laplace/zcdp        1 / multiplier; two sums          epsilon, or 2 rho for squares   yes
privunit/either     epsilon of the cap; two sums      epsilon, or s for the squares   yes
privunit/zcdp       epsilon of the cap; two sums      epsilon, or 2 rho for squares   yes
gaussian/authors    1 / multiplier^2                  epsilon, unconverted            no promise
==================  ================================  ==============================  ==========

The multiplier is the noise's scale (standard deviation for Gaussian, scale for Laplace) over the
sensitivity, so that a charge means the same under both neighbouring relations. PrivUnit is for
``replace-one`` alone; its multiplier is the standard deviation of each coordinate of the release,
over 2 * clip. No amplification by sub-sampling of clients is claimed.

``either`` and ``zcdp`` hold for any releases of pure epsilons, chosen one after another. The sum
of the epsilons bounds the loss with certainty, and that of their squares up to delta: by theorem 2
of Whitehouse et al. (2023) under ``either``, by concentrated differential privacy and its exact
conversion under ``zcdp`` (``docs/proofs/zcdp.md``). Accountants that are no longer a mechanism's
default are kept for the ledgers that were created with them. They are looked up by name alone: a
ledger's file can never name code to be imported.

Charges are counted in whole *ticks*: a charge is rounded up to ticks and a capacity down, and
integers add without error, in any order. So no sum of charges is ever too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from bgtplanner.errors import ConfigError
from bgtplanner.privacy import conversions
from bgtplanner.privacy.budget import Budget, positive
from bgtplanner.privacy.compatibility import neighbours_of
from bgtplanner.privacy.mechanisms import (
    MECHANISMS,
    SENSITIVITY,
    Additive,
    Neighbours,
    mechanism_named,
)
from bgtplanner.registry import Registry

Floats = NDArray[np.float64]
Ticks = NDArray[np.int64]
Sum = tuple[Callable[[float, float], ArrayLike], Callable[[Floats, float], Floats]]

TICK = 2.0**-44
"""The smallest charge, about 6e-14; a power of two, so that ticks and floats convert exactly."""

CEILING = 2**61
"""The ticks at which sums stop instead of overflowing; a capacity is at most the double below."""

_MOST = CEILING * TICK  # the largest charge, or power of a charge
_MULTIPLIERS: Floats = np.exp2(np.arange(-8.0, 9.0))  # at which charges are compared


def to_ticks(charge: ArrayLike) -> Ticks:
    """Return charges in whole ticks, rounded up; one below a tick or absurdly large is refused."""
    array = np.asarray(charge, dtype=np.float64)
    for bad in array[~((array >= TICK) & (array <= _MOST))].flat:  # NaN is neither
        expected = f"a number from {TICK:.2g} to {_MOST:,.0f}"
        raise ConfigError(f"charge = {float(bad)!r}: expected {expected}")
    return np.asarray(np.ceil(array / TICK), dtype=np.int64)


def from_ticks(ticks: ArrayLike) -> Floats:
    """Return ticks as charges: exact up to 2^53 ticks, then to 16 digits."""
    return np.asarray(np.asarray(ticks, dtype=np.int64) * TICK, dtype=np.float64)


def _itself(value: Any, _: float) -> Any:
    return value


PURE: Sum = (_itself, _itself)
"""The sum of pure epsilons, which bounds the loss with certainty."""

_FILTER: Sum = (conversions.filter_capacity, conversions.filter_epsilon)
_SQUARES: Sum = (conversions.squares_capacity, conversions.squares_epsilon)


class Accountant:
    """One way of adding up charges; a subclass names its sums and what a charge is.

    A charge fits if at least one of the sums stays within its capacity.

    The sums are of the charges, and perhaps of their squares: each has its capacity for (epsilon,
    delta), and the epsilon that it amounts to at delta. If the accountant is sound, staying within
    the capacity gives (epsilon, delta) for adaptively chosen charges, with one clip over the whole
    upload.

    Example:
        >>> accountant = accountant_named("gaussian/gdp")
        >>> even = accountant.even_charge(Budget(10, 1e-5), 100)
        >>> round(float(accountant.noise_multiplier(even)), 5)
        4.99889
    """

    name: str  # mechanism/rule
    mechanism: str
    sound: bool = True
    sums: tuple[Sum, ...]
    divisor: float = 1.0  # of the charges that are no epsilons

    @property
    def powers(self) -> tuple[int, ...]:
        """The powers p: a charge x adds x^p to the sum that is kept for p."""
        return (1, 2)[: len(self.sums)]

    @property
    def counts_epsilons(self) -> bool:
        """Whether a charge is the pure epsilon of its release."""
        return self.sums[0] is PURE

    def multiplier_of(self, charge: Floats) -> Floats:
        """Return the noise multiplier at which a release costs this charge."""
        mechanism = MECHANISMS[self.mechanism]
        if self.counts_epsilons and mechanism.pure:
            return mechanism.multiplier_of(charge)
        return np.asarray(1 / np.sqrt(self.divisor * charge))

    def charge_of(self, multiplier: Floats) -> Floats:
        """Return the charge of a release with this noise multiplier."""
        mechanism = MECHANISMS[self.mechanism]
        if self.counts_epsilons and mechanism.pure:
            return mechanism.epsilon_of(multiplier)
        return np.asarray(1 / np.square(multiplier) / self.divisor)

    def noise_multiplier(self, charge: ArrayLike) -> Floats:
        """Return the smallest multiplier whose release costs at most the charge (rounded up)."""
        exact = from_ticks(to_ticks(charge))
        return np.asarray(np.nextafter(self.multiplier_of(exact) * (1 + 1e-15), np.inf))

    def charge(self, noise_multiplier: ArrayLike) -> Floats:
        """Return the charge of a release with this multiplier, in whole ticks, rounded up."""
        array = np.asarray(noise_multiplier, dtype=np.float64)
        for bad in array[~(np.isfinite(array) & (array > 0))].flat:
            raise ConfigError(f"noise_multiplier = {float(bad)!r}: expected a positive number")
        with np.errstate(over="ignore", divide="ignore"):  # infinite is too large a charge
            return from_ticks(to_ticks(self.charge_of(array)))

    def limit_ticks(self, budget: Budget) -> Ticks:
        """Return the capacity of each sum in ticks, rounded down; shape ``[sums]``."""
        if not MECHANISMS[self.mechanism].pure and self.sound and budget.delta <= 0:
            raise ConfigError(f"delta = 0: expected a positive one, which {self.name} needs")
        return np.array(_limits(self.sums, budget), dtype=np.int64)

    def sum_ticks(self, charge: ArrayLike) -> Ticks:
        """Return what a charge adds to each sum, rounded up; shape ``[sums, ...]``."""
        return self.sums_of(to_ticks(charge))

    def sums_of(self, ticks: Ticks) -> Ticks:
        """Return the same for a charge in whole ticks."""
        exact = from_ticks(ticks)
        squares = np.ceil(np.minimum(exact**2, _MOST) / TICK).astype(np.int64)
        return np.stack([ticks, squares][: len(self.sums)])

    def fits(self, spent: Ticks, adds: Ticks, limits: Ticks) -> NDArray[np.bool_]:
        """Return, per client, whether a sum stays within its limit after this addition."""
        return np.asarray((spent + adds <= limits).any(axis=0))

    def largest_fitting(self, spent: ArrayLike, limits: ArrayLike) -> Floats:
        """Return the largest charge that still fits, or 0; sums and limits are in ticks."""
        left = np.maximum(np.asarray(limits, np.int64) - np.asarray(spent, np.int64), 0)
        best = np.maximum.reduce([left[0], *map(_root_ticks, left[1:])])
        charge = from_ticks(best)
        # Above 2^53 ticks this may be rounded up; as a float, `best` would be rounded as well.
        too_large = (charge / TICK).astype(np.int64) > best
        return np.where(too_large, np.nextafter(charge, 0), charge)

    def capacity(self, budget: Budget) -> float:
        """Return the largest charge that a budget can pay in one round."""
        return float(self.largest_fitting(np.zeros(len(self.powers)), self.limit_ticks(budget)))

    def even_charge(self, budget: Budget, rounds: int) -> float:
        """Return the largest charge that a budget can pay `rounds` times."""
        positive("rounds", rounds)
        share = np.array([int(limit) // int(rounds) for limit in self.limit_ticks(budget)])
        charge = float(self.largest_fitting(np.zeros_like(share), share))
        ConfigError.unless(charge > 0, "rounds", rounds, f"fewer, for {budget}")
        return charge

    def epsilon(
        self, spent: ArrayLike, delta: float, *, other_than: Neighbours | None = None
    ) -> Floats:
        """Return the epsilon of sums in ticks at delta: a reading; the promise is the budget.

        With `other_than`, it is read under the other relation than the one that was charged for.
        From ``replace-special`` to ``replace-one`` the sensitivity doubles, and so do the mu of
        Gaussian noise and the epsilon of Laplace noise. A mechanism that does not scale like this
        is for ``replace-one``, and against nothing no worse than against any other upload. It is
        NaN if it is not known: by an accountant that promises nothing, or one whose charges do
        not grow by the same factor at every noise multiplier.

        Example:
            >>> basic = accountant_named("laplace/basic")
            >>> float(basic.epsilon(to_ticks([1.5]), 1e-5, other_than="replace-special"))
            3.0
        """
        return self._reading(_known_sums(spent), delta, other_than)

    def epsilon_of_rounds(
        self, charge: float, rounds: int, delta: float, *, other_than: Neighbours | None = None
    ) -> float:
        """Return the epsilon, at delta, of `rounds` rounds of one charge, however large."""
        sums = _known_sums(self.sum_ticks(charge)) * float(rounds)
        return float(self._reading(sums, delta, other_than))

    def other_promise(self, budget: Budget, neighbours: Neighbours) -> float | None:
        """Return the epsilon, under the other relation, of all that a budget can ever pay for.

        What a ledger admits has a sum within its limit, so that the other reading is at most the
        largest of those of the limits. It is None where that reading is not known.

        Example:
            >>> gdp = accountant_named("gaussian/gdp")
            >>> round(gdp.other_promise(Budget(10, 1e-5), "replace-special"), 2)
            24.39
        """
        limits = self.limit_ticks(budget)
        # A sum that is not the one within its limit may be anything, and bounds nothing.
        alone = np.full((len(limits), len(limits)), CEILING)
        np.fill_diagonal(alone, limits)
        return known(float(self.epsilon(alone, budget.delta, other_than=neighbours).max()))

    def _reading(self, sums: Floats, delta: float, other_than: Neighbours | None) -> Floats:
        if other_than is not None:
            growth, special = self._growth, other_than == "replace-special"
            if not self.sound or (growth is None and special):
                return np.full(sums.shape[1:], np.nan)
            factor = 1.0 if growth is None else growth if special else 1 / growth
            sums = np.stack([factor**p * row for p, row in zip(self.powers, sums, strict=True)])
        every = [read(row, delta) for (_, read), row in zip(self.sums, sums, strict=True)]
        return np.asarray(np.minimum.reduce(every))

    @property
    def _growth(self) -> float | None:
        """By which factor a charge grows if the sensitivity doubles; None if it depends."""
        if not isinstance(MECHANISMS[self.mechanism], Additive):
            return None
        growth = self.charge_of(_MULTIPLIERS / 2) / self.charge_of(_MULTIPLIERS)
        return float(growth[0]) if (growth == growth[0]).all() else None


def _known_sums(ticks: ArrayLike) -> Floats:
    """Return sums as charges; one at the ceiling may be anything, so it is infinite."""
    sums = from_ticks(ticks)
    return np.where(sums < _MOST, sums, np.inf)


@lru_cache(maxsize=4096)
def _limits(sums: tuple[Sum, ...], budget: Budget) -> list[int]:
    """Return the limits in ticks, each computed once: the exact ones take milliseconds."""
    exact = [float(np.asarray(limit(budget.epsilon, budget.delta))) for limit, _ in sums]
    return [min(math.floor(limit / TICK), CEILING - 2**8) for limit in exact]


def _root_ticks(ticks: Ticks) -> Ticks:
    """Return the ticks of the largest charge whose square fits into the given ticks."""
    root = np.floor(from_ticks(ticks) ** 0.5 / TICK).astype(np.int64)
    for _ in range(2):  # the float root may be a tick or two too large
        over = np.ceil(from_ticks(root) ** 2 / TICK).astype(np.int64) > ticks
        root = np.where(over, root - 1, root)
    return np.asarray(np.maximum(root, 0), dtype=np.int64)


class _Rule(Accountant):
    """An accountant that is all said by its name and its sums."""

    def __init__(self, name: str, *sums: Sum, divisor: float = 1.0) -> None:
        of = name.partition("/")[0]
        vars(self).update(name=name, mechanism=of, sums=sums, divisor=divisor)


_OWN = (
    _Rule("gaussian/gdp", (conversions.gdp_capacity, conversions.gdp_epsilon)),
    _Rule("gaussian/rdp", (conversions.renyi_capacity, conversions.renyi_epsilon), divisor=2.0),
    _Rule("laplace/basic", PURE),
    _Rule("laplace/filter", _FILTER),
    _Rule("laplace/either", PURE, _FILTER),
    _Rule("laplace/zcdp", PURE, _SQUARES),
    _Rule("privunit/either", PURE, _FILTER),
    _Rule("privunit/zcdp", PURE, _SQUARES),
)

ACCOUNTANTS: Registry[Accountant] = Registry(
    "accounting",
    {accountant.name: accountant for accountant in _OWN},
    expected="a bgtplanner.privacy.accountants.Accountant",
    fits=lambda thing: isinstance(thing, Accountant),
)
"""The accountants by name; plugins add theirs with :meth:`~bgtplanner.registry.Registry.add`."""


def accountant_named(name: str) -> Accountant:
    """Return an accountant by its name, or refuse it with a list of them all."""
    if name not in ACCOUNTANTS:
        raise ConfigError(f"accounting = {name!r}: expected one of {', '.join(ACCOUNTANTS)}")
    return ACCOUNTANTS[name]


def default_accountant(mechanism: str) -> Accountant:
    """Return the accountant of a mechanism that is used unless another is named."""
    return ACCOUNTANTS[mechanism_named(mechanism).accountant]


# ---- what a budget buys, and what it means

_ABOUT = {
    "replace-special": "what one person sends is exchanged for nothing",
    "replace-one": "one person's data are exchanged for any others",
}
_WORDS = {
    "replace-special": "if one client's data are replaced by another's",
    "replace-one": "with nothing in a client's place",
}
"""How the other reading of an epsilon is said, by the relation of the first."""


def known(reading: float) -> float | None:
    """Return a reading, or None for one that is not known."""
    return None if math.isnan(reading) else reading


def rounded_up(epsilon: float) -> str:
    """Return an epsilon in three digits, rounded up: no reading is printed as less than it is."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / step * (1 - 1e-12)) * step:.3g}"


def both_readings(epsilon: float, neighbours: str, other: float | None) -> str:
    """Return an epsilon with its relation, and how it reads under the other one, if known.

    Example:
        >>> both_readings(10, "replace-special", 24.3811)
        "epsilon 10 (replace-special); 24.4 if one client's data are replaced by another's"
    """
    reading = f"epsilon {epsilon:g} ({neighbours})"
    return reading if other is None else f"{reading}; {rounded_up(other)} {_WORDS[neighbours]}"


def meaning_of(epsilon: float, neighbours: str, other: float | None) -> str:
    """Return what an epsilon limits, and how large it is under the other relation, if known."""
    said = (
        f"Epsilon {epsilon:g} limits what can be told: if {_ABOUT[neighbours]} ({neighbours}), "
        f"whatever is seen becomes at most e^{epsilon:g} times as likely, plus delta"
    )
    for name in _ABOUT.keys() - {neighbours} if other is not None else ():
        said += f"; if {_ABOUT[name]} ({name}), epsilon is {rounded_up(other or 0.0)}"
    return f"{said}."


def guessed_right(epsilon: float, delta: float, mechanism: str | None = None) -> float:
    """Return how often the best guess at one person's presence can be right, from 0.5 to 1.

    Gaussian releases are together as one, of two normal distributions that are mu apart: a guess
    is right with probability Phi(mu / 2). Of others no more is known than epsilon and delta say.
    """
    if mechanism == "gaussian":
        return float(ndtr(0.5 * np.sqrt(conversions.gdp_capacity(epsilon, delta))))
    return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def quotes(
    budget: Budget, rounds: int, *, mechanism: str | None = None,
    noise_multiplier: float | None = None, neighbours: str = "auto",
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return what `rounds` equal rounds cost under every accountant of a mechanism, or of all.

    Accountants that do not fit the budget's delta or the relation are left out. ``auto`` is
    ``replace-special`` where noise can be added to a sum, and ``replace-one`` for PrivUnit. With a
    noise multiplier, a quote also says what a round with this noise costs.
    """
    kinds = sorted({accountant.mechanism for accountant in ACCOUNTANTS.values()})
    chosen = kinds[0] if mechanism is None else mechanism
    relations = ["auto", *SENSITIVITY]
    asked = ("--mechanism", chosen, kinds), ("--neighbours", neighbours, relations)
    for name, given, allowed in asked:
        ConfigError.unless(given in allowed, name, given, f"one of {', '.join(allowed)}")
    found = {}
    for name, accountant in ACCOUNTANTS.items():
        trusts = mechanism_named(accountant.mechanism).trusts
        relates = neighbours != "replace-special" or "secagg" in trusts
        counts = budget.delta > 0 or accountant.counts_epsilons
        if counts and (mechanism == accountant.mechanism or (mechanism is None and relates)):
            relation = neighbours_of(trusts[-1], neighbours, "--neighbours")
            found[name] = _quote(accountant, budget, rounds, noise_multiplier, relation)
    return found


def _quote(
    accountant: Accountant, budget: Budget, rounds: int, noise: float | None, relation: Neighbours
) -> dict[str, Any]:
    def epsilon(charge: float, number: int, other_than: Neighbours | None = None) -> float | None:
        read = accountant.epsilon_of_rounds(charge, number, budget.delta, other_than=other_than)
        return known(read)

    def readings(charge: float) -> dict[str, float | None]:
        other = epsilon(charge, rounds, relation)
        return {"epsilon": epsilon(charge, rounds), "epsilon_other_reading": other}

    charge = accountant.even_charge(budget, rounds)
    multiplier = float(accountant.noise_multiplier(charge))
    scale = mechanism_named(accountant.mechanism).scale(multiplier, 1.0, relation)
    quote: dict[str, Any] = {
        "sound": accountant.sound,
        "neighbours": relation,
        "capacity": accountant.capacity(budget),
        "charge": charge,
        "noise_multiplier": multiplier,
        "noise_over_clip": float(scale),
        "epsilon_of_one_round": epsilon(charge, 1),
        **readings(charge),
        "epsilon_with_one_more_round": epsilon(charge, rounds + 1),
    }
    if noise is not None:
        cost = float(accountant.charge(noise))
        affordable = int(np.max(accountant.limit_ticks(budget) // accountant.sum_ticks(cost)))
        said = {"charge": cost, "rounds_affordable": affordable, **readings(cost)}
        quote["at_noise_multiplier"] = said
    return quote
