"""What policies say of products with vectors that the analyst chose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.algebra.array import LazyArray
from tablepuppet.party.config import PartyFile
from tablepuppet.party.service import Party
from tests.learn.materialised import ALL, JOIN, shop
from tests.party.policed import ROWS, cards, federation, open_party, write_file
from tests.relations import federation as in_process
from tests.relations import record_wire

SQL = "SELECT credit, open, region FROM cards"


def matrix(party: Party, sql: str = SQL) -> LazyArray:
    return federation(party).sql(sql).matrix()


def open_with(folder: Path, table: str = "", limits: str = "", **more: Any) -> Party:
    return open_party(write_file(folder, table=table, limits=limits, **more))


def test_a_table_opts_in(tmp_path: Path) -> None:
    """Without ``matrix = true`` no product with chosen vectors leaves, and no sum of columns, which are encoded as the
    analyst chooses: with `Hash` each category of a row of its own would be a column.
    """
    hashed = tp.prep.Pipeline([tp.prep.Hash(1000, columns=["region"])])
    for found in (matrix(open_with(tmp_path)), federation(open_with(tmp_path)).sql(SQL, prep=hashed).matrix()):
        for ask in (
            lambda x: x @ np.ones(x.shape[1]), lambda x: x.T @ np.ones(ROWS), lambda x: x.sum(axis=0), np.std,
            lambda x: x.T @ x, lambda x: np.tanh(x).sum(), lambda x: tp.linalg.pca(x, 2), tp.linalg.cor,
        ):  # fmt: skip
            with pytest.raises(tp.PrivacyError, match=r"party 'bank', table 'cards': may not be mult.*matrix = true"):
                ask(found)
    allowed = matrix(open_with(tmp_path, "matrix = true"))
    assert allowed.times(np.ones(5)).shape == (ROWS,)
    assert allowed.transposed_times(np.ones(ROWS)).shape == (5,)


def test_other_tables_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of one table are computed by its parties alone, so that another may be closed."""
    fed = in_process(tmp_path, shop(1), wire="float64")
    x: Any = fed.sql(f"SELECT {ALL} {JOIN}").matrix()
    joined = x @ np.eye(x.shape[1])
    mine = [name.startswith("o.") for name in x.columns]
    part, known, u = x[:, mine], joined[:, mine], np.linspace(-1, 1, len(joined))
    messages = record_wire(monkeypatch)
    for found, expected in (
        (part.T @ u, known.T @ u), (part.sum(axis=0), known.sum(axis=0)), (part.var(axis=0), known.var(axis=0)),
        (part.T @ part, known.T @ known), (part.T @ (part[:, :1] - 1), known.T @ (known[:, :1] - 1)),
        (x[:, []].T @ u, joined[:, []].T @ u), (x[:, []].sum(axis=0), joined[:, []].sum(axis=0)),
    ):  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=1e-9 * (1 + np.abs(expected).max(initial=0.0)))
    assert {each.request.table for each in messages if each.request.op.startswith("matrix.")} == {"o"}
    centres = tp.linalg.kmeans(part, k=2, runs=1).centres
    assert centres.shape == (2, sum(mine))


def test_learners_need_no_opt_in(tmp_path: Path) -> None:
    """Their directions come from their algorithms: they keep the rules that they have."""
    relation = federation(open_with(tmp_path)).sql("SELECT credit, region, fraud FROM cards", label="fraud")
    assert tp.LogisticRegression(rounds=2).fit(relation).coef_


def test_databases_of_this_process_allow_it(tmp_path: Path) -> None:
    """Whoever runs the process can read them; levels of a federation file change nothing of that."""
    fed = in_process(tmp_path, {"bank": {"cards": cards()}})
    assert fed.sql(SQL).matrix().times(np.ones(5)).shape == (ROWS,)


def test_columns_are_counted(tmp_path: Path) -> None:
    """Vectors of a session count, whatever number of replies they come in; a new session begins anew."""
    party = open_with(tmp_path, "matrix = true", "max_matrix_columns = 7")
    found = matrix(party)
    found.times(np.ones((5, 4)))
    with pytest.raises(tp.PrivacyError, match=r"products with 7 vectors of its own choice.*max_matrix_columns"):
        found.times(np.ones((5, 4)))
    found.transposed_times(np.ones((ROWS, 2)))  # what was refused did not count
    found.column_sums()  # how often rows are joined is one
    with pytest.raises(tp.PrivacyError, match="max_matrix_columns"):
        found.transposed_times(np.ones(ROWS))
    found.gram()
    with pytest.raises(tp.PrivacyError, match="max_matrix_columns"):
        found.column_sums()
    matrix(party).times(np.ones((5, 7)))


def test_extremes_of_rows_are_counted(tmp_path: Path) -> None:
    """A row's largest number is one column, its place another; a table that is not opted in has neither."""
    found: Any = matrix(open_with(tmp_path, "matrix = true", "max_matrix_columns = 8"))
    assert np.array_equal(found.argmin(axis=1), (found @ np.eye(5)).argmin(axis=1))
    found.max(axis=1)
    with pytest.raises(tp.PrivacyError, match="max_matrix_columns"):
        found.max(axis=1)
    with pytest.raises(tp.PrivacyError, match=r"X\.argmax\(axis=1\).*policy rule matrix"):
        matrix(open_with(tmp_path)).argmin(axis=1)


def test_replies_are_no_rounds(tmp_path: Path) -> None:
    """They are not counted twice, at the party or by the coordinator."""
    found = matrix(open_with(tmp_path, "matrix = true", "max_prediction_rounds = 1"))
    for _ in range(3):
        found.times(np.ones(5))
        found.transposed_times(np.ones(ROWS))
    assert not +found.source.placement.client.outbox.replies


@pytest.mark.parametrize("weighed", [1, 9, 10, 0])
def test_few_rows_are_not_summed(tmp_path: Path, weighed: int) -> None:
    """A vector that weighs fewer than ``min_rows`` rows is refused; one that weighs none tells nothing."""
    found = matrix(open_with(tmp_path, "matrix = true\nmin_rows = 10"))
    values = np.ones((ROWS, 2))
    values[weighed:, 1] = 0.0
    if 0 < weighed < 10:
        with pytest.raises(tp.PrivacyError, match=r"a sum over fewer than 10 of its rows \(policy rule min_rows\)"):
            found.transposed_times(values)
    else:
        assert found.transposed_times(values).shape == (5, 2)


def test_rows_that_are_listed_twice_count_once(tmp_path: Path) -> None:
    """Else one row, listed ten times, would be ten rows."""
    party = open_with(tmp_path, "matrix = true\nmin_rows = 10")
    relation = federation(party).sql("SELECT credit FROM cards")
    encoding = relation.fit_encoding()
    ids = np.concatenate([np.zeros(15, np.int32), np.arange(1, 20, dtype=np.int32)])
    client = relation.client
    client.ask("rows.use", lambda *_: {"view": "w", "chosen": ids, "counts": np.ones(len(ids), np.uint8)})
    client.ask(
        "encode.build",
        lambda *_: {
            "view": "w", "encoding": encoding.id, "columns": ["credit"], "means": np.zeros(1), "scales": np.ones(1),
            "categories": [],
        },
    )  # fmt: skip
    for last, is_refused in ((15, True), (23, True), (24, False)):
        rows = np.zeros(len(ids))
        rows[:last] = 1.0
        asked = dataclasses.replace(client)
        asked._announced = True
        replies = asked.ask(
            "matrix.sums_by",
            lambda *_, rows=rows: {"view": "w", "encoding": encoding.id, "by": rows, "vectors": 1},
        )
        if is_refused:
            with pytest.raises(tp.PrivacyError, match="min_rows"):
                replies.read()
        else:
            replies.read()


def test_noise_cannot_be_had(tmp_path: Path) -> None:
    """Under ``require_dp`` nothing of it leaves, ``matrix = true`` or not; a noisy Gram matrix is a learner's."""
    (tmp_path / "state").mkdir()
    table = "matrix = true\nbudget = { require_dp = true, epsilon = 10.0, delta = 1e-5 }"
    party = open_with(tmp_path, table, top='state_dir = "state"')
    session = federation(party).sql(SQL)
    view = {"view": session.client.view, "encoding": "e"}
    for op, given in (
        ("matrix.times", {"directions": np.ones(1)}),
        ("matrix.sums_by", {"by": np.ones(ROWS), "vectors": 1}),
        ("matrix.sums", {}),
        ("matrix.gram", {"joined_rows": 60}),
        ("matrix.apply", {"into": "f", "numbers": np.zeros(1, int), "groups": np.zeros(0, int),
                          "steps": [("sqrt", 0, 0)], "constants": np.zeros((0, 1))}),
        ("matrix.keep_times", {"into": "k", "directions": np.ones((1, 1))}),
        ("matrix.row_max", {"places": np.zeros(1, int), "scale": np.ones(1), "shift": np.ones(1)}),
        ("matrix.row_max", {"places": np.zeros(1, int), "scale": np.ones(1), "shift": np.ones(1), "arg": True}),
    ):  # fmt: skip
        with pytest.raises(tp.PrivacyError, match=r"policy rule require_dp"):
            party.run("analyst", session.client.session, op, "cards", {**view, **given})


def test_what_needs_noise_says_so_at_once(tmp_path: Path) -> None:
    """Step, party, table and column, and what has a form with noise; before anything is asked."""
    (tmp_path / "state").mkdir()
    table = "matrix = true\nbudget = { require_dp = true, epsilon = 10.0, delta = 1e-5 }"
    fed = federation(open_with(tmp_path, table, top='state_dir = "state"'))
    relation = fed.sql("SELECT credit, fraud FROM cards", label="fraud")
    for step, column, epsilon in (("matrix", "credit", "feature_epsilon"), ("label", "fraud", "label_epsilon")):
        where = rf"rel.{step}\(\): party 'bank', table 'cards', column '{column}': is released only with noise"
        told = rf"{where}.*learners have, with privacy=tp.Privacy\({epsilon}=...\) \(policy rule require_dp\)"
        before = fed.engine.traffic.trips
        with pytest.raises(tp.PrivacyError, match=told):
            getattr(relation, step)()
        assert fed.engine.traffic.trips == before


def test_a_private_column_is_in_no_product(tmp_path: Path) -> None:
    """Levels hold for products as for predictions and sums."""
    party = open_with(tmp_path, "matrix = true")
    with pytest.raises(tp.PrivacyError, match="column 'secret'"):
        federation(party).sql("SELECT credit, secret FROM cards").matrix()
    with pytest.raises(tp.PrivacyError, match="column 'secret'"):
        federation(party).sql("SELECT credit + secret AS both FROM cards").matrix()


def test_files_say_it(tmp_path: Path) -> None:
    """A party file opts in table by table, and bounds columns; by default it does not."""
    policy = PartyFile.load(write_file(tmp_path)).policy()
    rules = policy.table("cards")
    assert rules is not None
    assert (rules.matrix, policy.limits.max_matrix_columns) == (False, 10_000)
    rules = PartyFile.load(write_file(tmp_path, table="matrix = true")).policy().table("cards")
    assert rules is not None
    assert rules.matrix
