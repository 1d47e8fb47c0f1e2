"""`LazyArray`: columns of the joined matrix, and elementwise functions of them, as arrays for NumPy code.

Column j of an array is

    scale_j * f_j(X[:, places_j]) + shift_j

where f is an elementwise function (`functions.py`), or absent. So X[:, cols], X - mean and X / scale need no trip, and
their products are computed from those of X. A function such as log1p is evaluated by the parties, once per base row. A
category column is 0 or 1, so every function of it is f(0) + (f(1) - f(0)) x: categories stay sparse. Nothing is
computed until a product, a sum or another number is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from tablepuppet.algebra.column_products import FAR, ColumnProducts
from tablepuppet.algebra.functions import OF_ONE, OF_TWO, choose, clip, real_numbers
from tablepuppet.algebra.operator import (
    CELLS,
    INSTEAD,
    NEED_CELLS,
    NoArrayError,
    ProductOperator,
    RowScaled,
    check_settings,
    refuse,
)
from tablepuppet.algebra.ops import Largest
from tablepuppet.algebra.placement import StepCosts, explain_array
from tablepuppet.algebra.recipes import Recipe, Term, affine, composed
from tablepuppet.algebra.source import Derived
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.prep.encode.encode import encoder_names
from tablepuppet.spelling import did_you_mean, hides


@hides(
    "affine", "ask_column_squares", "ask_moments", "ask_nearest", "ask_sums_by", "basis", "category_groups",
    "first_categories", "gram_with", "kept_times", "preparation", "recipe", "shift",
)  # fmt: skip
class LazyArray(NDArrayOperatorsMixin, ColumnProducts):
    """Some columns of X, and an elementwise function of them; an operator for SciPy, an array for NumPy."""

    ndim = 2
    __hash__ = object.__hash__  # == is elementwise

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        return int(self.shape[0] * self.shape[1])

    def __bool__(self) -> bool:
        raise LearnError(
            "whether X is true is ambiguous, as for arrays of NumPy: write np.count_nonzero(X) > 0, or a condition on "
            "X.sum(), X.min() or X.max()"
        )

    def __getattr__(self, name: str) -> Any:
        if name in INSTEAD:
            raise NoArrayError(f"X.{name} {INSTEAD[name]}")
        if name in NEED_CELLS:
            raise NoArrayError(
                f"X.{name} needs the array itself, which is not built: all cells would come here; write {CELLS}, and "
                f".{name} of that"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def categories(self) -> dict[str, list[str | None]]:
        """What the codes of ``X.columns`` mean: names of categories in the order of codes, by ``alias.column``.

        Only of columns that are public at every party.
        """
        return encoder_names(self.source.placement.client, self.source.encoding)

    # ---- sums and statistics

    @property
    def means(self) -> Array:
        """The mean of every column over the joined rows, (d,); one trip. LearnError if there are no rows."""
        return np.asarray(self.mean(axis=0))

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Sums of columns (axis 0), of rows (axis 1) or of everything; one trip."""
        found = self.times(np.ones(self.shape[1])) if _axis(axis) == 1 else self.column_sums()
        return _reduced(found, axis, keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Means of columns (axis 0), of rows (axis 1) or of everything; one trip. LearnError if there are none."""
        count = self._count(axis)
        return self.sum(axis, keepdims) / count

    def _count(self, axis: int | None) -> int:
        count = self.size if axis is None else self.shape[_axis(axis) or 0]
        if not count:
            raise LearnError(f"a relation without joined rows has no means, nor has one without columns: {self.shape}")
        return int(count)

    def var(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """Variances of columns (axis 0), of rows (axis 1) or of everything; one trip. ``ddof`` as in NumPy.

        Another trip is made for a function of columns whose mean is far beyond its spread, and for rows of functions.
        """
        count = self._count(axis)
        if _axis(axis) == 1:
            middle = float(self.shift.mean()) if self.recipe.function is None else self.mean()
            moved = self - middle  # before it is squared: numbers far from zero would leave their rounding only
            sums, squares = moved.sum(axis=1), np.square(moved).sum(axis=1)
            found = np.maximum(squares - count * (sums / count) ** 2, 0.0)
        else:
            means, found = self.ask_moments()()
            if axis is None:
                found = float(found.sum() + self.shape[0] * np.sum((means - means.mean()) ** 2))
        return _reduced(found / (count - ddof), axis, keepdims)

    def std(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """Standard deviations, as `var`."""
        return np.sqrt(self.var(axis, ddof, keepdims))

    def min(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The least number of columns (axis 0), of rows (axis 1) or of everything; one trip.

        Of columns, and of everything, only where columns are public.
        """
        return -(-self).max(axis, keepdims)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The largest number, as `min`."""
        self._count(axis)
        found = self._row_largest().values if _axis(axis) == 1 else self._ends().max(axis=0)
        return _reduced(found, axis, keepdims, np.max)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The column of the least number of every row, the first if several have it; axis 1 only, one trip."""
        return (-self).argmax(axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The column of the largest number, as `argmin`."""
        if _axis(axis) != 1:
            raise LearnError(
                "argmin and argmax of X are those of rows, axis=1: along the other axis they are numbers of joined "
                "rows, which no party has. Of one column write np.argmin(X[:, column])"
            )
        self._count(1)
        return _reduced(self._row_largest(with_places=True).places, 1, keepdims)

    def _row_largest(self, with_places: bool = False) -> Largest:
        products, pick = self.basis
        top = round(float(self.shift.max()))  # about the largest number, added here: what travels is small
        found = products.uncentred().row_largest(pick, self.recipe.scale, self.recipe.shift - top, with_places)
        found.values += top
        return found

    def _ends(self) -> Array:
        """The function of the least and the largest number of each column, (2, d)."""
        recipe = self.recipe
        lows, highs = self.source.extremes(recipe.places)
        ends = np.stack([lows, highs])
        is_function = self.numbers & (recipe.function is not None)
        if recipe.function is not None and is_function.any():
            if (slopes := recipe.function.slopes()) is None or not np.all(np.abs(slopes[is_function]) <= 1):
                refuse("min and max of a function that rises and falls", "the function in SELECT")
            ends = np.where(is_function, recipe.function(ends), ends)
        return np.asarray(ends * recipe.scale + recipe.shift)

    def norm(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Euclidean norms of columns (axis 0), of rows (axis 1), or the Frobenius norm; one trip."""
        found = np.square(self).sum(axis=1) if _axis(axis) == 1 else self.ask_column_squares().read()
        norms = np.sqrt(np.maximum(_reduced(found, axis, keepdims), 0.0))
        return norms if isinstance(norms, np.ndarray) else float(norms)

    def centred(self) -> tuple[LazyArray, Array]:
        """(the columns less an offset each, the offsets): numbers have a mean of about 0. One trip for functions, else
        none.
        """
        recipe, offsets, _ = self._about_zero()
        return self._on_line(recipe, np.ones(self.shape[1]), offsets), offsets

    def standardised(self) -> tuple[LazyArray, Array, Array]:
        """(the columns as (column - offset) / scale, offsets, scales): numbers with a mean of about 0 and a standard
        deviation of about 1, categories as 0 and 1. So programs compute with numbers of one size. Trips as `centred`.
        """
        recipe, offsets, spreads = self._about_zero()
        is_number = self.basis[0].is_number[self.basis[1]]
        scales = np.where(is_number, np.abs(recipe.scale) * spreads, recipe.scale)
        scales = np.where(scales == 0, 1.0, scales)
        return self._on_line(recipe, scales, offsets), offsets, scales

    def _about_zero(self) -> tuple[Recipe, Array, Array]:
        """(how columns are computed, their offsets, the standard deviations of what they are scaled from).

        Encoders know means and deviations. Those of a function are asked for, and parties subtract a mean that is far
        beyond the deviation before they multiply.
        """
        recipe, (products, pick) = self.recipe, self.basis
        if not isinstance(products, Derived) or not self.size:
            return recipe, self.shift, products.spreads[pick]
        means, about = self.ask_moments()()
        factors = np.where(recipe.scale == 0, 1.0, recipe.scale)
        spreads, inner = np.sqrt(about / self.shape[0]) / np.abs(factors), (means - recipe.shift) / factors
        varies = products.is_number[pick] & (spreads > 0)
        if np.any(varies & (inner**2 > FAR * spreads**2)):
            recipe = recipe.less(np.where(varies, inner, 0.0))
        return recipe, np.where(varies, means, self.shift), np.where(varies, spreads, 1.0)

    def _on_line(self, recipe: Recipe, scales: Array, offsets: Array) -> LazyArray:
        """(column - offset) / scale."""
        if recipe is self.recipe and not offsets.any() and (scales == 1).all():
            return self
        scale, (products, pick) = recipe.scale / scales, self.basis
        is_known = recipe.function is None or not isinstance(products, Derived)
        shift = -scale * products.centres[pick] if is_known else (recipe.shift - offsets) / scales
        return LazyArray(self.source, recipe.with_line(scale, shift))

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
        return LazyArray(self.source, self.recipe.only(places))

    def _places(self, chosen: Any) -> NDArray[np.intp]:
        if isinstance(chosen, str) or (
            isinstance(chosen, (list, tuple)) and any(isinstance(each, str) for each in chosen)
        ):
            names = [chosen] if isinstance(chosen, str) else list(chosen)
            found = [place for name in names for place in self._named(name)]
            return np.array(found[0] if isinstance(chosen, str) and len(found) == 1 else found, np.intp)
        try:
            is_empty = isinstance(chosen, (list, tuple)) and not chosen
            return np.asarray(np.arange(self.shape[1])[np.asarray(chosen, np.intp) if is_empty else chosen])
        except (IndexError, TypeError, ValueError) as error:
            raise LearnError(
                f"X[:, {chosen!r}]: columns are numbers below {self.shape[1]:,}, a slice, a mask of {self.shape[1]:,}, "
                "or names of X.columns"
            ) from error

    def _named(self, name: object) -> list[int]:
        columns = self.columns
        whole = [each.partition("=")[0] for each in columns]  # a category column is called alias.column=code
        found = [place for place, each in enumerate(columns) if name in (each, whole[place])]
        meant = list(dict.fromkeys(each for each in whole if each.partition(".")[2] == name))
        if not found and len(meant) == 1:
            found = [place for place, each in enumerate(whole) if each == meant[0]]
        if not found and meant:
            raise LearnError(f"X[:, {name!r}] may be {' or '.join(meant)}: give the table too")
        if not found:
            stem, is_code, _ = str(name).partition("=")
            alike = [each for each, of in zip(columns, whole, strict=True) if stem in (of, of.partition(".")[2])]
            if is_code and alike and "=" in alike[0]:
                raise LearnError(
                    f"X[:, {name!r}]: columns of categories have codes, as {alike[0]!r}: X.categories says which"
                )
            raise LearnError(f"X[:, {name!r}]: X has no such column{did_you_mean(str(name), dict.fromkeys(whole))}")
        return found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """Elementwise functions of `functions.py`, products and sums; others are a LearnError."""
        check_settings(ufunc.__name__, settings)
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
            return self.elementwise(name, self)
        if name in OF_TWO:
            return self.elementwise(name, *inputs)
        raise LearnError(
            f"np.{name} of X is not in the list of functions that parties evaluate: {', '.join((*OF_ONE, *OF_TWO))}"
        )

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        """NumPy's own functions, where the array has a method for them."""
        if function not in _FUNCTIONS:
            name = function.__name__
            known = ", ".join(sorted(each.__name__ for each in _FUNCTIONS if each not in _ASKED_BY_NUMPY))
            otherwise = f"needs the array itself, which is not built; X has {known}, products and elementwise functions"
            place = "np.linalg" if function.__module__.endswith("linalg") else "np"
            raise LearnError(f"{place}.{name} of X {INSTEAD.get(name, otherwise)}")
        return _FUNCTIONS[function](*args, **settings)

    def __array__(self, *args: Any, **settings: Any) -> NoReturn:
        """It is not built."""
        refuse("the array itself", CELLS)

    def __add__(self, other: Any) -> Any:
        return LinearOperator.__add__(self, other) if _is_foreign(other) else super().__add__(other)

    def __sub__(self, other: Any) -> Any:
        return LinearOperator.__sub__(self, other) if _is_foreign(other) else super().__sub__(other)

    def __matmul__(self, other: Any) -> Any:
        _check_factor(self, other)
        if self.source.keeper is None or isinstance(other, LinearOperator):
            return ProductOperator.__matmul__(self, other)
        return self.kept_times(other)

    def __rmatmul__(self, other: Any) -> Any:
        return ProductOperator.__rmatmul__(self, other)

    def clip(self, least: Any = None, most: Any = None) -> Any:
        """Numbers below ``least`` become that, those above ``most`` that."""
        return clip(self, least, most)

    def elementwise(self, name: str, *inputs: Any) -> Any:
        """A function of `functions.py` of this array and perhaps another, a number or a row of numbers."""
        terms = [_operand(each, self, name) for each in inputs]
        weights = next((each for each in terms if isinstance(each, np.ndarray) and each.ndim == 2), None)
        if weights is not None:
            return self._row_scaled(name, weights, is_last=terms[-1] is weights)
        second = terms[1] if len(terms) == 2 else -1.0 * np.ones(self.shape[1])
        recipe = affine(name, terms[0], second) or composed(name, terms, self.recipe.places, self.numbers)
        if not np.isfinite([recipe.scale, recipe.shift]).all():
            bad = np.flatnonzero(~np.isfinite(recipe.scale) | ~np.isfinite(recipe.shift))
            raise LearnError(
                f"np.{name} of X is not finite in column {self.columns[bad[0]]!r}, which may be 0; choose columns "
                "before, as in X[:, X.numbers]"
            )
        return LazyArray(self.source, recipe)

    def _row_scaled(self, name: str, weights: Array, is_last: bool) -> RowScaled:
        """A function of this array and a number per joined row, (N, 1)."""
        if name == "multiply":
            return RowScaled(self, weights[:, 0])
        if name == "divide" and is_last and weights.all():
            return RowScaled(self, 1 / weights[:, 0])
        refuse(f"np.{name} of X and a number per joined row", f"it with {CELLS}, or in SELECT")

    def explain(self, vectors: int = 1) -> StepCosts:
        """Where each step on this array runs, its trips and bytes, and what steps have cost so far."""
        if not isinstance(vectors, Integral) or isinstance(vectors, bool) or vectors < 1:
            raise LearnError(f"explain: vectors is a whole number from 1, not {vectors!r}")
        products, _ = self.basis
        keeper = self.source.keeper
        kept = keeper.steps(products, vectors) if keeper is not None and products.tables else []
        return explain_array(self.source.placement, products, vectors, kept)


def _operand(given: Any, like: LazyArray, name: str) -> Term:
    """What a function takes: an array of the same columns, a row of numbers, or a number per joined row, (N, 1)."""
    if isinstance(given, LazyArray):
        if given.source is not like.source or not np.array_equal(given.recipe.places, like.recipe.places):
            refuse(f"np.{name} of two arrays that are not made of the same columns", f"it with {CELLS}, or in SELECT")
        return given.recipe
    if isinstance(given, (LinearOperator, str)):
        raise LearnError(f"np.{name} of X takes numbers, not {type(given).__name__}")
    values, (rows, width) = real_numbers(f"np.{name} of X", given), like.shape
    if values.shape == (rows, 1) and rows != 1:
        return values
    if values.shape in ((), (1,), (1, 1), (width,), (1, width)):
        return np.broadcast_to(values.reshape(-1) if values.size == 1 else values.reshape(width), (width,))
    if values.shape == (rows, width):
        refuse(f"np.{name} of X and an array of its shape", f"it with {CELLS}, or in SELECT")
    raise LearnError(
        f"np.{name}: an array of shape {values.shape} does not fit X, {like.shape}: give a number, a row of {width:,} "
        f"or, to multiply, a column ({rows:,}, 1)"
    )


def _check_factor(matrix: LazyArray, other: Any) -> None:
    """LearnError unless X @ other may be a product: shapes of arrays are checked with it."""
    width = matrix.shape[1]
    if isinstance(other, LinearOperator):
        if other.shape[0] != width:
            raise LearnError(
                f"X @ other: X is {matrix.shape} and other {other.shape}; other has a row for each of the {width:,} "
                "columns of X. X.T @ X is the Gram matrix"
            )
    elif isinstance(other, str) or np.ndim(other) not in (1, 2):
        if np.isscalar(other) and not isinstance(other, str):
            given = f"a number: X * {other!r} scales X"
        else:
            is_array = isinstance(other, (np.ndarray, list, tuple))
            given = f"of {np.ndim(other)} axes" if is_array else type(other).__name__
        raise LearnError(f"X @ other: other is an array ({width},) or ({width}, k), not {given}")


def _is_foreign(value: object) -> bool:
    return isinstance(value, LinearOperator) and not isinstance(value, LazyArray)


def _axis(axis: int | None) -> int | None:
    if axis is None:
        return None
    if axis not in (0, 1, -1, -2):
        raise LearnError(f"X has two axes: axis is 0, 1 or None, not {axis!r}")
    return axis % 2


def _reduced(found: Any, axis: int | None, keepdims: bool, whole: Callable[..., Any] = np.sum) -> Any:
    """Numbers of columns or of rows in NumPy's shape; without an axis, the ``whole`` of those of columns."""
    if axis is None:
        return np.full((1, 1), whole(found)) if keepdims else float(whole(found))
    return np.expand_dims(found, axis) if keepdims else found


def _norm(values: Any, ord: Any = None, axis: int | None = None, keepdims: bool = False) -> Any:
    if ord not in (None, 2, "fro") or (ord == 2 and axis is None):
        raise LearnError(
            f"np.linalg.norm of X with ord={ord!r} is not computed: there are the Euclidean norms of rows and columns "
            "(axis=1, axis=0) and the Frobenius norm (no ord, no axis); the spectral norm is "
            "scipy.sparse.linalg.svds(X, k=1)[1]"
        )
    return values.norm(axis, keepdims)


def _count_nonzero(values: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    found = np.rint((values != 0).sum(axis, keepdims)).astype(np.intp)
    return found if found.ndim else int(found)


def _where(condition: Any, *branches: Any) -> Any:
    if len(branches) != 2:
        refuse("np.where of a condition alone", f"np.nonzero({CELLS}), where X is the condition")
    return choose(condition, *branches)


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
_ASKED_BY_NUMPY = frozenset({np.iscomplexobj, np.result_type})  # within functions that people call
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    getattr(np, name): _method(name) for name in ("sum", "mean", "var", "std", "min", "max", "argmin", "argmax")
} | {
    np.amin: _method("min"),
    np.amax: _method("max"),
    np.clip: lambda values, a_min=None, a_max=None, **_: values.clip(a_min, a_max),
    np.dot: lambda one, two: one @ two,
    np.where: _where,
    np.transpose: lambda values: values.T,
    np.shape: lambda values: values.shape,
    np.ndim: lambda values: values.ndim,
    np.size: lambda values, axis=None: values.size if axis is None else values.shape[axis],
    np.iscomplexobj: lambda values: False,
    np.result_type: lambda *given: np.result_type(
        *(each.dtype if isinstance(each, LazyArray) else each for each in given)
    ),
    np.linalg.norm: _norm,
    np.count_nonzero: _count_nonzero,
}
