"""The published model: whoever has it and a history, anybody's, gets a list.

It holds what was released under a budget and what is public, and nothing else. A history never
leaves the process that it is given to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.columns import columns_of_frame
from bgtplanner.errors import ConfigError, DataError, ModelFileError, NothingLearnedError
from bgtplanner.published import file
from bgtplanner.published.ranking import RANKERS, Histories, Ranked, Ranker
from bgtplanner.published.reasons import Described, reasons_of
from bgtplanner.published.verdict import Verdict, verdict_of

History = Mapping[Any, float] | Iterable[Any]
"""What a person has rated: ratings by item, on the scale of the data; or only the items."""

_AT_ONCE = 1 << 18  # entries of histories, or a sixteenth of the scores, held in memory at a time
_NEW_ITEMS = 3.0  # ridge weight, in items, of the features that a new item is placed by
_GOOD = 0.7  # a rating from which on an item of the history can be named as one that was liked
_SPEAKS = 0.05  # how much an item of the history must add to another one to be named for it


class Recommended(NamedTuple):
    """One line of a list.

    Attributes:
        user: Label of the person.
        place: 1 for the first.
        item: Label of the item.
        title: Title of the item, if the catalogue has one.
        predicted: Predicted rating on the scale of the data; None if they are not ratings.
        reason: Why it is on the list, in words, if the model says.
    """

    user: Any
    place: int
    item: Any
    title: str | None
    predicted: float | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """What a training has released, and what is public.

    Attributes:
        ranker: The kind of model, by its name in :data:`RANKERS`.
        settings: The learner's settings.
        items: Labels of the items.
        titles: Their titles, or None.
        names: Names of the features.
        features: Public features, ``[n_items, n_features]``.
        released: What was released, one row per item.
        low: Rating that stands for 0; `high` stands for 1.
        implicit: Whether there are no ratings, only what was picked.
        learned: Whether anything was learned from others.
        guarantee: What is promised to the people it was learned from, in words and numbers.
        evidence: How well what was released stands out from its noise.
        training: How it was trained, in public numbers.
    """

    ranker: str
    settings: dict[str, Any]
    items: list[Any]
    titles: list[str] | None
    names: tuple[str, ...]
    features: NDArray[np.float32]
    released: NDArray[np.float32]
    low: float
    high: float
    implicit: bool
    learned: bool
    guarantee: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        number, unless = len(self.items), ModelFileError
        if self.ranker not in RANKERS or ":" in self.ranker:
            known = ", ".join(RANKERS)
            raise unless(f"the model is of the kind {self.ranker!r}; this release reads {known}")
        shapes = self.features.ndim == self.released.ndim == 2
        shapes = shapes and len(self.features) == len(self.released) == number > 0
        shapes = shapes and self.features.shape[1] == len(self.names)
        if not shapes or (self.titles is not None and len(self.titles) != number):
            raise unless("the model's items, titles, features and numbers do not fit together")
        if len(self._place) != number or not self.low < self.high:
            raise unless("the model names an item twice, or has no scale")
        try:
            _ = self._ranker  # its settings and numbers fit the kind
        except (ArithmeticError, KeyError, LookupError, TypeError, ValueError) as error:
            raise unless(f"the model lacks what the kind {self.ranker} needs") from error

    def __repr__(self) -> str:
        return f"Model({self.ranker}: {len(self.items):,} items; {self.verdict().headline})"

    @cached_property
    def _place(self) -> dict[str, int]:
        return {str(label): place for place, label in enumerate(self.items)}

    @cached_property
    def _ranker(self) -> Ranker:
        released = self.released.astype(np.float64)
        features = self.features.astype(np.float64)
        return RANKERS[self.ranker](released, features, self.settings, self.implicit)

    def save(self, path: Path | str, *, key: bytes | None = None) -> None:
        """Write the model file; `key` is an Ed25519 private key that signs it."""
        facts = {
            "ranker": self.ranker, "settings": self.settings, "items": self.items,
            "titles": self.titles, "names": list(self.names), "scale": [self.low, self.high],
            "implicit": self.implicit, "learned": self.learned, "guarantee": self.guarantee,
            "evidence": self.evidence, "training": self.training,
        }  # fmt: skip
        arrays = {"features": self.features, "released": self.released}
        file.write(Path(path), facts, arrays, key)

    # ---- lists

    def recommend(
        self,
        history: History = (),
        *,
        top: int = 10,
        exclude: Iterable[Any] = (),
        only: Iterable[Any] | None = None,
    ) -> list[Recommended]:
        """Return the best items for anybody's history; items in it are never on the list.

        Args:
            history: Ratings by item on the scale of the data, or only the items. Items that the
                model does not know are left out.
            top: The length of the list.
            exclude: Items that must not be on it.
            only: Items that may be on it; or features, such as ``genre: Drama``.

        Raises:
            NothingLearnedError: If there is nothing to rank items by.
        """
        people = {None: history}
        ((_, lines),) = self.recommend_many(people, top=top, exclude=exclude, only=only)
        return lines

    def recommend_many(
        self,
        histories: Any,
        *,
        top: int = 10,
        exclude: Iterable[Any] = (),
        only: Iterable[Any] | None = None,
        reasons: bool = True,
    ) -> Iterator[tuple[Any, list[Recommended]]]:
        """Yield people with their lists; see :meth:`recommend`.

        The histories are a mapping from people to what each has rated; or a frame, a table with
        the columns ``user``, ``item`` and, unless they are clicks, ``rating``.
        """
        ConfigError.unless(isinstance(top, int) and top >= 1, "top", top, "1 or more")
        self._refuse_nothing()
        allowed = np.ones(len(self.items), dtype=bool) if only is None else self._allowed(only)
        allowed[[self._place[str(of)] for of in exclude if str(of) in self._place]] = False
        framed = not isinstance(histories, Mapping) or {"user", "item"} <= set(histories)
        for labels, people in (self._framed if framed else self._mapped)(histories):
            yield from self._lists(labels, people, allowed, top, reasons)

    def _mapped(self, histories: Mapping[Any, History]) -> Iterator[tuple[list[Any], Histories]]:
        """Yield some people at a time, from what each has rated."""
        most, left = max(1, 16 * _AT_ONCE // len(self.items)), list(histories)
        while left:
            parts, entries = list[tuple[list[int], NDArray[np.float64]]](), 0
            while len(parts) < min(most, len(left)) and entries <= _AT_ONCE:
                parts.append(self._entries(histories[left[len(parts)]]))
                entries += len(parts[-1][0])
            yield left[: len(parts)], self._people(parts)
            left = left[len(parts) :]

    def _framed(self, frame: Any) -> Iterator[tuple[list[Any], Histories]]:
        """Yield some people at a time, from a table of all."""
        columns = columns_of_frame(frame)
        needed = ("user", "item") if self.implicit else ("user", "item", "rating")
        if missing := [name for name in needed if name not in columns]:
            problem = f"the frame has no column {' and '.join(missing)}"
            raise DataError(f"{problem}; it has {', '.join(map(str, columns))}")
        user, item = (np.asarray(columns[name]) for name in ("user", "item"))
        labels, person = np.unique(user, return_inverse=True)
        known, which = np.unique(item, return_inverse=True)
        place = np.array([self._place.get(str(of), -1) for of in known.tolist()])[which]
        value = np.full(len(user), np.nan)
        if not self.implicit:
            value = self._scaled(np.asarray(columns["rating"], dtype=np.float64))
        order = np.argsort(person, kind="stable")
        order = order[place[order] >= 0]
        starts = np.searchsorted(person[order], np.arange(len(labels) + 1))
        most, begin = max(1, 16 * _AT_ONCE // len(self.items)), 0
        while begin < len(labels):
            end = int(np.searchsorted(starts, starts[begin] + _AT_ONCE, side="right"))
            end = max(begin + 1, min(end - 1, begin + most, len(labels)))
            rows = order[starts[begin] : starts[end]]
            part = Histories(starts[begin : end + 1] - starts[begin], place[rows], value[rows])
            yield labels[begin:end].tolist(), part
            begin = end

    def _scaled(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ratings from 0 to 1; refuse any outside the scale, without naming it."""
        scaled = (value - self.low) / (self.high - self.low)
        if not ((scaled >= -1e-9) & (scaled <= 1 + 1e-9)).all():
            scale = f"{self.low:g} to {self.high:g}"
            raise DataError(f"history: a rating lies outside the model's scale, {scale}")
        return np.asarray(scaled)

    def _refuse_nothing(self) -> None:
        """Refuse to rank items if nothing is known about them."""
        if not self.learned and not self.features.size:
            raise NothingLearnedError(
                "nothing was learned from others, and the items have no features to go by. Train "
                "with more people, with a larger --epsilon, or with features of the items"
            )

    def _allowed(self, only: Iterable[Any]) -> NDArray[np.bool_]:
        """Return which items are named, or have a feature that is."""
        allowed = np.zeros(len(self.items), dtype=bool)
        for name in map(str, only):
            if name in self.names:
                allowed |= self.features[:, self.names.index(name)] > 0
            elif name in self._place:
                allowed[self._place[name]] = True
            else:
                raise DataError("only: neither an item nor a feature of the model is called so")
        return allowed

    def _entries(self, history: History) -> tuple[list[int], NDArray[np.float64]]:
        """Return places and ratings from 0 to 1 of a history; NaN for what was only picked."""
        rated = isinstance(history, Mapping)
        known: dict[int, Any] = {}
        for label, value in history.items() if rated else ((of, np.nan) for of in history):  # type: ignore[union-attr]
            place = self._place.get(str(label))
            if place is None:
                continue
            known[place] = value
        try:
            values = np.array(list(known.values()), dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError("history: expected a number for each item") from error
        if self.implicit or not rated:
            values = np.full(len(known), np.nan)
        return list(known), (self._scaled(values) if rated and not self.implicit else values)

    def _people(self, parts: Sequence[tuple[list[int], NDArray[np.float64]]]) -> Histories:
        starts = np.cumsum([0, *(len(items) for items, _ in parts)])
        items = np.array([of for items, _ in parts for of in items], dtype=np.int64)
        return Histories(starts, items, np.concatenate([values for _, values in parts]))

    def _lists(
        self,
        labels: list[Any],
        people: Histories,
        allowed: NDArray[np.bool_],
        top: int,
        reasons: bool,
    ) -> Iterator[tuple[Any, list[Recommended]]]:
        """Yield the lists of some people."""
        ranked = self._ranker.ranked(people)
        row = np.repeat(np.arange(len(labels)), np.diff(people.starts))
        scores = np.where(allowed, ranked.scores, -np.inf)
        scores[row, people.item] = -np.inf
        size = min(top, scores.shape[1])
        best = np.argpartition(-scores, size - 1, axis=1)[:, :size]
        values = np.take_along_axis(scores, best, axis=1)
        best = np.take_along_axis(best, np.lexsort((best, -values), axis=1), axis=1)
        left = (np.take_along_axis(scores, best, axis=1) > -np.inf).sum(axis=1).tolist()
        words = self._reasons(people, ranked, best) if reasons else None
        wide = self.high - self.low
        for at, label in enumerate(labels):
            lines = []
            for place, item in enumerate(best[at, : left[at]].tolist()):
                rating = None
                if ranked.predicted is not None:
                    rating = float(self.low + wide * ranked.predicted[at, item])
                title = None if self.titles is None else self.titles[item]
                reason = None if words is None else words[at][place]
                lines.append(
                    Recommended(label, place + 1, self.items[item], title, rating, reason)
                )
            yield label, lines

    def _reasons(
        self, people: Histories, ranked: Ranked, best: NDArray[np.int64]
    ) -> list[list[str | None]]:
        """Return why each item is on each list; what the person liked is named by its title."""
        because: list[list[str | None]] = [[None] * best.shape[1] for _ in best]
        if ranked.because is not None and self.titles is not None:
            table = self._ranker.places()
            for at, items in enumerate(best):
                mine = slice(*people.starts[at : at + 2])
                if mine.stop == mine.start:
                    continue
                added = ranked.because[mine] @ table[items].T
                value = people.value[mine]
                usual = max(_GOOD, float(np.nanmean(np.r_[value, 0.0])))
                liked = np.isnan(value) | (value >= usual)
                added[~liked] = -np.inf
                first = added.argmax(axis=0)
                for place in np.flatnonzero(added.max(axis=0) >= _SPEAKS).tolist():
                    because[at][place] = self.titles[people.item[mine][first[place]]]
        about = Described(self.features, self.names, self.low, self.high)
        whom = "others" if self.learned else "chance would"
        return reasons_of(about, ranked.why, best, whom, because)

    # ---- single questions

    def predict(self, history: History, items: Iterable[Any]) -> list[float]:
        """Return the ratings that a person would give some items, on the scale of the data."""
        if self.implicit:
            raise ConfigError("predict: the model is of clicks, which have no ratings to predict")
        places = [self._known(item) for item in items]
        ranked = self._ranker.ranked(self._people([self._entries(history)]))
        found = np.asarray(ranked.predicted)[0, places]
        return [float(of) for of in self.low + (self.high - self.low) * found]

    def explain(self, history: History, item: Any) -> str | None:
        """Return why an item suits a person, in words; None if nothing of note speaks for it."""
        people, place = self._people([self._entries(history)]), self._known(item)
        return self._reasons(people, self._ranker.ranked(people), np.array([[place]]))[0][0]

    def similar(self, item: Any, *, top: int = 10) -> list[Recommended]:
        """Return the items that the same people like, the most similar first."""
        place, table = self._known(item), self._ranker.places()
        length = np.sqrt((table**2).sum(axis=1))
        if not length[place] > 0:
            raise NothingLearnedError("nothing is known that would tell this item from others")
        alike = table @ table[place] / np.maximum(length * length[place], 1e-12)
        alike[place] = -np.inf
        order = np.argsort(-alike, kind="stable")[: min(top, len(alike) - 1)].tolist()
        titles = self.titles
        return [
            Recommended(
                None, at + 1, self.items[of], None if titles is None else titles[of], None, None
            )
            for at, of in enumerate(order)
        ]

    def _known(self, item: Any) -> int:
        place = self._place.get(str(item))
        if place is None:
            raise DataError("the model does not know this item; is it the label, not the title?")
        return place

    def verdict(self) -> Verdict:
        """Return what lists from this model are worth, as far as the file itself can tell."""
        return verdict_of(self.evidence, self.guarantee, learned=self.learned)

    # ---- newer items

    def with_items(
        self,
        items: Sequence[Any],
        titles: Sequence[str] | None,
        names: Sequence[str],
        features: NDArray[Any],
    ) -> Model:
        """Return the model with the items of a newer catalogue added at the end.

        A new item gets its place from its features, by ridge regression of what was released on
        the features of the items that are known. Features are matched by name.
        """
        new = [at for at, label in enumerate(items) if str(label) not in self._place]
        if not new:
            return self
        own = np.zeros((len(new), len(self.names)), dtype=np.float32)
        for at, name in enumerate(self.names):
            if name in names:
                own[:, at] = np.asarray(features)[new, list(names).index(name)]
        centre = self.features.mean(axis=0, dtype=np.float64)
        known, ridge = self.features - centre, _NEW_ITEMS * np.eye(len(self.names))
        middle = self.released.mean(axis=0, dtype=np.float64)
        if self.ranker == "tastes":  # a share cannot be added up like the others
            middle[3] = np.median(self.released[:, 3])
        slopes = np.linalg.solve(known.T @ known + ridge, known.T @ (self.released - middle))
        placed = middle + (own - centre) @ slopes
        if self.ranker == "tastes":
            placed[:, 3] = np.maximum(placed[:, 3], 0.0)
        named = [str(label) for label in items] if titles is None else list(titles)
        old = [str(label) for label in self.items] if self.titles is None else self.titles
        any_titles = titles is not None or self.titles is not None
        return replace(
            self,
            items=[*self.items, *(items[at] for at in new)],
            titles=[*old, *(named[at] for at in new)] if any_titles else None,
            features=np.concatenate([self.features, own]),
            released=np.concatenate([self.released, placed.astype(np.float32)]),
        )


def load_model(path: Path | str, *, signer: bytes | None = None) -> Model:
    """Read a model file; nothing in it is ever run as code.

    Raises:
        ModelFileError: If it is none, is damaged or altered, or was not signed by the `signer`.
    """
    where = Path(path)
    facts, arrays = file.read(where, signer)
    try:
        low, high = map(float, facts["scale"])
        texts = [facts["names"], facts["titles"] or []]
        if not all(isinstance(of, str) for part in texts for of in part):
            raise TypeError("titles")
        names = ("ranker", "settings", "titles", "implicit", "learned", "guarantee", "evidence")
        return Model(
            **{name: facts[name] for name in names},
            items=list(facts["items"]), names=tuple(facts["names"]), training=facts["training"],
            features=arrays["features"].astype(np.float32),
            released=arrays["released"].astype(np.float32), low=low, high=high,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{where}: lacks what a model file must hold") from error
