"""Texts that an expression makes are bounded by the expression itself, before any row is read."""

from __future__ import annotations

import pytest

import tablepuppet as tp
from tablepuppet.sql.expression import checked

LONG = "a" * 4000


@pytest.mark.parametrize(
    "text",
    [
        "repeat(x, 1000000)",
        "length(repeat(x, 1000000))",
        "repeat(repeat(x, 1000), 1000)",
        "lpad(x, 10000000, '0')",
        "rpad(lpad(x, 40000, '0'), 40000, '0')",
        f"replace(replace(x, 'a', '{LONG}'), 'a', '{LONG}')",
        "regexp_replace(regexp_replace(x, '.', '" + "\\0" * 20 + "', 'g'), '.', '" + "\\0" * 20 + "', 'g')",
        "printf('%1000000d', y)",
        "format('{:>1000000}', x)",
        "bar(y, 0, 1, 1000000)",
    ],
)
def test_texts_without_end_are_refused(text: str) -> None:
    """A short expression that makes a long text is an error that says how long it would be."""
    with pytest.raises(tp.QueryError, match=r"letters, more than the 65,536"):
        checked(text)


@pytest.mark.parametrize(
    "text", ["repeat(x, y)", "lpad(x, y, '0')", "repeat(x, 10 * 10)", "printf(x, y)", "printf('%*d', y, z)",
             "format('{:{}}', x, y)", "bar(y, 0, 1, z)"],
)  # fmt: skip
def test_lengths_must_be_numbers(text: str) -> None:
    """How long a text becomes may not depend on rows."""
    with pytest.raises(tp.QueryError, match="must state as a number how long"):
        checked(text)


@pytest.mark.parametrize(
    "text",
    [
        "lpad(x, 20, '0')",
        "repeat('0', 10) || x",
        "replace(replace(replace(replace(x, 'ä', 'ae'), 'ö', 'oe'), 'ü', 'ue'), 'ß', 'ss')",
        "regexp_replace(x, '[^a-z]+', '-', 'g')",
        "printf('%05.2f', y)",
        "format('{:>10}', x)",
        "strftime(d, '%Y-%m-%d')",
        "concat_ws(' ', a, b, c, d)",
        f"x IN ({', '.join(repr(str(n)) for n in range(20_000))})",
        " || ".join(["x"] * 200),
    ],
)
def test_what_people_write_is_allowed(text: str) -> None:
    """Ordinary expressions, and long lists of values, stay well below the bound."""
    checked(text)
