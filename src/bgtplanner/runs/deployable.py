"""Can these settings run on real machines? Checked before any client is asked for anything."""

from __future__ import annotations

from pathlib import Path

from bgtplanner.data.datasets import parse_scale
from bgtplanner.data.tables import item_names
from bgtplanner.errors import ConfigError
from bgtplanner.flower.check import Finding
from bgtplanner.flower.messages import catalogue_hash
from bgtplanner.flower.server import Catalogue
from bgtplanner.privacy.allowed import Choice, check
from bgtplanner.privacy.quotes import both_readings
from bgtplanner.runs.assembly import accountant_of, promise_of
from bgtplanner.runs.config import Config, load_config

__all__ = ["catalogue_of", "check_deployable", "check_server"]


def check_deployable(config: Config) -> None:
    """Refuse settings that make no sense on real machines, or would release something unpaid.

    Raises:
        ConfigError: Naming the key, its value, and what is possible.
    """
    privacy, planning, federation = config.privacy, config.planning, config.federation
    choice = Choice(privacy.mechanism, privacy.trust, privacy.unit, deployed=True)
    check(choice, "privacy.")  # with local trust, the relation is always replace-one
    learns, made_up = config.learns, "0: real clients need no simulated failures"
    for name, value, fits, expected in (
        ("privacy.budgets", privacy.budgets, privacy.budgets is None, "none: one epsilon for all"),
        ("model.pseudo_items", config.model.pseudo_items, not config.model.pseudo_items, "0"),
        ("model.expansions", config.model.expansions, not config.model.expansions, "0"),
        ("planning.policy", planning.policy, planning.policy != "hindsight", "another one"),
        (
            "planning.context",
            planning.context,
            not learns or planning.context != "usage",
            "none, released or forecast: clients do not say which items they have rated",
        ),
        (
            "planning.reward",
            planning.reward,
            not learns or planning.reward in ("none", "released"),
            "none or released: no charge pays for what clients would say about their ratings",
        ),
        ("planning.target", planning.target, planning.target is None, "none: the RMSE is unknown"),
        ("federation.dropout", federation.dropout, not federation.dropout, made_up),
        ("federation.stragglers", federation.stragglers, not federation.stragglers, made_up),
    ):
        ConfigError.unless(fits, name, value, expected)
    accountant, deployment = accountant_of(config), config.deployment
    expected = "a sound accountant, like gaussian/gdp"
    ConfigError.unless(accountant.sound, "privacy.accounting", accountant.name, expected)
    least, expected = deployment.least_clients, f"at most clients = {deployment.clients}"
    fits = least <= deployment.clients
    ConfigError.unless(fits, "deployment.least_clients", least, expected)


def check_server(config_file: Path) -> list[Finding]:
    """Check the server's settings and its catalogue.

    Raises:
        ConfigError: If a setting makes no sense on real machines.
    """
    config = load_config(file=config_file)
    check_deployable(config)
    privacy, catalogue = config.privacy, catalogue_of(config, config_file.parent)
    means = promise_of(config, privacy.epsilon)
    read = both_readings(privacy.epsilon, means["neighbours"], means["epsilon_other_reading"])
    promise = f"{read}; delta {privacy.delta:g}, {accountant_of(config).name}"
    scale = f"{len(catalogue.items)} items, ratings from {catalogue.low:g} to {catalogue.high:g}"
    return [
        Finding("settings", True, promise),
        Finding("catalogue", True, scale),
        Finding("sha256", True, catalogue_hash(catalogue.items)),
    ]


def catalogue_of(config: Config, home: Path) -> Catalogue:
    """Return what is public about the ratings: the names of the items, and the scale.

    Args:
        config: The settings.
        home: Folder to which a relative path refers.

    Raises:
        ConfigError: If the settings do not give both.
        DataError: If the file is not a list of different names.
    """
    items = config.deployment.items
    if items is None:
        raise ConfigError("deployment.items: expected a file of item names, one per line")
    scale = None if config.data.scale is None else parse_scale(config.data.scale)
    if not isinstance(scale, tuple):
        raise ConfigError(
            f"data.scale = {config.data.scale!r}: expected LOW:HIGH, such as 1:5, because the "
            "largest rating that occurs is not public"
        )
    return Catalogue(item_names(home / items), *scale)
