"""The models by name: none is imported, so that the command line can list them quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bgtplanner.registry import Registry

if TYPE_CHECKING:
    from bgtplanner.models.learner import Learner


MODELS: Registry[type[Learner]] = Registry(
    "model",
    {
        "biases": "bgtplanner.models.bias:Biases",
        "factorization": "bgtplanner.models.factorization:Factorization",
        "fedgnn": "bgtplanner.models.fedgnn:FedGNN",
        "tastes": "bgtplanner.models.tastes:Tastes",
    },
    expected="a class derived from bgtplanner.Learner",
    fits=lambda found: callable(getattr(found, "server_update", None)),
    gone={
        name: f"in a checkout it is the model benchmarks.rivals.als:{name.title()}, with --set "
        "server.optimizer=posterior"
        for name in ("als", "cmf")
    },
)
"""All learners by name."""
