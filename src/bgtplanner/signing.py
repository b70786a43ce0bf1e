"""Who made a file: Ed25519 keys as people keep them, and what they sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.text import is_sha256


def key_in(text: str, name: str = "key") -> bytes:
    """Return an Ed25519 key from the 64 hexadecimal digits in a text, or in the file it names."""
    try:
        digits = text if is_sha256(text.lower()) else Path(text).read_text("ascii")
        key = bytes.fromhex(digits.strip())
    except (OSError, ValueError):
        key = b""
    ConfigError.unless(len(key) == 32, name, text, "64 hexadecimal digits, or a file with them")
    return key


def public_key(key: bytes) -> str:
    """Return the public key of a private one, by which readers check who signed."""
    own = _ed25519().Ed25519PrivateKey.from_private_bytes(key)
    return str(own.public_key().public_bytes_raw().hex())


def signed(key: bytes, digest: bytes) -> str:
    """Return the signature of a digest by a private key."""
    return str(_ed25519().Ed25519PrivateKey.from_private_bytes(key).sign(digest).hex())


def is_signed(signer: bytes, signature: str, digest: bytes) -> bool:
    """Return whether whoever has the private key of this public one has signed a digest."""
    public = _ed25519().Ed25519PublicKey
    try:
        public.from_public_bytes(signer).verify(bytes.fromhex(signature), digest)
    except Exception:  # cryptography has errors of its own
        return False
    return True


def _ed25519() -> Any:
    """Return what signs and checks signatures, which an extra brings."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise MissingExtraError("flower", "signing a model file, or checking who did,") from error
    return ed25519
