"""Noisy statistics against an attack: what is stated holds for counts, means, histograms, quantiles and categories,
whatever a feature's expression makes of NULL, and half the noise is found out.

A hostile analyst announces that one row is joined often, so that it counts most. Its cells are at a bound in one world
and NULL in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from benchmarks.fuzz.worlds import CALLER, SESSION, World, difference
from tablepuppet.party.policy import ColumnRule, Policy, TableRule
from tablepuppet.prep.explore.noisy_distribution import COARSE, FINE, NoisyDistribution
from tablepuppet.privacy.accountant import gaussian_epsilon
from tablepuppet.privacy.noise import gaussian_sigma
from tests.privacy.audit import least_epsilon, least_gaussian_epsilon
from tests.relations import federation

DELTA, ROWS, RUNS, MULTIPLIER, TIMES = 1e-5, 6, 300, 1.0, 7
Audit = Callable[[World, str], NDArray[Any]]
LISTED = Policy(others=TableRule({"t": ColumnRule(categories=("a", "b"))}))


def begun(folder: Path, x: float | None, policy: Policy | None = None) -> World:
    """A session in which the first row is joined more often than it may count."""
    absent = x is None
    cells: dict[str, list[Any]] = {"id": list(range(ROWS)), "x": [x, *[0.5] * (ROWS - 1)]}
    cells |= {"z": [None if absent else 1, *[1] * (ROWS - 1)], "t": [None if absent else "a", *["b"] * (ROWS - 1)]}
    cells |= {"d": [None if absent else 0, *[0] * (ROWS - 1)], "y": ["a"] * ROWS, "s": [0.5] * ROWS}
    world = World(folder, cells, policy or Policy())
    assert world.open().error is None
    ask(world, "rows.use", chosen=None, counts=np.array([2 * TIMES, *[1] * (ROWS - 1)]))
    return world


def ask(world: World, op: str, **arguments: Any) -> Any:
    return world.party.run(CALLER, SESSION, op, "t", {"view": "v", **arguments})


def noisy(world: World, op: str, name: str, **arguments: Any) -> NDArray[Any]:
    """What is released, again and again: (runs, numbers)."""
    asked = {"multiplier": MULTIPLIER, "times": TIMES, **arguments}
    return np.stack([np.ravel(ask(world, op, **asked)[name]) for _ in range(RUNS)])


def counts(world: World, feature: str) -> NDArray[Any]:
    """How many rows have a value."""
    return noisy(world, "private.counts", "counts", columns=[feature])


def moments(world: World, feature: str) -> NDArray[Any]:
    """Count, mean and mean square within bounds that the row is at."""
    return noisy(world, "private.moments", "sums", columns=[feature], lows=np.full(1, -1.0), highs=np.full(1, 1.0))


def bins(world: World, feature: str, size: int = 4) -> NDArray[Any]:
    """A histogram."""
    edges = {"lows": np.full(1, -1.0), "highs": np.full(1, 1.0)}
    return noisy(world, "private.bins", "counts", columns=[feature], bins=size, **edges)


def audited(folder: Path, feature: str, seen: Audit, policy: Policy | None = None) -> float:
    """What an attack finds."""
    here, there = (seen(begun(folder / str(x), x, policy), feature) for x in (1.0, None))
    return least_gaussian_epsilon(here, there, DELTA)


@pytest.mark.parametrize(
    ("feature", "seen"),
    [("x", counts), ("x", moments), ("x", bins), ("coalesce", moments), ("coalesce", bins), ("case", moments),
     ("case", counts), ("missing", bins)],
)  # fmt: skip
def test_releases_keep_what_is_stated(tmp_path: Path, feature: str, seen: Audit) -> None:
    """A row adds no more than ``times`` times its part, and nothing if its cells are NULL."""
    assert audited(tmp_path, feature, seen) <= gaussian_epsilon(MULTIPLIER, DELTA)


@pytest.mark.parametrize(("feature", "seen"), [("x", counts), ("x", moments), ("x", bins), ("coalesce", bins)])
def test_half_the_noise_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str, seen: Audit
) -> None:
    """The same attack goes beyond what is stated as soon as noise is half of it."""
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 0.5 * gaussian_sigma(*asked))
    assert audited(tmp_path, feature, seen) > gaussian_epsilon(MULTIPLIER, DELTA)


def test_without_null_records_the_audit_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were COALESCE(x, -1) taken as it is, the row would move from one bin to another."""
    nobody = np.zeros(ROWS, bool)
    monkeypatch.setattr("tablepuppet.party.local_table.LocalTable.null_rows", lambda *_: nobody)
    monkeypatch.setattr("tests.privacy.test_audit_statistics.RUNS", 1800)  # the root of 2 is less than half the noise
    assert audited(tmp_path, "coalesce", bins) > gaussian_epsilon(MULTIPLIER, DELTA)


def listed(world: World, _: str) -> NDArray[Any]:
    """Counts of the categories that a policy lists."""
    asked = {"column": "t", "family": "text", "blinding": "b", "counted": True}
    return noisy(world, "private.categories", "weights", **asked)


def test_listed_categories_keep_what_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row adds to one of them; half the noise is found out."""
    monkeypatch.setattr("tests.privacy.test_audit_statistics.RUNS", 600)
    assert audited(tmp_path / "whole", "t", listed, LISTED) <= gaussian_epsilon(MULTIPLIER, DELTA)
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 0.5 * gaussian_sigma(*asked))
    assert audited(tmp_path / "half", "t", listed, LISTED) > gaussian_epsilon(MULTIPLIER, DELTA)


@pytest.mark.parametrize("counted", [True, False])
def test_listed_categories_tell_neighbours_apart_by_noise_only(tmp_path: Path, counted: bool) -> None:
    """Whatever the row's category is, one that is listed or not: before noise counts differ by ``times`` at most."""
    asked = {"view": "v", "column": "t", "family": "text", "blinding": "b", "multiplier": 1.0, "times": TIMES}
    seen = [
        begun(tmp_path / str(x), x, LISTED).ask("private.categories", {**asked, "counted": counted})
        for x in (1.0, None)
    ]
    assert seen[0].error is None
    assert len(seen[0].charges) == counted
    assert difference("private.categories", seen, labels=False) is None


def quantiles(world: World, feature: str) -> NDArray[Any]:
    """The two histograms that all quantiles of a column are computed from, side by side."""
    return np.hstack([bins(world, feature, COARSE), bins(world, feature, FINE)])


@pytest.mark.parametrize("feature", ["x", "coalesce"])
def test_quantiles_keep_what_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Both histograms together cost two releases; a quantile that is computed from them tells no more."""
    stated = gaussian_epsilon(MULTIPLIER, DELTA, 2)
    here, there = (quantiles(begun(tmp_path / str(x), x), feature) for x in (1.0, None))
    assert least_gaussian_epsilon(here, there, DELTA) <= stated
    assert least_epsilon(_medians(here), _medians(there), DELTA) <= stated
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 0.5 * gaussian_sigma(*asked))
    here, there = (quantiles(begun(tmp_path / f"half{x}", x), feature) for x in (1.0, None))
    assert least_gaussian_epsilon(here, there, DELTA) > stated


def _medians(runs: NDArray[Any]) -> NDArray[Any]:
    found = (NoisyDistribution(-1.0, 1.0, each[:COARSE], each[COARSE:], 0.01) for each in runs)
    return np.asarray(np.nan_to_num(np.array([each.quantile(0.5) for each in found]), nan=-2.0))


def told(folder: Path, x: float | None) -> NDArray[Any]:
    """Histograms that an analyst asks for, with epsilon 4: the first row of a table is joined three times."""
    visits = pa.table({"k": [0, 0, 0, 1, 2]})
    cards = pa.table({"k": [0, 1, 2], "x": pa.array([x, 0.1, 0.2], pa.float64())})
    folder.mkdir()
    relation = federation(folder, {"p": {"visits": visits}, "q": {"cards": cards}}).sql(
        "SELECT COALESCE(c.x, -1) AS x FROM visits v JOIN cards c USING (k)"
    )
    privacy = tp.Privacy(feature_epsilon=4.0)
    return np.stack([relation.histogram("x", 3, privacy=privacy, bounds=(-1, 1)).counts for _ in range(RUNS)])


def test_what_an_analyst_is_told_keeps_what_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `tp.Privacy` to the answer: an attack finds less than feature_epsilon, and more once noise is halved."""
    assert least_gaussian_epsilon(told(tmp_path / "a", 1.0), told(tmp_path / "b", None), DELTA) <= 4.0
    monkeypatch.setattr("tablepuppet.party.local_table.gaussian_sigma", lambda *asked: 0.5 * gaussian_sigma(*asked))
    assert least_gaussian_epsilon(told(tmp_path / "c", 1.0), told(tmp_path / "d", None), DELTA) > 4.0
