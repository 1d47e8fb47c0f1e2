"""How IPython and notebooks print an error of this package: the user's own lines and the message, nothing in between.

In comes the error, out go lines of text that IPython shows. Python itself prints its whole traceback as ever, and so
does IPython on ``%tb Verbose``: with the cause, but without the values of variables, which may be a key or rows, and
would stay in the notebook's file. IPython is used where it runs already, and never imported.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

_PACKAGE = str(Path(__file__).parent)
HINT = "(%tb Verbose shows the whole traceback, with its cause.)"


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
    """The same error without the one that caused it, which stays with the error itself."""
    alone = type(error).__new__(type(error))
    alone.args = error.args
    alone.__dict__.update(error.__dict__)
    return alone
