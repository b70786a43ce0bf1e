"""Lists from a model: anybody's, of any history, new items included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from bgtplanner.commands.recommend import differences, with_items
from bgtplanner.data.catalogue import Catalogue
from bgtplanner.errors import ConfigError, DataError, ModelFileError, NothingLearnedError
from bgtplanner.published.model import load_model
from bgtplanner.published.ranking import RANKERS, Ranker
from made import TASTES, tastes

HISTORY = {"film0": 5, "film2": 5, "film4": 4.5, "film1": 1, "film3": 2}


def named(rows: Any) -> list[Any]:
    return [row.item for row in rows]


def test_the_ranking_is_the_stated_formula() -> None:
    """An oracle in plain loops: ridge regression, one Newton step for each prior, and a sum."""
    made = tastes()
    released, features = made.released.astype(float), made.features.astype(float)
    share = released[:, 3] / released[:, 3].sum()
    sure = np.clip(((released[:, 5:] ** 2).sum(axis=0) - 0.25) / 0.75, 0, 1) ** 0.5
    axes = released[:, 5:] - share @ released[:, 5:]
    axes = sure * axes / np.sqrt(share @ axes**2)
    features = features - share @ features
    table = np.column_stack(
        [np.ones(30), released[:, 1], released[:, 0], axes, features],
    )
    penalty = np.diag([5.0, 20.0, 0.3, 150, 150, 25, 25])
    place = [made.items.index(of) for of in HISTORY]
    value = (np.array(list(HISTORY.values())) - 1) / 4
    rows = table[place]
    own = np.linalg.solve(rows.T @ rows + penalty, rows.T @ (value - 0.7 - released[place, 0]))
    predicted = np.clip(0.7 + released[:, 0] + table @ own, 0, 1)
    scaled = np.column_stack([axes / 30**0.5, features / 10**0.5])
    variance, turn = np.linalg.eigh(scaled.T @ np.diag(share) @ scaled)
    interests, weight = scaled @ turn, value / 0.7
    total, spread = weight @ interests[place], weight.sum() * variance
    priors = np.array([0.001, 0.1, 0.3, 1.0, 3.0])
    exponents = [np.log1p(of * spread) + total**2 / spread / (1 + of * spread) for of in priors]
    chance = np.exp(-0.5 * np.sum(exponents, axis=1))
    chance /= chance.sum()
    weights = sum(c * total / (spread + 1 / p) for c, p in zip(chance, priors, strict=True))
    scores = np.log(share + 0.02 / 30) + 0.85 * interests @ weights
    scores += norm.logcdf((predicted - 0.75) / 0.2)
    scores[place] = -np.inf
    best = np.argsort(-scores)[:10]
    found = made.recommend(HISTORY)
    assert named(found) == [made.items[at] for at in best]
    assert [row.predicted for row in found] == pytest.approx(1 + 4 * predicted[best])


def test_nothing_that_was_rated_or_excluded_and_only_what_is_wanted() -> None:
    made = tastes()
    assert not set(named(made.recommend(HISTORY, top=30))) & set(HISTORY)
    assert len(made.recommend(HISTORY, top=30)) == 25
    found = made.recommend(HISTORY, top=30, exclude=["film6", "unknown"], only=["genre: War"])
    assert set(named(found)) == {f"film{at}" for at in range(9, 30, 3)}
    assert set(named(made.recommend({}, only=["film7", "film8"]))) == {"film7", "film8"}
    with pytest.raises(DataError):
        made.recommend({}, only=["genre: Western"])


def test_who_is_new_gets_what_is_popular_and_good() -> None:
    made = tastes(axes=0)
    share = made.released[:, 3]
    quality = np.clip(0.7 + made.released[:, 0], 0, 1)
    expected = np.log(share + 0.02 * share.mean()) + norm.logcdf((quality - 0.75) / 0.2)
    assert named(made.recommend()) == [made.items[at] for at in np.argsort(-expected)[:10]]


def test_items_without_ratings_count_as_liked_and_clicks_have_no_predictions() -> None:
    made = tastes()
    assert named(made.recommend(["film0", "film2"])) != named(made.recommend())
    clicks = tastes(implicit=True)
    found = clicks.recommend({"film0": 17.0, "film2": 1.0})
    assert named(found) == named(clicks.recommend(["film0", "film2"]))
    assert found[0].predicted is None
    with pytest.raises(ConfigError):
        clicks.predict(["film0"], ["film1"])


def test_unknown_items_are_left_out_and_bad_ratings_refused_unnamed() -> None:
    made = tastes()
    assert made.recommend(HISTORY | {"nowhere": 3}) == made.recommend(HISTORY)
    for bad in ({"film0": 6}, {"film0": float("nan")}, {"film0": "four"}, {"film0": None}):
        with pytest.raises(DataError) as error:
            made.recommend(bad)
        assert "film0" not in str(error.value)
        assert "four" not in str(error.value)


def test_many_at_once_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As mappings and as a table, in any order, however many fit in memory."""
    made, generator = tastes(), np.random.default_rng(3)
    people = {
        f"p{at}": {
            f"film{item}": float(generator.integers(1, 6))
            for item in generator.choice(30, generator.integers(0, 12), replace=False)
        }
        for at in range(20)
    }
    rows = [(who, item, of) for who, own in people.items() for item, of in own.items()]
    generator.shuffle(rows)  # type: ignore[arg-type]
    frame = {
        "user": [row[0] for row in rows],
        "item": [row[1] for row in rows],
        "rating": [float(row[2]) for row in rows],
    }
    alone = {who: [row[1:] for row in made.recommend(own)] for who, own in people.items()}
    monkeypatch.setattr("bgtplanner.published.model._AT_ONCE", 200)
    for given in (people, frame):
        found = dict(made.recommend_many(given))
        assert len(found) >= 18
        for who, lines in found.items():
            assert [row.item for row in lines] == [row[1] for row in alone[who]]
            assert [row.predicted for row in lines] == pytest.approx([r[3] for r in alone[who]])
            assert {row.user for row in lines} == {who}
    with pytest.raises(DataError, match="rating"):
        list(made.recommend_many({"user": ["a"], "item": ["film0"]}))


def test_likeness_and_reasons_name_what_was_liked() -> None:
    released = tastes().released.copy()
    released[:, 5:] = 0
    released[:6, 5] = 0.4  # six films that the same people like
    released[6:, 5] = -0.1
    made = tastes(released=released, features=np.zeros((30, 0), np.float32), names=())
    assert set(named(made.similar("film1", top=5))) == {f"film{at}" for at in (0, 2, 3, 4, 5)}
    history = {f"film{at}": 5 for at in range(4)} | {f"film{at}": 1 for at in range(20, 24)}
    assert {"film4", "film5"} <= set(named(made.recommend(history, top=12)))
    words = made.explain(history, "film5")
    assert words is not None
    assert words.startswith("because you rated Film No. ")
    with pytest.raises(DataError):
        made.similar("nowhere")


def test_a_new_item_has_the_place_of_its_features() -> None:
    """By the feature's name, or by the old items if the newer catalogue calls it otherwise."""
    made = tastes()
    released = made.released.copy()
    released[:, 0] = np.where(made.features[:, 1] > 0, 0.1, -0.05)
    made = tastes(released=released)
    for names in (made.names, ["genre: Drama", "genre: War and peace"]):
        newer = Catalogue(
            labels=np.array([*made.items, "new"]), titles=np.array(["x"] * 30 + ["A war film"]),
            features=np.append(made.features, [[0, 1]], axis=0).astype(np.float32),
            names=tuple(names),
        )  # fmt: skip
        more = with_items(made, newer)
        assert more.items == [*made.items, "new"]
        assert more.features[-1].tolist() == [0, 1]
        assert 0.04 < more.released[-1, 0] < 0.11
        assert more.released[-1, 3] > 0
        assert "new" in named(more.recommend({}, top=31, only=["genre: War"]))
        assert more.titles is not None
        assert more.titles[::30] == ["Film No. 0", "A war film"]


def test_what_fits_nothing_is_refused() -> None:
    for changes in (
        {"ranker": "os:system"}, {"ranker": "unknown"}, {"items": ["a", "b"]}, {"low": 5.0},
        {"items": ["a"] * 30}, {"names": ("one",)}, {"settings": {}}, {"titles": ["x"]},
    ):  # fmt: skip
        with pytest.raises(ModelFileError):
            tastes(**changes)
    nothing = tastes(learned=False, features=np.zeros((30, 0), np.float32), names=())
    with pytest.raises(NothingLearnedError):
        nothing.recommend(HISTORY)


def test_other_kinds_predict_by_ridge_regression() -> None:
    for ranker, width, settings in (
        ("biases", 3, TASTES),
        ("factorization", 4, {"mean": 0.7, "bias_shrinkage": 5.0, "factor_shrinkage": 2.0}),
    ):
        released = np.random.default_rng(1).normal(0, 0.1, (30, width)).astype(np.float32)
        made = tastes(ranker=ranker, released=released, settings=settings)
        high, low = ([made.predict({f"film{at}": of for at in range(9)}, ["film20"])[0]]
                     for of in (5, 1))  # fmt: skip
        assert high > low
        rows = made.recommend(HISTORY)
        assert [row.predicted for row in rows] == sorted(
            (row.predicted for row in rows), key=lambda of: -(of or 0)
        )


def test_what_changed() -> None:
    made = tastes()
    new = Catalogue.from_frame({"item": ["new"]})
    later = with_items(tastes(seed=5, guarantee=made.guarantee | {"epsilon": 4.0}), new)
    found = differences(made, later)
    assert (found["came"], found["went"], found["stayed"]) == (1, 0, 30)
    assert found["epsilon"] == [3.0, 4.0]
    assert differences(made, made)["same_of_ten"] == 10


def test_a_new_item_keeps_numbers_that_are_not_yes_or_no() -> None:
    made = tastes()
    newer = Catalogue(
        labels=np.array([*made.items, "new"]), titles=None, names=made.names,
        features=np.append(made.features, [[-0.25, 0.5]], axis=0).astype(np.float32),
    )  # fmt: skip
    more = with_items(made, newer)
    assert more.features[-1].tolist() == [-0.25, 0.5]
    assert more.titles == [*(made.titles or ()), "new"]  # its label, as it has no title
    assert with_items(tastes(titles=None), newer).titles is None


def test_at_most_half_of_all_reasons_are_those_of_everybody() -> None:
    """Of people with tastes of their own; on real data `benchmarks.protocols` counts them."""
    few = np.stack([np.arange(300) % 5 == 0, np.arange(300) % 6 == 0], axis=1).astype(np.float32)
    made, generator = tastes(300, axes=0, features=few), np.random.default_rng(0)
    kinds = [np.flatnonzero(kind) for kind in few.T]
    people = {
        at: {f"film{of}": 4 + of % 2 for of in generator.choice(kinds[at % 2], 20, False)}
        for at in range(40)
    }
    reasons = [row.reason for _, rows in made.recommend_many(people) for row in rows]
    everybody = {"popular", "liked by many", "rated well by those who know it"}
    assert np.mean([of in everybody for of in reasons if of is not None]) <= 0.5
    assert any("because you rated Film No. " in (of or "") for of in reasons)


class Newest(Ranker):
    """Ranks by one number that was released of each item, the same for everybody."""

    def responses(self) -> Any:
        return np.ones((len(self.released), 1)), np.full(1, 1e9)


def test_a_kind_of_ones_own_is_read_where_it_is_registered(tmp_path: Path) -> None:
    released = np.random.default_rng(1).permutation(30)[:, None] / 100
    with pytest.raises(ModelFileError, match="newest"):
        tastes(ranker="newest", released=released, settings={"mean": 0.5})
    RANKERS.add("newest", Newest)
    tastes(ranker="newest", released=released, settings={"mean": 0.5}).save(tmp_path / "a.model")
    found = named(load_model(tmp_path / "a.model").recommend(HISTORY, top=30))
    assert found == [
        f"film{at}" for at in np.argsort(-released[:, 0]) if f"film{at}" not in HISTORY
    ]
