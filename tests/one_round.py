"""One round of a federation, as a simulation goes through it."""

from __future__ import annotations

from typing import Any

from bgtplanner.federation.rounds import Federation, Outcome, State, Uploaded


def one_round(
    federation: Federation, state: State, interactions: Any, heldout: Any, index: Any, key: Any,
    parameters: Any = None,
) -> tuple[State, Uploaded, Outcome]:  # fmt: skip
    """A pure function: the same arguments give the same bits."""
    sent = federation.uploaded(state, interactions, index, key, parameters)
    after = state._replace(local=sent.local)
    after = federation.stepped(after, sent.released, sent.takes_part.sum(), parameters)
    after, outcome = federation.served(after, sent, interactions, heldout, index)
    return after, sent, outcome
