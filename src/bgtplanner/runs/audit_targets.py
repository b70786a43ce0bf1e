"""What is stated about releases, and how those of a client's guard are made.

A trial is a client (under ``secagg``, a sum over a group) that is used once, with a budget of its
own. Its upload is longer than the clip. The release is compared with what is *stated*, which is
computed here from the charge alone, without the code of the mechanisms that is being audited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.privacy.accountants import Accountant
from bgtplanner.privacy.audit import Check, at_least, fresh_noise, size_of_noise
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.privunit import Cap, cap_of
from bgtplanner.privacy.randomness import NoiseSource

Floats = NDArray[np.float64]

BLOCKS = 32
"""Rows of an upload in the unit ``row``, each of which is clipped and charged alone."""

DROPOUTS, COLLUDERS = 1, 1
MEMBERS = 2 * DROPOUTS + COLLUDERS + 2
"""The smallest group in which so many may drop out and collude."""

_SIZE = 8  # coordinates of an upload, or of a block of it
_LOUD = 16.0  # the length of an upload; the clip is 1
_BITS = 30  # below the noise's scale: no release has more of them


@dataclass(frozen=True)
class Setting:
    """What is audited; see :func:`bgtplanner.runs.audit.audit`."""

    mechanism: str
    trust: str
    unit: str
    neighbours: Neighbours
    accountant: Accountant
    budget: Budget

    @property
    def other_side(self) -> int:
        """The neighbour of 1: nothing in the place of an upload, or its opposite."""
        return 0 if self.neighbours == "replace-special" else -1

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
        if self.cap is not None:
            return 1 / float(self.cap.strength)
        apart = 1 - self.other_side
        return apart / (self.charge if self.mechanism == "laplace" else math.sqrt(self.charge))


@dataclass(frozen=True, eq=False)
class Trials:
    """Releases of two neighbouring inputs, ``[trials, blocks, coordinates]``, and their judgement.

    The scale is that of the stated noise in every trial. `ahead` and `behind` are the clipped
    uploads of the first and of the second input, with one block; zero stands for nothing in the
    place of an upload.
    """

    setting: Setting
    scale: Floats
    first: Floats
    second: Floats
    ahead: Floats
    behind: Floats

    def scores(self, values: Floats) -> Floats:
        """Return how much each release looks like the first input: the exact privacy loss."""
        ahead, behind, loss = self.ahead, self.behind, self.setting.charge
        each: Floats
        if self.setting.mechanism == "gaussian":
            each = (values - (ahead + behind) / 2) * (ahead - behind) / self.scale**2
        elif self.setting.mechanism == "laplace":
            each = (np.abs(values - behind) - np.abs(values - ahead)) / self.scale
        else:
            each = loss * self._beyond(values, ahead) - loss * self._beyond(values, behind)
        # Laplace noise has many equal scores; they stay equal.
        return np.asarray(each.sum(axis=(1, 2)).round(9))

    def ideal_scores(self) -> tuple[Floats, Floats]:
        """Return scores of releases that are exactly as stated, from an independent generator."""
        draw, shape, cap = np.random.default_rng(0), self.first.shape, self.setting.cap
        if cap is None:
            noise = draw.laplace if self.setting.mechanism == "laplace" else draw.normal
            uploads = (self.ahead, self.behind)
            first, second = (self.scores(up + noise(0, self.scale, shape)) for up in uploads)
            return first, second
        charge, chance = self.setting.charge, float(cap.chance)
        back = chance * math.exp(-charge)
        odds = [chance, 1 - chance - back, back]
        first, second = charge * draw.choice([1.0, 0.0, -1.0], (2, len(self.first)), p=odds)
        return first, -second

    def checks(self) -> list[Check]:
        """Compare the releases with the mechanism that the claim rests on."""
        first, second = self._noise(self.first, self.ahead), self._noise(self.second, self.behind)
        beyond = self._beyond(self.first, self.ahead)
        if self.setting.other_side:  # nothing in the place of an upload does not reach anywhere
            beyond = np.append(beyond, self._beyond(self.second, self.behind))
        chance = 0.5 if self.setting.cap is None else float(self.setting.cap.chance)
        far = "an upload reaches further than its clip allows"
        step = 2.0 ** (np.floor(np.log2(self.scale)) - _BITS)
        off = sum(int((of / step % 1 != 0).sum()) for of in (self.first, self.second))
        grid = "the last bits of a release are not covered by noise"
        return [
            size_of_noise(first, second, laplace=self.setting.mechanism == "laplace"),
            fresh_noise(first, second),
            at_least("within the clip", int(beyond.sum()), beyond.size, chance, far),
            Check("last bits", 0.0 if off else 1.0, float(off), 0.0, grid),
        ]

    def _noise(self, values: Floats, upload: Floats) -> Floats:
        """Return releases minus the stated uploads, in units of the noise's scale, by blocks."""
        size = values.shape[-1]
        if self.setting.cap is None:
            return np.asarray(((values - upload) / self.scale).reshape(-1, size))
        # PrivUnit's release is plain noise across the direction of the upload, and along it is
        # not. A reflection turns that direction into a coordinate that the upload uses, which is
        # left out; the coordinates that it does not use stay as they are.
        along = _unit(self.ahead)
        turned = np.arange(size) == np.abs(along).argmax(axis=2)[..., None]
        mirror = _unit(along + np.where(along < 0, -1.0, 1.0) * turned)
        across = (values - 2 * (values * mirror).sum(axis=2, keepdims=True) * mirror) / self.scale
        return np.asarray(across[~turned].reshape(-1, size - 1))

    def _beyond(self, values: Floats, upload: Floats) -> NDArray[np.bool_]:
        """Return which blocks reach as far as the upload, or into the cap around it."""
        cap, length = self.setting.cap, np.linalg.norm(upload, axis=2, keepdims=True)
        reach = length if cap is None else cap.threshold * self.scale
        return np.asarray((values * _unit(upload)).sum(axis=2, keepdims=True) >= reach)


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=2, keepdims=True))


def guard_trials(setting: Setting, number: int, noise: NoiseSource | None) -> Trials:
    """Pass trials of either input through a client's randomizer, with its ledger.

    An upload points along half of the coordinates, drawn anew for every trial, or along one. For
    Laplace noise, a single coordinate is the worst case. For the others the direction makes no
    difference; several coordinates reveal a clip that is applied to each of them alone, and other
    ones each time one that is missing on some of them. Under ``secagg``, the upload is in a sum
    with that of a client without data.
    """
    used = 1 if setting.mechanism == "laplace" else _SIZE // 2
    way = np.repeat([1 / math.sqrt(used), 0.0], [used, _SIZE - used])
    ahead = np.random.default_rng(0).permuted(np.tile(way, (number, 1, 1)), axis=2)
    rows, members = setting.unit == "row", 1 if setting.trust == "local" else 2
    budgets = Budgets.same(setting.budget, number * members)
    groups, seen = np.repeat(np.arange(number), members), []
    for sign in (1, setting.other_side):
        given = np.zeros((number * members, BLOCKS if rows else 1, _SIZE))
        given[::members] = sign * _LOUD * ahead
        ledger = Ledger.in_memory(budgets, setting.accountant, neighbours=setting.neighbours)
        guard = Randomizer(ledger, trust=setting.trust, unit=setting.unit, noise=noise)
        release = guard.release(
            given if rows else given[:, 0], charge=setting.charge, clip=1.0, run="audit", round=0,
            groups=groups,
        )  # fmt: skip
        guard.settle(release)
        seen.append(np.asarray(release.values[:number]).reshape(number, -1, _SIZE))
    scale = np.full((number, 1, 1), setting.scale)
    return Trials(setting, scale, seen[0], seen[1], ahead, setting.other_side * ahead)
