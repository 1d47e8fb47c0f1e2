"""What a query does with the columns of a table besides selecting them: they may be filters, join keys and labels too.

Input: a plan. Output: uses with their expressions, and which protected columns are known by another use. It uses
no row data.
"""

from __future__ import annotations

from collections.abc import Iterator

from tablepuppet.sql.expression import columns_of
from tablepuppet.sql.plan import Plan


def known_of_features(plan: Plan) -> list[str]:
    """Features whose columns the query uses in another way too, as sentences."""
    found: dict[str, None] = {}
    for feature in plan.query.features:
        table, own = plan.tables[feature.alias].name, set(columns_of(feature.expression))
        for how, text in uses_of_table(plan, table):
            for column in sorted(own & set(columns_of(text)) if how != "feature" else ()):
                found[
                    f"Column {column!r} of table {table!r} is a feature and a {how}: what that use reveals is known."
                ] = None
    return list(found)


def uses_of_table(plan: Plan, name: str) -> Iterator[tuple[str, str]]:
    """(how, expression) for all that a query does with a table, under whatever alias."""
    query = plan.query
    for alias in (alias for alias, other in plan.tables.items() if other.name.lower() == name.lower()):
        yield from (("feature", column.expression) for column in query.features if column.alias == alias)
        for branch in query.branches:
            if branch.filters.get(alias):
                yield "filter", branch.filters[alias]
            yield from (("join key", text) for key in branch.keys for text in key.members.get(alias, ()))
        if query.label is not None and query.label.alias == alias:
            yield "label", query.label.expression
