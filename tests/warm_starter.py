"""The process that `warm` keeps beside a worker of pytest: it loads everything once, and forks for each command.

It runs as a script, with the number of the socket on which commands come. With each come four files: a socket on which
the child's number and exit code are reported, 16 bytes each, and the child's standard input, output and errors. The end
of the worker ends it. Its children live on then, as those of any process do. Linux only, for descriptors of processes.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

LOADED = (
    "tablepuppet.cli.commands", "tablepuppet.jobs", "tablepuppet.learn.party_ops", "tablepuppet.wire.serve", "torch",
)  # fmt: skip
"""What commands load, besides the public names."""


def load() -> None:
    """Load what commands load, and nothing that runs: a fork has no threads but the one that forks."""
    sys.path.pop(0)  # the folder of this script
    for module in LOADED:
        import_module(module)
    package = import_module("tablepuppet")
    for name in package.__all__:
        getattr(package, name)
    gc.collect()
    gc.freeze()  # children share these pages as long as nobody writes to them


def serve(requests: socket.socket) -> list[str]:
    """Fork a child for each request and report how it ends, for ever. A child returns from here, with its arguments."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor that is ready when the process has ended
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for ready, _ in waiting.select():
                if ready.fileobj is not requests:
                    waiting.unregister(ready.fd)
                    report_end(*running.pop(ready.fd))
                    os.close(ready.fd)
                    continue
                byte, files, _, _ = socket.recv_fds(requests, 1, 4)
                if not byte:  # the worker has ended
                    os._exit(0)
                report = socket.socket(fileno=files.pop(0))
                if (pid := os.fork()) == 0:
                    requests.close()
                    for other, (_, of_other) in running.items():
                        os.close(other)
                        of_other.close()
                    return become(report, files)
                ended = os.pidfd_open(pid)
                running[ended] = (pid, report)
                waiting.register(ended, selectors.EVENT_READ)
                for file in files:
                    os.close(file)


def report_end(pid: int, report: socket.socket) -> None:
    """Take note of a child's end, and send its exit code."""
    _, status = os.waitpid(pid, 0)
    with report, suppress(OSError):  # nobody may want to know
        report.sendall(b"%16d" % os.waitstatus_to_exitcode(status))


def become(report: socket.socket, files: Sequence[int]) -> list[str]:
    """In a child: have the signals, files, folder, environment and chance of a fresh process; its arguments."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    with report, report.makefile("r", encoding="utf-8") as lines:
        request = json.loads(lines.readline())
        report.sendall(b"%16d" % os.getpid())
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    import_module("numpy").random.seed()
    arguments: list[str] = request["arguments"]
    return arguments


def execute(arguments: Sequence[str]) -> None:
    """Do what ``python`` does with these arguments."""
    first, *rest = arguments
    if first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), vars(main))
    elif first == "-m":
        sys.argv, sys.path[:0] = ["-m", *rest[1:]], [os.getcwd()]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [first, *rest], [os.path.dirname(os.path.abspath(first))]
        runpy.run_path(first, run_name="__main__")


def exit_code(arguments: Sequence[str]) -> int:
    """Execute a command; its exit code, or minus the signal that it ends by."""
    try:
        execute(arguments)
        return 0
    except SystemExit as stop:
        if not isinstance(stop.code, str):
            return int(stop.code or 0)
        print(stop.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            return -signal.SIGINT
    return 1


def end(code: int) -> NoReturn:
    """End as a process does: wait for threads, call what was registered for the end, and write what was printed.

    But its modules are not taken apart. That would copy every page they are in, and takes longer than most commands.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(OSError):
            file.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the worker, whose end ends this
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # one thread of malloc's
    load()
    end(exit_code(serve(socket.socket(fileno=int(sys.argv[1])))))
