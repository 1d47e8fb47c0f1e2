"""EXPLAIN: the plan of a relation as text, with the sizes that the join found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tablepuppet.sql.plan import Plan, Scan
from tablepuppet.sql.query import Branch, OutputColumn


@dataclass(frozen=True)
class ShardSize:
    """Rows of a shard: read into the snapshot, and taking part in the join."""

    read: int
    used: int


@dataclass(frozen=True)
class Sizes:
    """What the join found."""

    joined_rows: int
    mapping_bytes: int
    shards: Mapping[tuple[str, str], ShardSize]  # (party, alias)
    wire_bytes: int  # of one number in a row vector


def explain(plan: Plan, sizes: Sizes, local_parties: frozenset[str]) -> str:
    """The tree: union, joins, scans; then the bytes of a training round and where best to run it."""
    lines = _header(plan, sizes)
    branches = plan.query.branches
    for number, branch in enumerate(branches):
        prefix = "  " if len(branches) == 1 else f"  branch {number + 1}: "
        keys = [_key_text(branch, number) for number in range(len(branch.keys))] or ["no key"]
        lines.append(f"{prefix}join on {keys[0]}" if branch.keys else f"{prefix}{_no_join(plan)}")
        lines += [" " * (len(prefix) + 5) + f"and {key}" for key in keys[1:]]
    for alias in plan.tables:
        lines += _table_lines(plan, alias, sizes)
    lines += ["", *_round_lines(plan, sizes), "", *_place_lines(plan, sizes, local_parties)]
    return "\n".join(lines)


def _header(plan: Plan, sizes: Sizes) -> list[str]:
    query = plan.query
    union = (
        "" if len(query.branches) == 1 else f", {'UNION' if query.distinct else 'UNION ALL'} of {len(query.branches)}"
    )
    label = f"label {query.label.qualified}" if query.label else "no label"
    return [
        f"Relation: {sizes.joined_rows:,} joined rows{union}, {len(query.features)} features, {label}; "
        f"mapping {readable(sizes.mapping_bytes)}"
    ]


def _no_join(plan: Plan) -> str:
    return "cross join" if len(plan.tables) > 1 else "one table, no join"


def _key_text(branch: Branch, number: int) -> str:
    members = branch.keys[number].members
    return " = ".join(
        f"{alias}.{parts[0]}" if len(parts) == 1 else f"{alias}.({', '.join(parts)})"
        for alias, parts in members.items()
    )


def _table_lines(plan: Plan, alias: str, sizes: Sizes) -> list[str]:
    table, scans = plan.tables[alias], plan.of_alias(alias)
    used = sum(sizes.shards[scan.party, alias].used for scan in scans)
    name = table.name if table.name == alias else f"{table.name} {alias}"
    lines = [f"    {name}: {used:,} of {table.rows:,} rows take part"]
    columns = [column for column in plan.query.outputs if column.alias == alias]
    if columns:
        lines.append(f"      columns  {', '.join(_column_text(c, c is plan.query.label) for c in columns)}")
    for scan in scans:
        size = sizes.shards[scan.party, alias]
        lines.append(f"      scan     {scan.party}: {size.read:,} rows read, {size.used:,} take part{_filters(scan)}")
    return lines


def _column_text(column: OutputColumn, is_label: bool) -> str:
    name = column.name.removeprefix(f"{column.alias}.")
    text = name if column.expression.strip('"') == name else f"{column.expression} AS {name}"
    return f"{text} (label)" if is_label else text


def _filters(scan: Scan) -> str:
    texts = [text for text in scan.filters if text]
    if not texts:
        return ""
    pushed = ", in the database" if scan.pushed else ""
    return f"; filter {' | '.join(texts)}{pushed}"


def _round_lines(plan: Plan, sizes: Sizes) -> list[str]:
    """Bytes per class and round: one number per base row that takes part, each way, for tables with features."""
    lines = ["A training round moves, per output of the model:"]
    for alias in plan.tables:
        moved = _moved(plan, alias, sizes)
        lines.append(f"    {alias}: {readable(moved)} up, {readable(moved)} down")
    rows = sizes.joined_rows * sizes.wire_bytes * len(_feature_aliases(plan))
    total = sum(_moved(plan, alias, sizes) for alias in plan.tables)
    return [*lines, f"    in all {readable(2 * total)}; the joined rows would be {readable(2 * rows)}"]


def _feature_aliases(plan: Plan) -> set[str]:
    return {column.alias for column in plan.query.features}


def _moved(plan: Plan, alias: str, sizes: Sizes, party: str | None = None) -> int:
    if alias not in _feature_aliases(plan):
        return 0
    scans = [scan for scan in plan.of_alias(alias) if party in (None, scan.party)]
    return sum(sizes.shards[scan.party, alias].used for scan in scans) * sizes.wire_bytes


def _place_lines(plan: Plan, sizes: Sizes, local_parties: frozenset[str]) -> list[str]:
    """Which party to run the job at, and what that saves."""
    whole = 2 * sum(_moved(plan, alias, sizes) for alias in plan.tables)
    own = {p: 2 * sum(_moved(plan, alias, sizes, p) for alias in plan.tables) for p in plan.parties}
    best = max(own, key=lambda party: own[party])
    lines = [
        f"Run the job at {best}: {readable(whole - own[best])} a round cross the network; "
        f"from a machine of no party, {readable(whole)}.",
        f"A coordinator at {best} holds the blinding key and could test guesses of the others' join keys; "
        f"they must allow that.",
    ]
    if set(plan.parties) <= local_parties:
        lines.append("Now all parties are in this process: nothing crosses a network.")
    return lines


def readable(size: float) -> str:
    """Bytes for people.

    >>> readable(999), readable(31_234_567)
    ('999 B', '31.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
