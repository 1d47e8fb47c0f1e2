"""The command line's beginning and end: signals are watched before anything large is loaded.

The commands are in commands.py. Exit codes: 0 done, 1 refused with a reason, 2 wrong usage, 3 if a party's
operator has to approve the job first or has refused it, 128 and the signal's
number when stopped: 130 for Ctrl-C; 141 if nobody reads the results to their end, as in a pipe into `head`.
"""

from __future__ import annotations

import sys

from tablepuppet.runs import interrupts

WAITING = 3
CLOSED = 141  # 128 and SIGPIPE, as of programs that the signal ends


def main() -> None:
    """Run the command line; errors of ours end in one readable message, not in a traceback."""
    with interrupts.watched():
        try:
            code = _exit_code()
        except interrupts.Stopped:  # once more, while it was ending
            code = 1
        stopped = interrupts.received()
    sys.exit(code if stopped is None else 128 + stopped)


def _exit_code() -> int:
    """Run a command; say how it ended unless it ended well."""
    try:
        _run()
        return 0
    except BaseException as error:
        from tablepuppet.errors import ApprovalError, TablePuppetError

        if interrupts.received() is not None:
            done = isinstance(error, SystemExit) and not error.code
            _say("; ".join(["stopped, but its work was done already" if done else "stopped", *_notes(error)]))
            return 1
        if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            return CLOSED
        if isinstance(error, SystemExit):
            return int(error.code or 0)
        if isinstance(error, TablePuppetError):
            _say(f"error: {error}")
            return WAITING if isinstance(error, ApprovalError) else 1
        if isinstance(error, OSError) and error.filename is not None:
            _say(f"error: {str(error.filename)!r} cannot be read or written: {error.strerror}")
            return 1
        raise


def _run() -> None:
    """Load the commands, which takes a second in which a signal may come, and run the one that is asked for."""
    import logging

    from tablepuppet.cli.commands import app

    logging.getLogger("tablepuppet").addHandler(logging.NullHandler())  # events are shown by the progress reader
    logging.getLogger("tablepuppet").propagate = False
    app()


def _notes(error: BaseException | None) -> list[str]:
    """What was noted on an error, or on those that led to it."""
    found: list[str] = []
    while error is not None:
        found += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return found


def _say(text: str) -> None:
    if "tablepuppet.cli.app" not in sys.modules:  # stopped while that was loaded
        print(text, file=sys.stderr)
        return
    from tablepuppet.cli.app import complain

    complain(text, "red")
