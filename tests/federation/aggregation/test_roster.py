"""The roster: one form in a file, and a digest that depends on everything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgtplanner.errors import ConfigError, StorageError
from bgtplanner.federation.aggregation.roster import Roster

TWO = Roster(("ann", "Zoë van Dam"), (b"a" * 32, b"b" * 32))


def test_a_roster_is_read_as_it_was_written(tmp_path: Path) -> None:
    TWO.write(tmp_path / "roster")
    assert Roster.read(tmp_path / "roster") == TWO
    assert (tmp_path / "roster").read_text(encoding="utf-8").splitlines() == [
        "bgtplanner roster 1",
        "61" * 32 + " ann",
        "62" * 32 + " Zoë van Dam",
    ]
    assert len(TWO) == 2
    assert TWO.place(b"b" * 32) == 1


def test_the_digest_depends_on_names_keys_and_order() -> None:
    others = [
        Roster(("bob", "Zoë van Dam"), TWO.keys),
        Roster(TWO.names, (b"a" * 32, b"c" * 32)),
        Roster(TWO.names[::-1], TWO.keys[::-1]),
        Roster(TWO.names[:1], TWO.keys[:1]),
    ]
    assert len({TWO.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bgtplanner roster 2\n" + "61" * 32 + " ann\n",
        "bgtplanner roster 1\n" + "61" * 32 + " ann",
        "bgtplanner roster 1\n" + "6A" * 32 + " ann\n",
        "bgtplanner roster 1\n" + "61" * 32 + "  ann\n",
        "bgtplanner roster 1\n" + "61" * 32 + " ann\n\n",
        "bgtplanner roster 1\n" + "61" * 32 + " ann\n" + "61" * 32 + " bob\n",
        "bgtplanner roster 1\n" + "61" * 32 + " ann\n" + "62" * 32 + " ann\n",
        "bgtplanner roster 1\n" + "61" * 32 + " a\x1b[2Jn\n",
        "bgtplanner roster 1\n" + "61" * 32 + " " + "a" * 257 + "\n",
    ],
)
def test_whatever_is_not_exactly_a_roster_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Roster.from_text(text)
    (tmp_path / "roster").write_bytes(text.encode())
    with pytest.raises(ConfigError, match="ask the operator"):
        Roster.read(tmp_path / "roster")


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("none", "bytes", "."):
        with pytest.raises(ConfigError, match="ask the operator"):
            Roster.read(tmp_path / name)
    with pytest.raises(StorageError, match="write the roster again"):
        TWO.write(tmp_path / "none" / "roster")


def test_a_key_that_is_not_enrolled_has_no_place() -> None:
    with pytest.raises(ConfigError, match="not in the roster"):
        TWO.place(b"c" * 32)
    with pytest.raises(ConfigError, match="32 bytes"):
        Roster(("ann",), (b"a",))
