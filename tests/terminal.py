"""A terminal for tests: a command runs under a pseudo-terminal, and what a person would see is read off its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

import pyte

from tests import warm


def rendered(output: bytes, columns: int, lines: int) -> str:
    """What a terminal of this size shows, with all that was scrolled away."""
    screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=1)
    pyte.ByteStream(screen).feed(output)
    above = ["".join(line[place].data for place in range(columns)) for line in screen.history.top]
    return "\n".join(line.rstrip() for line in [*above, *screen.display]).rstrip()


def on_terminal(command: Sequence[str], columns: int, lines: int, folder: Path) -> tuple[int, str]:
    """Run a command with the terminal as its input, output and errors: (its exit code, what the terminal shows)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = warm.start(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=known | {"TERM": "xterm-256color"}
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := _read(ours):
            output += chunk
        return process.wait(timeout=60), rendered(output, columns, lines)
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 1 << 16)
    except OSError:  # nobody has the other end any more
        return b""
