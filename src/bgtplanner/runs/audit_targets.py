"""What an audit attacks, and what is stated about it; the guard of a client is the first target.

A trial is a client (under ``secagg``, a sum over a group) that is used once, with a budget of its
own. Its upload is longer than the clip. The release is compared with what is *stated*, which is
computed here from the charge alone, without the code of the mechanisms that is being audited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.privacy.accountants import Accountant
from bgtplanner.privacy.audit import Check
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.privunit import Cap, cap_of
from bgtplanner.privacy.randomness import SeededNoise

Floats = NDArray[np.float64]

SIZE = 8
"""Coordinates of an upload, or of a block of it."""

BLOCKS = 32
"""Rows of an upload in the unit ``row``, each of which is clipped and charged alone."""

_LOUD = 2.0  # every coordinate that an upload points along; the clip is 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is audited; see :func:`bgtplanner.runs.audit.audit`."""

    mechanism: Literal["gaussian", "laplace", "privunit"]
    trust: Literal["local", "secagg"]
    unit: Literal["client", "row"]
    neighbours: Neighbours
    accountant: Accountant
    budget: Budget
    dropouts: int = 0
    colluders: int = 0

    @property
    def against_nothing(self) -> bool:
        """Whether the other input is nothing in the place of an upload, and not its opposite."""
        return self.neighbours == "replace-special"

    @property
    def members(self) -> int:
        """The size of the smallest group in which so many may drop out and collude."""
        return 2 * self.dropouts + self.colluders + 2

    @cached_property
    def charge(self) -> float:
        """The charge of one release."""
        return self.accountant.even_charge(self.budget, 1)

    @cached_property
    def cap(self) -> Cap | None:
        """With PrivUnit, which part of the sphere is preferred, and how strongly."""
        return cap_of(self.charge) if self.mechanism == "privunit" else None

    @cached_property
    def scale(self) -> float:
        """The noise on every coordinate for a clip of 1, by the definition of each charge."""
        sensitivity = 1.0 if self.against_nothing else 2.0
        if self.cap is not None:
            return sensitivity * 0.5 / float(self.cap.strength)
        return sensitivity / (
            math.sqrt(self.charge) if self.mechanism == "gaussian" else self.charge
        )


class Trials(NamedTuple):
    """Releases of two neighbouring inputs, ``[trials, blocks, coordinates]``.

    `ahead` and `behind` are the clipped uploads of the first and of the second input; zero stands
    for nothing in the place of an upload.
    """

    first: Floats
    second: Floats
    ahead: Floats
    behind: Floats


class Target:
    """Code that releases pass through.

    Attributes:
        scale: The noise that it states, on every coordinate of a release.
        most_trials: How many to ask for at a time, if they are slow: progress is shown in between.
        n_games: How many checks :meth:`games` returns.
    """

    scale: float
    most_trials: int | None = None
    n_games: int = 0

    def release(self, number: int, mark: list[int] | None) -> Trials:
        """Return new trials of either input, all with one worst case.

        Args:
            number: How many of each input.
            mark: Seed of the noise, different in every call; None for secret noise.
        """
        raise NotImplementedError

    def games(self) -> list[Check]:
        """Return what else an attacker can try; nothing, unless the target can be asked again."""
        return []

    def close(self) -> None:
        """Remove whatever was made to release through."""


def worst_case(setting: Setting, mark: list[int] | None) -> tuple[Floats, Floats]:
    """Return the clipped uploads of two neighbours, along half of the coordinates, or along one.

    For Laplace noise, a single coordinate is the worst case. For the others the direction makes no
    difference; several coordinates reveal a clip that is applied to each of them alone, and other
    ones each time one that is missing on some of them.
    """
    draw = np.random.default_rng(None if mark is None else [*mark, 2])
    used = draw.permutation(SIZE)[: 1 if setting.mechanism == "laplace" else SIZE // 2]
    ahead = np.zeros(SIZE)
    ahead[used] = 1 / math.sqrt(len(used))
    return ahead, ahead * (0.0 if setting.against_nothing else -1.0)


class GuardTarget(Target):
    """A client's :class:`~bgtplanner.federation.randomizer.Randomizer`, with its ledger."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.scale = setting, setting.scale
        # Under secagg, another client is in the sum.
        self._members = 1 if setting.trust == "local" else 2

    def release(self, number: int, mark: list[int] | None) -> Trials:
        """Pass every trial through one guard."""
        ahead, behind = worst_case(self.setting, mark)
        first, second = (
            self._passed(way, number, None if mark is None else [*mark, side])
            for side, way in enumerate((ahead, behind))
        )
        return Trials(first, second, ahead, behind)

    def _passed(self, upload: Floats, number: int, mark: list[int] | None) -> Floats:
        setting, blocks = self.setting, BLOCKS if self.setting.unit == "row" else 1
        members = np.zeros((number, self._members, blocks, SIZE))
        members[:, 0] = _LOUD * SIZE * upload
        clients = number * self._members
        ledger = Ledger.in_memory(
            Budgets.same(setting.budget, clients),
            setting.accountant,
            neighbours=setting.neighbours,
        )
        noise = None if mark is None else SeededNoise(mark)
        guard = Randomizer(ledger, trust=setting.trust, unit=setting.unit, noise=noise)
        shape = (clients, blocks, SIZE) if setting.unit == "row" else (clients, SIZE)
        groups = np.repeat(np.arange(number), self._members)
        release = guard.release(
            members.reshape(shape), charge=setting.charge, clip=1.0, run="audit", round=0,
            groups=groups,
        )  # fmt: skip
        guard.settle(release)
        return np.asarray(release.values[:number]).reshape(number, blocks, SIZE)
