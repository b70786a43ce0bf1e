"""One round as the paper's authors run it, written down a second time.

Plain NumPy in double precision, one client at a time, with gradients by finite differences. It
shares no code with the package and knows nothing of its tricks (one backward pass for all clients,
the layer's weights applied once a user). It draws nothing: noise, pseudo items and pseudo rows are
handed in, so that whoever clips, scales or weights them in another way ends up elsewhere.

The authors leave a user without any rating with a random vector to predict with, and let weight
decay move its embedding. The package does neither, on purpose, and neither does this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

RATE, DECAY = 0.05, 1e-4
VALUES = 5  # of the context


class Rating(NamedTuple):
    """A rating from 0 to 1, and the first round in which it is known."""

    user: int
    item: int
    value: float
    arrival: int = 0


class World(NamedTuple):
    """Who rated what. Every user is a client."""

    users: int
    items: int
    train: list[Rating]
    test: list[Rating]

    def known(self, user: int, index: int) -> list[Rating]:
        """The training ratings of a user that have arrived by a round."""
        return [one for one in self.train if one.user == user and one.arrival <= index]


class Parameters(NamedTuple):
    """What is trained: items, users and the four tensors of the graph-attention layer."""

    items: Float
    users: Float
    weight: Float
    attn_l: Float  # on the sources of an edge
    attn_r: Float  # on its destination
    bias: Float


TENSORS = Parameters._fields[2:]


class RoundParameters(NamedTuple):
    """How uploads are protected in a round."""

    mechanism: Literal["gaussian", "laplace"]
    clip: float
    epsilon: float  # of this round

    @property
    def scale(self) -> float:
        """Standard deviation of Gaussian noise (Renyi divergence of order 2), or Laplace's b."""
        sensitivity, order = 2 * self.clip, 2
        if self.mechanism == "laplace":
            return sensitivity / self.epsilon
        return float(np.sqrt(sensitivity**2 * order / (2 * self.epsilon)))

    def norm(self, block: Float) -> float:
        """The norm that is clipped: L2 for Gaussian noise, L1 for Laplace."""
        return float(np.linalg.norm(block.ravel(), 1 if self.mechanism == "laplace" else 2))

    def released(self, block: Float, noise: Float) -> Float:
        """A block (a tensor, or an item row) clipped and noised on its own.

        One that is not a number must not leave the client: noise alone goes out in its place.
        """
        clean = block if np.isfinite(block).all() else np.zeros_like(block)
        return np.asarray(clean / max(1.0, self.norm(clean) / self.clip) + self.scale * noise)


class Draws(NamedTuple):
    """All that is drawn at random in a round.

    Attributes:
        pseudo_items: Of each client.
        pseudo_rows: Standard normal, ``[clients, most pseudo items, dim]``.
        rows: Noise of scale 1 for each client's item row, by client and item.
        tensors: Noise of scale 1 for each client's tensors, by client and name.
    """

    pseudo_items: list[list[int]]
    pseudo_rows: Float
    rows: Mapping[tuple[int, int], Float]
    tensors: Mapping[tuple[int, str], Float]


class Upload(NamedTuple):
    """What a client sends: a tensor by its name, an item row by its item."""

    tensors: dict[str, Float]
    rows: dict[int, Float]


class After(NamedTuple):
    """What a round leaves.

    Attributes:
        parameters: After the step.
        aggregate: What the server was told, averaged; for users, each one's own gradient.
        direction: The same with weight decay: what the step is the sign of.
        predicted: Of the test ratings.
        loss: Mean over the clients that have a rating, before the step.
    """

    parameters: Parameters
    aggregate: Parameters
    direction: Parameters
    predicted: Float
    loss: float


def representation(parameters: Parameters, user: int, known: list[Rating]) -> Float:
    """The user node after the layer: all its items point to it, and twice it does itself."""
    features = [parameters.users[user], *(parameters.items[one.item] for one in known)]
    hidden = [parameters.weight @ feature for feature in features]  # node 0 is the user
    sources = [*range(1, len(hidden)), 0, 0]
    logits = np.array(
        [hidden[source] @ parameters.attn_l + hidden[0] @ parameters.attn_r for source in sources]
    )
    logits = np.where(logits > 0, logits, 0.2 * logits)
    attention = np.exp(logits) / np.exp(logits).sum()
    message = sum(a * hidden[source] for a, source in zip(attention, sources, strict=True))
    return np.asarray(message + parameters.bias)


def loss(parameters: Parameters, user: int, known: list[Rating]) -> float:
    """Root of the mean squared error over the user's rated items."""
    own = representation(parameters, user, known)
    items = parameters.items[[one.item for one in known]]
    errors = np.array([one.value for one in known]) - 1 / (1 + np.exp(-items @ own))
    return float(np.sqrt(np.mean(np.square(errors))))


def gradient(parameters: Parameters, user: int, known: list[Rating]) -> Parameters:
    """Central differences in every entry that the user's loss depends on."""
    touched = {"items": {one.item for one in known}, "users": {user}}
    slopes = []
    for place, (name, tensor) in enumerate(zip(Parameters._fields, parameters, strict=True)):
        slope = np.zeros_like(tensor)
        for index in np.ndindex(tensor.shape):
            if name in touched and index[0] not in touched[name]:
                continue
            values = []
            for step in (1e-5, -1e-5):
                moved = tensor.copy()
                moved[index] += step
                tensors = [*parameters[:place], moved, *parameters[place + 1 :]]
                values.append(loss(Parameters(*tensors), user, known))
            slope[index] = (values[0] - values[1]) / 2e-5
        slopes.append(slope)
    return Parameters(*slopes)


def upload(
    slope: Parameters, user: int, known: list[Rating], terms: RoundParameters, draws: Draws,
) -> Upload:  # fmt: skip
    """What leaves a client: protected blocks, and rows for items that it only pretends to have.

    A pseudo row is made of the entries of the real rows as they are before the clip, and is not
    protected itself.
    """
    real = {one.item: slope.items[one.item] for one in known}
    tensors = {
        name: terms.released(getattr(slope, name), draws.tensors[user, name]) for name in TENSORS
    }
    rows = {item: terms.released(row, draws.rows[user, item]) for item, row in real.items()}
    finite = [row for row in real.values() if np.isfinite(row).all()]
    entries = np.concatenate(finite) if finite else np.zeros(2)
    for item, unit in zip(draws.pseudo_items[user], draws.pseudo_rows[user], strict=False):
        rows[item] = entries.mean() + entries.std(ddof=1) * unit
    return Upload(tensors, rows)


def one_round(
    world: World, old: Parameters, index: int, terms: RoundParameters, draws: Draws,
) -> After:  # fmt: skip
    """Train, protect, aggregate, step and predict."""
    total = Parameters(*(np.zeros_like(tensor) for tensor in old))
    number, losses, idle = 0, [], []
    for user in range(world.users):
        known = world.known(user, index)
        if not known:
            idle.append(user)
            continue
        slope = gradient(old, user, known)
        sent = upload(slope, user, known, terms, draws)
        weight = len(sent.rows)  # as many as the client uploads, pseudo rows included
        number += weight
        for item, row in sent.rows.items():
            total.items[item] += weight * row
        for name, tensor in sent.tensors.items():
            getattr(total, name)[...] += weight * tensor
        total.users[user] = slope.users[user]  # stays on the client: neither noised nor averaged
        losses.append(loss(old, user, known))
    averaged = {name: getattr(total, name) / number for name in ("items", *TENSORS)}
    aggregate = Parameters(users=total.users, **averaged)
    direction = Parameters(
        *(slope + DECAY * tensor for slope, tensor in zip(aggregate, old, strict=True))
    )
    direction.users[idle] = 0.0
    # A new Adam in every round: its first step is the sign of the gradient.
    new = Parameters(
        *(
            tensor - RATE * slope / (np.abs(slope) + 1e-8)
            for tensor, slope in zip(old, direction, strict=True)
        )
    )
    predicted = predictions(world, old, new.items, index)
    return After(new, aggregate, direction, predicted, float(np.mean(losses)))


def predictions(world: World, parameters: Parameters, items: Float, index: int) -> Float:
    """Of the test ratings: users as some parameters have them meet items, maybe later ones."""
    own = [
        representation(parameters, user, world.known(user, index)) for user in range(world.users)
    ]
    return np.array([1 / (1 + np.exp(-own[one.user] @ items[one.item])) for one in world.test])


def rmse(world: World, predicted: Float) -> float:
    """On the test ratings."""
    truth = np.array([one.value for one in world.test])
    return float(np.sqrt(np.mean((truth - predicted) ** 2)))


def context(world: World, index: int, pseudo_items: list[list[int]]) -> Float:
    """Largest singular values of the matrix of who names which item in a round.

    Who has no rating yet uploads nothing, and so names no pseudo item either.
    """
    matrix = np.zeros((world.users, world.items))
    for user in range(world.users):
        known = [one.item for one in world.known(user, index)]
        matrix[user, known + pseudo_items[user] if known else []] = 1
    return np.asarray(np.linalg.svd(matrix, compute_uv=False)[:VALUES])
