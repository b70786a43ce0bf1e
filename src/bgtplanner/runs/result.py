"""The result of a run: it predicts, recommends, and can be saved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.arguments import as_path, as_whole, in_words, refuse_unless
from bgtplanner.data.catalogue import as_label
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import DataError, StorageError, quoted
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.metrics import HEADLINE, METRICS
from bgtplanner.models.ranking import Recommender
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.prepared import fingerprint_of, split_of
from bgtplanner.runs.recommending import Recommendations, recommendations_of, recommender_of
from bgtplanner.text import visible

Label = str | int | float | np.generic
"""The label of a user or an item, as the source has it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run, which a notebook shows as a table; it can be pickled and saved.

    Attributes:
        summary: The figures of ``summary.json``.
        rounds: One mapping per round, as in ``rounds.jsonl``.
        ratings: The ratings that were trained and tested on.
        folder: The run folder, if there is one.
        simulation: The trained federation.
        config: The settings.
        given: What was given as objects that the settings do not determine: ``model``, ``policy``.
    """

    summary: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    ratings: Ratings
    folder: Path | None
    simulation: Simulation = field(repr=False)
    config: Config = field(repr=False)
    given: tuple[str, ...] = ()

    def __repr__(self) -> str:
        known = self.summary
        error = known.get("rmse_objective", known.get("rmse_final"))
        served = f"{HEADLINE}_served" if known.get("objective") == "served" else HEADLINE
        lists, epsilon = known.get(served, known.get(HEADLINE)), known.get("epsilon")
        parts = [f"{known.get('model')} by {known.get('policy')}"]
        parts += [] if epsilon is None else [f"epsilon {epsilon:g}"]
        parts += [f"{len(self.rounds)} rounds"]
        parts += [] if error is None else [f"RMSE {error:.4f}"]
        parts += [] if lists is None else [f"{METRICS[HEADLINE].label} {lists:.3f}"]
        parts += [] if self.folder is None else [f"in {self.folder}"]
        return f"Result({visible(known.get('dataset', '?'))}: {', '.join(parts)})"

    def _repr_html_(self) -> str:
        from bgtplanner.report.page import as_html

        return as_html(self)

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the result to a new or empty folder, from which ``bgtplanner.load`` reads it.

        It holds what ``out`` would have written, without a ledger: that of a run exists once, or
        each of two would grant what the other has spent. The ratings stay where they are; if they
        were given in Python, ``load`` needs them again.

        Raises:
            RunFolderError: If the folder is in use.
            StorageError: If it cannot be written.
        """
        with RunFolder.create(
            as_path("path", path),
            self.config,
            fingerprint=fingerprint_of(split_of(self.config, self.ratings)),
            overwrite=overwrite,
            given=[name for name in self.given if name == "model"],
            saved=True,
        ) as folder:
            for record in self.rounds:
                folder.append_round(record)
            folder.write_checkpoint(self.simulation.arrays())
            folder.write("summary.json", self.summary)
        return folder.path

    @overload
    def predict(self, user: Label, item: Label) -> float: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, user: ArrayLike, item: ArrayLike) -> NDArray[np.float64]: ...

    def predict(self, user: ArrayLike, item: ArrayLike) -> float | NDArray[np.float64]:
        """Predict ratings on the source's scale, for users and items given by their labels.

        Labels may come in any shapes that broadcast; for one user and one item it is a number.

        Raises:
            DataError: If a label is not known, or the shapes do not broadcast.
        """
        users = _places(self.ratings.user_labels, user, "user")
        items = _places(self.ratings.item_labels, item, "item")
        try:
            users, items = np.broadcast_arrays(users, items)
        except ValueError as error:
            shapes = f"{users.shape} and {items.shape}"
            raise DataError(f"user and item have shapes {shapes}: expected equal ones") from error
        found = self.ratings.to_raw(self.simulation.predict(users.ravel(), items.ravel()))
        return float(found[0]) if users.ndim == 0 else found.reshape(users.shape)

    def recommend(self, user: Any, top: int = 10) -> list[tuple[Any, float]]:
        """The items that a user has not rated and is expected to like best, best first.

        They come with predicted ratings, on the source's scale; NaN if the data are not ratings.

        Raises:
            DataError: If the user is not known.
            ConfigError: If `top` is not positive.
            NothingLearnedError: If there is nothing to rank items by.
        """
        one = user is not None and np.ndim(user) == 0
        refuse_unless(one, "user", user, "the label of one user; for many: recommendations(users)")
        found = self.recommendations(user, top)
        if found.note is not None:
            warnings.warn(found.note, stacklevel=2)
        nan = float("nan")
        return [(row.item, nan if row.predicted is None else row.predicted) for row in found.rows]

    def recommendations(self, users: ArrayLike | None = None, top: int = 10) -> Recommendations:
        """Lists for many users, by default for all, with titles, predicted ratings and reasons.

        What a user has rated is left out as far as it has arrived by the last round. Ratings of
        the test set are not known to the model, so their items can be recommended. Errors are as
        for :meth:`recommend`.
        """
        top = as_whole("top", top, 1)
        places = np.arange(self.ratings.n_users)
        if users is not None:
            found = _places(self.ratings.user_labels, users, "user").ravel().tolist()
            places = np.array(list(dict.fromkeys(found)), dtype=np.int64)
        return recommendations_of(self.recommender(), places, top)

    def recommender(self) -> Recommender:
        """All that lists of recommendations are made of, as of the last round."""
        return recommender_of(self.ratings, self.simulation)

    def export(self, path: Path | str) -> Path:
        """Write what the server holds as a NumPy archive, without anything that clients keep.

        `items` and `dense` were computed from released numbers. If `item_labels` or `scale` was
        read off the ratings, the summary says so under `not_accounted`.
        """
        target = as_path("path", path)
        shared = self.simulation.state.shared
        arrays: dict[str, Any] = {
            "items": np.asarray(shared.items),
            "dense": np.asarray(shared.dense),
        }
        arrays["item_labels"] = self.ratings.item_labels
        arrays["scale"] = np.array([self.ratings.low, self.ratings.high])
        try:
            with target.open("wb") as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise StorageError(f"{target}: cannot be written ({error})") from error
        return target


def _places(labels: NDArray[Any], wanted: ArrayLike, name: str) -> NDArray[np.int64]:
    """The indices of labels, in the shape in which they were given; numbers may be text."""
    try:
        array = np.asarray(wanted)
    except ValueError as error:
        raise DataError(f"{name}: expected a label, or an array of labels") from error
    if array.dtype.kind not in "iufUSO" or any(of is None for of in array.ravel().tolist()):
        raise DataError(f"{name} = {in_words(wanted)}: expected a label, or an array of labels")
    known = {_text(label): place for place, label in enumerate(labels.tolist())}
    sought = array.ravel().tolist()
    if unknown := [label for label in sought if _text(label) not in known]:
        first, count = quoted(unknown[0]), f"{len(unknown):,} of {len(sought):,} {name}s are"
        if len(sought) == 1:
            raise DataError(f"{name} {first} is not in the ratings")
        raise DataError(f"{count} not in the ratings; the first is {first}")
    places = [known[_text(label)] for label in sought]
    return np.array(places, dtype=np.int64).reshape(array.shape)


def _text(label: Any) -> str:
    return label if isinstance(label, str) else as_label(label)
