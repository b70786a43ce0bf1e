"""The planner around a torch model: clip and noise every client's gradient as planned.

    pip install torch
    python examples/torch_model.py

Three thousand clients rate items; a small model learns embeddings of items and of groups of
people. Every client sends one gradient of the whole model per round, clipped as a whole. The
planner looks only at what has been released already, and knows nothing of torch.
"""

# ruff: noqa: T201

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bgtplanner import BGTPlanner, Budget
from bgtplanner.planning.context import ReleasedContext

CLIENTS, RATINGS, ITEMS, GROUPS, WIDTH, ROUNDS = 3000, 20, 30, 5, 3, 40
LEARNING_RATE = 1.0


class Taste(nn.Module):
    """Predicts a rating from the group of a person and the item."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.groups = nn.Embedding(GROUPS, WIDTH)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, group: Tensor, item: Tensor) -> Tensor:
        """Return ratings around 0, one per pair."""
        return (self.groups(group) * self.items(item)).sum(-1) + self.bias


def make_ratings(people: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return groups, items and ratings of a made-up world, ``[people, ratings]`` each."""
    world = torch.Generator().manual_seed(5)
    groups = torch.randn(GROUPS, WIDTH, generator=world)
    items = torch.randn(ITEMS, WIDTH, generator=world)
    group = torch.randint(GROUPS, (people, 1), generator=generator).expand(people, RATINGS)
    item = torch.randint(ITEMS, (people, RATINGS), generator=generator)
    exact = (groups[group] * items[item]).sum(-1) / WIDTH**0.5 + 0.5
    return group, item, exact + 0.3 * torch.randn(exact.shape, generator=generator)


def main() -> None:
    """Train until the budget is spent, and print some of the rounds."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    mine, public = make_ratings(CLIENTS, generator), make_ratings(200, generator)
    model = Taste()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    sizes = [value.numel() for value in parameters.values()]

    def loss(now: dict[str, Tensor], group: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        return ((functional_call(model, now, (group, item)) - rating) ** 2).mean()

    every_gradient = vmap(grad(loss), in_dims=(None, 0, 0, 0))
    before = float(loss(parameters, *public))
    print(f"error on public ratings before training: {before:.3f}")

    planner = BGTPlanner(Budget(10.0, 1e-5), CLIENTS, rounds=ROUNDS, clip=0.5, seed=0)
    context = ReleasedContext()

    def look() -> NDArray[np.float64]:
        progress, left = planner.round / planner.rounds, float(planner.share_left()[0])
        return context.vector(progress=min(progress, 1.0), left=left)

    print("round   charge  noise_std  epsilon_spent   error")
    while (plan := planner.ask(look())) is not None:
        if plan.skip:  # no one sends anything
            planner.tell(plan)
            continue
        found = every_gradient(parameters, *mine)
        uploads = torch.cat([part.reshape(CLIENTS, -1) for part in found.values()], dim=1)
        norms = uploads.norm(dim=1, keepdim=True)
        uploads = uploads * (plan.clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        # Right for a number, and for a column with one number per client if budgets differ.
        std = torch.tensor(plan.noise_std, dtype=uploads.dtype)
        uploads = uploads + std * torch.randn(uploads.shape, generator=generator)
        takes_part = torch.from_numpy(plan.participants)
        aggregate = uploads[takes_part].mean(dim=0)
        parts = zip(parameters.items(), aggregate.split(sizes), strict=True)
        parameters = {
            name: value - LEARNING_RATE * part.reshape(value.shape)
            for (name, value), part in parts
        }
        after = float(loss(parameters, *public))
        planner.tell(plan, reward=before - after)
        noise = plan.noise_std / int(takes_part.sum()) ** 0.5
        context.released(aggregate.numpy(), noise_std=noise)
        before = after
        if plan.round % 5 == 0:
            spent = planner.ledger.epsilon_spent()[0]
            print(
                f"{plan.round:5d}  {plan.charge:7.3f}  {plan.noise_std:9.2f}"
                f"  {spent:13.2f}  {after:6.3f}"
            )
    model.load_state_dict(parameters)
    print(f"error on public ratings after {planner.round} rounds: {before:.3f}")


if __name__ == "__main__":
    main()
