"""Noisy labels: their party adds the noise before it releases them, and charges the table's budget (Eq. 25).

The noise of a label is a function of the party's secret, the label's expression, mechanism, epsilon, bounds or classes,
a fingerprint of the label's column over the whole table, the row's position in it and the label's value. While the
column does not change, every request gets the same noisy labels, whatever else the relation selects, filters or joins:
nobody can average the noise away, and it is charged once. When the column changes, new noise is drawn and charged.

Bounds and classes come from the policy, or from the job if the policy has none; never from the data. A label outside
the bounds counts as the nearest bound, a missing number as their middle, an unknown or missing class as the first
class; each gets noise like any other. An error instead would reveal that such a label exists.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import PrivacyError
from tablepuppet.party.arguments import Epsilon
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Category, Use
from tablepuppet.party.release import Release
from tablepuppet.prep.columns.label import CLASS_LABELS, NUMBER_LABELS, Question, sent_classes
from tablepuppet.prep.columns.values import numbers
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.label import (
    MOST_CLASSES,
    ClassMechanism,
    check_bounds,
    check_classes,
    keep_probability,
    noisy_classes,
    noisy_numbers,
)
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.catalog import described
from tablepuppet.sql.infer import arrow_type
from tablepuppet.sql.plan import Plan

Classes = Annotated[Sequence[Category], Meta(max_length=MOST_CLASSES)]
Rows = tuple[pa.ChunkedArray, pa.Array, NDArray[np.intp]]


@op(
    "label.private_numbers",
    asked="labels with `label_epsilon`",
    releases=Release.LABELS,
    columns=("column",),
    use=Use.LABEL,
    private=True,
    returns=NUMBER_LABELS,
)
def private_numbers(
    table: LocalTable, view: str, column: str, epsilon: Epsilon, bounds: tuple[float, float] | None
) -> Values:
    """Numeric labels of all rows, clipped to the bounds, with Laplace noise; a missing label counts as the middle."""
    table.view(view)
    with _naming(table.grant.party, table.grant.table, column):
        given = None if bounds is None else (float(bounds[0]), float(bounds[1]))
        lo, hi = _agreed("bounds", table.grant.outputs[column].rule.bounds, given)
        check_bounds((lo, hi), epsilon)
        numbers(table.snapshot.nothing_of(column))  # no row is read: the type alone decides
        secret, release, positions = _release(table, column, "laplace", epsilon, [lo, hi])
    table.charge(Spending.of_pure(epsilon), "labels", release)
    labels, names, places = _rows(table, view, column, positions)
    values, present = numbers(labels)
    noisy = noisy_numbers(
        np.where(present & ~np.isnan(values), values, lo / 2 + hi / 2),
        names,
        bounds=(lo, hi),
        epsilon=float(epsilon),
        secret=secret,
        expression=table.snapshot.scan.outputs[column],
    )
    return {"labels": noisy[places], "missing": 0}


@op(
    "label.private_classes",
    asked="labels with `label_epsilon`",
    releases=Release.LABELS,
    columns=("column",),
    use=Use.LABEL,
    private=True,
    returns=CLASS_LABELS,
)
def private_classes(
    table: LocalTable, view: str, column: str, epsilon: Epsilon, classes: Classes | None, mechanism: ClassMechanism
) -> Values:
    """The listed classes, and the noisy class of every row; a label that is not listed counts as the first class."""
    table.view(view)
    with _naming(table.grant.party, table.grant.table, column):
        policy = table.grant.outputs[column].rule.categories
        listed = _agreed("classes", _sorted(policy), _sorted(classes))
        check_classes(len(listed))
        values = fitted_classes(listed, table.snapshot.type_of(column))
        domain = [[type(each).__name__, each] for each in listed]
        secret, release, positions = _release(table, column, mechanism, epsilon, domain)
    table.charge(Spending.of_pure(epsilon), "labels", release)
    labels, names, places = _rows(table, view, column, positions)
    codes = noisy_classes(
        pc.index_in(labels.combine_chunks(), values).fill_null(0).to_numpy(zero_copy_only=False),
        names,
        classes=listed,
        epsilon=float(epsilon),
        secret=secret,
        expression=table.snapshot.scan.outputs[column],
        mechanism=mechanism,
    )
    sent, days = sent_classes(values)
    narrow = codes[places].astype(np.min_scalar_type(len(listed)))
    return {"found": len(listed), "classes": sent, "codes": narrow, "missing": 0, "days": days}


@contextmanager
def _naming(party: str, table: str, column: str) -> Iterator[None]:
    """Name the party, table and column of the label in errors."""
    try:
        yield
    except PrivacyError as error:
        raise PrivacyError(f"party {party!r}, table {table!r}, label {column!r}: {error}", rule="label") from None


def _agreed(what: str, policy: tuple[Any, ...] | None, asked: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """The bounds or classes of the policy, or of the job where the policy has none."""
    if policy is not None and asked is not None and policy != asked:
        raise PrivacyError(f"the policy has other {what} than label_{what}: leave label_{what} out")
    found = policy if policy is not None else asked
    if found is None:
        example = "label_bounds=(0.0, 5.0)" if what == "bounds" else "label_classes=('no', 'yes')"
        raise PrivacyError(
            f"noise needs {what} that do not come from the data: give them, as in tp.Privacy({example}), or let the "
            "party's policy give them"
        )
    return found


def _sorted(classes: Sequence[Category] | None) -> tuple[Category, ...] | None:
    """The classes in an order that does not depend on how they were listed."""
    return None if classes is None else tuple(sorted(classes, key=lambda each: (type(each).__name__, each)))


def _rows(table: LocalTable, view: str, column: str, positions: NDArray[np.int64]) -> Rows:
    """Labels and names of the distinct rows of a view, and the index of each row of the view among them.

    A row's name is its position in the whole column.
    """
    row_ids, places = np.unique(table.view(view).row_ids, return_inverse=True)
    found = np.ascontiguousarray(positions[table.snapshot.place(row_ids)], "<i8")
    names = pa.Array.from_buffers(pa.binary(8), len(found), [None, pa.py_buffer(found.tobytes())])
    with table.mechanism():
        return table.snapshot.outputs[column].take(pa.array(table.snapshot.place(row_ids))), names, places


def fitted_classes(classes: tuple[Category, ...], type_: pa.DataType) -> pa.Array:
    """The classes as values of the label's type."""
    try:
        found = pa.array(classes).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise PrivacyError(f"its type is {type_}, which the label classes do not fit; list values of it") from None
    if pc.count_distinct(found).as_py() < len(classes):
        raise PrivacyError("two of the label classes are the same value; list each once")
    return found


def _release(
    table: LocalTable, column: str, mechanism: str, epsilon: float, domain: Any
) -> tuple[bytes, str, NDArray[np.int64]]:
    """The secret that noise of this release is drawn from, its name in the ledger, and the positions of rows."""
    expression = table.snapshot.scan.outputs[column]
    state, positions = table.state_of(column)
    secret = hmac.digest(table.noise_secret, f"labels {table.grant.table.lower()} {state}".encode(), "sha256")
    mark = hmac.digest(secret, b"mark", "sha256").hex()  # keyed: from a plain hash, others could guess the state
    return secret, json.dumps(["labels", expression, mechanism, float(epsilon), domain, mark]), positions


def check_label(privacy: Privacy, plan: Plan, *, classes: bool) -> None:
    """PrivacyError if a party would refuse to release noisy labels, as far as its published policy shows."""
    (class_question if classes else number_question)(privacy)  # it refuses the settings of the other
    label = plan.query.label
    if label is None or privacy.label_epsilon is None:
        return
    for shard in plan.tables[label.alias].shards:
        with _naming(shard.party, shard.name, label.name):
            if classes:
                policy = described(label.expression, shard.categories) or None
                listed = _agreed("classes", _sorted(policy), _sorted(privacy.label_classes))
                check_classes(len(listed))
                kind = arrow_type(label.type)
                if not pa.types.is_dictionary(kind):
                    fitted_classes(listed, kind)
            else:
                given = None if privacy.label_bounds is None else tuple(privacy.label_bounds)
                bounds = _agreed("bounds", described(label.expression, shard.bounds), given)
                check_bounds((float(bounds[0]), float(bounds[1])), privacy.label_epsilon)


def number_question(privacy: Privacy) -> Question:
    """How to ask for noisy numbers."""
    if privacy.label_classes is not None or privacy.label_mechanism == "randomised_response":
        raise PrivacyError(
            "label_classes and randomised response are for classifiers; a regressor needs label_bounds, such as "
            "tp.Privacy(label_epsilon=2.0, label_bounds=(0.0, 5.0))"
        )
    bounds = None if privacy.label_bounds is None else list(privacy.label_bounds)
    return "label.private_numbers", {"epsilon": privacy.label_epsilon, "bounds": bounds}


def class_question(privacy: Privacy) -> Question:
    """How to ask for noisy classes."""
    if privacy.label_bounds is not None:
        raise PrivacyError(
            "label_bounds are for regressors; a classifier needs label_classes, such as "
            "tp.Privacy(label_epsilon=2.0, label_classes=('no', 'yes'))"
        )
    classes = None if privacy.label_classes is None else list(privacy.label_classes)
    asked = {"epsilon": privacy.label_epsilon, "classes": classes, "mechanism": class_mechanism(privacy)}
    return "label.private_classes", asked


def class_mechanism(privacy: Privacy) -> ClassMechanism:
    """The mechanism that adds noise to classes."""
    return "laplace" if privacy.label_mechanism == "laplace" else "randomised_response"


def kept(privacy: Privacy | None, classes: int) -> float:
    """The probability that a noisy label is the true class: 1 without noise."""
    if privacy is None or privacy.label_epsilon is None:
        return 1.0
    return keep_probability(classes, privacy.label_epsilon, class_mechanism(privacy))
