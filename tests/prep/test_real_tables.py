"""Statistics on real keys, skew and missing values: those of NumPy, pandas and SciPy on the joined table."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2_contingency

import tablepuppet as tp
from benchmarks.data import DATA, is_there

SHARES = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
MOVIES = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres m USING (movie_id)"
STAYS = "FROM icustays i JOIN admissions a USING (hadm_id) JOIN patients p ON a.subject_id = p.subject_id"


@cache
def joined(name: str) -> pd.DataFrame:
    """The materialised join."""

    def read(table: str) -> pd.DataFrame:
        return pd.read_parquet(DATA / name / f"{table}.parquet")

    if name == "movielens-1m":
        return read("ratings").merge(read("users"), on="user_id").merge(read("movies_genres"), on="movie_id")
    stays = read("icustays").merge(read("admissions").drop(columns=["row_id", "subject_id"]), on="hadm_id")
    return stays.drop(columns="row_id").merge(read("patients").drop(columns="row_id"), on="subject_id")


def relation(name: str, select: str) -> tp.Relation:
    if not is_there(name):
        pytest.skip(f"{name} is not here")
    return tp.Federation({"owner": f"parquet://{DATA / name}"}).sql(f"SELECT {select}")


def test_movielens() -> None:
    """Two million joined rows: quantiles to the last bit, the rest to 1e-9."""
    rel = relation("movielens-1m", f"r.rating, u.age, u.gender, u.occupation, m.year, m.genre {MOVIES}")
    frame, numbers = joined("movielens-1m"), ["rating", "age", "occupation", "year"]
    assert len(rel) == len(frame)
    found = rel.quantile(SHARES)
    for name in numbers:
        assert found[name].tolist() == np.quantile(frame[name].dropna(), SHARES).tolist(), name
    np.testing.assert_allclose(rel.correlation(numbers).values, frame[numbers].corr(), 1e-9, 1e-12)
    table = pd.crosstab(frame["genre"], frame["gender"])
    chi2 = chi2_contingency(table, correction=False)
    told = rel.crosstab("genre", "gender")
    assert told.total == table.to_numpy().sum()
    assert told.chi2 == pytest.approx(chi2.statistic, rel=1e-9)
    means = rel.group_means("rating", "genre").to_arrow().to_pandas().set_index("genre")
    expected = frame.groupby("genre")["rating"].agg(["count", "mean", "std"]).loc[list(means.index)]
    np.testing.assert_allclose(means.to_numpy(float), expected.to_numpy(float), 1e-9)
    counts, _ = np.histogram(frame["age"], 20)
    assert rel.histogram("age", 20).counts.tolist() == counts.tolist()


def test_mimic() -> None:
    """Stays in intensive care, with missing values and rare categories."""
    columns = "i.los, i.first_careunit, a.insurance, a.discharge_location, a.language, p.gender, a.hospital_expire_flag"
    rel = relation("mimic-iii-demo", f"{columns}, i.intime {STAYS}")
    frame = joined("mimic-iii-demo")
    assert len(rel) == len(frame)
    found = rel.quantile(SHARES)
    assert found["los"].tolist() == np.quantile(frame["los"].dropna(), SHARES).tolist()
    described = {row["column"]: row for row in rel.describe().to_arrow().to_pylist()}
    assert described["los"]["skew"] == pytest.approx(frame["los"].skew(), rel=1e-9)
    assert described["los"]["kurtosis"] == pytest.approx(frame["los"].kurt(), rel=1e-9)
    assert described["language"]["missing"] == frame["language"].isna().sum()
    for first, second in (("insurance", "language"), ("first_careunit", "insurance"), ("gender", "insurance")):
        table, told = pd.crosstab(frame[first], frame[second]), rel.crosstab(first, second)
        seen = pd.DataFrame(told.counts, told.rows, told.columns).loc[list(table.index), list(table.columns)]
        assert (seen.to_numpy() == table.to_numpy()).all()
    means = rel.group_means("los", "insurance").to_arrow().to_pandas().set_index("insurance")
    expected = frame.groupby("insurance")["los"].agg(["count", "mean", "std"]).loc[list(means.index)]
    np.testing.assert_allclose(means.to_numpy(float), expected.to_numpy(float), 1e-9)


def test_the_profile_finds_what_tells_the_label() -> None:
    """Where patients go after the stay says whether they died."""
    if not is_there("mimic-iii-demo"):
        pytest.skip("mimic-iii-demo is not here")
    fed = tp.Federation({"owner": f"parquet://{DATA / 'mimic-iii-demo'}"})
    sql = f"SELECT i.los, a.insurance, a.discharge_location, a.hospital_expire_flag {STAYS}"
    told = {(w.column, w.kind) for w in fed.sql(sql, label="hospital_expire_flag").profile().warnings}
    assert {("discharge_location", "tells the label"), ("los", "skewed")} <= told
    assert ("insurance", "tells the label") not in told
