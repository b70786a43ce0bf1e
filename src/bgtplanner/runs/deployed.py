"""A run on real machines: Flower's server app, with the usual loop and run folder.

The app has two settings, both paths: ``config``, a TOML file as for `bgtplanner run --config`, and
``out``, the run folder. If the folder already holds a run, that run goes on: a server that was
killed is restarted with the same command. What cannot run on real machines is refused before any
client is asked for anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import bgtplanner
from bgtplanner.data.catalogue import read_items
from bgtplanner.data.ratings import as_scale
from bgtplanner.errors import BGTPlannerError, ConfigError, DataError, MessageError, RunFolderError
from bgtplanner.federation.aggregation.neighbourhood import degree_and_threshold
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.machines import Machines
from bgtplanner.flower.messages import SentCatalogue
from bgtplanner.flower.server import Deployment, Group, Pace
from bgtplanner.models.learner import model_of, settings_of
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.compatibility import Choice, check
from bgtplanner.published.model import Model
from bgtplanner.runs.assembly import accountant_of, coordinator_of, federation_of
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.folder import MODEL, RunFolder
from bgtplanner.runs.loop import Observer, Run
from bgtplanner.runs.summary import facts_of, summarise
from bgtplanner.runs.train import guarantee_of
from bgtplanner.text import visible

server_app = ServerApp()

_HELLO_SECONDS = 120.0  # a client's process has to start before it can say who it is

_log = logging.getLogger("flwr")  # what `flwr run --stream` and `flwr log` show


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server app; called by Flower."""
    config, out = (str(context.run_config.get(name, "")) for name in ("config", "out"))
    try:
        how = 'two paths; give them with flwr run -c \'config="..." out="..."\''
        ConfigError.unless(bool(config and out), "config, out", (config, out), how)
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
    agreed = json.dumps(agreed_settings(config, len(catalogue.items)))
    _log.info("policies must name catalogue %s, settings %s", catalogue.digest, agreed)
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
        with Run(config, deployment, observer) as run:
            run.folder, ledger = folder, folder.path / "ledger.sqlite"
            run.planned = coordinator_of(config, deployment, name, ledger, run=name)
            run.planned.stops = True  # once the budget is used up, there is nothing left to do
            run.go_on()
            seconds, model = run.carry_out(), folder.path / MODEL
            facts = facts_of(config, machines.known, deployment.n_items)
            spending = run.spending(None, machines.known)
            summary = summarise(config, facts, run.records, seconds, spending)
            summary["clients_with_last_model"] = 0
            with contextlib.suppress(ConfigError):  # some learners publish none
                _published(run, deployment, summary).save(model)
                summary["clients_with_last_model"] = deployment.publish(model.read_bytes())
            folder.write("summary.json", summary)
            return summary


def _published(run: Run, deployment: Deployment, summary: Mapping[str, Any]) -> Model:
    """Return the model of a run that is over, with the federation's guarantee."""
    config, rule, state = run.config, accountant_of(run.config), deployment.state
    promise = guarantee_of(
        Budget(config.privacy.epsilon, config.privacy.delta), rule, config.privacy.relation,
        people=summary["clients"], trust=config.privacy.trust,
        tolerance=config.federation.tolerance,
    )  # fmt: skip
    trained = {"model": config.model.name, "rounds": deployment.next_round}
    return model_of(
        deployment.federation.model, state.shared, state.memory,
        deployment.catalogue.without_ratings(),
        learned=any(record["clients"] for record in run.records),
        guarantee=promise | {"epsilon_spent": summary["epsilon_spent_max"]},
        training={"bgtplanner": bgtplanner.__version__, **trained},
    )  # fmt: skip


class _Progress(Observer):
    """A line in the log for every round."""

    def round(self, record: Mapping[str, Any], total: int) -> None:
        counts = {name: record[name] for name in ("asked", "clients", "refused", "late")}
        counts |= {kind: count for kind, count in record["dropped_by_kind"].items() if count}
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        number, charge = record["round"] + 1, record["charge"]
        _log.info("round %d/%d: %s; charge %.4g", number, total, told, charge)


def names_in(roster: Roster) -> list[str]:
    """Return the hashes by which the machines of a roster's clients are known, in its order."""
    return [hashlib.sha256(key.hex().encode()).hexdigest() for key in roster.keys]


def _folder_of(path: Path, config: Config, mark: str, items: int) -> RunFolder:
    """Return a new run folder, or the existing folder of this very run."""
    if not (path / "config.toml").exists():
        facts = facts_of(config, config.deployment.clients, items)
        return RunFolder.create(path, config, data=mark, facts=facts, deployed=True)
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(RunFolder.open(path))
        if not folder.deployed or folder.config() != config or folder.notes()["data"] != mark:
            raise RunFolderError(
                f"{path}: holds a run with other settings, items or clients; choose another "
                "folder (out), or use the settings that the run was started with"
            )
        opened.pop_all()
    return folder


def group_of(config: Config, folder: Path) -> Group | None:
    """Return with whom sums are made; None if every client noises its own upload."""
    settings = config.deployment
    if settings.roster is None:
        return None
    path = folder / settings.roster
    advice = "collect the lines of 'bgtplanner deploy enroll' with 'bgtplanner deploy roster'"
    ConfigError.unless(path.exists(), "deployment.roster", str(path), f"a file; {advice}")
    group = Group(Roster.read(path), config.federation.tolerance, config.privacy.relation)
    number, expected = len(group.roster), f"{len(group.roster)}, as in {settings.roster}"
    ConfigError.unless(
        settings.clients == number, "deployment.clients", settings.clients, expected
    )
    asked = max(1, round(config.federation.participation * number))
    try:
        degree_and_threshold(asked, *group.tolerance.of(asked))
    except ConfigError as error:
        names = "federation.most_dropouts, federation.most_colluders"
        raise ConfigError(f"{names}: {error}") from error
    return group


def check_deployable(config: Config) -> None:
    """Refuse settings that make no sense on real machines, or would release something unpaid."""
    privacy, planning, deployment = config.privacy, config.planning, config.deployment
    choice = Choice(
        privacy.mechanism, privacy.trust, privacy.unit, deployed=True, neighbours=privacy.relation
    )
    check(choice, "privacy.")
    grouped, learns = privacy.trust != "local", config.learns
    least, real = deployment.least_clients, "0: real clients need no simulated failures"
    config.require(
        ("privacy.accounting", accountant_of(config).sound,
         "a sound accountant, like gaussian/gdp"),
        ("deployment.roster", (deployment.roster is not None) == grouped,
         "a roster with privacy.trust = secagg, and none without"),
        ("privacy.budgets", privacy.budgets is None, "none: one epsilon for all"),
        ("tastes.half_life", config.tastes.half_life is None,
         "none: clients' tables need not have times"),
        ("model.pseudo_items", not config.model.pseudo_items, "0"),
        ("planning.context", not learns or planning.context != "usage",
         "none, released or forecast: clients do not say which items they have rated"),
        ("planning.reward", not learns or planning.reward in ("none", "released"),
         "none or released: no charge pays for what clients would say about their ratings"),
        ("federation.dropout", not config.federation.dropout, real),
        ("deployment.least_clients", least <= deployment.clients,
         f"at most clients = {deployment.clients}"),
    )  # fmt: skip


def agreed_settings(config: Config, n_items: int) -> dict[str, Any]:
    """Return the settings of the model that clients' policies must name: all but its defaults.

    Those that were left open are chosen by the number of clients and items and by the budget.
    """
    model = federation_of(config, n_items, clients=config.deployment.clients).model
    try:
        usual = settings_of(type(model)())
    except TypeError:  # a model of one's own, with settings that have no default
        usual = {}
    settings = settings_of(model).items()
    return {key: of for key, of in settings if key not in usual or of != usual[key]}


def catalogue_of(config: Config, home: Path) -> SentCatalogue:
    """Return what is public: the items with their titles and features, and the scale.

    The items are a table (CSV or Parquet) with their names, titles and features, or a list of
    names, one per line, in a file that ends in ``.txt``. A path may be relative to `home`.
    """
    items, scale = config.deployment.items, config.data.scale
    if items is None:
        raise ConfigError("deployment.items: expected a table of items, or a list in items.txt")
    ends = None if scale is None else as_scale(scale)
    if not isinstance(ends, tuple):
        problem = "such as 1:5, because the largest rating that occurs is not public"
        raise ConfigError(f"data.scale = {scale!r}: expected LOW:HIGH, {problem}")
    path = home / items
    columns = ("item",) if path.suffix == ".txt" else None
    try:
        return SentCatalogue.read(
            SentCatalogue.of(read_items(path, columns=columns), *ends).record()
        )
    except MessageError as error:
        raise DataError(f"cannot be sent to clients: {error}", path=path) from error
