"""The command that reproduces a run or a study."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from bgtplanner.data.datasets import dataset_info
from bgtplanner.errors import ConfigError
from bgtplanner.runs.config import FLAGS, INDIFFERENT, Config, differences, load_config
from bgtplanner.runs.study import AXES, Study, in_words

__all__ = ["command_of", "command_of_study"]

_FIRST = (
    "model.name",
    "planning.policy",
    "privacy.mechanism",
    "privacy.trust",
)  # which set the defaults
_LONGEST = 600  # characters that still count as one line


def command_of(config: Config) -> str:
    """The command for the same run, with the settings that differ from its preset.

    Example:
        >>> command_of(load_config(settings={"federation.rounds": 50, "server.momentum": 0.5}))
        'bgtplanner run --preset recommended --rounds 50 --set server.momentum=0.5'
    """
    given = differences(load_config(preset=config.preset), config)
    settings = {key: given[key] for key in _FIRST if key in given}
    settings |= differences(load_config(preset=config.preset, settings=settings), config)
    fallback = "bgtplanner run --config config.toml --out NEW_FOLDER"
    try:
        dataset_info(config.data.dataset)
        same = not differences(load_config(preset=config.preset, settings=settings), config)
    except ConfigError:  # ratings given in Python may have any name
        return f"{fallback}  # from this folder; its ratings were given in Python"
    line = " ".join(["bgtplanner run", f"--preset {config.preset}", *_flags(settings, FLAGS)])
    typed = same and None not in settings.values() and len(line) <= _LONGEST
    return line if typed else fallback


def command_of_study(study: Study) -> str:
    """The command for the same study."""
    line = [f"bgtplanner {study.command}"]
    if study.figure is not None:
        line.append(f"--figure {study.figure}")
    else:
        for axis in (axis for variation in study.variations for axis in variation.axes):
            values = json.dumps(list(axis.values))[1:-1].replace(", ", ",").replace('"', "'")
            line.append(f"--vary {shlex.quote(f'{axis.key}={values}')}")
    for flag, names in (
        ("--dataset", study.datasets),
        ("--mechanism", study.mechanisms),
        ("--policy", study.policies),
    ):
        line += [f"{flag} {shlex.quote(name)}" for name in names]
    line.append(f"--seeds {','.join(map(str, study.seeds))} --preset {study.preset}")
    if study.baseline is not None:
        line.append(f"--baseline {shlex.quote(study.baseline)}")
    own = {key: of for key, of in study.settings.items() if key not in (*AXES, *INDIFFERENT)}
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
