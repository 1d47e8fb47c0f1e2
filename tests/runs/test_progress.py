"""Stages on a terminal, in a pipe and of a script: each comes below the other, nothing is written over."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tablepuppet.errors import LearnError
from tablepuppet.runs import progress as module
from tablepuppet.runs.events import Events, one_run
from tablepuppet.runs.fitted_text import fitted, print_beside
from tablepuppet.runs.progress import LineReader, ProgressReader, SlowReader, default_readers
from tests.terminal import on_terminal, rendered


def shown(columns: int) -> str:
    """Stages, a result, others, a warning and a result, on a terminal of this width."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=columns, height=10, color_system="standard", legacy_windows=False
    )
    reader = ProgressReader(console, patience=0.0)
    events = Events([reader])
    events.progress("open", "reading tables and blinding keys at their parties", 2)(2)
    reader.rest()
    console.print("first result")
    done = events.progress("fit", "round 0 of [brackets]", 5)
    events.emit("warning", "column.dropped", "one column of those that were selected is left out: it has one value")
    done(3)
    events.emit("info", "fitted", "converged after 3 rounds")
    reader.rest()
    console.print("second result")
    return rendered(out.getvalue().replace("\n", "\r\n").encode(), columns, 10)


def test_results_come_below_stages() -> None:
    """A stage stays above the text that was printed after it, and what happens next is shown below that text."""
    text = shown(110)
    places = [text.index(part) for part in ("✓ reading tables", "first result", "one column of those")]
    places += [text.index(part) for part in ("✓ converged after 3 rounds", "second result")]
    assert places == sorted(places)
    assert text.splitlines()[-1] == "second result"
    assert text.count("reading tables") == text.count("converged after") == 1


def test_a_narrow_terminal_breaks_between_words() -> None:
    """What a stage or a warning is about takes a second line, and no word is broken."""
    text = shown(40)
    assert "…" not in text
    assert all(len(line) <= 40 for line in text.splitlines())
    words = " ".join(text.split())
    assert re.search(r"reading tables and blinding keys at their parties \(\d\.\d s\)", words)
    assert "one column of those that were selected is left out: it has one value" in words


def test_lines_in_a_file_are_whole() -> None:
    """Where there is no terminal, a long warning is one line, which a program can look for."""
    out = io.StringIO()
    reader = ProgressReader(Console(file=out, width=40))
    Events([reader]).emit("warning", "party.silent", "waiting for party 'bank' at bank.example:8815 " * 3)
    assert out.getvalue().count("\n") == 1


def search(events: Events) -> None:
    """A search of two candidates, whose fits take turns, and the fit of the best."""
    with one_run():
        done = events.progress("search", "trying 2 settings", 2)
        for number, part in enumerate(("l2 = 1", "l2 = 2"), 1):
            with one_run(part):
                prepared = events.progress("prepare", "preparing", 1)
                with one_run("fold 0"):
                    prepared(1)
                    events.emit("progress", "fit", "round 1", done=1, total=400)
                    events.emit("warning", "column.dropped", "column a is left out")
                    events.emit("info", "fitted", "converged after 1 round")
            done(number, f"{part}, fold 0: accuracy 0.5000")
        events.emit("info", "searched", "the best is l2 = 2")
        with one_run():
            events.emit("progress", "fit", "round 1", done=1, total=400)
            events.emit("info", "fitted", "converged after 1 round")


def test_a_search_in_a_pipe_names_candidates_and_folds() -> None:
    """Each fit is a line that says which it was and how many there are; a warning of all folds is printed once."""
    out = io.StringIO()
    search(Events([ProgressReader(Console(file=out, width=40))]))
    assert out.getvalue().splitlines() == [
        "warning: l2 = 1, fold 0: column a is left out",
        "l2 = 1, fold 0: accuracy 0.5000 (1 of 2)",
        "l2 = 2, fold 0: accuracy 0.5000 (2 of 2)",
        "the best is l2 = 2",
        "round 1",
        "converged after 1 round",
    ]


def test_a_search_on_a_terminal_leaves_nothing_running() -> None:
    """In the end there are two lines: how the search ended, and how the fit of the best one did."""
    out = io.StringIO()
    reader = ProgressReader(Console(file=out, force_terminal=True, width=80, height=20, legacy_windows=False))
    search(Events([reader]))
    reader.rest()
    lines = rendered(out.getvalue().replace("\n", "\r\n").encode(), 80, 20).splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "warning: l2 = 1, fold 0: column a is left out",
        "✓ the best is l2 = 2",
        "✓ converged after 1 round",
    ]


def test_pretraining_that_ends_early_has_ended() -> None:
    """Its total is a limit too: it is over when the next stage of its run goes on."""
    out = io.StringIO()
    reader = ProgressReader(Console(file=out, force_terminal=True, width=80, height=20, legacy_windows=False), 0.0)
    events = Events([reader])
    with one_run():
        prepared = events.progress("prepare", "preparing", 1)
        events.emit("progress", "pretrain", "pretraining, epoch 3", done=3, total=50)
        prepared(1)
        events.emit("progress", "fit", "round 1", done=1, total=400)
        events.emit("info", "fitted", "converged after 1 round")
    reader.rest()
    lines = rendered(out.getvalue().replace("\n", "\r\n").encode(), 80, 20).splitlines()
    assert [line.split(" (")[0] for line in lines] == ["✓ converged after 1 round", "✓ pretraining, epoch 3"]


def test_a_fit_that_fails_says_so() -> None:
    """Its line does not go on when its run has ended by an error."""
    out = io.StringIO()
    reader = ProgressReader(Console(file=out, force_terminal=True, width=80, height=20, legacy_windows=False))
    events = Events([reader])

    @one_run()
    def fails() -> None:
        events.emit("progress", "fit", "round 1", done=1, total=400)
        raise LearnError("no")

    with pytest.raises(LearnError):
        fails()
    with one_run():
        events.emit("progress", "fit", "round 1", done=1, total=400)
        events.emit("info", "fitted", "converged after 1 round")
    reader.rest()
    lines = rendered(out.getvalue().replace("\n", "\r\n").encode(), 80, 20).splitlines()
    assert lines[0].startswith("✗ round 1 · at most 400 (")
    assert lines[0].endswith("stopped)")
    assert lines[1].startswith("✓ converged after 1 round")


def test_a_slow_script_prints_a_line_now_and_then() -> None:
    """What takes long has a line, later ones after twice as long, and one for its end; what is quick has none."""
    lines = list[str]()
    events = Events([SlowReader(lines.append, silence=0.05)])
    events.progress("open", "reading", 2)(2)
    with one_run():
        for number in range(1, 60):
            events.emit("progress", "fit", f"round {number}", done=number, total=400)
            time.sleep(0.01)
        events.emit("info", "fitted", "converged after 59 rounds")
    assert lines[0].startswith("round ")
    assert " · at most 400 (" in lines[0]
    assert lines[-1].startswith("converged after 59 rounds (")
    assert 2 < len(lines) < 12


def test_a_script_hears_of_a_slow_round() -> None:
    """A round that takes long is told of again and again, with its age, until its run has ended; then nothing is."""
    lines = list[str]()
    reader = SlowReader(lines.append, silence=0.01)
    events = Events([reader])

    @one_run()
    def fails() -> None:
        events.emit("progress", "fit", "round 1", done=1, total=400)
        soon(lambda: len(lines) >= 3)
        raise LearnError("no")

    with pytest.raises(LearnError):
        fails()

    def rests() -> bool:
        with reader._lock:
            return reader._timer is None

    soon(rests)
    told = list(lines)
    assert all(line.startswith("round 1 · at most 400 (") for line in told)
    events.progress("open", "reading", 2)  # nobody is told if it ends by an error
    assert rests()
    assert lines == told


def soon(is_true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    while not is_true():
        time.sleep(0.005)


def test_who_shows_the_progress_of_a_script() -> None:
    """All of it, only what takes long, or nothing: nothing also beside callbacks, which show it themselves."""
    assert isinstance(default_readers(None, has_callbacks=False)[0], SlowReader)
    assert isinstance(default_readers(True, has_callbacks=True)[0], LineReader)
    assert default_readers(None, has_callbacks=True) == default_readers(False, has_callbacks=False) == []


def test_lines_of_a_script_fit_its_window(tmp_path: Path) -> None:
    """On a terminal no word is broken; in a file a line stays one."""
    program = "from tablepuppet.runs.progress import _print; _print('converged after ' * 9)"
    code, text = on_terminal([sys.executable, "-c", program], 40, 24, tmp_path)
    assert code == 0
    assert set(text.split()) == {"tablepuppet:", "converged", "after"}
    assert len(text.splitlines()) > 3


def test_warnings_of_a_script_fit_its_window(tmp_path: Path) -> None:
    """Where nobody has set up logging no word is broken on a terminal; a log that was set up gets the line whole."""
    warn = "Events().emit('warning', 'fit.short', 'converged after ' * 9)"
    for set_up, whole in [("", True), ("import logging; logging.basicConfig(format='%(message)s'); ", False)]:
        program = f"from tablepuppet.runs.events import Events; {set_up}{warn}"
        code, text = on_terminal([sys.executable, "-c", program], 40, 24, tmp_path)
        assert code == 0
        assert (set(text.split()) == {"converged", "after"}) is whole


def test_a_warning_of_every_fold_is_printed_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A script is told by the first fold of a search, and by each search and each fit again."""
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)  # those of pytest
    events = Events()

    def fit(part: str) -> None:
        with one_run(part):
            events.emit("warning", "column.id", "left out")

    for _ in range(2):
        with one_run():
            for fold in range(3):
                fit(f"fold {fold}")
    fit("")
    fit("")
    assert capsys.readouterr() == ("", "fold 0: left out\n" * 2 + "left out\n" * 2)


def test_a_closed_standard_error_ends_no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with logging: a reader of it that is gone, or a window without a size, is no error."""
    closed = io.StringIO()
    closed.close()
    window = io.StringIO()
    window.isatty = lambda: True  # type: ignore[method-assign]
    gone = open(os.open("/dev/full", os.O_WRONLY), "w")  # noqa: SIM115
    for out in (closed, window, gone, None):
        monkeypatch.setattr(sys, "stderr", out)
        print_beside("round 1")
    assert window.getvalue() == "round 1\n"
    with pytest.raises(OSError, match="No space"):
        gone.close()


def test_lines_of_a_script_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """They begin with the name of the library."""
    module._print("round 1")
    assert capsys.readouterr() == ("", "tablepuppet: round 1\n")


def drawn(reader: ProgressReader, columns: int) -> list[str]:
    """What a reader shows while stages run."""
    paper = Console(file=io.StringIO(), width=columns)
    paper.print(reader._draw())
    return paper.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(("columns", "more"), [(110, " · at most 300"), (80, " · at most 300"), (64, "")])
def test_a_round_takes_one_line(columns: int, more: str) -> None:
    """In a narrow window it leaves out how many there are in a second, then how many there may be; not the time."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=columns, legacy_windows=False)
    reader = ProgressReader(terminal, patience=0.0)
    done = Events([reader]).progress("fit", "round 0", 300)
    done(12, "round 12 · loss 0.5118 · accuracy 0.7644 · 41.4 MB")
    [line] = drawn(reader, columns)
    reader.rest()
    said = re.sub(r" · [\d,]+/s", "", line)
    assert re.search(rf"round 12 · loss 0.5118 · accuracy 0.7644 · 41.4 MB{more} \([\d.]+ s\)$", said)


@pytest.mark.parametrize("columns", [80, 110])
def test_a_search_takes_two_lines_while_it_runs(columns: int) -> None:
    """What was last measured, and the fit of now, each in a line of its own, so that nothing jumps. The time is that
    of the fit, also where several take turns.
    """
    terminal = Console(file=io.StringIO(), force_terminal=True, width=columns, legacy_windows=False)
    reader = ProgressReader(terminal, patience=0.0)
    events, rounds = (
        Events([reader]),
        "l2 = 1e-06: round {} · loss 0.5829 · accuracy 0.7063 · validation loss 0.61 · 1 MB",
    )
    with one_run():
        done = events.progress("search", "LogisticRegression: trying 5 settings on 4 folds", 20)
        with one_run("fold 0"):
            first = events.progress("fit", rounds.format(0), 400)
            time.sleep(0.15)
            with one_run("fold 1"):
                events.progress("fit", rounds.format(0), 400)
        done(16, "l2 = 0.0001, fold 3: accuracy 0.7063 (constant 0.6963)")
        first(1, rounds.format(1))
        lines = drawn(reader, columns)
        reader.rest()
    assert len(lines) == 2
    assert re.search(r"l2 = 0\.0001, fold 3: accuracy 0\.7063 \(constant 0\.6963\) \(16 of 20, \d\.\d s\)$", lines[0])
    assert "━" in lines[0] or columns == 80  # a bar, where it leaves enough room
    [taken] = re.findall(r"· fold 0: l2 = 1e-06: round 1 · loss 0\.5829 · accuracy 0\.7063.* \((\d\.\d) s\)$", lines[1])
    assert float(taken) > 0


def test_facts_are_not_broken() -> None:
    """A line ends between facts, not between a number and its name or unit."""
    text = "train: accuracy 0.7053 (constant 0.6965), AUC 0.6504, log loss 0.5833 (constant 0.6138), 31 MB"
    for width in range(40, len(text)):
        for line in fitted(text, width).splitlines():
            assert len(line) <= width
            assert line.endswith((",", "31 MB", "train:"))
    assert fitted("a 1 (constant 2)", 12).splitlines() == ["a 1", "(constant 2)"]  # where a fact is longer than a line
