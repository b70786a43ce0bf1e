"""An example federation to start from: app folder, server, clients, certificates and services."""

from __future__ import annotations

import csv
import re
import sys
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
from bgtplanner.runs.deployable import agreed_settings, catalogue_of

_EPSILON, _DELTA, _ROUNDS = 10.0, 1e-5, 3
_COLLUDERS = 1  # the least that protects clients from one another
_FEWEST = {"secagg": _COLLUDERS + 2, "local": 1}  # a sum of two is each other's secret

_FILES = {
    "app.toml": "app/pyproject.toml",
    "certificates.sh": "certificates.sh",
    "environment": "environment",
    "flower.toml": "flower/config.toml",
    "superlink.service": "systemd/bgtplanner-superlink.service",
    "supernode.service": "systemd/bgtplanner-supernode.service",
} | {  # programs that Flower starts by name to run code that a run brings along
    f"pinned.sh {name}": f"pinned/{name}" for name in set(TASK_TYPE_TO_COMMAND.values())
}


def write_example(
    folder: Path,
    *,
    clients: int,
    address: str,
    trust: str = "secagg",
    ratings: Ratings | None = None,
) -> None:
    """Write all files of a federation, with made-up ratings for the clients.

    Under secure aggregation the rosters are missing: they hold the clients' keys, which enrolling
    makes. Clients reach the server at the `address`, HOST:PORT. The users of the ratings, by
    default those of the demo, are divided among the clients.

    Raises:
        ConfigError: If the address, the number, the trust or the path is not usable.
        RunFolderError: If the folder is not empty: nothing is overwritten.
        StorageError: If the files cannot be written.
    """
    host, colon, port = address.rpartition(":")
    fits = bool(host) and colon == ":" and port.isdigit() and 0 < int(port) < 2**16
    ConfigError.unless(fits, "--address", address, "HOST:PORT, such as 127.0.0.1:8443")
    ConfigError.unless(trust in _FEWEST, "--trust", trust, " or ".join(_FEWEST))
    ratings = load_ratings("demo") if ratings is None else ratings
    within = _FEWEST[trust] <= clients <= ratings.n_users
    expected = f"from {_FEWEST[trust]} to {ratings.n_users}, with --trust {trust}"
    ConfigError.unless(within, "--clients", clients, expected)
    folder = folder.absolute()
    if any(letter in str(folder) for letter in "\"'$\\\n "):
        raise ConfigError(f"FOLDER = {str(folder)!r}: expected a path without quotes and spaces")
    # One may fail, or a tenth, if there are enough: see aggregation.neighbourhood.
    dropouts = max(0, min(max(1, clients // 10), (clients - _COLLUDERS - 2) // 2))
    fewest = max(clients - dropouts, 2 * dropouts + _COLLUDERS + 2)
    least = fewest if trust == "secagg" else clients
    accountant = default_accountant(best_mechanism(trust, "client", validates=False))
    even = accountant.even_charge(Budget(_EPSILON, _DELTA), _ROUNDS)
    words: dict[str, Any] = {
        "trust": trust, "folder": folder, "bin": Path(sys.executable).parent,
        "address": address, "host": host, "port": port, "clients": clients,
        "least_clients": least, "smallest_group": least - dropouts, "dropouts": dropouts,
        "colluders": _COLLUDERS, "rounds": _ROUNDS, "epsilon": _EPSILON, "rule": accountant.name,
        "largest_charge": f"{2 * even:.3g}", "smallest_charge": f"{even / 100:.2g}",
        "smallest_noise_multiplier": f"{float(accountant.noise_multiplier(2 * even)):.2g}",
        "low": float(ratings.low), "high": float(ratings.high),
        "hardening": _filled("hardening", {}).rstrip("\n"),  # the same for both services
    }  # fmt: skip
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RunFolderError(f"{folder}: the folder is not empty; choose another one")
        _write_server(folder / "server", ratings, words)
        for name, target in _FILES.items():
            _write(folder / target, _filled(name.partition(" ")[0], words))
        for program in (folder / "certificates.sh", *(folder / "pinned").iterdir()):
            program.chmod(0o755)
        dealt = deal_users(ratings, clients, seed=0)
        for client in range(clients):
            home = folder / "clients" / str(client + 1)
            home.mkdir(parents=True, mode=0o700)
            _write(home / "client.toml", _filled("client.toml", words))
            _write(home / "policy.toml", _filled("policy.toml", words))
            write_ratings(home / "ratings.csv", dealt, client)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error


def _write_server(home: Path, ratings: Ratings, words: dict[str, Any]) -> None:
    """Write the server's files, and add what the clients' policies follow from."""
    known, labels = ratings.catalogue, ratings.item_labels.tolist()
    titles = labels if known is None or known.titles is None else known.titles.tolist()
    names = () if known is None else known.names
    rows = ratings.features.astype(int).tolist() if names else [[]] * len(labels)
    _write(home / "config.toml", _filled("server.toml", words))
    with (home / "items.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "title", *names])
        writer.writerows([*row, *of] for *row, of in zip(labels, titles, rows, strict=True))
    config = load_config(file=home / "config.toml")
    words["catalogue"] = catalogue_of(config, home).digest
    words["axes"] = agreed_settings(config, ratings.n_items)["axes"]


def _filled(name: str, words: dict[str, Any]) -> str:
    """Return a template with its words; lines marked with another trust are left out."""
    file = resources.files("bgtplanner.flower") / "templates" / name
    text = file.read_text(encoding="utf-8")
    if name == "certificates.sh":  # copied as it is: it has dollar signs of its own
        return text
    other = "local" if words.get("trust") == "secagg" else "secagg"
    text = re.sub(rf"^@{other}\b.*\n", "", text, flags=re.M)
    return Template(re.sub(r"^@\w+ ?", "", text, flags=re.M)).substitute(words)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_ratings(path: Path, ratings: Ratings, client: int) -> None:
    """Write the ratings of one client to a file that no one else can read."""
    own = ratings.take(ratings.client == client)
    users, items = ratings.user_labels[own.user], ratings.item_labels[own.item]
    path.touch(mode=0o600)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "rating"])
        raw = own.to_raw(own.value).round(4).tolist()
        writer.writerows(zip(users.tolist(), items.tolist(), raw, strict=True))
