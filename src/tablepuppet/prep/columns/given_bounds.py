"""Bounds of columns for noisy statistics: from the caller, or from the policies of all parties, never from the data.

Input: a plan and what the caller gave. Output: a low and a high number for each column, or one error that names
all columns without bounds, before any party is asked. Dates are given as dates, and become days since 1970-01-01.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from numbers import Real
from typing import Any

import numpy as np

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.party.arguments import LARGEST
from tablepuppet.prep.columns.selected import find_number, is_date
from tablepuppet.sql.catalog import described
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

Bounds = tuple[float, float]
_DAY = 86_400.0


def bounds_of(
    plan: Plan, columns: Sequence[OutputColumn], given: Mapping[str, Any] | None, step: str
) -> dict[str, Bounds]:
    """Bounds by name: the caller's, else the policy's, else 0 and 1 for booleans."""
    known = _given(plan, given, step)
    found = {column.name: known.get(column.name) or _published(plan, column) for column in columns}
    lacking = [name for name, bounds in found.items() if bounds is None]
    if lacking:
        example = ", ".join(f"{name!r}: (low, high)" for name in lacking[:3])
        raise PrivacyError(
            f"{step}: noise needs bounds of {', '.join(map(repr, lacking))}: numbers between which values are "
            f"expected, not taken from the data; write bounds={{{example}}} (of a command: --bounds "
            f"{lacking[0]}=LOW..HIGH), or columns=[...] without them, or ask the party's operator for bounds in the "
            "policy"
        )
    return {name: bounds for name, bounds in found.items() if bounds is not None}


def pair_of(column: OutputColumn, given: Any, step: str) -> Bounds:
    """A pair of bounds as numbers; LearnError unless it is a low and a higher one."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        low, high = (_number(column, each) for each in given)
        if low is not None and high is not None and -LARGEST <= low < high <= LARGEST:
            return low, high
    if is_date(column):
        raise LearnError(
            f"{step}: bounds of {column.name!r} are two dates, the earlier one first, such as "
            "('2020-01-01', '2025-01-01'), and no plain numbers"
        )
    raise LearnError(f"{step}: bounds of {column.name!r} are a low and a higher number, such as (0, 120)")


def _given(plan: Plan, given: Mapping[str, Any] | None, step: str) -> dict[str, Bounds]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise LearnError(f"{step}: bounds is a dict, such as bounds={{'age': (0, 120)}}")
    columns = {name: find_number(plan, name, step) for name in given}
    return {column.name: pair_of(column, given[name], step) for name, column in columns.items()}


def _number(column: OutputColumn, value: Any) -> float | None:
    """A number, or the day of a date if the column has dates; None for anything else."""
    if is_date(column) and isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if is_date(column) and isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.timestamp() / _DAY
    plain = isinstance(value, Real) and not isinstance(value, bool) and not is_date(column)
    return float(value) if plain and math.isfinite(value) else None


def _published(plan: Plan, column: OutputColumn) -> Bounds | None:
    """The bounds that hold for all shards, if every policy has some."""
    pairs = [described(column.expression, shard.bounds) for shard in plan.tables[column.alias].shards]
    known = [pair for pair in pairs if pair is not None]
    if known and len(known) == len(pairs):
        return float(min(low for low, _ in known)), float(max(high for _, high in known))
    return (0.0, 1.0) if family(column.type) is Family.BOOLEAN else None
