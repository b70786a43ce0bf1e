"""People a second who get a list of ten, by ours, implicit and LensKit, from the same scores.

    python -m benchmarks.speed.lists MODEL RATINGS [THREADS]

MODEL is of clicks: scores are products of vectors, which ours solves and the others are given.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from lenskit.als import ImplicitMFScorer
from lenskit.batch import recommend
from lenskit.data import Vocabulary, from_interactions_df
from lenskit.pipeline import topn_pipeline
from pandas import DataFrame
from scipy.sparse import csr_matrix

from bgtplanner import load_model, load_ratings


class Ready(ImplicitMFScorer):
    def train(self, *_: Any, **__: Any) -> None:
        self.users, self.items = (Vocabulary(np.arange(len(of))) for of in self.ready)
        self.user_embeddings, self.item_embeddings = self.ready


def main(file: str, ratings: str, threads: str = "1") -> None:
    """Print people a second in the best of three turns, and how many items are as on ours."""
    model, held, number = load_model(file), load_ratings(ratings), int(threads)
    frame = {"user": held.user, "item": held.item_labels[held.item]}
    ranker, people = model._ranker, model._histories(frame)[1]
    weights = float(ranker.settings["boldness"]) * ranker._drawn(people)[0]
    users = np.hstack([weights, np.ones((len(weights), 1))]).astype(np.float32)
    items = np.hstack([ranker.interests, ranker.popular[:, None]]).astype(np.float32)
    everybody, als = np.arange(len(users)), AlternatingLeastSquares(num_threads=number)
    known = csr_matrix((np.ones(len(people.item)), people.item, people.starts))
    als.user_factors, als.item_factors = users, items
    (scorer := Ready(user_embeddings="prefer")).ready = users, items
    pipeline, who = topn_pipeline(scorer, n=10), np.repeat(everybody, np.diff(people.starts))
    pipeline.train(from_interactions_df(DataFrame({"user_id": who, "item_id": people.item})))
    ways = {
        "ours": lambda: [rows for _, rows in model.recommend_many(frame, explain=False)],
        "implicit": lambda: als.recommend(everybody, known, N=10)[0],
        "LensKit": lambda: [
            of.ids() for of in recommend(pipeline, everybody, n_jobs=number).lists()
        ],
    }
    ours = [[model._place[str(row.item)] for row in rows] for rows in ways["ours"]()]
    for name, way in ways.items():
        turns = [(time.perf_counter(), way(), time.perf_counter()) for _ in range(3)]
        best, found = min(end - begun for begun, _, end in turns), turns[0][1]
        lists = zip(ours, ours if name == "ours" else found, strict=True)
        same = np.mean([len({*one} & {*two}) for one, two in lists])
        print(f"{name}: {len(users) / best:,.0f} people a second, {same:.1f} of 10 as ours")


if __name__ == "__main__":
    main(*sys.argv[1:])
