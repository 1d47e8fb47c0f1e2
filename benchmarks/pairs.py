"""One benchmark on two checkouts, in turn: the median over pairs of the ratio of every time that it writes.

Run with ``python -m benchmarks.pairs FOLDER MODULE [ARGUMENT ...]``, such as ``python -m benchmarks.pairs ../before
benchmarks.mapping --quick``: FOLDER is a checkout of the code before. Each side runs the module of its own checkout; if
the other checkout has no such module, ours runs with its code. The side that begins alternates; ``--pairs`` is 5 by
default. Writes ``benchmarks/results/pairs-NAME.json``; above 1 the code of this checkout is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.data import DATA, ROOT

TIMES = ("seconds", "ms")


def run(checkout: Path, module: str, arguments: list[str]) -> dict[str, float]:
    """The times that a benchmark writes over the code of a checkout."""
    name = module.rpartition(".")[2]
    path = Path(*module.split("."))
    has = (checkout / path).is_dir() or (checkout / path).with_suffix(".py").exists()
    home = checkout if has else ROOT
    environment = dict(os.environ) | {
        "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{home}",
        "TABLEPUPPET_DATA": str(DATA),
    }
    subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=home, env=environment, stdout=subprocess.DEVNULL, check=True
    )
    written = json.loads((home / "benchmarks" / "results" / f"{name}.json").read_text())
    return dict(times(written))


def times(found: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a result whose name says that they are times, by where they stand."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from times(value, f"{place}{name}: ")
        elif isinstance(value, float) and any(word in name.replace("_", " ").split() for word in TIMES):
            yield f"{place}{name}", value


def compare(before: Path, module: str, arguments: list[str], pairs: int) -> dict[str, Any]:
    """Ratios of each time by pair, and their median."""
    ratios: dict[str, list[float]] = {}
    for number in range(pairs):
        order = (before, ROOT) if number % 2 == 0 else (ROOT, before)
        found = {checkout: run(checkout, module, arguments) for checkout in order}
        for name in found[ROOT].keys() & found[before].keys():
            ratios.setdefault(name, []).append(found[ROOT][name] / max(found[before][name], 1e-9))
        print(
            f"pair {number + 1} of {pairs}: median ratio {median(each[-1] for each in ratios.values()):.2f}", flush=True
        )
    return {name: {"median": median(each), "ratios": each} for name, each in sorted(ratios.items())}


def main() -> None:
    """Compare and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the code to compare with")
    parser.add_argument("module", help="such as benchmarks.mapping")
    parser.add_argument("--pairs", type=int, default=5)
    given, rest = parser.parse_known_args()
    result = compare(given.before.resolve(), given.module, rest, given.pairs)
    for name, each in result.items():
        print(f"{each['median']:6.2f}  {name}")
    target = ROOT / "benchmarks" / "results" / f"pairs-{given.module.rpartition('.')[2]}.json"
    target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
