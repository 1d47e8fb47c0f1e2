"""What errors of statistics and of pipelines advise returns what was asked for, as pandas has it, or works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.advice import Advice, check_all_are_tried
from tests.advised_shop import Shop
from tests.party.policed import COLUMNS, open_party, write_file
from tests.party.policed import federation as policed

FINITE = "WHERE isfinite(o.odd)"
PRIVACY = tp.Privacy(feature_epsilon=50.0, delta=1e-6)
BOUNDS = {"price": (0, 10), "quantity": (1, 5)}


def same(one: Any, other: Any) -> bool:
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return True


def finite(shop: Shop) -> pd.DataFrame:
    return shop.joined[np.isfinite(shop.joined.odd)]


def fitted(shop: Shop, columns: str, label: str = "cost", learner: Any = None, more: str = "", **settings: Any) -> Any:
    """A model of some columns; ``prep`` is a list of steps."""
    if "prep" in settings:
        settings["prep"] = tp.prep.Pipeline(settings["prep"])
    return (learner or tp.LinearRegression()).fit(shop.sql(columns, label, more, **settings))


def encoded(shop: Shop, columns: str, *steps: Any, **settings: Any) -> Any:
    """The cells of some columns after steps."""
    matrix: Any = shop.sql(columns, None, prep=tp.prep.Pipeline(list(steps)), **settings).matrix()
    return matrix @ np.eye(matrix.shape[1])


def bank(shop: Shop, columns: str, *steps: Any, label: str | None = None, table: str = "", uses: str = "") -> Any:
    file = write_file(
        shop.folder, table=table, columns=COLUMNS.replace('credit = "feature"', uses or 'credit = "feature"')
    )
    prep = tp.prep.Pipeline(list(steps)) if steps else None
    return policed(open_party(file)).sql(f"SELECT {columns} FROM cards", label=label, prep=prep)


def means_and_slope(found: Any, feature: pd.Series, label: pd.Series) -> bool:
    """A model of one number, standardised by default, is that of NumPy."""
    slope = np.polyfit((feature - feature.mean()) / feature.std(ddof=0), label, 1)
    return same([next(iter(found.coef_.values())).item(), found.intercept_.item()], slope)


def numbers_of_cities(shop: Shop) -> bool:
    number = "CASE o.city WHEN 'Bonn' THEN 0 WHEN 'Paris' THEN 1 ELSE 2 END AS city"
    found = shop.sql(f"{number}, o.price", None).correlation()["city", "price"]
    return same(found, shop.joined.price.corr(shop.joined.city.map({"Bonn": 0, "Paris": 1, "Rome": 2})))


def grouped_notes(shop: Shop) -> bool:
    found = shop.sql("right(o.note, 1) AS note, o.city", None, max_categories=50).crosstab("note", "city")
    return same(
        np.sort(found.counts.ravel()),
        np.sort(pd.crosstab(shop.joined.note.str[-1], shop.joined.city).to_numpy().ravel()),
    )


def rounded(shop: Shop) -> bool:
    found = shop.sql("CAST(round(o.price) AS INT) AS price, o.city", None).crosstab("price", "city")
    return same(found.counts.sum(), 120)


def filled_first(shop: Shop) -> bool:
    mode = shop.joined.quantity.mode()[0]
    cells = encoded(shop, "CASE WHEN o.id % 7 = 0 THEN NULL ELSE o.quantity END AS q", tp.prep.Impute("mode"))
    kept = shop.joined.quantity[shop.joined.id % 7 != 0]
    return same(np.sort(cells[:, 0]), np.sort(np.r_[kept, np.full(120 - len(kept), kept.mode()[0])])) and bool(mode)


def two_queries(shop: Shop) -> bool:
    uses, both = 'credit = ["feature", "filter"]', bank(shop, "credit, open", uses='credit = ["feature", "filter"]')
    parts = [len(bank(shop, f"credit, open FROM cards WHERE credit {sign} 0 --", uses=uses)) for sign in ("<", ">=")]
    return sum(parts) == len(both)


SENT = "cross_statistics = true\nlabel_means = true"
NOISY_LABEL = tp.Privacy(label_epsilon=2.0, label_bounds=(-9.0, 12.0))


def many(label: str) -> tp.Relation:
    """A label with more classes than a classifier takes."""
    table = pa.table({"x": np.arange(1100.0) % 7, "n": np.arange(1100)})
    return tp.Federation({"p": {"t": table}}, verbose=False).sql(f"SELECT x, {label} FROM t", label="n")


def by_steps(*steps: Any) -> Callable[[Shop], Any]:
    """Fits with noise on features, one for each step."""
    noisy = tp.LinearRegression(privacy=PRIVACY)
    return lambda shop: [fitted(shop, "o.price, o.cost", learner=noisy, prep=[step]) for step in steps]


def predicted(shop: Shop, city: str) -> Any:
    """Predictions of a model of cities, which another query computes otherwise."""
    return fitted(shop, "o.city, o.cost").predict(shop.sql(f"{city} AS city, o.cost", "cost"))


def noisy(shop: Shop, column: str = "price", label: str | None = "cost", **noise: Any) -> Any:
    """The mean of a column, with noise."""
    privacy = tp.Privacy(**{"feature_epsilon": 50.0, "delta": 1e-6} | noise)
    rel = shop.sql("o.price, o.cost", label)
    found = rel.describe(columns=[column], privacy=privacy, bounds={column: (-20, 20)}).to_arrow()
    np.testing.assert_allclose(found["mean"][0].as_py(), shop.joined[column].mean(), atol=0.5)


def budgeted(shop: Shop, epsilon: float) -> Any:
    """Statistics with noise, of a table whose budget is 2."""
    (shop.folder / "state").mkdir(mode=0o700, exist_ok=True)
    columns = 'credit = { uses = ["feature"], bounds = [-9, 9] }'
    file = write_file(shop.folder, table="budget = { epsilon = 2.0, delta = 1e-5 }", columns=columns, top=STATE)
    rel = policed(open_party(file)).sql("SELECT credit FROM cards")
    return rel.describe(privacy=tp.Privacy(feature_epsilon=epsilon, delta=1e-6)).to_arrow()["mean"][0].as_py()


STATE = 'state_dir = "state"'
CASES = [
    Advice(
        "where the model was fitted; select ",
        lambda shop: predicted(shop, "lower(o.city)"),
        lambda shop: same(predicted(shop, "o.City"), predicted(shop, "o.city")),
    ),
    Advice(
        "is the label, and feature_epsilon is about features",
        partial(noisy, column="cost"),
        lambda shop: [noisy(shop, "cost", None), noisy(shop)],
    ),
    Advice("and no other setting; set those two only", partial(noisy, label_epsilon=2.0), noisy),
    Advice(
        "nothing was spent; use a smaller epsilon",
        partial(budgeted, epsilon=3.0),
        lambda shop: -9 <= budgeted(shop, 1.5) <= 9,
    ),
    Advice(
        "stratify needs a label: name a selected column",
        lambda shop: shop.sql("o.price, o.city", None).split(stratify=True),
        lambda shop: len(shop.sql("o.price, o.city", "city").split(stratify=True)) == 2,
    ),
    Advice(
        "filter them, or make them NULL with CASE",
        lambda shop: fitted(shop, "o.odd, o.cost"),
        lambda shop: (
            means_and_slope(fitted(shop, "o.odd, o.cost", more=FINITE), finite(shop).odd, finite(shop).cost)
            and fitted(shop, "CASE WHEN isfinite(o.odd) THEN o.odd END AS odd, o.cost")
        ),
    ),
    Advice(
        "has values that are not finite; filter them in WHERE",
        lambda shop: fitted(shop, "o.price, o.odd", "odd"),
        lambda shop: means_and_slope(
            fitted(shop, "o.price, o.odd", "odd", more=FINITE), finite(shop).price, finite(shop).odd
        ),
    ),
    Advice(
        "has NaN or infinite values; filter them in WHERE",
        lambda shop: shop.sql("o.odd", None).histogram("odd"),
        lambda shop: same(
            shop.sql("o.odd", None, FINITE).histogram("odd", 10).counts, np.histogram(finite(shop).odd)[0]
        ),
    ),
    Advice(
        "has NaN, infinite or huge values; filter them in WHERE",
        lambda shop: shop.sql("o.odd, o.price", None).correlation(columns=["odd", "price"]),
        lambda shop: same(
            shop.sql("o.odd, o.price", None, FINITE).correlation()["odd", "price"],
            finite(shop).odd.corr(finite(shop).price),
        ),
    ),
    Advice(
        "add WHERE {} IS NOT NULL".split("{}")[0],
        lambda shop: shop.sql("o.price, o.gap", None).split(by="gap", after=20),
        lambda shop: len(shop.sql("o.price, o.gap", None, "WHERE o.gap IS NOT NULL").split(by="gap", after=20)[0]) > 0,
    ),
    Advice(
        "rows; add WHERE ",
        lambda shop: fitted(shop, "o.price, o.gap * 2 AS gap", "gap"),
        lambda shop: means_and_slope(
            fitted(shop, "o.price, o.gap * 2 AS gap", "gap", more="WHERE (o.gap * 2) IS NOT NULL"),
            shop.joined.price[shop.joined.gap.notna()],
            2 * shop.joined.gap.dropna().astype(float),
        ),
    ),
    Advice(
        "learn it in a larger unit, or its LOG",
        lambda shop: fitted(shop, "o.price, o.huge", "huge"),
        lambda shop: means_and_slope(
            fitted(shop, "o.price, o.huge / 1e200 AS huge", "huge"), shop.joined.price, shop.joined.huge / 1e200
        ),
    ),
    Advice(
        "regression needs a number; use a classifier",
        lambda shop: fitted(shop, "o.price, o.city", "city"),
        lambda shop: (
            fitted(shop, "o.price, o.city", "city", tp.LogisticRegression()).classes_.tolist()
            == ["Bonn", "Paris", "Rome"]
        ),
    ),
    Advice(
        "divide it in SELECT, or filter them",
        lambda shop: fitted(shop, "o.huge, o.cost"),
        lambda shop: means_and_slope(
            fitted(shop, "o.huge / 1e200 AS huge, o.cost"), shop.joined.huge / 1e200, shop.joined.cost
        ),
    ),
    Advice(
        "has no correlation; leave it out",
        lambda shop: shop.sql("o.same, o.price, o.cost", None).correlation(columns=["same", "price", "cost"]),
        lambda shop: same(
            shop.sql("o.same, o.price, o.cost", None).correlation(columns=["price", "cost"])["price", "cost"],
            shop.joined.price.corr(shop.joined.cost),
        ),
    ),
    Advice(
        "which has no categories; CAST or round it in SELECT",
        lambda shop: shop.sql("o.price, o.city", None).crosstab("price", "city"),
        rounded,
    ),
    Advice(
        "may be counted (max_categories of fed.sql); group them in SELECT",
        lambda shop: shop.sql("o.note, o.city", None, max_categories=50).crosstab("note", "city"),
        grouped_notes,
    ),
    Advice(
        "which is no number; CAST it in SELECT",
        lambda shop: shop.sql("o.city, o.price", None).correlation(columns=["city", "price"]),
        numbers_of_cities,
    ),
    Advice(
        "crosstab: name two different columns",
        lambda shop: shop.rel.crosstab("city", "city"),
        lambda shop: same(shop.rel.crosstab("city", "brand").counts.sum(), 120),
    ),
    Advice(
        "group_means: name two different columns",
        lambda shop: shop.rel.group_means("quantity", "quantity"),
        lambda shop: shop.rel.group_means("price", "city"),
    ),
    Advice(
        "select it, or name the alias of a table whose rows stay together",
        lambda shop: shop.rel.split(by="day"),
        lambda shop: (
            sum(map(len, shop.sql("o.price, o.day", None).split(by="day"))) == 120
            and sum(map(len, shop.rel.split(by="i"))) == 120
        ),
    ),
    Advice(
        "write bounds={{}}, or columns=[...] without them".split("{{}}")[1],
        lambda shop: shop.sql("o.price, o.quantity", None).describe(privacy=PRIVACY),
        lambda shop: (
            abs(
                shop.sql("o.price, o.quantity", None)
                .describe(privacy=PRIVACY, bounds=BOUNDS)
                .to_arrow()["mean"][1]
                .as_py()
                - 3
            )
            < 2
        ),
    ),
    Advice(
        "CAST it in SELECT, or make numbers of it by an earlier step",
        lambda shop: encoded(shop, "o.city", tp.prep.Standardize(columns=["city"])),
        lambda shop: same(
            encoded(shop, "o.city", tp.prep.Recode(), tp.prep.Standardize(columns=["city"])).std(axis=0), 1.0
        ),
    ),
    Advice(
        "put it before all other steps",
        lambda shop: encoded(shop, "o.price", tp.prep.Standardize(), tp.prep.Map("ln(x)", columns=["price"])),
        lambda shop: same(
            np.sort(encoded(shop, "o.price", tp.prep.Map("ln(x)", columns=["price"]))[:, 0]),
            np.sort(np.log(shop.joined.price)),
        ),
    ),
    Advice(
        "is changed by an earlier step; put DateParts first",
        lambda shop: encoded(shop, "o.day", tp.prep.Standardize(columns=["day"]), tp.prep.DateParts(columns=["day"])),
        lambda shop: encoded(shop, "o.day", tp.prep.DateParts(columns=["day"]), tp.prep.Standardize()),
    ),
    Advice(
        "is changed by an earlier step; put strategy='mode' first",
        lambda shop: encoded(shop, "o.gap", tp.prep.Standardize(), tp.prep.Impute("mode", columns=["gap"])),
        filled_first,
    ),
    Advice(
        "learn one class against the others: SELECT label = 'class' AS label",
        lambda shop: fitted(
            shop, "o.city, o.kind", "kind", tp.LogisticRegression(), prep=[tp.prep.TargetEncode(columns=["city"])]
        ),
        lambda shop: fitted(
            shop,
            "o.city, o.kind = 'a' AS kind",
            "kind",
            tp.LogisticRegression(),
            prep=[tp.prep.TargetEncode(columns=["city"])],
        ),
    ),
    Advice(
        "and the query has none: name a selected column, fed.sql(..., label='column')",
        lambda shop: encoded(shop, "o.city, o.cost", tp.prep.TargetEncode(columns=["city"])),
        lambda shop: fitted(shop, "o.city, o.cost", prep=[tp.prep.TargetEncode(columns=["city"])]),
    ),
    Advice(
        "compare it in SELECT, as x > 3 AS label",
        lambda shop: fitted(shop, "o.city, o.cost", prep=[tp.prep.WOE(columns=["city"])]),
        lambda shop: fitted(
            shop, "o.city, o.cost > 3 AS high", "high", tp.LogisticRegression(), prep=[tp.prep.WOE(columns=["city"])]
        ),
    ),
    Advice(
        "so its weight is not finite; set smooth above 0",
        lambda shop: fitted(
            shop,
            "o.city, o.city = 'Bonn' AS bonn",
            "bonn",
            tp.LogisticRegression(),
            prep=[tp.prep.WOE(columns=["city"], smooth=0)],
        ),
        lambda shop: fitted(
            shop,
            "o.city, o.city = 'Bonn' AS bonn",
            "bonn",
            tp.LogisticRegression(),
            prep=[tp.prep.WOE(columns=["city"], smooth=0.5)],
        ),
    ),
    Advice(
        "put it before Impute, or leave min_count and max_categories out",
        lambda shop: encoded(shop, "o.city", tp.prep.Impute("constant", "z"), tp.prep.OneHot(min_count=50)),
        lambda shop: (
            encoded(shop, "o.city", tp.prep.OneHot(min_count=50), tp.prep.Impute("constant", "z")).shape[1]
            and encoded(shop, "o.city", tp.prep.Impute("constant", "z"), tp.prep.OneHot()).sum() == 120
        ),
    ),
    Advice(
        "which there is already; rename that in SELECT",
        lambda shop: encoded(shop, "o.gap, o.price AS gap_missing", tp.prep.Impute(indicator=True, columns=["gap"])),
        lambda shop: (
            encoded(shop, "o.gap, o.price AS price", tp.prep.Impute(indicator=True, columns=["gap"])).shape == (120, 3)
        ),
    ),
    Advice(
        "use Recode, which numbers them by frequency",
        lambda shop: bank(shop, "region, credit", tp.prep.Ordinal(columns=["region"])).matrix(),
        lambda shop: bank(shop, "region, credit", tp.prep.Recode(columns=["region"])).matrix().shape == (60, 2),
    ),
    Advice(
        "use strategy='median', which fills with another number",
        lambda shop: bank(shop, "credit, open", tp.prep.Impute("mode", columns=["credit"])).matrix(),
        lambda shop: bank(shop, "credit, open", tp.prep.Impute("median", columns=["credit"])).matrix(),
    ),
    Advice(
        "sends the category of each row as one number, which the table does not allow; use OneHot",
        lambda shop: tp.LogisticRegression().fit(
            bank(shop, "region, fraud", tp.prep.TargetEncode(columns=["region"]), label="fraud")
        ),
        lambda shop: tp.LogisticRegression().fit(
            bank(shop, "region, fraud", tp.prep.OneHot(columns=["region"]), label="fraud")
        ),
    ),
    Advice(
        "in each, and there are fewer; take fewer folds, or folds=1",
        lambda shop: tp.LogisticRegression().fit(
            bank(shop, "region, fraud", tp.prep.TargetEncode(columns=["region"], folds=20), label="fraud", table=SENT)
        ),
        lambda shop: [
            tp.LogisticRegression().fit(
                bank(
                    shop, "region, fraud", tp.prep.TargetEncode(columns=["region"], folds=n), label="fraud", table=SENT
                )
            )
            for n in (5, 1)
        ],
    ),
    Advice(
        "write two queries, one WHERE the column is before that time and one WHERE it is not",
        lambda shop: bank(shop, "credit, open", uses='credit = ["feature", "filter"]').split(by="credit", after=0),
        two_queries,
    ),
    Advice(
        "it learns from true labels; use OneHot or Recode",
        lambda shop: fitted(
            shop,
            "o.city, o.cost",
            learner=tp.LinearRegression(privacy=PRIVACY),
            prep=[tp.prep.TargetEncode(columns=["city"])],
        ),
        lambda shop: [
            fitted(shop, "o.city, o.cost", learner=tp.LinearRegression(privacy=PRIVACY), prep=[step])
            for step in (tp.prep.OneHot(), tp.prep.Recode())
        ],
    ),
    Advice(
        "with label_epsilon leave it out, or use OneHot",
        lambda shop: fitted(
            shop,
            "o.city, o.cost",
            learner=tp.LinearRegression(privacy=NOISY_LABEL),
            prep=[tp.prep.TargetEncode(columns=["city"])],
        ),
        lambda shop: fitted(
            shop, "o.city, o.cost", learner=tp.LinearRegression(privacy=NOISY_LABEL), prep=[tp.prep.OneHot()]
        ),
    ),
    Advice(
        "learn it with a regressor, or group",
        lambda _: tp.LogisticRegression().fit(many("n")),
        lambda _: [
            tp.LinearRegression().fit(many("n")),
            tp.LogisticRegression().fit(many("CASE WHEN n < 500 THEN 'few' ELSE 'many' END AS n")),
        ],
    ),
    Advice(
        "give low, high or both, as numbers",
        lambda _: tp.prep.Clip(),
        lambda shop: encoded(shop, "o.price", tp.prep.Clip(high=2.0)).max() == 2.0,
    ),
    Advice(
        "list it in categorical, or CAST it in SELECT",
        lambda shop: encoded(shop, "o.quantity", tp.prep.OneHot(columns=["quantity"])),
        lambda shop: same(
            encoded(shop, "o.quantity", tp.prep.OneHot(columns=["quantity"]), categorical=["quantity"]).sum(axis=0),
            encoded(shop, "CAST(o.quantity AS VARCHAR) AS quantity", tp.prep.OneHot()).sum(axis=0),
        ),
    ),
    Advice(
        "name its columns, as columns=[...]",
        lambda _: tp.prep.Map("ln(x)"),
        lambda shop: same(
            encoded(shop, "o.price", tp.prep.Map("ln(x)", columns=["price"])).sum(), np.log(shop.joined.price).sum()
        ),
    ),
    Advice(
        "which there is already; give another name_as",
        lambda shop: encoded(shop, "o.price, o.gap AS price_rate", tp.prep.Map("ln(x)", "rate", columns=["price"])),
        lambda shop: (
            encoded(shop, "o.price, o.gap AS price_rate", tp.prep.Map("ln(x)", "ln", columns=["price"])).shape
            == (120, 2)
        ),
    ),
    *(
        Advice(says, by_steps(refused), by_steps(*advised))
        for says, refused, advised in (
            ("use Bin(n, 'width'), which cuts between bounds", tp.prep.Bin(4, "height"), [tp.prep.Bin(4, "width")]),
            ("use Clip with bounds that you know", tp.prep.Winsorize(), [tp.prep.Clip(0, 3)]),
            (
                "use Outliers('sd', ...), or Clip with bounds that you know",
                tp.prep.Outliers(),
                [tp.prep.Outliers("sd"), tp.prep.Clip(0, 3)],
            ),
            (
                "use strategy 'mean', or 'constant' with fill",
                tp.prep.Impute("median"),
                [tp.prep.Impute("mean"), tp.prep.Impute("constant", 0.0)],
            ),
            ("use Standardize or MinMax", tp.prep.Robust(), [tp.prep.Standardize(), tp.prep.MinMax()]),
        )
    ),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_returns_what_was_asked_for(shop: Shop, case: Advice) -> None:
    """The same as pandas and NumPy return for the joined rows, where there is such a number; else it works."""
    case.follow(shop)


WARNING = "a warning: the column is left out, and the query goes on"
OWN_REQUEST = "an analyst's own request, which this package does not write so"
OTHERS = {
    "bounds and max_times are for noise: set privacy=": "as in tests/learn/test_advice.py",
    "divide it by a number in SELECT, or filter them in WHERE": "followed in tests/prep/test_histogram_extremes.py",
    "shift it towards 0, or multiply it, in SELECT": "followed in tests/prep/test_histogram_extremes.py",
    "name up to {} categories by digests of 16 bytes": OWN_REQUEST,
    "name up to {} buckets of the columns named": OWN_REQUEST,
    "name each bucket once": OWN_REQUEST,
    "groups have two columns, and pool digests of 16 bytes": OWN_REQUEST,
    "holds no numbers; cast it in SELECT, or list it as categorical": OWN_REQUEST,
    "list it in categorical to keep it": WARNING,
    "unless it is a measure, leave it out: drop=[{}]": "a warning: the column is kept",
    "or more categories; raise max_categories ({}) or use an expression": WARNING,
    "and so without mean and other numbers: {}; filter them in WHERE": WARNING,
    "noise hides it: use more rows, a larger epsilon or fewer columns": "by how much depends on noise",
    "has counts of single groups only with noise of half a row's part or more": OWN_REQUEST,
    "comparing columns of two tables sends each as one number per row": "columns of one table are those of other cases",
    "would reach party {}, which the label's table does not allow; use OneHot": "as cross_statistics, whose case is",
    "too wide for a Gram matrix": "needs a table of more encoded columns than a test should have",
    "at most {} columns at once; name some by columns=[...]": "needs more columns than a test should have",
    "put the step before that one, or name its columns": "with noise only, where order statistics are not asked for",
    "names of categories have none; use OneHot or Recode": "as TargetEncode, whose case uses both",
    "put it before Impute": "as OneHot",
    "leave such columns out of SELECT": "nothing is asked for then",
    "leave it out, or compute what you need in SELECT": "nothing is asked for then",
    "too many for {} folds; take fewer folds": "needs more categories than a test should have",
    "multiply or divide it in SELECT, or leave it out": "no columns of doubles are known that are not constant then",
}


def test_every_advice_is_tried() -> None:
    """An error of the package that advises something has a case, or it is said why not."""
    check_all_are_tried(["prep"], CASES, OTHERS)
