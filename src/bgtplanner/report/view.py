"""What the report shows of a run: the contents of its folder, and sentences about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import METRICS, shown
from bgtplanner.models.references import REFERENCES
from bgtplanner.report.course import Course, Curve
from bgtplanner.report.guarantee import guarantee, is_sound, not_covered
from bgtplanner.report.outcome import (
    error_in_words,
    gain_in_words,
    gained,
    is_served,
    lists_in_words,
    nothing_learned,
    on_the_scale,
    planned_key,
    unit_of,
    what_helps,
)
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.result import Result
from bgtplanner.runs.summary import (
    identity_of,
    not_accounted,
    promised,
    readings,
    summarise,
)

__all__ = ["RunView", "Tile", "read_run", "run_as_ended"]


class Tile(NamedTuple):
    """One of the key figures at the top of a page."""

    name: str
    value: str
    rest: str
    warn: bool = False


@dataclass(frozen=True, kw_only=True)
class RunView(Course):
    """A run, as read from its folder.

    Attributes:
        summary: The figures of ``summary.json``, or those of an unfinished run so far.
        rounds: One mapping per round.
        config: The settings.
        versions: Versions of the packages that it ran with.
        finished: Whether the run is done.
        deployed: Whether it runs on real machines, where no one may look at ratings.
        examples: Lists of a few users of a simulation, and a note on what they rest on.
    """

    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    config: Config
    versions: Mapping[str, str]
    finished: bool
    deployed: bool = False
    examples: Mapping[str, Any] | None = None

    @property
    def total(self) -> int:
        """How many rounds are planned."""
        return self.config.federation.rounds

    @property
    def participation(self) -> float:
        """Share of the clients that a round asks."""
        return self.config.federation.participation

    @property
    def curves(self) -> list[Curve]:
        """The metrics that are shown by round."""
        return [
            Curve(name, metric.label, metric.better, metric.unit)
            for name, metric in shown(self.config.preset).items()
            if metric.sums
        ]

    def epsilon(self) -> NDArray[np.float64] | None:
        """Epsilon spent after each round, ``[rounds, classes]``; None if it was not recorded."""
        accounting, delta = self.summary.get("accounting"), self.summary.get("delta")
        if accounting is None or delta is None:
            return None
        return readings(accounting, delta, self.rounds)

    def headline(self) -> str:
        """The result in one sentence."""
        summary = self.summary
        if not self.finished:
            now = f", RMSE {summary['rmse_final']:.4f} so far" if self.scored else ""
            return f"Round {len(self.rounds)} of {self.total}{now}."
        if not self.scored:
            return (
                f"{summary['clients']:,} clients learned together on their own machines. They did "
                "not report how good the model is: no budget was set aside for that."
            )
        if nothing_learned(summary):
            return "Nothing was learned from others."
        served, known, lists = is_served(summary), gained(summary), lists_in_words(summary)
        begun = f"Over {summary.get('rounds_run')} rounds of learning" if served else "Learning"
        begun = f"{begun} together, {summary['clients']:,} clients {'were' * served}".rstrip()
        if known is not None and known[1]:
            gain = gain_in_words(summary, "\N{NO-BREAK SPACE}")
            how = f"{'served' if served else 'end'} with an error {gain}"
            return f"{begun} {how} than each could reach alone ({self._both(*known)})."
        if lists is not None:
            return f"{begun} {'served' if served else 'get'} lists with {lists}."
        over = "as served over" if served else "after"
        rmse = summary[planned_key(summary)]
        return f"RMSE {rmse:.4f} {over} {summary['rounds_run']} rounds."

    def _both(self, together: float, alone: float) -> str:
        """Two errors, on the scale of the data if that is known."""
        if not (unit := unit_of(self.summary)):
            return f"RMSE {together:.4f} against {alone:.4f}"
        figures = [on_the_scale(self.summary, error, unit=False) for error in (together, alone)]
        return f"{figures[0]} instead of {figures[1]} {unit}"

    def lead(self) -> list[str]:
        """What has to be said right after the headline."""
        summary = self.summary
        if not (self.finished and self.scored):
            return []
        lists, known = lists_in_words(summary), gained(summary)
        if nothing_learned(summary):
            error = error_in_words(summary, summary[planned_key(summary)])
            said = f"Each client is served as if it were alone, with an error of {error}."
            note = summary.get("planner_note")
            why = [] if note is None else [f"The planner {summary['policy']} {note}."]
            return [said, *why, what_helps(summary)]
        if lists is None or known is None or not known[1]:
            return []
        return [f"Their lists {'had' if is_served(summary) else 'have'} {lists}."]

    def tiles(self) -> list[Tile]:
        """The result beside the references, what was spent, and what is guaranteed."""
        if not self.rounds:
            return []
        return [*self._outcome(), *self._promised()]

    def _outcome(self) -> list[Tile]:
        summary = self.summary
        if not self.scored:
            answers = self.answers()
            rest = " · ".join(f"{count:,} {name}" for name, count in answers.items() if count)
            return [Tile("Uploads used", f"{answers['used']:,}", rest)]
        tiles, known = [], gained(summary)
        for name, title in (("rmse", "Error"), ("ndcg_at_10", "Lists (NDCG@10)")):
            metric, planned = METRICS[name], planned_key(summary, name)
            value, last = summary.get(planned), f"{name}_final" if metric.sums else name
            if value is None or name not in shown(self.config.preset):
                continue
            raw = on_the_scale(summary, value) if metric.unit == "ratings" else None
            beside = [] if raw is None else [f"RMSE {metric.in_words(value)} on 0 to 1"]
            beside += ["mean over all rounds, as served"] if planned != last else []
            other = last if planned != last else f"{name}_served"
            if summary.get(other) is not None and self.config.preset != "paper":
                when = "in the last round" if other == last else "as served over all rounds"
                beside.append(f"{self._figure(name, summary[other])} {when}")
            if metric.sums and known is not None:
                beside.append(f"each client alone {self._figure(name, known[1])}")
            beside += [
                f"{label} {metric.in_words(theirs)}"
                for key, label in REFERENCES.items()
                if key in ("popularity", "random")
                and (theirs := summary.get(f"{name}_{key}")) is not None
                and not metric.sums
            ]
            worse = metric.sums and known is not None and known[0] > known[1] > 0
            worse = worse or nothing_learned(summary)
            title = f"{title} (RMSE)" if metric.sums and raw is None else title
            figure = raw or metric.in_words(value)
            tiles.append(Tile(title, figure, " · ".join(beside), warn=bool(worse)))
        better = (summary.get("gains") or {}).get("better")
        if better is not None and not nothing_learned(summary):
            rest = "of the clients have a lower error than alone, in the last round"
            tiles.append(Tile("Better off", f"{100 * better:.0f} %", rest, better < 0.5))
        return tiles

    def _figure(self, name: str, value: float) -> str:
        metric = METRICS[name]
        raw = on_the_scale(self.summary, value) if metric.unit == "ratings" else None
        return raw or metric.in_words(value)

    def _promised(self) -> list[Tile]:
        summary = self.summary
        if not self.private:
            return [Tile("Guaranteed", "nothing", "no clipping, no noise", warn=True)]
        spent = summary.get("epsilon_spent_max")
        said = "–" if spent is None else f"ε {spent:.3g}"
        rounds = f"in {summary['rounds_paid']} of {summary['rounds_run']} rounds"
        tile = Tile("Spent at most", said, f"of {summary['epsilon']:g}, {rounds}")
        if is_sound(summary):
            value = f"ε {summary['epsilon']:g}"
            given = ["the noise were secret"] if summary.get("simulated_noise", True) else []
            if summary["not_accounted"]:
                given.append(f"{' and '.join(summary['not_accounted'])} were public")
            rest = f"if {' and '.join(given)}" if given else "over the whole run"
            about = f" ({of})" if (of := summary.get("neighbours")) else ""
            rest = f"at δ {summary['delta']:g}, to each whole client{about}, {rest}"
            return [tile, Tile("Guaranteed", value, rest)]
        rest = "see below what is not covered"
        if summary["not_accounted"]:
            value = "no finite ε"
        elif not self.finished:
            value = "less than stated"
        else:
            value = f"ε {summary['epsilon_client_level']:.3g}"
            rest = "at δ 1e-5, to a whole client"
        return [tile, Tile("Guaranteed", value, rest, warn=True)]

    def answers(self) -> dict[str, int]:
        """How many uploads were asked for, used, refused, dropped or late, over all rounds."""
        total: Counter[str] = Counter()
        for record in self.rounds:
            for name, key in (("asked", "asked"), ("used", "clients"), ("refused", "refused")):
                total[name] += record.get(key, 0)
            total.update(record.get("dropped_by_kind", {}))
            total["late"] += record.get("late", 0)
        return dict(total)

    def promises(self) -> list[str]:
        """Sentences on what is guaranteed and what is not; none before the first round."""
        if not self.rounds:
            return []
        summary = self.summary
        if self.finished or is_sound(summary) or not self.private:
            return guarantee(summary)
        said = "What this setting means for a whole client is said when the run is done."
        return [said, *not_covered(summary)]


def read_run(path: Path | str, *, unfinished: bool = False) -> RunView:
    """Read a run folder, without locking or changing anything in it.

    Args:
        path: The run folder.
        unfinished: Whether the run may be unfinished.

    Raises:
        RunFolderError: If it is not a run folder, or holds no finished run.
    """
    folder = RunFolder(Path(path))
    notes, config, deployed = folder.notes(), folder.config(), folder.deployed
    summary, rounds = folder.summary(whole=True), folder.rounds(whole=True)
    finished = summary is not None and bool(rounds)
    if not finished and not unfinished:
        raise RunFolderError(
            f"{path}: the run is not finished; continue with '{folder.resume_command}', or watch "
            "it with --live"
        )
    if summary is None or not rounds:
        summary = _so_far(config, notes.get("facts") or {}, rounds, deployed)
    return RunView(
        summary=summary,
        rounds=rounds,
        config=config,
        versions={"bgtplanner": notes.get("version", "unknown"), **(notes.get("versions") or {})},
        finished=finished,
        deployed=deployed,
        examples=folder.examples() if finished and not deployed else None,
    )


def run_as_ended(result: Result) -> RunView:
    """What is known of a run without its folder; of one that is not finished, no rounds."""
    finished = result.unfinished is None
    return RunView(
        summary=result.summary,
        rounds=result.rounds if finished else [],
        config=result.config,
        versions={},
        finished=finished,
    )


def _so_far(
    config: Config,
    facts: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    deployed: bool,
) -> dict[str, Any]:
    """The summary of an unfinished run, as far as its folder has it."""
    identity, privacy = identity_of(config), config.privacy
    known = {
        "not_accounted": not_accounted(config, ("scale", "catalogue") if deployed else ()),
        "simulated_noise": not deployed and privacy.mechanism != "none",
        **identity,
        **facts,
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
