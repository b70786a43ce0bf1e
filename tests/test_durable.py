"""A file is replaced as a whole or left as it was."""

from pathlib import Path

import pytest

from bgtplanner.durable import replace_file


def test_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    replace_file(target, b"old")
    assert target.read_bytes() == b"old"

    def full(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="disk full"):
            replace_file(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
