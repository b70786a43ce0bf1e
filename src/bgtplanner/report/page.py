"""A run as one self-contained page that opens anywhere, online or not."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bgtplanner.errors import RunFolderError
from bgtplanner.experiments.store import RunFolder
from bgtplanner.report.figures import error_curve, score_curve, spending_curve
from bgtplanner.report.guarantee import guarantee

__all__ = ["write_report"]

_NEEDED = {
    *("clients", "dataset", "items", "model", "preset", "ratings", "rounds_run", "seed", "users"),
    *("f1_best", "f1_client_alone", "f1_constant", "f1_final", "f1_user_mean"),
    *("rmse_best", "rmse_client_alone", "rmse_constant", "rmse_final", "rmse_user_mean"),
    *("seconds_per_round", "seconds_total"),
}


def write_report(path: Path | str) -> Path:
    """Write ``report.html`` into a run folder and return where it is.

    Raises:
        RunFolderError: If the folder holds no finished run.
    """
    folder = RunFolder(Path(path))
    folder.notes()
    summary = folder.summary()
    rounds = folder.rounds()
    if summary is None or not rounds:
        raise RunFolderError(
            f"{path}: the run is not finished; go on with 'bgtplanner resume {path}'"
        )
    environment = Environment(
        loader=PackageLoader("bgtplanner.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    missing = sorted(_NEEDED - summary.keys())
    if missing:
        raise RunFolderError(f"{path}/summary.json: has no {', '.join(missing)}; run it anew")
    alone = summary["rmse_client_alone"]
    scored = summary["rmse_final"] is not None  # on real machines nobody may look at ratings
    gain = 1 - summary["rmse_final"] / alone if alone else 0.0
    curves = {"error_curve": "", "score_curve": ""}
    if scored:
        curves["error_curve"] = Markup(error_curve(rounds, summary))  # noqa: S704 - drawn here
        curves["score_curve"] = Markup(score_curve(rounds, summary))  # noqa: S704
    page = environment.get_template("run.html.j2").render(
        summary=summary,
        gain=gain,
        scored=scored,
        deployed=folder.deployed,
        answers=_answers(rounds) if folder.deployed else {},
        rows=_rows(summary) if scored else [],
        guarantee=guarantee(summary),
        sound=summary.get("unit") == "client" and not summary.get("not_accounted"),
        spending=_spending(rounds),
        **curves,
        config=(folder.path / "config.toml").read_text(encoding="utf-8"),
        versions=_versions(),
    )
    return folder.write_report(page)


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, float, float, bool]]:
    rows = [
        ("one constant for all", summary["rmse_constant"], summary["f1_constant"], False),
        ("each user's own mean", summary["rmse_user_mean"], summary["f1_user_mean"], False),
        ("each client alone", summary["rmse_client_alone"], summary["f1_client_alone"], False),
        (f"{summary['model']}, last round", summary["rmse_final"], summary["f1_final"], True),
    ]
    if summary["preset"] == "paper":
        best = "best round on the test set, as the paper reports"
        rows.append((best, summary["rmse_best"], summary["f1_best"], False))
    return rows


def _answers(rounds: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What clients answered on real machines, over all rounds."""
    total: Counter[str] = Counter()
    for record in rounds:
        for name, key in (("asked", "asked"), ("used", "clients"), ("refused", "refused")):
            total[name] += record.get(key, 0)
        total.update(record.get("dropped_by_kind", {}))
        total["late"] += record.get("late", 0)
    return dict(total)


def _spending(rounds: Sequence[Mapping[str, Any]]) -> Markup | None:
    """How the budget went, where there was one."""
    if not any(record.get("charge") for record in rounds):
        return None
    return Markup(spending_curve(rounds))  # noqa: S704 - drawn here, not input


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version()}
    for name in ("bgtplanner", "jax", "numpy", "optax", "scipy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
