"""What the wire costs: rounds over mutual TLS against bare Flight, and a whole fit against one in this process.

Run with ``python -m benchmarks.wire`` (``--quick`` for fewer rounds). Parties are processes on this machine, started by
`tablepuppet party serve`; ours and the bare calls are measured in turn. Writes ``benchmarks/results/wire.json``.
MovieLens-1M is skipped where it is absent (benchmarks/data.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet
from numpy.typing import NDArray

import tablepuppet as tp
from benchmarks.data import ROOT, is_there
from benchmarks.mapping import movielens, seconds
from benchmarks.parties import CALLER, new_certificates, serving, started, tls_files
from benchmarks.proxy import US_UK, Proxy
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.request import Step
from tablepuppet.wire.traffic import communication_seconds

NAMES = ["north", "south", "west"]
SIZES = (1, 10_000, 1_000_000)  # float64 each way
TURN = 20  # rounds in a row, as a fit makes them
COLUMNS = "u.gender, u.age, u.occupation, g.year, g.genre"
JOIN = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres g USING (movie_id)"


# Rounds


@op("benchmark.echo", asked="this benchmark", releases=Release.PREDICTIONS)
def echo(table: LocalTable, values: NDArray[np.floating]) -> Values:
    """As many numbers as came, made anew: what a round costs beside its computing."""
    return {"values": values + 1.0}


def write_small(folder: Path) -> dict[str, str]:
    """Three databases with a small table each: URLs."""
    urls = {}
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        rows = pa.table({"id": np.arange(100), name: np.arange(100.0)})
        pyarrow.parquet.write_table(rows, folder / name / f"t_{name}.parquet")
        urls[name] = f"parquet:///{folder / name}"
    return urls


def federation(folder: Path, ports: Mapping[str, int], **settings: Any) -> tp.Federation:
    """The coordinator of parties that `serving` started in a folder."""
    tls = tls_files(folder / "certificates", CALLER)
    return tp.Federation({n: f"grpc+tls://127.0.0.1:{port}" for n, port in ports.items()}, tls=tls, **settings)


def our_round(fed: tp.Federation) -> Callable[[int], None]:
    """One trip to three parties through the whole of our wire: policy, audit log, meter."""
    north, *others = NAMES
    joins = " ".join(f"JOIN t_{name} ON t_{name}.id = t_{north}.id" for name in others)
    relation = fed.sql(f"SELECT {', '.join(NAMES)} FROM t_{north} {joins}")
    arrays = {size: np.random.default_rng(0).random(size) for size in SIZES}

    def once(size: int) -> None:
        outbox = relation.client.outbox  # the session lives as long as its relation
        answers = [outbox.ask(name, Step("benchmark.echo", f"t_{name}", {"values": arrays[size]})) for name in NAMES]
        for answer in answers:
            assert len(answer.read()["values"]) == size

    return once


class Bare(flight.FlightServerBase):  # type: ignore[misc]
    """Plain pyarrow: answers a batch of numbers with as many."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One batch in, one batch out."""
        values = reader.read_chunk().data.column(0).to_numpy()
        batch = pa.record_batch({"values": values + 1.0})
        writer.begin(batch.schema)
        writer.write_batch(batch)


def serve_bare(folder: Path, name: str) -> None:
    """Runs in a process of its own until it is ended."""
    files = tls_files(folder, name).read()
    server = Bare(
        "grpc+tls://127.0.0.1:0",
        tls_certificates=[(files.certificate, files.key)],
        verify_client=True,
        root_certificates=files.authority,
    )
    print(f"listening at 127.0.0.1:{server.port}", flush=True)
    server.serve()


@contextmanager
def bare_round(folder: Path) -> Iterator[Callable[[int], None]]:
    """The same numbers by a bare Flight call to each of three processes at once, mutual TLS on."""
    new_certificates(folder, NAMES)
    files = tls_files(folder, CALLER).read()
    options = {"tls_root_certs": files.authority, "cert_chain": files.certificate, "private_key": files.key}
    batches = {size: pa.record_batch({"values": np.random.default_rng(0).random(size)}) for size in SIZES}
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.wire", "--bare", str(folder)]
        ports = [stack.enter_context(started([*command, name])) for name in NAMES]
        clients = [flight.FlightClient(f"grpc+tls://127.0.0.1:{port}", **options) for port in ports]
        pool = stack.enter_context(ThreadPoolExecutor(len(NAMES)))

        def call(client: flight.FlightClient, batch: pa.RecordBatch) -> int:
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""))
            with writer:
                writer.begin(batch.schema)
                writer.write_batch(batch)
                writer.done_writing()
                return len(reader.read_chunk().data.column(0).to_numpy())

        def once(size: int) -> None:
            assert set(pool.map(lambda client: call(client, batches[size]), clients)) == {size}

        yield once


def rounds(folder: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds of a round by size: ours, ours with a journal, and bare, some rounds of each in turn; medians."""
    urls = write_small(folder / "small")
    with ExitStack() as stack:
        work = {"bare": stack.enter_context(bare_round(folder / "bare"))}
        for name, state in (("ours", False), ("ours with state_dir", True)):
            ports = stack.enter_context(serving(folder / name, urls, state=state))
            work[name] = our_round(federation(folder / name, ports, wire="float64"))
        return {str(size): _in_turn(work, size, repeats if size < 1_000_000 else repeats // 5) for size in SIZES}


def _in_turn(work: Mapping[str, Callable[[int], None]], size: int, repeats: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(max(1, repeats // TURN)):
        for name, once in work.items():
            once(size)  # the first one wakes the parties, or connects to them
            found[name] += [1000 * seconds(lambda once=once: once(size)) for _ in range(TURN)]  # type: ignore[misc]
    figures = {f"{name}, ms": median(times) for name, times in found.items()}
    figures |= {f"{name}, fastest tenth, ms": sorted(times)[len(times) // 10] for name, times in found.items()}
    return figures | {"ratio": median(ours / bare for ours, bare in zip(found["ours"], found["bare"], strict=True))}


# A whole fit


def fit(fed: tp.Federation) -> tuple[float, Any]:
    """From SQL to a trained model: (seconds, the model)."""
    start = time.perf_counter()
    relation = fed.sql(f"SELECT {COLUMNS}, r.rating >= 4 AS y {JOIN}", label="y", categorical=["age", "occupation"])
    model = tp.LogisticRegression(rounds=10, tol=0.0).fit(relation)
    return time.perf_counter() - start, model


def whole_fit(folder: Path, repeats: int) -> dict[str, Any]:
    """A fit over three processes against one in this process, in turn; then over a line between continents."""
    urls, _, _ = movielens(folder)
    with serving(folder / "parties", urls) as ports:
        far, near = federation(folder / "parties", ports), tp.Federation(urls)
        times: dict[str, list[float]] = {"processes": [], "one process": []}
        for number in range(repeats + 1):
            for name, fed in (("processes", far), ("one process", near)):
                took, model = fit(fed)
                if number:  # the first ones connect and warm up
                    times[name].append(took)
        pairs = zip(times["processes"], times["one process"], strict=True)
        return {
            "rounds": len(model.history_),
            "seconds in processes": median(times["processes"]),
            "seconds in one process": median(times["one process"]),
            "ratio": median(ours / bare for ours, bare in pairs),
            "US-UK": across(folder / "parties", ports),
        }


def across(folder: Path, ports: Mapping[str, int]) -> dict[str, float]:
    """The same fit with every party behind a line as between the US and the UK."""
    with ExitStack() as stack:
        proxies = {n: stack.enter_context(Proxy("127.0.0.1", port, **US_UK)) for n, port in ports.items()}
        fed = federation(folder, {name: proxy.port for name, proxy in proxies.items()})
        took, _ = fit(fed)
        size = sum(proxy.bytes_up + proxy.bytes_down for proxy in proxies.values())
    traffic = fed.engine.traffic
    return {
        "seconds": took,
        "trips": traffic.trips,
        "bytes": traffic.bytes,
        "bytes on the line": size,
        "communication, computed, seconds": communication_seconds(traffic.trips, traffic.bytes)["US-UK"],
    }


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--bare", nargs=2, metavar=("FOLDER", "NAME"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare:
        serve_bare(Path(chosen.bare[0]), chosen.bare[1])
        return
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        result["rounds"] = rounds(Path(place), 100 if chosen.quick else 500)
        print("rounds", json.dumps(result["rounds"], indent=2), flush=True)
        if is_there("movielens-1m"):
            (Path(place) / "movielens").mkdir()
            result["movielens-1m"] = whole_fit(Path(place) / "movielens", 1 if chosen.quick else 5)
            print("movielens-1m", json.dumps(result["movielens-1m"], indent=2))
    target = ROOT / "benchmarks" / "results" / "wire.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
