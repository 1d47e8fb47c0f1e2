"""Models of `tp.linalg` in folders: what is loaded predicts the same; over arrays that were transformed too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

import tablepuppet as tp
from tablepuppet.party.config import Limits
from tablepuppet.store.files import read_facts, write_facts
from tablepuppet.store.folder import ModelFolder, sealed
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation
from tests.wire.services import calling, served

SQL = f"SELECT {ALL}, o.paid, o.returned {JOIN}"
Fit = Callable[[Any, Any], Any]
PROGRAMS: dict[str, Fit] = {
    "lm": tp.linalg.lm,
    "steplm": tp.linalg.steplm,
    "glm": lambda x, y: tp.linalg.glm(x, (y > np.median(y)).astype(float), family="binomial"),
    "l2svm": lambda x, y: tp.linalg.l2svm(x, y > np.median(y)),
    "multilogreg": lambda x, y: tp.linalg.multilogreg(x, np.digitize(y, np.quantile(y, [0.3, 0.6])), l2=0.01),
    "text classes": lambda x, y: tp.linalg.multilogreg(x, np.where(y > 0, "yes", "no").astype(object), l2=0.01),
    "lasso": lambda x, y: tp.linalg.lasso(x, y, alphas=5).models[3],
    "lasso path": lambda x, y: tp.linalg.lasso(x, y, alphas=5),
    "naive_bayes": lambda x, y: tp.linalg.naive_bayes(x, y > np.median(y)),
    "kmeans": lambda x, y: tp.linalg.kmeans(x, k=3, runs=2),
    "pca": lambda x, y: tp.linalg.pca(x, components=2),
}


def applied(model: Any, relation: Any) -> Any:
    """What a model says of rows."""
    if hasattr(model, "at"):
        model = model.at(float(model.alphas[2]))
    return model.transform(relation) if hasattr(model, "transform") else model.predict(relation)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shop")
    federation(place, shop(2))
    return place


def opened(folder: Path, **settings: Any) -> tp.Federation:
    return tp.Federation({name: f"parquet:///{folder / name}" for name in shop(2)}, wire="float64", **settings)


@pytest.mark.parametrize("program", PROGRAMS)
def test_models_are_saved(folder: Path, tmp_path: Path, program: str) -> None:
    """Loaded in another federation, they predict the same for rows that they were not fitted on."""
    train, test = opened(folder).sql(SQL, label="paid").split(0.3)
    model = PROGRAMS[program](train.matrix()[:, ::-1] * 2 + 1, train.label())
    place = tmp_path / "model.tpm"
    assert model.save(place) is model
    fed = opened(folder)
    loaded = tp.load(place, fed)
    assert type(loaded) is type(model)
    other = fed.sql(SQL, label="paid").split(0.3)[1]
    expected = applied(model, test)
    found = applied(loaded, other)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, atol=1e-9)
    else:
        np.testing.assert_array_equal(found, expected)
    if hasattr(model, "summary"):
        assert str(loaded.summary()) == str(model.summary())
    loaded.save(place)  # in its own place
    again = applied(tp.load(place, fed), other)
    np.testing.assert_array_equal(again, found)
    tp.forget(place, fed)
    assert not place.exists()


def as_before(place: Path) -> None:
    """Make of a folder what versions wrote in which learners and models of `tp.linalg` had two formats."""
    facts = read_facts(place / "model.json")
    inside, encoding = place / facts["content"], facts["encoding"]

    def with_encoding(value: Any) -> Any:
        if isinstance(value, list):
            return [with_encoding(each) for each in value]
        if not isinstance(value, dict):
            return value
        more = {"encoding": encoding} if value.get("kind") == "preparation" else {}
        return {name: with_encoding(each) for name, each in value.items()} | more

    for file in ("arrays.npz", "secrets.json"):
        (inside / file).rename(place / file)
    inside.rmdir()
    (place / "model.json").unlink()
    write_facts(place / "linalg.json", {"format": 3, "model": with_encoding(facts["model"]), "files": facts["files"]})


@pytest.mark.parametrize("program", ["lm", "text classes", "lasso path"])
def test_models_of_earlier_versions(folder: Path, tmp_path: Path, program: str) -> None:
    """They are loaded, replaced and forgotten as those of today; one of another format is refused in clear words."""
    relation = opened(folder).sql(SQL, label="paid")
    model, place = PROGRAMS[program](relation.matrix(), relation.label()), tmp_path / "model"
    model.save(place)
    as_before(place)
    assert {path.name for path in place.iterdir()} == {"linalg.json", "arrays.npz", "secrets.json"}
    fed = opened(folder)
    loaded, other = tp.load(place, fed), fed.sql(SQL, label="paid")
    np.testing.assert_array_equal(applied(loaded, other), applied(model, relation))
    loaded.save(place)
    assert sorted(path.name[:8] for path in place.iterdir()) == ["content-", "model.js"]
    np.testing.assert_array_equal(applied(tp.load(place, fed), other), applied(model, relation))
    as_before(place)
    write_facts(place / "linalg.json", read_facts(place / "linalg.json") | {"format": 2})
    with pytest.raises(tp.ConfigError, match=r"linalg\.json' was written by another version.*fit and save the model"):
        tp.load(place, fed)
    tp.forget(place, fed)
    assert not place.exists()


def test_a_learner_in_the_place_of_a_program(folder: Path, tmp_path: Path) -> None:
    """And the other way round: a folder has the model that was saved last."""
    fed, place = opened(folder), tmp_path / "model"
    relation = fed.sql(SQL, label="paid")
    program, learner = tp.linalg.lm(relation.matrix(), relation.label()), tp.LinearRegression().fit(relation)
    for model in (program, learner, program):
        model.save(place)
        assert type(tp.load(place, fed)) is type(model)


@pytest.mark.parametrize("step", ["write", "end"])
def test_a_save_that_broke_off(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """As if the process had ended before a step: one of the two models is there whole, and the next save tidies up."""
    fed, place = opened(folder), tmp_path / "model"
    relation = fed.sql(SQL, label="paid")
    X, y = relation.matrix(), relation.label()
    one, two = tp.linalg.lm(X, y), tp.linalg.lm(X, 2 * y)
    one.save(place)

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ModelFolder, "end", ends)
        patch.setattr(ModelFolder, step, ends)
        with pytest.raises(KeyboardInterrupt):
            two.save(place)
    assert (place / "saving.json").exists()
    expected = two if step == "end" else one
    np.testing.assert_array_equal(tp.load(place, fed).predict(relation), expected.predict(relation))
    one.save(place)
    assert sorted(path.name[:8] for path in place.iterdir()) == ["content-", "model.js"]
    np.testing.assert_array_equal(tp.load(place, fed).predict(relation), one.predict(relation))


def test_functions_are_saved(folder: Path, tmp_path: Path) -> None:
    """A model of np.tanh(X[:, numbers]) is applied to the same of other rows."""
    relation = opened(folder).sql(SQL, label="paid")
    x: Any = relation.matrix()
    model = tp.linalg.lm(np.tanh(x[:, x.numbers]) - 0.5, relation.label())
    model.save(tmp_path / "model")
    fed = opened(folder)
    other = fed.sql(SQL, label="paid")
    expected = (np.tanh(x[:, x.numbers]) - 0.5) @ np.asarray(model.coef) + model.intercept
    np.testing.assert_allclose(tp.load(tmp_path / "model", fed).predict(other), expected, atol=1e-9)
    with pytest.raises(tp.LearnError, match="not made as those that the model was fitted on"):
        model.predict(relation.matrix())


def test_services_know_their_categories(folder: Path, tmp_path: Path) -> None:
    """Their keys stay with them: nothing secret is in the folder."""
    with served({name: f"parquet:///{folder / name}" for name in shop(2)}, limits=Limits()) as servers:
        relation = calling(servers, wire="float64").sql(SQL, label="paid")
        model = tp.linalg.lm(relation.matrix(), relation.label())
        model.save(tmp_path / "model")
        assert json.loads(next((tmp_path / "model").rglob("secrets.json")).read_text()) == {}
        fed = calling(servers, wire="float64")
        loaded = tp.load(tmp_path / "model", fed)
        np.testing.assert_allclose(
            np.sort(loaded.predict(fed.sql(SQL, label="paid"))), np.sort(model.predict(relation)), atol=1e-9
        )


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    """Other folders are not overwritten; broken ones are an error that says so."""
    fed = opened(folder)
    relation = fed.sql(SQL, label="paid")
    model = tp.linalg.pca(relation.matrix(), components=2)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("keep me")
    with pytest.raises(tp.ConfigError, match="exists and is not a saved model"):
        model.save(other)
    model.save(tmp_path / "model")
    assert next((tmp_path / "model").rglob("secrets.json")).stat().st_mode & 0o077 == 0
    path = tmp_path / "model" / "model.json"
    facts = read_facts(path) | {"model": {"kind": "Strange", "fields": {}}}
    path.write_text(sealed(facts, path.parent / facts["content"]))
    for file, text in (("model.json", None), ("model.json", "{}"), ("arrays.npz", ""), ("secrets.json", "{")):
        if text is not None:
            model.save(tmp_path / "model")
            next((tmp_path / "model").rglob(file)).write_text(text)
        with pytest.raises(tp.ConfigError, match=rf"{file}' is damaged.*fit and save the model again"):
            tp.load(tmp_path / "model", fed)


def numbers_of(text: str) -> list[list[str]]:
    """The numbers of the lines of a table of coefficients."""
    pattern = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?|-?\d+(?:e[+-]\d+)?")
    return [pattern.findall(line) for line in text.splitlines() if len(pattern.findall(line)) >= 6]


@pytest.mark.parametrize("family", ["", "gaussian", "binomial", "poisson", "gamma"])
def test_summaries_are_statsmodels(folder: Path, family: Any) -> None:
    """Standard errors, statistics, p values and intervals to 1e-6, and the lines of coefficients as it prints them."""
    relation = opened(folder).sql(SQL, label="paid")
    x: Any = relation.matrix()
    kept = [place for place in range(x.shape[1]) if place not in x.first_categories]
    full = sm.add_constant(np.asarray(x @ np.eye(x.shape[1])[:, kept]))
    y = relation.label()
    labels = {
        "binomial": (y + np.random.default_rng(0).normal(0, 3 * y.std(), len(y)) > np.median(y)).astype(float),
        "poisson": np.floor(np.exp(y / np.abs(y).max())),
        "gamma": np.exp(y / np.abs(y).max()),
    }
    y = labels.get(family, y)
    model: Any
    facts: tuple[Any, ...]
    if not family:
        model, known = tp.linalg.lm(x, y), sm.OLS(y, full).fit()
        facts = (model.r2, model.adjusted_r2, model.f_statistic, model.log_likelihood, model.aic, model.bic)
        assert facts == pytest.approx(
            (known.rsquared, known.rsquared_adj, known.fvalue, known.llf, known.aic, known.bic), rel=1e-6
        )
    else:
        kinds = {
            "gaussian": sm.families.Gaussian(),
            "binomial": sm.families.Binomial(),
            "poisson": sm.families.Poisson(),
            "gamma": sm.families.Gamma(sm.families.links.Log()),
        }
        model, known = tp.linalg.glm(x, y, family=family), sm.GLM(y, full, family=kinds[family]).fit(tol=1e-14)
        facts = (model.deviance, model.null_deviance, model.pearson, model.dispersion)
        assert facts == pytest.approx((known.deviance, known.null_deviance, known.pearson_chi2, known.scale), rel=1e-6)
    found = model.estimates
    for mine, theirs in (
        (found.values, known.params),
        (found.errors, known.bse),
        (found.statistics, known.tvalues),
        (found.p_values, known.pvalues),
        (found.intervals, known.conf_int()),
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)
    printed = numbers_of(known.summary().tables[1].as_text())
    lines = [line[-6:] for line in numbers_of(str(model.summary().coefficients.text()))]
    assert [line[-6:] for line in printed] == lines


def test_summaries_name_categories(folder: Path) -> None:
    """With X.categories codes have names; the category that others are compared with is told in any case."""
    relation = opened(folder).sql(SQL, label="paid")
    X = relation.matrix()
    model = tp.linalg.lm(X, relation.label())
    first, second = X.categories["i.kind"]
    plain, named = str(model.summary()), str(model.summary(X.categories))
    assert "Categories are compared with i.kind=0, i.colour=0" in " ".join(plain.split())
    assert f"Categories are compared with i.kind=0 ({first}), i.colour=0 (" in " ".join(named.split())
    assert f"i.kind=1 ({second})" in named
    assert f"i.kind=1 ({second})" in str(tp.linalg.l2svm(X, relation.label() > 0).summary(X.categories))
    assert "compared" not in str(tp.linalg.lm(X[:, X.numbers], relation.label()).summary())
