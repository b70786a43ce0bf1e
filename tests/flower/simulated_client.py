"""Flower's client process with the noise of a simulation in place of the operating system's.

The package has no setting for that. Tests put a script first on the path of a SuperNode which
starts this module, where `bgtplanner deploy init` writes one that starts the installed client.
"""

from __future__ import annotations

import os
from typing import Any

from flwr.clientapp import ClientApp

from bgtplanner.flower import pinned
from bgtplanner.flower.clientfile import ClientFile
from bgtplanner.flower.messages import Request

CLIENTS = int(os.environ.get("BGTPLANNER_NODES", "20"))
"""How many SuperNodes the test starts: fewer, from four on, are for trying it out."""

SEED, ADDS = 0, 1  # of the config; whose share is all of the noise


def noise(file: ClientFile, request: Request) -> Any:
    from flower.doubles import sum_of_simulation  # JAX comes with it

    return sum_of_simulation(SEED, CLIENTS, ADDS)(file, request)


def _simulated(*_: Any, **__: Any) -> ClientApp:
    from bgtplanner.flower.client import make_client_app

    return make_client_app(noise=noise)


if __name__ == "__main__":
    pinned._installed = _simulated
    pinned.main()
