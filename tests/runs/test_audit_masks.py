"""What the server sees before a sum is opened: uniform, whatever is under the mask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from scipy.stats import chi2

from bgtplanner.federation.aggregation import client, masks
from bgtplanner.federation.aggregation.messages import Upload
from bgtplanner.privacy.noise import SeededNoise
from bgtplanner.privacy.shares import Shares
from federation.aggregation.members import Members

SIZE = 4096
SHARES = Shares(scale=0.4, clip=0.1, invited=5, most_dropouts=1, most_colluders=1)
LEAST = 1e-3  # of a p-value; the seeds are fixed, so that this never fails by chance
SEEDS = range(4)


def seen_first(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, NDArray[np.int64]]:
    """A client's masked upload, and what is under the mask, with secrets from a seed."""
    secrets = np.random.default_rng(seed)

    def generate() -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(secrets.bytes(32))

    own = SimpleNamespace(
        generate=generate, from_private_bytes=X25519PrivateKey.from_private_bytes
    )
    monkeypatch.setattr(client, "os", SimpleNamespace(urandom=secrets.bytes))
    monkeypatch.setattr(client, "X25519PrivateKey", own)
    members = Members(5, bits=SHARES.bits(SIZE), coordinates=SIZE, round=seed)
    upload = np.where(np.arange(SIZE) < SIZE // 2, 0.1, -0.1) / np.sqrt(SIZE)
    sent = [SHARES.encode(upload, SeededNoise([seed, place])) for place in range(5)]
    members.values = np.array(sent, dtype=np.uint64)
    members.play(until="sign")
    content = Upload.from_bytes(members.sent["upload", 0]).values
    words = masks.unpack(content, SIZE, members.bits)
    return words, masks.signed(members.values[0], members.bits)


def p_values(words: Any, under: NDArray[np.int64]) -> list[float]:
    """Of the highest and the lowest six bits, and of the correlation with what is under them."""
    bits, found = SHARES.bits(SIZE), list[float]()
    for part in (words >> np.uint64(bits - 6), words & np.uint64(63)):
        counts = np.bincount(part.astype(np.int64), minlength=64)
        found.append(float(chi2.sf(((counts - SIZE / 64) ** 2).sum() / (SIZE / 64), 63)))
    for values in (under, np.sign(under)):
        centred = masks.signed(words, bits).astype(np.float64)
        correlation = np.corrcoef(centred, values.astype(np.float64))[0, 1]
        found.append(float(chi2.sf(SIZE * correlation**2, 1)))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_masked_upload_is_uniform(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words, under = seen_first(seed, monkeypatch)
    assert min(p_values(words, under)) > LEAST


def no_mask(key: bytes, size: int) -> Any:
    return np.zeros(size, np.uint64)


def short_mask(key: bytes, size: int) -> Any:
    """Masks that are as large as the values, and not as large as all that the sum may be."""
    return REAL(key, size) & np.uint64(2 * SHARES.share - 1)


def repeated_mask(key: bytes, size: int) -> Any:
    return np.resize(REAL(key, 16), size)


REAL = masks.mask


@pytest.mark.parametrize("broken", [no_mask, short_mask, repeated_mask])
def test_a_weak_mask_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "mask", broken)
    words, under = seen_first(0, monkeypatch)
    assert min(p_values(words, under)) < 1e-9


def test_one_mask_of_many_is_enough_before_a_sum_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A client that forgets its self mask is still hidden by the others' masks: no statistic of
    # what the server sees then shows it. The self mask is for drop-outs that were none.
    real = client.keys.self_key

    def forgotten(key: bytes, size: int) -> Any:
        return no_mask(key, size) if key in own else REAL(key, size)

    own = set[bytes]()

    def noted(*args: Any) -> bytes:
        own.add(real(*args))
        return real(*args)

    monkeypatch.setattr(client.keys, "self_key", noted)
    monkeypatch.setattr(masks, "mask", forgotten)
    words, under = seen_first(0, monkeypatch)
    assert own
    assert min(p_values(words, under)) > LEAST
