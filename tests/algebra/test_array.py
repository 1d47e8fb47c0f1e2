"""The lazy array: every expression equals NumPy's on the materialised join, in the trips that `explain` says."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg, eigsh, lobpcg, lsmr, svds

import tablepuppet as tp
from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.functions import MOST_STEPS
from tests.algebra.test_matrix import arrays, joins
from tests.learn.materialised import ALL, JOIN, PLAIN, Array, shop
from tests.relations import Message, federation, record_wire

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
TOLERANCE = 1e-8  # of the largest number


def agree(found: Any, expected: Any) -> None:
    """To TOLERANCE, with the same shape."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    largest = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * (1 + largest))


def agree_on_places(array: Any, known: Array) -> None:
    """Exactly where cells are exact; else two numbers that are about the same may change places."""
    is_exact = np.array_equal(known * 4, np.rint(known * 4))
    for sign, function in ((-1, np.argmin), (1, np.argmax)):
        found, expected = function(array, axis=1), function(known, axis=1)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        first, second = np.partition(np.column_stack([-sign * known, known[:, 0] + np.inf]), 1, axis=1)[:, :2].T
        is_clear = is_exact | (second - first > TOLERANCE * (1 + np.abs(known).max(initial=0.0)))
        assert np.array_equal(found[is_clear], expected[is_clear])
        agree(np.take_along_axis(known, found[:, None], 1), (sign * known).max(axis=1, keepdims=True) * sign)


Expression = Callable[[Any], Any]
EXPRESSIONS: list[tuple[str, Expression]] = [
    ("X - row", lambda x: x - np.linspace(-1, 2, x.shape[1])),
    ("row - X", lambda x: np.linspace(-1, 2, x.shape[1]) - x),
    ("X * row", lambda x: x * np.linspace(0, 2, x.shape[1])),
    ("row * X", lambda x: np.linspace(0, 2, x.shape[1])[None] * x),
    ("X / row", lambda x: x / np.linspace(1, 2, x.shape[1])),
    ("2 / row", lambda x: 2 / (3 + np.abs(x))),
    ("-X", lambda x: -x),
    ("+X", lambda x: +x),
    ("X ** 2", lambda x: x**2),
    ("X ** 3 - 1", lambda x: x**3 - 1),
    ("2.0 ** X", lambda x: 2.0 ** np.clip(x, -3, 3)),
    ("X > 0", lambda x: (x > 0.1) * 1.0),
    ("X <= row", lambda x: (x <= np.linspace(-1, 1, x.shape[1])) * 1.0),
    ("X == 0", lambda x: (x == 0) * 1.0),
    ("X != 1", lambda x: (x != 1) * 1.0),
    ("1 - (X < 0)", lambda x: 1 - (x < 0.1)),
    ("abs", abs),
    ("sqrt abs", lambda x: np.sqrt(np.abs(x))),
    ("sign", lambda x: np.sign(x - 0.2)),
    ("log1p", lambda x: np.log1p(np.abs(x))),
    ("log", lambda x: np.log(1.5 + x**2)),
    ("exp", lambda x: np.exp(-np.abs(x))),
    ("expm1", lambda x: np.expm1(np.minimum(x, 2))),
    ("tanh", lambda x: np.tanh(x) * 3),
    ("sin + cos", lambda x: np.sin(x) + np.cos(2 * x)),
    ("square", np.square),
    ("maximum", lambda x: np.maximum(x, 0)),
    ("relu", lambda x: (x > 0.1) * x),
    ("clip", lambda x: np.clip(x, -0.5, 1)),
    ("where", lambda x: np.where(x > 0.1, x, -1.0)),
    ("X + X", lambda x: x + 2 * x),
    ("X * X", lambda x: x * x - x),
    ("floor", lambda x: np.floor(x + 0.25)),
    ("even columns", lambda x: x[:, ::2]),
    ("reversed", lambda x: x[:, ::-1]),
    ("a mask", lambda x: x[:, np.arange(x.shape[1]) % 3 != 1]),
    ("twice", lambda x: x[:, [0, 0, -1]]),
]  # fmt: skip


def check(array: Any, known: Array, rng: np.random.Generator) -> None:
    """Every number that can be asked of an array, against NumPy."""
    rows, width = known.shape
    assert array.shape == known.shape
    many, wide = rng.normal(size=(width, 3)), rng.normal(size=(rows, 2))
    weights = rng.random((rows,))
    agree(array @ many, known @ many)
    agree(array @ many[:, 0], known @ many[:, 0])
    agree(many.T @ array.T, many.T @ known.T)
    agree(array.T @ wide, known.T @ wide)
    agree(wide[:, 0] @ array, wide[:, 0] @ known)
    agree(array.T @ array, known.T @ known)
    agree(array.T @ (weights[:, None] * array), known.T @ (weights[:, None] * known))
    agree((weights[:, None] * array) @ many, weights[:, None] * known @ many)
    agree((array * weights[:, None]).T @ wide, (known * weights[:, None]).T @ wide)
    for axis in (0, 1, None):
        agree(array.sum(axis), known.sum(axis))
        agree(np.mean(array, axis=axis), known.mean(axis))
        agree(np.var(array, axis), known.var(axis))
        std = array.std(axis=axis, ddof=0.5, keepdims=True)  # whose square is exact to TOLERANCE: that of 0 may be 1e-8
        agree(std**2, known.std(axis=axis, ddof=0.5, keepdims=True) ** 2)
    for axis in (0, 1):
        agree(np.linalg.norm(array, axis=axis) ** 2, np.linalg.norm(known, axis=axis) ** 2)
    agree(np.min(array, axis=1), known.min(axis=1))
    agree(array.max(axis=1), known.max(axis=1))
    agree_on_places(array, known)
    agree(np.linalg.norm(array), np.linalg.norm(known))


@settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=SLOW)
@given(joins(), st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=3), st.integers(0, 100))
def test_expressions_are_numpys(
    found: tuple[dict[str, dict[str, pa.Table]], str], chain: list[tuple[str, Expression]], seed: int
) -> None:
    """Chains of elementwise functions over joins with duplicates, shards, NULLs and categories."""
    parties, sql = found
    with tempfile.TemporaryDirectory() as folder:
        relation = federation(Path(folder), parties, "arrow", wire="float64").sql(sql)
        array: Any = relation.matrix()
        if 0 in array.shape:
            return
        known = np.asarray(array @ np.eye(array.shape[1]))
        for _, function in chain:
            array, known = function(array), function(known)
        check(array, known, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Any:
    fed = federation(tmp_path_factory.mktemp("shop"), shop(2), wire="float64")
    return fed.sql(f"SELECT {ALL} {JOIN}").matrix()


@pytest.fixture(scope="module")
def known(matrix: Any) -> Array:
    return np.asarray(matrix @ np.eye(matrix.shape[1]))


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_each_expression(matrix: Any, known: Array, expression: tuple[str, Expression]) -> None:
    """Of a star of several shards with categories."""
    check(expression[1](matrix), np.asarray(expression[1](known), np.float64), np.random.default_rng(0))


def test_extremes(matrix: Any, known: Array) -> None:
    """Min and max of columns, and of functions that only rise or only fall."""
    rising: list[Expression] = [
        lambda x: x, lambda x: -2 * x + 1, lambda x: np.exp(-x), lambda x: (x > 0.3) * 1.0, lambda x: np.minimum(x, 1),
        lambda x: np.tanh(x)[:, ::-1], lambda x: 3 - np.sqrt(x - (-9.0)),
    ]  # fmt: skip
    for function in rising:
        for axis in (0, None):
            agree(np.min(function(matrix), axis=axis), np.min(function(known), axis=axis))
            agree(function(matrix).max(axis=axis, keepdims=True), function(known).max(axis=axis, keepdims=True))
    with pytest.raises(tp.LearnError, match=r"rises and falls.*in SELECT"):
        (matrix**2).min(axis=0)


@pytest.mark.parametrize("plan", ["heuristic", "collect"])
def test_extremes_of_rows(tmp_path: Path, plan: Any) -> None:
    """Min and max of every row, of numbers and categories, of columns that are there twice; wherever it is computed."""
    x: Any = federation(tmp_path, shop(2), wire="float64").sql(f"SELECT {ALL} {JOIN}").matrix(plan=plan)
    known = x @ np.eye(x.shape[1])
    width = x.shape[1]
    functions: list[Expression] = [
        lambda x: x, lambda x: x * np.linspace(-2, 3, width) - np.linspace(1, -1, width), np.tanh,
        lambda x: (x**2)[:, ::-1] - 0.5, lambda x: x[:, [width - 1, 0, width - 1]] * [1, 2, -3], lambda x: x[:, [-1]],
        lambda x: -x[:, width // 2 :],
    ]  # fmt: skip
    for function in functions:
        agree(np.min(function(x), axis=1), np.min(function(known), axis=1))
        agree(function(x).max(axis=1, keepdims=True), function(known).max(axis=1, keepdims=True))
        agree_on_places(function(x), np.asarray(function(known)))


@pytest.mark.parametrize("plan", ["heuristic", "collect"])
def test_places_of_equal_numbers(tmp_path: Path, plan: Any) -> None:
    """The first column in the array's order, over tables, shards and groups of categories."""
    x: Any = federation(tmp_path, shop(2), wire="float32").sql(f"SELECT {ALL} {JOIN}").matrix(plan=plan)
    known, width, numbers = x @ np.eye(x.shape[1]), x.shape[1], x.numbers
    order = np.random.default_rng(0).permutation(np.tile(np.arange(width), 2))
    functions: list[Expression] = [
        lambda x: x[:, ~numbers], lambda x: (x > 0) * 1.0, lambda x: np.sign(x)[:, order],
        lambda x: (x > 0)[:, order] * np.resize([1.0, -1.0, 0.0], 2 * width) - 0.5,
        lambda x: (x > 9)[:, ::-1] * 1.0, lambda x: 0.0 * x,
    ]  # fmt: skip
    for function in functions:
        for places in (np.argmin, np.argmax):
            assert np.array_equal(places(function(x), axis=1), places(function(known), axis=1))
    assert np.array_equal(x.argmin(axis=-1, keepdims=True), known.argmin(axis=-1, keepdims=True))
    for call in (np.argmin, np.argmax):
        with pytest.raises(tp.LearnError, match=r"axis=1.*np\.argmin\(X\[:, column\]\)"):
            call(x, axis=0)
        with pytest.raises(tp.LearnError, match="axis=1"):
            call(x)


def test_columns_by_name(matrix: Any, known: Array) -> None:
    """A column's name is an array, a list of names some columns, a category's name all its columns."""
    name = matrix.columns[2]
    agree(matrix[:, name], known[:, 2])
    agree(matrix[:, -1], known[:, -1])
    picked = matrix[:, [name, matrix.columns[0]]]
    assert picked.columns == [name, matrix.columns[0]]
    agree(picked.sum(0), known[:, [2, 0]].sum(0))
    group = next(each.partition("=")[0] for each in matrix.columns if "=" in each)
    places = [place for place, each in enumerate(matrix.columns) if each.startswith(f"{group}=")]
    assert len(places) > 1
    agree(matrix[:, group].sum(0), known[:, places].sum(0))
    agree(matrix[:, matrix.numbers].sum(0), known[:, matrix.numbers].sum(0))
    assert matrix[:, []].shape == (len(known), 0)
    assert matrix[...].shape == matrix[:].shape == matrix.shape


def test_numpys_functions(matrix: Any, known: Array) -> None:
    """As functions, methods, ufuncs and their reductions."""
    agree(np.dot(matrix, np.ones(len(known.T))), known.sum(1))
    agree(np.add.reduce(matrix, axis=0), known.sum(0))
    agree(np.maximum.reduce(matrix, axis=0), known.max(0))
    for axis in (0, 1, None):
        counts, expected = np.count_nonzero(matrix > 0, axis=axis), np.count_nonzero(known > 0, axis=axis)
        assert np.array_equal(counts, expected)
        assert np.asarray(counts).dtype == np.asarray(expected).dtype
    agree(np.transpose(matrix) @ np.ones(len(known)), known.sum(0))
    agree(np.matmul(matrix.T, np.ones(len(known))), known.sum(0))
    agree(np.matmul(np.ones(len(known.T)), matrix.T), known.sum(1))
    agree((np.float64(2) * matrix.T) @ np.ones(len(known)), 2 * known.sum(0))
    assert (np.shape(matrix), np.ndim(matrix), np.size(matrix)) == (known.shape, 2, known.size)
    assert (matrix.size, np.size(matrix, 1), matrix[:, ::2].size) == (known.size, known.shape[1], known[:, ::2].size)
    scores = matrix @ np.random.default_rng(0).normal(size=(known.shape[1], 4))
    assert np.argmin(scores, axis=1).shape == np.linalg.norm(scores, axis=1).shape == (len(known),)
    agree((matrix - matrix.mean(axis=0)).T @ np.square(matrix), (known - known.mean(0)).T @ known**2)


def test_solvers_of_expressions(tmp_path: Path) -> None:
    """SciPy's lsmr, cg, svds, eigsh and lobpcg run on a centred and scaled array unchanged, as on the array itself."""
    x: Any = federation(tmp_path, shop(2), wire="float64").sql(f"SELECT {PLAIN} {JOIN}").matrix()
    array: Any = np.tanh(x - 0.5) / 2 + 0.1
    dense = np.asarray(array @ np.eye(array.shape[1]))
    rng = np.random.default_rng(1)
    target, start, width = rng.normal(size=len(dense)), rng.normal(size=min(dense.shape)), dense.shape[1]
    expected = np.linalg.lstsq(dense, target, rcond=None)[0]
    np.testing.assert_allclose(lsmr(array, target, atol=1e-12, btol=1e-12)[0], expected, atol=1e-7)
    normal = LinearOperator((width, width), matvec=lambda v: array.T @ (array @ v), dtype=float)
    np.testing.assert_allclose(cg(normal, array.T @ target, rtol=1e-12)[0], expected, atol=1e-7)
    np.testing.assert_allclose(cg(array.T @ array, array.T @ target, rtol=1e-12)[0], expected, atol=1e-7)
    singular = np.linalg.svd(dense, compute_uv=False)
    np.testing.assert_allclose(np.sort(svds(array, k=3, v0=start)[1])[::-1], singular[:3], rtol=1e-8)
    largest = eigsh(normal, k=2, v0=start, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(largest)[::-1], singular[:2] ** 2, rtol=1e-8)
    block = lobpcg(normal, rng.normal(size=(width, 1)), tol=1e-9, maxiter=200)[0]
    np.testing.assert_allclose(block, singular[:1] ** 2, rtol=1e-6)
    assert aslinearoperator(array) is array


def trips(messages: list[Message]) -> int:
    """The most requests that a party got."""
    calls = Counter(message.party for message in messages if message.last)
    messages.clear()
    return max(calls.values(), default=0)


def test_a_function_is_evaluated_once_at_base_rows(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rides along with the first product; later ones find it; nothing but numbers and names travels."""
    array = np.log1p(np.abs(0.7301 * matrix))  # which no other test has asked for, whatever their order
    messages = record_wire(monkeypatch)
    array @ np.ones(array.shape[1])
    sent = [message.request for message in messages if message.request.op == "matrix.apply"]
    assert {request.table for request in sent} == set(matrix.source.blocks)
    for request in sent:
        assert {type(each) for step in request.arguments["steps"] for each in step} == {str, int}
    assert trips(messages) == 1
    for step in (array.T @ np.ones(len(array @ np.ones(array.shape[1]))), array.sum(0)):
        assert step.shape == (array.shape[1],)
    assert "matrix.apply" not in {message.request.op for message in messages}
    scaled = 2 * array[:, ::2] - 1  # the same function of fewer columns is another one
    scaled.sum(axis=0)
    assert "matrix.apply" in {message.request.op for message in messages}


def test_lines_need_no_function(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shifts, scales and columns are applied to products; so is any function of categories."""
    messages = record_wire(monkeypatch)
    ((3 * matrix - 1) / 2)[:, ::-1] @ np.ones(matrix.shape[1])
    np.exp(matrix[:, ~matrix.numbers]) @ np.ones(int((~matrix.numbers).sum()))
    assert "matrix.apply" not in {message.request.op for message in messages}


def test_many_functions_keep_few(matrix: Any, known: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties keep the last eight; an older one is asked for again when it is used."""
    kept = [np.tanh(number * matrix) for number in range(1, 12)]
    for array in kept:
        array.sum(axis=0)
    messages = record_wire(monkeypatch)
    agree(kept[0].sum(axis=0), np.tanh(known).sum(axis=0))
    agree(kept[-1].sum(axis=0), np.tanh(11 * known).sum(axis=0))
    assert len({m.request.arguments["into"] for m in messages if m.request.op == "matrix.apply"}) == 1


def test_nothing_of_joined_length_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table has fewer rows than the join: so have all arrays that are sent or received."""
    parties = {
        "a": {"t": pa.table({"k": [1, 2] * 10, "x": np.arange(20.0), "c": ["u", "v"] * 10})},
        "b": {"u": pa.table({"k": [1, 2] * 15, "y": np.arange(30.0) ** 2})},
    }
    relation = federation(tmp_path, parties, wire="float64").sql("SELECT t.x, t.c, u.y FROM t JOIN u USING (k)")
    messages = record_wire(monkeypatch)
    array = np.exp(relation.matrix()) - 1
    check(array, np.asarray(array @ np.eye(array.shape[1])), np.random.default_rng(0))
    assert max(len(array) for message in messages for array in arrays(message)) <= 30


def test_branches_that_are_not_chosen_do_not_matter(matrix: Any) -> None:
    """`np.where` takes nothing of the other branch, also where that is infinite or NaN."""
    x = matrix[:, matrix.numbers]
    known, row = x @ np.eye(x.shape[1]), np.arange(x.shape[1]) % 2

    def choose(x: Any) -> Any:
        return np.where(x > 0, np.log(np.maximum(x, 0)), np.where(row, x, np.sqrt(np.negative(x))))

    with np.errstate(all="ignore"):
        expected = choose(known)
    agree(choose(x).sum(axis=0), expected.sum(axis=0))
    agree(choose(x) @ np.eye(x.shape[1]), expected)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("X * np.ones(X.shape)", r"as long as the joined rows.*X @ np\.eye\(X\.shape\[1\]\), or in SELECT"),
        ("X + np.ones((X.shape[0], 1))", "a number per joined row.*or in SELECT"),
        ("X * np.ones(3)", "does not fit X"),
        ("X * np.nan", "finite numbers"),
        ("X + 'a'", "takes numbers"),
        ("X + 1j", "real numbers"),
        ("X[:, ::2] * X[:, 1::2]", "not made of the same columns.*in SELECT"),
        ("X[0]", r"joined rows, which no party has.*WHERE"),
        ("X[[1, 2], :]", "joined rows, which no party has"),
        ("X[:, 'o.prize']", "no such column.*did you mean"),
        ("X[:, 99]", "columns are numbers below"),
        ("X[:, [True]]", "columns are numbers below"),
        ("X[:, 0.5]", "columns are numbers below"),
        ("np.asarray(X)", r"write X @ np\.eye"),
        ("np.sort(X)", r"np.sort of X needs the cells.*X @ np\.eye"),
        ("np.cumsum(X, axis=0)", "np.cumsum of X needs"),
        ("np.add.accumulate(X)", "one after the other"),
        ("np.where(X > 0)", "a condition alone"),
        ("np.arctanh(X)", "not in the list of functions"),
        ("np.add(X, 1, where=np.ones(X.shape, bool))", "takes no where"),
        ("X.sum(axis=2)", "two axes"),
        ("np.linalg.norm(X, ord=1)", r"with ord=1 .*Euclidean norms of rows and columns"),
        ("np.linalg.norm(X, 2)", r"the spectral norm is scipy\.sparse\.linalg\.svds\(X, k=1\)"),
        ("np.exp(X.T)", r"products only.*np\.exp\(X\)\.T"),
        ("np.exp(np.ones((len(X), 1)) * X)", "products only"),
        ("X @ 3", r"other is an array .*not a number: X \* 3 scales X"),
        ("X @ 'a'", "not str"),
        ("X.T @ 3", r"not a number or a text; A \* number scales"),
        ("3 @ X", r"not a number or a text; A \* number scales"),
        ("X.explain(vectors='a')", "vectors is a whole number from 1, not 'a'"),
        ("X.explain(vectors=0)", "vectors is a whole number from 1, not 0"),
        ("X.explain(vectors=-1)", "vectors is a whole number from 1, not -1"),
        ("X.explain(vectors=True)", "vectors is a whole number from 1, not True"),
        ("np.log(X)", "not finite in column.*X.numbers"),
        ("1 / X", "not finite in column"),
        ("X / 0", "not finite in column"),
        ("np.log(X[:, X.numbers]).sum()", "the function is not finite for some rows"),
        ("X.T @ other", "both to be of one rel.matrix"),
    ],
)
def test_refusals(matrix: Any, expression: str, message: str, tmp_path: Path) -> None:
    """Each in one sentence, with what to write instead."""
    other = federation(tmp_path, shop(1)).sql(f"SELECT {ALL} {JOIN}").matrix() if "other" in expression else None
    with pytest.raises(tp.TablePuppetError, match=message):
        eval(expression, {"X": matrix, "np": np, "other": other})


def test_long_functions(matrix: Any) -> None:
    """So many steps and no more."""
    array = matrix
    for _ in range(MOST_STEPS):
        array = np.tanh(array)
    with pytest.raises(tp.LearnError, match=f"at most {MOST_STEPS} steps"):
        np.tanh(array)


def test_secure_sums_take_lines_only(tmp_path: Path) -> None:
    """A function of columns has no bound that masks could be made for; scales and shifts are applied to the sum."""
    fed = federation(tmp_path, shop(3, together=True), wire="float64")
    x: Any = fed.sql(f"SELECT i.weight, i.height, i.kind {JOIN}").matrix(secure_sum=True)
    plain: Any = fed.sql(f"SELECT i.weight, i.height, i.kind {JOIN}").matrix()
    agree((2 * x - 1).sum(axis=0), (2 * plain - 1).sum(axis=0))
    agree((x - 1).T @ (x - 1), (plain - 1).T @ (plain - 1))
    agree(x.std(axis=0), plain.std(axis=0))
    weights = np.random.default_rng(0).random(len(x @ np.ones(x.shape[1])))
    agree(x.T @ (weights[:, None] * x), plain.T @ (weights[:, None] * plain))
    with pytest.raises(tp.PrivacyError, match=r"secure sums need a bound.*in SELECT"):
        np.exp(x).sum()


def test_an_array_knows_its_recipe(matrix: Any) -> None:
    """Arrays are equal elementwise, and can be keys all the same; rel.matrix(like=array) has the same columns."""
    array = np.tanh(matrix[:, ::2]) * 3
    assert isinstance(array == 1.0, LazyArray)
    assert {array: 1}[array] == 1
    again = matrix.source.owner.matrix(like=array)
    agree(again.sum(axis=0), array.sum(axis=0))
    assert again.columns == array.columns


def test_what_needs_cells_says_so(tmp_path: Path) -> None:
    """Attributes of NumPy's arrays that X has not: an error with what to write, and `hasattr` is false."""
    matrix: Any = federation(tmp_path, shop(1), wire="float64").sql(f"SELECT {ALL} {JOIN}").matrix()
    rows = matrix.shape[0]
    assert len(matrix) == len(np.log1p(np.abs(matrix))) == rows
    for name in ("reshape", "copy", "toarray", "astype"):
        with pytest.raises(tp.LearnError, match=rf"X\.{name} needs the array itself.*X @ np\.eye\(X\.shape\[1\]\)"):
            getattr(matrix, name)
        assert not hasattr(matrix, name)
    for call, told in (
        (np.median, r"rel\.quantile\(0\.5\)"),
        (np.cov, r"rel\.covariance\(\)"),
        (np.linalg.svd, r"np\.linalg\.svd of X .*scipy\.sparse\.linalg\.svds"),
        (np.diff, r"np\.diff of X needs the array itself"),
    ):
        with pytest.raises(tp.LearnError, match=told) as found:
            call(matrix)
        assert "iscomplexobj" not in str(found.value)
    with pytest.raises(AttributeError, match="'LazyArray' object has no attribute 'colums'"):
        _ = matrix.colums
    with pytest.raises(tp.LearnError, match="ambiguous"):
        bool(matrix > 0)
    weighted = matrix * np.ones(rows)[:, None]
    with pytest.raises(tp.LearnError, match=r"write X\.T @ w for its sums of columns"):
        weighted.sum(axis=0)
    agree(weighted.T @ np.ones(rows), matrix.sum(axis=0))


@pytest.mark.parametrize("plan", ["cost", "parties"])
def test_factors_that_do_not_fit(tmp_path: Path, plan: Any) -> None:
    """X @ other says which shapes there are; X.T @ X is the Gram matrix."""
    matrix: Any = federation(tmp_path, shop(1), wire="float64").sql(f"SELECT {ALL} {JOIN}").matrix(plan=plan)
    for other in (matrix, "abc", None, np.ones((matrix.shape[1], 2, 2))):
        with pytest.raises(tp.LearnError, match="X @ other: "):
            _ = matrix @ other
    agree(matrix.T @ matrix, matrix.gram())


def test_columns_by_their_own_names(tmp_path: Path) -> None:
    """A name of `rel.columns` is enough where one table has it; hints are names of whole columns."""
    matrix: Any = federation(tmp_path, shop(1), wire="float64").sql(f"SELECT {ALL} {JOIN}").matrix()
    agree(matrix[:, "age"], matrix[:, "c.age"])
    assert matrix[:, ["kind", "price"]].columns == ["i.kind=0", "i.kind=1", "o.price"]
    with pytest.raises(tp.LearnError, match=r"did you mean 'i\.kind'\?"):
        matrix[:, "knd"]
