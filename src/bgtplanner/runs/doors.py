"""The doors that releases pass through, which an audit attacks: the guard and the simulator.

A trial is a client (under ``secagg``, a sum over a group) that is used once, with a budget of its
own. Its upload is longer than the clip and points one way or the other. The release is compared
with what is *stated*, which is computed here from the charge alone, without the code of the
mechanisms that is being audited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.federation.guard import Guard
from bgtplanner.privacy.accountants import Accountant
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.noise import SeededNoise
from bgtplanner.privacy.noisecheck import Check
from bgtplanner.privacy.privunit import Cap, cap_of
from bgtplanner.runs.canaries import PICKED, TASTE_WIDTH, picked_together

__all__ = ["Door", "GuardDoor", "Setting", "SimulationDoor", "Stated", "directions", "pointing"]
__all__ += ["stated_multiplier"]

Floats = NDArray[np.float64]
Signs = NDArray[np.float64]

_LOUD = 2.0  # every coordinate that an upload points along; the clip is 1
_TOGETHER = 4096  # trials per call of a compiled program
_POOR = 1e-9  # epsilon of a client that cannot pay


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is audited; see :func:`bgtplanner.runs.audits.audit`.

    `size` is the number of coordinates of an upload, or of a block; each canary has its own.
    `neighbours` is the relation that the claim is about.
    `uploads` says whether they are made up or those of the model ``tastes``.
    `dropouts` and `colluders` are how many of a group do, on real machines under ``secagg``.
    """

    mechanism: Literal["gaussian", "laplace", "privunit"]
    trust: Literal["local", "secagg"]
    unit: Literal["client", "row"]
    accountant: Accountant
    budget: Budget
    rounds: int
    blocks: int
    size: int
    canaries: int
    beside: Budget | None = None
    neighbours: Neighbours = "replace-one"
    uploads: Literal["worst", "tastes"] = "worst"
    dropouts: int = 0
    colluders: int = 0

    @property
    def against_nothing(self) -> bool:
        """Whether the other input is nothing in the place of an upload, and not its opposite."""
        return self.neighbours == "replace-special"

    @property
    def sensitivity(self) -> float:
        """How far two neighbouring uploads within a clip of 1 can be apart, by definition."""
        return 1.0 if self.against_nothing else 2.0

    @property
    def charge(self) -> float:
        """The charge of one round for the audited clients."""
        return self.accountant.even_charge(self.budget, self.rounds)

    @property
    def charge_beside(self) -> float:
        """The charge of one round for the other clients."""
        return self.accountant.even_charge(self.beside or self.budget, self.rounds)


@dataclass(frozen=True, eq=False, kw_only=True)
class Stated:
    """What a door claims to do to an upload.

    Attributes:
        mechanism: Its mechanism.
        scale: Scale of the noise on every coordinate of a release.
        ahead: The clipped uploads that point ahead, ``[canaries, size]``.
        behind: The same for those that point the other way; zero where the other input is nothing
            in the place of an upload.
        cap: With ``privunit``, which part of the sphere is preferred, and how strongly.
        on_grid: Whether releases lie on a grid that the noise covers, down to the last bit.
    """

    mechanism: str
    scale: float
    ahead: Floats
    behind: Floats
    cap: Cap | None = None
    on_grid: bool = True

    @property
    def losses(self) -> Floats:
        """Privacy loss of one release: per coordinate for ``laplace``, otherwise one number."""
        apart = self.ahead[0] - self.behind[0]
        if self.mechanism == "laplace":
            return np.asarray(np.abs(apart[apart != 0]) / self.scale)
        return np.array([math.sqrt(float((apart**2).sum())) / self.scale])


class Door:
    """The code that releases pass through.

    Attributes:
        setting: What is audited.
        stated: What the door claims to do.
        numbers_per_trial: How many numbers one trial takes in memory.
        most_trials: How many to ask for at a time, if they are slow: progress is shown in between.
        can_be_absent: Whether trials can be asked for without the audited clients.
        n_games: How many checks :meth:`games` returns.
    """

    setting: Setting
    stated: Stated
    numbers_per_trial: int
    most_trials: int | None = None
    can_be_absent: bool = True
    n_games: int = 0

    def release(self, signs: Signs, *, mark: list[int] | None, absent: bool = False) -> Floats:
        """Return the releases of new trials, ``[releases per trial, trials, coordinates]``.

        Args:
            signs: 1 if an upload points ahead, -1 if it points back and 0 if there is nothing in
                its place, ``[trials, canaries]``.
            mark: Seed of the noise, different in every call; None for secret noise.
            absent: Whether the audited clients do not take part, since they cannot pay.
        """
        raise NotImplementedError

    def games(self) -> list[Check]:
        """Return what else an attacker can try; nothing, unless the door can be asked again."""
        return []

    def close(self) -> None:
        """Remove whatever was made to release through."""

    def _states(
        self, ahead: Floats, behind: Floats, bound: float, scale: float, *, on_grid: bool
    ) -> Stated:
        """Return what is stated about uploads in two directions, within a bound."""
        mechanism = self.setting.mechanism
        order = 1 if mechanism == "laplace" else 2

        def clipped(ways: Floats) -> Floats:
            norms = np.linalg.norm(ways, order, axis=1, keepdims=True)
            return np.asarray(bound * ways / np.where(norms > 0, norms, 1.0))

        return Stated(
            mechanism=mechanism,
            scale=scale,
            ahead=clipped(ahead),
            behind=clipped(behind),
            cap=cap_of(self.setting.charge) if mechanism == "privunit" else None,
            on_grid=on_grid,
        )


def stated_multiplier(mechanism: str, charge: float) -> float:
    """Return the noise multiplier of a charge, by the definition of each mechanism's charge."""
    if mechanism == "gaussian":
        return 1 / math.sqrt(charge)
    return 1 / charge if mechanism == "laplace" else 0.5 / float(cap_of(charge).strength)


def directions(setting: Setting, active: list[int]) -> tuple[Floats, Floats]:
    """Return the uploads that are ahead and behind, before they are made longer than the clip."""
    along = _along(setting, active)
    ahead, behind = along, -along
    if setting.uploads == "tastes":
        ahead, behind = picked_together(setting.size // TASTE_WIDTH).uploads()
    return ahead, behind * (not setting.against_nothing)


def pointing(ways: tuple[Any, Any], signs: Any) -> Any:
    """Return uploads that are longer than the clip and point as the signs say; 0 for nothing."""
    ahead, behind = ways
    return _LOUD * ((signs[..., None] > 0) * ahead + (signs[..., None] < 0) * behind)


def _along(setting: Setting, active: list[int]) -> Floats:
    """Return where each canary's upload points: ones at its coordinates."""
    if setting.canaries > 1:
        return np.eye(setting.canaries, setting.size)
    along = np.zeros((1, setting.size))
    # For Laplace noise, a single coordinate is the worst case. For the others the direction makes
    # no difference; several coordinates reveal a clip that is applied to each of them alone.
    along[0, active[:1] if setting.mechanism == "laplace" else active] = 1.0
    return along


class GuardDoor(Door):
    """:class:`~bgtplanner.federation.guard.Guard` with its ledger: clip, noise and grid."""

    def __init__(self, setting: Setting) -> None:
        fits = setting.beside is None
        expected = "none, with --path guard, which has one charge for all"
        ConfigError.unless(fits, "--beside", setting.beside and setting.beside.epsilon, expected)
        self.setting = setting
        half = max(1, (setting.size + 1) // 2)
        self._ways = directions(setting, list(range(half)))
        scale = setting.sensitivity * stated_multiplier(setting.mechanism, setting.charge)
        self.stated = self._states(*self._ways, 1.0, scale, on_grid=True)
        # Under secagg, another client is in the sum.
        self._members = 1 if setting.trust == "local" else setting.canaries + 1
        self.numbers_per_trial = setting.size * setting.blocks * max(setting.rounds, self._members)

    def release(self, signs: Signs, *, mark: list[int] | None, absent: bool = False) -> Floats:
        """Pass every trial through one guard, round after round."""
        setting, trials = self.setting, len(signs)
        blocks = setting.blocks  # 1, unless the unit is a row
        uploads = np.zeros((trials, self._members, blocks, setting.size))
        known = signs.shape[1]
        uploads[:, :known] = pointing(self._ways, signs)[:, :, None, :]
        members = uploads.reshape(trials * self._members, blocks, setting.size)
        poor = np.zeros((trials, self._members), dtype=np.int32)
        poor[:, :known] = absent
        # At least one client must be able to pay, or there is no round.
        class_of = np.append(poor.ravel(), 0).astype(np.int32)
        members = np.concatenate([members, np.zeros((1, blocks, setting.size))])
        groups = np.append(np.repeat(np.arange(trials), self._members), trials)
        classes = (setting.budget, Budget(_POOR, setting.budget.delta))
        ledger = Ledger.in_memory(
            Budgets(classes, class_of), setting.accountant, neighbours=setting.neighbours
        )
        noise = None if mark is None else SeededNoise(mark)
        guard = Guard(ledger, trust=setting.trust, unit=setting.unit, noise=noise)
        given = members if setting.unit == "row" else members[:, 0]
        seen = np.empty((setting.rounds * blocks, trials, setting.size))
        for index in range(setting.rounds):
            release = guard.release(
                given, charge=setting.charge, clip=1.0, run="audit", round=index, groups=groups
            )
            guard.settle(release)
            values = release.values[:trials].reshape(trials, blocks, setting.size)
            seen[index * blocks : (index + 1) * blocks] = values.transpose(1, 0, 2)
        return seen


class SimulationDoor(Door):
    """The simulator's :class:`~bgtplanner.federation.protection.Protection`, inside the compiler.

    Every trial is a whole round with the audited clients, one whose upload is zero, and one with a
    large upload that does not take part. With ``beside`` the other two have that budget. The
    coordinates are those of rated items, of an item that no one has rated, and of the dense rest.
    Under local trust, noise is drawn alternately for the whole sum and client by client.
    """

    def __init__(self, setting: Setting) -> None:
        expected = "client, with --path simulation"
        ConfigError.unless(setting.unit == "client", "--unit", setting.unit, expected)
        self.setting = setting
        mechanism, one = setting.mechanism, setting.canaries == 1
        tastes = setting.uploads == "tastes"
        self._width = TASTE_WIDTH if tastes else 1
        self._dense = setting.size // 4 if one and not tastes else 0
        self._items = (setting.size - self._dense) // self._width
        rated = max(1, self._items - 1) if one else self._items
        half = list(range((rated + 1) // 2)) + list(range(self._items, setting.size))[:1]
        self._ways = directions(setting, half)
        mine = stated_multiplier(mechanism, setting.charge)
        others = stated_multiplier(mechanism, setting.charge_beside)
        # The highest charge sets the noise of a sum; a lower charge means a smaller clip.
        least = min(mine, others) if setting.trust == "secagg" else mine
        scale = setting.sensitivity * least
        self.stated = self._states(*self._ways, least / mine, scale, on_grid=False)
        self.numbers_per_trial = setting.size * setting.rounds
        self._rated = PICKED if tastes else rated
        self._calls = 0
        self._programs: dict[str, Any] = {}

    def release(self, signs: Signs, *, mark: list[int] | None, absent: bool = False) -> Floats:
        """Run every trial as a round of its own, many of them in one compiled program."""
        import jax

        setting, number = self.setting, self.setting.rounds * len(signs)
        modes = ("sum", "per-client") if setting.trust == "local" else ("sum",)
        mode = modes[self._calls // 2 % len(modes)]  # the same for both inputs
        self._calls += 1
        if mode not in self._programs:
            self._programs[mode] = self._compiled(mode)
        words = np.random.SeedSequence(mark).generate_state(2)
        base = jax.random.fold_in(jax.random.key(int(words[0])), int(words[1]))
        every = np.tile(np.asarray(signs, dtype=np.float32), (setting.rounds, 1))
        terms = self._terms(absent)
        seen = np.empty((number, setting.size))
        for start in range(0, number, _TOGETHER):  # programs take a fixed number of trials
            part = every[start : start + _TOGETHER]
            padded = np.pad(part, ((0, _TOGETHER - len(part)), (0, 0)), constant_values=1.0)
            keys = jax.random.split(jax.random.fold_in(base, start), _TOGETHER)
            found = self._programs[mode](keys, padded, terms)
            seen[start : start + len(part)] = np.asarray(found)[: len(part)]
        return seen.reshape(setting.rounds, len(signs), setting.size)

    def _terms(self, absent: bool) -> Any:
        """Return who takes part, and with which clip and noise."""
        from bgtplanner.federation.protection import terms_of

        setting, known = self.setting, self.setting.canaries
        granted = np.array([not absent] * known + [setting.trust == "secagg", False])
        unequal = setting.beside is not None
        charges = np.array([setting.charge, setting.charge_beside][: 1 + unequal])
        class_of_client = np.array([0] * known + [int(unequal)] * 2, dtype=np.int32)
        return terms_of(
            setting.accountant,
            setting.trust,
            1.0,
            charges,
            granted,
            class_of_client,
            neighbours=setting.neighbours,
        )

    def _compiled(self, mode: str) -> Any:
        import jax
        import jax.numpy as jnp

        from bgtplanner.data.ratings import Ratings
        from bgtplanner.federation.protection import Protection
        from bgtplanner.models.interactions import Interactions, Upload

        setting = self.setting
        pairs = np.indices((setting.canaries + 2, self._rated)).reshape(2, -1)
        items = np.arange(self._items)
        users, rated = pairs
        ones = np.ones(pairs.shape[1])
        ratings = Ratings.from_arrays(users, rated, ones, items=items, scale=(0.0, 1.0))
        interactions = Interactions.of(ratings)
        noise: Any = mode
        protection = Protection(mechanism=setting.mechanism, trust=setting.trust, noise=noise)
        ways = [jnp.asarray(way, dtype=jnp.float32) for way in self._ways]
        others = jnp.zeros((2, setting.size)).at[1].set(30.0)  # the last one does not take part

        def one(key: Any, signs: Any, terms: Any) -> Any:
            uploads = jnp.concatenate([pointing((ways[0], ways[1]), signs), others])
            of_items, dense = jnp.split(uploads, [self._items * self._width], axis=1)
            of_items = of_items.reshape(len(uploads), self._items, self._width)
            upload = Upload(of_items[interactions.pair_client, interactions.pair_item], dense)
            released = protection.release(key, upload, interactions, terms).aggregate
            # The sum again: the mean is by weight, and the canaries are of the first class.
            number = protection.count(terms) / protection.weights(terms)[0]
            mean = released.gradient
            return number * jnp.concatenate([mean.items.ravel(), mean.dense])

        return jax.jit(jax.vmap(one, in_axes=(0, 0, None)))
