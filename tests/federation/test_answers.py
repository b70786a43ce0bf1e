"""Kept answers: bit for bit what was sent, the newest ones only, and nothing made up."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.federation.answers import Answers

A, B = b"\x01" * 32, b"\x02" * 32
SENT = np.array([0.1, -0.0, np.nextafter(1.0, 2.0), -3e30])


def saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, content, **options)
    return file.getvalue()


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    return Answers(tmp_path / "answers", most=3)


def test_an_answer_comes_back_bit_for_bit_for_its_request_alone(answers: Answers) -> None:
    answers.keep(A, 7, SENT)
    found = Answers(answers.folder, most=3).find(A)
    assert found is not None
    assert found.tobytes() == SENT.tobytes()
    assert answers.find(B) is None
    assert [path.name for path in answers.folder.iterdir()] == [f"{7:016d}-{A.hex()}.npy"]
    assert stat.S_IMODE(answers.folder.stat().st_mode) == 0o700


def test_the_newest_by_reservation_are_kept(answers: Answers) -> None:
    for number in (2, 3, 10, 9):  # as text, 10 would come before 2
        answers.keep(bytes([number]) * 32, number, SENT)
    assert answers.find(bytes([2]) * 32) is None
    for number in (3, 9, 10):
        assert answers.find(bytes([number]) * 32) is not None
    assert len(list(answers.folder.iterdir())) == 3


def test_what_a_crash_left_half_written_is_neither_found_nor_counted(answers: Answers) -> None:
    answers.folder.mkdir()
    half = answers.folder / f"{1:016d}-{A.hex()}.npy.tmp"
    half.write_bytes(saved(SENT))
    for number in (2, 3, 4):
        answers.keep(B, number, SENT)
    assert answers.find(A) is None
    assert half.exists()
    assert len(list(answers.folder.glob("*.npy"))) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no array",
        saved(SENT)[:-1],
        saved(SENT.astype(np.float32)),
        saved(SENT[None]),
        saved(np.float64(1.0)),
        saved(np.array([{"a": 1}], dtype=object)),
    ],
    ids=["empty", "text", "cut", "single", "table", "number", "objects"],
)
def test_a_damaged_answer_is_as_good_as_none(answers: Answers, content: bytes) -> None:
    answers.keep(A, 1, SENT)
    (path,) = answers.folder.iterdir()
    path.write_bytes(content)
    assert answers.find(A) is None
    answers.keep(A, 2, SENT)  # a whole one beside it is found
    assert answers.find(A) is not None
