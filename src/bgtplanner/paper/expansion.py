"""Graph expansion (FedGNN): a third party matches users of the same items without their ids.

Clients turn the ids of their items into tokens with a key that the third party does not have, and
send it the tokens with their noised user embeddings. Equal tokens mean equal items, so it can send
every user the embeddings of others who rated the same items. The embeddings are clipped and noised
like every upload. The matching is not: the third party sees which users have items in common, how
many, and how many users share each item, and what users learn from their neighbours depends on it.
No noise protects that, and a run says so (``expansion-matching``).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.mechanisms import clip_factor

_TOKEN_BYTES = 16
_CELLS_AT_ONCE = 2**22  # of the table of how many items users have in common


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """When graphs are expanded, and how far.

    That is so many `times` at even distances; never before the first round, when no embedding has
    learned anything, and not in a round that no one pays for.
    """

    times: int = 3
    rounds: int = 100
    max_neighbours: int = 100

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        fewer = 1 <= self.times < self.rounds
        unless(fewer, "expansions", self.times, f"1 or more, fewer than rounds = {self.rounds}")
        unless(self.max_neighbours >= 1, "max_neighbours", self.max_neighbours, "1 or more")

    def due(self, index: int) -> bool:
        """Whether graphs are expanded in round `index`, counted from 0.

        Example:
            >>> [index for index in range(100) if Expansion(times=3, rounds=100).due(index)]
            [25, 50, 75]
        """
        parts = self.times + 1
        return index in (part * self.rounds // parts for part in range(1, parts))


def matching_key(seed: int | None = None) -> bytes:
    """Return a key for the clients to share, from the system or, to simulate, from a seed."""
    if seed is None:
        return secrets.token_bytes(32)
    return hashlib.sha256(f"graph expansion {seed}".encode()).digest()


def item_tokens(key: bytes, items: Iterable[object]) -> NDArray[np.void]:
    """Return a token per item: the same for all who have the key, meaningless to others.

    Example:
        >>> first, again, other = item_tokens(b"a key", [7, 7, 8])
        >>> bytes(first) == bytes(again), bytes(first) == bytes(other)
        (True, False)
    """
    digests = (hmac.digest(key, str(item).encode(), "sha256")[:_TOKEN_BYTES] for item in items)
    return np.frombuffer(b"".join(digests), dtype=f"V{_TOKEN_BYTES}")


def match(
    tokens: NDArray[np.void], sender: NDArray[np.integer], embeddings: NDArray[np.float32], *,
    most: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
    """Return the embeddings of those who sent equal tokens, per sender: the third party's part.

    Those with the most tokens in common come first; of equals, the one that comes first.

    Args:
        tokens: All tokens that were sent.
        sender: The sender of each token, as a row of `embeddings`.
        embeddings: The noised embedding of each sender, ``[n_senders, dim]``.
        most: The most neighbours that a sender gets.

    Returns neighbours' embeddings, ``[n_senders, most, dim]``, and 1 where there is one.
    """
    found = _in_common(tokens, sender, len(embeddings), most)
    present = found >= 0
    theirs = np.where(present[:, :, None], embeddings[found], np.float32(0))
    return theirs, present.astype(np.float32)


def believed(embeddings: NDArray[np.float32], clip: float) -> NDArray[np.float32]:
    """Return the embeddings a client was sent, cut to the length of the clip.

    The clip is public, and all embeddings were clipped, so whatever is longer is noise. Cutting it
    costs nothing; noise that dwarfs the embeddings would otherwise drown the user's own items.
    """
    norm = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return np.asarray(embeddings * clip_factor(norm, clip), dtype=np.float32)


def _in_common(
    tokens: NDArray[np.void], sender: NDArray[np.integer], number: int, most: int
) -> NDArray[np.int64]:
    """Return those with the most in common with each, best first; -1 where there are no more."""
    names, column = np.unique(tokens, return_inverse=True)
    sent = sparse.csr_array(
        (np.ones(len(column), dtype=np.int32), (sender, column)), shape=(number, len(names))
    )
    sent.sum_duplicates()
    sent.data[:] = 1  # a token that was sent twice counts once
    found = np.full((number, most), -1, dtype=np.int64)
    kept, step = min(most, number), max(1, _CELLS_AT_ONCE // max(number, 1))
    for start in range(0, number, step):
        common = (sent[start : start + step] @ sent.T).toarray().astype(np.int64)
        own = np.arange(len(common))
        common[own, start + own] = 0  # no one is their own neighbour
        rank = common * number - np.arange(number)  # no two are equal: ties go by order
        best = np.argpartition(-rank, kept - 1, axis=1)[:, :kept]
        order = np.argsort(-np.take_along_axis(rank, best, axis=1), axis=1)
        best = np.take_along_axis(best, order, axis=1)
        some = np.take_along_axis(common, best, axis=1) > 0
        found[start : start + step, :kept] = np.where(some, best, -1)
    return found
