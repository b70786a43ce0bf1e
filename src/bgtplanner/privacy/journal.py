"""Names of the ledger's file under their former address, until every caller uses the new one."""

from bgtplanner.privacy._journal import Head, in_write_ahead_mode, sqlite_warning

__all__ = ["Head", "in_write_ahead_mode", "sqlite_warning"]
