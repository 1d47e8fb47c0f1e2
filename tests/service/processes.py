"""Parties as processes of their own: `tablepuppet party serve`, killed and started again at will."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

import tablepuppet as tp
from tablepuppet.party.blind import new_blinding_key
from tests import warm
from tests.relations import write_party
from tests.wire.services import Certificates

COMMAND = [sys.executable, "-c", "from tablepuppet.cli import main; main()"]


def free_port() -> int:
    """A port that nobody has now, and that no connection gets while its party is away: those begin at 32,768."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class PartyProcess:
    """One party with its file, its certificate and its port."""

    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        tables: Mapping[str, pa.Table],
        files: tuple[str, str, str],
        extra: str = "",
        of_tables: str = "",
        command: Sequence[str] = COMMAND,
    ):
        self.folder, self.name, self.port, self.command = folder, name, free_port(), command
        self.file = folder / f"{name}.toml"
        self.state = folder / f"{name}-state"
        self.state.mkdir(exist_ok=True)
        self.process: warm.Process | None = None
        self.write(url, tables, files, extra, of_tables)

    def write(
        self,
        url: str,
        tables: Mapping[str, pa.Table],
        files: tuple[str, str, str],
        extra: str = "",
        of_tables: str = "",
    ) -> None:
        """The party file: every column may be used for everything; ``of_tables`` is said of each table."""
        lines = [
            f'name = "{self.name}"', f'listen = "127.0.0.1:{self.port}"', f'database = "{url}"',
            'blinding_key = "blinding.key"', 'allow = ["analyst"]', f'state_dir = "{self.state}"',
            f'audit_log = "{self.name}.jsonl"', extra,
            "[tls]", f'cert = "{files[0]}"', f'key = "{files[1]}"', f'ca = "{files[2]}"',
        ]  # fmt: skip
        for table, rows in tables.items():
            lines += [f"[tables.{table}]", "min_rows = 1", "min_group = 1", of_tables, f"[tables.{table}.columns]"]
            lines += [f'{column} = ["key", "filter", "label", "feature"]' for column in rows.column_names]
        self.file.write_text("\n".join(lines))

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        log = (self.folder / f"{self.name}.log").open("a")
        self.process = warm.start([*self.command, "party", "serve", str(self.file)], stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "is ready at" in line, (self.folder / f"{self.name}.log").read_text()

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def memory(self) -> int:
        """Bytes of memory that it has now (Linux)."""
        return int((self._proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """File descriptors that it has now (Linux)."""
        return len(list((self._proc / "fd").iterdir()))

    @property
    def _proc(self) -> Path:
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}")

    def kill(self) -> None:
        """As if the machine had lost power."""
        self.end(signal.SIGKILL)

    def strike(self) -> None:
        """kill -9, without waiting for its end."""
        assert self.process is not None
        self.process.kill()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        return self._ended(60.0)

    def _ended(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code."""
        assert self.process is not None
        code = self.process.wait(timeout)
        self.process.close()
        self.process = None
        return code

    @contextmanager
    def restarted(self, times: int) -> Iterator[list[int]]:
        """Start it again whenever it ends, so many times, as a service manager would; its exit codes so far."""
        codes: list[int] = []
        enough = threading.Event()

        def watch() -> None:
            while len(codes) < times:
                codes.append(self._ended())
                if enough.is_set():
                    return
                self.start()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield codes
            watching.join(240.0)
        finally:
            enough.set()


class Services:
    """A federation whose parties are processes."""

    def __init__(
        self,
        folder: Path,
        parties: Mapping[str, Mapping[str, pa.Table]],
        extra: str = "",
        of_tables: str = "",
        command: Sequence[str] = COMMAND,
        databases: Mapping[str, str] | None = None,
    ):
        self.folder, self.certificates = folder, Certificates(folder / "certificates")
        new_blinding_key(folder / "blinding.key")
        kinds = databases or {}
        self.urls = {
            name: write_party(folder, name, tables, kinds.get(name, "parquet")) for name, tables in parties.items()
        }
        self.parties = {
            name: PartyProcess(
                folder, name, self.urls[name], tables, self.certificates.files(name), extra, of_tables, command
            )
            for name, tables in parties.items()
        }
        self._stack = ExitStack()

    def __enter__(self) -> Services:
        for party in self.parties.values():
            party.start()
            self._stack.callback(party.kill)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def federation(self, **settings: Any) -> tp.Federation:
        """The coordinator's side."""
        urls = {name: f"grpc+tls://127.0.0.1:{party.port}" for name, party in self.parties.items()}
        settings.setdefault("tls", self.certificates.client("analyst"))
        return tp.Federation(urls, **settings)

    def write_federation(self, **settings: Any) -> Path:
        """The same as a federation file."""
        lines = [f"{name} = {value!r}".replace("'", '"') for name, value in settings.items()] + ["[parties]"]
        lines += [f'{name} = "grpc+tls://127.0.0.1:{party.port}"' for name, party in self.parties.items()]
        cert, key, ca = self.certificates.files("analyst", "analyst")
        lines += ["[tls]", f'cert = "{cert}"', f'key = "{key}"', f'ca = "{ca}"']
        path = self.folder / "federation.toml"
        path.write_text("\n".join(lines))
        return path


def run_command(*arguments: str, command: Sequence[str] = COMMAND, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line as a user calls it."""
    return warm.run([*command, *arguments], env=os.environ | env, timeout=240)
