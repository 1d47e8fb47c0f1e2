"""Text that fits the window: lines break between words, and underlined SQL is cut around what is underlined."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

from rich.cells import cell_len

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
    """Print to standard error; on a terminal lines break between words."""
    out = sys.stderr
    if hasattr(out, "isatty") and out.isatty():
        text = fitted(text, os.get_terminal_size(out.fileno()).columns or UNBOUNDED)
    print(text, file=out, flush=True)


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
