"""A party under load, and out of what it needs: ``python -m benchmarks.load``, some minutes, on this machine only.

One process of `tablepuppet party serve` with default limits but for the number of sessions and a small journal. It gets
50 tenants at once, 2,000 idle sockets while somebody learns, 400 sessions one after the other, a full journal and a
full disk. After each, a session that was opened at the beginning must still give the same model. Writes memory,
descriptors and counts to ``benchmarks/results/load.json``.
"""

from __future__ import annotations

import gc
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet as tp
from benchmarks.parties import tls_files
from tablepuppet.party.blind import new_blinding_key
from tablepuppet.privacy.certificates import issue, new_authority

RESULT = Path(__file__).parent / "results" / "load.json"
TENANTS, SOCKETS, CYCLES, ROWS = 50, 2000, 400, 20_000
JOURNAL = 16 << 20  # bytes
SQL = "SELECT x, z, y FROM items"
COMMAND = [sys.executable, "-c", "from tablepuppet.cli import main; main()", "party", "serve"]


class Target:
    """The party's process, and federations of its callers."""

    def __init__(self, folder: Path):
        self.folder, self.certificates = folder, folder / "certificates"
        rng = np.random.default_rng(0)
        (folder / "data").mkdir()
        rows = pa.table({"x": rng.random(ROWS), "z": rng.random(ROWS), "y": rng.random(ROWS)})
        pq.write_table(rows, folder / "data" / "items.parquet")
        new_blinding_key(folder / "blinding.key")
        new_authority(self.certificates)
        self.tenants = [f"tenant{number}" for number in range(TENANTS)]
        for name in ["store", *self.tenants]:
            issue(self.certificates, name, role="party" if name == "store" else "analyst")
        self.log = (folder / "log").open("w")
        command = [*COMMAND, str(self._file())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rpartition(":")[2])

    def _file(self) -> Path:
        tls = tls_files(self.certificates, "store")
        lines = [
            'name = "store"', 'listen = "127.0.0.1:0"', 'database = "parquet:///data"',
            'blinding_key = "blinding.key"', f"allow = {json.dumps(self.tenants)}", 'state_dir = "state"',
            "[limits]", "sessions = 64", f"journal_bytes = {JOURNAL}",
            "[tls]", f'cert = "{tls.cert}"', f'key = "{tls.key}"', f'ca = "{tls.ca}"',
            "[tables.items.columns]", *(f'{name} = ["key", "filter", "label", "feature"]' for name in "xzy"),
        ]  # fmt: skip
        file = self.folder / "party.toml"
        file.write_text("\n".join(lines))
        return file

    def federation(self, number: int) -> tp.Federation:
        """As one tenant sees it."""
        tls = tls_files(self.certificates, self.tenants[number])
        return tp.Federation({"store": f"grpc+tls://127.0.0.1:{self.port}"}, tls=tls, timeout=300.0)

    def figures(self) -> dict[str, Any]:
        """Memory in MiB and descriptors, now."""
        place = Path(f"/proc/{self.process.pid}")
        pages = int((place / "statm").read_text().split()[1])
        return {
            "memory": round(pages * resource.getpagesize() / 2**20, 1),
            "descriptors": len(list((place / "fd").iterdir())),
        }

    def end(self) -> None:
        """Stop it as a service manager would; it must end well."""
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0, "the party did not end by itself"
        self.log.close()


def coefficients(relation: Any) -> list[float]:
    """A model, as numbers."""
    model = tp.LinearRegression(rounds=5).fit(relation)
    return [float(np.ravel(model.coef_[name])[0]) for name in ("items.x", "items.z")]


def refused(call: Callable[[], object]) -> str:
    """The words with which the party refuses; an error if it does not."""
    try:
        call()
    except tp.TablePuppetError as error:
        return str(error)
    raise AssertionError("this should have been refused")


def tenants_at_once(target: Target, wanted: list[float]) -> dict[str, Any]:
    """Every tenant learns the same model at the same time."""
    with ThreadPoolExecutor(TENANTS) as pool:
        found = list(pool.map(lambda n: coefficients(target.federation(n).sql(SQL, label="y")), range(TENANTS)))
    return {"tenants": TENANTS, "right": sum(np.allclose(each, wanted) for each in found)}


def idle_sockets(target: Target, wanted: list[float]) -> dict[str, Any]:
    """Sockets that say nothing, while a tenant learns; all are ended in the end."""
    most, lines = 0, []
    with ExitStack() as stack:
        for _ in range(SOCKETS):
            line = stack.enter_context(socket.socket())
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", target.port))
            lines.append(line)
        began = time.monotonic()
        right = np.allclose(coefficients(target.federation(0).sql(SQL, label="y")), wanted)
        learned = time.monotonic() - began
        while time.monotonic() - began < 60 and target.figures()["descriptors"] > 200:
            most = max(most, target.figures()["descriptors"])
            time.sleep(0.2)
    return {"sockets": SOCKETS, "learned": bool(right), "seconds": round(learned, 1), "most_descriptors": most,
            "cleared_after": round(time.monotonic() - began, 1)}  # fmt: skip


def cycles(target: Target) -> dict[str, Any]:
    """Sessions one after the other."""
    fed, memory = target.federation(1), []
    for number in range(CYCLES):
        relation = fed.sql(SQL)
        assert len(relation) == ROWS
        relation._session.close()
        if number % 50 == 49:
            memory.append(target.figures()["memory"])
    return {"cycles": CYCLES, "memory_by_50": memory}


def full_journal(target: Target) -> dict[str, Any]:
    """A tenant whose requests take all its room is refused; when its session is closed it is answered again."""
    fed = target.federation(2)
    relation = fed.sql(SQL, label="y")
    words = refused(lambda: [coefficients(relation) for _ in range(1000)])
    others = len(target.federation(3).sql(SQL))
    relation._session.close()
    return {"refused": "limits.journal_bytes" in words, "others_rows": others, "again": len(fed.sql(SQL))}


def full_disk(target: Target) -> dict[str, Any]:
    """No file may grow: requests are refused; when there is room they are answered."""
    before = resource.prlimit(target.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(target.process.pid, resource.RLIMIT_FSIZE, (1, before[1]))
    words = refused(lambda: target.federation(4).sql(SQL))
    resource.prlimit(target.process.pid, resource.RLIMIT_FSIZE, before)
    return {"refused": "cannot write" in words, "again": len(target.federation(4).sql(SQL))}


def main() -> None:
    """All of it, one after the other."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))
        first = target.federation(5).sql(SQL, label="y")
        wanted = coefficients(first)
        result["begin"] = target.figures()
        scenes: dict[str, Callable[[], dict[str, Any]]] = {
            "tenants": lambda: tenants_at_once(target, wanted),
            "sockets": lambda: idle_sockets(target, wanted),
            "cycles": lambda: cycles(target),
            "journal": lambda: full_journal(target),
            "disk": lambda: full_disk(target),
        }
        for name, scene in scenes.items():
            found = scene()
            gc.collect()
            kept = np.allclose(coefficients(first), wanted)
            result[name] = {**found, "first_session_kept": bool(kept), **target.figures()}
            print(name, json.dumps(result[name]), flush=True)
        del first
        target.end()
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
