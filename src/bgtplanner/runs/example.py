"""An example federation to start from: app folder, server, clients and certificates."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from bgtplanner.data.datasets import load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.errors import ConfigError, RunFolderError, StorageError
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.compatibility import best_mechanism
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployed import agreed_settings, catalogue_of

_EPSILON, _DELTA, _ROUNDS = 10.0, 1e-5, 3
_COLLUDERS = 1  # the least that protects clients from one another
_FEWEST = {"secagg": _COLLUDERS + 2, "local": 1}  # a sum of two is each other's secret

_FILES = {
    "app.toml": "app/pyproject.toml", "certificates.sh": "certificates.sh",
    "environment": "environment", "flower.toml": "flower/config.toml",
    "server.toml": "server/config.toml",
}  # fmt: skip
_PROGRAMS = sorted(set(TASK_TYPE_TO_COMMAND.values()))
"""What Flower starts by name to run code that a run brings along."""


def write_example(folder: Path, *, clients: int, address: str, trust: str = "secagg") -> None:
    """Write all files of a federation, with made-up ratings for the clients, to an empty folder.

    Under secure aggregation the rosters are missing: they hold the clients' keys, which enrolling
    makes. Clients reach the server at the `address`, HOST:PORT. The users of the demo's ratings
    are divided among the clients.
    """
    host, _, port = address.rpartition(":")
    fits = bool(host) and port.isdigit() and 0 < int(port) < 2**16
    ConfigError.unless(fits, "--address", address, "HOST:PORT, such as 127.0.0.1:8443")
    ConfigError.unless(trust in _FEWEST, "--trust", trust, " or ".join(_FEWEST))
    ratings = load_ratings("demo")
    within = _FEWEST[trust] <= clients <= ratings.n_users
    expected = f"from {_FEWEST[trust]} to {ratings.n_users}, with --trust {trust}"
    ConfigError.unless(within, "--clients", clients, expected)
    folder = folder.absolute()
    plain = not any(letter in str(folder) for letter in "\"'$\\\n ")
    ConfigError.unless(plain, "FOLDER", str(folder), "a path without quotes and spaces")
    # One may fail, or a tenth, if there are enough: see aggregation.neighbourhood.
    dropouts = max(0, min(max(1, clients // 10), (clients - _COLLUDERS - 2) // 2))
    fewest = max(clients - dropouts, 2 * dropouts + _COLLUDERS + 2)
    least = fewest if trust == "secagg" else clients
    accountant = default_accountant(best_mechanism(trust, "client"))
    even = accountant.even_charge(Budget(_EPSILON, _DELTA), _ROUNDS)
    words: dict[str, Any] = {
        "trust": trust, "folder": folder, "bin": Path(sys.executable).parent,
        "address": address, "host": host, "port": port, "clients": clients,
        "least_clients": least, "smallest_group": least - dropouts, "dropouts": dropouts,
        "colluders": _COLLUDERS, "rounds": _ROUNDS, "epsilon": _EPSILON, "rule": accountant.name,
        "largest_charge": f"{2 * even:.3g}", "smallest_charge": f"{even / 100:.2g}",
        "smallest_noise_multiplier": f"{float(accountant.noise_multiplier(2 * even)):.2g}",
        "low": float(ratings.low), "high": float(ratings.high),
    }  # fmt: skip
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RunFolderError(f"{folder}: the folder is not empty; choose another one")
        for name, target in _FILES.items():
            _write(folder / target, name, words)
        for name in _PROGRAMS:
            _write(folder / "pinned" / name, "pinned.sh", words)
        for program in (folder / "certificates.sh", *(folder / "pinned").iterdir()):
            program.chmod(0o755)
        _write_items(folder / "server" / "items.csv", ratings)
        config = load_config(file=folder / "server" / "config.toml")
        words["catalogue"] = catalogue_of(config, folder / "server").digest
        agreed = agreed_settings(config, ratings.n_items).items()
        words["settings"] = "\n".join(f"{name} = {json.dumps(of)}" for name, of in agreed)
        dealt = deal_users(ratings, clients, seed=0)
        for client in range(clients):
            home = folder / "clients" / str(client + 1)
            home.mkdir(parents=True, mode=0o700)
            for name in ("client.toml", "policy.toml"):
                _write(home / name, name, words)
            write_ratings(home / "ratings.csv", dealt, client)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error


def _write(path: Path, template: str, words: dict[str, Any]) -> None:
    """Write a template with its words; lines that are marked with the other trust are left out."""
    file = resources.files("bgtplanner.flower") / "templates" / template
    text = file.read_text(encoding="utf-8")
    if template != "certificates.sh":  # copied as it is: it has dollar signs of its own
        text = re.sub(rf"^@(?!{words['trust']}\b).*\n", "", text, flags=re.M)
        text = Template(re.sub(r"^@\w+ ?", "", text, flags=re.M)).substitute(words)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_items(path: Path, ratings: Ratings) -> None:
    known, labels = ratings.catalogue, ratings.item_labels.tolist()
    titles = labels if known is None or known.titles is None else known.titles.tolist()
    names = () if known is None else known.names
    rows = ratings.features.astype(int).tolist() if names else [[]] * len(labels)
    cells = ([*row, *of] for *row, of in zip(labels, titles, rows, strict=True))
    _write_table(path, ["item", "title", *names], cells)


def write_ratings(path: Path, ratings: Ratings, client: int) -> None:
    """Write the ratings of one client to a file that no one else can read."""
    own = ratings.take(ratings.client == client)
    users, items = ratings.user_labels[own.user], ratings.item_labels[own.item]
    raw = own.to_raw(own.value).round(4).tolist()
    path.touch(mode=0o600)
    _write_table(
        path, ["user", "item", "rating"], zip(users.tolist(), items.tolist(), raw, strict=True)
    )


def _write_table(path: Path, names: list[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
