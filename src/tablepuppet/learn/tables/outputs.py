"""How the coordinator asks tables for the outputs of their models: predictions, or embeddings (learn/split).

A table's outputs are computed with parameters that its party holds or has stored, if its shards in the relation are
those that hold them. Otherwise the coordinator sends the parameters: it holds them, or asks for them first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.tables.model import TableSpec
from tablepuppet.mapping.joined_rows import SCORES, JoinedRows
from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.prep.encode.encode import Encoding


class TableOutputs(ABC):
    """The models of tables, whoever holds their parameters."""

    held_op: ClassVar[str]  # the op for outputs with parameters that the party holds
    sent_op: ClassVar[str]  # the op for outputs with parameters that the coordinator sends

    encoding: Encoding
    wire: str

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which parties hold their parameters."""

    @property
    @abstractmethod
    def tables(self) -> list[str]:
        """Tables that have parameters."""

    @abstractmethod
    def spec_of(self, alias: str) -> TableSpec:
        """What the model of a table is."""

    @abstractmethod
    def home_of(self, alias: str) -> list[str]:
        """The party that holds the parameters of a table; none if the coordinator does."""

    @abstractmethod
    def _thetas(self, aliases: Iterable[str]) -> dict[str, Array]:
        """The parameters of some tables; parties are asked only for those that the coordinator does not hold."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Scores per joined row."""

    @abstractmethod
    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the scores of a relation's rows, without the intercept, into a column of its joined rows.

        While ``learning``, lost parties are replaced by substitutes; otherwise all parties are needed.
        """

    def scores(self, client: Client) -> Array:
        """Scores of the rows of a relation, without the intercept."""
        rows = client.rows.of_scores(self.outputs)
        self.score(client, rows)
        return rows.hand_over(SCORES)

    # Arguments of ops.

    @property
    def at_party(self) -> dict[str, Any]:
        """The arguments of an op that uses parameters at the party."""
        return {"encoding": self.encoding.id, "model": self.name}

    def sent(self, thetas: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
        """By table, the arguments of an op with parameters that the coordinator sends."""
        return {
            alias: {"encoding": self.encoding.id, "spec": self.spec_of(alias), "theta": theta}
            for alias, theta in thetas.items()
        }

    def noise_of(self, alias: str, theta: Array | None = None) -> dict[str, Any]:
        """The arguments for noise on a table's outputs; ``theta`` is None if the party holds the parameters."""
        return {}

    @property
    def precision(self) -> dict[str, Any]:
        """The argument that asks for outputs in another precision than the relation's."""
        return {}

    @property
    def is_noisy(self) -> bool:
        """Whether outputs are corrected for their noise: then there are no substitutes, which would have none."""
        return False

    # Asking.

    def ask_outputs(
        self, client: Client, aliases: Iterable[str], instead: Instead | None = None
    ) -> Callable[[], dict[str, Floats]]:
        """Ask for the outputs of all base rows of a relation; the function that is returned reads them."""
        client.models |= {(self.name, alias): (self.encoding.id, self.spec_of(alias)) for alias in self.tables}
        lou = LearningOverUnion(client, self.wire)
        present = [alias for alias in aliases if client.shards(alias)]
        at_home = [alias for alias in present if parties_of(client, alias) == self.home_of(alias)]
        thetas = self._thetas(alias for alias in present if alias not in at_home)
        held, applied = self.ask_held(lou, at_home, instead), self.ask_applied(lou, thetas, instead)
        return lambda: self.read(client, applied.read(), thetas) | self.read(client, held.read(), at_home)

    def ask_held(self, lou: LearningOverUnion, aliases: Iterable[str], instead: Instead | None) -> Pending:
        """Ask for outputs of base rows with parameters that parties hold."""
        arguments = {alias: self.noise_of(alias) for alias in aliases}
        instead = None if self.is_noisy else instead
        return lou.ask(self.held_op, arguments, by_alias=arguments, instead=instead, **self.at_party, **self.precision)

    def ask_applied(self, lou: LearningOverUnion, thetas: Mapping[str, Array], instead: Instead | None) -> Pending:
        """Ask for outputs of base rows with parameters that the coordinator sends."""
        arguments = {alias: given | self.noise_of(alias, thetas[alias]) for alias, given in self.sent(thetas).items()}
        instead = None if self.is_noisy else instead
        return lou.ask(self.sent_op, arguments, by_alias=arguments, instead=instead, **self.precision)

    def read(self, client: Client, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The outputs in replies, over the rows of each table."""
        return self.joined(replies, aliases)

    def joined(self, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The same."""
        return {alias: LearningOverUnion.concatenate(replies[alias], "outputs") for alias in aliases}


def parties_of(client: Client, alias: str) -> list[str]:
    """The parties whose shards of a table take part."""
    return [shard.party for shard in client.shards(alias)]
