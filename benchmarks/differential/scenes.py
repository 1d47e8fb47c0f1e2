"""Random federations: one to three tables that join on keys, each in one or two shards, with difficult columns.

Table ``f`` has the label and the keys ``ka`` and ``kb`` of tables ``a`` and ``b``. Keys repeat, dangle and are NULL, so
that base rows count several times or not at all; outer joins keep them beside a missing row. Columns are called by
their table: ``f0``, ``a1``; an alias may stand for a subquery over the table of its name. `Star` writes the tables into
databases of several kinds, opens them in this process or behind Arrow Flight services, and materialises what a relation
stands for.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.party.config import Limits
from tablepuppet.party.policy import Policy
from tests.relations import write_party
from tests.wire.services import calling, served

from .report import Report

Array = NDArray[np.float64]
Random = np.random.Generator
KINDS = ("parquet", "duckdb", "arrow", "sqlite")
FAR = Limits(max_prediction_rounds=10**6, max_matrix_columns=10**6)
WORDS = ("a", "b", "c", "B", "é", "10", "9", " a", "none", "x y")


def number(rng: Random, rows: int, *, far: float = 9.0, missing: bool = True) -> Array:
    """A column of numbers: of any shape, scale and mean (up to 10 ** far times its spread), with missing values."""
    shapes = (
        lambda: rng.normal(size=rows),
        lambda: rng.uniform(-1, 1, rows),
        lambda: rng.exponential(size=rows),
        lambda: rng.standard_t(3, rows),
        lambda: rng.integers(0, 5, rows).astype(float),
        lambda: (rng.random(rows) < 0.1).astype(float),
        lambda: np.exp(rng.normal(size=rows)),
    )
    drawn = shapes[rng.integers(len(shapes))]()
    spread = 10 ** rng.uniform(-3, 3) if rng.random() < 0.5 else 1.0
    mean = 10 ** rng.uniform(0, far) * rng.choice([-1, 1]) if rng.random() < 0.6 else 0.0
    found = spread * (drawn + mean)
    if missing and rng.random() < 0.4:
        found[rng.random(rows) < rng.choice([0.02, 0.2, 0.6])] = np.nan
    return np.asarray(found)


def text(rng: Random, rows: int, *, missing: bool = True) -> list[str | None]:
    """A column of categories: some rare, some missing."""
    words = list(rng.permutation(WORDS)[: rng.integers(2, len(WORDS))])
    shares = rng.dirichlet(np.full(len(words), 0.8))
    found: list[str | None] = [str(word) for word in rng.choice(words, rows, p=shares)]
    if missing and rng.random() < 0.4:
        found = [None if lost else word for word, lost in zip(found, rng.random(rows) < 0.2, strict=True)]
    return found


def column(rng: Random, rows: int, far: float = 9.0) -> pa.Array:
    """A column of any type."""
    kind = rng.choice(["number", "number", "number", "integer", "decimal", "boolean", "date", "text", "text"])
    lost = rng.random(rows) < (0.15 if rng.random() < 0.3 else 0.0)
    if kind == "number":
        return nullable(number(rng, rows, far=far))
    if kind == "integer":
        return pa.array(rng.integers(-50, 50, rows) + int(10 ** rng.uniform(0, far)), pa.int64(), mask=lost)
    if kind == "decimal":
        cents = rng.integers(-(10**6), 10**6, rows) + int(10 ** rng.uniform(0, min(far, 9)))
        return pa.array([None if gone else cent / 100 for cent, gone in zip(cents, lost, strict=True)]).cast(
            pa.decimal128(18, 2)
        )
    if kind == "boolean":
        return pa.array(rng.random(rows) < 0.3, mask=lost)
    if kind == "date":
        return pa.array(rng.integers(0, 20_000, rows).astype("datetime64[D]"), pa.date32(), mask=lost)
    return pa.array(text(rng, rows), pa.string())


def nullable(values: Array) -> pa.Array:
    """NaN as NULL."""
    return pa.array(values, pa.float64(), from_pandas=True)


def key(rng: Random, values: int, rows: int) -> pa.Array:
    """A foreign key that sometimes points nowhere, or is NULL."""
    return pa.array(rng.integers(0, values + 1, rows), pa.int64(), mask=rng.random(rows) < 0.03)


@dataclass(frozen=True)
class Subquery:
    """A SELECT over a table, and one that has its rows at the places that `Relation.rows` names."""

    text: str
    placed: str


@dataclass
class Star:
    """Whole tables, and into how many shards each is cut; every shard is at a party of its own."""

    tables: dict[str, pa.Table]
    shards: dict[str, int]
    kinds: dict[str, str] = field(default_factory=dict)  # of database, by party
    joins: dict[str, str] = field(default_factory=dict)  # LEFT, RIGHT or FULL, by table
    conditions: dict[str, str] = field(default_factory=dict)  # of ON beside the keys, by table
    subqueries: dict[str, Subquery] = field(default_factory=dict)  # by the table that they are over

    @property
    def parties(self) -> dict[str, dict[str, pa.Table]]:
        """What each party publishes: one shard of one table."""
        found = {}
        for name, rows in self.tables.items():
            cuts = np.linspace(0, len(rows), self.shards[name] + 1).astype(int)
            for shard in range(self.shards[name]):
                found[f"{name}_{shard}"] = {name: rows.slice(cuts[shard], cuts[shard + 1] - cuts[shard])}
        return found

    def columns(self, *kinds: str) -> list[str]:
        """Columns that may be selected, by kind: number, text, date, boolean; all without."""
        return [
            name
            for alias in self.tables
            for rows in [self.rows(alias)]
            for name in rows.column_names
            if name[0] == alias and name[1:].isdigit() and (not kinds or kind_of(rows.schema.field(name).type) in kinds)
        ]

    def sql(self, columns: Sequence[str], label: str | None = None, where: str = "") -> str:
        """The join, with the columns selected."""
        selected = [f"{name[0]}.{name}" for name in columns] + ([f"f.{label}"] if label else [])
        joins = "".join(
            f" {self.joins.get(name, '')} JOIN {self._source(name)} ON f.k{name} = {name}.k{name}"
            f"{self.conditions.get(name, '')}"
            for name in self.tables
            if name != "f"
        )
        return f"SELECT {', '.join(selected)} FROM {self._source('f')}{joins}{where}"

    def _source(self, name: str) -> str:
        return f"({self.subqueries[name].text}) AS {name}" if name in self.subqueries else name

    def rows(self, name: str) -> pa.Table:
        """The rows under an alias, all shards: what its subquery makes, by DuckDB."""
        if name not in self.subqueries:
            return self.tables[name]
        with duckdb.connect() as connection:
            connection.register(name, self.tables[name].append_column("__row", pa.array(range(len(self.tables[name])))))
            return connection.sql(self.subqueries[name].placed).to_arrow_table()

    def urls(self, folder: Path) -> dict[str, str]:
        """New databases, by party."""
        folder.mkdir(exist_ok=True)
        return {
            party: write(folder, party, tables, self.kinds.get(party, "parquet"))
            for party, tables in self.parties.items()
        }

    @contextmanager
    def served(self, urls: dict[str, str], policy: Policy | None = None, **settings: Any) -> Iterator[tp.Federation]:
        """A federation of services over the databases."""
        with ExitStack() as stack:
            yield calling(stack.enter_context(served(urls, limits=FAR, policy=policy)), **settings)

    def joined(self, relation: tp.Relation) -> pa.Table:
        """The joined rows as SELECT has them, with the label, in the order of `Relation.rows`."""
        places, label = relation.rows(), relation.query.label
        wanted = [*relation.columns, *([label.name] if label else [])]
        found: dict[str, pa.ChunkedArray] = {}
        for alias in relation.plan.tables:
            taken = self._taken(alias, places)
            found |= {name: taken[name] for name in wanted if name in taken.column_names}
        return pa.table({name: found[name] for name in wanted})

    def check(self, report: Report, relation: tp.Relation, asked: str) -> None:
        """The joined rows are those that DuckDB makes of the same SQL over whole tables."""
        with duckdb.connect() as connection:
            for name, rows in self.tables.items():
                connection.register(name, rows)
            expected = Counter(tuple(map(_short, row)) for row in connection.execute(asked).fetchall())
        joined = self.joined(relation)
        found = Counter(tuple(map(_short, row)) for row in zip(*(c.to_pylist() for c in joined.columns), strict=True))
        more, fewer = sum((found - expected).values()), sum((expected - found).values())
        report.that("joined rows", found == expected, f"{more} too many, {fewer} too few: {asked}")

    def frame(self, relation: tp.Relation) -> pd.DataFrame:
        """The same for pandas."""
        found = self.joined(relation)
        return pd.DataFrame({name: as_pandas(found[name]) for name in found.column_names})

    def _taken(self, alias: str, places: pa.Table) -> pa.Table:
        """The rows of one table that joined rows come from; NULLs where there is none."""
        parts = {party: tables[alias] for party, tables in self.parties.items() if alias in tables}
        starts = dict(zip(parts, np.cumsum([0, *map(len, parts.values())]), strict=False))
        pairs = zip(places[f"{alias}.party"].to_pylist(), places[f"{alias}.row"].to_pylist(), strict=True)
        taken = [None if party is None else int(starts[party]) + row for party, row in pairs]
        return self.rows(alias).take(pa.array(taken, pa.int64()))


def _short(value: Any) -> Any:
    """A float without the digits that depend on the order of a sum."""
    return f"{value:.12g}" if isinstance(value, float) else value


def star(rng: Random, *, rows: int = 300, far: float = 9.0, columns: int = 3, label: bool = False) -> Star:
    """One to three tables with up to ``columns`` columns each of any type. Who asks for a ``label`` adds it to ``f``,
    which then has a row in every joined row.
    """
    tables = {"f": pa.table({"fid": np.arange(rows)})}
    for name in ("a", "b")[: rng.integers(0, 3)]:
        values = int(rng.integers(5, 40))
        keys = np.arange(values) if rng.random() < 0.6 else rng.integers(0, values, values + 5)
        tables[name] = pa.table({f"k{name}": pa.array(keys, pa.int64(), mask=rng.random(len(keys)) < 0.03)})
        tables["f"] = tables["f"].append_column(f"k{name}", key(rng, values, rows))
    for name, table in tables.items():
        for place in range(int(rng.integers(1 + (name == "f"), columns + 1))):
            table = table.append_column(f"{name}{place}", column(rng, len(table), far))
        tables[name] = table
    return with_joins(rng, Star(tables, {name: int(rng.integers(1, 3)) for name in tables}), label)


def with_joins(rng: Random, scene: Star, label: bool = True) -> Star:
    """The same tables, some of which are joined by outer joins, with conditions, or are subqueries over them."""
    others = [name for name in scene.tables if name != "f"]
    for name in others:
        last = not label and name == others[-1]
        scene.joins[name] = str(rng.choice(["", "", "LEFT", "LEFT", *(["RIGHT", "FULL"] if last else [])]))
        if rng.random() < 0.2:
            scene.conditions[name] = str(
                rng.choice([f" AND {name}.k{name} % 3 <> 1", f" AND {name}.{name}0 IS NOT NULL"])
            )
        if rng.random() < 0.3:
            scene.subqueries[name] = _subquery(rng, scene, name)
    return scene


def _subquery(rng: Random, scene: Star, name: str) -> Subquery:
    """Rows of a table, or groups if it has one shard."""
    key, rows = f"k{name}", scene.tables[name]
    listed = [each for each in rows.column_names if each != key]
    if scene.shards[name] > 1 or rng.random() < 0.3:
        items = ", ".join([key, *listed])
        where = str(rng.choice(["", f" WHERE {key} > 4", f" WHERE {listed[0]} IS NOT NULL"])) if listed else ""
        return Subquery(f"SELECT {items} FROM {name}{where}", f"SELECT {items} FROM {name} ORDER BY __row")
    made = [key]
    for each in listed:
        kinds = {"number": ["avg", "min", "median", "count"], "text": ["max", "min", "mode"], "boolean": ["bool_or"]}
        made.append(f"{rng.choice(kinds.get(kind_of(rows.schema.field(each).type), ['max']))}({each}) AS {each}")
    text = f"SELECT {', '.join(made)} FROM {name} GROUP BY {key}{' HAVING count(*) < 3' * (rng.random() < 0.3)}"
    return Subquery(text, f"{text} ORDER BY min(__row)")


def with_kinds(rng: Random, scene: Star) -> Star:
    """The same tables in databases of any kind that keeps their types."""
    for party, tables in scene.parties.items():
        plain = all(kind_of(field.type) in ("number", "text") for rows in tables.values() for field in rows.schema)
        decimal = any(pa.types.is_decimal(field.type) for rows in tables.values() for field in rows.schema)
        scene.kinds[party] = str(rng.choice(KINDS if plain and not decimal else KINDS[:-1]))
    return scene


def drawn_columns(rng: Random, scene: Star, *kinds: str) -> list[str]:
    """Some columns of these kinds, at least one if there are any, in any order."""
    known = scene.columns(*kinds)
    return [str(name) for name in rng.permutation(known)[: rng.integers(1, len(known) + 1)]] if known else []


def kind_of(kind: pa.DataType) -> str:
    """What a column is to a pipeline: number, boolean, date or text."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "text" if pa.types.is_string(kind) else "number"


def as_pandas(values: pa.ChunkedArray) -> pd.Series:
    """Numbers, booleans and dates (as days) as floats with NaN, text as objects with None."""
    if pa.types.is_string(values.type):
        return pd.Series(values.to_pylist(), dtype=object)
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())  # Arrow's cast to floats misses the nearest one by a bit now and then
    return pd.Series(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=float)


def exact(relation: tp.Relation) -> Array:
    """The encoded matrix of a relation of databases in this process with ``wire="float64"``."""
    X = relation.matrix()
    return np.asarray(X @ np.eye(X.shape[1]))


def write(folder: Path, party: str, tables: dict[str, pa.Table], kind: str) -> str:
    """The URL of a new database of a kind."""
    if kind != "sqlite":
        return write_party(folder, party, tables, kind)
    types = {"number": "DOUBLE", "text": "TEXT"}
    with sqlite3.connect(folder / f"{party}.db") as connection:
        for table, rows in tables.items():
            listed = ", ".join(
                f"{field.name} {'BIGINT' if pa.types.is_integer(field.type) else types[kind_of(field.type)]}"
                for field in rows.schema
            )
            connection.execute(f"CREATE TABLE {table} ({listed})")
            marks = ", ".join("?" * len(rows.schema))
            connection.executemany(
                f"INSERT INTO {table} VALUES ({marks})", zip(*(each.to_pylist() for each in rows.columns), strict=True)
            )
    connection.close()
    return f"sqlite:///{folder / party}.db"
