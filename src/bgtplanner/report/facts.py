"""Everything that a reader shall see of a run, as one object.

It is computed here, from the files of a folder or from a result; page, terminal and notebook only
lay it out.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bgtplanner.data.datasets import DATASETS, path_of
from bgtplanner.errors import ModelFileError, RunFolderError
from bgtplanner.models.metrics import shown
from bgtplanner.published.model import Verdict, load_model
from bgtplanner.report import pictures, verdict
from bgtplanner.report.pictures import Picture
from bgtplanner.report.verdict import ERROR, guarantee, is_sound
from bgtplanner.runs.config import Config, to_toml
from bgtplanner.runs.folder import MODEL, RunFolder
from bgtplanner.runs.record import identity_of
from bgtplanner.runs.result import number_of_examples
from bgtplanner.runs.summary import FEWEST
from bgtplanner.text import Table


class Section(NamedTuple):
    """A part of a report: heading, paragraphs, pictures, tables.

    Attributes:
        promise: Whether its words are a promise that is kept (True) or less than one (False).
        code: What to type.
        unfold: Something long that is shown on request.
    """

    heading: str
    words: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    promise: bool | None = None
    code: str = ""
    unfold: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is shown of a run: the result in a sentence, and sections.

    Attributes:
        about: What was run, in a line.
        state: ``finished``, ``running`` or ``stopped``.
        progress: How many rounds are done, and how many there will be.
    """

    about: str
    headline: str
    lead: Sequence[str] = ()
    sections: Sequence[Section]
    state: str
    progress: tuple[int, int]


_HOW_LISTS = (
    "Every user gets a list of ten out of the whole catalogue, without what it has rated in "
    "training. An item is relevant if the user's held-out rating of it is at least 80 % of the "
    "highest possible one. NDCG@10 is 1 if relevant items come first, and 0 if none is on the "
    "list. Coverage is the share of the items that are on anyone's list, and overlap is how many "
    "of ten items two users' lists have in common. RMSE is on the held-out ratings, scaled to "
    "[0, 1]."
)

_SEEN = {"secagg": "secagg (the server sees sums only)", "local": "local (the server sees noise)"}


@dataclass(frozen=True)
class _Run:
    """What is known of a run: the contents of its folder."""

    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    config: Config
    versions: Mapping[str, str] = field(default_factory=dict)
    deployed: bool = False
    examples: Mapping[str, Any] | None = None
    verdict: Verdict | None = None  # the model's own

    @property
    def scored(self) -> bool:
        """Whether it is known how good the model is."""
        return bool(self.rounds) and all(of.get(ERROR) is not None for of in self.rounds)

    @property
    def private(self) -> bool:
        """Whether there was a budget to spend."""
        return bool(self.summary.get("mechanism", "none") != "none" and self.rounds)


Part = Callable[[_Run], Section | None]


def read_facts(path: Path | str, *, state: str = "finished") -> Facts:
    """Return the facts of a run, without locking or changing anything in its folder.

    An unfinished run is refused, unless its `state` is said: ``running`` or ``stopped``.

    Raises:
        RunFolderError: If it is not a run folder, or holds no finished run.
    """
    folder = RunFolder(Path(path))
    notes, config, deployed = folder.notes(), folder.config(), folder.deployed
    summary, rounds = folder.summary(), folder.rounds()
    finished = summary is not None and bool(rounds)
    if not finished and state == "finished":
        how = f"continue with '{folder.resume_command}', or watch it with --live"
        raise RunFolderError(f"{path}: the run is not finished; {how}")
    if summary is None or not finished:
        summary = {"epsilon": config.privacy.epsilon, **(notes.get("facts") or {})}
        summary |= {key: of for key, of in identity_of(config).items() if key not in summary}
    versions = {"bgtplanner": notes.get("version", "unknown"), **(notes.get("versions") or {})}
    examples = folder.read("examples.json") if finished and not deployed else None
    own = None
    with contextlib.suppress(ModelFileError):  # of a learner that publishes none, or damaged
        own = load_model(folder.path / MODEL).verdict() if finished else None
    run = _Run(summary, rounds, config, versions, deployed, examples, own)
    if finished:
        return _facts(run, verdict.verdict(run.summary), _PARTS)
    done, total = len(rounds), config.federation.rounds
    error = f", RMSE {rounds[-1][ERROR]:.4f} so far" if run.scored else ""
    begun = "Stopped after round" if state == "stopped" else "Round"
    said = [f"{begun} {done} of {total}{error}."]
    said += ["What is guaranteed is said when the run is done."] if run.private else []
    said += [f"Continue with: {folder.resume_command}"] if state == "stopped" else []
    return _facts(run, said, (_so_far, _spending, _origin), state)


def _facts(
    run: _Run, said: Sequence[str], parts: Sequence[Part], state: str = "finished"
) -> Facts:
    """Return what is said of a run, beside what it is and the parts that there are."""
    summary, how = run.summary, "no privacy"
    if summary["mechanism"] != "none":
        trust = summary.get("trust")
        how = summary["mechanism"] + (f", trust {_SEEN[trust]}" if trust in _SEEN else "")
    return Facts(
        state=state, headline=said[0], lead=said[1:],
        about=" · ".join([summary["dataset"], summary["model"], summary["policy"], how]),
        sections=[section for part in parts if (section := part(run)) is not None],
        progress=(len(run.rounds), run.config.federation.rounds),
    )  # fmt: skip


def _so_far(run: _Run) -> Section:
    return Section("How good it is so far", pictures=_by_round(run))


def _by_round(run: _Run) -> list[pictures.Picture]:
    """Draw every metric of ratings that is shown, by round."""
    found = []
    for name in [of for of, metric in shown(run.config.preset).items() if metric.sums]:
        values: list[Any] = [record.get(name) for record in run.rounds]
        if values and None not in values:
            total = run.config.federation.rounds
            found.append(pictures.quality(run.summary, name, values, total))
    return found


def _notes(run: _Run) -> Section | None:
    """Say what the planner has to say, and what came of the uploads of real machines."""
    note = run.summary.get("planner_note")
    came = verdict.error_beside(run.summary) if run.scored and "expects" in str(note) else ""
    came = came and f"; it came to {came}"
    planned, *more = str(note).partition(". ")
    said = [f"The planner {run.summary['policy']} {planned}{came}{''.join(more)}."] if note else []
    if run.deployed and run.rounds:
        total: Counter[str] = Counter()
        for record in run.rounds:
            total.update({name: record.get(name, 0) for name in ("asked", "refused", "late")})
            total.update(record.get("dropped_by_kind", {}))
        rest = "".join(f", {count:,} {name}" for name, count in total.items() if count)
        said.append(f"Uploads used: {sum(of['clients'] for of in run.rounds):,}{rest}.")
    if run.verdict is not None:
        said.append(f"The model's verdict, by its releases alone: {run.verdict}")
    return Section("", said) if said else None


def _compared(run: _Run) -> Section | None:
    """Show the error by round, and all scores beside those of simple predictors."""
    if not run.scored:
        return None
    note = _HOW_LISTS
    if run.config.preset == "paper":
        note += " For F1, a rating or prediction of at least 0.5 counts as positive."
    table = verdict.scores(run.summary)._replace(title="On the held-out ratings", note=note)
    heading = "How good it is, compared with simple predictors and lists"
    return Section(heading, verdict.about_scores(run.summary), _by_round(run), [table])


def _guarantee(run: _Run) -> Section:
    """Say what is guaranteed and what is not."""
    lines = guarantee(run.summary)
    if run.private:
        last = "This simulation protects no one, because its noise comes from a seed."
        if run.deployed:
            last = "Every client also has a ledger of its own, which has the final say."
        lines += ["The ledger enforces this: it refuses every charge that does not fit.", last]
    heading = "What is guaranteed, and what is not"
    return Section(heading, lines, promise=is_sound(run.summary))


def _lists(run: _Run) -> Section | None:
    """Show lists of a few users, and say why they are shown or not."""
    if run.deployed or not run.scored:
        return None
    heading, found = "What people would be shown", run.examples or {}
    if not found.get("lists"):
        said = (
            "The ratings are your own, so no one's list is shown here. bgtplanner recommend "
            "FOLDER --user LABEL prints one, and --set run.examples=3 puts a few on this page."
        )
        return Section(heading, [said]) if number_of_examples(run.config) == 0 else None
    tables, unit = [], verdict.unit_of(run.summary)
    for one in found["lists"]:
        rows = []
        for item in one["items"]:
            expected = "–" if item["predicted"] is None else f"{item['predicted']:.1f}"
            rows.append(("", [item["title"], expected, item["reason"] or ""]))
        tables.append(Table(f"User {one['user']}", ["title", "expected", "why"], rows))
    asked = run.config.run.examples is not None
    because = "run.examples asks for them" if asked else "everybody can get these data"
    about = (
        "Items that the user has not rated, best first, with the rating that the model expects"
        f"{f' ({unit})' if unit else ''} and the reason. Users are evenly spread over all labels "
        f"in their order, and are shown because {because}; run.examples=0 leaves them out."
    )
    return Section(heading, [*filter(None, [found.get("note")]), about], tables=tables)


def _who(run: _Run) -> Section | None:
    """Show which groups of clients gain, and which lose."""
    found = run.summary.get("gains") or {}
    every = [(by, group) for by in ("ratings", "budget") for group in found.get(by) or []]
    if not every:
        return None
    rows = []
    for by, of in every:
        gain = ["–", "–"]
        if of["gain"] is not None:
            gain = [f"{of['gain']:+.1%}", f"{of['low']:+.1%} to {of['high']:+.1%}"]
        errors = [verdict.on_the_scale(run.summary, of[key]) for key in ("rmse", "rmse_alone")]
        cells = [of["name"], f"{of['clients']:,}", *errors, *gain, f"{of['better']:.0%}"]
        rows.append((f"by {'number of ratings' if by == 'ratings' else by}", cells))
    sure = [of for _, of in every if of["gain"] is not None]
    lose = ", ".join(of["name"] for of in sure if of["high"] < 0)
    unsure = ", ".join(of["name"] for of in sure if of["low"] <= 0 <= of["high"])
    said = f"These groups lose: {lose}. " if lose else "No group clearly loses. "
    said += f"Whether these gain cannot be told: {unsure}. " if unsure else ""
    if verdict.nothing_learned(run.summary):
        said += "Nothing came from others: whatever is gained is each client's own doing. "
    table = Table(
        f"Error in the last round, {verdict.unit_of(run.summary) or 'RMSE'}, together and alone",
        ("clients with", "clients", "together", "alone", "gain", "95 %", "better off"),
        rows,
        f"{said}The gain is how far the error is below that of the same clients alone, with an "
        "interval over clients; better off are those with a lower error than alone. Groups of "
        f"fewer than {FEWEST} clients are left out, and bounds are rounded.",
    )
    return Section("Who gains and who loses", tables=[table])


def _spending(run: _Run) -> Section | None:
    """Show how much of the budget was spent by which round."""
    if not run.private:
        return None
    summary, drawn, total = run.summary, [], run.config.federation.rounds
    classes = [of["epsilon"] for of in summary.get("classes") or []]
    promise = classes or summary.get("class_epsilons") or [summary["epsilon"]]
    left = [record.get("left") or [] for record in run.rounds]
    if {len(share) for share in left} == {len(promise)}:
        drawn.append(pictures.spent(total, 1 - np.array(left), promise))
    return Section("How the budget was spent", pictures=drawn)


def _origin(run: _Run) -> Section:
    """Say what the data are, and how to run it again."""
    summary, said, took = run.summary, [], f"seed {run.summary['seed']}"
    users, ratings = (summary.get(name) for name in ("users", "ratings"))
    if summary.get("items") and summary.get("clients"):
        held = f"{ratings:,} ratings by {users:,} users on " if users and ratings else ""
        held += f"{summary['items']:,} items, held by {summary['clients']:,} clients."
        said = [f"{held} Privacy, if there is any, protects a whole client with all its users."]
    if "seconds_total" in summary:
        each = 1000 * summary["seconds_per_round"]
        took += f"; {summary['seconds_total']:.1f} s in total, {each:.1f} ms per round"
    said.append(f"{', '.join(f'{name} {of}' for name, of in run.versions.items())}; {took}.")
    said.append("All figures are in summary.json and rounds.jsonl, next to this page.")
    code = "bgtplanner run --config config.toml --out NEW_FOLDER"
    if run.deployed:
        said.append("To run it again, in the app folder, with another run folder as out:")
        code = "flwr run APP SUPERLINK"
    elif run.config.data.dataset not in DATASETS and path_of(run.config.data.dataset) is None:
        code += "  # its ratings were given in Python: bgtplanner.simulate(ratings)"
    heading = "The data, and how to reproduce it"
    return Section(heading, said, code=code, unfold=to_toml(run.config))


_PARTS = (_notes, _compared, _guarantee, _lists, _who, _spending, _origin)
