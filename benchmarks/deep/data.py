"""The data sets of the FedOnce paper as federations of four parties in this process, with fixed splits.

Every party (p0 to p3) has a table of its own name, with a key ``id`` and a quarter of the columns; p0 has the label.
Rows are joined one to one by ``id``. Which rows are for the test follows from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import tablepuppet as tp
from benchmarks.data import DATA

PARTIES = 4
Numbers = NDArray[np.floating]


@dataclass(frozen=True)
class Columns:
    """The columns of each party, (rows, columns), and one label per row."""

    parts: Sequence[Numbers]
    label: NDArray[np.generic]

    def rows(self, places: NDArray[np.integer]) -> Columns:
        """Only some of the rows."""
        return Columns([part[places] for part in self.parts], self.label[places])

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class Halves:
    """Training rows and test rows."""

    train: Columns
    test: Columns


def relations(folder: Path, halves: Halves) -> tuple[tp.Relation, tp.Relation]:
    """(train, test) of one federation, each party with a Parquet file in ``folder``."""
    urls: dict[str, str] = {}
    for number in range(len(halves.train.parts)):
        place = folder / f"p{number}"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(_table(halves, number), place / f"p{number}.parquet")
        urls[f"p{number}"] = f"parquet:///{place}"
    federation, query = tp.Federation(urls), sql(halves.train)
    train, test = (federation.sql(f"{query} WHERE p0.is_test = {side}", label="label") for side in (0, 1))
    return train, test


def _table(halves: Halves, number: int) -> pa.Table:
    """The rows of one party: training rows, then test rows."""
    sides = (halves.train, halves.test)
    part = np.concatenate([side.parts[number] for side in sides])
    columns = {f"x{number}_{column}": pa.array(part[:, column]) for column in range(part.shape[1])}
    if not number:
        columns["label"] = pa.array(np.concatenate([side.label for side in sides]))
        columns["is_test"] = pa.array(np.repeat(np.arange(2, dtype=np.int8), [len(side) for side in sides]))
    return pa.table({"id": pa.array(np.arange(len(part))), **columns})


def sql(columns: Columns) -> str:
    """The query that joins all parties."""
    selected = [f"p{number}.x{number}_{c}" for number, part in enumerate(columns.parts) for c in range(part.shape[1])]
    joins = " ".join(f"JOIN p{number} ON p0.id = p{number}.id" for number in range(1, len(columns.parts)))
    return f"SELECT {', '.join(selected)}, p0.label FROM p0 {joins}"


def quarters(values: Numbers) -> list[Numbers]:
    """Columns divided equally, in their order."""
    return [np.ascontiguousarray(part) for part in np.array_split(values, PARTIES, axis=1)]


def split(columns: Columns, test: float, seed: int) -> Halves:
    """A share of the rows for the test, drawn from a seed."""
    order = np.random.default_rng(seed).permutation(len(columns))
    cut = round(test * len(columns))
    return Halves(columns.rows(order[cut:]), columns.rows(order[:cut]))


def phishing(seed: int) -> Halves:
    """11,055 sites, 68 columns of two values, two classes; a tenth for the test."""
    table = pq.read_table(DATA / "phishing" / "phishing.parquet")
    values = np.stack([table[f"f{number}"].to_numpy() for number in range(68)], axis=1)
    return split(Columns(quarters(values), table["label"].to_numpy().astype(np.int64)), 0.1, seed)


def twins(halves: Halves) -> float:
    """The share of test rows whose columns are those of a training row."""
    train, test = (np.concatenate(side.parts, axis=1) for side in (halves.train, halves.test))
    known = {row.tobytes() for row in np.ascontiguousarray(train)}
    return float(np.mean([row.tobytes() in known for row in np.ascontiguousarray(test)]))


def covtype(seed: int, rows: int | None = None) -> Halves:
    """581,012 cells, or so many of them, 54 columns; two classes: type 2 or another; a tenth for the test."""
    table = pq.read_table(DATA / "covtype" / "covtype.parquet")
    *names, label = table.column_names
    values = np.stack([table[name].to_numpy().astype(np.float32) for name in names], axis=1)
    whole = Columns(quarters(values), (table[label].to_numpy() == 2).astype(np.int64))
    if rows is not None:
        whole = whole.rows(np.random.default_rng([seed, rows]).permutation(len(whole))[:rows])
    return split(whole, 0.1, seed)


def ujiindoorloc(seed: int, label: str = "LONGITUDE") -> Halves:
    """21,048 fingerprints, 520 signals; the place, by ``label`` LONGITUDE or LATITUDE, scaled to 0..1; a tenth is test.

    A signal of 100 is none; it becomes -105, weaker than the weakest.
    """
    parts = [pq.read_table(DATA / "ujiindoorloc" / f"{name}.parquet") for name in ("train", "validation")]
    names = [name for name in parts[0].column_names if name.startswith("WAP")]
    values = np.concatenate(
        [np.stack([part[name].to_numpy().astype(np.float32) for name in names], axis=1) for part in parts]
    )
    values[values == 100] = -105
    place = np.concatenate([part[label].to_numpy().astype(np.float64) for part in parts])
    place = (place - place.min()) / (place.max() - place.min())
    return split(Columns(quarters(values), place), 0.1, seed)


def mnist(train: int | None = None, seed: int = 0) -> Halves:
    """The digits as four quarters of 14 x 14; the public test rows; all training rows, or so many of them."""
    found: Mapping[str, NDArray[np.generic]] = np.load(DATA / "mnist" / "mnist.npz")
    halves = []
    for name in ("train", "test"):
        images = found[f"x_{name}"].astype(np.float32) / 255
        parts = [images[:, top : top + 14, left : left + 14] for top in (0, 14) for left in (0, 14)]
        flat = [np.ascontiguousarray(part.reshape(len(part), -1)) for part in parts]
        halves.append(Columns(flat, found[f"y_{name}"].astype(np.int64)))
    first, second = halves
    if train is not None:
        first = first.rows(np.random.default_rng(seed).permutation(len(first))[:train])
    return Halves(first, second)
