"""A run on real machines: Flower's server app, with the same loop and the same run folder.

The app has two settings, both paths: ``config``, a TOML file as for `bgtplanner run --config`, and
``out``, the run folder. If the folder already holds a run, that run goes on: a server that was
killed is restarted with the same command.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bgtplanner.errors import BGTPlannerError, ConfigError, RunFolderError
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.machines import Machines
from bgtplanner.flower.server import DeployedRounds, Deployment, Pace
from bgtplanner.runs.assembly import accountant_of, coordinator_of, federation_of
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.deployable import catalogue_of, check_deployable, group_of
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.loop import Run
from bgtplanner.runs.observers import Observer
from bgtplanner.runs.summary import facts_of, spending_of, summarise
from bgtplanner.text import visible

server_app = ServerApp()

_HELLO_SECONDS = 120.0  # a client's process has to start before it can say who it is

_log = logging.getLogger("flwr")  # what `flwr run --stream` and `flwr log` show


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server app; called by Flower."""
    config, out = (_path(context, name) for name in ("config", "out"))
    try:
        summary = carry_out(grid, config, out, observer=_Progress())
    except BGTPlannerError as error:
        _log.error("error: %s", error)
        raise
    _log.info("%d rounds done; results in %s", summary["rounds_run"], visible(out))


def carry_out(
    grid: Grid,
    config_file: Path | str,
    out: Path | str,
    *,
    observer: Observer | None = None,
    poll_seconds: float = 0.5,
) -> dict[str, Any]:
    """Run a config on the machines of a grid, or continue such a run, and return the summary.

    Raises:
        ConfigError: If a setting makes no sense on real machines.
        RunFolderError: If the folder holds another run.
        InterruptedRunError: If the run was stopped, or too few clients came; start it again.
    """
    config, home = load_config(file=config_file), Path(config_file).parent
    check_deployable(config)
    catalogue, group = catalogue_of(config, home), group_of(config, home)
    mark = catalogue.digest
    if group is not None:  # places are those of the roster, in the server's ledger as well
        mark = hashlib.sha256(bytes.fromhex(mark) + group.roster.digest).hexdigest()
    with _folder_of(Path(out), config, mark, len(catalogue.items)) as folder:
        summary = folder.summary()
        if summary is not None:
            return summary
        noted = folder.read("clients.json") or {"run": secrets.token_hex(16), "clients": []}
        name, rule, settings = noted["run"], accountant_of(config), config.deployment
        machines = Machines(
            grid, places=settings.clients, accountant=rule.name, run=name,
            roster=None if group is None else group.roster,
            known=noted["clients"] if group is None else names_in(group.roster),
            save=lambda clients: folder.write("clients.json", {"run": name, "clients": clients}),
            seconds=min(settings.round_seconds, _HELLO_SECONDS), poll_seconds=poll_seconds,
        )  # fmt: skip
        deployment = Deployment(
            federation_of(config, len(catalogue.items), clients=settings.clients),
            machines, catalogue, model=config.model.name, accountant=rule, run=name,
            pace=Pace(*(getattr(settings, field) for field in Pace._fields)),
            seed=config.run.seed, group=group,
        )  # fmt: skip
        run = Run(config, deployment, observer)
        run.checkpoint_every = 1  # clients have paid for every round, so none is played twice
        with contextlib.closing(run):
            run.planned = rounds = coordinator_of(
                config, deployment, name, folder.path / "ledger.sqlite", run=name,
                kind=DeployedRounds,
            )  # fmt: skip
            rounds.stops = True  # once the budget is used up, there is nothing left to do
            run.go_on(folder)
            seconds, kept = run.carry_out(folder), deployment.publish()
            facts = _facts(config, machines.known, deployment.n_items)
            spending = spending_of(config, rounds.ledger, None, run.records, machines.known)
            spending["planner_note"] = rounds.policy.note
            summary = summarise(config, facts, run.records, seconds, spending)
            summary["clients_with_last_model"] = kept
            folder.write("summary.json", summary)
            return summary


class _Progress(Observer):
    """A line in the log for every round."""

    def round(self, record: Mapping[str, Any], total: int) -> None:
        counts = {name: record[name] for name in ("asked", "clients", "refused", "late")}
        counts |= {kind: count for kind, count in record["dropped_by_kind"].items() if count}
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        _log.info(
            "round %d/%d: %s; charge %.4g", record["round"] + 1, total, told, record["charge"]
        )


def names_in(roster: Roster) -> list[str]:
    """Return the hashes by which the machines of a roster's clients are known, in its order."""
    return [hashlib.sha256(key.hex().encode()).hexdigest() for key in roster.keys]


def _facts(config: Config, clients: int, items: int) -> dict[str, Any]:
    """Return what is known about a run on real machines; the number of ratings is not."""
    about = {"dataset": config.data.dataset, "clients": clients, "users": None, "items": items,
             "ratings": None, "public": ("scale", "catalogue")}  # fmt: skip
    return facts_of(config, about, None)


def _folder_of(path: Path, config: Config, mark: str, items: int) -> RunFolder:
    """Return a new run folder, or the existing folder of this very run."""
    if not (path / "config.toml").exists():
        facts = _facts(config, config.deployment.clients, items)
        return RunFolder.create(path, config, fingerprint=mark, facts=facts, deployed=True)
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(RunFolder.open(path))
        if not folder.deployed or folder.config() != config or folder.notes()["data"] != mark:
            raise RunFolderError(
                f"{path}: holds a run with other settings, items or clients; choose another "
                "folder (out), or use the settings that the run was started with"
            )
        opened.pop_all()
    return folder


def _path(context: Context, name: str) -> Path:
    value = context.run_config.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}: expected a path; give it with flwr run -c '{name}=\"...\"'")
    return Path(value)
