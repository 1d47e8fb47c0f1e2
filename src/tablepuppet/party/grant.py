"""A `Grant`: what one caller may do with one table of a session, decided when the session is opened.

Input: the table's rules and the scan that the coordinator sent. Output: a refusal, or the grant that every op on the
table is checked against. A refusal names party, table, column and rule, and no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.party.allowance import check_time
from tablepuppet.party.approval import Approval
from tablepuppet.party.audit import EVERY
from tablepuppet.party.blind import keeps_keys_apart, named_key
from tablepuppet.party.ops import Op
from tablepuppet.party.policy import HAVE_NO_NOISE, LEVELS, ColumnRule, Level, TableRule, Use
from tablepuppet.party.release import Release
from tablepuppet.sql.expression import columns_of, is_column, is_plain_column
from tablepuppet.sql.plan import Scan, pushable
from tablepuppet.sql.view import View, columns_read, read_view

OF_NO_CELL = Release.SCHEMA | Release.COUNTS | Release.KEY_DIGESTS
"""Releases that do not depend on features or labels; digests, unless an op returns those of a column."""
_OF_ROWS = ColumnRule(Use.KEY | Use.FILTER | Use.LABEL | Use.FEATURE, Level.AGGREGATE)  # a count, in a subquery
_MOST_TEXT = 200  # of an expression in an error


@dataclass(frozen=True)
class Output:
    """A selected expression: the columns it reads, and the rule they make together.

    The rule has the ``bounds`` and ``categories`` of the policy if the expression is exactly one column.
    """

    columns: tuple[str, ...]
    rule: ColumnRule


@dataclass(frozen=True)
class Grant:
    """What one caller may do with one table of a session."""

    party: str
    table: str
    rules: TableRule
    outputs: Mapping[str, Output]
    approval: Approval | None = None  # where the policy demands one
    view: View | None = None  # what the scan makes of the table's rows

    @classmethod
    def of(cls, party: str, rules: TableRule, scan: Scan) -> Grant:
        """The grant for a scan; PrivacyError where it uses a column as the policy does not allow."""
        _check_pushed(party, scan)
        grant = cls(party, scan.table, rules, {}, view=scan.view)
        grant._check_published(scan.read)
        if scan.view is not None:
            grant._check_view(scan.view)
            grant._check_unused(scan)
        read = scan.columns if scan.view is None else scan.view.columns
        for text in filter(None, (*scan.filters, *scan.conditions)):
            grant._output(text, Use.FILTER, read)
        for text in (text for key in scan.keys for text in key.expressions):
            grant._output(text, Use.KEY, read)
            grant._check_key(text, scan.columns)
        outputs = {name: grant._output(text, Use.FEATURE | Use.LABEL, read) for name, text in scan.outputs.items()}
        return replace(grant, outputs=outputs)

    @cached_property
    def _anything(self) -> Output | None:
        """Every expression over a table of which nothing is forbidden, however many there are; else None."""
        free = not self.rules.columns and self.rules.others == ColumnRule()
        return Output((), ColumnRule()) if free else None

    def _check_published(self, columns: Iterable[str]) -> None:
        hidden = [name for name in columns if self.rules.column(name) is None]
        if hidden:
            raise self.refusal("columns", "is not published", hidden[:1])

    def _output(self, text: str, use: Use, read: Mapping[str, str]) -> Output:
        """An expression of a scan that has ``read`` some columns; PrivacyError unless those that it is made of may be
        used so.
        """
        if self._anything is not None:  # no need to parse
            return self._anything
        check_time()
        named = columns_of(text)
        strange = [name for name in named if name not in read]
        if strange:  # it could be a name of something else that is computed
            raise PartyError(f"party {self.party!r}: the plan uses {strange[0][:_MOST_TEXT]!r}, which it does not read")
        columns = named if self.view is None else self.view.read_by(named)
        return self._used(columns, use, is_plain=is_column(text) and self._is_plain(named))

    def _is_plain(self, named: Sequence[str]) -> bool:
        """Whether columns of the view, if there is one, are columns of the table."""
        return self.view is None or all(is_plain_column(read_view(self.view.columns[name])) for name in named)

    def _check_view(self, view: View) -> None:
        """PrivacyError unless the columns that decide which rows a view has may do so."""
        if self.rules.budget.require_dp:
            reason = "has no subqueries: noise hides one row of it, which may be in several of a subquery's"
            raise self.refusal("require_dp", reason)
        for text in filter(None, (view.filter, view.having)):
            self._used(columns_read(text), Use.FILTER)
        for name in (name for text in view.groups for name in columns_read(text)):
            self._used((name,), Use.KEY | Use.FILTER | Use.FEATURE)
        for name in view.columns:  # of those that a query selects, outputs are checked; DISTINCT is about all
            if view.distinct:
                self._used(view.read_by((name,)), Use.KEY | Use.FILTER | Use.FEATURE)

    def _check_unused(self, scan: Scan) -> None:
        """PrivacyError unless columns of a view that nothing uses may be selected, as they are evaluated too."""
        assert scan.view is not None
        texts = [*scan.outputs.values(), *scan.filters, *scan.conditions]
        texts += [text for key in scan.keys for text in key.expressions]
        used = {name.lower() for text in filter(None, texts) for name in columns_of(text)}
        for name in scan.view.columns:
            if name.lower() not in used:
                self._used(scan.view.read_by((name,)), Use.KEY | Use.FILTER | Use.FEATURE | Use.LABEL)

    def _used(self, columns: tuple[str, ...], use: Use, *, is_plain: bool = False) -> Output:
        """Columns of the table that an expression reads, with the rule that they make together."""
        if self._anything is not None:
            return self._anything
        self._check_published(columns)
        for name in columns:
            rule = self.rules.column(name)
            if rule and not rule.uses & use:
                reason = f"may not be used as {_either(use)}; its uses: {rule.uses.label}"
                raise self.refusal("uses", reason, [name])
        counts_rows = self.view is not None and not columns
        whole = _OF_ROWS if counts_rows else self.rules.expression(columns)
        if whole is None or not whole.uses & use:
            reason = f"have no use as {_either(use)} in common, so no expression may hold them all"
            raise self.refusal("uses", reason, columns)
        # the size of a private column in memory alone reveals something about it
        if use & (Use.FEATURE | Use.LABEL) and whole.level is Level.PRIVATE:
            private = [name for name in columns if (rule := self.rules.column(name)) and rule.level is Level.PRIVATE]
            reason = "at level private it may be joined and filtered by, and is neither a label nor a feature"
            raise self.refusal("level", reason, private[:1])
        only = self.rules.column(columns[0]) if len(columns) == 1 else None
        if only is not None and is_plain:
            whole = replace(whole, bounds=only.bounds, categories=only.categories)
        return Output(columns, whole)

    def _check_key(self, text: str, columns: Mapping[str, str]) -> None:
        """Refuse to blind an expression that is neither a column nor one that the operator named."""
        if self.rules.keys is None:
            return
        apart = keeps_keys_apart(text, columns) and self._is_plain(columns_of(text))
        if apart or (self.view is None and named_key(text) in self.rules.keys):
            return
        reason = (
            f"the join key {text[:_MOST_TEXT]!r} is an expression; join by a plain column, or ask the party's operator "
            f"to publish it as a column or to name it under keys of the table"
        )
        raise self.refusal("keys", reason)

    def columns(self, op: Op, arguments: Mapping[str, Any]) -> Sequence[str]:
        """The columns of the table that an op names, for the audit log; `EVERY` if it works on all features."""
        if not op.columns and not op.fields:
            return EVERY
        named = {name for output in self._involved(op, arguments) for name in self.outputs[output].columns}
        fields = {name for name in self._fields(op, arguments) if self.rules.column(name) is not None}
        return sorted(f"{self.table}.{name}" for name in named | fields)

    def check(self, op: Op, arguments: Mapping[str, Any]) -> None:
        """Raise PrivacyError unless the policy allows the op's releases for every column that it works on."""
        if self.approval is not None:
            self.approval.check(op.name)
        if self.rules.budget.require_dp and not op.is_private(arguments):
            self._check_noise(op)
        if self.view is not None and op.is_private(arguments):
            reason = (
                "is read by a subquery: noise would hide one of its rows, and not the rows that these are made of; "
                "leave privacy out"
            )
            raise self.refusal("require_dp", reason)
        if op.directions:
            self._check_directions(op.is_private(arguments))
        if op.name not in self._allowed:
            self._check_releases(op, arguments)
        if op.receiver:
            self._check_receiver(arguments.get(op.receiver))

    def check_also(self, op: Op, arguments: Mapping[str, Any], release: Release) -> None:
        """Raise PrivacyError unless an op's columns may be released so too: what it returns follows from that."""
        for name in self._involved(op, arguments):
            self._hold(replace(op, releases=release), self.outputs[name].rule, self._strictest(self.outputs[name]))

    def check_kept(self, op: Op, arguments: Mapping[str, Any], *, noisy: bool) -> None:
        """Raise PrivacyError unless the policy allows an op on something kept that was computed from these columns.

        ``noisy``: from noisy values of them only, which noise has paid for.
        """
        if self.approval is not None:
            self.approval.check(op.name)
        if self.rules.budget.require_dp and not noisy:
            reason = "what was computed from it without noise is used no more; fit again with privacy=tp.Privacy(...)"
            raise self.refusal("require_dp", reason)
        if op.directions:
            self._check_directions(noisy or op.is_private(arguments))
        self._check_table(op)
        for name in self._features:
            self._hold(op, self.outputs[name].rule, self._strictest(self.outputs[name]))
        if op.receiver:
            self._check_receiver(arguments.get(op.receiver))

    def _check_releases(self, op: Op, arguments: Mapping[str, Any]) -> None:
        """Raise PrivacyError unless the table, and every column that the op works on, allows its use and its releases.

        An op that names no columns works on every feature, whatever its arguments: it is checked once.
        """
        self._check_table(op)
        for name in self._fields(op, arguments):
            self._hold(op, self.rules.column(name), [name])
        held: Output | None = None
        for name in self._involved(op, arguments):
            output = self.outputs[name]
            if output is not held:
                self._hold(op, output.rule, self._strictest(output))
                held = output
        if op.releases & Release.COLUMNS and not self.rules.cross_statistics:
            reason = "is not sent, one number per row, for statistics across tables"
            raise self.refusal("cross_statistics", reason, self._involved(op, arguments)[:1])
        if not op.columns and not op.fields:
            self._allowed.add(op.name)

    def _check_table(self, op: Op) -> None:
        """Raise PrivacyError unless the table allows the op, whatever its columns."""
        if op.releases & Release.EMBEDDINGS and self.rules.embeddings is None:
            reason = "does not release EMBEDDINGS, several numbers per row; use tp.MLP*, or ask its operator to set"
            raise self.refusal("embeddings", f"{reason} embeddings = {{ max_width = ..., max_epochs = ... }}")

    @cached_property
    def _allowed(self) -> set[str]:
        """Ops that every feature allows."""
        return set()

    def _hold(self, op: Op, rule: ColumnRule | None, columns: Iterable[str]) -> None:
        """Raise PrivacyError unless a rule allows the op's use and releases of these columns."""
        if rule is None:
            raise self.refusal("columns", "is not published", columns)
        if op.use is not None and not rule.uses & op.use:
            reason = f"may not be used as {_either(op.use)}; its uses: {rule.uses.label}"
            raise self.refusal("uses", reason, columns)
        if not rule.allows(op.releases):
            too_much = op.releases & ~rule.releases
            broken = "uses" if too_much & LEVELS[rule.level] else "level"
            reason = f"as {rule.uses.label} at level {rule.level.name.lower()} it does not release {too_much.label}"
            raise self.refusal(broken, reason, columns)

    def _check_directions(self, has_noise: bool) -> None:
        """Raise PrivacyError unless the caller may multiply the table with vectors of its own choice.

        With as many such vectors as the table has columns, the caller could reconstruct the table. Even an op that
        sends nothing back may fail, or not, by what is in the rows: so ``require_dp`` refuses all without noise.
        """
        if self.rules.budget.require_dp and not has_noise:
            reason = "is not multiplied with vectors of the caller's choice, which has no form with noise"
            raise self.refusal("require_dp", reason)
        if not self.rules.matrix:
            reason = "may not be multiplied with vectors of the caller's choice; use a learner, or ask its operator"
            raise self.refusal("matrix", f"{reason} to set matrix = true")

    def _check_receiver(self, receiver: object) -> None:
        """Raise PrivacyError unless predictions made with the table's features may go to a party."""
        if self.rules.deliver is not None and receiver not in self.rules.deliver:
            named = f"party {receiver[:200]!r}" if isinstance(receiver, str) else "such a party"
            raise self.refusal("deliver", f"predictions made with its features may not be delivered to {named}")

    def _check_noise(self, op: Op) -> None:
        """If the policy demands noise, refuse an op that releases something about cells without noise."""
        bare = op.releases & ~OF_NO_CELL | (op.releases & Release.KEY_DIGESTS if op.columns else Release(0))
        if bare & HAVE_NO_NOISE:
            reason = f"does not release {(bare & HAVE_NO_NOISE).label}, which has no form with noise"
            raise self.refusal("require_dp", reason)
        if bare:
            reason = f"releases {bare.label} only with noise; set privacy=tp.Privacy(...), as docs/privacy.md says"
            raise self.refusal("require_dp", reason)

    def _strictest(self, output: Output) -> list[str]:
        """The column that gives an expression its level."""
        levels = {name: rule.level for name in output.columns if (rule := self.rules.column(name))}
        return sorted(levels, key=levels.__getitem__)[-1:]

    def check_rows(self, rows: int) -> None:
        """Raise PrivacyError if some rows take part, but too few to hide among."""
        if 0 < rows < self.rules.min_rows:
            raise self.refusal("min_rows", f"fewer than {self.rules.min_rows} of its rows take part in the relation")

    def is_group(self, rows: NDArray[np.integer] | int) -> NDArray[np.bool_]:
        """Whether statistics of a group of this number of rows may be released; those of an empty group may."""
        return np.asarray((rows == 0) | (np.asarray(rows) >= self.rules.min_group))

    def refusal(self, rule: str, reason: str, columns: Iterable[str] = ()) -> PrivacyError:
        """The error for what a rule of the table forbids."""
        return refusal(self.party, rule, reason, self.table, columns)

    def _involved(self, op: Op, arguments: Mapping[str, Any]) -> list[str]:
        """The outputs that an op names in its arguments; every feature, if it names no column of any kind."""
        if not op.columns:
            return [] if op.fields else self._features
        names = [name for argument in op.columns for name in _names(op, arguments.get(argument))]
        strange = [name for name in names if name not in self.outputs]
        if strange:
            raise PartyError(
                f"party {self.party!r}: table {self.table!r}: {strange[0][:100]!r} is not a selected column"
            )
        return names

    def _fields(self, op: Op, arguments: Mapping[str, Any]) -> list[str]:
        """The columns of the table itself that an op names."""
        return [name for argument in op.fields for name in _names(op, arguments.get(argument))]

    @cached_property
    def _features(self) -> list[str]:
        return [name for name, output in self.outputs.items() if output.rule.uses & Use.FEATURE]


def refusal(party: str, rule: str, reason: str, table: str = "", columns: Iterable[str] = ()) -> PrivacyError:
    """The error for what a rule of the policy forbids."""
    names = [repr(name[:_MOST_TEXT]) for name in columns]
    where = [f"party {party!r}", *([f"table {table!r}"] if table else [])]
    where += [f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"] if names else []
    return PrivacyError(f"{', '.join(where)}: {reason} (policy rule {rule})", rule=rule)


def _either(use: Use) -> str:
    return use.label.replace(", ", " or ")


def _names(op: Op, value: Any) -> list[str]:
    """Output names in an argument: a name, a list of names, or a list of tuples that begin with one."""
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list | tuple):
        names = [item[0] if isinstance(item, list | tuple) and item else item for item in items]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return names
    raise PartyError(f"op {op.name!r}: {' and '.join(op.columns or op.fields)} must name columns, each once")


def _check_pushed(party: str, scan: Scan) -> None:
    """What the source filters by must follow from the filter that is checked and counted."""
    only = scan.filters[0] if len(scan.filters) == 1 else ""
    if scan.pushed and (not only or not set(scan.pushed) <= set(pushable(only, scan.columns))):
        raise PartyError(f"party {party!r}: the plan for table {scan.table!r} pushes what its filter does not say")
