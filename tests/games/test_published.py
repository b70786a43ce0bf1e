"""The adversary has the model file, and knows everything but one person's ratings.

He wins if equal releases lead to files that differ: then something in them was neither public nor
paid for. The variants without a defence, in which he wins, show that the game can be won.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Ratings
from bgtplanner.federation.central import CentralTraining
from bgtplanner.runs.train import train

ITEMS = [f"i{at}" for at in range(12)]


def federation(**secret: Any) -> Ratings:
    """Return ratings of thirty people, of whom the last one has a secret."""
    generator = np.random.default_rng(0)
    user = np.repeat(np.arange(30), 5)
    item = np.concatenate([generator.choice(11, 5, replace=False) for _ in range(30)])
    value = generator.integers(2, 5, 150).astype(float)
    time = np.arange(150.0)
    item[-1] = secret.get("item", item[-1])
    value[-1] = secret.get("value", value[-1])
    time[-1] = secret.get("time", time[-1])
    labels = [f"i{of}" for of in item]
    how: dict[str, Any] = {"items": ITEMS, "scale": (1, 5)} if secret.get("public", True) else {}
    return Ratings.from_arrays(user, labels, value, time=time, **how)


def published(monkeypatch: pytest.MonkeyPatch, path: Path, ratings: Ratings) -> bytes:
    """Return the file of a training in which every release is the same, whoever takes part."""

    def equal(self: Any, *_: Any) -> Any:
        coordinates = self.state.shared.items.shape[0] * (2 + (self.federation.model.axes or 0))
        return self.state.local, np.linspace(-1, 1, coordinates), 0

    monkeypatch.setattr(CentralTraining, "_sums", equal)
    monkeypatch.setattr(CentralTraining, "noise", _Zero())
    path.unlink(missing_ok=True)
    train(
        replace(ratings, name="ratings"), ledger=None, out=path, settings={"federation.rounds": 3},
        assume_public=["catalogue", "scale"],
    )  # fmt: skip
    return path.read_bytes()


class _Zero:
    """Noise that is zero, so that releases can be made equal."""

    def normal_steps(self, scale: int, shape: tuple[int, ...]) -> Any:
        del scale
        return np.zeros(shape, dtype=np.int64)


SECRETS = [{"item": 11}, {"value": 5.0}, {"value": 1.0}, {"time": 1e9}]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda of: next(iter(of)))
def test_equal_releases_give_equal_files(
    secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether one person alone has rated an item, or the best, the worst or the newest rating."""
    first = published(monkeypatch, tmp_path / "a.model", federation())
    assert published(monkeypatch, tmp_path / "a.model", federation(**secret)) == first


@pytest.mark.parametrize("secret", SECRETS[:2], ids=lambda of: next(iter(of)))
def test_the_adversary_wins_where_the_public_part_is_read_off_the_ratings(
    secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = published(monkeypatch, tmp_path / "a.model", federation(public=False))
    second = published(monkeypatch, tmp_path / "a.model", federation(public=False, **secret))
    assert second != first
