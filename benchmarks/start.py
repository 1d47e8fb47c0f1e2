"""How long a party takes from its command to readiness: ``python -m benchmarks.start``, the least of some runs."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tablepuppet.party.blind import new_blinding_key

RUNS = 6
COMMAND = [sys.executable, "-c", "from tablepuppet.cli import main; main()", "party", "serve"]


def write_party(folder: Path) -> Path:
    """A party file with one small table."""
    pq.write_table(pa.table({"a": [1, 2, 3]}), folder / "t.parquet")
    new_blinding_key(folder / "blinding.key")
    file = folder / "party.toml"
    file.write_text(
        f'name = "p"\nlisten = "127.0.0.1:0"\ndatabase = "parquet://{folder}"\nblinding_key = "blinding.key"\n'
        'allow = ["analyst"]\n[tables.t.columns]\na = "feature"\n'
    )
    return file


def start(file: Path) -> tuple[float, float]:
    """Seconds until it is ready, and seconds of processor time until it has ended."""
    before, began = _processor_time(), time.perf_counter()
    process = subprocess.Popen([*COMMAND, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "is ready at" in process.stdout.readline()
    ready = time.perf_counter() - began
    process.terminate()
    process.wait()
    return ready, _processor_time() - before


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Start it some times."""
    with tempfile.TemporaryDirectory() as folder:
        file = write_party(Path(folder))
        found = [start(file) for _ in range(RUNS)]
    print(
        f"ready after {min(ready for ready, _ in found):.2f} s, {min(used for _, used in found):.2f} s of a processor"
    )


if __name__ == "__main__":
    main()
