"""Who shows progress where nobody was asked to: the notebook, or standard error of a script."""

from __future__ import annotations

import logging
import sys

from tablepuppet.runs.events import Reader
from tablepuppet.runs.notebook_progress import notebook_readers
from tablepuppet.runs.progress import LineReader, SlowReader


def default_readers(verbose: bool | None, *, has_callbacks: bool) -> list[Reader]:
    """Readers of a federation beside its callbacks: of everything, of nothing, or of what takes long (None).

    A notebook shows everything unless it is to show nothing. A script that has callbacks, or logs every event, has
    others that show it.
    """
    if verbose is False:
        return []
    if found := notebook_readers():
        return found
    if verbose:
        return [LineReader(_print)]
    has_others = has_callbacks or logging.getLogger("tablepuppet").isEnabledFor(logging.DEBUG)
    return [] if has_others else [SlowReader(_print)]


def _print(text: str) -> None:
    print(f"tablepuppet: {text}", file=sys.stderr, flush=True)
