"""Only to reproduce the paper: nothing of this is needed, or recommended, for anything else.

The rest of the package does not know this room. It registers itself, like anybody's plugin: see
``[project.entry-points]`` in ``pyproject.toml`` and :mod:`bgtplanner.registry`.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Add the paper's own parts to the registries, by their addresses: none is imported yet."""
    from bgtplanner.planning.registry import CONSTANTS, CONTEXTS
    from bgtplanner.privacy.accountants import ACCOUNTANTS
    from bgtplanner.privacy.allowed import UNITS

    ACCOUNTANTS.add("gaussian/authors", "bgtplanner.paper.accounting:GAUSSIAN_AUTHORS")
    UNITS.add("row", "bgtplanner.paper.accounting:ROW")
    CONTEXTS.add("usage", "bgtplanner.paper.usage:UsageContext")
    CONSTANTS.add("repaired", "bgtplanner.paper.planners:Repaired")
    CONSTANTS.add("paper", "bgtplanner.paper.planners:AsPrinted")
    CONSTANTS.add("authors", "bgtplanner.paper.planners:AsCoded")
