"""Statistics with a `Privacy`: near the truth, honest about their noise, and paid for before rows are looked at."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tablepuppet as tp
from tablepuppet.cli.commands import app
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import ColumnRule
from tablepuppet.prep.columns.noisy_sums import BINS, CATEGORIES, COUNTS, MOMENTS
from tablepuppet.prep.explore.describe import Description
from tablepuppet.prep.explore.noisy_distribution import COARSE, FINE, NoisyDistribution
from tablepuppet.privacy.accountant import gaussian_epsilon
from tests.learn.test_checks import World
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.privacy.bounded import bounded_federation
from tests.relations import Parties, federation, record_wire, warnings_of, write_party

ORDERS, ITEMS = 6000, 300
SQL = "SELECT o.age, o.paid, o.day, o.member, o.town, i.weight, o.y FROM orders o JOIN items i USING (item)"
BOUNDS = {"age": (0, 120), "paid": (-50.0, 400.0), "day": (date(2015, 1, 1), "2026-01-01"), "weight": (0, 1)}
LITTLE = tp.Privacy(feature_epsilon=2e3)  # next to no noise
USUAL = tp.Privacy(feature_epsilon=1.0)


def tables(shards: int = 1) -> Parties:
    """Orders of items; an item is ordered up to 348 times."""
    rng = np.random.default_rng(4)
    paid = np.where(rng.random(ORDERS) < 0.25, np.nan, rng.gamma(2, 40, ORDERS))
    orders = pa.table(
        {
            "item": (ITEMS * rng.random(ORDERS) ** 2).astype(int), "age": rng.normal(45, 15, ORDERS).round(),
            "paid": pa.array(paid, from_pandas=True),
            "day": pa.array(rng.integers(17_000, 19_500, ORDERS).astype(np.int32)).cast(pa.date32()),
            "member": rng.random(ORDERS) < 0.3, "town": rng.choice(["north", "south"], ORDERS, p=[0.8, 0.2]),
            "y": rng.normal(size=ORDERS),
        }
    )  # fmt: skip
    items = {"item": np.arange(ITEMS), "weight": rng.random(ITEMS)}
    cut = ORDERS // 3 if shards == 2 else ORDERS
    parties = {"p": {"orders": orders[:cut]}, "q": {"orders": orders[cut:]}}
    return {**(parties if shards == 2 else {"p": parties["p"]}), "s": {"items": pa.table(items)}}


def described(relation: Any, **asked: Any) -> dict[str, dict[str, Any]]:
    """By column."""
    found = relation.describe(**asked)
    assert isinstance(found, Description)
    assert found.spent is not None
    return {row["column"]: row for row in found.to_arrow().to_pylist()}


@pytest.mark.parametrize("shards", [1, 2])
def test_with_little_noise_they_are_those_of_the_joined_rows(tmp_path: Path, shards: int) -> None:
    """Counts, means and deviations are those of `describe` to 1 %, quartiles to a bin, joined rows counted as often as
    they are joined; values beyond bounds count as the bound.
    """
    relation = federation(tmp_path, tables(shards)).sql(SQL, label="y")
    exact = {row["column"]: row for row in relation.describe().to_arrow().to_pylist()}
    noisy = described(relation, privacy=LITTLE, bounds=BOUNDS)
    assert list(noisy) == ["age", "paid", "day", "member", "town", "weight"]
    for name, row in noisy.items():
        assert row["count"] == pytest.approx(exact[name]["count"], abs=5 * row["count_noise"])
        assert row["count"] + row["missing"] == len(relation)
        if name != "town":
            assert row["mean"] == pytest.approx(exact[name]["mean"], rel=0.01)
            assert row["std"] == pytest.approx(exact[name]["std"], rel=0.02)
            for quartile in (
                ("q25", "median", "q75") if name != "member" else ()
            ):  # a boolean is in the first or last bin
                far = 2 * (row["bound_high"] - row["bound_low"]) / FINE
                assert row[f"{quartile}_low"] - far <= exact[name][quartile] <= row[f"{quartile}_high"] + far
                assert row[f"{quartile}_low"] <= row[quartile] <= row[f"{quartile}_high"]


def test_a_row_counts_at_most_so_often(tmp_path: Path) -> None:
    """With ``max_times=1`` statistics are those of the rows that take part, and noise is that of one row."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    once = described(relation, columns=["weight"], privacy=LITTLE, bounds=BOUNDS, max_times=1)["weight"]
    often = described(relation, columns=["weight"], privacy=LITTLE, bounds=BOUNDS)["weight"]
    most = int(relation.mapping.counts("i").max())
    assert once["count"] + once["missing"] == relation.mapping.tables["i"].rows
    assert often["count"] + often["missing"] == len(relation)
    assert often["count_noise"] == pytest.approx(most * once["count_noise"])


def test_histograms_are_numpys_with_noise(tmp_path: Path) -> None:
    """Between the bounds, in as many bins as were asked for; the noise of a count is stated."""
    relation = federation(tmp_path, tables(2)).sql(SQL, label="y")
    found = relation.histogram("age", 12, privacy=USUAL, bounds=(0, 120))
    ages = np.concatenate([part["orders"]["age"].to_numpy() for part in tables(2).values() if "orders" in part])
    counts, edges = np.histogram(ages.clip(0, 120), 12, (0, 120))
    np.testing.assert_allclose(found.edges, edges)
    assert found.noise == pytest.approx(math.sqrt(2) * 3.73, rel=0.01)  # each of two shards adds that of epsilon 1
    assert np.abs(found.counts - counts).max() < 5 * found.noise
    assert not found.exact
    assert found.spent is not None
    assert found.spent.epsilon == pytest.approx(1.0, rel=1e-5)
    assert "each count ± 5.28; epsilon 1 at delta 1e-05" in str(found)


def test_stated_noise_is_what_is_seen(tmp_path: Path) -> None:
    """Over 60 relations, each paid for anew, counts, means, deviations and bins vary as much as is stated."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    runs = [described(relation, columns=["paid"], privacy=USUAL, bounds=BOUNDS)["paid"] for _ in range(60)]
    for name, noise in (("mean", "mean_noise"), ("std", "std_noise")):
        assert np.std([row[name] for row in runs]) == pytest.approx(np.mean([row[noise] for row in runs]), rel=0.35)
    counts = [row["count"] for row in runs]
    assert np.std(counts) == pytest.approx(runs[0]["count_noise"], rel=0.35)
    bins = [relation.histogram("paid", 4, privacy=USUAL, bounds=(0, 400)) for _ in range(60)]
    spread = np.std([each.counts for each in bins], axis=0)
    np.testing.assert_allclose(spread, bins[0].noise, rtol=0.35)


def test_intervals_of_quantiles_hold() -> None:
    """At two deviations of noise the true quantile is inside nine times of ten or more; noise in ranks is as stated."""
    rng = np.random.default_rng(0)
    values, sigma, shares = np.clip(rng.gamma(2, 10, 20_000), 0, 120), 40.0, [0.05, 0.25, 0.5, 0.75, 0.95]
    fine = np.histogram(values, FINE, (0, 120))[0].astype(float)
    coarse = fine.reshape(COARSE, -1).sum(axis=1)
    true, held, below = np.quantile(values, shares), [], []
    for _ in range(200):
        noise = rng.normal(size=COARSE + FINE) * sigma
        found = NoisyDistribution(0.0, 120.0, coarse + noise[:COARSE], fine + noise[COARSE:], sigma)
        told = np.array([found.quantile(share) for share in shares])
        held.append((told[:, 1] <= true) & (true <= told[:, 2]))
        below.append(found.counts[:100].sum())
        assert (np.diff(found.below) >= 0).all()
        assert (np.diff(told[:, 0]) >= 0).all()
    assert (np.mean(held, axis=0) > 0.9).all()
    assert np.std(below) == pytest.approx(math.sqrt(float(found._variance(100.0))), rel=0.15)


def test_intervals_of_quantiles_hold_where_rows_are_few() -> None:
    """In the tail of 5,000 exponential rows too: nineteen times of twenty or more."""
    rng = np.random.default_rng(1)
    values, sigma, shares = np.clip(rng.exponential(10, 5_000), 0, 120), 25.0, [0.1, 0.5, 0.95]
    fine = np.histogram(values, FINE, (0, 120))[0].astype(float)
    coarse = fine.reshape(COARSE, -1).sum(axis=1)
    true, held = np.quantile(values, shares), []
    for _ in range(400):
        noise = rng.normal(size=COARSE + FINE) * sigma
        found = NoisyDistribution(0.0, 120.0, coarse + noise[:COARSE], fine + noise[COARSE:], sigma)
        told = np.array([found.quantile(share) for share in shares])
        assert (told[:, 1] <= told[:, 0]).all()
        assert (told[:, 0] <= told[:, 2]).all()
        held.append((told[:, 1] <= true) & (true <= told[:, 2]))
    assert (np.mean(held, axis=0) >= 0.95).all()


def test_noise_of_ranks_is_as_stated() -> None:
    """At edges of coarse bins and between them, for the sum below an edge less a share of the total."""
    rng, sigma, share = np.random.default_rng(2), 3.0, 0.3
    runs = []
    for _ in range(2000):
        noise = rng.normal(size=COARSE + FINE) * sigma
        found = NoisyDistribution(0.0, 1.0, noise[:COARSE], noise[COARSE:], sigma)
        runs.append(found._beyond_rank(share)[0])
    stated = found._beyond_rank(share)[1]
    np.testing.assert_allclose(np.std(runs, axis=0), stated, rtol=0.1)


def test_bounds_are_taken_from_arrays(tmp_path: Path) -> None:
    """Of numbers, and of dates."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    found = relation.histogram("age", 12, privacy=USUAL, bounds=np.array([0, 120]))
    np.testing.assert_allclose(found.edges, np.linspace(0, 120, 13))
    days = np.array(["2015-01-01", "2026-01-01"], "datetime64[D]")
    found = relation.histogram("day", 4, privacy=USUAL, bounds=days)
    np.testing.assert_allclose(found.edges[[0, -1]], days.astype(int))


def test_facts_of_a_column_that_is_not_described(tmp_path: Path) -> None:
    """An error that lists those that are."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    found = relation.describe(["age"], privacy=USUAL, bounds=BOUNDS)
    with pytest.raises(tp.LearnError, match="'nope' is no described column; there are 'age'"):
        found.facts("nope")


def test_what_noise_hides_is_not_told(tmp_path: Path) -> None:
    """Where noise is larger than the rows, there are no means and quantiles, and the table says why."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    tiny = tp.Privacy(feature_epsilon=0.01)
    found = relation.describe(["weight"], privacy=tiny, bounds=BOUNDS)
    [row] = found.to_arrow().to_pylist()
    assert [row[name] for name in ("mean", "std", "median")] == [None] * 3
    assert "hidden by noise" in str(found)
    assert math.isnan(relation.quantile(0.5, ["weight"], privacy=tiny, bounds=BOUNDS)["weight"][0])
    assert "hidden by noise" in str(relation.quantile(0.5, ["weight"], privacy=tiny, bounds=BOUNDS))


def test_null_records_count_as_missing(tmp_path: Path) -> None:
    """A row whose cells are all NULL has no value, whatever COALESCE or CASE makes of it."""
    fed = federation(tmp_path, tables())
    sql = "SELECT COALESCE(paid, -1) AS filled, CASE WHEN paid > 50 THEN 1 ELSE 0 END AS much, paid FROM orders"
    bounds = {"filled": (-50, 400), "much": (0, 1), "paid": (-50, 400)}
    found = described(fed.sql(sql), privacy=LITTLE, bounds=bounds)
    assert found["filled"]["count"] == pytest.approx(found["paid"]["count"], abs=5)
    assert found["filled"]["mean"] == pytest.approx(found["paid"]["mean"], rel=0.01)
    assert found["much"]["count"] == pytest.approx(found["paid"]["count"], abs=5)


def test_a_profile_shows_what_has_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histograms, missing values and frequent categories with noise in one trip, no text of a category, no label; the
    page says what it has cost and what is left out.
    """
    relation = federation(tmp_path, tables(2)).sql(SQL, label="y")
    len(relation)
    messages = record_wire(monkeypatch)
    found = relation.profile(privacy=USUAL, bounds=BOUNDS)
    asked = {message.request.op for message in messages}
    assert asked == {"rows.use", BINS, COUNTS, MOMENTS, CATEGORIES}
    assert set(found.histograms) == {"age", "paid", "day", "member"}  # noise hides items: one of them is in 348 rows
    assert found.correlations is None
    assert [(each.column, each.kind) for each in found.warnings] == [("paid", "missing"), ("weight", "hidden")]
    page = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "All numbers have noise: epsilon 1 at delta 1e-05" in page
    assert "Left out: min, max" in page
    assert "category 0" in page
    assert "north" not in page
    assert "with noise: epsilon 1" in str(found).replace("\n", " ")
    assert page.count('aria-label="histogram"') == 4


def test_categories_that_a_policy_lists_are_counted(tmp_path: Path) -> None:
    """With noise, whether a row has them or not; they need nothing of delta."""
    rules = {"town": ColumnRule(categories=("north", "south", "west"))}
    fed = bounded_federation(tmp_path, tables(), rules)
    relation = fed.sql("SELECT town FROM orders")
    found = relation.profile(privacy=USUAL)
    bars = found.categories["town"]
    assert bars.counts[:2] == pytest.approx([0.8 * ORDERS, 0.2 * ORDERS], rel=0.05)
    assert found.spent is not None
    assert found.spent.releases == {"orders": 2}


def test_bounds_of_policies_are_used(tmp_path: Path) -> None:
    """Where all policies have bounds, none need be given; booleans have their own."""
    rules = {"age": ColumnRule(bounds=(0.0, 100.0)), "paid": ColumnRule(bounds=(0.0, 500.0))}
    relation = bounded_federation(tmp_path, tables(2), rules).sql("SELECT age, paid, member, day FROM orders")
    found = relation.quantile([0.1, 0.9], ["age", "member"], privacy=USUAL)
    assert 20 < found["age"][0] < 32 < found["age"][1] < 70
    assert found.to_arrow().column_names[-2:] == ["low", "high"]
    with pytest.raises(
        tp.PrivacyError, match=r"quantile: noise needs bounds of 'day': .*bounds=\{'day': \(low, high\)"
    ):
        relation.quantile(0.5, privacy=USUAL)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"bounds": {"age": (5, 5)}}, r"bounds of 'age' are a low and a higher number, such as \(0, 120\)"),
        ({"bounds": {"age": (math.nan, 5)}}, "a low and a higher number"),
        ({"bounds": {"age": (-math.inf, 5)}}, "a low and a higher number"),
        ({"bounds": {"age": (0, 1e300)}}, "a low and a higher number"),
        ({"bounds": {"age": 120}}, "a low and a higher number"),
        ({"bounds": {"day": ("today", "2026-01-01")}}, "such as \\('2020-01-01', '2025-01-01'\\)"),
        ({"bounds": {"day": (2020, 2022)}}, "such as \\('2020-01-01', '2025-01-01'\\), and no plain numbers"),
        ({"bounds": {"day": ("2020-01-01", 19_000.0)}}, "two dates, the earlier one first"),
        ({"bounds": {"agee": (0, 1)}}, "'agee' is no selected column; did you mean 'age'"),
        ({"bounds": {"town": (0, 1)}}, "column 'town' is VARCHAR, which is no number"),
        ({"bounds": [0, 1]}, "bounds is a dict"),
        ({"bounds": {}}, r"needs bounds of 'age', 'paid', 'day', 'weight'"),
        ({"columns": "age"}, r"columns is a list of names, such as columns=\['age'\]"),
        ({"columns": ["y"]}, "'y' is the label, and feature_epsilon is about features"),
        ({"max_times": 0}, "max_times is how often a row counts at most"),
        ({"max_times": True}, "max_times is how often a row counts at most"),
        ({"privacy": tp.Privacy(label_epsilon=1.0)}, "feature_epsilon=..., delta=...\\) and no other setting"),
        ({"privacy": tp.Privacy(feature_epsilon=1.0, prediction_epsilon=1.0)}, "no other setting"),
        ({"privacy": tp.Privacy(secure_sum=True)}, "no other setting"),
        ({"privacy": 1.0}, "must be tp.Privacy"),
        ({"privacy": tp.Privacy(feature_epsilon=1.0, delta=0.01)}, "is not below one over the 6,000 rows"),
        ({"privacy": None}, "bounds and max_times are for noise"),
    ],
)
def test_bad_input(tmp_path: Path, asked: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that says what to write, before a party is asked for anything."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    len(relation)
    messages = record_wire(monkeypatch)
    with pytest.raises(tp.TablePuppetError, match=error):
        relation.describe(**{"privacy": USUAL, "bounds": BOUNDS, **asked})
    assert not messages


def test_a_table_under_two_aliases_is_one_table(tmp_path: Path) -> None:
    """A row may be in both: their releases share one promise."""
    sql = "SELECT a.weight, b.weight AS other FROM items a JOIN items b USING (item)"
    relation = federation(tmp_path, tables()).sql(sql)
    found = relation.describe(privacy=USUAL, bounds={"weight": (0, 1), "other": (0, 1)})
    assert found.spent is not None
    assert found.spent.releases == {"items": 6}
    multiplier = found.spent.multipliers["items"]
    assert gaussian_epsilon(multiplier, 1e-5, 6) == pytest.approx(1.0, rel=1e-4)


def test_a_column_that_is_known_otherwise_is_told(tmp_path: Path) -> None:
    """A warning says that a filter tells of a protected column."""
    fed = federation(tmp_path, tables())
    relation = fed.sql("SELECT age FROM orders WHERE age > 20")
    warned = warnings_of(fed)
    relation.histogram("age", privacy=USUAL, bounds=(0, 120))
    assert [each.name for each in warned] == ["privacy.known"]


def test_ledgers_are_charged_what_is_stated(tmp_path: Path) -> None:
    """Each party's ledger has the epsilon of ``spent``, by Renyi divergences a little more, which is stated too; what
    exceeds a budget is refused before anything is charged.
    """
    world = World(tmp_path, Budget(epsilon=1.5, delta=1e-5, require_dp=True))
    relation = world.federation().sql("SELECT v.x, v.kind, c.z FROM visits v JOIN cards c ON v.k = c.k")
    bounds = {"x": (-4, 4), "z": (-4, 4)}
    found = relation.describe(privacy=tp.Privacy(feature_epsilon=0.8), bounds=bounds)
    spent = {key: cost.epsilon(1e-5) for key, cost in world.spent().items()}
    assert spent.keys() == {("shop", "visits"), ("east", "cards"), ("west", "cards")}
    for epsilon in spent.values():
        assert 0.8 <= epsilon < 1.1
    assert found.spent is not None
    assert found.spent.tables == pytest.approx({"visits": 0.8, "cards": 0.8}, rel=1e-5)
    charged = {tuple(name.split(".")): each.epsilon for name, each in found.spent.charged.items()}
    assert charged == pytest.approx(spent, rel=1e-6)
    assert re.search(r"charged to budgets: .*shop.visits 0\.8\d+ at delta 1e-05", str(found.spent))
    with pytest.raises(tp.PrivacyError, match=r"profile: party '.*', table .* is left of the 1.5 .*nothing was spent"):
        relation.profile(privacy=tp.Privacy(feature_epsilon=1.4), bounds=bounds)
    assert {key: cost.epsilon(1e-5) for key, cost in world.spent().items()} == spent
    for exact in (relation.describe, relation.profile, lambda: relation.histogram("x"), lambda: relation.quantile(0.5)):
        with pytest.raises(tp.PrivacyError, match=r"ask for noise by privacy=tp.Privacy\(feature_epsilon.*require_dp"):
            exact()
    with pytest.raises(tp.PrivacyError, match=r"has no form with noise; describe, quantile, histogram, profile have"):
        relation.correlation()


def test_a_policed_column_has_no_histogram_with_next_to_no_noise(tmp_path: Path) -> None:
    """Bins of the caller's choice would tell single rows, whatever ``min_group`` says; moments of few rows are zero."""
    fed = policed(open_party(write_file(tmp_path)))
    relation = fed.sql("SELECT credit, few FROM cards")
    refused = r"column 'credit': has counts of single groups only with noise of half a row's part or more"
    with pytest.raises(tp.PrivacyError, match=refused):
        relation.histogram("credit", privacy=tp.Privacy(feature_epsilon=1e5), bounds=(-1000, 1000))
    told = relation.histogram("credit", 4, privacy=tp.Privacy(feature_epsilon=5.0), bounds=(-1000, 1000))
    assert told.counts.sum() == pytest.approx(60, abs=15)
    with pytest.raises(tp.PrivacyError, match=r"counts of single groups only with noise"):
        relation.describe(["few"], privacy=tp.Privacy(feature_epsilon=1e5), bounds={"few": (0, 1e8)})


def test_a_description_reads_well(tmp_path: Path) -> None:
    """Each number with its noise, dates as dates, and what is left out."""
    relation = federation(tmp_path, tables()).sql(SQL, label="y")
    found = relation.describe(privacy=USUAL, bounds=BOUNDS)
    assert re.search(r"age .* ± ", str(found))
    assert "2020-" in str(found) or "2019-" in str(found)
    assert set(found.left_out) == {"min, max", "distinct, top", "skew, kurtosis"}
    assert found.spent is not None
    assert "noisy releases" in found.spent.table_view().text()


def test_commands_add_noise(tmp_path: Path) -> None:
    """``--epsilon`` with ``--bounds`` prints noisy statistics, and writes a page of them; bounds alone are an error."""
    urls = {name: write_party(tmp_path, name, found) for name, found in tables().items()}
    file = tmp_path / "federation.toml"
    file.write_text("[parties]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items()))
    asked = [
        str(file),
        "SELECT age, day FROM orders",
        "--bounds",
        "age=0..120",
        "--bounds",
        "day=2015-01-01..2026-01-01",
    ]
    told = CliRunner().invoke(app, ["describe", *asked, "--epsilon", "1", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)[0]["mean"] == pytest.approx(45, abs=3)
    page = tmp_path / "page.html"
    told = CliRunner().invoke(app, ["profile", *asked, "--epsilon", "1", "--output", str(page)])
    assert told.exit_code == 0, told.output
    assert "All numbers have noise" in page.read_text(encoding="utf-8")
    assert "charged" not in str(told.output)  # nobody keeps a budget here
    assert "give --epsilon too" in str(CliRunner().invoke(app, ["describe", *asked]).exception)
    alone = CliRunner().invoke(app, ["describe", *asked[:2], "--delta", "1e-6"])
    assert "--delta, --bounds and --max-times are for noise" in str(alone.exception)
    years = CliRunner().invoke(app, ["describe", *asked[:4], "--epsilon", "1", "--bounds", "day=2020..2022"])
    assert "such as ('2020-01-01', '2025-01-01'), and no plain numbers" in str(years.exception)
    wrong = CliRunner().invoke(app, ["describe", *asked[:2], "--epsilon", "1", "--bounds", "age:0:9"])
    assert "such as age=0..120" in str(wrong.exception)
