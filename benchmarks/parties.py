"""Parties as processes of this machine, with mutual TLS, for benchmarks of the wire.

`serving` writes party files over databases, starts `tablepuppet party serve` for each, and ends them with the context.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tablepuppet.federation import Tls
from tablepuppet.party.blind import new_blinding_key
from tablepuppet.party.databases.urls import open_database
from tablepuppet.privacy.certificates import issue, new_authority

CALLER = "analyst"
SERVE = [sys.executable, "-c", "import benchmarks.wire; from tablepuppet.cli import main; main()", "party", "serve"]


def new_certificates(folder: Path, names: list[str]) -> None:
    """An authority, and a certificate for each name and for the caller."""
    new_authority(folder)
    for name in [*names, CALLER]:
        issue(folder, name, ["localhost", "127.0.0.1"], role="analyst" if name == CALLER else "party")


def tls_files(folder: Path, name: str) -> Tls:
    """Certificate, key and authority of one name."""
    return Tls(str(folder / f"{name}.crt"), str(folder / f"{name}.key"), str(folder / "ca.crt"))


@contextmanager
def serving(folder: Path, urls: Mapping[str, str], *, state: bool = False) -> Iterator[dict[str, int]]:
    """A process for every database URL until the context ends: ports by name. With ``state`` there is a journal."""
    folder.mkdir()
    new_blinding_key(folder / "blinding.key")
    new_certificates(folder / "certificates", list(urls))
    with ExitStack() as stack:
        ports = {}
        for name, url in urls.items():
            file = _party_file(folder, name, url, state)
            ports[name] = stack.enter_context(started([*SERVE, str(file)]))
        yield ports


@contextmanager
def started(command: list[str]) -> Iterator[int]:
    """A process until the context ends; the port, with which the first line that it prints must end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().strip().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(timeout=30)


def _party_file(folder: Path, name: str, url: str, state: bool) -> Path:
    """Every column may be used for everything, by the caller."""
    tls = tls_files(folder / "certificates", name)
    lines = [
        f'name = "{name}"', 'listen = "127.0.0.1:0"', f'database = "{url}"', 'blinding_key = "blinding.key"',
        f'allow = ["{CALLER}"]', f'audit_log = "{name}.jsonl"', *([f'state_dir = "{name}-state"'] if state else []),
        "[limits]", "max_prediction_rounds = 1000000",
        "[tls]", f'cert = "{tls.cert}"', f'key = "{tls.key}"', f'ca = "{tls.ca}"',
    ]  # fmt: skip
    for table in open_database(name, url).tables():
        lines += [f"[tables.{table.name}.columns]"]
        lines += [f'{column} = ["key", "filter", "label", "feature"]' for column in table.columns]
    file = folder / f"{name}.toml"
    file.write_text("\n".join(lines))
    return file
