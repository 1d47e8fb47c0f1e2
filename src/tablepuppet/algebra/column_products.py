"""Products, sums and Gram matrices of columns that are computed from those of the joined matrix X.

Column j is scale_j * f_j(X[:, places_j]) + shift_j (`recipes.py`). Tables are asked about f(X), or X itself less the
centres of its columns; scale and shift, with the centres, are applied here. So what is multiplied and sent is about
zero, however far from zero columns are. `array.py` is the interface for NumPy.

The Gram matrix of X = [S_1 T_1, ..., S_M T_M], which is never built, comes from the products of products.py:

    X^T X  = [T_i^T (S_i^T S_j) T_j]_ij       S_i^T S_j counts how often two base rows are joined with each other
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.costs import PricedStep, Run, gram_order
from tablepuppet.algebra.kept import KeptArray
from tablepuppet.algebra.nearest import Nearest
from tablepuppet.algebra.operator import ProductOperator
from tablepuppet.algebra.products import ByTable, Result, TableProducts, checked, checked_shape, wide
from tablepuppet.algebra.recipes import Preparation, Recipe
from tablepuppet.algebra.source import Derived, MatrixSource
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.prep.encode.encoded_table import EncodedTable


def gram(products: TableProducts, weights: Array | None = None) -> Array:
    """X^T X, or X^T diag(weights) X, (d, d); one trip for one table, else two.

    A table computes its own block. Of two tables the one with fewer columns sends its encoded cells and the other
    multiplies: that moves least. So all tables but the widest send as many products as they have columns. A table that
    sends sums only is the one that multiplies; PrivacyError if there are two. Cells and weights travel exactly, in the
    bytes of float32 where that is exact, as it is for categories: an inverse would show what is lost.
    """
    found = np.zeros((products.shape[1], products.shape[1]))
    if not products.tables:
        return found
    order = gram_order(products)
    run = products.placement.begin(PricedStep.gram(products, weights is not None))
    within = _ask_blocks(products, weights, run)
    sent = _ask_cells(products, order[:-1], run)
    for alias, own in within().items():
        found[products.blocks[alias], products.blocks[alias]] = own * products.shape[0]
    cells = sent()
    asked = []
    for is_number in (True, False):
        met, places = {}, {}
        for place, alias in enumerate(order[1:], 1):
            parts = [(other, cells[is_number][other]) for other in order[:place] if other in cells[is_number]]
            if parts:
                moved = [products.rows.carried(other, alias, each, weights) for other, each in parts]
                met[alias] = np.concatenate(moved, axis=1)
                places[alias] = np.concatenate([_places(products, other, is_number) for other, _ in parts])
        if met:
            asked.append((places, products.ask_sums_by_table(met, run, exact=True)))
    for places, replies in asked:
        for alias, sums in replies().items():
            found[products.blocks[alias], places[alias]] = sums
            found[places[alias], products.blocks[alias]] = sums.T
    return found


def _ask_cells(
    products: TableProducts, aliases: Sequence[str], run: Run
) -> Callable[[], dict[bool, dict[str, Any]]]:  # fmt: skip
    """Ask for the cells of tables, exactly: numbers (True) and categories (False) apart, which are 0 and 1."""
    asked = {}
    for is_number in (True, False):
        wanted = {alias: _places(products, alias, is_number) - products.blocks[alias].start for alias in aliases}
        units = {a: np.eye(products.width(a))[:, places] for a, places in wanted.items() if len(places)}
        asked[is_number] = products.ask_outputs(units, run, exact=True) if units else dict
    return lambda: {is_number: replies() for is_number, replies in asked.items()}


def _ask_blocks(products: TableProducts, weights: Array | None, run: Run) -> ByTable:
    """Ask for T_i^T diag(S_i^T w) T_i / N of all tables."""
    op, bound, count = "matrix.gram", 1.0, products.shape[0]
    rows = dict[str, Array]()
    if weights is not None:
        op, bound = "matrix.weighted_gram", float(np.abs(weights).max(initial=0.0))
        rows = {alias: products.rows.sums(alias, weights) for alias in products.tables}

    def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
        chosen = {"rows": products.cut(alias, rows[alias], shard, exact=True)} if rows else {}
        return {"joined_rows": count, **chosen}

    def compute(alias: str, data: EncodedTable) -> Array:
        return data.gram(rows[alias] if rows else products.rows.tables[alias].counts.astype(np.float64)) / count

    return products.ask_tables(
        run, op, "gram", products.tables, arguments, compute, lambda alias: {"gram": bound * products.square(alias)}
    )


def _places(products: TableProducts, alias: str, is_number: bool) -> NDArray[np.intp]:
    """The columns of a table in X that are numbers, or that are not."""
    block = products.blocks[alias]
    middle = block.start + products.numbers(alias)
    return np.arange(block.start, middle) if is_number else np.arange(middle, block.stop)


WIDEST, PART = 2000, 8  # columns of a Gram matrix of which a block is taken, and how many times those of the block
BLOCK = 32  # columns that are multiplied at a time
FAR = 1e4  # square of a mean over the variance: beyond, the difference of their sums has lost too many digits


class ColumnProducts(ProductOperator):
    """Columns that a recipe computes from X, and what tables are asked for them; without a recipe, X itself."""

    def __init__(self, source: MatrixSource, recipe: Recipe | None = None):
        self.source, self.recipe = source, recipe or Recipe.plain(len(source.columns))
        super().__init__((source.products.shape[0], len(self.recipe.places)))

    @property
    def columns(self) -> list[str]:
        """The names of its columns: those of X that they are made of."""
        return [self.source.columns[place] for place in self.recipe.places]

    @property
    def preparation(self) -> Preparation:
        """How its columns are made, for other relations."""
        return Preparation(self.source.encoding, self.source.engine, self.recipe)

    @property
    def wire(self) -> str:
        """Precision of row arrays on the wire."""
        return self.source.wire

    @property
    def numbers(self) -> NDArray[np.bool_]:
        """Which of its columns are numbers, not categories: ``X[:, X.numbers]``."""
        return self.source.is_number[self.recipe.places]

    @property
    def category_groups(self) -> list[tuple[int, int]]:
        """Start and end of each category group that is unchanged from X: complete, and with values 0 and 1."""
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

    @cached_property
    def basis(self) -> tuple[TableProducts, NDArray[np.intp]]:
        """(products with columns that parties have, the column of these that each column is computed from)."""
        recipe, source = self.recipe, self.source
        if recipe.function is None:
            return source.products.of_columns(recipe.places), recipe.places
        parts, pick = source.derived_tables(recipe.places, recipe.function)
        if not any(part.places for part in parts.values()):
            return source.products.of_columns(recipe.places), recipe.places
        if source.is_secure:
            raise PrivacyError(
                "secure sums need a bound of what is added up, which a function of columns has not: transform columns "
                "in SELECT, or call rel.matrix() without secure_sum"
            )
        return Derived(source.placement, source.encoding.id, parts), pick

    @cached_property
    def shift(self) -> Array:
        """What is added to scale * (columns of the basis), (d,): shifts, and centres that parties have subtracted."""
        products, pick = self.basis
        return np.asarray(self.recipe.shift + self.recipe.scale * products.centres[pick])

    def kept_times(self, directions: ArrayLike, sums: int | None = None) -> KeptArray | Array:
        """A V, which stays at the parties where that is the plan; else as `times`. For ``sums`` see `Keeper.keeps`."""
        keeper, wanted = self.source.keeper, checked("V of X @ V", directions, self.shape[1], "columns")
        products, _ = self.basis
        if keeper is None or not products.tables or not wanted.size or not keeper.keeps(wanted[:1].size, sums):
            return self.times(wanted)
        slot = keeper.times(products, self.directions(wide(wanted)))
        found, shift = KeptArray(keeper, slot, (self.shape[0], *wanted.shape[1:])), self.shift @ wanted
        return found + shift if shift.any() else found

    def times(self, directions: ArrayLike) -> Array:
        """A V: (d,) to (N,), (d, k) to (N, k); one trip."""
        return self.ask_times(directions).read()

    def transposed_times(self, values: ArrayLike | KeptArray) -> Array:
        """A^T U: (N,) to (d,), (N, k) to (d, k); one trip. U may be at the parties (`kept_times`)."""
        return self.ask_transposed_times(values).read()

    def ask_times(self, directions: ArrayLike, exact: bool = False) -> Result:
        """Ask for A V; a table is sent the columns of V that are not zero for it.

        What tables answer is rounded to the wire's precision, unless it has to be ``exact``.
        """
        wanted = checked("V of X @ V", directions, self.shape[1], "columns")
        asked = self.basis[0].ask_times(self.directions(wide(wanted)), exact)
        shift = self.shift @ wide(wanted)  # (k,)

        def finish() -> Array:
            found = asked.read()  # (N, k)
            if shift.any():
                found += shift
            return found

        return Result(finish, is_flat=wanted.ndim == 1)

    def ask_nearest(self, centres: Array) -> Nearest:
        """Ask for the nearest of some centres, (k, d), of every joined row: where x c - |c|^2 / 2 is largest.

        x and c are less what is added to all rows, which no distance depends on.
        """
        moved = centres - self.shift
        return self.basis[0].ask_nearest(self.directions(moved.T), -(moved**2).sum(axis=1) / 2)

    def directions(self, columns: Array) -> Array:
        """The V, (columns of the basis, k), of which S V + self.shift @ columns is A @ columns, if S is the basis."""
        if self._is_plain:
            return columns
        products, pick = self.basis
        found = np.zeros((products.shape[1], columns.shape[1]))
        np.add.at(found, pick, self.recipe.scale[:, None] * columns)  # a column may be there twice
        return found

    @cached_property
    def _is_plain(self) -> bool:
        """Whether it is X as it is."""
        recipe = self.recipe
        return bool(
            recipe.function is None
            and np.array_equal(recipe.places, np.arange(self.source.products.shape[1]))
            and (recipe.scale == 1).all()
            and not self.shift.any()
        )

    def ask_transposed_times(self, values: ArrayLike | KeptArray, exact: bool = False) -> Result:
        """Ask for A^T U; U must not change before the result is read. For ``exact`` see `ask_times`."""
        products, has_shift = self.basis[0], self.shift.any()
        if isinstance(values, KeptArray) and values.keeper is self.source.keeper and products.tables:
            asked = values.keeper.ask_transposed_times(products, values.slot, values.columns)
            kept = values.ask_sums() if has_shift else None
            is_flat = values.ndim == 1
            return Result(lambda: self.affine(asked.read(), kept.read() if kept else np.zeros(1)), is_flat)
        wanted = checked_shape("U of X.T @ U", values, self.shape[0], "joined rows")
        found = products.ask_transposed_times(wide(wanted), exact)
        sums = wide(wanted).sum(axis=0) if has_shift else np.zeros(1)
        return Result(lambda: self.affine(found.read(), sums), is_flat=wanted.ndim == 1)

    def affine(self, found: Array, sums: Array) -> Array:
        """scale * (products of basis columns) + shift * (sums of what they were multiplied with), (d, k)."""
        if self._is_plain:
            return found
        return np.asarray(self.recipe.scale[:, None] * found[self.basis[1]] + self.shift[:, None] * sums)

    def ask_sums_by(self, labels: NDArray[np.integer], groups: int) -> Result:
        """Ask for the sums of columns over the joined rows of each group, (d, groups): A^T U for the 0/1 matrix U of
        ``labels``, (N,), numbers of groups. U is not built.
        """
        asked, sizes = self.basis[0].ask_sums_by(labels, groups), np.bincount(labels, minlength=groups)
        return Result(lambda: self.affine(asked.read(), sizes.astype(np.float64)))

    def ask_column_sums(self) -> Result:
        """Ask for the sums of columns."""
        asked, rows = self.basis[0].ask_column_sums(), np.full(1, float(self.shape[0]))
        return Result(lambda: self.affine(asked.read()[:, None], rows), is_flat=True)

    def ask_column_squares(self) -> Result:
        """Ask for the sums of the squares of columns."""
        if not self.shift.any():
            squares, (_, pick) = self.basis[0].ask_column_squares(), self.basis
            return Result(lambda: np.asarray(self.recipe.scale**2 * squares.read()[pick]))
        asked, rows = self.ask_moments(), self.shape[0]

        def finish() -> Array:
            means, about = asked()
            return np.asarray(about + rows * means**2)

        return Result(finish)

    def ask_moments(self) -> Callable[[], tuple[Array, Array]]:
        """Ask for the means of columns, and the sums of their squares about them, (d,) each.

        One trip; one more for columns of numbers whose mean is beyond 100 standard deviations from what parties
        subtract: that they are squared before it is subtracted would leave their rounding only.
        """
        products, pick = self.basis
        asked, rows = (products.ask_column_sums(), products.ask_column_squares()), self.shape[0]

        def read() -> tuple[Array, Array]:
            sums, squares = (each.read() for each in asked)
            means = sums / rows
            about = np.where(products.is_number, squares - rows * means**2, sums * (1 - means))  # of 0 and 1: exact
            far = products.is_number & (rows * means**2 > FAR * about)
            far &= np.isin(np.arange(len(far)), pick)
            if far.any():
                about = np.where(far, products.ask_column_squares(np.where(far, means, 0.0)).read(), about)
            scale = self.recipe.scale
            return scale * means[pick] + self.shift, scale**2 * np.maximum(about, 0.0)[pick]

        return read

    def column_sums(self) -> Array:
        """The sum of every column over the joined rows, (d,); one trip."""
        return self.ask_column_sums().read()

    def gram(self, weights: ArrayLike | None = None) -> Array:
        """A^T A, or A^T diag(weights) A, (d, d); one trip for one table, else two."""
        given = None if weights is None else checked("weights", weights, self.shape[0], "joined rows")
        if given is not None and given.ndim != 1:
            raise LearnError(f"weights are one number per joined row, not of shape {given.shape}")
        products, pick = self.basis
        scale, shift, sums = self.recipe.scale, self.shift, None
        if shift.any():
            sums = products.ask_column_sums() if given is None else products.ask_transposed_times(given[:, None])
        plain = gram(products, given)
        if self._is_plain:
            return plain
        found = plain[np.ix_(pick, pick)] * np.outer(scale, scale)
        if sums is not None:
            crossed = np.outer(scale * np.ravel(sums.read())[pick], shift)
            total = self.shape[0] if given is None else float(given.sum())
            found = found + crossed + crossed.T + total * np.outer(shift, shift)
        return np.asarray(found)

    def gram_with(self, other: ColumnProducts, weights: Array | None = None) -> Array:
        """A^T diag(weights) B for another array over the same rows."""
        if other.source is not self.source:
            raise LearnError("a product of two matrices needs both to be of one rel.matrix()")
        if other.recipe == self.recipe:
            return self.gram(weights)
        narrow, wide = sorted((self, other), key=lambda each: each.shape[1])
        if self.source.is_secure or self._is_block(narrow, wide):
            width = self.shape[1]  # a block of the Gram matrix of all columns: the other way takes cells
            return self._beside(other).gram(weights)[:width, width:]
        parts = []
        for start in range(0, narrow.shape[1], BLOCK):
            cells = narrow.times(np.eye(narrow.shape[1])[:, start : start + BLOCK])  # (N, block)
            parts.append(wide.transposed_times(cells if weights is None else weights[:, None] * cells))
        found = np.concatenate(parts, axis=1) if parts else np.zeros((wide.shape[1], 0))
        return found.T if narrow is self else found

    def _is_block(self, narrow: ColumnProducts, wide: ColumnProducts) -> bool:
        """Whether a product of two choices of columns is a good part of a Gram matrix that takes no cells."""
        if narrow.recipe.function is not None or wide.recipe.function is not None:
            return False
        products = self.source.products.of_columns(np.concatenate([narrow.recipe.places, wide.recipe.places]))
        widths = [products.width(alias) for alias in products.tables]
        return len(widths) == 1 and widths[0] <= min(WIDEST, PART * narrow.shape[1])

    def _beside(self, other: ColumnProducts) -> ColumnProducts:
        """The columns of both, which are no functions of numbers."""
        recipes = self.recipe, other.recipe
        for each in (self, other):
            _ = each.basis  # PrivacyError if they are
        joined = (np.concatenate([getattr(each, name) for each in recipes]) for name in ("places", "scale", "shift"))
        places, scale, shift = joined
        return ColumnProducts(self.source, Recipe(places, None, scale, shift))
