"""The folder of a program that takes long: its state after the last round, so that it can continue after a crash.

A state contains arrays: coefficients, Gram matrices, the clusters of joined rows. It contains only what parties have
released, and only this user may read it. It also lists which tables were collected, so that a program that continues
computes in the same places, however fast the connection is now. A state of another program, or of other settings, rows
or cells, is refused.

Cells are compared by X.T @ r for one fixed random vector r, which changes with any cell and with the order of
categories. Encoders are not compared: digests of categories differ by session, and any effect of them is in X.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.errors import LearnError
from tablepuppet.store.files import DamagedFileError, arrays_of, npz, read_checked, write_checked

ABOUT, PLAN, CELLS = "about", "plan", "cells"  # what the state is of, where tables computed, X.T @ r
PRECISION = 1e-12  # of sums over many rows, for each unit of a column's norm; on the wire it may be less
State = dict[str, NDArray[Any]]


class Progress:
    """The state of one program; without a folder nothing is stored.

    ``label`` are further arrays that the program is about, ``settings`` plain values. LearnError if the folder holds
    the state of something else.
    """

    def __init__(
        self, folder: str | Path | None, program: str, matrix: LazyArray, *given: NDArray[Any] | None, **settings: Any
    ):
        self._file, self._placement = None, matrix.source.placement
        if folder is not None:
            self._file = Path(folder) / f"{program}.state"
            self._about = _described(matrix, given) | {"settings": settings}
            weights = np.random.default_rng(0).normal(size=matrix.shape[0])
            self._cells, self._squares = matrix.ask_transposed_times(weights), matrix.ask_column_squares()
            self._precision = 8 * max(PRECISION, float(np.finfo(matrix.wire).eps))

    def read(self) -> State:
        """The state after the last round; empty if there is none. The same tables are collected again."""
        if self._file is None or not self._file.exists():
            return {}
        try:
            state = arrays_of(read_checked(self._file))
            about, plan = (json.loads(str(state.pop(name))) for name in (ABOUT, PLAN))
            cells = state.pop(CELLS)
        except (OSError, DamagedFileError, ValueError, LookupError) as error:
            raise LearnError(
                f"{str(self._file)!r}, from which this program would go on, is empty or damaged: remove it"
            ) from error
        known = json.loads(json.dumps(self._about, default=str))
        changed = [name for name, value in known.items() if about.get(name) != value]
        if not changed and not self._has(cells):
            changed = ["cells"]
        if changed:
            raise LearnError(
                f"{str(self._file)!r} is of another run ({', '.join(changed)} differ): name another folder, or remove "
                "the file"
            )
        self._placement.go_on(plan)
        return state

    def _has(self, cells: NDArray[np.float64]) -> bool:
        """Whether X.T @ r is the same, up to the wire's precision."""
        margin = self._precision * np.sqrt(self._squares.read())
        return bool(np.all(np.abs(self._cells.read() - cells) <= margin))

    def write(self, **state: Any) -> None:
        """Keep the state of a round; that of the round before is replaced in one moment."""
        if self._file is None:
            return
        about, plan = json.dumps(self._about, default=str), json.dumps(self._placement.so_far())
        everything: dict[str, Any] = {ABOUT: about, PLAN: plan, CELLS: self._cells.read(), **state}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_checked(self._file, npz(everything))
        except OSError as error:
            raise LearnError(
                f"the folder {str(self._file.parent)!r} cannot be written ({error.strerror}); name another one"
            ) from error


def _described(matrix: LazyArray, given: tuple[NDArray[Any] | None, ...]) -> dict[str, Any]:
    """What a program is about, as digests: joined rows, columns and how they are scaled, labels."""
    source, recipe = matrix.source, matrix.recipe
    encoders = [
        (each.mean, each.scale, each.offset, each.spread)
        for listed in source.encoding.numbers.values()
        for each in listed
    ]
    function = repr(recipe.function and recipe.function.key)
    columns: list[ArrayLike] = [matrix.columns, encoders, recipe.places, recipe.scale, recipe.shift, [function]]
    return {
        "rows": source.placement.client.rows.fingerprint(),
        "columns": _digest(columns),
        "label": _digest(given),
        "plan": source.placement.plan,
    }


def _digest(arrays: Iterable[ArrayLike | None]) -> str:
    found = hashlib.sha256()
    for each in arrays:
        values = np.asarray([] if each is None else each)
        found.update(f"{values.dtype} {values.shape} ".encode())
        found.update(values.tobytes())
    return found.hexdigest()
