"""Golden files: SQL in, a plan or an underlined error out.

``golden/plans/*.md`` and ``golden/errors/*.md`` hold the cases: a heading, the SQL, and what comes of it; after an
error, what it advises, which test_advice.py tries. Options of
`parse` stand after the language of the SQL, as in ```` ```sql label=returned drop=note,user ````. To write the outcome
of all cases anew after a change, and read the difference:

    TABLEPUPPET_REGENERATE=1 pytest tests/sql/test_golden.py && git diff tests/sql/golden
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from tablepuppet.errors import CatalogError, QueryError
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import Plan, Scan, plan
from tablepuppet.sql.query import Branch, JoinTree, Keep, Query
from tests.sql.example import CATALOG, empty_duckdb

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = bool(os.environ.get("TABLEPUPPET_REGENERATE"))
CASE = re.compile(
    r"^## (?P<title>[^\n]+)\n+```sql(?P<options>[^\n]*)\n(?P<sql>.*?)\n```\n(?:\n```text\n(?P<outcome>.*?)\n```\n)?"
    r"(?P<rest>\n```sql instead\n(?P<instead>.*?)\n```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Case:
    """One SQL text and what it must become."""

    path: Path
    title: str
    sql: str
    options: dict[str, str]
    outcome: str
    instead: str = ""  # what the error advises: statements for parties, then a query

    def parse(self) -> Query:
        """The query of this case."""
        lists = {name: self.options[name].split(",") for name in ("drop", "categorical") if name in self.options}
        return parse(self.sql, CATALOG, self.options.get("label"), lists.get("categorical", []), lists.get("drop", []))


def cases(kind: str) -> list[Case]:
    """All cases of ``plans`` or ``errors``."""
    return [case for path in sorted((GOLDEN / kind).glob("*.md")) for case in read(path)]


def read(path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for match in CASE.finditer(path.read_text()):
        options = dict(option.split("=", 1) for option in match["options"].split())
        yield Case(path, match["title"], match["sql"], options, match["outcome"] or "", match["instead"] or "")


def check(case: Case, outcome: str) -> None:
    """Compare with the file, or write to it."""
    if REGENERATE:
        _write(case, outcome)
    else:
        assert outcome == case.outcome


def _write(case: Case, outcome: str) -> None:
    def rewritten(match: re.Match[str]) -> str:
        if match["title"] != case.title:
            return match[0]
        sql = f"```sql{match['options']}\n{match['sql']}\n```"
        return f"## {match['title']}\n\n{sql}\n\n```text\n{outcome}\n```\n{match['rest'] or ''}"

    case.path.write_text(CASE.sub(rewritten, case.path.read_text()))


def identified(kind: str) -> list[object]:
    """The cases as pytest parameters, named by file and title."""
    return [pytest.param(case, id=f"{case.path.stem}: {case.title}") for case in cases(kind)]


@pytest.mark.parametrize("case", identified("plans"))
def test_sql_becomes_this_plan(case: Case) -> None:
    """The plan of each SQL is the one in the file."""
    check(case, written(plan(case.parse(), CATALOG)))


@pytest.mark.parametrize("case", identified("errors"))
def test_sql_is_refused_with_this_error(case: Case) -> None:
    """Each SQL ends in a QueryError, or a CatalogError where shards disagree, with the text in the file."""
    with pytest.raises((QueryError, CatalogError)) as caught:
        case.parse()
    check(case, str(caught.value))


@pytest.fixture(scope="module")
def tables() -> Iterator[duckdb.DuckDBPyConnection]:
    with empty_duckdb() as connection:
        yield connection


@pytest.mark.parametrize("case", identified("plans"))
def test_duckdb_agrees_with_the_plan(case: Case, tables: duckdb.DuckDBPyConnection) -> None:
    """DuckDB takes each planned SQL over the same tables, and finds the same columns and types."""
    relation = tables.sql(case.sql)
    if "*" in case.sql or "drop" in case.options or case.sql.startswith("FROM"):
        return
    query = case.parse()
    assert [column.type for column in query.outputs] == [str(type_name) for type_name in relation.types]
    assert [column.name.split(".")[-1].lower() for column in query.outputs if column.expression.isidentifier()] == [
        name.lower()
        for name, column in zip(relation.columns, query.outputs, strict=True)
        if column.expression.isidentifier()
    ]


@pytest.mark.parametrize("kind", ["plans", "errors"])
def test_there_are_enough_cases(kind: str) -> None:
    """At least 40 cases of each kind, with titles that name one case only."""
    titles = [(case.path, case.title) for case in cases(kind)]
    assert len(titles) >= 40
    assert len(set(titles)) == len(titles)
    marks = sum(path.read_text().count("\n## ") for path in (GOLDEN / kind).glob("*.md"))
    assert marks == len(titles), "a case is not written as the others"


def written(found: Plan) -> str:
    """A plan as text: outputs, branches, scans."""
    query = found.query
    lines = ["distinct"] if query.distinct else []
    lines += [f"table {use.alias}: {use.table}" for use in query.tables]
    for column in query.outputs:
        marks = " (label)" * (column is query.label) + " (categorical)" * (column.name in query.categorical)
        lines.append(f"output {column.name} = {column.alias}: {column.expression} {column.type}{marks}")
    for number, branch in enumerate(query.branches, 1):
        title = f"branch {number}: " if len(query.branches) > 1 else ""
        lines += [title + line for line in _branch_lines(branch)]
    for scan in found.scans:
        lines += _scan_lines(scan)
    return "\n".join(lines)


def _branch_lines(branch: Branch) -> list[str]:
    filters = [f"filter {alias}: {text}" for alias, text in branch.filters.items()]
    return [*_tree_lines(branch.joined), *filters]


def _tree_lines(tree: JoinTree) -> list[str]:
    lines = [f"key {key.label} as {', '.join(key.families)}" for key in tree.keys]
    if tree.steps and not tree.keys:
        lines = [f"rows of {', '.join(tree.tables)}"]
    for step in tree.steps:
        conditions = [f"holds {alias}: {text}" for alias, text in step.conditions.items()]
        if isinstance(step, Keep):
            lines += conditions
            continue
        right = _tree_lines(step.right) if step.right.keys or step.right.steps else [f"rows of {step.right.tables[0]}"]
        keys = [f"by {key.label} as {', '.join(key.families)}" for key in step.keys]
        lines.append("full join of" if step.keeps_right else "left join of")
        lines += [f"  {line}" for line in (*right, *keys, *conditions)]
    return lines or ["no key"]


def _scan_lines(scan: Scan) -> list[str]:
    columns = ", ".join(f"{name} {type_name}" for name, type_name in scan.columns.items())
    readers = ", ".join(str(number) for number, used in enumerate(scan.branches, 1) if used)
    branches = f" for branch {readers}" if len(scan.branches) > 1 else ""
    pushed = [f"  pushed {c.column} {c.operator} {', '.join(map(repr, c.values))}".rstrip() for c in scan.pushed]
    told = [f"  tells {text}" for text in scan.conditions] + ["  has the missing row"] * scan.missing
    return [f"scan {scan.alias} at {scan.party}{branches}", f"  reads {columns or 'no column'}", *pushed, *told]
