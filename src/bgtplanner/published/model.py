"""The published model: whoever has it and a history, anybody's, gets a list.

It holds what was released under a budget and what is public, and nothing else. A history never
leaves the process that it is given to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.tables import Histories, read_histories
from bgtplanner.errors import ConfigError, DataError, ModelFileError, NothingLearnedError
from bgtplanner.published import file
from bgtplanner.published.ranking import RANKERS, Ranker
from bgtplanner.published.reasons import reasons_of

History = Mapping[Any, float] | Iterable[Any]
"""What a person has rated: ratings by item, on the scale of the data; or only the items."""

Level = Literal["nothing", "popularity", "personal", "clearly personal"]

_AT_ONCE = 1 << 18  # scores held in memory at a time; twice as many take half as long again
_KNOWN_WELL, _KNOWN = 0.8, 0.3  # share of what is picked whose popularity is known
_SEVERAL = 3  # axes of taste


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


class Verdict(NamedTuple):
    """What to expect of lists: a level, one sentence, and the reasons for it."""

    level: Level
    headline: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.headline, *self.reasons))


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
        sums: All releases added up, from which a next training goes on, ``[n_items, 5]``.
    """

    ranker: str
    settings: dict[str, Any]
    items: list[Any]
    titles: list[str] | None
    names: list[str]
    features: NDArray[np.float32]
    released: NDArray[np.float32]
    low: float
    high: float
    implicit: bool
    learned: bool
    guarantee: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    sums: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        number = len(self.items)
        if self.ranker not in list(RANKERS):  # no address is looked up
            known = ", ".join(RANKERS)
            raise ModelFileError(f"the model is a {self.ranker!r}; this release reads {known}")
        stated = (self.settings, self.guarantee, self.evidence, self.training)
        fits = self.released.ndim == 2 and len(self.released) == number > 0
        fits = fits and self.low < self.high and self.titles != []
        fits = fits and (self.sums is None or self.sums.shape == (number, 5))
        fits = fits and all(isinstance(of, str) for of in [*self.names, *(self.titles or ())])
        if not fits or not all(isinstance(of, dict) for of in stated):
            raise ModelFileError("the model's items, numbers and scale do not fit")
        try:
            _ = Catalogue.of(self), self._ranker  # refuse what is not for the same items, or kind
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelFileError(f"the model lacks what the kind {self.ranker} needs") from error

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
        facts = {of.name: getattr(self, of.name) for of in fields(self)}
        arrays = {name: facts.pop(name) for name in ("features", "released", "sums")}
        held = {name: array for name, array in arrays.items() if array is not None}
        file.write(Path(path), facts, held, key)

    def recommend(self, history: History = (), **how: Any) -> list[Recommended]:
        """Return the best items for anybody's history; items in it are never on the list.

        Args:
            history: Ratings by item on the scale of the data, or only the items. Items that the
                model does not know are left out.
            **how: `top`, `exclude`, `only` and `explain`, as in :meth:`recommend_many`.

        It raises a NothingLearnedError if there is nothing to rank items by.
        """
        ((_, lines),) = self.recommend_many({None: history}, **how)
        return lines

    def recommend_many(
        self,
        histories: Any,
        *,
        top: int = 10,
        exclude: Iterable[Any] = (),
        only: Iterable[Any] | None = None,
        explain: bool = True,
    ) -> Iterator[tuple[Any, list[Recommended]]]:
        """Yield people with their lists.

        Args:
            histories: A mapping from people to what each has rated; or a frame, a table with the
                columns ``user``, ``item`` and, unless they are clicks, ``rating``.
            top: The length of a list.
            exclude: Items that must not be on it.
            only: Items that may be on it; or features, such as ``genre: Drama``.
            explain: Whether to say why each item is on it.
        """
        ConfigError.unless(isinstance(top, int) and top >= 1, "top", top, "1 or more")
        if not self.learned and not self.features.size:
            raise NothingLearnedError(
                "nothing was learned from others, and the items have no features to go by. Train "
                "with more people, with a larger --epsilon, or with features of the items"
            )
        barred = np.zeros(len(self.items), dtype=bool) if only is None else ~self._among(only)
        barred[[self._place[str(of)] for of in exclude if str(of) in self._place]] = True
        labels, everybody = self._histories(histories)
        step, size = max(1, _AT_ONCE // len(self.items)), min(top, len(self.items))
        for begin in range(0, len(labels), step):
            people = everybody.some(begin, min(begin + step, len(labels)))
            ranked = self._ranker.ranked(people, explain=explain)
            scores = np.where(barred, np.float32(-np.inf), ranked.scores)
            scores[people.person, people.item] = -np.inf
            best = np.argpartition(scores, -size, axis=1)[:, -size:]
            values = np.take_along_axis(scores, best, axis=1)
            best = np.take_along_axis(best, np.lexsort((best, -values), axis=1), axis=1)
            ratings: list[list[Any]] = [[None] * size] * len(best)
            if ranked.predicted is not None:
                ratings = self._raw(np.take_along_axis(ranked.predicted, best, axis=1))
            reasons: list[list[str | None]] = [[None] * size] * len(best)
            if explain:
                reasons = reasons_of(self, people, ranked, self._ranker.places(), best)
            for at, length in enumerate((values > -np.inf).sum(axis=1)):
                label, found = labels[begin + at], best[at, :length].tolist()
                columns = enumerate(zip(found, ratings[at], reasons[at], strict=False))
                yield label, [self._line(label, place, *of) for place, of in columns]

    def _histories(self, histories: Any) -> tuple[list[Any], Histories]:
        """Return people, and what they have rated."""
        scale = None if self.implicit else (self.low, self.high)
        return read_histories(histories, self._place, scale)

    def _among(self, only: Iterable[Any]) -> NDArray[np.bool_]:
        """Return which items are named, or have a feature that is."""
        wanted = {str(of) for of in only}
        if wanted - {*self.names, *self._place}:
            raise DataError("only: the model has neither an item nor a feature of that name")
        columns = [at for at, name in enumerate(self.names) if name in wanted]
        found: NDArray[np.bool_] = np.any(self.features[:, columns] > 0, axis=1)
        found[[at for name, at in self._place.items() if name in wanted - {*self.names}]] = True
        return found

    def _line(
        self, user: Any, at: int, item: int, predicted: Any = None, reason: str | None = None
    ) -> Recommended:
        """Return the line of an item on a list."""
        title = None if self.titles is None else self.titles[item]
        return Recommended(user, at + 1, self.items[item], title, predicted, reason)

    def _raw(self, predicted: Any) -> list[Any]:
        """Return predicted ratings on the scale of the data."""
        found = np.asarray(predicted, dtype=np.float64)
        return (self.low + (self.high - self.low) * found).tolist()  # type: ignore[no-any-return]

    def predict(self, history: History, items: Iterable[Any]) -> list[float]:
        """Return the ratings that a person would give some items, on the scale of the data."""
        if self.implicit:
            raise ConfigError("predict: the model is of clicks, which have no ratings to predict")
        places = [self._known(item) for item in items]
        ranked = self._ranker.ranked(self._histories({None: history})[1])
        return self._raw(np.asarray(ranked.predicted)[0, places])

    def explain(self, history: History, item: Any) -> str | None:
        """Return why an item suits a person, in words; None if nothing of note speaks for it."""
        place, (_, people) = self._known(item), self._histories({None: history})
        ranked = self._ranker.ranked(people, explain=True)
        return reasons_of(self, people, ranked, self._ranker.places(), np.array([[place]]))[0][0]

    def similar(self, item: Any, *, top: int = 10) -> list[Recommended]:
        """Return the items that the same people like, the most similar first."""
        place, table = self._known(item), self._ranker.places()
        length = np.sqrt((table**2).sum(axis=1))
        if not length[place] > 0:
            raise NothingLearnedError("nothing is known that would tell this item from others")
        alike = table @ table[place] / np.maximum(length * length[place], 1e-12)
        alike[place] = -np.inf
        order = np.argsort(-alike, kind="stable")[: min(top, len(alike) - 1)].tolist()
        return [self._line(None, at, of) for at, of in enumerate(order)]

    def _known(self, item: Any) -> int:
        """Return the index of an item; refuse one that the model does not know."""
        place = self._place.get(str(item))
        if place is None:
            raise DataError("the model does not know this item; is it the label, not the title?")
        return place

    def verdict(self) -> Verdict:
        """Return what lists from this model are worth, as far as the file itself can tell.

        Nothing of this was measured on anybody's ratings: it follows from how far what was
        released stands out from its noise, which is public.
        """
        axes, features = int(self.evidence.get("axes", 0)), int(self.evidence.get("features", 0))
        larger = " or a larger epsilon" * bool(self.guarantee.get("private", True))
        more = f"More people{larger} would be needed for more."
        if not self.learned:
            alone = ", and items have no features: there are no lists."
            alone = ": lists follow the features that a person likes." if features else alone
            level: Level = "personal" if features else "nothing"
            return Verdict(level, f"Nothing was learned from others{alone}", (more,))
        number = {0: "No axis", 1: "One axis"}.get(axes, f"{axes} axes")
        reasons = [f"{number} of taste {'stands' if axes < 2 else 'stand'} out from the noise."]
        if "popularity" in self.evidence:  # which a client is told at the end of a run
            known = float(self.evidence["popularity"])
            how = "well" if known >= _KNOWN_WELL else "roughly" if known >= _KNOWN else "barely"
            reasons.insert(0, f"Popularity is {how} known.")
        if features:
            reasons.append(f"Public features of the items help ({features}).")
        if axes >= _SEVERAL or (axes and features):
            headline = "Expect lists that are clearly more personal than popularity."
            return Verdict("clearly personal", headline, tuple(reasons))
        if axes or features:
            headline = "Expect lists that are somewhat more personal than popularity."
            return Verdict("personal", headline, (*reasons, more))
        headline = "Lists will not be better than popularity."
        return Verdict("popularity", headline, (*reasons, more))


def load_model(path: Path | str | bytes, *, signer: bytes | None = None) -> Model:
    """Read a model file, or the bytes of one; nothing in it is ever run as code.

    It has to be whole and unaltered, and to be signed by the `signer` if one is given.
    """
    facts, arrays = file.read(path if isinstance(path, bytes) else Path(path), signer)
    try:
        return Model(**facts | {name: of.astype(np.float32) for name, of in arrays.items()})
    except (TypeError, ValueError) as error:
        raise ModelFileError("the model file lacks what one must hold") from error
