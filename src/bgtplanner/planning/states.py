"""What an object remembers between rounds, as plain data that JSON can hold, and back.

There is one way: a class names the attributes in `remembers`. Each is a number, a text, an array,
a random generator, a list or a dictionary of these, or another object that remembers. The state of
a policy has a version and a checksum, so that another, damaged or edited one is not read.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from bgtplanner.errors import ConfigError

STATE_VERSION = 5
"""Version of what a policy's ``state_dict`` returns; any other version is refused."""


def remembered(thing: Any) -> dict[str, Any]:
    """Return what an object remembers, by the names of its attributes."""
    own = {name.lstrip("_"): getattr(thing, name) for name in thing.remembers}
    found: dict[str, Any] = json.loads(json.dumps(own, default=_plain))
    return found


def recall(thing: Any, state: Mapping[str, Any]) -> None:
    """Set the attributes of an object to what :func:`remembered` returned."""
    for name in thing.remembers:
        now, then = getattr(thing, name), state[name.lstrip("_")]
        if hasattr(now, "remembers"):
            recall(now, then)
        elif isinstance(now, np.random.Generator):
            now.bit_generator.state = then
        else:
            read = json.loads(json.dumps(then), object_hook=_read)
            setattr(thing, name, deque(read, now.maxlen) if isinstance(now, deque) else read)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"shape": value.shape, "values": value.ravel().tolist()}
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return list(value) if isinstance(value, deque) else remembered(value)


def _read(found: dict[str, Any]) -> Any:
    if "values" in found:
        return np.array(found["values"], dtype=np.float64).reshape(found["shape"])
    return {int(key) if key.isdigit() else key: value for key, value in found.items()}


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a policy with its version and a checksum."""
    versioned = {"version": STATE_VERSION, **state}
    return {**versioned, "seal": _seal(versioned)}


def _seal(state: Mapping[str, Any]) -> str:
    own = {key: value for key, value in state.items() if key != "seal"}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def unsealed(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state; refuse one of another version, and one that is not as it was sealed."""
    fits, expected = isinstance(state, Mapping), "a mapping, as state_dict returns it"
    ConfigError.unless(fits, "state", type(state).__name__, expected)
    version = state.get("version")
    expected = (
        f"{STATE_VERSION}, the only one that this release of bgtplanner can read; continue with "
        "the release that wrote it, or start again with the same ledger"
    )
    fits = type(version) is int and version == STATE_VERSION
    ConfigError.unless(fits, "state: version", version, expected)
    try:
        whole = state.get("seal") == _seal(state)
    except (TypeError, ValueError):  # what is not plain data
        whole = False
    ConfigError.unless(whole, "state", "edited or damaged", "as state_dict returned it")
    return state
