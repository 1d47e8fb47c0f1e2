"""`describe`: statistics of the joined rows, as of the materialised join."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.prep.columns.statistics import merge_all_numbers
from tablepuppet.prep.explore import describe as describe_module
from tablepuppet.runs.figures import metric
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.relations import COLUMNS, World, federation, oracle, statistics, worlds, write_party

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_number(value: Any) -> float:
    """What a value counts as: days since 1970-01-01 for dates and times."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - EPOCH).total_seconds() / 86400
    if isinstance(value, date):
        return float((value - EPOCH.date()).days)
    return float(value)


def check_shape(told: dict[str, Any], values: Any) -> None:
    """Quartiles are NumPy's, skew and kurtosis pandas'; with values up to 1e9 to 1e-6."""
    names = ("q25", "median", "q75")
    expected = np.quantile(values, [0.25, 0.5, 0.75]).tolist() if len(values) else [None] * 3
    assert [told[name] for name in names] == expected
    for name, found in (("skew", pd.Series(values).skew()), ("kurtosis", pd.Series(values).kurt())):
        assert told[name] == (None if np.isnan(found) else pytest.approx(found, rel=1e-6, abs=1e-6)), name


@pytest.mark.parametrize("scale", [1e-100, 1e-60, 1.0, 1e60, 1e70, 1e100])
def test_shapes_of_very_small_and_large_numbers(tmp_path: Path, scale: float) -> None:
    """Skew and kurtosis do not depend on a unit: there is a number wherever pandas has one."""
    values = pd.Series([1.0, 2.0, 5.0, 3.0]) * scale
    fed = federation(tmp_path, {"p": {"t": pa.table({"x": values[:2]})}, "q": {"t": pa.table({"x": values[2:]})}})
    [told] = fed.sql("SELECT x FROM t").describe().to_arrow().to_pylist()
    for name, found in (("skew", values.skew()), ("kurtosis", values.kurt())):
        assert told[name] == (None if np.isnan(found) else pytest.approx(found, rel=1e-9)), name


def check_column(told: dict[str, Any], values: Sequence[Any], tolerance: float = 1e-9) -> None:
    """One row of `describe` against the column's values for all joined rows."""
    known = [value for value in values if value is not None]
    is_text = any(isinstance(value, str) for value in known) or told["type"] == "VARCHAR"
    assert told["count"] == len(known)
    assert told["missing"] == len(values) - len(known)
    if is_text:
        assert [told[name] for name in ("mean", "std", "min", "max")] == [None] * 4
        most = max(Counter(known).values(), default=0)
        assert told["top_share"] == (pytest.approx(most / len(known)) if known else None)
    else:
        numbers = np.array([as_number(value) if value is not None else 0.0 for value in values], float)
        expected = statistics(numbers, np.array([value is not None for value in values], bool))
        check_shape(told, numbers[[value is not None for value in values]])
        for name in ("mean", "std", "min", "max"):
            assert told[name] == (None if expected[name] is None else pytest.approx(expected[name], rel=tolerance)), (
                name
            )
        assert told["top_share"] is None
    assert told["distinct"] == len(set(known))


@settings(
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(worlds(most_tables=3))
def test_statistics_are_those_of_the_join(world: World) -> None:
    """Over random shards, joins and unions, every statistic equals that of the rows DuckDB joins."""
    names = [f"{alias}_{column}" for alias in world.aliases for column in COLUMNS]
    extra = [f"{alias}.{column} AS {alias}_{column}" for alias in world.aliases for column in COLUMNS]
    oracle().load(world.parties)
    joined = oracle().connection.sql(world.select_places(extra)).to_arrow_table()
    with world.urls() as urls:
        told = {row["column"]: row for row in world.relation(urls).describe().to_arrow().to_pylist()}
    assert list(told) == names
    for name in names:
        column = joined[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us"))
        check_column(told[name], column.to_pylist())


def described(folder: Path, parties: dict[str, dict[str, pa.Table]], sql: str, **options: Any) -> dict[str, Any]:
    relation = federation(folder, parties).sql(sql, **options)
    return {row["column"]: row for row in relation.describe().to_arrow().to_pylist()}


def test_large_offsets_keep_their_digits(tmp_path: Path) -> None:
    """The deviation of small noise on a billion is right to six digits, over shards and repeated rows."""
    random = np.random.default_rng(0)
    parties, values, weights = {}, [], []
    for number, (size, offset) in enumerate([(500, 0.0), (300, 0.002), (1, 0.0)]):
        x = 1e9 + offset + random.normal(0, 1e-3, size)
        k = random.integers(0, 4, size)
        parties[f"p{number}"] = {"t": pa.table({"k": k, "x": x})}
        values.append(x)
        weights.append(np.array([3, 0, 1, 40])[k])
    parties["p9"] = {"u": pa.table({"k": [0] * 3 + [2] + [3] * 40})}
    told = described(tmp_path, parties, "SELECT t.x FROM t JOIN u USING (k)")["x"]
    joined = np.repeat(np.concatenate(values), np.concatenate(weights)).astype(np.longdouble) - np.longdouble(1e9)
    assert told["count"] == len(joined)
    assert told["mean"] - 1e9 == pytest.approx(float(joined.mean()), abs=2e-7)
    assert told["std"] == pytest.approx(float(joined.std(ddof=1)), rel=1e-6)


def test_special_columns(tmp_path: Path) -> None:
    """Booleans, dates, timestamps, decimals, empty and constant columns, over two shards."""
    schema = pa.schema(
        [
            ("flag", pa.bool_()),
            ("day", pa.date32()),
            ("moment", pa.timestamp("us")),
            ("zoned", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(9, 2)),
            ("nothing", pa.float64()),
            ("silent", pa.string()),
            ("constant", pa.float64()),
            ("same", pa.string()),
        ]
    )
    noon = datetime(2001, 2, 3, 12)
    rows = [
        (True, date(1970, 1, 2), noon, noon, Decimal("1.25"), None, None, 0.1, "s"),
        (False, date(1969, 12, 31), None, None, Decimal("-7.00"), None, None, 0.1, "s"),
        (None, None, datetime(1969, 12, 31), noon, None, None, None, 0.1, "s"),
        (True, date(2024, 2, 29), noon, None, Decimal("1.25"), None, None, 0.1, "s"),
    ]
    tables = [pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in part], schema) for part in
              (rows[:3], rows[3:])]  # fmt: skip
    told = described(tmp_path, {"p0": {"t": tables[0]}, "p1": {"t": tables[1]}}, "SELECT * FROM t")
    for number, name in enumerate(schema.names):
        check_column(told[name], [row[number] for row in rows], 1e-12)
    assert told["flag"]["mean"] == pytest.approx(2 / 3)
    assert told["day"]["min"] == -1
    assert told["moment"]["max"] == 11356.5
    assert told["constant"]["std"] == 0.0
    assert told["same"]["top_share"] == 1.0


def test_dates_are_dates(tmp_path: Path) -> None:
    """Mean, minimum and maximum of dates and timestamps are shown as such, and are timestamps in Arrow beside the days;
    a number has none, and infinite or very late dates are no error.
    """
    rows = {
        "day": [date(2024, 1, 1), date(2024, 1, 4), None],
        "moment": [datetime(2024, 5, 1, 6), datetime(2024, 5, 1, 12), datetime(2024, 5, 1, 18)],
        "zoned": pa.array([datetime(2024, 5, 1, 6)] * 2 + [None], pa.timestamp("us", "UTC")),
        "x": [1.0, 2.0, 3.0],
    }
    fed = federation(tmp_path, {"p0": {"t": pa.table(rows)}})
    found = fed.sql("SELECT *, CASE WHEN x = 1 THEN DATE 'infinity' ELSE day END AS never, "
                    "CASE WHEN x = 1 THEN DATE '50000-01-01' ELSE day END AS late FROM t").describe()  # fmt: skip
    told = {row["column"]: row for row in found.to_arrow().to_pylist()}
    assert [told["day"][f"{name}_date"] for name in ("min", "mean", "max")] == [
        datetime(2024, 1, 1), datetime(2024, 1, 2, 12), datetime(2024, 1, 4),
    ]  # fmt: skip
    assert told["day"]["min"] == as_number(date(2024, 1, 1))
    for name, noon in (("moment", 12), ("zoned", 6)):
        assert told[name]["mean_date"] == datetime(2024, 5, 1, noon)
    assert [told["x"][f"{name}_date"] for name in ("min", "mean", "max")] == [None] * 3
    assert (told["never"]["mean_date"], told["never"]["max_date"], told["late"]["max_date"]) == (None, None, None)
    assert told["late"]["min_date"] == datetime(2024, 1, 4)
    shown = str(fed.sql("SELECT day, moment FROM t").describe())
    assert all(text in shown for text in ("2024-01-01", "2024-01-04", "2.121", "days", "2024-05-01"))
    assert "19,7" not in shown
    assert "mean date" not in shown


def test_one_row_and_none(tmp_path: Path) -> None:
    """One joined row has no deviation; no joined row has no statistics, and neither is an error."""
    parties = {"p0": {"t": pa.table({"k": [1, 2], "x": [0.5, 1.5], "c": ["a", "b"], "b": [True, False]})}}
    fed = federation(tmp_path, parties)
    for where, count in (("k = 1", 1), ("k = 7", 0)):
        told = fed.sql(f"SELECT x, c, b, k FROM t WHERE {where}").describe().to_arrow().to_pylist()
        assert [row["count"] for row in told] == [count] * 4
        assert [row["missing"] for row in told] == [0] * 4
        assert [row["std"] for row in told] == [None] * 4
        assert [row["distinct"] for row in told] == [count] * 4
        assert [row["mean"] for row in told] == ([0.5, None, 1.0, 1.0] if count else [None] * 4)
        assert told[1]["top_share"] == (1.0 if count else None)
    assert "0.5" in str(fed.sql("SELECT x FROM t WHERE k = 1").describe())


def test_what_is_not_finite_has_no_statistics(tmp_path: Path) -> None:
    """NaN or infinity in a column leaves no mean and no deviation, rather than a wrong one; the table says why."""
    parties = {"p0": {"t": pa.table({"x": [0.5, math.nan, 2.0], "y": [math.inf, 1.0, None], "z": [1.0, 2.0, 3.0]})}}
    told = described(tmp_path, parties, "SELECT x, y, z FROM t")
    assert [told[name]["mean"] for name in "xyz"] == [None, None, 2.0]
    assert [told[name]["std"] for name in "xyz"] == [None, None, 1.0]
    assert [told[name]["count"] for name in "xyz"] == [3, 2, 3]
    (tmp_path / "again").mkdir()
    fed = federation(tmp_path / "again", parties)
    assert "(NaN or infinite values, and so without mean and other numbers: x, y;" in str(
        fed.sql("SELECT x, y, z FROM t").describe()
    )
    assert "NaN" not in str(fed.sql("SELECT z FROM t").describe())


def test_distinct_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted exactly, in one place and over shards of several types: both zeros are one number, and NaN is one. If
    shards have too many to be compared, their number is not known.
    """
    first, second = [0.5, -0.0, 0.0, math.nan, 0.1 + 0.2], [0.3, 1e300, math.nan, 0.5, None]
    whole = {"p0": {"t": pa.table({"x": first + second})}}
    (tmp_path / "one").mkdir()
    assert described(tmp_path / "one", whole, "SELECT x FROM t")["x"]["distinct"] == 6
    shards = {"p0": {"t": pa.table({"x": first})}, "p1": {"t": pa.table({"x": pa.array(second)})}}
    fed = federation(tmp_path, shards)
    assert fed.sql("SELECT x FROM t").describe().to_arrow()["distinct"].to_pylist() == [6]
    small = {"p0": {"t": pa.table({"x": pa.array([0.5, 0.1], pa.float32())})}, "p1": {"t": pa.table({"x": [0.5, 0.1]})}}
    (tmp_path / "two").mkdir()
    assert described(tmp_path / "two", small, "SELECT x FROM t")["x"]["distinct"] == 3  # 0.1 is another number there
    monkeypatch.setattr(describe_module, "MOST_FLOATS", 3)
    assert fed.sql("SELECT x FROM t").describe().to_arrow()["distinct"].to_pylist() == [None]


def test_categorical_numbers_have_a_top_share(tmp_path: Path) -> None:
    """A column of whole numbers that is called categorical has the share of its most frequent value as well."""
    parties = {f"p{i}": {"t": pa.table({"n": [1, 1, 2 + i], "m": [1, 2, 3]})} for i in range(2)}
    told = described(tmp_path, parties, "SELECT n, m FROM t", categorical=["n"])
    assert told["n"]["top_share"] == pytest.approx(4 / 6)
    assert told["n"]["distinct"] == 3
    assert told["m"]["top_share"] is None


def test_extremes_are_told_of_public_columns_only(tmp_path: Path) -> None:
    """A column at level `aggregate`, at one of its shards or under an expression, has a mean but no extremes."""
    rows = {"t": pa.table({"k": [1, 2], "salary": [10.0, 30.0], "age": [20, 40]})}
    urls = {f"p{i}": write_party(tmp_path, f"p{i}", rows) for i in range(2)}
    sql = "SELECT salary, age, age + 1 AS older, salary * 2 + age AS mix, k FROM t"
    levels = {"T.Salary": "aggregate"}
    choices: list[dict[str, str | PartyEntry]] = [
        {"p0": PartyEntry(urls["p0"], levels), "p1": PartyEntry(urls["p1"], levels)},
        {"p0": urls["p0"], "p1": PartyEntry(urls["p1"], levels)},
    ]
    for entries in choices:
        told = {row["column"]: row for row in tp.Federation(entries).sql(sql).describe().to_arrow().to_pylist()}
        assert [told[name]["mean"] for name in ("salary", "age", "mix")] == [20.0, 30.0, 70.0]
        for name in ("salary", "mix"):
            assert (told[name]["min"], told[name]["max"]) == (None, None)
        for name, low in (("age", 20.0), ("older", 21.0), ("k", 1.0)):
            assert told[name]["min"] == low
    whole = tp.Federation({"p0": PartyEntry(urls["p0"], {"t": "aggregate"})}).sql(sql).describe().to_arrow()
    assert whole["min"].to_pylist() == whole["max"].to_pylist() == [None] * 5


def test_a_table_says_why_it_has_no_number(tmp_path: Path) -> None:
    """Extremes of a column that is not public are withheld, in tables and on the page of a profile; those of a public
    one are there, and what a column cannot have is not applicable.
    """
    relation = policed(open_party(write_file(tmp_path))).sql("SELECT credit, open, region FROM cards")
    found = relation.describe()
    numbers, categories = found.table_views()
    heads = list(numbers.columns)
    credit, public = (dict(zip(heads, row, strict=True)) for row in numbers.rows)
    assert (credit["min"], credit["max"]) == ("withheld", "withheld")
    assert (public["min"], public["max"]) == ("0", "88.5")
    [region] = (dict(zip(categories.columns, row, strict=True)) for row in categories.rows)
    assert region["top"] == "withheld"
    assert found.facts("credit")["max"] == "withheld"
    assert found.facts("region")["mean"] == "-"
    page = relation.profile()._repr_html_()
    assert page.count("<dt>max</dt><dd>withheld</dd>") == 1
    assert page.count("<dt>top</dt><dd>withheld</dd>") == 1
    assert "<dd>-</dd>" not in page


def test_what_rounds_to_zero_has_no_sign(tmp_path: Path) -> None:
    """In correlations, on the page of a profile, and in metrics."""
    row = np.arange(400)
    table = pa.table({"a": np.sin(row), "b": np.cos(row * 1.7)})
    relation = federation(tmp_path, {"p": {"t": table}}).sql("SELECT a, b FROM t")
    assert -0.05 < relation.correlation()["a", "b"] < 0.05
    assert "-0.0<" not in relation.profile()._repr_html_()
    assert metric("r2", -1e-7) == "0.0000"


def test_sums_of_shards_are_merged_column_by_column() -> None:
    """Sums of many columns are merged at once: each as if it were alone, whichever shards have values of it."""
    rng = np.random.default_rng(0)
    shards = np.abs(rng.normal(size=(3, 4, 10)))
    shards[:, :, 0] = [[5, 0, 0, 7], [4, 2, 0, 1], [3, 9, 0, 2]]  # rows with a value
    shards[1, 3, 1:4] = np.nan  # of values that are not finite there is no mean
    shards[0, 0, 6:8] = np.nan  # of a column that is not public there are no ends
    found = merge_all_numbers(list(shards), 4)
    assert [each.count for each in found] == [12.0, 11.0, 0.0, 10.0]
    for column, each in enumerate(found):
        weights, means, rests, second = shards[:, column, :4].T
        some = weights > 0
        centre = np.average((means + rests)[some], weights=weights[some]) if some.any() else math.nan
        squares = np.sum((second + weights * (means + rests - centre) ** 2)[some]) if some.any() else math.nan
        ends = [shards[some, column, 6].min(initial=np.inf), shards[some, column, 7].max(initial=-np.inf)]
        expected = [centre, squares, *(ends if some.any() else [math.nan] * 2)]
        np.testing.assert_allclose([each.mean, each.squares, each.minimum, each.maximum], expected, 1e-12)
        assert (each.not_finite, each.rows) == pytest.approx(tuple(shards[:, column, 4:6].sum(axis=0)))
    assert merge_all_numbers([], 2)[1].count == 0.0


def test_why_distinct_values_are_not_counted(tmp_path: Path) -> None:
    """Where some are in too few rows to be released, a policy withholds it; a skew of rounding errors is none."""
    fed = policed(open_party(write_file(tmp_path)))
    found = fed.sql("SELECT credit, fraud FROM cards").describe()
    assert found.facts("credit")["distinct"] == "withheld"
    assert found.facts("fraud")["distinct"] == "2"
    price = pa.table({"price": [(i * 37) % 100 / 10 for i in range(400) if i * 37 % 100 > 1]})
    symmetric = tp.Federation({"mine": {"orders": price}}).sql("SELECT price FROM orders").describe()
    assert symmetric.to_arrow()["skew"][0].as_py() != 0
    assert symmetric.facts("price")["skew"] == "0"


def test_uuids_are_categories(tmp_path: Path) -> None:
    """As for learners: `describe` has the most frequent one, and a profile draws them, as it does of text."""
    names = ["00000000-0000-0000-0000-00000000000a"] * 3 + ["00000000-0000-0000-0000-00000000000b"]
    fed = federation(tmp_path, {"p": {"t": pa.table({"u": names})}})
    relation = fed.sql("SELECT CAST(u AS UUID) AS u FROM t")
    [told] = relation.describe().to_arrow().to_pylist()
    assert (told["distinct"], told["top"], told["top_share"]) == (2, names[0], 0.75)
    assert relation.profile().categories["u"].counts == [3.0, 1.0]
