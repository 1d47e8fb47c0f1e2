"""What all programs check before they begin: names of settings, and that they were given a matrix and a label."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tablepuppet.algebra.array import LazyArray
from tablepuppet.errors import LearnError
from tablepuppet.runs.events import one_run
from tablepuppet.spelling import names_checked

Arguments = ParamSpec("Arguments")
Fitted = TypeVar("Fitted")


def program(function: Callable[Arguments, Fitted]) -> Callable[Arguments, Fitted]:
    """A program of `tp.linalg` that says what it takes, if it is given something else."""
    signature, name = inspect.signature(function), function.__name__

    @functools.wraps(function)
    def checked(*values: Arguments.args, **named: Arguments.kwargs) -> Fitted:
        given = signature.bind_partial(*values, **named).arguments
        takes = f"{name} takes the matrix of a relation: X = rel.matrix()"
        if "y" in signature.parameters:
            takes += ", y = rel.label()"
        if not isinstance(given.get("X"), LazyArray):
            raise LearnError(f"{takes}, not {_type_of(given, 'X')}")
        if "y" in signature.parameters:
            if _is_no_label(given.get("y")):
                raise LearnError(f"{name}: y is one value per joined row, y = rel.label(), not {_type_of(given, 'y')}")
            _check_columns(name, given["X"])
        if not isinstance(given.get("folder"), (str, Path, type(None))):
            raise LearnError(f"{name}: folder is the name of one, not {_type_of(given, 'folder')}")
        return function(*values, **named)

    return names_checked(one_run()(checked))


def _check_columns(name: str, matrix: Any) -> None:
    """LearnError if a column is there twice: coefficients are by name."""
    twice = [column for column, times in Counter(matrix.columns).items() if times > 1]
    if twice:
        raise LearnError(f"{name}: column {twice[0]!r} is in X more than once; leave it out: X[:, columns]")


def _is_no_label(given: object) -> bool:
    return given is None or isinstance(given, (str, LazyArray)) or hasattr(given, "fit_encoding")


def _type_of(given: dict[str, object], name: str) -> str:
    return "nothing" if given.get(name) is None else type(given[name]).__name__
