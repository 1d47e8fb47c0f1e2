"""How long the texts of an expression may become: what DuckDB's own memory limit does not count.

DuckDB evaluates about two thousand rows at a time, and what functions make of their texts is in no limit of its own. A
request of a few bytes, such as ``repeat(x, 1000000)``, could take all memory. So functions that make texts longer must
say by how much, in the expression itself, and the sum is bounded. Nothing here sees data: a column counts as `COLUMN`
letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sqlglot import exp

COLUMN = 64  # letters that a value of a column is taken to have
MOST_LETTERS = 1 << 16  # of one expression, with all that it is made of
MOST_IN_SCAN = 1 << 17  # of all expressions of one table that are more than a column
PER_FIELD = 24  # letters of one field of a date, or of a number


class Unbounded(Exception):  # noqa: N818 - expression.py turns it into a refusal with a place
    """Nothing in the expression says how long a text becomes; the node at fault."""

    def __init__(self, node: exp.Expr):
        super().__init__(node)
        self.node = node


def letters(node: exp.Expr) -> int:
    """A bound of the letters that one row of an expression takes, all parts of it together; raises `Unbounded`.

    >>> from sqlglot import parse_one
    >>> from tablepuppet.sql.dialect import AsWritten
    >>> [letters(parse_one(text, dialect=AsWritten)) for text in ("x", "x || 'abc'", "repeat(x, 100)")]
    [64, 67, 6467]
    """
    sizes: dict[int, int] = {}
    for part in reversed(list(node.walk(bfs=False))):  # parts before what they are parts of
        inner = [each for each in part.iter_expressions() if not isinstance(part, exp.In) or each is part.this]
        sizes[id(part)] = _own(part, sizes) + sum(sizes[id(each)] for each in inner)
    return sizes[id(node)]


def letters_of_all(nodes: Iterable[exp.Expr]) -> int:
    """Letters of several expressions together; columns as they are do not count."""
    return sum(letters(node) for node in nodes if not isinstance(node.unnest(), exp.Column))


def _own(part: exp.Expr, sizes: dict[int, int]) -> int:
    """Letters that a node adds to those of its parts."""
    if isinstance(part, exp.Column):
        return COLUMN - sum(len(each.name) for each in part.iter_expressions())
    if isinstance(part, exp.Literal | exp.Identifier):
        return len(part.name)
    if not isinstance(part, exp.Anonymous):
        return 0
    given = [*part.expressions, None, None, None, None]
    match part.name.lower():
        case "repeat":
            return _number(part, given[1]) * _size(given[0], sizes)
        case "lpad" | "rpad":
            return _number(part, given[1])
        case "replace":
            return _size(given[0], sizes) * _times_longer(given[1], given[2], sizes)
        case "regexp_replace":
            return _replaced(given, sizes)
        case "strftime":
            return PER_FIELD * max(_size(each, sizes) for each in given[:2])  # either may be the format
        case "concat_ws":
            return max(len(part.expressions) - 2, 0) * _size(given[0], sizes)
        case "format" | "printf":
            return _fields(part, given[0])
        case "bar":
            return 4 * (_number(part, given[3]) if given[3] is not None else 80)
    return 0


def _number(part: exp.Expr, given: exp.Expr | None) -> int:
    """A length that the expression names itself."""
    if not isinstance(given, exp.Literal) or given.is_string or not given.name.isdigit():
        raise Unbounded(part)
    return int(given.name)


def _size(part: exp.Expr | None, sizes: dict[int, int]) -> int:
    return 0 if part is None else sizes[id(part)]


def _times_longer(old: exp.Expr | None, new: exp.Expr | None, sizes: dict[int, int]) -> int:
    """How many letters stand for one."""
    least, size = len(old.name) if isinstance(old, exp.Literal) else 1, _size(new, sizes)
    return -(-size // max(least, 1)) if size else 0


def _replaced(given: Sequence[exp.Expr | None], sizes: dict[int, int]) -> int:
    """The text, and for each match, or each letter of it, the replacement with the groups that it quotes."""
    text, new = _size(given[0], sizes), given[2]
    quoted = new.name.count("\\") if isinstance(new, exp.Literal) else _size(new, sizes)
    each = _size(new, sizes) + quoted * text
    return each if given[3] is None else each * (text + 1)


def _fields(part: exp.Expr, form: exp.Expr | None) -> int:
    """The numbers in a format are widths, and precisions; none may be an argument."""
    text = form.name if isinstance(form, exp.Literal) and form.is_string else None
    if text is None or "*" in text or re.search(r"\{[^}]*\{", text):
        raise Unbounded(part)
    return sum(int(number) for number in re.findall(r"\d+", text)) + PER_FIELD * len(text)
