"""What all programs check before they begin: that they were given a matrix, a label and settings that they can use."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.prep.columns.label import is_continuous
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
            y = given.get("y")
            if y is None or isinstance(y, (str, LazyArray)) or hasattr(y, "fit_encoding"):
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


def _type_of(given: dict[str, object], name: str) -> str:
    return "nothing" if given.get(name) is None else type(given[name]).__name__


def check_numbers(program: str, label: ArrayLike, rows: int, what: str = "y") -> Array:
    """A label as numbers, (rows,); LearnError if it is text, of another length or not finite."""
    given = np.asarray(label)
    if given.dtype.kind not in "biuf":
        raise LearnError(f"{program}: {what} must be numbers; text is for l2svm, multilogreg and naive_bayes")
    if given.shape != (rows,):
        raise LearnError(f"{program}: {what} has shape {given.shape}, and X has {rows:,} joined rows: ({rows},)")
    if not np.isfinite(given).all():
        raise LearnError(f"{program}: {what} has values that are not finite")
    return given.astype(np.float64)


def check_varies(program: str, label: Array) -> None:
    """LearnError if a label has one value only: what is left of it is rounding, and so would be all statistics."""
    if label.size and label.min() == label.max():
        raise LearnError(f"{program}: y has one value only in these rows, so there is no variance to explain")


def check_rows(program: str, rows: int, coefficients: int) -> None:
    """LearnError unless there are more rows than coefficients."""
    if rows <= coefficients:
        raise LearnError(
            f"{program}: {coefficients:,} coefficients, intercept included, need more than {rows:,} joined rows"
        )


def check_choice(program: str, name: str, value: object, known: tuple[str, ...]) -> None:
    """LearnError unless a setting is one of those known."""
    if value not in known:
        raise LearnError(f"{program}: {name} is one of {', '.join(map(repr, known))}, not {value!r}")


def check_positive(program: str, name: str, value: object, zero: bool = False) -> None:
    """LearnError unless a setting is a finite number above zero, or zero where it may be."""
    number = value if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else -1
    if not (np.isfinite(number) and (number > 0 or (zero and number == 0))):
        raise LearnError(f"{program}: {name} is a number {'from' if zero else 'above'} 0, not {value!r}")


def check_whole(program: str, name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """LearnError unless a setting is a whole number, from ``least`` to ``most``."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else least - 1
    if number < least or (most is not None and number > most):
        upper = "" if most is None else f" to {most:,}"
        raise LearnError(f"{program}: {name} is a whole number from {least}{upper}, not {value!r}")


def classes_of(program: str, label: ArrayLike, rows: int) -> tuple[NDArray[np.generic], NDArray[np.intp]]:
    """(sorted classes, the class number of every row); LearnError unless there are two or more."""
    given = np.asarray(label)
    if given.shape != (rows,):
        raise LearnError(f"{program}: y has shape {given.shape}, and X has {rows:,} joined rows: ({rows},)")
    if given.dtype.kind == "c":
        raise LearnError(f"{program}: y has complex numbers, which are no classes")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise LearnError(f"{program}: y has values that are not finite")
    try:
        classes, numbers = np.unique(given, return_inverse=True)
    except TypeError:
        raise LearnError(f"{program}: y has classes of several types") from None
    if is_continuous(classes):
        raise LearnError(
            f"{program}: y has {len(classes):,} values that are not whole numbers, which are no classes; take lm or "
            "glm, or make classes of it in SELECT, by CASE"
        )
    if not rows:
        raise LearnError(f"{program}: X has no joined rows")
    if len(classes) < 2:
        raise LearnError(f"{program}: y has one class only in these rows; two or more are needed")
    return classes, numbers


def most_frequent(numbers: NDArray[np.intp]) -> float:
    """The share of the most frequent class: the accuracy of a constant.

    >>> most_frequent(np.array([0, 2, 2, 1]))
    0.5
    """
    return float(np.bincount(numbers).max() / len(numbers))
