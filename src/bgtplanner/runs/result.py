"""The result of a run: its figures, its model, and what that says to the people in it.

A list says something about a person. So a report shows only lists of a simulation, those of your
own data only if ``run.examples`` asks for them, of users chosen by the order of their labels, and
without a rating, an item of the person or a figure that was computed from the person's ratings.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

import bgtplanner
from bgtplanner.arguments import in_words
from bgtplanner.data.catalogue import as_label
from bgtplanner.data.datasets import DATASETS
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import (
    ConfigError,
    DataError,
    ModelFileError,
    NothingLearnedError,
    RunFolderError,
    quoted,
)
from bgtplanner.federation.client import first_parameters
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.interactions import Shared
from bgtplanner.models.learner import Learner, model_of
from bgtplanner.models.tastes import Tastes
from bgtplanner.published.model import Model, Recommended, Verdict, load_model
from bgtplanner.runs.assembly import federation_of, ratings_of, split_of
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import MODEL, RunFolder
from bgtplanner.text import visible

TOP = 5  # items in each list of a report
_EXAMPLES = 3
_HIGHER = re.compile(r"[\d.e+-]+ (?:stars|points) above your mean")
_OFTEN = re.compile(r"[\d.e+-]+ times as often as ")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run; it can be pickled.

    Attributes:
        summary: The figures of ``summary.json``.
        rounds: One mapping per round, as in ``rounds.jsonl``.
        folder: The run folder, if there is one.
        simulation: The trained federation; None if the run was loaded.
        config: The settings.
        held: The ratings, if they are here and not only under a name.
    """

    summary: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    folder: Path | None
    config: Config = field(repr=False)
    simulation: Simulation | None = field(default=None, repr=False)
    held: Ratings | None = None

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
        """The model that was learned, of which all lists are made; it says it protects nobody.

        Raises:
            ConfigError: If the learner publishes none.
        """
        if self.folder is not None and (file := self.folder / MODEL).exists():
            return load_model(file)
        if self.simulation is None:
            learner, shared, memory = *self._stored(), None
        else:
            learner, state = self.simulation.federation.model, self.simulation.state
            shared, memory = state.shared, state.memory
        people, private = self.summary["clients"], self.summary["mechanism"] != "none"
        promise = not_private(people) if private else not_private(people, "there was no noise")
        return model_of(
            learner, shared, memory, self.ratings,
            learned=bool(self.summary.get("learned", True)),
            guarantee=promise | {"not_accounted": list(self.summary["not_accounted"])},
            training={
                "bgtplanner": bgtplanner.__version__, "model": self.config.model.name,
                "rounds": len(self.rounds),
            },
        )  # fmt: skip

    @cached_property
    def verdict(self) -> Verdict | None:
        """What the model says of its own lists, by releases alone; None if there is no model."""
        with contextlib.suppress(ConfigError, ModelFileError, RunFolderError):
            return self.model.verdict()
        return None

    def _stored(self) -> tuple[Learner, Shared]:
        """Return the learner and the parameters of a folder that 0.2 has finished."""
        arrays = None if self.folder is None else RunFolder(self.folder).checkpoint()
        name, ratings = self.config.model.name, self.ratings
        if arrays is None:
            gone = f"its model, {name}, publishes none, or the file is gone: run it again"
            raise ConfigError(f"{self.folder}: has no {MODEL}; {gone}")
        if ":" in name:
            why = "its model is code, which opening a folder never runs"
            raise RunFolderError(f"{self.folder}: {why}; run it again")
        learner = federation_of(
            self.config, ratings.n_items, clients=ratings.n_clients, implicit=ratings.implicit
        ).model
        shared = Shared(
            *(jnp.asarray(arrays.get(f"shared/{part}", ())) for part in Shared._fields)
        )
        features = jnp.asarray(ratings.features)
        if isinstance(learner, Tastes):  # of which 0.2 chose the number of axes by another rule
            told = np.atleast_2d(arrays.get("memory/told", np.zeros((1, 0))))
            learner = replace(learner, axes=told.shape[-1])
        like = jax.eval_shape(
            lambda of: first_parameters(learner, jax.random.key(0), 1, of)[0], features
        )
        if [of.shape for of in shared] != [of.shape for of in like]:
            raise RunFolderError(f"{self.folder}: its ratings or its model are not those it had")
        return learner, shared

    def __repr__(self) -> str:
        known, epsilon = self.summary, self.summary.get("epsilon")
        parts = [f"{known.get('model')} by {known.get('policy')}"]
        parts += [] if epsilon is None else [f"epsilon {epsilon:g}"]
        parts += [f"{len(self.rounds)} rounds"]
        parts += [] if self.folder is None else [f"in {self.folder}"]
        return f"Result({visible(known.get('dataset', '?'))}: {', '.join(parts)})"

    def report(self) -> Path:
        """Write the page of the run into its folder, and return where it is."""
        from bgtplanner.report.page import write_report

        if self.folder is None:
            raise ConfigError("the run has no folder for its report; run it with out=FOLDER")
        return write_report(self.folder)

    def plot(self, metric: str = "rmse") -> Any:
        """Return a Matplotlib figure of a metric by round, beside what needs no one else."""
        from bgtplanner.report.pictures import as_figure, quality

        values: list[Any] = [record.get(metric) for record in self.rounds]
        there = bool(values) and None not in values
        ConfigError.unless(there, "metric", metric, "one that is known after every round")
        total = self.config.federation.rounds
        return as_figure(quality(self.summary, metric, values, total))

    def write_to(self, folder: RunFolder) -> None:
        """Write the model, unless the learner publishes none, a few lists, and the summary."""
        number = number_of_examples(self.config)
        with contextlib.suppress(ConfigError, ModelFileError):
            self.model.save(folder.path / MODEL)
            if number and (lists := examples_of(self.model, self.ratings, number)):
                folder.write("examples.json", lists)
        folder.write("summary.json", self.summary)

    def predict(self, user: ArrayLike, item: ArrayLike) -> Any:
        """Predict ratings on the source's scale: a number, or an array for arrays of labels.

        Raises:
            DataError: If a label is not known.
        """
        labels, train = self.ratings.item_labels, split_of(self.config, self.ratings).train
        users = _places(self.ratings.user_labels, user, "user")
        users, items = np.broadcast_arrays(users, _places(labels, item, "item"))
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
        ((_, rows),) = self.recommend_many([user], top)
        return rows

    def recommend_many(
        self, users: ArrayLike | None = None, top: int = 10
    ) -> Iterator[tuple[Any, list[Recommended]]]:
        """Yield users, by default all, with their lists; errors are as for :meth:`recommend`."""
        places = None if users is None else _places(self.ratings.user_labels, users, "user")
        return self.model.recommend_many(histories_of(self.ratings, places), top=top)


def not_private(
    people: int, why: str = "the noise comes from a seed, so that whoever has it can remove it"
) -> dict[str, Any]:
    """Return what the file says of a model that promises nothing to anybody."""
    return {"private": False, "sentences": [f"Not private: {why}."], "people": people}


def _places(labels: NDArray[Any], wanted: ArrayLike, name: str) -> NDArray[np.int64]:
    """The indices of labels, in the shape in which they were given; numbers may be text."""
    array = np.asarray(wanted)
    sought = array.ravel().tolist()
    if any(not isinstance(of, str | int | float) for of in sought):
        raise DataError(f"{name} = {in_words(wanted)}: expected a label, or an array of labels")
    known = {as_label(label): place for place, label in enumerate(labels.tolist())}
    places = [known.get(as_label(label), -1) for label in sought]
    if -1 in places:
        raise DataError(f"{name} {quoted(sought[places.index(-1)])} is not in the ratings")
    return np.array(places, dtype=np.int64).reshape(array.shape)


def histories_of(ratings: Ratings, users: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
    """Return all ratings of some users, given by their indices, as a frame for a model's lists.

    The test set is among them: nobody is recommended what they have rated.
    """
    if users is not None:
        ratings = ratings.take(np.flatnonzero(np.isin(ratings.user, users)))
    frame = {"user": ratings.user_labels[ratings.user], "item": ratings.item_labels[ratings.item]}
    return frame if ratings.implicit else frame | {"rating": ratings.to_raw(ratings.value)}


def number_of_examples(config: Config) -> int:
    """Return how many lists a report of this run shows."""
    public = config.data.dataset in DATASETS
    return config.run.examples if config.run.examples is not None else _EXAMPLES * public


def example_users(ratings: Ratings, number: int) -> NDArray[np.int64]:
    """Return the indices of users, evenly spread over all labels in their order."""
    places = np.linspace(0, ratings.n_users - 1, min(number, ratings.n_users)).astype(int)
    return np.asarray(np.argsort(ratings.user_labels)[places])


def without_figures(reason: str) -> str:
    """Return a reason without how much and how often: that is a statistic of the person."""
    return _OFTEN.sub("more often than ", _HIGHER.sub("above your mean", reason))


def examples_of(model: Model, ratings: Ratings, number: int) -> dict[str, Any] | None:
    """Return the lists of some users, without figures about them; None if there are none."""
    frame = histories_of(ratings, example_users(ratings, number))
    # Without titles, no reason names an item that the person has rated.
    lists = replace(model, titles=None).recommend_many(frame, top=TOP)
    titles = dict(zip(model.items, model.titles or map(str, model.items), strict=True))
    try:
        found = [
            {"user": str(user), "items": [
                {"title": titles[row.item], "predicted": row.predicted,
                 "reason": None if row.reason is None else without_figures(row.reason)}
                for row in rows
            ]}
            for user, rows in lists
        ]  # fmt: skip
    except NothingLearnedError:
        return None
    return {"note": model.verdict().headline, "lists": found} if found else None
