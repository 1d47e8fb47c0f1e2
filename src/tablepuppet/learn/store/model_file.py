"""A model as a folder: what the coordinator knows, and the parameters of parties in this process.

``model.json`` holds settings, encoders, classes and history, and names the folder inside with the rest: ``arrays.npz``,
parameters and digests of categories, and ``secrets.json``, readable by the owner only, under which parties in this
process blind categories: without it a new process could not recognise one. Parties elsewhere keep their own
parameters; ``model.json`` then holds who, and the fingerprint of what is kept. Digests of all three are in it: a file
that is not as it was written is refused. No value of a row is in any of them, but for the names of categories of public
columns.

Saving is atomic: parties store a new part next to the old one, new files are written, one rename replaces
``model.json``, then parties delete the old part.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, LearnError, PartyError
from tablepuppet.learn.private.promise import Uses, reported
from tablepuppet.learn.private.round_promises import read_promise
from tablepuppet.learn.registry import LEARNERS
from tablepuppet.learn.store.fitted import Connected, Fitted
from tablepuppet.learn.store.model_folder import FACTS, ModelFolder
from tablepuppet.learn.tables.stored import KeepingParty, KeptNoise, Stored, keep_only
from tablepuppet.prep.encode.encoding_file import (
    adopt_category_secrets,
    category_secrets,
    encoding_arrays,
    encoding_facts,
    read_encoding,
)
from tablepuppet.runs import interrupts
from tablepuppet.runs.saved_files import damage_explained, read_content, read_facts
from tablepuppet.store import files

FORMAT = 8


def save(learner: Fitted, path: str | Path) -> None:
    """Write a fitted learner; a model of that name is replaced, all or nothing.

    Parties elsewhere keep their own part. A party without ``state_dir`` sends its parameters, if its policy allows it.
    """
    name = type(learner).__name__
    registered = LEARNERS.get(name)
    if registered is not type(learner):
        if registered is not None and registered.__module__ == type(learner).__module__:
            raise LearnError(f"{name} was defined again since it was fitted: fit it again")
        raise LearnError(
            f"{name} could not be loaded again: decorate the class with @learner (tablepuppet.learn.registry)"
        )
    model, engine, folder = learner._model, learner._engine, ModelFolder(Path(path))
    with folder.locked():
        part = model.new_part()
        saved, before = folder.begin(part), _handle(folder.facts)
        try:
            stored = model.store(saved, part)
            folder.write(
                _facts(learner, stored, saved), _arrays(learner, stored), category_secrets(learner.encoding_, engine)
            )
        except BaseException as error:
            # A run that lost a party or was stopped may be resumed, and then needs what parties have stored.
            resumable = isinstance(error, PartyError) or interrupts.received() is not None
            if not resumable and keep_only(engine, model.keepers, saved, before.part):
                folder.end()
            raise
        known = [party for party in before.parties if party in engine.parties]
        keep_only(engine, dict.fromkeys([*known, *stored.parties]), saved, part)
        folder.end()


def load(path: str | Path, federation: Connected) -> Fitted:
    """The learner that `save` wrote, ready to predict over relations of ``federation``.

    Tables may have more shards now, or fewer, and parties other names. Raises LearnError if a party that keeps a part
    of the model is missing, or no longer keeps it.
    """
    folder = ModelFolder(Path(path))
    facts = read_facts(folder.path / FACTS, FORMAT)
    with damage_explained(folder.path / FACTS):
        _check(facts)
        arrays, texts = read_content(folder.path / facts["content"], facts)
        stored = _stored(facts, arrays)
    stored = stored.located(federation.engine)
    with damage_explained(folder.path / FACTS):
        learner = _learner(facts, arrays, stored, federation)
        adopt_category_secrets(learner.encoding_, texts, federation.engine)
    return learner


def forget(path: str | Path, federation: Connected) -> None:
    """Remove a saved model: let parties elsewhere forget their parts of it, then delete the folder.

    Raises PartyError, and changes nothing here, if one of them cannot be reached.
    """
    folder = ModelFolder(Path(path))
    if (folder.path / FACTS).exists():
        with damage_explained(folder.path / FACTS):
            files.read_facts(folder.path / FACTS)  # else parties would keep their parts for ever
    handle = _handle(folder.facts)
    if not folder.is_model:
        raise ConfigError(f"{str(path)!r} is not a saved model")
    strangers = [party for party in handle.parties if party not in federation.engine.parties]
    if strangers:
        raise PartyError(
            f"{', '.join(strangers)}: keep parts of the model, and this federation does not have them: add them to it"
        )
    if not keep_only(federation.engine, handle.parties, folder.saved, ""):
        raise PartyError(f"{', '.join(handle.parties)}: not all parties that keep parts of the model can be reached")
    shutil.rmtree(path)


class WhoKeeps(msgspec.Struct):
    """The part of ``model.json`` that says which learner it is of, and who keeps what of it."""

    learner: str
    saved: str
    part: str
    content: Annotated[str, msgspec.Meta(pattern=r"^content-[0-9a-f]{16}\Z")]
    kept: dict[str, KeepingParty]


def _check(facts: Mapping[str, Any]) -> None:
    """Raise unless facts say of which learner they are, and who keeps what of it."""
    known = msgspec.convert(facts, WhoKeeps)
    if known.learner not in LEARNERS:
        raise LearnError(
            f"the model is a {known.learner}, which is no learner of this version of tablepuppet: import the module "
            "that has the class, or install the version that saved it"
        )


def _handle(facts: Mapping[str, Any]) -> Stored:
    """Who keeps what of the model in a folder, as far as its facts can be read."""
    try:
        kept = msgspec.convert(facts.get("kept") or {}, dict[str, KeepingParty])
    except msgspec.ValidationError:
        kept = {}
    return Stored(str(facts.get("part", "")), {}, kept)


def _stored(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Stored:
    thetas = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith("theta/")}
    noise = None if facts["noise"] is None else KeptNoise(**facts["noise"])
    return replace(_handle(facts), thetas=thetas, noise=noise)


def _arrays(learner: Fitted, stored: Stored) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {f"theta/{alias}": theta for alias, theta in stored.thetas.items()}
    return arrays | encoding_arrays(learner.encoding_) | learner.arrays()


def _learner(facts: dict[str, Any], arrays: dict[str, Any], stored: Stored, federation: Connected) -> Fitted:
    learner: Any = LEARNERS[facts["learner"]].of_plain(facts["settings"])
    learner.encoding_, learner._engine = read_encoding(facts["encoding"], arrays), federation.engine
    learner._relation_columns = [(alias, name, type_) for alias, name, type_ in facts["columns"]]
    learner.n_features_in_, learner.parties_ = len(facts["columns"]), tuple(facts["parties"])
    learner._promise = None if facts["spent"] is None else read_promise(facts["spent"])
    learner._uses = msgspec.convert(facts["uses"], Uses)
    learner.privacy_ = reported(facts["promise"], learner._uses, learner.privacy, learner._promise)
    learner._category_names = facts["category_names"]
    learner.restore(facts["own"], arrays)
    learner._model = learner.saved(stored, federation.engine, federation.wire)
    return cast(Fitted, learner)


def _facts(learner: Fitted, stored: Stored, saved: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "learner": type(learner).__name__,
        "settings": learner.plain_settings(),
        "columns": learner._relation_columns,
        "parties": learner.parties_,
        "saved": saved,
        "part": stored.part,
        "kept": {alias: asdict(kept) for alias, kept in stored.kept.items()},
        "own": learner.facts(),
        "category_names": learner.categories_,
        "promise": learner.privacy_,
        "uses": asdict(learner._uses),
        "spent": None if learner._promise is None else learner._promise.to_keep(),
        "noise": None if stored.noise is None else asdict(stored.noise),
        "encoding": encoding_facts(learner.encoding_),
    }
