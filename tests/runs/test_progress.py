"""Bars and text on one terminal: each comes below the other, nothing is written over."""

from __future__ import annotations

import io

from rich.console import Console

from tablepuppet.runs.events import Events
from tablepuppet.runs.progress import ProgressReader
from tests.terminal import rendered


def shown(columns: int) -> str:
    """Bars, a result, other bars, a warning and a result, on a terminal of this width."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=columns, height=10, color_system="standard", legacy_windows=False
    )
    reader = ProgressReader(console)
    events = Events([reader])
    events.progress("open", "reading tables and blinding keys at their parties", 2)(2)
    reader.rest()
    console.print("first result")
    done = events.progress("fit", "round 0 of [brackets]", 5)
    events.emit("warning", "column.dropped", "one column is left out")
    done(3)
    events.emit("info", "fitted", "converged after 3 rounds")
    reader.rest()
    console.print("second result")
    return rendered(out.getvalue().replace("\n", "\r\n").encode(), columns, 10)


def test_results_come_below_bars() -> None:
    """A bar stays above the text that was printed after it, and what happens next has bars below that text."""
    text = shown(110)
    places = [text.index(part) for part in ("reading tables", "2/2", "first result", "one column is left out")]
    places += [text.index(part) for part in ("converged after 3 rounds", "3/3", "second result")]
    assert places == sorted(places)
    assert text.splitlines()[-1] == "second result"
    assert text.count("reading tables") == text.count("converged after") == 1


def test_bars_on_a_narrow_terminal() -> None:
    """Counts and seconds are whole, and what a bar is about takes a second line."""
    text = shown(50)
    assert "2/2 0:00:00" in text
    assert "…" not in text
    assert "reading tables and blinding keys at their parties" in " ".join(text.replace("━", " ").split()).replace(
        " 2/2 0:00:00", ""
    )


def test_lines_in_a_file_are_whole() -> None:
    """Where there is no terminal, a long warning is one line, which a program can look for."""
    out = io.StringIO()
    reader = ProgressReader(Console(file=out, width=40))
    Events([reader]).emit("warning", "party.silent", "waiting for party 'bank' at bank.example:8815 " * 3)
    assert out.getvalue().count("\n") == 1
