"""Text from outside: how much of it is read, and how it is shown without being interpreted.

Names of runs, users, items, policies, folders and files come from files and messages that someone
else may have written. On a terminal a name can contain codes that erase lines; in a spreadsheet it
can be a formula; it can run from right to left and read as another name. What is shown goes
through :func:`visible`, or :func:`csv_text` for a table; nothing is read without a limit.
"""

from __future__ import annotations

import csv
import io
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LONGEST_LABEL = 256
"""The most bytes of UTF-8 in the name of a user or an item."""

MOST_LABELS = 10_000_000
"""The most items, or users, in one table or catalogue."""

LONGEST_NAME = 1000
"""The most characters in any other name, or in a note, in a file of a run."""

MOST_BYTES_OF_SETTINGS = 32 << 20
"""Size limit of a file of settings, a summary, or a file of budgets with one epsilon per line."""

MOST_BYTES_OF_ROUNDS = 4 << 30
"""Size limit of the file in which a run leaves one line per round."""

# Control characters, invisible marks and those that change the direction of writing, line and
# paragraph separators, surrogates, and the plane of invisible tags.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_FORMULA = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def visible(text: object, *, keep: str = "") -> str:
    r"""Return the text with every invisible character escaped, as in ``\u001b``.

    Args:
        text: What is to be shown.
        keep: Characters that are not escaped, such as ``\n`` in text of several lines.

    Example:
        >>> visible("a\x1b[2Jb"), visible("one\ntwo", keep="\n")
        ('a\\u001b[2Jb', 'one\ntwo')
    """

    def written(found: re.Match[str]) -> str:
        number = ord(letter := found[0])
        hidden = f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
        return letter if letter in keep else hidden

    return _HIDDEN.sub(written, str(text))


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    r"""Return a table as CSV in which no text is taken for a formula; numbers stay numbers.

    Example:
        >>> csv_text(["run", "charge"], [{"run": "=1+1", "charge": -0.5}])
        "run,charge\n'=1+1,-0.5\n"
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    for row in rows:
        writer.writerow([_cell(row.get(name, "")) for name in columns])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = visible(value)
    formula = value.lstrip(" ").startswith(_FORMULA) and not _NUMBER.fullmatch(value)
    return f"'{text}" if formula else text


class Table(NamedTuple):
    """A table, independent of where it is shown.

    The first column is text, the others are figures. A row is the name of its group, or nothing,
    and its cells; `note` says how to read them, and `bold` is the name of the row that counts.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    note: str = ""
    bold: str = ""


def is_sha256(text: str) -> bool:
    """Return whether this is a written SHA-256: 64 hexadecimal digits in lower case."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def read_bytes(path: Path, most: int, *, plain: bool = True) -> bytes:
    """Return the content of a file of at most `most` bytes.

    If `plain`, devices and pipes are refused, which may never end or never begin.

    Raises:
        OSError: If it cannot be read, is longer, or is refused.
    """
    found, longer = path.stat(), OSError(f"is longer than {most:,} bytes")
    if plain and not stat.S_ISREG(found.st_mode):  # opening it may wait forever
        raise OSError("is a folder" if path.is_dir() else "is not a plain file")
    if found.st_size > most:
        raise longer
    with path.open("rb") as file:
        content = file.read() if plain else file.read(most + 1)
    if len(content) > most:
        raise longer
    return content
