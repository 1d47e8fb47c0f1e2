"""Programs that were broken off go on from their folder, to the same model, at the same places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.costs import LineSpeed
from tablepuppet.algebra.linalg.progress import Progress
from tests.algebra.test_plans import services
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation

SQL = f"SELECT {ALL}, o.returned {JOIN}"
Program = Callable[..., Any]
PROGRAMS: dict[str, tuple[Program, int]] = {
    "kmeans": (lambda x, y, folder: tp.linalg.kmeans(x, k=4, runs=2, max_iter=8, folder=folder), 2),
    "kmeans at parties": (lambda x, y, folder: tp.linalg.kmeans(x, k=4, runs=2, max_iter=8, folder=folder), 2),
    "glm": (lambda x, y, folder: tp.linalg.glm(x, y, family="binomial", folder=folder), 2),
    "glm by products": (lambda x, y, folder: tp.linalg.glm(x, y, "binomial", solver="cg", folder=folder), 2),
    "lm": (lambda x, y, folder: tp.linalg.lm(x, y, folder=folder), 1),
    "lm by products": (lambda x, y, folder: tp.linalg.lm(x, y, solver="cg", folder=folder), 9),
    "lasso": (lambda x, y, folder: tp.linalg.lasso(x, y, alphas=5, folder=folder), 1),
    "steplm": (lambda x, y, folder: tp.linalg.steplm(x, y, folder=folder), 1),
    "l2svm": (lambda x, y, folder: tp.linalg.l2svm(x, y, folder=folder), 2),
    "multilogreg": (lambda x, y, folder: tp.linalg.multilogreg(x, y, l2=1e-3, folder=folder), 2),
}


class Died(Exception):  # noqa: N818 - stands for kill -9
    """The process is gone."""


def numbers(model: Any) -> np.ndarray[Any, Any]:
    """What a model has learned."""
    if isinstance(model, tp.linalg.KMeans):
        return np.append(model.centres.ravel(), model.labels)
    return model.coefs if hasattr(model, "coefs") else np.asarray(model.coef, np.float64)


def opened(folder: Path, plan: Any = "cost") -> tuple[LazyArray, np.ndarray[Any, Any]]:
    folder.mkdir(exist_ok=True)
    relation = federation(folder, shop(2), wire="float64").sql(SQL, label="returned")
    return relation.matrix(plan=plan), relation.label().astype(np.float64)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_goes_on(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many rounds it dies; in another session it gives the same model to 1e-7, and asks for less."""
    program, rounds = PROGRAMS[name]
    plan = "parties" if name.endswith("at parties") else "cost"
    x, y = opened(tmp_path / "a", plan)
    expected = numbers(program(x, y, None))
    whole, written, write = x.source.engine.traffic.trips, 0, Progress.write

    def dies(self: Progress, **state: Any) -> None:
        nonlocal written
        write(self, **state)
        written += 1
        if written == rounds:
            raise Died

    monkeypatch.setattr(Progress, "write", dies)
    with pytest.raises(Died):
        program(*opened(tmp_path / "b", plan), tmp_path / "run")
    monkeypatch.setattr(Progress, "write", write)
    x, y = opened(tmp_path / "c", plan)
    found = numbers(program(x, y, tmp_path / "run"))
    np.testing.assert_allclose(found, expected, atol=1e-7)
    # conjugate gradients begin anew, from the coefficients so far; k-means asks narrow tables once
    if name not in ("lm by products", "kmeans"):
        assert x.source.engine.traffic.trips < whole
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "run").iterdir()} == {0}


def test_another_run_is_not_mixed_with_it(tmp_path: Path) -> None:
    """Other settings, labels, columns or a file that is none: LearnErrors that say what differs."""
    x, y = opened(tmp_path / "a")
    tp.linalg.lm(x, y, folder=tmp_path / "run")
    with pytest.raises(tp.LearnError, match=r"another run \(label differ\)"):
        tp.linalg.lm(x, y + 1, folder=tmp_path / "run")
    with pytest.raises(tp.LearnError, match=r"another run \(columns differ\)"):
        tp.linalg.lm(x * 2, y, folder=tmp_path / "run")
    with pytest.raises(tp.LearnError, match=r"another run \(settings differ\)"):
        tp.linalg.lm(x, y, solver="cg", folder=tmp_path / "run")
    (tmp_path / "run" / "lm.state").write_bytes(b"nothing")
    with pytest.raises(
        tp.LearnError, match=r"lm.state', from which this program would go on, is empty or damaged: remove it"
    ):
        tp.linalg.lm(x, y, folder=tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(tp.LearnError, match=r"cannot be written"):
        tp.linalg.lm(x, y, folder=tmp_path / "file")


@pytest.mark.parametrize("wire", ["float32", "float64"])
@pytest.mark.parametrize("plan", ["heuristic", "parties", "collect"])
def test_other_cells_are_another_run(tmp_path: Path, plan: Any, wire: str) -> None:
    """Two rows exchange their category or their number: means, scales and counts are the same, but not the model."""
    rng = np.random.default_rng(4)
    columns = {"a": rng.normal(size=300), "kind": rng.permutation(list("xyyzzz") * 50), "y": rng.normal(size=300)}

    def fit(folder: str, exchanged: str | None) -> tp.linalg.LM:
        given = {name: values.copy() for name, values in columns.items()}
        if exchanged:
            first, second = np.unique(given[exchanged], return_index=True)[1][:2]
            given[exchanged][[first, second]] = given[exchanged][[second, first]]
        (tmp_path / folder).mkdir()
        relation = federation(tmp_path / folder, {"p": {"t": pa.table(given)}}, wire=wire).sql(
            "SELECT a, kind, y FROM t", label="y"
        )
        return tp.linalg.lm(relation.matrix(plan=plan), relation.label(), folder=tmp_path / "run")

    known = fit("first", None)
    assert fit("same", None).coef == known.coef
    for name in ("kind", "a"):
        with pytest.raises(tp.LearnError, match=r"another run \(cells differ\)"):
            fit(name, name)


def test_tables_compute_where_they_did(tmp_path: Path) -> None:
    """What cost had collected is collected at once by a run that goes on, though its line is fast now."""
    with services(tmp_path) as fed:
        x = fed.sql(SQL, label="returned").matrix()
        x.source.placement.line = LineSpeed(latency=10.0)
        x.source.placement.line.add = lambda *_: None  # type: ignore[method-assign]
        tp.linalg.kmeans(x, k=3, max_iter=3, folder=tmp_path / "run")
        assert x.source.placement.collected
        again = fed.sql(SQL, label="returned").matrix()
        again.source.placement.line = LineSpeed(latency=0.0, bandwidth=1e15)
        again.source.placement.line.add = lambda *_: None  # type: ignore[method-assign]
        tp.linalg.kmeans(again, k=3, max_iter=4, folder=tmp_path / "run")
        assert again.source.placement.collected.keys() == x.source.placement.collected.keys()
