"""The other side of the comparison: FedGNN as a loop over the clients, in torch with autograd.

The same model as `bgtplanner.models.fedgnn` with one head, a linear score and biases, written the
way one writes it for a single client. What can be done once for all clients is done once: index
tensors are made beforehand, the attention layer's parameters are not copied for every client, the
number of ratings of each item is counted once, and the local step is taken for all users together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from bgtplanner.data.ratings import Ratings
from bgtplanner.federation.rounds import State
from bgtplanner.federation.server import Server
from bgtplanner.models.fedgnn import FedGNN


class Client(NamedTuple):
    """One client, one user: which items it rated, and how."""

    item: Tensor
    value: Tensor


class ClientGradient(NamedTuple):
    """Gradient of one client's loss."""

    rows: Tensor
    dense: tuple[Tensor, ...]
    user: Tensor


class TorchLoop:
    """A federation that trains one client after the other.

    Args:
        model: Settings of the model.
        server: Settings of the server.
        ratings: Training ratings, all known from the start; every client is one user.
        state: Parameters to begin with.
    """

    def __init__(self, model: FedGNN, server: Server, ratings: Ratings, state: State) -> None:
        self.model, self.server = model, server
        sizes = torch.bincount(torch.tensor(ratings.user), minlength=ratings.n_users).tolist()
        items = torch.tensor(ratings.item, dtype=torch.int64)
        values = torch.tensor(ratings.value)
        parts = zip(torch.split(items, sizes), torch.split(values, sizes), strict=True)
        self.clients = [Client(item, value) for item, value in parts]
        self.usage = torch.bincount(items, minlength=ratings.n_items).to(torch.float32)[:, None]
        self.n_ratings = len(ratings)

        dim = model.dim
        dense = torch.tensor(state.shared.dense.tolist())
        weight, query_item, query_user, bias = torch.split(dense, [dim * dim, dim, dim, dim])
        weight = weight.reshape(dim, dim)
        self.dense = [
            part.clone().requires_grad_() for part in (weight, query_item, query_user, bias)
        ]
        self.items = torch.tensor(state.shared.items.tolist())
        self.users = torch.tensor(state.local.embedding.tolist())
        self.server_optimizer = torch.optim.Adam([self.items, *self.dense], server.learning_rate)
        self.user_optimizer = torch.optim.Adam([self.users], model.local_learning_rate)

    def loss(self, rows: Tensor, user: Tensor, value: Tensor) -> Tensor:
        """One client's loss: half its mean squared error, plus the decay."""
        model, ratings = self.model, len(value)
        weight, query_item, query_user, bias = self.dense
        item = rows[:, : model.dim]
        # The star graph: the user's neighbours are its items and itself, the last node.
        hidden = torch.cat([item, user[None]]) @ weight.T
        logits = leaky_relu(hidden @ query_item + hidden[-1] @ query_user, 0.2)
        graph_embedding = torch.softmax(logits, 0) @ hidden + bias
        score = model.mean + item @ graph_embedding + rows[:, model.dim]
        user_bias = (value - score.detach()).sum() / (ratings + model.bias_shrinkage)
        error = value - score - user_bias
        flat = rows.flatten()
        squares = error.dot(error) + model.decay * flat.dot(flat)
        return squares * (0.5 / ratings) + user.dot(user) * (0.5 * model.decay)

    def gradient(self, index: int) -> ClientGradient:
        """Gradient of one client's loss."""
        client = self.clients[index]
        rows = self.items[client.item].requires_grad_()
        user = self.users[index].clone().requires_grad_()
        loss = self.loss(rows, user, client.value)
        row_gradient, user_gradient, *dense = torch.autograd.grad(loss, [rows, user, *self.dense])
        return ClientGradient(row_gradient, tuple(dense), user_gradient)

    def round(self) -> None:
        """Gradients of all clients, aggregation, the server's step, the users' step."""
        items = torch.zeros_like(self.items)
        dense = [torch.zeros_like(part) for part in self.dense]
        users = torch.empty_like(self.users)
        for index, client in enumerate(self.clients):
            gradient, ratings = self.gradient(index), len(client.item)
            items.index_add_(0, client.item, gradient.rows, alpha=ratings)
            for total, part in zip(dense, gradient.dense, strict=True):
                total.add_(part, alpha=ratings)
            users[index] = gradient.user

        # Each item row is averaged over its ratings and pulled to zero by some imaginary ones.
        prior = self.server.item_prior
        pulled = (items + prior * self.items) / (self.usage + prior)
        averaged = [part / self.n_ratings for part in dense]
        for parameter, slope in zip([self.items, *self.dense], [pulled, *averaged], strict=True):
            parameter.grad = slope
        self.server_optimizer.step()
        self.users.grad = users
        self.user_optimizer.step()
