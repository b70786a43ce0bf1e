"""The model file: the same after reading, refused if altered, and never code."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from bgtplanner.errors import ModelFileError
from bgtplanner.published.model import load_model
from made import tastes


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    made = tastes()
    made.save(tmp_path / "one.model")
    found = load_model(tmp_path / "one.model")
    history = {"film0": 5, "film1": 2}
    assert found.recommend(history) == made.recommend(history)
    assert (found.guarantee, found.verdict()) == (made.guarantee, made.verdict())
    found.save(tmp_path / "two.model")
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()


def test_a_file_of_version_1_is_read_for_good() -> None:
    """It was written by 0.2, and signed by the key 00 01 02 ..."""
    path = Path(__file__).parent / "assets" / "version-1.model"
    found, made = load_model(path), tastes(12)
    np.testing.assert_array_equal(found.released, made.released)
    np.testing.assert_array_equal(found.features, made.features)
    assert (found.items, found.titles, found.low, found.high) == (
        made.items, made.titles, 1.0, 5.0,
    )  # fmt: skip
    assert found.guarantee == made.guarantee
    assert len(found.recommend({"film0": 5, "film3": 2})) == 10
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    load_model(path, signer=key.public_key().public_bytes_raw())


def test_other_software_reads_the_layout(tmp_path: Path) -> None:
    """By the description of the format alone: length, JSON, arrays at their offsets."""
    made = tastes()
    made.save(path := tmp_path / "a.model")
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    of = header["released"]
    begin, end = of["data_offsets"]
    raw = np.frombuffer(content[8 + length :][begin:end], "<f4").reshape(of["shape"])
    np.testing.assert_array_equal(raw, made.released)
    assert header["features"]["dtype"] == "U8"
    assert json.loads(header["__metadata__"]["model"])["items"] == made.items


def test_every_damage_is_refused(tmp_path: Path) -> None:
    tastes(6).save(path := tmp_path / "a.model")
    content = path.read_bytes()
    damaged = [content + b"x", content.replace(b'"F32", "shape"', b'"F32",  "shape"')]
    for at in range(0, len(content), 7):
        damaged += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], content[:at]]
    for other in damaged:
        path.write_bytes(other)
        with pytest.raises(ModelFileError):
            load_model(path)
    with pytest.raises(ModelFileError):
        load_model(tmp_path / "missing.model")


def test_a_signature_names_who_made_it(tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    keys = [ed25519.Ed25519PrivateKey.generate() for _ in range(2)]
    private = keys[0].private_bytes_raw()
    first, other = (key.public_key().public_bytes_raw() for key in keys)
    tastes().save(path := tmp_path / "a.model", key=private)
    assert len(load_model(path, signer=first).items) == 30
    with pytest.raises(ModelFileError):
        load_model(path, signer=other)
    tastes().save(path)
    with pytest.raises(ModelFileError):
        load_model(path, signer=first)


def test_a_later_format_is_named(tmp_path: Path) -> None:
    tastes().save(path := tmp_path / "a.model")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"version": "1"', b'"version": "9"'))
    with pytest.raises(ModelFileError, match="later release"):
        load_model(path)


def test_verdicts_follow_the_evidence() -> None:
    levels = [
        tastes(evidence={"popularity": 0.9, "axes": axes, "features": features}).verdict().level
        for axes, features in ((0, 0), (0, 5), (1, 0), (1, 5), (3, 0))
    ]
    assert levels == ["popularity", "personal", "personal", "clearly personal", "clearly personal"]
    assert tastes(learned=False, evidence={}).verdict().level == "nothing"
    learned = [
        tastes(evidence={"popularity": share}).verdict().reasons[0].split()[-2]
        for share in (0.8, 0.79, 0.3, 0.29)
    ]
    assert learned == ["well", "roughly", "roughly", "barely"]
