"""The machine that parties and a coordinator run on, and what can go wrong with it.

Disks are small file systems in memory where this process may mount them, else limits on the size of files; memory is a
limit on the address space; a lock is a writer that holds a party's database; a flipped bit or a lost end is in a file
that is read back, and strikes while its process is dead.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import duckdb

from tests.service.processes import PartyProcess, Services

from . import struck

COMMAND = (sys.executable, struck.__file__)
DISK = "6m"
HELD = 1.0  # seconds that a fault which passes lasts
STARTS = 5  # times that a party which does not start is started again
NOTHING = "nothing"  # was there to be damaged
ROOM = 1 << 18  # bytes of address space that a process gets beyond what it has


class Disk:
    """A folder that can be full; mounted if this process may."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(folder)]
        self.is_mounted = subprocess.run(mount, capture_output=True).returncode == 0

    def fill(self, pid: int | None) -> None:
        """Let nothing more be written."""
        if not self.is_mounted:
            if pid is not None:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            return
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError), (self.folder / ".filler").open("ab", buffering=0) as filler:
                while filler.write(bytes(size)) == size:
                    pass

    def empty(self, pid: int | None) -> None:
        """Make room."""
        if not self.is_mounted and pid is not None:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        (self.folder / ".filler").unlink(missing_ok=True)

    def end(self) -> None:
        """Unmount it."""
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class Machine:
    """Parties that are started again whenever they end, as a service manager does, and faults for them.

    ``restart`` are faults that strike while a party is dead, by its name; ``problems`` are what parties said that did
    not start.
    """

    def __init__(self, services: Services, seed: random.Random):
        self.services, self.draw = services, seed
        self.disks = {name: Disk(party.state) for name, party in services.parties.items()}
        self.restart: dict[str, list[str]] = {}
        self.problems: dict[str, str] = {}
        self.struck: list[str] = []
        self._reliefs: list[tuple[float, str, str]] = []
        self._starts: dict[str, int] = {}
        self._locks: dict[str, duckdb.DuckDBPyConnection] = {}
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None

    def begin(self) -> None:
        """Watch over the parties until `end`."""
        self._ended.clear()
        self._starts = dict.fromkeys(self.services.parties, 0)
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._watch.start()

    def end(self) -> None:
        """Watch no more; faults end."""
        self._ended.set()
        assert self._watch is not None
        self._watch.join()
        self.relieve()

    def close(self) -> None:
        """End parties, and unmount."""
        for party in self.services.parties.values():
            party.kill()
        for disk in self.disks.values():
            disk.end()

    def relieve(self) -> None:
        """Let every fault that passes be over."""
        for name in self.services.parties:
            for fault in ("disk", "memory", "stop", "lock"):
                self._relieve(fault, name)
        self._reliefs.clear()

    def settle(self) -> bool:
        """Wait until every party serves, or will not start; whether all serve."""
        while any(
            not party.is_running() and self._starts[name] < STARTS for name, party in self.services.parties.items()
        ):
            time.sleep(0.02)
        return all(party.is_running() for party in self.services.parties.values())

    def _watched(self) -> None:
        while not self._ended.is_set():
            for name, party in self.services.parties.items():
                wants = party.file.with_suffix(".wants")
                if wants.exists():
                    fault = wants.read_text()
                    self._apply(fault, name)
                    wants.unlink()
                if not party.is_running() and self._starts[name] < STARTS:
                    self._start(name, party)
                    self._starts[name] += 1
            for relief in [each for each in self._reliefs if each[0] < time.monotonic()]:
                self._reliefs.remove(relief)
                self._relieve(relief[1], relief[2])
            time.sleep(0.01)

    def _start(self, name: str, party: PartyProcess) -> None:
        if party.process is not None and party._ended(10.0) < 0:
            self.struck.append(f"end {name}")
        party.file.with_suffix(".wants").unlink(missing_ok=True)
        for fault in self.restart.pop(name, []):
            self._apply(fault, name)
        log = party.folder / f"{name}.log"
        before = log.stat().st_size if log.exists() else 0
        try:
            party.start()
            self.problems.pop(name, None)
        except AssertionError:
            self.problems[name] = log.read_text()[before:].strip()
            time.sleep(0.3)

    def _apply(self, fault: str, name: str) -> None:
        party = self.services.parties[name]
        pid = party.process.pid if party.process is not None else None
        self.struck.append(f"{fault} {name}")
        match fault.split(":"):
            case ["disk"]:
                self.disks[name].fill(pid)
            case ["memory"] if pid is not None:
                used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
                resource.prlimit(pid, resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
            case ["stop"] if party.process is not None:
                party.process.send_signal(signal.SIGSTOP)
            case ["lock"]:
                with suppress(duckdb.Error):  # it is open at the party, which reads what it has
                    self._locks[name] = duckdb.connect(self.services.urls[name].removeprefix("duckdb:///"))
            case ["flip" | "cut" as how, kind]:
                self.struck[-1] += f" {damage(how, self._file(party.state, kind), self.draw)}"
        if fault in ("disk", "memory", "stop", "lock"):
            self._reliefs.append((time.monotonic() + HELD, fault, name))

    def _relieve(self, fault: str, name: str) -> None:
        party = self.services.parties[name]
        pid = party.process.pid if party.process is not None else None
        if fault == "disk":
            self.disks[name].empty(pid)
        elif fault == "lock":
            if (lock := self._locks.pop(name, None)) is not None:
                lock.close()
        elif pid is not None and fault == "memory":
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        elif fault == "stop" and party.process is not None:
            party.process.send_signal(signal.SIGCONT)

    def _file(self, folder: Path, kind: str) -> Path | None:
        found = sorted(path for path in folder.rglob(kind) if path.is_file())
        return self.draw.choice(found) if found else None


def damage(how: str, path: Path | None, draw: random.Random) -> str:
    """Flip a bit of a file, or let it lose its end; where."""
    if path is None or not path.stat().st_size:
        return NOTHING
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    if how == "cut":
        path.write_bytes(content[:place])
    else:
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    return f"{path.name[-24:]} at {place} of {len(content)}"


def copied(source: Path, target: Path) -> None:
    """Let a folder have the content of another."""
    for path in target.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in source.iterdir():
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        elif path.is_file():
            shutil.copy2(path, target / path.name)
