"""How parties store the parameters of a table, and a loaded model: parties use what they store, the rest is sent.

The op ``parts.store`` writes them into the party's ``state_dir``; for what becomes of them see `store/parts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import Noise, calmed
from tablepuppet.learn.tables.holders import TableOutputs
from tablepuppet.learn.tables.model import Spec
from tablepuppet.learn.tables.parameters import held_parameters
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.operators.lou import Instead
from tablepuppet.party.arguments import Name, PredictionNoise
from tablepuppet.party.kept import KeptCategories, KeptPart
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode.encode import EncodedShard, Encoding
from tablepuppet.store.parts import ASKED, FINGERPRINT, Stored
from tablepuppet.wire.engine import Engine


class Saved(TableOutputs):
    """A model that was loaded, for predictions only: the coordinator holds some parameters, parties others.

    ``noise`` are the arguments for noise on a table's outputs, as in the run that fitted the model.
    """

    def __init__(self, encoding: Encoding, stored: Stored, engine: Engine, wire: str):
        self.encoding, self.stored, self.engine, self.wire = encoding, stored, engine, wire
        self.noise: Mapping[str, dict[str, Any]] = {}
        self.spent: Noise | None = None  # where outputs with noise are counted

    @property
    def name(self) -> str:
        """The name under which parties have stored their parameters."""
        return self.stored.part

    @property
    def tables(self) -> list[str]:
        """Tables that have parameters."""
        return [*self.stored.thetas, *self.stored.kept]

    def home_of(self, alias: str) -> list[str]:
        """The party that has stored the parameters of a table."""
        return [self.stored.kept[alias].party] if alias in self.stored.kept else []

    def noise_of(self, alias: str, theta: Array | None = None) -> dict[str, Any]:
        """The arguments for noise on a table's outputs."""
        return self.noise.get(alias, {})

    def ask_outputs(
        self, client: Client, aliases: Iterable[str], instead: Instead | None = None
    ) -> Callable[[], dict[str, Floats]]:
        """Ask for outputs, and count those with noise."""
        read = super().ask_outputs(client, aliases, instead)
        if self.noise and self.spent is not None:
            self.spent.predicted += 1
        return read

    def parameters(self) -> dict[str, Array]:
        """Parameters by table; parties are asked for those that they store."""
        return dict(self.stored.thetas) | self.stored.fetched(self.engine, self._shape, self.stored.kept)

    def _thetas(self, aliases: Iterable[str]) -> dict[str, Array]:
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

    def _shape(self, alias: str) -> tuple[int, ...]:
        return self.spec_of(alias).over(len(self.encoding.names(alias)), alias).shape

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


class SavedModel(Saved):
    """A sum over tables that was loaded."""

    held_op, sent_op = "model.predict", "model.apply"

    def __init__(self, spec: Spec, encoding: Encoding, stored: Stored, engine: Engine, wire: str):
        super().__init__(encoding, stored, engine, wire)
        self.spec = spec
        if (kept := stored.noise) is not None:
            self.noise = {a: {"noise": PredictionNoise(kept.multiplier, bound)} for a, bound in kept.bounds.items()}

    def spec_of(self, alias: str) -> Spec:
        """The same for every table."""
        return self.spec

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        return self.spec.outputs

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the sum over tables for the rows of a relation; noisy ones are shrunk by their share of noise."""
        LearningOverJoin(rows, self.spec.head).gather(self.ask_outputs(client, self.tables)())
        if (noise := self.stored.noise) is not None:
            rows.each(calm, np.array(noise.mean), noise.square)


def calm(block: Block, mean: Array, noise: float) -> None:
    """Shrink noisy scores of a block by their share of noise."""
    block[SCORES][:] = calmed(block[SCORES], mean, noise)


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
