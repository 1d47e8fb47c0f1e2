"""One property over every statistic: nothing that is published, or follows from it, concerns fewer rows than
``min_group``. Asked of parties as a coordinator asks them, one shard's categories pooled at another included.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from benchmarks.fuzz.worlds import LEAST, World, pooling
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.blind import blind
from tablepuppet.party.policy import ColumnRule, Level, Policy, TableRule, Use
from tablepuppet.prep.columns.ordered import words_of
from tablepuppet.prep.columns.values import numbers
from tablepuppet.prep.encode.specs import Cut, Fill, Hashed, Lookup, Outside, Product
from tablepuppet.prep.explore.cells import NEXT_NONE

NONE = np.zeros((0, 16), np.uint8)
FAMILIES = {"z": "number", "t": "text", "d": "date", "y": "text"}
NUMBERS = ["x", "z", "d", "s"]
AGGREGATE = Policy(
    others=TableRule(
        {name: ColumnRule(Use.FEATURE, Level.AGGREGATE) for name in "xztdys"} | {"id": ColumnRule(Use.KEY)},
        None,
        min_group=LEAST,
    )
)


def world(folder: Path, cells: dict[str, list[Any]], policy: Policy) -> World:
    """A party with a table, whose rows are each joined once."""
    found = World(folder, cells, policy, {name: name for name in "xztdys"})
    assert found.open().error is None
    use = {"view": "v", "chosen": None, "counts": np.ones(found.rows, np.int64)}
    assert found.ask("rows.use", use).error is None
    return found


def ask(party: World, op: str, **given: Any) -> dict[str, Any]:
    """The reply to a request."""
    seen = party.ask(op, {"view": "v", **given})
    assert seen.error is None, seen.error
    return dict(seen.reply)


def drawn(rng: np.random.Generator) -> dict[str, list[Any]]:
    """A table of few categories, some of them rare, and many rows without a value."""
    rows = int(rng.integers(LEAST, 60))
    values: dict[str, list[Any]] = {"z": [0, 1, 2], "t": ["a", "b", "c"], "d": [0, 9, 99], "y": ["u", "v"]}
    found: dict[str, list[Any]] = {"id": list(range(rows))}
    for name in "xztdys":
        some = values.get(name, [0.5, 1.0, 2.0, 1e6])[: int(rng.integers(1, 5))]
        shares = rng.dirichlet([0.5] * (len(some) + 1))
        picked = rng.choice(len(some) + 1, rows, p=shares)
        found[name] = [None if code == len(some) else some[code] for code in picked.tolist()]
    return found


def is_group(rows: Any) -> bool:
    """Whether counts of rows may be published."""
    counts = np.asarray(rows)
    return bool(((counts == 0) | (counts >= LEAST)).all())


def totals(party: World, name: str) -> tuple[dict[bytes, float], float]:
    """What a column's own statistics tell: the rows of each category, and those without one."""
    given = {"column": name, "family": FAMILIES[name], "blinding": "b", "most": None}
    found = ask(party, "statistics.categories", **given)
    assert is_group(found["weights"])
    return dict(zip(map(bytes, found["digests"]), found["weights"].tolist(), strict=True)), found["missing"]


def lines(reply: dict[str, Any], name: str, known: dict[bytes, float]) -> NDArray[np.float64]:
    """The rows of each kept category, and of all that are pooled."""
    kept, rare = ([known[bytes(each)] for each in reply[key]] for key in (name, f"{name}_rare"))
    return np.array([*kept, sum(rare)])


def check_crosstab(party: World, reply: dict[str, Any], known: list[dict[bytes, float]]) -> None:
    """No cell is small, nor the rows of a line that are in no cell; unless all rows are in one line."""
    cells = reply["weights"]
    assert is_group(cells)
    if not cells.any():
        return  # published or not: no row has both values
    margins = [lines(reply, name, found) for name, found in zip(("first", "second"), known, strict=True)]
    for axis, rest in ((0, margins[0] - cells.sum(axis=1)), (1, margins[1] - cells.sum(axis=0))):
        assert is_group(rest[margins[axis] < party.rows])


@pytest.mark.parametrize("seed", range(25))
def test_every_statistic(tmp_path: Path, seed: int) -> None:
    """All pairs of columns of two shards: cells, complements, rows without a value, and what a second request for the
    other shard's pools adds.
    """
    rng = np.random.default_rng(seed)
    policy = pooling(rng) if seed % 2 else AGGREGATE
    shards = [world(tmp_path / str(n), drawn(rng), policy) for n in range(2)]
    known = [{name: totals(party, name) for name in FAMILIES} for party in shards]
    for pair in combinations(FAMILIES, 2):
        given = {"columns": list(pair), "families": [FAMILIES[name] for name in pair], "blinding": "b", "most": 100}
        replies = [ask(party, "statistics.crosstab", **given, first_pool=NONE, second_pool=NONE) for party in shards]
        for n, party in enumerate(shards):
            own = [known[n][name][0] for name in pair]
            other = replies[1 - n]
            pools = {"first_pool": other["first_rare"], "second_pool": other["second_rare"]}
            check_crosstab(party, replies[n], own)
            check_crosstab(party, ask(party, "statistics.crosstab", **given, **pools), own)
    for n, party in enumerate(shards):
        check_products(party)
        for number in NUMBERS:
            for by in set(FAMILIES) - {number}:
                check_groups(party, number, by, *known[n][by])


def differing(a: NDArray[np.float64], b: NDArray[np.float64]) -> int:
    """How many rows are off the line through two of them that most others are on."""
    fewest = len(a)
    for one, other in combinations(range(len(a)), 2):
        if a[one] != a[other] and b[one] != b[other]:
            line = a[one] + (a[other] - a[one]) / (b[other] - b[one]) * (b - b[one])
            fewest = min(fewest, int(np.count_nonzero(~np.isclose(line, a, rtol=1e-9, atol=1e-9))))
    return fewest


def check_products(party: World) -> None:
    """Pairs of numbers: all sums of a column are over sets of rows of which no two differ in few; nor do two columns
    that both have a pair with it, up to scale and shift.
    """
    count = ask(party, "statistics.products", columns=NUMBERS)["moments"][0]
    has = np.array([party.table.snapshot.outputs[name].is_valid().to_numpy() for name in NUMBERS])
    has[(has.sum(axis=1) > 0) & (has.sum(axis=1) < LEAST)] = False
    cells = [numbers(party.table.snapshot.outputs[name])[0] for name in NUMBERS]
    for first in range(len(NUMBERS)):
        shown = np.flatnonzero(~np.isnan(count[first]))
        assert first in shown
        for one, other in combinations(shown, 2):
            apart, both = has[first] & (has[one] ^ has[other]), has[first] & has[one] & has[other]
            assert is_group(apart.sum())
            if not apart.any() and both.any():
                assert is_group(differing(cells[one][both], cells[other][both]))
        np.testing.assert_array_equal(count[first, shown], (has[first] & has[shown]).sum(axis=1))


def test_sums_over_nested_rows(tmp_path: Path) -> None:
    """Two columns that are missing beside a third, in the same rows but for two: the third's two sums would tell the
    sum over these. One of the pairs is released, and both if they differ in none, or in enough.
    """
    for differ, is_told in ((2, False), (0, True), (7, True)):
        cells: dict[str, list[Any]] = {name: [None] * 60 for name in "xztdys"} | {"id": list(range(60))}
        cells |= {"x": [float(n) for n in range(60)], "z": [1] * 40 + [None] * 20}
        cells["s"] = [0.5] * (40 - differ) + [None] * (20 + differ)
        party = world(tmp_path / str(differ), cells, AGGREGATE)
        count = ask(party, "statistics.products", columns=["x", "z", "s"])["moments"][0]
        assert count[0, :2].tolist() == [60, 40]
        assert (not np.isnan(count[0, 2])) == (not np.isnan(count[1, 2])) == is_told


@pytest.mark.parametrize("seed", range(20))
def test_columns_that_differ_in_few_rows(tmp_path: Path, seed: int) -> None:
    """A number, the same one scaled and shifted, cut at its ends or changed in some rows, and a flag of few rows: sums
    of products with a third column never differ by few rows, and those that differ by none or by enough are released.
    """
    rng, rows = np.random.default_rng(seed), 60
    x = np.round(rng.normal(size=rows), 2)
    changed = int(rng.integers(0, 9))
    z, places = 3.0 * x + 7.0, rng.choice(rows, changed, replace=False)
    z[places] += rng.choice([1.0, -2.0, 1e5], changed)
    s = np.clip(x, *np.sort(x)[[3, -3]]) if seed % 2 else (np.arange(rows) < seed // 2).astype(float)
    cells: dict[str, list[Any]] = {name: [None] * rows for name in "tdy"} | {"id": list(range(rows))}
    cells |= {"x": x.tolist(), "z": [round(each * 100) for each in z.tolist()], "s": s.tolist()}
    cells["d"] = [int(n) for n in rng.integers(0, 1000, rows)]
    party = world(tmp_path / "one", cells, AGGREGATE)
    check_products(party)
    count = ask(party, "statistics.products", columns=["d", "x", "z"])["moments"][0]
    assert np.isnan(count[0, 2]) == (0 < changed < LEAST)


def test_few_values_beside_those_of_another_column(tmp_path: Path) -> None:
    """A column with too few values counts as one without any, also where columns are compared with each other: which
    pairs are left out is the same whatever these values are, and without them.
    """
    found = []
    told: list[list[float | None]] = [[None] * 4, [1.0, 1.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]
    for place, few in enumerate(told):
        cells: dict[str, list[Any]] = {name: [None] * 20 for name in "ty"} | {"id": list(range(20))}
        cells |= {"x": few + [None] * 16, "d": [None if each is None else int(each) for each in few] + [None] * 16}
        cells |= {"z": list(range(20)), "s": [0.5 * n for n in range(20)]}
        party = world(tmp_path / str(place), cells, AGGREGATE)
        found.append(ask(party, "statistics.products", columns=NUMBERS)["moments"])
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def gram_of(folder: Path, cells: dict[str, list[Any]], matrix: bool = False) -> NDArray[np.float64]:
    """The Gram matrix of two numbers, a product and a cut that steps make of them, and the categories of two texts."""
    party = world(folder, cells, Policy(others=replace(AGGREGATE.others or TableRule(), matrix=matrix)))
    listed = {}
    for place, (name, words) in enumerate({"t": ["a", "b"], "y": ["u", "v"]}.items()):
        column = pa.chunked_array([pa.array(words)])
        listed[f"digests{place}"] = blind([column], ["text"], party.table.category_key("e", name)).digests
    given = {"columns": ["x", "s"], "categories": [("t", "text"), ("y", "text")], "learned": True}
    steps = [Fill("s", 0.0), Outside("x", 0.2, 0.6, "middle"), Product(("x", "middle"), "cut")]
    shape = {"means": np.full(4, 0.3), "scales": np.full(4, 2.0)}
    ask(party, "encode.build", encoding="e", steps=steps, **given, **shape, **listed)
    return np.asarray(ask(party, "matrix.gram", encoding="e", joined_rows=1, centres=np.arange(8.0))["gram"])


@pytest.mark.parametrize("seed", range(8))
def test_a_gram_matrix_tells_nothing_of_two_columns(tmp_path: Path, seed: int) -> None:
    """Whichever rows have values of two columns together, the matrix is the same: it has squares and sums of each
    column only. So no difference or other combination of its numbers is of fewer rows than statistics of one column.
    """
    rng, rows = np.random.default_rng(seed), 60
    number = [n / 64 for n in range(rows)]
    cells: dict[str, list[Any]] = {name: [None] * rows for name in "zd"} | {"id": list(range(rows)), "x": number}
    cells |= {"t": ["a"] * 40 + ["b"] * 20, "s": [0.5] * 30 + [1.5] * 10 + [None] * 20}
    cells["y"] = ["u"] * 39 + ["v"] * 21  # equal to t but for one row
    found = gram_of(tmp_path / "one", cells)
    mixed = {name: [cells[name][place] for place in rng.permutation(rows)] for name in "tsy"}
    np.testing.assert_allclose(gram_of(tmp_path / "other", cells | mixed), found, rtol=1e-12)
    exact, wide = (gram_of(tmp_path / f"exact{n}", each, True) for n, each in enumerate((cells, cells | mixed)))
    assert np.diag(exact) == pytest.approx(np.diag(found))
    assert not np.allclose(exact, wide)


def check_groups(party: World, number: str, by: str, known: dict[bytes, float], missing: float) -> None:
    """Groups, the rows of a group without a number, and the rows with a number in no group."""
    [sums] = ask(party, "statistics.numbers", columns=[number])["sums"]
    given = {"columns": [number, by], "family": FAMILIES[by], "blinding": "b", "most": 100}
    found = ask(party, "statistics.groups", **given, pool=NONE, pool_missing=False)
    counts = found["sums"][:, 0]
    rows = np.array([*(known[bytes(each)] for each in found["digests"]), 0.0])
    rows[-1] = sum(known[bytes(each)] for each in found["rare"]) + found["missing_is_rare"] * missing
    assert is_group(counts)
    assert is_group((rows - counts)[rows < party.rows])
    assert is_group(sums[0] - counts.sum())


def tree(party: World, name: str) -> list[tuple[Any, ...]]:
    """All cells of a column, however often they are refined."""
    found, asked = [], [(0, 0)]
    while asked:
        prefix, depth = asked.pop()
        places, prefixes = np.zeros(1, np.int32), np.array([prefix], np.uint64)
        reply = ask(party, "statistics.buckets", columns=[name], places=places, prefixes=prefixes, depth=depth)
        for low, high, following, weight in zip(
            *(reply[k].tolist() for k in ("lows", "highs", "nexts", "weights")), strict=True
        ):
            found.append((low, high, weight))
            if following != NEXT_NONE and depth < 7:
                asked.append((prefix * 256 + following, depth + 1))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_ends_of_cells(tmp_path: Path, seed: int) -> None:
    """They are halves of halves of all words, each with enough rows, and do not show where fewer rows are: the lowest,
    the highest, or any others beside those with enough company.
    """
    rng = np.random.default_rng(seed)
    core, few = rng.uniform(0.0, 2.0, int(rng.integers(2 * LEAST, 80))), int(rng.integers(1, LEAST))
    found = []
    for place, far in enumerate((3.0, 1e9, 1.7e308)):
        values = np.append(core, far * (1.0 - rng.random(few) / 9.0))
        rows = len(values)
        cells = {"x": values.tolist()} | {name: [None] * rows for name in "ztdys"} | {"id": list(range(rows))}
        party = world(tmp_path / str(place), cells, AGGREGATE)
        found.append(tree(party, "x"))
        words = words_of(values)
        for low, high, weight in found[-1]:
            size = high - low + 1
            assert size & (size - 1) == 0
            assert low % size == 0
            assert weight >= LEAST
            assert np.count_nonzero((words >= np.uint64(low)) & (words <= np.uint64(high))) >= LEAST
    assert found[0] == found[1] == found[2]


def test_small_cells_that_cannot_be_pooled(tmp_path: Path) -> None:
    """One category and rows without a value, of both columns: where a cell would have few rows, nothing is counted."""
    cells: dict[str, list[Any]] = {name: [None] * 60 for name in "xztdys"} | {"id": list(range(60))}
    for both, is_counted in ((3, False), (0, True), (20, True)):
        cells["t"] = ["a"] * 30 + [None] * 30
        cells["y"] = [None] * (30 - both) + ["u"] * 30 + [None] * both
        party = world(tmp_path / str(both), cells, AGGREGATE)
        given = {"columns": ["t", "y"], "families": ["text", "text"], "blinding": "b", "most": 100}
        reply = ask(party, "statistics.crosstab", **given, first_pool=NONE, second_pool=NONE)
        assert len(reply["first"]) == len(reply["second"]) == is_counted
        assert reply["weights"].sum() == both * is_counted


@pytest.mark.parametrize(("learned", "private"), [(False, False), (True, False), (False, True)])
def test_sums_over_rows_to_predict(tmp_path: Path, learned: bool, private: bool) -> None:
    """A Gram matrix, and sums of what is kept, do not tell a number that one row has; the row's own prediction does. So
    it is with rows that are encoded for noise, if none is asked for.
    """
    found = {}
    for value in (7.0, 70.0, None):
        cells: dict[str, list[Any]] = {name: [None] * 20 for name in "ztdys"}
        cells |= {"id": list(range(20)), "x": [value, *[None] * 19]}
        party = world(tmp_path / str(value), cells, AGGREGATE)
        one = {"means": np.zeros(1), "scales": np.ones(1), "learned": learned, "private": private}
        assert (
            party.ask("encode.build", {"view": "v", "encoding": "e", "columns": ["x"], "categories": [], **one}).error
            is None
        )
        assert (
            party.ask("matrix.centre", {"view": "v", "encoding": "e", "into": "f", "centres": np.ones(1)}).error is None
        )
        grams = [ask(party, "matrix.gram", encoding=name, joined_rows=20)["gram"].tolist() for name in "ef"]
        image_ = ask(party, "model.apply", encoding="e", spec=Linear(1), theta=np.ones(1))
        found[value] = grams, sorted(np.asarray(image_["outputs"]).ravel().tolist())
    assert found[7.0][0] == found[70.0][0] == found[None][0]
    assert (found[7.0][1] == found[70.0][1]) == learned


def test_sums_of_trees(tmp_path: Path) -> None:
    """Rows to predict have bits and no bins: sums by bin would tell a number that one row has. A row that is listed as
    often as a group has rows is no group.
    """
    cells: dict[str, list[Any]] = {name: [None] * 40 for name in "tdys"} | {"id": list(range(40))}
    party = world(tmp_path / "one", cells | {"x": [7.0] + [None] * 39, "z": [0, 1] * 20}, AGGREGATE)
    read = {"encoding": "e", "columns": ["x", "z"], "categories": []}
    ask(party, "trees.read", **read, learned=False)
    refused = party.ask("trees.bin", {"view": "v", "encoding": "e", "max_bins": 4})
    assert refused.error is not None
    assert "read to predict" in refused.error[1]
    ask(party, "trees.read", **read, learned=True)
    ask(party, "trees.bin", encoding="e", max_bins=4)
    for places, is_asked in ((np.arange(LEAST), True), (np.repeat(0, LEAST), False), (np.arange(LEAST)[::-1], False)):
        node = {"built": np.zeros(1, np.int32), "sizes": np.array([LEAST], np.int32), "rows": np.ones((LEAST, 1))}
        given = {"view": "v", "encoding": "e", **node, "cells": 10, "places": places.astype(np.int32)}
        seen = party.ask("trees.sums", given)
        assert (seen.error is None) == is_asked
        if is_asked:
            assert is_group(seen.reply["sums"][:, 2])
            assert seen.reply["sums"][:5, 2].tolist() == [0, 0, 0, 0, LEAST]


def test_as_many_copies_as_rows(tmp_path: Path) -> None:
    """A relation that lists one row as often as the table has rows is of this row, not of all."""
    cells: dict[str, list[Any]] = {name: [None] * 12 for name in "tdys"} | {"id": list(range(12)), "z": [1] * 12}
    party = world(tmp_path / "one", cells | {"x": [float(n) for n in range(12)]}, Policy())
    copies = {"view": "w", "chosen": np.full(12, 3, np.int32), "counts": np.ones(12, np.int64)}
    assert party.ask("rows.use", copies).error is None
    assert party.table.column("x", "w").to_pylist() == [3.0] * 12


def sums(party: World, wanted: str, steps: list[Any], digests: NDArray[np.uint8] = NONE) -> list[list[float]]:
    """Sums and counts of a column after steps over the numbers x, s, z and the categories t."""
    given = {"blinding": "b", "columns": ["x", "s", "z"], "categories": [("t", "text")], "wanted": [wanted]}
    reply = ask(party, "prep.sums", **given, steps=steps, digests0=digests)
    return [np.nan_to_num(reply["sums"]).ravel().tolist(), reply["weights"].tolist()]


def test_products_lookups_and_hashes(tmp_path: Path) -> None:
    """Flags that enough rows have, but only one row has both of them: their product with an income, a lookup or hash of
    a category of few rows, bins, and categories that a caller lists, tell nothing of that row.
    """
    flags = [Outside("s", 0.0, 1.0, "f"), Outside("z", 0.0, 1.0, "g"), Product(("f", "g"), "fg")]
    chains: dict[str, list[Any]] = {
        "income": [*flags, Product(("fg", "x"), "income")],
        "fg": flags,
        "x": [Cut("x", [0.0, 500.0, 1000.0]), Lookup("x", [0.0, 1.0], None, None)],
        "t": [Hashed("t", 1000)],
    }
    told = []
    for income, word in ((900.0, "rare"), (700.0, "seldom")):
        cells: dict[str, list[Any]] = {"id": list(range(40)), "d": [None] * 40, "y": [None] * 40}
        cells |= {"s": [2.0] * 10 + [0.5] * 30, "z": [0] * 9 + [5] * 10 + [0] * 21, "t": [word] + ["often"] * 39}
        cells["x"] = [*range(9), income, *range(10, 40)]
        party = world(tmp_path / word, cells, AGGREGATE)
        column = pa.chunked_array([pa.array(["often", "rare"])])
        listed = blind([column], ["text"], party.table.category_key("b", "t")).digests
        found = {name: sums(party, name, steps) for name, steps in chains.items()}
        told.append(
            (found, sums(party, "t", [], listed), sums(party, "t", [Lookup("t", [1.0, 5.0], 0.0, 0.0)], listed))
        )
        assert found["fg"][0][:2] == found["income"][0][:2] == [40.0, 0.0]
        one = {"means": np.zeros(0), "scales": np.zeros(0), "learned": False, "digests0": listed}
        ask(party, "encode.build", encoding="b", columns=[], categories=[("t", "text")], **one)
        counts = np.diag(ask(party, "matrix.gram", encoding="b", joined_rows=1)["gram"])
        assert sorted(np.abs(counts).tolist()) == [0.0, 39.0]
    assert told[0] == told[1]


@pytest.mark.parametrize(("differ", "is_told"), [(2, False), (0, False), (7, True)])
def test_products_of_fewer_flags(tmp_path: Path, differ: int, is_told: bool) -> None:
    """A number by one flag and by two, where few rows have the first flag only, have the same sums, in one request or
    in several, in whatever order they are multiplied: the difference would be the number of these rows.
    """
    cells: dict[str, list[Any]] = {name: [None] * 60 for name in "tdy"} | {"id": list(range(60))}
    cells |= {"x": [n / 7 for n in range(60)], "s": [2.0] * 30 + [0.5] * 30}
    cells["z"] = [5] * (30 - differ) + [0] * differ + [5] * 15 + [0] * 15
    party = world(tmp_path / "one", cells, AGGREGATE)
    flags = [Outside("s", 0.0, 1.0, "f"), Outside("z", 0.0, 1.0, "g")]
    one = sums(party, "fx", [*flags, Product(("f", "x"), "fx")])
    orders: list[list[Any]] = [
        [Product(("f", "g", "x"), "two")],
        [Product(("f", "g"), "fg"), Product(("fg", "x"), "two")],
        [Product(("g", "x"), "gx"), Product(("gx", "f"), "two")],
        [Product(("x", "f"), "xf"), Product(("g", "xf"), "two")],
    ]
    for steps in orders:
        assert (sums(party, "two", [*flags, *steps]) != one) == is_told
