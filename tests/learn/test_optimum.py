"""Whoever says `converged` is at the optimum of the materialised join, whatever the scales, the means and the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tests.learn.materialised import class_numbers, learner, newton, objective, ridge, shards_of, side_by_side
from tests.relations import federation, record_wire, round_as_services, write_party
from tests.wire.services import calling, served

Array = NDArray[np.float64]
RAW = tp.prep.Pipeline([tp.prep.Impute(), tp.prep.OneHot()])  # nothing is standardised


class World:
    """Tables with columns of any scale and mean, nearly the same columns and nested categories, some in two shards."""

    def __init__(self, seed: int, classes: int | None):
        rng = np.random.default_rng(seed)
        rows, tables, self.classes, self.standard = (
            int(rng.integers(60, 250)),
            int(rng.integers(2, 4)),
            classes,
            seed % 2,
        )
        self.l2 = float(rng.choice([0.0, 1e-8, 1e-6, 1e-4])) if classes is None else float(rng.choice([1e-6, 1e-4]))
        common, drive, select, joins = rng.normal(size=(rows, 3)), np.zeros(rows), [], ""
        self.parties: dict[str, dict[str, pa.Table]] = {}
        columns: list[Array] = []
        made: list[dict[str, Any]] = []
        keys = [np.arange(rows), *(rng.integers(0, max(rows // 4, 12), rows) for _ in range(tables - 1))]
        for table, key in enumerate(keys):
            own = int(key.max()) + 1
            here: dict[str, Any] = {}
            for number in range(int(rng.integers(1, 4))):
                near = 10.0 ** rng.uniform(-4, 0)
                value = common[:own, number] + near * rng.normal(size=own)
                drive += rng.normal() * value[key] / value.std()
                if number and rng.random() < 0.3:
                    value = here[f"x{number - 1}"] + 10.0 ** rng.uniform(-4, -1) * value
                here[f"x{number}"] = value
            for name, value in here.items():
                size = 1.0 if self.standard else 10.0 ** rng.uniform(-3, 3)
                shift = 10.0 ** rng.uniform(0, 7 if self.standard else 4) if rng.random() < 0.4 else 0.0
                here[name] = value * size + shift * size * value.std()
                column = here[name][key]
                columns.append((column - column.mean()) / (column.std() if self.standard else 1.0))
            nation = rng.integers(0, 8, own)
            here["g"] = np.array([f"c{each}" for each in (nation if table % 2 else nation // 2)])
            drive += rng.normal(size=8)[nation][key]
            columns += [(here["g"][key] == each).astype(float) for each in np.unique(here["g"][key])]
            select += [f"t{table}.{name}" for name in here]
            joins += f" JOIN t{table} ON t{table}.id = t0.k{table}" if table else ""
            made.append({"id": np.arange(own), **here})
        noisy = drive / drive.std() + 10.0 ** rng.uniform(-2, 0.5) * rng.normal(size=rows)
        self.labels = (
            noisy if classes is None else np.digitize(noisy, np.quantile(noisy, np.arange(1, classes) / classes))
        )
        made[0] |= {f"k{table}": keys[table] for table in range(1, tables)} | {"y": self.labels}
        for table, named in enumerate(made):
            for number, part in enumerate(shards_of(pa.table(named), 1 + int(rng.random() < 0.3))):
                self.parties[f"p{table}{number}"] = {f"t{table}": part}
        self.matrix, self.sql = np.stack(columns, axis=1), f"SELECT {', '.join(select)}, t0.y FROM t0{joins}"

    @property
    def optimum(self) -> float:
        """The least objective, by a direct solve in which columns are of one scale."""
        return optimum(self.matrix, self.labels, self.l2, self.classes)

    def fit(self, fed: tp.Federation, **settings: Any) -> Any:
        """The learner of the task, fitted."""
        prep: Any = {} if self.standard else {"prep": RAW}
        return learner(self.classes, l2=self.l2, **settings).fit(fed.sql(self.sql, label="y", **prep))


def optimum(matrix: Array, labels: NDArray[Any], l2: float, classes: int | None) -> float:
    """The least objective of a regression, or of classes, by a direct solve of centred columns."""
    centred = matrix - matrix.mean(axis=0)
    if classes is not None:
        numbers = class_numbers(labels)[1]
        best = newton(centred, numbers, classes, l2)
        return objective(best.scores(centred), numbers, classes) + 0.5 * l2 * float(np.sum(best.theta**2))
    if l2:
        theta = ridge(centred, labels, l2).theta
    else:
        scale = np.maximum(centred.std(axis=0), 1e-300)
        theta = np.linalg.lstsq(centred / scale, labels - labels.mean(), rcond=1e-13)[0] / scale
    return objective(centred @ theta + labels.mean(), labels, None) + 0.5 * l2 * float(theta @ theta)


def at_optimum(model: Any, best: float, within: float = 1e-6) -> None:
    reached = [entry["objective"] for entry in model.history_]
    assert model.converged_
    assert reached[-1] == pytest.approx(best, rel=within)
    assert min(reached) >= best * (1 - within), "below what can be reached"


@pytest.fixture
def rounds_as_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties in this process round their values as services do."""
    round_as_services(monkeypatch)


@pytest.mark.usefixtures("rounds_as_the_wire")
@pytest.mark.parametrize("solver", ["auto", "admm"])
@pytest.mark.parametrize("classes", [None, 2])
@pytest.mark.parametrize("seed", range(5))
def test_single_precision(tmp_path: Path, seed: int, classes: int | None, solver: str) -> None:
    """On a wire of single precision a fit that says `converged` is at the optimum, and no round was below it."""
    world = World(seed, classes)
    at_optimum(world.fit(federation(tmp_path, world.parties, wire="float32"), solver=solver), world.optimum)


@pytest.mark.parametrize("classes", [None, 3])
@pytest.mark.parametrize("seed", range(4))
def test_one_process(tmp_path: Path, seed: int, classes: int | None) -> None:
    """The same in one process, where nothing is rounded."""
    world = World(seed, classes)
    at_optimum(world.fit(federation(tmp_path, world.parties)), world.optimum)


def test_services(tmp_path: Path) -> None:
    """Services with float32 on the wire reach the optimum of the pooled rows."""
    world = World(1, None)
    urls = {name: write_party(tmp_path, name, tables, "parquet") for name, tables in world.parties.items()}
    with served(urls) as servers:
        at_optimum(world.fit(calling(servers, wire="float32")), world.optimum)


def test_nothing_is_rounded_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With wire="float32", no array between parties of one process is of single precision."""
    world = World(1, None)
    fed, messages = federation(tmp_path, world.parties, wire="float32"), record_wire(monkeypatch)
    world.fit(fed)
    values = [
        value for each in messages for part in (each.request.arguments, each.reply or {}) for value in part.values()
    ]
    kinds = {value.dtype for value in values if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
    assert kinds == {np.dtype("float64")}


def two_tables(first: dict[str, Any], second: dict[str, Any]) -> tuple[dict[str, dict[str, pa.Table]], str]:
    """(parties, SQL) of two tables that match one to one; the label y is a column of the first."""
    rows = np.arange(len(first["y"]))
    names = [f"t0.{name}" for name in first if name != "y"] + [f"t1.{name}" for name in second]
    parties = {"a": {"t0": pa.table({"id": rows, **first})}, "b": {"t1": pa.table({"id": rows, **second})}}
    return parties, f"SELECT {', '.join(names)}, t0.y FROM t0 JOIN t1 ON t1.id = t0.id"


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("apart", [1e-5, 1e-7, 1e-8])
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_classes_by_columns_of_two_tables_that_hardly_differ(
    tmp_path: Path, solver: str, apart: float, classes: int
) -> None:
    """Without a penalty their difference is a column too: who has not found its coefficient has not converged."""
    rng = np.random.default_rng(1)
    x, rest = rng.normal(size=(2, 400))
    y = np.digitize(0.8 * x + rest + rng.normal(size=400), [0.0] if classes == 2 else [-1.0, 1.0])
    parties, sql = two_tables({"x": x, "y": y}, {"nearly": x + apart * rest})
    model = learner(classes, l2=0.0, solver=solver).fit(federation(tmp_path, parties).sql(sql, label="y"))
    best = optimum(np.column_stack([x, rest]), y, 0.0, classes)
    assert not model.converged_ or model.history_[-1]["objective"] == pytest.approx(best, rel=1e-6)
    assert model.converged_ or apart < 1e-6


@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_columns_of_different_scale(tmp_path: Path, solver: str) -> None:
    """A column that is a million times smaller than another one gets its coefficient without `Standardize`."""
    rng = np.random.default_rng(0)
    small, large, other = rng.normal(size=(3, 300))
    y = 3 * small + 0.5 * large - other + 0.1 * rng.normal(size=300)
    parties, sql = two_tables({"small": small, "large": 1e6 * large + 1e8, "y": y}, {"other": other})
    relation = federation(tmp_path, parties).sql(sql, label="y", prep=RAW)
    model = learner(None, l2=0.0, solver=solver).fit(relation)
    at_optimum(model, optimum(np.stack([small, 1e6 * large, other], axis=1), y, 0.0, None))
    assert model.coef_["t0.small"] == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_column_that_does_not_vary(tmp_path: Path, shards: int) -> None:
    """It has no coefficient, though its mean is rounded: in its own units, scaled to others, this would be a column."""
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 100))
    y = one + two + 0.1 * rng.normal(size=100)
    rows = pa.table({"one": one, "two": 1e-3 * two, "same": np.full(100, -120.2), "y": y})
    parties = {f"p{number}": {"t": part} for number, part in enumerate(shards_of(rows, shards))}
    pipeline = tp.prep.Pipeline([])
    relation = federation(tmp_path, parties).sql("SELECT t.one, t.two, t.same, t.y FROM t", label="y", prep=pipeline)
    model = learner(None, l2=0.0).fit(relation)
    at_optimum(model, optimum(np.stack([one, two], axis=1), y, 0.0, None))
    assert model.coef_["t.same"] == 0


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_classes_by_columns_far_from_zero(tmp_path: Path, solver: str, shards: int) -> None:
    """What classes have in common is in no direction: with means of 1e9 its rounding errors would hide the rest."""
    rng = np.random.default_rng(0)
    near = rng.normal(size=(150, 2))
    mean = np.array([1e9, 0.0])
    far = near + mean
    y = np.digitize(near.sum(axis=1) + rng.normal(size=150), [-1, 1])
    rows = pa.table({"far": far[:, 0], "near": far[:, 1], "y": y})
    parties = {f"p{number}": {"t": part} for number, part in enumerate(shards_of(rows, shards))}
    relation = federation(tmp_path, parties).sql("SELECT t.far, t.near, t.y FROM t", label="y", prep=RAW)
    model = learner(3, l2=1e-6, solver=solver).fit(relation)
    at_optimum(model, optimum(far - mean, y, 1e-6, 3))
    assert len(model.history_) < 20
    assert float(np.mean(model.intercept_)) == pytest.approx(0, abs=1e-6 * np.abs(model.intercept_).max())


def test_polynomial_of_a_price(tmp_path: Path) -> None:
    """Powers of a price of about 1,000 are all used."""
    rng = np.random.default_rng(1)
    price, other = rng.uniform(500, 1500, 400), rng.normal(size=400)
    y = ((price - 1000) / 300) ** 3 + other + 0.1 * rng.normal(size=400)
    parties, sql = two_tables({"price": price, "y": y}, {"other": other})
    prep = tp.prep.Pipeline([tp.prep.Polynomial(3, columns=["t0.price"])])
    relation = federation(tmp_path, parties).sql(sql, label="y", prep=prep)
    model = tp.LinearRegression(l2=0.0).fit(relation)
    assert model.converged_
    assert model.evaluate(relation)["r2"] > 0.99


@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_nested_categories(tmp_path: Path, solver: str) -> None:
    """Nations within regions of another table: over services with float32 on the wire, every coefficient is that of the
    optimum, and so are predictions.
    """
    rng = np.random.default_rng(2)
    nation = rng.integers(0, 25, 1000)
    y = rng.normal(size=25)[nation] + rng.normal(size=1000)
    names, regions = np.array([f"n{each:02}" for each in nation]), np.array([f"r{each // 5}" for each in nation])
    parties, sql = two_tables({"nation": names, "y": y}, {"region": regions})
    matrix = np.concatenate([np.eye(25)[nation], np.eye(5)[nation // 5]], axis=1)
    best = ridge(matrix, y, 1e-4)
    wanted = dict(zip([*np.unique(names), *np.unique(regions)], best.theta, strict=True))
    urls = {name: write_party(tmp_path, name, tables, "parquet") for name, tables in parties.items()}
    with served(urls) as servers:
        relation = calling(servers, wire="float32").sql(sql, label="y")
        model = learner(None, l2=1e-4, solver=solver).fit(relation)
        found = dict(model.coef_)
        predicted, categories = model.predict(relation), model.categories_
    at_optimum(model, optimum(matrix, y, 1e-4, None), 1e-9)
    np.testing.assert_allclose(np.sort(predicted), np.sort(best.scores(matrix)), atol=1e-5)  # rows are permuted
    for column, listed in categories.items():
        for code, name in enumerate(listed):
            assert float(found[f"{column}={code}"]) == pytest.approx(wanted[name], abs=1e-5), name


@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
@pytest.mark.parametrize("mean", [1e6, 1e9, -1e10])
def test_label_far_from_zero(tmp_path: Path, mean: float, solver: str) -> None:
    """A label whose mean is many times its deviation takes as many rounds as around zero, to the same coefficients."""
    rng = np.random.default_rng(4)
    one, two, noise = rng.normal(size=(3, 300))
    far = one - 2 * two + noise + mean
    models = []
    for name, y in (("far", far), ("near", far - mean)):
        parties, sql = two_tables({"one": one, "y": y}, {"two": two})
        (tmp_path / name).mkdir()
        models.append(learner(None, solver=solver).fit(federation(tmp_path / name, parties).sql(sql, label="y")))
    assert [model.converged_ for model in models] == [True, True]
    assert abs(len(models[0].history_) - len(models[1].history_)) <= 1
    for column, value in models[1].coef_.items():
        assert models[0].coef_[column] == pytest.approx(value, rel=1e-6)
    assert models[0].intercept_ == pytest.approx(models[1].intercept_ + mean, rel=1e-14)
    assert models[0].history_[-1]["objective"] == pytest.approx(models[1].history_[-1]["objective"], rel=1e-9)


def test_label_far_from_zero_along_l2(tmp_path: Path) -> None:
    """A search over l2, whose folds merge equal rows, scores such a label as it scores one around zero."""
    rng = np.random.default_rng(5)
    one, two = rng.integers(0, 4, (2, 400))
    far = one + two + rng.integers(0, 3, 400) + 1e9
    scores = []
    for name, y in (("far", far), ("near", far - 1e9)):
        parties, sql = two_tables({"one": one, "y": y}, {"two": two})
        (tmp_path / name).mkdir()
        relation = federation(tmp_path / name, parties).sql(sql, label="y")
        found = tp.GridSearch(tp.LinearRegression(), {"l2": [1e-3, 1.0]}, folds=3).fit(relation)
        scores.append([row["mean_test_rmse"] for row in found.results_])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)


@pytest.mark.parametrize("within", [True, False])
def test_nearly_the_same_columns_without_l2(tmp_path: Path, within: bool) -> None:
    """Two columns that differ by 1e-5, in one table or in two, are told apart."""
    rng = np.random.default_rng(3)
    one, noise = rng.normal(size=(2, 300))
    two, y = one + 1e-5 * noise, one + noise + 0.1 * rng.normal(size=300)
    first = {"one": one, "y": y} | ({"two": two} if within else {})
    parties, sql = two_tables(first, {"other": rng.normal(size=300)} | ({} if within else {"two": two}))
    relation = federation(tmp_path, parties).sql(sql, label="y")
    other = np.asarray(parties["b"]["t1"]["other"])
    model = tp.LinearRegression(l2=0.0).fit(relation)
    at_optimum(model, optimum(np.stack([one, two, other], axis=1), y, 0.0, None))


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("apart", [1e-9, 1e-5, 1e-2, 1.0])
def test_sgd_says_what_it_has_not_found(tmp_path: Path, apart: float, within: bool) -> None:
    """Of nearly the same columns, in one table or in two, sgd does not find what they differ in: it is near the optimum
    only if full-batch rounds would gain less than 0.2 %. These rounds leave no trace in the model.
    """
    rng = np.random.default_rng(3)
    one, noise, other = rng.normal(size=(3, 300))
    two, y = one + apart * noise, one + noise + 0.1 * rng.normal(size=300)
    first = {"one": one, "y": y} | ({"two": two} if within else {})
    parties, sql = two_tables(first, {"other": other} | ({} if within else {"two": two}))
    relation = federation(tmp_path, parties).sql(sql, label="y")
    model = tp.LinearRegression(solver="sgd", l2=0.0).fit(relation)
    best = optimum(np.stack([one, noise, other], axis=1), y, 0.0, None)
    reached = 0.5 * float(model.evaluate(relation)["rmse"]) ** 2
    assert not model.converged_
    assert (model.stopped_ == "near the optimum") == (reached <= 1.002 * best) == (apart == 1.0)
    assert reached == pytest.approx(model.history_[-1]["objective"], rel=0.02)


def test_nearly_the_same_columns_in_their_own_units(tmp_path: Path) -> None:
    """Two such columns are told apart beside a column that is a thousand times larger, though nothing is scaled."""
    rng = np.random.default_rng(3)
    one, noise, large = rng.normal(size=(3, 300))
    two, y = one + 1e-5 * noise, one + noise + large + 0.1 * rng.normal(size=300)
    parties, sql = two_tables({"one": one, "two": two, "large": 900 * large, "y": y}, {"other": rng.normal(size=300)})
    model = tp.LinearRegression(l2=0.0).fit(federation(tmp_path, parties).sql(sql, label="y", prep=RAW))
    matrix = np.stack([one, two, 900 * large, np.asarray(parties["b"]["t1"]["other"])], axis=1)
    at_optimum(model, optimum(matrix, y, 0.0, None))


@pytest.mark.usefixtures("rounds_as_the_wire")
@pytest.mark.parametrize(("classes", "correlation"), [(None, 0.0), (2, 0.3)])
def test_double_precision_is_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int | None, correlation: float
) -> None:
    """On a wire of single precision `admm` takes about as many rounds as `lbfgs`, few of them in double precision."""
    parties, sql = side_by_side(3, 4, 300, correlation, classes=classes)
    relation = federation(tmp_path, parties, wire="float32").sql(sql, label="y")
    rounds = len(learner(classes, solver="lbfgs", l2=1e-4).fit(relation).history_)
    messages = record_wire(monkeypatch)
    model = learner(classes, solver="admm", l2=1e-4).fit(relation)
    asked = [each.request.arguments for each in messages if each.request.op == "ridge.direction"]
    exact = [arguments for arguments in asked if arguments.get("exact")]
    assert model.converged_
    assert len(model.history_) <= 1.5 * rounds
    assert len(exact) <= len(asked) / 3
