"""What errors of the relation as a matrix, and of programs over it, advise returns what was asked for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
from sklearn.linear_model import Lasso

import tablepuppet as tp
from tests.advice import Advice, check_all_are_tried
from tests.advised_shop import USUAL, Shop
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file


def same(one: Any, other: Any) -> bool:
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return True


def eye(matrix: Any) -> Any:
    return matrix @ np.eye(matrix.shape[1])


def numbers(shop: Shop) -> Any:
    return shop.x[:, shop.x.numbers]


def ones(shop: Shop) -> Any:
    return np.arange(1.0, 1 + len(shop.x))


def covariance(shop: Shop) -> None:
    centred = shop.x - shop.x.mean(axis=0)
    same(centred.T @ centred / (len(shop.x) - 1), np.cov(shop.cells, rowvar=False))


def in_order(shop: Shop) -> None:
    same(np.sort(eye(shop.x), axis=0), np.sort(shop.cells, axis=0))
    same(quantile_of_price(shop, 0.1), shop.joined.price.quantile(0.1))


def quantile_of_price(shop: Shop, share: float) -> float:
    return float(shop.rel.quantile(share).to_arrow()["value"][0].as_py())


def some_rows(shop: Shop) -> None:
    chosen = shop.sql(more="WHERE o.quantity < 3")
    assert len(chosen) == np.count_nonzero(shop.joined.quantity < 3)


def without_dependent(shop: Shop) -> None:
    X = dependent(shop)[:, ["o.price", "i.weight"]]
    design = np.c_[eye(X), np.ones(len(X))]
    found = tp.linalg.lm(X, shop.y)
    same([*found.coef.values(), found.intercept], np.linalg.lstsq(design, shop.y, rcond=None)[0])


def dependent(shop: Shop) -> Any:
    return shop.sql("o.price, o.price * 2 - 1 AS twice, i.weight", None).matrix()


def penalty_of_a_path(shop: Shop) -> None:
    X = numbers(shop)
    alpha = 0.01
    found = tp.linalg.lasso(X, shop.y, alphas=[alpha]).at(alpha)
    same(list(found.coef.values()), Lasso(alpha=alpha, tol=1e-10).fit(eye(X), shop.y).coef_)


def predicted_like(shop: Shop) -> None:
    other = shop.sql(more="WHERE o.quantity < 3")
    model = tp.linalg.lm(numbers(shop), shop.y)
    same(model.predict(other), model.predict(other.matrix(like=model)))


def without_folder(shop: Shop) -> None:
    X = numbers(shop)
    kept = tp.linalg.lm(X, shop.y, solver="cg", folder=shop.folder / "cg")
    same(list(kept.coef.values()), list(tp.linalg.lm(X, shop.y, solver="lsmr").coef.values()))


def another_folder(shop: Shop) -> None:
    X = numbers(shop)
    again = tp.linalg.lm(X, shop.y, solver="cg", folder=shop.folder / "other").coef
    same(list(again.values()), list(tp.linalg.lm(X, shop.y, solver="cg").coef.values()))


def of_two_runs(shop: Shop) -> None:
    for columns in (numbers(shop), numbers(shop)[:, [0]]):
        tp.linalg.lm(columns, shop.y, solver="cg", folder=shop.folder / "run")


def damaged(shop: Shop) -> None:
    X, folder = numbers(shop), shop.folder / "damaged"
    tp.linalg.lm(X, shop.y, solver="cg", folder=folder)
    (file,) = (each for each in folder.iterdir() if each.is_file())
    file.write_bytes(b"no state")
    tp.linalg.lm(X, shop.y, solver="cg", folder=folder)


def without_damaged(shop: Shop) -> None:
    for file in (shop.folder / "damaged").iterdir():
        file.unlink()
    tp.linalg.lm(numbers(shop), shop.y, solver="cg", folder=shop.folder / "damaged")


def saved(shop: Shop) -> None:
    model = tp.linalg.lm(numbers(shop), shop.y)
    model.save(shop.folder / "model")
    same(tp.load(shop.folder / "model", shop.fed).predict(shop.rel), model.predict(shop.rel))


def like_without_columns(shop: Shop) -> None:
    some = shop.sql(f"{USUAL}, o.day", more="WHERE o.quantity < 3").matrix(like=shop.x)
    same(eye(some), shop.cells[shop.joined.quantity < 3])


def by_steps(shop: Shop, steps: int) -> Any:
    X = shop.x[:, ["o.price"]]
    for number in range(steps):
        X = np.minimum(np.cos(X), 2 + number)
    return X


def bank(shop: Shop, columns: str = "credit", table: str = "matrix = true", limits: str = "", **plan: Any) -> Any:
    """The matrix of a bank's cards, by its party file."""
    return (
        policed(open_party(write_file(shop.folder, limits, table))).sql(f"SELECT {columns} FROM cards").matrix(**plan)
    )


def clipped(shop: Shop) -> None:
    X = bank(shop, table="matrix = true\nmin_rows = 10")
    same(eye(np.clip(X, None, 1.32)), np.minimum(eye(X), 1.32))


def a_learner(shop: Shop) -> None:
    rel = policed(open_party(write_file(shop.folder))).sql("SELECT credit, fraud FROM cards", label="fraud")
    assert tp.LogisticRegression().fit(rel).coef_


def larger_groups(shop: Shop) -> None:
    X = bank(shop, table="matrix = true\nmin_rows = 10")
    same(X.T @ (np.arange(60) < 10), eye(X)[:10].sum(axis=0))


def by_costs(shop: Shop) -> None:
    X = bank(shop, plan="cost")
    same(X.T @ X, eye(X).T @ eye(X))


def of_fewer_clusters(shop: Shop) -> None:
    for k, runs in ((2, 1), (1, 2)):
        assert tp.linalg.kmeans(bank(shop, "region", COUNTED, "max_matrix_columns = 40"), k=k, runs=runs, max_iter=3)


COUNTED = "matrix = true\nmin_rows = 0"
FEW = "matrix = true\nmin_rows = 21"


def two_classes(shop: Shop) -> None:
    rel = shop.sql("o.price, o.quantity, CASE WHEN o.cost > 1 THEN 1 ELSE 0 END AS high", "high")
    assert 0.0 <= tp.linalg.l2svm(rel.matrix(), rel.label()).accuracy <= 1.0


def with_cells(asked: Callable[[Shop, Any], Any]) -> Advice:
    """A function of the array that NumPy has for its cells."""
    return Advice(
        "would need something as long as the joined rows at a party, or all cells here; write ",
        lambda shop: asked(shop, shop.x),
        lambda shop: same(asked(shop, eye(shop.x)), asked(shop, shop.cells)),
    )


CASES = [
    Advice(
        "to multiply, a column",
        lambda shop: shop.x * ones(shop),
        lambda shop: same(
            (ones(shop)[:, None] * shop.x) @ np.ones(shop.x.shape[1]), ones(shop) * shop.cells.sum(axis=1)
        ),
    ),
    Advice(
        "write np.count_nonzero(X) > 0",
        lambda shop: bool(shop.x),
        lambda shop: bool(np.count_nonzero(shop.x) > 0) == bool(shop.cells.any()),
    ),
    Advice(
        "all cells would come here; write ",
        lambda shop: shop.x.tolist(),
        lambda shop: eye(shop.x).tolist() == shop.cells.tolist(),
    ),
    Advice("Choose rows by WHERE, or by rel.split", lambda shop: shop.x[shop.cells[:, 0] > 0], some_rows),
    Advice(
        ": give the table too",
        lambda shop: shop.sql("o.price, i.weight AS price", None).matrix()[:, "price"],
        lambda shop: same(shop.sql("o.price, i.weight AS price", None).matrix()[:, "o.price"], shop.cells[:, 0]),
    ),
    Advice(
        "choose columns before, as in X[:, X.numbers]",
        lambda shop: 1 / shop.x[:, ["o.price", "i.brand"]],
        lambda shop: same(eye(1 / shop.x[:, ["o.price"]]), 1 / shop.cells[:, [0]]),
    ),
    Advice("write D = X - X.mean(axis=0), then D.T @ D / (len(X) - 1)", lambda shop: np.cov(shop.x), covariance),
    Advice(
        "write tp.linalg.cor(X), for its columns",
        lambda shop: np.corrcoef(shop.x),
        lambda shop: same(tp.linalg.cor(shop.x), np.corrcoef(shop.cells, rowvar=False)),
    ),
    Advice(
        "write scipy.sparse.linalg.svds(X, k=...)",
        lambda shop: np.linalg.svd(shop.x),
        lambda shop: same(np.sort(scipy.sparse.linalg.svds(shop.x, k=3)[1])[::-1], np.linalg.svd(shop.cells).S[:3]),
    ),
    Advice(
        "write np.sqrt(np.linalg.svdvals(X.T @ X))",
        lambda shop: np.linalg.svdvals(shop.x),
        lambda shop: same(np.sqrt(np.linalg.svdvals(shop.x.T @ shop.x)), np.linalg.svdvals(shop.cells)),
    ),
    Advice(
        "write np.linalg.matrix_rank(X.T @ X)",
        lambda shop: np.linalg.matrix_rank(shop.x),
        lambda shop: same(np.linalg.matrix_rank(shop.x.T @ shop.x), np.linalg.matrix_rank(shop.cells)),
    ),
    Advice(
        "write np.linalg.pinv(X.T @ X) @ (X.T @ y)",
        lambda shop: np.linalg.pinv(shop.x),
        lambda shop: same(
            np.linalg.pinv(shop.x.T @ shop.x) @ (shop.x.T @ shop.y),
            np.linalg.pinv(shop.cells) @ shop.y,
        ),
    ),
    Advice(
        "write np.linalg.cholesky(X.T @ X).T for R",
        lambda shop: np.linalg.qr(numbers(shop)),
        lambda shop: same(
            np.abs(np.linalg.cholesky(numbers(shop).T @ numbers(shop)).T), np.abs(np.linalg.qr(eye(numbers(shop))).R)
        ),
    ),
    Advice(
        "write scipy.sparse.linalg.lsqr(X, y)[0]",
        lambda shop: np.linalg.lstsq(shop.x, shop.y),
        lambda shop: np.testing.assert_allclose(
            scipy.sparse.linalg.lsqr(shop.x, shop.y, atol=1e-12, btol=1e-12)[0],
            np.linalg.lstsq(shop.cells, shop.y, rcond=None)[0],
            atol=1e-5,
        ),
    ),
    Advice(
        "write rel.histogram(column)",
        lambda shop: np.histogram(shop.x[:, ["o.price"]]),
        lambda shop: same(shop.rel.histogram("price", bins=10).counts, np.histogram(shop.cells[:, 0], 10)[0]),
    ),
    Advice(
        "write rel.quantile(0.5), or another share",
        lambda shop: np.median(shop.x, axis=0),
        lambda shop: (
            same(quantile_of_price(shop, 0.5), shop.joined.price.median()),
            same(np.median(eye(shop.x), axis=0), np.median(shop.cells, axis=0)),
        ),
    ),
    Advice("rel.quantile has numbers in order", lambda shop: np.sort(shop.x, axis=0), in_order),
    *map(
        with_cells,
        [
            lambda shop, x: x + ones(shop)[:, None],
            lambda shop, x: x * np.ones(shop.x.shape),
            lambda _, x: x[:, [0]] + x[:, [1]],
            lambda _, x: np.where(x > 0),
            lambda _, x: np.abs(x).max(axis=0),
        ],
    ),
    Advice(
        "X is not changed in place: write X = np.",
        lambda shop: np.exp(shop.x[:, [0]], out=shop.x[:, [0]]),
        lambda shop: same(eye(np.exp(shop.x[:, [0]])), np.exp(shop.cells[:, [0]])),
    ),
    Advice(
        "of them out: X[:, columns]",
        lambda shop: tp.linalg.lm(dependent(shop), shop.y).summary(),
        without_dependent,
    ),
    Advice(
        "raise max_iter, or check the family",
        lambda shop: tp.linalg.glm(numbers(shop), np.exp(shop.y), family="gamma", link="log", max_iter=1),
        lambda shop: tp.linalg.glm(numbers(shop), np.exp(shop.y), family="gamma", link="log", max_iter=100),
    ),
    Advice(
        "; take another link",
        lambda shop: tp.linalg.glm(numbers(shop), shop.y - 10, family="gaussian", link="log"),
        lambda shop: tp.linalg.glm(numbers(shop), shop.y - 10, family="gaussian", link="identity"),
    ),
    Advice(
        "give it to lasso, alphas=[...]",
        lambda shop: tp.linalg.lasso(numbers(shop), shop.y, alphas=[0.5, 0.1]).at(0.01),
        penalty_of_a_path,
    ),
    Advice(
        "penalties have no scale; give alphas",
        lambda shop: tp.linalg.lasso(numbers(shop), np.ones(len(shop.x))),
        lambda shop: same(
            list(tp.linalg.lasso(numbers(shop), np.ones(len(shop.x)), alphas=[0.1]).at(0.1).coef.values()), 0
        ),
    ),
    Advice(
        "give predict the relation itself, or rel.matrix(like=model)",
        lambda shop: tp.linalg.lm(numbers(shop), shop.y).predict(shop.sql(more="WHERE o.quantity < 3").matrix()),
        predicted_like,
    ),
    Advice(
        "take solver='cg', or no folder",
        lambda shop: tp.linalg.lm(numbers(shop), shop.y, solver="lsmr", folder=shop.folder / "lsmr"),
        without_folder,
    ),
    Advice(
        "raise max_iter, tol or l2",
        lambda shop: tp.linalg.multilogreg(numbers(shop), shop.joined.kind, max_iter=1),
        lambda shop: tp.linalg.multilogreg(numbers(shop), shop.joined.kind, max_iter=100),
    ),
    Advice(
        "is in X more than once; leave it out: X[:, columns]",
        lambda shop: tp.linalg.lm(shop.x[:, ["o.price", "o.price"]], shop.y),
        lambda shop: tp.linalg.lm(shop.x[:, ["o.price"]], shop.y),
    ),
    Advice(
        "take lm or glm, or make classes of it in SELECT, by CASE",
        lambda shop: tp.linalg.l2svm(numbers(shop), shop.y),
        two_classes,
    ),
    Advice("name another folder, or remove the file", of_two_runs, another_folder),
    Advice("is empty or damaged: remove it", damaged, without_damaged),
    Advice(
        "Write model.save(folder) and tp.load(folder, fed)",
        lambda shop: pickle.dumps(tp.linalg.lm(numbers(shop), shop.y)),
        saved,
    ),
    Advice(
        "write A @ other for the product, (X * row).T for a transposed array",
        lambda shop: shop.x.T * np.arange(8.0),
        lambda shop: same(
            (shop.x * np.arange(8.0)).T @ np.ones(len(shop.x)),
            (shop.cells * np.arange(8.0)).T @ np.ones(len(shop.x)),
        ),
    ),
    Advice(
        "apply it to X before, as in np.exp(X).T",
        lambda shop: np.exp(shop.x.T),
        lambda shop: same(np.exp(numbers(shop)).T @ shop.y, np.exp(shop.cells[:, shop.x.numbers]).T @ shop.y),
    ),
    Advice(
        "choose columns before: X[:, columns].T",
        lambda shop: shop.x.T[[0]],
        lambda shop: same(shop.x[:, [0]].T @ shop.y, shop.cells[:, [0]].T @ shop.y),
    ),
    Advice(
        "write X.T @ w for its sums of columns, w * X.sum(axis=1) for those of rows",
        lambda shop: (ones(shop)[:, None] * shop.x).sum(axis=0),
        lambda shop: (
            same(shop.x.T @ ones(shop), (ones(shop)[:, None] * shop.cells).sum(axis=0)),
            same(ones(shop) * shop.x.sum(axis=1), (ones(shop)[:, None] * shop.cells).sum(axis=1)),
        ),
    ),
    Advice(
        "write it with X, whose axes are the other way round",
        lambda shop: shop.x.T.mean(axis=1),
        lambda shop: same(shop.x.mean(axis=0), shop.cells.T.mean(axis=1)),
    ),
    Advice(
        "Select them by the same names, from tables with the same aliases",
        lambda shop: shop.sql("o.quantity", None).matrix(like=shop.x[:, ["o.price"]]),
        like_without_columns,
    ),
    Advice(
        "; to limit numbers, write np.clip",
        lambda shop: np.where((X := bank(shop, table="matrix = true\nmin_rows = 10")) > 1.32, 1.32, X).sum(),
        clipped,
    ),
    Advice(
        "may not be multiplied with vectors of the caller's choice; use a learner",
        lambda shop: bank(shop, table="") @ np.ones(1),
        a_learner,
    ),
    Advice(
        "or take larger groups: a product would be a sum over fewer than",
        lambda shop: bank(shop, table="matrix = true\nmin_rows = 10").T @ (np.arange(60) < 3),
        larger_groups,
    ),
    Advice(
        "its cells may not be collected; take plan='cost'",
        lambda shop: bank(shop, plan="collect") @ np.ones(1),
        by_costs,
    ),
    Advice(
        "than its policy adds up; take a smaller k, or more runs than",
        lambda shop: tp.linalg.kmeans(bank(shop, "region", FEW), k=3, runs=1),
        lambda shop: tp.linalg.kmeans(bank(shop, "region", FEW), k=1, runs=1),
    ),
    Advice(
        "rounds; take fewer runs, a smaller k or a smaller max_iter",
        lambda shop: tp.linalg.kmeans(bank(shop, "region", COUNTED, "max_matrix_columns = 3"), k=5, runs=2),
        of_fewer_clusters,
    ),
    Advice(
        "put some of it in SELECT",
        lambda shop: by_steps(shop, 100),
        lambda shop: eye(np.cos(shop.sql("least(cos(o.price), 2) AS price", None).matrix())),
    ),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_returns_what_was_asked_for(shop: Shop, case: Advice) -> None:
    """The same as NumPy, SciPy or scikit-learn return for the cells, where these are asked."""
    case.follow(shop)


SHARDS = "needs tables of three shards with secure sums"
OTHERS = {
    "give an offset that leaves": "a part of another text, which advises nothing else",
    "predict takes a relation or its matrix": "says what it takes",
    "transform columns in SELECT, or call rel.matrix() without secure_sum": SHARDS,
    "use columns of categories only, or tp.linalg.multilogreg": SHARDS,
    "a Gram matrix of two such tables is not to be had": SHARDS,
    "raise tol or the least penalty": "no columns of doubles are known that take so many sweeps",
    "but no step lowers the loss; raise l2": "no columns of doubles are known where none does",
    "name another one": "a folder that the user may not write, which root may",
}


def test_every_advice_is_tried() -> None:
    """An error of the package that advises something has a case, or it is said why not."""
    check_all_are_tried(["algebra"], CASES, OTHERS)
