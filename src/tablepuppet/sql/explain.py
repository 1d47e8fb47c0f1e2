"""EXPLAIN: the plan of a relation as a tree, with the sizes that the join found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tablepuppet.runs.figures import readable, seconds
from tablepuppet.runs.fitted_text import window_width
from tablepuppet.runs.table_view import preformatted
from tablepuppet.sql.plan import Plan, Scan, conjuncts
from tablepuppet.sql.query import Branch, Comparison, JoinTree, Keep, KeyClass, OutputColumn

WIDTH = 118  # letters of a line at most


@dataclass(frozen=True)
class ShardSize:
    """Rows of a shard: read into the snapshot, and taking part in the join; and joined rows that found none of it."""

    read: int
    used: int
    without: int = 0


@dataclass(frozen=True)
class JoinSizes:
    """What the join found."""

    joined_rows: int
    mapping_bytes: int
    shards: Mapping[tuple[str, str], ShardSize]  # (party, alias)
    wire_bytes: int  # of one number in a row vector


@dataclass(frozen=True)
class MeasuredStep:
    """What a party has taken for what was asked together."""

    ops: tuple[str, ...]
    party: str
    requests: int
    up: int  # bytes
    down: int
    seconds: float  # from requests to replies
    trips: int  # of all parties together
    here: float  # seconds until the next trip of the same run


@dataclass(frozen=True)
class Measured:
    """What a relation has taken until now."""

    steps: Sequence[MeasuredStep]
    join_seconds: float


@dataclass(frozen=True)
class _Node:
    """One line of the tree with the nodes below it."""

    text: str
    below: list[_Node] = field(default_factory=list)

    def drawn(self, width: int, first: str = "", rest: str = "") -> Iterator[str]:
        """The lines of the tree; ``first`` stands before the first line, ``rest`` before all others."""
        stem = rest + ("│  " if self.below else "   ")
        yield from _wrapped(self.text, width, first, stem)
        for node in self.below[:-1]:
            yield from node.drawn(width, f"{rest}├─ ", f"{rest}│  ")
        for node in self.below[-1:]:
            yield from node.drawn(width, f"{rest}└─ ", f"{rest}   ")


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines that break between words; ``first`` stands before the first, ``rest`` before all others."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


class Explanation(str):
    """The plan as text; a notebook shows it as it is, and IPython line by line, not as a string in quotes."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return preformatted(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        for number, line in enumerate(self.split("\n")):
            if number:
                printer.break_()
            printer.text(line)


def explain(
    plan: Plan,
    sizes: JoinSizes,
    local_parties: frozenset[str],
    preparation: Sequence[str] = (),
    width: int | None = None,
    measured: Measured | None = None,
) -> Explanation:
    """The tree: union, joins, tables, scans; then how features are prepared, if not in the usual way, the bytes of a
    training round and where best to run it. Lines are as wide as the window, unless a ``width`` is given.
    """
    width = min(WIDTH, window_width()) if width is None else width
    lines = [*_tree(plan, sizes).drawn(width), ""]
    for line in preparation:
        lines += _wrapped(line, width, rest="     ")
    moved = _moved(plan, sizes)
    lines += [*([""] if preparation else []), *_round_lines(plan, sizes, moved), ""]
    for sentence in _place_lines(plan, moved, local_parties):
        lines += _wrapped(sentence, width)
    if measured is not None:
        lines += ["", *_measured_lines(plan, moved, measured)]
    return Explanation("\n".join(lines))


def _measured_lines(plan: Plan, moved: Mapping[tuple[str, str], int], measured: Measured) -> list[str]:
    """What was measured, as a table: a row for each party and for what was asked of it together."""
    heads = ["measured", "party", "requests", "up", "down", "party and way", "here"]
    rows = [["join of keys", "", "", "", "", "", _spent(measured.join_seconds)]]
    before: tuple[str, ...] = ()
    for step in measured.steps:
        is_first, before = step.ops != before, step.ops
        figures = [f"{step.requests:,}", readable(step.up), readable(step.down), _spent(step.seconds)]
        here = _spent(step.here) if is_first and step.here else ""
        rows.append([_short(", ".join(step.ops)) if is_first else "", step.party, *figures, here])
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    lines = [
        "  ".join(
            f"{cell:<{widths[at]}}" if at < 2 else f"{cell:>{widths[at]}}" for at, cell in enumerate(row)
        ).rstrip()
        for row in (heads, *rows)
    ]
    rounds = [step for step in measured.steps if step.trips > 1 and step.up and step.down]
    most = max((step.trips for step in rounds), default=0)
    of_rounds = [step for step in rounds if step.trips == most]
    if not of_rounds:
        return [*lines, "", "No round was measured yet: fit a model on this relation, then explain it again."]
    up, down, estimated = (
        sum(each.up for each in of_rounds),
        sum(each.down for each in of_rounds),
        sum(moved.values()),
    )
    return [
        *lines,
        "",
        f"A round: estimated {readable(estimated)} up and {readable(estimated)} down; "
        f"measured {readable(up / most)} and {readable(down / most)} a trip, over {most:,} trips.",
    ]


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _spent(duration: float) -> str:
    return f"{1000 * duration:,.1f} ms" if duration < 1 else seconds(duration)


def _tree(plan: Plan, sizes: JoinSizes) -> _Node:
    query = plan.query
    features = len(query.features)
    label = f"label {query.label.qualified}" if query.label else "no label"
    title = (
        f"Relation: {sizes.joined_rows:,} joined rows, {features} feature{'s' * (features != 1)}, {label}; "
        f"mapping {readable(sizes.mapping_bytes)}"
    )
    tables = [_table(plan, alias, sizes) for alias in plan.tables]
    if len(query.branches) == 1:
        return _Node(title, [_Node(_join(plan), [*_keys(query.branches[0]), *tables])])
    union = "UNION: a combination of rows counts once" if query.distinct else "UNION ALL"
    branches = [_branch(plan, number, branch) for number, branch in enumerate(query.branches, 1)]
    return _Node(title, [_Node(union, branches), _Node("every shard is read once for all branches", tables)])


def _join(plan: Plan) -> str:
    return f"join of {len(plan.tables)} tables" if len(plan.tables) > 1 else "one table, no join"


def _branch(plan: Plan, number: int, branch: Branch) -> _Node:
    shards = [_Node(f"{alias}: only at {party}") for alias, party in branch.shards.items() if party is not None]
    filters = [_Node(f"filter {alias}: {text}") for alias, text in branch.filters.items()]
    return _Node(f"branch {number}: {_join(plan)}", [*_keys(branch), *shards, *filters])


def _keys(branch: Branch) -> list[_Node]:
    joined = {alias for key in branch.keys for alias in key.members}
    crossed = [alias for alias in branch.shards if alias not in joined] if len(branch.shards) > 1 else []
    note = [_Node(f"no key for {' and '.join(crossed)}: each row meets every row")] if crossed else []
    return [*_tree_nodes(branch.joined), *note]


def _tree_nodes(tree: JoinTree) -> list[_Node]:
    """Keys of inner joins, then what is attached to their rows, and what they must hold, in order."""
    nodes = [_Node(_key_text(key)) for key in tree.keys]
    for step in tree.steps:
        conditions = [_Node(f"where {alias}: {text}") for alias, text in step.conditions.items()]
        if isinstance(step, Keep):
            nodes += conditions
            continue
        word = "FULL" if step.keeps_right else "LEFT"
        keys = [_Node(_key_text(key)) for key in step.keys]
        names = ", ".join(sorted(step.right.aliases))
        nodes.append(_Node(f"{word} JOIN of {names}", [*_tree_nodes(step.right), *keys, *conditions]))
    return nodes


def _key_text(key: KeyClass) -> str:
    composite = len(key.families) > 1
    members = [
        f"({', '.join(f'{alias}.{part}' for part in parts)})" if composite else f"{alias}.{parts[0]}"
        for alias, parts in key.members.items()
    ]
    return f"{'composite key' if composite else 'key'} {' = '.join(members)}"


def _table(plan: Plan, alias: str, sizes: JoinSizes) -> _Node:
    table, scans = plan.tables[alias], plan.of_alias(alias)
    used = sum(sizes.shards[scan.party, alias].used for scan in scans)
    name = table.name if table.name == alias else f"{table.name} {alias}"
    columns = [_column_text(c, c is plan.query.label) for c in plan.query.outputs if c.alias == alias]
    selected = [_Node(f"selects {', '.join(columns)}")] if columns else []
    rows = {shard.party: shard.counted for shard in table.shards}
    view = next((use.view for use in plan.query.tables if use.alias == alias), None)
    selected += [] if view is None else [_Node(f"made there: {view.text_over(table.name)}")]
    below = [*selected, *(_scan(scan, sizes.shards[scan.party, alias], rows[scan.party]) for scan in scans)]
    without = sum(sizes.shards[scan.party, alias].without for scan in scans)
    note = f"; {without:,} joined row{'s have' if without > 1 else ' has'} none" if without else ""
    return _Node(f"{name}: {used:,} of {table.counted} rows take part{note}", below)


def _scan(scan: Scan, size: ShardSize, rows: str) -> _Node:
    text = f"scan at {scan.party}: {rows} rows, {size.read:,} read, {size.used:,} take part"
    if len(scan.filters) > 1:
        return _Node(text, [_Node("filtered at the party: by the filters of its branches")])
    pushed = [_comparison_text(comparison) for comparison in scan.pushed]
    parts = conjuncts(scan.filters[0], scan.columns) if scan.filters[0] else ()
    rest = [text for text, is_pushed in parts if not is_pushed]
    below = [_Node(f"filtered in the source database: {' AND '.join(pushed)}")] if pushed else []
    below += [_Node(f"filtered at the party: {' AND '.join(rest)}")] if rest else []
    return _Node(text, below)


def _comparison_text(comparison: Comparison) -> str:
    values = ", ".join(repr(value) for value in comparison.values)
    values = f"({values})" if comparison.operator == "in" else values
    return f"{comparison.column} {comparison.operator.upper()} {values}".rstrip()


def _column_text(column: OutputColumn, is_label: bool) -> str:
    name = column.name.removeprefix(f"{column.alias}.")
    text = name if column.expression.strip('"') == name else f"{column.expression} AS {name}"
    return f"{text} (label)" if is_label else text


def _moved(plan: Plan, sizes: JoinSizes) -> dict[tuple[str, str], int]:
    """Bytes of a round by (party, alias), each way: one number per row that takes part, of tables with features."""
    features = {column.alias for column in plan.query.features}
    scans = [(scan.party, scan.alias) for scan in plan.scans]
    rows = {scan: sizes.shards[scan].used + (sizes.shards[scan].without > 0) for scan in scans}
    return {scan: rows[scan] * sizes.wire_bytes if scan[1] in features else 0 for scan in scans}


def _round_lines(plan: Plan, sizes: JoinSizes, moved: Mapping[tuple[str, str], int]) -> list[str]:
    """What a round moves, by table and in all."""
    tables = {alias: sum(size for (_, own), size in moved.items() if own == alias) for alias in plan.tables}
    wide = max(map(len, tables))
    lines = ["A training round moves, per output of the model:"]
    lines += [f"  {alias:<{wide}}  {readable(size):>8} up  {readable(size):>8} down" for alias, size in tables.items()]
    joined = sizes.joined_rows * sizes.wire_bytes * len({column.alias for column in plan.query.features})
    total = sum(moved.values())
    return [*lines, f"  in all {readable(2 * total)}; for every joined row it would be {readable(2 * joined)}"]


def _place_lines(plan: Plan, moved: Mapping[tuple[str, str], int], local_parties: frozenset[str]) -> list[str]:
    """Which party to run the job at, and what that saves."""
    whole = 2 * sum(moved.values())
    own = {party: 2 * sum(size for (at, _), size in moved.items() if at == party) for party in plan.parties}
    best = max(own, key=lambda party: own[party])
    lines = [
        f"Run the job at {best}: {readable(whole - own[best])} a round cross the network; "
        f"from a machine of no party, {readable(whole)}.",
    ]
    if len(plan.parties) > 1:
        lines.append(
            f"A coordinator at {best} holds the blinding key and could test guesses of the others' join keys; "
            f"they must allow that."
        )
    if set(plan.parties) <= local_parties:
        lines.append("Now all parties are in this process: nothing crosses a network.")
    return lines
