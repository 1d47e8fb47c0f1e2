"""The quick form of ``python -m benchmarks.differential``: the same cases of every kind in every run.

Another library answers the same question on the materialised join; `benchmarks/differential/tolerances.py` says how far
two right answers may be apart. A failure names the command that repeats the case.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import numpy as np
import pytest

import tablepuppet as tp
from benchmarks.differential.__main__ import KINDS, command, run_case
from benchmarks.differential.report import Report

SEED = int(os.environ.get("TABLEPUPPET_DIFFERENTIAL_SEED", "24"))
CASES = {
    "expressions": 2, "queries": 4, "statistics": 2, "steps": 4, "programs": 2, "learners": 2, "places": 2, "trees": 4,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings about difficult columns are wanted by nobody here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", list(KINDS))
def test_other_libraries_agree(kind: str) -> None:
    """Every answer of the first cases of a kind is that of another library on the materialised join."""
    found, compared = [], 0
    for case in range(CASES[kind]):
        report = run_case(kind, SEED, case)
        compared += sum(report.compared.values())
        found += [f"{each.what}: {each.detail}\n    {command(kind, SEED, case)}" for each in report.findings]
    assert not found, "\n" + "\n".join(found)
    assert compared > CASES[kind], "cases that compare nothing show nothing"


def test_one_seed_is_one_case() -> None:
    """A finding is repeated by its seed and number alone."""
    once, again = (run_case("queries", SEED, 3) for _ in range(2))
    assert (once.compared, once.findings) == (again.compared, again.findings)


def test_a_difference_is_a_finding() -> None:
    """Numbers beyond the tolerance, another shape, NaN for a number, and errors that are not ours."""
    report = Report()
    report.close("same", [1.0, np.nan, np.inf], [1.0 + 1e-12, np.nan, np.inf], 1e-9)
    assert not report.findings
    report.close("far", [1.0, 2.0], [1.0, 2.1], 1e-9, "column x")
    report.close("shape", [1.0], [1.0, 2.0], 1e-9)
    report.close("nothing", np.nan, 1.0, 1e-9)
    report.equal("equal", ["a"], ["b"])
    with report.asking("crash"):
        raise KeyError("x")
    for words in (True, "no way"):
        with report.asking("told", may_refuse=words):
            raise tp.LearnError("no way yet")
    for words in (False, "no way"):
        with report.asking("refused", may_refuse=words):
            raise tp.LearnError("no")
    names = [each.what for each in report.findings]
    assert names == ["far", "shape", "nothing", "equal", "crash: KeyError", *["refused: refused"] * 2]
    assert "column x: 2 instead of 2.1" in report.findings[0].detail
    assert report.refused == {"told": 2}
