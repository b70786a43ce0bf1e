"""Files that were cut, flipped, torn or swapped: an error of ours, or the very same balances.

What is not noticed without help: that a whole older state of the file was put in its place. Who
remembers a head notices that, too (see ``test_ledger.py``, "backups").
"""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bgtplanner.errors import BGTPlannerError, LedgerError, LedgerTamperedError, StorageError
from bgtplanner.privacy._rows import Head
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

ASSETS = Path(__file__).parents[1] / "assets"
PAGE = 4096
BUDGETS = Budgets((Budget(9.0), Budget(7.0)), np.array([0, 1, 0]))


class State(NamedTuple):
    """A file at some moment, and what was spent and known by then."""

    content: bytes
    spent: list[list[int]]
    head: Head


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[State]:
    """A ledger after each of its writes, with unsettled rows, while it is open."""
    path = tmp_path_factory.mktemp("states") / "ledger.sqlite"
    found: list[State] = []
    with Ledger.create(path, BUDGETS, "laplace/either") as ledger:
        for number in range(24):
            reservation = ledger.reserve(
                [0.01, 0.02, 0.03] if number % 2 else 0.01,
                run=f"run {number % 3}", round=number, fingerprint=bytes([number]),
            )  # fmt: skip
            found.append(State(path.read_bytes(), ledger.spent().tolist(), ledger.head))
            if number % 3 == 0:
                ledger.settle(reservation)
    return found


def looked_at(path: Path, content: bytes, journal: bytes = b"") -> list[list[int]] | None:
    """What a file says was spent, opened for writing; None if it is refused, in our words."""
    path.write_bytes(content)
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
    if journal:
        path.with_name(path.name + "-journal").write_bytes(journal)
    try:
        with Ledger.open(path) as ledger:
            return [[int(tick) for tick in row] for row in ledger.spent()]
    except (LedgerError, LedgerTamperedError, StorageError):
        return None


def test_of_200_flipped_bytes_none_changes_a_balance_in_silence(
    states: list[State], tmp_path: Path
) -> None:
    """Half of them anywhere, half where something is written: most of a page is empty."""
    last, noticed = states[-1], 0
    written = [place for place, byte in enumerate(last.content) if byte]
    generator = random.Random(200)
    for number in range(200):
        content = bytearray(last.content)
        place = generator.choice(written if number % 2 else range(len(content)))
        content[place] ^= generator.randrange(1, 256)
        spent = looked_at(tmp_path / "ledger.sqlite", bytes(content))
        assert spent in (None, last.spent), place
        noticed += spent is None
    assert noticed > 20  # the rest is empty


@pytest.mark.parametrize("pages", [0, 1, 2])
def test_a_file_cut_anywhere_is_refused(states: list[State], tmp_path: Path, pages: int) -> None:
    last = states[-1].content
    whole = len(last) // PAGE
    generator = random.Random(pages)
    cuts = {
        0: [page * PAGE for page in range(whole)],
        1: [len(last) - behind for behind in (1, 5, 100, 1000, 4000)],
        2: [generator.randrange(len(last)) for _ in range(25)],
    }[pages]
    for cut in cuts:
        assert looked_at(tmp_path / "ledger.sqlite", last[:cut]) is None, cut


# ---- the rollback journal


def journal_of(before: bytes, after: bytes) -> bytes:
    """What SQLite writes aside before it changes a file from one state to the next."""
    pages = [
        n
        for n in range(len(before) // PAGE)
        if before[n * PAGE : (n + 1) * PAGE] != after[n * PAGE : (n + 1) * PAGE]
    ]
    nonce = 0x5EED
    numbers = (len(pages), nonce, len(before) // PAGE, 512, PAGE)
    header = bytes.fromhex("d9d505f920a163d7") + b"".join(n.to_bytes(4, "big") for n in numbers)
    content = header.ljust(512, b"\0")
    for page in pages:
        data = before[page * PAGE : (page + 1) * PAGE]
        total = (nonce + sum(data[PAGE - 200 : 0 : -200])) & 0xFFFFFFFF
        content += (page + 1).to_bytes(4, "big") + data + total.to_bytes(4, "big")
    return content


def torn(before: bytes, after: bytes, generator: random.Random) -> bytes:
    """Some pages of one state and some of the other."""
    size = len(generator.choice([before, after]))
    content = b""
    for start in range(0, size, PAGE):
        chosen = generator.choice([before, after])[start : start + PAGE]
        content += chosen or after[start : start + PAGE]
    return content


def test_a_write_that_was_cut_off_at_any_page_is_taken_back(
    states: list[State], tmp_path: Path
) -> None:
    generator = random.Random(5)
    for before, after in itertools.pairwise(states):
        journal = journal_of(before.content, after.content)
        for content in (after.content, torn(before.content, after.content, generator)):
            assert looked_at(tmp_path / "ledger.sqlite", content, journal) == before.spent
        # Before the journal is whole nothing in the file is touched.
        cut = journal[: generator.randrange(len(journal))]
        assert looked_at(tmp_path / "ledger.sqlite", before.content, cut) == before.spent


def test_a_reader_finds_a_write_that_was_cut_off(states: list[State], tmp_path: Path) -> None:
    before, after = states[-2:]
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(after.content)
    path.with_name("ledger.sqlite-journal").write_bytes(journal_of(before.content, after.content))
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.spent().tolist() == before.spent
        assert ledger.verify(before.head) == before.head.number + 1


def test_of_200_flips_in_a_journal_that_is_needed_none_loses_what_was_granted(
    states: list[State], tmp_path: Path
) -> None:
    """What was being written was not granted yet: it may be there or not. Nothing else changes."""
    generator = random.Random(20)
    taken_back = 0
    for _ in range(200):
        index = generator.randrange(1, len(states))
        before, after = states[index - 1], states[index]
        journal = bytearray(journal_of(before.content, after.content))
        place = generator.randrange(len(journal))
        journal[place] ^= 1 << generator.randrange(8)
        content = torn(before.content, after.content, generator)
        path = tmp_path / "ledger.sqlite"
        path.write_bytes(content)
        path.with_name(path.name + "-journal").write_bytes(journal)
        try:
            with Ledger.open(path, head=before.head) as ledger:
                assert ledger.spent().tolist() in (before.spent, after.spent), place
                taken_back += 1
        except BGTPlannerError:
            pass
    assert taken_back > 50


# ---- where nothing can be written

READER = """
import os, sys
from pathlib import Path
from bgtplanner.errors import BGTPlannerError
from bgtplanner.privacy.ledger import Ledger
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for name in sorted(os.listdir(sys.argv[1])):
    try:
        with Ledger.open(Path(sys.argv[1]) / name, read_only=True) as ledger:
            print(name, ledger.verify(), ledger.unsettled)
    except BGTPlannerError as error:
        print(name, error)
print(len(os.listdir(sys.argv[1])))
"""


def test_a_cleanly_closed_ledger_can_be_verified_where_nothing_can_be_written() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with Ledger.create(folder / "new.sqlite", BUDGETS, "laplace/basic") as ledger:
            ledger.reserve(0.25, run="a", round=0)
        shutil.copy(ASSETS / "ledger-schema1.sqlite", folder / "old.sqlite")
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        result = subprocess.run(
            [sys.executable, "-c", READER, str(folder)], capture_output=True, text=True
        )
        assert result.stderr == ""
        assert result.stdout.splitlines() == ["new.sqlite 2 1", "old.sqlite 10 2", "2"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
