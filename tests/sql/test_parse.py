"""Properties of `parse` over all the SQL of the golden files, mutated."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tablepuppet.errors import QueryError, TablePuppetError
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan
from tablepuppet.sql.query import Query
from tests.sql.example import CATALOG
from tests.sql.test_golden import cases

WORDS = re.compile(r"\s+|\w+|'[^']*'|\"[^\"]*\"|.", re.DOTALL)
TEXTS = sorted({case.sql for kind in ("plans", "errors") for case in cases(kind)})
PARTS = sorted({word for text in TEXTS for word in WORDS.findall(text)} | {"\0", "\ud800", "🎁", "`", "\\", "1e999"})


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The SQL of a golden case with some words deleted, swapped, doubled or put in from another."""
    words = WORDS.findall(draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 4))):
        if not words:
            break
        place, other = (draw(st.integers(0, len(words) - 1)) for _ in range(2))
        match draw(st.sampled_from(["delete", "swap", "insert", "replace", "splice"])):
            case "delete":
                del words[place]
            case "swap":
                words[place], words[other] = words[other], words[place]
            case "insert":
                words.insert(place, draw(st.sampled_from(PARTS)))
            case "replace":
                words[place] = draw(st.sampled_from(PARTS))
            case "splice":
                words[place:] = WORDS.findall(draw(st.sampled_from(TEXTS)))[other:]
    return "".join(words)


@given(mutated())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_becomes_a_plan_or_our_error(text: str) -> None:
    """Whatever the text, there is a plan or a TablePuppetError; no error of sqlglot, DuckDB or Python comes through."""
    try:
        query = parse(text, CATALOG, label="price")
    except TablePuppetError:
        return
    assert isinstance(query, Query)
    plan(query, CATALOG)


@pytest.mark.parametrize("depth", [30, 300, 3000])
@pytest.mark.parametrize("shape", ["{open}price{close}", "price{plus}", "-price{plus}", "NOT {open}returned{close}"])
def test_deep_nesting_ends_in_a_plan_or_our_error(shape: str, depth: int) -> None:
    """A deep expression is a plan or a QueryError, never a RecursionError."""
    expression = shape.format(open="(" * depth, close=")" * depth, plus=" + price" * depth)
    try:
        parse(f"SELECT {expression} AS deep FROM orders", CATALOG)
    except QueryError as error:
        assert "deep" in str(error)  # noqa: PT017 - either outcome is right, depending on Python's stack


def test_many_conditions_are_no_problem() -> None:
    """A long WHERE of AND and OR is planned."""
    conditions = " AND ".join(f"quantity <> {number}" for number in range(200))
    query = parse(f"SELECT price FROM orders WHERE {conditions} AND quantity IN ({', '.join('1' * 500)})", CATALOG)
    assert len(plan(query, CATALOG).scans[0].pushed) == 201


@pytest.mark.parametrize("text", ["\ud800", "SELECT price FROM orders WHERE note = '\udfff'", "\0", "SELECT '\0'"])
def test_characters_that_no_sql_holds(text: str) -> None:
    """Half a character or a NUL is a QueryError."""
    with pytest.raises(QueryError):
        parse(text, CATALOG)


def test_a_query_remembers_its_text() -> None:
    """The text is kept as the analyst wrote it."""
    assert parse(" SELECT price\nFROM orders ; ", CATALOG).sql == " SELECT price\nFROM orders ; "
