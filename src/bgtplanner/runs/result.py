"""The result of a run: its figures, its model, and what that says to the people in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

import bgtplanner
from bgtplanner.arguments import as_path, as_whole, in_words, refuse_unless
from bgtplanner.data.catalogue import as_label
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError, DataError, ModelFileError, RunFolderError, quoted
from bgtplanner.federation.client import first_parameters
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.interactions import Shared
from bgtplanner.models.learner import Learner, model_of
from bgtplanner.models.metrics import HEADLINE, METRICS
from bgtplanner.published.model import Model, Recommended, load_model
from bgtplanner.runs.assembly import suited_learner
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import MODEL, RunFolder
from bgtplanner.runs.prepared import ratings_of, split_of
from bgtplanner.runs.publish import not_private
from bgtplanner.runs.recommending import examples_of, histories_of, number_of_examples
from bgtplanner.text import visible

Label = str | int | float | np.generic
"""The label of a user or an item, as the source has it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run, which a notebook shows as a table; it can be pickled and saved.

    Attributes:
        summary: The figures of ``summary.json``.
        rounds: One mapping per round, as in ``rounds.jsonl``.
        folder: The run folder, if there is one.
        simulation: The trained federation; None if the run was loaded.
        config: The settings.
        given: What was given as objects that the settings do not determine: ``model``, ``policy``.
        held: The ratings, if they are here and not only under a name.
        learner: The learner, if it was given again for a folder of 0.2.
    """

    summary: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    folder: Path | None
    config: Config = field(repr=False)
    simulation: Simulation | None = field(default=None, repr=False)
    given: tuple[str, ...] = ()
    held: Ratings | None = None
    learner: Learner | None = None

    @cached_property
    def ratings(self) -> Ratings:
        """The ratings of the run, loaded by their name when they are first needed.

        Raises:
            RunFolderError: If they are not there.
        """
        if self.held is not None:
            return self.held
        try:
            return ratings_of(self.config)
        except (ConfigError, DataError) as error:
            raise RunFolderError(
                f"{self.folder}: its data cannot be loaded by name ({error}). If they have moved, "
                "or were given in Python, say where they are: "
                "bgtplanner.load(path, ratings=...), or --ratings csv:PATH of recommend"
            ) from error

    @cached_property
    def model(self) -> Model:
        """The model that was learned, of which all lists are made.

        Raises:
            ConfigError: If the learner publishes none.
            RunFolderError: If the folder, of 0.2, lacks what it could be made of.
        """
        if self.folder is not None and (file := self.folder / MODEL).exists():
            return load_model(file)
        if self.simulation is not None:
            learner, state = self.simulation.federation.model, self.simulation.state
            return self._published(learner, state.shared, state.memory)
        return self._published(*self._stored())

    def _published(self, learner: Learner, shared: Shared, memory: Any = None) -> Model:
        """Return the model file of the run, which says that it protects nobody."""
        people, private = self.summary["clients"], self.summary["mechanism"] != "none"
        promise = not_private(people) if private else not_private(people, "there was no noise")
        return model_of(
            learner, shared, memory, self.ratings, learned=bool(self.summary.get("learned", True)),
            guarantee=promise | {"not_accounted": list(self.summary["not_accounted"])},
            training={
                "bgtplanner": bgtplanner.__version__, "model": self.config.model.name,
                "rounds": len(self.rounds),
            },
        )  # fmt: skip

    def _stored(self) -> tuple[Learner, Shared]:
        """Return the learner and the parameters of a folder that 0.2 has finished."""
        arrays = None if self.folder is None else RunFolder(self.folder).checkpoint()
        name, ratings = self.config.model.name, self.ratings
        if arrays is None:
            raise ConfigError(f"model = {name}: it publishes no model to make lists of")
        if self.learner is None and ":" in name:
            raise RunFolderError(
                f"{self.folder}: its model is code, which opening a folder never runs; give it: "
                "load(path, model=...)"
            )
        learner = suited_learner(
            self.config, ratings.n_items, self.learner,
            clients=ratings.n_clients, implicit=ratings.implicit,
        )  # fmt: skip
        shared = Shared(
            *(jnp.asarray(arrays.get(f"shared/{part}", ())) for part in Shared._fields)
        )
        like = jax.eval_shape(
            lambda features: first_parameters(learner, jax.random.key(0), 1, features)[0],
            jnp.asarray(ratings.features),
        )
        if [of.shape for of in shared] != [of.shape for of in like]:
            raise RunFolderError(f"{self.folder}: its ratings or its model are not those it had")
        return learner, shared

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
        given = [name for name in self.given if name == "model"]
        place = as_path("path", path)
        with RunFolder.create(
            place, self.config, overwrite=overwrite, given=given, saved=True
        ) as folder:
            for record in self.rounds:
                folder.append_round(record)
            self.write_to(folder)
        return place

    def write_to(self, folder: RunFolder) -> None:
        """Write the model, unless the learner publishes none, a few lists, and the summary."""
        number = number_of_examples(self.config)
        with contextlib.suppress(ConfigError, ModelFileError):
            self.model.save(folder.path / MODEL)
            if number and (lists := examples_of(self.model, self.ratings, number)):
                folder.write("examples.json", lists)
        folder.write("summary.json", self.summary)

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
        train, labels = split_of(self.config, self.ratings).train, self.ratings.item_labels
        found = np.empty(users.shape)
        for one in np.unique(users).tolist():
            mine, asked = histories_of(train, [one]), users == one
            ratings = mine.get("rating", mine["item"])  # of clicks, nothing is predicted
            history = dict(zip(mine["item"].tolist(), ratings.tolist(), strict=True))
            found[asked] = self.model.predict(history, labels[items[asked]].tolist())
        return float(found) if users.ndim == 0 else found

    def recommend(self, user: Any, top: int = 10) -> list[Recommended]:
        """Return the items that a user has not rated and is expected to like best, best first.

        Raises:
            DataError: If the user is not known.
            ConfigError: If `top` is not positive, or the learner publishes no model.
            NothingLearnedError: If there is nothing to rank items by.
        """
        one = user is not None and np.ndim(user) == 0
        refuse_unless(one, "user", user, "the label of one user; for many: recommend_many(users)")
        ((_, rows),) = self.recommend_many([user], top)
        return rows

    def recommend_many(
        self, users: ArrayLike | None = None, top: int = 10
    ) -> Iterator[tuple[Any, list[Recommended]]]:
        """Yield users, by default all, with their lists; errors are as for :meth:`recommend`."""
        places = None if users is None else _places(self.ratings.user_labels, users, "user")
        top = as_whole("top", top, 1)
        return self.model.recommend_many(histories_of(self.ratings, places), top=top)


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
