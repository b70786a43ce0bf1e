"""Names of the accountants under their former address, until every caller uses the new one."""

from bgtplanner.privacy.accountants import (
    CEILING,
    RULES,
    TICK,
    Rule,
    default_rule,
    from_ticks,
    rule_named,
    to_ticks,
)

__all__ = [
    "CEILING",
    "RULES",
    "TICK",
    "Rule",
    "default_rule",
    "from_ticks",
    "rule_named",
    "to_ticks",
]
