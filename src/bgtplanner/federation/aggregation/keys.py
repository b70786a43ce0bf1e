"""Keys, shares and signatures of a round, all bound to it; every primitive is a library's.

A secret that is shared has 16 bytes, the size that `Shamir` takes: the seed of the self mask, and
the seed from which the private key of the pairwise masks is derived. The session, which differs
from round to round, is the salt of every derivation, so that guessing seeds of many rounds at once
is no quicker than guessing one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bgtplanner.errors import MessageError

SEED = 16  # bytes of a secret, and of a share of it
MARK = 16  # bytes by which a dealer identifies a share: only to say who is wrong
_NONCE = 12
SEALED = _NONCE + 2 * SEED + 16  # bytes of two shares, encrypted for the one who is to hold them


def _info(label: str, *places: int) -> bytes:
    """Return what keeps derivations for other purposes or other clients apart."""
    return label.encode() + b"\0" + b"".join(place.to_bytes(4, "big") for place in places)


def _derive(secret: bytes, session: bytes, label: str, *places: int) -> bytes:
    """Return 32 bytes that follow from a secret, for one purpose in one session."""
    return HKDF(SHA256(), 32, session, _info(label, *places)).derive(secret)


def _hash(session: bytes, label: str, *places: int, content: bytes) -> bytes:
    """Return the hash of some content, for one purpose in one session."""
    return hashlib.sha256(session + _info(label, *places) + content).digest()


def self_key(seed: bytes, session: bytes, place: int) -> bytes:
    """Return the key of a client's self mask."""
    return _derive(seed, session, "self mask", place)


def commitment(seed: bytes, session: bytes, place: int) -> bytes:
    """Return what a client publishes of the seed of its self mask: it fits no other seed."""
    return _hash(session, "self seed", place, content=seed)


def mark(share: bytes, session: bytes, kind: str, dealer: int, holder: int) -> bytes:
    """Return what a dealer tells the server of a share, so that a wrong one has a culprit."""
    return _hash(session, f"share of {kind}", dealer, holder, content=share)[:MARK]


def masking_key(seed: bytes, session: bytes, place: int) -> X25519PrivateKey:
    """Return the private key of a client's pairwise masks."""
    return X25519PrivateKey.from_private_bytes(_derive(seed, session, "masking key", place))


def public_bytes(key: X25519PrivateKey | Ed25519PrivateKey) -> bytes:
    """Return the public key that belongs to a private one."""
    return key.public_key().public_bytes_raw()


def _exchange(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the secret that two X25519 keys have in common.

    A public key of small order would make it zero, whatever the other key is, and known to all.
    """
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise MessageError("a public key with which every exchange gives zero") from error


def pair_key(own: X25519PrivateKey, other: bytes, session: bytes, one: int, two: int) -> bytes:
    """Return the key of the mask that two clients share; the same from either side."""
    return _derive(_exchange(own, other), session, "pair mask", min(one, two), max(one, two))


def seal(own: X25519PrivateKey, other: bytes, session: bytes, ends: tuple[int, int],
         content: bytes) -> bytes:  # fmt: skip
    """Return content that only the other end can read, and only as from this end in this round."""
    key, nonce = _derive(_exchange(own, other), session, "seal", *ends), os.urandom(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, session)


def unseal(own: X25519PrivateKey, other: bytes, session: bytes, ends: tuple[int, int],
           sealed: bytes) -> bytes:  # fmt: skip
    """Return what :func:`seal` was given at the other end; `ends` are sender and receiver."""
    key = _derive(_exchange(own, other), session, "seal", *ends)
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], session)
    except InvalidTag as error:
        raise MessageError("shares that were not sealed for this client in this round") from error


def split(seed: bytes, threshold: int, shares: int) -> list[bytes]:
    """Return the shares of a seed; the one at index i is Shamir's with number i + 1."""
    return [share for _, share in Shamir.split(threshold, shares, seed, ssss=False)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the seed of which these are shares, by their index in :func:`split`."""
    if len(shares) < threshold:
        raise MessageError(f"{len(shares)} shares of a secret; {threshold} are needed to open it")
    chosen = sorted(shares.items())[:threshold]
    return Shamir.combine([(index + 1, share) for index, share in chosen], ssss=False)


def sign(identity: Ed25519PrivateKey, session: bytes, label: str, content: bytes) -> bytes:
    """Return a signature that fits this session, this kind of statement and this content."""
    return identity.sign(_hash(session, f"signed {label}", content=content))


def verify(key: bytes, signature: bytes, session: bytes, label: str, content: bytes) -> None:
    """Raise a MessageError unless the owner of the key has signed this with :func:`sign`."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            signature, _hash(session, f"signed {label}", content=content)
        )
    except (InvalidSignature, ValueError) as error:
        raise MessageError(f"a signature of {label} that is not the client's own") from error
