"""Answers that a client has given, stored by the request that each of them answers.

A message may arrive twice: because the network repeats it, or because the server was restarted.
The client then sends the same bytes again. It never recomputes an answer with the old noise,
because whether the result is the same would reveal, unpaid, whether the data has changed. So what
is found here depends on this and earlier requests only, never on the data.

Only a bounded number of the newest answers is kept. A request whose answer was deleted, or never
written because of a crash, is not answered again for free.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bgtplanner.durable import replace_file

Floats = NDArray[np.float64]


class Answers:
    """The newest answers of one client, as files in a folder that holds nothing else."""

    def __init__(self, folder: Path, *, most: int) -> None:
        self.folder, self.most = folder, most

    def find(self, digest: bytes) -> Floats | None:
        """Return the answer to a request, bit for bit, or None if it is not kept.

        A damaged file counts as missing.
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
        """Write an answer to disk before it is sent, and delete the oldest ones.

        `number` is that of the reservation that paid for it; later ones are higher.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        content = io.BytesIO()
        np.save(content, np.asarray(answer, dtype=np.float64), allow_pickle=False)
        replace_file(self.folder / f"{number:016d}-{digest.hex()}.npy", content.getvalue())
        for path in self._paths()[: -self.most]:
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """Return the files of kept answers, oldest first, without half-written ones."""
        try:
            return sorted(path for path in self.folder.iterdir() if path.suffix == ".npy")
        except FileNotFoundError:
            return []
