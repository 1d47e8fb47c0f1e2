"""Searches over pipelines: whole ones and settings of their steps, in Python and in job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.jobs import Run
from tests.learn.test_selection import SQL, tables
from tests.relations import federation, record_wire
from tests.small_job import write_job

BINS = prep.Pipeline([prep.Impute("mean"), prep.Bin(3), prep.TargetEncode(folds=3)])
SCALED = prep.Pipeline([prep.Impute("median"), prep.Robust()])


def relation_of(folder: Path, **settings: Any) -> tp.Relation:
    return federation(folder, tables(240), wire="float64").sql(SQL.format("returned"), label="returned", **settings)


def test_pipelines_are_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with each value of ``l2``: scores are those of `cross_validate` over a relation with that pipeline. Tables
    are read and joined once, and encoders are fitted once per pipeline and fold.
    """
    relation = relation_of(tmp_path)
    assert len(relation)
    messages = record_wire(monkeypatch)
    search = tp.GridSearch(tp.LogisticRegression(tol=1e-12), {"prep": [None, SCALED, BINS], "l2": [1e-3, 1.0]}, folds=3)
    found = search.fit(relation)
    ops = [each.request.op for each in messages]
    assert not {"open", "keys.blind"} & set(ops)
    shards = {(each.party, each.request.table) for each in messages if each.request.op == "statistics.numbers"}
    fits = 3 * 3 + 1
    assert ops.count("statistics.numbers") == fits * len(shards)
    monkeypatch.undo()
    assert len(found.results_) == 6
    for row in found.results_:
        pipeline = {"default": None, "Impute | Robust": SCALED}.get(row["prep"], BINS)
        alone = tp.cross_validate(tp.LogisticRegression(l2=row["l2"], tol=1e-12), relation.with_prep(pipeline), folds=3)
        assert row["mean_test_log_loss"] == pytest.approx(float(alone["test_log_loss"].mean()), rel=1e-5)
    best = found.best_params_["prep"]
    expected = tuple(map(str, best)) if best is not None else ()
    assert found.best_model_.encoding_.described == expected
    assert found.results_.to_arrow().num_rows == 6
    found.plot(tmp_path / "search.png")


def test_train_scores_are_those_of_evaluate(tmp_path: Path) -> None:
    """Along ``l2`` too, where rows that are learned from are encoded by folds, and rows to predict by all rows."""
    encoded = prep.Pipeline([prep.TargetEncode(folds=3, smooth=0)])
    relation = relation_of(tmp_path, prep=encoded, categorical=["code"])
    found = tp.GridSearch(tp.LogisticRegression(tol=1e-12), {"l2": [1e-3, 1.0]}, folds=3).fit(relation)
    for row in found.results_:
        alone = tp.cross_validate(tp.LogisticRegression(l2=row["l2"], tol=1e-12), relation, folds=3)
        for side in ("train", "test"):
            mean = float(alone[f"{side}_log_loss"].mean())
            assert row[f"mean_{side}_log_loss"] == pytest.approx(mean, rel=1e-6)


def test_settings_of_steps(tmp_path: Path) -> None:
    """As in scikit-learn, with the kind of a step or its place; of the relation's pipeline, or of the candidate's."""
    relation = relation_of(tmp_path, prep=BINS)
    grid: dict[str, Any] = {"prep__Bin__n": [2, 4], "prep__2__smooth": [1.0, "auto"]}
    found = tp.GridSearch(tp.LogisticRegression(), grid, folds=3).fit(relation)
    assert {(row["prep__Bin__n"], row["prep__2__smooth"]) for row in found.results_} == {
        (2, 1.0), (2, "auto"), (4, 1.0), (4, "auto"),
    }  # fmt: skip
    described = found.best_model_.encoding_.described
    assert f"n={found.best_params_['prep__Bin__n']}" in described[1]
    assert f"smooth={found.best_params_['prep__2__smooth']!r}" in described[2]
    drawn = tp.RandomSearch(
        tp.LogisticRegression(), {"prep": [BINS], "prep__Bin__n": [2, 3, 4], "l2": [1e-3]}, candidates=2, folds=3
    ).fit(relation_again := relation.with_prep(None))
    assert len(drawn.results_) == 2
    assert "Bin" in str(drawn.best_model_.encoding_.described)
    assert relation_again.prep != BINS


def test_pipelines_alike_are_told_apart(tmp_path: Path) -> None:
    """In the table of results by their place in the list."""
    listed = [prep.Pipeline([prep.Impute("mean"), prep.Bin(n)]) for n in (2, 4)]
    found = tp.RandomSearch(tp.LogisticRegression(), {"prep": listed}, folds=3, halving=False).fit(
        relation_of(tmp_path)
    )
    assert {row["prep"] for row in found.results_} == {"Impute | Bin (0)", "Impute | Bin (1)"}
    assert found.best_params_["prep"] is listed[int(found.results_["prep"][0][-2])]


def test_a_search_goes_on(tmp_path: Path) -> None:
    """With a folder; of other pipelines it is another search."""
    relation = relation_of(tmp_path)
    made: dict[str, Any] = {"prep": [SCALED, None], "l2": [1e-3]}
    first = tp.GridSearch(tp.LogisticRegression(), made, folds=3, folder=tmp_path / "s").fit(relation)
    again = tp.GridSearch(tp.LogisticRegression(), made, folds=3, folder=tmp_path / "s").fit(relation)
    assert again.results_["mean_test_auc"].tolist() == first.results_["mean_test_auc"].tolist()
    other: dict[str, Any] = {"prep": [BINS, None], "l2": [1e-3]}
    with pytest.raises(tp.LearnError, match=r"has another search \(candidates differ\)"):
        tp.GridSearch(tp.LogisticRegression(), other, folds=3, folder=tmp_path / "s").fit(relation)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"prep": [prep.Standardize()]}, "prep: give pipelines to try"),
        ({"prep__Bin": [1]}, "a setting of a step is written prep__Bin__n"),
        ({"prep__Bun__n": [1]}, r"a setting of a step is written prep__Bin__n.*did you mean 'Bin'\?"),
        ({"prep__Bin__n": [2]}, r"of such steps the pipeline \(.*\) has none"),
        ({"prep": [BINS], "prep__9__n": [2]}, r"of such steps the pipeline \(Impute, Bin, TargetEncode\) has none"),
        ({"prep": [BINS], "prep__Bin__m": [2]}, "Bin has no such setting"),
        ({"prep": [BINS], "prep__Bin__n": [0]}, "Bin: n is a whole number of at least 2"),
        ({"prep": [prep.Pipeline([prep.Robust(columns=["nothing"])])]}, "Robust: 'nothing' is no column"),
        ({"prep": [prep.Pipeline([prep.Bin(2), prep.Bin(3)])], "prep__Bin__n": [2]}, "has several; say which one"),
        ({"prep": [prep.Pipeline([prep.Map("x + 1", columns=["price"])])]}, "Map is evaluated where columns are read"),
    ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: dict[str, Any], message: str) -> None:
    """What cannot be is refused before anything is asked."""
    relation = relation_of(tmp_path)
    assert len(relation)
    messages = record_wire(monkeypatch)
    with pytest.raises(tp.LearnError, match=message):
        tp.GridSearch(tp.LogisticRegression(), grid, folds=3).fit(relation)
    assert not messages


def test_another_pipeline_over_the_same_rows(tmp_path: Path) -> None:
    """`with_prep` reads nothing again, and splits keep it; anything else is refused."""
    relation = relation_of(tmp_path)
    other = relation.with_prep(SCALED)
    train, test = other.split(0.3)
    assert train.prep == test.prep == other.prep == SCALED
    assert relation.prep is relation.with_prep(None).prep
    assert "Robust" in other.explain()
    model = tp.LogisticRegression().fit(train)
    assert model.encoding_.described == tuple(map(str, SCALED))
    with pytest.raises(tp.LearnError, match=r"prep is a pipeline, such as tp\.prep\.Pipeline"):
        relation.with_prep([prep.Standardize()])  # type: ignore[arg-type]


def test_in_a_job_file(tmp_path: Path) -> None:
    """Pipelines to try, as lists of steps, and settings of steps; the run folder says which one was best."""
    job = write_job(tmp_path) / "job.toml"
    text = job.read_text()
    section = (
        "[search]\nfolds = 3\n[search.settings]\nl2 = [0.001, 0.1]\n"
        'prep = ["default", [{ kind = "Bin", n = 4 }], [{ kind = "Impute" }, { kind = "Robust" }]]\n'
    )
    job.write_text(text + section)
    Run.to_train(job, lambda _: None).train()
    found = json.loads((tmp_path / "runs" / "returns" / "search.json").read_text())
    assert len(found["results"]) == 6
    best = found["best"]["prep"]
    assert best == "default" or best[0]["kind"] in ("Bin", "Impute")
    described = Run.of_folder(tmp_path / "runs" / "returns", lambda _: None).model().encoding_.described
    assert len(described) == (0 if best == "default" else len(best))
    job.write_text(text.replace("runs/returns", "runs/b") + section.replace('"default", ', "").replace("Bin", "Bim"))
    with pytest.raises(tp.ConfigError, match=r"prep: kind 'Bim' is no step"):
        Run.to_train(job, lambda _: None)
    job.write_text(text.replace("runs/returns", "runs/c") + "[search]\n[search.settings]\nprep = [3]\n")
    with pytest.raises(tp.ConfigError, match=r"\[search\.settings\] prep: each pipeline is a list of steps"):
        Run.to_train(job, lambda _: None)
