"""Tables of a linear model whose party is lost for some rounds (on_party_lost = "cache" or "zeros").

For a lost table a zero direction is used: its parameters do not change. Earlier steps did change them, so all steps are
dropped whenever a party is lost or returns. What the scores contain of a lost table:

- "cache": its last predictions. They are still correct when the party returns, except for one of several shards: the
  coordinator holds their parameters and updates them with the other shards, so the shard is asked for the difference,
  T_q (theta - theta when it was lost).
- "zeros": nothing. Scores are computed again from the predictions of the available parties, in one more trip.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.linear.ridge import ridge_of
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.over_shards import Stepped
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Pending

ShardKey = tuple[str, str]  # alias, party


class LostParties:
    """Which tables and shards are lost, and what the scores lack because of it."""

    def __init__(self, model: FederatedModel):
        self.model = model
        self.still: frozenset[str] = frozenset()  # lost tables with one shard: their parameters do not change
        self.changed = False  # whether a party was lost or returned in this round
        self._since: dict[ShardKey, Array] = {}  # shards that are lost: the parameters that their predictions are of
        self._late: Pending | None = None  # the replies to what was missed
        self._missed: dict[str, Array] = {}  # what the scores of returned shards lack, by base rows
        self._products: dict[str, Array] = {}  # by table, of the last round in which it was there
        self._squares: dict[str, float] = {}

    def instead(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The reply used in place of a lost table's direction."""
        nothing = {"products": None, "left": 0.0, "magnitude": 0.0, "centre": np.zeros(self.model.outputs)}
        return {"outputs": self.model.nothing(alias, shard), **nothing}

    def ask_missed(self) -> None:
        """Ask lost shards for what the scores lack, in the trip of this round's predictions."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any] | None:
            since = self._since.get((alias, shard.party))
            if since is None:
                return None
            change = model.shared[alias].theta - since
            centre = ridge_of(model.shared[alias]).centre(change)
            return {**model.sent({alias: change})[alias], "centre": centre, **model.precision}

        lost = {alias for alias, _ in self._since}
        self._late = model.lou.client.ask("model.apply", arguments, self.instead, only=lost)

    def learn(self, found: Stepped, steps: int) -> None:
        """Find out from the replies of a round which parties are lost; tables store ``steps`` steps."""
        model, before = self.model, (self.still, set(self._since))
        assert self._late is not None, "asked with the predictions of this round"
        self.still, self._missed, late_replies = found.still, {}, self._late.read()
        for alias, are_lost in found.missed.items():
            late = iter(late_replies[alias])
            for shard, is_lost in zip(model.lou.client.shards(alias), are_lost, strict=True):
                place = (alias, shard.party)
                late_prediction = next(late)["outputs"] if place in self._since else None
                if is_lost:
                    self._since.setdefault(place, model.shared[alias].theta)
                elif late_prediction is not None:
                    del self._since[place]
                    self._add(alias, shard, late_prediction)
        self.changed = before != (self.still, set(self._since))
        products = {alias: facts["products"] for alias, facts in found.facts.items()}
        if self.changed:  # tables no longer store the same steps
            self._products |= {alias: each[np.ix_([0, -1], [0, -1])] for alias, each in products.items()}
        else:
            model.check_products(products, steps + 2)
            self._products |= {a: _with_earlier(each, self._products.get(a)) for a, each in products.items()}

    def _add(self, alias: str, shard: ShardRows, prediction: Array) -> None:
        if alias not in self._missed:
            rows = self.model.loj.rows.tables[alias].rows
            self._missed[alias] = np.zeros((rows, *prediction.shape[1:]))
        self._missed[alias][shard.slice] = prediction

    def correct(self, intercept: Array) -> None:
        """Correct the scores for the parties that were lost or returned."""
        model = self.model
        if model.lou.client.outbox.when_lost.stand_in == "zeros":
            model.predict(intercept)
        elif self._missed:
            model.loj.add(self._missed)

    def total(self, steps: int) -> Array:
        """Inner products over all tables; of lost tables only those of the parameters count."""
        steps = 0 if self.changed else steps
        products = [each for alias, each in self._products.items() if alias not in self.still]
        found = np.sum([np.zeros((steps + 2, steps + 2)), *products], axis=0)
        found[-1, -1] += sum(self._squares.get(alias, 0.0) for alias in self.still)
        return np.asarray(found)

    def advance(self, mix: Array) -> None:
        """Store |theta|^2 of every table that took this step, in case it is lost later."""
        for alias in set(self._products) - self.still:
            whole = np.zeros(len(self._products[alias]))
            whole[: len(mix)], whole[-1] = mix, 1.0
            self._squares[alias] = float(whole @ self._products[alias] @ whole)


def _with_earlier(products: Array, before: Array | None) -> Array:
    """All inner products of direction, steps and parameters.

    Those of the oldest steps with each other were returned one round before, when each was one place earlier.
    """
    rows, size = products.shape
    if rows == size:
        return products
    assert before is not None, "steps are known from a round before"
    found = np.empty((size, size))
    own, old = np.append(np.arange(rows - 1), size - 1), np.s_[rows - 1 : size - 1]
    found[own], found[:, own] = products, products.T
    found[old, old] = before[rows - 2 : size - 2, rows - 2 : size - 2]
    return found
