"""Models and policies that are given in Python, by object, class or address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from bgtplanner.errors import ConfigError, InterruptedRunError, RunFolderError
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Local
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import load, resume, simulate

TINY = {"synthetic.clients": 12, "synthetic.items": 15, "synthetic.ratings_per_client": 8}
SHORT: dict[str, Any] = {"ratings": "synthetic", "rounds": 4, "seed": 1}


@dataclass(frozen=True)
class Level(Learner):
    """Item biases are learned together, each user's own on its client."""

    shrinkage: float = 5.0

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        return Shared(jnp.zeros((n_items, 1)), jnp.zeros(0)), jnp.zeros(n_users)

    def personalise(self, shared: Shared, local: Local, interactions: Interactions) -> Local:
        left = interactions.present * (
            interactions.value - 0.7 - shared.items[interactions.item, 0]
        )
        return interactions.sum_by_user(left) / (
            interactions.sum_by_user(interactions.present) + self.shrinkage
        )

    def loss(self, copies: Upload, local: Local, interactions: Interactions) -> Array:
        errors = (
            interactions.value
            - 0.7
            - interactions.rows_of(copies.rows)[:, 0]
            - local[interactions.user]
        )
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        return 0.5 * interactions.sum_by_client(interactions.present * errors**2) / ratings

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        return jnp.clip(0.7 + shared.items[item, 0] + local[user], 0.0, 1.0)


class Plain(Level):
    """The same, with something that no file can say."""

    def __init__(self, table: object) -> None:
        super().__init__()
        object.__setattr__(self, "table", table)


def test_a_learner_of_ones_own_is_the_one_that_comes_with_the_package() -> None:
    """Item and user biases are what a factorization of rank 0 has."""
    ours = simulate(**SHORT, model=Level(), settings=TINY).summary
    theirs = simulate(**SHORT, model=Factorization(dim=0), settings=TINY).summary
    assert ours["rmse_final"] == pytest.approx(theirs["rmse_final"], rel=1e-5)
    assert theirs["epsilon_spent_max"] == ours["epsilon_spent_max"] > 0


def test_by_address_with_options(tmp_path: Path) -> None:
    options = {"model.options.shrinkage": 2.0}
    address = f"{__name__}:Level"
    named = simulate(**SHORT, model=address, settings=TINY | options)
    held = simulate(**SHORT, model=Level(shrinkage=2.0), settings=TINY, out=tmp_path / "run")
    assert held.summary["rmse_final"] == named.summary["rmse_final"]
    config = RunFolder(tmp_path / "run").config()
    assert (config.model.name, config.model.options) == (address, {"shrinkage": 2.0})
    assert not RunFolder(tmp_path / "run").given  # the settings say it all
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict([0, 1], [1, 2]), held.predict([0, 1], [1, 2]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model.name": "no.such:Model"}, "model = 'no.such:Model': cannot be imported"),
        ({"model.name": "fractions:Fraction"}, "a class derived from bgtplanner.Learner"),
        ({"model.name": f"{__name__}:Level", "model.options.x": 1}, "model.options: "),
        ({"model.name": "biases", "model.options.mean": 0.5}, r"model.options = .*\[biases\]"),
    ],
)
def test_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(**SHORT, settings=TINY | settings)


class Stopper:
    """Asks for the run to stop, as Ctrl-C does, after some rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: Any, total: int) -> None:
        if record["round"] + 1 == self.after:
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def test_what_no_file_can_say_must_be_given_again(tmp_path: Path) -> None:
    learner, settings = Plain(object()), TINY | {"run.checkpoint_every": 1}
    whole = simulate(**SHORT, model=learner, settings=settings)
    with pytest.raises((KeyboardInterrupt, InterruptedRunError)):
        simulate(
            **SHORT,
            model=learner,
            settings=settings,
            out=tmp_path / "run",
            observer=Stopper(2),  # type: ignore[arg-type]
        )
    folder = RunFolder(tmp_path / "run")
    assert folder.given == ("model",)
    assert "model=..." in folder.resume_command
    with pytest.raises(RunFolderError, match=r"given in Python.*resume\(path, model=\.\.\.\)"):
        resume(tmp_path / "run")
    with pytest.raises(RunFolderError, match="another model"):
        resume(tmp_path / "run", model=Factorization())
    ended = resume(tmp_path / "run", model=learner)
    assert ended.summary["rmse_final"] == whole.summary["rmse_final"]
    with pytest.raises(RunFolderError, match=r"load\(path, model=\.\.\.\)"):
        load(tmp_path / "run")
    assert load(tmp_path / "run", model=learner).predict(0, 1) == ended.predict(0, 1)


def test_policies_by_name_class_and_object() -> None:
    made = Uniform(Budget(10.0, 1e-5), 12, rounds=4, clip=0.1, seed=1)
    found = [
        simulate(**SHORT, policy=policy, epsilon=10.0, settings=TINY).summary
        for policy in ("uniform", Uniform, made)
    ]
    assert len({summary["rmse_final"] for summary in found}) == 1
    assert {summary["policy"] for summary in found} == {"uniform"}
