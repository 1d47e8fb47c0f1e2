"""Tables for people: text in a terminal, HTML in a notebook, from one description. And cards for notebooks: what a
federation or a relation is, at a glance.

What comes in are cells as text; whoever makes a table answers for what stands in it, and nobody is asked for the sake
of a card. Everything is escaped, so that a name which looks like markup is shown as it is, and controls of a terminal
are taken out: parties write some names. The HTML has no colours of its own: it reads well on light and dark.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from tablepuppet.errors import without_controls
from tablepuppet.runs.figures import fixed, number, shown
from tablepuppet.runs.fitted_text import WideTable, window_width
from tablepuppet.spelling import hides, unknown_key

Align = Literal["left", "right"]
_LINE = "rgba(128, 128, 128, 0.45)"
_TABLE = "border-collapse: collapse; margin: 0 0 0.75em; color: inherit;"
_CELL = "padding: 0.25em 0.75em; vertical-align: top; background: none; color: inherit; border: none; "
_TITLE = "font-weight: bold; padding: 0.25em 0.75em; color: inherit;"
_ALIGNED = {
    "left": "text-align: left; white-space: normal; max-width: 60em;",
    "right": "text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;",
}
_MONOSPACE = "font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;"
_PREFORMATTED = (
    f"overflow-x: auto; line-height: 1.25; {_MONOSPACE} color: inherit; background: none; border: none; "
    "word-break: normal; overflow-wrap: break-word; white-space: "  # notebooks would break lines within words
)
_CARD = (
    "display: inline-block; max-width: 100%; box-sizing: border-box; padding: 0.6em 1em; color: inherit; "
    "border: 1px solid rgba(128, 128, 128, 0.45); border-radius: 8px;"
)
_FACTS = "display: grid; grid-template-columns: max-content 1fr; gap: 0.2em 1em; margin: 0.5em 0 0;"


@dataclass(frozen=True)
class TableView:
    """A title, columns by name with the side they are aligned to, and rows of cells.

    >>> view = TableView("Shops", {"name": "left", "rows": "right"}, [["<b>", "1,200"]])
    >>> print(view.text())
    Shops
    ┏━━━━━━┳━━━━━━━┓
    ┃ name ┃  rows ┃
    ┡━━━━━━╇━━━━━━━┩
    │ <b>  │ 1,200 │
    └──────┴───────┘
    >>> "&lt;b&gt;" in view.html()
    True
    """

    title: str
    columns: Mapping[str, Align]
    rows: Sequence[Sequence[str]]

    def rich(self) -> RichTable:
        """The table for a terminal of any width."""
        view = RichTable(title=_text(self.title) if self.title else None, title_justify="left")
        for place, (name, align) in enumerate(self.columns.items()):
            words = [word for row in self.rows for word in row[place].split()] if align == "right" else []
            view.add_column(
                _text(name), justify=align, min_width=max(map(len, words), default=None)
            )  # no number is cut
        for row in self.rows:
            view.add_row(*map(_text, row))
        return view

    def text(self, width: int | None = None) -> str:
        """The table as plain text, as wide as the window unless a width is given."""
        out, width = io.StringIO(), window_width() if width is None else width
        # In a notebook rich would show the table there too, whatever the file.
        Console(file=out, width=width, color_system=None, force_jupyter=False).print(WideTable(self.rich()))
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())

    def html(self) -> str:
        """The table for a notebook."""
        sides = list(self.columns.values())
        head = "".join(_cell("th", name, align) for name, align in self.columns.items())
        rows = ("".join(_cell("td", cell, align) for cell, align in zip(row, sides, strict=True)) for row in self.rows)
        body = "".join(f"<tr>{cells}</tr>" for cells in rows)
        # No caption: that would be as narrow as the table.
        title = f'<div style="{_TITLE}">{escape(without_controls(self.title))}</div>' if self.title else ""
        return (
            f'{title}<div style="overflow-x: auto;"><table style="{_TABLE}">'
            f'<thead style="border-bottom: 1px solid {_LINE};"><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


def aligned(left: Iterable[str], right: Iterable[str]) -> dict[str, Align]:
    """Columns of a table: texts, then numbers."""
    return {**dict.fromkeys(left, "left"), **dict.fromkeys(right, "right")}


def _text(cell: str) -> Text:
    return Text(without_controls(cell))


def _cell(tag: str, text: str, align: Align) -> str:
    return f'<{tag} style="{_CELL}{_ALIGNED[align]}">{escape(without_controls(text))}</{tag}>'


@hides("table_view", "table_views")
class ShownAsTables(ABC):
    """Something that prints as tables below each other: text wherever text is shown, HTML in a notebook."""

    @abstractmethod
    def table_views(self) -> list[TableView]:
        """The tables to show."""

    def __rich__(self) -> Group:
        return Group(*(WideTable(view.rich()) for view in self.table_views()))

    def __str__(self) -> str:
        return "\n".join(view.text() for view in self.table_views())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(view.html() for view in self.table_views())


class ShownAsTable(ShownAsTables):
    """Something that prints as one table."""

    @abstractmethod
    def table_view(self) -> TableView:
        """The table to show."""

    def table_views(self) -> list[TableView]:
        """The one table."""
        return [self.table_view()]


class ArrowStream(ABC):
    """Something that other libraries take as a table: `pl.DataFrame(it)`, `pa.table(it)`, DuckDB."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """All of it as Arrow."""

    def to_pandas(self) -> Any:
        """All of it as a pandas DataFrame; pandas is needed for this only."""
        return self.to_arrow().to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)


class ArrowRows(ArrowStream):
    """A stream that also yields a dict for each row of `to_arrow`: that is what `pd.DataFrame(it)` reads."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_arrow().to_pylist())


class TableResult(ShownAsTable, ArrowRows):
    """A result that prints as a table, and that other libraries take as one."""


class Records(list[dict[str, Any]], ArrowStream):
    """A list of dicts with the same keys, which a notebook shows as a table; a plain list in all else."""

    def to_arrow(self) -> pa.Table:
        """One row for each dict; what a dict does not have is null."""
        names = dict.fromkeys(name for record in self for name in record)
        return pa.table({name: pa.array([record.get(name) for record in self]) for name in names})

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for record in self for name in record))
        values = {name: [record.get(name) for record in self] for name in names}
        cells = {name: [_record_cell(name, value) for value in column] for name, column in values.items()}
        cells = {name: column for name, column in cells.items() if any(column)}  # what no record has is left out
        sides = {name.replace("_", " "): side(values[name]) for name in cells}
        return TableView("", sides, list(zip(*cells.values(), strict=True))).html()


def _record_cell(name: str, value: Any) -> str:
    """A metric as everywhere, tenths of seconds; of a loss more digits, since the last rounds gain little of it."""
    if isinstance(value, float) and name == "seconds":
        return fixed(value, 1)
    if isinstance(value, float) and name in ("metric", "validation_metric"):
        return number(value, zeros=True)
    return shown(value, 6)


class NamedNumbers(dict[str, Any], ArrowStream):
    """Numbers, or arrays of one number per head, by name: a dict that is printed, and shown in a notebook, as a table.

    ``meanings`` gives, when the table is shown, what some of the names mean.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        heads: Sequence[str] = ("value",),
        meanings: Callable[[], Mapping[str, str]] = dict,
    ):
        super().__init__(values)
        self.heads, self.meanings = list(heads), meanings

    def __missing__(self, name: object) -> Any:
        raise unknown_key("the model", name, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedNumbers, (dict(self), self.heads)  # a copy need not know whom to ask

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(list(self.values()), dtype)  # in the order of names

    def __str__(self) -> str:
        return self._view().text()

    def _repr_html_(self) -> str:
        return self._view().html()

    def to_arrow(self) -> pa.Table:
        """One row per name: the name, what it means if that is known, and its numbers."""
        known, numbers = self.meanings(), np.array([np.ravel(value) for value in self.values()], np.float64)
        columns: dict[str, Any] = {"name": list(self)}
        if known:
            columns["category"] = [known.get(name) for name in self]
        return pa.table(columns | dict(zip(self.heads, numbers.reshape(len(self), len(self.heads)).T, strict=True)))

    def _view(self) -> TableView:
        known = self.meanings()
        rows = [[name, *(shown(float(number)) for number in np.ravel(value))] for name, value in self.items()]
        sides: dict[str, Align] = {"": "left"}
        if known:
            sides["category"] = "left"
            rows = [[row[0], known.get(row[0], ""), *row[1:]] for row in rows]
        sides.update((head, "right") for head in self.heads)
        return TableView("", sides, rows)


def side(values: Sequence[Any]) -> Align:
    """Numbers to the right, all else to the left."""
    return "right" if all(isinstance(value, int | float | None) for value in values) else "left"


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as Arrow; NaN, and what a row does not have, is null."""
    known = [{name: value for name, value in row.items() if value == value} for row in rows]  # NaN is not itself
    return pa.Table.from_pylist(known, schema=schema)


def preformatted(text: str, *, wrapped: bool = False) -> str:
    """Text line by line, in letters of one width; a long line may be ``wrapped``, if its columns mean nothing.

    >>> "monospace" in preformatted("a < b"), "a &lt; b</pre>" in preformatted("a < b")
    (True, True)
    """
    lines = "\n".join(map(without_controls, text.split("\n")))
    return f'<pre style="{_PREFORMATTED}{"pre-wrap" if wrapped else "pre"};">{escape(lines)}</pre>'


def card(title: str, facts: Mapping[str, str], sql: str = "") -> str:
    """A title, the SQL if there is some, and facts by name.

    >>> shown = card("Shop <b>", {"rows": "12"})
    >>> "Shop &lt;b&gt;" in shown, "<span>12</span>" in shown, "pre-wrap" in card("Shop", {}, "SELECT a FROM t")
    (True, True, True)
    """
    lines = "".join(
        f'<span style="opacity: 0.65;">{escape(without_controls(name))}</span>'
        f"<span>{escape(without_controls(fact))}</span>"
        for name, fact in facts.items()
    )
    head = f"<div><b>{escape(without_controls(title))}</b></div>"
    query = preformatted(sql, wrapped=True) if sql else ""
    return f'<div style="{_CARD}">{head}{query}<div style="{_FACTS}">{lines}</div></div>'
