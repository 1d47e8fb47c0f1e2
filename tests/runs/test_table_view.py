"""Tables for people, in terminals and notebooks."""

from __future__ import annotations

import io
import re

import numpy as np
from rich.console import Console

from tablepuppet.runs.table_view import NamedNumbers, Records, ShownAsTable, TableView

VIEW = TableView("A [b] & c", {"name": "left", "rows": "right"}, [["[red]<script>", "1"], ["items[]", "12,000"]])


class Shops(ShownAsTable):
    def table_view(self) -> TableView:
        return VIEW


def test_text_shows_cells_as_they_are() -> None:
    """What looks like markup of rich stays text; numbers stand at the right."""
    lines = VIEW.text().splitlines()
    assert lines[0] == "A [b] & c"
    assert [line.split("│")[1:-1] for line in lines if "│" in line] == [
        [" [red]<script> ", "      1 "],
        [" items[]       ", " 12,000 "],
    ]


def test_html_escapes_everything_and_aligns_numbers() -> None:
    """No cell, name or title can become markup; cells of numbers stand at the right, others at the left."""
    html = VIEW.html()
    assert "<script>" not in html
    assert "[red]&lt;script&gt;" in html
    assert "A [b] &amp; c</div><div" in html  # above the table: its caption would be as narrow as it is
    assert re.findall(r"<td [^>]*text-align: (\w+)[^>]*>([^<]*)<", html) == [
        ("left", "[red]&lt;script&gt;"), ("right", "1"), ("left", "items[]"), ("right", "12,000"),
    ]  # fmt: skip


def test_html_takes_the_colours_of_the_page() -> None:
    """A table is readable on light and dark: text inherits its colour, lines are half transparent."""
    html = VIEW.html()
    assert set(re.findall(r"(?<![-\w])color: ([^;]+);", html)) == {"inherit"}
    assert set(re.findall(r"background: ([^;]+);", html)) == {"none"}


def test_one_description_serves_str_repr_rich_and_html() -> None:
    """`ShownAsTable` prints the same table in all of them."""
    shops = Shops()
    console = Console(record=True, width=120, force_terminal=True, file=io.StringIO())
    console.print(shops)
    assert str(shops) == repr(shops) == VIEW.text()
    assert "items[]" in console.export_text()
    assert shops._repr_html_() == VIEW.html()


def test_records_are_a_list_that_a_notebook_shows_as_a_table() -> None:
    """A list of dicts stays one; its HTML has a column per key that has a value."""
    records = Records(
        [{"party": "a", "bytes": 1200, "epsilon": None}, {"party": "<b>", "bytes": None, "lost": ["x", "y"]}]
    )
    assert records == [
        {"party": "a", "bytes": 1200, "epsilon": None},
        {"party": "<b>", "bytes": None, "lost": ["x", "y"]},
    ]
    cells = re.findall(r"<t[hd] [^>]*text-align: (\w+)[^>]*>([^<]*)<", records._repr_html_())
    assert cells == [
        ("left", "party"), ("right", "bytes"), ("left", "lost"),
        ("left", "a"), ("right", "1,200"), ("left", ""),
        ("left", "&lt;b&gt;"), ("right", ""), ("left", "x, y"),
    ]  # fmt: skip
    assert "<td" not in Records()._repr_html_()


def test_a_history_shows_metrics_as_everywhere() -> None:
    """Four digits of a metric and tenths of seconds; six of the loss, which changes little in the last rounds."""
    rounds = Records(
        [{"round": 1, "seconds": 0.0081264, "loss": 0.523425, "metric": 0.75, "validation_metric": 35990.4}]
    )
    cells = re.findall(r"<td [^>]*>([^<]*)<", rounds._repr_html_())
    assert cells == ["1", "0.0", "0.523425", "0.7500", "35,990"]


def test_named_numbers_are_a_dict_that_a_notebook_shows_as_a_table() -> None:
    """One column of numbers, or one per class."""
    assert NamedNumbers({"a.x": np.float64(1.5)}) == {"a.x": 1.5}
    printed = str(NamedNumbers({"a.x": np.float64(1.23456)}, ["coefficient"]))
    assert "│ a.x │       1.235 │" in printed
    assert "float64" not in printed
    two = NamedNumbers({"a.x": np.array([1.5, -2]), "a.k=0": np.array([0, 1])}, ["no", "yes"], lambda: {"a.k=0": "red"})
    assert two.to_arrow().to_pylist() == [
        {"name": "a.x", "category": None, "no": 1.5, "yes": -2.0},
        {"name": "a.k=0", "category": "red", "no": 0.0, "yes": 1.0},
    ]
    assert NamedNumbers({"a.x": 2.0}).to_pandas().to_dict("list") == {"name": ["a.x"], "value": [2.0]}
    assert NamedNumbers({}).to_arrow().num_rows == 0
    html = NamedNumbers({"a.x": np.array([1.5, -2]), "<y>": np.array([0, 12345.678])}, ["no", "<yes>"])._repr_html_()
    assert re.findall(r"<t[hd] [^>]*>([^<]*)<", html) == [
        "", "no", "&lt;yes&gt;", "a.x", "1.5", "-2", "&lt;y&gt;", "0", "12,346",
    ]  # fmt: skip
