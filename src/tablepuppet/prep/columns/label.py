"""Labels: after the join, the coordinator asks their party for them, for the rows that take part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Scalar, take
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Asked, Codes, Numbers, Plain, Returns, Texts, Wrong
from tablepuppet.party.sent_column import DAYS, TIMES, in_calendar
from tablepuppet.prep.columns.values import numbers
from tablepuppet.sql.expression import with_alias
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import NUMERIC, Family, family

MOST_CLASSES = 1000
MOST_FRACTIONS = 20  # classes, if some are not whole numbers
Question = tuple[str, dict[str, Any]]  # an op and its arguments, without the column
NUMBER_LABELS: Returns = {"labels": Numbers((ROWS,), "fiu", finite=False), "missing": Plain(int, 0, ROWS)}
LARGEST = 1e100  # bound of a numeric label: sums of squares of larger ones would overflow
_KINDS: dict[Family, tuple[type, ...]] = {
    Family.TEXT: (str,), Family.UUID: (str,), Family.BOOLEAN: (bool,), Family.DATE: (int,), Family.TIMESTAMP: (int,),
    **dict.fromkeys((Family.INTEGER, Family.DECIMAL, Family.FLOAT), (int, float)),
}  # fmt: skip


@dataclass(frozen=True)
class SentClasses:
    """Distinct classes of the label's type; an empty list if there are more classes than ``most``."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        known = _KINDS.get(family(asked.type), ())
        if not isinstance(value, list) or not all(type(each) in known for each in value):
            raise Wrong("is no list of classes of the label's type")
        if len({type(each) for each in value}) > 1 or len(set(value)) < len(value):
            raise Wrong("lists a class twice, or classes of several types")
        most = asked.arguments.get("most", MOST_CLASSES)
        if len(value) != (reply["found"] if reply["found"] <= most else 0):
            raise Wrong("lists more or fewer classes than were found")
        if any(isinstance(each, int) and not -(2**63) <= each < 2**64 for each in value):
            raise Wrong("has numbers that are too large")
        Texts(MOST_LETTERS).check([each for each in value if isinstance(each, str)], asked, reply)


@dataclass(frozen=True)
class SentCalendarType:
    """The Arrow type of classes that are dates or timestamps (years 1 to 9999); empty for other classes."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        known = {Family.DATE: DAYS, Family.TIMESTAMP: TIMES}.get(family(asked.type), ("",))
        if not isinstance(value, str) or value not in known:
            raise Wrong("is no type of the label's values")
        if value and not in_calendar(np.array(reply["classes"], np.int64), value):
            raise Wrong("is a type whose values are beyond the years 1 to 9999")


MOST_LETTERS = 1 << 20  # of a class
CLASS_LABELS: Returns = {
    "found": Plain(int, 0), "missing": Plain(int, 0, ROWS), "classes": SentClasses(),
    "codes": Codes("classes", or_none=True), "days": SentCalendarType(),
}  # fmt: skip


@op(
    "label.numbers",
    asked="labels without privacy",
    releases=Release.LABELS,
    columns=("column",),
    use=Use.LABEL,
    returns=NUMBER_LABELS,
)
def label_numbers(table: LocalTable, view: str, column: str) -> Values:
    """The label of every row as a number, and how many labels are missing."""
    values, present = numbers(table.column(column, view))
    return {"labels": _narrow(values), "missing": int(np.count_nonzero(~present))}


def _narrow(values: NDArray[np.float64]) -> NDArray[Any]:
    """The same numbers in a smaller type, if all are small integers."""
    for kind in (np.int8, np.int16, np.int32):
        limits = np.iinfo(kind)
        if len(values) and limits.min <= values.min() and values.max() <= limits.max:
            narrow = values.astype(kind)
            return narrow if np.array_equal(narrow, values) else values
    return values


@op(
    "label.classes",
    asked="labels without privacy",
    releases=Release.LABELS,
    columns=("column",),
    use=Use.LABEL,
    returns=CLASS_LABELS,
)
def label_classes(table: LocalTable, view: str, column: str, most: int) -> Values:
    """The distinct classes and the class code of each row; no codes if there are no classes, or more than ``most``."""
    encoded = pa.concat_arrays(table.column(column, view).chunks).dictionary_encode()
    missing, found = encoded.null_count, len(encoded.dictionary)
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    if not 0 < found <= most:
        return {"found": found, "classes": [], "codes": codes[:0], "missing": missing, "days": ""}
    narrow = codes.astype(np.min_scalar_type(max(found, 1)))
    sent, days = sent_classes(encoded.dictionary)
    return {"found": found, "classes": sent, "codes": narrow, "missing": missing, "days": days}


def sent_classes(classes: pa.Array) -> tuple[list[Any], str]:
    """Classes as they are sent. Dates and timestamps are sent as integers, with their Arrow type."""
    if pa.types.is_decimal(classes.type):
        classes = classes.cast(pa.float64())
    if not pa.types.is_temporal(classes.type):
        return classes.to_pylist(), ""
    whole = pa.int32() if pa.types.is_date32(classes.type) else pa.int64()
    return classes.cast(whole).to_pylist(), str(classes.type)


@dataclass(frozen=True)
class Classes:
    """The classes of a relation's label, sorted, and the class number of every row."""

    values: NDArray[Any]
    numbers: NDArray[np.integer]


def ask_numbers(client: Client, label: OutputColumn, question: Question = ("label.numbers", {})) -> Pending:
    """Ask for numeric labels; LearnError if the label is not numeric."""
    check_numbers(label)
    return _ask(client, label, question)


def check_numbers(label: OutputColumn) -> None:
    """LearnError unless the label is a number."""
    if family(label.type) not in NUMERIC:
        raise LearnError(f"label {label.qualified} is {label.type}: regression needs a number; use a classifier")


def _ask(client: Client, label: OutputColumn, question: Question) -> Pending:
    """Ask the shards that have the label."""
    op_name, asked = question
    return client.ask(op_name, {label.alias: {"column": label.name} | asked})


def joined_numbers(client: Client, label: OutputColumn, asked: Pending) -> NDArray[np.float64]:
    """The label of every joined row as a number; LearnError if one is missing."""
    replies = asked.read()[label.alias]
    values = _one([reply["labels"].astype(np.float64, copy=False) for reply in replies])
    owners = client.owners(label.alias)
    _refuse_missing(sum(reply["missing"] for reply in replies), label, owners)
    if not np.isfinite(values).all():
        raise LearnError(f"label {label.qualified} has values that are not finite; filter them in WHERE {owners}")
    if max(values.max(initial=0.0), -values.min(initial=0.0)) > LARGEST:
        raise LearnError(
            f"label {label.qualified} has values beyond {LARGEST:g}; learn it in a larger unit, or its LOG {owners}"
        )
    return np.asarray(client.rows.taken(label.alias, values), np.float64)


def ask_classes(
    client: Client, label: OutputColumn, question: Question = ("label.classes", {"most": MOST_CLASSES})
) -> Pending:
    """Ask for class labels; LearnError if the label cannot have classes."""
    check_classes(label)
    return _ask(client, label, question)


def check_classes(label: OutputColumn) -> None:
    """LearnError unless the label can have classes."""
    if family(label.type) is Family.OTHER:
        raise LearnError(f"label {label.qualified} is {label.type}, which has no classes")


def joined_classes(client: Client, label: OutputColumn, asked: Pending, least: int = 2) -> Classes:
    """The class of every joined row; LearnError if labels are missing, or if classes are too few or too many."""
    found = base_classes(client, label, asked, least)
    return Classes(found.values, client.rows.taken(label.alias, found.numbers))


def base_classes(client: Client, label: OutputColumn, asked: Pending, least: int = 2) -> Classes:
    """The class of every base row of the label's table, with the errors of `joined_classes`."""
    replies = asked.read()[label.alias]
    owners = client.owners(label.alias)
    _refuse_missing(sum(reply["missing"] for reply in replies), label, owners)
    most = max(reply["found"] for reply in replies)
    classes = [_classes(reply["classes"], reply["days"]) for reply in replies]
    values = np.array(sorted({value for listed in classes for value in listed}))
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise LearnError(f"label {label.qualified} has values that are not finite; filter them in WHERE {owners}")
    if most > MOST_CLASSES or len(values) > MOST_CLASSES:
        way = "learn it with a regressor, or group" if family(label.type) in NUMERIC else "group"
        raise LearnError(
            f"label {label.qualified} has more than {MOST_CLASSES} classes; {way} classes in SELECT, by CASE {owners}"
        )
    if len(values) < least:
        raise LearnError(
            f"label {label.qualified} has one class only in these rows; a classifier needs two or more {owners}"
        )
    narrow = class_number_type(len(values))
    numbered: list[NDArray[np.integer]] = [
        take(np.searchsorted(values, np.array(listed)).astype(narrow), reply["codes"])
        for listed, reply in zip(classes, replies, strict=True)
    ]
    return Classes(values, _one(numbered))


def is_continuous(classes: NDArray[Any]) -> bool:
    """Whether different values of a label are measurements rather than classes: many, and not whole numbers."""
    return classes.dtype.kind == "f" and len(classes) > MOST_FRACTIONS and bool(np.any(classes != np.floor(classes)))


def class_number_type(classes: int) -> type[np.int8 | np.int16]:
    """The smallest integer type for this number of classes: there is one number per joined row, so memory matters."""
    return np.int8 if classes < 128 else np.int16


def joined_labels(client: Client, label: OutputColumn) -> NDArray[Any]:
    """The label of every joined row: numbers where it is one, else classes; LearnError if one is missing."""
    if not len(client.rows):
        return np.zeros(0)
    if family(label.type) in NUMERIC:
        return joined_numbers(client, label, ask_numbers(client, label))
    classes = joined_classes(client, label, ask_classes(client, label), least=1)
    return np.asarray(classes.values[classes.numbers])


def _one(parts: list[NDArray[Scalar]]) -> NDArray[Scalar]:
    """The values of all shards in one array; not copied if there is only one shard."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _classes(sent: list[Any], days: str) -> list[Any]:
    """Classes as Python values; ``days`` is their Arrow type if they are dates or timestamps."""
    if not days:
        return sent
    if days == str(pa.date32()):
        return list(pa.array(sent, pa.int32()).cast(pa.date32()).to_pylist())
    unit, _, zone = days.removeprefix("timestamp[").removesuffix("]").partition(", tz=")
    return list(pa.array(sent, pa.int64()).cast(pa.timestamp(unit, zone or None)).to_pylist())


def _refuse_missing(missing: int, label: OutputColumn, owners: str) -> None:
    if missing:
        condition = f"{with_alias(label.expression, label.alias)} IS NOT NULL"
        raise LearnError(f"label {label.qualified} is NULL in {missing:,} rows; add WHERE {condition} {owners}")
