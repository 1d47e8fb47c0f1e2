"""Networks across parties over real joins: what neither FedOnce's nor TabVFL's paper could do, and what it costs.

Run with ``python -m benchmarks.deep.joins`` (``--quick``: a tenth of the ratings, fewer epochs). Three parts:

- ``movielens``: users, movies by genre and ratings. The linear model, the sum of networks, SplitNN and FedOnce beside
  one network and trees on the materialised join; bytes and trips as measured, and the time they would take between the
  US and the UK (136 ms a trip, 0.42 Gb/s).
- ``epochs``: seconds per epoch of SplitNN beside the same network on the materialised join in plain torch, with batches
  of the same size and one thread each, in turns: a fact table of 100,000 rows and a dimension of 1,000 rows, each
  joined 100 times. On a machine that others use too, the ratio of processor seconds is what counts.
- ``wire``: what numbers of 16 bits on the wire cost and save, on phishing and movielens.

Writes ``benchmarks/results/deep_joins.json``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet as tp
from benchmarks.baselines.fedonce import Boosted, Combine
from benchmarks.data import is_there
from benchmarks.deep.data import phishing, relations
from benchmarks.deep.results import Results
from benchmarks.learning.movielens import movielens, write_movielens

TRIP, BANDWIDTH = 0.136, 0.42e9 / 8  # US-UK: seconds, bytes per second
ROWS, KEYS, WIDTH, EPOCHS = 100_000, 1_000, 20, 5
HIDDEN, EMBEDDING, TOP = (64, 64), 16, (64,)
Times = tuple[float, float]  # of the clock, of the processor


def measured(learner: Any, train: tp.Relation, test: tp.Relation) -> dict[str, Any]:
    """What a learner reaches on test rows, and what its fit costs."""
    engine = train.client.engine
    trips: list[tp.Event] = []
    stop = train.events.subscribe(trips.append, trips=True)
    before, begun = sum(entry["bytes"] for entry in engine.traffic.to_list()), time.perf_counter()
    learner.fit(train)
    seconds, sent = time.perf_counter() - begun, sum(e["bytes"] for e in engine.traffic.to_list()) - before
    stop()
    rounds = len({event.fields["trip"] for event in trips if event.name == "trip"})
    found = {"seconds": round(seconds, 2), "bytes": sent, "trips": rounds, **learner.evaluate(test)}
    return found | {"seconds_us_uk": round(seconds + rounds * TRIP + sent / BANDWIDTH, 1)}


def run_movielens(results: Results, quick: bool) -> None:
    """All learners over one split of MovieLens-1M."""
    if not is_there("movielens-1m"):
        return
    bottom = tp.bottom.mlp(hidden=(32,), embedding=8)
    few: dict[str, Any] = {"epochs": 2 if quick else 5, "batch_size": 8192}
    learners: dict[str, Any] = {
        "linear": tp.LinearRegression(),
        "sum of networks": tp.MLPRegressor(solver="admm", rounds=20 if quick else 100),
        "SplitNN": tp.SplitNNRegressor(bottom=bottom, **few),
        "FedOnce": tp.FedOnceRegressor(guest_epochs=20, **few),
        "Combine": Combine("regression", epochs=few["epochs"], batch_size=8192, lr=3e-3),
        "Boosted": Boosted("regression"),
    }
    with tempfile.TemporaryDirectory() as folder:
        relation = movielens(tp.Federation(write_movielens(Path(folder), 1)), "regression")
        train, test = relation.split(test=0.9 if quick else 0.15, seed=7)
        for name, learner in learners.items():
            results.put(f"movielens, {name}", {"quick": quick, "rows": len(train), **measured(learner, train, test)})


def run_epochs(results: Results, quick: bool) -> None:
    """Seconds per epoch, in turns with plain torch."""
    rng = np.random.default_rng(0)
    key = np.repeat(np.arange(KEYS), ROWS // KEYS)[rng.permutation(ROWS)]
    facts, dimension = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=(KEYS, WIDTH))
    label = (facts[:, 0] * dimension[key, 0] > 0).astype(np.int64)
    names = [f"c{number}" for number in range(WIDTH)]
    with tempfile.TemporaryDirectory() as folder:
        tables = {
            "f": pa.table({"k": key, "y": label, **dict(zip(names, facts.T, strict=True))}),
            "d": pa.table({"k": np.arange(KEYS), **dict(zip(names, dimension.T, strict=True))}),
        }
        for name, rows in tables.items():
            (Path(folder) / name).mkdir()
            pq.write_table(rows, Path(folder) / name / f"{name}.parquet")
        fed = tp.Federation({name: f"parquet:///{folder}/{name}" for name in tables})
        selected = ", ".join(f"{table}.{name}" for table in tables for name in names)
        relation = fed.sql(f"SELECT {selected}, f.y FROM f JOIN d USING (k)", label="y")
        for size in (4096, 256):
            epochs: list[tuple[Times, Times]] = []  # medians of an epoch: ours, those of plain torch
            for _ in range(2 if quick else 5):
                ends: list[Times] = []

                def read(event: tp.Event, ends: list[Times] = ends) -> None:
                    if event.name == "fit":
                        ends.append(_now())

                tp.SplitNNClassifier(
                    bottom=tp.bottom.mlp(HIDDEN, EMBEDDING), top=TOP, epochs=EPOCHS, batch_size=size,
                    callbacks=[read],
                ).fit(relation)  # fmt: skip
                # no first epoch, which prepares features
                epochs.append((_median(ends), _median(_plain(facts, dimension[key], label, size))))
            ratios = np.array([[mine / other for mine, other in zip(*pair, strict=True)] for pair in epochs])
            results.put(
                f"epochs, batches of {size}",
                {
                    "quick": quick,
                    "ratio": float(np.median(ratios[:, 0])),
                    "ratios": ratios[:, 0].tolist(),
                    "processor_ratio": float(np.median(ratios[:, 1])),
                    "processor_ratios": ratios[:, 1].tolist(),
                    "seconds": float(np.median([ours[0] for ours, _ in epochs])),
                    "processor_seconds": float(np.median([ours[1] for ours, _ in epochs])),
                },
            )


def _now() -> Times:
    return time.perf_counter(), time.process_time()


def _median(ends: list[Times]) -> Times:
    """Seconds from one end of an epoch to the next."""
    clock, processor = np.median(np.diff(np.array(ends), axis=0), axis=0)
    return float(clock), float(processor)


def _plain(facts: Any, joined: Any, label: Any, size: int) -> list[Times]:
    """The end of each epoch of the same network in plain torch on the materialised join, in one thread."""
    import torch

    def bottom() -> Any:
        layers: list[Any] = []
        for into, out in zip((WIDTH, *HIDDEN), (*HIDDEN, EMBEDDING), strict=True):
            layers += [torch.nn.Linear(into, out), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = [torch.tensor(part, dtype=torch.float32) for part in (facts, joined)]
    wanted, networks = torch.tensor(label, dtype=torch.float32), [bottom(), bottom()]
    top = torch.nn.Sequential(torch.nn.Linear(2 * EMBEDDING, *TOP), torch.nn.ReLU(), torch.nn.Linear(*TOP, 1))
    parameters = [each for network in (*networks, top) for each in network.parameters()]
    adam, found = torch.optim.Adam(parameters, 3e-3), []
    for epoch in range(EPOCHS):
        order = torch.from_numpy(np.random.default_rng([0, epoch]).permutation(len(label)))
        for places in order.split(size):  # type: ignore[no-untyped-call]
            adam.zero_grad()
            embeddings = [network(part[places]) for network, part in zip(networks, rows, strict=True)]
            scores = top(torch.cat(embeddings, dim=1))[:, 0]
            torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted[places]).backward()  # type: ignore[no-untyped-call]
            adam.step()
        found.append(_now())
    torch.set_num_threads(before)
    return found


def run_wire(results: Results, quick: bool) -> None:
    """The same fits with embeddings, and gradients by them, in three precisions."""
    bottom, epochs = tp.bottom.mlp(hidden=(32, 32), embedding=16), 2 if quick else 30
    precisions: tuple[Literal["auto", "float16", "bfloat16"], ...] = ("auto", "float16", "bfloat16")
    for wire in precisions:
        with tempfile.TemporaryDirectory() as folder:
            if is_there("phishing"):
                for name, learner in {
                    "SplitNN": tp.SplitNNClassifier(bottom=bottom, wire=wire, epochs=epochs),
                    "FedOnce": tp.FedOnceClassifier(wire=wire, epochs=epochs, guest_epochs=epochs),
                }.items():
                    train, test = relations(Path(folder) / name, phishing(0))
                    results.put(f"wire {wire}, phishing, {name}", {"quick": quick, **measured(learner, train, test)})
            if is_there("movielens-1m"):
                relation = movielens(tp.Federation(write_movielens(Path(folder), 1)), "regression")
                train, test = relation.split(test=0.9 if quick else 0.15, seed=7)
                found = measured(tp.SplitNNRegressor(wire=wire, epochs=1 if quick else 3, batch_size=8192), train, test)
                results.put(f"wire {wire}, movielens, SplitNN", {"quick": quick, **found})


PARTS = {"movielens": run_movielens, "epochs": run_epochs, "wire": run_wire}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the ratings, fewer epochs")
    given = parser.parse_args()
    results = Results("deep_joins")
    for part in given.parts:
        PARTS[part](results, given.quick)


if __name__ == "__main__":
    main()
