"""The command that reproduces a run or a study, from the settings that its folder holds."""

from __future__ import annotations

from bgtplanner.data.datasets import dataset_info
from bgtplanner.errors import ConfigError
from bgtplanner.runs.config import Config
from bgtplanner.runs.study import Study

__all__ = ["command_of", "command_of_study"]


def command_of(config: Config) -> str:
    """Return the command for the same run, given in its folder.

    Example:
        >>> command_of(Config())
        'bgtplanner run --config config.toml --out NEW_FOLDER'
    """
    command = "bgtplanner run --config config.toml --out NEW_FOLDER"
    try:
        dataset_info(config.data.dataset)
    except ConfigError:  # ratings given in Python may have any name
        return f"{command}  # its ratings were given in Python: bgtplanner.simulate(ratings)"
    return command


def command_of_study(study: Study) -> str:
    """Return the command for the same study, with a copy of its request."""
    return f"mkdir NEW && cp study.json NEW && bgtplanner {study.command} --out NEW"
