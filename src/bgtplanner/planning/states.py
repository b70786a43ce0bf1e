"""The states of policies: read as they were written, or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bgtplanner.errors import BGTPlannerError, ConfigError

STATE_VERSION = 3
"""Version of what a policy's ``state_dict`` returns; any other version is refused."""


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with a checksum, so that a damaged or edited one is not read."""
    return state | {"seal": _seal(state, sorted(state))}


def _seal(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    text = json.dumps({name: state[name] for name in names}, sort_keys=True)
    return {"of": names, "sha256": hashlib.sha256(text.encode()).hexdigest()}


@contextmanager
def reading_state(state: Mapping[str, Any]) -> Iterator[None]:
    """Refuse a state of another version, and one that is not as ``state_dict`` returned it.

    What a class of one's own has added to the state is not covered by the checksum; an error while
    it is read is a refusal, too.
    """
    expected = "a mapping, as state_dict returns it"
    ConfigError.unless(isinstance(state, Mapping), "state", type(state).__name__, expected)
    version = state.get("version")
    fits = type(version) is int and version == STATE_VERSION
    expected = (
        f"{STATE_VERSION}, the only one that this release of bgtplanner can read; continue with "
        "the release that wrote it, or start again with the same ledger"
    )
    ConfigError.unless(fits, "state: version", version, expected)
    try:
        if state["seal"] != _seal(state, state["seal"]["of"]):
            raise ValueError("seal")
        yield
    except BGTPlannerError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"state: edited, damaged, or of another policy ({type(error).__name__})"
        ) from error
