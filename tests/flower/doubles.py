"""What stands in for real clients: their files, and noise that a simulation can repeat."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.federation import protection
from bgtplanner.federation.client import as_shared, flat_upload
from bgtplanner.federation.compilation import compiled
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Clipped, KeyedNoise, Protection, Released, Uploads
from bgtplanner.federation.rounds import Draw
from bgtplanner.flower.client import Client, NoiseFor
from bgtplanner.flower.clientfile import ClientFile, load_client
from bgtplanner.flower.messages import (
    HelloRequest,
    ModelFile,
    Request,
    SentCatalogue,
    SentModel,
)
from bgtplanner.privacy import privunit
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import Additive, Mechanism
from bgtplanner.runs.assembly import split_of
from bgtplanner.runs.config import load_config, to_toml
from bgtplanner.runs.deployed import catalogue_of
from made import tastes
from processes import Processes

SETTINGS: dict[str, Any] = {
    "model.name": "biases", "planning.policy": "uniform", "privacy.trust": "local",
    "privacy.mechanism": "gaussian", "privacy.epsilon": 5000.0, "federation.rounds": 3,
    "federation.after_budget": "stop", "data.initial_share": 1.0, "data.dataset": "made-up",
    "deployment.items": "items.txt", "deployment.round_seconds": 600.0,
    "deployment.wait_seconds": 600.0,
}  # fmt: skip

POLICY: dict[str, Any] = {
    "epsilon": 5000.0, "delta": 1e-5, "rule": "gaussian/gdp", "largest_charge": 1e5,
    "smallest_charge": 1e-6, "smallest_noise_multiplier": 1e-5, "requests_per_hour": 1e6,
}  # fmt: skip
"""Without what is pinned: :func:`agreed` adds that."""


def agreed(ratings: Ratings, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What clients agree to that take part in learning from these ratings."""
    pinned = {
        "catalogues": [catalogue_for(ratings).digest],
        "scale": [float(ratings.low), float(ratings.high)],
    }
    return POLICY | pinned | dict(changes or {})


def item_names(ratings: Ratings) -> tuple[str, ...]:
    """What the items are called in these federations."""
    return tuple(f"i{label}" for label in ratings.item_labels)


def catalogue_for(ratings: Ratings, features: Any = None) -> SentCatalogue:
    """What is public about these items: their names, the scale, and features, if any."""
    names = item_names(ratings)
    given = np.zeros((len(names), 0)) if features is None else features
    return SentCatalogue(
        items=names,
        low=float(ratings.low),
        high=float(ratings.high),
        features=np.asarray(given, dtype=np.float32),
        names=tuple(f"feature {number}" for number in range(given.shape[1])),
    )


def first_request(ratings: Ratings, settings: Mapping[str, float]) -> Request:
    """What an honest server asks for in the first round."""
    model = SentModel(
        name="biases",
        settings=settings,
        catalogue=catalogue_for(ratings).digest,
        items=np.zeros((ratings.n_items, 3), dtype=np.float32),
        dense=np.zeros(0, dtype=np.float32),
    )
    return Request(
        run="first", round=0, accountant="gaussian/gdp", trust="local", unit="client", charge=1.0,
        clip=0.1, model=model,
    )  # fmt: skip


HELLO_REQUEST = HelloRequest("run", bytes(32))
"""Who are you?"""

TASTES: dict[str, Any] = {"axes": 2, "taste_share": 0.6}
"""Settings of the model `tastes` in these federations."""

AGREE_TO_TASTES: dict[str, Any] = {"models": ["tastes"], "settings": {"tastes": TASTES}}
"""What a policy says in addition, of clients that take part in learning tastes."""


def taste_request(ratings: Ratings, catalogue: SentCatalogue | None = None) -> Request:
    """What an honest server asks for once it has found axes; with another catalogue, if any.

    Qualities, popularity and certainty are those of nothing learned; all items are as popular.
    """
    first, number = first_request(ratings, {}), ratings.n_items
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(number, TASTES["axes"])))[0]
    asked = np.zeros((number, 1))
    columns = [np.zeros((number, 3)), np.full((number, 1), 1 / number), asked, axes]
    items = np.concatenate(columns, axis=1).astype(np.float32)
    digest = first.model.catalogue if catalogue is None else catalogue.digest
    model = replace(first.model, name="tastes", settings=TASTES, items=items, catalogue=digest)
    return replace(first, model=model)


class SimulatedNoise(KeyedNoise):
    """The noise that a simulation with this seed draws for one client in one round, as doubles."""

    @classmethod
    def of(cls, seed: int, client: int, index: int) -> SimulatedNoise:
        run = jax.random.split(jax.random.key(seed))[1]
        noise = jax.random.fold_in(jax.random.fold_in(run, index), Draw.NOISE)
        return cls(jax.random.fold_in(noise, client))

    def split(self, number: int) -> list[Any]:
        return [SimulatedNoise(source.key) for source in super().split(number)]

    def normal(self, shape: tuple[int, ...]) -> Any:
        return np.asarray(super().normal(shape), dtype=np.float64)

    def laplace(self, shape: tuple[int, ...]) -> Any:
        return np.asarray(super().laplace(shape), dtype=np.float64)

    def uniform(self, shape: tuple[int, ...]) -> Any:
        return np.asarray(super().uniform(shape), dtype=np.float64)

    def normal_steps(self, scale: int, shape: tuple[int, ...]) -> Any:
        return np.rint(scale * self.normal(shape)).astype(np.int64)

    def laplace_steps(self, scale: int, shape: tuple[int, ...]) -> Any:
        return np.rint(scale * self.laplace(shape)).astype(np.int64)


def turned(source: Any, toward: Any, share: Any, threshold: Any, chance: Any) -> Any:
    """What PrivUnit releases of directions, over its scale, in floats."""
    of_noise, of_direction, of_along = source.split(3)
    normal, anywhere = of_noise.normal(toward.shape), of_direction.normal(toward.shape)
    xp = toward.__array_namespace__()
    direction = xp.where(share[:, None] > 0, toward, anywhere)
    length = xp.maximum(xp.sqrt((direction**2).sum(axis=1)), 1e-30)
    direction = direction / length[:, None]
    along = privunit._along(of_along, threshold, chance, share)
    return normal + (along - (normal * direction).sum(axis=1))[:, None] * direction


def draw_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Have simulations draw every client's own noise, on every coordinate of its upload."""

    def noised(
        by: Protection, key: Any, clipped: Clipped, parameters: RoundParameters
    ) -> Released:
        weighed, (rows, dense, known) = by.weighed(parameters), clipped.uploads
        total = 0.0
        for client in range(known.n_clients):
            own = rows * (known.pair_client == client)[:, None]
            vector = flat_upload(own, dense[client], known)
            of_class, source = weighed.class_of_client[client], jax.random.fold_in(key, client)
            drawn = released_alone(by.kind, KeyedNoise(source), vector, of_class, weighed)
            total = total + parameters.granted[client] * drawn
        shared = as_shared(total, known.n_items, rows.shape[1])
        released = by.mean(shared, parameters.granted.sum(), parameters)
        return released._replace(dropped=clipped.dropped)

    def as_simulated(direction: Any, share: Any, cap: privunit.Cap, source: Any) -> Any:
        return turned(source, direction, share, cap.threshold, cap.chance)

    patch.setattr(protection, "Shared", Uploads)  # no sum before noise
    patch.setattr(Uploads, "total", lambda uploads: uploads)
    patch.setattr(Protection, "noised", noised)
    patch.setattr(privunit, "_turned_exactly", as_simulated)
    patch.setattr(privunit, "_ROUNDED", np.inf)  # floats are not cut at any epsilon
    patch.setattr(Protection, "adds_up", False)
    compiled.cache_clear()


def released_alone(
    kind: Mechanism, source: KeyedNoise, vector: Any, of_class: Any, parameters: RoundParameters
) -> Any:
    """What one client releases of a clipped upload."""
    scale, clip = parameters.scale[of_class], parameters.clip[of_class]
    if isinstance(kind, Additive):
        return vector + scale * kind.draw(source, vector[None].shape)[0]
    share, cap = jnp.sqrt((vector**2).sum())[None] / clip, parameters.parameters[of_class]
    return scale * turned(source, vector[None], share, cap[0], cap[1])[0]


def noise_of_simulation(seed: int) -> NoiseFor:
    """For clients whose folders are named by their number."""

    def noise(file: ClientFile, request: Request) -> SimulatedNoise:
        return SimulatedNoise.of(seed, int(file.ratings.parent.name), request.round)

    return noise


class SimulatedSum(SimulatedNoise):
    """One client's share, if it is all the noise that a simulation draws for a sum.

    Args:
        key: Key of the simulation's noise in the round.
        request: The round's request, for the shapes of its parameters.
        clients: How many clients add up.
    """

    def __init__(self, key: Any, request: Request, clients: int) -> None:
        super().__init__(key)
        self.request, self.clients = request, clients

    def normal(self, shape: tuple[int, ...]) -> Any:
        items, dense = len(self.request.model.items), self.request.model.dense.size
        rows, rest = KeyedNoise(self.key).split(2)
        width = (shape[0] - dense) // items
        parts = rows.normal((items, width)), rest.normal((dense,))
        flat = np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])
        return np.sqrt(self.clients) * flat  # a share is smaller than the sum's noise by this


class NoNoise(SimulatedNoise):
    """Zeros, for the clients whose shares another one adds."""

    def normal(self, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape)


def sum_of_simulation(seed: int, clients: int, adds: int = 0) -> NoiseFor:
    """The noise of a simulated sum, all of it from the client with this number.

    A simulation draws the noise of the sum, and not every client's share of it.
    """

    def noise(file: ClientFile, request: Request) -> KeyedNoise:
        run = jax.random.split(jax.random.key(seed))[1]
        key = jax.random.fold_in(jax.random.fold_in(run, request.round), Draw.NOISE)
        own = int(file.ratings.parent.name) == adds
        return SimulatedSum(key, request, clients) if own else NoNoise(key)

    return noise


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(of)}" for key, of in value.items()) + "}"
    return json.dumps(value)


def write_toml(path: Path, values: Mapping[str, Any]) -> Path:
    """Plain values, and lists and tables of them."""
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in values.items()))
    return path


def write_client(
    folder: Path, train: Ratings, client: int, policy: Mapping[str, Any], *, holds: bool = True
) -> Path:
    """A client's folder with the ratings that are its own, its ledger and its catalogue."""
    folder.mkdir(parents=True)
    own = train.take(train.client == client)
    with (folder / "ratings.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "rating"])
        raw = own.to_raw(own.value).round(4)
        rows = zip(train.user_labels[own.user], train.item_labels[own.item], raw, strict=True)
        writer.writerows([f"u{user}", f"i{item}", float(value)] for user, item, value in rows)
    write_toml(folder / "policy.toml", policy)
    path = write_toml(folder / "client.toml", {"ratings": "ratings.csv"})
    Client(load_client(path)).enroll()
    if holds:
        Client(load_client(path)).hold(catalogue_for(train))
    return path


def write_federation(
    folder: Path, ratings: Ratings, settings: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None, items: str | None = None,
) -> tuple[Path, list[Path]]:  # fmt: skip
    """A server's config and the folders of all clients; returns the config and client files.

    The clients have no catalogue yet. Items are a list of names, or the table that is given.
    """
    chosen = SETTINGS | {
        "data.scale": f"{ratings.low:g}:{ratings.high:g}",
        "deployment.clients": ratings.n_clients,
    }
    chosen |= {"deployment.items": "items.csv"} if items else {}
    chosen |= dict(settings or {})
    config = load_config(settings=chosen)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    names = "".join(f"{name}\n" for name in item_names(ratings))
    (folder / "items.txt").write_text(names, encoding="utf-8")
    (folder / "items.csv").write_text(items or "", encoding="utf-8")
    train = split_of(config, ratings).train
    pinned = {"catalogues": [catalogue_of(config, folder).digest]} | dict(policy or {})
    files = [
        write_client(
            folder / "clients" / str(client), train, client, agreed(ratings, pinned), holds=False
        )
        for client in range(ratings.n_clients)
    ]
    return folder / "config.toml", files


def published(ratings: Ratings, **changes: Any) -> ModelFile:
    """A model file about these items, which a run has published."""
    catalogue, number = catalogue_for(ratings), ratings.n_items
    model = tastes(
        number, items=list(catalogue.items), titles=None, names=[], low=catalogue.low,
        high=catalogue.high, features=catalogue.features, **changes,
    )  # fmt: skip
    with NamedTemporaryFile() as file:
        model.save(file.name)
        return ModelFile(Path(file.name).read_bytes())


def spent(file: Path) -> float:
    """What the client of a file has spent, in the rule's currency."""
    with Ledger.open(file.parent / "state" / "ledger.sqlite", read_only=True) as opened:
        return float(opened.spent()[0, 0]) / 2**44


def lists(client: Client, top: int = 3) -> list[str]:
    """Return the items of the first user's list."""
    model = client.file.last_model()
    _, rows = next(model.recommend_many(client.file.histories(model), top=top))
    return [row.item for row in rows]


def taken_part(folder: Path) -> Path:
    """The folder of a client that has paid for five rounds of two runs and has their model."""
    ratings = synthetic_ratings(clients=2, items=30, ratings_per_client=20, seed=1)
    policy, first = agreed(ratings, {"epsilon": 8.0}), first_request(ratings, {"mean": 0.7})
    client = Client(load_client(write_client(folder, ratings, 0, policy)))
    for run, rounds in (("first", 3), ("second", 2)):
        for number in range(rounds):
            client.answer(replace(first, run=run, round=number, charge=0.04 * (1 + number)))
    client.keep(published(ratings))
    return folder


def own_page(folder: Path, processes: Processes) -> str:
    """The address of the page that a client's folder is served as, by a process."""
    command = [sys.executable, "-m", "bgtplanner", "serve", folder, "--port", 0, "--json"]
    server = processes.start(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    return str(json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"])
