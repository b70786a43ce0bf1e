"""The parts that only the paper's training has: pseudo items and graph expansion."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Draw, ExtraRows
from bgtplanner.models.fedgnn import FedGNN, Neighbours
from bgtplanner.models.interactions import Interactions, Upload, where_users
from bgtplanner.models.learner import Learner, Local
from bgtplanner.paper.expansion import Expansion, believed, item_tokens, match, matching_key
from bgtplanner.paper.pseudo import pseudo_items, pseudo_rows


@dataclass(frozen=True, kw_only=True)
class PaperExtras:
    """Pseudo items and graph expansion.

    Attributes:
        pseudo_items: The number of items that each client pretends to have rated.
        expansion: When users get others who rated the same items as neighbours; None: never.
        seed: Seeds the key that hides their items.
    """

    pseudo_items: int = 0
    expansion: Expansion | None = None
    seed: int = field(default=0, compare=False)  # compiled programs do not depend on it

    def check(self, model: Learner, protection: Protection | None) -> None:
        """Refuse an expansion without local trust, or of a model that has no graphs."""
        unless, name = ConfigError.unless, type(model).__name__
        unless(self.pseudo_items >= 0, "pseudo_items", self.pseudo_items, "0 or more")
        if self.expansion is not None:
            fits = isinstance(model, FedGNN)
            unless(fits, "model", name, "fedgnn, to expand graphs")
            trust = "local" if protection is None else protection.trust
            unless(trust == "local", "trust", trust, "local: each embedding is seen on its own")

    def begin(self, local: Local, interactions: Interactions) -> Local:
        """Return what the clients keep, with room for neighbours and none yet."""
        if self.expansion is None:
            return local
        users = interactions.n_users
        most = min(self.expansion.max_neighbours, users)
        dim = local.embedding.shape[1]
        nobody = Neighbours(jnp.zeros((users, most, dim)), jnp.zeros((users, most)))
        return local._replace(neighbours=nobody)

    def items(self, key: Array, index: Array, interactions: Interactions) -> Array | None:
        """Return the items that each client pretends to have rated in a round."""
        if not self.pseudo_items:
            return None
        key = jax.random.fold_in(jax.random.fold_in(key, index), Draw.PSEUDO_ITEMS)
        return pseudo_items(key, interactions, self.pseudo_items)

    def rows(
        self, key: Array, index: Array, upload: Upload, interactions: Interactions
    ) -> ExtraRows | None:
        """Return the rows that are uploaded for pseudo items."""
        items = self.items(key, index, interactions)
        if items is None:
            return None
        key = jax.random.fold_in(jax.random.fold_in(key, index), Draw.PSEUDO_ROWS)
        return ExtraRows(items, pseudo_rows(key, upload.rows, interactions, self.pseudo_items))

    def shows(self, index: int) -> bool:
        """Whether graphs are expanded in this round."""
        return self.expansion is not None and self.expansion.due(index)

    def own(self, local: Local) -> Array:
        """Return the users' embeddings."""
        embedding: Array = local.embedding
        return embedding

    def told(
        self, local: Local, own: Array, sends: Array, known: Ratings, bound: float | None,
    ) -> Local:  # fmt: skip
        """Return the users with new neighbours; those who sent nothing keep the old ones.

        `own` is what the third party was shown, `sends` marks the users whose clients took part,
        `known` are the ratings that have arrived, and `bound` is the clip of what was shown.
        """
        shown, who = np.asarray(own), np.asarray(sends)
        tokens = item_tokens(matching_key(self.seed), range(known.n_items))
        sent = known.take(who[known.user])
        before: Neighbours = local.neighbours
        most = before.present.shape[1]
        found, present = match(tokens[sent.item], sent.user, shown, most=most)
        if bound is not None:
            found = believed(found, bound)
        after = Neighbours(jnp.asarray(found), jnp.asarray(present))
        after = where_users(sends, after, before)
        return local._replace(neighbours=after)
