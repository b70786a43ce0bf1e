"""Every error this package raises on purpose.

The command line exits with 2 for an :class:`InputError`: what the caller gave is wrong, and
nothing was started. It exits with 1 for all others: trouble on the way.

Messages quote the name, the value and what was expected, and never hold a rating, an item id
or a gradient without noise. Whatever they quote is escaped, so that a terminal only displays it.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Self

from bgtplanner.text import visible


def quoted(value: object) -> str:
    """Return a value as messages show it: at most one line, with invisible characters escaped.

    Example:
        >>> quoted("adm"), quoted(16**5000)
        ("'adm'", 'a huge number')
    """
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a huge number"
    text = visible(text)
    return text if len(text) <= 80 else f"{text[:60]}..."


class BGTPlannerError(Exception):
    """Base of every error that the package raises on purpose; control characters are escaped."""

    exit_code = 1

    def __init__(self, *said: object) -> None:
        super().__init__(*(visible(of) if isinstance(of, str) else of for of in said))


class InputError(BGTPlannerError, ValueError):
    """The caller's input is wrong. Nothing was started."""

    exit_code = 2


class ConfigError(InputError):
    """A flag, a config key or an argument has a value that cannot be used."""

    @classmethod
    def unless(cls, fits: bool, name: str, value: object, expected: str) -> None:
        """Raise unless it fits, naming the setting, its value and what was expected."""
        if not fits:
            raise cls(f"{name} = {quoted(value)}: expected {expected}")


class DataError(InputError):
    """A ratings file or array cannot be read as ratings; lines are counted from 1."""

    def __init__(self, problem: str, *, path: Path | str | None = None, line: int | None = None):
        self.path = None if path is None else Path(path)
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(where + problem)


class MissingExtraError(InputError):
    """An optional dependency is needed and not installed."""

    def __init__(self, extra: str, needed_for: str):
        tool = "pipx install --force" if "pipx" in Path(sys.prefix).parts else "pip install"
        how = f"{tool} 'bgtplanner[{extra}]'"
        super().__init__(f"{needed_for} needs the extra '{extra}': {how}")


class NothingLearnedError(BGTPlannerError):
    """There is nothing to rank items by: nothing was learned, released or given about them."""


class TrainingDivergedError(BGTPlannerError):
    """The loss is no longer a finite number: the step size is too large for these data."""


class MessageError(BGTPlannerError):
    """A message between server and client is not what was agreed. It is not answered."""


class InterruptedRunError(BGTPlannerError):
    """A run was stopped from outside. What it has learned so far is in its folder."""


class LedgerError(InputError):
    """The file is not a ledger, cannot be read, or has other budgets or another accountant."""


class LedgerTamperedError(BGTPlannerError):
    """The ledger's rows are not those that were written, so spending may be hidden."""


class BudgetExceeded(BGTPlannerError):  # noqa: N818 - a refusal, not a fault
    """A charge exceeds what is left. It was refused before anything was released.

    It has the smallest `charge` asked for, and the largest that any client had `left`.
    """

    def __init__(self, message: str, *, charge: float, left: float):
        self.charge, self.left = charge, left
        super().__init__(message)


class StaleRoundError(BGTPlannerError):
    """A round is not above all earlier rounds of its run. It was refused without a charge."""


class RunFolderError(InputError):
    """The run folder cannot be used as asked."""


class RunLockedError(RunFolderError):
    """Another process is writing to this run folder."""


class ModelFileError(InputError):
    """The file is not a model file, is damaged or altered, or of a later release."""


class SchemaError(RunFolderError):
    """The run folder was written by a version that this one cannot read."""


class StorageError(BGTPlannerError):
    """The disk refused to write. What was written before is intact."""

    @classmethod
    def of(cls, name: object, error: OSError, then: str) -> Self:
        """Return an error that names a file or a flag, says what is wrong, and what to do then."""
        denied = "no permission to write here;"
        said = {
            errno.ENOSPC: "no space left on the disk; free some, then",
            errno.EDQUOT: "the disk quota is used up; free some space, then",
            errno.EROFS: "the disk is read-only;", errno.EACCES: denied, errno.EPERM: denied,
        }.get(error.errno or 0, f"{error.strerror or error};")  # fmt: skip
        return cls(f"{name}: {said} {then}")
