"""A model as a folder: what the coordinator knows, and the parts of parties that live in this process.

``model.json`` holds settings, encoders, classes and history; ``arrays.npz`` parameters and digests of categories. The
secrets under which categories are blinded stand in ``secrets.json``, readable by the owner only: without them a new
process could not recognise a category. No value of a row is in any of them.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, LearnError
from tablepuppet.learn.estimator import Learner
from tablepuppet.learn.linear_models import LinearRegression, LogisticRegression
from tablepuppet.learn.network_models import MLPClassifier, MLPRegressor
from tablepuppet.prep.encode import CategoryEncoder, Encoding, NumberEncoder
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.query import OutputColumn

if TYPE_CHECKING:
    from tablepuppet.federation import Federation

FORMAT = 1
LEARNERS: dict[str, type[Learner]] = {
    c.__name__: c for c in (LinearRegression, LogisticRegression, MLPRegressor, MLPClassifier)
}


def save(learner: Learner, path: str | Path) -> None:
    """Write a fitted learner; a model of that name is replaced, all or nothing."""
    target = Path(path)
    thetas = learner.model_.parameters()
    if target.exists() and not (target / "model.json").exists():
        raise ConfigError(f"{str(target)!r} exists and is no model; choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        (made / "model.json").write_text(json.dumps(_facts(learner), indent=2, default=_plain))
        arrays: dict[str, NDArray[Any]] = {f"theta/{alias}": theta for alias, theta in thetas.items()}
        for alias, encoders in learner.encoding_.categories.items():
            arrays |= {f"digests/{alias}/{encoder.column.name}": encoder.digests for encoder in encoders}
        np.savez(made / "arrays.npz", intercept=learner.intercept_, **arrays)  # type: ignore[arg-type]
        secret_file = os.open(made / "secrets.json", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(secret_file, "w") as stream:
            json.dump(_secrets(learner), stream)
        if target.exists():
            target.rename(Path(scratch) / "old")  # it goes with the scratch folder
        made.rename(target)


def load(path: str | Path, federation: Federation) -> Learner:
    """The learner that `save` wrote, ready to predict over relations of ``federation``."""
    folder = Path(path)
    try:
        facts = json.loads((folder / "model.json").read_text())
        secrets = json.loads((folder / "secrets.json").read_text())
        with np.load(folder / "arrays.npz", allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if (facts["format"], facts["learner"] in LEARNERS) != (FORMAT, True):
            raise ConfigError(f"{str(folder)!r} was written by another version of tablepuppet")
        learner = _learner(facts, arrays, federation)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{str(folder)!r} is no model that can be read: {type(error).__name__}") from error
    for party, secret in secrets.items():
        local = federation.engine.local(party) if party in federation.engine.parties else None
        if local is None:
            raise LearnError(f"the model needs party {party!r}, which this federation does not have")
        local.adopt_category_secret(learner.encoding_.id, bytes.fromhex(secret))
    return learner


def _learner(facts: dict[str, Any], arrays: dict[str, Any], federation: Federation) -> Learner:
    settings = facts["settings"]
    privacy = None if settings["privacy"] is None else Privacy.of_settings(settings["privacy"])
    learner = LEARNERS[facts["learner"]](**settings | {"privacy": privacy})
    thetas = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith("theta/")}
    outputs = len(arrays["intercept"])
    learner.encoding_, learner.intercept_ = _encoding(facts["encoding"], arrays), arrays["intercept"]
    learner.model_ = learner.told(thetas, federation.wire, outputs)
    learner.engine_ = federation.engine
    learner.relation_columns_ = [(alias, name, type_) for alias, name, type_ in facts["columns"]]
    learner.n_features_in_ = len(facts["columns"])
    learner.privacy_ = facts["promise"]
    learner.parties_ = tuple(facts["parties"])
    learner.history_, learner.solver_, learner.converged_ = facts["history"], facts["solver"], facts["converged"]
    learner.stopped_, learner.best_round_ = facts["stopped"], facts["best_round"]
    if facts["classes"] is not None:
        learner.classes_ = _classes(facts["classes"], facts["class_type"])
    return learner


def _facts(learner: Learner) -> dict[str, Any]:
    settings = {name: value for name, value in learner.get_params(deep=False).items() if name != "callbacks"}
    settings["privacy"] = None if learner.privacy is None else asdict(learner.privacy)
    classes = getattr(learner, "classes_", None)
    return {
        "format": FORMAT,
        "learner": type(learner).__name__,
        "settings": settings,
        "columns": learner.relation_columns_,
        "parties": learner.parties_,
        "classes": None if classes is None else classes.tolist(),
        "class_type": None if classes is None else type(classes.tolist()[0]).__name__,
        "solver": learner.solver_,
        "converged": learner.converged_,
        "stopped": learner.stopped_,
        "best_round": learner.best_round_,
        "history": learner.history_,
        "promise": learner.privacy_,
        "encoding": {
            "id": learner.encoding_.id,
            "numbers": {
                alias: [_column(e.column) | {"mean": e.mean, "scale": e.scale} for e in encoders]
                for alias, encoders in learner.encoding_.numbers.items()
            },
            "categories": {
                alias: [_column(e.column) for e in encoders] for alias, encoders in learner.encoding_.categories.items()
            },
        },
    }


def _column(column: OutputColumn) -> dict[str, Any]:
    return {"name": column.name, "alias": column.alias, "expression": column.expression, "type": column.type}


def _encoding(facts: dict[str, Any], arrays: dict[str, Any]) -> Encoding:
    def column(entry: dict[str, Any]) -> OutputColumn:
        return OutputColumn(entry["name"], entry["alias"], entry["expression"], entry["type"])

    return Encoding(
        facts["id"],
        {a: tuple(NumberEncoder(column(e), e["mean"], e["scale"]) for e in es) for a, es in facts["numbers"].items()},
        {
            a: tuple(CategoryEncoder(column(e), arrays[f"digests/{a}/{e['name']}"]) for e in es)
            for a, es in facts["categories"].items()
        },
    )


def _secrets(learner: Learner) -> dict[str, str]:
    """The category secrets of parties in this process; one elsewhere keeps its own."""
    found = {}
    for party in learner.parties_:
        local = learner.engine_.local(party)
        if local is not None:
            found[party] = local.category_secret(learner.encoding_.id).hex()
    return found


def _classes(values: list[Any], kind: str) -> NDArray[Any]:
    """Classes as they were: JSON has no dates."""
    if kind == "date":
        return np.array([date.fromisoformat(value) for value in values])
    if kind == "datetime":
        return np.array([datetime.fromisoformat(value) for value in values])
    return np.array(values)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
