"""Nothing in a test is random by chance."""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import randomness
from bgtplanner.privacy.noise import SystemNoise


def drawn() -> list[Any]:
    noise = SystemNoise().normal_steps(2**50, (3,)).tolist()
    free = np.random.default_rng().integers(2**62)
    kinds = (Ed25519PrivateKey, X25519PrivateKey)
    keys = [kind.generate().private_bytes_raw() for kind in kinds]
    return [os.urandom(16), secrets.token_hex(), secrets.randbits(64), noise, int(free), *keys]


def test_it_is_the_same_each_time_and_different_for_every_test() -> None:
    found = []
    for name in ("one", "one", "other"):
        with randomness.of(name):
            found.append(drawn())
    assert found[0] == found[1]
    assert not any(first == second for first, second in zip(found[0], found[2], strict=True))


def test_it_goes_on_and_does_not_repeat_itself() -> None:
    first, second = drawn(), drawn()
    assert not any(one == other for one, other in zip(first, second, strict=True))


def test_tests_begin_with_a_seed_of_their_own(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--hypothesis-profile") == "search":
        pytest.skip("everything is random")
    assert os.urandom(4).hex() == "939d5c09"


def test_another_process_draws_what_no_one_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    found, own = [], os.getpid()
    for process in (own, own, own + 1, own + 1):
        with randomness.of("one"):
            monkeypatch.setattr(os, "getpid", lambda process=process: process)
            found.append(os.urandom(16))
            monkeypatch.setattr(os, "getpid", lambda: own)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_afterwards_it_is_real_again() -> None:
    before = os.urandom
    with randomness.of("one"):
        assert os.urandom is not before
    assert os.urandom is before
