"""What tests of ledgers and noise share."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.randomness import ExactNoise


def says(kind: type[Exception], message: str) -> Any:
    """Expect an error with exactly this message."""
    return pytest.raises(kind, match=f"^{re.escape(message)}$")


def refused(message: str) -> Any:
    """Expect a value to be refused with exactly this message."""
    return says(ConfigError, message)


def budgets_of(*epsilons: float, delta: float = 1e-5) -> Budgets:
    return Budgets.per_client(epsilons, delta)


def charges(ledger: Ledger) -> list[float]:
    """What each client has spent, in the first sum."""
    return (ledger.spent()[0] * TICK).tolist()


def edited(path: Path, statement: str, *values: Any) -> int:
    """Change a ledger's file behind its back; returns how many rows were changed."""
    connection = sqlite3.connect(path)
    changed = connection.execute(statement, values).rowcount
    connection.commit()
    connection.close()
    return changed


def exact(seed: int) -> ExactNoise:
    """Exact noise from a seed, for tests only."""
    return ExactNoise(np.random.default_rng(seed).bytes)
