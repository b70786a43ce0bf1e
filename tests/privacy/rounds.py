"""Exact noise that counts how often draws were tried for."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgtplanner.privacy.noise import ExactNoise


class Rounds(ExactNoise):
    """Exact noise by seed; `rounds` has the number of rounds of tries of each batch of draws."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.default_rng(seed).bytes)
        self.rounds: list[int] = []

    def accepted(self, tried: Any, rate: float, shape: Any) -> Any:
        asked: list[int] = []

        def counted(tries: int) -> Any:
            asked.append(tries)
            return tried(tries)

        result = super().accepted(counted, rate, shape)
        self.rounds.append(len(asked))
        return result
