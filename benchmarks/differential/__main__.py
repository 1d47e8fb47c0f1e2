"""``python -m benchmarks.differential --minutes 60 --seed 0``: random questions, to us and to other libraries.

Kinds of cases: expressions (DuckDB), queries (DuckDB), statistics (NumPy, pandas, SciPy), steps of pipelines (pandas,
scikit-learn), programs over the matrix (NumPy, SciPy, statsmodels, scikit-learn), learners (the optimum on the
materialised join, in one process and over services, at both precisions of the wire), places (a model that is loaded
beside a new shard; folds over services), trees (ours on the materialised join as one table). Each kind gets the same
time. Every finding has the command that repeats it.
Writes ``benchmarks/results/differential.json``; ends with exit code 1 if something differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import ROOT
from tests.relations import collect_garbage

from . import expressions, learners, places, programs, queries, statistics, steps, trees
from .report import Finding, Report, Run

KINDS: dict[str, Run] = {
    "expressions": expressions.run,
    "queries": queries.run,
    "statistics": statistics.run,
    "steps": steps.run,
    "programs": programs.run,
    "learners": learners.run,
    "places": places.run,
    "trees": trees.run,
}
EXAMPLES = 5  # findings of one name that are written with their detail


def run_case(kind: str, seed: int, case: int) -> Report:
    """One case: everything in it follows from kind, seed and number."""
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="tablepuppet-differential-"))
    try:
        rng = np.random.default_rng([seed, list(KINDS).index(kind), case])
        with report.asking(kind, "the case itself"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries, on columns that are hard on them
            KINDS[kind](rng, folder, report)
    finally:
        collect_garbage()
        shutil.rmtree(folder, ignore_errors=True)
    return report


def command(kind: str, seed: int, case: int) -> str:
    """What repeats a case."""
    return f"python -m benchmarks.differential --only {kind} --seed {seed} --case {case}"


class Totals:
    """Cases of one kind."""

    def __init__(self, kind: str, seed: int):
        self.kind, self.seed, self.cases, self.seconds = kind, seed, 0, 0.0
        self.compared: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.findings: dict[str, list[tuple[int, Finding]]] = {}

    def run(self) -> None:
        """The next case."""
        start = time.monotonic()
        found = run_case(self.kind, self.seed, self.cases)
        self.compared += found.compared
        self.refused += found.refused
        for each in found.findings:
            self.findings.setdefault(each.what, []).append((self.cases, each))
            if len(self.findings[each.what]) <= EXAMPLES:
                print(
                    f"{self.kind}: {each.what}: {each.detail}\n    {command(self.kind, self.seed, self.cases)}",
                    flush=True,
                )
        self.cases += 1
        self.seconds += time.monotonic() - start

    def to_json(self) -> dict[str, Any]:
        """For the result's file."""
        found = {
            what: {
                "times": len(listed),
                "cases": len({case for case, _ in listed}),
                "examples": [
                    {"detail": each.detail, "command": command(self.kind, self.seed, case)}
                    for case, each in listed[:EXAMPLES]
                ],
            }
            for what, listed in sorted(self.findings.items())
        }
        compared, refused = dict(sorted(self.compared.items())), dict(sorted(self.refused.items()))
        return {
            "cases": self.cases,
            "seconds": round(self.seconds),
            "compared": compared,
            "refused": refused,
            "findings": found,
        }


def differential(kinds: Sequence[str], seed: int, minutes: float) -> dict[str, Totals]:
    """Cases of the kind that had the least time so far, until time is over."""
    totals = {kind: Totals(kind, seed) for kind in kinds}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        min(totals.values(), key=lambda each: each.seconds).run()
    return totals


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.differential", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(KINDS), action="append", help="this kind, or these")
    parser.add_argument("--case", type=int, help="only this case")
    asked = parser.parse_args()
    kinds = asked.only or list(KINDS)
    logging.disable(logging.CRITICAL)
    if asked.case is not None:
        found = [(kind, each) for kind in kinds for each in run_case(kind, asked.seed, asked.case).findings]
        for kind, each in found:
            print(f"{kind}: {each.what}: {each.detail}")
        sys.exit(1 if found else 0)
    totals = differential(kinds, asked.seed, asked.minutes)
    result = {"seed": asked.seed, "minutes": asked.minutes, **{kind: each.to_json() for kind, each in totals.items()}}
    target = ROOT / "benchmarks" / "results" / "differential.json"
    target.write_text(json.dumps(result, indent=2) + "\n")
    for kind, total in totals.items():
        count = sum(len(listed) for listed in total.findings.values())
        print(f"{kind:12} {total.cases:>7,} cases {sum(total.compared.values()):>9,} compared {count:>6,} findings")
    sys.exit(1 if any(total.findings for total in totals.values()) else 0)


if __name__ == "__main__":
    main()
