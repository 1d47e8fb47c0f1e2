"""Parameters where they belong: with the party for a table of one shard, with the coordinator for one of several (LoU).

Ops of a model are named by its family: ``<family>.predict`` uses the parameters that the party holds, ``.image``
those it is told, ``.parameters`` lets them out. What a party has of a model is in part.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.part import Part
from tablepuppet.learn.stored import Kept, KeptNoise, Stored
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.prep.encode import Encoding

Array = NDArray[np.float64]


PartT = TypeVar("PartT", bound=Part)


class PlacedModel(ABC, Generic[PartT]):
    """The coordinator's side of a model that is a sum over tables."""

    family: ClassVar[str]

    @property
    @abstractmethod
    def shared(self) -> Mapping[str, PartT]:
        """Parts of the tables in `together`."""

    def __init__(self, client: Client, encoding: Encoding, wire: str, outputs: int, l2: float, model: str):
        self.encoding, self.outputs, self.l2, self.model = encoding, outputs, l2, model
        self.loj, self.lou = LearningOverJoin(client.mapping), LearningOverUnion(client, wire)
        tables = [alias for alias in client.mapping.tables if encoding.names(alias) and client.shards(alias)]
        self.alone = [alias for alias in tables if self.lou.shards(alias) == 1]
        self.together = [alias for alias in tables if alias not in self.alone]
        self.mean = np.zeros(outputs)  # of predictions over the rows that were learned from, as the intercept has it
        self._kept: dict[str, Array] = {}
        self._changes = client.outbox.changes
        self._told: dict[tuple[str, str, str], Floats] = {}  # by view, alias and party: the last predictions

    @property
    def tables(self) -> list[str]:
        """Tables with at least one encoded column."""
        return [*self.alone, *self.together]

    @property
    def shape(self) -> dict[str, Any]:
        """What a party must be told beside parameters to use them."""
        return {}

    def for_gradient(self, alias: str) -> dict[str, Any]:
        """What the shards of a table must be told to differentiate at their rows."""
        return {}

    def gradient_bound(self, alias: str, rows: Floats) -> dict[str, float]:
        """About how large the gradient of a table can be that is asked to answer ``rows``."""
        return {"sums": self.lou.bound(rows)}

    def ask_images(self, thetas: Mapping[str, Array], instead: Instead | None = None) -> Replies:
        """Ask for predictions of base rows for parameters that the coordinator tells."""
        return self._ask_told(self.lou, thetas, instead)

    def _ask_told(self, lou: LearningOverUnion, thetas: Mapping[str, Array], instead: Instead | None) -> Replies:
        return ask_images(lou, self.family, self.encoding, thetas, self.shape, instead)

    def _ask_held(self, lou: LearningOverUnion, aliases: list[str], instead: Instead | None) -> Replies:
        """Ask for predictions of base rows for parameters that parties hold."""
        return lou.ask(f"{self.family}.predict", aliases, instead=instead, encoding=self.encoding.id, model=self.model)

    def joined(self, replies: Mapping[str, list[Mapping[str, Any]]], aliases: Iterable[str]) -> dict[str, Floats]:
        """The predictions in replies, over the rows of each table."""
        return {alias: self.lou.concatenate(replies[alias], "image") for alias in aliases}

    def nothing(self, shard: ShardRows) -> Array:
        """Predictions of a shard that has none."""
        rows = len(shard.row_ids)
        return np.zeros(rows if self.outputs == 1 else (rows, self.outputs))

    def instead(self, client: Client) -> Instead:
        """What stands in for predictions of a shard that is lost: the last that it told, or zeros."""

        def stand_in(alias: str, shard: ShardRows) -> dict[str, Any]:
            told = self._told.get((client.view, alias, shard.party))
            return {"image": self.nothing(shard) if told is None else told}

        return stand_in

    def predicted(self, client: Client, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The predictions in replies, over the rows of each table; they are kept in case a party is lost."""
        if client.outbox.when_lost.stand_in == "cache":
            for alias in aliases:
                for shard, reply in zip(client.shards(alias), replies[alias], strict=True):
                    self._told[client.view, alias, shard.party] = reply["image"]
        return self.joined(replies, aliases)

    def gathered(self, replies: Replies, still: Iterable[str] = ()) -> Array:
        """The sum over tables for the joined rows it learns from; ``replies`` are those of tables in `alone`, but for
        those that are ``still`` lost.
        """
        client, instead = self.lou.client, self.instead(self.lou.client)
        shared = self.ask_images({alias: part.theta for alias, part in self.shared.items()}, instead)
        asked = [alias for alias in self.alone if alias not in still]
        found = self.predicted(client, shared, self.together) | self.predicted(client, replies, asked)
        found |= {alias: instead(alias, client.shards(alias)[0])["image"] for alias in still}
        return self.loj.gather(found, self.outputs)

    def predictions(self) -> Array:
        """The sum over tables for the joined rows it learns from, as it stands."""
        return self.gathered(self._ask_held(self.lou, self.alone, self.instead(self.lou.client)))

    def all_return(self) -> bool:
        """Whether nobody is lost; who is has one more timeout to come back."""
        return self.lou.client.outbox.wait_for_all()

    def was_steady(self) -> bool:
        """Whether nobody was lost or came back since this was last asked."""
        before, self._changes = self._changes, self.lou.client.outbox.changes
        return before == self._changes

    @property
    def is_whole(self) -> bool:
        """Whether nobody is lost."""
        return not self.lou.client.outbox.lost

    def scores(self, client: Client, *, learning: bool = False) -> Array:
        """The sum over tables for the rows of a relation, without the intercept.

        While ``learning``, something stands in for parties that are lost; predictions are not made without them.
        """
        if client.outbox is not self.lou.client.outbox:
            self.lou.client.outbox.send()  # the last step may still wait there
        lou = LearningOverUnion(client, self.lou.wire)
        present = [alias for alias in self.tables if client.shards(alias)]
        at_home = [alias for alias in self.alone if parties_of(client, alias) == parties_of(self.lou.client, alias)]
        sent = [alias for alias in present if alias not in at_home]  # shards that did not train: they are told theta
        thetas = self._thetas(sent)
        instead = self.instead(client) if learning else None
        replies, told = self._ask_held(lou, at_home, instead), self._ask_told(lou, thetas, instead)
        found = self.predicted(client, told, thetas) | self.predicted(client, replies, at_home)
        return LearningOverJoin(client.mapping).gather(found, self.outputs)

    def _thetas(self, aliases: Iterable[str]) -> dict[str, Array]:
        """theta of some tables; parties are asked only for those that the coordinator does not hold."""
        alone = [alias for alias in aliases if alias in self.alone]
        replies = self._ask_parameters(alone) if alone else {}
        thetas = {alias: self.shared[alias].theta for alias in aliases if alias in self.together}
        return thetas | {alias: replies[alias][0]["theta"] for alias in alone}

    def _ask_parameters(self, aliases: list[str]) -> Replies:
        return self.lou.ask(f"{self.family}.parameters", aliases, model=self.model)

    def keep(self) -> None:
        """Remember the parameters as they are. Nobody waits for it: it travels with what is asked next."""
        self.lou.ask("model.keep", self.alone, model=self.model)
        self._kept = {alias: part.theta for alias, part in self.shared.items()}

    def restore(self) -> None:
        """Go back to the parameters that were remembered, without a trip of its own."""
        self.lou.ask("model.restore", self.alone, model=self.model)
        for alias, theta in self._kept.items():
            self.shared[alias].theta = theta

    def parameters(self, aliases: Iterable[str] | None = None) -> dict[str, Array]:
        """Parameters by table, of all tables or some."""
        return self._thetas(self.tables if aliases is None else aliases)

    @property
    def unit(self) -> float:
        """What scores of the parameters are multiplied by."""
        return 1.0

    @property
    def keepers(self) -> list[str]:
        """The parties elsewhere that hold parameters."""
        client = self.lou.client
        parties = dict.fromkeys(party for alias in self.alone for party in parties_of(client, alias))
        return [party for party in parties if client.engine.local(party) is None]

    def new_part(self) -> str:
        """A name for what parties keep of it when it is saved."""
        return self.lou.client.new_name()

    def store(self, saved: str, part: str) -> Stored:
        """Let parties elsewhere keep their part of it; the others, and those that cannot, tell their parameters."""
        client, keepers = self.lou.client, self.keepers
        asked = [alias for alias in self.alone if parties_of(client, alias)[0] in keepers]
        replies = self.lou.ask("parts.store", asked, model=self.model, saved=saved, part=part, unit=self.unit)
        answers = {alias: Kept(parties_of(client, alias)[0], replies[alias][0]["kept"]) for alias in asked}
        kept = {alias: answer for alias, answer in answers.items() if answer.fingerprint}
        try:
            thetas = self.parameters([alias for alias in self.tables if alias not in kept])
        except PrivacyError as error:
            unable = ", ".join(repr(answer.party) for answer in answers.values() if not answer.fingerprint)
            if not unable:
                raise
            raise PrivacyError(
                f"{error}; and {unable} cannot keep its part of the model: its operator must set state_dir",
                rule=error.rule,
            ) from error
        return Stored(part, thetas, kept, self.noise_to_keep())

    def noise_to_keep(self) -> KeptNoise | None:
        """How predictions get noise once the model is loaded; None: they get none."""
        return None


def ask_images(
    lou: LearningOverUnion, family: str, encoding: Encoding, thetas: Mapping[str, Array], shape: Mapping[str, Any],
    instead: Instead | None = None,
) -> Replies:  # fmt: skip
    """Ask for predictions of base rows for parameters that parties are told."""
    told = {alias: {"theta": theta} for alias, theta in thetas.items()}
    return lou.ask(f"{family}.image", told, by_alias=told, instead=instead, encoding=encoding.id, **shape)


def parties_of(client: Client, alias: str) -> list[str]:
    """The parties whose shards of a table take part."""
    return [shard.party for shard in client.shards(alias)]
