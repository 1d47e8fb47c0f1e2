"""The one tree of errors.

    TablePuppetError
    ├── ConfigError     a setting, URL or file is wrong
    ├── CatalogError    parties publish tables that do not fit together
    ├── QueryError      the SQL is outside what can be learned over; underlines the place
    ├── PartyError      a party or its database cannot do what it was asked
    ├── MappingError    the joined rows cannot be held
    ├── PrivacyError    a policy or a promise forbids it
    └── LearnError      the data or the settings do not make a model

Some are what Python and scikit-learn call them too: a misspelt argument is a TypeError, of a learner a LearnError as
well, elsewhere a ConfigError; a name that a result does not have is a KeyError; what is asked of a learner before `fit`
is scikit-learn's NotFittedError. A job that its party's operator has not approved is an ApprovalError, a PrivacyError.

A message says what was wrong, which party, table or column, and what to do. It never holds a value
of a row: errors cross from a party to the analyst. Nor does it hold a control of a terminal, whoever wrote the names.
"""

from __future__ import annotations

from unicodedata import combining, east_asian_width

from tablepuppet.short_traceback import short_traceback


class TablePuppetError(Exception):
    """The root of every error this package raises on purpose. IPython and notebooks print it short."""

    def __init__(self, *args: object):
        super().__init__(*(without_controls(each) if isinstance(each, str) else each for each in args))

    def _render_traceback_(self) -> list[str]:
        return short_traceback(self)


class ConfigError(TablePuppetError):
    """A setting, a URL or a configuration file is wrong."""


class CatalogError(TablePuppetError):
    """What parties publish does not fit together."""


class PartyError(TablePuppetError):
    """A party or its database cannot do what it was asked; ``limit`` names what has run out at the party, if it has."""

    def __init__(self, *args: object, limit: str = ""):
        self.limit = limit
        super().__init__(*args)


class MappingError(TablePuppetError):
    """The joined rows cannot be held in memory."""


class PrivacyError(TablePuppetError):
    """A policy, or a promise already made, forbids it; ``rule`` names the rule of a party's policy."""

    def __init__(self, message: str, *, rule: str = ""):
        self.rule = rule
        super().__init__(message)


class ApprovalError(PrivacyError):
    """The operator of a party has not approved the job yet, or has refused it."""


class LearnError(TablePuppetError):
    """The data or the settings do not make a model."""


class ArgumentError(ConfigError, TypeError):
    """A call has an argument that does not exist."""


class UnknownKeyError(LearnError, KeyError):
    """A result has no number of that name."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # that of a KeyError would be in quotes


class NotPickledError(LearnError, TypeError):
    """What is bound to open sessions of parties cannot be pickled or copied."""


class QueryError(TablePuppetError):
    """The SQL is outside what can be learned over.

    With ``sql`` and ``span`` the message shows the line and underlines the place:

    >>> print(QueryError("LIMIT is not supported", sql="SELECT a FROM t LIMIT 3", span=(16, 23)))
    LIMIT is not supported
      line 1: SELECT a FROM t LIMIT 3
                              ^^^^^^^
    """

    def __init__(self, message: str, *, sql: str | None = None, span: tuple[int, int] | None = None):
        self.span = span
        super().__init__(message if sql is None or span is None else f"{message}\n{underline(sql, span)}")


def without_controls(text: str) -> str:
    """A text whose parts others may have written, fit for a terminal: every letter but the line's end can be printed.

    >>> without_controls("bank\\x1b[31m is\\nred")
    'bank [31m is\\nred'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def plain_text(text: str, most: int = 2000) -> str:
    """A text that somebody else wrote, fit for a log or a terminal: in one line, without controls, and not too long.

    >>> plain_text("bank\\x1b[31m is\\nred", 12)
    'bank [31m i…'
    """
    shown = without_controls(text[: most + 1]).replace("\n", " ")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def underline(sql: str, span: tuple[int, int]) -> str:
    """The line of ``sql`` that holds ``span`` (start, end), with carets below the part of the span on it."""
    start, end = span
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    line_end = len(sql) if line_end < 0 else line_end
    prefix = f"  line {sql.count(chr(10), 0, start) + 1}: "
    line = sql[line_start:line_end].replace("\t", " ").rstrip()
    carets = "^" * max(1, _width(sql[start : min(end, line_end)].rstrip()))
    return f"{prefix}{line}\n{' ' * (len(prefix) + _width(sql[line_start:start]))}{carets}"


def _width(text: str) -> int:
    """Columns of a terminal that a text takes: none for a combining mark, two for wide letters and emoji."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text if not combining(letter))
