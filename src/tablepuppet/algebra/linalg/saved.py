"""Models of `tp.linalg` as folders: ``linalg.json``, ``arrays.npz`` and ``secrets.json``.

A model is a frozen dataclass of numbers, texts, arrays, and the preparation of its columns. Nothing in a folder is
executed when it is read. ``secrets.json`` contains the secret under which categories are blinded, for databases that
were opened in this process, as for learners.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.functions import Function
from tablepuppet.algebra.linalg.estimates import Estimates
from tablepuppet.algebra.preparation import Preparation
from tablepuppet.algebra.recipes import Recipe
from tablepuppet.errors import ConfigError, LearnError, NotPickledError
from tablepuppet.prep.encode.encoding_file import (
    adopt_category_secrets,
    category_secrets,
    encoding_arrays,
    encoding_facts,
    read_encoding,
)
from tablepuppet.runs.figures import setting_text
from tablepuppet.runs.saved_files import (
    ARRAYS,
    SECRETS,
    damage_explained,
    read_content,
    read_facts,
    save_errors,
    sealed,
)
from tablepuppet.runs.table_view import NamedNumbers
from tablepuppet.spelling import hides
from tablepuppet.wire.engine import Engine

FORMAT = 3
FACTS = "linalg.json"
MOST_SHOWN = 10  # numbers of a list where a model is printed
Facts = dict[str, Any]


@hides("preparation")
class LinalgModel:
    """A model that can be saved; a subclass is a dataclass, and found by its name."""

    _kinds: dict[str, type[Any]] = {}  # noqa: RUF012 - filled by subclasses
    preparation: Any

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        LinalgModel._kinds[cls.__name__] = cls

    def __repr__(self) -> str:
        """Its numbers, in short; how columns were prepared, and tables of a summary, are left out."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        shown = {name: value for name, value in values.items() if not isinstance(value, (Preparation, Estimates))}
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(value)}' for name, value in shown.items())})"

    def __getstate__(self) -> dict[str, Any]:
        raise NotPickledError(
            f"{type(self).__name__} cannot be pickled or copied: it is bound to an open federation. Write "
            "model.save(folder) and tp.load(folder, fed)"
        )

    def save(self, path: str | Path) -> Self:
        """Write the model into a folder, which `tp.load` reads; an existing model is replaced."""
        place = Path(path)
        if place.exists() and not is_saved(place) and (place.is_file() or any(place.iterdir())):
            raise ConfigError(f"{str(place)!r} exists and is no saved model of tp.linalg; choose another name")
        arrays: dict[str, NDArray[Any]] = {}
        facts = {"format": FORMAT, "model": _written(self, arrays)}
        draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        with save_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            draft.mkdir()
            np.savez(draft / ARRAYS, **arrays)  # type: ignore[arg-type]
            with open(os.open(draft / SECRETS, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as stream:
                json.dump(category_secrets(self.preparation.encoding, self.preparation.engine), stream)
            (draft / FACTS).write_text(sealed(facts, draft, str), encoding="utf-8")
            before = draft.with_name(f"{draft.name}.old")
            if place.exists():
                place.rename(before)
            draft.rename(place)
            shutil.rmtree(before, ignore_errors=True)
        return self


def _brief(value: Any) -> str:
    """A value in a line: numbers with few digits, of a long list how long it is."""
    if isinstance(value, (float, np.floating)):
        return setting_text(float(value), 5)
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.size > MOST_SHOWN:
            return f"<array of {' x '.join(map(str, value.shape))}>"
        value = value.tolist()
    if isinstance(value, NamedNumbers):
        shown = [f"{name!r}: {_brief(each)}" for name, each in islice(value.items(), MOST_SHOWN)]
        return f"{{{', '.join(shown)}{f', {len(value) - MOST_SHOWN:,} more' if len(value) > MOST_SHOWN else ''}}}"
    if isinstance(value, list):
        return f"<list of {len(value):,}>" if len(value) > MOST_SHOWN else f"[{', '.join(map(_brief, value))}]"
    return repr(value)


def is_saved(path: str | Path) -> bool:
    """Whether a folder holds a model of `tp.linalg`."""
    return (Path(path) / FACTS).is_file()


def load(path: str | Path, engine: Engine) -> Any:
    """The model in a folder, to predict over relations of a federation.

    Raises ConfigError if it cannot be read.
    """
    place = Path(path)
    facts = read_facts(place / FACTS, FORMAT)
    arrays, known = read_content(place, facts)
    with damage_explained(place / FACTS):
        model = _read(facts["model"], arrays, engine)
        if not isinstance(model, LinalgModel):
            raise TypeError("no model")
        adopt_category_secrets(model.preparation.encoding, known, engine)
    return model


def _written(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """A value as JSON; arrays are collected separately."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return {"kind": "texts", "values": [_written(each, arrays) for each in value.tolist()]}
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"kind": "array", "name": name}
    if isinstance(value, NamedNumbers):
        numbers = np.array([np.asarray(each, np.float64) for each in value.values()])
        return {
            "kind": "named", "names": list(value), "heads": value.heads, "values": _written(numbers, arrays),
        }  # fmt: skip
    if isinstance(value, Preparation):
        return _preparation(value, arrays)
    if isinstance(value, (Estimates, LinalgModel)):
        parts = {each.name: _written(getattr(value, each.name), arrays) for each in fields(value)}  # type: ignore[arg-type]
        return {"kind": type(value).__name__, "fields": parts}
    if isinstance(value, (list, tuple)):
        return [_written(each, arrays) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any, arrays: Mapping[str, NDArray[Any]], engine: Engine) -> Any:
    """What `_written` wrote."""
    if isinstance(value, list):
        return [_read(each, arrays, engine) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "array":
        return arrays[value["name"]]
    if kind == "texts":
        found = np.empty(len(value["values"]), object)
        found[:] = value["values"]
        return found
    if kind == "named":
        numbers = _read(value["values"], arrays, engine)
        listed = numbers.tolist() if numbers.ndim == 1 else numbers
        return NamedNumbers(dict(zip(value["names"], listed, strict=True)), value["heads"])
    if kind == "preparation":
        return _read_preparation(value, arrays, engine)
    made = Estimates if kind == "Estimates" else LinalgModel._kinds[kind]
    return made(**{name: _read(each, arrays, engine) for name, each in value["fields"].items()})


def _preparation(given: Preparation, arrays: dict[str, NDArray[Any]]) -> Facts:
    encoding, recipe = given.encoding, given.recipe
    if encoding.private:
        raise LearnError("a matrix with noise has no models of tp.linalg")
    arrays |= encoding_arrays(encoding)
    made = {name: _written(getattr(recipe, name), arrays) for name in ("places", "scale", "shift")}
    if recipe.function is not None:
        made["steps"] = [list(step) for step in recipe.function.steps]
        made["constants"] = _written(recipe.function.constants, arrays)
    return {"kind": "preparation", "encoding": encoding_facts(encoding), "recipe": made}


def _read_preparation(facts: Facts, arrays: Mapping[str, NDArray[Any]], engine: Engine) -> Preparation:
    encoding = read_encoding(facts["encoding"], arrays)
    made, function = facts["recipe"], None
    if "steps" in made:
        steps = tuple((name, left, right) for name, left, right in made["steps"])
        function = Function(steps, _read(made["constants"], arrays, engine))
    places, scale, shift = (_read(made[name], arrays, engine) for name in ("places", "scale", "shift"))
    return Preparation(encoding, engine, Recipe(places, function, scale, shift))
