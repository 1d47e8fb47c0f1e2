"""Who holds the parameters of a model, and how to get, keep and store them, whatever the model computes.

If a table has one shard, its party holds the parameters; if it has several, the coordinator does (LoU). `Holders.step`
takes a solver's step at all of them, so that no solver asks who holds what. The party's ops are in ops.py and saved.py.

Outputs of tables (`TableOutputs`) are predictions, or embeddings (learn/split). They are computed with parameters that
a party holds or has stored, if the shards in the relation are those that hold them. Otherwise the coordinator sends the
parameters: it holds them, or asks for them first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PrivacyError
from tablepuppet.learn.tables.model import TableModel, TableSpec, model_of
from tablepuppet.learn.tables.ops import restore_parameters
from tablepuppet.learn.tables.parameters import TableParameters, first_parameters
from tablepuppet.learn.tables.steps import OverShards, RowGradients, Stepped, Updates
from tablepuppet.mapping.joined_rows import SCORES, JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.store.parts import KeepingParty, KeptNoise, Stored


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
    def has_noisy_outputs(self) -> bool:
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
        instead = None if self.has_noisy_outputs else instead
        return lou.ask(self.held_op, arguments, by_alias=arguments, instead=instead, **self.at_party, **self.precision)

    def ask_applied(self, lou: LearningOverUnion, thetas: Mapping[str, Array], instead: Instead | None) -> Pending:
        """Ask for outputs of base rows with parameters that the coordinator sends."""
        arguments = {alias: given | self.noise_of(alias, thetas[alias]) for alias, given in self.sent(thetas).items()}
        instead = None if self.has_noisy_outputs else instead
        return lou.ask(self.sent_op, arguments, by_alias=arguments, instead=instead, **self.precision)

    def read(self, client: Client, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The outputs in replies, over the rows of each table."""
        return self.joined(replies, aliases)

    def joined(self, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The outputs of shards, one after the other."""
        return {alias: LearningOverUnion.concatenate(replies[alias], "outputs") for alias in aliases}


def parties_of(client: Client, alias: str) -> list[str]:
    """The parties whose shards of a table take part."""
    return [shard.party for shard in client.shards(alias)]


class Holders(TableOutputs):
    """Parameters by table, and who holds them. Training uses y / ``unit``; results are multiplied by ``unit``."""

    def __init__(self, client: Client, encoding: Encoding, wire: str, unit: float = 1.0):
        self.encoding, self.wire, self.unit = encoding, wire, unit
        self._name = client.new_name()
        self.lou = LearningOverUnion(client, wire)
        self._tables = [alias for alias in client.tables if encoding.names(alias) and client.shards(alias)]
        self.alone = [alias for alias in self._tables if self.lou.shards(alias) == 1]
        self.together = [alias for alias in self._tables if alias not in self.alone]
        self._shared: dict[str, TableParameters] = {}
        self._models: dict[str, TableModel] = {}
        self.over: OverShards  # how tables with several shards take a step: set by the kind of model
        self._changes = client.outbox.changes
        self._last_outputs: dict[tuple[str, str, str], Floats] = {}  # by view, alias and party

    @property
    def name(self) -> str:
        """The name under which parties hold their parameters in the session."""
        return self._name

    def begin(self, seed: int, *, zero: Collection[str] = ()) -> None:
        """Create the first parameters from the seed; outputs of the tables in ``zero`` are zero at first."""
        arguments = {
            alias: {"spec": self.spec_of(alias), **({"zero": True} if alias in zero else {})} for alias in self.alone
        }
        self.lou.ask("model.start", self.alone, by_alias=arguments, seed=seed, **self.at_party)
        for alias in self.together:
            numbers = len(self.encoding.numbers[alias])
            self._shared[alias] = first_parameters(self.table_model(alias), seed, alias, numbers, zero=alias in zero)

    def table_model(self, alias: str) -> TableModel:
        """The model of a table."""
        if alias not in self._models:
            self._models[alias] = model_of(self.spec_of(alias), self.width(alias), alias)
        return self._models[alias]

    @property
    def unit_of_outputs(self) -> float:
        """What outputs of tables are multiplied by in results."""
        return self.unit

    @property
    def has_noisy_parameters(self) -> bool:
        """Whether parameters come from noisy values only."""
        return False

    def _noise_to_keep(self) -> KeptNoise | None:
        """The noise of predictions after the model is loaded; None: no noise."""
        return None

    @property
    def shared(self) -> Mapping[str, TableParameters]:
        """The parameters of the tables in `together`."""
        return self._shared

    @property
    def tables(self) -> list[str]:
        """Tables with at least one encoded column, in the order of the query, whoever holds their parameters."""
        return self._tables

    def width(self, alias: str) -> int:
        """Encoded columns of a table."""
        return len(self.encoding.names(alias))

    def rows(self, alias: str) -> int:
        """The number of base rows of a table in the relation."""
        return self.lou.client.tables[alias].rows

    # Outputs of tables.

    def home_of(self, alias: str) -> list[str]:
        """The party of a table with one shard."""
        return parties_of(self.lou.client, alias) if alias in self.alone else []

    def sent_shared(self) -> dict[str, dict[str, Any]]:
        """By table in `together`, the arguments of an op with the parameters that the coordinator holds."""
        return self.sent({alias: part.theta for alias, part in self.shared.items()})

    def ask_outputs(
        self, client: Client, aliases: Iterable[str], instead: Instead | None = None
    ) -> Callable[[], dict[str, Floats]]:
        """Ask for the outputs of all base rows of a relation; the last step, which may be queued, is sent first."""
        if client.outbox is not self.lou.client.outbox:
            self.lou.client.outbox.send()
        return super().ask_outputs(client, aliases, instead)

    def read(self, client: Client, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The outputs in replies, over the rows of each table; they are stored in case a party is lost."""
        found = super().read(client, replies, aliases)
        self._remember(client, found)
        return found

    def _remember(self, client: Client, found: Mapping[str, Floats]) -> None:
        """Store outputs of all rows of tables, in case a party is lost."""
        if client.outbox.when_lost.stand_in == "cache":
            for alias, outputs in found.items():
                for shard in client.shards(alias):
                    self._last_outputs[client.view, alias, shard.party] = outputs[shard.slice]

    def nothing(self, alias: str, shard: ShardRows) -> Array:
        """Zero outputs for the rows of a shard."""
        rows, outputs = len(shard.row_ids), self.spec_of(alias).outputs
        return np.zeros(rows if outputs == 1 else (rows, outputs))

    def instead(self, client: Client) -> Instead:
        """The substitute for outputs of a lost shard: its last ones, or zeros."""

        def stand_in(alias: str, shard: ShardRows) -> dict[str, Any]:
            last = self._last_outputs.get((client.view, alias, shard.party))
            return {"outputs": self.nothing(alias, shard) if last is None else last}

        return stand_in

    # Steps.

    def step(self, updates: Updates, rows: RowGradients | None = None, instead: Instead | None = None) -> Stepped:
        """Take the updates of tables, whoever holds their parameters; return what tables answer.

        ``rows`` are the gradients by predictions, ``instead`` are the substitutes for what a lost party returns.
        """
        asked = [alias for alias in self.alone if alias in updates]
        held = self.lou.ask(
            _op_of(updates), asked, by_alias={alias: updates[alias].arguments for alias in asked}, instead=instead,
            by_shard=None if rows is None else lambda alias, shard: rows.held(self.lou, alias, shard),
            **self.at_party, **self.precision,
        )  # fmt: skip
        facts = self.over.step(updates, rows) if self.together else {}
        parts = self.shared.items() if rows is None or rows.shows else ()
        wanted = {alias: shown for alias, part in parts if alias in updates and (shown := updates[alias].shown(part))}
        applied = self.ask_shown(wanted, rows, instead) if wanted else None
        predictions = {} if applied is None else self.joined(applied.read(), wanted)
        missed = {} if applied is None else {alias: applied.missed(alias) for alias in wanted}
        replies = held.read()
        lost = frozenset(alias for alias in asked if any(held.missed(alias)))
        predictions |= self.joined(replies, [alias for alias in asked if "outputs" in replies[alias][0]])
        return Stepped(predictions, {a: replies[a][0] for a in asked if a not in lost} | facts, lost, missed)

    def tell(self, updates: Updates) -> None:
        """Take updates that have no answer; they travel with the next trip."""
        asked = {alias: updates[alias].arguments for alias in self.alone if alias in updates}
        self.lou.ask(_op_of(updates), asked, by_alias=asked, model=self.name)
        if self.together:
            self.over.step(updates, None)

    def ask_shown(
        self, wanted: Mapping[str, Mapping[str, Any]], rows: RowGradients | None, instead: Instead | None
    ) -> Pending:
        """Ask shards for predictions with parameters, or a direction, that the coordinator holds."""
        arguments = self.sent({alias: shown["theta"] for alias, shown in wanted.items()})
        for alias, shown in wanted.items():
            arguments[alias] |= shown
            if rows is None or not rows.is_batch:
                arguments[alias] |= self.noise_of(alias, shown["theta"])
        return self.lou.ask(
            self.sent_op, arguments, by_alias=arguments, instead=None if self.has_noisy_outputs else instead,
            by_shard=None if rows is None else rows.shown, **self.precision,
        )  # fmt: skip

    # Who is lost.

    def all_return(self) -> bool:
        """Whether no party is lost; it waits one more timeout for lost parties."""
        return self.lou.client.outbox.wait_for_all()

    def was_steady(self) -> bool:
        """Whether no party was lost or returned since the last call."""
        before, self._changes = self._changes, self.lou.client.outbox.changes
        return before == self._changes

    @property
    def is_whole(self) -> bool:
        """Whether no party is lost."""
        return not self.lou.client.outbox.lost

    # Parameters.

    def _thetas(self, aliases: Iterable[str]) -> dict[str, Array]:
        """The parameters of some tables; parties are asked only for those that the coordinator does not hold."""
        listed = list(aliases)
        alone = [alias for alias in listed if alias in self.alone]
        noisy = self.has_noisy_parameters
        pending = self.lou.ask("model.parameters", alone, model=self.name, noisy=noisy) if alone else None
        thetas = {alias: self.shared[alias].theta for alias in listed if alias in self.together}
        replies = pending.read() if pending else {}
        return thetas | {alias: replies[alias][0]["theta"] for alias in alone}

    def keep(self) -> None:
        """Store a copy of the current parameters. The request is sent with the next trip."""
        self.lou.ask("model.keep", self.alone, model=self.name)
        for part in self.shared.values():
            part.kept = part.theta

    def restore(self) -> None:
        """Return to the stored copy of the parameters, without a separate trip."""
        self.lou.ask("model.restore", self.alone, model=self.name)
        for part in self.shared.values():
            restore_parameters("", part)

    def parameters(self, aliases: Iterable[str] | None = None) -> dict[str, Array]:
        """Parameters by table, of all tables or some, in the label's own units."""
        found = self._thetas(self.tables if aliases is None else aliases)
        return {alias: self.table_model(alias).rescaled(theta, self.unit_of_outputs) for alias, theta in found.items()}

    @property
    def keepers(self) -> list[str]:
        """The parties elsewhere that hold parameters."""
        client = self.lou.client
        parties = dict.fromkeys(party for alias in self.alone for party in parties_of(client, alias))
        return [party for party in parties if client.engine.is_service(party)]

    def new_part(self) -> str:
        """A name for what parties store when the model is saved."""
        return self.lou.client.new_name()

    def store(self, saved: str, part: str) -> Stored:
        """Let parties elsewhere store their parameters; the others, and those that cannot, send theirs."""
        client, keepers = self.lou.client, self.keepers
        asked = [alias for alias in self.alone if parties_of(client, alias)[0] in keepers]
        stored = self.lou.ask(
            "parts.store",
            asked,
            model=self.name,
            saved=saved,
            part=part,
            unit=self.unit_of_outputs,
            encoding=self.encoding.id,
        )
        replies = stored.read()
        answers = {alias: KeepingParty(parties_of(client, alias)[0], replies[alias][0]["kept"]) for alias in asked}
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
        return Stored(part, thetas, kept, self._noise_to_keep())


def _op_of(updates: Updates) -> str:
    """The op of all updates; none if there are none."""
    return next(iter(updates.values())).op if updates else ""
