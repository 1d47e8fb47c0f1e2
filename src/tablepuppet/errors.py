"""The one tree of errors, and how notebooks print them.

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

IPython and notebooks print the user's own lines and the message, nothing in between. Python itself prints its whole
traceback as ever, and so does IPython on ``%tb Verbose``: with the cause, but without the values of variables, which
may be a key or rows, and would stay in the notebook's file. IPython is used where it runs already, and never imported.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any
from unicodedata import combining, east_asian_width

_PACKAGE = str(Path(__file__).parent)
HINT = "(%tb Verbose shows the whole traceback, with its cause.)"


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


def running_shell() -> Any:
    """The IPython that this process runs in, a terminal's or a notebook's; None elsewhere."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def short_traceback(error: BaseException) -> list[str]:
    """What to print of an error: the calls that led into this package, and the message."""
    shell = running_shell()
    if shell is None or shell.InteractiveTB.mode == "Verbose":
        return traceback.format_exception(error)
    printer, alone, calls = shell.InteractiveTB, _alone(error), _of_the_user(error.__traceback__)
    if calls is None:
        return [*printer.get_exception_only(type(error), alone), HINT]
    return [*printer.structured_traceback(type(error), alone, calls, tb_offset=0), HINT]


def _of_the_user(trace: TracebackType | None) -> TracebackType | None:
    """The traceback up to where it enters this package, without IPython's own calls."""
    ipython = str(Path(str(sys.modules["IPython"].__file__)).parent)
    calls = []
    while trace is not None and not _is_of(_PACKAGE, trace):
        if not _is_of(ipython, trace):
            calls.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for call in reversed(calls):
        kept = TracebackType(kept, call.tb_frame, call.tb_lasti, call.tb_lineno)
    return kept


def _is_of(folder: str, trace: TracebackType) -> bool:
    return Path(folder) in Path(trace.tb_frame.f_code.co_filename).parents


def _alone(error: BaseException) -> BaseException:
    """A copy of an error without the one that caused it."""
    alone = type(error).__new__(type(error))
    alone.args = error.args
    alone.__dict__.update(error.__dict__)
    return alone
