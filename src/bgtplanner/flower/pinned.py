"""Flower's client process, which runs only the installed client, whatever code a run brings along.

A run ships an app to every SuperNode, and Flower's ``flwr-clientapp`` unpacks it and imports from
it, beside the ratings and the ledger. SuperNodes start that program by its name, so a script of
that name, first on ``PATH``, can start this module instead, which does neither. `deploy init`
writes the script, and `deploy check` checks that it is the one that would be started.
"""

from __future__ import annotations

from typing import Any

from flwr.clientapp import ClientApp
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp


def pin() -> None:
    """Make Flower's client process in this Python load our client and no other.

    Neither a run's code nor its dependencies are written to this machine's disk. If Flower has
    changed, there is an AttributeError, and nothing runs at all.
    """
    replaced = {
        "install_from_fab": lambda *_, **__: None,
        "install_app_dependencies": lambda *_, **__: None,
        "get_load_client_app_fn": lambda *_, **__: _installed,
    }
    for name, replacement in replaced.items():
        getattr(run_clientapp, name)  # raises if there is nothing to replace
        setattr(run_clientapp, name, replacement)


def _installed(*_: Any, **__: Any) -> ClientApp:
    """Return our client, whichever a run names.

    It is imported here, when the process has already told the SuperNode that it is alive: Flower
    gives up on one that takes 30 s for that, and JAX takes its time on a busy or a small machine.
    """
    from bgtplanner.flower.client import client_app

    return client_app


def main() -> None:
    """Start Flower's client process; called by the script ``flwr-clientapp``."""
    pin()
    flwr_clientapp()


if __name__ == "__main__":
    main()
