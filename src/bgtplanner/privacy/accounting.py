"""Names of the accountants under their former address, until every caller uses the new one."""

from bgtplanner.privacy.accountants import *  # noqa: F403
