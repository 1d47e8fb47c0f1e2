"""`LazyArray`: columns of the joined matrix, and elementwise functions of them, as NumPy code takes them.

Column j of an array is

    scale_j * f_j(X[:, places_j]) + shift_j

where f is an elementwise function (`functions.py`), or nothing. So X[:, cols], X - mean, X / scale are known without
asking anybody, and their products follow from those of X. A function such as log1p is evaluated at base rows, each
once, by the parties. Of a category column, which is 0 or 1, every function is f(0) + (f(1) - f(0)) x: categories stay
sparse. Nothing is computed before a product, a sum or another number is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from tablepuppet.algebra.explain import Explanation, explain_array
from tablepuppet.algebra.functions import MOST_STEPS, OF_ONE, OF_TWO, Function
from tablepuppet.algebra.kept import Keeper, KeptArray
from tablepuppet.algebra.operator import ProductOperator, RowScaled
from tablepuppet.algebra.places import Places
from tablepuppet.algebra.preparation import Preparation, Recipe
from tablepuppet.algebra.products import Derived, DerivedTable, Nearest, Result, TableProducts, checked
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.party.arguments import LARGEST
from tablepuppet.prep.encode import Encoding
from tablepuppet.spelling import did_you_mean
from tablepuppet.wire.engine import Engine

Array = NDArray[np.float64]
BLOCK = 32  # columns that are multiplied at a time
KEYWORDS = {"where": True, "out": None, "casting": "same_kind", "order": "K", "subok": True, "dtype": None}


class Source(Protocol):
    """X itself, as arrays that are made of it use it."""

    products: TableProducts
    places: Places
    encoding: Encoding
    engine: Engine
    wire_name: str
    all_columns: list[str]
    is_number: NDArray[np.bool_]
    groups: list[tuple[int, int]]

    @property
    def is_secure(self) -> bool:
        """Whether sums over the shards of some table are masked."""

    def derived_tables(
        self, places: NDArray[np.intp], function: Function
    ) -> tuple[dict[str, DerivedTable], NDArray[np.intp]]:
        """(what tables must compute for a function of some columns, where each column then stands)."""

    @property
    def keeper(self) -> Keeper | None:
        """Who keeps vectors at parties, if they stay there."""

    def extremes(self, places: NDArray[np.intp]) -> tuple[Array, Array]:
        """(the least, the largest number) of some columns."""


class LazyArray(NDArrayOperatorsMixin, ProductOperator):
    """Some columns of X, and an elementwise function of them; an operator for SciPy, an array for NumPy."""

    ndim = 2
    __hash__ = object.__hash__  # == is elementwise

    def __init__(self, source: Source | None, recipe: Recipe, rows: int):
        self._source, self.recipe = source, recipe
        ProductOperator.__init__(self, (rows, len(recipe.places)))

    @property
    def source(self) -> Source:
        """X."""
        assert self._source is not None, "X itself says so"
        return self._source

    @property
    def columns(self) -> list[str]:
        """The names of its columns: those of X that they are made of."""
        return [self.source.all_columns[place] for place in self.recipe.places]

    @property
    def preparation(self) -> Preparation:
        """How its columns are made, for other relations."""
        return Preparation(self.source.encoding, self.source.engine, self.recipe)

    @property
    def wire(self) -> str:
        """Precision of row arrays on the wire."""
        return self.source.wire_name

    @property
    def numbers(self) -> NDArray[np.bool_]:
        """Which of its columns are numbers, not categories: ``X[:, X.numbers]``."""
        return self.source.is_number[self.recipe.places]

    @property
    def category_groups(self) -> list[tuple[int, int]]:
        """Start and end of each category group that is there as in X: whole, and as 0 and 1."""
        found, places = [], self.recipe.places
        plain = (self.recipe.scale == 1) & (self.recipe.shift == 0)
        for start, end in self.source.groups:
            here = np.flatnonzero(places == start)
            if len(here) != 1:
                continue
            part = slice(here[0], here[0] + end - start)
            if np.array_equal(places[part], np.arange(start, end)) and plain[part].all():
                found.append((int(part.start), int(part.stop)))
        return found

    @property
    def first_categories(self) -> list[int]:
        """The places of the first column of each category group that is whole: with an intercept it is one too many."""
        there = np.where(self.recipe.scale != 0, self.recipe.places, -1)
        whole = [start for start, end in self.source.groups if np.isin(np.arange(start, end), there).all()]
        return [int(np.flatnonzero(there == start)[0]) for start in whole]

    # ---- products

    @cached_property
    def _basis(self) -> tuple[TableProducts, NDArray[np.intp]]:
        """(products with columns that parties have, which of them each column is made of)."""
        recipe, source = self.recipe, self.source
        if recipe.function is None:
            return source.products, recipe.places
        parts, pick = source.derived_tables(recipe.places, recipe.function)
        if not any(part.arguments()["numbers"].size for part in parts.values()):
            return source.products, recipe.places
        if source.is_secure:
            raise PrivacyError(
                "secure sums need a bound of what is added up, which a function of columns has not: transform columns "
                "in SELECT, or call rel.matrix() without secure_sum"
            )
        return Derived(source.places, source.encoding.id, parts), pick

    def kept_times(self, directions: ArrayLike) -> KeptArray | Array:
        """A V, which stays at the parties where that is the plan (`kept.py`); else as `times`."""
        keeper, wanted = self.source.keeper, checked("V of X @ V", directions, self.shape[1], "columns")
        products, pick = self._basis
        if keeper is None or not products.tables or not wanted.size:
            return self.times(wanted)
        columns = wanted[:, None] if wanted.ndim == 1 else wanted  # (d, k)
        slot = keeper.times(products, self._expanded(self.recipe.scale[:, None] * columns, products, pick))
        found, shift = KeptArray(self.source, slot, (self.shape[0], *wanted.shape[1:])), self.recipe.shift @ wanted
        return found + shift if shift.any() else found

    def times(self, directions: ArrayLike) -> Array:
        """A V: (d,) to (N,), (d, k) to (N, k); one trip."""
        return self.ask_times(directions).read()

    def transposed_times(self, values: ArrayLike | KeptArray) -> Array:
        """A^T U: (N,) to (d,), (N, k) to (d, k); one trip. U may be at the parties (`kept_times`)."""
        return self.ask_transposed_times(values).read()

    def ask_times(self, directions: ArrayLike) -> Result:
        """Ask for A V; a table is sent those columns of V that are not zero for it."""
        wanted = checked("V of X @ V", directions, self.shape[1], "columns")
        columns = wanted[:, None] if wanted.ndim == 1 else wanted  # (d, k)
        products, pick = self._basis
        asked = products.ask_times(self._expanded(self.recipe.scale[:, None] * columns, products, pick))
        shift = self.recipe.shift @ columns  # (k,)

        def finish() -> Array:
            found = asked.read()  # (N, k)
            if shift.any():
                found += shift
            return found[:, 0] if wanted.ndim == 1 else found

        return Result(finish)

    def ask_nearest(self, centres: Array) -> Nearest:
        """Ask for the nearest of some centres, (k, d), of every joined row: where x c - |c|^2 / 2 is largest."""
        products, pick = self._basis
        columns = centres.T
        constants = self.recipe.shift @ columns - (centres**2).sum(axis=1) / 2
        return products.ask_nearest(self._expanded(self.recipe.scale[:, None] * columns, products, pick), constants)

    def _expanded(self, columns: Array, products: TableProducts, pick: NDArray[np.intp]) -> Array:
        if self._is_plain:
            return columns
        found = np.zeros((products.shape[1], columns.shape[1]))
        np.add.at(found, pick, columns)  # a column may be there twice
        return found

    @cached_property
    def _is_plain(self) -> bool:
        """Whether it is X as it is."""
        recipe = self.recipe
        return bool(
            recipe.function is None
            and np.array_equal(recipe.places, np.arange(self.source.products.shape[1]))
            and (recipe.scale == 1).all()
            and not recipe.shift.any()
        )

    def ask_transposed_times(self, values: ArrayLike | KeptArray) -> Result:
        """Ask for A^T U; U must not change before the result is read."""
        if isinstance(values, KeptArray) and values.keeper is self.source.keeper and self._basis[0].tables:
            return self._ask_kept_transposed_times(values)
        wanted = checked("U of X.T @ U", values, self.shape[0], "joined rows")
        columns = wanted[:, None] if wanted.ndim == 1 else wanted  # (N, k)
        products, pick = self._basis
        asked = products.ask_transposed_times(columns)
        sums = columns.sum(axis=0) if self.recipe.shift.any() else np.zeros(columns.shape[1])
        flat = wanted.ndim == 1

        def finish() -> Array:
            found = self._affine(asked.read(), pick, sums)
            return found[:, 0] if flat else found

        return Result(finish)

    def _ask_kept_transposed_times(self, values: KeptArray) -> Result:
        """Ask for A^T U, where U is at the parties."""
        products, pick = self._basis
        asked = values.keeper.ask_transposed_times(products, values.slot, values.columns)
        sums = values.ask_sums() if self.recipe.shift.any() else None

        def finish() -> Array:
            found = self._affine(asked.read(), pick, np.zeros(1) if sums is None else np.atleast_1d(sums.read()))
            return found[:, 0] if values.ndim == 1 else found

        return Result(finish)

    def _affine(self, found: Array, pick: NDArray[np.intp], sums: Array) -> Array:
        """scale * (products of basis columns) + shift * (sums of what they were multiplied with), (d, k)."""
        if self._is_plain:
            return found
        return np.asarray(self.recipe.scale[:, None] * found[pick] + self.recipe.shift[:, None] * sums)

    def ask_sums_by(self, labels: NDArray[np.integer], groups: int) -> Result:
        """Ask for the sums of columns over the joined rows of each group, (d, groups): A^T U for the 0/1 matrix U of
        ``labels``, (N,), numbers of groups. U is not built.
        """
        products, pick = self._basis
        asked, sizes = products.ask_sums_by(labels, groups), np.bincount(labels, minlength=groups).astype(np.float64)
        return Result(lambda: self._affine(asked.read(), pick, sizes))

    def ask_column_sums(self) -> Result:
        """Ask for the sums of columns. No direction is chosen, so every table that lets statistics out answers."""
        products, pick = self._basis
        asked, rows = products.ask_column_sums(), np.full(1, float(self.shape[0]))
        return Result(lambda: self._affine(asked.read()[:, None], pick, rows)[:, 0])

    def ask_column_squares(self) -> Result:
        """Ask for the sums of the squares of columns."""
        products, pick = self._basis
        squares, scale, shift = products.ask_column_squares(), self.recipe.scale, self.recipe.shift
        sums = products.ask_column_sums() if shift.any() else None

        def finish() -> Array:
            found = scale**2 * squares.read()[pick]
            if sums is not None:
                found = found + 2 * scale * shift * sums.read()[pick] + self.shape[0] * shift**2
            return np.asarray(np.maximum(found, 0.0))

        return Result(finish)

    def ask_squared_norm(self) -> Result:
        """Ask for the sum of the squares of all its numbers, (1,)."""
        asked = self.ask_column_squares()
        return Result(lambda: asked.read().sum(keepdims=True))

    def column_sums(self) -> Array:
        """The sum of every column over the joined rows, (d,); one trip."""
        return self.ask_column_sums().read()

    @property
    def means(self) -> Array:
        """The mean of every column over the joined rows, (d,); one trip. LearnError if there are no rows."""
        return np.asarray(self.mean(axis=0))

    def gram(self, weights: ArrayLike | None = None) -> Array:
        """A^T A, or A^T diag(weights) A, (d, d); one trip for one table, else two."""
        given = None if weights is None else checked("weights", weights, self.shape[0], "joined rows")
        if given is not None and given.ndim != 1:
            raise LearnError(f"weights are one number per joined row, not of shape {given.shape}")
        products, pick = self._basis
        scale, shift, sums = self.recipe.scale, self.recipe.shift, None
        if shift.any():
            sums = products.ask_column_sums() if given is None else products.ask_transposed_times(given[:, None])
        gram = products.gram(given)
        if self._is_plain:
            return gram
        found = gram[np.ix_(pick, pick)] * np.outer(scale, scale)
        if sums is not None:
            crossed = np.outer(scale * np.ravel(sums.read())[pick], shift)
            total = self.shape[0] if given is None else float(given.sum())
            found = found + crossed + crossed.T + total * np.outer(shift, shift)
        return np.asarray(found)

    def gram_with(self, other: LazyArray, weights: Array | None = None) -> Array:
        """A^T diag(weights) B for another array over the same rows."""
        if other.source is not self.source:
            raise LearnError("a product of two matrices needs both to be of one rel.matrix()")
        if other.recipe == self.recipe:
            return self.gram(weights)
        narrow, wide = sorted((self, other), key=lambda each: each.shape[1])
        parts = []
        for start in range(0, narrow.shape[1], BLOCK):
            cells = narrow.times(np.eye(narrow.shape[1])[:, start : start + BLOCK])  # (N, block)
            parts.append(wide.transposed_times(cells if weights is None else weights[:, None] * cells))
        found = np.concatenate(parts, axis=1) if parts else np.zeros((wide.shape[1], 0))
        return found.T if narrow is self else found

    # ---- sums and statistics

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Sums of columns (axis 0), of rows (axis 1) or of everything; one trip."""
        if _axis(axis) == 1:
            return _kept(self.times(np.ones(self.shape[1])), 1, keepdims)
        found = self.column_sums()
        return _kept(found, 0, keepdims) if _axis(axis) == 0 else _all(found.sum(), keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Means of columns (axis 0), of rows (axis 1) or of everything; one trip. LearnError if there are none."""
        count = self._count(axis)
        return self.sum(axis, keepdims) / count

    def _count(self, axis: int | None) -> int:
        count = self.shape[0] * self.shape[1] if axis is None else self.shape[_axis(axis) or 0]
        if not count:
            raise LearnError(f"a relation without joined rows has no means, nor has one without columns: {self.shape}")
        return int(count)

    def var(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """Variances of columns (axis 0), of rows (axis 1) or of everything; one trip. ``ddof`` as in NumPy."""
        count, which = self._count(axis), _axis(axis)
        if which == 1:
            means = self.mean(axis=1)
            squares = np.square(self).sum(axis=1)
            found = np.maximum(squares - count * means**2, 0.0) / (count - ddof)
            return _kept(found, 1, keepdims)
        sums, squares = self.ask_column_sums(), self.ask_column_squares()
        if which == 0:
            means = sums.read() / count
            found = np.maximum(squares.read() - count * means**2, 0.0) / (count - ddof)
            return _kept(found, 0, keepdims)
        mean = float(sums.read().sum()) / count
        return _all(max(float(squares.read().sum()) - count * mean**2, 0.0) / (count - ddof), keepdims)

    def std(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """Standard deviations, as `var`."""
        return np.sqrt(self.var(axis, ddof, keepdims))

    def min(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The least number of columns (axis 0), of rows (axis 1) or of everything; one trip.

        Of columns, and of everything, only where columns are public.
        """
        return -(-self)._row_largest(keepdims) if _axis(axis) == 1 else self._extreme(axis, keepdims, np.min)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The largest number, as `min`."""
        return self._row_largest(keepdims) if _axis(axis) == 1 else self._extreme(axis, keepdims, np.max)

    def _row_largest(self, keepdims: bool) -> Array:
        self._count(1)
        products, pick = self._basis
        return _kept(products.ask_row_largest(pick, self.recipe.scale, self.recipe.shift).read(), 1, keepdims)

    def _extreme(self, axis: int | None, keepdims: bool, which: Callable[..., Any]) -> Any:
        self._count(axis)
        ends = self._ends()  # (2, d)
        found = which(ends, axis=0)
        return _kept(found, 0, keepdims) if axis is not None else _all(which(found), keepdims)

    def _ends(self) -> Array:
        """The function of the least and the largest number of each column, (2, d)."""
        recipe = self.recipe
        lows, highs = self.source.extremes(recipe.places)
        ends = np.stack([lows, highs])
        is_function = self.numbers & (recipe.function is not None)
        if recipe.function is not None and is_function.any():
            if (slopes := recipe.function.slopes()) is None or not np.all(np.abs(slopes[is_function]) <= 1):
                _refuse("min and max of a function that rises and falls", "the function in SELECT")
            ends = np.where(is_function, recipe.function(ends), ends)
        return np.asarray(ends * recipe.scale + recipe.shift)

    def norm(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Euclidean norms of columns (axis 0), of rows (axis 1), or the Frobenius norm; one trip."""
        if _axis(axis) == 1:
            return np.sqrt(np.maximum(np.square(self).sum(axis=1, keepdims=keepdims), 0.0))
        found = self.ask_column_squares().read()
        return _kept(np.sqrt(found), 0, keepdims) if axis is not None else _all(np.sqrt(found.sum()), keepdims)

    # ---- columns and elements

    def __getitem__(self, key: Any) -> Any:
        """Some columns, by number, slice, name, mask or a list: ``X[:, cols]``; one alone is an array (N,)."""
        rows, chosen = (key, slice(None)) if not isinstance(key, tuple) else (*key, slice(None))[:2]
        if (rows is not Ellipsis and not (isinstance(rows, slice) and rows == slice(None))) or (
            isinstance(key, tuple) and len(key) != 2
        ):
            raise LearnError(
                "rows of X are joined rows, which no party has: X[:, columns] is allowed. Choose rows by WHERE, or by "
                "rel.split"
            )
        places = self._places(chosen)
        if places.ndim == 0:
            return self[:, [int(places)]].times(np.ones(1))
        return LazyArray(self.source, self.recipe.only(places), self.shape[0])

    def _places(self, chosen: Any) -> NDArray[np.intp]:
        if isinstance(chosen, str) or (
            isinstance(chosen, (list, tuple)) and any(isinstance(each, str) for each in chosen)
        ):
            names = [chosen] if isinstance(chosen, str) else list(chosen)
            found = [place for name in names for place in self._named(name)]
            return np.array(found[0] if isinstance(chosen, str) and len(found) == 1 else found, np.intp)
        try:
            return np.asarray(np.arange(self.shape[1])[np.asarray(chosen, np.intp) if _is_empty(chosen) else chosen])
        except (IndexError, TypeError, ValueError) as error:
            raise LearnError(
                f"X[:, {chosen!r}]: columns are numbers below {self.shape[1]:,}, a slice, a mask of {self.shape[1]:,}, "
                "or names of X.columns"
            ) from error

    def _named(self, name: object) -> list[int]:
        columns = self.columns
        found = [place for place, each in enumerate(columns) if each == name or each.partition("=")[0] == name]
        if not found:
            raise LearnError(f"X[:, {name!r}]: X has no such column{did_you_mean(str(name), columns)}")
        return found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """Elementwise functions of `functions.py`, products and sums; others are a LearnError."""
        _check_settings(ufunc.__name__, settings)
        if method == "reduce" and ufunc in _REDUCED and inputs[0] is self:
            return getattr(self, _REDUCED[ufunc])(settings.get("axis", 0), settings.get("keepdims", False))
        if method != "__call__":
            raise LearnError(
                f"np.{ufunc.__name__}.{method} needs the joined rows one after the other, which are not built"
            )
        if ufunc is np.matmul:
            left, right = inputs
            return self.__matmul__(right) if left is self else self.__rmatmul__(left)
        if ufunc in _WITHIN_TWO:
            return _WITHIN_TWO[ufunc](*inputs)
        name = ufunc.__name__
        if name in OF_ONE:
            return self._apply(name, self)
        if name in OF_TWO:
            return self._apply(name, *inputs)
        raise LearnError(
            f"np.{name} of X is not in the list of functions that parties evaluate: {', '.join((*OF_ONE, *OF_TWO))}"
        )

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        """NumPy's own functions, where the array has a method for them."""
        if function not in _FUNCTIONS:
            raise LearnError(
                f"np.{function.__name__} needs the array itself, which is not built; X has "
                f"{', '.join(sorted(each.__name__ for each in _FUNCTIONS))}, products and elementwise functions"
            )
        return _FUNCTIONS[function](*args, **settings)

    def __array__(self, *args: Any, **settings: Any) -> NoReturn:
        """It is not built."""
        _refuse("the array itself", "X @ np.eye(X.shape[1])")

    def __add__(self, other: Any) -> Any:
        return LinearOperator.__add__(self, other) if _is_foreign(other) else super().__add__(other)

    def __sub__(self, other: Any) -> Any:
        return LinearOperator.__sub__(self, other) if _is_foreign(other) else super().__sub__(other)

    def __matmul__(self, other: Any) -> Any:
        if self.source.keeper is None or np.isscalar(other) or isinstance(other, LinearOperator):
            return ProductOperator.__matmul__(self, other)
        return self.kept_times(other)

    def __rmatmul__(self, other: Any) -> Any:
        return ProductOperator.__rmatmul__(self, other)

    def clip(self, least: Any = None, most: Any = None) -> Any:
        """Numbers below ``least`` become that, those above ``most`` that."""
        found: Any = self if least is None else np.maximum(self, least)
        return found if most is None else np.minimum(found, most)

    def _apply(self, name: str, *inputs: Any) -> Any:
        """An elementwise function of this array and perhaps another, a number or a row of numbers."""
        operands = [_operand(each, self, name) for each in inputs]
        if any(isinstance(each, RowWeights) for each in operands):
            return self._row_scaled(name, operands)
        one, two = operands[0], operands[-1]
        simple = _affine(name, one, two) if len(operands) == 2 else _affine(name, one, -1.0 * np.ones(self.shape[1]))
        recipe = self.recipe if simple is None else simple
        if simple is None:
            recipe = _composed(name, operands, self)
        if not np.isfinite([recipe.scale, recipe.shift]).all():
            bad = np.flatnonzero(~np.isfinite(recipe.scale) | ~np.isfinite(recipe.shift))
            raise LearnError(
                f"np.{name} of X is not finite in column {self.columns[bad[0]]!r}, which may be 0; choose columns "
                "before, as in X[:, X.numbers]"
            )
        return LazyArray(self.source, recipe, self.shape[0])

    def _row_scaled(self, name: str, operands: Sequence[Any]) -> RowScaled:
        weights = next(each for each in operands if isinstance(each, RowWeights))
        if name == "multiply":
            return RowScaled(self, weights.values)
        if name == "divide" and operands[1] is weights and weights.values.all():
            return RowScaled(self, 1 / weights.values)
        _refuse(f"np.{name} of X and a number per joined row", "w[:, None] * X, or a column in SELECT")

    def explain(self, vectors: int = 1) -> Explanation:
        """Where each step on this array runs, its trips and bytes, and what steps have cost so far."""
        products, _ = self._basis
        keeper = self.source.keeper
        kept = keeper.steps(products, vectors) if keeper is not None and products.tables else []
        return explain_array(self.source.places, products, vectors, kept)


@dataclass(frozen=True)
class RowWeights:
    """A number per joined row, (N,)."""

    values: Array


Operand = LazyArray | Array | RowWeights


def _operand(given: Any, like: LazyArray, name: str) -> Operand:
    """What an elementwise function takes: an array of the same columns, a row of numbers, or a number per row."""
    if isinstance(given, LazyArray):
        if given.source is not like.source or not np.array_equal(given.recipe.places, like.recipe.places):
            _refuse(f"np.{name} of two arrays that are not made of the same columns", "their product in SELECT")
        return given
    if isinstance(given, (LinearOperator, str)):
        raise LearnError(f"np.{name} of X takes numbers, not {type(given).__name__}")
    values = np.asarray(given)
    if values.dtype.kind not in "biuf":
        raise LearnError(f"np.{name} of X takes real numbers")
    values = values.astype(np.float64)
    rows, width = like.shape
    if not np.all(np.abs(values) <= LARGEST):
        raise LearnError(f"np.{name} of X takes finite numbers up to {LARGEST:g}")
    if values.shape == (rows, 1) and rows != 1:
        return RowWeights(values[:, 0])
    if values.shape in ((), (1,), (1, 1), (width,), (1, width)):
        return np.broadcast_to(values.reshape(-1) if values.size == 1 else values.reshape(width), (width,))
    if values.shape == (rows, width):
        _refuse(f"np.{name} of X and an array as long as the joined rows", "w[:, None] * X, or a column in SELECT")
    raise LearnError(
        f"np.{name}: an array of shape {values.shape} does not fit X, {like.shape}: give a number, a row of {width:,} "
        f"or, to multiply, a column ({rows:,}, 1)"
    )


def _affine(name: str, one: Operand, two: Operand) -> Recipe | None:
    """The recipe of a sum, a difference, a product with numbers; None if the function is another."""
    if isinstance(one, LazyArray) and isinstance(two, LazyArray):
        left, right = one.recipe, two.recipe
        same = left.function is right.function or left.function == right.function
        if name not in ("add", "subtract") or not same:
            return None
        sign = 1.0 if name == "add" else -1.0
        return left.with_line(left.scale + sign * right.scale, left.shift + sign * right.shift)
    array, numbers = (one, two) if isinstance(one, LazyArray) else (two, one)
    assert isinstance(array, LazyArray)
    assert isinstance(numbers, np.ndarray)
    recipe = array.recipe
    if name == "negative":
        return recipe.with_line(-recipe.scale, -recipe.shift)
    if name == "add":
        return recipe.with_line(recipe.scale, recipe.shift + numbers)
    if name == "subtract":
        sign = 1.0 if array is one else -1.0
        return recipe.with_line(sign * recipe.scale, sign * (recipe.shift - numbers))
    if name == "multiply":
        return recipe.with_line(recipe.scale * numbers, recipe.shift * numbers)
    if name == "divide" and array is one:
        with np.errstate(divide="ignore", invalid="ignore"):
            return recipe.with_line(recipe.scale / numbers, recipe.shift / numbers)
    return None


def _composed(name: str, operands: Sequence[Operand], like: LazyArray) -> Recipe:
    """The recipe of another function: steps for numbers, a line through f(0) and f(1) for categories."""
    steps: list[Any] = []
    constants: list[Array] = []
    used = []
    for operand in operands:
        if isinstance(operand, LazyArray):
            used.append(_steps_of(operand.recipe, like.numbers, steps, constants))
        else:
            assert isinstance(operand, np.ndarray)
            constants.append(operand)
            used.append(-len(constants))
    steps.append((name, used[0], used[-1]))
    if len(steps) > MOST_STEPS or len(constants) > MOST_STEPS:
        raise LearnError(
            f"a function of X has at most {MOST_STEPS} steps and as many constants; put some of it in SELECT"
        )
    width, numbers = like.shape[1], like.numbers
    function = Function(tuple(steps), np.array(constants).reshape(len(constants), width))
    ends = [each.recipe.line_ends() if isinstance(each, LazyArray) else each for each in operands]
    with np.errstate(all="ignore"):
        found = OF_ONE[name](*ends) if name in OF_ONE else OF_TWO[name](*ends)
        found = np.broadcast_to(np.asarray(found, np.float64), (2, width))
        scale = np.where(numbers, 1.0, found[1] - found[0])
    shift = np.where(numbers, 0.0, found[0])
    return Recipe(like.recipe.places, function, scale, shift)


def _steps_of(recipe: Recipe, numbers: NDArray[np.bool_], steps: list[Any], constants: list[Array]) -> int:
    """Append what computes a recipe from the column, if that is a number; the place of its value."""
    place = 0
    if recipe.function is not None:
        first, known = len(steps), len(constants)
        constants.extend(recipe.function.constants)
        for name, *used in recipe.function.steps:
            moved = [each + first if each > 0 else each - known if each < 0 else 0 for each in used]
            steps.append((name, *moved))
        place = len(steps)
    for name, line, neutral in (("multiply", recipe.scale, 1.0), ("add", recipe.shift, 0.0)):
        if (line != neutral)[numbers].any():
            constants.append(line)
            steps.append((name, place, -len(constants)))
            place = len(steps)
    return place


def _is_foreign(value: object) -> bool:
    return isinstance(value, LinearOperator) and not isinstance(value, LazyArray)


def _is_empty(chosen: Any) -> bool:
    return isinstance(chosen, (list, tuple)) and not chosen


def _axis(axis: int | None) -> int | None:
    if axis is None:
        return None
    if axis not in (0, 1, -1, -2):
        raise LearnError(f"X has two axes: axis is 0, 1 or None, not {axis!r}")
    return axis % 2


def _kept(found: Array, axis: int, keepdims: bool) -> Array:
    return np.expand_dims(found, axis) if keepdims else found


def _all(found: Any, keepdims: bool) -> Any:
    return np.full((1, 1), found) if keepdims else float(found)


def _check_settings(name: str, settings: dict[str, Any]) -> None:
    strange = {
        key for key, value in settings.items() if key not in ("axis", "keepdims") and not _is_default(key, value)
    }
    if strange:
        raise LearnError(f"np.{name} of X takes no {', '.join(sorted(strange))}")


def _is_default(key: str, value: Any) -> bool:
    known = KEYWORDS.get(key, np._NoValue)
    return value is known or value is np._NoValue or (key == "where" and value is True)


def _refuse(what: str, instead: str) -> NoReturn:
    raise LearnError(
        f"{what} would need something as long as the joined rows at a party, or all cells here; write {instead}"
    )


def _norm(values: Any, ord: Any = None, axis: int | None = None, keepdims: bool = False) -> Any:
    if ord not in (None, 2, "fro") or (ord == 2 and axis is None):
        raise LearnError(f"np.linalg.norm of X has ord=None, or 2 with an axis, not {ord!r}")
    return values.norm(axis, keepdims)


def _where(condition: Any, one: Any, two: Any) -> Any:
    return condition * one + (1 - condition) * two


def _method(name: str) -> Callable[..., Any]:
    def call(values: Any, *args: Any, **settings: Any) -> Any:
        kept = {key: value for key, value in settings.items() if value is not None and value is not np._NoValue}
        return getattr(values, name)(*args, **kept)

    return call


_REDUCED = {np.add: "sum", np.minimum: "min", np.maximum: "max"}
_WITHIN_TWO: dict[Any, Callable[..., Any]] = {
    np.positive: lambda values: values,
    np.float_power: lambda one, two: one**two,
    np.fmin: np.minimum,
    np.fmax: np.maximum,
    np.fabs: np.absolute,
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _method("sum"),
    np.mean: _method("mean"),
    np.var: _method("var"),
    np.std: _method("std"),
    np.min: _method("min"),
    np.max: _method("max"),
    np.clip: lambda values, a_min=None, a_max=None, **_: values.clip(a_min, a_max),
    np.dot: lambda one, two: one @ two,
    np.where: _where,
    np.transpose: lambda values: values.T,
    np.shape: lambda values: values.shape,
    np.ndim: lambda values: values.ndim,
    np.size: lambda values: values.shape[0] * values.shape[1],
    np.iscomplexobj: lambda values: False,
    np.result_type: lambda *given: np.result_type(
        *(each.dtype if isinstance(each, LazyArray) else each for each in given)
    ),
    np.linalg.norm: _norm,
    np.count_nonzero: lambda values, axis=None, keepdims=False: (values != 0).sum(axis, keepdims),
}
