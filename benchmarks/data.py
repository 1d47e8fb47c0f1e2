"""Where the benchmarks' real data lies, and what is said where it does not."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("TABLEPUPPET_DATA", ROOT.parent / "shared" / "data"))
NEEDS = {
    "movielens-1m": "ratings, users and movies_genres of MovieLens-1M",
    "mimic-iii-demo": "the tables of the MIMIC-III demo",
}


def is_there(name: str) -> bool:
    """Whether a data set is there; if not, one line says what is needed."""
    found = (DATA / name).is_dir()
    if not found:
        print(
            f"skipped: what needs {name}. Put {NEEDS[name]} as Parquet files into {DATA / name}, or name the folder "
            f"that holds {name} in TABLEPUPPET_DATA",
            flush=True,
        )
    return found


if __name__ == "__main__":
    for each in NEEDS:
        is_there(each)
