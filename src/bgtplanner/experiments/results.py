"""What came of a run, as an object and as the figures of ``summary.json``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import DataError
from bgtplanner.experiments.config import Config
from bgtplanner.experiments.store import SCHEMA
from bgtplanner.federation.simulation import Simulation
from bgtplanner.recsys.alone import References
from bgtplanner.recsys.ratings import Ratings

__all__ = ["Result", "summarise"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run.

    Attributes:
        summary: The figures of ``summary.json``.
        rounds: One mapping a round, as in ``rounds.jsonl``.
        ratings: What was trained and tested on.
        folder: The run folder, if there is one.
        simulation: The trained federation.
    """

    summary: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    ratings: Ratings
    folder: Path | None
    simulation: Simulation = field(repr=False)

    def predict(self, user: ArrayLike, item: ArrayLike) -> NDArray[np.float64]:
        """Predicted ratings on the source's scale, by the source's user and item labels.

        Args:
            user: Labels of users, in any shape that goes together with that of `item`.
            item: Labels of items.

        Raises:
            DataError: If a label is not known, or the shapes do not go together.
        """
        found = []
        for name, wanted, labels in (
            ("user", user, self.ratings.user_labels),
            ("item", item, self.ratings.item_labels),
        ):
            order = np.argsort(labels)
            try:
                array = np.atleast_1d(np.asarray(wanted))
                place = np.searchsorted(labels, array, sorter=order)
            except (TypeError, ValueError) as error:
                raise DataError(f"{name}: expected labels of one kind in an array") from error
            index = order[np.minimum(place, len(labels) - 1)]
            if not np.array_equal(labels[index], array):
                raise DataError(f"{name}: a label that is not among the ratings'")
            found.append(index)
        try:
            users, items = np.broadcast_arrays(*found)
        except ValueError as error:
            shapes = " and ".join(str(index.shape) for index in found)
            raise DataError(f"user and item have shapes {shapes}") from error
        predicted = self.simulation.predict(users.ravel(), items.ravel())
        return self.ratings.to_raw(predicted).reshape(users.shape)


def summarise(
    config: Config,
    ratings: Ratings,
    beside: References,
    records: Sequence[Mapping[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    """The figures of a finished run. What a run did not have, such as an epsilon, is null."""
    last, best_rmse = records[-1], min(records, key=lambda record: record["rmse"])
    # The first round of a process compiles; it says nothing about the others.
    later = [record["seconds"] for record in records[1:]] or [last["seconds"]]
    return {
        "schema": SCHEMA,
        "dataset": ratings.name,
        "preset": config.preset,
        "model": config.model.name,
        "policy": config.planning.policy,
        "mechanism": config.privacy.mechanism,
        "trust": None,
        "unit": None,
        "accounting": None,
        "epsilon": None,
        "delta": None,
        "seed": config.run.seed,
        "clients": ratings.n_clients,
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": len(ratings),
        "rounds_run": len(records),
        "rmse_final": last["rmse"],
        "rmse_best": best_rmse["rmse"],
        "rmse_best_round": best_rmse["round"],
        "f1_final": last["f1"],
        "f1_best": max(record["f1"] for record in records),
        "precision_final": last["precision"],
        "recall_final": last["recall"],
        "mae_final": last["mae"],
        "rmse_constant": beside.constant.rmse,
        "rmse_user_mean": beside.user_mean.rmse,
        "rmse_client_alone": beside.client_alone.rmse,
        "f1_constant": beside.constant.f1,
        "f1_user_mean": beside.user_mean.f1,
        "f1_client_alone": beside.client_alone.f1,
        "epsilon_spent_max": None,
        "epsilon_client_level": None,
        "epsilon_client_level_median": None,
        "not_accounted": _not_accounted(config),
        "seconds_total": seconds,
        "seconds_per_round": statistics.median(later),
    }


def _not_accounted(config: Config) -> list[str]:
    """What leaves the clients without being paid for; without a mechanism, all that leaves."""
    leaves = ["item-ids"]
    if config.model.pseudo_items:
        leaves.append("pseudo-rows")
    return leaves
