"""Models made of numbers, without a training."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgtplanner.published.model import Model

TASTES = {
    "mean": 0.7, "level_shrinkage": 5.0, "popularity_shrinkage": 20.0, "quality_shrinkage": 0.3,
    "feature_shrinkage": 25.0, "axis_shrinkage": 150.0, "interest_shrinkage": 10.0,
    "taste_shrinkage": 30.0, "boldness": 0.85, "popularity_weight": 1.0,
}  # fmt: skip


def tastes(number: int = 30, axes: int = 2, seed: int = 0, **changes: Any) -> Model:
    """Return a model of items that a few axes and two genres tell apart."""
    generator = np.random.Generator(np.random.PCG64(seed))
    released = np.zeros((number, 5 + axes), dtype=np.float32)
    released[:, 0] = generator.normal(0, 0.05, number)
    released[:, 1] = generator.normal(0, 0.5, number)
    released[:, 2] = 0.5
    released[:, 3] = generator.dirichlet(np.ones(number))
    released[:, 5:] = np.linalg.qr(generator.normal(size=(number, axes)))[0]
    features = np.stack([np.arange(number) % 2 == 0, np.arange(number) % 3 == 0], axis=1)
    own: dict[str, Any] = {
        "ranker": "tastes", "settings": TASTES, "items": [f"film{at}" for at in range(number)],
        "titles": [f"Film No. {at}" for at in range(number)],
        "names": ("genre: Drama", "genre: War"), "features": features.astype(np.float32),
        "released": released, "low": 1.0, "high": 5.0, "implicit": False, "learned": True,
        "guarantee": {"private": True, "epsilon": 3.0, "people": 100, "sentences": ["Promised."]},
        "evidence": {"popularity": 0.9, "axes": 3, "features": 2}, "training": {"rounds": 4},
    }  # fmt: skip
    return Model(**(own | changes))
