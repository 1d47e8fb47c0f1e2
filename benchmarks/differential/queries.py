"""Random joins, unions, shards and filters: the joined rows are those of DuckDB over the raw tables.

Keys repeat, dangle and are NULL; they are numbers of different types, texts, dates or composite. A joined row is
compared by where its base rows stand in their sources, and by the values that parties read for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tests.relations import Oracle, party_of, places

from .report import Report
from .scenes import KINDS, Random, write

ALIASES = ("r", "s", "t")
KEYS: dict[str, Sequence[pa.DataType]] = {
    "integer": (pa.int64(), pa.int32(), pa.int16(), pa.decimal128(21, 2)),
    "text": (pa.string(),),
    "date": (pa.date32(),),
}
FILTERS = (
    "{a}.v > {n}", "{a}.v IS NULL", "{a}.v IS NOT NULL", "{a}.v BETWEEN -1 AND {n}", "{a}.w IN ('a', 'b')",
    "{a}.w NOT IN ('a', 'c')", "{a}.w LIKE 'a%'", "({a}.v > 0 OR {a}.w = 'b')", "NOT {a}.v > {n}",
    "{a}.w IS DISTINCT FROM 'a'", "coalesce({a}.v, {n}) < 1", "length({a}.w) + {a}.v > {n}", "{a}.id % 3 <> 1",
    "{a}.v <> {n} AND {a}.w <> 'b'", "CASE WHEN {a}.w = 'a' THEN {a}.v > 0 ELSE {a}.id < 9 END",
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """Shards at parties, and the SELECTs of a union over them."""

    parties: Mapping[str, Mapping[str, pa.Table]]
    selects: Sequence[str]  # FROM and WHERE
    union: str
    aliases: Sequence[str]

    def sql(self, items: str) -> str:
        """The union, with these items selected."""
        return f" {self.union} ".join(f"SELECT {items} {each}" for each in self.selects)


def _key_values(rng: Random, family: str, rows: int) -> list[Any]:
    """Few values, so that they meet; some are missing."""
    numbers = [None if rng.random() < 0.1 else int(each) for each in rng.integers(-2, 6, rows)]
    if family == "date":
        return [None if each is None else date(2024, 2, 27) + timedelta(each) for each in numbers]
    return [None if each is None else f"k{each}" for each in numbers] if family == "text" else numbers


def world(rng: Random) -> World:
    """One to three tables, each in one or two shards; one or two SELECTs."""
    tables = int(rng.integers(1, 4))
    aliases, families = ALIASES[:tables], [str(rng.choice(list(KEYS))) for _ in range(2)]
    parties: dict[str, dict[str, pa.Table]] = {}
    shards: dict[str, list[str]] = {}
    for alias in aliases:
        types = [KEYS[family][int(rng.integers(len(KEYS[family])))] for family in families]
        for shard in range(int(rng.integers(1, 3))):
            rows = int(rng.choice([0, 1, 8, 20, 20, 40]))
            name = f"p{alias}{shard}"
            shards.setdefault(alias, []).append(name)
            cells = {
                "id": pa.array(np.arange(rows)),
                **{
                    f"k{n}": pa.array(_key_values(rng, family, rows), pa.int64() if family == "integer" else kind).cast(
                        kind
                    )
                    for n, (family, kind) in enumerate(zip(families, types, strict=True))
                },
                "v": pa.array(rng.normal(size=rows).round(1), mask=rng.random(rows) < 0.2),
                "w": pa.array([("a", "b", "c", "ab", None)[n] for n in rng.integers(0, 5, rows)], pa.string()),
            }
            parties[name] = {f"tab_{alias}": pa.table(cells)}
    branches = int(rng.integers(1, 3))
    return World(
        parties,
        [_select(rng, aliases, shards) for _ in range(branches)],
        str(rng.choice(["UNION ALL", "UNION"])),
        aliases,
    )


def _select(rng: Random, aliases: Sequence[str], shards: Mapping[str, list[str]]) -> str:
    """FROM and WHERE."""

    def named(alias: str) -> str:
        one = rng.random() < 0.2
        return f"{rng.choice(shards[alias]) + '.' if one else ''}tab_{alias} {alias}"

    text = f"FROM {named(aliases[0])}"
    for place, alias in enumerate(aliases[1:], start=1):
        other = aliases[int(rng.integers(place))]
        keys = [f"{alias}.k{n} = {other}.k{n}" for n in ([0, 1] if rng.random() < 0.3 else [int(rng.integers(2))])]
        text += f" JOIN {named(alias)} ON {' AND '.join(keys)}"
    filters = [
        FILTERS[int(rng.integers(len(FILTERS)))].format(a=rng.choice(list(aliases)), n=rng.choice([-1, 0, 0.5, 1]))
        for _ in range(int(rng.integers(0, 3)))
    ]
    return text + (f" WHERE {' AND '.join(filters)}" if filters else "")


def run(rng: Random, folder: Path, report: Report) -> None:
    """One world, one union."""
    drawn = world(rng)
    urls = {}
    for party, tables in drawn.parties.items():
        plain = all(
            not pa.types.is_decimal(f.type) and not pa.types.is_date(f.type) for t in tables.values() for f in t.schema
        )
        urls[party] = write(folder, party, dict(tables), str(rng.choice(KINDS if plain else KINDS[:-1])))
    fed = tp.Federation(urls)
    values = [f"{alias}.{name}" for alias in drawn.aliases for name in ("v", "w")]
    text = drawn.sql(", ".join(values))
    expected = _expected(drawn)
    with report.asking("query", text):
        relation = fed.sql(text)
        found = Counter(places(relation))
        report.that("query", found == expected, f"{text}: {_difference(found, expected)}")
        for alias in drawn.aliases:
            _compare_cells(report, drawn, fed, relation, alias, text)


def _expected(drawn: World) -> Counter[Any]:
    """For each joined row its places, by DuckDB."""
    oracle = Oracle().load(drawn.parties)
    items = ", ".join(f"{alias}.__party, {alias}.__row" for alias in drawn.aliases)
    flat = oracle.rows(drawn.sql(items))
    oracle.connection.close()
    return Counter(tuple((row[n], row[n + 1]) for n in range(0, len(row), 2)) for row in flat)


def _difference(found: Counter[Any], expected: Counter[Any]) -> str:
    more, fewer = sum((found - expected).values()), sum((expected - found).values())
    return f"{more} joined rows too many, {fewer} too few, of {sum(expected.values())}"


def _compare_cells(
    report: Report, drawn: World, fed: tp.Federation, relation: tp.Relation, alias: str, text: str
) -> None:
    """The cells that parties read for the rows that take part."""
    for shard in relation.mapping.tables[alias].shards:
        table = party_of(fed.engine, shard.party).table(relation._session.id, alias)
        snapshot = table.snapshot
        read = table.positions(np.arange(snapshot.rows, dtype=np.int32))
        source = drawn.parties[shard.party][f"tab_{alias}"].take(pa.array(read))
        for name in ("v", "w"):
            output = next(e.name for e in relation.query.outputs if (e.alias, e.expression) == (alias, name))
            ours = snapshot.outputs[output].take(pa.array(snapshot.place(np.arange(snapshot.rows, dtype=np.int32))))
            report.equal("cells", ours.to_pylist(), source[name].to_pylist(), f"{text}: {shard.party}.{alias}.{name}")
