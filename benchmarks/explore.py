"""Statistics and model selection over a relation, against NumPy, pandas and scikit-learn on the joined table.

Run with ``python -m benchmarks.explore``. Ratios are measured side by side in one process, ours and the other in turn;
the best of several runs counts. Tables are open, and the join is materialised, before the clock starts on either side.
Writes ``benchmarks/results/explore.json``. MovieLens-1M is skipped where it is absent (benchmarks/data.py).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tablepuppet as tp
from benchmarks.data import DATA, ROOT, is_there
from benchmarks.turns import best

SHARES = [0.25, 0.5, 0.75]
SELECT = "SELECT r.rating, u.age, u.occupation, m.year"
FROM = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres m USING (movie_id)"
NUMBERS = ["rating", "age", "occupation", "year"]
PENALTIES = [10.0**power for power in range(-9, 1)]


def joined() -> pd.DataFrame:
    """The materialised join of MovieLens."""
    ratings, users, movies = (
        pd.read_parquet(DATA / "movielens-1m" / f"{name}.parquet") for name in ("ratings", "users", "movies_genres")
    )
    return ratings.merge(users, on="user_id").merge(movies, on="movie_id")


def pandas_profile(frame: pd.DataFrame) -> None:
    """What a profile computes, on the joined table."""
    frame[NUMBERS].describe()
    frame[NUMBERS].skew()
    frame[NUMBERS].kurt()
    frame.isna().sum()
    frame.nunique()
    for name in NUMBERS:
        np.histogram(frame[name], 30)
    frame[NUMBERS].corr()
    for name in ("gender", "genre"):
        frame[name].value_counts()
        pd.crosstab(frame[name], frame["rating"])
    for name in NUMBERS[1:]:
        frame.groupby("rating")[name].agg(["count", "mean", "std"])


def pooled_search(frame: pd.DataFrame) -> None:
    """scikit-learn on the joined table, on both cores."""
    x, y = frame[NUMBERS[1:]].to_numpy(float), frame["rating"].to_numpy() >= 4
    model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-6))
    grid = {"logisticregression__C": [1 / (penalty * len(x) * 0.8) for penalty in PENALTIES]}
    GridSearchCV(model, grid, cv=5, n_jobs=2).fit(x, y)


def measure(repeats: int) -> dict[str, Any]:
    """All ratios."""
    fed, frame = tp.Federation({"owner": f"parquet://{DATA / 'movielens-1m'}"}), joined()
    numbers = fed.sql(f"{SELECT} {FROM}")
    whole = fed.sql(f"{SELECT}, u.gender, m.genre {FROM}", label="rating")
    liked = fed.sql(f"SELECT u.age, u.occupation, m.year, r.rating >= 4 AS liked {FROM}", label="liked")
    learner = tp.LogisticRegression(tol=1e-6)
    columns = [frame[name].to_numpy() for name in NUMBERS]

    def search() -> None:
        tp.GridSearch(learner, {"l2": PENALTIES}, folds=5).fit(liked)

    def separate() -> None:
        for penalty in PENALTIES:
            again = fed.sql(f"SELECT u.age, u.occupation, m.year, r.rating >= 4 AS liked {FROM}", label="liked")
            tp.cross_validate(tp.LogisticRegression(tol=1e-6, l2=penalty), again, folds=5)

    for each in (numbers, whole, liked):
        len(each)
    shown = frame[[*NUMBERS, "gender", "genre"]]
    return {
        "joined_rows": len(frame),
        "quantiles": best(lambda: numbers.quantile(SHARES), lambda: [np.quantile(c, SHARES) for c in columns], repeats),
        "profile": best(whole.profile, lambda: pandas_profile(shown), repeats),
        "search_and_separate_runs": best(search, separate, 1),
        "search_and_scikit_learn": best(search, lambda: pooled_search(frame), 1),
    }


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    if not is_there("movielens-1m"):
        return
    found = measure(parser.parse_args().repeats)
    text = json.dumps(found, indent=2)
    print(text)
    (ROOT / "benchmarks" / "results" / "explore.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
