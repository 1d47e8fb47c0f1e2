"""Vectors that stay at parties: NumPy's numbers, trips as `explain` says, and what policies say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from benchmarks.algebra import CLOSED, l2svm
from tablepuppet.algebra.costs import LineSpeed
from tablepuppet.algebra.kept import KeptArray
from tablepuppet.algebra.placement import PLANS
from tablepuppet.party.config import Limits
from tests.learn.materialised import ALL, JOIN, shop
from tests.party.policed import ROWS, federation, open_party, write_file
from tests.relations import federation as in_process
from tests.wire.services import calling, served

SHARDS = (40, 75, 35)
SQL = "SELECT x0, x1, x2, kind, y FROM t"


def shards() -> dict[str, dict[str, pa.Table]]:
    """One table in three shards, with numbers, a category and a label of signs."""
    rng = np.random.default_rng(5)
    found = {}
    for number, rows in enumerate(SHARDS):
        columns: dict[str, Any] = {f"x{i}": rng.normal(size=rows) for i in range(3)}
        columns["kind"] = [f"k{i}" for i in rng.integers(0, 3, rows)]
        columns["y"] = np.where(columns["x0"] + columns["x1"] + rng.normal(size=rows) > 0, 1.0, -1.0)
        found[f"p{number}"] = {"t": pa.table(columns)}
    return found


@contextmanager
def services(folder: Path, **settings: Any) -> Iterator[tp.Federation]:
    """The shards, each a service."""
    parties = shards()
    in_process(folder, parties)
    with served({name: f"parquet:///{folder / name}" for name in parties}, limits=Limits(), **settings) as servers:
        yield calling(servers, wire="float64")


def opened(folder: Path) -> tuple[Any, NDArray[np.float64], NDArray[np.float64]]:
    """(X with vectors at parties, the same as an array, a vector)."""
    relation = in_process(folder, shards(), wire="float64").sql(SQL, label="y")
    x = relation.matrix(plan="parties")
    return x, x.times(np.eye(x.shape[1])), np.random.default_rng(1).normal(size=x.shape[1])


def test_plans_give_the_same_machine(tmp_path: Path) -> None:
    """The L2-SVM of Table 1 by every plan, to 1e-9; trips are those that `explain` says, and most of all by parties,
    which pays for the line search.
    """
    with services(tmp_path) as fed:
        found, trips = {}, {}
        plan: Any
        for plan in PLANS:
            relation = fed.sql(SQL, label="y")
            y, x = relation.label(), relation.matrix(plan=plan)
            x.sum(axis=0)  # rows and encoders travel with the first, and cells where the plan collects them
            said = x.explain().steps if plan in ("parties", "heuristic") else {}
            before = fed.engine.traffic.trips
            found[plan] = l2svm(x, y)
            trips[plan] = fed.engine.traffic.trips - before
            after = x.explain().steps
            runs = {name: after[name].runs - said[name].runs for name in said}
            if said:
                assert trips[plan] == sum(said[name].trips * runs[name] for name in said)
            if plan == "parties":
                assert runs["f(u)"] > 10 * runs["X @ V"] > 0 == runs["collect u"]
                assert runs["u.sum()"] > runs["X.T @ u"] > 0
        for plan in PLANS:
            np.testing.assert_allclose(found[plan], found["heuristic"], atol=1e-9)
        assert trips["collect"] == 0
        assert trips["cost"] <= trips["heuristic"] < trips["parties"]


def test_programs_by_parties(tmp_path: Path) -> None:
    """`tp.linalg` gives the same by all plans; conjugate gradients of `l2svm` then send no vector of rows."""
    with services(tmp_path) as fed:
        relation = fed.sql(SQL, label="y")
        y, heuristic, x = relation.label(), relation.matrix(plan="heuristic"), relation.matrix(plan="parties")
        known, found = tp.linalg.l2svm(heuristic, y), tp.linalg.l2svm(x, y)
        np.testing.assert_allclose(np.asarray(found.coef, float), np.asarray(known.coef, float), atol=1e-9)
        assert x.explain().steps["collect u"].runs == 0 < x.explain().steps["X.T @ u"].runs
        for program in (tp.linalg.lm, tp.linalg.multilogreg):
            expected = np.asarray(program(heuristic, y).coef, float)
            np.testing.assert_allclose(np.asarray(program(x, y).coef, float), expected, atol=1e-7)


BY_PRODUCTS: dict[str, Callable[..., Any]] = {
    "l2svm": tp.linalg.l2svm,
    "lm": lambda x, y: tp.linalg.lm(x, y, solver="cg"),
    "glm": lambda x, y: tp.linalg.glm(x, y > 0, family="binomial"),
}


@pytest.mark.parametrize("name", BY_PRODUCTS)
def test_cost_is_the_cheapest(tmp_path: Path, name: str) -> None:
    """Where cells are not collected, no plan takes fewer trips: what is between two products stays at the parties, and
    scores are here for the line search.
    """
    with services(tmp_path, policy=CLOSED) as fed:
        relation = fed.sql(SQL, label="y")
        y, found, trips = relation.label(), {}, {}
        plan: Any
        for plan in ("cost", "heuristic", "parties"):
            x = relation.matrix(plan=plan)
            x.sum(axis=0)  # rows and encoders travel with the first
            x.source.placement.line = LineSpeed(latency=0.04)
            before = fed.engine.traffic.trips
            found[plan] = np.asarray(BY_PRODUCTS[name](x, y).coef, float)
            trips[plan] = fed.engine.traffic.trips - before
            np.testing.assert_allclose(found[plan], found["cost"], atol=1e-6)
        assert trips["cost"] < trips["heuristic"]
        assert trips["cost"] < trips["parties"] if name == "l2svm" else trips["cost"] == trips["parties"]


@pytest.mark.parametrize("bandwidth", [1e9, 1.0])
def test_scores_by_cost_are_where_that_takes_least(tmp_path: Path, bandwidth: float) -> None:
    """At the parties if a vector takes longer than the sums that are read of it; `X @ v` of a user is an array."""
    with services(tmp_path, policy=CLOSED) as fed:
        relation = fed.sql(SQL, label="y")
        y, x = relation.label(), relation.matrix()
        x.source.placement.line = LineSpeed(0.04, bandwidth, True)
        known = tp.linalg.l2svm(relation.matrix(plan="heuristic"), y)
        np.testing.assert_allclose(
            np.asarray(tp.linalg.l2svm(x, y).coef, float), np.asarray(known.coef, float), atol=1e-6
        )
        steps = x.explain().steps
        assert steps["keep X @ V"].runs > 0
        assert (steps["X @ V"].runs > 0) == (steps["u.sum()"].runs < steps["X.T @ u"].runs + 3) == (bandwidth > 1)
        assert isinstance(x @ np.ones(x.shape[1]), np.ndarray)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "scale and shift": lambda u, v, w: 2 * u - 1 / (3 + np.abs(v)),
    "with a vector of here": lambda u, v, w: w * u + v * w,
    "branch that is not chosen": lambda u, v, w: np.where(u > 0, np.log(np.maximum(u, 0)), w),
    "where a vector of here says": lambda u, v, w: np.where(w, u, 1 / (v * (w != 0))) + np.where(w > 0, 1, u),
    "conditions": lambda u, v, w: np.where(u > 0, u, 0) * (v <= w),
    "hinge": lambda u, v, w: np.maximum(1 - w * u, 0) ** 2,
    "unary": lambda u, v, w: np.tanh(-u) + np.exp(v) * np.sign(w),
    "clipped": lambda u, v, w: np.clip(u, -0.5, 0.5),
    "not at parties": lambda u, v, w: np.logaddexp(u, w) + v,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_those_of_numpy(tmp_path: Path, name: str) -> None:
    """Elementwise functions, then every reduction, to 1e-9."""
    x, joined, v = opened(tmp_path)
    w = np.random.default_rng(2).normal(size=len(joined))
    scaled, known = (x - x.mean(axis=0)) / 2, (joined - joined.mean(axis=0)) / 2
    found = FUNCTIONS[name](x @ v, scaled @ v, w)
    with np.errstate(divide="ignore"):
        expected = FUNCTIONS[name](joined @ v, known @ v, w)
    assert isinstance(found, KeptArray)
    for ours, theirs in (
        (found.sum(), expected.sum()), (np.mean(found), expected.mean()), (np.asarray(found), expected),
        (np.linalg.norm(found), np.linalg.norm(expected)), (found @ (x @ v), expected @ joined @ v),
        (x.T @ found, joined.T @ expected), (scaled.T @ found, known.T @ expected), (found @ x, expected @ joined),
        (np.tanh(x).T @ found, np.tanh(joined).T @ expected), (w @ found, w @ expected),
        (np.count_nonzero(found), np.count_nonzero(expected)), (np.max(found), np.max(expected)),
    ):  # fmt: skip
        np.testing.assert_allclose(ours, theirs, atol=1e-9 * (1 + np.abs(theirs).max()))


COLLECTED: dict[str, Callable[..., Any]] = {
    "norms": lambda u: [np.linalg.norm(u, each) for each in (0, 1, 2, 3, np.inf)],
    "norm by name": lambda u: [np.linalg.norm(u, ord=1), np.linalg.norm(u, None, 0, True)[0]],
    "places": lambda u: np.where(u > 0),
    "mask": lambda u: u[u > 0],
    "mask of an array of here": lambda u: np.arange(len(u))[u > 0],
    "not": lambda u: ~(u > 0),
    "and, or": lambda u: ((u > 0) & (u < 1)) | (u < -1),
    "a number": lambda u: np.dot(2.0, u) + u.dot(0.5),
    "methods": lambda u: [u.max(), u.min(axis=0), u.argmax(), u.std(), u.mean(keepdims=True)[0]],
    "methods of conditions": lambda u: [(u > 0).any(), (u > 9).all(), np.any(u > 0)],
    "positional settings": lambda u: np.sum(u, 0, np.float64),
    "clipped by name": lambda u: np.clip(u, a_min=0, a_max=1),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTED)
def test_functions_that_parties_do_not_have(tmp_path: Path, name: str) -> None:
    """They collect the vector, conditions as bool, and give what NumPy gives."""
    x, joined, v = opened(tmp_path)
    found, expected = COLLECTED[name](x @ v), COLLECTED[name](joined @ v)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-9)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


def test_norms_of_several_columns(tmp_path: Path) -> None:
    """By columns and of all; as matrices they are collected."""
    x, joined, v = opened(tmp_path)
    several = np.column_stack([v, 2 * v + 1])
    order: Any
    axis: Any
    for order, axis in ((None, None), (None, 0), (2, 0), (1, 0), (1, None), (2, None), ("fro", None), (None, (0, 1))):
        ours, theirs = (np.linalg.norm(each @ several, order, axis) for each in (x, joined))
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_several_columns(tmp_path: Path) -> None:
    """Vectors with k numbers for each row: columns are broadcast as NumPy does."""
    x, joined, v = opened(tmp_path)
    several = np.column_stack([v, 2 * v, v + 1])
    u, known = x @ several, joined @ several
    assert u.shape == known.shape
    row, column = np.array([1.0, 2.0, 3.0]), np.linspace(0, 1, len(joined))[:, None]
    for ours, theirs in (
        (u + row, known + row), (u * column, known * column), (u - (x @ v[:, None]), known - joined @ v[:, None])
    ):  # fmt: skip
        np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-9)
        np.testing.assert_allclose(ours.sum(axis=0), theirs.sum(axis=0), atol=1e-9)
        np.testing.assert_allclose(ours.sum(), theirs.sum(), atol=1e-9)
        np.testing.assert_allclose(x.T @ ours, joined.T @ theirs, atol=1e-9)
        np.testing.assert_allclose(ours.sum(axis=1), theirs.sum(axis=1), atol=1e-9)
        np.testing.assert_allclose(ours[:, 1], theirs[:, 1], atol=1e-9)
    np.testing.assert_allclose(u.T @ u, known.T @ known, atol=1e-9)


def test_in_place(tmp_path: Path) -> None:
    """`u += v` changes u for whoever has it, also where u is an array of here."""
    x, joined, v = opened(tmp_path)
    u = x @ v
    same, before = u, u + 0
    u += 1
    u *= np.arange(len(joined))
    np.testing.assert_allclose(np.asarray(same), (joined @ v + 1) * np.arange(len(joined)), atol=1e-9)
    np.testing.assert_allclose(np.asarray(before), joined @ v, atol=1e-9)
    same = +before
    before += 1
    np.testing.assert_allclose(np.asarray(same), joined @ v, atol=1e-9)
    mask = before > 0
    mask &= before < 1
    np.testing.assert_array_equal(np.asarray(mask), (joined @ v > -1) & (joined @ v < 0))
    before -= 1
    here = np.zeros(len(joined))
    here += before
    np.testing.assert_allclose(here, joined @ v, atol=1e-9)


def test_parties_keep_as_many_as_are_used(tmp_path: Path) -> None:
    """A vector that nobody refers to gives its name to another; one that was sent is not sent again."""
    x, joined, v = opened(tmp_path)
    y, u = np.sign(joined[:, 0]), x @ v
    for _ in range(50):
        u = u - 0.1 * y * u
    np.testing.assert_allclose(u.sum(), ((1 - 0.1 * y) ** 50 * (joined @ v)).sum(), rtol=1e-9)
    assert x.source.keeper._made < 8
    assert x.explain().steps["send u"].runs <= 2


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    """LearnErrors that say so."""
    x, joined, v = opened(tmp_path)
    u = x @ v
    wrongs: list[Callable[[], Any]] = [
        lambda: u + np.ones(3), lambda: u + np.ones((len(joined), 2)), lambda: x @ np.ones(2), lambda: x @ u
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(tp.LearnError, match=r"do not fit|has shape"):
            wrong()
    with pytest.raises(tp.LearnError, match="finite"):
        u + np.full(len(joined), np.nan)
    with pytest.raises(tp.LearnError, match="real numbers"):
        u * 1j
    with pytest.raises(tp.PartyError, match="not finite in some rows"):
        np.log(u).sum()


def test_over_joins_vectors_are_collected(tmp_path: Path) -> None:
    """A vector over joined rows has no party: `parties` does what `heuristic` does, and `explain` says so."""
    x: Any = in_process(tmp_path, shop(2)).sql(f"SELECT {ALL} {JOIN}").matrix(plan="parties")
    assert isinstance(x @ np.ones(x.shape[1]), np.ndarray)
    assert x.explain().steps["X @ V"].where == "at parties"
    assert "f(u)" not in x.explain().steps


def test_secure_sums_collect_vectors(tmp_path: Path) -> None:
    """Masked sums need a bound, which a vector at parties has not: as `heuristic`."""
    relation = in_process(tmp_path, shards()).sql("SELECT x0, x1 FROM t")
    x: Any = relation.matrix(secure_sum=True, plan="parties")
    assert isinstance(x @ np.ones(2), np.ndarray)


# ---- policies


def test_nothing_leaves_before_it_is_reduced(tmp_path: Path) -> None:
    """Steps that keep a vector release nothing of it."""
    with services(tmp_path) as fed:
        x = fed.sql(SQL, label="y").matrix(plan="parties")
        x.sum(axis=0)

        def released() -> dict[str, int]:
            told = [each for each in fed.traffic if each["direction"] == "up"]
            return {each["release"]: each["bytes"] for each in told}

        before, u = released(), np.tanh(x @ np.ones(x.shape[1])) * 2
        fed_outbox = x.source.placement.client.outbox
        fed_outbox.send()
        assert {name for name, size in released().items() if size > before.get(name, 0)} <= {"COUNTS"}
        assert isinstance(u.sum(), float)


def test_a_table_opts_in(tmp_path: Path) -> None:
    """Without ``matrix = true`` nothing is kept, whatever a coordinator asks; columns that are released count."""
    x = federation(open_party(write_file(tmp_path))).sql("SELECT credit, open FROM cards").matrix(plan="parties")
    with pytest.raises(tp.PrivacyError, match="matrix = true"):
        x @ np.ones(2)
    client = x.source.placement.client
    for op, given in (
        ("matrix.keep_times", {"encoding": x.source.encoding.id, "directions": np.ones(2)}),
        ("matrix.keep_rows", {"rows": np.ones(ROWS)}),
    ):
        asked = client.ask(op, lambda *_, given=given: {"into": "mine", **given})
        with pytest.raises(tp.PrivacyError, match="matrix = true"):
            asked.read()
    party = open_party(write_file(tmp_path, table="matrix = true", limits="max_matrix_columns = 4"))
    y: Any = federation(party).sql("SELECT credit, open FROM cards").matrix(plan="parties")
    u = y @ np.ones((2, 2))  # two
    for _ in range(20):
        u = u + 1
    assert u.sum(axis=0).shape == (2,)  # and two more
    with pytest.raises(tp.PrivacyError, match="max_matrix_columns"):
        u.sum()


def test_sums_hide_among_min_rows(tmp_path: Path) -> None:
    """Of a vector that is zero in all but a few rows nothing is added up; nor is such a vector kept."""
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 10"))
    x: Any = federation(party).sql("SELECT credit, open FROM cards").matrix(plan="parties")
    u, numbers = x @ np.ones(2), np.arange(1.0, ROWS + 1)
    few = (numbers * 0 + 1) * u * np.less(u * 0 + numbers, 5)  # the mask of four rows is made at the party
    for reduce in (lambda: few.sum(), lambda: x.T @ few, lambda: np.asarray(few), lambda: few @ few):
        with pytest.raises(tp.PrivacyError, match=r"fewer than 10 of its rows \(policy rule min_rows\)"):
            reduce()
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        (u * (numbers < 5)).sum()
    assert isinstance((u * (np.less(u * 0 + numbers, 15))).sum(), float)


def test_requests_written_by_hand(tmp_path: Path) -> None:
    """Names of encodings, of vectors that are not there, of other relations; numbers of columns that are not so."""
    party = open_party(write_file(tmp_path, table="matrix = true"))
    fed = federation(party)
    relation = fed.sql("SELECT credit, open FROM cards")
    x, other = relation.matrix(plan="parties"), fed.sql("SELECT credit, open FROM cards").matrix(plan="parties")
    u, foreign = x @ np.ones(2), other @ np.ones(2)
    other.source.placement.client.outbox.send()

    def ask(op: str, **given: Any) -> Any:
        return x.source.placement.client.ask(op, lambda *_: given).read()

    kept, encoding = u.slot.name, x.source.encoding.id
    ask("matrix.keep_function", into="mine", function="add", left=kept, right=1.0)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("matrix.kept_sums", {"kept": foreign.slot.name, "vectors": 1}, "keeps no vector"),
        ("matrix.kept_sums", {"kept": encoding, "vectors": 1}, "keeps no vector"),
        ("matrix.kept_sums", {"kept": "mine", "vectors": 2}, "another number of columns"),
        ("matrix.kept_rows", {"kept": "mine", "vectors": 0}, "not of the kind or size"),
        ("matrix.keep_rows", {"into": encoding, "rows": np.ones(ROWS)}, "name of something else"),
        ("matrix.keep_rows", {"into": "mine", "rows": np.ones(ROWS - 1)}, "do not fit"),
        ("matrix.times", {"encoding": "mine", "directions": np.ones(2)}, "has not encoded"),
        ("matrix.keep_function", {"into": "a", "function": "add", "left": 1.0, "right": 1.0}, "number of vectors"),
        ("matrix.keep_function", {"into": "a", "function": "add", "left": "mine"}, "number of vectors"),
        (
            "matrix.keep_function",
            {"into": "a", "function": "exp", "left": "mine", "right": "mine"},
            "number of vectors",
        ),
        ("matrix.keep_function", {"into": "a", "function": "eval", "left": "mine"}, "not of the kind"),
        ("matrix.keep_function", {"into": "a", "function": "exp", "left": "none"}, "keeps no vector"),
    ]
    for op, given, message in wrong:
        with pytest.raises(tp.PartyError, match=message):
            ask(op, **given)
    ask("matrix.keep_function", into="wide", function="add", left="mine", right=np.ones(3))
    with pytest.raises(tp.PartyError, match="different numbers of columns"):
        ask("matrix.keep_function", into="a", function="add", left="wide", right=np.ones(2))
    relation.client.ask("rows.use", lambda *_: {"chosen": np.arange(30, dtype=np.int32), "counts": np.ones(30, int)})
    with pytest.raises(tp.PartyError, match="keeps no vector"):
        ask("matrix.kept_sums", kept="mine", vectors=1)
