"""The final check on small groups: the one place through which statistics of columns leave a party.

Input: what an op returns. Output: the same values, if each rests on no rows or on at least as many different ones as
the policy's ``min_group`` says; else nothing of the reply leaves. An op that releases statistics declares of each value
of its reply what it rests on (`OfGroups`, `OfRows`, `OfNoCell` in returns.py): without that, a table with a
``min_group`` refuses the op before a row is read. Values that rest on groups are returned as `Grouped`, with how many
different rows are in every group: those that are published, and those that follow as differences of published ones.
Which rows these are is the op's word, as the service cannot know what a number was computed from: counting them here
would only be of what the op names. But no group has more different rows than the relation: an op that counts how often
rows are joined is refused. A wrong word is found by sessions that ask each op about tables with and without
the cells of small groups (`tests/party/test_total_ops.py`, `benchmarks.fuzz`).

Ops pool or leave out small groups by themselves, so that honest requests get an answer. This check is for those that
do not: whoever writes an op cannot forget it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Counts
from tablepuppet.party.grant import Grant
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Op, Values
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OfGroups, OfNoCell, OfRows

OF_GROUPS = (
    Release.STATISTICS | Release.HISTOGRAMS | Release.METRICS | Release.CATEGORIES | Release.COLUMNS | Release.GRAM
)
"""Releases that are sums, counts or names of columns; a column, number by number, has them all in it."""


@dataclass(frozen=True)
class Grouped:
    """A value of a reply, and the different rows of each group that it rests on: any array of counts."""

    value: Any
    rows: Counts | int


def rows_of(rows: RelationRows, chosen: NDArray[np.bool_]) -> int:
    """How many different rows a mask chooses."""
    return int(np.count_nonzero(chosen & rows.firsts))


def rows_by(rows: RelationRows, codes: NDArray[np.integer], size: int) -> Counts:
    """How many different rows have each code from 0 to ``size`` - 1; those with another code count nowhere."""
    counted = codes[rows.firsts & (codes >= 0) & (codes < size)]
    return np.bincount(counted, minlength=size).astype(np.int64)


def all_grouped(values: Mapping[str, Any], rows: Counts | int) -> Values:
    """A reply whose values all rest on the same groups."""
    return {name: Grouped(value, rows) for name, value in values.items()}


def check_declared(grant: Grant, op: Op, arguments: Mapping[str, Any]) -> None:
    """PrivacyError if a table hides small groups, and an op that releases statistics does not say what they rest on."""
    if grant.rules.min_group <= 1 or not op.releases & OF_GROUPS or op.is_private(arguments):
        return
    for each in [None] if op.returns is None else op.returns.values():
        if isinstance(each, OfRows):
            grant.check_also(op, arguments, each.release)
        elif not isinstance(each, OfGroups | OfNoCell):
            reason = f"op {op.name!r} does not say how many rows the values rest on that it releases"
            raise grant.refusal("min_group", reason)


def published(op: Op, table: LocalTable, arguments: Mapping[str, Any]) -> Values:
    """The reply to an op, if all that it publishes rests on enough rows; PrivacyError if not: all of it, or nothing."""
    values = op(table, arguments)
    if table.grant.rules.min_group > 1 and not op.is_private(arguments):
        for name, declared in (op.returns or {}).items():
            if isinstance(declared, OfGroups) and not _are_enough(table, values.get(name), arguments.get("view")):
                reason = f"op {op.name!r} would release something of fewer rows than a group must have"
                raise table.grant.refusal("min_group", reason)
    return {name: each.value if isinstance(each, Grouped) else each for name, each in values.items()}


def _are_enough(table: LocalTable, value: Any, view: object) -> bool:
    """Whether groups are large enough, and none larger than the relation: then copies of rows were counted."""
    if not isinstance(value, Grouped):
        return False
    rows = np.asarray(value.rows)
    return bool(table.grant.is_group(rows).all() and (rows <= table.different_rows(view)).all())
