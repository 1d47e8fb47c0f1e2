"""A model in a folder, whatever it learned: what it says of itself, how rows are encoded, and its parameters.

The folder (`folder.py`) has settings, encoders and results as facts, parameters and digests of categories as arrays.
Parties elsewhere keep their own parameters (`parts.py`); the facts then say who, and the fingerprint of what is kept.
No value of a row is in any of them, but for the names of categories of public columns.

Parties in the analyst's process have a new blinding key in every process. So the secret under which they blind the
categories of a model is saved with it, in a file of its own; services derive it from their lasting key, and send it to
nobody.

Saving is atomic: parties store a new part next to the old one, new files are written, one rename replaces
``model.json``, then parties delete the old part.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.arguments import one_of
from tablepuppet.prep.columns.statistics import NO_DIGESTS
from tablepuppet.prep.encode.encode import CategoryEncoder, Encoding, NumberEncoder, TableSteps
from tablepuppet.prep.encode.specs import FittedStep
from tablepuppet.runs import interrupts
from tablepuppet.sql.query import OutputColumn
from tablepuppet.store.files import read_facts
from tablepuppet.store.folder import ModelFolder, damage_explained
from tablepuppet.store.parts import KeepingParty, KeptNoise, Storable, Stored, keep_only
from tablepuppet.wire.engine import Engine

Facts = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
SECRET = "categories by source"  # its name in the file of secrets


class Connected(Protocol):
    """The part of a federation that models need."""

    @property
    def engine(self) -> Engine:
        """The engine that calls the parties."""
        ...

    @property
    def wire(self) -> str:
        """Precision of row arrays on the wire."""
        ...


@dataclass(frozen=True)
class Saved:
    """A model as its folder has it, for a federation."""

    file: Path
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    secrets: Mapping[str, str]
    stored: Stored
    encoding: Encoding
    engine: Engine

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """For what makes a model of it: then parties in this process blind categories as when it was saved.

        What cannot be made is a ConfigError that names the file.
        """
        with damage_explained(self.file):
            yield
            _adopt_category_secrets(self.encoding, self.secrets, self.engine)


def save(
    path: str | Path, model: Storable, encoding: Encoding, engine: Engine, content: Callable[[], tuple[Facts, Arrays]]
) -> None:
    """Write a model with further ``content`` of its own; a model of that name is replaced, all or nothing.

    Parties elsewhere keep their own part. A party without ``state_dir`` sends its parameters, if its policy allows it.
    """
    folder = ModelFolder(Path(path))
    with folder.locked():
        part = model.new_part()
        saved, before = folder.begin(part), _handle(folder.facts)
        try:
            stored = model.store(saved, part)
            facts, arrays = content()
            facts |= _who_keeps(saved, stored) | {"encoding": _encoding_facts(encoding)}
            arrays |= {f"theta/{alias}": theta for alias, theta in stored.thetas.items()} | _digests(encoding)
            folder.write(facts, arrays, _category_secrets(encoding, engine))
        except BaseException as error:
            # A run that lost a party or was stopped may be resumed, and then needs what parties have stored.
            resumable = isinstance(error, PartyError) or interrupts.received() is not None
            if not resumable and keep_only(engine, model.keepers, saved, before.part):
                folder.end()
            raise
        known = [party for party in before.parties if party in engine.parties]
        keep_only(engine, dict.fromkeys([*known, *stored.parties]), saved, part)
        folder.end()


def read(path: str | Path, engine: Engine) -> Saved:
    """What `save` wrote; ConfigError if it cannot be read.

    Tables may have more shards now, or fewer, and parties other names. Raises LearnError if a party that keeps a part
    of the model is missing, or no longer keeps it.
    """
    folder = ModelFolder(Path(path))
    facts, arrays, secrets = folder.read()
    with damage_explained(folder.file):
        msgspec.convert(facts, _WhoKeeps)
        thetas = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith("theta/")}
        noise = None if facts["noise"] is None else KeptNoise(**facts["noise"])
        stored = replace(_handle(facts), thetas=thetas, noise=noise)
        encoding = _read_encoding(facts["encoding"], arrays)
    return Saved(folder.file, facts, arrays, secrets, stored.located(engine), encoding, engine)


def forget(path: str | Path, engine: Engine) -> None:
    """Remove a saved model: let parties elsewhere forget their parts of it, then delete the folder.

    Raises PartyError, and changes nothing here, if one of them cannot be reached.
    """
    folder = ModelFolder(Path(path))
    if not folder.is_model:
        raise ConfigError(f"{str(path)!r} is not a saved model")
    if folder.file.exists():
        with damage_explained(folder.file):
            read_facts(folder.file)  # else parties would keep their parts for ever
    handle = _handle(folder.facts)
    strangers = [party for party in handle.parties if party not in engine.parties]
    if strangers:
        raise PartyError(
            f"{', '.join(strangers)}: keep parts of the model, and this federation does not have them: add them to it"
        )
    if not keep_only(engine, handle.parties, folder.saved, ""):
        raise PartyError(f"{', '.join(handle.parties)}: not all parties that keep parts of the model can be reached")
    shutil.rmtree(path)


class _WhoKeeps(msgspec.Struct):
    """The part of ``model.json`` that says who keeps what of the model."""

    saved: str
    part: str
    kept: dict[str, KeepingParty]


def _who_keeps(saved: str, stored: Stored) -> Facts:
    return {
        "saved": saved,
        "part": stored.part,
        "kept": {alias: asdict(kept) for alias, kept in stored.kept.items()},
        "noise": None if stored.noise is None else asdict(stored.noise),
    }


def _handle(facts: Mapping[str, Any]) -> Stored:
    """Who keeps what of the model in a folder, as far as its facts can be read."""
    try:
        kept = msgspec.convert(facts.get("kept") or {}, dict[str, KeepingParty])
    except msgspec.ValidationError:
        kept = {}
    return Stored(str(facts.get("part", "")), {}, kept)


# An encoding, as facts, arrays and a secret


_NUMBER_FACTS = ("mean", "scale", "centre", "square", "spread")


def _digests(encoding: Encoding) -> Arrays:
    tables = {alias: encoding.table(alias) for alias in encoding.numbers}
    return {
        f"digests/{alias}/{column.name}": digests
        for alias, table in tables.items()
        for column, digests in table.categories
    }


def _category_secrets(encoding: Encoding, engine: Engine) -> dict[str, str]:
    """What is secret of an encoding: how parties in this process, which have one key, blind its categories."""
    for party in engine.parties if encoding.has_categories else ():
        known = engine.capabilities(party).category_secrets
        if known is not None and known.knows_categories(encoding.id, encoding.key):
            return {SECRET: known.category_secret(encoding.id).hex()}
    return {}


def _adopt_category_secrets(encoding: Encoding, secrets: Mapping[str, str], engine: Engine) -> None:
    """Let all parties in this process blind an encoding's categories as when it was saved, whoever they were then."""
    for party in engine.parties if SECRET in secrets else ():
        known = engine.capabilities(party).category_secrets
        if known is not None:
            known.adopt_category_secret(encoding.id, bytes.fromhex(secrets[SECRET]))


def _encoding_facts(encoding: Encoding) -> Facts:
    """An encoding without its digests, which are arrays."""
    return {
        "id": encoding.id,
        "key": encoding.key,
        "private": encoding.private,
        "described": encoding.described,
        "iv": dict(encoding.iv_),
        "numbers": {
            alias: [asdict(e.column) | {name: getattr(e, name) for name in _NUMBER_FACTS} for e in encoders]
            for alias, encoders in encoding.numbers.items()
        },
        "categories": {
            alias: [asdict(e.column) | {"listed": len(e.digests) > 0, "more": e.more} for e in encoders]
            for alias, encoders in encoding.categories.items()
        },
        "steps": {
            alias: {
                "numbers": [asdict(column) for column in table.numbers],
                "categories": [asdict(column) for column, _ in table.categories],
                "steps": msgspec.to_builtins(table.steps),
            }
            for alias, table in encoding.steps.items()
        },
    }


def _read_encoding(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Encoding:
    """The encoding that was written."""

    def column(entry: dict[str, Any]) -> OutputColumn:
        return msgspec.convert(entry, OutputColumn)

    def digests(alias: str, entry: dict[str, Any]) -> NDArray[np.uint8]:
        return np.asarray(arrays[f"digests/{alias}/{entry['name']}"])

    def number(entry: dict[str, Any]) -> NumberEncoder:
        known = {"spread": math.sqrt(max(entry["square"] - entry["centre"] ** 2, 0.0))} | entry  # older files lack it
        return NumberEncoder(column(entry), *(known[name] for name in _NUMBER_FACTS))

    def category(alias: str, entry: dict[str, Any]) -> CategoryEncoder:
        known = digests(alias, entry) if entry["listed"] else NO_DIGESTS
        return CategoryEncoder(column(entry), known, more=tuple(entry["more"]))

    def table(alias: str, entry: dict[str, Any]) -> TableSteps:
        return TableSteps(
            tuple(map(column, entry["numbers"])),
            tuple((column(each), digests(alias, each)) for each in entry["categories"]),
            tuple(msgspec.convert(entry["steps"], one_of(Sequence[FittedStep]))),
        )

    return Encoding(
        facts["id"],
        facts["key"],
        {alias: tuple(map(number, listed)) for alias, listed in facts["numbers"].items()},
        {alias: tuple(category(alias, each) for each in listed) for alias, listed in facts["categories"].items()},
        facts["private"],
        {alias: table(alias, entry) for alias, entry in facts["steps"].items()},
        tuple(facts["described"]),
        dict(facts.get("iv", {})),
    )
