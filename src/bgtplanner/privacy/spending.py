"""What clients have spent and may spend, counted for a whole class where all of it spent the same.

Clients of a class start alike, with the same budget and nothing spent, and stay alike while every
payment covers whole classes. Until one splits a class, a single column stands for all its members
and a round costs as much as there are classes, whether those hold ten clients or a million.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.privacy.accounting import CEILING, Rule, from_ticks
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.entries import Mask, Payment, Ticks

__all__ = ["Columns", "Spending"]


class Columns(NamedTuple):
    """Those who can be charged alone: each client, or each class while its clients are alike.

    Attributes:
        spent: Sums so far, ``[sums, columns]``.
        limits: Capacity of each sum, ``[sums, columns]``.
        sizes: How many clients each class has; None if every client has a column of its own.
        class_of_client: Class of each client.
    """

    spent: Ticks
    limits: Ticks
    sizes: NDArray[np.int64] | None
    class_of_client: NDArray[np.int32]

    def everybody(self) -> Mask:
        """The columns that stand for somebody."""
        if self.sizes is None:
            return np.ones(len(self.class_of_client), dtype=bool)
        return np.asarray(self.sizes > 0)

    def count(self, mask: Mask) -> int:
        """How many clients a mask of columns stands for."""
        return int(np.count_nonzero(mask) if self.sizes is None else self.sizes[mask].sum())

    def each(self, mask: Mask) -> Mask:
        """A mask of columns as one of clients."""
        if self.sizes is None:
            return mask
        chosen = np.count_nonzero(mask)
        if chosen in (0, len(mask)):  # much cheaper for many clients
            return np.full(len(self.class_of_client), chosen > 0)
        return np.asarray(mask[self.class_of_client])

    def charge(self, ticks: Ticks) -> NDArray[np.float64]:
        """What each client is charged; `ticks` is one number, or one a column."""
        charge = from_ticks(ticks)
        if charge.ndim and self.sizes is not None:
            return np.asarray(charge[self.class_of_client])
        return np.broadcast_to(charge, len(self.class_of_client))


class Spending:
    """Sums of what was charged, and their limits.

    Args:
        rule: How charges add up.
        budgets: What each client may spend, by class.
        spent: Sums so far, ``[sums, clients]``; nothing by default.
    """

    def __init__(self, rule: Rule, budgets: Budgets, spent: Ticks | None = None) -> None:
        self.rule = rule
        self.class_of_client = budgets.class_of_client
        self.limits_by_class: Ticks = np.stack(
            [rule.limit_ticks(budget) for budget in budgets.classes], axis=1
        )
        self.sizes = np.bincount(self.class_of_client, minlength=len(budgets.classes))
        self._member = np.zeros(len(self.sizes), dtype=np.int64)  # somebody of each class
        self._member[self.class_of_client] = np.arange(len(self.class_of_client))
        self._limits: Ticks | None = None  # a column a client, from when it is needed
        # One of the two is kept: a column a class while they are alike, then one a client.
        self._by_class: Ticks | None = np.zeros_like(self.limits_by_class)
        self._each: Ticks | None = None
        if spent is not None:
            self._by_class = self._of_members(spent)
            if self._by_class is None:
                self._each = spent

    @property
    def alike(self) -> bool:
        """Whether all clients of each class have spent the same."""
        return self._by_class is not None

    def spent(self) -> Ticks:
        """Sums in ticks, ``[sums, clients]``; a copy."""
        if self._by_class is None:
            return self._of_clients().spent.copy()
        return np.asarray(self._by_class[:, self.class_of_client])

    def limits(self) -> Ticks:
        """Capacity of each sum, ``[sums, clients]``."""
        if self._limits is None:
            self._limits = np.asarray(self.limits_by_class[:, self.class_of_client])
        return self._limits

    def shortest(self) -> tuple[bool, Ticks]:
        """Whether all clients of each class have spent the same, and the sums by class or client.

        The same for the same sums, however they came about.
        """
        by_class = self._by_class
        if by_class is None:
            by_class = self._of_members(self._of_clients().spent)
        if by_class is None:
            return False, self._of_clients().spent
        return True, np.where(self.sizes > 0, by_class, 0)

    def of_shortest(self, by_class: bool, sums: Ticks) -> Spending:
        """With the sums that :meth:`shortest` told, in one row after the other."""
        made = copy(self)
        each = sums.reshape(len(self.limits_by_class), -1).copy()
        made._by_class, made._each = (each, None) if by_class else (None, each)
        return made

    def left(self) -> NDArray[np.float64]:
        """Largest charge that each client can still pay."""
        if self._by_class is None:
            return self.rule.largest_fitting(self._of_clients().spent, self.limits())
        return np.asarray(self._left_alike(self._by_class)[self.class_of_client])

    def left_by_class(self) -> NDArray[np.float64]:
        """Largest charge that somebody of each class can still pay; 0 for an empty class."""
        if self._by_class is not None:
            return np.where(self.sizes > 0, self._left_alike(self._by_class), 0.0)
        most = np.zeros(len(self.sizes))
        np.maximum.at(most, self.class_of_client, self.left())
        return most

    def least_spent_by_class(self) -> Ticks:
        """Sums of who can still pay the most in each class; 0 for an empty class."""
        if self._by_class is not None:
            return np.where(self.sizes > 0, self._by_class, 0)
        richest = np.flatnonzero(self.left() == self.left_by_class()[self.class_of_client])
        chosen = np.zeros(len(self.sizes), dtype=np.int64)
        chosen[self.class_of_client[richest]] = richest
        return np.where(self.sizes > 0, self._of_clients().spent[:, chosen], 0)

    def columns(self, *, by_class: bool) -> Columns:
        """Those to charge: a column a class, if that is wanted and they are alike, or a client."""
        if by_class and self._by_class is not None:
            return Columns(self._by_class, self.limits_by_class, self.sizes, self.class_of_client)
        return self._of_clients()

    def adds(self, ticks: Ticks, who: Mask) -> Ticks:
        """What charges add to each sum, ``[sums, columns]``; only for `who` does it make sense."""
        if not ticks.ndim:
            if self.rule.powers == (1,) and 1 <= ticks <= CEILING:  # the sum of the ticks
                return ticks.reshape(1, 1)
            return self.rule.sum_ticks(from_ticks(ticks))[:, None]
        return self.rule.sum_ticks(from_ticks(np.where(who, ticks, 1)))

    def add(self, payment: Payment, adds: Ticks | None = None) -> None:
        """Charge those who pay.

        Args:
            payment: Who pays how much.
            adds: What that adds to each sum, for the columns it would be added to, if known.
        """
        if self._by_class is not None:
            whole = payment if payment.whole else self._whole(payment)
            if whole is not None:
                who, ticks = whole.over(len(self.sizes))
                adds = self.adds(ticks, who) if adds is None else adds
                self._by_class = _added(self._by_class, who, adds)
                return
            self._each, self._by_class = self.spent(), None
        who, ticks = payment.over(len(self.class_of_client), self.class_of_client)
        adds = self.adds(ticks, who) if adds is None else adds
        self._each = _added(self._of_clients().spent, who, adds)

    def payment(
        self,
        attempt: tuple[int, bytes],
        columns: Columns,
        pays: Mask,
        ticks: Ticks,
        *,
        by_class: bool,
    ) -> Payment:
        """The shortest way to say who pays how much.

        Args:
            attempt: Its number and fingerprint.
            columns: Those who were asked.
            pays: Which of them pay; at least one.
            ticks: What they pay: one number, or one a client, or one a class.
            by_class: Whether it is one a class.
        """
        if columns.sizes is not None:
            if not ticks.ndim and np.count_nonzero(pays) == len(pays):
                return Payment(*attempt, None, ticks)
            counts = np.where(pays, self.sizes, 0)
        elif by_class:
            counts = np.bincount(self.class_of_client[pays], minlength=len(self.sizes))
        else:
            return Payment.of(*attempt, pays, ticks)
        paying, full = counts > 0, counts == self.sizes
        first = ticks[paying][0] if ticks.ndim else ticks
        even = not ticks.ndim or bool((ticks[paying] == first).all())
        if even and full.all():
            return Payment(*attempt, None, np.asarray(first))
        whole = bool((full | ~paying).all())
        # A number of 8 bytes a class, or a bit a client.
        if even and not (whole and 64 * len(self.sizes) <= len(self.class_of_client)):
            return Payment.of(*attempt, columns.each(pays), np.asarray(first))
        listed = np.where(paying, ticks, 0)
        return Payment(*attempt, None if whole else pays, listed, by_class=True)

    def _left_alike(self, spent: Ticks) -> NDArray[np.float64]:
        return self.rule.largest_fitting(spent, self.limits_by_class)

    def _whole(self, payment: Payment) -> Payment | None:
        """A payment of single clients that happens to cover whole classes evenly, by the class."""
        who, ticks = payment.over(len(self.class_of_client), self.class_of_client)
        by_class = self._of_members(np.where(who, ticks, 0)[None])
        if by_class is None:
            return None
        return payment._replace(clients=None, ticks=by_class[0], by_class=True)

    def _of_members(self, values: Ticks) -> Ticks | None:
        """A column a class of what has a column a client; None if clients of a class differ."""
        if not len(self.class_of_client):
            return np.zeros((len(values), len(self.sizes)), dtype=np.int64)
        by_class = np.where(self.sizes > 0, values[:, self._member], 0)
        return by_class if (by_class[:, self.class_of_client] == values).all() else None

    def _of_clients(self) -> Columns:
        spent = self.spent() if self._each is None else self._each
        return Columns(spent, self.limits(), None, self.class_of_client)


def _added(spent: Ticks, who: Mask, adds: Ticks) -> Ticks:
    """Sums with more added for some; those given may be overwritten."""
    if np.count_nonzero(who) == len(who):
        spent += adds
        return np.minimum(spent, CEILING, out=spent)
    return np.where(who, np.minimum(spent + adds, CEILING), spent)
