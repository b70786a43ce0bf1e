"""What settings of learners cannot be is refused by the name of the setting."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes

LEARNERS = (Biases, Factorization, FedGNN, Server, Tastes)
NUMBERS = [
    (kind, field.name)
    for kind in LEARNERS
    for field in fields(kind)
    if isinstance(field.default, (int, float)) and not isinstance(field.default, bool)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=str)
def test_every_number_has_a_range(kind: Any, name: str) -> None:
    for value in (math.nan, math.inf, -math.inf, -1e3):
        with pytest.raises(ConfigError, match=f"^{name} = "):
            kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Biases, {"mean": 1.1}),
        (Biases, {"level_shrinkage": 0.0}),
        (Factorization, {"dim": 1025}),
        (Factorization, {"dim": 1.5}),
        (Factorization, {"init_scale": 0.0}),
        (FedGNN, {"dim": 0}),
        (FedGNN, {"heads": 3}),
        (FedGNN, {"self_loops": 0}),
        (FedGNN, {"score": "other"}),
        (FedGNN, {"local_optimizer": "sgd"}),
        (Server, {"learning_rate": 0.0}),
        (Server, {"momentum": 1.0}),
        (Tastes, {"axes": -1}),
        (Tastes, {"axes": 1.5}),
        (Tastes, {"taste_share": 1.0}),
        (Tastes, {"item_shrinkage": 0.0}),
    ],
    ids=str,
)
def test_what_cannot_be(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} = "):
        kind(**wrong)
