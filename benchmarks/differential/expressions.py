"""Random expressions over one table: what a party computes is what DuckDB computes from the analyst's own text.

Every function that is allowed is called with arguments of the types that DuckDB lists for it; operators are written
with and without brackets, so that their precedence matters. What DuckDB cannot evaluate, and what we refuse, is left
out. Values are compared to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tablepuppet.sql.expression import FUNCTIONS
from tablepuppet.sql.parse import parse
from tests.relations import federation, party_of

from .report import Report
from .scenes import Random

T = TypeVar("T")
ROWS = 40
TRIED = 60  # expressions of a case
TYPES = {
    "BIGINT": "number", "INTEGER": "number", "SMALLINT": "number", "TINYINT": "number", "HUGEINT": "number",
    "UBIGINT": "number", "UINTEGER": "number", "DOUBLE": "number", "FLOAT": "number", "DECIMAL": "number",
    "VARCHAR": "text", "BOOLEAN": "boolean", "DATE": "date", "TIMESTAMP": "moment",
    "TIMESTAMP WITH TIME ZONE": "moment", "INTERVAL": "span", "ANY": "any",
}  # fmt: skip
NAMES = {
    "number": ("i", "j", "x", "z", "m"), "text": ("s", "t", "u", '"day"'), "date": ("d", "e", '"month"'),
    "moment": ("at",), "boolean": ("b", "c"),
}  # fmt: skip
UNITS = ("day", "month", "year", "hour", "week", "quarter", "minute", "decade")
LITERALS = {
    "number": ("0", "1", "2", "3", "-2", "0.5", "10", "1e3", "7"),
    "text": ("'a'", "''", "'ab'", "'day'", "'month'", "'1'", "'%a%'", "'%Y-%m'", "'é'", "'a_'"),
    "date": ("DATE '2024-02-29'", "DATE '1969-12-31'"),
    "moment": ("TIMESTAMP '2024-02-29 12:34:56'",),
    "boolean": ("true", "false", "NULL"),
    "span": ("INTERVAL 3 DAY", "INTERVAL '2' MONTH", "INTERVAL '1 hour'", "INTERVAL 2 WEEK"),
}
ZONES = ("Europe/Berlin", "UTC", "America/New_York")
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "^", "**", "&", "|", "<<", ">>")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
CASTS = {
    "number": ("INTEGER", "BIGINT", "DOUBLE", "DECIMAL(12,3)", "FLOAT", "SMALLINT"),
    "text": ("VARCHAR",), "date": ("DATE",), "moment": ("TIMESTAMP",), "boolean": ("BOOLEAN",),
}  # fmt: skip


@cache
def signatures() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """(function, kinds of its arguments) by the kind that it returns, of all functions that are allowed."""
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    with duckdb.connect() as connection:
        listed = connection.execute(
            "SELECT function_name, parameter_types, return_type, varargs FROM duckdb_functions() "
            "WHERE function_type = 'scalar' ORDER BY ALL"
        ).fetchall()
    for name, parameters, returned, more in listed:
        kinds = [TYPES.get(str(each).split("(")[0], "") for each in [*parameters, *([more] if more else [])]]
        result = TYPES.get(str(returned).split("(")[0], "")
        if name in FUNCTIONS and result and all(kinds):
            found.setdefault(result, []).append((name, tuple(kinds)))
    return found


class Writer:
    """Writes expressions of a kind."""

    def __init__(self, rng: Random):
        self.rng = rng

    def of(self, kind: str, depth: int) -> str:
        """An expression that DuckDB probably takes as one of this kind."""
        if kind == "any":
            kind = self._one(("number", "text", "date", "boolean"))
        if kind == "span":
            return self._one(LITERALS["span"])
        if depth == 0 or self.rng.random() < 0.15:
            return self._one(NAMES[kind]) if self.rng.random() < 0.75 else self._one(LITERALS[kind])
        forms = [self._call, self._call, getattr(self, f"_{kind}"), self._any]
        return str(self._one(forms)(kind, depth))

    def _one(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def _part(self, kind: str, depth: int) -> str:
        """A part of a larger expression, in brackets or not."""
        inner = self.of(kind, depth - 1)
        return inner if self.rng.random() < 0.6 else f"({inner})"

    def _chain(self, kind: str, depth: int, operators: Sequence[str]) -> str:
        """Several operators in a row: what they apply to is a question of precedence."""
        parts = [self._part(kind, min(depth, 1)) for _ in range(int(self.rng.integers(3, 5)))]
        return parts[0] + "".join(f" {self._one(operators)} {part}" for part in parts[1:])

    def _call(self, kind: str, depth: int) -> str:
        name, kinds = self._one(signatures()[kind])
        return f"{name}({', '.join(self.of(each, depth - 1) for each in kinds)})"

    def _any(self, kind: str, depth: int) -> str:
        def inner() -> str:
            return self.of(kind, depth - 1)

        forms: Sequence[Callable[[], str]] = (
            lambda: f"CASE WHEN {self.of('boolean', depth - 1)} THEN {inner()} ELSE {inner()} END",
            lambda: f"CAST({self.of('any', depth - 1)} AS {self._one(CASTS[kind])})",
            lambda: f"TRY_CAST({self.of('any', depth - 1)} AS {self._one(CASTS[kind])})",
            lambda: f"{self._part('any', depth)}::{self._one(CASTS[kind])}",
            lambda: f"coalesce({self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})",
            lambda: f"nullif({self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})",
            lambda: f"if({self.of('boolean', depth - 1)}, {self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})",
            lambda: f"ifnull({self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})",
        )
        return self._one(forms)()

    def _number(self, kind: str, depth: int) -> str:
        forms: Sequence[Callable[[], str]] = (
            lambda: f"{self._part(kind, depth)} {self._one(ARITHMETIC)} {self._part(kind, depth)}",
            lambda: self._chain(kind, depth, ARITHMETIC),
            lambda: f"-{self._part(kind, depth)}",
            lambda: f"~{self._part(kind, depth)}",
            lambda: f"extract({self._one(UNITS)} FROM {self.of('moment', depth - 1)})",
            lambda: f"date_diff({self._unit()}, {self.of('date', depth - 1)}, {self.of('date', depth - 1)})",
            lambda: f"date_part({self._unit()}, {self.of('date', depth - 1)})",
            lambda: f"{self._part('date', depth)} - {self._part('date', depth)}",
            lambda: f"position({self.of('text', depth - 1)} IN {self.of('text', depth - 1)})",
            lambda: (
                f"jaro_winkler_similarity({self.of('text', depth - 1)}, {self.of('text', 0)}, 0.{self._one('1357')})"
            ),
        )
        return self._one(forms)()

    def _text(self, kind: str, depth: int) -> str:
        forms: Sequence[Callable[[], str]] = (
            lambda: f"{self._part(kind, depth)} || {self._part(kind, depth)}",
            lambda: f"substring({self.of(kind, depth - 1)} FROM {self._one('123')} FOR {self._one('123')})",
            lambda: (
                f"trim({self._one(('BOTH', 'LEADING', 'TRAILING'))} {self.of(kind, 0)} FROM {self.of(kind, depth - 1)})"
            ),
            lambda: f"split_part({self.of(kind, depth - 1)}, 'a', {self._one('12')})",
            lambda: f"strftime({self.of('moment', depth - 1)}, '%Y-%m-%d')",
        )
        return self._one(forms)()

    def _date(self, kind: str, depth: int) -> str:
        forms: Sequence[Callable[[], str]] = (
            lambda: f"date_trunc({self._unit()}, {self.of(kind, depth - 1)})",
            lambda: f"{self._part(kind, depth)} + {self.of('span', 0)}",
            lambda: f"{self._part(kind, depth)} - {self._one('123')}",
            lambda: f"time_bucket({self.of('span', 0)}, {self.of(kind, depth - 1)})",
        )
        return self._one(forms)()

    def _moment(self, kind: str, depth: int) -> str:
        forms: Sequence[Callable[[], str]] = (
            lambda: f"date_trunc({self._unit()}, {self.of(kind, depth - 1)})",
            lambda: f"{self._part(kind, depth)} {self._one('+-')} {self.of('span', 0)}",
            lambda: f"{self._part(kind, depth)} AT TIME ZONE '{self._one(ZONES)}'",
            lambda: f"time_bucket({self.of('span', 0)}, {self.of(kind, depth - 1)}::TIMESTAMPTZ, 'Europe/Berlin')",
            lambda: f"time_bucket({self.of('span', 0)}, {self.of(kind, depth - 1)})",
        )
        return self._one(forms)()

    def _boolean(self, kind: str, depth: int) -> str:
        no = self._one(("", "NOT "))
        like = self._one(("LIKE", "ILIKE", "SIMILAR TO"))
        forms: Sequence[Callable[[], str]] = (
            lambda: f"{self._part('number', depth)} {self._one(COMPARISONS)} {self._part('number', depth)}",
            lambda: f"{self._part('text', depth)} {self._one(COMPARISONS)} {self._part('text', depth)}",
            lambda: f"{self._part(kind, depth)} {self._one(COMPARISONS)} {self._part(kind, depth)}",
            lambda: f"{self._part(kind, depth)} {self._one(('AND', 'OR'))} {self._part(kind, depth)}",
            lambda: f"NOT {self._part(kind, depth)}",
            lambda: f"{self._part('number', depth)} {no}IN (1, 2) {self._one(COMPARISONS)} {self._part(kind, depth)}",
            lambda: f"{self._part('text', depth)} {no}{like} 'a%' {self._one(COMPARISONS)} {self._part(kind, depth)}",
            lambda: self._chain(kind, depth, (*COMPARISONS, "AND", "OR")),
            lambda: f"{self._part('number', depth)} {no}IN ({self.of('number', depth - 1)}, {self.of('number', 0)})",
            lambda: f"{self._part('text', depth)} {no}IN ('a', {self.of('text', 0)})",
            lambda: (
                f"{self._part('number', depth)} {no}BETWEEN {self.of('number', 0)} AND {self._part('number', depth)}"
            ),
            lambda: f"{self._part('text', depth)} {no}{like} {self.of('text', 0)}",
            lambda: f"{self._part('text', depth)} GLOB 'a*'",
            lambda: f"{self._part('any', depth)} IS {no}NULL",
        )
        return self._one(forms)()

    def _unit(self) -> str:
        """The unit of a date function: written, or in a column."""
        return f"'{self._one(UNITS)}'" if self.rng.random() < 0.6 else self._one(("u", '"day"'))


def table(rng: Random) -> pa.Table:
    """Columns of every type, some called or filled like words that SQL gives a meaning."""
    lost = {name: rng.random(ROWS) < 0.1 for name in "ijxzmstdeb"}
    days = [date(2000, 1, 1) + timedelta(int(each)) for each in rng.integers(-12_000, 9_000, 3 * ROWS)]
    moments = [datetime(2000, 1, 1) + timedelta(seconds=int(each)) for each in rng.integers(0, 10**9, ROWS)]
    words = ["a", "ab", "A", "", "1", "b a", "é", "martha", "marhta", "2020-01-02"]
    units = [str(each) for each in rng.choice(UNITS, 2 * ROWS)]
    cents = pa.array(rng.integers(-500, 500, ROWS) / 100).cast(pa.decimal128(9, 2))
    return pa.table(
        {
            "i": pa.array(rng.integers(-5, 9, ROWS), mask=lost["i"]),
            "j": pa.array(rng.integers(0, 5, ROWS), pa.int32(), mask=lost["j"]),
            "x": pa.array(rng.normal(size=ROWS).round(3), mask=lost["x"]),
            "z": pa.array(rng.exponential(size=ROWS), mask=lost["z"]),
            "m": cents,
            "s": pa.array(rng.choice(words, ROWS), mask=lost["s"]),
            "t": pa.array(rng.choice(words, ROWS), mask=lost["t"]),
            "u": pa.array(units[:ROWS]),
            "day": pa.array(units[ROWS:]),
            "d": pa.array(days[:ROWS], pa.date32(), mask=lost["d"]),
            "e": pa.array(days[ROWS : 2 * ROWS], pa.date32(), mask=lost["e"]),
            "month": pa.array(days[2 * ROWS :], pa.date32()),
            "at": pa.array(moments, pa.timestamp("us")),
            "b": pa.array(rng.random(ROWS) < 0.5, mask=lost["b"]),
            "c": pa.array(rng.random(ROWS) < 0.5),
        }
    )


def run(rng: Random, folder: Path, report: Report) -> None:
    """Some expressions over one table."""
    rows, writer = table(rng), Writer(rng)
    fed = federation(folder, {"p": {"tab": rows}})
    catalog = fed.catalog()
    truth: dict[str, pa.ChunkedArray] = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("tab", rows)
        for _ in range(TRIED):
            kind = ("number", "text", "date", "moment", "boolean")[int(rng.integers(5))]
            text = writer.of(kind, int(rng.integers(1, 4)))
            try:
                found: Any = connection.execute(f"SELECT {text} AS o FROM tab").to_arrow_table()
            except (duckdb.Error, UnicodeDecodeError):  # of bytes that are no text
                continue
            with report.asking("expression", text, may_refuse=True):
                parse(f"SELECT {text} AS o FROM tab", catalog)
                truth[text] = found["o"]
    texts = list(truth)
    try:
        opened = fed.sql("SELECT " + ", ".join(f"{text} AS o{n}" for n, text in enumerate(texts)) + " FROM tab")
    except tp.TablePuppetError:  # say which
        for text in texts:
            with report.asking("expression", text, may_refuse=True):
                _compare(report, fed.sql(f"SELECT {text} AS o0 FROM tab"), fed, {text: truth[text]})
        return
    _compare(report, opened, fed, truth)


def _compare(report: Report, relation: tp.Relation, fed: tp.Federation, truth: dict[str, pa.ChunkedArray]) -> None:
    """The columns as the party read them, with those of DuckDB."""
    found = party_of(fed.engine, "p").table(relation._session.id, "tab").snapshot.outputs
    for number, (text, expected) in enumerate(truth.items()):
        ours = found[f"o{number}"]
        if ours.type != expected.type:
            ours = ours.cast(expected.type, safe=False) if not pa.types.is_string(ours.type) else ours
        here, there = _cells(ours), _cells(expected)
        off = [n for n, pair in enumerate(zip(here, there, strict=True)) if not _same(*pair)]
        report.that(
            "expression", not off,
            f"{text}: {here[off[0]]!r} instead of {there[off[0]]!r}, in {len(off)} of {len(here)} rows" if off else "",
        )  # fmt: skip


def _cells(values: pa.ChunkedArray) -> list[Any]:
    """Values for Python; of dates and moments their numbers, since Python's end with the year 9999."""
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return list((values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist())


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and np.isnan(one) and np.isnan(other):
        return True
    return one == other
