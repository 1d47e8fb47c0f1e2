"""Models as folders: the same predictions in another process, and no value of a row inside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.store.files import read_facts, write_facts
from tablepuppet.store.folder import FORMAT, sealed
from tablepuppet.store.models import SECRET
from tests.learn.materialised import ALL, JOIN, learner, predictions, shop
from tests.relations import write_party

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
CANARY = "canary-category-8d1f"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The shop, with a canary among the categories and a number that is nowhere else."""
    parties = shop(2, together=True)
    items = parties["owner1"]["items"]
    kinds = [CANARY if kind == "fancy" else kind for kind in items["kind"].to_pylist()]
    weights = items["weight"].to_pylist()
    weights[0] = 3.1415926535
    parties["owner1"]["items"] = items.set_column(
        items.schema.get_field_index("kind"), "kind", pa.array(kinds)
    ).set_column(items.schema.get_field_index("weight"), "weight", pa.array(weights))
    folder = tmp_path_factory.mktemp("shop")
    return {name: write_party(folder, name, tables) for name, tables in parties.items()}


def opened(urls: Mapping[str, str | PartyEntry], **settings: Any) -> tp.Federation:
    return tp.Federation(urls, wire="float64", **settings)


def relation_of(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


IN_A_FRESH_PROCESS = """
import json, sys
import tablepuppet as tp
urls, tasks = json.loads(sys.argv[1])
fed = tp.Federation(urls, wire="float64")
for sql, label, folder in tasks:
    relation = fed.sql(sql, label=label)
    model = tp.load(folder, fed)
    scores = model.predict_proba(relation) if hasattr(model, "predict_proba") else model.predict(relation)
    print(json.dumps([scores.tolist(), model.predict(relation).tolist(), model.evaluate(relation)]))
"""


def test_the_same_predictions_in_a_fresh_process(urls: dict[str, str], tmp_path: Path) -> None:
    """Categories are recognised although each process blinds keys under a fresh secret."""
    fed = opened(urls)
    relations = {label: relation_of(fed, label) for label in TASKS}
    models = {label: learner(classes).fit(relations[label]) for label, classes in TASKS.items()}
    for label, model in models.items():
        model.save(tmp_path / label)
    asked = json.dumps([urls, [[f"SELECT {ALL}, o.{x} {JOIN}", x, str(tmp_path / x)] for x in TASKS]])
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, asked]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for (label, model), answer in zip(models.items(), answers, strict=True):
        scores, labels, metrics = json.loads(answer)
        np.testing.assert_allclose(scores, predictions(model, relations[label]), rtol=0, atol=1e-12)
        if TASKS[label] is not None:
            assert labels == model.predict(relations[label]).tolist()
        assert metrics == pytest.approx(model.evaluate(relations[label]))


def test_what_is_kept(urls: dict[str, str], tmp_path: Path) -> None:
    """Settings, coefficients, history and classes come back; a loaded model can be saved again."""
    fed = opened(urls)
    relation = relation_of(fed, "grade")
    model = tp.LogisticRegression(l2=1e-3, solver="admm", rounds=4).fit(relation)
    model.save(tmp_path / "model")
    found = tp.load(tmp_path / "model", fed)
    assert isinstance(found, tp.LogisticRegression)
    assert repr(found) == repr(model)
    assert found.history_ == model.history_
    assert (found.solver_, found.converged_) == (model.solver_, model.converged_)
    assert found.classes_.tolist() == model.classes_.tolist()
    assert found.coef_.keys() == model.coef_.keys()
    for name, value in model.coef_.items():
        np.testing.assert_array_equal(found.coef_[name], value)
    np.testing.assert_array_equal(found.intercept_, model.intercept_)
    np.testing.assert_allclose(found.predict_proba(relation), model.predict_proba(relation), atol=1e-12)
    found.save(tmp_path / "again")
    again = tp.load(tmp_path / "again", opened(urls))
    assert again.coef_.keys() == model.coef_.keys()
    refitted = found.fit(relation)
    np.testing.assert_allclose(refitted.predict_proba(relation), model.predict_proba(relation), atol=1e-12)


def test_saving_over_a_model(urls: dict[str, str], tmp_path: Path) -> None:
    """The newer model takes the place of the older, whole."""
    relation = relation_of(opened(urls), "paid")
    one, two = tp.LinearRegression(l2=1.0).fit(relation), tp.LinearRegression().fit(relation)
    one.save(tmp_path / "model")
    two.save(tmp_path / "model")
    found = tp.load(tmp_path / "model", opened(urls))
    assert found.l2 == two.l2
    assert found.coef_ == pytest.approx(two.coef_)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing left behind


def test_models_of_this_format(urls: dict[str, str], tmp_path: Path) -> None:
    """Models that were saved with the same number of the format are loaded: a fact more or less needs another."""
    tp.LinearRegression(rounds=2).fit(relation_of(opened(urls), "paid")).save(tmp_path / "model")
    facts = read_facts(tmp_path / "model" / "model.json")
    assert FORMAT == facts.pop("format") == 8
    assert set(facts) == {
        "learner", "settings", "columns", "parties", "own", "category_names", "promise", "uses", "spent", "saved",
        "part", "kept", "noise", "encoding", "content", "files",
    }  # fmt: skip


def test_not_over_something_else(urls: dict[str, str], tmp_path: Path) -> None:
    """A folder or file that is no model is left as it is."""
    model = tp.LinearRegression().fit(relation_of(opened(urls), "paid"))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "notes.txt").write_text("more of it")
    for name in ("thesis", "notes.txt"):
        with pytest.raises(tp.ConfigError, match="is not a saved model"):
            model.save(tmp_path / name)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert (tmp_path / "notes.txt").read_text() == "more of it"


def test_loading_what_is_no_model(urls: dict[str, str], tmp_path: Path) -> None:
    """Nothing there, an empty folder, a broken or foreign file: each is a ConfigError that names it and what to do."""
    fed = opened(urls)
    with pytest.raises(tp.ConfigError, match=r"absent' does not exist: give the folder"):
        tp.load(tmp_path / "absent", fed)
    (tmp_path / "empty").mkdir()
    with pytest.raises(tp.ConfigError, match=r"empty' is no saved model: give the folder"):
        tp.load(tmp_path / "empty", fed)
    model = tp.LinearRegression().fit(relation_of(fed, "paid"))
    for name, file, text in (
        ("cut", "model.json", '{"format": 1, "lear'),
        ("newer", "model.json", '{"format": 99}'),
        ("list", "model.json", "[]"),
        ("less", "model.json", "{}"),
        ("bare", "model.json", '{"format": 1, "learner": "LinearRegression"}'),
        ("garbled", "arrays.npz", "PK not an archive"),
        ("emptied", "arrays.npz", ""),
        ("binary", "secrets.json", "[["),
    ):
        model.save(tmp_path / name)
        next((tmp_path / name).rglob(file)).write_text(text)
        with pytest.raises(tp.ConfigError, match=rf"{name}.*{file}.*another version.*fit and save the model again"):
            tp.load(tmp_path / name, fed)
    model.save(tmp_path / "lacking")
    next((tmp_path / "lacking").rglob("arrays.npz")).unlink()
    with pytest.raises(tp.ConfigError, match=r"arrays\.npz' of a saved model cannot be read \(No such file"):
        tp.load(tmp_path / "lacking", fed)


def test_a_changed_digit_is_found(urls: dict[str, str], tmp_path: Path) -> None:
    """A mean that is not as it was saved is no model to predict with."""
    fed = opened(urls)
    tp.LinearRegression().fit(relation_of(fed, "paid")).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    text = path.read_text()
    place = text.index('"mean": ') + len('"mean": ')
    digit = next(p for p in range(place, len(text)) if text[p].isdigit())
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
    with pytest.raises(tp.ConfigError, match=r"model\.json' is damaged"):
        tp.load(tmp_path / "model", fed)


@pytest.mark.parametrize("name", ["part", "saved", "kept"])
@pytest.mark.parametrize("null", [True, False])
def test_who_keeps_it_is_in_the_folder(urls: dict[str, str], tmp_path: Path, name: str, null: bool) -> None:
    """A folder that does not say under which name parties keep the model is refused, also with a good digest."""
    fed = opened(urls)
    tp.LinearRegression().fit(relation_of(fed, "paid")).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    facts = json.loads(path.read_text())
    del facts["digest"], facts[name]
    path.write_text(sealed(facts | ({name: None} if null else {}), path.parent / facts["content"]))
    with pytest.raises(tp.ConfigError, match=r"model\.json' is damaged"):
        tp.load(tmp_path / "model", fed)


@pytest.mark.parametrize(
    ("facts", "secrets"),
    [
        ({"content": ".."}, None), ({"content": "/tmp"}, None), ({"kept": {"o": 3}}, None),
        ({"kept": {"o": {"party": ["p"], "fingerprint": ""}}}, None), ({}, {SECRET: "zz"}),
        ({}, {SECRET: 5}),
    ],
)  # fmt: skip
def test_a_folder_that_somebody_made_up(
    urls: dict[str, str], tmp_path: Path, facts: dict[str, Any], secrets: dict[str, Any] | None
) -> None:
    """Whatever it names, outside of itself or of the wrong kind: one error that names the file, also by `forget`."""
    fed = opened(urls)
    tp.LinearRegression().fit(relation_of(fed, "paid")).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    written = json.loads(path.read_text())
    del written["digest"]
    inside = path.parent / written["content"]
    if secrets is not None:
        (inside / "secrets.json").write_text(json.dumps(secrets))
    path.write_text(sealed(written | facts, inside))
    with pytest.raises(tp.ConfigError, match="is damaged"):
        tp.load(tmp_path / "model", fed)
    tp.forget(tmp_path / "model", fed)
    assert not (tmp_path / "model").exists()


def test_forgetting_needs_all_parties(urls: dict[str, str], tmp_path: Path) -> None:
    """A model of which a party that the federation lacks keeps a part stays, with an error that names the party."""
    fed = opened(urls)
    tp.LinearRegression().fit(relation_of(fed, "paid")).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    changed = read_facts(path) | {"kept": {"o": {"party": "nobody", "fingerprint": ""}}}
    path.write_text(json.dumps(changed))
    with pytest.raises(tp.ConfigError, match=r"model\.json' is damaged.* fit and save the model again"):
        tp.forget(tmp_path / "model", fed)
    write_facts(path, changed)
    with pytest.raises(tp.PartyError, match="nobody: keep parts of the model"):
        tp.forget(tmp_path / "model", fed)
    assert path.exists()


def test_load_takes_a_folder_and_a_federation(urls: dict[str, str], tmp_path: Path) -> None:
    """Without a federation, or with both the other way round, the call is what is wrong."""
    fed: Any = opened(urls)
    tp.LinearRegression().fit(relation_of(fed, "paid")).save(tmp_path / "model")
    for given in ((tmp_path / "model", None), (fed, str(tmp_path / "model"))):
        for call in (tp.load, tp.forget):
            with pytest.raises(tp.ConfigError, match="takes a folder and a federation"):
                call(*given)


def test_no_row_value_is_saved(urls: dict[str, str], tmp_path: Path) -> None:
    """Neither the text of a category that is not public nor a number is in any file; secrets are the owner's alone."""
    shards = opened(urls).catalog().to_arrow().to_pylist()
    levels = {name: {each["table"]: "aggregate" for each in shards if each["party"] == name} for name in urls}
    relation = relation_of(opened({name: PartyEntry(url, levels[name]) for name, url in urls.items()}), "returned")
    model = tp.LogisticRegression().fit(relation)
    model.save(tmp_path / "model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"model.json", "arrays.npz", "secrets.json"}
    with np.load(next((tmp_path / "model").rglob("arrays.npz"))) as stored:
        texts = [path.read_bytes() for path in files] + [stored[name].tobytes() for name in stored.files]
    number = np.float64(3.1415926535)
    for needle in (CANARY.encode(), b"plain", b"green", number.tobytes(), b"3.14159265"):
        assert not [text for text in texts if needle in text], needle
    [secret_file] = (tmp_path / "model").rglob("secrets.json")
    assert secret_file.stat().st_mode & 0o077 == 0
