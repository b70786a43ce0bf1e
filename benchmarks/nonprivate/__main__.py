"""What privacy costs: standard models of LensKit and Surprise, which see all ratings in the clear.

    python -m benchmarks.nonprivate --dataset ml-100k --seeds 0,1,2,3,4 --out build/nonprivate.json

They are trained and tested on the splits that a run with the same seed has. What has been measured
is kept in the file and not measured again, unless a metric was added since. Tables of all of it
are written beside it, as Markdown. Both libraries go into an environment of their own, together
with this package:

    pip install 'bgtplanner[sim]' lenskit scikit-surprise

If one of them cannot be imported, its models are left out.

Where a model has several settings, they are compared on a fifth of each user's training ratings,
for 400 users at most, by RMSE if it predicts ratings and by NDCG@10 if it ranks; it is then
trained on all training ratings with the best of them. The test ratings decide nothing. Models that
rank learn from all training ratings or only from those that are liked, which is one of their
settings.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.nonprivate.lenskit_models import lenskit_metrics
from benchmarks.nonprivate.measure import METRICS, measure, relevant_items, top_lists
from benchmarks.nonprivate.models import MODELS, Model, Options
from bgtplanner.data.datasets import dataset_info, load_ratings
from bgtplanner.data.split import Split, split_ratings
from bgtplanner.errors import BGTPlannerError

DATASETS = {"ml-100k": "ML-100K", "ml-1m-users": "ML-1M, 6,040 users", "filmtrust": "FilmTrust"}
ASIDE = 0.2
"""Share of the training ratings on which settings are compared."""
COMPARED = 400
"""How many users they are compared on, at most."""
PACKAGES = {"LensKit": "lenskit", "Surprise": "scikit-surprise"}


@lru_cache(maxsize=1)
def split_of(dataset: str, seed: int) -> Split:
    """Return the split that a run of bgtplanner with this seed has."""
    return split_ratings(
        load_ratings(dataset),
        seed=seed,
        rounds=1,
        train_share=0.8,
        within=dataset_info(dataset).split_within,
        initial_share=1.0,
    )


def choose(model: Model, split: Split, seed: int, bounds: tuple[float, float]) -> Options:
    """Return the options that do best on a part of the training ratings."""
    every = model.options()
    if len(every) == 1:
        return every[0]
    kept, aside = split.set_aside(ASIDE, seed=seed)
    some = np.unique(aside.train.user)
    users = np.random.default_rng([seed, 0xC0]).permutation(some)[:COMPARED].astype(np.int64)
    held_out = aside.train.take(np.isin(aside.train.user, users))

    def loss(options: Options) -> float:
        fitted = model.train(kept.train, options, seed, users)
        found = measure(fitted, kept.train, held_out, bounds)
        value = found["rmse"] if model.task == "ratings" else found["ndcg_at_10"]
        assert value is not None
        return value if model.task == "ratings" else -value

    return min(every, key=loss)


def run(name: str, dataset: str, seed: int, options: Options | None = None) -> dict[str, Any]:
    """Train a model, with options that are chosen or given, and return what came of it."""
    started, model, split = time.monotonic(), MODELS[name], split_of(dataset, seed)
    bounds = dataset_info(dataset).raw_range or (split.train.low, split.train.high)
    options = choose(model, split, seed, bounds) if options is None else options
    fitted = model.train(split.train, options, seed, np.arange(split.train.n_users))
    found: dict[str, Any] = {"options": options}
    found |= measure(fitted, split.train, split.test, bounds)
    if name.startswith("LensKit"):
        lists = top_lists(fitted.scores, split.train)
        theirs = lenskit_metrics(lists, relevant_items(split.test))
        ours = found["ndcg_at_10"], found["recall_at_10"]
        if not np.allclose(theirs, ours, rtol=0, atol=1e-6):
            raise SystemExit(f"{name}: NDCG and recall are {theirs} by LensKit, {ours} by us")
    return found | {"seconds": round(time.monotonic() - started, 1)}


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of all data sets that have results, and of the settings."""
    from benchmarks.paper.table import short, table
    from bgtplanner.runs.statistics import estimate

    def cell(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
        found = estimate([row[metric] for row in rows if row.get(metric) is not None])
        if found is None:
            return "–"
        digits = 3 if metric == "rmse_stars" else 4
        half = "" if found.half is None else f" ± {short(found.half, digits)}"
        return short(found.mean, digits) + half

    versions = " and ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts = [f"Models without any privacy, of {versions}; mean ± half the 95 % interval."]
    for dataset, title in DATASETS.items():
        measured = results["datasets"].get(dataset, {})
        rows = [["model", "made for", "RMSE", "in stars", "NDCG@10", "recall@10", "seeds"]]
        for name, model in MODELS.items():
            if found := [*measured.get(name, {}).values()]:
                cells = [cell(found, metric) for metric in METRICS]
                rows.append([name, model.task, *cells, str(len(found))])
        if len(rows) > 1:
            parts += [f"{title}:", table(rows)]
    chosen = {DATASETS[name]: found for name, found in results["datasets"].items()}
    rows = [["model", "fixed", "compared", *chosen]]
    for name, model in MODELS.items():
        compared = [f"{key} {_listed(values)}" for key, values in model.settings.items()]
        fixed = [f"{key} {_listed([value])}" for key, value in model.fixed.items()]
        counts = [_counted(found.get(name, {}).values()) for found in chosen.values()]
        rows.append([name, _joined(fixed), _joined(compared), *counts])
    parts += ["The settings, and in how many seeds each was chosen:", table(rows)]
    return "\n\n".join(parts)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(_worded(value) for value in values)


def _worded(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({', '.join(f'{key} {_worded(one)}' for key, one in value.items())})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joined(words: Iterable[str]) -> str:
    return "; ".join(words) or "–"


def _counted(rows: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter(
        _listed(row["options"].values())
        + (f", as on {DATASETS[row['like']]}" if "like" in row else "")
        for row in rows
        if row["options"]
    )
    return _joined(f"{words} ({count})" for words, count in counts.most_common())


def _versions() -> dict[str, str]:
    found = {}
    for library, package in PACKAGES.items():
        try:
            importlib.import_module(library.lower())
        except ImportError as error:
            print(f"{package} is left out: {error}", file=sys.stderr)
        else:
            found[package] = importlib.metadata.version(package)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nonprivate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="ml-100k", choices=DATASETS, help="%(default)s")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="default %(default)s")
    parser.add_argument(
        "--like", choices=DATASETS, help="choose nothing: take what was chosen most often there"
    )
    parser.add_argument("--models", help="only those whose names contain one of these words")
    parser.add_argument("--out", type=Path, default=Path("build/nonprivate.json"))
    given = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+(,\d+)*", given.seeds, re.ASCII):
        parser.error(f"--seeds {given.seeds}: expected whole numbers with commas, such as 0,1,2")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    words = given.models.split(",") if given.models else [""]
    versions = _versions()
    libraries = tuple(library for library, package in PACKAGES.items() if package in versions)
    names = [
        name
        for name, model in MODELS.items()
        if name.startswith(libraries)
        and any(word.lower() in name.lower() for word in words)
        and (not model.only or given.dataset in model.only)
    ]
    results = {"versions": {}, "datasets": {}}
    if given.out.exists():
        results = json.loads(given.out.read_text(encoding="utf-8"))
    results["versions"] |= versions
    measured = results["datasets"].setdefault(given.dataset, {})
    for seed, name in itertools.product(seeds, names):
        rows = measured.setdefault(name, {})
        before = rows.get(str(seed), {})
        if before.keys() >= set(METRICS):
            continue
        options = before.get("options")
        if given.like:
            chosen = results["datasets"].get(given.like, {}).get(name, {})
            if not chosen:
                print(f"--like {given.like}: {name} was not measured there", file=sys.stderr)
                return 2
            texts = Counter(json.dumps(row["options"]) for row in chosen.values())
            options = json.loads(texts.most_common(1)[0][0])
        try:
            rows[str(seed)] = run(name, given.dataset, seed, options)
        except BGTPlannerError as error:
            print(error, file=sys.stderr)
            return 2
        if given.like:
            rows[str(seed)]["like"] = given.like
        print(f"{given.dataset}, seed {seed}, {name}: {rows[str(seed)]}", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(markdown(results) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
