"""Wide tables and many tables: thousands of categories, thousands of columns, and the eight tables of TPC-H.

Run with ``python -m benchmarks.wide`` (``--only tpch`` for a part). Ratios are measured side by side in one process,
ours and the other in turn; the best of several runs counts, in seconds and in processor seconds. Both sides' results
are compared before they are timed. Writes ``benchmarks/results/wide.json``.

- categories: a linear fit with a text column of 4,100 categories, against scikit-learn's sparse one-hot and Ridge.
- columns: a table of 3,000 columns: opening the relation, a linear fit and `describe`, against pandas and scikit-learn.
- tpch: `describe` and `correlation` of 600,000 rows of lineitem joined with the seven other tables, which are of four
  parties, against pandas on the materialised join. The tables are drawn at random, in the shape of scale 0.1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.preprocessing import OneHotEncoder

import tablepuppet as tp
from benchmarks.data import ROOT
from benchmarks.turns import best

CATEGORIES, ROWS, COLUMNS = 4_100, 50_000, 3_000
L2 = 1e-4
Ratio = dict[str, Any]
Floats = NDArray[np.float64]


def federation(folder: Path, tables: dict[str, pa.Table]) -> tp.Federation:
    """A party for each table."""
    urls = {}
    for name, table in tables.items():
        (folder / name).mkdir()
        pyarrow.parquet.write_table(table, folder / name / f"{name}.parquet")
        urls[f"party_{name}"] = f"parquet://{folder / name}"
    return tp.Federation(urls)


# Many categories.


def categories(folder: Path, repeats: int) -> Ratio:
    """A text column of 4,100 categories, some rare, and two numbers: predictions equal scikit-learn's to 1e-4."""
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(CATEGORIES), (CATEGORIES * rng.random(ROWS - CATEGORIES) ** 2).astype(np.int64)])
    effects, numbers = rng.normal(size=CATEGORIES), rng.normal(size=(ROWS, 2))
    y = numbers @ [1.0, -2.0] + effects[codes] + 0.1 * rng.normal(size=ROWS)
    texts = pa.array(np.array([f"place {code}" for code in range(CATEGORIES)])[codes])
    table = pa.table({"place": texts, "a": numbers[:, 0], "b": numbers[:, 1], "y": y})
    learner = tp.LinearRegression  # the first use loads its modules
    relation = federation(folder, {"visits": table}).sql(
        "SELECT place, a, b, y FROM visits", label="y", max_categories=CATEGORIES
    )
    frame, found = table.to_pandas(), dict[str, Floats]()
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)

    def ours() -> None:
        found["ours"] = np.asarray(learner(l2=L2).fit(relation).predict(relation))

    def pooled() -> None:
        from scipy.sparse import csr_array, hstack

        x = hstack([csr_array(numbers), OneHotEncoder().fit_transform(frame[["place"]])]).tocsr()
        found["pooled"] = Ridge(alpha=L2 * ROWS, solver="sparse_cg", tol=1e-8).fit(x, y).predict(x)

    len(relation)
    line = best(ours, pooled, repeats)
    np.testing.assert_allclose(found["ours"], found["pooled"], atol=1e-3)
    return {"joined_rows": ROWS, "categories": CATEGORIES} | line


# Many columns.


def columns(folder: Path, repeats: int) -> dict[str, Ratio]:
    """2,000 rows of 3,000 columns of numbers."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2_000, COLUMNS))
    names = [f"x{number}" for number in range(COLUMNS)]
    table = pa.table({name: values[:, place] for place, name in enumerate(names)} | {"y": values[:, :9].sum(axis=1)})
    fed = federation(folder, {"wide": table})
    path, sql, found = folder / "wide" / "wide.parquet", f"SELECT {', '.join(names)}, y FROM wide", dict[str, Any]()

    def opened() -> None:
        found["relation"] = fed.sql(sql, label="y")
        len(found["relation"])

    def read() -> None:
        with duckdb.connect() as connection:
            found["frame"] = connection.execute(f"SELECT {', '.join(names)}, y FROM '{path}'").df()

    lines = {"open": best(opened, read, 1)}  # what was parsed once is kept
    print("open", lines["open"], flush=True)
    relation, frame = found["relation"], found["frame"]
    x, y = frame[names].to_numpy(), frame["y"].to_numpy()

    learner = tp.LinearRegression  # the first use loads its modules

    def fitted() -> None:
        found["ours"] = np.asarray(learner(l2=L2).fit(relation).predict(relation))

    def pooled() -> None:
        scaled = (x - x.mean(axis=0)) / x.std(axis=0)
        found["pooled"] = Ridge(alpha=L2 * len(x)).fit(scaled, y).predict(scaled)

    lines["fit"] = best(fitted, pooled, repeats)
    np.testing.assert_allclose(found["ours"], found["pooled"], atol=1e-3)
    print("fit", lines["fit"], flush=True)
    lines["describe"] = best(relation.describe, lambda: pandas_describe(frame, [*names, "y"], []), repeats)
    compare_describe(relation.describe(), frame, names)
    return lines


# The tables of TPC-H.

SELECT = {
    "lineitem": "l_linenumber, l_quantity, l_extendedprice, l_discount, l_tax, l_shipdate, l_commitdate, "
    "l_receiptdate, l_returnflag, l_linestatus, l_shipinstruct, l_shipmode",
    "orders": "o_totalprice, o_orderdate, o_orderstatus, o_orderpriority",
    "customer": "c_acctbal, c_mktsegment",
    "part": "p_size, p_retailprice, p_mfgr, p_brand, p_type, p_container",
    "partsupp": "ps_availqty, ps_supplycost",
    "supplier": "s_acctbal",
    "nation": "n_name",
    "region": "r_name",
}
FROM = (
    "lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey "
    "JOIN part ON l_partkey = p_partkey JOIN partsupp ON l_partkey = ps_partkey AND l_suppkey = ps_suppkey "
    "JOIN supplier ON l_suppkey = s_suppkey JOIN nation ON c_nationkey = n_nationkey "
    "JOIN region ON n_regionkey = r_regionkey"
)
JOIN = f"SELECT {', '.join(SELECT.values())} FROM {FROM}"
PARTIES = {
    "shop": ("lineitem", "orders"), "crm": ("customer",), "goods": ("part", "partsupp", "supplier"),
    "maps": ("nation", "region"),
}  # fmt: skip
MONEY, SOME = "round({} * random(), 2)::DECIMAL(15, 2)", "list_extract({}, 1 + floor({} * random())::INTEGER)"


def some(prefix: str, count: int) -> str:
    """SQL of one of so many texts at random."""
    return SOME.format([f"{prefix} {number}" for number in range(count)], count)


def write_tpch(folder: Path, lines: int) -> dict[str, str]:
    """Tables in the shape of TPC-H with so many lines, in a DuckDB file for each party; at scale 0.1, 600,000."""
    orders, customers, parts, suppliers = lines // 4, lines // 40, lines // 30, lines // 600
    day = "DATE '1992-01-01' + floor({} * random())::INTEGER"
    tables = {
        "region": "SELECT range AS r_regionkey, 'region ' || range AS r_name FROM range(5)",
        "nation": "SELECT range AS n_nationkey, range % 5 AS n_regionkey, 'nation ' || range AS n_name FROM range(25)",
        "customer": f"SELECT range AS c_custkey, floor(25 * random())::INTEGER AS c_nationkey, "
        f"{MONEY.format(9999)} AS c_acctbal, {some('segment', 5)} AS c_mktsegment FROM range({customers})",
        "orders": f"SELECT range AS o_orderkey, floor({customers} * random())::INTEGER AS o_custkey, "
        f"{some('status', 3)} AS o_orderstatus, {MONEY.format(400000)} AS o_totalprice, {day.format(2400)} AS "
        f"o_orderdate, {some('priority', 5)} AS o_orderpriority FROM range({orders})",
        "part": f"SELECT range AS p_partkey, {some('maker', 5)} AS p_mfgr, {some('brand', 25)} AS p_brand, "
        f"{some('type', 150)} AS p_type, floor(50 * random())::INTEGER AS p_size, {some('box', 40)} AS p_container, "
        f"{MONEY.format(2000)} AS p_retailprice FROM range({parts})",
        "supplier": f"SELECT range AS s_suppkey, {MONEY.format(9999)} AS s_acctbal FROM range({suppliers})",
        "partsupp": f"SELECT range // 4 AS ps_partkey, (range // 4 + range % 4 * {suppliers // 4}) % {suppliers} AS "
        f"ps_suppkey, floor(9999 * random())::INTEGER AS ps_availqty, {MONEY.format(1000)} AS ps_supplycost "
        f"FROM range({4 * parts})",
        "lineitem": f"SELECT l_orderkey, l_partkey, (l_partkey + l_which * {suppliers // 4}) % {suppliers} AS "
        f"l_suppkey, 1 + floor(7 * random())::INTEGER AS l_linenumber, l_quantity, (l_quantity * 1000 * (1 + random()))"
        f"::DECIMAL(15, 2) AS l_extendedprice, {MONEY.format(0.1)} AS l_discount, {MONEY.format(0.08)} AS l_tax, "
        f"{some('flag', 3)} AS l_returnflag, {some('status', 2)} AS l_linestatus, {day.format(2500)} AS l_shipdate, "
        f"{day.format(2500)} AS l_commitdate, {day.format(2500)} AS l_receiptdate, {some('how', 4)} AS l_shipinstruct, "
        f"{some('mode', 7)} AS l_shipmode FROM (SELECT range // 4 AS l_orderkey, floor({parts} * random())::BIGINT AS "
        f"l_partkey, floor(4 * random())::INTEGER AS l_which, floor(1 + 50 * random())::DECIMAL(15, 2) AS l_quantity "
        f"FROM range({lines}))",
    }  # fmt: skip
    urls = {}
    for party, names in PARTIES.items():
        urls[party] = f"duckdb://{folder / party}.duckdb"
        with duckdb.connect(str(folder / f"{party}.duckdb")) as connection:
            connection.execute("SELECT setseed(0.5)")
            for name in names:
                connection.execute(f"CREATE TABLE {name} AS {tables[name]}")
    return urls


def tpch(folder: Path, lines: int, repeats: int) -> dict[str, Ratio]:
    """`describe` and `correlation` of all columns but keys."""
    urls = write_tpch(folder, lines)
    with duckdb.connect() as connection:
        for party, names in PARTIES.items():
            connection.execute(f"ATTACH '{folder / party}.duckdb' AS {party} (READ_ONLY)")
            for name in names:
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {party}.{name}")
        table = connection.sql(JOIN).to_arrow_table()
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    numbers = [field.name for field in table.schema if field.name not in texts]
    days = pa.date32()
    frame = pd.DataFrame(
        {name: table[name].to_pandas() for name in texts}
        | {
            name: (table[name].cast(pa.int32()) if table[name].type == days else table[name])
            .cast(pa.float64())
            .to_numpy()
            for name in numbers
        }
    )
    relation = tp.Federation(urls).sql(JOIN)
    assert len(relation) == len(frame)
    found = {"describe": best(relation.describe, lambda: pandas_describe(frame, numbers, texts), repeats)}
    print("describe", found["describe"], flush=True)
    compare_describe(relation.describe(), frame, numbers)
    found["correlation"] = best(relation.correlation, frame[numbers].corr, repeats)
    ours, theirs = relation.correlation(), frame[numbers].corr()
    np.testing.assert_allclose(ours.values, theirs.loc[ours.columns, ours.columns], atol=1e-9)
    return {name: {"joined_rows": len(frame)} | line for name, line in found.items()}


def pandas_describe(frame: pd.DataFrame, numbers: list[str], texts: list[str]) -> list[Any]:
    """What `describe` computes, on the joined table."""
    some_, found = frame[numbers], list[Any]()
    found += [some_.describe(), some_.skew(), some_.kurt(), frame.isna().sum(), frame.nunique()]
    return [*found, *(frame[name].value_counts() for name in texts)]


def compare_describe(found: Any, frame: pd.DataFrame, numbers: list[str]) -> None:
    """Raise AssertionError unless a description has the numbers of pandas."""
    told = found.to_arrow().to_pandas().set_index("column").loc[numbers]
    known = frame[numbers].describe().T
    pairs = {"mean": "mean", "std": "std", "min": "min", "q25": "25%", "median": "50%", "q75": "75%", "max": "max"}
    for ours, theirs in pairs.items():
        np.testing.assert_allclose(told[ours], known[theirs], rtol=1e-9, atol=1e-12, err_msg=ours)
    np.testing.assert_array_equal(told["distinct"], frame[numbers].nunique())


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lines", type=float, default=600e3, help="rows of lineitem")
    runs: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
        "categories": lambda folder, given: categories(folder, given.repeats),
        "columns": lambda folder, given: columns(folder, given.repeats),
        "tpch": lambda folder, given: tpch(folder, int(given.lines), given.repeats),
    }
    parser.add_argument("--only", nargs="*", choices=list(runs), default=list(runs))
    given = parser.parse_args()
    path = ROOT / "benchmarks" / "results" / "wide.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = runs[name](Path(folder), given)
        print(name, json.dumps(found[name], indent=2), flush=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
