"""Training loops on made-up data that use nothing of a plan but its clip and its noise.

* ``logistic``: DP-SGD of a logistic regression, an example a client, full batches.
* ``network``: the same of a small neural network on examples that no line separates (torch).
* ``federated``: federated averaging of a softmax regression. Clients have leanings to some classes
  and features of their own; each takes some steps on its own examples and uploads the difference.

Every client's upload is clipped as a whole, the sum has the plan's noise once (trust ``secagg``),
and the server divides it by the number of clients. The step sizes for each epsilon are those with
which an even schedule did best on other seeds, out of 0.1, 0.2, 0.5, 1, 2 and 5: they suit it, and
whoever wants to be better has to be better there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TESTED = 2000  # test examples


class Test(NamedTuple):
    """How a model does on examples that it was not trained with."""

    loss: float
    accuracy: float


class Loop(ABC):
    """A model in training, with everything that it is trained on.

    Args:
        clients: The number of clients.
        seed: Of the data and of the initial model.
        epsilon: Of the budget, which the step size is chosen by.

    Attributes:
        clip: The bound on uploads that a policy is given.
        rates: Step sizes of the server by epsilon; of other epsilons, that of the nearest.
    """

    clip: ClassVar[float] = 1.0
    rates: ClassVar[dict[float, float]]

    def __init__(self, clients: int, seed: int, epsilon: float) -> None:
        self.clients, self.seed = clients, seed
        nearest = min(self.rates, key=lambda known: abs(np.log(known / epsilon)))
        self.rate = self.rates[nearest]
        self.weights = np.zeros(0)

    @abstractmethod
    def uploads(self) -> Floats:
        """Return what each client would upload, ``[clients, weights]``; less of it is better."""

    @abstractmethod
    def train_loss(self) -> float:
        """Return the mean loss over all examples of all clients."""

    @abstractmethod
    def test(self) -> Test:
        """Return loss and accuracy on the test examples."""

    def train(self, clip: float, noise_std: float, generator: np.random.Generator) -> None:
        """Train one round: clip, sum, add the noise once, take a step."""
        uploads = self.uploads()
        norms = np.linalg.norm(uploads, axis=1, keepdims=True)
        total = (uploads * np.minimum(1.0, clip / np.maximum(norms, 1e-12))).sum(axis=0)
        total += noise_std * generator.standard_normal(total.shape)
        self.weights = self.weights - self.rate * total / self.clients


class Logistic(Loop):
    """Logistic regression; half of the features matter."""

    rates: ClassVar[dict[float, float]] = {0.5: 1.0, 2.0: 2.0, 8.0: 5.0}
    _features: ClassVar[int] = 20

    def __init__(self, clients: int, seed: int, epsilon: float) -> None:
        super().__init__(clients, seed, epsilon)
        generator = np.random.default_rng([seed, 1])
        truth = 3 * generator.standard_normal(self._features) / self._features**0.5
        truth[::2] = 0.0
        shape = (clients + _TESTED, self._features)
        inputs = generator.standard_normal(shape) * 2 / self._features**0.5
        chance = 1 / (1 + np.exp(-4 * inputs @ truth))
        labels = (generator.random(len(inputs)) < chance).astype(np.float64)
        self._inputs, self._others = inputs[:clients], inputs[clients:]
        self._labels, self._their_labels = labels[:clients], labels[clients:]
        self.weights = np.zeros(self._features)

    def uploads(self) -> Floats:
        errors = 1 / (1 + np.exp(-self._inputs @ self.weights)) - self._labels
        return np.asarray(errors[:, None] * self._inputs)

    def train_loss(self) -> float:
        return self._loss(self._inputs, self._labels)

    def test(self) -> Test:
        right = (self._others @ self.weights > 0) == (self._their_labels > 0.5)
        return Test(self._loss(self._others, self._their_labels), float(right.mean()))

    def _loss(self, inputs: Floats, labels: Floats) -> float:
        logits = inputs @ self.weights
        return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


class Network(Loop):
    """A network with one hidden layer on two classes that lie around each other; needs torch."""

    rates: ClassVar[dict[float, float]] = {0.5: 2.0, 2.0: 5.0, 8.0: 5.0}
    _features: ClassVar[int] = 2
    _hidden: ClassVar[int] = 8

    def __init__(self, clients: int, seed: int, epsilon: float) -> None:
        super().__init__(clients, seed, epsilon)
        torch: Any = import_module("torch")
        torch.set_num_threads(1)
        self._torch = torch
        generator = np.random.default_rng([seed, 2])
        inputs = generator.standard_normal((clients + _TESTED, self._features))
        inner = (inputs**2).sum(axis=1) + 0.3 * generator.standard_normal(len(inputs))
        tensors = [torch.tensor(part) for part in (inputs, (inner < 1.4).astype(np.float64))]
        (self._inputs, self._others), (self._labels, self._their_labels) = (
            (part[:clients], part[clients:]) for part in tensors
        )
        sizes = (self._hidden * self._features, self._hidden, self._hidden, 1)
        self._places = np.cumsum(sizes).tolist()
        first = generator.standard_normal(sizes[0]) / self._features**0.5
        last = generator.standard_normal(sizes[2]) / self._hidden**0.5
        rest = np.zeros(self._hidden)
        self.weights = np.concatenate([first, rest, last, np.zeros(1)])
        one = torch.func.grad(lambda weights, row, label: self._losses(weights, row, label).mean())
        self._gradients = torch.func.vmap(one, in_dims=(None, 0, 0))

    def uploads(self) -> Floats:
        weights = self._torch.tensor(self.weights)
        return np.asarray(self._gradients(weights, self._inputs, self._labels).numpy())

    def train_loss(self) -> float:
        weights = self._torch.tensor(self.weights)
        return float(self._losses(weights, self._inputs, self._labels).mean())

    def test(self) -> Test:
        weights = self._torch.tensor(self.weights)
        right = (self._logits(weights, self._others) > 0) == (self._their_labels > 0.5)
        loss = self._losses(weights, self._others, self._their_labels).mean()
        return Test(float(loss), float(right.double().mean()))

    def _logits(self, weights: Any, inputs: Any) -> Any:
        first, second, third, _ = self._places
        layer = weights[:first].reshape(self._hidden, self._features)
        hidden = self._torch.tanh(inputs @ layer.T + weights[first:second])
        return hidden @ weights[second:third] + weights[third]

    def _losses(self, weights: Any, inputs: Any, labels: Any) -> Any:
        logits = self._logits(weights, inputs)
        return self._torch.nn.functional.softplus(logits) - labels * logits


class Federated(Loop):
    """Federated averaging of a softmax regression over clients that differ."""

    rates: ClassVar[dict[float, float]] = {0.5: 0.5, 2.0: 2.0, 8.0: 2.0}
    _features: ClassVar[int] = 8
    _classes: ClassVar[int] = 4
    _examples: ClassVar[int] = 20
    _steps: ClassVar[int] = 5
    _local_rate: ClassVar[float] = 0.2

    def __init__(self, clients: int, seed: int, epsilon: float) -> None:
        super().__init__(clients, seed, epsilon)
        generator = np.random.default_rng([seed, 3])
        centres = 1.2 * generator.standard_normal((self._classes, self._features))
        others = max(_TESTED // self._examples, 1)  # test clients, drawn in the same way
        number, each = clients + others, self._examples
        leanings = generator.dirichlet(np.full(self._classes, 0.5), size=number)
        draws = generator.random((number, each, 1))
        labels = (draws > leanings.cumsum(axis=1)[:, None, :-1]).sum(axis=2)
        shifts = 0.5 * generator.standard_normal((number, 1, self._features))
        noise = generator.standard_normal((number, each, self._features))
        inputs = np.concatenate(
            [centres[labels] + shifts + noise, np.ones((number, each, 1))], axis=2
        )
        targets = np.eye(self._classes)[labels]
        self._inputs, self._others = inputs[:clients], inputs[clients:]
        self._targets, self._their_targets = targets[:clients], targets[clients:]
        self.weights = np.zeros((self._features + 1) * self._classes)

    def uploads(self) -> Floats:
        local = np.tile(self._matrix(), (self.clients, 1, 1))
        for _ in range(self._steps):
            errors = np.exp(_log_softmax(self._inputs @ local)) - self._targets
            gradient = np.swapaxes(self._inputs, 1, 2) @ errors / self._examples
            local = local - self._local_rate * gradient
        return np.asarray(self.weights - local.reshape(self.clients, -1))

    def train_loss(self) -> float:
        return self._loss(self._inputs, self._targets)

    def test(self) -> Test:
        logits = self._others @ self._matrix()
        right = logits.argmax(axis=2) == self._their_targets.argmax(axis=2)
        return Test(self._loss(self._others, self._their_targets), float(right.mean()))

    def _matrix(self) -> Floats:
        return self.weights.reshape(self._features + 1, self._classes)

    def _loss(self, inputs: Floats, targets: Floats) -> float:
        return -float((_log_softmax(inputs @ self._matrix()) * targets).sum(axis=2).mean())


LOOPS: dict[str, type[Loop]] = {"logistic": Logistic, "network": Network, "federated": Federated}


def missing(name: str) -> str | None:
    """Return why a loop cannot be played here; None if it can."""
    if name == "network" and find_spec("torch") is None:
        return "torch is not installed (pip install torch)"
    return None


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
