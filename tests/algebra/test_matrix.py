"""The joined matrix: every product equals NumPy's on the materialised join, in as few trips as can be."""

from __future__ import annotations

import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.source import MatrixSource
from tablepuppet.party.config import Limits
from tests.learn.materialised import ALL, JOIN, Array, JoinedTable, shop
from tests.relations import Message, Parties, World, federation, record_wire, worlds
from tests.wire.services import calling, served

SQL = f"SELECT {ALL} {JOIN}"
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def dense(matrix: LazyArray, table: JoinedTable) -> Array:
    """The same matrix from raw rows; categories that are equally frequent may have changed places."""
    found = matrix.times(np.eye(matrix.shape[1]))
    assert [name.partition("=")[0] for name in matrix.columns] == [
        name.partition("=")[0] for alias in matrix.source.blocks for name in table.names if name.startswith(f"{alias}.")
    ]
    for source in {name.partition("=")[0] for name in matrix.columns}:
        here, there = (
            values[:, [place for place, name in enumerate(names) if name.partition("=")[0] == source]]
            for values, names in ((found, matrix.columns), (table.matrix, table.names))
        )
        ordered = [each[:, np.lexsort(each)] for each in (here, there)]
        np.testing.assert_allclose(ordered[0], ordered[1], atol=1e-9)
    return found


def check(matrix: LazyArray, known: Array, seed: int) -> None:
    """Every operation against NumPy, to 1e-9 of the largest number."""
    rng = np.random.default_rng(seed)
    rows, width = known.shape
    assert matrix.shape == known.shape
    directions, values = rng.normal(size=(width, 3)), rng.normal(size=(rows, 2))
    directions[rng.random((width, 3)) < 0.3] = 0.0
    pairs = [
        (matrix.times(directions), known @ directions),
        (matrix.times(directions[:, 0]), known @ directions[:, 0]),
        (matrix.times(directions[:, :1]), known @ directions[:, :1]),
        (matrix.times(np.zeros((width, 0))), np.zeros((rows, 0))),
        (matrix.transposed_times(values), known.T @ values),
        (matrix.transposed_times(values[:, 0]), known.T @ values[:, 0]),
        (matrix.transposed_times(values[:, :1]), known.T @ values[:, :1]),
        (matrix.transposed_times(np.zeros((rows, 0))), np.zeros((width, 0))),
        (matrix.column_sums(), known.sum(axis=0)),
        (matrix.gram(), known.T @ known),
    ]
    for found, expected in pairs:
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(expected).max(initial=0.0)))


@st.composite
def joins(draw: st.DrawFn) -> tuple[dict[str, dict[str, pa.Table]], str]:
    """(parties, SQL): up to three tables in up to three shards each; keys repeat, dangle and are NULL, as cells are."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parties: dict[str, dict[str, pa.Table]] = {f"p{number}": {} for number in range(3)}
    tables = [f"t{number}" for number in range(draw(st.sampled_from([3, 2, 1])))]
    for table in tables:
        for party in list(parties)[: draw(st.integers(1, 3))]:
            rows = draw(st.integers(1, 12))
            columns: dict[str, Any] = {
                "k": rng.integers(0, 4, rows), "l": rng.integers(0, 3, rows), "x": rng.normal(3, 2, rows),
                "n": rng.integers(-2, 3, rows), "c": rng.choice(["u", "v", "w", ""], rows),
            }  # fmt: skip
            missing = {name: rng.random(rows) < 0.15 for name in columns}
            parties[party][table] = pa.table({n: pa.array(each, mask=missing[n]) for n, each in columns.items()})
    select = ", ".join(f"{table}.{column} AS {table}_{column}" for table in tables for column in ("x", "n", "c"))
    on = draw(st.sampled_from(["t1.l = t2.k", "t0.k = t2.l", "t1.k = t2.k"]))
    text = ["t0", "JOIN t1 ON t0.k = t1.k", f"JOIN t2 ON {on}"]
    return parties, f"SELECT {select} FROM {' '.join(text[: len(tables)])}"


@settings(deadline=None, max_examples=50, derandomize=True, suppress_health_check=SLOW)
@given(joins(), st.integers(0, 100))
def test_products_are_numpys(found: tuple[dict[str, dict[str, pa.Table]], str], seed: int) -> None:
    """Over joins with duplicates, shards, NULLs and categories, without a label."""
    parties, sql = found
    with tempfile.TemporaryDirectory() as folder:
        relation = federation(Path(folder), parties, "arrow", wire="float64").sql(sql)
        matrix = relation.matrix()
        check(matrix, dense(matrix, JoinedTable(relation, parties)), seed)


@settings(deadline=None, max_examples=15, derandomize=True, suppress_health_check=SLOW)
@given(worlds(), st.integers(0, 100))
def test_any_query(world: World, seed: int) -> None:
    """Over random queries: unions, filters, cycles, tables without rows."""
    select = ", ".join(f"{alias}.{column} AS {alias}_{column}" for alias in world.aliases for column in ("x", "c"))
    asked = replace(world, select=select)
    with asked.urls() as urls:
        relation = tp.Federation(urls, wire="float64").sql(asked.sql)
        matrix = relation.matrix()
        check(matrix, dense(matrix, JoinedTable(relation, world.parties)), seed)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(3, together=True), wire="float64")


@pytest.fixture
def relation(fed: tp.Federation) -> tp.Relation:
    return fed.sql(SQL)


def trips(messages: list[Message]) -> int:
    """How often the party that was called most was called; what was recorded is forgotten."""
    calls = Counter(message.party for message in messages if message.last)
    messages.clear()
    return max(calls.values(), default=0)


def test_one_trip_for_each_product(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of vectors; products that are asked before one is read share a trip; encoding rides along."""
    matrix = relation.matrix()
    rows, width = matrix.shape
    messages = record_wire(monkeypatch)
    matrix.times(np.ones((width, 7)))
    assert trips(messages) == 1
    matrix.transposed_times(np.ones((rows, 7)))
    assert trips(messages) == 1
    matrix.column_sums()
    assert trips(messages) == 1
    asked = [matrix.ask_times(np.ones(width)), matrix.ask_transposed_times(np.ones(rows)), matrix.ask_column_sums()]
    assert trips(messages) == 0
    first = [each.read() for each in asked]
    assert trips(messages) == 1
    assert all(each.read() is known for each, known in zip(asked, first, strict=True))
    matrix.gram()
    assert trips(messages) == 2


def test_a_result_that_was_read_holds_nothing_else(relation: tp.Relation) -> None:
    """Neither the replies nor U, which are as long as tables and joined rows; loops keep results in lists."""
    matrix = relation.matrix()
    values = np.ones((matrix.shape[0], 2))
    held = weakref.ref(values)
    asked = matrix.ask_transposed_times(values)
    del values
    assert held() is not None
    assert asked.read().shape == (matrix.shape[1], 2)
    assert held() is None


def test_one_table_tells_its_own_gram(fed: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one trip, without a product that the caller chose."""
    matrix = fed.sql("SELECT weight, height, kind FROM items").matrix()
    messages = record_wire(monkeypatch)
    matrix.gram()
    assert {message.request.op for message in messages} == {"encode.build", "matrix.gram"}
    assert trips(messages) == 1


def test_only_what_is_not_zero_is_asked(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is sent those columns of V that it takes part in; the identity costs each table its own width."""
    matrix = relation.matrix()
    matrix.column_sums()
    messages = record_wire(monkeypatch)
    matrix.times(np.eye(matrix.shape[1])[0])
    assert {message.request.table for message in messages} == {next(iter(matrix.source.blocks))}
    messages.clear()
    matrix.times(np.eye(matrix.shape[1]))
    for message in messages:
        block = matrix.source.blocks[message.request.table]
        assert message.request.arguments["directions"].shape == (block.stop - block.start,) * 2
    messages.clear()
    assert not matrix.times(np.zeros((matrix.shape[1], 2))).any()
    assert not messages


def arrays(message: Message) -> Iterator[Any]:
    for values in (message.request.arguments, message.reply or {}):
        yield from (value for value in values.values() if isinstance(value, np.ndarray))


def test_nothing_of_joined_length_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table has fewer rows than the join: so have all arrays that are sent or received."""
    parties = {
        "a": {"t": pa.table({"k": [1, 2] * 10, "x": np.arange(20.0), "c": ["u", "v"] * 10})},
        "b": {"u": pa.table({"k": [1, 2] * 15, "y": np.arange(30.0) ** 2})},
    }
    relation = federation(tmp_path, parties, wire="float64").sql("SELECT t.x, t.c, u.y FROM t JOIN u USING (k)")
    assert len(relation) == 300
    messages = record_wire(monkeypatch)
    matrix = relation.matrix()
    check(matrix, dense(matrix, JoinedTable(relation, parties)), 0)
    assert max(len(array) for message in messages for array in arrays(message)) <= 30


def test_secure_sums_are_the_same(fed: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a roster shards mask their products and sums; the results are the same to 1e-9."""
    relation = fed.sql(SQL)
    plain, secure = fed.sql(SQL).matrix(), relation.matrix(secure_sum=True)
    messages = record_wire(monkeypatch)
    values = np.random.default_rng(0).normal(size=(len(relation), 2))
    for name, arguments in (("transposed_times", [values]), ("column_sums", [])):
        expected = getattr(plain, name)(*arguments)
        messages.clear()
        found = getattr(secure, name)(*arguments)
        np.testing.assert_allclose(found, expected, atol=1e-9 * (1 + np.abs(expected).max()))
        masked = [m.reply for m in messages if m.reply and {"sums", "gram"} & m.reply.keys()]
        assert len(masked) >= 9
        assert all(reply.get("sums", reply.get("gram")).dtype == np.uint64 for reply in masked)


def one_in_shards() -> Parties:
    """The shop, whose orders are in three shards, items and cards whole."""
    whole = {name: tables for name, tables in shop(1).items() if "orders" not in tables}
    return whole | {name: tables for name, tables in shop(3).items() if "orders" in tables}


def test_secure_gram_matrices_take_no_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables without a roster send their cells to the one that has it, whose own are in no message; with two such
    tables a Gram matrix is refused before anything is asked.
    """
    fed = federation(tmp_path, one_in_shards(), wire="float64")
    relation = fed.sql(SQL)
    plain, secure = fed.sql(SQL).matrix(), relation.matrix(secure_sum=True)
    weights, orders = np.random.default_rng(0).random(len(relation)), slice(0, 2)
    assert [name[:2] for name in secure.columns[orders]] == ["o.", "o."]
    expected = [plain.gram(), plain.gram(weights), plain[:, orders].T @ (2 * plain[:, 1:5] - 1)]
    messages = record_wire(monkeypatch)
    found = [secure.gram(), secure.gram(weights), secure[:, orders].T @ (2 * secure[:, 1:5] - 1)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9 * (1 + np.abs(other).max()))
    replies = [m.reply for m in messages if m.reply and m.party.startswith("store")]
    assert {name for reply in replies for name in reply} == {"sums", "gram", "bits"}
    assert all(reply.get("sums", reply.get("gram")).dtype == np.uint64 for reply in replies)

    (tmp_path / "all").mkdir()
    sharded = federation(tmp_path / "all", shop(3, together=True), wire="float64").sql(SQL).matrix(secure_sum=True)
    assert sharded.explain().steps["X.T @ X"].where == "nowhere: policy rule secure_sum"
    messages.clear()
    with pytest.raises(tp.PrivacyError, match=r"X.T @ X: table 'cards': its cells would come here.*secure_sum"):
        sharded.gram()
    with pytest.raises(tp.PrivacyError, match=r"naive_bayes: table 'o' has secure sums.*secure_sum"):
        tp.linalg.naive_bayes(sharded, np.arange(sharded.shape[0]) % 2)
    assert not messages


def test_other_rows_by_the_same_encoding(fed: tp.Federation) -> None:
    """A matrix may be that of other rows than the encoders were fitted on."""
    train, test = fed.sql(SQL).split(0.4)
    encoding = train.fit_encoding()
    first, second = (LazyArray(MatrixSource(each.client, encoding, each.wire)) for each in (train, test))
    known = JoinedTable(train, shop(3, together=True))
    assert first.columns == second.columns
    order = [known.names.index(name) for name in first.columns]
    theta = np.random.default_rng(0).normal(size=len(first.columns))
    np.testing.assert_allclose(first.times(theta), known.matrix[:, order] @ theta, atol=1e-9)
    np.testing.assert_allclose(second.times(theta), known.encode(test)[:, order] @ theta, atol=1e-9)
    np.testing.assert_allclose(second.means, known.encode(test)[:, order].mean(axis=0), atol=1e-9)


def test_services_answer_the_same(tmp_path: Path) -> None:
    """Over Flight, with float32 on the wire, results agree to 1e-5 with those of this process."""
    parties = shop(1)
    here = federation(tmp_path, parties, wire="float64")
    urls = {name: f"parquet:///{tmp_path / name}" for name in parties}
    with served(urls, limits=Limits()) as servers:
        there = calling(servers)
        near, far = here.sql(SQL).matrix(), there.sql(SQL).matrix()
        known = [name.partition("=")[0] for name in near.columns]
        assert [name.partition("=")[0] for name in far.columns] == known
        numbers = [place for place, name in enumerate(near.columns) if "=" not in name]
        np.testing.assert_allclose(
            far.gram()[np.ix_(numbers, numbers)], near.gram()[np.ix_(numbers, numbers)], atol=1e-3
        )
        picked = np.eye(near.shape[1])[:, numbers]
        found, expected = np.sort(far.times(picked), axis=0), np.sort(near.times(picked), axis=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("sql", [f"{SQL} WHERE o.price > 1e9", "SELECT o.price FROM orders o WHERE FALSE"])
def test_no_rows(fed: tp.Federation, sql: str) -> None:
    """A relation without rows has a matrix without rows, and is asked for nothing."""
    matrix = fed.sql(sql).matrix()
    assert matrix.shape[0] == 0
    width = matrix.shape[1]
    assert matrix.times(np.ones((width, 2))).shape == (0, 2)
    assert matrix.transposed_times(np.ones((0, 2))).tolist() == [[0.0, 0.0]] * width
    assert not matrix.gram().any()
    with pytest.raises(tp.LearnError, match="without joined rows has no means"):
        _ = matrix.means


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(4), r"has shape \(4,\), and X has 11 columns: \(11,\) or \(11, k\)"),
        (np.ones((11, 2, 2)), "has shape"),
        (3.0, r"has shape \(\)"),
        (["a"] * 11, "real numbers"),
        ([[1.0], [1.0, 2.0]], "real numbers"),
        (np.ones(11) * 1j, "real numbers"),
        ([None] * 11, "real numbers"),
        (np.full(11, np.nan), "not finite"),
        (np.full(11, np.inf), "not finite"),
        (np.full(11, 1e101), "above 1e"),
    ],
)
def test_bad_directions(relation: tp.Relation, given: Any, message: str) -> None:
    """Shapes that do not fit, text, complex numbers and numbers that are not finite are refused in one sentence."""
    with pytest.raises(tp.LearnError, match=f"V of X @ V.*{message}"):
        relation.matrix().times(given)


def test_bad_values(relation: tp.Relation) -> None:
    """The same of U."""
    matrix = relation.matrix()
    with pytest.raises(tp.LearnError, match=r"U of X\.T @ U has shape \(3,\), and X has 279 joined rows"):
        matrix.transposed_times(np.ones(3))
