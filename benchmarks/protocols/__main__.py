"""Lists under the field's own protocols, beside popularity and EASE, which is not private.

    python -m benchmarks.protocols strong --dataset ml-1m --epsilon 1,3,10,inf
    python -m benchmarks.protocols last-two --dataset ml-100k --epsilon 1,2,4,8,inf
    python -m benchmarks.protocols newcomers --dataset ml-100k,ml-1m --seeds 0,1,2,3,4
    python -m benchmarks.protocols speed --dataset ml-1m

`strong` is strong generalisation (Liang et al. 2018): of ratings of 4 and more, as clicks, a fifth
of the people who have five or more is held out; a model of the others makes lists from 80 % of
what each of them has, and the rest is to be found. `last-two`: of such clicks, each person's last
two are to be found among all items, by a model of the others. `newcomers`: how good are lists for
a fifth of the people, from 80 % of their stars, if these were trained with, and if not? What has
4 stars or more is to be found. `speed`: lists of ten for everybody, and what their reasons say.

For ml-10m and ml-20m, put GroupLens' files into the folders `ml-10M100K` and `ml-20m` below
--data-dir. Noise comes from a seed, so that figures can be repeated; inf is an epsilon of 100,000.
"""

from __future__ import annotations

import argparse
import collections
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from benchmarks.results.tables import spread
from bgtplanner import Model, Ratings, load_ratings, train
from bgtplanner.runs.statistics import estimate

_PENALTY = {"ml-100k": 200.0, "ml-1m": 300.0, "ml-10m": 400.0, "ml-20m": 500.0}  # of EASE
_FILES = {
    "ml-10m": ("ml-10M100K/ratings.dat", "ml-10M100K/movies.dat", {"delimiter": "::"}),
    "ml-20m": ("ml-20m/ratings.csv", "ml-20m/movies.csv", {}),
}


class Task(NamedTuple):
    """What to learn from, whose lists to make from what, and what they should have."""

    known: Ratings
    histories: Ratings
    wanted: Ratings


def loaded(name: str, data_dir: Path) -> Ratings:
    """Return MovieLens with one client for each person."""
    if name not in _FILES:
        return load_ratings("ml-1m-users" if name == "ml-1m" else name)
    ratings, items, how = _FILES[name]
    return load_ratings(f"csv:{data_dir / ratings}", scale=(0, 5), items=data_dir / items, **how)


def of_people(ratings: Ratings, people: Any) -> Ratings:
    """Return the ratings of some people, as if there were no others."""
    mine, number = ratings.take(np.isin(ratings.user, people)), len(people)
    user, client = np.searchsorted(people, mine.user), np.arange(number, dtype=np.int32)
    labels = ratings.user_labels[people]
    return replace(mine, user=user.astype(np.int32), user_labels=labels, client_of_user=client)


def counts(ratings: Ratings) -> Any:
    """Return how many ratings everybody has."""
    return np.bincount(ratings.user, minlength=ratings.n_users)


def liked(ratings: Ratings) -> Any:
    """Return which ratings are of 4 and more."""
    return ratings.to_raw(ratings.value) > 4.0 - 1e-3


def clicks(ratings: Ratings, fewest: int) -> Ratings:
    """Return what was liked, without stars, of all who liked so many items or more."""
    found = ratings.take(liked(ratings))
    found = replace(found, value=np.ones_like(found.value), implicit=True, low=0.0, high=1.0)
    return of_people(found, np.flatnonzero(counts(found) >= fewest))


def from_the_end(ratings: Ratings, *order: Any) -> Any:
    """Return the place of each rating among its person's, 0 for the last in some order."""
    ends, place = np.cumsum(counts(ratings)), np.empty(len(ratings), dtype=np.int64)
    rows = np.lexsort((*order, ratings.user))
    place[rows] = ends[ratings.user[rows]] - np.arange(len(rows)) - 1
    return place


def divided(ratings: Ratings, generator: Any) -> tuple[Any, Any, Any]:
    """Return four fifths of the people, the others, and a mask of 80 % of their ratings."""
    people = generator.permutation(ratings.n_users)
    cut = len(people) // 5
    others, held = np.sort(people[cut:]), np.sort(people[:cut])
    mine = of_people(ratings, held)
    place = from_the_end(mine, generator.random(len(mine)))
    return others, held, place >= np.round(0.2 * counts(mine))[mine.user]


def strong(ratings: Ratings, generator: Any) -> dict[str, Task]:
    """Return the task of lists for people who were held out."""
    found = clicks(ratings, 5)
    others, held, given = divided(found, generator)
    mine = of_people(found, held)
    return {"": Task(of_people(found, others), mine.take(given), mine.take(~given))}


def last_two(ratings: Ratings, generator: Any) -> dict[str, Task]:
    """Return the task of what everybody liked last; equal times are in random order."""
    found = clicks(ratings, 3)
    when = np.zeros(len(found)) if found.time is None else found.time
    wanted = from_the_end(found, generator.random(len(found)), when) < 2
    return {"": Task(found.take(~wanted), found.take(~wanted), found.take(wanted))}


def newcomers(ratings: Ratings, generator: Any) -> dict[str, Task]:
    """Return the task of lists for a fifth of the people, trained with them and without."""
    others, held, given = divided(ratings, generator)
    mine, kept = of_people(ratings, held), np.ones(len(ratings), dtype=bool)
    kept[np.flatnonzero(np.isin(ratings.user, held))[~given]] = False
    known = {" trained with": ratings.take(kept), " new": of_people(ratings, others)}
    wanted = mine.take(~given & liked(mine))
    return {name: Task(of, mine.take(given), wanted) for name, of in known.items()}


TASKS = {"strong": strong, "last-two": last_two, "newcomers": newcomers}


def frame_of(ratings: Ratings) -> dict[str, Any]:
    """Return ratings as a table for a model's lists."""
    frame = {"user": ratings.user_labels[ratings.user], "item": ratings.item_labels[ratings.item]}
    return frame if ratings.implicit else frame | {"rating": ratings.to_raw(ratings.value)}


def matrix(ratings: Ratings) -> Any:
    """Return who has which item, as a sparse matrix of ones."""
    ones, shape = np.ones(len(ratings), np.float32), (ratings.n_users, ratings.n_items)
    return sparse.csr_array((ones, (ratings.user, ratings.item)), shape=shape)


def by_scores(histories: Ratings, scored: Callable[[Any], Any], top: int) -> Any:
    """Return everybody's best items, ``[people, top]``, without those of the history."""
    every, found = matrix(histories), []
    for begin in range(0, every.shape[0], 1000):
        some = every[begin : begin + 1000]
        scores = np.where(some.toarray() > 0, -np.inf, scored(some))
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, :top])
    return np.concatenate(found)


def popularity(known: Ratings) -> Callable[[Any], Any]:
    """Return what scores items by how many people have them."""
    number = np.bincount(known.item, minlength=known.n_items)
    return lambda some: np.tile(number, (some.shape[0], 1))


def ease(known: Ratings, penalty: float) -> Callable[[Any], Any]:
    """Return what scores items by the best linear weights of all others (Steck 2019)."""
    every = matrix(known)
    gram = (every.T @ every).toarray().astype(np.float64)
    gram[np.diag_indices_from(gram)] += penalty
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return lambda some: some @ weights


def trained(known: Ratings, epsilon: float, seed: int) -> Model:
    """Return our model, with all defaults of `train`."""
    public: Any = ["catalogue", "scale"]
    return train(known, epsilon=min(epsilon, 1e5), seed=seed, ledger=None, assume_public=public)


def ours(histories: Ratings, model: Model, top: int) -> Any:
    """Return the same as `by_scores`, from our model; -1 where a list has no more items."""
    place = {label: at for at, label in enumerate(model.items)}
    row = {label: at for at, label in enumerate(histories.user_labels.tolist())}
    found = np.full((len(row), top), -1)
    for user, lines in model.recommend_many(frame_of(histories), top=top, explain=False):
        found[row[user], : len(lines)] = [place[line.item] for line in lines]
    return found


def figures(lists: Any, wanted: Ratings) -> dict[str, float]:
    """Return how good lists are, as means over people who have something to be found."""
    number = counts(wanted)
    hit = matrix(wanted)[np.arange(len(lists))[:, None], lists] * (lists >= 0)
    hit, number = hit[number > 0], number[number > 0]
    gain, found = 1.0 / np.log2(np.arange(lists.shape[1]) + 2.0), {}
    for at in (10, 100):
        ideal = np.cumsum(gain)[np.minimum(number, at) - 1]
        found[f"NDCG@{at}"] = float(((hit[:, :at] * gain[:at]).sum(axis=1) / ideal).mean())
    for at in (20, 50):
        found[f"Recall@{at}"] = float((hit[:, :at].sum(1) / np.minimum(number, at)).mean())
    return found


def measured(
    given: argparse.Namespace, name: str, ratings: Ratings, seed: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of every ranker under a protocol with one seed."""
    for kind, task in TASKS[given.protocol](ratings, np.random.default_rng(seed)).items():
        if not kind:
            others = popularity(task.known), ease(task.known, _PENALTY[name])
            for title, scored in zip(("popularity", "EASE"), others, strict=True):
                yield title, figures(by_scores(task.histories, scored, 100), task.wanted)
        for epsilon in map(float, given.epsilon.split(",")):
            lists = ours(task.histories, trained(task.known, epsilon, seed), 100)
            yield f"ours, epsilon {epsilon:g}{kind}", figures(lists, task.wanted)


def speed(model: Model, frame: Any) -> None:
    """Print how many people get a list in a second, and how often reasons begin with what."""
    for explain in (False, True):
        begun = time.process_time()
        lists = list(model.recommend_many(frame, explain=explain))
        print(f"{len(lists) / (time.process_time() - begun):,.0f} a core's second, {explain=}")
    said = collections.Counter(str(row.reason)[:11] for _, rows in lists for row in rows)
    print({words: f"{of / said.total():.1%}" for words, of in said.most_common(8)})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a protocol and print the table of means over seeds."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("protocol", choices=[*TASKS, "speed"])
    parser.add_argument("--dataset", default="ml-100k", help="one or several, with commas")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--epsilon", default="3", help="one or several, with commas; or inf")
    parser.add_argument("--seeds", default="0")
    given = parser.parse_args(arguments)
    for name in given.dataset.split(","):
        ratings, table = loaded(name, given.data_dir), collections.defaultdict(list)
        if given.protocol == "speed":
            speed(trained(ratings, float(given.epsilon), 0), frame_of(ratings))
        for seed in map(int, given.seeds.split(",")) if given.protocol in TASKS else ():
            for title, found in measured(given, name, ratings, seed):
                table[title].append(found)
        for title, rows in table.items():
            if title == next(iter(table)):
                print(f"| {name} | {' | '.join(rows[0])} |\n{'|---' * (len(rows[0]) + 1)}|")
            cells = [spread(estimate([row[of] for row in rows])) for of in rows[0]]
            print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
