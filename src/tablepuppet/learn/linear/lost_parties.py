"""Tables of a linear model whose party is lost for some rounds (on_party_lost = "cache" or "zeros").

A table that is lost answers with a zero direction: its parameters stand still. Earlier steps have moved it, so they are
forgotten whenever a party is lost or comes back, and none made since moves it. What the scores hold of it:

- "cache": its last predictions. They are still true when it returns, except for a shard of a table with several: the
  block is held by the coordinator and goes on with the other shards, so the shard is asked for what it missed,
  T_q (theta - theta when it was lost).
- "zeros": nothing. Scores are made anew from the predictions of those who are there, in one more trip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.products import check_products
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Pending

Array = NDArray[np.float64]
ShardKey = tuple[str, str]  # alias, party


class LostParties:
    """Who is lost, and what the scores lack because of it."""

    def __init__(self, model: FederatedModel):
        self.model = model
        self.still: set[str] = set()  # tables with one shard that stand still
        self.changed = False  # whether somebody was lost or came back in this round
        self._since: dict[ShardKey, Array] = {}  # shards that are lost: the parameters that their predictions are of
        self._missed: dict[str, Array] = {}  # what the scores of shards that came back lack, by base rows
        self._products: dict[str, Array] = {}
        self._squares: dict[str, float] = {}

    def instead(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """What stands in for a direction."""
        return {"image": self.model.nothing(shard), "products": None}

    def ask_missed(self) -> Pending:
        """Ask shards that are lost for what the scores lack of them; to be read after the predictions of this round."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any] | None:
            known = self._since.get((alias, shard.party))
            if known is None:
                return None
            return {"encoding": model.encoding.id, "spec": model.spec, "theta": model.shared[alias].theta - known}

        return model.lou.client.ask("model.apply", arguments, self.instead)

    def learn(self, directions: Pending, predictions: Pending, missed: Pending) -> None:
        """Learn from the replies of a round who is lost."""
        model, before = self.model, (self.still, set(self._since))
        self.still = {alias for alias in model.alone if any(directions.missed(alias))}
        self._missed, replies, late_replies = {}, directions.read(), missed.read()
        for alias in model.together:
            late = iter(late_replies[alias])
            for shard, is_lost in zip(model.lou.client.shards(alias), predictions.missed(alias), strict=True):
                place = (alias, shard.party)
                told = next(late)["image"] if place in self._since else None
                if is_lost:
                    self._since.setdefault(place, model.shared[alias].theta)
                elif told is not None:
                    del self._since[place]
                    self._add(alias, shard, told)
        self.changed = before != (self.still, set(self._since))
        self._products |= {a: replies[a][0]["products"] for a in model.alone if a not in self.still}

    def _add(self, alias: str, shard: ShardRows, told: Array) -> None:
        if alias not in self._missed:
            rows = self.model.loj.mapping.tables[alias].rows
            self._missed[alias] = np.zeros((rows, *told.shape[1:]))
        self._missed[alias][shard.slice] = told

    def correct(self, intercept: Array) -> None:
        """Let scores be as they are with those who are there now."""
        model = self.model
        if model.lou.client.outbox.when_lost.stand_in == "zeros":
            model.predict(intercept)
        elif self._missed:
            model.loj.add(self._missed)

    def total(self, told: dict[str, Array], shared: list[Array], steps: int) -> Array:
        """Inner products over all tables, of which those that stand still only have parameters."""
        products = [*told.values(), *shared]
        if self.changed:  # the steps that tables remember are no longer the same
            ends = np.ix_([0, -1], [0, -1])
            products, steps = [each[ends] for each in products], 0
        else:
            check_products(self.model.lou.client, told, steps + 2)
        found = np.sum([np.zeros((steps + 2, steps + 2)), *products], axis=0)
        found[-1, -1] += sum(self._squares.get(alias, 0.0) for alias in self.still)
        return np.asarray(found)

    def advance(self, mix: Array) -> None:
        """Keep |theta|^2 of every table that took this step, for when it is lost."""
        for alias in set(self._products) - self.still:
            whole = np.zeros(len(self._products[alias]))
            whole[: len(mix)], whole[-1] = mix, 1.0
            self._squares[alias] = float(whole @ self._products[alias] @ whole)
