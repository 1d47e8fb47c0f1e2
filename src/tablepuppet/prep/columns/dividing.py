"""What divides the rows of a table into the sides of a split or into folds: groups, classes, or a time.

Input: the name of a column or table. Output: one number for each base row of its table. Groups of a join key are equal
digests, which the coordinator has had for the join; other columns are sent only by tables whose policy says
``cross_statistics``, the label as for every fit.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.mapping.join import number_digests
from tablepuppet.operators.client import Client
from tablepuppet.party.request import Step
from tablepuppet.party.returns import Asked, check_reply, keys_returned
from tablepuppet.prep.columns.label import ask_classes, base_classes
from tablepuppet.prep.columns.selected import check_across, check_without_noise, find_category, find_number
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import NO_DIGESTS
from tablepuppet.prep.columns.values import DATES
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.expression import with_alias
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import family

Divided = tuple[str, NDArray[np.int64]]  # the alias of a table, and a number 0, 1, ... for each of its base rows
Time = date | datetime | float
BY_FILTERS = (
    "dividing rows by a time sends the column as one number per row, which the table does not allow; write two "
    "queries, one WHERE the column is before that time and one WHERE it is not, or ask the party's operator"
)
_PER_DAY = 8.64e9  # times are compared to ten microseconds: days as float64 are not much more accurate


def groups_of(client: Client, name: str, step: str) -> Divided:
    """The group of each row by a join key, selected or not, or by a selected column; of an alias, each row is a group.

    Rows without a value are one group.
    """
    tables = client.tables
    if name in tables:
        return name, np.arange(tables[name].rows)
    found = _find_groups(client.plan, name, step)
    if isinstance(found, OutputColumn):
        alias, codes = found.alias, SentColumns(client).codes(found).codes
    else:
        alias, codes = found[0], _key_codes(client, *found)
    return alias, np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _find_groups(plan: Plan, name: str, step: str) -> tuple[str, str] | OutputColumn:
    """A join key (alias, label), or a selected column that its table sends; LearnError or PrivacyError for others."""
    key = _find_key(plan, name)
    if key is not None:
        return key
    _check_known(plan, name, step)
    column = find_category(plan, name, step)
    check_without_noise(plan, [column], step)
    check_across(plan, [column], step)
    return column


def _find_key(plan: Plan, name: str) -> tuple[str, str] | None:
    """(alias, label) of a join key that is this column alone; a name is first that of a selected column."""
    selected = next((c for c in plan.query.outputs if name in (c.name, c.qualified)), None)
    for alias in plan.tables:
        scans = plan.of_alias(alias)
        for key in scans[0].keys if scans else ():
            column = key.expressions[0]
            named = selected is None and name.lower() in (column.lower(), f"{alias}.{column}".lower())
            is_it = named or (selected is not None and (alias, column) == (selected.alias, selected.expression))
            if is_it and len(key.expressions) == 1 and all(key in scan.keys for scan in scans):
                return alias, key.label
    return None


def _key_codes(client: Client, alias: str, label: str) -> NDArray[np.int64]:
    """The number of each base row's key: equal digests have one number, whichever shard they are of."""
    shards, scans = client.shards(alias), {scan.party: scan for scan in client.plan.of_alias(alias)}

    def check(party: str, reply: Any) -> None:
        scan, asked = scans[party], Asked(rows=client.rows_read[party, alias])
        returns = keys_returned(scan, reply)
        check_reply(party, f"table {scan.table!r}", "keys.blind", returns, reply, asked)

    step = Step("keys.blind", alias)
    asked = [client.outbox.ask(shard.party, step, None, partial(check, shard.party)) for shard in shards]
    places = [[key.label for key in scans[shard.party].keys].index(label) for shard in shards]
    replies = [(reply.read(), place) for reply, place in zip(asked, places, strict=True)]
    lists = [NO_DIGESTS, *(reply[f"digests{place}"].view(np.uint8) for reply, place in replies)]
    numbers, size = number_digests(lists)
    found = np.full(client.tables[alias].rows, size, np.int64)
    for shard, (reply, place), known in zip(shards, replies, numbers[1:], strict=True):
        found[shard.slice] = np.append(known, size)[reply[f"codes{place}"][shard.row_ids]]
    return found


def _check_known(plan: Plan, name: str, step: str) -> None:
    """LearnError if a name is none of a selected column; it says what may be named."""
    outputs = plan.query.outputs
    if not any(name in (column.name, column.qualified) for column in outputs):
        known = [*(column.qualified for column in outputs), *(column.name for column in outputs), *plan.tables]
        raise LearnError(
            f"{step}: {name!r} is no selected column, no column that tables are joined by, and no alias of a table"
            f"{did_you_mean(name, known)}; select it, or name the alias of a table whose rows stay together"
        )


def classes_of(client: Client, label: OutputColumn, step: str) -> Divided:
    """The class of each row of the label's table, in the order of class values."""
    check_without_noise(client.plan, [label], step)
    return label.alias, base_classes(client, label, ask_classes(client, label), least=1).numbers.astype(np.int64)


def times_of(client: Client, name: str, step: str) -> tuple[OutputColumn, NDArray[np.float64]]:
    """(a selected column, its number for each row of its table); LearnError if one is missing."""
    column = _find_time(client.plan, name, step)
    values = SentColumns(client).numbers(column).values
    missing = np.count_nonzero(np.isnan(values))
    if missing:
        instead = f"add WHERE {with_alias(column.expression, column.alias)} IS NOT NULL"
        raise LearnError(f"{step}: column {column.qualified} has no value in {missing:,} rows; {instead}")
    return column, np.rint(values * _PER_DAY) if family(column.type) in DATES else values


def _find_time(plan: Plan, name: str, step: str) -> OutputColumn:
    """A selected column of numbers or dates that its table sends; LearnError or PrivacyError for others."""
    column = find_number(plan, name, step)
    check_without_noise(plan, [column], step)
    check_across(plan, [column], step, BY_FILTERS)
    return column


def check_dividing(plan: Plan, by: str | None, stratify: bool, after: Time | None) -> None:
    """Raise what `split` would raise, as far as the catalog shows, before a party reads."""
    if after is not None and by is not None:
        as_time(after, _find_time(plan, by, "split"))
    elif by is not None and by not in plan.tables:
        _find_groups(plan, by, "split")
    elif stratify:
        check_without_noise(plan, [stratified_label(plan)], "split")


def stratified_label(plan: Plan) -> OutputColumn:
    """The label whose classes have their shares on both sides; LearnError if there is none."""
    if plan.query.label is None:
        raise LearnError("split: stratify needs a label: name a selected column, fed.sql(..., label='column')")
    return plan.query.label


def as_time(after: Time, column: OutputColumn) -> float:
    """A time in the numbers of `times_of`; LearnError unless it is of the column's kind."""
    if family(column.type) in DATES:
        if not isinstance(after, date):
            raise LearnError(
                f"split: column {column.qualified} is {column.type}: after is a date or datetime, not {after!r}"
            )
        if isinstance(after, datetime):
            moment = after if after.tzinfo is None else after.astimezone(UTC).replace(tzinfo=None)
        else:
            moment = datetime(after.year, after.month, after.day)
        return float(np.rint(np.datetime64(moment, "us").astype(np.int64) / 10))
    if isinstance(after, bool) or not isinstance(after, Real) or np.isnan(after):
        raise LearnError(f"split: column {column.qualified} is {column.type}: after is a number, not {after!r}")
    return float(after)


def shares(counts: NDArray[np.integer], test: float) -> NDArray[np.int64]:
    """How many rows of each class are held out: round(test * n) together, of each class within one of its share.

    >>> shares(np.array([10, 5, 5]), 0.3).tolist()
    [3, 1, 2]
    """
    ends = np.rint(test * np.cumsum(counts)).astype(np.int64)
    return np.diff(ends, prepend=0)
