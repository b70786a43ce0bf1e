"""Answers that a client has given, by the request that each of them answers.

A message may come twice: the network repeats it, or the server was started again. Then the client
sends the bytes that it has sent before. It never computes an answer anew under old noise: whether
that came out the same would tell whether the data has changed, for nothing. So what is found here
depends on the request and on earlier requests alone, never on the data.

The newest answers are kept, a bounded number of them. What is not here any more, or was never
written because of a crash, is not answered again for free.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bgtplanner.durable import replace_file

__all__ = ["Answers"]

Floats = NDArray[np.float64]


class Answers:
    """The newest answers of one client, as files in a folder.

    Args:
        folder: Of these files alone; made with the first answer.
        most: How many are kept.
    """

    def __init__(self, folder: Path, *, most: int) -> None:
        self.folder, self.most = folder, most

    def find(self, digest: bytes) -> Floats | None:
        """The answer to a request, bit for bit, or None if it is not kept.

        A damaged file is as good as none: what cannot be repeated is not made up.
        """
        ending = f"-{digest.hex()}.npy"
        for path in self._paths():
            if path.name.endswith(ending):
                with contextlib.suppress(OSError, ValueError, EOFError):
                    found = np.load(path, allow_pickle=False)
                    if found.dtype == np.float64 and found.ndim == 1:
                        return np.asarray(found)
        return None

    def keep(self, digest: bytes, number: int, answer: Floats) -> None:
        """Put an answer on the disk before it is sent, and let go of the oldest.

        Args:
            digest: Of the request.
            number: Of the reservation that paid for it: later ones are higher.
            answer: As it will be sent.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        content = io.BytesIO()
        np.save(content, np.asarray(answer, dtype=np.float64), allow_pickle=False)
        replace_file(self.folder / f"{number:016d}-{digest.hex()}.npy", content.getvalue())
        for path in self._paths()[: -self.most]:
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """The kept ones, oldest first; what a crash has left half written is not among them."""
        try:
            return sorted(path for path in self.folder.iterdir() if path.suffix == ".npy")
        except FileNotFoundError:
            return []
