"""The columns that a statistic is asked of: found by name, of the right kind, and not forbidden by the catalog.

Input: a plan and names. Output: columns, or an error that names the column, the statistic and the rule, before any
party is asked. Parties still check every op against their policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.prep.columns.values import DATES
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.expression import columns_of
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, Family, family

WITH_NOISE = ("describe", "quantile", "histogram", "profile")  # statistics that have a form with noise


def find_column(plan: Plan, name: str, step: str) -> OutputColumn:
    """The selected column of that name, or of that ``alias.name``."""
    outputs = plan.query.outputs
    for column in outputs:
        if name in (column.name, column.qualified):
            return column
    known = [column.name for column in outputs]
    raise LearnError(f"{step}: {name!r} is no selected column{did_you_mean(str(name), known)}")


def find_columns(plan: Plan, names: Sequence[str], step: str) -> tuple[OutputColumn, ...]:
    """The named columns, each once."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        example = names if isinstance(names, str) else plan.query.outputs[0].name
        raise LearnError(f"{step}: columns is a list of names, such as columns=[{example!r}]")
    return tuple(dict.fromkeys(find_column(plan, name, step) for name in names))


def find_number(plan: Plan, name: str, step: str) -> OutputColumn:
    """The column of that name; LearnError unless it holds numbers, dates or booleans."""
    found = find_column(plan, name, step)
    if not is_number(found):
        raise LearnError(f"{step}: column {found.name!r} is {found.type}, which is no number; CAST it in SELECT")
    return found


def find_category(plan: Plan, name: str, step: str) -> OutputColumn:
    """The column of that name; LearnError unless its values can be counted as categories."""
    found = find_column(plan, name, step)
    if family(found.type) not in KEY_LIKE:
        raise LearnError(
            f"{step}: column {found.name!r} is {found.type}, which has no categories; CAST or round it in SELECT"
        )
    return found


def find_numbers(plan: Plan, names: Sequence[str] | None, step: str) -> list[OutputColumn]:
    """The named columns, each once; every numeric one, the label too, if none is named."""
    if names is None:
        return [column for column in plan.query.outputs if is_number(column)]
    find_columns(plan, names, step)
    return list(dict.fromkeys(find_number(plan, name, step) for name in names))


def is_number(column: OutputColumn) -> bool:
    """Whether a column has numbers, dates or booleans."""
    return family(column.type) in NUMERIC


def is_text(type_: str) -> bool:
    """Whether columns of a type are categories even where the query does not say so."""
    return family(type_) in (Family.TEXT, Family.UUID)


def is_category(column: OutputColumn, categorical: frozenset[str]) -> bool:
    """Whether a column is taken as categories; ``categorical`` are those that the query says."""
    return column.name in categorical or is_text(column.type)


def is_date(column: OutputColumn) -> bool:
    """Whether its numbers are days since 1970-01-01."""
    return family(column.type) in DATES


def check_without_noise(
    plan: Plan, columns: Iterable[OutputColumn], step: str, instead: str = f"{', '.join(WITH_NOISE)} have"
) -> None:
    """PrivacyError if a party releases these columns only with noise, which was not asked for.

    ``instead`` is what has a form with noise.
    """
    advice = (
        "; ask for noise by privacy=tp.Privacy(feature_epsilon=...), or --epsilon of a command"
        if step in WITH_NOISE
        else f", and this has no form with noise; {instead}"
    )
    for column in columns:
        for shard in plan.tables[column.alias].shards:
            if shard.require_dp:
                raise PrivacyError(
                    f"{_where(step, shard, column)}: is released only with noise{advice} (policy rule require_dp)",
                    rule="require_dp",
                )


COMPARED = (
    "comparing columns of two tables sends each as one number per row, which the table does not allow; compare columns "
    "of one table, or ask the party's operator"
)
LABELLED = (
    "learning from the label sends the category of each row as one number, which the table does not allow; use OneHot, "
    "or ask the party's operator to set cross_statistics = true"
)


def check_across(plan: Plan, columns: Iterable[OutputColumn], step: str, reason: str = COMPARED) -> None:
    """PrivacyError if a party does not send one of these columns, one number per row, to compare it across tables."""
    for column in columns:
        for shard in plan.tables[column.alias].shards:
            if not shard.cross_statistics:
                rule = "secure_sum" if shard.secure_sum else "cross_statistics"
                raise PrivacyError(
                    f"{_where(step, shard, column)}: {reason} (policy rule {rule})",
                    rule=rule,
                )


def check_label_means(plan: Plan, label: OutputColumn, column: OutputColumn, step: str) -> None:
    """PrivacyError if means of labels would reach a party, as numbers for its categories, that may not have them."""
    readers = dict.fromkeys(shard.party for shard in plan.tables[column.alias].shards)
    for shard in plan.tables[label.alias].shards:
        others = ", ".join(repr(party) for party in readers if party != shard.party)
        if others and not shard.label_means:
            raise PrivacyError(
                f"{_where(step, shard, label)}: means of the label by category of {column.qualified} would reach party "
                f"{others}, which the label's table does not allow; use OneHot, or ask the party's operator to set "
                "label_means = true (policy rule label_means)",
                rule="label_means",
            )


def _where(step: str, shard: Shard, column: OutputColumn) -> str:
    return f"{step}: party {shard.party!r}, table {shard.name!r}, column {column.name!r}"


def sends_across(plan: Plan, aliases: Iterable[str]) -> bool:
    """Whether all parties of these tables send columns for statistics across tables."""
    return all(shard.cross_statistics for alias in aliases for shard in plan.tables[alias].shards)


def is_public(plan: Plan, column: OutputColumn) -> bool:
    """Whether the column is public at every party: all columns that it is computed from."""
    used = {name.lower() for name in columns_of(column.expression)}
    shards = plan.tables[column.alias].shards
    return bool(used) and all(used <= shard.public_names for shard in shards)
