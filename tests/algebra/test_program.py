"""What programs, and `rel.matrix`, say when they are given something else than they take."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, shop
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.relations import federation

SUPERVISED = ("glm", "l2svm", "lasso", "lm", "multilogreg", "naive_bayes", "steplm")
PROGRAMS = (*SUPERVISED, "cor", "kmeans", "pca")


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> tp.Relation:
    fed = federation(tmp_path_factory.mktemp("shop"), shop(1, together=True), wire="float64")
    return fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")


@pytest.fixture(scope="module")
def matrix(relation: tp.Relation) -> Any:
    return relation.matrix()


def test_every_program_is_asked() -> None:
    """The list of programs is that of `tp.linalg`."""
    assert sorted(PROGRAMS) == [name for name in tp.linalg.__all__ if name.islower()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_take_a_matrix(relation: tp.Relation, name: str) -> None:
    """A relation, an array or nothing: an error says what to write."""
    rest = [relation.label()] if name in SUPERVISED else []
    for given in (relation, np.eye(3), None):
        with pytest.raises(tp.LearnError, match=rf"{name} takes the matrix of a relation: X = rel\.matrix\(\)"):
            getattr(tp.linalg, name)(given, *rest)


@pytest.mark.parametrize("name", SUPERVISED)
def test_programs_take_a_label(relation: tp.Relation, matrix: Any, name: str) -> None:
    """A relation, a name or nothing: an error says what to write."""
    for given in ((relation,), ("paid",), (None,), (matrix,), ()):
        with pytest.raises(tp.LearnError, match=rf"{name}: y is one value per joined row, y = rel\.label\(\), not"):
            getattr(tp.linalg, name)(matrix, *given)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_matrix_is_x_and_the_label_y(relation: tp.Relation, matrix: Any, name: str) -> None:
    """They may be named, as docs and errors name them."""
    labels = {"y": relation.label() > 1} if name in SUPERVISED else {}
    found = getattr(tp.linalg, name)(X=matrix, **labels)
    assert type(found) is type(getattr(tp.linalg, name)(matrix, *labels.values()))
    known = ["X", "y"] if labels else ["X"]
    assert list(inspect.signature(getattr(tp.linalg, name)).parameters)[: len(known)] == known


@pytest.mark.parametrize("name", PROGRAMS)
def test_models_are_printed_in_short(relation: tp.Relation, matrix: Any, name: str) -> None:
    """Their numbers, not how columns were prepared, nor numbers by the thousand."""
    model = getattr(tp.linalg, name)(matrix, *([relation.label() > 1] if name in SUPERVISED else []))
    if name == "cor":
        return
    assert repr(model).startswith(f"{type(model).__name__}(")
    assert "preparation" not in repr(model)
    assert "\n" not in repr(model)
    assert len(repr(model)) < 800
    if name == "lm":
        assert f"'o.price': {model.coef['o.price']:.5g}, " in repr(model)
        assert f"intercept={model.intercept:.5g}, rows={model.rows}" in repr(model)


def test_names_of_settings_are_checked(relation: tp.Relation, matrix: Any) -> None:
    """An error says which setting was meant, or lists those that there are."""
    linalg: Any = tp.linalg
    for call, message in (
        (lambda: linalg.kmeans(matrix, n_clusters=3), "kmeans has no argument 'n_clusters'; here it is 'k'"),
        (lambda: linalg.l2svm(matrix, relation.label(), C=1), "l2svm has no argument 'C'; here it is 'l2'"),
        (lambda: relation.matrix(plans="cost"), "matrix has no argument 'plans'; did you mean 'plan'"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_what_a_matrix_may_be_like(relation: tp.Relation) -> None:
    """Another matrix or a model of `tp.linalg`; a learner is neither."""
    for given in ("x", tp.LinearRegression(), np.eye(2)):
        with pytest.raises(tp.LearnError, match=r"like is another matrix, X = rel\.matrix\(\), or a model of tp\.lin"):
            relation.matrix(like=given)  # type: ignore[arg-type]


def test_labels_of_one_value(matrix: Any) -> None:
    """Least squares would have statistics of rounding only; forward selection adds no column."""
    with pytest.raises(tp.LearnError, match="lm: y has one value only in these rows"):
        tp.linalg.lm(matrix, np.full(matrix.shape[0], 0.1))
    assert np.isnan(tp.linalg.steplm(matrix, np.ones(matrix.shape[0])).f_statistic)


def test_components_of_no_columns(matrix: Any) -> None:
    """An error says what is missing, not a range without numbers."""
    with pytest.raises(tp.LearnError, match="pca needs a column and two joined rows"):
        tp.linalg.pca(matrix[:, []])


@pytest.mark.parametrize("name", SUPERVISED)
def test_columns_that_are_there_twice(relation: tp.Relation, matrix: Any, name: str) -> None:
    """Coefficients are by name, so one would hide the other; `folder` is a name."""
    y = relation.label() > 1
    with pytest.raises(tp.LearnError, match=rf"{name}: column 'o.price' is in X more than once"):
        getattr(tp.linalg, name)(matrix[:, [0, 0]], y)
    if "folder" in inspect.signature(getattr(tp.linalg, name)).parameters:
        with pytest.raises(tp.LearnError, match=f"{name}: folder is the name of one, not int"):
            getattr(tp.linalg, name)(matrix, y, folder=3)


def test_what_does_not_fit_is_said(relation: tp.Relation, matrix: Any) -> None:
    """Complex classes, a mean that a link does not have, changes in place, names of categories, functions of w X."""
    y = relation.label()
    with pytest.raises(tp.LearnError, match="multilogreg: y has complex numbers"):
        tp.linalg.multilogreg(matrix, y * 1j)
    with pytest.raises(tp.LearnError, match=r"glm: the mean of y is -\d+.*which has no log; take another link"):
        tp.linalg.glm(matrix, y - 100, link="log")
    with pytest.raises(tp.LearnError, match=r"path\.at\(alpha\)\.predict\(rel\)"):
        tp.linalg.lasso(matrix, y, alphas=3).predict(relation)
    with pytest.raises(tp.LearnError, match="X is not changed in place"):
        matrix *= 2
    with pytest.raises(tp.LearnError, match="columns of categories have codes"):
        _ = matrix[:, "i.kind=toy"]
    with pytest.raises(tp.LearnError, match="X has no such column"):
        _ = matrix[:, "o.price=3"]
    with pytest.raises(tp.LearnError, match=r"has products only, no np\.norm"):
        np.linalg.norm(np.ones(len(y))[:, None] * matrix, axis=0)
    assert tp.linalg.pca(matrix[:, :3]).components.shape == (3, 3)
    np.testing.assert_allclose(np.amax(matrix, axis=0), np.max(matrix, axis=0))


def test_blocks_of_a_gram_matrix(matrix: Any) -> None:
    """A product of two choices of columns; over one table it is a block of X.T @ X, in one trip, and takes no cells."""
    joined = matrix @ np.eye(matrix.shape[1])
    scaled = (matrix[:, 1:] - 0.5) * 2
    np.testing.assert_allclose(matrix[:, :3].T @ scaled, joined[:, :3].T @ ((joined[:, 1:] - 0.5) * 2), atol=1e-8)


def test_blocks_of_one_table(tmp_path: Path) -> None:
    """Categories of few rows do not matter to it, as they do to products with cells (``min_rows``)."""
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 25"))
    fed = policed(party)
    x = fed.sql("SELECT credit, open, region FROM cards").matrix()
    joined = x @ np.eye(x.shape[1])
    before = fed.engine.traffic.trips
    np.testing.assert_allclose(x.T @ (2 * x[:, 1:]), joined.T @ (2 * joined[:, 1:]), atol=1e-3)
    assert fed.engine.traffic.trips == before + 1
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        _ = x.T @ np.tanh(x)
