"""Everything that exists only to reproduce the paper; it is not recommended for anything else.

The core does not import this package. It registers itself as any plugin does: see
``[project.entry-points]`` in ``pyproject.toml`` and :mod:`bgtplanner.registry`.
"""

from __future__ import annotations


def register() -> None:
    """Add the paper's own parts to the registries by their addresses, importing none."""
    from bgtplanner.planning.registry import CONSTANTS, CONTEXTS, POLICIES
    from bgtplanner.privacy.accountants import ACCOUNTANTS
    from bgtplanner.privacy.compatibility import UNITS

    ACCOUNTANTS.add("gaussian/authors", "bgtplanner.paper.accounting:GAUSSIAN_AUTHORS")
    UNITS.add("row", "bgtplanner.paper.accounting:ROW")
    CONTEXTS.add("usage", "bgtplanner.paper.usage:UsageContext")
    CONSTANTS.add("repaired", "bgtplanner.paper.planners:Repaired")
    CONSTANTS.add("paper", "bgtplanner.paper.planners:AsPrinted")
    POLICIES.add("adpml", "bgtplanner.paper.baselines:Adpml")
    POLICIES.add("adap", "bgtplanner.paper.baselines:Adap")
