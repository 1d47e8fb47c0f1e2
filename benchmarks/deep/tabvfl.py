"""TabVFL beside central TabNet (CT), local TabNets (LT, and LT-tuned) and TabVFL-LE: how good their latent vectors are.

Run with ``python -m benchmarks.deep.tabvfl`` (``--quick``: one data set, 2,000 rows and few epochs; ``--only bank``;
``--tune bank``: other settings, measured on rows of validation; ``--designs lt lt-tuned``: only these; ``--seeds 0 1``:
each design is trained with each seed, on the same rows).
10,000 rows of bank, forest (covertype, seven classes) and air, drawn with the shares of classes kept, their columns cut
over five guests with an id as the key, and a host with the labels. All designs have the same encoded columns, rows,
epochs, batches, rates and seed. The figure is the mean weighted F1 of six learners over latent vectors: of all rows, as
in Fig. 4 of TabVFL, and of rows that no step has seen. Then failures: forest with two guests, of which each is away in
half of the epochs, with `cache` against `zeros`. Writes ``benchmarks/results/deep_tabvfl.json`` after each step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

import tablepuppet as tp
from benchmarks.baselines.latent_quality import held_out, mixed
from benchmarks.baselines.tabnets import DESIGNS, Design, DesignBudget, Trained, train
from benchmarks.data import DATA, ROOT
from tablepuppet.baselines import joined_tables
from tablepuppet.learn.split.tabnet import TabNetShape
from tablepuppet.party.request import Reply, Request
from tablepuppet.prep.encode.encode import apply_encoding
from tablepuppet.wire.engine import Engine, Transport
from tablepuppet.wire.protocol import LostError

RESULT = ROOT / "benchmarks" / "results" / "deep_tabvfl.json"
LATENT, GUESTS, ROWS, AWAY = 16, 5, 10_000, 0.5
BUDGET = DesignBudget(pretrain_epochs=15, epochs=25, batch_size=256, lr=0.02, patience=10)
TRIED: list[dict[str, Any]] = [{}, {"lr": 0.01}, {"batch_size": 512, "lr": 0.01}]
RATED = (
    "Inflight wifi service,Departure/Arrival time convenient,Ease of Online booking,Gate location,Food and drink,"
    "Online boarding,Seat comfort,Inflight entertainment,On-board service,Leg room service,Baggage handling,"
    "Checkin service,Inflight service,Cleanliness"
).split(",")  # marks from 0 to 5, which the paper takes as categories
SOURCES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    # file, label, columns to leave out, numbers that are categories
    "bank": ("bank-marketing/bank_full", "y", (), ()),
    "forest": ("covtype/covtype", "Cover_Type", (), ()),
    "air": ("airline-satisfaction/train", "satisfaction", ("column00", "id"), tuple(RATED)),
}
PAPER = {  # weighted F1 at latent 16, 50,000 rows and 300 + 300 epochs (Table III)
    "bank": {"ct": 0.895, "lt": 0.859, "tabvfl-le": 0.888, "tabvfl": 0.888},
    "forest": {"ct": 0.772, "lt": 0.636, "tabvfl-le": 0.76, "tabvfl": 0.772},
    "air": {"ct": 0.952, "lt": 0.85, "tabvfl-le": 0.943, "tabvfl": 0.952},
}
Floats = NDArray[np.float32]
Sides = dict[str, tp.Relation]  # train, validation, test


class Data:
    """One data set as parties: a host with the label, and guests with equal numbers of columns."""

    def __init__(self, name: str, folder: Path, rows: int, guests: int, seed: int = 0):
        source, self.label, dropped, categories = SOURCES[name]
        path = DATA / f"{source}.parquet"
        connection = duckdb.connect()
        read = connection.execute(f"SELECT {_quoted(self.label)} FROM '{path}'").fetchnumpy()
        labels = read[self.label].astype(str)
        chosen, _ = train_test_split(np.arange(len(labels)), train_size=rows, stratify=labels, random_state=seed)
        numbered = f"SELECT row_number() OVER () - 1 AS row_, * FROM '{path}'"
        asked = f"SELECT * FROM ({numbered}) SEMI JOIN (SELECT unnest($1) AS wanted) ON row_ = wanted ORDER BY row_"
        table: pa.Table = connection.sql(asked, params=[np.sort(chosen).tolist()]).to_arrow_table()
        features = [c for c in table.column_names if c not in ("row_", self.label, *dropped)]
        self.columns = [list(part) for part in np.array_split(np.array(features, object), guests)]
        self.categories = [c for c in features if c in categories]
        self.urls = {"host": _written(folder, "host", table.select(["row_", self.label]))}
        for number, part in enumerate(self.columns, 1):
            self.urls[f"guest{number}"] = _written(folder, f"guest{number}", table.select(["row_", *part]))

    def relation(self, fed: tp.Federation) -> tp.Relation:
        """All rows, joined by their number."""
        selected = [f"g{n}.{_quoted(c)}" for n, part in enumerate(self.columns, 1) for c in part]
        joins = " ".join(f"JOIN guest{n} g{n} USING (row_)" for n in range(1, len(self.columns) + 1))
        sql = f"SELECT {', '.join(selected)}, h.{_quoted(self.label)} FROM host h {joins}"
        return fed.sql(sql, label=self.label, categorical=self.categories)


def _quoted(name: str) -> str:
    return '"' + name + '"'


def _written(folder: Path, name: str, table: Any) -> str:
    import pyarrow.parquet as pq

    (folder / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name / f"{name}.parquet")
    return f"parquet://{folder / name}"


def cut(relation: tp.Relation, seed: int) -> Sides:
    """70 % to learn from, 15 % to stop by, 15 % that nobody sees."""
    rest, test = relation.split(0.15, seed)
    learned, validation = rest.split(0.15 / 0.85, seed)
    return {"train": learned, "validation": validation, "test": test}


class Latent:
    """Latent vectors of all sides, and what six learners make of them."""

    def __init__(self, sides: Sides, vectors: Callable[[str], NDArray[Any]], labels: dict[str, NDArray[Any]]):
        self.vectors = np.concatenate([vectors(side) for side in sides])
        self.labels = np.concatenate([labels[side] for side in sides])
        self.side = np.concatenate([np.full(len(labels[side]), side) for side in sides])

    def figures(self, seed: int) -> dict[str, Any]:
        """As the paper measures, and on unseen rows."""
        unseen = held_out(self.vectors, self.labels, self.side == "train", self.side == "test", seed)
        return {"f1": mixed(self.vectors, self.labels, seed), "held_out_f1": unseen}


def labels_of(sides: Sides) -> dict[str, NDArray[Any]]:
    """Numbers of classes by side."""
    found = {side: np.asarray(relation.label()).astype(str) for side, relation in sides.items()}
    classes = np.unique(np.concatenate(list(found.values())))
    return {side: np.searchsorted(classes, values).astype(np.int64) for side, values in found.items()}


def fit(sides: Sides, budget: DesignBudget, stops_early: bool = True, **settings: Any) -> Any:
    """TabVFL by the learner, with the budget of the others."""
    learner = tp.TabVFLClassifier(
        latent=LATENT, pretrain_epochs=budget.pretrain_epochs, epochs=budget.epochs, batch_size=budget.batch_size,
        lr=budget.lr, patience=budget.patience, hide=budget.hide, sparsity=budget.sparsity, seed=budget.seed,
        **settings,
    )  # fmt: skip
    return learner.fit(sides["train"], sides["validation"] if stops_early else None)


Vectors = Callable[[str], NDArray[Any]]  # latent vectors of a side


def designs(
    sides: Sides, labels: dict[str, NDArray[Any]], budget: DesignBudget, wanted: Sequence[Design] = DESIGNS
) -> Iterator[tuple[str, Vectors, dict[str, Any]]]:
    """All designs with the same columns, rows and budget; (its name, latent vectors by side, facts of its training)."""
    if "tabvfl" in wanted:
        since = _now()
        model = fit(sides, budget)
        took = _took(since)
        sent = [*model.pretraining_, *model.history_]
        yield "tabvfl", lambda side: model.transform(sides[side]), {
            **took, "pretraining": len(model.pretraining_), "epochs": len(model.history_),
            "bytes": sum(entry["bytes_up"] + entry["bytes_down"] for entry in sent),
        }  # fmt: skip
    parts: dict[str, list[Floats]] = {}
    encoding = sides["train"].fit_encoding()
    for side, relation in sides.items():
        apply_encoding(relation.client, encoding)
        found = joined_tables(relation.client, encoding).values()
        parts[side] = [table.matrix().astype(np.float32) for table in found]
    rows_of = [np.concatenate(pair) for pair in zip(parts["train"], parts["validation"], strict=True)]
    known = np.concatenate([labels["train"], labels["validation"]])
    validation = np.arange(len(known)) >= len(labels["train"])
    for design in (each for each in wanted if each != "tabvfl"):
        since = _now()
        trained = train(design, rows_of, known, validation, TabNetShape(LATENT, LATENT), budget)
        took = _took(since)
        pooled = {s: [np.concatenate(p, axis=1)] if design == "ct" else p for s, p in parts.items()}

        def latent(side: str, trained: Trained = trained, parts: dict[str, list[Floats]] = pooled) -> NDArray[Any]:
            return trained.latent(parts[side])

        yield design, latent, {
            **took, "pretraining": len(trained.pretraining), "epochs": len(trained.finetuning)
        }  # fmt: skip


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _took(since: tuple[float, float]) -> dict[str, float]:
    """Seconds of the clock and of the processor."""
    clock, processor = (now - then for now, then in zip(_now(), since, strict=True))
    return {"seconds": round(clock, 1), "processor_seconds": round(processor, 1)}


def compare(
    name: str, folder: Path, rows: int, budget: DesignBudget, wanted: Sequence[Design] = DESIGNS
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each design reaches on one data set."""
    data = Data(name, folder, rows, GUESTS)
    sides = cut(data.relation(tp.Federation(data.urls)), 0)
    labels = labels_of(sides)
    for design, vectors, facts in designs(sides, labels, budget, wanted):
        yield design, {**Latent(sides, vectors, labels).figures(budget.seed), **facts}


def tune(name: str, folder: Path, rows: int) -> dict[str, Any]:
    """TabVFL and LT-tuned at other settings, learned from rows of training and measured on rows of validation.

    Test rows are not looked at. Every setting is the same for both designs, and within the budget of epochs.
    """
    data = Data(name, folder, rows, GUESTS)
    whole = cut(data.relation(tp.Federation(data.urls)), 0)
    sides = {side: whole[side] for side in ("train", "validation")}
    labels, found = labels_of(sides), {}
    for changed in TRIED:
        for design, vectors, _ in designs(sides, labels, replace(BUDGET, **changed), ("tabvfl", "lt-tuned")):
            latent = Latent(sides, vectors, labels)
            figures = held_out(latent.vectors, latent.labels, latent.side == "train", latent.side == "validation")
            found[f"{changed}, {design}"] = figures["mean"]
            print(name, changed, design, figures["mean"], flush=True)
    return found


class Absent(Transport):
    """A party that is away at times."""

    def __init__(self, inner: Transport, name: str):
        self.inner, self.name, self.away = inner, name, False
        self.capabilities = inner.capabilities

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """One request, one reply; none while it is away."""
        if self.away:
            raise LostError(f"party {self.name!r} does not answer")
        return self.inner.call(request, patience)


def failures(folder: Path, rows: int, budget: DesignBudget, seeds: int) -> dict[str, Any]:
    """Forest with two guests, each away in an epoch with a probability of one half, but not in the first.

    As in the paper, nothing stops early here: the last parameters count.
    """
    data = Data("forest", folder, rows, 2)
    found: dict[str, Any] = {"p": AWAY, "seeds": seeds, "budget": asdict(budget)}
    modes: dict[str, Literal["cache", "zeros"]] = {"none": "cache", "cache": "cache", "zeros": "zeros"}
    for mode, stand_in in modes.items():
        scores, unseen = [], []
        for seed in range(seeds):
            fed = tp.Federation(data.urls, on_party_lost=stand_in, timeout=0.01)
            guests = {name: Absent(fed.engine.transports[name], name) for name in ("guest1", "guest2")}
            fed.engine = Engine({**fed.engine.transports, **guests})
            sides = cut(data.relation(fed), 0)
            labels, rng = labels_of(sides), np.random.default_rng(seed)

            def change(event: tp.Event, guests: Any = guests, rng: Any = rng, mode: str = mode) -> None:
                if event.name in ("pretrain", "fit"):
                    for guest in guests.values():
                        guest.away = mode != "none" and rng.random() < AWAY

            model = fit(sides, replace(budget, seed=seed), stops_early=False, callbacks=[change])
            for guest in guests.values():
                guest.away = False

            def vectors(side: str, model: Any = model, sides: Sides = sides) -> NDArray[Any]:
                return np.asarray(model.transform(sides[side]))

            latent = Latent(sides, vectors, labels)
            figures = latent.figures(seed)
            scores.append(figures["f1"]["mean"])
            unseen.append(figures["held_out_f1"]["mean"])
            print("failures", mode, seed, scores[-1], unseen[-1], flush=True)
        found[mode] = {"f1": scores, "mean": float(np.mean(scores)), "held_out_mean": float(np.mean(unseen))}
    return found


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="bank only, 2,000 rows, four epochs")
    parser.add_argument("--only", choices=[*SOURCES, "failures"], help="one part")
    parser.add_argument("--tune", choices=[*SOURCES], help="other settings on one data set, by rows of validation")
    parser.add_argument("--designs", nargs="+", choices=DESIGNS, default=DESIGNS, help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of training")
    given = parser.parse_args()
    rows, budget = (2_000, replace(BUDGET, pretrain_epochs=4, epochs=4)) if given.quick else (ROWS, BUDGET)
    if given.tune:
        with tempfile.TemporaryDirectory() as place:
            _write({**_read(), f"tuning, {given.tune}": tune(given.tune, Path(place), rows)})
        return
    names = [given.only] if given.only else ["bank"] if given.quick else [*SOURCES, "failures"]
    result = {} if given.quick else _read()
    result |= {"rows": rows, "latent": LATENT, "guests": GUESTS, "budget": asdict(budget), "paper": PAPER}
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            if name == "failures":
                fewer = replace(budget, pretrain_epochs=5, epochs=15)
                result[name] = failures(Path(place), rows, fewer, 3)
            else:
                for seed in given.seeds:
                    entry, seeded = name if not seed else f"{name}, seed {seed}", replace(budget, seed=seed)
                    for design, figures in compare(name, Path(place), rows, seeded, given.designs):
                        result.setdefault(entry, {})[design] = figures
                        print(entry, design, json.dumps(figures), flush=True)
                        if not given.quick:
                            _write(result)
        if not given.quick:
            _write(result)


def _read() -> dict[str, Any]:
    return dict(json.loads(RESULT.read_text())) if RESULT.exists() else {}


def _write(result: dict[str, Any]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
