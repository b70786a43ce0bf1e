"""Train on all ratings, for a model file that can be published: real noise, nothing held out."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import bgtplanner
from bgtplanner.arguments import as_path, as_settings, refuse_unless
from bgtplanner.data.catalogue import Catalogue, read_items
from bgtplanner.data.datasets import DATASETS, path_of
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.errors import BudgetExceeded, ConfigError, RunFolderError, StorageError
from bgtplanner.federation.central import CentralTraining
from bgtplanner.federation.compilation import use_compilation_cache
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.federation.rounds import State
from bgtplanner.models.bias import Biases
from bgtplanner.models.continued import continued, sums_of
from bgtplanner.models.learner import Learner, model_of
from bgtplanner.privacy.accountants import TICK, Accountant, guessed_right, meaning_of
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.privacy.randomness import SeededNoise
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.published.model import Model, load_model
from bgtplanner.runs import assembly
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.continuing import People, people_in, places_in, refuse_unpaid
from bgtplanner.runs.folder import read_arrays, write_arrays
from bgtplanner.runs.loop import Run
from bgtplanner.runs.result import not_private
from bgtplanner.runs.settings import TRAINING

Public = Literal["catalogue", "scale"]
Progress = Callable[[int, int, float], None]

_FIXED: dict[str, Any] = {
    "data.initial_share": 1.0,  # nothing arrives later
    "privacy.mechanism": "gaussian",
    "privacy.trust": "secagg",  # the sum is noised once, as whoever is trusted does
    "federation.most_dropouts": 0.0,
    "federation.most_colluders": 0.0,
    "federation.after_budget": "stop",
    "planning.objective": "last",  # what counts is the model that is published
    "planning.reward": "released",
    "planning.context": "released",
}
"""Settings that a training has and that cannot be chosen."""

_TRUSTED = {
    "central": "Whoever ran the training held the ratings, and was trusted with them.",
    "local": "Ratings stayed with their clients, whose uploads are noised: no one was trusted.",
    "secagg": "Ratings stayed with their clients, and the server saw sums only. This holds while "
    "at most {colluders:g} of a sum's clients collude with the server; if more than {dropouts:g} "
    "drop out, it is not opened (below 1: a share of them).",
}


def train(
    ratings: Any, *, items: Any = None, scale: tuple[float, float] | str | None = None,
    clicks: bool = False, assume_public: Sequence[Public] = (),
    epsilon: float = TRAINING["privacy.epsilon"], model: type[Learner] | str | None = None,
    ledger: Path | str | None = "auto", ledger_epsilon: float | None = None,
    continue_from: Model | Path | str | None = None,
    renamed: Mapping[Any, Any] | Path | str | None = None, out: Path | str | None = None,
    overwrite: bool = False, key: bytes | None = None, seed: int | None = None,
    settings: Mapping[str, Any] | None = None, progress: Progress | None = None,
) -> Model:  # fmt: skip
    """Train on all ratings and return a model that may be published.

    Args:
        ratings: The path of a table, the name of a data set, a frame, or ratings.
        items: The public catalogue: the path of a table of items, or a catalogue.
        scale: The smallest and the largest rating there can be, such as ``(1, 5)``.
        clicks: Whether there are no ratings, only clicks, plays or purchases.
        assume_public: What may be read off the ratings although it reveals something about
            people: ``catalogue``, which items occur, and ``scale``. The model then says so.
        epsilon: What all trainings with this ledger together may reveal about a person.
        model: ``tastes``, ``biases``, ``factorization``, or a class.
        ledger: The file that counts what was spent; by default beside the ratings. With None,
            nothing is counted beyond this training, and the model says so. It knows people by
            their labels: who joins, leaves or comes back is noted there.
        ledger_epsilon: What a new ledger promises for all trainings that it will ever pay for,
            if that is more than `epsilon`, which this training must not exceed.
        continue_from: A model that this training goes on from, which the same ledger has paid
            for; items, scale and kind of model are its own unless others are given.
        renamed: New labels of the old model's items by old ones, or a table of them. Two that
            have the same new label are merged.
        out: The model file to write. An interrupted training goes on from the state beside it.
        overwrite: Whether to replace it, and to begin anew. What was spent stays spent.
        key: An Ed25519 private key, which signs the file.
        seed: Makes the noise repeatable, for experiments: the model says that it is not private.
        settings: Other config keys, such as ``{"privacy.delta": 1e-6}``; these win.
        progress: Is called with the round, the number of rounds, and the share that was spent.

    Example:
        >>> made = train("demo", ledger=None, settings={"federation.rounds": 2})
        >>> len(made.recommend({}, top=3))
        3
    """
    given = {"privacy.epsilon": epsilon, **assembly.classes_given(model), **as_settings(settings)}
    old = load_model(continue_from) if isinstance(continue_from, str | Path) else continue_from
    if old is not None:  # its kind, its scale and its items, unless others are given
        given, clicks = {"model.name": old.ranker} | given, clicks or old.implicit
        known = (
            clicks or "data.scale" in given or (isinstance(ratings, str) and ratings in DATASETS)
        )
        scale = scale if scale or known else (old.low, old.high)
    if seed is not None:
        given = {"run.seed": seed} | given
    config, data = _read(ratings, items, scale, clicks, given)
    if old is not None and data.catalogue is None:
        data = data.with_catalogue(Catalogue.of(old))
    place = None if old is None else places_in(old, data, renamed)
    assumed = _assumed(data, assume_public, old)
    target = None if out is None else as_path("out", out)
    if target is not None and target.exists() and not (overwrite and target.is_file()):
        raise RunFolderError(f"--out {target}: exists; name another file, or give --overwrite")
    state = None if target is None else target.with_name(f"{target.name}.state")
    if ledger == "auto":  # beside the ratings, or beside the model
        beside = path_of(config.data.dataset) if isinstance(ratings, str | Path) else None
        ledger = None if (beside or target) is None else f"{beside or target}.ledger.sqlite"
    if state is not None and overwrite:
        state.unlink(missing_ok=True)
    pays = None if state is None else (read_arrays(state) or {}).get("pays")
    path = None if ledger is None else Path(ledger)
    if old is not None and seed is None:
        refuse_unpaid(old, path)
    people = people_in(data, config, path, ledger_epsilon or config.privacy.epsilon, pays)
    with people.ledger or nullcontext():
        training = _Training(config, people, old, place, seed, state, progress)
        made = training.published(assumed)
    if target is not None and state is not None:
        made.save(target, key=key)
        state.unlink(missing_ok=True)
    return made


def _read(
    ratings: Any, items: Any, scale: Any, clicks: bool, given: dict[str, Any]
) -> tuple[Config, Ratings]:
    """Return the config of a training, and its ratings with their catalogue."""
    named = {"data.dataset": "demo", **TRAINING}
    if isinstance(ratings, str | Path):
        known = str(ratings) in DATASETS or path_of(str(ratings)) is not None
        named["data.dataset"] = str(ratings) if known else f"csv:{ratings}"
    if isinstance(items, str | Path):
        named["data.items"] = str(items)
    if scale is not None:
        named["data.scale"] = scale if isinstance(scale, str) else ":".join(map(str, scale))
    if clicks:
        named["data.rating_column"] = "none"
    chosen = named | given
    for name in _FIXED.keys() & chosen.keys():
        raise ConfigError(f"{name}: is fixed in a training; leave it out, or use `run`")
    unscaled = not clicks or chosen.get("data.scale") is None
    ConfigError.unless(unscaled, "scale", chosen.get("data.scale"), "nothing: clicks have none")
    config = load_config(preset="recommended", settings=chosen | _FIXED)
    use_compilation_cache()
    if isinstance(ratings, str | Path):
        data, items = assembly.ratings_of(config), None if isinstance(items, str | Path) else items
    else:
        frame = not isinstance(ratings, Ratings)
        data = assembly.ratings_from(ratings, chosen) if frame else ratings
    if items is not None:
        data = data.with_catalogue(items if isinstance(items, Catalogue) else read_items(items))
    if data.test is not None or config.data.split == "marked":
        raise ConfigError("data.test_column, data.split: a training holds nothing out; use `run`")
    return config, data


def _assumed(ratings: Ratings, assume_public: Sequence[str], old: Model | None) -> list[str]:
    """Return what was read off the ratings, now or before, and is assumed to be public.

    What is read off now is refused unless that is said.
    """
    told = [] if old is None else old.guarantee.get("not_accounted", [])
    flags = {"catalogue": "--items items.csv", "scale": "--scale LOW:HIGH"}
    unknown = ",".join(name for name in assume_public if name not in flags)
    ConfigError.unless(not unknown, "assume_public", unknown, "catalogue or scale")
    public = ratings.public | ({"scale"} if ratings.name in DATASETS else set())  # known to all
    read = [name for name in flags if name not in public]
    for name in read:
        if name not in assume_public:
            raise ConfigError(
                f"the {name} would be read off the ratings, and shows something about people: "
                f"give {flags[name]}, or say --assume-public {name} if everybody may know it"
            )
    return [name for name in flags if name in read or f"{name} of the ratings" in told]


class _Training(Run):
    """A training in progress: the ratings, the ledger that pays, and the state to go on from.

    The state is in a file beside the model, which only its owner can read, since it holds what
    clients would keep to themselves. It is deleted when the model is there.
    """

    engine: CentralTraining
    planned: Coordinator

    def __init__(
        self, config: Config, people: People, old: Model | None, place: Any, seed: int | None,
        state: Path | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        if people.ledger is not None and not people.pays.any():
            raise BudgetExceeded(
                "the budget in the ledger is spent by earlier trainings: nothing more may be "
                "released about these people, whatever the model is for; --epsilon is that of "
                "all trainings together", charge=TICK, left=0.0,
            )  # fmt: skip
        ratings, whole = people.ratings, list[Any]([config.model_dump(mode="json")])
        nothing = ratings.take(np.zeros(0, dtype=np.int64))
        split = Split(train=ratings, test=nothing, arrival=np.zeros(len(ratings), dtype=np.int32))
        refuse_unless(len(ratings) > 0, "ratings", ratings, "at least one rating")
        federation = assembly.federation_of(
            config, ratings.n_items, clients=int(people.pays.sum()), implicit=ratings.implicit
        )
        model = federation.model
        if old is not None and isinstance(model, Biases) and "count_weight" in old.settings:
            model = replace(model, count_weight=old.settings["count_weight"])  # or sums differ
            federation = replace(federation, model=model)
        if type(model).publishes is Learner.publishes:  # before anything is spent
            name = config.model.name
            raise ConfigError(f"--model {name}: publishes no model file; use tastes or biases")
        engine = CentralTraining(federation, split, seed=config.run.seed, device=config.run.device)
        if seed is not None:
            engine.noise = SeededNoise(seed)
        engine.here = people.pays
        super().__init__(config, engine, None)
        self.people, self.old, self.seeded = people, old, seed is not None
        self.state, self.progress = state, progress
        if old is not None:
            shared, local, memory = engine.state
            shared, memory = continued(
                model, shared, memory, federation.server, old, place, config.privacy.clip,
                people.change(old),
            )  # fmt: skip
            engine.state = State(shared, local, memory)
            whole += [old.guarantee, old.training, place.tolist()]
        whole.append(assembly.fingerprint_of(split))
        self.mark = np.frombuffer(json.dumps(whole, sort_keys=True).encode(), np.uint8)
        # Under a name that was never used, a round whose outcome was lost is paid for again.
        once = secrets.token_hex(16)  # no hash of the ratings: who has the ledger could guess
        run = f"train-{secrets.token_hex(8)}"
        self.planned = assembly.coordinator_of(config, engine, once, people.ledger, run)

    @property
    def kept(self) -> str | None:
        """What continues the training, if its state is kept."""
        said = f"the same command. Until then, {self.state} holds private data"
        return said if self.state else None

    def save(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Replace the file of the state."""
        if self.state is not None:
            try:
                write_arrays(self.state, {**arrays, "mark": self.mark, "pays": self.people.pays})
            except OSError as error:
                raise StorageError.of(self.state, error, "the same command goes on") from error

    def saved(self) -> dict[str, NDArray[Any]] | None:
        """Return what was saved last, if this is the same training; None if nothing was."""
        arrays = None if self.state is None else read_arrays(self.state)
        if arrays is not None and arrays.pop("mark", np.zeros(0)).tobytes() != self.mark.tobytes():
            raise RunFolderError(
                f"{self.state}: a training with other settings or other ratings was interrupted "
                "here; go on with those, or begin anew with --overwrite"
            )
        return arrays

    def tell(self, record: Mapping[str, Any]) -> None:
        """Say how far the training is."""
        if self.progress is not None:
            rounds = self.config.federation.rounds
            self.progress(record["round"] + 1, rounds, 1.0 - max(record["left"]))

    def published(self, assumed: Sequence[str]) -> Model:
        """Play all rounds, or all after the saved state, and return the model."""
        self.go_on()
        if self.state is not None and not self.engine.next_round:
            self.save(self._state(0.0))  # nothing is spent if it cannot be written
            self.state.unlink()
        ledger, engine, old = self.planned.ledger, self.engine, self.old
        budget, counted = ledger.budgets.classes[0], self.people.ledger is not None
        self.carry_out()
        spent = float(ledger.epsilon_spent().max())
        paid = self.people.pays if old is None else (ledger.spent() > 0).any(axis=0)
        people = int(paid.sum())
        number = 1 if old is None else 1 + int(old.training.get("trainings", 1))
        promise = not_private(people)
        if not self.seeded:
            promise = guarantee_of(
                Budget(max(budget.epsilon, spent), budget.delta), ledger.accountant,
                ledger.neighbours, people=people, assumed=assumed, counted=counted,
                trainings=number,
            )  # fmt: skip
        if counted:
            promise |= {"epsilon_spent": spent, "ledger_head": str(ledger.head)}
        trained: dict[str, Any] = {"model": self.config.model.name, "rounds": engine.next_round}
        trained |= {"trainings": number} | ({"people": self.people.counts(old)} if counted else {})
        shared, _, memory = engine.state
        sums, trained["sums"] = sums_of(shared, memory, self.config.privacy.clip)
        made = model_of(
            engine.federation.model, shared, memory, self.people.ratings, learned=engine.learned,
            guarantee=promise, training={"bgtplanner": bgtplanner.__version__, **trained},
        )  # fmt: skip
        return made if sums is None else replace(made, sums=sums.astype(np.float32))


def guarantee_of(
    budget: Budget, accountant: Accountant, neighbours: Neighbours, *,
    people: int, assumed: Sequence[str] = (), counted: bool = False, trust: str = "central",
    tolerance: Tolerance | None = None, trainings: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Return what the file of a training promises, in numbers and in sentences.

    `assumed` was read off the ratings and taken to be public. Other trainings on them are
    `counted` if there is a ledger; the file holds what `trainings` of them have released.
    """
    epsilon, delta = budget.epsilon, budget.delta
    right = math.ceil(100 * guessed_right(epsilon, delta, accountant.mechanism))
    other = accountant.other_promise(budget, neighbours)
    sentences = [
        f"({epsilon:g}, {delta:g})-differential privacy for each of {people:,} people, against "
        "whoever has this file.",
        meaning_of(epsilon, neighbours, other),
        f"Whoever knows everything else and guesses whether that is so is right at most "
        f"{right} times in 100; a coin is right 50 times.",
    ]
    dropouts, colluders = tolerance if trust == "secagg" and tolerance else (None, None)
    sentences.append(_TRUSTED[trust].format(dropouts=dropouts, colluders=colluders))
    sentences.append("Who takes part is not hidden, nor is how many people do.")
    if trainings > 1:
        sentences.append(f"This counts all {trainings} trainings that the model has come from.")
    not_accounted = [f"{name} of the ratings" for name in assumed]
    if assumed:
        sentences.append(f"This holds only if these were public: {' and '.join(assumed)}.")
    if not counted:
        not_accounted.append("other trainings on the same ratings")
        kept = "No ledger was kept" if trust == "central" else "Only clients' ledgers count all"
        sentences.append(f"{kept}: other trainings on the same ratings are not counted.")
    if delta * people > 1:
        sentences.append("Delta is above 1 in the number of people: this is no strong promise.")
    return {
        "private": True, "epsilon": epsilon, "delta": delta, "neighbours": neighbours,
        "epsilon_other_reading": other, "trust": trust, "unit": "client",
        "most_dropouts": dropouts, "most_colluders": colluders,
        "mechanism": accountant.mechanism, "accounting": accountant.name, "people": people,
        "not_accounted": not_accounted, "sentences": sentences,
    }  # fmt: skip
