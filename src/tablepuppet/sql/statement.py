"""SQL text becomes the SELECTs of a union.

DuckDB's own parser decides what is SQL; sqlglot then gives the tree. Whatever else a statement may be is refused here.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

import duckdb
from sqlglot import TokenType, exp
from sqlglot.errors import ParseError, SqlglotError

from tablepuppet.errors import QueryError
from tablepuppet.sql.advice import NO_WAY, PUBLISHED
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.expression import SQLGLOT_FAULTS, TWO_WAYS, bracketed
from tablepuppet.sql.place import SqlText
from tablepuppet.sql.quiet_duckdb import scratch
from tablepuppet.sql.reading import Unread, difference
from tablepuppet.sql.select import refuse_clauses

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNREAD = "this SQL is not supported yet; write it in a simpler way"


def tree_of(sql: SqlText) -> exp.Expr:
    """The tree of the one SELECT, or union of SELECTs, in the text."""
    kinds = _duckdb_kinds(sql)
    if not kinds:
        raise QueryError("the SQL is empty; write a SELECT over tables of the catalog")
    if len(kinds) > 1:
        second = next(after for token, after in pairwise(sql.tokens) if token.token_type is TokenType.SEMICOLON)
        span = (second.start, sql.tokens[-1].end + 1)
        raise QueryError("one SELECT at a time; this is more than one statement", sql=sql.text, span=span)
    if kinds != [duckdb.StatementType.SELECT]:
        raise sql.error("only SELECT is supported: a relation reads tables and changes nothing")
    _refuse_other_numbers(sql)
    try:
        read = AsWritten().parser().parse(sql.tokens, sql.text)[0]
    except SQLGLOT_FAULTS:
        raise sql.error(_UNREAD) from None
    if read is None:
        raise sql.error(_UNREAD)
    return read


def require_read_alike(sql: SqlText, tree: exp.Expr) -> None:
    """Raise unless DuckDB reads the text as the tree says: sqlglot has an order of operators of its own.

    The tree is of no use after it.
    """
    try:
        found = difference(sql.text, bracketed(tree, copy=False))
    except Unread:
        raise sql.error(TWO_WAYS) from None
    if found is not None:
        start, length = found
        encoded = sql.text.encode()
        first, last = (len(encoded[:end].decode(errors="ignore")) for end in (start, start + length))
        raise sql.error_at(TWO_WAYS, (first, last))


def unread(sql: SqlText, error: SqlglotError | RecursionError) -> QueryError:
    """The error for SQL that DuckDB reads and sqlglot does not."""
    if isinstance(error, RecursionError):
        return QueryError("the SQL is nested too deeply; split it up")
    if not isinstance(error, ParseError) or not error.errors:
        return QueryError(_UNREAD)
    detail = error.errors[0]
    end = sum(len(line) + 1 for line in sql.text.split("\n")[: detail["line"] - 1]) + detail["col"]
    return QueryError(_UNREAD, sql=sql.text, span=(max(0, end - len(detail["highlight"])), end))


def _duckdb_kinds(sql: SqlText) -> list[duckdb.StatementType]:
    """The kinds of the statements in the text, or the QueryError for what DuckDB cannot parse."""
    if _SURROGATE.search(sql.text):
        raise QueryError("the SQL holds half a character (a lone surrogate); write the whole one")
    with scratch() as connection:
        connection.execute("SET errors_as_json = true")
        try:
            return [statement.type for statement in connection.extract_statements(sql.text)]
        except duckdb.Error as error:
            raise _syntax_error(sql, str(error)) from None


def _syntax_error(sql: SqlText, error: str) -> QueryError:
    """DuckDB's parser error, with the place that it names in bytes of UTF-8."""
    detail = json.loads(error[error.index("{") :])
    encoded = sql.text.encode()
    start, length = json.loads(detail.get("location", f"[0, {len(encoded)}]"))
    first, last = (len(encoded[:end].decode(errors="ignore")) for end in (start, start + length))
    message = f"this is not SQL that DuckDB would read: {detail['exception_message']}"
    return QueryError(message, sql=sql.text, span=(first, max(last, first + 1)))


def _refuse_other_numbers(sql: SqlText) -> None:
    """0x1F and the like: sqlglot would read 0 AS x1F."""
    for token, after in pairwise(sql.tokens):
        if token.token_type is TokenType.NUMBER and after.start == token.end + 1 and after.text[:1].isalpha():
            message = "only decimal numbers are supported; write it with the digits 0-9"
            raise QueryError(message, sql=sql.text, span=(token.start, after.end + 1))


def without_with(tree: exp.Expr, sql: SqlText) -> tuple[exp.Expr, dict[str, exp.CTE]]:
    """A statement without WITH, and the subqueries that this names, by name in lower case."""
    clause = tree.args.get("with_")
    if clause is None:
        return tree, {}
    if clause.args.get("recursive"):
        raise sql.error(f"WITH RECURSIVE is not supported, and {NO_WAY}", clause, "WITH")
    named: dict[str, exp.CTE] = {}
    for each in clause.expressions:
        alias = each.args.get("alias")
        if alias is not None and alias.columns:
            raise sql.error("renaming columns in WITH is not supported; use AS in the SELECT list", each)
        named[each.alias.lower()] = each
    whole = tree.copy()
    whole.set("with_", None)
    return whole, named


def selects_of(node: exp.Expr, sql: SqlText) -> tuple[list[exp.Select], bool]:
    """The SELECTs of a union in order, and whether equal combinations of rows count once."""
    if isinstance(node, exp.Select):
        return [node], False
    refuse_clauses(node, sql)
    if isinstance(node, exp.Subquery):
        return selects_of(node.this, sql)
    if isinstance(node, exp.Values):
        raise sql.error(f"VALUES is not supported; {PUBLISHED}")
    if not isinstance(node, exp.Query):  # SUMMARIZE, DESCRIBE: DuckDB counts them as SELECT
        raise sql.error("only SELECT is supported: a relation reads tables and changes nothing")
    word = type(node).__name__.upper()
    if not isinstance(node, exp.Union):
        raise sql.error(
            f"{word} is not supported, and {NO_WAY}; only UNION and UNION ALL combine SELECTs", node.expression, word
        )
    if node.args.get("by_name"):
        raise sql.error("UNION BY NAME is not supported yet; write the columns in one order", node.expression, word)
    left, left_distinct = selects_of(node.left, sql)
    right, right_distinct = selects_of(node.right, sql)
    distinct = bool(node.args.get("distinct"))
    if not distinct and (left_distinct or right_distinct):
        message = f"UNION ALL cannot stand after UNION, and {NO_WAY}; only UNION may stand after UNION ALL"
        raise sql.error(message, node.expression, word)
    return left + right, distinct
