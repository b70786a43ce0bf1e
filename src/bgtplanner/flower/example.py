"""An example federation to start from: app folder, server, clients, certificates and services."""

from __future__ import annotations

import csv
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from bgtplanner.data.catalogue import read_items
from bgtplanner.data.datasets import load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.errors import ConfigError, RunFolderError, StorageError
from bgtplanner.federation.parameters import noise_of_mean
from bgtplanner.flower.messages import SentCatalogue
from bgtplanner.models.learner import Size
from bgtplanner.models.tastes import Tastes
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.allowed import best_mechanism, neighbours_of
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.shares import Tolerance

__all__ = ["write_example"]

_EPSILON, _DELTA, _ROUNDS = 10.0, 1e-5, 3
_COLLUDERS = 1  # the least that protects clients from one another
_FEWEST = {"secagg": _COLLUDERS + 2, "local": 1}  # a sum of two is each other's secret

_FILES = {
    "app.toml": "app/pyproject.toml",
    "server.toml": "server/config.toml",
    "certificates.sh": "certificates.sh",
    "environment": "environment",
    "flower.toml": "flower/config.toml",
    "superlink.service": "systemd/bgtplanner-superlink.service",
    "supernode.service": "systemd/bgtplanner-supernode.service",
}


_PINNED = tuple(sorted(set(TASK_TYPE_TO_COMMAND.values())))
"""Programs that Flower starts by name to run code that a run brings along."""


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
    makes.

    Args:
        folder: Must not exist, or be empty: nothing is overwritten.
        clients: Number of clients, among whom the users are divided.
        address: HOST:PORT at which clients reach the server.
        trust: ``secagg``: the server sees sums only; ``local``: no one but oneself is trusted.
        ratings: The ratings to divide; by default the built-in demo data.

    Raises:
        ConfigError: If the address, the number, the trust or the path is not usable.
        RunFolderError: If the folder is not empty.
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
    accountant = default_accountant(best_mechanism(trust, "client", validates=False))
    budget = Budget(_EPSILON, _DELTA)
    even, whole = accountant.even_charge(budget, _ROUNDS), np.array([accountant.capacity(budget)])
    dropouts = _dropouts(clients)
    noise = clients * noise_of_mean(
        accountant,
        trust,
        1.0,
        whole,
        np.array([clients]),
        neighbours_of(trust),
        tolerance=Tolerance(dropouts, _COLLUDERS),
    )
    model = Tastes().suited(Size(clients, ratings.n_items, noise))  # as the server will choose it
    summed = trust == "secagg"
    least = max(clients - dropouts, 2 * dropouts + _COLLUDERS + 2) if summed else clients
    words = {
        "trust": trust,
        "folder": str(folder),
        "bin": str(Path(sys.executable).parent),
        "address": address,
        "host": host,
        "port": port,
        "clients": str(clients),
        "least_clients": str(least),
        "smallest_group": str(least - dropouts),
        "dropouts": str(dropouts),
        "colluders": str(_COLLUDERS),
        "rounds": str(_ROUNDS),
        "epsilon": str(_EPSILON),
        "rule": accountant.name,
        "largest_charge": f"{2 * even:.3g}",
        "smallest_charge": f"{even / 100:.2g}",
        "axes": str(model.axes),
        "smallest_noise_multiplier": f"{float(accountant.noise_multiplier(2 * even)):.2g}",
        "low": f"{float(ratings.low)}",
        "high": f"{float(ratings.high)}",
        "hardening": _filled("hardening", {}).rstrip("\n"),  # the same for both services
    }
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RunFolderError(f"{folder}: the folder is not empty; choose another one")
        items = folder / "server" / "items.csv"
        _write_items(items, ratings)
        made = SentCatalogue.of(read_items(items), float(ratings.low), float(ratings.high))
        words["catalogue"] = made.digest
        for name, target in _FILES.items():
            _write(folder / target, _filled(name, words))
        (folder / "certificates.sh").chmod(0o755)
        for name in _PINNED:
            _write(folder / "pinned" / name, _filled("pinned.sh", words))
            (folder / "pinned" / name).chmod(0o755)
        dealt = deal_users(ratings, clients, seed=0)
        for client in range(clients):
            home = folder / "clients" / str(client + 1)
            home.mkdir(parents=True, mode=0o700)
            _write(home / "client.toml", _filled("client.toml", words))
            _write(home / "policy.toml", _filled("policy.toml", words))
            _write_ratings(home / "ratings.csv", dealt, client)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error


def _dropouts(clients: int) -> int:
    """Return how many clients may fail in a round: one, or a tenth, if there are enough.

    Twice as many and the colluders must be fewer than the other members; see
    :func:`bgtplanner.federation.aggregation.neighbourhood.degree_and_threshold`.
    """
    return max(0, min(max(1, clients // 10), (clients - _COLLUDERS - 2) // 2))


def _filled(name: str, words: dict[str, str]) -> str:
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


def _write_items(path: Path, ratings: Ratings) -> None:
    """Write labels, titles and features of the items; without titles, labels stand in."""
    known, labels = ratings.catalogue, ratings.item_labels.tolist()
    titles = labels if known is None or known.titles is None else known.titles.tolist()
    names = () if known is None else known.names
    rows = ratings.features.astype(int).tolist() if names else [[]] * len(labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "title", *names])
        writer.writerows([*row, *of] for *row, of in zip(labels, titles, rows, strict=True))


def _write_ratings(path: Path, ratings: Ratings, client: int) -> None:
    own = ratings.take(ratings.client == client)
    users, items = ratings.user_labels[own.user], ratings.item_labels[own.item]
    path.touch(mode=0o600)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "rating"])
        raw = own.to_raw(own.value).round(4).tolist()
        writer.writerows(zip(users.tolist(), items.tolist(), raw, strict=True))
