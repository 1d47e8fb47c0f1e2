"""Tables on screens of any width."""

from __future__ import annotations

import pytest
from rich.console import Console

from tablepuppet.runs.table_view import TableView

HEADS = ["column", "type", "count", "mean", "std", "top share"]
ROWS = [
    ["manufacturer", "VARCHAR", "277,690", "1.234e+04", "0.004284", "0.2949"],
    ["hour", "BIGINT", "9", "1", "2", ""],
]
VIEW = TableView("Joined rows", {head: "left" if head in ("column", "type") else "right" for head in HEADS}, ROWS)


@pytest.mark.parametrize("width", [28, 40, 60, 75, 76, 80, 120])
def test_nothing_is_cut(width: int) -> None:
    """Every cell is whole, once for each part that needs it; no line is longer than the screen; one title."""
    text = VIEW.text(width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for cell in (cell for row in ROWS for cell in row):
        assert cell in text
    assert text.count("Joined rows") == 1
    assert all(row[0] in text for row in ROWS)


def test_a_table_that_fits_is_one() -> None:
    """With room it is as it was; with little less it loses its frame before its header's words, or falls apart."""
    assert VIEW.text(120).count("manufacturer") == 1
    assert VIEW.text(70).count("manufacturer") == 1
    assert VIEW.text(40).count("manufacturer") > 1


def test_long_texts_are_wrapped() -> None:
    """A long text does not force a part of its own: it takes more lines."""
    view = TableView("", {"table": "left", "rows": "right", "columns": "left"}, [["t", "12", "abcde fghi " * 20]])
    text = view.text(60)
    assert text.count("table") == 1
    assert text.count("abcde") == 20
    assert Console(width=60).measure(text).maximum <= 60


def test_a_title_is_as_long_as_the_screen_allows() -> None:
    """It is not wrapped to the width of a narrow table."""
    view = TableView("Correlation over joined rows", {"": "left", "y": "right"}, [["y", "1"]])
    assert view.text(80).splitlines()[0] == "Correlation over joined rows"
    assert max(map(len, view.text(20).splitlines())) <= 20
