"""The next training starts from what the last one released.

Let y be the mean of what the people of then told about an item, plus noise of variance 1 / p.
What is wanted is the same mean over the people of now.

* The noise of y is independent of all noise to come: its precision adds to that of later rounds.
* The people are not independent. If all of them are still there, y is another look at the same
  mean. So the part of an error that falls with the number of people (`sampling` in
  :mod:`bgtplanner.models.posterior`) goes by the most people that any one mean was over.
* If of n people then and k now only c are the same, both means differ. With s the variance from
  person to person, that has the variance ``s (1/n + 1/k - 2c/(nk))``, which is the sampling
  variance s/n times ``1 + n/k - 2c/k``, and is added to that of y's noise. All of it is public.

What people have changed their minds about since is not in it: nobody may look. Sums of merged
items are added, with the variances of their noise. Of axes of taste a file has the axes and their
sizes. They enter as one payment that told as much about these axes as all payments together did,
and whose chance reached as far; whatever else was asked then is taken to have shown nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.models.axes import Axes, unit
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Shared
from bgtplanner.models.optimizers import Aggregate, Memory, Noise, Server
from bgtplanner.models.posterior import Floats, Posterior
from bgtplanner.models.tastes import _ASKED, _OWN, _SHARE, TasteMemory, Tastes, _picked, _share
from bgtplanner.published.model import Model

_RESIDUAL, _COUNT, _SENT, _PRECISION, _SAMPLING = range(5)  # columns of a file's sums


def change_of(then: int, now: int, both: int) -> float:
    """Return by which multiple of its sampling variance a mean of then differs from that of now.

    So many took part then, do now, and did both times.
    """
    return max(1.0 + (then - 2.0 * both) / max(now, 1), 0.0)


def sums_of(shared: Shared, memory: Memory, clip: float) -> tuple[Any, dict[str, Any]]:
    """Return what a file keeps so that it can be continued: a row for each item, and numbers.

    All of it was released. There are no rows of a learner that keeps no such sums.
    """
    posterior = memory.posterior if isinstance(memory, TasteMemory) else memory
    if not isinstance(posterior, Posterior) or float(posterior.precision.max()) <= 0:
        return None, {}
    told, sent, precision, weight, sampling = (
        np.asarray(getattr(posterior, name), np.float64)
        for name in ("told", "sent", "precision", "weight", "sampling")
    )
    means = np.column_stack([told / clip, sent]) / precision[:, None]
    rows = np.column_stack([means, precision * clip**2, weight**2 * sampling / clip**2])
    numbers = {"clients": int(posterior.clients), "spread": float(posterior.spread)}
    if not isinstance(memory, TasteMemory) or float(memory.axes.precision) <= 0:
        return rows, numbers
    axes, number = memory.axes, len(memory.axes.sizes)
    own = unit(shared.items[axes.items, _OWN : _OWN + number])
    sizes = (own * axes.fitted(_common(shared, axes.items))(own)[0]).sum(0)
    seen = float(jnp.trace(own.T @ axes.asked @ own))
    rest = max(float(jnp.trace(axes.asked)) - seen, 0.0) / max(len(axes.items) - number, 1)
    return rows, numbers | {
        "sizes": (sizes / clip).tolist(), "edge": float(axes.edge) / clip,
        "precision": seen / number * clip**2, "elsewhere": rest * clip**2,
        "payments": int(axes.payments), "items": len(axes.items),
    }  # fmt: skip


def continued(
    learner: Any, shared: Shared, memory: Memory, server: Server, old: Model,
    place: NDArray[np.int64], clip: float, change: float,
) -> tuple[Shared, Memory]:  # fmt: skip
    """Return parameters and memory before the first round, with what an old model knows.

    `place` is where each of its items is now; -1: it is not there any more. By how much its
    people have changed, :func:`change_of` says.
    """
    fits = isinstance(learner, Biases) and old.sums is not None
    name, expected = type(learner).__name__.lower(), "tastes or biases, as the model's"
    ConfigError.unless(fits and name == old.ranker, "model", name, expected)
    known, number, width = old.training["sums"], len(shared.items), 2
    merged = _merged(np.asarray(old.sums, np.float64), place, number, change)
    precision = merged[:, _PRECISION] / clip**2
    told = merged[:, [_RESIDUAL, _COUNT]] * clip * precision[:, None]
    posterior: Posterior = memory.posterior if isinstance(memory, TasteMemory) else memory
    posterior = posterior._replace(
        told=jnp.asarray(told), sent=jnp.asarray(merged[:, _SENT] * precision),
        precision=jnp.asarray(precision), spread=jnp.asarray(known["spread"]),
        clients=jnp.asarray(float(known["clients"])),
    )  # fmt: skip
    if isinstance(learner, Tastes) and isinstance(memory, TasteMemory):
        width += learner.axes or 0
        axes = min(width - 2, old.released.shape[1] - _OWN)
        own, more = slice(_OWN + axes), slice(_OWN + axes, _OWN - 2 + width)
        items = shared.items.at[:, own].set(_scattered(old.released[:, own], place, number))
        drawn = unit(jax.random.normal(jax.random.key(2), items[:, more].shape))
        shared = shared._replace(items=items.at[:, more].set(_ASKED * drawn))  # to be looked for
        if axes and "sizes" in known:
            seen = _axes(learner, shared, memory.axes, old, place, clip, change)
            memory = memory._replace(axes=seen)
        memory = memory._replace(posterior=posterior)
    else:
        memory = posterior
    # A round in which nothing is told: estimates follow from the sums.
    nothing = Aggregate(Shared(jnp.zeros((number, width)), shared.dense), jnp.zeros(()))
    noise = Noise(jnp.asarray(jnp.inf), jnp.asarray(clip), jnp.asarray(1.0), "l2")
    found: tuple[Shared, Memory] = learner.server_update(shared, memory, nothing, noise, server)
    return found


def _axes(
    learner: Tastes, shared: Shared, axes: Axes, old: Model, place: NDArray[np.int64],
    clip: float, change: float,
) -> Axes:  # fmt: skip
    """Return the memory of axes after one payment that told what the old model knew of its own."""
    known, items = old.training["sums"], learner._popular(shared)
    number, among = min(len(axes.sizes), len(known["sizes"])), known["items"]
    rows = np.pad(old.released[:, _OWN : _OWN + number], ((0, 0), (0, 1)), constant_values=1.0)
    rows[np.argsort(-old.released[:, _SHARE], kind="stable")[among:]] = 0.0
    rows[:, :-1] /= np.maximum(np.linalg.norm(rows[:, :-1], axis=0), 1e-12)
    here = jnp.asarray(_scattered(rows, place, len(shared.items)), jnp.float32)[items]
    asked, there = here[:, :-1], jnp.minimum(here[:, -1], 1.0)
    sizes = jnp.asarray(known["sizes"][:number], jnp.float32) * clip
    person = clip**2 / (among * number * known["clients"])  # variance of an entry's mean
    precision = 1.0 / (clip**2 / known["precision"] + change * person)
    axes = axes._replace(items=items).after(asked, asked * sizes, jnp.asarray(precision))
    rest = jnp.diag(there) - unit(asked) @ unit(asked).T
    elsewhere = known["elsewhere"] / known["precision"] * precision
    axes = axes._replace(asked=axes.asked + elsewhere * rest)
    common = _common(shared, items)
    reached = axes.leading(asked, common)[2].edge
    first, wanted = asked[:, :1], (asked[:, 0] ** 2).sum() ** 2 * sizes[0]
    found = (first * axes.fitted(common)(first)[0]).sum()
    return axes._replace(  # as large as they were found then, and chance as well
        told=axes.told * jnp.where(found > 0, wanted / jnp.maximum(found, 1e-30), 1.0),
        chance=axes.chance * clip * known["edge"] / jnp.maximum(reached, 1e-30),
        payments=jnp.full_like(axes.payments, known["payments"]),
    )


def _merged(sums: Floats, place: NDArray[np.int64], number: int, change: float) -> Floats:
    """Return the sums of the items of now, with the precision that they are worth now."""
    there = (place >= 0) & (sums[:, _PRECISION] > 0)
    rows, at = sums[there], place[there]
    variance = np.zeros(number)
    np.add.at(variance, at, 1.0 / rows[:, _PRECISION])
    weight = np.maximum(rows[:, _COUNT], 1e-12)
    found = _scattered(rows, at, number)
    sent = _scattered(np.column_stack([weight, weight * rows[:, _SENT]]), at, number)
    found[:, _SENT] = sent[:, 1] / np.maximum(sent[:, 0], 1e-12)
    worth = 1.0 / np.maximum(variance + change * found[:, _SAMPLING], 1e-30)
    found[:, _PRECISION] = np.where(variance > 0, worth, 0.0)
    return found


def _scattered(rows: NDArray[Any], place: NDArray[np.int64], number: int) -> Floats:
    """Return the sums of rows by place; those without one are left out."""
    found = np.zeros((number, rows.shape[1]))
    np.add.at(found, place[place >= 0], rows[place >= 0])
    return found


def _common(shared: Shared, items: Array) -> Array:
    """Return the direction that is no taste among some items: how popular they are."""
    share = _share(shared)
    return unit((share * _picked(share))[items, None])
