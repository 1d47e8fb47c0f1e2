"""Models of `tp.linalg`, and what is written of them into a folder, as of learners (`store/models.py`).

A model is a frozen dataclass of numbers, texts, arrays, and the preparation of its columns. Nothing in a folder is
executed when it is read.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from tablepuppet.algebra.functions import Function
from tablepuppet.algebra.linalg.estimates import Estimates
from tablepuppet.algebra.recipes import Preparation, Recipe
from tablepuppet.errors import LearnError, NotPickledError
from tablepuppet.runs.figures import setting_text
from tablepuppet.runs.table_view import NamedNumbers
from tablepuppet.spelling import hides
from tablepuppet.store.models import Arrays, Facts, Saved, save
from tablepuppet.store.parts import Held

MOST_SHOWN = 10  # numbers of a list where a model is printed


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
        if self.preparation.encoding.private:
            raise LearnError("a matrix with noise has no models of tp.linalg")
        arrays: Arrays = {}
        facts: Facts = {"model": _written(self, arrays)}
        save(path, Held({}), self.preparation.encoding, self.preparation.engine, lambda: (facts, arrays))
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


def restored(saved: Saved) -> Any:
    """The model that was saved."""
    model = _read(saved.facts["model"], saved)
    if not isinstance(model, LinalgModel):
        raise TypeError("no model")
    return model


def _written(value: Any, arrays: Arrays) -> Any:
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


def _read(value: Any, saved: Saved) -> Any:
    """What `_written` wrote."""
    if isinstance(value, list):
        return [_read(each, saved) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "array":
        return saved.arrays[value["name"]]
    if kind == "texts":
        found = np.empty(len(value["values"]), object)
        found[:] = value["values"]
        return found
    if kind == "named":
        numbers = _read(value["values"], saved)
        listed = numbers.tolist() if numbers.ndim == 1 else numbers
        return NamedNumbers(dict(zip(value["names"], listed, strict=True)), value["heads"])
    if kind == "preparation":
        return _read_preparation(value, saved)
    made = Estimates if kind == "Estimates" else LinalgModel._kinds[kind]
    return made(**{name: _read(each, saved) for name, each in value["fields"].items()})


def _preparation(given: Preparation, arrays: Arrays) -> Facts:
    recipe = given.recipe
    made = {name: _written(getattr(recipe, name), arrays) for name in ("places", "scale", "shift")}
    if recipe.function is not None:
        made["steps"] = [list(step) for step in recipe.function.steps]
        made["constants"] = _written(recipe.function.constants, arrays)
    return {"kind": "preparation", "recipe": made}


def _read_preparation(facts: Facts, saved: Saved) -> Preparation:
    made, function = facts["recipe"], None
    if "steps" in made:
        steps = tuple((name, left, right) for name, left, right in made["steps"])
        function = Function(steps, _read(made["constants"], saved))
    places, scale, shift = (_read(made[name], saved) for name in ("places", "scale", "shift"))
    return Preparation(saved.encoding, saved.engine, Recipe(places, function, scale, shift))
