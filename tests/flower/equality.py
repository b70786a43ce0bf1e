"""When a federation on real machines has ended as its simulation has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.client import features_in, first_parameters
from bgtplanner.flower import training
from bgtplanner.models.interactions import Shared
from bgtplanner.models.learner import Learner
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.result import Result
from flower.doubles import item_names

OWN = "bgtplanner.models.factorization:Factorization"  # as one of anybody's own
STEPS = {"server.learning_rate": 5.0, "server.momentum": 0.9, "privacy.clip": 0.01}
LEARNERS: dict[str, dict[str, Any]] = {
    "fedgnn": {"fedgnn.dim": 2, **STEPS}, "tastes": {"tastes.axes": 1},
    OWN: {"model.options": {"dim": 2}, **STEPS},
}  # fmt: skip


def same_model(out: Path, simulated: Result) -> None:
    """Whether a deployed run has the shared parameters and the server's memory of a simulated one.

    Within what single precision leaves: one adds up in another order than the other.
    """
    with np.load(out / "checkpoint.npz") as stored:
        ours = dict(stored)
    theirs = simulated.simulation.arrays()
    assert np.abs(theirs["shared/items"]).max() > 0.01
    for name in sorted(name for name in theirs if name.startswith(("shared", "memory"))):
        size = max(np.abs(theirs[name]).max(initial=0.0), 1e-6)
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-4 * size)


def same_ledgers(out: Path, simulated: Path, files: list[Path]) -> None:
    """Whether server and clients of a deployed run have spent what a simulated one has."""
    with Ledger.open(simulated / "ledger.sqlite", read_only=True) as ledger:
        expected = ledger.spent()
    with Ledger.open(out / "ledger.sqlite", read_only=True) as ledger:
        np.testing.assert_array_equal(ledger.spent(), expected)
    for place, file in enumerate(files):
        with Ledger.open(file.parent / "state" / "ledger.sqlite", read_only=True) as ledger:
            np.testing.assert_array_equal(ledger.spent()[:, 0], expected[:, place])
            assert ledger.unsettled == 0


def genres(ratings: Ratings) -> str:
    """A table of these items, with titles and three features."""
    rows = [
        f"{name},The {name},{int(number % 2 == 0)},{int(number % 5 < 2)},{int(number % 7 == 0)}"
        for number, name in enumerate(item_names(ratings))
    ]
    return "\n".join(["item,title,war,drama,comedy", *rows]) + "\n"


def begin_as_simulated(patch: pytest.MonkeyPatch, ratings: Ratings, seed: int) -> None:
    """Let users who begin at random, as those of fedgnn do, begin as the simulation's.

    Every client draws that for itself.
    """

    def begun(learner: Learner, shared: Shared, own: Ratings, key: Any = None) -> Any:
        features = features_in(learner, shared.items)
        start = jax.random.split(jax.random.key(seed))[0]
        everybody = first_parameters(learner, start, ratings.n_users, features)[1]
        rows = np.array([int(label[1:]) for label in own.user_labels.tolist()])
        return jax.tree.map(lambda leaf: leaf[rows], everybody)

    patch.setattr(training, "nothing_kept", begun)
