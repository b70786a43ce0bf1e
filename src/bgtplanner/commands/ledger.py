"""Commands about what may be spent and what was spent: `budget`, `ledger`."""

from __future__ import annotations

import contextlib
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer

from bgtplanner.commands.options import Answer, command, default, need
from bgtplanner.errors import (
    BGTPlannerError,
    ConfigError,
    LedgerError,
    LedgerTamperedError,
    RunFolderError,
)
from bgtplanner.privacy import accountants
from bgtplanner.privacy.accountants import CEILING, both_readings, guessed_right, rounded_up
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.ledger import Head, Ledger
from bgtplanner.privacy.witness import Witness
from bgtplanner.text import Table, csv_text

ledger_app = typer.Typer(
    help="Show, check, export or restore a ledger.\n\nExample: `bgtplanner ledger show RUN`",
    no_args_is_help=True,
)


@command()
def budget(
    *, epsilon: float = default("privacy.epsilon"), delta: float = default("privacy.delta"),
    rounds: int = default("federation.rounds"), mechanism: str | None = None,
    neighbours: str = default("privacy.neighbours"), noise_multiplier: float | None = None,
    per: str | None = None, whole: str | None = None,
) -> Answer:  # fmt: skip
    """Show what a privacy budget buys: the noise of a round under every accountant.

    Example: `bgtplanner budget --epsilon 10 --delta 1e-5 --rounds 100`

    Example: `bgtplanner budget --epsilon 10 --per 90d --for 1y`

    Options:
        mechanism: The mechanism, such as gaussian; all by default.
        noise_multiplier: Also show what this noise multiplier costs.
        per (TIME): Divide the budget: train once in that time, such as 90d, 4w or 1m.
        whole (TIME): For how long the budget is to last, such as 1y.
    """
    if per is not None or whole is not None:
        number = _days("--for", whole) // _days("--per", per)
        ConfigError.unless(1 <= number <= 1000, "--per", per, "a part of --for, 1/1000 or more")
        equal = accountants.quotes(
            Budget(epsilon, delta), number, mechanism=mechanism or "gaussian"
        )
        after = {
            name: [accountants.ACCOUNTANTS[name].epsilon_of_rounds(of["charge"], many + 1, delta)
                   for many in range(number - 1)] + [epsilon]
            for name, of in equal.items() if of["sound"]
        }  # fmt: skip
        named = {"epsilon": epsilon, "delta": delta, "windows": number, "rules": after}
        return Answer(named, windows_view(number, after))
    table = accountants.quotes(
        Budget(epsilon, delta), rounds, mechanism=mechanism, neighbours=neighbours,
        noise_multiplier=noise_multiplier,
    )  # fmt: skip
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
    content = {**asked, "noise_multiplier": noise_multiplier, "rules": table}
    relations = {quote["neighbours"] for quote in table.values()}
    means = f" {relations.pop()}," if len(relations) == 1 else ""
    title = f"(epsilon {epsilon:g}, delta {delta:g}) per client,{means} {rounds:,} equal rounds"
    return Answer(content, [title, *quotes_view(rounds, table)])


def _days(name: str, text: str | None) -> int:
    """Return a time in days: a number with d, w, m or y behind it."""
    days = {"d": 1, "w": 7, "m": 30, "y": 365}
    number, unit = (text or "")[:-1], (text or "")[-1:]
    fits = number.isascii() and number.isdigit() and 0 < int(number) < 10**6 and unit in days
    ConfigError.unless(fits, name, text, "a number of days, weeks, months or years, such as 90d")
    return int(number) * days[unit]


@ledger_app.command()
@command()
def show(ledger: Path, *, client: str | None = None) -> Answer:
    """Show what was spent and what is left, per class of clients or for one client.

    The ledger of a training knows people by their labels; that of a run does not, but its folder.

    Example: `bgtplanner ledger show runs/first --client 7`

    Options:
        client: Only the client of this user, by its label in the data.
    """
    with _opened(ledger, read_only=True) as opened:
        if client is None:
            facts = ledger_facts(opened)
            return Answer(facts, ledger_view(facts))
        labels = _labels(ledger)
        balance = _balances(opened, labels)[_place_of(client, opened, labels)]
    return Answer(balance, [f"{name:<14} {value}" for name, value in balance.items()])


@ledger_app.command()
@command()
def verify(ledger: Path, *, head: str | None = None, witness: Path | None = None) -> Answer:
    """Check that no row was edited, removed or reordered, and whether any were cut off.

    A ledger whose newest rows are missing is still a valid chain. So it is compared with every
    head that was recorded elsewhere: by the run, by the client, by a witness, by you.

    The exit code is 1 if something is wrong.

    Example: `bgtplanner ledger verify runs/first --head 12:9f…`

    Options:
        head: NUMBER:HASH of a row that the ledger must have.
        witness: A file elsewhere to which heads were appended.
    """
    heads = {} if head is None else {"--head": [Head.parse(head)]}
    with _opened(ledger, read_only=True) as opened:
        rows, newest = opened.verify(), opened.head
        beside, unread = _recorded_heads(_file_of(ledger), witness)
        heads |= beside
        for source, recorded in heads.items():
            try:
                for one in recorded:
                    opened.check_head(one)
            except LedgerTamperedError as error:
                raise LedgerTamperedError(f"{source}: {error}") from error
    known = max((one.number for recorded in heads.values() for one in recorded), default=None)
    found = {
        "rows": rows, "head": str(newest), "head_checked": known is not None,
        "heads": [
            {"from": source, "head": str(recorded[-1]), "heads": len(recorded)}
            for source, recorded in heads.items()
        ],
        "unread": unread, "newest_known": known, "warning": None,  # 0.2 warned of SQLite
    }  # fmt: skip
    verdict = "No row was cut off, unless the sources above were changed as well."
    if known is None or known < newest.number:
        last = "none is" if known is None else f"row {known} is the newest that is"
        verdict = (
            f"It is not known whether rows after {newest.number} were cut off, as by restoring a "
            f"backup: {last} recorded elsewhere. Keep the head above, and give it with --head."
        )
    lines = [f"{rows} rows, all as they were written. Head: {newest}"]
    lines += [f"  has row {of[-1].number}, known from {name}" for name, of in heads.items()]
    lines += [f"  not read: {name}: {problem}" for name, problem in unread.items()]
    return Answer(found, [*lines, verdict])


@ledger_app.command()
@command()
def export(ledger: Path, *, clients: bool = False, as_csv: bool = False) -> Answer:
    """Print the rows (or the clients' balances) as JSON or CSV.

    Example: `bgtplanner ledger export runs/first --csv > spent.csv`

    Options:
        clients: One line per client, not per row.
        as_csv: Print CSV in place of JSON.
    """
    labels = _labels(ledger) if clients else None
    with _opened(ledger, read_only=True) as opened:
        rows = _balances(opened, labels) if clients else list(opened.history())
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Answer(rows, csv_text(columns, rows).splitlines() if as_csv else None)


@ledger_app.command()
@command()
def restore(ledger: Path, *, head: str, lost: str) -> Answer:
    """Go on with a restored backup, after stating the spending that it has lost.

    Every client is charged what you state, so state no less than the truth; 'all' spends
    everything that is left.

    Example: `bgtplanner ledger restore ledger.sqlite --head 12:9f… --lost all`

    Options:
        head: NUMBER:HASH of the newest row that is known.
        lost: The most a client spent since the backup: a charge, or 'all'.
    """
    remembered = Head.parse(head)
    try:
        charge = None if lost == "all" else float(lost)
    except ValueError as error:
        raise ConfigError(f"--lost {lost}: expected a charge or 'all'") from error
    with _opened(ledger, rebuild=True) as opened:
        opened.state_loss(remembered, charge)
        newest, left = str(opened.head), float(opened.left().max())
    said = f"Stated. No client has more than a charge of {left:.4g} left. Head: {newest}"
    return Answer({"head": newest, "left_most": left}, [said])


@ledger_app.command()
@command()
def forget(ledger: Path, *, client: str) -> Answer:
    """Note that somebody has left, and print what is left to delete and what to tell them.

    Nothing more is charged to them. What they have spent stays, without their label: whoever comes
    back has no fresh budget. What was released before stays in the models that were published.

    Example: `bgtplanner ledger forget people.sqlite --client 7`

    Options:
        client: The label of whoever has left.
    """
    labels = _labels(ledger)
    with _opened(ledger) as opened:
        place = _place_of(client, opened, labels)
        opened.leave(place)
        of = opened.budgets.classes[opened.budgets.class_of_client[place]]
        spent, relation = float(opened.epsilon_spent()[place]), opened.neighbours
    others = {"replace-one": "with quite different ones", "replace-special": "without them"}
    chance = rounded_up(100 * guessed_right(spent, of.delta, opened.accountant.mechanism))
    letter = [
        "You have left. Your ratings are deleted, and nothing more is computed from them. What",
        "was computed from them before was published with noise, and stays. Whoever has all of it",
        f"and guesses whether it was made with your ratings or {others[relation]} is right in at",
        f"most {chance} % of cases (epsilon {rounded_up(spent)}, delta {of.delta:g}); tossing a",
        "coin, it would be 50 %. A model that is trained from the start has nothing of you. One",
        "entry is kept, without your name: how much of your privacy budget was spent. If you come",
        "back, it goes on from there.",
    ]
    said = [
        "Left. Delete as well, and before you write to them: their ratings in every table (the",
        "next training takes in whoever is there), run folders and lists made with them.",
        *("", "To send:", *letter),
    ]
    return Answer({"place": place, "epsilon_spent": spent, "letter": " ".join(letter)}, said)


def _place_of(client: str, ledger: Ledger, labels: list[list[str]] | None) -> int:
    """Return the place of the only client with a user who is called so."""
    found = [place for place, names in enumerate(labels or []) if client in names]
    found = found if (known := ledger.place(client)) is None else [known]
    if len(found) != 1:
        raise ConfigError(
            f"--client {client}: not in the ratings; give the folder of a run, and a user "
            "of its ratings ('bgtplanner ledger export --clients' lists clients by place)"
        )
    return found[0]


def _file_of(path: Path) -> Path:
    """The ledger's file, also if the folder of a run or of a client was given."""
    folder = path / "state" if (path / "client.toml").is_file() else path
    return folder / "ledger.sqlite" if path.is_dir() else path


def _opened(path: Path, *, read_only: bool = False, rebuild: bool = False) -> Ledger:
    """Open the ledger in a file or a folder; an error says what to do."""
    file = _file_of(path)
    try:
        return Ledger.open(file, read_only=read_only, rebuild=rebuild)
    except LedgerError as error:
        then = "give a ledger, or the folder of a run that has a budget"
        if file.is_file():
            then = "restore a copy, then run 'bgtplanner ledger restore'"
        raise LedgerError(f"{error}; {then}") from error


def _labels(path: Path) -> list[list[str]] | None:
    """Return the labels of each client's users, by the client's place in the ledger.

    In a run on real machines, a client is named by the hash by which the server knows it. None is
    returned for the file of a ledger, which does not know them.
    """
    if not (path / "config.toml").is_file():
        return None
    need("sim")
    from bgtplanner.runs.assembly import people_of, ratings_of
    from bgtplanner.runs.folder import RunFolder

    run = RunFolder(path)
    if run.deployed:
        return [[str(name)] for name in (run.read("clients.json") or {}).get("clients", [])]
    ratings = ratings_of(run.config())
    people = people_of(ratings)
    if run.notes().get("people", people) != people:
        raise RunFolderError(f"{path}: its people are not those that it was run with")
    return [list(map(str, of)) for of in ratings.labels_of_clients()]


def _balances(ledger: Ledger, labels: list[list[str]] | None) -> list[dict[str, Any]]:
    """Return what each client may spend, has spent and has left, with labels if known."""
    epsilons, left = ledger.epsilon_spent().tolist(), ledger.left().tolist()
    others = ledger.epsilon_other_reading().tolist()
    found = []
    for index, kind in enumerate(ledger.budgets.class_of_client):
        budget, entry = ledger.budgets.classes[kind], dict[str, Any](index=index)
        if labels is not None:  # in a run on real machines, a place may not be taken yet
            entry["client"] = " ".join(labels[index]) if index < len(labels) else ""
        found.append(entry | {
            "epsilon": budget.epsilon, "delta": budget.delta, "neighbours": ledger.neighbours,
            "epsilon_spent": epsilons[index], "left": left[index],
            "spent_other_reading": None if math.isnan(others[index]) else others[index],
        })  # fmt: skip
    return found


def _recorded_heads(
    ledger: Path, witness: Path | None
) -> tuple[dict[str, list[Head]], dict[str, str]]:
    """Return the heads that are recorded beside a ledger and in witnesses, and what is unreadable.

    The sources are ``head`` beside a client's ledger, ``checkpoint.npz`` and ``summary.json`` in a
    run folder, the given witness, and the one that a ``client.toml`` names.
    """
    sources = [ledger.parent / name for name in ("head", "checkpoint.npz", "summary.json")]
    client = ledger.parent.parent / "client.toml"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it names no witness
        sources.append(client.parent / tomllib.loads(client.read_text())["witness"])
    found: dict[str, list[Head]] = {}
    unread: dict[str, str] = {}
    for path in [*filter(Path.exists, sources), *([witness] if witness else [])]:
        try:
            if heads := _heads_in(path):
                found[str(path)] = heads
        except BGTPlannerError as error:
            unread[str(path)] = str(error)
        except Exception as error:  # a damaged archive can fail in many ways
            unread[str(path)] = f"cannot be read ({type(error).__name__})"
    return found, unread


def _heads_in(path: Path) -> list[Head]:
    """Return the heads in the file of a client, of a run or of a witness, oldest first."""
    if path.name == "head":
        text = path.read_text(encoding="ascii")
    elif path.name == "summary.json":
        text = json.loads(path.read_text(encoding="utf-8")).get("ledger_head")
    elif path.name == "checkpoint.npz":  # in the planner's state
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            text = json.loads(bytes(stored["planned"])).get("head")
    else:
        return Witness(path).heads()
    return [] if text is None else [Head.parse(str(text))]


def quotes_view(rounds: int, quotes: Mapping[str, Mapping[str, Any]]) -> list[str | Table]:
    """Return the noise of a round under every accountant, and what it amounts to."""
    keys = ("noise_multiplier", "charge", "capacity", "epsilon", "epsilon_other_reading")
    heads = ["accountant", "noise", "charge", "capacity", "epsilon", "other"]
    notes = [
        "noise: its scale over the sensitivity of a round, which is the clip",
        "  (replace-special: against nothing) or twice it (replace-one: another's data).",
        f"epsilon: of {rounds:,} rounds; other: under the other relation, at most.",
    ]
    rows = []
    for name, quote in quotes.items():
        texts = ["–" if quote[key] is None else f"{quote[key]:.4g}" for key in keys]
        if (at := quote.get("at_noise_multiplier")) is not None:
            texts += [f"{at['rounds_affordable']:,}", f"{at['epsilon']:.4g}"]
        rows.append(("", [name + ("" if quote["sound"] else " (!)"), *texts]))
    if rows and len(rows[0][1]) > len(heads):
        heads += ["rounds", "epsilon"]
        notes.append("rounds, epsilon: how many rounds the budget pays for with your noise,")
        notes.append(f"and what {rounds:,} of them amount to.")
    if any(not quote["sound"] for quote in quotes.values()):
        notes.append("(!) promises nothing: what the authors booked, for comparison only.")
    return [Table("", heads, rows), *notes]


def windows_view(number: int, rules: Mapping[str, list[float]]) -> list[str | Table]:
    """Return what is spent after each window of a budget, rounded down."""
    rows = [
        ("", [f"{at + 1:,}", *(f"{math.floor(1000 * of[at]) / 1000:g}" for of in rules.values())])
        for at in range(number)
    ]
    return [
        Table(f"epsilon after each of {number:,} equal windows", ["window", *rules], rows),
        "Each alone amounts to as much as the first: charges add up, epsilons do not.",
        "Give them one after another to train, as --epsilon; the last is --ledger-epsilon.",
    ]


def statement(ledger: Ledger, times: Mapping[int, str]) -> dict[str, Any]:
    """Return what a client's own ledger says, payment by payment, with the times that are known.

    What is left is the largest charge still possible, as a share of the largest there was. There
    are two guesses: now, and after the whole budget.
    """
    rule, budget = ledger.accountant, ledger.budgets.classes[0]
    limits, rows, whole = rule.limit_ticks(budget), [], rule.capacity(budget)
    sums = np.zeros_like(limits)
    for row in ledger.history():
        if row["kind"] in ("reserve", "loss"):
            sums = np.minimum(sums + rule.sum_ticks(row["charge_most"]), CEILING)
            left = float(rule.largest_fitting(sums, limits)) / whole
            reading = {"epsilon": float(rule.epsilon(sums, budget.delta)), "left": left}
            rows.append({"time": times.get(row["number"]), **row, **reading})
    spent = float(ledger.epsilon_spent()[0])
    return {
        "epsilon": budget.epsilon, "delta": budget.delta, "neighbours": ledger.neighbours,
        "spent": spent, "left": float(ledger.left()[0]) / whole, "rows": rows,
        "guesses": [guessed_right(of, budget.delta, rule.mechanism)
                    for of in (spent, budget.epsilon)],
    }  # fmt: skip


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """Return what a ledger says, class by class, as plain values."""
    spent, left, epsilon = ledger.spent(), ledger.left(), ledger.epsilon_spent()
    accountant, other = ledger.accountant, ledger.epsilon_other_reading()
    classes = []
    for index, budget in enumerate(ledger.budgets.classes):
        members = np.flatnonzero(ledger.budgets.class_of_client == index)
        if not len(members):
            continue
        unknown = np.isnan(other[members]).any()
        classes.append({
            "epsilon": budget.epsilon, "delta": budget.delta, "clients": len(members),
            "epsilon_other_reading": accountant.other_promise(budget, ledger.neighbours),
            "capacity": accountant.capacity(budget),
            "spent_most": float(accountants.from_ticks(spent[0, members].max())),
            "left_least": float(left[members].min()), "left_most": float(left[members].max()),
            "epsilon_spent_median": float(np.median(epsilon[members])),
            "epsilon_spent_most": float(epsilon[members].max()),
            "epsilon_spent_other_reading": None if unknown else float(other[members].max()),
            "exhausted": int((left[members[~ledger.gone[members]]] <= 0).sum()),
        })  # fmt: skip
    rows = [row for row in ledger.history() if row["kind"] in ("join", "leave")]
    came = {of: sum(row.get(of, 0) for row in rows) for of in ("joined", "left", "returned")}
    return {
        "rule": accountant.name, "neighbours": ledger.neighbours, "sound": accountant.sound,
        "clients": len(ledger), "head": str(ledger.head), "unsettled": ledger.unsettled,
        "members": came | {"away": int(ledger.gone.sum())} if rows else None, "classes": classes,
    }  # fmt: skip


def ledger_view(facts: Mapping[str, Any]) -> list[str]:
    """Return what a ledger promises and has spent, class by class."""
    promise = "promised" if facts["sound"] else "booked (no promise)"
    lines = [
        f"{facts['clients']:,} clients, accountant {facts['rule']}, head {facts['head'][:20]}…"
    ]
    if facts["members"]:
        said = "{joined:,} joined, {left:,} left, {returned:,} came back; {away:,} are away now"
        lines.append(said.format(**facts["members"]))
    for of in facts["classes"]:
        means = both_readings(of["epsilon"], facts["neighbours"], of["epsilon_other_reading"])
        most, median = of["epsilon_spent_most"], of["epsilon_spent_median"]
        lines += [
            f"({of['epsilon']:g}, {of['delta']:g}) {promise} to {of['clients']:,} clients",
            *(f"  {line}" for line in means.replace("; ", ";\n").split("\n")),
            f"  spent: epsilon {most:.4g} at most, {median:.4g} median",
            f"  left: a charge of {of['left_least']:.4g} at least; {of['exhausted']:,} clients "
            "have no budget left",
        ]
    if facts["unsettled"]:
        lines.append(f"{facts['unsettled']} reservations were never settled; they count as spent")
    return lines
