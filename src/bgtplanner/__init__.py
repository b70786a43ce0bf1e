"""Plan the privacy budget of federated recommenders, round by round.

The Python reference says which of these names are stable. They are loaded on first use, so that
importing the package needs only NumPy and SciPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bgtplanner import errors

if TYPE_CHECKING:
    from bgtplanner.data.catalogue import Catalogue as Catalogue
    from bgtplanner.data.datasets import load_ratings as load_ratings
    from bgtplanner.data.ratings import Ratings as Ratings
    from bgtplanner.models.learner import Learner as Learner
    from bgtplanner.planning.bgt import BGTPlanner as BGTPlanner
    from bgtplanner.planning.plan import Plan as Plan
    from bgtplanner.planning.policy import Policy as Policy
    from bgtplanner.privacy.budget import Budget as Budget
    from bgtplanner.privacy.budget import Budgets as Budgets
    from bgtplanner.privacy.ledger import Ledger as Ledger
    from bgtplanner.published.model import Model as Model
    from bgtplanner.published.model import load_model as load_model
    from bgtplanner.runs.result import Result as Result
    from bgtplanner.runs.run import load as load
    from bgtplanner.runs.run import resume as resume
    from bgtplanner.runs.run import simulate as simulate
    from bgtplanner.runs.statistics import Comparison as Comparison
    from bgtplanner.runs.statistics import compare as compare
    from bgtplanner.runs.statistics import load_study as load_study
    from bgtplanner.runs.train import train as train

__version__ = "0.3.0"

_NAMES = {
    "data.catalogue": "Catalogue", "data.datasets": "load_ratings", "data.ratings": "Ratings",
    "models.learner": "Learner", "planning.bgt": "BGTPlanner", "planning.plan": "Plan",
    "planning.policy": "Policy", "privacy.budget": "Budget Budgets", "privacy.ledger": "Ledger",
    "published.model": "Model load_model", "runs.result": "Result", "runs.train": "train",
    "runs.run": "load resume simulate", "runs.statistics": "Comparison compare load_study",
}  # fmt: skip
_HOMES = {name: f"bgtplanner.{home}" for home, of in _NAMES.items() for name in of.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bgtplanner' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("jax", "jaxlib", "optax"):
            raise errors.MissingExtraError("sim", f"bgtplanner.{name}") from error
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
