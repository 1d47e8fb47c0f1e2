"""Random joins, unions, shards, subqueries, filters and parameters: the joined rows are DuckDB's over the raw tables.

Keys repeat, dangle and are NULL; they are numbers of different types, texts, dates or composite. A joined row is
compared by where its base rows stand in their sources (of a subquery that groups: in the order of first rows), and by
the values that parties read for it, where there is no row too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tests.relations import Oracle, hide_order, party_of, places

from .report import Report
from .scenes import KINDS, Random, write

ALIASES = ("r", "s", "t")
KEYS: dict[str, Sequence[pa.DataType]] = {
    "integer": (pa.int64(), pa.int32(), pa.int16(), pa.decimal128(21, 2)),
    "text": (pa.string(),),
    "date": (pa.date32(),),
}
WORDS = ("a", "b", "c", "ab", "o'b $t --")
FILTERS = (
    "{a}v > {n}", "{a}v IS NULL", "{a}v IS NOT NULL", "{a}v BETWEEN -1 AND {n}", "{a}w IN ('a', 'b')", "{a}w IN ({l})",
    "{a}w NOT IN ({l})", "{a}w LIKE 'a%'", "({a}v > 0 OR {a}w = {t})", "NOT {a}v > {n}", "{a}w = {t}",
    "{a}w IS DISTINCT FROM {t}", "coalesce({a}v, {n}) < 1", "length({a}w) + {a}v > {n}", "{a}id % 3 <> 1",
    "{a}v <> {n} AND {a}w <> 'b'", "CASE WHEN {a}w = 'a' THEN {a}v > 0 ELSE {a}id < 9 END", "{a}id IS NULL",
    "coalesce({a}w, 'none') <> {t}", "({a}v IS NULL OR {a}v > {n})", "({a}w IS NULL) = ({a}v IS NULL)",
)  # fmt: skip
EXPRESSIONS = ("{a}.id", "{a}.v", "{a}.w", "coalesce({a}.v, 7.5)", "{a}.id IS NULL", "concat({a}.w, 'x')")
ONE = "min(__party) AS __party, row_number() OVER (ORDER BY min(__row)) - 1 AS __row"  # where a group stands
ROWS = ("id, k0, k1, v * 2 AS v, upper(w) AS w", "k0, k1, coalesce(v, 0) AS v, w, id")
GROUPS = (  # what is selected, by what
    ("k0, k1, count(*) AS id, sum(v) AS v, max(w) AS w", "k0, k1"),
    ("k0, max(k1) AS k1, count(v) AS id, avg(v) AS v, arg_max(w, id) AS w", "1"),
    ("k1, min(k0) AS k0, count(DISTINCT w) AS id, median(v) AS v, min(w) FILTER (WHERE v > 0) AS w", "k1"),
    ("k0, k1, length(w) AS id, v > 0 AS positive, 1.5 * length(w) AS v, w", ""),  # DISTINCT
)
HAVINGS = ("count(*) > 1", "sum(v) > {n}", "max(w) IS NOT NULL")


@dataclass(frozen=True)
class Subquery:
    """A SELECT over one table, and the same with the place of each of its rows, for DuckDB."""

    text: str
    placed: str
    named: bool  # by WITH


@dataclass(frozen=True)
class World:
    """Shards at parties, and the SELECTs of a union over them."""

    parties: Mapping[str, Mapping[str, pa.Table]]
    selects: Sequence[str]  # FROM and WHERE, with {alias} for what is under an alias
    union: str
    sources: Mapping[str, Sequence[str | Subquery]]  # by alias, in each SELECT
    params: Mapping[str, Any]

    def sql(self, items: str, *, placed: bool = False) -> str:
        """The union, with these items selected; ``placed``: for DuckDB, with rows that know their places."""
        found, named = [], {}
        for number, select in enumerate(self.selects):
            given = {}
            for alias, each in self.sources.items():
                source = each[number]
                if isinstance(source, str):
                    given[alias] = f"{source} {alias}"
                    continue
                text = source.placed if placed else source.text
                if source.named:
                    named[f"made_{alias}"] = text
                given[alias] = f"made_{alias} AS {alias}" if source.named else f"({text}) AS {alias}"
            found.append(f"SELECT {items} {select.format_map(given)}")
        tables = ", ".join(f"{name} AS ({text})" for name, text in named.items())
        return (f"WITH {tables} " if tables else "") + f" {self.union} ".join(found)


@dataclass
class Writer:
    """Writes filters with literals or parameters, and subqueries."""

    rng: Random
    params: dict[str, Any] = field(default_factory=dict)

    def one(self, choices: Sequence[Any]) -> Any:
        """One of these."""
        return choices[int(self.rng.integers(len(choices)))]

    def filled(self, text: str, alias: str) -> str:
        """A filter of the columns under an alias."""
        words = [self.one(WORDS) for _ in range(int(self.rng.integers(1, 4)))]
        given = {"n": self.one([-1, 0, 0.5, 1]), "t": self.one(WORDS), "l": words}
        if self.rng.random() < 0.05:
            given |= {"n": None, "t": None}
        for name in [name for name in given if f"{{{name}}}" in text]:
            value = given[name]
            if self.rng.random() < 0.5:
                self.params[f"{name}{len(self.params)}"] = value
                given[name] = f"${name}{len(self.params) - 1}"
            else:
                given[name] = ", ".join(map(_literal, value)) if isinstance(value, list) else _literal(value)
        return text.format(a=f"{alias}." if alias else "", **given)

    def filter(self, alias: str) -> str:
        """Any filter."""
        return self.filled(self.one(FILTERS), alias)

    def subquery(self, alias: str, shards: Sequence[str]) -> Subquery:
        """Rows, groups or distinct rows of a table; what groups is over one shard."""
        where = f" WHERE {self.filter('')}" if self.rng.random() < 0.5 else ""
        named = bool(self.rng.random() < 0.5)
        if self.rng.random() < 0.4:
            items, rest = self.one(ROWS), f"FROM tab_{alias}{where}"
            return Subquery(f"SELECT {items} {rest}", f"SELECT {items}, __party, __row {rest}", named)
        items, groups = self.one(GROUPS)
        rest = f"FROM {f'{self.one(shards)}.' if len(shards) > 1 else ''}tab_{alias}{where}"
        if not groups:
            keys = ", ".join(each.split(" AS ")[0] for each in items.split(", "))
            return Subquery(f"SELECT DISTINCT {items} {rest}", f"SELECT {items}, {ONE} {rest} GROUP BY {keys}", named)
        rest += f" GROUP BY {groups}"
        if self.rng.random() < 0.4:
            rest += f" HAVING {self.filled(self.one(HAVINGS), '')}"
        return Subquery(f"SELECT {items} {rest}", f"SELECT {items}, {ONE} {rest}", named)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


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
                "w": pa.array([(*WORDS, None)[n] for n in rng.integers(0, len(WORDS) + 1, rows)], pa.string()),
            }
            parties[name] = {f"tab_{alias}": pa.table(cells)}
    write, branches = Writer(rng), int(rng.integers(1, 3))
    sources: dict[str, list[str | Subquery]] = {}
    for alias in aliases:
        made = write.subquery(alias, shards[alias]) if rng.random() < 0.3 else None
        sources[alias] = [made or _table(rng, alias, shards[alias]) for _ in range(branches)]
    selects = [_select(write, aliases) for _ in range(branches)]
    return World(parties, selects, str(rng.choice(["UNION ALL", "UNION"])), sources, write.params)


def _table(rng: Random, alias: str, shards: Sequence[str]) -> str:
    """All shards, or one."""
    return f"{rng.choice(shards)}.tab_{alias}" if rng.random() < 0.2 else f"tab_{alias}"


def _select(write: Writer, aliases: Sequence[str]) -> str:
    """FROM and WHERE."""
    rng, text = write.rng, f"FROM {{{aliases[0]}}}"
    for place, alias in enumerate(aliases[1:], start=1):
        other = aliases[int(rng.integers(place))]
        keys = [f"{alias}.k{n} = {other}.k{n}" for n in ([0, 1] if rng.random() < 0.3 else [int(rng.integers(2))])]
        join = write.one(["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        if rng.random() < 0.3:
            keys.append(write.filter(write.one(aliases[: place + 1])))
        text += f" {join} {{{alias}}} ON {' AND '.join(keys)}"
    filters = [write.filter(write.one(aliases)) for _ in range(int(rng.integers(0, 3)))]
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
    if rng.random() < 0.5:
        hide_order(fed)
    values = [each.format(a=alias) for alias in drawn.sources for each in EXPRESSIONS]
    items = ", ".join(f"{each} AS o{n}" for n, each in enumerate(values))
    text = drawn.sql(items)
    shown = f"{text} with {drawn.params}"
    with report.asking("query", shown, may_refuse="no way yet"):
        relation = fed.sql(text, params=drawn.params)
        expected = _expected(drawn, items)
        found = Counter(zip(places(relation), _values(fed, relation), strict=True))
        report.that("query", _rows(found) == _rows(expected), f"{_difference(_rows(found), _rows(expected))}: {shown}")
        report.that("cells", found == expected, f"{_difference(found, expected)}: {shown}")


def _rows(found: Counter[Any]) -> Counter[Any]:
    """Joined rows by their places only."""
    counted: Counter[Any] = Counter()
    for (place, _), count in found.items():
        counted[place] += count
    return counted


def _expected(drawn: World, items: str) -> Counter[Any]:
    """For each joined row its places and its values, by DuckDB."""
    oracle = Oracle().load(drawn.parties)
    stand = ", ".join(f"{alias}.__party, {alias}.__row" for alias in drawn.sources)
    text = re.sub(r"\((\$l\d+)\)", r"\1", drawn.sql(f"{stand}, {items}", placed=True))  # a list without brackets
    flat = oracle.connection.execute(text, dict(drawn.params)).fetchall()
    oracle.connection.close()
    width = 2 * len(drawn.sources)
    return Counter(
        (tuple((row[n], row[n + 1]) for n in range(0, width, 2)), tuple(map(_rounded, row[width:]))) for row in flat
    )


def _difference(found: Counter[Any], expected: Counter[Any]) -> str:
    more, fewer = found - expected, expected - found
    text = f"{sum(more.values())} too many, {sum(fewer.values())} too few, of {sum(expected.values())}"
    return f"{text}, such as {next(iter(more or fewer))}" if more or fewer else text


def _values(fed: tp.Federation, relation: tp.Relation) -> list[tuple[Any, ...]]:
    """What parties read for each joined row."""
    columns = []
    for output in relation.query.outputs:
        table, cells = relation.mapping.tables[output.alias], []
        for shard in table.shards:
            snapshot = party_of(fed.engine, shard.party).table(relation._session.id, output.alias).snapshot
            cells += snapshot.outputs[output.name].take(pa.array(snapshot.place(shard.row_ids))).to_pylist()
        columns.append([_rounded(cells[place]) for place in table.index])
    return list(zip(*columns, strict=True))


def _rounded(value: Any) -> Any:
    """A number without the digits that depend on the order of a sum."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    return round(float(value), 9)
