"""Integers modulo 2^bits: the stream that hides them, and their form on the wire."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, MessageError

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


def signed(total: Words, bits: int) -> NDArray[np.int64]:
    """Return a sum modulo 2^bits as the integers between -2^(bits - 1) and 2^(bits - 1).

    Example:
        >>> signed(reduced(np.array([-3, 2]), 5), 5).tolist()
        [-3, 2]
    """
    negative = total >= np.uint64(1 << (bits - 1))
    return total.astype(np.int64) - np.where(negative, np.int64(1 << bits), np.int64(0))


def packed_length(size: int, bits: int) -> int:
    """Return the bytes that `size` coordinates of `bits` bits take."""
    return (size * bits + 7) // 8


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
    """Return the coordinates of :func:`pack`.

    Raises:
        MessageError: If these bytes are not what it writes for any.
    """
    if len(content) != packed_length(size, bits):
        raise MessageError(f"{len(content)} bytes for {size} coordinates of {bits} bits")
    flat = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
    if flat[size * bits :].any():
        raise MessageError("the last byte of the coordinates has bits that belong to none of them")
    rows = np.zeros((size, 64), np.uint8)
    rows[:, :bits] = flat[: size * bits].reshape(size, bits)
    return np.packbits(rows, axis=1, bitorder="little").view("<u8").ravel().astype(np.uint64)


def check_values(values: NDArray[np.integer], size: int) -> None:
    """Raise a ConfigError unless this is a vector of `size` integers."""
    if values.shape != (size,) or not np.issubdtype(values.dtype, np.integer):
        raise ConfigError(
            f"an upload of shape {values.shape} and type {values.dtype}; expected {size} integers"
        )
