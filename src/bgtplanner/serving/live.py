"""The model that is served: the newest good one that its file has held."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from bgtplanner.errors import BGTPlannerError
from bgtplanner.published.model import Model, load_model


class LiveModel:
    """Follows a model file: a new one is taken up, and one that cannot be used is left alone.

    `current` is the model with the bytes of its file. A request keeps what was current when it
    began, so none is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.taken_up, self.refused = path, 0, 0
        self._seen, self.current = self._state(), self._read()

    def look(self) -> None:
        """Take up the file if it has changed and makes lists; otherwise keep the last good one."""
        state, log = self._state(), logging.getLogger(__name__)
        if state == self._seen:
            return
        self._seen = state
        try:
            self.current = self._read()
        except (BGTPlannerError, OSError) as error:
            self.refused += 1
            log.warning("The last good model is kept. %s", error)
        else:
            self.taken_up += 1
            log.warning("A new model is served: %s", self.path)

    @contextlib.asynccontextmanager
    async def followed(self, _: object = None) -> AsyncIterator[None]:
        """Look every second, in a thread, so that requests are answered meanwhile."""

        async def follow() -> None:
            while True:
                await asyncio.sleep(1.0)
                await asyncio.to_thread(self.look)

        task = asyncio.create_task(follow())
        yield
        task.cancel()

    def _read(self) -> tuple[Model, bytes]:
        model = load_model(self.path)
        model.recommend(top=1)  # refuses one that makes no lists
        return model, self.path.read_bytes()

    def _state(self) -> tuple[int, ...]:
        found = self.path.stat() if self.path.exists() else None
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found else ()
