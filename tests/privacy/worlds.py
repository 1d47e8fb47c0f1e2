"""Two neighbouring worlds for audits: tables that differ in the feature cells of one row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import tablepuppet as tp
from tablepuppet.learn.noise.plan import FeatureNoise
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import find_op
from tablepuppet.party.policy import ColumnRule
from tests.privacy.bounded import bounded_federation
from tests.relations import party_of

DELTA = 1e-5
OFTEN, ONCE = 40, 199  # joined rows of the row that is looked for, and of all others together
ROWS = OFTEN + ONCE
BOTH = tp.Privacy(feature_epsilon=1.0, prediction_epsilon=1.0, delta=DELTA)


class World:
    """Tables a and b at two parties, encoded and ready for rounds; what is told of them is asked by op."""

    def __init__(self, folder: Path, first_x: float | None, first_z: float | None, first_y: float = 0.5):
        keys = [0] * OFTEN + list(range(1, ONCE + 1))
        y = [first_y] * OFTEN + [0.5] * ONCE
        a = pa.table({"k": keys, "x": pa.array([first_x, *[1.0] * (ROWS - 1)]), "y": y})
        b = pa.table({"k": range(ONCE + 1), "z": pa.array([first_z, *[1.0] * ONCE])})
        rules = {name: ColumnRule(bounds=(-1.0, 1.0)) for name in ("x", "z")}
        self.fed = bounded_federation(folder, {"p": {"a": a}, "q": {"b": b}}, rules)
        self.relation = self.fed.sql("SELECT a.x, b.z, a.y FROM a JOIN b USING (k)", label="y")
        model = tp.LinearRegression(rounds=1, privacy=BOTH).fit(self.relation)
        self.encoding, self.promise = model.encoding_.id, model._promise
        self.runs = 0

    @property
    def model(self) -> str:
        """The name of the run's model."""
        return f"run {self.runs}"

    def ask(self, alias: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """What a party answers to a coordinator."""
        return find_op(op)(self.table(alias), {"view": self.relation.client.view, **arguments})

    def table(self, alias: str) -> LocalTable:
        """The table at its party."""
        party = party_of(self.fed.engine, "p" if alias == "a" else "q")
        return party.table(self.relation.client.session, alias)

    def start(self, alias: str, noise: FeatureNoise) -> dict[str, Any]:
        """Begin a model; the arguments of its rounds."""
        rows = self.relation.mapping.tables[alias].rows
        known = {"encoding": self.encoding, "model": self.model}
        self.ask(alias, "ridge.start", **known, spec=Linear(1), joined_rows=rows, noise=noise.of_gram(rows))
        return {**known, "l2": 0.0, "curvature": 1.0, "noise": noise.of_sums(rows)}

    def forget(self, *aliases: str) -> None:
        """The run is over."""
        for alias in aliases:
            self.table(alias).models.clear()
        self.runs += 1


def worlds(folder: Path, **changed: float | None) -> list[World]:
    """One as it is, and its neighbour: a row's cells replaced by NULLs."""
    plain: dict[str, Any] = {"first_x": 1.0, "first_z": 1.0}
    return [World(folder / "here", **plain), World(folder / "there", **{**plain, **changed})]
