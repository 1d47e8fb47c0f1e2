"""The best splits of nodes, from sums of gradients by bin; and splits as rows of numbers, which parties store.

Pure maths: the party of a table with one shard calls it, or the coordinator for a table with several, on sums of all
shards. Nothing here knows who.

A histogram is (columns, bins, sums): the sums over joined rows of gradient, Hessian, 1, and where small groups are
hidden of 1 over different base rows. The last bin has rows without a value. G and H are sums of a node:

    gain = G_left^2 / (H_left + l2) + G_right^2 / (H_right + l2) - G^2 / (H + l2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Mask
from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.model import BatchSums, Forward, TableModel, TableSpec, check_size
from tablepuppet.party.arguments import LARGEST, NotNegative

GRADIENT, HESSIAN, COUNT, ROWS = range(4)
LEAST_HESSIAN = 1e-3  # of a child, as in scikit-learn
TINY = 1e-15  # added to Hessians, so that no quotient is 0 / 0
SMOOTH = 10.0  # joined rows that pull a category's mean gradient to zero before categories are sorted
LEAST_CATEGORY = 10  # joined rows; rarer categories go where missing values go
HEAD, WORD = 4, 32  # numbers of a stored split before its categories; categories in one number
Count = Annotated[int, Meta(ge=0, le=2**53)]


class SplitRule(msgspec.Struct, frozen=True):
    """What a split must have, for all nodes of a model."""

    l2: NotNegative
    min_leaf: Count  # joined rows of a child
    min_gain: NotNegative


@dataclass(frozen=True)
class Binned:
    """How the columns of a table are binned: the cuts of each column of numbers, then the codes of each category.

    A number x is in the first bin whose cut is not below it; after the last cut is one more bin.
    """

    cuts: tuple[Array, ...]
    sizes: tuple[int, ...]  # categories with a bin of their own, by column of categories
    missing: int  # the last bin, the same for all columns

    @property
    def columns(self) -> int:
        """Columns of numbers, then of categories."""
        return len(self.cuts) + len(self.sizes)

    @property
    def is_category(self) -> Mask:
        """Which columns have categories."""
        return np.arange(self.columns) >= len(self.cuts)

    @property
    def words(self) -> int:
        """Numbers that the categories of a stored split take."""
        return -(-max(self.sizes, default=0) // WORD)


@dataclass(frozen=True)
class Limits:
    """What a node may split by: columns, and for monotone constraints the range of its values.

    ``signs``, by column: 1 if scores may not fall with the column, -1 if they may not rise, else 0.
    """

    allowed: Mask | None = None
    signs: NDArray[np.integer] | None = None
    low: float = -np.inf
    high: float = np.inf


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Split:
    """The best split of a node: its gain, its column, and which bins go left; no column if there is none."""

    gain: float
    column: int
    left: Mask  # by bin, the last is that of missing values


def best_split(
    sums: Array, is_category: Mask, rule: SplitRule, min_group: int = 0, limits: Limits = NO_LIMITS
) -> Split:
    """The split of one node with the largest gain, from its histogram; of equal ones that of the first column and bin.

    A child has at least ``min_leaf`` joined rows, and ``min_group`` different base rows where these are counted.
    """
    values, missing, order = _in_order(sums, is_category)
    left = np.cumsum(values, axis=1)  # (columns, bins, sums): missing values go right
    both = np.stack([left, left + missing[:, None]], axis=1)  # (columns, 2, bins, sums): or left
    total = (left[:, -1] + missing)[:, None, None] if left.shape[1] else missing[:, None, None]
    other = total - both
    fits = np.ones(both.shape[:3], bool)
    for side in (both, other):
        fits &= (side[..., COUNT] >= max(rule.min_leaf, 1)) & (side[..., HESSIAN] >= LEAST_HESSIAN)
        if min_group > 1:
            fits &= side[..., ROWS] >= min_group
    if limits.allowed is not None:
        fits &= limits.allowed[:, None, None]
    parts = [_values(side, rule.l2, limits) for side in (both, other, total)]
    if limits.signs is not None:
        rises = (parts[1] - parts[0]) * limits.signs[:, None, None]
        fits &= rises >= 0
    kept = [side[..., GRADIENT] * value for side, value in zip((both, other, total), parts, strict=True)]
    gains = np.where(fits, kept[2] - kept[0] - kept[1], -np.inf)
    if not gains.size or not (best := gains.max()) > rule.min_gain:
        return Split(0.0, -1, np.zeros(sums.shape[1], bool))
    column, goes_left, last = (int(each) for each in np.unravel_index(int(gains.argmax()), gains.shape))
    mask = np.zeros(sums.shape[1], bool)
    mask[order[column, : last + 1]] = True
    rest = np.setdiff1d(np.arange(sums.shape[1]), order[column])  # missing values
    if not missing[column, COUNT]:  # of the fit: those of rows to predict go with most rows
        goes_left = int(both[column, 0, last, COUNT] > other[column, 0, last, COUNT])
    mask[rest] = bool(goes_left)
    if is_category[column]:
        mask[:-1][_rare(sums[column, :-1])] = bool(goes_left)
    return Split(float(best), column, mask)


def _values(sums: Array, l2: float, limits: Limits) -> Array:
    """The best score of children with these sums, within the range of the node."""
    found = -sums[..., GRADIENT] / (sums[..., HESSIAN] + l2 + TINY)
    return np.asarray(np.clip(found, limits.low, limits.high) if limits.signs is not None else found)


def _rare(bins: Array) -> Mask:
    return np.asarray(bins[..., COUNT] < LEAST_CATEGORY)


def _in_order(sums: Array, is_category: Mask) -> tuple[Array, Array, NDArray[np.intp]]:
    """(bins in the order in which a split may cut them, what goes with missing values, the order of bins).

    Categories are sorted by their mean gradient; rare ones are set to zero, and count as missing.
    """
    bins, missing = sums[:, :-1], sums[:, -1]
    order = np.broadcast_to(np.arange(bins.shape[1]), bins.shape[:2])
    if not is_category.any():
        return bins, missing, order
    rare = _rare(bins) & is_category[:, None]
    missing = missing + np.where(rare[..., None], bins, 0.0).sum(axis=1)
    keys = np.where(rare, np.inf, bins[..., GRADIENT] / (bins[..., HESSIAN] + SMOOTH))
    order = np.where(is_category[:, None], np.argsort(keys, axis=1, kind="stable"), order)
    kept = np.where(rare[..., None], 0.0, bins)
    return np.take_along_axis(kept, order[..., None], axis=1), missing, order


# Splits as rows of numbers: column, threshold, whether missing values go left, whether categories, words of these


class TreeSpec(TableSpec, frozen=True):
    """What a table has of trees: released as one bit for each row and split."""


class Splits(TreeSpec, frozen=True, tag_field="kind", tag="splits"):
    """So many splits of a table; each names a column, and a threshold or the categories in so many words."""

    splits: Annotated[int, Meta(ge=0, le=10_000_000)]
    words: Annotated[int, Meta(ge=0, le=1_000)]

    @property
    def outputs(self) -> int:
        """Bytes per row that have a bit for each split."""
        return -(-self.splits // 8)

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """A row for each split."""
        return (self.splits, HEAD + self.words)

    def over(self, width: int, alias: str) -> SplitTable:
        """The splits of a table, however many columns it has."""
        return SplitTable(self)


class SplitTable(TableModel):
    """The splits of a table as parameters, which parties hold and store like others; rows get bits by `goes_left`."""

    spec: Splits

    def __init__(self, spec: Splits):
        self.spec = spec
        check_size(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """A row for each split."""
        return self.spec.theta_shape(0)

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """Splits by the first column, which trees replace."""
        return np.zeros(self.shape)

    def rescaled(self, theta: Array, unit: float) -> Array:
        """Thresholds are in units of columns: nothing changes."""
        return theta

    def forward(self, theta: Array, rows: Any, sums: BatchSums | None = None) -> Forward:
        """There is none: trees are not learned by gradients of parameters."""
        raise PartyError("trees have splits, which have no gradient: fit the model again")


def stored(splits: Sequence[Split], binned: Binned) -> Array:
    """Splits as rows of numbers, (splits, HEAD + words)."""
    found = np.zeros((len(splits), HEAD + binned.words))
    for row, split in zip(found, splits, strict=True):
        is_category = split.column >= len(binned.cuts)
        row[:HEAD] = split.column, 0.0, split.left[-1], is_category
        if is_category:
            bits = np.full(binned.words * WORD, split.left[-1], np.float64)  # others go where missing values go
            size = binned.sizes[split.column - len(binned.cuts)]
            bits[:size] = split.left[:size]
            row[HEAD:] = bits.reshape(binned.words, WORD) @ 2.0 ** np.arange(WORD)
        else:
            cuts, last = binned.cuts[split.column], int(np.flatnonzero(split.left[:-1])[-1])
            row[1] = cuts[last] if last < len(cuts) else LARGEST  # all numbers go left
    return found


def categories_of(row: Array) -> NDArray[np.intp]:
    """The codes that a stored split sends left."""
    words = row[HEAD:].astype(np.uint64)
    return np.flatnonzero((words[:, None] >> np.arange(WORD, dtype=np.uint64)) & np.uint64(1))


def goes_left(theta: Array, numbers: Array, codes: Sequence[NDArray[np.integer]]) -> NDArray[np.uint8]:
    """A bit for each row and split, packed: (rows, bytes). ``numbers`` are (rows, columns), NaN where missing."""
    found = np.zeros((len(numbers), len(theta)), bool)
    for place, row in enumerate(theta):
        column, threshold, missing_left, is_category = row[:HEAD]
        if is_category:
            own = codes[int(column) - numbers.shape[1]]
            known = (len(row) - HEAD) * WORD
            left = np.zeros(max(int(own.max(initial=0)), known) + 2, bool)
            left[known:] = bool(missing_left)  # the code -1 finds the last
            left[categories_of(row)] = True
            found[:, place] = left[own]
        else:
            values = numbers[:, int(column)]
            with np.errstate(invalid="ignore"):
                found[:, place] = values <= threshold
            if missing_left:
                found[:, place] |= np.isnan(values)
    return np.packbits(found, axis=1, bitorder="little")
