"""Quantiles and histograms: those of the materialised join, and no cell with too few rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.prep.columns.ordered import DEPTHS, Bucket, values_of, words_of
from tablepuppet.prep.explore.cells import LISTED, NEXT_NONE, SAMPLED, Cells, ColumnWords
from tests.party.policed import CANARY, PIN, audit_lines, open_party, write_file
from tests.party.policed import federation as policed
from tests.prep.test_describe import as_number
from tests.relations import COLUMNS, World, federation, oracle, record_wire, worlds, write_party

SHARES = [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
FLOATS = st.one_of(st.floats(width=64), st.sampled_from([0.0, -0.0, 1.0, 1.0000000000000002, 5e-324, 1e300, np.inf]))


def joined_values(world: World) -> dict[str, list[Any]]:
    """Every selected column, for all joined rows."""
    extra = [f"{alias}.{column} AS {alias}_{column}" for alias in world.aliases for column in COLUMNS]
    oracle().load(world.parties)
    joined = oracle().connection.sql(world.select_places(extra)).to_arrow_table()
    found = {}
    for name in (f"{alias}_{column}" for alias in world.aliases for column in COLUMNS):
        column = joined[name]
        column = column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
        found[name] = column.to_pylist()
    return found


def numbers_of(values: list[Any]) -> np.ndarray[Any, Any]:
    return np.array([as_number(value) for value in values if value is not None], float)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(worlds(most_tables=3))
def test_quantiles_are_those_of_the_join(world: World) -> None:
    """Over random shards, joins and unions: NumPy's linear method, to the last bit; histograms are NumPy's too."""
    joined = joined_values(world)
    with world.urls() as urls:
        relation = world.relation(urls)
        found = relation.quantile(SHARES)
        rows = found.to_arrow().to_pylist()
        for name in dict.fromkeys(row["column"] for row in rows):
            values = numbers_of(joined[name])
            if not len(values):
                assert np.isnan(found[name]).all()
                continue
            assert found[name].tolist() == np.quantile(values, SHARES).tolist(), name
            counts, edges = np.histogram(values, 7)
            told = relation.histogram(name, 7)
            assert (told.counts.tolist(), told.edges.tolist()) == (counts.tolist(), edges.tolist())
            assert told.exact
        assert all(row["exact"] for row in rows)


@settings(deadline=None)
@given(st.lists(FLOATS, max_size=30))
def test_images_keep_the_order(values: list[float]) -> None:
    """Words compare as values do, NaN last, and give the values back."""
    array = np.array(values, float)
    words = words_of(array)
    assert np.array_equal(values_of(words), array + 0.0, equal_nan=True)
    assert np.array_equal(array[np.argsort(words, kind="stable")] + 0.0, np.sort(array) + 0.0, equal_nan=True)


@pytest.mark.parametrize("size", [3 * LISTED, 20 * LISTED])
def test_eight_trips_always_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Many different values within a rounding error of each other, and an outlier of 1e300, over two shards: the first
    histograms and seven refinements at most, for all columns and quantiles together.
    """
    rng = np.random.default_rng(0)
    near = 1.0 + np.arange(size) * 2.0**-52
    table = pa.table({"x": rng.permutation(np.append(near[:-1], 1e300)), "y": rng.normal(size=size), "k": [1] * size})
    fed = federation(tmp_path, {"p0": {"t": table.slice(0, size // 3)}, "p1": {"t": table.slice(size // 3)}})
    relation = fed.sql("SELECT x, y, k FROM t")
    len(relation)
    messages = record_wire(monkeypatch)
    found = relation.quantile(SHARES)
    trips = [each for each in messages if each.party == "p1" and each.last]
    assert 2 <= len(trips) <= DEPTHS
    for name in ("x", "y", "k"):
        assert found[name].tolist() == np.quantile(table[name].to_numpy(), SHARES).tolist()
    assert "≈" not in str(found)
    assert "<table" in found._repr_html_()


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    """Infinity has its place; with a NaN there is no quantile, as in NumPy; an empty column has none either."""
    rows = {"x": [1.0, np.inf, -np.inf, 2.0], "y": [1.0, np.nan, 3.0, 4.0], "z": pa.array([None] * 4, pa.float64())}
    relation = federation(tmp_path, {"p0": {"t": pa.table(rows)}}).sql("SELECT * FROM t")
    found = relation.quantile([0.0, 0.5, 1.0])
    with np.errstate(invalid="ignore"):
        assert np.array_equal(found["x"], np.quantile(np.array(rows["x"]), [0.0, 0.5, 1.0]), equal_nan=True)
    assert np.isnan(found["y"]).all()
    assert np.isnan(found["z"]).all()
    with pytest.raises(tp.LearnError, match="histogram: column 'y' has NaN or infinite values"):
        relation.histogram("y")
    assert len(relation.histogram("z").counts) == 0


@pytest.mark.parametrize("share", [-0.1, 1.5, np.nan, "half", None, True])
def test_a_quantile_is_from_0_to_1(tmp_path: Path, share: Any) -> None:
    """Anything else is an error that says so."""
    relation = federation(tmp_path, {"p0": {"t": pa.table({"x": [1.0], "c": ["a"]})}}).sql("SELECT * FROM t")
    with pytest.raises(tp.LearnError, match="a quantile is a number from 0 to 1"):
        relation.quantile([0.5, share])


def test_columns_that_are_none(tmp_path: Path) -> None:
    """A text, a misspelt name and bins that are none are errors that name them."""
    relation = federation(tmp_path, {"p0": {"t": pa.table({"price": [1.0], "c": ["a"]})}}).sql("SELECT * FROM t")
    with pytest.raises(tp.LearnError, match="quantile: column 'c' is VARCHAR, which is no number"):
        relation.quantile(0.5, columns=["c"])
    with pytest.raises(tp.LearnError, match=r"'pric' is no selected column; did you mean 'price'\?"):
        relation.histogram("pric")
    with pytest.raises(tp.LearnError, match="columns is a list of names"):
        relation.quantile(0.5, columns="price")
    with pytest.raises(tp.LearnError, match=r"columns is a list of names, such as columns=\['price'\]"):
        relation.outlier_by_sd(2.0)  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match="bins is a whole number from 1"):
        relation.histogram("price", 0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.5, 3.0, -7.0, 1e9, 1e-9, np.nan]) | FLOATS, st.integers(1, 9))),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_no_cell_has_too_few_rows(rows: list[tuple[float, int]], least: int, random: Any) -> None:
    """Of a column that is not public: whatever buckets are asked for, each cell has enough different rows, and the
    cells of a bucket have all the rows of the cell that it was cut from.
    """
    values, weights = (np.array(each, float) for each in (zip(*rows, strict=True) if rows else ([], [])))
    firsts = np.array([random.random() < 0.8 for _ in rows], bool)
    column = ColumnWords(words_of(values), weights, firsts, least, int(np.count_nonzero(firsts)))

    def check(cells: Cells, low: int, high: int) -> None:
        for start, end in zip(cells["lows"], cells["highs"], strict=True):
            assert low <= start <= end <= high
            inside = (column.words >= start) & (column.words <= end)
            assert np.count_nonzero(firsts & inside) >= least

    bucket, low, high = Bucket(), 0, 2**64 - 1
    cells = column.cells(bucket)
    check(cells, low, high)
    assert cells["weights"].sum() == (weights.sum() if np.count_nonzero(firsts) >= least else 0)
    while (nexts := np.flatnonzero(cells["nexts"] != NEXT_NONE)).size:
        place = int(random.choice(nexts.tolist()))
        bucket, whole = bucket.child(int(cells["nexts"][place])), cells["weights"][place]
        low, high = int(cells["lows"][place]), int(cells["highs"][place])
        cells = column.cells(bucket)
        check(cells, low, high)
        assert cells["weights"].sum() == whole
    for prefix in (0, 255, random.randrange(256)):
        check(column.cells(Bucket(prefix, 1)), 0, 2**64 - 1)


@pytest.mark.parametrize("rows", [0, 1, LISTED, SAMPLED, SAMPLED + 1, 20 * SAMPLED])
@pytest.mark.parametrize("distinct", [1, LISTED - 1, LISTED, LISTED + 1, 100 * SAMPLED])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_values_are_listed(rows: int, distinct: int, weighted: bool) -> None:
    """Of a public column: each value with its joined rows if there are few, however many rows have them; else the
    bytes that words begin with.
    """
    rng = np.random.default_rng(rows + distinct)
    values = np.arange(distinct)[rng.permutation(np.arange(rows) % distinct)] / 7.0 + 1.0
    words, weights = words_of(values), rng.integers(1, 9, rows).astype(float)
    column = ColumnWords(words, weights if weighted else None, np.ones(rows, bool), None, len(words))
    cells = column.cells(Bucket())
    listed = np.unique(words)
    lows = listed if len(listed) <= LISTED else np.unique(words >> np.uint64(56)) << np.uint64(56)
    assert cells["lows"].tolist() == lows.tolist()
    counted = weights if weighted else np.ones(rows)
    places = np.searchsorted(lows, words, side="right") - 1
    assert cells["weights"].tolist() == np.bincount(places, counted, len(lows)).tolist()
    assert (cells["nexts"] == NEXT_NONE).all() == (len(listed) <= LISTED)


def test_columns_that_are_not_public_are_estimated(tmp_path: Path) -> None:
    """At level aggregate quantiles lie near the true ones, are marked as estimates, and no value is among them."""
    fed = policed(open_party(write_file(tmp_path)))
    relation = fed.sql("SELECT credit, open, few FROM cards")
    found = relation.quantile([0.25, 0.5, 0.75])
    credit = np.round(np.sin(np.arange(60)) * 1000) + 0.25
    near = np.quantile(credit, [0.15, 0.35, 0.4, 0.6, 0.65, 0.85]).reshape(3, 2)
    assert ((near[:, 0] <= found["credit"]) & (found["credit"] <= near[:, 1])).all()
    assert not np.isin(found["credit"], credit).any()
    assert found["open"].tolist() == np.quantile(np.arange(60) * 1.5, [0.25, 0.5, 0.75]).tolist()
    assert np.isnan(found["few"]).all()
    exact = {row["column"]: row["exact"] for row in found.to_arrow().to_pylist()}
    assert (exact["credit"], exact["open"]) == (False, True)
    told = relation.histogram("credit", 8)
    assert not told.exact
    assert told.counts.sum() == 60
    assert (told.counts >= 5).all()
    assert str(PIN)[:6] not in str(found) + str(told) + str(relation.describe())
    assert CANARY not in str(audit_lines(tmp_path))


def test_estimated_bins_of_whole_numbers(tmp_path: Path) -> None:
    """At level aggregate they end at halves, and are as wide as they have different numbers: of ages that are equally
    frequent none looks more frequent, and none has a fraction. Other numbers have bins that meet.
    """
    rows = np.arange(6000)
    table = pa.table({"age": rows % 60 + 20, "half": (rows % 60 + 20) / 2})
    party = PartyEntry(write_party(tmp_path, "p0", {"t": table}), {"t.age": "aggregate", "t.half": "aggregate"})
    relation = tp.Federation({"p0": party}).sql("SELECT age, half FROM t")
    ages, halves = relation.histogram("age", 20), relation.histogram("half", 20)
    assert not ages.exact
    assert len(ages.counts) > 10
    assert (ages.edges % 1 == 0.5).all()
    np.testing.assert_array_equal(ages.counts[1:-1], 100 * np.diff(ages.edges)[1:-1])
    starts, ends = zip(*ages.ends(), strict=True)
    assert [int(start) for start in starts[1:]] == [int(end) + 1 for end in ends[:-1]]
    assert (halves.edges[1:-1] % 1 != 0.5).any()
    page = relation.profile()._repr_html_()
    low, high = re.findall(r'<text x="(?:0|300)" y="102"[^>]*>(?:≈ )?([^<]+)</text>', page)[:2]
    assert low.isdigit()
    assert high.isdigit()


def test_refinements_are_counted(tmp_path: Path) -> None:
    """Other rows of a column that is not public are another refinement; the same ones, and public columns, are none."""
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, limits="max_refinements = 2", top='state_dir = "state"')
    fed = policed(open_party(file))
    whole = fed.sql("SELECT credit, open FROM cards")
    part = fed.sql("SELECT credit, open FROM cards WHERE day < 5")
    for _ in range(2):
        whole.quantile(0.5)
        part.histogram("credit")
    again = policed(open_party(file)).sql("SELECT credit, open FROM cards WHERE day < 4")
    again.quantile(0.5, columns=["open"])
    with pytest.raises(tp.PrivacyError, match=r"'cards': caller 'analyst' has had 2 refined.*rule max_refinements"):
        again.quantile(0.5, columns=["credit"])
    assert audit_lines(tmp_path)[-1]["rule"] == "max_refinements"


def test_bins_are_those_of_public_columns(tmp_path: Path) -> None:
    """A caller that cuts bins as it likes gets none of a column that is not public."""
    party = open_party(write_file(tmp_path))
    fed = policed(party)
    relation = fed.sql("SELECT credit FROM cards")
    asked = {"columns": ["credit"], "lows": np.zeros(1), "highs": np.ones(1), "bins": 5}
    with pytest.raises(tp.PrivacyError, match=r"column 'credit': is not public.*policy rule level"):
        relation.client.ask_table("statistics.bins", "cards", asked)


def test_tables_that_demand_noise_are_refused(tmp_path: Path) -> None:
    """Before anything is computed, by the name of the statistic, the column and the rule."""
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, top='state_dir = "state"', more="[tables.cards.budget]\nrequire_dp = true")
    relation = policed(open_party(file)).sql("SELECT credit, region, town, open FROM cards")
    len(relation)
    before = len(audit_lines(tmp_path))
    steps: dict[str, Callable[[], Any]] = {
        "quantile": lambda: relation.quantile(0.5, columns=["credit"]),
        "histogram": lambda: relation.histogram("credit"),
        "correlation": lambda: relation.correlation(["credit", "open"]),
        "covariance": lambda: relation.covariance(["credit", "open"]),
        "crosstab": lambda: relation.crosstab("region", "town"),
        "group_means": lambda: relation.group_means("credit", "region"),
    }
    for step, ask in steps.items():
        with pytest.raises(tp.PrivacyError, match=rf"{step}: party 'bank', table 'cards', column .*rule require_dp"):
            ask()
    assert len(audit_lines(tmp_path)) == before
