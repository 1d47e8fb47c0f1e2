"""The chain of an audit log, which shows lines that were changed, taken out or cut off.

Every line has its number, the mark of the line before and its own mark: a keyed digest (HMAC-SHA256) of the whole line.
The key is in the party's state folder, so that who can write the log, but not that folder, cannot make a line. Beside
the key is the head: number and mark of the last line, so that lines missing at the end show too. Without a state folder
the digest has no key: then the chain shows accidents, not intent.

The head is written after its line, in place. If the process is killed in between, the log is one line ahead: that line
has a mark of its own, and counts. A line of which only a part was written has no mark; nothing was answered with it,
and the next line has its number.
"""

from __future__ import annotations

import gzip
import hmac
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tablepuppet.errors import ConfigError
from tablepuppet.store.files import read_private_file, write_atomically, write_new_file

SECRET, HEAD = "audit_secret", "audit_head"
SECRET_BYTES = 32
MARK = 32  # hexadecimal digits of a mark
_TAIL = 1 << 20  # bytes at the end of a log in which its last line is
_WHAT = "the secret of the audit log"
_SEALED = re.compile(rb',"n":(\d{1,18}),"prev":"([0-9a-f]{32})","mac":"([0-9a-f]{32})"\}\Z')
_NEW_CHAIN = (
    "bring it back with `tablepuppet party restore`, or begin a new chain: move the audit log, "
    f"{SECRET} and {HEAD} away, and keep them"
)


class Link(NamedTuple):
    """The number and the mark of a line."""

    number: int
    mark: str


START = Link(0, "0" * MARK)


class Key:
    """What lines are marked with."""

    def __init__(self, secret: bytes):
        self._secret = secret

    def digest(self, what: bytes, length: int = MARK) -> str:
        """A keyed digest, as hexadecimal digits."""
        return hmac.digest(self._secret, what, "sha256").hex()[:length]

    def seal(self, body: bytes, before: Link) -> tuple[bytes, Link]:
        """A line of JSON with its place in the chain, and its link."""
        body = body[:-1] + b',"n":%d,"prev":"%s"}' % (before.number + 1, before.mark.encode())
        mark = self.digest(body)
        return body[:-1] + b',"mac":"%s"}\n' % mark.encode(), Link(before.number + 1, mark)

    def link(self, line: bytes) -> tuple[Link, str, bool] | None:
        """(the link of a line, the mark before it, whether its own mark is right); None if it has no place."""
        found = _SEALED.search(line)
        if found is None:
            return None
        mark = found[3].decode()
        right = hmac.compare_digest(self.digest(line[: -len(mark) - 10] + b"}"), mark)
        return Link(int(found[1]), mark), found[2].decode(), right


class Head:
    """The last line of a log, in a file of the state folder."""

    def __init__(self, path: Path, key: Key):
        self._path, self._of_key = path, key.digest(b"head")
        self._file: int | None = None

    def read(self) -> Link:
        """The number and mark of the last line; ConfigError if the file is damaged or not there."""
        for _ in range(3):  # a party may write it meanwhile
            try:
                number, mark, check = self._path.read_text("ascii").split()
                if self._checked(Link(int(number), mark)) == check:
                    return Link(int(number), mark)
            except FileNotFoundError:
                raise ConfigError(
                    f"{str(self._path)!r}, which says where the audit log ends, is lost: {_NEW_CHAIN}"
                ) from None
            except (OSError, ValueError):
                continue
        raise ConfigError(f"{str(self._path)!r}, which says where the audit log ends, is damaged: {_NEW_CHAIN}")

    def write(self, link: Link) -> None:
        """Replace it in place: it has the same length always, so this needs no room on the disk."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY)
        os.pwrite(self._file, self.content(link), 0)

    def content(self, link: Link) -> bytes:
        """What the file holds."""
        return f"{link.number:020d} {link.mark} {self._checked(link)}\n".encode()

    def _checked(self, link: Link) -> str:
        return f"{zlib.crc32(f'{self._of_key} {link.number} {link.mark}'.encode()):08x}"  # for damage

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class Chain:
    """Gives the lines of a log their places; one process at a time. ``state`` is the party's state folder."""

    def __init__(self, log: Path, state: Path | None):
        if state is not None:
            check_chain(state) if (state / SECRET).exists() else _begin(state)
        self.key, self._head = open_chain(state)
        head = START if self._head is None else self._head.read()
        last, self.is_torn = _last_line(log, self.key)
        self._last = max(head, last or START, key=lambda link: link.number)

    def sealed(self, body: bytes) -> tuple[bytes, Link]:
        """The next line, and its link."""
        return self.key.seal(body, self._last)

    def advance(self, link: Link) -> None:
        """The line with this link is written."""
        self._last = link
        if self._head is not None:
            self._head.write(link)

    def close(self) -> None:
        """Close the file of the head."""
        if self._head is not None:
            self._head.close()


def open_chain(state: Path | None) -> tuple[Key, Head | None]:
    """The key of a log and its head; without a state folder, or before it has a secret, a key that everybody knows."""
    if state is None or not (state / SECRET).exists():
        return Key(b"tablepuppet audit log"), None
    key = Key(read_private_file(state / SECRET, _WHAT))
    return key, Head(state / HEAD, key)


def check_chain(state: Path) -> None:
    """ConfigError if the secret or the head of a state folder is lost or damaged."""
    if (state / SECRET).exists():
        if len(read_private_file(state / SECRET, _WHAT)) != SECRET_BYTES:
            raise ConfigError(f"{_WHAT} {str(state / SECRET)!r} is damaged: {_NEW_CHAIN}")
        _, head = open_chain(state)
        assert head is not None, "there is a secret"
        head.read()
    elif (state / HEAD).exists() and not (state / HEAD).read_bytes().startswith(b"0" * 20):
        raise ConfigError(f"{_WHAT} {str(state / SECRET)!r} is lost: {_NEW_CHAIN}")


def _begin(state: Path) -> None:
    """Make the head and then the secret: a secret without a head means that the head was lost."""
    secret = secrets.token_bytes(SECRET_BYTES)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_chain(state)
    write_atomically(state / HEAD, Head(state / HEAD, Key(secret)).content(START))
    write_new_file(state / SECRET, secret, _WHAT)


def _last_line(log: Path, key: Key) -> tuple[Link | None, bool]:
    """The link of the last line of a log that has one, and whether what follows was cut short."""
    try:
        if not stat.S_ISREG(log.stat().st_mode):
            return None, False
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None, False
    for line in reversed(lines):
        found = key.link(line)
        if found is not None and found[2]:
            return found[0], bool(lines[-1])
    return None, bool(lines[-1])


class Trail(msgspec.Struct, frozen=True):
    """What the lines of a log say, and whether they are all there.

    ``problems`` show that lines were changed or are missing; ``notes`` do not.
    """

    lines: list[dict[str, object]]
    first: int  # numbers of lines
    last: int
    keyed: bool  # whether who can write the log could not have made a line
    problems: list[str]
    notes: list[str]


def read_trail(log: Path, state: Path | None, wanted: Callable[[dict[str, object]], bool]) -> Trail:
    """The wanted lines of a log and of its rotated files, in their order, and what is wrong with the chain of all."""
    key, head = open_chain(state)
    end = None if head is None else head.read()  # first: a party may write lines meanwhile
    lines: list[dict[str, object]] = []
    problems: list[str] = []
    notes: list[str] = []
    unmarked: list[str] = []  # before the first line that has a mark
    first, before = 0, START
    for path in _files(log, key):
        for place, raw in _lines(path):
            where = f"{path.name}, line {place}"
            found, read = key.link(raw), _decoded(raw)
            if read is None or (found is None and before.number):
                torn = f"{where}: a part of a line, or none of this log; it has no mark"
                (notes if read is None else problems).append(torn)
                continue
            if wanted(read):
                lines.append(read)
            if found is None:
                unmarked.append(f"{where}: written before lines had marks, or by somebody else")
                continue
            link, prev, right = found
            if not first:  # only what stands before the first line of all can be older than marks
                (notes if link.number == 1 else problems).extend(unmarked)
            if not right:
                problems.append(f"{where}: line {link.number:,} was changed: its mark does not fit")
            elif first and link.number != before.number + 1:
                problems.append(f"{where}: {_gap(before.number, link.number)}")
            elif first and prev != before.mark:
                problems.append(f"{where}: line {link.number:,} does not follow the line before it, which was changed")
            first, before = first or link.number, link
    if not first:
        notes += unmarked
    if first > 1:
        notes.append(f"the first line here is number {first:,}; older ones are in files that are not beside the log")
    if end is not None and end.number > before.number:
        problems.append(f"lines {before.number + 1:,} to {end.number:,} are missing at the end")
    return Trail(lines, first, before.number, head is not None, problems, _few(notes))


def _gap(before: int, now: int) -> str:
    if now > before + 1:
        return f"lines {before + 1:,} to {now - 1:,} are missing"
    return f"line {now:,} stands after line {before:,}: lines were moved or come twice"


def _few(notes: list[str], most: int = 20) -> list[str]:
    return notes if len(notes) <= most else [*notes[:most], f"and {len(notes) - most:,} more such notes"]


def _files(log: Path, key: Key) -> list[Path]:
    """The log and what it was rotated to, whose names begin with its own, by the numbers of their first lines."""
    found = [path for path in sorted(log.parent.iterdir()) if path.name.startswith(log.name) and path.is_file()]
    first: dict[Path, int] = {}
    for path in found:
        links = (link[0].number for _, line in _lines(path) if (link := key.link(line)) is not None)
        first[path] = next(links, 0)
    return sorted(found, key=first.__getitem__)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their places in it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for place, line in enumerate(file, start=1):
                if line.strip():
                    yield place, line.rstrip(b"\n")
    except (OSError, EOFError) as error:
        raise ConfigError(f"the audit log {str(path)!r} cannot be read: {type(error).__name__}") from error


def _decoded(line: bytes) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
