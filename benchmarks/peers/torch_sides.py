"""The task in torch, twice: `vmap` over padded clients, and flat arrays with sums by index.

Both are written to be fast. The first is what one writes with `torch.func` for one client: its
gradient by `grad`, over copies of the rows that the client uses instead of over all of them, in
groups of clients of similar size, so that little of the padding is wasted. The second has no
padding and no automatic derivative: everything is derived by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.task import MODEL, Task, shrinkage


class Group:
    """Clients of similar size, padded to the same number of ratings."""

    def __init__(self, task: Task, clients: NDArray[np.int64], length: int) -> None:
        shape = len(clients), length
        item, value = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        there = np.zeros(shape, np.float32)
        for row, client in enumerate(clients.tolist()):
            where = task.ratings_of(client)
            number = where.stop - where.start
            item[row, :number], value[row, :number] = task.item[where], task.value[where]
            there[row, :number] = 1.0
        self.item, self.value, self.there = map(torch.from_numpy, (item, value, there))


class Vmapped:
    """`torch.func.vmap` of a client's clipped gradient."""

    def __init__(self, task: Task) -> None:
        self.task, self.rows = task, torch.from_numpy(task.rows)
        sizes = np.diff(task.ends, prepend=0)
        lengths = 2 ** np.ceil(np.log2(np.maximum(sizes, 8))).astype(np.int64)
        self.groups = [
            Group(task, np.flatnonzero(lengths == length), min(int(length), int(sizes.max())))
            for length in np.unique(lengths)
        ]
        self.ridge = torch.diag(torch.tensor(shrinkage()))
        self.each = torch.func.vmap(self._client)

    def _loss(self, rows: Tensor, weights: Tensor, value: Tensor, there: Tensor) -> Tensor:
        score = MODEL.mean + rows[:, 0] + weights[0] + rows[:, 1:] @ weights[1:]
        error = there * (value - score)
        return 0.5 * (error * error).sum() / there.sum().clamp(min=1.0)

    def _client(self, rows: Tensor, value: Tensor, there: Tensor) -> Tensor:
        features = torch.cat([torch.ones_like(rows[:, :1]), rows[:, 1:]], 1) * there[:, None]
        target = there * (value - MODEL.mean - rows[:, 0])
        system = features.T @ features + self.ridge
        weights = torch.linalg.solve(system, features.T @ target)
        gradient: Tensor = torch.func.grad(self._loss)(rows, weights, value, there)
        norm = torch.sqrt((gradient * gradient).sum())
        return gradient * (self.task.clip / norm.clamp(min=self.task.clip))

    def total(self) -> Tensor:
        found = torch.zeros_like(self.rows)
        for group in self.groups:
            uploads = self.each(self.rows[group.item], group.value, group.there)
            found.index_add_(0, group.item.reshape(-1), uploads.reshape(-1, found.shape[1]))
        return found

    def sum(self) -> NDArray[Any]:
        return self.total().numpy()

    def round(self, clients: int | None = None) -> None:
        del clients  # always all of them
        total = self.total()
        total += self.task.noise_std * torch.randn_like(total)


class Flat:
    """All ratings in one array; sums over clients and items by `index_add_`."""

    def __init__(self, task: Task) -> None:
        self.task, self.rows = task, torch.from_numpy(task.rows)
        sizes = np.diff(task.ends, prepend=0)
        self.item, self.value = torch.from_numpy(task.item), torch.from_numpy(task.value)
        self.client = torch.from_numpy(np.repeat(np.arange(task.clients), sizes))
        self.share = torch.from_numpy((1.0 / np.maximum(sizes, 1)).astype(np.float32))
        self.ridge = torch.diag(torch.tensor(shrinkage()))

    def _by_client(self, values: Tensor) -> Tensor:
        shape = (self.task.clients, *values.shape[1:])
        return torch.zeros(shape, dtype=values.dtype).index_add_(0, self.client, values)

    def total(self) -> Tensor:
        rows = self.rows[self.item]
        target = self.value - MODEL.mean - rows[:, 0]
        rows[:, 0] = 1.0
        products = self._by_client((rows[:, :, None] * rows[:, None, :]).flatten(1))
        width = rows.shape[1]
        systems = products.reshape(-1, width, width) + self.ridge
        weights = torch.linalg.solve(systems, self._by_client(rows * target[:, None]))
        error = (rows * weights[self.client]).sum(1) - target
        slopes = weights.clone()
        slopes[:, 0] = 1.0
        # A client's gradient is error times slope over its number of ratings.
        length = torch.sqrt(self._by_client(error * error)) * slopes.norm(dim=1) * self.share
        factor = self.share * (self.task.clip / length.clamp(min=self.task.clip))
        uploads = error[:, None] * (slopes * factor[:, None])[self.client]
        return torch.zeros_like(self.rows).index_add_(0, self.item, uploads)

    def sum(self) -> NDArray[Any]:
        return self.total().numpy()

    def round(self, clients: int | None = None) -> None:
        del clients  # always all of them
        total = self.total()
        total += self.task.noise_std * torch.randn_like(total)
