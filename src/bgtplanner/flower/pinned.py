"""Flower's client process, with the client that is installed here, whatever code a run brings.

A run ships an app to every SuperNode, and Flower's ``flwr-clientapp`` unpacks it and imports from
it: whoever can start a run can have any code run beside the ratings and the ledger. SuperNodes
start ``flwr-clientapp`` by its name, so a script of that name, first on ``PATH``, can start this
module instead. It neither unpacks nor imports what came. `bgtplanner deploy init` writes the
script, `bgtplanner deploy check` looks whether it is the one that would be started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.clientapp import ClientApp
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

from bgtplanner.flower.client import client_app

__all__ = ["main", "pin"]


def pin() -> None:
    """From here on, Flower's client process of this Python knows no other client than ours.

    Raises:
        AttributeError: If Flower has changed: then nothing may be run at all.
    """

    def nothing(*_: Any, **__: Any) -> None:
        """Neither a run's code nor what it depends on comes to this machine's disk."""

    def ours(*_: Any, **__: Any) -> Callable[..., ClientApp]:
        return lambda *_, **__: client_app

    replaced = {
        "install_from_fab": nothing,
        "install_app_dependencies": nothing,
        "get_load_client_app_fn": ours,
    }
    for name, replacement in replaced.items():
        getattr(run_clientapp, name)  # there must be one to replace
        setattr(run_clientapp, name, replacement)


def main() -> None:
    """What the script called ``flwr-clientapp`` starts."""
    pin()
    flwr_clientapp()


if __name__ == "__main__":
    main()
