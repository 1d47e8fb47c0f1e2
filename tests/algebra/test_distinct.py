"""K-means over distinct rows: the same clusters as over all joined rows, for less that is asked of parties."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.cluster import KMeans

import tablepuppet as tp
from tablepuppet.algebra import distinct
from tablepuppet.algebra.distinct import DistinctRows
from tablepuppet.party.config import Limits
from tablepuppet.party.policy import EVERY_USE, CallerLimits, ColumnRule, Policy, TableRule, Use
from tablepuppet.prep.encode import alike
from tablepuppet.store.files import read_checked
from tests.party.policed import ROWS, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import Message, Parties, federation, record_wire
from tests.wire.services import calling, served

SQL = (
    "SELECT r.stars, u.age, u.sex, m.year, m.genre FROM ratings r JOIN users u USING (user) JOIN movies m USING (movie)"
)
GENRES = 20  # so that movies have more columns than a message has directions


def films(shards: int = 1) -> Parties:
    """Ratings of films: 12,000 joined rows of 5 different ratings, 8 users and 40 films."""
    rng = np.random.default_rng(3)
    users = {
        "user": np.arange(60),
        "age": np.arange(60) % 4 * 10.0,
        "sex": np.array(list("fm"))[np.arange(60) // 4 % 2],
    }
    movies = {
        "movie": np.arange(80), "year": 1990.0 + np.arange(80) % 2,
        "genre": [f"g{place // 2 % GENRES:02}" for place in range(80)],
    }  # fmt: skip
    ratings = {
        "user": rng.integers(0, 60, 12_000), "movie": rng.integers(0, 80, 12_000),
        "stars": rng.integers(1, 6, 12_000) * 1.0,
    }  # fmt: skip
    parts = [{name: each[part::shards] for name, each in ratings.items()} for part in range(shards)]
    cinemas = {f"cinema{place}": {"ratings": pa.table(part)} for place, part in enumerate(parts)}
    return {**cinemas, "club": {"users": pa.table(users)}, "studio": {"movies": pa.table(movies)}}


def matrix(folder: Path, shards: int = 1, wire: str = "float64", **settings: Any) -> Any:
    return federation(folder, films(shards), wire=wire).sql(SQL).matrix(**settings)


def arrays(x: Any) -> list[Any]:
    """X, some columns of it scaled and shifted, and a function of it."""
    return [x, (x[:, ::2] - x[:, ::2].mean(axis=0)) * 3, np.tanh(x) + 1]


@pytest.mark.parametrize("plan", ["cost", "collect", "heuristic", "parties"])
@pytest.mark.parametrize("shards", [1, 3])
def test_merged_rows_have_the_same_clusters(
    tmp_path: Path, shards: int, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one seed, whether rows are merged or not: the same labels and rounds, centres and inertia to 1e-9."""
    for x in arrays(matrix(tmp_path, shards, plan=plan)):
        assert 2 * len(DistinctRows(x, np.zeros((x.shape[1], 0)), 16)) < len(x)
        settings: dict[str, Any] = {"k": 5, "runs": 3, "max_iter": 7, "seed": 2}
        found = tp.linalg.kmeans(x, **settings)
        with monkeypatch.context() as patched:
            patched.setattr(distinct, "merge", lambda *_: None)
            known = tp.linalg.kmeans(x, **settings)
        np.testing.assert_array_equal(found.labels, known.labels)
        np.testing.assert_allclose(found.centres, known.centres, atol=1e-9)
        assert found.inertia == pytest.approx(known.inertia, rel=1e-9)
        assert found.rounds == known.rounds


@pytest.mark.parametrize("wire", ["float32", "float64"])
def test_rounds_are_those_of_lloyd(tmp_path: Path, wire: str) -> None:
    """From the centres of the first round, scikit-learn on the materialised join comes to the same ones."""
    x = matrix(tmp_path, wire=wire)
    first, found = (tp.linalg.kmeans(x, k=6, runs=1, max_iter=rounds) for rounds in (1, 6))
    joined = x @ np.eye(x.shape[1])
    known = KMeans(6, init=first.centres, n_init=1, max_iter=5, tol=0, algorithm="lloyd").fit(joined)
    np.testing.assert_allclose(found.centres, known.cluster_centers_, atol=1e-9 if wire == "float64" else 1e-5)
    np.testing.assert_array_equal(found.labels, known.labels_)
    assert found.inertia == pytest.approx(known.inertia_, rel=1e-9 if wire == "float64" else 1e-5)


def directions(messages: list[Message]) -> Counter[tuple[str, str]]:
    """By table and op, the vectors that parties were sent."""
    found: Counter[tuple[str, str]] = Counter()
    for message in messages:
        step, given = message.request, message.request.arguments
        if "directions" in given:
            found[step.table, step.op] += np.atleast_2d(given["directions"].T).shape[0]
        elif step.op in ("rows.alike", "matrix.sums_by"):
            found[step.table, step.op] += given.get("vectors", 1)
    return found


def test_narrow_tables_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratings and users send as many columns as they have, whatever rounds there are; films have more, and compare."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    x = matrix(tmp_path / "a", wire="float32")
    messages, traffic = record_wire(monkeypatch), x.source.engine.traffic
    before = traffic.bytes
    tp.linalg.kmeans(x, k=10, runs=1, max_iter=5)
    sent, asked = traffic.bytes - before, directions(messages)
    assert asked == {
        ("r", "matrix.times"): 1, ("u", "matrix.times"): 3, ("m", "matrix.times"): 16 + 5 * 10,
        ("m", "matrix.sums_by"): 5 * 10, ("m", "rows.alike"): 1,
    }  # fmt: skip
    x = matrix(tmp_path / "b", wire="float32", plan="heuristic")
    before = x.source.engine.traffic.bytes
    tp.linalg.kmeans(x, k=10, runs=1, max_iter=5)
    assert 10 * sent < x.source.engine.traffic.bytes - before


def test_different_rows_are_not_merged(tmp_path: Path) -> None:
    """Measurements are all different: rows are the joined rows."""
    values = np.random.default_rng(0).normal(size=(9000, 20))
    table = pa.table({f"x{place}": column for place, column in enumerate(values.T)})
    x = federation(tmp_path, {"p": {"t": table}}).sql("SELECT * FROM t").matrix()
    rows = DistinctRows(x, np.zeros((20, 0)), 16)
    assert (len(rows), rows.weights) == (9000, None)


def test_draws_do_not_depend_on_merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of all chances ends at the same joined row, also at both ends."""
    x = matrix(tmp_path)
    rows = DistinctRows(x, np.zeros((x.shape[1], 0)), 16)
    chances = np.random.default_rng(0).random(len(rows))
    joined = rows.expanded(chances)
    np.testing.assert_array_equal(rows.reduced(joined), chances)
    sums = np.cumsum(joined)
    for share in (0.0, 0.25, 0.5, 0.999, 1.0):
        place = min(int(np.searchsorted(sums, share * sums[-1], side="right")), len(sums) - 1)
        assert chances[rows.drawn(chances, share)] == joined[place]


def test_min_rows_are_counted_at_the_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty cards have three regions: the party is told of every row, so it refuses small clusters and no others."""
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 18"))
    x = policed(party).sql("SELECT region FROM cards").matrix()
    messages = record_wire(monkeypatch)
    assert tp.linalg.kmeans(x, k=3, runs=1).inertia == pytest.approx(0.0, abs=1e-4)
    summed = [each.request for each in messages if each.request.op == "matrix.sums_by"]
    assert summed
    assert all(len(step.arguments["by"]) == ROWS for step in summed)
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 21"))
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        tp.linalg.kmeans(policed(party).sql("SELECT region FROM cards").matrix(), k=3, runs=1)


def test_runs_with_small_clusters_are_left_out(tmp_path: Path) -> None:
    """Runs that meet a cluster of few rows do not end the others; if all do, the error says what to do.

    Groups of 25, 25 and 10 rows at 0, 10 and 24: about two of three runs find the last one, which has fewer than 12.
    """
    values = np.repeat([0.0, 10.0, 24.0], [25, 25, 10])
    federation(tmp_path, {"bank": {"t": pa.table({"x": values})}})
    with served({"bank": f"parquet:///{tmp_path / 'bank'}"}, limits=Limits(), policy=adding(12)) as servers:
        x = calling(servers, wire="float64").sql("SELECT x FROM t").matrix()
        found = tp.linalg.kmeans(x, k=2, runs=60, folder=tmp_path / "run")
        assert sorted(np.bincount(found.labels).tolist()) == [25, 35]
        with np.load(BytesIO(read_checked(next((tmp_path / "run").rglob("*.state"))))) as state:
            assert 0 < state["refused"].sum() < 60
        with pytest.raises(tp.PrivacyError, match=r"kmeans: in every run a cluster has.*take a smaller k, or more"):
            tp.linalg.kmeans(x, k=3, runs=4)


def test_each_party_has_its_own_min_rows(tmp_path: Path) -> None:
    """A small shard whose party adds up any number of rows takes part beside one that does not."""
    federation(tmp_path, {"p": {"t": groups_of(100)}, "q": {"t": groups_of(3)}})
    with ExitStack() as stack:
        servers = dict[str, Any]()
        for party, least in (("p", 25), ("q", 0)):
            url = {party: f"parquet:///{tmp_path / party}"}
            servers |= stack.enter_context(served(url, limits=Limits(), policy=adding(least)))
        found = tp.linalg.kmeans(calling(servers).sql("SELECT x FROM t").matrix(), k=2, runs=2)
        assert np.bincount(found.labels).tolist() == [103, 103]


def adding(least: int) -> Policy:
    """A policy that lets at least so many rows be added up, and no cells be collected."""
    return Policy(others=TableRule(matrix=True, min_rows=least, others=ColumnRule(EVERY_USE & ~Use.VALUE)))


def groups_of(rows: int) -> pa.Table:
    """As many rows near 0 as near 100."""
    return pa.table({"x": np.repeat([0.0, 100.0], rows) + np.arange(2 * rows) % 3 / 100})


def test_columns_are_counted(tmp_path: Path) -> None:
    """Cells of a narrow table count as its columns, and sums at the party as always."""
    party = open_party(write_file(tmp_path, "max_matrix_columns = 19", "matrix = true\nmin_rows = 0"))
    found = tp.linalg.kmeans(policed(party).sql("SELECT region, credit FROM cards").matrix(), k=5, runs=2)
    assert found.labels.shape == (ROWS,)
    party = open_party(write_file(tmp_path, "max_matrix_columns = 3", "matrix = true\nmin_rows = 0"))
    with pytest.raises(tp.PrivacyError, match=r"kmeans: .*k=5 .*runs=2.* take fewer runs, a smaller k.*max_matrix_col"):
        tp.linalg.kmeans(policed(party).sql("SELECT region, credit FROM cards").matrix(), k=5, runs=2)


def test_a_table_that_does_not_opt_in(tmp_path: Path) -> None:
    """It is refused before anything is asked, also which rows are alike."""
    x = policed(open_party(write_file(tmp_path))).sql("SELECT region FROM cards").matrix()
    with pytest.raises(tp.PrivacyError, match=r"party 'bank', table 'cards': may not be multiplied.*matrix = true"):
        tp.linalg.kmeans(x, k=2)


@pytest.mark.parametrize(("plan", "most"), [("cost", None), ("heuristic", None), ("heuristic", 3)])
def test_services(tmp_path: Path, plan: Any, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clusters over services; where replies are counted, they are not asked which rows are alike.

    Nor where cells are collected.
    """
    parties = films(2)
    federation(tmp_path, parties)
    urls = {name: f"parquet:///{tmp_path / name}" for name in parties}
    with served(urls, limits=Limits(), policy=Policy(limits=CallerLimits(max_prediction_rounds=most))) as servers:
        x, messages = calling(servers, wire="float64").sql(SQL).matrix(plan=plan), record_wire(monkeypatch)
        found = tp.linalg.kmeans(x, k=4, runs=2, max_iter=5)
        assert ("rows.alike" in {each.request.op for each in messages}) == (plan == "heuristic" and most is None)
        monkeypatch.setattr(distinct, "merge", lambda *_: None)
        known = tp.linalg.kmeans(x, k=4, runs=2, max_iter=5)
    np.testing.assert_array_equal(found.labels, known.labels)
    np.testing.assert_allclose(found.centres, known.centres, atol=1e-9)


def test_places_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that says its rows are like one that it does not have is named, and its neighbour's rows stay apart."""
    x = matrix(tmp_path, 2, plan="heuristic")
    monkeypatch.setattr(alike, "first_of_each", lambda data: np.full(len(data.dense), len(data.dense), np.int32))
    with pytest.raises(tp.PartyError, match=r"party 'cinema0', table 'r': sent places of alike rows beyond its 6,000"):
        tp.linalg.kmeans(x, k=2)


def test_places_in_small_numbers() -> None:
    """Places of a later shard are counted from its start, however few bits a party sends them in."""
    shards = [SimpleNamespace(party=f"p{n}", start=300 * n, row_ids=np.arange(300)) for n in range(2)]
    client: Any = SimpleNamespace(shards=lambda alias: shards)
    replies: Any = {"t": [{"first": np.zeros(300, np.int8)}, {"first": np.full(300, 100, np.int8)}]}
    found = alike._by_table(client, ["t"], replies)
    assert found is not None
    assert found["t"].tolist() == [0] * 300 + [400] * 300
