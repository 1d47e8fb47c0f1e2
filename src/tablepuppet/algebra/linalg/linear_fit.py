"""A model that is linear in the columns of X, and its use over other relations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.estimates import UNITS, Categories, Estimates, Summary, category_names, facts_view
from tablepuppet.algebra.linalg.saved import LinalgModel
from tablepuppet.algebra.recipes import Preparation, Prepared
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.runs.figures import number
from tablepuppet.runs.table_view import Align, NamedNumbers, TableView


class HasMatrix(Protocol):
    """A relation."""

    def matrix(self, *, like: Prepared) -> LazyArray:
        """Its features as a matrix, prepared as those of another."""


Rows = LazyArray | HasMatrix  # what models predict over


@dataclass(frozen=True, repr=False)
class LinearFit(LinalgModel):
    """X @ coef + intercept, with coefficients by column of X; those of columns that were left out are zero."""

    coef: NamedNumbers
    intercept: Any  # a number, or one per class
    preparation: Preparation

    def scores(self, rows: Rows) -> Array:
        """X @ coef + intercept over a relation, or over its matrix; one trip."""
        found = matrix_of(rows, self).times(np.asarray(self.coef, np.float64).reshape(len(self.coef), -1))
        return np.asarray((found[:, 0] if np.ndim(self.intercept) == 0 else found) + self.intercept)

    def predict(self, rows: Rows) -> NDArray[Any]:
        """The predicted label of every row of a relation; one trip."""
        return self.scores(rows)

    def _facts(self) -> dict[str, object]:
        """What a summary says of the fit as a whole."""
        return {}

    def summary(self, categories: Categories | None = None) -> Summary:
        """The fit, and its coefficients, the intercept first; `lm` and `glm` have their standard errors too.

        ``categories``, such as ``X.categories``, gives names to codes of categories.
        """
        sides: dict[str, Align] = {"": "left", **dict.fromkeys(self.coef.heads, "right")}
        known = category_names(categories)
        rows = [
            [known.get(name, name), *(number(value) for value in np.ravel(values).tolist())]
            for name, values in {"intercept": self.intercept, **self.coef}.items()
        ]
        return Summary(facts_view(type(self).__name__, self._facts()), TableView(UNITS, sides, rows))


@dataclass(frozen=True, repr=False)
class EstimatedFit(LinearFit):
    """A fit whose coefficients have standard errors."""

    _title: ClassVar[str]
    estimates: Estimates

    def summary(self, categories: Categories | None = None) -> Summary:
        """The fit, and every coefficient with standard error, t or z, p and 95 % interval.

        ``categories``, such as ``X.categories``, gives names to codes of categories.
        """
        return self.estimates.summary(self._title, self._facts(), self.coef, categories)


def matrix_of(rows: Rows, fitted: Prepared) -> LazyArray:
    """The matrix of a relation with the columns that a model was fitted on; LearnError if it has others."""
    if not isinstance(rows, LazyArray):
        if not hasattr(rows, "matrix"):
            raise LearnError(f"predict takes a relation or its matrix, not {type(rows).__name__}")
        return rows.matrix(like=fitted)
    mine, known = rows.preparation, fitted.preparation
    if mine.encoding.id != known.encoding.id or mine.recipe != known.recipe:
        raise LearnError(
            "this array's columns are not made as those that the model was fitted on, by the same choice of columns, "
            "functions, means and scales: give predict the relation itself, or rel.matrix(like=model)"
        )
    return rows


def by_column(matrix: LazyArray, values: Array, heads: tuple[str, ...] = ("coefficient",)) -> NamedNumbers:
    """Coefficients, (columns,) or (columns, classes), by the names of columns of X."""
    return NamedNumbers(dict(zip(matrix.columns, values.tolist() if values.ndim == 1 else values, strict=True)), heads)
