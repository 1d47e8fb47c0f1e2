"""Every refusal's advice is tried: what it advises returns what was asked for, or it says that there is no way yet.

The cases are those of ``golden/errors``. DuckDB over the raw tables says what was asked for; what DuckDB refuses too is
a mistake, and asks for nothing. What is advised stands in the case as ``sql instead``: views at parties, then a query.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.sql import advice
from tests.relations import party_of
from tests.sql.example import DISAGREEING, SHARDS
from tests.sql.test_golden import Case, cases

SOURCE = Path(advice.__file__).parent
NOTHING_ASKED = {
    "No FROM": "asks for no table",
    "SUMMARIZE": "describe() does it",
    "DESCRIBE": "fed.catalog() does it",
    "current_setting": "asks for nothing of a table",
    "A list comprehension": "makes a list, which no model can use",
    "A lambda": "makes a list, which no model can use",
    "A struct": "makes a struct, which no model can use",
    "A positional reference": "refers to itself",
    "A hexadecimal number": "DuckDB reads a 0 that is called x1F",
}
NO_FILE = (
    "half\\ a\\ character", "nested\\ too\\ deeply", "SQL\\ ignores\\ case", "an\\ expression\\ has",
    "params:\\ the", "is\\ a\\ list:", ":\\ a\\ parameter\\ is", "is\\ an\\ empty\\ list", "a\\ parameter\\ needs",
    "a\\ subquery\\ uses",
)  # fmt: skip
"""Refusals that no golden file can hold, or that are of what parties publish, or of values of parameters:
test_parse.py, test_catalog.py and test_parameters.py.
"""
OTHER_FORM = "which cannot be a feature"
"""Values without a form that a model could use: the advice is to leave them out, or to select something else."""
CHANGING = "the value must be the same whenever it is read"
"""What was asked for is another value at every time: none can be compared."""

ROWS = {
    "orders": "i, 1 + i % 20, 'c' || i % 12, DATE '2024-01-01' + (i % 30)::INT, "
    "TIMESTAMP '2024-01-01' + INTERVAL (i % 9) DAY, (i % 40) / 4, nullif(i % 7, 6), (i % 9) / 2, i % 3 = 0, "
    "['abc', 'ABC', 'x', NULL, 'red', '3'][1 + i % 6], 'u' || i % 2",
    "items": "1 + i, 'h' || i % 8, ['toy', 'food'][1 + i % 2], i / 4, (i % 40) / 4, DATE '2023-12-25' + i::INT, "
    "'{\"colour\": \"red\", \"n\": ' || i || '}', 'abc'::BLOB",
    "cards": "'c' || i, 'h' || i % 5, i * 100, DATE '2024-01-01' + (i % 9)::INT, i % 12",
    "regions": "i, 'land' || i % 3, uuid_nil(), i * 1000",
    "Odd Table": "i % 3, 'w' || i, i / 2, 'q', i % 2 = 0, i, ['t' || i, 'u']",
    "edges": "i % 15, i % 13, i / 8, 'k' || i % 3",
    "weather": "'s' || i % 4, TIMESTAMP '2024-01-01' + INTERVAL (i) HOUR, i / 3, i / 10",
    "readings": "i, i / 2",
    "visits": "i, DATE '2024-01-01'",
}
COUNTS = {"orders": 60, "items": 20, "regions": 12, "edges": 30}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """DuckDB with the tables of all parties, each in a schema, and vertical tables; and a folder with their files."""
    folder = tmp_path_factory.mktemp("parties")
    with duckdb.connect() as connection:
        connection.execute(
            "SET TimeZone = 'UTC'; CREATE MACRO uuid_nil() AS '00000000-0000-0000-0000-000000000000'::UUID"
        )
        parts: dict[str, list[str]] = {}
        for number, shard in enumerate(SHARDS):
            table = f'"{shard.party}"."{shard.name}"'
            columns = ", ".join(
                f'"{name.replace(chr(34), chr(34) * 2)}" {kind}' for name, kind in shard.columns.items()
            )
            values = next(rows for name, rows in ROWS.items() if name.lower() == shard.name.lower())
            values = values.split(", DATE")[0] if shard.columns.keys() == {"id"} else values
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{shard.party}"')
            connection.execute(f"CREATE TABLE {table} ({columns})")
            first = 6 * (number % 2)
            last = first + COUNTS.get(shard.name, 6)
            connection.execute(f"INSERT INTO {table} SELECT {values} FROM range({first}, {last}) t(i)")
            connection.execute(f"ATTACH IF NOT EXISTS '{folder / shard.party}.duckdb' AS \"{shard.party} file\"")
            connection.execute(f'CREATE TABLE "{shard.party} file"."{shard.name}" AS FROM {table}')
            parts.setdefault(shard.name.lower(), []).append(f"FROM {table}")
        for name, shards in parts.items():
            if name not in DISAGREEING:
                connection.execute(f'CREATE VIEW main."{name}" AS {" UNION ALL BY NAME ".join(shards)}')
        for party in {shard.party for shard in SHARDS}:
            connection.execute(f'DETACH "{party} file"')
        yield connection, folder


@pytest.mark.parametrize("case", [pytest.param(case, id=case.title) for case in cases("errors")])
def test_what_is_advised_returns_what_was_asked_for(
    case: Case, tables: tuple[duckdb.DuckDBPyConnection, Path], tmp_path: Path
) -> None:
    """The rows are those that DuckDB finds over the raw tables; or the refusal says that there is no way yet."""
    connection, folder = tables
    if case.instead:
        found = rows_of(advised(case.instead, folder, tmp_path))
        names, expected = asked(connection, case.sql) or (found.column_names, None)
        if expected is None:  # DuckDB fails on these rows: nothing to compare
            return
        common = [name for name in names if name in found.column_names]
        got = found.select(common) if common else found
        assert Counter(map(repr, zip(*(column.to_pylist() for column in got.columns), strict=True))) == Counter(
            repr(tuple(row[names.index(name)] for name in common) if common else row) for row in expected
        )
        return
    if case.options or case.title in NOTHING_ASKED or any(each in case.outcome for each in (OTHER_FORM, CHANGING)):
        return
    assert advice.NO_WAY in case.outcome or asked(connection, case.sql) is None, "write what is advised, as sql instead"


def asked(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[tuple[Any, ...]]] | None:
    """Names and rows that DuckDB returns for a query; None for one that it refuses, and for other statements."""
    try:
        statements = connection.extract_statements(sql)
        if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
            return None
        found = connection.execute(sql)
        return [str(column[0]) for column in found.description or ()], found.fetchall()
    except duckdb.Error:
        return None


def advised(text: str, folder: Path, copies: Path) -> tp.Relation:
    """The relation of the last statement, after parties made the views of those before, in copies of their files."""
    *views, query = text.rstrip(";").split(";\n")
    for view in views:
        party = re.match(r"CREATE VIEW (\w+)\.", view)
        assert party is not None
        if not (copies / f"{party[1]}.duckdb").exists():
            shutil.copy(folder / f"{party[1]}.duckdb", copies)
        with duckdb.connect(str(copies / f"{party[1]}.duckdb")) as connection:
            connection.execute(view.replace(f"{party[1]}.", "", 1))
    named = {shard.party for shard in SHARDS if shard.name.lower() in query.lower()}
    paths = sorted(copies.glob("*.duckdb")) or [folder / f"{party}.duckdb" for party in sorted(named)]
    return tp.Federation({path.stem: f"duckdb:///{path}" for path in paths}).sql(query)


def rows_of(relation: tp.Relation) -> pa.Table:
    """The joined rows, with the values of each output column."""
    found = {}
    for column in relation.query.outputs:
        table = relation.mapping.tables[column.alias]
        parts = []
        for shard in table.shards:
            snapshot = (
                party_of(relation._session.engine, shard.party).table(relation._session.id, column.alias).snapshot
            )
            parts.append(snapshot.outputs[column.name].take(pa.array(snapshot.place(shard.row_ids))))
        whole = pa.concat_tables([pa.table({"it": part}) for part in parts], promote_options="permissive")["it"]
        found[column.name] = whole.take(pa.array(table.index))
    return pa.table(found)


def test_every_refusal_is_a_case() -> None:
    """Whatever text the SQL package refuses with is the outcome of a golden case, so that its advice is tried."""
    outcomes = [case.outcome for case in cases("errors")]
    texts = [text for text in refusals() if not any(part in text for part in NO_FILE)]
    missing = [text for text in texts if not any(re.search(text, outcome, re.DOTALL) for outcome in outcomes)]
    assert missing == []
    assert len(texts) > 40, "the refusals are not found"


def refusals() -> Iterator[str]:
    """The refusals of the package, as patterns."""
    for path in sorted(SOURCE.glob("*.py")):
        tree = ast.parse(path.read_text())
        module = __import__(f"tablepuppet.sql.{path.stem}", fromlist=["*"])
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                yield from filter(None, (_pattern(call, function, module) for call in ast.walk(function)))
        yield from (re.escape(text) for _, text in getattr(module, "_REASONS", ()))
        yield from (re.escape(text) for _, text in getattr(module, "CLAUSES", {}).values())


def _pattern(call: ast.AST, function: ast.FunctionDef, module: Any) -> str:
    """The text of one refusal; what is not known before it happens may be anything."""
    if not isinstance(call, ast.Call) or not call.args:
        return ""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in ("error", "error_at", "QueryError", "Refused", "CatalogError"):
        return ""
    text = _text(call.args[0], function, module)
    return "" if text.startswith("an\\ expression\\ of\\ the\\ plan") else text  # of what no analyst wrote


def _text(node: ast.expr, function: ast.FunctionDef, module: Any) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, function, module) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name) if isinstance(
            getattr(module, name, 0), str
        ):
            return re.escape(str(getattr(module, name)))
        case ast.Name(id=name):
            given = [each.value for each in ast.walk(function) if isinstance(each, ast.Assign) and _sets(each, name)]
            return _text(given[0], function, module) if given else ".*"
    return ".*"


def _sets(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
