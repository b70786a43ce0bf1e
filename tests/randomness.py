"""The randomness of the operating system, from a seed of each test's own.

Keys, names of runs and noise then are the same in every run of a test, so that no test fails by
chance, and one that fails does so again. Processes that a test starts have real randomness.
`--hypothesis-profile search` leaves everything random.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


@contextmanager
def of(name: str) -> Iterator[None]:
    """Draw what the operating system is asked for from a generator with this name."""
    real, here = os.urandom, os.getpid()
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest())
    generator = np.random.Generator(np.random.PCG64(seed))

    def urandom(size: int, /) -> bytes:
        if os.getpid() != here:  # two processes must not draw the same
            return real(size)
        return generator.bytes(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", urandom)
        patch.setattr(random, "_urandom", urandom)  # the module `secrets`, and generators
        for kind in (Ed25519PrivateKey, X25519PrivateKey):  # OpenSSL has randomness of its own
            patch.setattr(kind, "generate", lambda of=kind: of.from_private_bytes(urandom(32)))
        yield
