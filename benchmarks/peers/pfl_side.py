"""The task in pfl-research: its simulated backend, its clipping, its central Gaussian noise.

By its federated averaging with one local step of length 1 over all of a client's ratings, whose
model difference is the gradient with the sign turned. An algorithm of our own that returns the
gradient itself was slower: it allocates what federated averaging reuses.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.context import CentralContext, Population
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly
from torch import Tensor

from benchmarks.peers.task import MODEL, NOISE_MULTIPLIER, Task, shrinkage


class Module(torch.nn.Module):
    """The factorization model of one client, as pfl wants a model: with a loss."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        super().__init__()
        self.items = torch.nn.Parameter(torch.tensor(rows))
        self.ridge = torch.diag(torch.tensor(shrinkage()))

    def loss(self, item: Tensor, value: Tensor) -> Tensor:
        rows = self.items[item]
        with torch.no_grad():  # the client's own part, solved
            features = rows.clone()
            features[:, 0] = 1.0
            target = value - MODEL.mean - rows[:, 0]
            system = features.T @ features + self.ridge
            weights = torch.linalg.solve(system, features.T @ target)
        score = MODEL.mean + rows[:, 0] + weights[0] + rows[:, 1:] @ weights[1:]
        error = value - score
        return 0.5 * error.dot(error) / len(value)

    def metrics(self, *_: Any) -> dict[str, Any]:
        return {}


class Pfl:
    """Some of the clients, or all, in one round of the simulated backend."""

    def __init__(self, task: Task, chosen: list[int]) -> None:
        clients = []
        for client in chosen:
            where = task.ratings_of(client)
            both = torch.from_numpy(task.item[where]), torch.from_numpy(task.value[where])
            clients.append(Dataset(raw_data=both, user_id=str(client)))
        self.clients = clients
        self.module = Module(task.rows)
        self.model = PyTorchModel(
            self.module, torch.optim.SGD, torch.optim.SGD(self.module.parameters(), 1.0)
        )
        self.algorithm = FederatedAveraging()
        training = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None
        )
        nothing = NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=0,
            train_cohort_size=len(chosen),
            val_cohort_size=0,
        )
        self.context = CentralContext(
            current_central_iteration=0,
            do_evaluation=False,
            cohort_size=len(chosen),
            population=Population.TRAIN,
            algorithm_params=nothing,
            model_train_params=training,
            seed=0,
        )
        self.clipping = self._backend(NormClippingOnly(2, task.clip))
        self.noising = self._backend(GaussianMechanism(task.clip, NOISE_MULTIPLIER))

    def _backend(self, mechanism: Any) -> SimulatedBackend:
        order = iter(())

        def sampler() -> int:
            nonlocal order
            found = next(order, None)
            if found is None:
                order = iter(range(len(self.clients)))
                found = next(order)
            return found

        return SimulatedBackend(
            training_data=FederatedDataset(self.clients.__getitem__, sampler),
            val_data=None,
            postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)],
        )

    def _gathered(self, backend: SimulatedBackend, clients: int | None = None) -> Tensor:
        context = replace(self.context, cohort_size=clients or len(self.clients))
        work = backend.async_gather_results(self.model, self.algorithm, central_context=context)
        statistics, _ = asyncio.run(work)
        found: Tensor = statistics["items"]
        return found

    def sum(self) -> NDArray[Any]:
        return -self._gathered(self.clipping).detach().numpy()

    def round(self, clients: int | None = None) -> None:
        self._gathered(self.noising, clients)
