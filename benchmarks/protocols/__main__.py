"""Lists under the field's own protocols, beside popularity and EASE.

    python -m benchmarks.protocols strong --dataset ml-1m --epsilon 1,3,10,inf
    python -m benchmarks.protocols last-two --dataset ml-100k --epsilon 1,2,4,8,inf
    python -m benchmarks.protocols newcomers --dataset ml-100k,ml-1m --seeds 0,1,2,3,4
    python -m benchmarks.protocols speed --dataset ml-1m

`strong` is strong generalisation (Liang et al. 2018): of ratings of 4 and more, as clicks, a fifth
of the people who have five or more is held out; a model of the others makes lists from 80 % of
what each of them has, and the rest is to be found. `last-two`: of such clicks, each person's last
two are to be found among all items, by a model of the others. `newcomers`: how good are lists for
a fifth of the people, from 80 % of their stars, if these were trained with, and if not? What has
4 stars or more is to be found. `speed`: people a second for lists of ten of everybody, without and
with reasons, and how often a reason says what.

ml-100k and ml-1m are found as everywhere; for ml-10m and ml-20m, put GroupLens' files into the
folders `ml-10M100K` and `ml-20m` below --data-dir. Noise comes from a seed, so that figures can be
repeated; inf stands for an epsilon of 100,000. EASE (Steck 2019) is not private.
"""

from __future__ import annotations

import argparse
import collections
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bgtplanner import Model, Ratings, load_ratings, train
from bgtplanner.runs.recommending import histories_of
from bgtplanner.runs.statistics import estimate

_LIKED = 4.0
_PENALTY = {"ml-100k": 200.0, "ml-1m": 300.0, "ml-10m": 400.0, "ml-20m": 500.0}  # of EASE
_FILES = {
    "ml-10m": ("ml-10M100K", "ratings.dat", "movies.dat", {"delimiter": "::"}),
    "ml-20m": ("ml-20m", "ratings.csv", "movies.csv", {}),
}
_MOST = 1e5  # the largest epsilon there is
_AT_ONCE = 1000  # people whose scores are held in memory

Lists = Callable[[Ratings, int], Any]
"""Of a ranker: the best items of people with these histories, ``[people, top]``; -1: none."""


class Task(NamedTuple):
    """What to learn from, whose lists to make from what, and what they should have."""

    known: Ratings
    histories: Ratings
    wanted: Ratings


def loaded(name: str, data_dir: Path) -> Ratings:
    """Return MovieLens with one client for each person."""
    if name not in _FILES:
        return load_ratings("ml-1m-users" if name == "ml-1m" else name)
    folder, ratings, items, how = _FILES[name]
    at = data_dir / folder
    return load_ratings(f"csv:{at / ratings}", scale=(0, 5), items=at / items, **how)


def of_people(ratings: Ratings, people: Any) -> Ratings:
    """Return the ratings of some people, as if there were no others."""
    mine = ratings.take(np.isin(ratings.user, people))
    return replace(
        mine, user=np.searchsorted(people, mine.user).astype(np.int32),
        user_labels=ratings.user_labels[people],
        client_of_user=np.arange(len(people), dtype=np.int32),
    )  # fmt: skip


def clicks(ratings: Ratings, fewest: int) -> Ratings:
    """Return what was liked, without stars, of all who liked so many items or more."""
    found = ratings.take(liked(ratings))
    found = replace(found, value=np.ones_like(found.value), implicit=True, low=0.0, high=1.0)
    return of_people(found, np.flatnonzero(counts(found) >= fewest))


def liked(ratings: Ratings) -> Any:
    """Return which ratings are of 4 and more."""
    return ratings.to_raw(ratings.value) > _LIKED - 1e-3


def counts(ratings: Ratings) -> Any:
    """Return how many ratings everybody has."""
    return np.bincount(ratings.user, minlength=ratings.n_users)


def drawn(ratings: Ratings, share: float, generator: Any) -> Any:
    """Return a mask of about that share of everybody's ratings, at random."""
    order = np.lexsort((generator.random(len(ratings)), ratings.user))
    number, place = counts(ratings), np.empty(len(ratings), dtype=np.int64)
    place[order] = np.arange(len(ratings)) - np.repeat(np.cumsum(number) - number, number)
    return place < np.round(share * number)[ratings.user]


def held_out(ratings: Ratings, generator: Any) -> tuple[Any, Any]:
    """Return four fifths of the people, and the others."""
    mixed = generator.permutation(ratings.n_users)
    cut = ratings.n_users // 5
    return np.sort(mixed[cut:]), np.sort(mixed[:cut])


def strong(ratings: Ratings, generator: Any) -> dict[str, Task]:
    """Return the task of lists for people who were held out."""
    found = clicks(ratings, 5)
    others, people = (of_people(found, of) for of in held_out(found, generator))
    given = drawn(people, 0.8, generator)
    return {"": Task(others, people.take(given), people.take(~given))}


def last_two(ratings: Ratings, generator: Any) -> dict[str, Task]:
    """Return the task of what everybody liked last; equal times are in random order."""
    found = clicks(ratings, 3)
    when = np.zeros(len(found)) if found.time is None else found.time
    order = np.lexsort((generator.random(len(found)), when, found.user))
    wanted = np.zeros(len(found), dtype=bool)
    ends = np.cumsum(counts(found))
    wanted[order[np.r_[ends - 1, ends - 2]]] = True
    known = found.take(~wanted)
    return {"": Task(known, known, found.take(wanted))}


def newcomers(ratings: Ratings, generator: Any) -> dict[str, Task]:
    """Return the task of lists for a fifth of the people, trained with them and without."""
    staying, people = held_out(ratings, generator)
    mine = of_people(ratings, people)
    given = drawn(mine, 0.8, generator)
    wanted, new = mine.take(~given & liked(mine)), np.isin(ratings.user, people)
    hidden = np.zeros(len(ratings), dtype=bool)
    hidden[np.flatnonzero(new)[~given]] = True
    known = {"trained with": ratings.take(~hidden), "new": of_people(ratings, staying)}
    return {name: Task(of, mine.take(given), wanted) for name, of in known.items()}


TASKS = {"strong": strong, "last-two": last_two, "newcomers": newcomers}


def matrix(ratings: Ratings) -> Any:
    """Return who has which item, as a sparse matrix of ones."""
    ones, shape = np.ones(len(ratings), np.float32), (ratings.n_users, ratings.n_items)
    return sparse.csr_array((ones, (ratings.user, ratings.item)), shape=shape)


def by_scores(scored: Callable[[Any], Any]) -> Lists:
    """Return a ranker by scores of all items, which are computed from histories."""

    def lists(histories: Ratings, top: int) -> Any:
        every, found = matrix(histories), []
        for begin in range(0, every.shape[0], _AT_ONCE):
            some = every[begin : begin + _AT_ONCE]
            scores = np.where(some.toarray() > 0, -np.inf, scored(some))
            found.append(np.argsort(-scores, axis=1, kind="stable")[:, :top])
        return np.concatenate(found)

    return lists


def popularity(known: Ratings) -> Lists:
    """Return the ranker by how many people have an item."""
    number = np.bincount(known.item, minlength=known.n_items)
    return by_scores(lambda some: np.tile(number, (some.shape[0], 1)))


def ease(known: Ratings, penalty: float) -> Lists:
    """Return the ranker by the best linear weights of items from other items."""
    every = matrix(known)
    gram = (every.T @ every).toarray().astype(np.float64)
    gram[np.diag_indices_from(gram)] += penalty
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return by_scores(lambda some: some @ weights)


def trained(known: Ratings, epsilon: float, seed: int) -> Model:
    """Return our model, with all defaults of `train`."""
    return train(
        known, epsilon=min(epsilon, _MOST), seed=seed, ledger=None,
        assume_public=["catalogue", "scale"],
    )  # fmt: skip


def ours(model: Model) -> Lists:
    """Return the ranker by a model."""

    def lists(histories: Ratings, top: int) -> Any:
        place = {label: at for at, label in enumerate(model.items)}
        row = {label: at for at, label in enumerate(histories.user_labels.tolist())}
        found = np.full((len(row), top), -1)
        for user, lines in model.recommend_many(histories_of(histories), top=top, explain=False):
            found[row[user], : len(lines)] = [place[line.item] for line in lines]
        return found

    return lists


def figures(lists: Any, wanted: Ratings) -> dict[str, float]:
    """Return how good lists are, as means over people who have something to be found."""
    relevant, number = matrix(wanted), counts(wanted)
    hit = relevant[np.arange(len(lists))[:, None], lists] * (lists >= 0)
    lists, hit, number = lists[number > 0], hit[number > 0], number[number > 0]
    gain = 1.0 / np.log2(np.arange(lists.shape[1]) + 2.0)
    found = {}
    for at in (10, 100):
        ideal = np.cumsum(gain)[np.minimum(number, at) - 1]
        found[f"NDCG@{at}"] = float(((hit[:, :at] * gain[:at]).sum(axis=1) / ideal).mean())
    for at in (20, 50):
        found[f"Recall@{at}"] = float((hit[:, :at].sum(1) / np.minimum(number, at)).mean())
    return found


def measured(
    protocol: str, name: str, ratings: Ratings, epsilons: Sequence[float], seed: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of every ranker under a protocol with one seed."""
    for kind, task in TASKS[protocol](ratings, np.random.default_rng(seed)).items():
        rankers: dict[str, Callable[[], Lists]] = {}
        if protocol != "newcomers":
            rankers["popularity"] = lambda known=task.known: popularity(known)
            rankers["EASE"] = lambda known=task.known: ease(known, _PENALTY[name])
        for epsilon in epsilons:
            made = lambda known=task.known, e=epsilon: ours(trained(known, e, seed))  # noqa: E731
            rankers[f"ours, epsilon {epsilon:g} {kind}".strip()] = made
        for title, ranker in rankers.items():
            yield title, figures(ranker()(task.histories, 100), task.wanted)


def speed(name: str, ratings: Ratings, epsilon: float, seed: int) -> None:
    """Print how many people a second get a list, and what the reasons say."""
    model, frame = trained(ratings, epsilon, seed), histories_of(ratings)
    for explain in (False, True):
        begun = time.perf_counter(), time.process_time()
        lists = list(model.recommend_many(frame, explain=explain))
        wall, core = time.perf_counter() - begun[0], time.process_time() - begun[1]
        how = f"{len(lists) / wall:,.0f} people a second, {len(lists) / core:,.0f} on one core"
        print(f"{name}, {'with' if explain else 'without'} reasons: {how}")
    reasons = [str(row.reason).split(";")[0] for _, rows in lists for row in rows]
    kinds = collections.Counter(
        re.sub("^((because )?you \\w+|.*)(.*)$", r"\1", of) for of in reasons
    )
    print({kind: round(number / len(reasons), 3) for kind, number in kinds.most_common()})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a protocol and print the table of means over seeds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.protocols",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("protocol", choices=[*TASKS, "speed"])
    parser.add_argument("--dataset", default="ml-100k", help="one or several, with commas")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--epsilon", default="3", help="one or several, with commas; or inf")
    parser.add_argument("--seeds", default="0")
    given = parser.parse_args(arguments)
    epsilons, seeds = (
        [float(of) for of in text.split(",")] for text in (given.epsilon, given.seeds)
    )
    for name in given.dataset.split(","):
        ratings, table = loaded(name, given.data_dir), collections.defaultdict(list)
        for seed in map(int, seeds):
            if given.protocol == "speed":
                speed(name, ratings, epsilons[0], seed)
                continue
            for title, found in measured(given.protocol, name, ratings, epsilons, seed):
                table[title].append(found)
        for title, rows in table.items():
            means = {of: estimate([row[of] for row in rows]) for of in rows[0]}
            cells = [
                f"{mean.mean:.4f}" + (f" ± {mean.half:.4f}" if mean.half else "")
                for mean in means.values()
                if mean is not None
            ]
            if title == next(iter(table)):
                print(f"| {name} | {' | '.join(means)} |\n{'|---' * (len(means) + 1)}|")
            print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
