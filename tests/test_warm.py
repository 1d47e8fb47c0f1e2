"""Processes that tests start warm are what fresh ones would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm

FOUND = """
import json, os, signal, sys, threading
handlers = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")}
print(json.dumps({
    "arguments": sys.argv, "path": sys.path, "folder": os.getcwd(), "name": __name__,
    "environment": dict(os.environ), "handlers": handlers, "group": os.getpgrp(), "session": os.getsid(0),
    "files": sorted(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
    "waits": sys.stdout.line_buffering, "main": sys.modules["__main__"].__name__,
}, indent=1, sort_keys=True))
sys.exit(7)
"""


def code(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text, *arguments]


@pytest.mark.parametrize("how", ["-c", "-m", "script"])
def test_a_child_finds_what_a_fresh_process_finds(tmp_path: Path, how: str) -> None:
    """Arguments, paths, folder, environment, signals, groups, files and threads are the same, and so is its end."""
    (tmp_path / "found.py").write_text(FOUND)
    (tmp_path / "folder").mkdir()
    start = {"-c": code(FOUND), "-m": [sys.executable, "-m", "found"], "script": [sys.executable, "../found.py"]}[how]
    folder = tmp_path if how == "-m" else tmp_path / "folder"
    command, env = [*start, "an argument", "--flag"], os.environ | {"GIVEN": "ä\n", "LC_CTYPE": "C.UTF-8"}
    fresh = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    child = warm.run(command, cwd=folder, env=env, timeout=60)
    assert child.stdout.splitlines() == fresh.stdout.splitlines()
    assert (child.returncode, child.stderr) == (fresh.returncode, fresh.stderr) == (7, "")


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit('no reason')", 1, "no reason"),
        ("raise KeyError('of ours')", 1, "KeyError: 'of ours'"),
        ("import os; os._exit(9)", 9, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import os; os.kill(os.getpid(), 2)", -signal.SIGINT, "KeyboardInterrupt"),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), 1 / 0)).start()", 0, "by zero"),
        ("import atexit, sys; atexit.register(lambda: print('at last', file=sys.stderr))", 0, "at last"),
    ],
)
def test_ends(text: str, status: int, said: str) -> None:
    """Exit codes, exceptions and signals are those of a fresh process; threads are waited for, exit handlers run."""
    fresh = subprocess.run(code(text), capture_output=True, text=True, check=False)
    child = warm.run(code(text), timeout=60)
    assert child.returncode == fresh.returncode == status
    assert child.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]
    assert said in child.stderr


def test_output(tmp_path: Path) -> None:
    """More than a pipe holds, into both pipes, into a file and into nothing."""
    text = "import sys; print('o' * 200_000); print('e' * 200_000, file=sys.stderr)"
    done = warm.run(code(text), timeout=60)
    assert (done.stdout, done.stderr) == ("o" * 200_000 + "\n", "e" * 200_000 + "\n")
    with (tmp_path / "file").open("w") as file:
        assert warm.start(code(text), stdout=file, stderr=subprocess.DEVNULL).wait(60) == 0
    assert (tmp_path / "file").read_text() == "o" * 200_000 + "\n"


def test_chance_is_its_own() -> None:
    """Two children draw different numbers, secret ones and others."""
    text = "import random, secrets, numpy; print(random.random(), secrets.token_hex(), numpy.random.rand())"
    first, second = (warm.run(code(text), timeout=60).stdout.split() for _ in range(2))
    assert len(first) == 3
    assert set(first).isdisjoint(second)


def test_signals() -> None:
    """It runs until a signal ends it; a signal to one that has ended is no error."""
    process = warm.start(code("import time; print('here', flush=True); time.sleep(600)"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.kill()
    assert process.wait() == process.poll() == process.returncode == -signal.SIGKILL
    process.kill()
    process.close()


def test_one_that_takes_too_long_is_killed() -> None:
    """Nothing is left of a command that does not end in its time."""
    process = warm.start(code("import time; time.sleep(600)"), stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0.1)
    assert process.wait(60) == -signal.SIGKILL


def test_the_starter_has_begun_nothing() -> None:
    """It has no thread but its own and one that an allocator of memory starts, which takes care of forks itself."""
    assert warm.run(code("pass"), timeout=60).returncode == 0
    [starter] = starters(os.getpid())
    names = {(task / "comm").read_text().strip() for task in Path(f"/proc/{starter}/task").iterdir()}
    assert len(names - {"jemalloc_bg_thd"}) == 1


WORKER = """
import sys, time
from tests import warm
child = warm.start([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_the_starter_ends_with_its_worker() -> None:
    """kill -9 of the process that has it: the starter ends, and what it started lives on, as after `Popen`."""
    folder = Path(__file__).parents[1]
    worker = subprocess.Popen(code(WORKER), cwd=folder, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    try:
        [starter] = starters(worker.pid)
        worker.kill()
        worker.wait()
        wait_until(lambda: not Path(f"/proc/{starter}").exists())
        assert Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, signal.SIGKILL)
        worker.stdout.close()


def starters(pid: int) -> list[int]:
    """The starters that a process has."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in children if warm.STARTER.name in Path(f"/proc/{one}/cmdline").read_text()]


def wait_until(happens: Callable[[], bool]) -> None:
    for _ in range(1200):
        if happens():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")
