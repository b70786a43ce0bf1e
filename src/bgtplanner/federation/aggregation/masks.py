"""Integers modulo 2^bits: the stream that hides them, and their form on the wire."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from bgtplanner.errors import MessageError

MOST_BITS = 63
MOST_COORDINATES = 1 << 24

Words = NDArray[np.uint64]


def mask(key: bytes, size: int) -> Words:
    """Return the mask of a key that is used for nothing else: 64 bits of ChaCha20 a coordinate.

    Sums of masks wrap at 2^64, of which every 2^bits is a divisor.
    """
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), dtype="<u8").astype(np.uint64, copy=False)


def reduced(values: NDArray[np.integer], bits: int) -> Words:
    """Return integers modulo 2^bits; negative ones count down from 2^bits."""
    return values.astype(np.uint64) & np.uint64((1 << bits) - 1)


def pack(values: Words, bits: int) -> bytes:
    """Return coordinates below 2^bits in `bits` bits each, the lowest bit first.

    Example:
        >>> pack(np.array([1, 2, 3], dtype=np.uint64), 2).hex()
        '39'
    """
    rows = np.unpackbits(
        values.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little"
    )
    return np.packbits(rows[:, :bits], bitorder="little").tobytes()


def unpack(content: bytes, size: int, bits: int) -> Words:
    """Return the coordinates of which :func:`pack` makes exactly these bytes."""
    if len(content) != (size * bits + 7) // 8:
        raise MessageError(f"{len(content)} bytes for {size} coordinates of {bits} bits")
    flat = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
    if flat[size * bits :].any():
        raise MessageError("the last byte of the coordinates has bits that belong to none of them")
    rows = np.zeros((size, 64), np.uint8)
    rows[:, :bits] = flat[: size * bits].reshape(size, bits)
    return np.packbits(rows, axis=1, bitorder="little").view("<u8").ravel().astype(np.uint64)
