"""Steps that learn from the label: `TargetEncode` and `WOE`. A category becomes one number, by the labels of its rows.

The features of a training row must not contain its own label. So the base rows of the category's table are divided into
folds, and each gets the number that was learned from the joined rows of the other folds. A base row has one number for
all its joined rows, which are left out together. Rows to predict get the number learned from all rows. If a row of the
label's table is joined with several rows of the category's table, its label is in the sums of all of these, and folds
remove it from one of them only.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.prep.encode.specs import MOST_CODES, FittedStep, FoldLookup, Lookup
from tablepuppet.prep.pipelines.draft import Codes, Column, Draft, Kind
from tablepuppet.prep.pipelines.label_sums import Folds, LabelSums
from tablepuppet.prep.pipelines.moments import Moments
from tablepuppet.prep.pipelines.needs import Later
from tablepuppet.prep.pipelines.steps.categories import list_categories
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_number, is_whole, setting
from tablepuppet.sql.query import OutputColumn

MOST_FOLDS = 100


def _folds(default: int) -> Any:
    allowed = f"a whole number from 2 to {MOST_FOLDS:,}, or 1: nothing is left out"
    return setting(default, allowed, lambda folds: is_whole(folds, 1, MOST_FOLDS))


@dataclass(frozen=True)
class Learned:
    """The number of each category, that of others, by line of the sums; and the information value of the column."""

    values: Array
    prior: Array
    information: float = 0.0


@dataclass(frozen=True)
class LabelStep(PrepStep):
    """What both steps have in common: categories or bins in, one number out."""

    takes: ClassVar[tuple[Kind, ...]] = ("text", "coded")
    usual: ClassVar[tuple[Kind, ...]] = ("text",)
    advice: ClassVar[str] = "it learns from true labels; use OneHot or Recode"

    informs: ClassVar[bool] = False  # whether information values are learned

    folds: int = _folds(5)
    smooth: float | Literal["auto"] = "auto"
    shuffle: bool = setting(True, "True or False", lambda shuffle: isinstance(shuffle, bool))
    seed: int = setting(0, "a whole number from 0 and below 2**32", lambda seed: is_whole(seed, 0, (1 << 32) - 1))

    @property
    def leaves_out(self) -> bool:
        """Whether rows to learn from get other numbers than rows to predict."""
        return self.folds > 1

    def declare(self, column: Column, draft: Draft) -> None:
        if column.kind == "text":
            list_categories(column, draft, None)
        source, name, folds = column.column, column.name, Folds(self.folds, self.seed, self.shuffle)

        def size(codes: Codes) -> int:
            if codes.size * self.folds > MOST_CODES:
                raise LearnError(
                    f"{self.name}: column {source.qualified} has {codes.size:,} categories, too many for {self.folds} "
                    "folds; take fewer folds, or pool rare categories with OneHot(max_categories=...) before"
                )
            return codes.size

        found = draft.label_sums(column, folds, Later(size, column.codes))
        learned = Later(partial(self.numbers, source), found)

        def step(learned: Learned) -> FittedStep:
            values, prior = learned.values, learned.prior
            full = Lookup(name, values[0, :-1].tolist(), float(prior[0]), float(values[0, -1]))
            if not self.leaves_out:
                return full
            by_fold = values[1:, :-1].ravel().tolist(), prior[1:].tolist(), values[1:, -1].tolist()
            return FoldLookup(name, self.folds, self.seed, self.shuffle, *by_fold, full)

        def moments(found: LabelSums, learned: Learned) -> Moments:
            rows = np.column_stack([learned.values, learned.prior])[int(self.leaves_out) :]  # (lines, size + 2)
            mean = float(np.average(rows, weights=found.weights))
            squares = float(np.sum(found.weights * (rows - mean) ** 2))
            return Moments(draft.rows, draft.rows, mean, squares)

        draft.emit(column, step, learned)
        if self.informs:
            draft.inform(column, Later(lambda learned: learned.information, learned))
        known = Later(moments, found, learned) if draft.counts_all(column) else None
        draft.give_numbers(column, known, is_filled=known is not None)

    @abstractmethod
    def numbers(self, column: OutputColumn, found: LabelSums) -> Learned:
        """The numbers of categories, by line of the sums."""


@dataclass(frozen=True)
class TargetEncode(LabelStep):
    """The mean of the label for each category, drawn towards that of all rows, as scikit-learn's `TargetEncoder`.

    ``smooth`` is how many rows the mean of all rows counts for; ``"auto"``: by the variance within a category and that
    of all rows (empirical Bayes). Of a label with two values it is the share of the larger one. A missing category is a
    separate category; one that the fit did not have, or had in too few rows, gets the mean of all rows. Rows to learn
    from get what was learned from ``folds - 1`` of the ``folds`` parts of the table; with ``folds=1`` from all rows.
    """

    smooth: float | Literal["auto"] = setting(
        "auto",
        "'auto', or a number from 0",
        lambda smooth: smooth == "auto" if isinstance(smooth, str) else is_number(smooth, 0),
    )

    def numbers(self, column: OutputColumn, found: LabelSums) -> Learned:
        """Means, drawn towards the mean of all rows."""
        count, prior = found.counts, found.prior_means[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            if isinstance(self.smooth, str):
                spread = (found.prior_squares / found.prior_counts)[:, None] * count
                share = spread / (spread + found.squares / count)
            else:
                share = count / (count + self.smooth)
        share = np.where(np.isfinite(share) & (count > 0), share, 0.0)
        return Learned(prior + share * (found.means - prior), found.prior_means)


@dataclass(frozen=True)
class WOE(LabelStep):
    """The weight of evidence of each category, for a label with two values: above 0 where the larger is frequent.

    ln((n1 + smooth) / (N1 + 2 smooth)) - ln((n0 + smooth) / (N0 + 2 smooth)): n1 and n0 are the category's joined rows
    with either value, N1 and N0 those of all categories. A missing category is one of its own; one that was not there
    in the fit, or in too few rows, gets 0. The information value of a column, the sum over categories of the difference
    of both shares times the weight, is in ``model.encoding_.iv_``. With ``folds`` above 1 rows to learn from get what
    was learned from the other folds, as in `TargetEncode`.
    """

    informs: ClassVar[bool] = True

    folds: int = _folds(1)
    smooth: float | Literal["auto"] = setting(0.5, "a number from 0", lambda smooth: is_number(smooth, 0))

    def numbers(self, column: OutputColumn, found: LabelSums) -> Learned:
        """Logarithms of two shares."""
        if not found.has_two_values:
            raise LearnError(
                "WOE: the label needs two values, such as 0 and 1; compare it in SELECT, as x > 3 AS label"
            )
        smooth, kept = float(self.smooth), found.counts > 0
        ones, all_ones = np.rint(found.counts * found.means), np.rint(found.prior_counts * found.prior_means)[:, None]
        shares = []
        with np.errstate(divide="ignore", invalid="ignore"):
            for some, whole in ((ones, all_ones), (found.counts - ones, found.prior_counts[:, None] - all_ones)):
                shares.append((some + smooth) / (whole + 2 * smooth))
            weights = np.where(kept, np.log(shares[0]) - np.log(shares[1]), 0.0)
        if not np.isfinite(weights).all():
            raise LearnError(
                f"WOE: a category of {column.qualified} has only one of the label's values, so its weight is not "
                "finite; set smooth above 0"
            )
        differences = np.where(kept, shares[0] - shares[1], 0.0)
        return Learned(weights, np.zeros(len(weights)), float(np.sum((differences * weights)[0])))
