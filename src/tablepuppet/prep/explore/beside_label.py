"""Each feature of a profile beside the label: how strongly both depend on each other, and shares or means by category.

Input: a relation, and the counts and sums that the profile has of its columns. For features of categories, or of few
whole numbers, counts and sums by category are asked for, and the names of categories of public columns. Output: lines
for profile_page.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import check_without_noise, find_category, is_category, is_number, sends_across
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.values import shown_value
from tablepuppet.prep.explore.correlation import ColumnMatrix
from tablepuppet.prep.explore.crosstab import Counted, Crosstab, count_pairs
from tablepuppet.prep.explore.groups import Grouped, sums_by_group
from tablepuppet.prep.explore.pooled import NUMBERED, OTHER, Lines, label_lines
from tablepuppet.prep.explore.profile_page import Against
from tablepuppet.runs.figures import UNKNOWN, WITHHELD
from tablepuppet.sql.query import OutputColumn, Query
from tablepuppet.sql.types import Family, family

SHOWN = 10  # lines of a column: all whole numbers that are compared value by value
MOST_CLASSES = 5  # with a colour
FEW = 10  # different values up to which whole numbers are compared value by value
FEW_CLASSES = 20  # different whole numbers up to which a label counts as classes


@dataclass(frozen=True)
class Related:
    """A feature and the label: how strongly they depend on each other, and what shows it."""

    column: OutputColumn
    label: OutputColumn
    measure: str = ""
    strength: float = float("nan")  # from 0 to 1; NaN if not known
    found: Counted | Grouped | None = None
    withheld: bool = False  # by a policy


def _is_few(column: OutputColumn, rows: Mapping[str, Mapping[str, Any]], few: int = FEW) -> bool:
    """Whether a column has few whole numbers, or booleans, each of which has a bar."""
    distinct = rows[column.name]["distinct"]
    is_whole = family(column.type) in (Family.INTEGER, Family.BOOLEAN)
    return is_whole and distinct is not None and distinct <= few


@dataclass(frozen=True)
class Compared:
    """A feature and the label, and whether each counts as categories."""

    column: OutputColumn
    label: OutputColumn
    is_category: bool
    is_class: bool

    @classmethod
    def all_of(cls, client: Client, query: Query, rows: Mapping[str, Mapping[str, Any]]) -> list[Compared]:
        """The features that may be compared with the label: of another table only if both send their columns."""
        label = query.label
        if label is None or not rows[label.name]["count"]:
            return []
        is_class = not is_number(label) or label.name in query.categorical or _is_few(label, rows, FEW_CLASSES)
        return [
            cls(column, label, is_category(column, query.categorical) or _is_few(column, rows), is_class)
            for column in query.features
            if column.alias == label.alias or sends_across(client.plan, (column.alias, label.alias))
        ]

    def ask(self, client: Client, sent: SentColumns) -> None:
        """Ask for columns of two tables, so that all are sent in one trip; nothing if they cannot be compared."""
        pair = (self.column, self.label)
        coded = [each for each, is_coded in zip(pair, (self.is_category, self.is_class), strict=True) if is_coded]
        if self.column.alias == self.label.alias or not coded:
            return
        with suppress(PrivacyError, LearnError):
            check_without_noise(client.plan, pair, "profile")
            for each in coded:
                find_category(client.plan, each.name, "profile")
            sent.ask_codes(coded)
            sent.ask_numbers([each for each in pair if each not in coded])

    def relate(self, client: Client, correlations: ColumnMatrix | None, most: int, sent: SentColumns) -> Related:
        """How both depend on each other, from 0 to 1; unknown where parties refuse, or categories are too many."""
        try:
            return self._relate(client, correlations, most, sent)
        except (PrivacyError, LearnError) as error:
            return Related(self.column, self.label, withheld=isinstance(error, PrivacyError))

    def _relate(self, client: Client, correlations: ColumnMatrix | None, most: int, sent: SentColumns) -> Related:
        column, label = self.column.name, self.label.name
        if self.is_category and self.is_class:
            pairs = count_pairs(client, column, label, most, sent)
            strength = Crosstab((column, label), [], [], pairs.counts).cramers_v
            return Related(self.column, self.label, "Cramér's V", strength, pairs)
        if self.is_category or self.is_class:
            number, by = (label, column) if self.is_category else (column, label)
            groups = sums_by_group(client, number, by, most, sent)
            return Related(self.column, self.label, "correlation ratio", _ratio(groups.sums), groups)
        if correlations is None or not {column, label} <= set(correlations.columns):
            return Related(self.column, self.label)
        strength, withheld = abs(correlations[column, label]), correlations.is_withheld(column, label)
        return Related(self.column, self.label, "correlation", strength, withheld=withheld)


def _ratio(sums: Array) -> float:
    """The square root of the share of a number's variance that is between groups; NaN if it has no variance."""
    counts, means, within = sums[sums[:, 0] > 0].T
    mean = float(counts @ means) / max(float(counts.sum()), 1.0)
    between = float(counts @ (means - mean) ** 2)
    total = between + float(within.sum())
    return float(np.sqrt(between / total)) if total > 0 else float("nan")


def beside_label(client: Client, related: Sequence[Related]) -> dict[str, Against]:
    """By feature; names of categories are asked for in one trip."""
    lines: list[Lines] = []
    counts: list[NDArray[Any]] = []
    for each in related:
        if isinstance(each.found, Counted):
            lines += each.found.lines
            counts += [each.found.counts.sum(axis=1), each.found.counts.sum(axis=0)]
        elif each.found is not None:
            lines.append(each.found.by)
            counts.append(each.found.sums[:, 0])
    named = iter(label_lines(client, lines, counts) if lines else [])
    drawn = {}
    for each in related:
        measured = f"{each.measure} {each.strength:.2f}" if np.isfinite(each.strength) else ""
        if isinstance(each.found, Counted):
            rows, classes = (_in_order(*next(named), column) for column in (each.column, each.label))
            drawn[each.column.name] = _shares(each, each.found, rows, classes, measured)
        elif each.found is not None:
            drawn[each.column.name] = _means(each, each.found, next(named), measured)
        if each.column.name not in drawn or not drawn[each.column.name].names:
            drawn[each.column.name] = Against(measured or (WITHHELD if each.withheld else UNKNOWN))
    return drawn


def _in_order(names: list[str], places: list[int], column: OutputColumn) -> tuple[list[str], list[int]]:
    """Whole numbers and booleans by size, if all are known by name; all else as it is."""
    if family(column.type) not in (Family.INTEGER, Family.BOOLEAN) or any(name.startswith(NUMBERED) for name in names):
        return names, places
    kept = [(name, place) for name, place in zip(names, places, strict=True) if name != OTHER]
    by_size = sorted(kept, key=lambda line: (float(line[0]) if line[0].lstrip("-").isdigit() else 0.0, line[0]))
    by_size += [line for line in zip(names, places, strict=True) if line[0] == OTHER]
    return [name for name, _ in by_size], [place for _, place in by_size]


def _shares(
    each: Related,
    found: Counted,
    rows: tuple[list[str], list[int]],
    classes: tuple[list[str], list[int]],
    measured: str,
) -> Against:
    """The share of every class in each category; of two classes, that of the rarer one."""
    counts = found.counts[np.ix_(rows[1], classes[1])]
    counts, names = counts[counts.sum(axis=1) > 0], [n for n, c in zip(rows[0], counts, strict=True) if c.sum() > 0]
    shares: Array = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    heads = classes[0]
    if len(heads) == 2:
        rarer = int(np.argmin(counts.sum(axis=0)))
        caption = f"share of {each.label.name} = {heads[rarer]}"
        heads, shares = [heads[rarer]], shares[:, [rarer]]
    else:
        largest = np.argsort(-counts.sum(axis=0), kind="stable")[:MOST_CLASSES]
        caption = f"shares of {each.label.name}"
        heads, shares = [heads[i] for i in largest], shares[:, largest]
    texts = [f"{share:.1%}" for share in shares[:SHOWN, 0].tolist()] if len(heads) == 1 else []
    return Against(measured, caption, names[:SHOWN], shares[:SHOWN].tolist(), texts, heads, is_share=True)


def _means(each: Related, found: Grouped, named: tuple[list[str], list[int]], measured: str) -> Against:
    """The mean of the label in each category, or of the feature in each class."""
    names, places = _in_order(*named, found.by.column)
    kept = [(name, found.sums[place, 1]) for name, place in zip(names, places, strict=True) if found.sums[place, 0]]
    kept, kind = kept[:SHOWN], family(found.column.type)
    caption = f"mean of {found.column.name} by {found.by.column.name}"
    texts = [shown_value(float(mean), kind) for _, mean in kept]
    return Against(measured, caption, [name for name, _ in kept], [[float(mean)] for _, mean in kept], texts)
