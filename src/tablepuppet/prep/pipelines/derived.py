"""Statistics of the columns that a pipeline's steps create, at the party: sums of numbers, and counts of codes.

What such sums reveal depends on numbers that the caller chose: bounds, edges, exponents. So for columns that are not
public, each distinct choice counts as a refined histogram (``limits.max_refinements``). The policy's ``min_group``
applies as for other statistics: if too few rows have a number, or a code, it is returned as if there were none; and if
too few rows differ from all others, as in a product of flags, as if none did (`Frame`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.groups import Grouped, rows_by, rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Level, Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, Asked, Numbers, OfGroups
from tablepuppet.prep.columns.statistics import KeyFamily, centred_sums, check_sums
from tablepuppet.prep.encode.frame import CodedColumn, NumberColumn
from tablepuppet.prep.encode.program import (
    Shapes,
    check_steps,
    needed_for,
    read_frame,
    run,
)
from tablepuppet.prep.encode.specs import FittedStep
from tablepuppet.prep.explore.distribution import mark_of_rows


@dataclass(frozen=True)
class DerivedSums:
    """For each wanted column of numbers, the sums that ``statistics.numbers`` returns for columns as they are read."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        check_sums(value, len(wanted_numbers(asked.arguments)), asked, reply)


@dataclass(frozen=True)
class DerivedWeights:
    """Joined rows by code, of one wanted column of codes after the other."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        codes = sum(wanted_codes(asked.arguments).values())
        Numbers((codes,), least=0.0, most=JOINED).check(value, asked, reply)


def _shapes(arguments: Mapping[str, Any]) -> Shapes:
    """The columns that steps leave, as the coordinator asked for them."""
    sizes = {name: len(arguments[f"digests{place}"]) for place, (name, _) in enumerate(arguments["categories"])}
    steps = needed_for(arguments.get("steps", ()), arguments["wanted"])
    return Shapes.of(arguments["columns"], sizes, steps)


def wanted_numbers(arguments: Mapping[str, Any]) -> list[str]:
    """The columns of numbers that are asked for, in order."""
    known = _shapes(arguments).numbers
    return [name for name in arguments["wanted"] if name in known]


def wanted_codes(arguments: Mapping[str, Any]) -> dict[str, int]:
    """The columns of codes that are asked for, in order, with how many codes."""
    known = _shapes(arguments).coded
    return {name: known[name] for name in arguments["wanted"] if name in known}


@op(
    "prep.sums",
    asked="pipelines whose statistics depend on earlier steps",
    releases=Release.STATISTICS | Release.HISTOGRAMS,
    columns=("columns", "categories"),
    use=Use.FEATURE,
    returns={"sums": OfGroups(DerivedSums()), "weights": OfGroups(DerivedWeights())},
)
def derived_sums(
    table: LocalTable, view: str, blinding: str, columns: Sequence[str], categories: Sequence[tuple[str, KeyFamily]],
    wanted: Sequence[str], steps: Sequence[FittedStep] = (), **digests: NDArray[np.uint8],
) -> Values:  # fmt: skip
    """Sums of ``wanted`` columns after ``steps``, each row as often as it is joined."""
    steps = needed_for(steps, wanted)
    frame, shapes = read_frame(table, "prep.sums", view, blinding, columns, categories, steps, digests, learned=True)
    if len(set(wanted)) < len(wanted) or not set(wanted) <= shapes.sizes.keys():
        raise PartyError(f"party {table.grant.party!r}: prep.sums takes names of existing columns, each once")
    _count(table, view, wanted, steps)
    check_steps(steps, frame)
    run(steps, frame)
    numbers = {name: frame.number(name) for name in wanted if name in shapes.numbers}
    codes = {name: frame.coded(name) for name in wanted if name in shapes.coded}
    sums = [_sums(table, view, each, is_public=not _hidden(table, steps, name)) for name, each in numbers.items()]
    weights = [_weights(table, view, each, shapes.coded[name]) for name, each in codes.items()]
    found = np.concatenate([np.zeros(0), *weights])
    groups = [
        group for name, each in numbers.items() for group in _groups(table, view, each, needed_for(steps, [name]))
    ]
    coded = [rows_by(table.view(view), each.codes, shapes.coded[name]) for name, each in codes.items()]
    return {
        "sums": Grouped(np.array(sums, np.float64).reshape(-1, 8), np.array(groups, np.int64)),
        "weights": Grouped(found, np.where(found > 0, np.concatenate([np.zeros(0, np.int64), *coded]), 0)),
    }


def _groups(table: LocalTable, view: str, column: NumberColumn, steps: Sequence[FittedStep]) -> list[int]:
    """The rows that have a number; and if steps have made flags or products of it, those that differ from most."""
    rows = table.view(view)
    found = [rows_of(rows, column.present)]
    return found if all(step.linear for step in steps) else [*found, rows_of(rows, column.is_unusual(rows.firsts))]


def _sums(table: LocalTable, view: str, column: NumberColumn, *, is_public: bool) -> list[float]:
    weights = table.view(view).counts.astype(np.float64)
    values = column.values[column.present]
    ends = [float(values.min()), float(values.max())] if is_public and len(values) else [math.nan, math.nan]
    return [*centred_sums(values, weights[column.present]), float(weights.sum()), *ends]


def _weights(table: LocalTable, view: str, column: CodedColumn, size: int) -> NDArray[np.float64]:
    rows, has = table.view(view), column.codes >= 0
    found = np.bincount(column.codes[has], rows.counts[has], minlength=size).astype(np.float64)
    return np.where(table.grant.is_group(rows_by(rows, column.codes, size)), found, 0.0)


def _hidden(table: LocalTable, steps: Sequence[FittedStep], name: str) -> list[str]:
    """The columns that are not public among those that a column is made of."""
    read = {name, *(each for step in needed_for(steps, [name]) for each in step.reads)}
    outputs = table.snapshot.scan.outputs
    return sorted(each for each in read if each in outputs and table.level(each) is not Level.PUBLIC)


def _count(table: LocalTable, view: str, wanted: Sequence[str], steps: Sequence[FittedStep]) -> None:
    """Count each choice of numbers by which columns that are not public are changed before they are summed."""
    found = []
    for name in wanted:
        chain = needed_for(steps, [name])
        if not all(step.linear for step in chain):
            choice = hashlib.sha256(msgspec.msgpack.encode(chain)).hexdigest()
            found += [f"{table.snapshot.scan.outputs[each]} {choice}" for each in _hidden(table, steps, name)]
    if found and not table.is_repeat:
        mark = mark_of_rows(table, view)
        table.refine([f"{each} {mark}" for each in found])
