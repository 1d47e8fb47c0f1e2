"""How parties store the parameters of a table, and a loaded model: parties use what they store, the rest is sent.

The op ``parts.store`` writes them into the party's ``state_dir``; for what becomes of them see `store/parts.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import Noise
from tablepuppet.learn.noise.predictions import calmed
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.outputs import parties_of
from tablepuppet.learn.tables.parameters import held_parameters
from tablepuppet.mapping.joined_rows import SCORES
from tablepuppet.operators.client import Client
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.arguments import Name, PredictionNoise
from tablepuppet.party.kept import KeptCategories, KeptPart
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode.encode import EncodedShard, Encoding
from tablepuppet.store.parts import ASKED, FINGERPRINT, KeptNoise, Stored
from tablepuppet.wire.engine import Engine


class SavedParameters(ABC):
    """Parameters loaded from a folder, whatever the model computes: the coordinator holds some, parties others."""

    def __init__(self, encoding: Encoding, stored: Stored, engine: Engine, wire: str):
        self.encoding, self.stored, self.engine, self.wire = encoding, stored, engine, wire

    @abstractmethod
    def _shape(self, alias: str) -> tuple[int, ...]:
        """The shape of a table's parameters."""

    def parameters(self) -> dict[str, Array]:
        """Parameters by table; parties are asked for those that they store."""
        return dict(self.stored.thetas) | self.stored.fetched(self.engine, self._shape, self.stored.kept)

    def to_send(self, aliases: Iterable[str]) -> dict[str, Array]:
        """The parameters of tables whose shards in a relation are not those that store them."""
        listed = list(aliases)
        kept = [alias for alias in listed if alias not in self.stored.thetas]
        try:
            thetas = {**self.stored.thetas, **self.stored.fetched(self.engine, self._shape, kept)}
        except PrivacyError as error:
            raise PrivacyError(
                f"{error}; the relation has other shards of table {', '.join(map(repr, kept))} than the one that keeps "
                "its parameters, and they would be sent there: predict over that shard alone, or fit it again over all",
                rule=error.rule,
            ) from error
        return {alias: thetas[alias] for alias in listed}

    @property
    def keepers(self) -> list[str]:
        """The parties that store their own parameters."""
        return self.stored.parties

    def new_part(self) -> str:
        """A name for what parties store when the model is saved again."""
        return f"{self.engine.new_session()}.0"

    def store(self, saved: str, part: str) -> Stored:
        """Let parties store their parameters again; from now on this copy is used."""
        self.stored = self.stored.copied(self.engine, saved, part)
        return self.stored


class SavedModel(SavedParameters):
    """A sum over tables that was loaded, for predictions only."""

    def __init__(self, spec: Spec, encoding: Encoding, stored: Stored, engine: Engine, wire: str):
        super().__init__(encoding, stored, engine, wire)
        self.spec = spec
        self.spent: Noise | None = None  # where predictions with noise are counted

    def scores(self, client: Client) -> Array:
        """The sum over tables for the rows of a relation, without the intercept."""
        known = [*self.stored.thetas, *self.stored.kept]
        client.models |= {(self.stored.part, alias): (self.encoding.id, self.spec) for alias in known}
        lou = LearningOverUnion(client, self.wire)
        present = {alias for alias in known if client.shards(alias)}
        at_home = [a for a, kept in self.stored.kept.items() if parties_of(client, a) == [kept.party]]
        sent = self.to_send(alias for alias in known if alias in present and alias not in at_home)
        noise = self.stored.noise
        if noise is not None:
            assert self.spent is not None, "it comes with the noise"
            self.spent.images += 1
        kept = lou.ask(
            "model.predict", at_home, by_alias={a: _with_noise(noise, a) for a in at_home}, encoding=self.encoding.id,
            model=self.stored.part,
        )  # fmt: skip
        given = {alias: {"theta": theta, **_with_noise(noise, alias)} for alias, theta in sent.items()}
        applied = lou.ask("model.apply", given, by_alias=given, encoding=self.encoding.id, spec=self.spec)
        replies, at_homes = applied.read(), kept.read()
        found = {alias: lou.concatenate(replies[alias], "outputs") for alias in sent}
        found |= {alias: lou.concatenate(at_homes[alias], "outputs") for alias in at_home}
        rows = client.rows.of_scores(self.spec.outputs)
        LearningOverJoin(rows).gather(found)
        scores = rows.hand_over(SCORES)
        return scores if noise is None else calmed(scores, np.array(noise.mean), noise.square)

    def _shape(self, alias: str) -> tuple[int, ...]:
        return self.spec.theta_shape(len(self.encoding.names(alias)))


def _with_noise(noise: KeptNoise | None, alias: str) -> dict[str, Any]:
    """Predictions get noise as in the run that fitted the model."""
    return {} if noise is None else {"noise": PredictionNoise(noise.multiplier, noise.bounds[alias])}


@op("parts.store", asked=ASKED, releases=Release.COUNTS, returns={"kept": FINGERPRINT})
def store(table: LocalTable, view: str, model: str, saved: Name, part: Name, unit: float, encoding: str = "") -> Values:
    """Store the party's parameters as ``part`` of the model that is saved as ``saved``.

    With it go the digests of the categories that ``encoding`` encodes by: the owner can find out what codes mean.

    Answers with a fingerprint, which is empty where nothing is kept. A request that was answered before writes nothing:
    the part may be forgotten since.
    """
    if table.is_repeat or not table.shelf.keeps:
        return {"kept": ""}
    found = held_parameters(table, model)
    theta = found.model.rescaled(found.theta, unit)
    kept = KeptPart.of(saved, part, table.snapshot.scan, theta, found.model.spec)
    built = table.state.get(f"{view}/{encoding}")
    if isinstance(built, EncodedShard):
        named = tuple(
            KeptCategories(each.column, each.family, each.digests.tobytes()) for each in built.data.empty.known
        )
        kept = msgspec.structs.replace(kept, encoding=encoding, categories=named)
    return {"kept": table.shelf.put(kept)}
