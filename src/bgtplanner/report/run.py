"""The facts of a run: from the files of its folder, or from a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.datasets import DATASETS
from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import METRICS, shown
from bgtplanner.report import plots, verdict
from bgtplanner.report.facts import Facts, Section
from bgtplanner.report.guarantee import guarantee, is_sound, not_covered
from bgtplanner.report.verdict import ERROR
from bgtplanner.runs.config import Config, to_toml
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.gains import FEWEST
from bgtplanner.runs.recommending import number_of_examples
from bgtplanner.runs.record import identity_of
from bgtplanner.runs.result import Result
from bgtplanner.runs.summary import not_accounted, promised, readings, summarise
from bgtplanner.text import Table

_HOW_LISTS = (
    "Every user gets a list of ten out of the whole catalogue, without what it has rated in "
    "training. An item is relevant if the user's held-out rating of it is at least 80 % of the "
    "highest possible one. NDCG@10 is 1 if relevant items come first, and 0 if none is on the "
    "list. Coverage is the share of the items that are on anyone's list, and overlap is how many "
    "of ten items two users' lists have in common. RMSE is on the held-out ratings, scaled to "
    "[0, 1]."
)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What is known of a run: the contents of its folder."""

    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    config: Config
    state: str
    versions: Mapping[str, str] = field(default_factory=dict)
    deployed: bool = False
    examples: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def scored(self) -> bool:
        """Whether it is known how good the model is."""
        return self.summary.get(f"{ERROR}_final") is not None

    @property
    def private(self) -> bool:
        """Whether there was a budget to spend."""
        return bool(self.summary.get("mechanism", "none") != "none" and self.rounds)

    def named(self) -> tuple[str, int]:
        """The policy, and how many rounds are planned."""
        return self.summary["policy"], self.config.federation.rounds

    def column(self, key: str) -> list[Any]:
        """The value of each round under a key."""
        return [record.get(key) for record in self.rounds]


def read_facts(path: Path | str, *, state: str = "finished") -> Facts:
    """Return the facts of a run, without locking or changing anything in its folder.

    Args:
        path: The run folder.
        state: Of an unfinished run, which is refused by default: ``running`` or ``stopped``.

    Raises:
        RunFolderError: If it is not a run folder, or holds no finished run.
    """
    folder = RunFolder(Path(path))
    notes, config, deployed = folder.notes(), folder.config(), folder.deployed
    summary, rounds = folder.summary(), folder.rounds()
    finished = summary is not None and bool(rounds)
    if not finished and state == "finished":
        raise RunFolderError(
            f"{path}: the run is not finished; continue with '{folder.resume_command}', or watch "
            "it with --live"
        )
    if summary is None or not rounds:
        summary = _so_far(config, notes.get("facts") or {}, rounds, deployed)
    run = _Run(
        summary=summary,
        rounds=rounds,
        config=config,
        versions={"bgtplanner": notes.get("version", "unknown"), **(notes.get("versions") or {})},
        state="finished" if finished else state,
        deployed=deployed,
        examples=folder.read("examples.json") if finished and not deployed else None,
    )
    facts = _facts(run)
    if run.state != "stopped":
        return facts
    return replace(facts, lead=[f"It was stopped. Continue with: {folder.resume_command}"])


def facts_of_result(result: Result) -> Facts:
    """Return the facts of a result."""
    return _facts(
        _Run(summary=result.summary, rounds=result.rounds, config=result.config, state="finished")
    )


def _so_far(
    config: Config, known: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], deployed: bool
) -> dict[str, Any]:
    """Return the summary of an unfinished run, as far as its folder has it."""
    identity, privacy = identity_of(config), config.privacy
    known = {
        "not_accounted": not_accounted(config, ("scale", "catalogue") if deployed else ()),
        "simulated_noise": not deployed and privacy.mechanism != "none",
        **identity,
        **known,
        **{name: of for name, of in identity.items() if name != "dataset"},
    }
    if not rounds:
        return known | {"rounds_run": 0}
    spending: dict[str, Any] = {}
    if privacy.mechanism != "none":
        spending = promised(config, known.get("class_epsilons") or [privacy.epsilon], rounds)
        read = readings(spending["accounting"], privacy.delta, rounds)
        spending["epsilon_spent_max"] = None if read is None else float(read[-1].max())
    seconds = sum(record.get("seconds", 0.0) for record in rounds)
    return summarise(config, known, rounds, seconds, spending)


def _facts(run: _Run) -> Facts:
    summary, total = run.summary, run.config.federation.rounds
    trust = f", trust {summary['trust']}" if summary.get("trust") else ""
    how = f"{summary['mechanism']}{trust}" if summary["mechanism"] != "none" else "no privacy"
    error = f", RMSE {summary[f'{ERROR}_final']:.4f} so far" if run.scored else ""
    begun = "Stopped after round" if run.state == "stopped" else "Round"
    sections = (part(run) for part in _PARTS)
    return Facts(
        kind="run",
        about=" · ".join([summary["dataset"], summary["model"], summary["policy"], how]),
        headline=verdict.headline(summary)
        if run.finished
        else f"{begun} {len(run.rounds)} of {total}{error}.",
        lead=verdict.lead(summary) if run.finished else [],
        sections=[section for section in sections if section is not None],
        state=run.state,
        progress=(len(run.rounds), total),
        summary=summary,
        rounds=run.rounds,
    )


def _answers(run: _Run) -> str:
    """Return how many uploads of real machines were used, refused, dropped or late."""
    total: Counter[str] = Counter()
    for record in run.rounds:
        total.update({name: record.get(name, 0) for name in ("asked", "refused", "late")})
        total.update(record.get("dropped_by_kind", {}))
    rest = "".join(f", {count:,} {name}" for name, count in total.items() if count)
    return f"Uploads used: {sum(of['clients'] for of in run.rounds):,}{rest}."


def _notes(run: _Run) -> Section | None:
    """Say what the planner has to say, and which machines answered."""
    note = run.summary.get("planner_note")
    said = [f"The planner {run.summary['policy']} {note}."] if note else []
    said += [_answers(run)] if run.deployed and run.rounds else []
    return Section("", said) if said else None


def _compared(run: _Run) -> Section | None:
    if not (run.finished and run.scored):
        return None
    labels, rows, best = verdict.scores(run.summary)
    note = _HOW_LISTS
    if "F1" in labels:
        note += " For F1, a rating or prediction of at least 0.5 counts as positive."
    cells = [("", [name, *figures]) for name, figures in rows]
    columns = ["predictor", *labels]
    table = Table("Every predictor on the held-out ratings", columns, cells, note, best)
    said = verdict.about_scores(run.summary)
    return Section("Compared with simple predictors and lists", said, tables=[table])


def _quality(run: _Run) -> Section | None:
    pictures, (_, total) = [], run.named()
    for name, metric in shown(run.config.preset).items():
        values = run.column(name)
        if run.scored and metric.sums and None not in values:
            pictures.append(plots.quality(run.summary, name, values, total))
    return Section("How good the model got", pictures=pictures) if pictures else None


def _lists(run: _Run) -> Section | None:
    """Show lists of a few users, and say why they are shown or not."""
    if run.deployed or not (run.finished and run.scored):
        return None
    heading, found = "What people would be shown", run.examples or {}
    if not found.get("lists"):
        said = (
            "The ratings are your own, so no one's list is shown here. bgtplanner recommend "
            "FOLDER --user LABEL prints one, and --set run.examples=3 puts a few on this page."
        )
        return Section(heading, [said]) if number_of_examples(run.config) == 0 else None
    asked, unit = run.config.run.examples is not None, verdict.unit_of(run.summary)
    because = "run.examples asks for them" if asked else "everybody can get these data"
    tables = []
    for user, items in ((of["user"], of["items"]) for of in found["lists"]):
        figures = ["–" if of["predicted"] is None else f"{of['predicted']:.1f}" for of in items]
        rows = [
            ("", [of["title"], figure, of["reason"] or ""])
            for of, figure in zip(items, figures, strict=True)
        ]
        tables.append(Table(f"User {user}", ["title", "expected", "why"], rows))
    about = (
        "Items that the user has not rated, best first, with the rating that the model expects"
        f"{f' ({unit})' if unit else ''} and the reason. The users are evenly spread over all "
        "labels in their order, so that no one looked at a rating to choose them. They are shown "
        f"because {because}; run.examples=0 leaves them out. Whoever simulates holds all ratings; "
        "a server on real machines holds none, and its report never has lists."
    )
    return Section(heading, [*filter(None, [found.get("note")]), about], tables=tables)


def _who(run: _Run) -> Section | None:
    """Show which groups of clients gain, and which lose."""
    found = run.summary.get("gains") or {}
    groups = {by: found.get(by) or [] for by in ("ratings", "budget")}
    every = [group for of in groups.values() for group in of]
    if not every or not run.finished:
        return None
    sure = [of for of in every if of["gain"] is not None]
    lose = ", ".join(of["name"] for of in sure if of["high"] < 0)
    unsure = ", ".join(of["name"] for of in sure if of["low"] <= 0 <= of["high"])
    said = f"These groups lose: {lose}. " if lose else "No group clearly loses. "
    said += f"Whether these gain cannot be told: {unsure}. " if unsure else ""
    if verdict.nothing_learned(run.summary):
        said += "Nothing came from others: whatever is gained is each client's own doing. "
    unit = verdict.unit_of(run.summary) or METRICS[ERROR].label
    table = Table(
        f"Error in the last round, {unit}, together and alone",
        ("clients with", "clients", "together", "alone", "gain", "95 %", "better off"),
        [(f"by {_BY[by]}", _gain_row(run, group)) for by, of in groups.items() for group in of],
        f"{said}The gain is how far the error is below that of the same clients alone, the "
        "interval is over clients, and better off is the share of them with a lower error than "
        f"alone. Groups of fewer than {FEWEST} clients are left out, and bounds are rounded.",
    )
    return Section("Who gains and who loses", tables=[table])


_BY = {"ratings": "number of ratings", "budget": "budget"}


def _gain_row(run: _Run, group: Mapping[str, Any]) -> list[str]:
    errors = (group["rmse"], group["rmse_alone"])
    plain = [verdict.on_the_scale(run.summary, of, unit=False) or f"{of:.4f}" for of in errors]
    gain, between = "–", "–"
    if group["gain"] is not None:
        gain, between = f"{group['gain']:+.1%}", f"{group['low']:+.1%} to {group['high']:+.1%}"
    counts = group["name"], f"{group['clients']:,}"
    return [*counts, *plain, gain, between, f"{group['better']:.0%}"]


def _spending(run: _Run) -> Section | None:
    """Show what was spent in which round, and what was expected of it."""
    if not run.private:
        return None
    summary, read = run.summary, None
    if summary.get("accounting") is not None:
        read = readings(summary["accounting"], summary["delta"], run.rounds)
    classes = [of["epsilon"] for of in summary.get("classes") or []]
    promise = classes or summary.get("class_epsilons") or [summary["epsilon"]]
    if read is not None and read.shape[1] != len(promise):
        read = None
    pictures = [plots.spent(*run.named(), _shares(run), read, promise)]
    alone, gain = summary.get(f"{ERROR}_client_alone"), _by_round(run, "forecast")
    if planned := gain or _by_round(run, "predicted"):
        came = dict(enumerate(run.column(ERROR if gain else "reward"), start=1))
        known = {step: of for step, of in came.items() if of is not None}
        if gain:
            known = {step: 1 - of / alone for step, of in known.items()} if alone else {}
        pictures.append(plots.forecast(*run.named(), planned, known, bool(gain)))
    said = (
        "The policy looks at what was released so far and decides what the round may cost; the "
        "ledger refuses whatever does not fit."
    )
    return Section("How the budget was spent, and why", [said], pictures)


def _by_round(run: _Run, name: str) -> dict[int, float]:
    """Return what the planner expected, by round: of the plan, or of the level that it chose."""
    found = {}
    for step, record in enumerate(run.rounds, start=1):
        values = (record.get("why") or {}).get(name) or ()
        level = 0 if name == "forecast" else record.get("level")
        if level is not None and level < len(values) and abs(values[level]) < 1e15:
            found[step] = values[level]
    return found


def _shares(run: _Run) -> NDArray[np.float64]:
    """Return the share of the budget that each round took, of the class that it took most of."""
    left = [share or [] for share in run.column("left")]
    if left[0] and len({len(share) for share in left}) == 1:
        taken = np.nan_to_num(-np.diff(np.array(left), axis=0, prepend=1.0))
        return np.asarray(np.maximum(taken.max(axis=1), 0.0))
    charges = np.array([charge or 0.0 for charge in run.column("charge")])
    return np.asarray(charges / (charges.sum() or 1.0))


def _guarantee(run: _Run) -> Section | None:
    """Say what is guaranteed and what is not; nothing before the first round."""
    if not run.rounds:
        return None
    sound = is_sound(run.summary)
    if run.finished or sound or not run.private:
        lines = guarantee(run.summary)
    else:
        lines = ["What this setting means for a whole client is said when the run is done."]
        lines += not_covered(run.summary)
    if run.private:
        lines.append("The ledger enforces this: it refuses every charge that does not fit.")
        lines.append(
            "Every client also has a ledger of its own, which has the final say."
            if run.deployed
            else "This simulation protects no one, because its noise comes from a seed."
        )
    return Section("What is guaranteed, and what is not", lines, promise=sound)


def _origin(run: _Run) -> Section:
    """Say what the data are, and how to run it again."""
    summary, said = run.summary, []
    users, ratings = (summary.get(name) for name in ("users", "ratings"))
    if summary.get("items") and summary.get("clients"):
        held = f"{ratings:,} ratings by {users:,} users on " if users and ratings else ""
        held += f"{summary['items']:,} items, held by {summary['clients']:,} clients."
        said.append(
            f"{held} Privacy, if there is any, protects a whole client with all its users."
        )
    took = f"seed {summary['seed']}"
    if run.finished:
        each = 1000 * summary["seconds_per_round"]
        took += f"; {summary['seconds_total']:.1f} s in total, {each:.1f} ms per round"
    said.append(f"{', '.join(f'{name} {of}' for name, of in run.versions.items())}; {took}.")
    said.append("All figures are in summary.json and rounds.jsonl, next to this page.")
    if run.deployed:
        said.append("To run it again, in the app folder, with another run folder as out:")
    code = "bgtplanner run --config config.toml --out NEW_FOLDER"
    if run.deployed:
        code = "flwr run APP SUPERLINK"
    elif run.config.data.dataset not in DATASETS and ":" not in run.config.data.dataset:
        code += "  # its ratings were given in Python: bgtplanner.simulate(ratings)"
    heading = "The data, and how to reproduce it"
    return Section(heading, said, code=code, unfold=to_toml(run.config))


_PARTS = (_notes, _compared, _guarantee, _quality, _lists, _who, _spending, _origin)
