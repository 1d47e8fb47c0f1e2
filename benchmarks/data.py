"""Where the benchmarks' real data lies, and what is said where it does not."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("TABLEPUPPET_DATA", ROOT.parent / "shared" / "data"))
NEEDS = {
    "movielens-1m": "ratings, users and movies_genres of MovieLens-1M as Parquet files",
    "mimic-iii-demo": "the tables of the MIMIC-III demo as Parquet files",
    "phishing": "phishing.parquet (LIBSVM's phishing: f0 to f67, label)",
    "mnist": "mnist.npz (x_train, y_train, x_test, y_test)",
    "covtype": "covtype.parquet (54 columns, then Cover_Type)",
    "ujiindoorloc": "train.parquet and validation.parquet of UJIIndoorLoc",
}


def is_there(name: str) -> bool:
    """Whether a data set is there; if not, one line says what is needed."""
    found = (DATA / name).is_dir()
    if not found:
        print(
            f"skipped: what needs {name}. Put {NEEDS[name]} into {DATA / name}, or name the folder "
            f"that holds {name} in TABLEPUPPET_DATA",
            flush=True,
        )
    return found


if __name__ == "__main__":
    for each in NEEDS:
        is_there(each)
