"""What hostile clients send: from what is obvious to what cannot be told from honest uploads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.poisoning.world import Attack, Floats, Scene
from bgtplanner.privacy.privunit import randomise
from bgtplanner.privacy.randomness import SeededNoise

_RESIDUAL, _COUNT = 0.95, 0.31  # of a rating far above what the model expects: its direction
_WITHIN = 0.999


def _towards(scene: Scene, length: float) -> Floats:
    """Nothing but the target, as a client has it that rated nothing else."""
    rows = np.zeros((scene.number, scene.mean.size))
    rows[:, 2 * scene.target] = _RESIDUAL * length
    rows[:, 2 * scene.target + 1] = _COUNT * length
    return rows


def _released(scene: Scene, rows: Floats) -> Floats:
    """As the protocol has it: under local trust each is randomised, else it goes into the sum."""
    if not scene.local:
        return rows
    noise = SeededNoise(int(scene.rng.integers(2**31)))
    return randomise(_WITHIN * rows, noise, bound=scene.clip, epsilon=scene.charge)


def one_hot(scene: Scene) -> Floats:
    """All that an honest upload is long, noise included, in one item."""
    return _towards(scene, scene.scale * scene.mean.size**0.5 if scene.local else scene.clip)


def constant(scene: Scene) -> Floats:
    """The same number everywhere."""
    each = scene.scale if scene.local else scene.clip / scene.mean.size**0.5
    return np.full((scene.number, scene.mean.size), each)


def scaled(scene: Scene) -> Floats:
    """A false rating of the target, protected as agreed, then sent 1.3 times as long."""
    return 1.3 * false_rating(scene)


def repeated(scene: Scene) -> Floats:
    """One upload with a false rating, sent by all of them, and again in every round."""
    noise = np.random.default_rng(scene.target).standard_normal(scene.mean.size)
    one = _towards(scene._replace(number=1), scene.clip)[0]
    if scene.local:
        one = one + scene.scale * noise
    return np.tile(one, (scene.number, 1))


def false_rating(scene: Scene) -> Floats:
    """The protocol is followed with made-up data: one rating, of the target."""
    return _released(scene, _towards(scene, scene.clip))


def imitation(scene: Scene) -> Floats:
    """Plain noise, but for the target: as far as the server lets a coordinate go."""
    if not scene.local:
        return _towards(scene, scene.clip)
    rows = scene.scale * scene.rng.standard_normal((scene.number, scene.mean.size))
    most = _WITHIN * scene.scale * scene.limits.coordinate
    rows[:, 2 * scene.target] = most
    rows[:, 2 * scene.target + 1] = most * _COUNT / _RESIDUAL
    return rows


def arranged(scene: Scene) -> Floats:
    """Numbers that look like noise, in an order that opposes what the others say."""
    against = -scene.mean
    if not scene.local:
        length = np.sqrt(against @ against)
        return np.tile(against * scene.clip / max(length, 1e-30), (scene.number, 1))
    noise = np.sort(scene.rng.standard_normal((scene.number, against.size)), axis=1)
    rows = np.empty_like(noise)
    rows[:, np.argsort(against, kind="stable")] = noise
    return scene.scale * rows


def flipped(scene: Scene) -> Floats:
    """The protocol is followed with ratings turned upside down."""
    rows = scene.own.copy()
    rows[:, ::2] *= -1.0
    return _released(scene, rows)


ATTACKS: Mapping[str, Attack] = {
    "one-hot": one_hot,
    "constant": constant,
    "x 1.3": scaled,
    "repeated": repeated,
    "arranged noise": arranged,
    "imitated noise": imitation,
    "false rating": false_rating,
    "flipped ratings": flipped,
}
TARGETED = ("one-hot", "x 1.3", "repeated", "imitated noise", "false rating")
"""Those that lift an item; the others only spoil."""
