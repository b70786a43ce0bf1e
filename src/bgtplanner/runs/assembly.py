"""Assemble a run from its config: ratings, model, server, protection, ledger and policy."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.arguments import refuse_unless
from bgtplanner.data.datasets import dataset_info, load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, deal_users, split_ratings
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.federation.coordinator import Coordinator, Engine
from bgtplanner.federation.parameters import noise_of_mean
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.models.learner import Learner
from bgtplanner.models.registry import MODELS
from bgtplanner.paper.accounting import AUTHORS
from bgtplanner.paper.pseudo import PseudoItems
from bgtplanner.planning.policy import LedgerPolicy, Policy
from bgtplanner.planning.registry import CONSTANTS, POLICIES
from bgtplanner.privacy.accountants import Accountant, accountant_named, default_accountant
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.compatibility import UNITS
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.config import Config, effective


def classes_given(
    model: type[Learner] | str | None = None, policy: type[Policy] | str | None = None
) -> dict[str, Any]:
    """Return the settings that a model and a policy given in Python stand for.

    A class of one's own goes by its address, at which it is found in this process; it is made in
    every run from its options.
    """
    settings, asked = dict[str, Any](), "a name or a class; its options are settings, {}.options."
    for what, given, kinds, key in (
        ("model", model, MODELS, "model.name"), ("policy", policy, POLICIES, "planning.policy"),
    ):  # fmt: skip
        fits = given is None or isinstance(given, str | type)
        refuse_unless(fits, what, given, asked.format(key.partition(".")[0]))
        if given is not None:
            settings[key] = given if isinstance(given, str) else kinds.named(given)  # type: ignore[arg-type]
    return settings


def ratings_of(config: Config) -> Ratings:
    """Load the ratings that a config names, with their catalogue."""
    data, seed = config.data, config.run.seed
    same = "data_dir delimiter header scale feedback count_cap items"
    how: dict[str, Any] = {name: getattr(data, name) for name in same.split()}
    for name in ("user", "item", "rating", "weight", "time", "client", "test"):
        how[name] = getattr(data, f"{name}_column")
    how["decimal_comma"] = data.decimal_comma or None
    if data.dataset == "synthetic":
        how["shape"] = config.synthetic.model_dump()
    ratings = load_ratings(data.dataset, seed=seed, **how)
    return ratings if data.clients is None else deal_users(ratings, data.clients, seed=seed)


def ratings_from(frame: Any, settings: Mapping[str, Any]) -> Ratings:
    """Return the ratings in a frame, whose columns and values are what the settings say.

    What they do not say is detected, as in a file.
    """
    columns = {f"data.{role}_column": role for role in ("user", "item", "time", "client", "test")}
    columns |= {"data.rating_column": "value", "data.weight_column": "value"}
    same = ("scale", "feedback", "count_cap", "decimal_comma")
    columns |= {f"data.{key}": key for key in same}
    given = {name: settings[key] for key, name in columns.items() if key in settings}
    if "data.weight_column" in settings:
        given["feedback"] = "clicks"
    if given.get("value") == "none":
        given["value"] = None
    return Ratings.from_frame(frame, **given)


def split_of(config: Config, ratings: Ratings) -> Split:
    """Split the ratings as the config says.

    Raises:
        DataError: If there are too few ratings for a training set and a test set, or no times.
    """
    data, within = config.data, config.data.split
    fits = data.test_column is None or within in ("auto", "marked")
    config.require(("data.split", fits, "marked, since data.test_column marks the test ratings"))
    if within == "auto" and (ratings.test is not None or data.test_column is not None):
        within = "marked"
    elif within == "auto":
        within = "user"
        with contextlib.suppress(ConfigError):  # ratings given in Python may have any name
            within = dataset_info(data.dataset).split_within
    split = split_ratings(
        ratings,
        seed=config.run.seed,
        rounds=config.federation.rounds,
        train_share=data.train_share,
        within=within,
        leave_last=data.leave_last,
        initial_share=data.initial_share,
        arrival=data.arrival,
    )
    if not len(split.test) or not len(split.train):
        raise DataError(
            f"{ratings.name}: too few ratings to hold out a test set "
            f"({len(split.train)} for training, {len(split.test)} for the test); give more, "
            "another data.train_share, or other marks in data.test_column"
        )
    return split


def fingerprint_of(split: Split, key: str = "") -> str:
    """Return a hash of all that a run is trained and tested on: ratings, and features of items.

    Whoever has no `key` cannot tell from it whether a guess at the ratings is right.
    """
    digest = hmac.new(key.encode(), digestmod=hashlib.sha256) if key else hashlib.sha256()
    for part in (split.train, split.test):
        for array in (part.user, part.item, part.value, part.client_of_user):
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(split.arrival.tobytes())
    if (catalogue := split.train.catalogue) is not None:
        digest.update("\0".join((*catalogue.labels, *catalogue.names)).encode())
        digest.update(np.ascontiguousarray(catalogue.features).tobytes())
    return digest.hexdigest()


def people_of(ratings: Ratings) -> str:
    """Return a hash of who has which place in the ledger; ratings play no part in it."""
    labels = "\0".join(map(str, ratings.user_labels.tolist()))
    return hashlib.sha256(labels.encode() + ratings.client_of_user.tobytes()).hexdigest()


def learner_of(config: Config) -> Learner:
    """Return the model that the config names, with its settings."""
    name = config.model.name
    if name in Config.model_fields:
        own: Learner = getattr(config, name)
        return own
    learner: Learner = _made("model.options", MODELS[name], config.model.options)
    return learner


def _made(key: str, kind: Any, options: Mapping[str, Any]) -> Any:
    """Return an object with these options; refuse those that it does not have."""
    try:
        return kind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(kind).parameters)
        raise ConfigError(f"{key}: {error}; expected some of {known}") from error


def federation_of(
    config: Config, n_items: int, *, clients: int | None = None, implicit: bool = False
) -> Federation:
    """Return what is learned and how.

    By the number of clients, and whether their data are `implicit` and not ratings, a learner
    chooses the settings that were left open.
    """
    privacy, protection, learner = config.privacy, None, learner_of(config)
    if clients is not None:
        noise = _whole_noise(config, clients)
        learner = learner.suited(clients, n_items, noise, implicit=implicit)
    if config.private:
        protection = Protection(
            mechanism=privacy.mechanism, trust=privacy.trust, unit=privacy.unit
        )
    return Federation(
        model=learner,
        server=config.server,
        participation=config.federation.participation,
        protection=protection,
        extras=_extras_of(config, n_items),
    )


def _whole_noise(config: Config, clients: int) -> float:
    """Return the noise on the sum of all uploads, over the clip, for the whole budget at once."""
    privacy = config.privacy
    if not config.private:
        return 0.0
    budgets, accountant = budgets_of(config, clients), accountant_of(config)
    charges = np.array([accountant.capacity(budget) for budget in budgets.classes])
    numbers = np.bincount(budgets.class_of_client, minlength=len(charges))
    mean = noise_of_mean(
        accountant, privacy.trust, 1.0, charges, numbers, privacy.relation,
        tolerance=config.federation.tolerance,
    )  # fmt: skip
    return mean * int(numbers.sum())


def _extras_of(config: Config, n_items: int) -> PseudoItems | None:
    number = config.model.pseudo_items
    if number == "auto":
        number = dataset_info("demo").pseudo_items
        with contextlib.suppress(ConfigError):
            number = dataset_info(config.data.dataset).pseudo_items
    return PseudoItems(min(number, n_items)) if number else None  # there are no more items


def accountant_of(config: Config) -> Accountant:
    """Return the accountant: how charges add up."""
    mechanism, name = config.privacy.mechanism, config.privacy.accounting
    if name == "auto":
        return default_accountant(mechanism)
    if name == "authors":
        name = AUTHORS.get(mechanism, "laplace/basic")
    try:
        accountant = accountant_named(name)
    except ConfigError as error:
        raise ConfigError(f"privacy.{error}") from error
    fits = accountant.mechanism == mechanism
    ConfigError.unless(fits, "privacy.accounting", name, f"an accountant for {mechanism} noise")
    return accountant


def promise_of(config: Config, epsilon: float) -> dict[str, Any]:
    """Return the neighbouring relation of a run, and how its epsilon reads under the other one.

    The other reading is None if nothing is promised to a whole client.
    """
    privacy, accountant = config.privacy, accountant_of(config)
    whole = UNITS[privacy.unit].sound and accountant.sound
    budget = Budget(epsilon, privacy.delta)
    other = accountant.other_promise(budget, privacy.relation) if whole else None
    return {"neighbours": privacy.relation, "epsilon_other_reading": other}


def budgets_of(config: Config, n_clients: int) -> Budgets:
    """Return what every client may spend."""
    given, delta = config.privacy.budgets, config.privacy.delta
    if given is None:
        return Budgets.same(Budget(config.privacy.epsilon, delta), n_clients)
    try:
        return Budgets.shares(given, n_clients, delta=delta, seed=config.run.seed)
    except ConfigError as error:
        raise ConfigError(f"--{error}") from error


def ledger_of(config: Config, clients: int, path: Path | None = None) -> Ledger:
    """Return the ledger at a path, opened if it exists, or one in memory."""
    budgets, accountant = budgets_of(config, clients), accountant_of(config)
    relation = config.privacy.relation
    if path is None:
        return Ledger.in_memory(budgets, accountant, neighbours=relation)
    if path.exists():
        return Ledger.open(path, budgets=budgets, accountant=accountant, neighbours=relation)
    return Ledger.create(path, budgets, accountant, neighbours=relation)


def coordinator_of(
    config: Config, engine: Engine, mark: str, kept: Ledger | Path | None, run: str = "simulation"
) -> Coordinator:
    """Put policy and ledger around a federation; open the ledger if it is a file that exists."""
    planning, federation = config.planning, config.federation
    ledger = kept if isinstance(kept, Ledger) else ledger_of(config, engine.n_clients, kept)
    return Coordinator(
        engine,
        policy_of(config, ledger),
        ledger,
        trust=config.privacy.trust,
        run=run,
        # A round's inputs are the settings, what `mark` stands for, and its number.
        mark=json.dumps([effective(config), mark]).encode(),
        context=planning.context,
        reward=planning.reward,
        values=planning.context_size,
        participation=federation.participation,
        dropout=federation.dropout,
        tolerance=federation.tolerance,
        stops=federation.after_budget == "stop",
        seed=config.run.seed,
    )


def policy_of(config: Config, ledger: Ledger) -> Policy:
    """Return the policy that the config names, with its options, spending from a ledger."""
    planning, rounds = config.planning, config.federation.rounds
    kind, constants = POLICIES[planning.policy], planning.constants
    options: dict[str, Any] = {"rounds": rounds, "clip": config.privacy.clip}
    options["seed"] = config.run.seed
    if config.federation.participation < 1:
        options["participation"] = config.federation.participation
    if config.privacy.trust != "local" and issubclass(kind, LedgerPolicy):
        options["trust"] = config.privacy.trust
    if planning.policy in ("bgt", "random"):
        wide = {"levels": planning.levels, "min_rounds": planning.min_rounds}
        options |= {name: value for name, value in wide.items() if value is not None}
    if planning.policy == "bgt" and constants in ("own", "repaired"):
        options |= {"objective": planning.goal.kind, "traffic": planning.goal.traffic}
    if planning.policy == "bgt" and constants != "own":
        kind = CONSTANTS[constants]
        choice = rounds == 1 or (planning.min_rounds or 0) < rounds
        expected = f"fewer than --rounds = {rounds}, since otherwise all levels cost the same"
        config.require(("planning.min_rounds", choice, expected))
    policy: Policy = _made(
        "planning.options", kind, options | planning.options | {"ledger": ledger}
    )
    return policy
