"""Each feature of a profile beside the label: shares of classes, or means, by category.

Input: the counts and sums that the profile compares columns by. Only the names of categories of public columns are
asked for in addition. Output: lines for profile_page.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.days import shown_value
from tablepuppet.prep.explore.crosstab import Counted
from tablepuppet.prep.explore.groups import Grouped
from tablepuppet.prep.explore.pooled import NUMBERED, OTHER, Lines, label_lines
from tablepuppet.prep.explore.profile_page import Against
from tablepuppet.runs.figures import UNKNOWN, WITHHELD
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

SHOWN = 10  # lines of a column: all whole numbers that are compared value by value
MOST_CLASSES = 5  # with a colour


@dataclass(frozen=True)
class Related:
    """A feature and the label: how strongly they depend on each other, and what shows it."""

    column: OutputColumn
    label: OutputColumn
    measure: str = ""
    strength: float = float("nan")  # from 0 to 1; NaN if not known
    found: Counted | Grouped | None = None
    withheld: bool = False  # by a policy


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
