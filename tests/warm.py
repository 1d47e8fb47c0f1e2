"""Processes of tests that start at once: forks of one process that has loaded TablePuppet already.

A fresh interpreter spends one to three seconds of processor time on imports before it does any work, and the tests
start hundreds. So each worker of pytest keeps a process that has everything loaded and nothing begun
(`warm_starter.py`), and that forks a child for each command. The child gets arguments, environment, folder and files as
the test gives them, and is from there on what ``python`` with these arguments would be: a process of its own, with
its own signals, exit code and end.

`start` and `run` take what `subprocess.Popen` and `subprocess.run` take. Tests of imports, of entry points and of what
a fresh process does use those, and so does one test of each kind of command.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

STARTER = Path(__file__).with_name("warm_starter.py")
REPORT = 16  # bytes

File = int | IO[str] | None
"""PIPE, DEVNULL, a descriptor, a file; None is this process' own."""


class Process:
    """A process that `start` has started, with what tests use of `subprocess.Popen`; its pipes are text."""

    def __init__(self, args: Sequence[str], report: socket.socket, stdout: int | None, stderr: int | None):
        self.args, self._report = args, report
        self.stdout: IO[str] | None = None if stdout is None else os.fdopen(stdout, encoding="utf-8")
        self.stderr: IO[str] | None = None if stderr is None else os.fdopen(stderr, encoding="utf-8")
        self.returncode: int | None = None
        self.pid = int(report.recv(REPORT))

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code, or minus the signal that ended it."""
        if self.returncode is None:
            reported = select.poll()
            reported.register(self._report, select.POLLIN)
            if not reported.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            said = self._report.recv(REPORT, socket.MSG_PEEK)  # stays, for other threads that wait
            if not said:
                raise ChildProcessError("the starter of processes has ended before this process")
            self.returncode = int(said)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes into its pipes until its end; one that takes longer than ``timeout`` is killed."""
        with ThreadPoolExecutor(2) as readers:
            texts = [readers.submit(pipe.read) if pipe else None for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            out, errors = (text.result() if text else "" for text in texts)
        self.close()
        return out, errors

    def send_signal(self, how: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close its pipes."""
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def __del__(self) -> None:
        self._report.close()


def start(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
) -> Process:
    """Start ``[sys.executable, ...]``: ``-c`` and code, ``-m`` and a module, or a script, each with its arguments."""
    assert command[0] == sys.executable, f"the starter is a {sys.executable}"
    request = {
        "arguments": command[1:],
        "folder": str(Path.cwd() if cwd is None else cwd),
        "environment": dict(os.environ if env is None else env),
    }
    report, theirs = socket.socketpair()
    with theirs, ExitStack() as theirs_too:
        opened = [_opened(file, number, theirs_too) for number, file in enumerate((stdin, stdout, stderr))]
        socket.send_fds(_starter(), [b"+"], [theirs.fileno(), *(given for given, _ in opened)])
    report.sendall(json.dumps(request).encode() + b"\n")
    return Process(command, report, *(pipe for _, pipe in opened[1:]))


def run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: its exit code and what it wrote."""
    process = start(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = process.communicate(timeout)
    return subprocess.CompletedProcess(list(command), process.wait(), out, errors)


def _opened(file: File, number: int, closing: ExitStack) -> tuple[int, int | None]:
    """(The descriptor that a child gets, our end of it if it is a pipe); its own end is closed later."""
    if file is None:
        return number, None
    if file == subprocess.PIPE:
        ours, theirs = os.pipe()
    elif file == subprocess.DEVNULL:
        ours, theirs = None, os.open(os.devnull, os.O_RDWR)
    else:
        return file if isinstance(file, int) else file.fileno(), None
    closing.callback(os.close, theirs)
    return theirs, ours


@functools.cache
def _starter() -> socket.socket:
    """Where the starter of this process takes commands. It starts with the first, and ends when this socket closes."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen([sys.executable, STARTER, str(number)], stdin=subprocess.DEVNULL, pass_fds=[number])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
