"""What fits the window: lines that break between words, underlined SQL cut around what is underlined, wide tables."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

UNBOUNDED = 120  # letters of a line where there is no window
# Spaces at which no line breaks: within "log loss 0.5833 (constant 0.6138)", "1.3 s" and "31.2 MB".
_GLUE = re.compile(r"(?<=\blog) (?=loss\b)|(?<=\w) (?=-?\d\S*)|(?<=\d) (?=\(constant\b|(?:s|min|[kMG]?B)\b)")
_GLUED = "\N{NO-BREAK SPACE}"


def window_width() -> int:
    """Letters that fit in a line of standard output."""
    if not (hasattr(sys.stdout, "isatty") and sys.stdout.isatty()):
        return UNBOUNDED
    return shutil.get_terminal_size((UNBOUNDED, 24)).columns


def in_window(text: str) -> str:
    """The text in lines that fit standard output, if that is a terminal; else as it is."""
    return fitted(text, window_width()) if hasattr(sys.stdout, "isatty") and sys.stdout.isatty() else text


def print_beside(text: str) -> None:
    """Print to standard error; on a terminal lines break between words. Where that is closed or gone, nothing is said:
    a fit does not end because nobody reads on.
    """
    out, width = sys.stderr, 0
    with suppress(OSError, ValueError):  # what takes itself for a terminal may have no size
        if hasattr(out, "isatty") and out.isatty():
            width = os.get_terminal_size(out.fileno()).columns or UNBOUNDED
    with suppress(OSError, ValueError):
        print(fitted(text, width) if width else text, file=out, flush=True)


def fitted(text: str, width: int) -> str:
    """The text in lines that are no longer than the width, unless a single word is.

    >>> print(fitted("AUC 0.6504 (constant 0.5000), log loss 0.5833 (constant 0.6138)", 40))
    AUC 0.6504 (constant 0.5000),
    log loss 0.5833 (constant 0.6138)
    >>> print(fitted("LIMIT is not supported here\\n  line 1: SELECT a FROM t LIMIT 3\\n" + " " * 26 + "^^^^^^^", 27))
    LIMIT is not supported here
      line 1: …a FROM t LIMIT 3
                        ^^^^^^^
    """
    lines, found = text.split("\n"), list[str]()
    while lines:
        line = lines.pop(0)
        if lines and set(lines[0].strip()) == {"^"}:
            found += _cut(line, lines.pop(0), width)
        else:
            found += _wrapped(line, width)
    return "\n".join(found)


def _wrapped(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    indent, glued = line[: len(line) - len(line.lstrip())], _GLUE.sub(_GLUED, line)
    lines = textwrap.wrap(glued, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if any(cell_len(each) > width for each in lines):  # a few words that should be together are too long for that
        lines = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [each.replace(_GLUED, " ") for each in lines]


def _cut(line: str, carets: str, width: int) -> list[str]:
    """A line of SQL and the carets below it, without what is too far from them; wide letters are left as they are."""
    begin = re.match(r" *line \d+: ", line)
    if max(cell_len(line), len(carets)) <= width or cell_len(line) != len(line) or begin is None:
        return [line, carets]
    head, body, start = begin.group(), line[begin.end() :], carets.index("^") - begin.end()
    room, marked = width - len(head), len(carets.strip())
    left = max(0, min(start - max(0, room - marked) // 2, len(body) - room))
    shown = body[left : left + room]
    shown = f"…{shown[1:]}" if left else shown
    shown = f"{shown[:-1]}…" if left + room < len(body) else shown
    return [head + shown, " " * (len(head) + start - left) + "^" * min(marked, room - start + left)]


# Tables wider than the screen: columns that do not fit come below, beside the first column again. Input: a table of
# texts. Output: its title in a line of its own, as long as the screen allows; the same table, without its frame if that
# makes it fit, or several tables below each other. Long texts are wrapped; no number or word is cut as long as the
# first column and one more fit.


BETWEEN = 3  # letters between two columns: padding and a line
FRAME = 4  # letters at both ends of a row
LONG, NARROW = 20, 16  # a cell of more letters than LONG is wrapped, in a column that may be as narrow as NARROW
_ANY_WIDTH = 10_000


class WideTable:
    """A table that is shown in as many parts as the width asks for."""

    def __init__(self, table: Table):
        self._table, self._title, table.title = table, table.title, None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title is not None:  # rich would wrap it to the width of the table
            yield Text(fitted(str(self._title), options.max_width), style="table.title")
        yield from self._parts(console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        if Measurement.get(console, options.update(width=_ANY_WIDTH), self._table).maximum <= options.max_width:
            yield self._table
            return
        columns = [_fitted(column, console, options) for column in self._table.columns]
        widths = [column.min_width or 0 for column in columns]
        whole, most = sum(widths) + BETWEEN * (len(widths) - 1), options.max_width
        framed = not most - FRAME < whole <= most
        parts = [list(range(len(widths)))] if whole <= most else _evenly_cut(widths, most - FRAME)
        for places in parts:
            taken = sum(widths[place] for place in places) + BETWEEN * (len(places) - 1) + FRAME * framed
            shown = _widened([columns[place] for place in places], most - taken)
            part = Table(*shown, show_edge=framed, pad_edge=framed)
            for row in zip(*(self._table.columns[place].cells for place in places), strict=True):
                part.add_row(*row)
            yield part


def _fitted(column: Column, console: Console, options: ConsoleOptions) -> Column:
    """The column with the least width that it needs, and with the most if it is wrapped.

    Cells are one line each unless they are long; the words of a header may be below each other.
    """
    unbounded, found = options.update(width=_ANY_WIDTH), column.copy()
    cells = [Measurement.get(console, unbounded, cell) for cell in column.cells]
    longest = max((cell.maximum for cell in cells), default=0)
    is_long = longest > LONG
    needed = max((cell.minimum for cell in cells), default=0) if is_long else longest
    header = Measurement.get(console, unbounded, column.header).minimum
    found.min_width = max(header, needed, NARROW if is_long else 0)
    found.max_width = max(longest, found.min_width) if is_long else found.min_width
    return found


def _widened(columns: list[Column], spare: int) -> list[Column]:
    """Columns with their widths: wrapped ones share what is left of a line, by how much more each could use.

    rich would first make long columns alike, and then a line longer than the screen if one of them is a single word.
    """
    found = [column.copy() for column in columns]
    wanted = [(column.max_width or 0) - (column.min_width or 0) for column in found]
    share = min(1.0, max(spare, 0) / max(sum(wanted), 1))
    for column, more in zip(found, wanted, strict=True):
        column.width = (column.min_width or 0) + int(share * more)
    return found


def _evenly_cut(widths: list[int], most: int) -> list[list[int]]:
    """As few parts as fit, about equally wide: no column is left over for a part of its own.

    >>> _evenly_cut([4, 5, 5, 5, 5], 28), _evenly_cut([4, 5, 5, 5, 5], 36)
    ([[0, 1, 2], [0, 3, 4]], [[0, 1, 2, 3, 4]])
    """
    fewest = len(_cut_cell(widths, most))
    return next(found for width in range(most + 1) if len(found := _cut_cell(widths, width)) == fewest)


def _cut_cell(widths: list[int], most: int) -> list[list[int]]:
    """Places of columns by part. Each part begins with the first column, and has one more, whether it fits or not.

    >>> _cut_cell([4, 5, 5, 5], 20)
    [[0, 1, 2], [0, 3]]
    """
    parts, used = [[0]], widths[0]
    for place, width in enumerate(widths[1:], 1):
        if len(parts[-1]) > 1 and used + BETWEEN + width > most:
            parts.append([0])
            used = widths[0]
        parts[-1].append(place)
        used += BETWEEN + width
    return parts
