"""`RandomSearch`, searches that go on, their pictures, their job files, and what candidates share."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import loguniform

import tablepuppet as tp
from tablepuppet.errors import ArgumentError
from tablepuppet.jobs import Run, SearchSection
from tablepuppet.learn.learners import linear as linear_module
from tablepuppet.learn.selection import search as module
from tablepuppet.learn.selection.folds import Folding, measure_along_l2
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.merged import merged
from tablepuppet.runs.stages import Stages
from tests.learn.test_selection import SQL, tables
from tests.relations import federation, record_wire
from tests.small_job import write_job


def relation_of(folder: Path, rows: int = 240, label: str = "returned") -> tp.Relation:
    return federation(folder, tables(rows), wire="float64").sql(SQL.format(label), label=label)


def test_fits_along_l2_are_those_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters to 1e-6, from largest to smallest and back; Gram matrices, encoders and labels are asked for once."""
    for label, learner in (("returned", tp.LogisticRegression()), ("paid", tp.LinearRegression())):
        (tmp_path / label).mkdir()
        relation = relation_of(tmp_path / label, label=label).sharing_encoders()
        values = [10.0, 1.0, 1e-2, 1e-6, 1e-1]
        expected = [type(learner)(l2=l2).fit(relation).coef_ for l2 in values]
        messages = record_wire(monkeypatch)
        fits = learner.along_l2(relation, values, relation)
        found = [(l2, learner.coef_, learner.converged_, len(learner.history_)) for l2, *_ in fits]
        ops = [each.request.op for each in messages]
        assert ops.count("matrix.gram") == 2  # one per shard of orders
        assert ops.count("ridge.start") == 1
        assert len([op for op in ops if op.startswith("label.")]) == 4  # of both sides
        assert [l2 for l2, *_ in found] == values
        for (_, coef, converged, rounds), alone in zip(found, expected, strict=True):
            assert converged
            assert rounds >= 1
            for name, value in alone.items():
                np.testing.assert_allclose(coef[name], value, rtol=1e-5, atol=1e-7)
        monkeypatch.undo()


def coarse(rows: int = 1600) -> dict[str, dict[str, pa.Table]]:
    """Columns of few values, one of them missing here and there; the label has classes, and is a number."""
    rng, row = np.random.default_rng(1), np.arange(rows)
    price, colour = rng.integers(0, 4, rows), rng.integers(0, 3, rows)
    size = rng.integers(0, 3, 12).astype(float)
    stars = np.clip(price + size[row % 12] + rng.normal(size=rows), 0, 4).astype(np.int64)
    orders = pa.table({
        "item": row % 12, "price": pa.array(price, mask=rng.random(rows) < 0.1),
        "colour": np.array(["red", "green", "blue"])[colour], "stars": stars, "liked": stars > 2,
    })  # fmt: skip
    items = pa.table({"item": [*range(12), 3, 4], "size": [*size, 1.0, 0.0]})
    return {"east": {"orders": orders.slice(0, 150)}, "west": {"orders": orders.slice(150)}, "shop": {"items": items}}


@pytest.mark.parametrize(
    ("label", "learner"),
    [("liked", tp.LogisticRegression), ("stars", tp.LogisticRegression), ("stars", tp.LinearRegression)],
)
def test_merged_rows_give_the_scores_of_separate_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, learner: type[tp.LinearRegression]
) -> None:
    """Every train and test score, to 1e-6 (areas: 1e-5), with a third of the joined rows at most."""
    fed = federation(tmp_path, coarse(), wire="float64")
    sql = f"SELECT o.price, o.colour, i.size, o.{label} FROM orders o JOIN items i USING (item)"
    relation, sizes, values = fed.sql(sql, label=label), list[tuple[int, int]](), [1e-6, 1e-2, 1.0]

    def seen(rows: JoinedRows, alike: Any) -> JoinedRows:
        found = merged(rows, alike)
        sizes.append((len(found), len(rows)))
        return found

    monkeypatch.setattr(linear_module, "merged", seen)
    search = tp.GridSearch(learner(), {"l2": values}, folds=3, stratified=learner is tp.LogisticRegression)
    search.fit(relation)
    assert len(sizes) == 6  # both sides of three folds
    assert all(few <= many / 3 for few, many in sizes[::2])
    for row in search.results_:
        alone = tp.cross_validate(learner(l2=row["l2"]), relation, folds=3, stratified=search.stratified)
        for name in alone.column_names[1:-1]:
            close = 1e-5 if name.endswith("auc") else 1e-6  # rounding alone tells equal rows apart in runs of their own
            assert row[f"mean_{name}"] == pytest.approx(alone[name].mean(), abs=close)


def test_what_cannot_share(tmp_path: Path) -> None:
    """Other solvers, consensus and noise are fitted one by one, to the same scores as ever."""
    assert tp.LogisticRegression().goes_along_l2()
    assert tp.LogisticRegression(solver=tp.LBFGS()).goes_along_l2()
    for other in (
        tp.LogisticRegression(solver="admm"), tp.LogisticRegression(solver="lbfgs", inner_rounds=2),
        tp.LogisticRegression(privacy=tp.Privacy(feature_epsilon=1.0)),
    ):  # fmt: skip
        assert not other.goes_along_l2()
    relation = relation_of(tmp_path)
    found = tp.GridSearch(tp.LogisticRegression(solver="admm"), {"l2": [0.1, 1.0]}, folds=3).fit(relation)
    alone = tp.cross_validate(tp.LogisticRegression(solver="admm", l2=1.0), relation, folds=3)
    row = next(row for row in found.results_ if row["l2"] == 1.0)
    assert row["mean_test_log_loss"] == pytest.approx(alone["test_log_loss"].mean(), abs=1e-9)


def test_random_search_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates on a ninth of the rows, the best third on a third, the best of those on all: their scores are
    those of `cross_validate`, and the best is among them.
    """
    monkeypatch.setattr(module, "FEWEST", 20)
    relation = relation_of(tmp_path)
    learner, settings = tp.LogisticRegression(), {"l2": loguniform(1e-6, 1e3), "tol": [1e-15, 1e-12]}
    search = tp.RandomSearch(learner, settings, candidates=10, folds=3, metric="log_loss", seed=4).fit(relation)
    shares = search.results_["share"]
    assert shares.tolist() == pytest.approx([1.0] * 2 + [1 / 3] * 2 + [1 / 9] * 6)
    assert len(search.results_) == 10
    best = search.results_.to_arrow().to_pylist()[0]
    assert search.best_params_ == {name: best[name] for name in settings}
    alone = tp.cross_validate(tp.LogisticRegression(**search.best_params_), relation, folds=3, seed=4)
    assert search.best_score_ == pytest.approx(alone["test_log_loss"].mean(), abs=1e-6)
    again = tp.RandomSearch(learner, settings, candidates=10, folds=3, metric="log_loss", seed=4).fit(relation)
    assert again.best_params_ == search.best_params_
    assert set(search.evaluate(relation)) == {"accuracy", "auc", "log_loss"}
    assert len(search.predict(relation)) == len(relation)
    whole = tp.RandomSearch(learner, {"l2": [0.1, 1.0, 10.0]}, candidates=20, folds=3, halving=False).fit(relation)
    assert sorted(whole.results_["l2"]) == [0.1, 1.0, 10.0]
    assert whole.results_["share"].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("candidates", "rows", "rungs"),
    [(20, 10**6, [(20, 1 / 9), (7, 1 / 3), (3, 1.0)]), (20, 700, [(20, 1 / 3), (7, 1.0)]), (3, 10**6, [(3, 1.0)])],
)
def test_stages(candidates: int, rows: int, rungs: list[tuple[int, float]]) -> None:
    """A third goes on with three times the rows; no stage has fewer than 200 rows."""
    found = tp.RandomSearch(tp.LogisticRegression(), {"l2": [1.0]})._rungs(candidates, rows)
    assert [each.candidates for each in found] == [count for count, _ in rungs]
    assert [each.share for each in found] == pytest.approx([share for _, share in rungs])


def test_a_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before it was stopped is not fitted again; results are the same; another search is refused."""
    relation = relation_of(tmp_path)
    folder = tmp_path / "kept"
    grid = {"l2": [0.1, 1.0], "tol": [1e-15, 1e-12]}
    expected = tp.GridSearch(tp.LogisticRegression(), grid, folds=3).fit(relation)
    real, calls = measure_along_l2, list[int]()

    def counted(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(module, "measure_along_l2", counted)
    search = tp.GridSearch(tp.LogisticRegression(), grid, folds=3, folder=folder)
    with pytest.raises(KeyboardInterrupt):
        search.fit(relation)
    assert len(json.loads((folder / "search.json").read_text())["scores"]) == 6  # two values on three folds
    search.fit(relation)
    assert len(calls) == 3 + 1 + 3
    assert search.best_params_ == expected.best_params_
    for row, other in zip(search.results_, expected.results_, strict=True):
        assert row["mean_test_log_loss"] == pytest.approx(other["mean_test_log_loss"], abs=1e-9)
    calls.clear()
    search.fit(relation)
    assert not calls
    with pytest.raises(tp.LearnError, match=r"has another search \(candidates differ\)"):
        tp.GridSearch(tp.LogisticRegression(), {"l2": [0.1, 2.0]}, folds=3, folder=folder).fit(relation)
    (folder / "search.json").write_text("{")
    with pytest.raises(tp.LearnError, match=r"search\.json' is damaged.*: remove it"):
        search.fit(relation)


def test_a_search_over_other_weights_of_classes_is_another(tmp_path: Path) -> None:
    """They are in the folder's description, although saved models do not have them."""
    relation, trees = relation_of(tmp_path), tp.GradientBoostingClassifier(max_iter=1)
    first, *_ = np.unique(relation.label()).tolist()
    tp.GridSearch(trees, {"class_weight": [{first: 1.0}]}, folds=2, folder=tmp_path / "kept").fit(relation)
    with pytest.raises(tp.LearnError, match=r"has another search \(candidates differ\)"):
        tp.GridSearch(trees, {"class_weight": [{first: 3.0}]}, folds=2, folder=tmp_path / "kept").fit(relation)


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the scores; without matplotlib an error that says what to install."""
    search = tp.GridSearch(tp.LogisticRegression(), {"l2": [1e-4, 1.0], "solver": ["lbfgs", "admm"]}, folds=2)
    search.fit(relation_of(tmp_path))
    search.plot(tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    search.plot(str(tmp_path / "found.svg"))
    assert "<svg" in (tmp_path / "found.svg").read_text()
    with pytest.raises(tp.LearnError, match=r"plot writes \.png"):
        search.plot("found.txt")
    with pytest.raises(tp.LearnError, match="cannot be written"):
        search.plot(tmp_path / "no" / "found.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(tp.LearnError, match="plot needs matplotlib"):
        search.plot("found.png")


def test_a_constant_beside_every_score(tmp_path: Path) -> None:
    """Results of folds and searches, what is said on the way and the picture have the mean metric of a constant on the
    folds held out; a search that goes on has it too."""
    said: list[str] = []
    fed = federation(tmp_path, tables(240), wire="float64", callbacks=[lambda event: said.append(event.message)])
    relation = fed.sql(SQL.format("returned"), label="returned")
    folds = tp.cross_validate(tp.LogisticRegression(), relation, folds=3)
    sides = Folding(relation, 3, 0).sides()
    truth = np.array([test.label() for _, test in sides], dtype=object)
    shares = [np.unique(each, return_counts=True)[1] / len(each) for each in truth]
    assert folds.constant["accuracy"] == pytest.approx(np.mean([each.max() for each in shares]))
    assert folds.constant["log_loss"] == pytest.approx(np.mean([-each @ np.log(each) for each in shares]))
    expected = f"a constant has accuracy {folds.constant['accuracy']:.4f}, AUC 0.5000, log loss"
    assert expected in " ".join(str(folds).split())
    assert not [name for name in folds.column_names if "constant" in name]
    for _ in range(2):
        search = tp.GridSearch(tp.LogisticRegression(), {"l2": [1e-4, 1.0]}, folds=3, folder=tmp_path / "kept")
        search.fit(relation)
        assert search.results_.constant == pytest.approx(folds.constant)
        assert expected in " ".join(str(search.results_).split())
    assert [text for text in said if re.search(r"fold 0: accuracy 0\.\d{4} \(constant 0\.\d{4}\)", text)]
    assert [text for text in said if f"(constant {folds.constant['accuracy']:.4f}) on folds" in text]
    search.plot(tmp_path / "found.svg")
    assert f"constant {folds.constant['accuracy']:.4f}" in (tmp_path / "found.svg").read_text()
    assert search.evaluate(relation).constant["auc"] == 0.5


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    """Settings, numbers and distributions that are none."""
    relation, learner = relation_of(tmp_path), tp.LogisticRegression()
    with pytest.raises(tp.LearnError, match="RandomSearch: 'epochs' is no setting of the learner; here it is 'rounds'"):
        tp.RandomSearch(learner, {"epochs": [1]}).fit(relation)
    with pytest.raises(tp.LearnError, match=r"give a list of values for 'l2', or a distribution"):
        tp.RandomSearch(learner, {"l2": 1.0}).fit(relation)
    with pytest.raises(tp.LearnError, match="candidates is a whole number from 1"):
        tp.RandomSearch(learner, {"l2": [1.0]}, candidates=0).fit(relation)
    with pytest.raises(tp.LearnError, match="no setting to try"):
        tp.RandomSearch(learner, {}).fit(relation)
    with pytest.raises(tp.LearnError, match="tol must be"):
        tp.RandomSearch(learner, {"l2": loguniform(1e-6, 1), "tol": [-1.0]}).fit(relation)
    with pytest.raises(tp.LearnError, match="RandomSearch is not fitted"):
        tp.RandomSearch(learner, {"l2": [1.0]}).plot("a.png")


JOB = '[search]\nkind = "{}"\nfolds = 3\ncandidates = 3\nsettings = {{ l2 = {} }}\n'


@pytest.mark.parametrize(
    ("kind", "l2"), [("grid", "[1e-4, 10.0]"), ("random", "{ low = 1e-6, high = 1.0, log = true }")]
)
def test_jobs_search(tmp_path: Path, kind: str, l2: str) -> None:
    """A job's best settings are learned on its train side, and its results are in the run folder."""
    job = write_job(tmp_path) / "job.toml"
    job.write_text(job.read_text() + JOB.format(kind, l2))
    run = Run.to_train(job, lambda event: None)
    result = run.train()
    kept = json.loads((run.folder / "search.json").read_text())
    assert kept["best"] == result["search"]["best"] == {"l2": kept["results"][0]["l2"]}
    assert len(kept["results"]) == (2 if kind == "grid" else 3)
    assert run.model().get_params()["l2"] == kept["best"]["l2"]
    assert set(result["metrics"]) == {"train", "test"}


def test_jobs_that_cannot_search(tmp_path: Path) -> None:
    """Said before a party is asked."""
    job = write_job(tmp_path) / "job.toml"
    text = job.read_text()
    for more, message in (
        (JOB.format("grid", "{ low = 1e-6, high = 1.0 }"), "l2: a grid needs a list of values"),
        (JOB.format("random", "{ low = 1.0, high = 0.1 }"), "l2: low must be below high"),
        (JOB.format("random", "{ low = 0.0, high = 0.1, log = true }"), "above 0 with log"),
        (JOB.format("grid", "[1.0]") + "[split]\nvalidation = 0.1\n", "leave validation out"),
        (JOB.format("grid", "[-1.0]"), "l2 must be"),
        (JOB.format("other", "[1.0]"), "kind"),
    ):
        job.write_text(text + more)
        with pytest.raises(tp.TablePuppetError, match=message):
            Run.to_train(job, lambda event: None)


def test_names_of_scikit_learn_are_known() -> None:
    """Whoever writes scikit-learn's names reads what they are here."""
    made: Any = tp.GridSearch
    for name, here in (("scoring", "metric"), ("cv", "folds"), ("param_grid", "grid")):
        with pytest.raises(ArgumentError, match=f"has no argument '{name}'; here it is '{here}'"):
            made(tp.LinearRegression(), {"l2": [1.0]}, **{name: 3})
    learners: Any = tp
    for made, name, formula in (  # which test_l2_is_that_of_scikit_learn proves
        (learners.LogisticRegression, "C", r"l2 = 1 / \(C N\) over N joined rows"),
        (learners.LinearRegression, "alpha", "l2 = alpha / N over N joined rows for Ridge"),
    ):
        with pytest.raises(tp.TablePuppetError, match=f"here it is 'l2': {formula}"):
            made(**{name: 1.0})


def test_settings_that_are_objects_are_text_in_arrow(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"solver": ["lbfgs", tp.SGD(batch_size=30)], "rounds": [2, "auto"]}
    search = tp.GridSearch(tp.LogisticRegression(), grid, folds=2).fit(relation_of(tmp_path))
    found = search.results_.to_arrow()
    assert set(found["solver"].to_pylist()) == {"lbfgs", "SGD(batch_size=30)"}
    assert set(found["rounds"].to_pylist()) == {"2", "auto"}
    assert pa.types.is_floating(found.schema.field("mean_test_accuracy").type)


def test_jobs_search_settings_as_users_give_them() -> None:
    settings: dict[str, Any] = {"top": [[8], [16, 4]], "bottom": [{"kind": "mlp", "hidden": [6]}], "l2": [0.1]}
    search = SearchSection(settings).of(tp.SplitNNClassifier())
    assert isinstance(search, tp.GridSearch)
    assert search.grid == {"top": [(8,), (16, 4)], "bottom": [tp.bottom.mlp((6,))], "l2": [0.1]}


@pytest.mark.parametrize("grid", [{"l2": [1e-6, 1e-3]}, {"l2": [1e-6, 1e-3], "solver": ["admm", "sgd"]}])
def test_no_fit_of_a_search_is_shown_as_stopped(tmp_path: Path, grid: dict[str, Any]) -> None:
    """Folds that are fitted in turns or in step end well: in the end the search and the best model have a line each."""
    relation, stages = relation_of(tmp_path), Stages()

    def read(event: tp.Event) -> None:
        stages.read(event)

    relation.events.subscribe(read)
    tp.GridSearch(tp.LogisticRegression(rounds=3), grid, folds=3).fit(relation)
    stages.settle()
    assert [(stage.name, stage.state, stage.inner) for stage in stages.lines[-2:]] == [
        ("search", "ended", None), ("fit", "ended", None),
    ]  # fmt: skip
    assert {stage.name for stage in stages.lines[:-2]} <= {"join"}
    assert stages.lines[-2].message.startswith(f"LogisticRegression: the best of {2 ** len(grid)} settings")
