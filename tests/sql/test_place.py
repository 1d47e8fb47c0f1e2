"""Where an error underlines: also after wide letters, tabs and on other lines."""

from __future__ import annotations

import pytest

from tablepuppet.errors import QueryError, underline
from tablepuppet.sql.parse import parse
from tests.sql.example import CATALOG


def marked(sql: str) -> str:
    """The part of the SQL that the error of `parse` is about."""
    with pytest.raises(QueryError) as caught:
        parse(sql, CATALOG)
    assert caught.value.span is not None
    start, end = caught.value.span
    return sql[start:end]


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT pryce FROM orders", "pryce"),
        ('SELECT "pry ce" FROM orders', '"pry ce"'),
        ("SELECT note = '(((' OR pryce > 1 FROM orders", "pryce"),
        ("SELECT o.price + i.weight FROM orders o JOIN items i USING (item_id)", "o.price + i.weight"),
        ("SELECT ((o.price) + (i.weight)) FROM orders o JOIN items i USING (item_id)", "(o.price) + (i.weight)"),
        ("SELECT sum(price) FROM orders", "sum(price)"),
        ("SELECT 1 + max(abs(price)) FROM orders", "max(abs(price))"),
        ("SELECT price FROM orders WHERE note = ')' LIMIT (3)", "LIMIT (3)"),
        ("SELECT price, limits FROM orders", "limits"),
        ("SELECT price /* LIMIT */ FROM orders LIMIT 3 -- LIMIT", "LIMIT 3"),
        ("SELECT price FROM orders WHERE now() > placed", "now()"),
        ("SELECT price FROM orders WHERE '🎁大é' = note AND pryce", "pryce"),
    ],
)
def test_the_place_is_marked(sql: str, place: str) -> None:
    """The span holds the part at fault with its brackets, and no more."""
    assert marked(sql) == place


@pytest.mark.parametrize(
    ("sql", "span", "expected"),
    [
        ("a\nbcd\ne", (3, 4), "  line 2: bcd\n           ^"),
        ("a\nbcd\ne", (2, 7), "  line 2: bcd\n          ^^^"),
        ("\t\tx", (2, 3), "  line 1:   x\n            ^"),
        ("大大 x", (3, 4), "  line 1: 大大 x\n               ^"),
        ("e\u0301 x", (3, 4), "  line 1: e\u0301 x\n            ^"),
        ("'🎁' y", (0, 3), "  line 1: '🎁' y\n          ^^^^"),
        ("ab\r\ncd", (0, 2), "  line 1: ab\n          ^^"),
        ("", (0, 0), "  line 1: \n          ^"),
        ("ab", (2, 3), "  line 1: ab\n            ^"),
    ],
)
def test_carets_stand_below_the_span(sql: str, span: tuple[int, int], expected: str) -> None:
    """Carets stand where a terminal shows the letters, on the first line of the span."""
    assert underline(sql, span) == expected
