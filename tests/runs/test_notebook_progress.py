"""The reader of events that a notebook has. A real kernel is in tests/test_notebook.py."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tablepuppet.runs.events import Events, one_run
from tablepuppet.runs.notebook_progress import MOST_LINES, Bundle, NotebookReader, Update, notebook_readers

FOREVER = 1000.0


class Page:
    """A notebook's page: blocks, each with all that it has shown."""

    def __init__(self) -> None:
        self.blocks: list[list[Bundle]] = []

    def display(self, bundle: Bundle) -> Update:
        block = [bundle]
        self.blocks.append(block)
        return block.append

    @property
    def texts(self) -> list[str]:
        """What stands on the page now."""
        return [block[-1]["text/plain"] for block in self.blocks]


def reader(**settings: Any) -> tuple[Page, Events, Callable[[], None]]:
    page = Page()
    new = NotebookReader(page.display, **{"interval": FOREVER, "patience": FOREVER} | settings)
    return page, Events([new]), new.end_cell


def fit(events: Events, rounds: int, *, fails: bool = False) -> None:
    prepared = events.progress("prepare", "preparing", 1)
    for number in range(1, rounds + 1):
        if number == 1:
            prepared(1)
        events.emit("progress", "fit", f"round {number}", done=number, total=300)
    if not fails:
        events.emit("info", "fitted", f"converged after {rounds} rounds")


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_fit_is_one_line_from_its_preparation_to_its_end() -> None:
    """The line is there from the first round on, and says in the end how learning ended."""
    page, events, _ = reader(interval=0.0)
    fit(events, 3)
    [block] = page.blocks
    messages = [bundle["text/plain"].split(" (")[0] for bundle in block]
    assert messages[0] == "… round 1 · at most 300"
    assert messages[-1] == "✓ converged after 3 rounds"
    assert all("\n" not in bundle["text/plain"] for bundle in block)
    assert not any("width: " in bundle["text/html"] for bundle in block)  # nobody knows how much is left


def test_a_stage_whose_end_is_known_has_a_bar() -> None:
    """Three of four steps fill three quarters of it."""
    page, events, _ = reader(interval=0.0, patience=0.0)
    events.progress("open", "reading", 4)(3)
    assert "width: 75%" in page.blocks[0][-1]["text/html"]
    assert page.texts[0].startswith("[###############     ] reading (3 of 4, ")


def test_fits_of_a_search_are_not_stopped() -> None:
    """Fits that take turns within a search are shown below it while it runs, and leave no line when it has ended."""
    page, events, end_cell = reader(interval=0.0)
    with one_run():
        done = events.progress("search", "trying", 2)
        with one_run("fold 0"):
            fit(events, 3)
        assert page.texts[0].splitlines()[1].startswith("  … fold 0: round 3 · ")
        with one_run("fold 1"):
            fit(events, 2)
        done(2)
        events.emit("info", "searched", "the best is l2 = 1")
        with one_run():
            fit(events, 4)
    end_cell()
    lines = [line.split(" (")[0] for line in page.texts[0].splitlines()]
    assert lines == ["✓ the best is l2 = 1", "✓ converged after 4 rounds"]


def test_quick_stages_are_not_shown() -> None:
    """A stage that ends at once leaves nothing on the page."""
    page, events, end_cell = reader()
    events.progress("open", "reading", 2)(2)
    end_cell()
    assert page.blocks == []


def test_a_long_stage_appears_while_it_runs() -> None:
    """Without any further event a stage appears after a while, its seconds advance, and it ends with a mark."""
    page, events, _ = reader(interval=0.01, patience=0.02)
    done = events.progress("open", "reading", 2)
    wait_for(lambda: bool(page.blocks) and len(page.blocks[0]) > 1)
    assert "(0 of 2, " in page.blocks[0][0]["text/plain"]
    done(2)
    assert page.texts[0].startswith("✓ reading (")


def test_updates_are_throttled() -> None:
    """Rounds that come faster than the interval are not all shown; the end always is."""
    page, events, _ = reader()
    fit(events, 200)
    assert len(page.blocks[0]) <= 2
    assert page.texts[0].startswith("✓ converged after 200 rounds")


def test_warnings_are_shown_once_in_a_cell() -> None:
    """The same warning is one line, at once; the next cell shows it again in a block of its own."""
    page, events, end_cell = reader()
    for _ in range(2):
        events.emit("warning", "column.dropped", "column <a> is left out", column="a")
    assert page.texts == ["Warning: column <a> is left out"]
    assert "column &lt;a&gt; is left out" in page.blocks[0][-1]["text/html"]
    end_cell()
    events.emit("warning", "column.dropped", "column <a> is left out", column="a")
    assert page.texts == ["Warning: column <a> is left out"] * 2


def test_what_a_cell_left_running_was_stopped() -> None:
    """A fit that failed says so when its cell ends, and the next cell begins with an empty block."""
    page, events, end_cell = reader()
    fit(events, 2, fails=True)
    end_cell()
    fit(events, 4)
    assert page.texts[0].startswith("✗ round 2 · ")
    assert " · at most 300 (" in page.texts[0]
    assert page.texts[0].endswith("stopped)")
    assert page.texts[1].startswith("✓ converged after 4 rounds")


def test_a_cell_goes_on_after_a_fit_that_failed() -> None:
    """In a cell that catches the error, the failed fit keeps its line and the next has its own."""
    page, events, _ = reader()
    fit(events, 5, fails=True)
    fit(events, 6)
    failed, ended = page.texts[0].splitlines()
    assert failed.startswith("✗ round 5")
    assert ended.startswith("✓ converged after 6 rounds")


def test_many_fits_in_one_cell_stay_a_short_list() -> None:
    """The last lines are shown, the others counted."""
    page, events, _ = reader()
    for rounds in range(1, MOST_LINES + 6):
        fit(events, rounds)
    lines = page.texts[0].splitlines()
    assert lines[0] == "… and 5 before"
    assert len(lines) == MOST_LINES + 1
    assert lines[-1].startswith(f"✓ converged after {MOST_LINES + 5} rounds")


def test_a_cell_may_fit_a_thousand_times() -> None:
    """Few stages are remembered, and all are counted."""
    page, events, _ = reader()
    for _ in range(1000):
        fit(events, 1)
        events.progress("predict", "predicting", 1)(1)
    assert page.texts[0].splitlines()[0] == f"… and {1000 - MOST_LINES:,} before"


def test_other_events_show_nothing() -> None:
    """Information is for logs."""
    page, events, end_cell = reader()
    events.emit("info", "opened", "10 rows are read")
    events.emit("info", "fitted", "no fit was begun")
    end_cell()
    assert page.blocks == []


def test_outside_notebooks_there_is_no_reader_and_no_ipython() -> None:
    """A script has no reader, and nothing imports IPython or ipywidgets for it."""
    assert notebook_readers() == []
    code = (
        "import sys, tablepuppet as tp; tp.Federation({'a': 'duckdb:///a.db'});"
        "sys.exit(bool({'IPython', 'ipywidgets'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
