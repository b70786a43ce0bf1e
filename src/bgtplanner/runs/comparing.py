"""Compare policies over data sets, mechanisms and seeds, from Python."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgtplanner.arguments import as_path, as_settings, as_whole, refuse_unless
from bgtplanner.data.ratings import Ratings
from bgtplanner.models.learner import Learner
from bgtplanner.planning.policy import Policy
from bgtplanner.runs.cells import Objects
from bgtplanner.runs.execute import StudyObserver, run_study
from bgtplanner.runs.run import RATINGS, model_given, policy_named
from bgtplanner.runs.statistics import Comparison, summed_up
from bgtplanner.runs.study import Study, default_policies

__all__ = ["compare"]


def compare(
    ratings: Ratings | str | Iterable[Ratings | str] = "demo",
    policies: type[Policy] | str | Iterable[type[Policy] | str] | None = None,
    *,
    model: Learner | str | None = None,
    mechanisms: str | Iterable[str] = "gaussian",
    seeds: int | Iterable[int] = range(5),
    preset: str = "recommended",
    epsilon: float | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    backend: str = "loky",
    observer: StudyObserver | None = None,
) -> Comparison:
    """Run every policy on every data set, with every mechanism and seed, and compare them.

    A cell that fails is listed in `failed` of the result, and does not stop the others.

    Args:
        ratings: Ratings, or the name of a data set or ``csv:PATH``; one or several.
        policies: Names, ``package.module:Class`` or classes of policies, one or several; by
            default that of a run, and others that it is usually compared with.
        model: The model of all runs, as in :func:`simulate`.
        mechanisms: Names such as ``gaussian`` and ``laplace``; ``unlimited`` runs once, without.
        seeds: Seeds of the split and of everything that is drawn at random.
        preset: ``recommended`` or ``paper``.
        epsilon: Budget of each client over the whole run.
        rounds: How many rounds each run has.
        settings: Any other config keys, such as ``{"server.learning_rate": 0.02}``.
        baseline: The policy that the others are compared with.
        out: Folder for the runs and tables. Called again with the same folder, it runs only
            what is not finished. By default nothing is kept.
        jobs: How many cells to run at a time.
        backend: ``loky`` for processes on this machine; ``ray`` or ``dask`` for a cluster.
        observer: Is told about every cell.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.

    Example:
        >>> found = compare("demo", "unlimited", seeds=0, rounds=2)
        >>> found.rows[0].policy, found.rows[0].figures["rmse_final"].seeds
        ('unlimited', 1)
    """
    own, model_of_all = model_given(model)
    single = {"privacy.epsilon": epsilon, "federation.rounds": rounds}
    own |= as_settings(settings) | {key: of for key, of in single.items() if of is not None}
    fits = observer is None or all(hasattr(observer, of) for of in ("study_started", "cell_round"))
    refuse_unless(fits, "observer", observer, "an object that inherits from StudyObserver")
    every = _several("ratings", ratings, Ratings | str, RATINGS)
    named = [one.name if isinstance(one, Ratings) else one for one in every]
    names = {one.name: one for one in every if isinstance(one, Ratings)}
    for name in names:
        expected = "a name of their own for each: Ratings.from_arrays(..., name=...)"
        refuse_unless(named.count(name) == 1, "ratings", name, expected)
    kind = "names or classes of policies; an object can plan a single run only"
    chosen = () if policies is None else _several("policies", policies, type | str, kind)
    study = Study(
        datasets=tuple(named),
        mechanisms=_several("mechanisms", mechanisms, str, "names of mechanisms"),
        policies=default_policies(preset, own)
        if policies is None
        else tuple(str(policy_named(policy)) for policy in chosen),
        seeds=tuple(as_whole("seeds", seed, 0) for seed in _several("seeds", seeds, object, "")),
        preset=preset,
        settings=own,
        baseline=baseline,
        given=tuple(names),
    )
    classes = tuple(policy for policy in chosen if isinstance(policy, type))
    objects = Objects(ratings=names, given=model_of_all, policies=classes)
    with contextlib.ExitStack() as stack:
        kept = None if out is None else as_path("out", out)
        place = kept or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bgtplanner-"))
        )
        done = run_study(
            study,
            place,
            jobs=jobs,
            backend=backend,
            observer=observer,
            objects=objects,
        )
        found = replace(summed_up(study, done), folder=kept)
        from bgtplanner.report.study import write_files  # a result shows itself, as in a notebook

        write_files(found, place)
    return found


def _several(name: str, given: Any, kind: Any, expected: str) -> tuple[Any, ...]:
    """What was given as one or as several, after checking that each is of its kind."""
    one = isinstance(given, Ratings | str | type) or not isinstance(given, Iterable)
    found = (given,) if one else tuple(given)
    for entry in found:
        refuse_unless(isinstance(entry, kind), name, entry, expected)
    return found
