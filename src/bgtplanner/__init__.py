"""Plan the privacy budget of federated recommenders, round by round.

The names below are the public ones; everything else may change without notice. They are loaded
when first used, so that importing the package needs NumPy and SciPy only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bgtplanner import errors

if TYPE_CHECKING:
    from bgtplanner.experiments.results import Result
    from bgtplanner.experiments.runner import resume, simulate
    from bgtplanner.planning.bgt import BGTPlanner
    from bgtplanner.planning.policy import Plan, Policy
    from bgtplanner.privacy.budget import Budget, Budgets
    from bgtplanner.privacy.ledger import Ledger
    from bgtplanner.recsys.model import Model
    from bgtplanner.recsys.ratings import Ratings
    from bgtplanner.recsys.sources import load_ratings
    from bgtplanner.report.study import compare

__version__ = "0.1.0"
__all__ = [
    "BGTPlanner",
    "Budget",
    "Budgets",
    "Ledger",
    "Model",
    "Plan",
    "Policy",
    "Ratings",
    "Result",
    "compare",
    "errors",
    "load_ratings",
    "resume",
    "simulate",
]

_HOMES = {
    "BGTPlanner": "bgtplanner.planning.bgt",
    "Budget": "bgtplanner.privacy.budget",
    "Budgets": "bgtplanner.privacy.budget",
    "Ledger": "bgtplanner.privacy.ledger",
    "Model": "bgtplanner.recsys.model",
    "Plan": "bgtplanner.planning.policy",
    "Policy": "bgtplanner.planning.policy",
    "Ratings": "bgtplanner.recsys.ratings",
    "Result": "bgtplanner.experiments.results",
    "compare": "bgtplanner.report.study",
    "load_ratings": "bgtplanner.recsys.sources",
    "resume": "bgtplanner.experiments.runner",
    "simulate": "bgtplanner.experiments.runner",
}


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
    return sorted({*globals(), *__all__})
