"""The operator's line to a party that is being served: a socket in its state folder, for `tablepuppet party sessions`
and `party check --diff`.

Whoever may write into the folder may ask, so that no password is needed. A question is one line of JSON, and so is its
answer: the open sessions, or the settings that hold now, without a value of any row.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tablepuppet.errors import ConfigError, PartyError, TablePuppetError
from tablepuppet.party.config import PartyFile, plain_settings
from tablepuppet.wire.desk import Desk, Session

NAME = "control"
PATIENCE = 5.0  # seconds for one question and its answer
MOST = 1 << 12  # bytes of a question
Answer = TypeVar("Answer")


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """Which sessions there are; with ``end``, those whose name begins so, which end. Or which settings hold."""

    end: str | None = None
    settings: bool = False


class Control:
    """Answers at the state folder of a party until it is closed, in a thread of its own."""

    def __init__(self, state: Path, desk: Callable[[], Desk], settings: Callable[[], PartyFile]):
        self._desk, self._settings, self._state, self._closed = desk, settings, state, threading.Event()
        self._line = socket.socket(socket.AF_UNIX)
        with _short(state) as folder:
            with suppress(FileNotFoundError):
                os.unlink(folder / NAME)  # of a process that was killed
            try:
                self._line.bind(str(folder / NAME))
            except OSError as error:
                raise ConfigError(f"state_dir: cannot make a socket in {str(state)!r}: {error.strerror}") from error
            os.chmod(folder / NAME, 0o600)
        self._line.listen(4)
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with suppress(OSError, msgspec.MsgspecError, TablePuppetError):  # one question fails, not those after it
                line, _ = self._line.accept()
                with line:
                    line.settimeout(PATIENCE)
                    question = msgspec.json.decode(_read(line, MOST), type=Question)
                    line.sendall(msgspec.json.encode(self._answer(question)) + b"\n")

    def _answer(self, question: Question) -> list[Session] | dict[str, Any]:
        if question.settings:
            return plain_settings(self._settings())
        return self._desk().sessions() if question.end is None else self._desk().end(question.end)

    def close(self) -> None:
        """Answer no more."""
        self._closed.set()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()
        (self._state / NAME).unlink(missing_ok=True)


def ask(settings: PartyFile, end: str | None = None) -> list[Session]:
    """The open sessions of the party of a party file, or those that it ends; PartyError if it does not answer."""
    if end == "":
        raise ConfigError("--end: name a session, or the first letters of one")
    found = _asked(settings, Question(end), list[Session])
    if end is not None and not found:
        raise PartyError(
            f"party {settings.name!r} has no open session whose name begins so; 'tablepuppet party sessions' lists them"
        )
    return found


def served_settings(settings: PartyFile) -> dict[str, Any]:
    """What the file of a party said when it was started or last read, as `plain_settings`."""
    return _asked(settings, Question(settings=True), dict[str, Any])


def _asked(settings: PartyFile, question: Question, kind: type[Answer]) -> Answer:
    if settings.state_dir is None:
        raise ConfigError("the party file sets no state_dir: only with one can a served party be asked something")
    try:
        with _short(Path(settings.state_dir)) as folder, socket.socket(socket.AF_UNIX) as line:
            line.settimeout(PATIENCE)
            line.connect(str(folder / NAME))
            line.sendall(msgspec.json.encode(question) + b"\n")
            return msgspec.json.decode(_read(line, 1 << 24), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise PartyError(
            f"party {settings.name!r} is not being served from state_dir {settings.state_dir!r}, or does not answer: "
            "start it with 'tablepuppet party serve'"
        ) from error


@contextmanager
def _short(folder: Path) -> Iterator[Path]:
    """The folder under a short name, where there is one: the address of a socket has at most 107 characters."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        short = Path(f"/proc/self/fd/{descriptor}")
        yield short if short.exists() else folder
    finally:
        os.close(descriptor)


def _read(line: socket.socket, most: int) -> bytes:
    """One line, of so many bytes at most."""
    found = b""
    while not found.endswith(b"\n") and len(found) < most and (more := line.recv(1 << 16)):
        found += more
    return found
