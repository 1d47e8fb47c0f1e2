"""`tablepuppet privacy plan`: what a fit will cost and which noise it will have, before anything is asked."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.jobs import Run
from tablepuppet.privacy_plan import plan_privacy
from tests.command_line import tablepuppet
from tests.relations import Message, collect_garbage, multipliers, record_wire, write_party

SQL = "SELECT o.x, o.z, i.w, i.kind, o.y FROM orders o JOIN items i USING (k)"
BOTH = "feature_epsilon = 1.0\nprediction_epsilon = 2.0\nlabel_epsilon = 3.0\nlabel_bounds = [-9, 9]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """4,000 orders with a label, and 600 items."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2))
    orders = pa.table({"k": rng.integers(0, 600, 4000), "x": x[:, 0], "z": x[:, 1], "y": x.sum(axis=1)})
    items = pa.table({"k": np.arange(600), "w": rng.normal(size=600), "kind": ["a", "b"] * 300})
    urls = {
        "store": write_party(tmp_path, "store", {"orders": orders}),
        "supplier": write_party(tmp_path, "supplier", {"items": items}),
    }
    (tmp_path / "federation.toml").write_text(
        "[parties]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    )
    return tmp_path


def job(folder: Path, privacy: str, learner: str = "", split: str = "test = 0.15\n") -> Path:
    path = folder / "job.toml"
    path.write_text(
        f'federation = "federation.toml"\nsql = "{SQL}"\nlabel = "y"\noutput = "run"\n[split]\n{split}'
        f'[learner]\nkind = "LinearRegression"\n{learner}[learner.privacy]\n{privacy}'
    )
    return path


def drawn(messages: list[Message]) -> Counter[tuple[str, str, float]]:
    """How often noise of a multiplier was drawn, by table and kind of multiplier."""
    found: Counter[tuple[str, str, float]] = Counter()
    for message in messages:
        told = message.request.arguments
        count = len(told["columns"]) if message.request.op in ("private.ranges", "private.moments") else 1
        count = len(told["rates"]) if "rates" in told else count
        for kind, multiplier in zip(("sums", "predictions"), multipliers(told), strict=True):
            if multiplier is not None:
                found[message.request.table, kind, round(multiplier, 9)] += 1 if kind == "predictions" else count
    return found


@pytest.mark.parametrize(
    ("privacy", "learner"),
    [
        (BOTH, ""),
        ("feature_epsilon = 1.0\n", ""),
        ("feature_epsilon = 2.0\n", 'solver = "sgd"\nrounds = 2\nlocal_steps = 3\n'),
        (BOTH, 'solver = "sgd"\nrounds = 1\nlocal_steps = 3\n'),
    ],
)
def test_what_is_planned_is_what_is_drawn(
    folder: Path, privacy: str, learner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every noisy release of a training, with its multiplier, is in the plan, and what the model then states; parties
    are asked for their catalog only.
    """
    collect_garbage()  # no session of another test is closed meanwhile
    messages = record_wire(monkeypatch)
    plan = plan_privacy(job(folder, privacy, learner))
    assert {message.request.op for message in messages} == {"describe"}
    messages.clear()
    Run.to_train(folder / "job.toml", lambda event: None).train()
    aliases = {"orders": "o", "items": "i"}
    planned: Counter[tuple[str, str, float]] = Counter()
    for each in plan.releases:
        if each.multiplier is not None:
            kind = "predictions" if each.what == "predictions" else "sums"
            planned[aliases[each.table], kind, round(each.multiplier, 9)] += each.times
    assert planned == drawn(messages)
    stated = tp.load(folder / "run" / "model", tp.Federation.load(folder / "federation.toml")).privacy_
    assert plan.report["label_epsilon"] == stated["label_epsilon"]
    for key in ("epsilon", "epsilon_given_messages"):
        assert plan.report[key] == pytest.approx(stated[key], rel=1e-3)
    for charge in plan.charges():
        table = stated["tables"][charge["table"]]
        least = table["epsilon"] if math.isfinite(table["epsilon"]) else table["epsilon_given_messages"]
        assert charge["epsilon"] >= least + (plan.report["label_epsilon"] or 0.0 if table["label"] else 0.0)


def test_a_pipeline_costs_what_encoders_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noisy releases are in the plan, with the same number and noise as without it; what has no form with noise is
    refused by the plan too.
    """
    without = plan_privacy(job(folder, "feature_epsilon = 1.0\n"))
    some = '[[prep]]\nkind = "Power"\ncolumns = ["x"]\n[[prep]]\nkind = "Bin"\ncolumns = ["w"]\n'
    steps = f'{some}[[prep]]\nkind = "Standardize"\n'
    path = job(folder, f"feature_epsilon = 1.0\n{steps}")
    plan = plan_privacy(path)
    assert plan.to_dict()["releases"] == without.to_dict()["releases"]
    collect_garbage()
    messages = record_wire(monkeypatch)
    Run.to_train(path, lambda event: None).train()
    planned: Counter[tuple[str, str, float]] = Counter()
    for each in plan.releases:
        planned[{"orders": "o", "items": "i"}[each.table], "sums", round(each.multiplier or 0.0, 9)] += each.times
    assert planned == drawn(messages)
    job(folder, 'feature_epsilon = 1.0\n[[prep]]\nkind = "Robust"\n')
    with pytest.raises(tp.PrivacyError, match="prep, step Robust: it has no form with noise"):
        plan_privacy(path)


def test_it_is_told_for_several_rows(folder: Path) -> None:
    """The command prints releases, charges and what holds for 1, 2 and 10 rows, and says what counts are; JSON too."""
    job(folder, BOTH)
    shown = tablepuppet(folder, "privacy", "plan", "job.toml", fresh=True)
    assert shown.returncode == 0
    for text in ("Labels (orders)", "Noisy releases", "Laplace, standard deviation 8.49", "Gram matrix", "10 rows",
                 "3,400", "Charged to ledgers", "before joins and filters: fewer may take part"):  # fmt: skip
        assert text in shown.stdout
    told = json.loads(tablepuppet(folder, "privacy", "plan", "job.toml", "--json").stdout)
    assert told["rows"] == {"orders": 3400, "items": 600}
    assert set(told["for_rows"]) == {"1", "2", "10"}
    epsilons = [told["for_rows"][rows]["total"]["features_and_label"] for rows in ("1", "2", "10")]
    assert epsilons == sorted(epsilons)
    assert [charge["party"] for charge in told["charges"]] == ["store", "supplier"]
    assert any("prediction_epsilon=10 would leave half" in text for text in told["warnings"])
    assert "warning: Predictions have noise of" in shown.stderr


def test_useless_noise_is_foreseen(folder: Path) -> None:
    """From the counts of the catalog: too few rows for ranges, parameters or labels; a delta that is too large."""
    plan = plan_privacy(job(folder, "feature_epsilon = 0.01\ndelta = 1e-3\n"))
    text = " ".join(plan.warnings)
    assert "Table items: noise will hide columns without bounds or categories in the policy of supplier" in text
    assert "Table items: noise hides what its 600 rows say about 2 parameters" in text
    assert "Table orders: if all its rows take part, delta 0.001 is not below one over the 3,400 rows" in text
    plan = plan_privacy(job(folder, "label_epsilon = 0.1\nlabel_bounds = [-9, 9]\n"))
    assert "Labels have so much noise that 3,400 of them" in " ".join(plan.warnings)
    assert not plan_privacy(job(folder, "feature_epsilon = 4.0\n")).warnings


@pytest.mark.parametrize(
    ("privacy", "learner", "split", "message"),
    [
        ("label_epsilon = 0\n", "", "test = 0.1\n", "label epsilon 0"),
        ("delta = 1e-6\n", "", "test = 0.1\n", "promises nothing"),
        ("feature_epsilon = 1\n", "inner_rounds = 3\n", "test = 0.1\n", "inner_rounds"),
        (BOTH, "", "validation = 0.1\n", "fit without validation"),
    ],
)
def test_what_would_be_refused_is_refused(folder: Path, privacy: str, learner: str, split: str, message: str) -> None:
    """A promise that cannot be kept is the same error as at the fit."""
    with pytest.raises(tp.PrivacyError, match=message):
        plan_privacy(job(folder, privacy, learner, split))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "noise needs classes that do not come from the data"),
        ({"label_epsilon = 1": "label_epsilon = 1\nlabel_classes = ['a', 'c']"}, "the policy has other classes than"),
        ({"label_epsilon = 1": "label_epsilon = 1\nlabel_bounds = [0, 1]"}, "label_bounds are for regressors"),
        ({'label = "kind"': 'label = "w"', "label_epsilon = 1": "label_epsilon = 1\nlabel_classes = ['a', 'b']"},
         "its type is double, which the label classes do not fit"),
        ({"LogisticRegression": "LinearRegression"}, "regression needs a number"),
        ({"LogisticRegression": "LinearRegression", 'label = "kind"': 'label = "y"'}, "noise needs bounds that do not"),
        ({"test = 0.15": "test = 1.5"}, "split: test is the share of rows to hold out"),
        ({"test = 0.15": "validation = -1"}, "split: test is the share of rows to hold out"),
        ({'output = "run"': 'output = "run"\nmax_categories = 0'}, "max_categories must be a whole number"),
        ({"label_epsilon = 1": "secure_sum = true"}, None),
    ],
)  # fmt: skip
def test_what_train_refuses_the_plan_refuses(folder: Path, changes: dict[str, str], message: str | None) -> None:
    """A job is held against all that the catalog tells, by the plan as by `train`, in the same words."""
    path = job(folder, "label_epsilon = 1\n")
    text = path.read_text().replace('label = "y"', 'label = "kind"').replace("LinearRegression", "LogisticRegression")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    if message and "other classes" in message:
        federation = folder / "federation.toml"
        url = federation.read_text().split('supplier = "')[1].split('"')[0]
        listed = f"[parties.supplier]\nurl = '{url}'\ncategories = {{ 'items.kind' = ['a', 'b'] }}\n"
        federation.write_text(federation.read_text().split("supplier")[0] + listed)
    path.write_text(text)
    if message is None:
        plan_privacy(path)
        return
    with pytest.raises(tp.TablePuppetError, match=message) as planned:
        plan_privacy(path)
    with pytest.raises(tp.TablePuppetError) as trained:
        Run.to_train(path, lambda event: None).train()
    assert str(planned.value) == str(trained.value)


def test_a_folder_that_is_taken_is_a_warning(folder: Path) -> None:
    """`train` would want --overwrite, or another folder; the plan makes none."""
    path = job(folder, "feature_epsilon = 4.0\n")
    assert not plan_privacy(path).warnings
    assert not (folder / "run").exists()
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text("{}")
    assert "has a finished run; `--overwrite` replaces it" in plan_privacy(path).warnings[-1]
    (folder / "file").write_text("")
    path.write_text(path.read_text().replace('output = "run"', 'output = "file/run"'))
    assert "cannot be written" in plan_privacy(path).warnings[-1]


def test_without_privacy(folder: Path) -> None:
    """A job that promises nothing is told so; there is nothing to charge."""
    path = job(folder, "")
    path.write_text(path.read_text().split("[learner.privacy]")[0])
    shown = tablepuppet(folder, "privacy", "plan", "job.toml")
    assert shown.stdout.strip() == "Nothing will be promised: the job has no [learner.privacy]."
    told: dict[str, Any] = json.loads(tablepuppet(folder, "privacy", "plan", "job.toml", "--json").stdout)
    assert (told["releases"], told["charges"]) == ([], [])


def test_networks_across_parties(folder: Path) -> None:
    """Noise is on labels only."""
    pytest.importorskip("torch", reason="networks need the extra `deep`")
    path = job(folder, "label_epsilon = 3.0\nlabel_bounds = [-9, 9]\n", "epochs = 2\n")
    path.write_text(path.read_text().replace("LinearRegression", "SplitNNRegressor"))
    plan = plan_privacy(path)
    assert [each.what for each in plan.releases] == ["labels"]
    assert not plan.warnings
