"""`profile`: the warnings that joined rows deserve, on a page that stands alone and tells what policies allow."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

import tablepuppet as tp
from tablepuppet.cli.commands import app
from tablepuppet.prep.explore.histograms import histograms
from tablepuppet.prep.explore.profile_page import LETTER, WIDTH, Against, _beside
from tests.party.policed import CANARY, COLUMNS, PIN, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import federation, warnings_of, write_party

SQL = 'SELECT o.*, i.weight AS "<b>weight</b>" FROM orders o JOIN items i USING (item)'


def tables() -> dict[str, dict[str, pa.Table]]:
    """Orders with one column for each warning."""
    rng, row = np.random.default_rng(0), np.arange(600)
    returned = row % 3 == 0
    orders = {
        "item": row % 20, "price": rng.normal(size=600), "one": [7.0] * 600,
        "none": pa.array([None] * 600, pa.float64()),
        "tail": rng.lognormal(0, 2, 600), "far": np.where(row < 12, 1e4, rng.normal(size=600)),
        "gap": pa.array([None if i % 2 else float(i) for i in row.tolist()]), "many": [f"m{i}" for i in row],
        "kind": ["<i>rare</i>" if i < 3 else "ab"[i % 2] for i in row],
        "refund": returned * 10.0 + rng.normal(size=600) / 9,
        "state": ["back" if each else "gone" for each in returned], "returned": returned,
    }  # fmt: skip
    return {
        "store": {"orders": pa.table(orders)},
        "shop": {"items": pa.table({"item": np.arange(20), "weight": rng.normal(size=20)})},
    }


def test_bins_of_whole_numbers(tmp_path: Path) -> None:
    """In a profile they end at halves and have as many different numbers each, one where these are few, and the last
    one ends with the greatest number.
    """
    row = np.arange(600)
    orders = pa.table({"few": row % 5 - 2, "many": row % 101, "one": row * 0 + 7, "half": row % 5 / 2})
    relation = federation(tmp_path, {"store": {"orders": orders}}).sql("SELECT * FROM orders")
    found = histograms(relation.client, relation.query.outputs, 10, fits_whole=True)
    few, many, one = (found[name] for name in ("few", "many", "one"))
    assert few.edges.tolist() == [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    assert few.counts.tolist() == [120.0] * 5
    assert set(np.diff(many.edges[:-1])) == {11.0}
    assert many.edges[-1] == 100.5
    assert many.edges[0] == -0.5
    assert len(many.counts) == 10
    np.testing.assert_array_equal(many.counts, np.histogram(row % 101, many.edges)[0])
    assert (one.edges.tolist(), one.counts.tolist()) == ([6.5, 7.5], [600.0])
    assert len(found["half"].counts) == 10
    assert relation.histogram("few", bins=10).edges.tolist() == np.histogram(row % 5 - 2, 10)[1].tolist()


def test_whole_numbers_are_shown_whole(tmp_path: Path) -> None:
    """One line per value where no bin holds two, else the least and the greatest number of each bin; the bins
    themselves are NumPy's. A fraction has bins that meet.
    """
    row = np.arange(600)
    orders = pa.table({"age": row % 5, "year": 2010 + row % 15, "sold": row % 2 == 0, "half": row % 5 / 2})
    relation = federation(tmp_path, {"store": {"orders": orders}}).sql("SELECT * FROM orders")
    age, year = relation.histogram("age"), relation.histogram("year", bins=5)
    assert len(age.counts) == 50
    assert [line[0] for line in age.table_view().rows] == list("01234")
    assert [line[1] for line in age.table_view().rows] == ["120"] * 5
    ends = [["2010", "2012"], ["2013", "2015"], ["2016", "2018"], ["2019", "2021"], ["2022", "2024"]]
    assert [line[:2] for line in year.table_view().rows] == ends
    assert [line[0] for line in relation.histogram("sold").table_view().rows] == ["false", "true"]
    assert relation.histogram("half", bins=2).ends() == [["0", "1"], ["1", "2"]]


def test_equally_frequent_categories_have_one_order(tmp_path: Path) -> None:
    """Digests have a new key in every profile, by which categories would change places, and those shown change."""
    orders = pa.table({"kind": [f"kind {i % 40}" for i in range(600)]})
    relation = federation(tmp_path, {"store": {"orders": orders}}).sql("SELECT * FROM orders")
    first, second = (relation.profile().categories["kind"].names for _ in range(2))
    assert first == second


def test_no_number_is_cut_by_the_edge(tmp_path: Path) -> None:
    """Numbers below bars, about six units wide for each letter, lie within the drawing."""
    orders = pa.table({"year": 1995 + np.arange(600) % 28})
    page = federation(tmp_path, {"store": {"orders": orders}}).sql("SELECT * FROM orders").profile()._repr_html_()
    found = re.findall(r'<text x="([\d.]+)" y="102" text-anchor="middle">(\d+)</text>', page)
    assert found[0][1] == "1995"
    places = [float(x) for x, _ in found]
    assert all(12 <= place <= 288 for place in places)
    assert min(np.diff(places)) > 26  # and none touches the next


def test_sql_breaks_between_words(tmp_path: Path) -> None:
    """Notebooks break what is preformatted anywhere: a page and a card say that words stay whole."""
    relation = federation(tmp_path, {"store": {"orders": pa.table({"year": np.arange(60)})}}).sql(
        "SELECT * FROM orders"
    )
    assert ".tp-profile pre { white-space: pre-wrap; word-break: normal;" in relation.profile()._repr_html_()
    assert re.search(r'<pre style="[^"]*word-break: normal;', relation._repr_html_())


def test_a_logarithm_is_advised_for_a_right_tail_only(tmp_path: Path) -> None:
    """A column with a long tail to the left is said to have one, without that advice: a logarithm makes it longer."""
    tail = np.random.default_rng(0).lognormal(0, 2, 600)
    fed = federation(tmp_path, {"store": {"orders": pa.table({"right": tail, "left": 100 - tail})}})
    told = {
        each.column: each.message
        for each in fed.sql("SELECT * FROM orders").profile().warnings
        if each.kind == "skewed"
    }
    assert re.fullmatch(r"has a long tail to the right \(skew \d+\.\d\); a logarithm may help", told["right"])
    assert re.fullmatch(r"has a long tail to the left \(skew -\d+\.\d\)", told["left"])


def test_warnings_are_those_deserved(tmp_path: Path) -> None:
    """Each column has its warnings and no others; the page needs nothing else and escapes what looks like markup."""
    relation = federation(tmp_path, tables()).sql(SQL, label="returned")
    found = relation.profile()
    told = {(each.column, each.kind) for each in found.warnings}
    assert {column for column, _ in told} == {"one", "none", "tail", "far", "gap", "many", "kind", "refund", "state"}
    assert {
        ("one", "constant"), ("none", "empty"), ("tail", "skewed"), ("far", "outliers"), ("gap", "missing"),
        ("many", "high cardinality"), ("kind", "rare categories"), ("refund", "tells the label"),
        ("state", "tells the label"),
    } <= told  # fmt: skip
    page = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r"https?://|url\(|@import|<link|<img", page)
    assert "&lt;i&gt;rare&lt;/i&gt;" in page
    assert "&lt;b&gt;weight&lt;/b&gt;" in page
    assert "<i>rare" not in page + found._repr_html_()
    assert page.count('aria-label="histogram"') == len(found.histograms) > 5
    assert found.correlations is not None
    assert "price" in found.correlations.columns
    assert "tells the label" in str(found)


def test_the_label_is_marked_and_shown_beside_each_column(tmp_path: Path) -> None:
    """Shares of classes and means are those of the joined rows; warnings lead to the card of their column."""
    rng, row = np.random.default_rng(1), np.arange(600)
    orders = {
        "stars": row % 5, "gift": row % 4 == 0, "price": rng.normal(size=600), "weeks": row % 25,
        "colour": [("red", "blue")[i % 2] for i in row.tolist()], "one": [3] * 600, "returned": row % 3 == 0,
        "year": 2001 + row % 10,
    }  # fmt: skip
    fed = federation(tmp_path, {"store": {"orders": pa.table(orders)}})
    found = fed.sql("SELECT * FROM orders", label="returned").profile()
    returned = np.asarray(orders["returned"])
    stars = found.against["stars"]
    assert stars.caption == "share of returned = true"
    assert stars.names == ["0", "1", "2", "3", "4"]
    shares = [[float(returned[row % 5 == star].mean())] for star in range(5)]
    np.testing.assert_allclose(stars.values, shares)
    assert found.against["year"].names == [str(2001 + year) for year in range(10)]
    assert found.against["gift"].names == ["false", "true"]
    assert sorted(found.against["colour"].names) == ["blue", "red"]
    price = found.against["price"]
    assert (price.caption, price.names) == ("mean of price by returned", ["false", "true"])
    np.testing.assert_allclose(price.values, [[orders["price"][returned == each].mean()] for each in (False, True)])
    page = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<span class="badge">label</span> returned') == 1
    links = re.findall(r'href="#([^"]+)"', page)
    assert len(links) == len(found.warnings) > 0
    assert set(links) <= set(re.findall(r' id="([^"]+)"', page))
    by_number = fed.sql("SELECT * FROM orders", label="price").profile().against
    assert by_number["colour"].caption == "mean of price by colour"
    assert by_number["returned"].names == ["false", "true"]


def test_small_whole_numbers_have_a_bar_each(tmp_path: Path) -> None:
    """Booleans and whole numbers that lie close together are counted one by one; others are not."""
    rng = np.random.default_rng(2)
    for low, high in ((0, 1), (-3, 4), (0, 24), (1990, 2019), (7, 7)):
        whole = rng.integers(low, high + 1, 400)
        folder = tmp_path / f"{low} to {high}"
        folder.mkdir()
        table = pa.table({"n": whole, "b": whole % 2 == 0, "far": whole * 100, "x": whole * 1.0})
        relation = federation(folder, {"p": {"t": table}}).sql("SELECT n, b, far, x FROM t")
        found = relation.profile().histograms
        counted = found["n"].by_value()
        assert counted is not None
        assert {int(n): count for n, count in counted.items()} == {
            n: np.count_nonzero(whole == n) for n in range(int(whole.min()), int(whole.max()) + 1)
        }
        even = {"true": float((whole % 2 == 0).sum()), "false": float((whole % 2 == 1).sum())}
        assert found["b"].by_value() == {name: count for name, count in even.items() if count}
        assert found["x"].by_value() is None
        assert (found["far"].by_value() is None) == (low != high)


def test_a_profile_tells_what_policies_allow(tmp_path: Path) -> None:
    """At level aggregate no value and no category's name is on the page; a table that demands noise has no profile."""
    fed = policed(open_party(write_file(tmp_path)))
    relation = fed.sql("SELECT region, town, credit, few, open, fraud FROM cards", label="fraud")
    page = relation.profile().save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert CANARY not in page
    assert "region0" not in page
    assert "category 0" in page
    assert str(PIN)[:7] not in page
    (tmp_path / "state").mkdir()
    strict = write_file(tmp_path, top='state_dir = "state"', more="[tables.cards.budget]\nrequire_dp = true")
    with pytest.raises(tp.PrivacyError, match="require_dp"):
        policed(open_party(strict)).sql("SELECT credit FROM cards").profile()


def test_a_profile_says_what_policies_withhold(tmp_path: Path) -> None:
    """Beside the label of another table; a boolean has a bar for each value, of which its mean is known."""
    fed = policed(open_party(write_file(tmp_path)))
    sql = "SELECT a.credit > 0 AS rich, b.fraud FROM cards a JOIN cards b ON a.card = b.card"
    page = fed.sql(sql, label="fraud").profile()._repr_html_()
    assert "with fraud: withheld" in page
    assert ">false</text>" in page
    assert ">true</text>" in page


def test_withheld_is_not_unknown(tmp_path: Path) -> None:
    """Of pairs of columns, and beside the label: `withheld` where a policy is the reason, else `not known`."""
    columns = COLUMNS.replace('credit = "feature"', 'credit = ["feature", "label"]')
    fed = policed(open_party(write_file(tmp_path, columns=columns)))
    sql = "SELECT a.credit, b.credit AS other, b.credit * 2 AS twice FROM cards a JOIN cards b ON a.card = b.card"
    found = fed.sql(sql, label="twice").profile()
    assert found.correlations is not None
    assert found.correlations.is_withheld("credit", "other")
    assert not found.correlations.is_withheld("other", "twice")
    assert found.against["credit"].measured == "withheld"
    assert found.against["other"].measured == "correlation 1.00"
    page = found._repr_html_()
    assert "<title>credit, other: withheld</title>" in page
    assert "</svg>withheld by a policy</span>" in page
    assert "- not known" not in page
    rows: dict[str, Any] = {"x": [1.0, 2.0, None, None], "y": [None, None, 1.0, 2.0], "z": [1.0, 2.0, 3.0, 5.0]}
    mine = tp.Federation({"mine": {"t": pa.table(rows)}}).sql("SELECT x, y, z FROM t", label="y").profile()
    assert mine.correlations is not None
    assert "not known" in str(mine.correlations)
    assert mine.against["x"].measured == "not known"
    page = mine._repr_html_()
    assert "<title>x, y: not known</title>" in page
    assert "- not known</span>" in page
    assert "withheld by a policy" not in page


def test_a_refusal_is_withheld(tmp_path: Path) -> None:
    """Under `secure_sum` no products of columns leave: the page has no correlations and says why; means it has."""
    party = open_party(write_file(tmp_path))
    policy = party._guard.policy
    party._guard.policy = replace(policy, tables={"cards": replace(policy.tables["cards"], secure_sum=True)})
    found = policed(party).sql("SELECT region, credit, open, fraud FROM cards", label="fraud").profile()
    assert found.correlations is not None
    assert found.correlations.withheld.all()
    assert [found.against[name].measured for name in ("credit", "open")] == ["withheld", "withheld"]
    assert found.against["region"].caption == "mean of fraud by region"


def test_a_fraction_with_few_values_is_compared(tmp_path: Path) -> None:
    """A label of 0.0 and 1.0 is a number, with means by category and correlations; few rows have neither."""
    fed = policed(open_party(write_file(tmp_path)))
    found = fed.sql("SELECT region, credit, few, fraud FROM cards", label="fraud").profile().against
    assert found["region"].caption == "mean of fraud by region"
    assert found["credit"].measured.startswith("correlation 0.")
    assert (found["few"].caption, found["few"].measured) == ("", "not known")
    found = fed.sql("SELECT region, few, fraud > 0 AS bad FROM cards", label="bad").profile().against
    assert found["region"].caption in ("share of bad = category 0", "share of bad = category 1")
    assert (found["few"].caption, found["few"].measured) == ("", "not known")


def test_no_warnings_are_said(tmp_path: Path) -> None:
    """In a sentence, without an empty table; one warning is one."""
    rng = np.random.default_rng(0)
    orders = pa.table({"price": rng.normal(size=100), "one": [7.0] * 100})
    fed = tp.Federation({"mine": {"orders": orders}})
    found = fed.sql("SELECT price FROM orders").profile()
    told = "Profile of 100 joined rows: no warnings"
    assert str(found) == f"{told}\nsave('page.html') writes all of it"
    console = Console(file=io.StringIO(), width=80)
    console.print(found)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().strip() == told  # commands have saved it
    assert "rows: 1 warning\n" in str(fed.sql("SELECT price, one FROM orders").profile())


def test_dates_beside_bars_are_not_cut() -> None:
    """The bars are shorter where their texts are long."""
    texts = ["2022-03-26 09:15:00"]
    drawn = _beside(Against("", "mean of day by late", ["0"], [[19_000.0]], texts), "late")
    [place] = re.findall(r'<text x="([0-9.]+)" y="11">2022', drawn)
    assert float(place) + LETTER * len(texts[0]) <= WIDTH + 20


def test_small_relations_have_a_profile(tmp_path: Path) -> None:
    """No rows, one row and values that are not finite are no errors; a place that cannot be written is one."""
    rows: dict[str, Any] = {"x": [1.0, np.nan, np.inf], "c": ["a", None, "b"], "k": [1, 2, 3]}
    fed = federation(tmp_path, {"p0": {"t": pa.table(rows)}})
    warnings = warnings_of(fed)
    for where in ("k < 0", "k = 1", "k > 0"):
        assert "joined rows" in fed.sql(f"SELECT x, c, k FROM t WHERE {where}", label="k").profile()._repr_html_()
    assert [each.name for each in warnings if each.name == "profile.part"] == []
    with pytest.raises(tp.ConfigError, match="cannot be written"):
        fed.sql("SELECT k FROM t").profile().save(tmp_path / "nowhere" / "page.html")


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    """`tablepuppet profile` says where it is, and what it warns of."""
    parties = {name: write_party(tmp_path, name, published) for name, published in tables().items()}
    lines = [
        f'[parties]\n{name} = "{url}"' if i == 0 else f'{name} = "{url}"'
        for i, (name, url) in enumerate(parties.items())
    ]
    (tmp_path / "federation.toml").write_text("\n".join(lines))
    asked = ["profile", str(tmp_path / "federation.toml"), "SELECT tail FROM orders", "--json"]
    done = CliRunner().invoke(app, [*asked, "--output", str(tmp_path / "p.html")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (tmp_path / "p.html").exists()
    assert ["tail", "skewed"] in [row[:2] for row in told["warnings"]]


def test_ids_and_copies_are_warned_of(tmp_path: Path) -> None:
    """Whole numbers that are unique in their table, however often they are joined, and a column that is another one;
    not the label, few values, fractions, nor a column that a star leaves out because tables are joined by it.
    """
    rng, row = np.random.default_rng(0), np.arange(300)
    grams = rng.normal(size=60)
    parties = {
        "store": {
            "orders": pa.table({"order_id": row, "item": row % 60, "hour": row % 24, "price": rng.normal(size=300)})
        },
        "shop": {"items": pa.table({"item": np.arange(60), "code": 7 * np.arange(60), "g": grams, "kg": grams / 1000})},
    }
    relation = federation(tmp_path, parties).sql("SELECT * FROM orders o JOIN items i USING (item)", label="price")
    assert "item" not in relation.columns
    told = {(each.column, each.kind) for each in relation.profile().warnings}
    assert told == {("order_id", "unique"), ("code", "unique"), ("kg", "duplicate")}
