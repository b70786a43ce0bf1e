"""The model file: one JSON header and plain arrays, in the safetensors layout, never code.

Eight bytes hold the length of the header, the header is JSON, and the rest is arrays, one after
the other. The digest covers every byte: a file that was damaged or altered is refused. It proves
who made the file only together with a signature. docs/reference/model-file.md has the format.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.durable import replace_file
from bgtplanner.errors import ConfigError, MissingExtraError, ModelFileError, StorageError

VERSION = 1
"""Of the format; every version that was ever written stays readable."""

_FORMAT = "bgtplanner-model"
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "U8": np.dtype("u1")}


def write(
    path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Any], key: bytes | None = None
) -> None:
    """Write a model file; a `key` is the 32 bytes of an Ed25519 private key, which signs it."""
    text = json.dumps(facts, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    told = {"format": _FORMAT, "version": str(VERSION), "model": text, "digest": "0" * 64}
    owner = None if key is None else _ed25519().Ed25519PrivateKey.from_private_bytes(key)
    if key is not None:
        told |= {"signer": public_key(key), "signature": "0" * 128}
    header, body = dict[str, Any]({"__metadata__": told}), b""
    for name, array in sorted(arrays.items()):
        kind = "U8" if np.isin(array, (0, 1)).all() else "F32"  # most features are yes or no
        added = np.asarray(array, dtype=_DTYPES[kind]).tobytes()
        place = [len(body), len(body) + len(added)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        body += added

    def content() -> bytes:
        head = json.dumps(header, ensure_ascii=False).encode()
        return struct.pack("<Q", len(head)) + head + body

    digest = hashlib.sha256(content()).digest()  # of the file with zeros in the place of both
    told["digest"] = digest.hex()
    if owner is not None:
        told["signature"] = owner.sign(digest).hex()
    try:
        replace_file(path, content())
    except OSError as error:
        raise StorageError.of(str(path), error, "choose another path") from error


def read(
    source: Path | bytes, signer: bytes | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and the arrays of a model file, or of its bytes, after checking all of it.

    Given the 32 bytes of a `signer`'s public key, a file that they did not sign is refused.

    Raises:
        ModelFileError: If it is none, or damaged, altered, or of a later release.
    """
    version, path = VERSION, named(source)
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
        told = header.pop("__metadata__")
        version = int(told["version"]) if told["format"] == _FORMAT else 0
        blank = content
        for name in ("signature", "digest"):
            written = told.get(name, "")
            blank = blank.replace(f'"{written}"'.encode(), b'"%s"' % (b"0" * len(written)), 1)
        digest, facts = hashlib.sha256(blank).digest(), json.loads(told["model"])
        if digest.hex() != told["digest"] or not isinstance(facts, dict):
            raise ValueError("digest")
        arrays = {name: _array(of, body) for name, of in header.items()}
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})") from error
    except (LookupError, AttributeError, TypeError, ValueError, RecursionError, struct.error) as e:
        problem = "not a model file, or damaged or altered; get it again from whoever published it"
        if version > VERSION:
            problem = f"of a later release (format {version}); update bgtplanner"
        raise ModelFileError(f"{path}: {problem}") from e
    if signer is not None:
        public = _ed25519().Ed25519PublicKey
        try:
            signature = bytes.fromhex(told.get("signature", ""))
            public.from_public_bytes(signer).verify(signature, digest)
        except Exception as error:  # cryptography has errors of its own
            problem = "not signed by the given key; do not use it"
            raise ModelFileError(f"{path}: {problem}") from error
    return facts, arrays


def key_in(text: str, name: str = "key") -> bytes:
    """Return an Ed25519 key from the 64 hexadecimal digits in a text, or in the file it names."""
    try:
        digits = text if len(text) == 64 else Path(text).read_text("ascii")
        key = bytes.fromhex(digits.strip())
    except (OSError, ValueError):
        key = b""
    ConfigError.unless(len(key) == 32, name, text, "64 hexadecimal digits, or a file with them")
    return key


def public_key(key: bytes) -> str:
    """Return the public key of a private one, by which readers check who signed."""
    own = _ed25519().Ed25519PrivateKey.from_private_bytes(key)
    return str(own.public_key().public_bytes_raw().hex())


def named(source: Path | str | bytes) -> str:
    """Return what errors call a model file."""
    return "the model that came" if isinstance(source, bytes) else str(source)


def _array(of: Mapping[str, Any], body: bytes) -> NDArray[Any]:
    """Return one array, of finite numbers, which has to lie within the file."""
    begin, end = of["data_offsets"]
    found = np.frombuffer(body[begin:end], _DTYPES[of["dtype"]]).reshape(of["shape"])
    if not np.isfinite(found).all():
        raise ValueError("not finite")
    return found


def _ed25519() -> Any:
    """Return what signs and checks signatures, which an extra brings."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise MissingExtraError("flower", "signing a model file, or checking who did,") from error
    return ed25519
