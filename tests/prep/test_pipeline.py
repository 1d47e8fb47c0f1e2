"""Pipelines: the default is as it was, trips are counted, and what is fitted is kept with the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import Ridge

import tablepuppet as tp
from benchmarks.data import DATA, is_there
from tablepuppet import prep
from tablepuppet.federation import PartyEntry
from tablepuppet.jobs import Run
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import CallerLimits, Policy, TableRule
from tablepuppet.prep.columns.statistics import NumberSummary
from tablepuppet.prep.pipelines.draft import Draft
from tablepuppet.prep.pipelines.needs import RankValues, given
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline, foresee
from tests.relations import Parties, federation, materialised, party_of, record_wire, warnings_of
from tests.small_job import write_job
from tests.wire.services import calling, served

SQL = "SELECT s.x, s.w, s.c, i.v, i.g, s.y FROM sales s JOIN items i USING (item)"

AVERAGE: Any = "average"  # no strategy
QUANTILE: Any = "quantile"  # no kind of bins
MONTH: Any = ["mnth"]  # no part of a date


@pytest.fixture
def shop() -> Parties:
    """Sales in two shards, and items."""
    draw = np.random.default_rng(5)

    def sales(size: int) -> pa.Table:
        return pa.table(
            {
                "item": draw.integers(0, 8, size),
                "x": pa.array(draw.normal(5.0, 3.0, size), mask=draw.random(size) < 0.2),
                "w": draw.gamma(1.0, 9.0, size),
                "c": pa.array(draw.choice(list("aaabbc"), size), mask=draw.random(size) < 0.1),
                "y": draw.normal(size=size),
            }
        )

    items = pa.table({"item": range(8), "v": draw.normal(size=8), "g": list("ppqqrrss")})
    return {"p0": {"sales": sales(60)}, "p1": {"sales": sales(90)}, "p2": {"items": items}}


def features(relation: tp.Relation) -> pd.DataFrame:
    """The encoded joined rows."""
    matrix = relation.matrix()
    return pd.DataFrame(matrix @ np.eye(matrix.shape[1]), columns=matrix.columns)


def trips_of(fed: tp.Federation, function: Any) -> int:
    before = fed.engine.traffic.trips
    function()
    return fed.engine.traffic.trips - before


def test_the_default_is_a_pipeline(tmp_path: Path, shop: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out, it gives the same bits, asks the same ops in the same trips, and parties run no steps for it."""
    fed = federation(tmp_path, shop, wire="float64")
    usual, written = fed.sql(SQL, label="y"), fed.sql(SQL, label="y", prep=prep.Pipeline(DEFAULT.steps))
    messages = record_wire(monkeypatch)
    found = []
    for relation in (usual, written):
        assert len(relation) > 100
        seen = len(messages)
        encoding = relation.fit_encoding()
        relation.client.outbox.send()
        found.append(sorted((message.party, message.request.op) for message in messages[seen:]))
        assert not encoding.steps
    assert found[0] == found[1]
    here, there = features(usual), features(written)
    assert list(here) == list(there)
    numbers = ["s.x", "s.w", "i.v"]
    pd.testing.assert_frame_equal(here[numbers], there[numbers], check_exact=True)
    assert (
        here.sum().drop(numbers).tolist() == there.sum().drop(numbers).tolist()
    )  # equally frequent ones change places


def test_a_share_that_is_none_is_refused(tmp_path: Path, shop: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many values a step takes out below its bound may be a lie; the error says whose."""
    fed = federation(tmp_path, shop, wire="float64")
    steps = prep.Pipeline([prep.Outliers("sd", "null", columns=["x"]), prep.Robust(columns=["x"])])
    for share in (float("nan"), -1.0, 2.0):
        lie = NumberSummary(60.0, share, share, 0.0, 60.0, 0.0, 0.0)
        monkeypatch.setattr(Draft, "sums_with", lambda *_, lie=lie: given(lie))
        with pytest.raises(tp.LearnError, match=r"column s.x: .* no number from 0 to 1 \(parties 'p0', 'p1'\)"):
            fed.sql(SQL, label="y", prep=steps).fit_encoding()


@pytest.mark.parametrize(
    ("steps", "trips"),
    [
        ([], 1),
        ([prep.Impute("mean", indicator=True), prep.Standardize(), prep.MinMax()], 1),
        ([prep.Impute("mean"), prep.Standardize(), prep.OneHot(max_categories=2), prep.Standardize()], 1),
        ([prep.Impute("median"), prep.Robust()], 2),
        ([prep.Clip(0, 9, columns=["x"]), prep.Standardize(), prep.Log(1.0, columns=["w"]), prep.Standardize()], 2),
        ([prep.Clip(0, 9), prep.Standardize()], 1),
        ([prep.Clip(0, 9), prep.Standardize(), prep.Power(0.5), prep.Standardize()], 2),
        ([prep.Bin(3, columns=["w"]), prep.Hash(4, columns=["c"])], 2),
        ([prep.Recode(columns=["c"]), prep.Standardize()], 1),
        ([prep.Ordinal(columns=["c", "g"])], 2),
        ([prep.TargetEncode(), prep.Standardize()], 2),
        ([prep.Bin(3, columns=["w", "v"]), prep.TargetEncode(columns=["w", "v"])], 2),
    ],
)
def test_trips(tmp_path: Path, shop: Parties, steps: list[Any], trips: int) -> None:
    """As many as statistics depend on each other, whatever the number of columns; it is foreseen how many at most.

    Columns have few enough values to be listed, so that quantiles are not refined.
    """
    fed = federation(tmp_path, shop)
    relation = fed.sql(SQL, label="y", prep=prep.Pipeline(steps))
    assert len(relation) > 100
    made = trips_of(fed, relation.fit_encoding)
    foreseen = foresee(relation.prep, relation.plan, 256)
    assert made <= foreseen.trips
    has_ranks = any(isinstance(question, RankValues) for question in foreseen.questions)
    assert foreseen.trips - (6 if has_ranks else 0) == trips
    assert made == trips - has_ranks  # quantiles were in the first trip, as all values were listed


def test_a_model_keeps_its_pipeline(tmp_path: Path, shop: Parties) -> None:
    """What was fitted on training rows is applied to others, saved with the model and loaded; columns have names."""
    fed = federation(tmp_path, shop, wire="float64")
    steps = [
        prep.Outliers("sd", "clip", columns=["w"]), prep.Impute("median", indicator=True, columns=["x"]),
        prep.Bin(3, "height", columns=["v"]), prep.OneHot(max_categories=2, columns=["c"]),
        prep.Polynomial(columns=["x", "w"]), prep.Standardize(),
    ]  # fmt: skip
    train, test = fed.sql(SQL, label="y", prep=prep.Pipeline(steps)).split(test=0.3, seed=1)
    l2 = 1e-2
    model = tp.LinearRegression(l2=l2, tol=1e-12).fit(train)
    base = train.matrix()  # categories of equal size have another order in another fit
    here = pd.DataFrame(base @ np.eye(base.shape[1]), columns=base.columns)
    assert list(model.coef_) == list(here)
    assert {"s.x", "s.x_missing", "s.x*w", "s.w^2", "s.c=1", "i.v=0", "i.g=3"} <= set(here)
    assert " to " in str(model.categories_["i.v"][0])
    assert model.categories_["s.c"] == ["a", "other"]
    known = Ridge(l2 * len(train)).fit(here, train.label())
    there = test.matrix(like=base)
    matrix = there @ np.eye(there.shape[1])
    np.testing.assert_allclose(model.predict(test), known.predict(matrix), atol=1e-5)
    filled = np.nanmedian([np.nan if v is None else v for v in materialised(train, shop, "s", "x")])
    model.save(tmp_path / "m")
    loaded = tp.load(tmp_path / "m", fed)
    np.testing.assert_array_equal(loaded.predict(test), model.predict(test))
    assert loaded.encoding_.described == tuple(map(str, steps))
    assert loaded.categories_ == model.categories_
    values = loaded.encoding_.inverse("s.x", here["s.x"])
    expected = [filled if v is None else v for v in materialised(train, shop, "s", "x")]
    np.testing.assert_allclose(values, expected, atol=1e-9)


def test_columns_by_name_pattern_and_type(tmp_path: Path, shop: Parties) -> None:
    """A step works on what it names, in the order of columns; the rest stays as it is."""
    fed = federation(tmp_path, shop, wire="float64")
    rel = fed.sql(SQL, prep=prep.Pipeline([prep.Impute("constant", fill=0), prep.Clip(0, 1, columns=["i.*", "?"])]))
    frame = features(rel)
    assert frame[["s.x", "s.w", "i.v", "s.y"]].max().max() == 1.0
    rel = fed.sql(SQL, prep=prep.Pipeline([prep.Clip(0, 1, columns=["s.w"]), prep.Standardize(columns=[prep.numbers])]))
    assert features(rel)["s.y"].std(ddof=0) == pytest.approx(1.0)
    rel = fed.sql(SQL, prep=prep.Pipeline([prep.Impute(indicator=True), prep.MinMax(5, 6, columns=["type:flag"])]))
    assert set(features(rel)["s.x_missing"]) <= {5.0, 6.0}


def test_map(tmp_path: Path, shop: Parties) -> None:
    """Expressions are evaluated where columns are read, and count as columns from then on."""
    fed = federation(tmp_path, shop, wire="float64")
    maps = [
        prep.Map("length(x || 'ab')", columns=["c"]),
        prep.Map("x * 2 + 1", name_as="twice", columns=["w"], keep=True),
    ]
    rel = fed.sql(SQL, label="y", prep=prep.Pipeline([*maps, prep.Impute("constant", fill=-1.0)]))
    assert rel.columns == ["x", "w", "w_twice", "length(c || 'ab')", "v", "g"]
    frame = features(rel)
    np.testing.assert_allclose(frame["s.w_twice"], frame["s.w"] * 2 + 1)
    missing = [value is None for value in materialised(rel, shop, "s", "c")]
    assert frame["s.length(c || 'ab')"].tolist() == [-1.0 if odd else 3.0 for odd in missing]
    model = tp.LinearRegression().fit(rel)
    with pytest.raises(tp.LearnError, match=r"lacks columns the model was fitted on: s.w_twice, s.length"):
        model.predict(fed.sql(SQL, label="y"))


def test_explain_shows_the_pipeline(tmp_path: Path, shop: Parties) -> None:
    """Steps, their columns and the number of trips."""
    fed = federation(tmp_path, shop)
    text = fed.sql(
        SQL, label="y", prep=prep.Pipeline([prep.Impute("median", columns=["x"]), prep.Standardize()])
    ).explain()
    assert "Features are prepared by 2 steps, fitted in at most 8 trips:" in text
    assert "1. Impute(strategy='median', fill=None, indicator=False, columns=[x]): s.x" in text
    assert "2. Standardize(): s.x, s.w, i.v" in text
    assert "prepared" not in fed.sql(SQL).explain()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: [prep.Standardize(columns=["c"])],
            r"Standardize: column s.c \(VARCHAR\) is categories, and the step need",
        ),
        (lambda: [prep.Robust(columns=["xx"])], r"Robust: 'xx' is no column; did you mean 'x'\?"),
        (lambda: [prep.Robust(columns=["xx*"])], r"Robust: no column is like 'xx\*'; did you mean 'x'\?"),
        (
            lambda: [prep.OneHot(columns=["x"])],
            r"OneHot: column s.x \(DOUBLE\) is a number, and the step needs categories",
        ),
        (lambda: [prep.DateParts(columns=["x"])], r"DateParts: column s.x \(DOUBLE\) is no date or timestamp"),
        (
            lambda: [prep.Polynomial(columns=["x"]), prep.Robust(columns=["x^2"])],
            r"Robust: column s.x\^2 is made by an ea",
        ),
        (lambda: [prep.Impute("mean", columns=["c"])], r"Impute: column s.c has categories: strategy is 'mode'"),
        (
            lambda: [prep.Impute(indicator=True), prep.Impute(indicator=True)],
            r"would make a column 'x_missing', which t",
        ),
        (lambda: [prep.Map("sqrt(x)", columns=["c"])], r"Map: 'sqrt\(x\)' over column s.c: No function matches"),
        (
            lambda: [prep.Impute(), prep.Map("x + 1", columns=["x"])],
            r"Map is evaluated where columns are read: put it b",
        ),
        (lambda: [prep.Map("getenv(x)", columns=["c"])], r"Map: 'getenv\(x\)': function getenv is not supported"),
        (lambda: [prep.Map("x + y", columns=["x"])], r"is an expression of one column, which is called x"),
        (lambda: [prep.Impute(AVERAGE)], r"Impute: strategy is one of mean, median, mode, constant, not 'average'"),
        (lambda: [prep.Impute("constant")], r"Impute: strategy='constant' needs fill, such as fill=0"),
        (lambda: [prep.Impute(fill=3)], r"Impute: fill goes with strategy='constant', not 'mean'"),
        (lambda: [prep.Bin(1)], r"Bin: n is a whole number of at least 2, not 1"),
        (lambda: [prep.Bin(3, QUANTILE)], r"Bin: how is 'width' or 'height', not 'quantile'"),
        (lambda: [prep.DateParts(MONTH)], r"DateParts: parts are some of .*, not \['mnth'\]"),
        (lambda: [prep.Clip(10, 0)], r"Clip: low must not be above high: .*, not 10 and 0"),
        (lambda: [prep.Winsorize(0.9, 0.1)], r"Winsorize: low and high are quantiles that rise, not 0.9 and 0.1"),
        (lambda: [prep.Standardize(columns="x")], r"Standardize: columns is a list, such as columns=\['x'\]"),
        (lambda: [prep.Impute], r"a pipeline is a list of steps, .* not of Impute, which is a class"),
    ],
)
def test_bad_pipelines(tmp_path: Path, shop: Parties, make: Any, message: str) -> None:
    """Refused before a party reads, with column, step and what to do."""
    fed = federation(tmp_path, shop)
    with pytest.raises((tp.LearnError, tp.QueryError), match=message):
        fed.sql(SQL, label="y", prep=prep.Pipeline(make()))
    assert not any(entry["release"] not in ("SCHEMA",) for entry in fed.traffic)


def test_other_bad_input(tmp_path: Path, shop: Parties) -> None:
    """A list is no pipeline; a model that was not fitted has none; values that are not finite are an error."""
    fed = federation(tmp_path, shop)
    with pytest.raises(tp.QueryError, match=r"prep is a pipeline, such as tp.prep.Pipeline\(\[...\]\), not list"):
        fed.sql(SQL, prep=[prep.Impute()])  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match="not fitted"):
        tp.LinearRegression().predict(fed.sql(SQL, label="y", prep=prep.Pipeline([prep.Impute()])))
    (tmp_path / "odd").mkdir()
    odd = federation(tmp_path / "odd", {"p0": {"t": pa.table({"x": [1e100, -1e100, 3.0], "z": [1.0, np.inf, 2.0]})}})
    with pytest.raises(tp.LearnError, match=r"column t.x\^2 has values so large that their squares overflow"):
        odd.sql("SELECT x FROM t", prep=prep.Pipeline([prep.Polynomial()])).matrix()
    with pytest.raises(tp.LearnError, match=r"column t.z has values that are not finite"):
        odd.sql("SELECT z FROM t", prep=prep.Pipeline([prep.Power(), prep.Standardize()])).matrix()


def test_noise_and_pipelines(tmp_path: Path, shop: Parties) -> None:
    """With feature privacy a step without a form with noise is refused by its name, before anything is charged."""
    fed = federation(tmp_path, shop)
    rel = fed.sql(SQL, label="y", prep=prep.Pipeline([prep.Robust()]))
    with pytest.raises(tp.PrivacyError, match=r"prep, step Robust: it has no form with noise .*: use Standardize"):
        tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0)).fit(rel)


def test_columns_that_are_not_public(tmp_path: Path, shop: Parties) -> None:
    """Of those quantiles are estimates, names stay unknown, and extremes are not told; the rest is exact."""
    urls = {name: f"parquet://{tmp_path / name}" for name in shop}
    federation(tmp_path, shop)
    levels = {"sales": "aggregate"}
    fed = tp.Federation(
        {"p0": PartyEntry(urls["p0"], levels), "p1": PartyEntry(urls["p1"], levels),
         "p2": urls["p2"]}, wire="float64",
    )  # fmt: skip
    with pytest.raises(
        tp.PrivacyError, match=r"Ordinal: column s.c \(party 'p0', 'p1'\): its categories are not public"
    ):
        fed.sql(SQL, prep=prep.Pipeline([prep.Ordinal(columns=["c"])]))
    rel = fed.sql(
        SQL, label="y", prep=prep.Pipeline([prep.Impute("median"), prep.Recode(columns=["c"]), prep.Standardize()])
    )
    encoding = rel.fit_encoding()
    assert "s.c" not in tp.LinearRegression().fit(rel).categories_
    values = np.array([v for v in materialised(rel, shop, "s", "x") if v is not None])
    told = encoding.inverse("s.x", [0.0])[0]
    assert np.quantile(values, 0.3) < told < np.quantile(values, 0.7)


def test_real_tables() -> None:
    """Stays in intensive care: skew, missing values and rare categories, against pandas and NumPy to 1e-9."""
    if not is_there("mimic-iii-demo"):
        pytest.skip("mimic-iii-demo is not here")
    fed = tp.Federation({"owner": f"parquet://{DATA / 'mimic-iii-demo'}"}, wire="float64")
    steps = [
        prep.DateParts(["year", "month", "hour"], columns=["intime"]), prep.Log(columns=["los"]),
        prep.Impute("median", columns=["los"]), prep.Robust(columns=["los"]),
        prep.OneHot(min_count=10, columns=["first_careunit", "insurance"]),
        prep.Impute("constant", fill="unknown", columns=["language"]),
    ]  # fmt: skip
    rel = fed.sql(
        "SELECT i.los, i.intime, i.first_careunit, a.language, a.insurance "
        "FROM icustays i JOIN admissions a USING (hadm_id)",
        prep=prep.Pipeline(steps),
    )
    places = rel.rows()
    frames = {
        name: pd.read_parquet(DATA / "mimic-iii-demo" / f"{table}.parquet").iloc[places[f"{name}.row"].to_numpy()]
        for name, table in (("i", "icustays"), ("a", "admissions"))
    }
    frame = features(rel)
    los = np.log(frames["i"]["los"].to_numpy())
    low, middle, high = np.quantile(los, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(frame["i.los"], (los - middle) / (high - low), atol=1e-9)
    assert frame["i.intime_hour"].tolist() == pd.to_datetime(frames["i"]["intime"]).dt.hour.tolist()
    counts = frames["i"]["first_careunit"].value_counts()
    found = frame[[name for name in frame if name.startswith("i.first_careunit=")]].sum()
    rare = counts[counts < 10].sum()
    assert sorted(found) == sorted([*counts[counts >= 10], *([rare] if rare else [])])
    languages = frames["a"]["language"]
    found = frame[[name for name in frame if name.startswith("a.language=")]].sum()
    assert sorted(found) == sorted([*languages.value_counts(), languages.isna().sum()])


def test_warnings_name_columns(tmp_path: Path) -> None:
    """A column without a value in the joined rows is left out whatever the steps, with a warning."""
    fed = federation(tmp_path, {"p0": {"t": pa.table({"a": pa.array([None, None], pa.float64()), "b": [1.0, 2.0]})}})
    warned = warnings_of(fed)
    rel = fed.sql("SELECT a, b FROM t", prep=prep.Pipeline([prep.Robust(), prep.Standardize(columns=["a", "b"])]))
    assert rel.matrix().columns == ["t.b"]
    assert [event.fields["column"] for event in warned] == ["t.a"]


CANARIES = ("canary-category", "canary-rare", 918273.25)


def test_no_value_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Categories and single numbers of columns that are not public are in no message, event, explanation or file."""
    rows = 80
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "c": ["canary-rare", *draw.choice(["canary-category", "other-category"], rows - 1)],
            "x": [918273.25, *draw.normal(size=rows - 1)],
            "y": draw.normal(size=rows),
        }
    )
    federation(tmp_path, {"p0": {"t": table}})
    fed = tp.Federation({"p0": PartyEntry(f"parquet://{tmp_path / 'p0'}", {"t.c": "aggregate", "t.x": "aggregate"})})
    messages = record_wire(monkeypatch)
    told: list[tp.Event] = []
    fed.events.subscribe(told.append)
    steps = [
        prep.Outliers("iqr", "flag", columns=["x"]), prep.Winsorize(0.1, 0.9, columns=["x"]), prep.Impute("median"),
        prep.Impute("mode", columns=["c"]), prep.OneHot(columns=["c"]), prep.Standardize(),
    ]  # fmt: skip
    rel = fed.sql("SELECT c, x, y FROM t", label="y", prep=prep.Pipeline(steps))
    model = tp.LinearRegression().fit(rel)
    model.save(tmp_path / "m")
    texts = [repr(message.request) + repr(message.reply) for message in messages]
    texts += [repr(told), str(rel.explain()), repr(model.coef_), repr(model.categories_)]
    texts += [(tmp_path / "m" / "model.json").read_text()]
    for canary in CANARIES:
        assert not any(str(canary) in text for text in texts), canary


def test_groups_are_large_enough(tmp_path: Path) -> None:
    """With ``min_group`` rare categories count as missing, a pooled column has enough rows, and so has a flag."""
    rows = 60
    table = pa.table(
        {"c": ["rare"] * 2 + ["a"] * 30 + ["b"] * 22 + ["d"] * 6, "x": [1e6, *np.linspace(0, 1, rows - 1)]}
    )
    federation(tmp_path, {"p0": {"t": table}})
    fed = tp.Federation({"p0": f"parquet://{tmp_path / 'p0'}"}, wire="float64")
    party = party_of(fed.engine, "p0")
    party._guard.policy = Policy(others=TableRule(min_group=5))
    steps = [prep.OneHot(min_count=10, columns=["c"]), prep.Outliers("iqr", "flag", columns=["x"])]
    encoding = fed.sql("SELECT c, x FROM t", prep=prep.Pipeline(steps)).fit_encoding()
    [category] = encoding.categories["t"]
    assert np.round(np.array(category.shares) * rows).tolist() == [30, 22, 6]
    flag = next(each for each in encoding.numbers["t"] if each.column.name == "x_outlier")
    assert (flag.centre, flag.square) == (0.0, 0.0)  # one row is too few to be told of


def test_refinements_are_counted(tmp_path: Path) -> None:
    """Bounds that the caller chooses count towards ``max_refinements`` of columns that are not public."""
    table = pa.table({"x": np.linspace(0, 1, 60), "p": np.linspace(2, 3, 60)})
    federation(tmp_path, {"p0": {"t": table}})
    fed = tp.Federation({"p0": PartyEntry(f"parquet://{tmp_path / 'p0'}", {"t.x": "aggregate"})})
    party = party_of(fed.engine, "p0")
    party._guard.policy = replace(party._guard.policy, limits=CallerLimits(max_refinements=2))

    def fit(column: str, high: float) -> None:
        steps = [prep.Clip(0.2, high, columns=[column]), prep.Standardize()]
        fed.sql(f"SELECT {column} FROM t", prep=prep.Pipeline(steps)).fit_encoding()

    fit("x", 0.5)
    fit("x", 0.5)
    fit("x", 0.6)
    for high in (2.1, 2.2, 2.3):
        fit("p", high)
    with pytest.raises(tp.PrivacyError, match="max_refinements"):
        fit("x", 0.7)


def test_tables_that_demand_noise(tmp_path: Path) -> None:
    """Refused before anything is computed, with column, step and rule."""
    federation(tmp_path, {"p0": {"t": pa.table({"x": [1.0, 2.0, 3.0]})}})
    fed = tp.Federation({"p0": f"parquet://{tmp_path / 'p0'}"})
    party = party_of(fed.engine, "p0")
    party._guard.policy = Policy(others=TableRule(budget=Budget(epsilon=1.0, delta=1e-6, require_dp=True)))
    rel = fed.sql("SELECT x FROM t", prep=prep.Pipeline([prep.Robust()]))
    with pytest.raises(tp.PrivacyError, match=r"prep, step Robust: party 'p0', table 't', column 'x'.*require_dp"):
        rel.fit_encoding()


def test_over_services(tmp_path: Path, shop: Parties) -> None:
    """Steps travel as they are checked: parties elsewhere prepare the same features, and keep their part of a model."""
    here = federation(tmp_path, shop, wire="float64")
    steps = [
        prep.Map("x + 1", columns=["w"]), prep.Outliers("iqr", "null", columns=["x"]),
        prep.Impute("median", indicator=True), prep.Bin(3, "height", columns=["v"]),
        prep.OneHot(max_categories=2, columns=["c"]), prep.Recode(columns=["g"]), prep.Polynomial(columns=["x"]),
        prep.Standardize(),
    ]  # fmt: skip
    urls = {name: f"parquet://{tmp_path / name}" for name in shop}
    with served(urls, state=tmp_path / "state") as servers:
        there = calling(servers, wire="float64")
        near, far = (fed.sql(SQL, label="y", prep=prep.Pipeline(steps)) for fed in (here, there))
        first, second = features(near), features(far)
        assert list(first) == list(second)
        for name in set(first) - {"i.g"}:  # rows of a party elsewhere stand in an order of their own
            np.testing.assert_allclose(np.sort(first[name]), np.sort(second[name]), atol=1e-9)
        model = tp.LinearRegression(rounds=5).fit(far)
        model.save(tmp_path / "m")
        expected = model.predict(far)
        np.testing.assert_allclose(tp.load(tmp_path / "m", there).predict(far), expected, atol=1e-9)


def test_jobs(tmp_path: Path) -> None:
    """A job file lists steps; what is wrong in it is said with the step, before a party is asked."""
    folder = write_job(tmp_path)
    text = (folder / "job.toml").read_text()
    steps = '[[prep]]\nkind = "DateParts"\nparts = ["month", "day"]\n[[prep]]\nkind = "MinMax"\ncolumns = ["i.*"]\n'
    (folder / "job.toml").write_text(text + steps)
    Run.to_train(folder / "job.toml", lambda _: None).train()
    run = Run.of_folder(folder / "runs" / "returns", lambda _: None)
    assert {"o.day_month", "o.day_day", "i.weight"} <= set(run.model().coef_)
    assert len(run.predict(None)) == 400
    pipeline = run.job.pipeline
    assert pipeline is not None
    assert Pipeline.of_plain(pipeline.plain()) == pipeline
    for wrong, message in (
        ('kind = "Standardise"', r"prep: kind 'Standardise' is no step; did you mean 'Standardize'\?"),
        ('kind = "Impute"\nstrategie = "median"', "prep: Impute has no setting 'strategie'; did you mean 'strategy'"),
        ('kind = "Bin"\nn = 0', "prep: Bin: n is a whole number of at least 2"),
    ):
        (folder / "job.toml").write_text(f"{text}[[prep]]\n{wrong}\n".replace("runs/returns", "runs/other"))
        with pytest.raises(tp.ConfigError, match=message):
            Run.to_train(folder / "job.toml", lambda _: None)


def test_a_pattern_may_have_columns_of_other_kinds(tmp_path: Path, shop: Parties) -> None:
    """Of those that it matches, a step takes the ones that it is made for, or none; columns that were dropped count."""
    fed = federation(tmp_path, shop)
    for steps in (
        [prep.Standardize(columns=["s.*"])],
        [prep.Standardize(columns=["c*"])],
        [prep.DropMissing(0.0), prep.Standardize(columns=["x*"])],
    ):
        fed.sql(SQL, label="y", prep=prep.Pipeline(steps)).matrix()


def test_misspelt_settings() -> None:
    """A setting that a step does not have is an error with the one that was meant."""
    make: Any = prep.Impute
    with pytest.raises(tp.ConfigError, match=r"Impute has no argument 'stategy'; did you mean 'strategy'"):
        make(stategy="mean")
