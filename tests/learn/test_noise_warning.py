"""A model that noise leaves no better than a constant is called so, with what would help; others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.learn.private.feature_promise import SumPromise, statistics_of
from tablepuppet.learn.private.usefulness import TableSize, help_for_features, help_for_labels
from tablepuppet.sql.query import OutputColumn
from tests.relations import record_wire, write_party

BOUNDS = {"label_bounds": [20, 80]}
CLASSES = {"label_classes": ["no", "yes"]}


def world(folder: Path, rows: int, columns: int = 4, bounds: bool = False, signal: float = 0.5) -> tp.Federation:
    """A number and a class that columns explain half of; the party's policy may have bounds of the columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    y = 50 + 10 * (np.sqrt(signal / columns) * x.sum(axis=1) + np.sqrt(1 - signal) * rng.normal(size=rows))
    table = pa.table({f"x{i}": x[:, i] for i in range(columns)} | {"y": y, "c": np.where(y > 50, "yes", "no")})
    url = write_party(folder, "shop", {"t": table})
    known = {f"t.x{i}": (-3.0, 3.0) for i in range(columns)}
    return tp.Federation({"shop": PartyEntry(url, {}, known if bounds else {})})


def fitted(fed: tp.Federation, make: Any, **privacy: Any) -> tuple[Any, list[tp.Event]]:
    """The learner, and the warnings of uselessness that its own readers got."""
    seen: list[tp.Event] = []
    learner = make(privacy=tp.Privacy(**privacy), callbacks=[seen.append])
    columns = ", ".join(name for name in fed.catalog().table("t").columns if name.startswith("x"))
    classifies = isinstance(learner, tp.LogisticRegression | tp.MLPClassifier)
    label = "c" if classifies else "y"
    learner.fit(fed.sql(f"SELECT {columns}, {label} FROM t", label=label))
    return learner, [event for event in seen if event.name == "privacy.useless"]


def sgd(**settings: Any) -> tp.LinearRegression:
    return tp.LinearRegression(solver="sgd", rounds=2, local_steps=5, **settings)


def mlp(**settings: Any) -> tp.MLPRegressor:
    return tp.MLPRegressor(hidden=[4], rounds=2, local_steps=5, **settings)


def test_noise_on_predictions(tmp_path: Path) -> None:
    """With the usual epsilon for predictions the model predicts nothing: the warning says that rows would not help and
    which epsilon would; with that, and the clip_norm that it names, there is none.
    """
    fed = world(tmp_path, 4000)
    model, [event] = fitted(fed, tp.LinearRegression, feature_epsilon=1.0, prediction_epsilon=1.0)
    assert event.kind == "warning"
    assert "no better than a constant" in event.message
    assert (
        "Predictions have noise of 7.5 times their own size, which leaves 1.8% of the information in them"
        in event.message
    )
    assert "prediction_epsilon=10 would leave half" in event.message
    assert "clip_norm=1 cuts rows' gradients" in event.message
    assert event.fields["gained"] < 0.02
    assert len(event.fields["helps"]) == 2
    better = {"prediction_epsilon": 10.0, "clip_norm": 20.0}
    model, warned = fitted(fed, tp.LinearRegression, feature_epsilon=1.0, **better)
    assert not warned
    columns = ", ".join(f"x{i}" for i in range(4))
    assert model.evaluate(fed.sql(f"SELECT {columns}, y FROM t", label="y"))["r2"] > 0.1


@pytest.mark.parametrize("make", [tp.LinearRegression, tp.LogisticRegression, sgd])
def test_noise_that_hides_columns(tmp_path: Path, make: Any) -> None:
    """Where noise hides the ranges of all columns, the warning names them, the party whose policy could have bounds,
    and how many rows would do; with bounds in the policy, or that many rows and some more, there is none.
    """
    (tmp_path / "few").mkdir()
    _, [event] = fitted(world(tmp_path / "few", 100), make, feature_epsilon=1.0)
    assert "Table t: noise hides 4 of its columns (x0, x1, x2, x3)" in event.message
    assert "in the policy of shop cost nothing; else it needs about 470 rows" in event.message
    assert "(there are 100), feature_epsilon=5.8 or fewer columns" in event.message
    for name, rows, bounds in (("bounded", 400, True), ("many", 2000, False)):
        (tmp_path / name).mkdir()
        assert not fitted(world(tmp_path / name, rows, bounds=bounds), make, feature_epsilon=1.0)[1]


@pytest.mark.parametrize("make", [tp.LinearRegression, sgd, mlp])
def test_noise_in_steps(tmp_path: Path, make: Any) -> None:
    """Noise that hides what rows tell of parameters is named with the rows and the epsilon that would do."""
    _, [event] = fitted(world(tmp_path, 50, 20, bounds=True), make, feature_epsilon=0.02, delta=1e-3)
    assert "noise hides what its 50 rows say about" in event.message
    assert "rows would do, or feature_epsilon=" in event.message


@pytest.mark.parametrize(
    ("make", "privacy"), [(tp.LinearRegression, BOUNDS), (tp.LogisticRegression, CLASSES), (mlp, BOUNDS)]
)
def test_noise_on_labels(tmp_path: Path, make: Any, privacy: dict[str, Any]) -> None:
    """Labels that are nearly all noise are named with rows and an epsilon that would do; many of them are not."""
    (tmp_path / "few").mkdir()
    _, [event] = fitted(world(tmp_path / "few", 60), make, label_epsilon=0.01, **privacy)
    assert "Labels have so much noise that 60 of them say as much as about 0 without" in event.message
    assert "rows would do for" in event.message
    if make is not mlp:
        assert not fitted(world(tmp_path, 20_000), make, label_epsilon=4.0, **privacy)[1]


def promise(epsilon: float) -> SumPromise:
    """For a table of one number."""
    privacy = tp.Privacy(feature_epsilon=epsilon)
    tables = statistics_of([OutputColumn("x", "t", "x", "DOUBLE")], frozenset())
    return SumPromise(privacy, tables, None)


def test_figures_for_steps_agree() -> None:
    """The rows, the epsilon and the parameters that are advised are about enough."""

    def helps(rows: int, parameters: int, epsilon: float = 1.0) -> list[str]:
        return help_for_features(promise(epsilon), {"t": TableSize("t", ("shop",), rows, parameters)})

    [text] = helps(200, 100)
    assert "about 480 rows would do, or feature_epsilon=2.7, or 17 parameters." in text
    assert not helps(485, 100)
    assert not helps(200, 17)
    assert not helps(200, 100, 2.7)


def test_columns_that_noise_did_not_hide() -> None:
    """Where rows are enough for columns to be seen, a column that was left out is no reason to ask for as many."""

    def helps(rows: int) -> list[str]:
        return help_for_features(promise(1.0), {"t": TableSize("t", ("shop",), rows, 0, dropped=("x",))})

    assert "noise hides 1 of its columns (x)" in helps(100)[0]
    assert not helps(9000)


def test_figures_for_labels_agree() -> None:
    """The rows, and the epsilon, that are advised are about enough."""
    privacy = tp.Privacy(label_epsilon=1.0, label_classes=("no", "yes"))
    [text] = help_for_labels(privacy, 2, 1000, 40)
    assert "about 3,700 rows would do for 40 parameters, or label_epsilon=2.9" in text
    assert not help_for_labels(privacy, 2, 3800, 40)
    assert not help_for_labels(tp.Privacy(label_epsilon=2.9), 2, 1000, 40)
    [text] = help_for_labels(privacy, 2, 100, 40)
    assert text.endswith("parameters, or fewer columns (about 1); no label_epsilon would be enough.")


def test_what_is_not_noise(tmp_path: Path) -> None:
    """A useless model without noise is not called so; one with little noise is, and features are named as the cause."""
    fed = world(tmp_path, 4000, bounds=True, signal=0.0)
    warned: list[tp.Event] = []
    fed.events.subscribe(lambda event: warned.append(event) if event.name == "privacy.useless" else None)
    relation = fed.sql("SELECT x0, x1, y FROM t", label="y")
    tp.LinearRegression().fit(relation)
    tp.LinearRegression(privacy=tp.Privacy(secure_sum=True)).fit(relation)
    assert not warned
    tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=10.0)).fit(relation)
    assert "the features themselves seem to say little about the label" in warned[0].message


def test_it_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a party between the end of the fit and the warning, nor after it."""
    fed = world(tmp_path, 200)
    messages, counts = record_wire(monkeypatch), {}
    fed.events.subscribe(lambda event: counts.update({event.name: len(messages)}))
    relation = fed.sql("SELECT x0, y FROM t", label="y")  # kept: else its session closes meanwhile
    tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=0.01)).fit(relation)
    assert counts["fitted"] == counts["privacy.useless"] == len(messages)


def test_validation_rows_decide(tmp_path: Path) -> None:
    """With a validation relation the model is judged on rows that it has not seen."""
    fed = world(tmp_path, 400)
    train, validation = fed.sql("SELECT x0, x1, y FROM t", label="y").split(0.3)
    seen: list[tp.Event] = []
    privacy = tp.Privacy(label_epsilon=0.01, label_bounds=(20, 80))
    tp.LinearRegression(privacy=privacy, callbacks=[seen.append]).fit(train, validation)
    [event] = [event for event in seen if event.name == "privacy.useless"]
    assert "on the validation rows its predictions lower the loss" in event.message


def test_a_constant_label(tmp_path: Path) -> None:
    """A label that does not vary is no case for a warning, nor an error, with noisy steps and predictions either."""
    url = write_party(tmp_path, "shop", {"t": pa.table({"x": np.arange(400.0), "y": np.ones(400)})})
    relation = tp.Federation({"shop": PartyEntry(url, {}, {"t.x": (0.0, 400.0)})}).sql("SELECT x, y FROM t", label="y")
    for make in (tp.LinearRegression, sgd):
        seen: list[tp.Event] = []
        privacy = tp.Privacy(feature_epsilon=1.0, prediction_epsilon=1.0)
        make(privacy=privacy, callbacks=[seen.append]).fit(relation)
        assert "privacy.useless" not in [event.name for event in seen]


def test_fits_with_noise_do_not_speak_of_convergence(tmp_path: Path) -> None:
    """How a fit with noise ended is told as rounds that were planned, not as an optimum that was reached or missed."""
    fed, ends = world(tmp_path, 400, bounds=True), []
    fed.events.subscribe(lambda event: ends.append(event.message) if event.name in ("fitted", "fit.short") else None)
    for make in (sgd, tp.LinearRegression):
        fitted(fed, make, feature_epsilon=1.0)
    assert ends[0] == "LinearRegression: done after the 2 rounds that its noise was planned for"
    assert ends[1].startswith("LinearRegression: done after ")
    assert len(ends) == 2


@pytest.mark.parametrize("kind", ["SplitNN", "TabVFL", "FedOnce"])
@pytest.mark.parametrize("epsilon", [12.0, 0.05])
def test_noisy_labels_of_networks_across_parties(tmp_path: Path, kind: str, epsilon: float) -> None:
    """They have more parameters than there are rows: what a linear model would need is what noise is compared with."""
    pytest.importorskip("torch", reason="networks need the extra `deep`")
    fed, seen = world(tmp_path, 400, signal=0.9), list[tp.Event]()
    few = {"TabVFL": {"pretrain_epochs": 1}, "FedOnce": {"guest_epochs": 1}}.get(kind, {})
    privacies = {"Classifier": ("c", CLASSES), "Regressor": ("y", BOUNDS)}
    for task, (label, more) in privacies.items():
        privacy = tp.Privacy(label_epsilon=epsilon, **more)  # type: ignore[arg-type]
        learner = getattr(tp, kind + task)(epochs=20, privacy=privacy, callbacks=[seen.append], **few)
        learner.fit(fed.sql(f"SELECT x0, x1, x2, x3, {label} FROM t", label=label))
        assert learner.privacy_["label_epsilon"] == epsilon
    useless = [event for event in seen if event.name == "privacy.useless"]
    assert len(useless) == (2 if epsilon < 1 else 0)
