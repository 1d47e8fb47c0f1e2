"""Statistics and model selection over a relation, against NumPy, pandas and scikit-learn on the joined table.

Run with ``python -m benchmarks.explore`` (``--only search quantiles`` for some parts). Ratios are measured side by side
in one process, ours and the other in turn; the best of several runs counts. Tables are open, and the join is
materialised, before the clock starts on either side. Both sides' results are compared before they are timed. Writes
``benchmarks/results/explore.json``. MovieLens-1M is skipped where it is absent (benchmarks/data.py).

- quantiles: quartiles of all numeric columns of MovieLens-1M, and of a star of 10 million joined rows.
- profile: a profile of MovieLens-1M, against pandas computing the same.
- search: ten values of ``l2`` on five folds, against ten runs of five folds each and GridSearchCV on two cores.
- systemds: median of one column, scale and outlierByIQR of 500,000 x 50 in two row shards, beside what SystemDS 3.4
  federated took on the same sizes.
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
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tablepuppet as tp
from benchmarks.data import DATA, ROOT, is_there
from benchmarks.star import SQL, write_star
from benchmarks.turns import best

SHARES = [0.25, 0.5, 0.75]
SELECT = "SELECT r.rating, u.age, u.occupation, m.year"
FROM = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres m USING (movie_id)"
LIKED = f"SELECT u.age, u.occupation, m.year, r.rating >= 4 AS liked {FROM}"
WIDE = f"SELECT u.age, u.occupation, u.gender, m.year, m.genre, r.rating >= 4 AS liked {FROM}"
NUMBERS = ["rating", "age", "occupation", "year"]
PENALTIES = [10.0**power for power in range(-9, 1)]
TOL = 1e-6
SHARD_ROWS, COLUMNS = 250_000, 50
SYSTEMDS = {"median": (0.45, 0.011), "scale": (0.55, 0.26), "outlierByIQR": (30.5, 1.14)}  # seconds: theirs, NumPy's
Floats = NDArray[np.float64]
Ratio = dict[str, Any]


def movielens() -> tp.Federation:
    """The tables of MovieLens-1M, all of one party."""
    return tp.Federation({"owner": f"parquet://{DATA / 'movielens-1m'}"})


def joined() -> pd.DataFrame:
    """The materialised join of MovieLens."""
    ratings, users, movies = (
        pd.read_parquet(DATA / "movielens-1m" / f"{name}.parquet") for name in ("ratings", "users", "movies_genres")
    )
    return ratings.merge(users, on="user_id").merge(movies, on="movie_id")


# Quantiles.


def compare_quantiles(relation: tp.Relation, columns: dict[str, Floats], repeats: int) -> Ratio:
    """Quartiles of all columns: equal to NumPy's, then timed."""
    found = relation.quantile(SHARES)
    for name, values in columns.items():
        np.testing.assert_allclose(found[name], np.quantile(values, SHARES), rtol=1e-12, err_msg=name)

    def pooled() -> list[Floats]:
        return [np.quantile(values, SHARES) for values in columns.values()]

    return {"joined_rows": len(relation)} | best(lambda: relation.quantile(SHARES), pooled, repeats)


def quantiles_of_movielens(repeats: int) -> Ratio:
    """Four columns of whole numbers."""
    relation, frame = movielens().sql(f"{SELECT} {FROM}"), joined()
    return compare_quantiles(relation, {name: frame[name].to_numpy() for name in NUMBERS}, repeats)


def quantiles_of_star(rows: int, repeats: int) -> Ratio:
    """One column of each dimension, and one of the fact table that has as many values as rows."""
    sql = SQL.format(label="amount")
    with tempfile.TemporaryDirectory() as folder:
        urls = write_star(Path(folder), rows)
        with duckdb.connect() as connection:
            for table in urls:
                connection.execute(f"ATTACH '{folder}/{table}.duckdb' AS party_{table} (READ_ONLY)")
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM party_{table}.{table}")
            columns = connection.execute(sql).fetchnumpy()
        return compare_quantiles(tp.Federation(urls).sql(sql), columns, repeats)


# A profile.


def pandas_profile(frame: pd.DataFrame) -> dict[str, Any]:
    """What a profile computes, on the joined table."""
    found = {
        "describe": frame[NUMBERS].describe(),
        "skew": frame[NUMBERS].skew(),
        "kurtosis": frame[NUMBERS].kurt(),
        "missing": frame.isna().sum(),
        "distinct": frame.nunique(),
        "histograms": {name: np.histogram(frame[name], 30) for name in NUMBERS},
        "correlation": frame[NUMBERS].corr(),
    }
    for name in ("gender", "genre"):
        frame[name].value_counts()
        pd.crosstab(frame[name], frame["rating"])
    for name in NUMBERS[1:]:
        frame.groupby("rating")[name].agg(["count", "mean", "std"])
    return found


def profile_of_movielens(repeats: int) -> Ratio:
    """All six columns, with the rating as the label: equal to pandas', then timed."""
    relation = movielens().sql(f"{SELECT}, u.gender, m.genre {FROM}", label="rating")
    frame = joined()[[*NUMBERS, "gender", "genre"]]
    ours, theirs = relation.profile(), pandas_profile(frame)
    told = ours.description.to_arrow().to_pandas().set_index("column")
    for name in NUMBERS:
        row, known = told.loc[name], theirs["describe"][name]
        pairs = {"mean": "mean", "std": "std", "min": "min", "q25": "25%", "median": "50%", "q75": "75%", "max": "max"}
        for mine, pandas_name in pairs.items():
            np.testing.assert_allclose(row[mine], known[pandas_name], rtol=1e-9, err_msg=f"{name} {mine}")
        np.testing.assert_allclose([row["skew"]], [theirs["skew"][name]], rtol=1e-7)
        np.testing.assert_array_equal(ours.histograms[name].counts, theirs["histograms"][name][0])
    for name in (*NUMBERS, "gender", "genre"):
        assert (told.loc[name, "distinct"], told.loc[name, "missing"]) == (theirs["distinct"][name], 0)
    assert ours.correlations is not None
    places = [ours.correlations.columns.index(name) for name in NUMBERS]
    np.testing.assert_allclose(ours.correlations.values[np.ix_(places, places)], theirs["correlation"], atol=1e-9)
    return {"joined_rows": len(frame)} | best(relation.profile, lambda: pandas_profile(frame), repeats)


# Searches.


def grid_search(relation: tp.Relation) -> tp.GridSearch:
    """Ten values of ``l2`` on five folds."""
    return tp.GridSearch(tp.LogisticRegression(tol=TOL), {"l2": PENALTIES}, folds=5, metric="log_loss").fit(relation)


def separate_runs(fed: tp.Federation, sql: str) -> dict[float, float]:
    """Ten runs of five folds, each with a relation of its own: mean log losses on the folds, by ``l2``."""
    found = {}
    for penalty in PENALTIES:
        learner = tp.LogisticRegression(tol=TOL, l2=penalty)
        folds = tp.cross_validate(learner, fed.sql(sql, label="liked"), folds=5)
        found[penalty] = float(folds["test_log_loss"].mean())
    return found


def pooled_search(x: Floats, y: NDArray[np.bool_]) -> GridSearchCV:
    """scikit-learn on the joined table, on both cores; the first three columns are numbers, others 0 and 1."""
    scaled = ColumnTransformer([("numbers", StandardScaler(), [0, 1, 2])], remainder="passthrough")
    model = make_pipeline(scaled, LogisticRegression(tol=TOL))
    grid = {"logisticregression__C": [1 / (penalty * len(x) * 0.8) for penalty in PENALTIES]}
    return GridSearchCV(model, grid, cv=5, n_jobs=2, scoring="neg_log_loss").fit(x, y)


def searches(repeats: int, wide_too: bool) -> dict[str, Ratio]:
    """Three columns of few values, and all five with the categories of two: scores are those of separate runs to 1e-5,
    and of scikit-learn's folds, which are others, to 1e-3.
    """
    fed, frame, found = movielens(), joined(), {}
    y = frame["rating"].to_numpy() >= 4
    narrow = frame[["age", "occupation", "year"]]
    wide = pd.concat([narrow, pd.get_dummies(frame[["gender", "genre"]])], axis=1)
    cases = [("three columns", LIKED, narrow, repeats), ("with categories", WIDE, wide, 1)]
    for name, sql, columns, times in cases if wide_too else cases[:1]:
        relation, x = fed.sql(sql, label="liked"), columns.to_numpy(float)
        scores: list[Any] = [None, None, None]

        def ours(relation: tp.Relation = relation, scores: list[Any] = scores) -> None:
            scores[0] = grid_search(relation)

        def alone(sql: str = sql, scores: list[Any] = scores) -> None:
            scores[1] = separate_runs(fed, sql)

        def pooled(x: Floats = x, scores: list[Any] = scores) -> None:
            scores[2] = pooled_search(x, y)

        len(relation)
        lines = {"separate runs": best(ours, alone, times), "scikit-learn": best(ours, pooled, times)}
        for field in ("theirs_processor", "processor ratio"):  # it works in processes of its own
            del lines["scikit-learn"][field]
        search, separate, theirs = scores
        for row in search.results_:
            np.testing.assert_allclose(row["mean_test_log_loss"], separate[row["l2"]], atol=1e-5)
        by_l2 = {row["l2"]: row["mean_test_log_loss"] for row in search.results_}
        np.testing.assert_allclose(
            [by_l2[penalty] for penalty in PENALTIES], -theirs.cv_results_["mean_test_score"], atol=1e-3
        )
        for other, line in lines.items():
            found[f"{name}, {other}"] = {"joined_rows": len(relation), "columns": x.shape[1]} | line
            print(name, other, line, flush=True)
    return found


# Beside SystemDS.


def systemds(repeats: int) -> dict[str, Ratio]:
    """Median, scale and outliers of an array in two row shards: equal to NumPy's, then timed."""
    rng = np.random.default_rng(0)
    pooled: Floats = rng.normal(size=(2 * SHARD_ROWS, COLUMNS)) * np.arange(1, COLUMNS + 1)
    names = [f"x{number}" for number in range(COLUMNS)]
    with tempfile.TemporaryDirectory() as folder:
        urls = {}
        for number, part in enumerate(np.split(pooled, 2)):
            place = Path(folder) / f"shard{number}"
            place.mkdir()
            table = pa.table({name: part[:, column] for column, name in enumerate(names)})
            pyarrow.parquet.write_table(table, place / "t.parquet")
            urls[place.name] = f"parquet://{place}"
        fed = tp.Federation(urls)
        sql = f"SELECT {', '.join(names)} FROM t"
        relation = fed.sql(sql)
        scaled = fed.sql(sql, prep=tp.prep.Pipeline([tp.prep.Standardize()]))
        repaired = fed.sql(sql, prep=tp.prep.Pipeline([tp.prep.Outliers("iqr", "null")]))
        for each in (relation, scaled, repaired):
            len(each)
        lines = {
            "median": median(relation, pooled, repeats),
            "scale": scale(scaled, pooled, repeats),
            "outlierByIQR": outliers(relation, repaired, pooled, repeats),
        }
    for name, line in lines.items():
        seconds, of_pooled = SYSTEMDS[name]
        line["systemds"] = {"seconds": seconds, "pooled": of_pooled, "ratio": round(seconds / of_pooled, 2)}
    return lines


def median(relation: tp.Relation, pooled: Floats, repeats: int) -> Ratio:
    """Of one column."""
    column = np.ascontiguousarray(pooled[:, 0])
    assert relation.quantile(0.5, columns=["x0"])["x0"] == [np.median(column)]
    return best(lambda: relation.quantile(0.5, columns=["x0"]), lambda: np.median(column), repeats)


def prepared(relation: tp.Relation) -> Any:
    """Fit a relation's pipeline and apply it: the result stays at the parties."""
    found = relation.fit_encoding()
    relation.client.outbox.send()
    return found


def scale(relation: tp.Relation, pooled: Floats, repeats: int) -> Ratio:
    """All columns less their means, divided by their deviations."""

    def of_array() -> Floats:
        return np.asarray((pooled - pooled.mean(axis=0)) / pooled.std(axis=0))

    weights = np.random.default_rng(1).normal(size=COLUMNS)
    np.testing.assert_allclose(relation.matrix() @ weights, of_array() @ weights, atol=1e-4)  # float32 on the wire
    return best(lambda: prepared(relation), of_array, repeats)


def outliers(relation: tp.Relation, repaired: tp.Relation, pooled: Floats, repeats: int) -> Ratio:
    """Values 1.5 interquartile ranges beyond a quartile are counted, and made missing."""

    def of_array() -> tuple[Floats, NDArray[np.int64]]:
        low, high = np.quantile(pooled, [0.25, 0.75], axis=0)
        width = 1.5 * (high - low)
        outside = (pooled < low - width) | (pooled > high + width)
        return np.where(outside, np.nan, pooled), np.count_nonzero(outside, axis=0)

    def of_relation() -> Any:
        prepared(repaired)
        return relation.outlier_by_iqr(k=1.5)

    found, (_, counts) = of_relation(), of_array()
    np.testing.assert_array_equal([found[f"x{number}"].outliers for number in range(COLUMNS)], counts)
    return best(of_relation, of_array, repeats)


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=float, default=10e6, help="joined rows of the star")
    parts = ["quantiles", "profile", "search", "systemds"]
    parser.add_argument("--wide", action="store_true", help="search over columns with categories too: many minutes")
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    given = parser.parse_args()
    repeats, few, is_here = given.repeats, min(given.repeats, 2), is_there("movielens-1m")
    runs: dict[str, tuple[str, Callable[[], Any], bool]] = {
        "quantiles of movielens-1m": ("quantiles", lambda: quantiles_of_movielens(repeats), True),
        "quantiles of the star": ("quantiles", lambda: quantiles_of_star(int(given.rows), repeats), False),
        "profile of movielens-1m": ("profile", lambda: profile_of_movielens(repeats), True),
        "search over l2": ("search", lambda: searches(few, given.wide), True),
        "500,000 x 50 in two row shards": ("systemds", lambda: systemds(min(repeats, 3)), False),
    }
    path = ROOT / "benchmarks" / "results" / "explore.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name, (part, run, needs_data) in runs.items():
        if part in given.only and (is_here or not needs_data):
            found[name] = run()
            print(name, json.dumps(found[name], indent=2), flush=True)
            path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
