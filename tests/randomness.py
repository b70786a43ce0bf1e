"""The randomness of the operating system, from a seed of each test's own.

Keys, names of runs and noise then are the same in every run of a test, so that no test fails by
chance, and one that fails does so again. Processes that a test starts have real randomness.
`--hypothesis-profile search` leaves that random, and changes every seed that a test gives to
`default_rng` and `jax.random.key`: a test that draws what the package drew takes `PCG64` itself.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def others(number: int) -> None:
    """Give tests other generators than the seeds that they name; those of the package stay."""
    import jax

    here = str(Path(__file__).parent)

    def other(real: Callable[..., Any]) -> Callable[..., Any]:
        def made(seed: Any = None, **more: Any) -> Any:
            by_test = sys._getframe(1).f_code.co_filename.startswith(here)
            if by_test and isinstance(seed, int | list):
                seed = [*seed, number] if isinstance(seed, list) else 1000 * number + seed
            return real(seed, **more)

        return made

    np.random.default_rng, jax.random.key = other(np.random.default_rng), other(jax.random.key)
