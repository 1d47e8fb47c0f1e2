"""The demonstration's owners as parties of their own: a process, a certificate and a party file for each.

Everything lies in the folder ``services`` of the demonstration, made anew for every run: what an operator would
write, and what a party leaves behind (its audit log, its state, its own log).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tablepuppet.errors import PartyError
from tablepuppet.federation import Federation, Tls
from tablepuppet.party.blind import new_blinding_key
from tablepuppet.privacy.certificates import issue, new_authority
from tablepuppet.runs.events import Events, Reader

ANALYST = "analyst"
STOPPING = 20.0  # seconds for a party to end by itself
PARTY_FILE = """\
name = "{name}"
listen = "127.0.0.1:0"  # a free port; an operator names one
database = "{database}"
blinding_key = "../blinding.key"
allow = ["{analyst}"]
state_dir = "state"

[tls]
cert = "../certs/{name}.crt"
key = "../certs/{name}.key"
ca = "../certs/ca.crt"

{tables}"""
FLIGHTS = """\
[tables.flights.columns]
tailnum = "key"
origin = ["key", "feature"]
time_hour = "key"
month = "feature"
hour = "feature"
distance = "feature"
carrier = "feature"
dest = "feature"
arr_delay = ["filter", "label"]
"""
PLANES = """\
[tables.planes.columns]
tailnum = "key"
year = "feature"
seats = "feature"
engine = "feature"
manufacturer = "feature"
"""
WEATHER = """\
[tables.weather.columns]
origin = "key"
time_hour = "key"
temp = "feature"
humid = "feature"
wind_speed = "feature"
precip = "feature"
pressure = "feature"
visib = "feature"
"""
OWNERS = {
    "airline": ("duckdb:///../../airline.duckdb", FLIGHTS),
    "registry": ("sqlite:///../../registry.sqlite", PLANES),
    "weather_newark": ("parquet:///../../weather_newark", WEATHER),
    "weather_queens": ("parquet:///../../weather_queens", WEATHER),
}


@dataclass(frozen=True)
class Services:
    """Parties that answer, and what an analyst needs to call them."""

    folder: Path
    urls: dict[str, str]

    def federation(self, callbacks: Iterable[Reader]) -> Federation:
        """The analyst's side, by mutual TLS."""
        certs = self.folder / "certs"
        tls = Tls(*(str(certs / name) for name in (f"{ANALYST}.crt", f"{ANALYST}.key", "ca.crt")))
        return Federation(self.urls, tls=tls, callbacks=callbacks)


@contextmanager
def services(folder: Path, events: Events) -> Iterator[Services]:
    """The parties of a demonstration's folder as processes, until the context ends, however it ends."""
    made, urls = folder / "services", {}
    done = events.progress("start", "starting a party for each owner", len(OWNERS))
    write_party_files(made)
    with ExitStack() as stack:
        started = {name: stack.enter_context(_process(made / name)) for name in OWNERS}
        for name, process in started.items():
            urls[name] = _address(name, made, process)
            done(len(urls))
        yield Services(made, urls)
        for process in started.values():  # all at once; each is waited for when the stack unwinds
            process.terminate()


def write_party_files(folder: Path) -> None:
    """Certificates, the blinding key and the party files, as operators would make them."""
    shutil.rmtree(folder, ignore_errors=True)
    new_authority(folder / "certs")
    issue(folder / "certs", ANALYST, role="analyst")
    new_blinding_key(folder / "blinding.key")
    for name, (database, tables) in OWNERS.items():
        issue(folder / "certs", name, role="party")
        (folder / name).mkdir()
        text = PARTY_FILE.format(name=name, database=database, analyst=ANALYST, tables=tables)
        (folder / name / "party.toml").write_text(text)
        (folder / name / "party.toml").chmod(0o600)


@contextmanager
def _process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A party that serves. Its process group is its own: Ctrl-C ends the analyst first, who then ends the parties."""
    command = [sys.executable, "-m", "tablepuppet", "party", "serve", str(folder / "party.toml")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(name: str, folder: Path, process: subprocess.Popen[str]) -> str:
    """Where a party listens, once it is ready."""
    assert process.stdout is not None, "its output is a pipe"
    line = process.stdout.readline()
    if " is ready at " not in line:
        log = folder / name / "log"
        raise PartyError(f"party {name!r} of the demonstration did not start: {log.read_text().strip()} ({log})")
    return line.split()[-1]
