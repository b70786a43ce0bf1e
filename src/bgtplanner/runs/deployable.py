"""Can these settings run on real machines? Checked before any client is asked for anything."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.data.catalogue import read_items
from bgtplanner.data.datasets import parse_scale
from bgtplanner.data.tables import item_names
from bgtplanner.errors import ConfigError, DataError, MessageError
from bgtplanner.federation.aggregation.neighbourhood import degree_and_threshold
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.check import Finding, finding
from bgtplanner.flower.messages import SentCatalogue
from bgtplanner.flower.server import Group
from bgtplanner.models.learner import settings_of
from bgtplanner.privacy.accountants import both_readings
from bgtplanner.privacy.compatibility import Choice, check
from bgtplanner.runs.assembly import accountant_of, federation_of, promise_of
from bgtplanner.runs.config import Config, load_config

_TABLES = (".csv", ".tsv", ".parquet", ".pq")
_ZIPPED = ".gz"
_DELIMITERS = (b",", b"\t", b";", b"|")


def group_of(config: Config, folder: Path) -> Group | None:
    """Return with whom sums are made; None if every client noises its own upload.

    Raises:
        ConfigError: If the roster has another number of clients than the settings, or no sum of
            so few can be made.
    """
    settings = config.deployment
    if settings.roster is None:
        return None
    path = folder / settings.roster
    if not path.exists():
        advice = "collect the lines of 'bgtplanner deploy enroll' with 'bgtplanner deploy roster'"
        raise ConfigError(f"{path}: no such file; {advice}")
    roster = Roster.read(path)
    expected = f"{len(roster)}, as in {settings.roster}"
    fits = settings.clients == len(roster)
    ConfigError.unless(fits, "deployment.clients", settings.clients, expected)
    group = Group(roster, config.federation.tolerance, config.privacy.relation)
    _borne_by(group, _asked(config, len(roster)))
    return group


def _asked(config: Config, connected: int) -> int:
    """Return how many clients are asked in a round, of those connected."""
    return max(1, round(config.federation.participation * connected))


def _borne_by(group: Group, members: int) -> tuple[int, int]:
    """Return how many of a sum's members may drop out and collude, or say that none is made."""
    try:
        tolerated = group.tolerance.of(members)
        degree_and_threshold(members, *tolerated)
    except ConfigError as error:
        names = "federation.most_dropouts, federation.most_colluders"
        raise ConfigError(f"{names}: {error}") from error
    return tolerated


def check_deployable(config: Config) -> None:
    """Refuse settings that make no sense on real machines, or would release something unpaid.

    Raises:
        ConfigError: Naming the key, its value, and what is possible.
    """
    privacy, planning, deployment = config.privacy, config.planning, config.deployment
    choice = Choice(
        privacy.mechanism, privacy.trust, privacy.unit, deployed=True, neighbours=privacy.relation
    )
    check(choice, "privacy.")
    grouped, learns = privacy.trust != "local", config.learns
    least, real = deployment.least_clients, "0: real clients need no simulated failures"
    for key, fits, expected in (
        ("privacy.accounting", accountant_of(config).sound,
         "a sound accountant, like gaussian/gdp"),
        ("deployment.roster", (deployment.roster is not None) == grouped,
         "a roster with privacy.trust = secagg, and none without"),
        ("privacy.budgets", privacy.budgets is None, "none: one epsilon for all"),
        ("model.pseudo_items", not config.model.pseudo_items, "0"),
        ("model.expansions", not config.model.expansions, "0"),
        ("planning.context", not learns or planning.context != "usage",
         "none, released or forecast: clients do not say which items they have rated"),
        ("planning.reward", not learns or planning.reward in ("none", "released"),
         "none or released: no charge pays for what clients would say about their ratings"),
        ("planning.target", planning.target is None, "none: the RMSE is unknown"),
        ("federation.dropout", not config.federation.dropout, real),
        ("federation.stragglers", not config.federation.stragglers, real),
        ("deployment.least_clients", least <= deployment.clients,
         f"at most clients = {deployment.clients}"),
    ):  # fmt: skip
        section, _, name = key.partition(".")
        ConfigError.unless(fits, key, getattr(getattr(config, section), name), expected)


def check_server(config_file: Path) -> list[Finding]:
    """Check the server's settings, its catalogue, and with whom sums are made.

    Raises:
        ConfigError: If a setting makes no sense on real machines.
    """
    config = load_config(file=config_file)
    check_deployable(config)
    epsilon, catalogue = config.privacy.epsilon, catalogue_of(config, config_file.parent)
    number, features = catalogue.features.shape
    about = f"{number} items, {features or 'no'} features{', titles' * bool(catalogue.titles)}"
    means = promise_of(config, epsilon)
    read = both_readings(epsilon, means["neighbours"], means["epsilon_other_reading"])
    settings = agreed_settings(config, number)
    pinned = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    model = json.dumps(config.model.name) if ":" in config.model.name else config.model.name
    promise = f"{read}; delta {config.privacy.delta:g}, {accountant_of(config).name}"
    scale = f"ratings from {catalogue.low:g} to {catalogue.high:g}"
    found = [
        Finding("settings", True, promise),
        Finding("model", True, f"[settings.{model}] {pinned}" if pinned else f"{model}, defaults"),
        Finding("catalogue", True, f"{about}, {scale}"),
        Finding("sha256", True, catalogue.digest),
    ]
    try:
        group = group_of(config, config_file.parent)
    except ConfigError as error:
        return [*found, Finding("roster", False, str(error))]
    if group is not None:
        roster = f"{len(group.roster)} clients; digest {group.roster.digest.hex()}"
        found += [
            Finding("roster", True, roster), finding("sums", lambda: _what_sums_bear(config, group))
        ]  # fmt: skip
    return found


def _what_sums_bear(config: Config, group: Group) -> str:
    """Return what a round bears, and what clients' policies may insist on."""
    asked, least = _asked(config, len(group.roster)), config.deployment.least_clients
    fewest = _asked(config, least)
    dropouts, colluders = group.tolerance.of(asked)
    try:
        gone, bad = _borne_by(group, fewest)
    except ConfigError as error:
        raise ConfigError(f"deployment.least_clients = {least}: {error}") from error
    surplus = math.sqrt(asked / group.tolerance.honest(asked)) - 1
    return (
        f"of {asked} clients {dropouts} may drop out and {colluders} collude; if all answer, the "
        f"noise is {surplus:.0%} above what is promised; policies: smallest_group at most "
        f"{fewest - gone}, colluders at most {bad}"
    )


def agreed_settings(config: Config, n_items: int) -> dict[str, Any]:
    """Return the settings of the model that clients' policies must name: all but its defaults.

    Those that were left open are chosen by the number of clients and items and by the budget.
    """
    model = federation_of(config, n_items, clients=config.deployment.clients).model
    try:
        usual = settings_of(type(model)())
    except TypeError:  # a model of one's own, with settings that have no default
        usual = {}
    return {key: of for key, of in settings_of(model).items() if usual.get(key, model) != of}


def catalogue_of(config: Config, home: Path) -> SentCatalogue:
    """Return what is public: the items with their titles and features, and the scale.

    The items are either a list, one name per line, or a table (CSV or Parquet) with their names,
    titles and features.

    Args:
        config: The settings.
        home: Folder to which a relative path refers.

    Raises:
        ConfigError: If the settings do not give both.
        DataError: If the file is neither a list of different names nor a table of items.
    """
    items = config.deployment.items
    if items is None:
        raise ConfigError(
            "deployment.items: expected a file of item names, one per line, or a table of items"
        )
    scale = None if config.data.scale is None else parse_scale(config.data.scale)
    if not isinstance(scale, tuple):
        raise ConfigError(
            f"data.scale = {config.data.scale!r}: expected LOW:HIGH, such as 1:5, because the "
            "largest rating that occurs is not public"
        )
    path = home / items
    if not _is_table(path):
        names = item_names(path)
        none = np.zeros((len(names), 0), dtype=np.float32)
        return SentCatalogue(items=names, low=scale[0], high=scale[1], features=none)
    made = SentCatalogue.of(read_items(path), *scale)
    try:
        return SentCatalogue.read(made.record())
    except MessageError as error:
        raise DataError(f"cannot be sent to clients: {error}", path=path) from error


def _is_table(path: Path) -> bool:
    """Return whether a file holds more than a name per line: by its ending and its first line.

    Names may contain any delimiter, so that the content alone would not tell.
    """
    name = path.name.lower()
    if not name.removesuffix(_ZIPPED).endswith(_TABLES):
        return False
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 16)
    except OSError:
        return True  # reading it says what is wrong
    packed = first.startswith((b"PAR1", b"\x1f\x8b"))
    return packed or any(delimiter in first for delimiter in _DELIMITERS)
