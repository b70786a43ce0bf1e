"""The model file: one JSON header and plain arrays, in the safetensors layout, never code.

Eight bytes hold the length of the header, the header is JSON, and the rest is arrays, one after
the other. All that is text is in one entry of the header's ``__metadata__``. The digest covers
that text and all arrays: a file that was damaged or altered is refused. It proves who made the
file only together with a signature. The format is described in docs/reference/model-file.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.durable import replace_file
from bgtplanner.errors import MissingExtraError, ModelFileError, StorageError

VERSION = 1
"""Of the format; every version that was ever written stays readable."""

_FORMAT = "bgtplanner-model"
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "U8": np.dtype("u1")}
_MOST_BYTES = 1 << 31
_Arrays = dict[str, NDArray[Any]]


def write(
    path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Any], key: bytes | None = None
) -> None:
    """Write a model file; a `key` is the 32 bytes of an Ed25519 private key, which signs it."""
    text = json.dumps(facts, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    parts = {name: _smallest(array) for name, array in sorted(arrays.items())}
    digest, layout, begin = _digest(text, parts), dict[str, Any](), 0
    for name, part in parts.items():
        kind = next(code for code, dtype in _DTYPES.items() if dtype == part.dtype)
        place = [begin, begin := begin + part.nbytes]
        layout[name] = {"dtype": kind, "shape": list(part.shape), "data_offsets": place}
    told = {"format": _FORMAT, "version": str(VERSION), "model": text, "digest": digest.hex()}
    if key is not None:
        told |= _signed(digest, key)
    header = json.dumps({"__metadata__": told, **layout}, ensure_ascii=False).encode()
    content = b"".join(part.tobytes() for part in parts.values())
    try:
        replace_file(path, struct.pack("<Q", len(header)) + header + content)
    except OSError as error:
        raise StorageError.of(str(path), error, "choose another path") from error


def read(path: Path, signer: bytes | None = None) -> tuple[dict[str, Any], _Arrays]:
    """Return the facts and the arrays of a model file, after checking all of it.

    Given the 32 bytes of a `signer`'s public key, a file that they did not sign is refused.

    Raises:
        ModelFileError: If it is none, or damaged, altered, or of a later release.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ModelFileError(f"{path}: larger than any model file")
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        told, layout, body = _parts(content)
        version = int(told["version"])
        if told["format"] != _FORMAT or version < 1:
            raise ValueError(told["format"])
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise ModelFileError(f"{path}: not a model file; `train` writes one") from error
    if version > VERSION:
        raise ModelFileError(f"{path}: of a later release (format {version}); update bgtplanner")
    damaged = "damaged or altered; get it again from whoever published it"
    try:
        arrays = {name: _array(of, body) for name, of in sorted(layout.items())}
        digest = _digest(told["model"], arrays)
        same = digest.hex() == told["digest"]
        facts = json.loads(told["model"])
        fits = isinstance(facts, dict) and all(np.isfinite(of).all() for of in arrays.values())
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise ModelFileError(f"{path}: {damaged}") from error
    if not (same and fits):
        raise ModelFileError(f"{path}: {damaged}")
    if signer is not None and not _is_signed(digest, told, signer):
        raise ModelFileError(f"{path}: not signed by the given key; do not use it")
    return facts, arrays


def _parts(content: bytes) -> tuple[dict[str, str], dict[str, Any], bytes]:
    """Return what is told, the layout of the arrays, and their bytes."""
    (length,) = struct.unpack_from("<Q", content)
    if length > len(content) - 8:
        raise ValueError(length)
    header = json.loads(content[8 : 8 + length])
    told = header.pop("__metadata__")
    if not all(isinstance(value, str) for value in told.values()):
        raise ValueError("__metadata__")
    return told, header, content[8 + length :]


def _array(of: Mapping[str, Any], body: bytes) -> NDArray[Any]:
    """Return one array; its place must lie within the file and have the size of its shape."""
    begin, end = map(int, of["data_offsets"])
    shape, dtype = tuple(map(int, of["shape"])), _DTYPES[of["dtype"]]
    if not 0 <= begin <= end <= len(body) or min(shape, default=0) < 0:
        raise ValueError("data_offsets")
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError("shape")
    return np.frombuffer(body[begin:end], dtype).reshape(shape)


def _smallest(array: Any) -> NDArray[Any]:
    """Return the array in bytes if it has only 0 and 1, as features do, and else in floats."""
    floats = np.ascontiguousarray(array, dtype="<f4")
    flags = floats.size and bool(((floats == 0) | (floats == 1)).all())
    return floats.astype("u1") if flags else floats


def _digest(text: str, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the hash of all that a file says."""
    found = hashlib.sha256(f"{_FORMAT} {len(text.encode())}\n{text}".encode())
    for name, array in arrays.items():
        found.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.digest()


def _signed(digest: bytes, key: bytes) -> dict[str, str]:
    """Return the signature of a digest, and the public key that checks it."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError as error:
        raise MissingExtraError("flower", "signing a model file") from error
    owner = Ed25519PrivateKey.from_private_bytes(key)
    public = owner.public_key().public_bytes_raw()
    return {"signature": owner.sign(digest).hex(), "signer": public.hex()}


def _is_signed(digest: bytes, told: Mapping[str, str], signer: bytes) -> bool:
    """Return whether the holder of a key has signed a digest."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError as error:
        raise MissingExtraError("flower", "checking who signed a model file") from error
    try:
        signature = bytes.fromhex(told.get("signature", ""))
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, digest)
    except (InvalidSignature, ValueError):
        return False
    return True
