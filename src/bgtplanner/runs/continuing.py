"""Who takes part in a training, by their places in one ledger; and what an old model is to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.catalogue import as_label
from bgtplanner.data.files import open_table
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError, DataError, LedgerError, StorageError
from bgtplanner.errors import LedgerTamperedError as Tampered
from bgtplanner.models.continued import change_of
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Head, Ledger
from bgtplanner.published.model import Model
from bgtplanner.runs.assembly import accountant_of, budgets_of
from bgtplanner.runs.config import Config


class People(NamedTuple):
    """The people of a training: their ratings, by their places in the ledger that pays."""

    ratings: Ratings  # with a client for each place, in the order of the places
    here: NDArray[np.bool_]  # who is in the ratings, by place
    pays: NDArray[np.bool_]  # who of them can pay
    ledger: Ledger | None = None

    def counts(self, old: Model | None) -> dict[str, int]:
        """Return how many have joined and left since an old model; who takes part is public."""
        head = None if old is None else old.guarantee.get("ledger_head")
        since = -1 if head is None else Head.parse(str(head)).number
        rows = [] if self.ledger is None else [*self.ledger.history()]
        found = {
            name: sum(row.get(name, 0) for row in rows if row["number"] > since)
            for name in ("joined", "returned", "left")
        }
        pay, without = int(self.pays.sum()), int((self.here & ~self.pays).sum())
        before = len(self.here) - found["joined"]
        return found | {"before": before, "take_part": pay, "without_budget": without}

    def change(self, old: Model) -> float:
        """Return how much a mean over the people of an old model differs from one of now."""
        then, of = int(old.training["sums"]["clients"]), self.counts(old)
        both = int(self.pays[: of["before"]].sum())
        return change_of(then, of["take_part"], min(both, then))


def people_in(
    ratings: Ratings, config: Config, path: Path | None, promise: float,
    pays: NDArray[Any] | None = None,
) -> People:  # fmt: skip
    """Return the people of a training; those who join and leave are written to the ledger.

    A new ledger promises the epsilon `promise`; this training may spend that of the config. Who
    could pay when it began is given if it was interrupted. Without a path, nothing is counted.
    """
    if path is None:
        everybody = np.ones(ratings.n_clients, dtype=bool)
        return People(ratings, everybody, everybody)
    config.require(("privacy.budgets", config.privacy.budgets is None, "none: one for all people"))
    accountant, relation = accountant_of(config), config.privacy.relation
    nobody = Budgets((Budget(promise, config.privacy.delta),), np.zeros(0, dtype=np.int32))
    try:
        if not path.exists():  # each joins with a label
            Ledger.create(path, nobody, accountant, neighbours=relation).close()
        ledger = Ledger.open(path, accountant=accountant, neighbours=relation)
    except OSError as error:
        raise StorageError.of(f"--ledger {path}", error, "name another file") from error
    try:
        if len(ledger) and all(ledger.place(of) is None for of in ratings.user_labels.tolist()):
            mend = "name another file with --ledger, or train with the same people"
            raise LedgerError(f"{path}: is the ledger of other people; {mend}")
        places = ledger.join(ratings.labels_of_clients())
        here = np.zeros(len(ledger), dtype=bool)
        here[places] = True
        absent = np.flatnonzero(~here)
        ledger.leave(*absent.tolist())
        ledger.lower(budgets_of(config, len(ledger)))
    except BaseException:
        ledger.close()
        raise
    # Who has left has a client without ratings, so that places are kept.
    client_of_user = np.append(places[ratings.client_of_user], absent).astype(np.int32)
    moved = replace(ratings, client_of_user=client_of_user)
    order = np.lexsort((moved.item, moved.user, moved.client))
    if pays is None or pays.shape != here.shape:
        pays = ledger.left() > TICK
    return People(moved.take(order), here, here & pays, ledger)


def renamed_items(given: Mapping[Any, Any] | Path | str | None) -> dict[str, str]:
    """Return new labels by old ones, from a mapping or a table: old label, new label."""
    if given is None or isinstance(given, Mapping):
        return {str(old): str(new) for old, new in (given or {}).items()}
    rows = [[*map(as_label, cells)] for _, cells in open_table(Path(given), ",", columns=2).rows()]
    rows = rows[1:] if rows and rows[0] == ["old", "new"] else rows
    if any(len(row) != 2 for row in rows) or len({row[0] for row in rows}) < len(rows):
        raise DataError(f"--renamed {given}: expected two labels in each row, old,new, each once")
    return dict(rows)


def places_in(model: Model, ratings: Ratings, given: Any) -> NDArray[np.int64]:
    """Return where each item of a model is now, by its label or its new label; -1: nowhere."""
    renamed = renamed_items(given)
    same = (model.implicit, model.low, model.high)
    fits = same == (ratings.implicit, ratings.low, ratings.high)
    scale = f"{ratings.low:g}:{ratings.high:g}"
    ConfigError.unless(fits, "scale", scale, "that of the model that is continued")
    here = {str(label): at for at, label in enumerate(ratings.item_labels.tolist())}
    labels = [str(label) for label in model.items]
    if not renamed.keys() <= set(labels) or not set(renamed.values()) <= here.keys():
        lacks = "an old label is not in the model, or a new one is not in the catalogue of now"
        raise DataError(f"renamed: {lacks}")
    return np.array([here.get(renamed.get(of, of), -1) for of in labels])


def refuse_unpaid(model: Model, path: Path | None) -> None:
    """Refuse a model for whose releases the ledger at a path has not paid.

    What comes out holds the old releases, so that its promise must count them.
    """
    head = model.guarantee.get("ledger_head")
    if path is None or not path.exists() or not head or not model.guarantee["private"]:
        raise LedgerError(
            "--continue: what was released before must be counted; give the --ledger that paid "
            "for the model, which must be private, so not from a seed"
        )
    try:
        with Ledger.open(path, read_only=True) as ledger:
            ledger.check_head(Head.parse(str(head)))
    except Tampered as error:
        raise LedgerError(f"--continue: not the ledger that paid for it: {error}") from error
