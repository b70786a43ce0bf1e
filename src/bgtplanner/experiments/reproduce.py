"""How to get a run or a grid again: the one line to type."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from bgtplanner.errors import ConfigError
from bgtplanner.experiments.config import FLAGS, Config, load_config
from bgtplanner.experiments.grid import AXES, Request
from bgtplanner.experiments.sweeps import Sweep, in_words
from bgtplanner.recsys.datasets import dataset_info

__all__ = ["command_of", "command_of_grid"]

# Where a run is carried out does not change what comes of it.
_INDIFFERENT = ("data.data_dir", "run.device", "run.checkpoint_every")
_FIRST = ("model.name", "planning.policy", "privacy.mechanism")  # presets depend on these
_LONGEST = 600  # letters that are still one line


def command_of(config: Config) -> str:
    """The command that carries out the same run, told by how it differs from its preset.

    Example:
        >>> command_of(load_config(settings={"federation.rounds": 50, "server.momentum": 0.5}))
        'bgtplanner run --preset recommended --rounds 50 --set server.momentum=0.5'
    """
    given = _different(load_config(preset=config.preset), config)
    settings = {key: given[key] for key in _FIRST if key in given}
    settings |= _different(load_config(preset=config.preset, settings=settings), config)
    fallback = "bgtplanner run --config config.toml --out NEW_FOLDER"
    try:
        dataset_info(config.data.dataset)
        same = not _different(load_config(preset=config.preset, settings=settings), config)
    except ConfigError:  # ratings that were given in Python have any name
        return f"{fallback}  # from this folder; its ratings were given in Python"
    line = " ".join(["bgtplanner run", f"--preset {config.preset}", *_flags(settings, FLAGS)])
    typed = same and None not in settings.values() and len(line) <= _LONGEST
    return line if typed else fallback


def command_of_grid(asked: Request | Sweep) -> str:
    """The command that carries out the same comparison or sweep."""
    base = asked.base if isinstance(asked, Sweep) else asked
    line = [f"bgtplanner {asked.command}"]
    if isinstance(asked, Sweep) and asked.figure is not None:
        line.append(f"--figure {asked.figure}")
    elif isinstance(asked, Sweep):
        for axis in (axis for study in asked.studies for axis in study.axes):
            values = json.dumps(list(axis.values))[1:-1].replace(", ", ",").replace('"', "'")
            line.append(f"--vary {shlex.quote(f'{axis.key}={values}')}")
    for flag, names in (
        ("--dataset", base.datasets),
        ("--mechanism", base.mechanisms),
        ("--policy", base.policies),
    ):
        line += [f"{flag} {shlex.quote(name)}" for name in names]
    line.append(f"--seeds {','.join(map(str, base.seeds))} --preset {base.preset}")
    if base.baseline is not None:
        line.append(f"--baseline {shlex.quote(base.baseline)}")
    own = {key: of for key, of in base.settings.items() if key not in (*AXES, *_INDIFFERENT)}
    return " ".join([*line, *_flags(own, {})])


def _flags(settings: Mapping[str, Any], flags: Mapping[str, str]) -> list[str]:
    return [
        f"{flags[key]} {shlex.quote(in_words(value))}"
        if key in flags
        else f"--set {shlex.quote(f'{key}={_value(value)}')}"
        for key, value in sorted(settings.items(), key=lambda entry: entry[0] not in flags)
    ]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(of)}" for key, of in value.items()) + "}"
    return in_words(value)


def _different(preset: Config, config: Config) -> dict[str, Any]:
    """What the config has otherwise, by dotted key."""
    theirs, ours = preset.model_dump(mode="json"), config.model_dump(mode="json")
    return {
        f"{section}.{key}": value
        for section, values in ours.items()
        if section != "preset"
        for key, value in values.items()
        if value != theirs[section][key] and f"{section}.{key}" not in _INDIFFERENT
    }
