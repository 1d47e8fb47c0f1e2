"""A model as a folder: what the coordinator knows, and the parts of parties that live in this process.

``model.json`` holds settings, encoders, classes and history, and names the folder inside with the rest: ``arrays.npz``,
parameters and digests of categories, and ``secrets.json``, readable by the owner only, under which categories of
parties in this process are blinded: without it a new process could not recognise a category. Parties elsewhere keep
their own parameters; ``model.json`` then holds who, and the fingerprint of what is kept. No value of a row is in any
of them, but for the names of categories of public columns.

All or nothing: parties keep a new part beside the old one, new files are written, then ``model.json`` is replaced by
one rename, then parties forget the old part.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, LearnError, PartyError
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.promise import Uses, reported
from tablepuppet.learn.private.step_promise import StepPromise
from tablepuppet.learn.registry import LEARNERS
from tablepuppet.learn.store.fitted import Connected, Fitted
from tablepuppet.learn.store.model_folder import ModelFolder
from tablepuppet.learn.tables.stored import Kept, KeptNoise, Stored, settle
from tablepuppet.prep.encode import CategoryEncoder, Encoding, NumberEncoder
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs import interrupts
from tablepuppet.runs.table_view import Records
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine

FORMAT = 4


def save(learner: Fitted, path: str | Path) -> None:
    """Write a fitted learner; a model of that name is replaced, all or nothing.

    Parties elsewhere keep their own part. One that has no ``state_dir`` tells its parameters, if its policy lets it.
    """
    model, engine, folder = learner.model_, learner.engine_, ModelFolder(Path(path))
    with folder.locked():
        part = model.new_part()
        saved, before = folder.begin(part), _handle(folder.facts)
        try:
            stored = model.store(saved, part)
            folder.write(_facts(learner, stored, saved), _arrays(learner, stored), _secrets(learner))
        except BaseException as error:
            # A run that lost a party or was stopped may be resumed, and then counts on what parties have stored.
            resumable = isinstance(error, PartyError) or interrupts.received() is not None
            if not resumable and settle(engine, model.keepers, saved, before.part):
                folder.end()
            raise
        known = [party for party in before.parties if party in engine.parties]
        settle(engine, dict.fromkeys([*known, *stored.parties]), saved, part)
        folder.end()


def load(path: str | Path, federation: Connected) -> Fitted:
    """The learner that `save` wrote, ready to predict over relations of ``federation``.

    Raises LearnError if a party is missing, or no longer keeps its part of the model.
    """
    folder = ModelFolder(Path(path))
    try:
        facts = _checked(folder)
        arrays, secrets = folder.read(facts)
        stored = _stored(facts, arrays)
        learner = _learner(facts, arrays, stored, federation)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{str(path)!r} is not a saved model that can be read: {type(error).__name__}") from error
    _check_parties(federation.engine, stored, secrets)
    for party, secret in secrets.items():
        local = federation.engine.local(party)
        assert local is not None, "it was checked"
        local.adopt_category_secret(learner.encoding_.id, bytes.fromhex(secret))
    stored.check(federation.engine)
    return learner


def forget(path: str | Path, federation: Connected) -> None:
    """Remove a saved model: let parties elsewhere forget their parts of it, then delete the folder.

    Raises PartyError, and changes nothing here, if one of them cannot be reached.
    """
    folder = ModelFolder(Path(path))
    handle = _handle(folder.facts)
    if not folder.is_model:
        raise ConfigError(f"{str(path)!r} is not a saved model")
    if not settle(federation.engine, handle.parties, folder.saved, ""):
        raise PartyError(f"{', '.join(handle.parties)}: not all parties that keep parts of the model can be reached")
    shutil.rmtree(path)


def _checked(folder: ModelFolder) -> dict[str, Any]:
    facts = json.loads((folder.path / "model.json").read_text())
    if (facts["format"], facts["learner"] in LEARNERS) != (FORMAT, True):
        raise ConfigError(f"{str(folder.path)!r} was written by another version of tablepuppet")
    return dict(facts)


def _check_parties(engine: Engine, stored: Stored, secrets: Mapping[str, str]) -> None:
    for party in (*secrets, *stored.parties):
        if party not in engine.parties:
            raise LearnError(f"the model needs party {party!r}, which this federation does not have")
    for party in secrets:
        if engine.local(party) is None:
            raise LearnError(f"the model was fitted with party {party!r} in its process, which is elsewhere now")
    for party in stored.parties:
        if engine.local(party) is not None:
            raise LearnError(f"party {party!r} keeps its part of the model as a service, which this federation lacks")


def _handle(facts: Mapping[str, Any]) -> Stored:
    """Who keeps what of the model in a folder, as far as its facts can be read."""
    kept = facts.get("kept") or {}
    return Stored(str(facts.get("part", "")), {}, {a: Kept(e["party"], e["fingerprint"]) for a, e in kept.items()})


def _stored(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Stored:
    thetas = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith("theta/")}
    handle = _handle(facts)
    noise = facts["noise"]
    return Stored(handle.part, thetas, handle.kept, None if noise is None else KeptNoise(**noise))


def _arrays(learner: Fitted, stored: Stored) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {f"theta/{alias}": theta for alias, theta in stored.thetas.items()}
    for alias, encoders in learner.encoding_.categories.items():
        arrays |= {f"digests/{alias}/{encoder.column.name}": encoder.digests for encoder in encoders}
    return arrays | {"intercept": learner.intercept_}


def _learner(facts: dict[str, Any], arrays: dict[str, Any], stored: Stored, federation: Connected) -> Fitted:
    settings = facts["settings"]
    privacy = None if settings["privacy"] is None else Privacy.of_settings(settings["privacy"])
    learner: Any = LEARNERS[facts["learner"]](**settings | {"privacy": privacy})
    outputs = len(arrays["intercept"])
    learner.encoding_, learner.intercept_ = _encoding(facts["encoding"], arrays), arrays["intercept"]
    learner.model_ = model = learner.saved(stored, federation.engine, federation.wire, outputs)
    learner.engine_ = federation.engine
    learner.relation_columns_ = [(alias, name, type_) for alias, name, type_ in facts["columns"]]
    learner.n_features_in_ = len(facts["columns"])
    learner.uses_ = msgspec.convert(facts["uses"], Uses)
    if facts["spent"] is not None:
        learner.promise_ = _promise(facts["spent"])
        model.spent = learner.promise_.spent
    learner._category_names = facts.get("category_names", {})
    learner.privacy_ = reported(facts["promise"], learner.uses_, privacy, learner.promise_)
    learner.parties_ = tuple(facts["parties"])
    learner.history_, learner.solver_, learner.converged_ = (
        Records(facts["history"]),
        facts["solver"],
        facts["converged"],
    )
    learner.stopped_, learner.best_round_ = facts["stopped"], facts["best_round"]
    if facts["classes"] is not None:
        learner.classes_ = _classes(facts["classes"], facts["class_type"])
    return cast(Fitted, learner)


def _facts(learner: Fitted, stored: Stored, saved: str) -> dict[str, Any]:
    settings = {name: value for name, value in learner.get_params(deep=False).items() if name != "callbacks"}
    settings["privacy"] = None if learner.privacy is None else asdict(learner.privacy)
    classes = getattr(learner, "classes_", None)
    return {
        "format": FORMAT,
        "learner": type(learner).__name__,
        "settings": settings,
        "columns": learner.relation_columns_,
        "parties": learner.parties_,
        "saved": saved,
        "part": stored.part,
        "kept": {a: {"party": kept.party, "fingerprint": kept.fingerprint} for a, kept in stored.kept.items()},
        "classes": None if classes is None else classes.tolist(),
        "class_type": None if classes is None else type(classes.tolist()[0]).__name__,
        "solver": learner.solver_,
        "converged": learner.converged_,
        "stopped": learner.stopped_,
        "best_round": learner.best_round_,
        "category_names": learner.categories_,
        "history": learner.history_,
        "promise": learner.privacy_,
        "uses": asdict(learner.uses_),
        "spent": None if learner.promise_ is None else _spent(learner.promise_),
        "noise": None if stored.noise is None else asdict(stored.noise),
        "encoding": {
            "id": learner.encoding_.id,
            "private": learner.encoding_.private,
            "numbers": {
                alias: [_column(e.column) | {"mean": e.mean, "scale": e.scale} for e in encoders]
                for alias, encoders in learner.encoding_.numbers.items()
            },
            "categories": {
                alias: [_column(e.column) for e in encoders] for alias, encoders in learner.encoding_.categories.items()
            },
        },
    }


def _spent(promise: FeaturePromise) -> dict[str, Any]:
    steps = {}
    if isinstance(promise, StepPromise):
        steps = {"local_steps": promise.local_steps, "samplings": promise.samplings}
    return {
        "privacy": asdict(promise.privacy),
        "columns": [_column(column) for column in promise.columns],
        "categorical": sorted(promise.categorical),
        "rounds": promise.asked_rounds,
        "steps": steps,
        "told": promise.to_keep(),
    }


def _promise(spent: Mapping[str, Any]) -> FeaturePromise:
    """What was promised and told of features, to be counted on."""
    promise = (StepPromise if spent["steps"] else FeaturePromise)(
        Privacy.of_settings(spent["privacy"]),
        tuple(OutputColumn(**column) for column in spent["columns"]),
        frozenset(spent["categorical"]),
        spent["rounds"],
        **spent["steps"],
    )
    promise.go_on(spent["told"])
    return promise


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
        facts.get("private", False),
    )


def _secrets(learner: Fitted) -> dict[str, str]:
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
