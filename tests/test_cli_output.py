"""The screen of commands: bars and results on one terminal come from one console."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.terminal import on_terminal

SHARED = "from tablepuppet.cli.output import Screen; s = Screen(); print(s.reader._console is s._results, flush=True)"


def test_bars_and_results_on_one_terminal_share_a_console(tmp_path: Path) -> None:
    """Where standard output and standard error are the same terminal there is one console."""
    code, shown = on_terminal([sys.executable, "-c", SHARED], 80, 24, tmp_path)
    assert (code, shown) == (0, "True")


def test_results_in_a_pipe_have_a_console_of_their_own(tmp_path: Path) -> None:
    """Progress then goes to standard error, so a pipe gets results only."""
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")
