"""The models by name: none is imported, so that the command line can list them quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bgtplanner.registry import Registry

if TYPE_CHECKING:
    from bgtplanner.models.learner import Learner


def _is_learner(found: Any) -> bool:
    parts = ("initial", "personalise", "train", "predict", "server_initial", "server_update")
    return isinstance(found, type) and all(callable(getattr(found, part, None)) for part in parts)


MODELS: Registry[type[Learner]] = Registry(
    "model",
    {
        "biases": "bgtplanner.models.bias:Biases",
        "factorization": "bgtplanner.models.factorization:Factorization",
        "fedgnn": "bgtplanner.models.fedgnn:FedGNN",
        "tastes": "bgtplanner.models.tastes:Tastes",
    },
    expected="a class derived from bgtplanner.Learner",
    fits=_is_learner,
    gone={
        name: f"in a checkout it is the model benchmarks.rivals.als:{name.title()}, with --set "
        "server.optimizer=posterior"
        for name in ("als", "cmf")
    },
)
"""All learners by name."""
