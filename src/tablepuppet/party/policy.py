"""A party's policy: what each column may be used for, what may be released of it, to whom, and how often.

A column has uses and a level; a level is a named set of releases. An expression has the fewest uses and the
strictest level of its columns. Databases opened in the analyst's own process are open to every use and `public`
unless the federation file says otherwise; a party file hides every column that it does not name. What is
written here is enforced by `guard.py`, and `docs/policy.md` explains it to operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag, IntEnum, auto
from functools import cache, cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from tablepuppet.errors import ConfigError
from tablepuppet.party.ledger import Budget
from tablepuppet.party.release import Release

# How much a caller may take of a party: the limits that the party itself enforces, as its file sets them. `config.py`
# adds those of its service: sessions, connections, messages and journals.

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class CallerLimits(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Limits of requests, and of what a party holds and remembers for a caller; None: there is none."""

    request_seconds: Annotated[
        Seconds | None, Meta(description="seconds that one request may take, reading and evaluating included")
    ] = 300.0
    reply_bytes: Annotated[Positive | None, Meta(description="bytes of one reply")] = 512 << 20
    work_per_caller: Annotated[
        Positive | None, Meta(description="requests of one caller that are computed at once; the others wait")
    ] = 2
    releases_per_request: Annotated[
        Positive | None,
        Meta(description="releases with noise, each charged to the ledger, that one request may ask for"),
    ] = 2000
    ledger_releases: Annotated[
        Positive | None, Meta(description="different noisy labels that the ledger knows by name, per caller and table")
    ] = 1000
    expression_bytes: Annotated[
        Positive | None,
        Meta(description="bytes of memory in which one table is read and its expressions are evaluated"),
    ] = 1 << 30
    memory_bytes: Annotated[
        Positive | None, Meta(description="bytes of memory that one caller's tables, encoded rows and models take")
    ] = 1 << 30
    kept_bytes: Annotated[Positive | None, Meta(description="bytes of saved models in `state_dir`, per caller")] = (
        1 << 30
    )
    max_prediction_rounds: Annotated[
        Positive | None,
        Meta(description="replies with predictions, gradient sums or parameters, per session and table"),
    ] = 1000
    max_matrix_columns: Annotated[
        Positive | None,
        Meta(description="vectors of a caller's choice that a table is multiplied with, per session and table"),
    ] = 10_000
    max_filters: Annotated[Count | None, Meta(description="distinct filters, per caller and table")] = 20
    max_expressions: Annotated[
        Count | None, Meta(description="distinct selected expressions other than plain columns, per caller and table")
    ] = 100
    max_splits: Annotated[
        Count | None, Meta(description="distinct splits per caller and table, until its number of rows changes")
    ] = 50
    max_refinements: Annotated[
        Count | None,
        Meta(description="refined histograms of columns that are not public, over distinct rows, per caller and table"),
    ] = 1000
    max_failures: Annotated[
        Positive | None, Meta(description="distinct queries whose expressions fail on rows, per caller and table")
    ] = 10
    max_models: Annotated[
        Count | None, Meta(description="saved models of which the party keeps its part in `state_dir`, per caller")
    ] = 100
    fits: Annotated[Positive | None, Meta(description="models that one caller has in memory at once")] = 1000
    views: Annotated[
        Positive | None, Meta(description="relations, and encodings of their rows, in memory per session and table")
    ] = 1000


UNLIMITED = CallerLimits(**dict.fromkeys(CallerLimits.__struct_fields__))
"""Those of a party in the analyst's own process."""


ANONYMOUS = "anonymous"  # the caller of a service without TLS


class Level(IntEnum):
    """How much of a column may be released; a higher level is stricter."""

    PUBLIC = 0  # anything an op releases, extremes included
    AGGREGATE = 1  # what training needs; no single value such as a minimum
    PRIVATE = 2  # to join and filter by, never to learn from


class Use(Flag):
    """What a column may be used for."""

    KEY = auto()  # in a join condition
    FILTER = auto()  # in WHERE
    LABEL = auto()  # as a label, which releases its values
    FEATURE = auto()  # to learn from
    ID = auto()  # to identify predictions, which releases its values
    VALUE = auto()  # to be collected as a feature, which releases its cells

    @property
    def label(self) -> str:
        """The names as a party file writes them."""
        return ", ".join((member.name or "").lower() for member in self) or "none"


EVERY_USE = ~Use(0)
EVERY_RELEASE = ~Release(0)
LEVELS: Mapping[Level, Release] = {
    Level.PUBLIC: EVERY_RELEASE,
    Level.AGGREGATE: EVERY_RELEASE & ~Release.CATEGORIES & ~Release.VALUES,
    Level.PRIVATE: Release.SCHEMA | Release.COUNTS | Release.KEY_DIGESTS,
}
"""What may be released at each level, if the column's uses allow it."""

HAVE_NO_NOISE = Release.IDS | Release.CATEGORIES | Release.COLUMNS | Release.VALUES
"""Releases that cannot have noise: a table that demands noise does not make them."""

CELLS = Release.VALUES | Release.COLUMNS
"""Releases that are cells, row by row: a table whose sums leave masked only (``secure_sum``) does not make them."""

_OF_EVERY_COLUMN = Release.SCHEMA | Release.COUNTS
USES: Mapping[Use, Release] = {
    Use.KEY: _OF_EVERY_COLUMN | Release.KEY_DIGESTS,
    Use.FILTER: _OF_EVERY_COLUMN,
    Use.LABEL: _OF_EVERY_COLUMN
    | Release.LABELS
    | Release.STATISTICS
    | Release.HISTOGRAMS
    | Release.KEY_DIGESTS
    | Release.METRICS
    | Release.CATEGORIES
    | Release.GRAM
    | Release.COLUMNS,
    Use.FEATURE: EVERY_RELEASE & ~Release.LABELS & ~Release.IDS & ~Release.VALUES,
    Use.ID: _OF_EVERY_COLUMN | Release.IDS,
    Use.VALUE: _OF_EVERY_COLUMN | Release.VALUES,
}
"""What each use of a column leads to; the digests of a label or feature are those of its categories."""


Category = str | int | float | bool


@cache
def _released(uses: Use, of_level: Release) -> Release:
    allowed = _OF_EVERY_COLUMN
    for use in uses:
        allowed |= USES[use] & of_level
    return allowed


@dataclass(frozen=True)
class ColumnRule:
    """What one column may be used for, and at which level.

    ``bounds`` and ``categories`` say which values it may have, for noise that must not depend on those it has.
    """

    uses: Use = EVERY_USE
    level: Level = Level.PUBLIC
    bounds: tuple[float, float] | None = None
    categories: tuple[Category, ...] | None = None

    @cached_property
    def releases(self) -> Release:
        """Everything that may be released of the column."""
        return _released(self.uses, LEVELS[self.level])

    def allows(self, releases: Release) -> bool:
        """Whether all of these may be released of the column."""
        return not releases.value & ~self.releases.value

    def joined(self, other: ColumnRule) -> ColumnRule:
        """The rule of an expression over both: the fewest uses, the strictest level, nothing known of its values."""
        return ColumnRule(self.uses & other.uses, max(self.level, other.level))


class Embeddings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a table's rows may be released as embeddings; None: there is no limit."""

    max_width: Annotated[Count | None, Meta(description="numbers per row, at most")]
    max_epochs: Annotated[Count | None, Meta(description="embeddings of one row in a session, at most")]


ALL_EMBEDDINGS = Embeddings(None, None)


@dataclass(frozen=True)
class TableRule:
    """The rules of one published table; names are in lower case."""

    columns: Mapping[str, ColumnRule] = field(default_factory=dict)
    others: ColumnRule | None = ColumnRule()  # of columns that are not named; None: they are hidden
    allow: frozenset[str] | None = None  # callers; None: everybody that the policy allows
    min_rows: int = 0
    min_group: int = 0
    secure_sum: bool = False  # sums over its rows leave only within a sum over shards
    keys: frozenset[str] | None = None  # expressions to join by, as `named_key` spells them; None: any
    budget: Budget = field(default_factory=Budget)
    matrix: bool = True  # whether callers may multiply it with vectors of their own choice
    deliver: frozenset[str] | None = None  # parties that may get predictions made with its features; None: all
    cross_statistics: bool = True  # columns may be sent, one number per row, for statistics across tables
    embeddings: Embeddings | None = ALL_EMBEDDINGS  # of its rows; None: none are released
    require_approval: bool = False  # the operator approves a job before anything of it is read
    label_means: bool = True  # means of its labels may reach other parties, as numbers that stand for categories

    def column(self, name: str) -> ColumnRule | None:
        """The rule of one column; None if it is hidden."""
        return self.columns.get(name.lower(), self.others)

    def releases(self, rule: ColumnRule) -> Release:
        """All that may be released of a column with this rule, in this table."""
        refused = Release(0) if self.embeddings is not None else Release.EMBEDDINGS
        if not self.cross_statistics:
            refused |= Release.COLUMNS
        if self.secure_sum:
            refused |= CELLS
        if self.budget.require_dp:
            refused |= HAVE_NO_NOISE
        return rule.releases & ~refused

    def expression(self, columns: Iterable[str]) -> ColumnRule | None:
        """The rule of an expression over ``columns``; None if one of them is hidden."""
        found = ColumnRule()
        for rule in [self.column(name) for name in columns] or [self.others or found]:
            if rule is None:
                return None
            found = found.joined(rule)
        return found


@dataclass(frozen=True)
class Policy:
    """All rules of a party; names of tables are in lower case. The default allows everything to everybody."""

    tables: Mapping[str, TableRule] = field(default_factory=dict)
    others: TableRule | None = TableRule()  # of tables that are not named; None: they are hidden
    allow: frozenset[str] | None = None  # callers; None: everybody
    limits: CallerLimits = UNLIMITED
    peers: frozenset[str] | None = None  # parties to sum with; None: whoever has a certificate of the authority
    require_purpose: bool = False  # callers must say what a relation is for
    named: frozenset[str] = frozenset()  # ``table`` or ``table.column`` as somebody spelled them: they must exist

    @classmethod
    def from_names(
        cls,
        levels: Mapping[str, str],
        party: str,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        categories: Mapping[str, tuple[Category, ...]] | None = None,
    ) -> Policy:
        """The policy that a federation file spells: levels by ``table.column``, or ``table`` for all its columns; the
        values that columns may have by ``table.column``.
        """
        found = {where.lower(): _level(where, name, party) for where, name in levels.items()}
        least = {where.lower(): pair for where, pair in (bounds or {}).items()}
        listed = {where.lower(): values for where, values in (categories or {}).items()}
        rules = {where: _rule(level) for where, level in found.items()}
        for where in {**least, **listed}:
            if "." not in where:
                raise ConfigError(f"party {party!r}, bounds or categories of {where!r}: name a column, as table.column")
            check_values(f"party {party!r}, {where}", least.get(where), listed.get(where))
            rules[where] = _rule(_level_of(where, found), least.get(where), listed.get(where))
        return cls(_by_table(rules, found), named=frozenset(rules))

    def table(self, name: str) -> TableRule | None:
        """The rules of one table; None if it is hidden."""
        return self.tables.get(name.lower(), self.others)


def check_values(where: str, bounds: tuple[float, float] | None, categories: tuple[Category, ...] | None) -> None:
    """ConfigError unless bounds are two numbers in order, and categories different ones."""
    if bounds is not None and categories is not None:
        raise ConfigError(f"{where}: bounds are for numbers and categories for classes; give one of them")
    if bounds is not None and not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise ConfigError(f"{where}.bounds: give two finite numbers, the lower one first")
    if categories is not None and len(set(categories)) < max(2, len(categories)):
        raise ConfigError(f"{where}.categories: name two or more, each once")


def _rule(
    level: Level, bounds: tuple[float, float] | None = None, categories: tuple[Category, ...] | None = None
) -> ColumnRule:
    """The rule of a column in the analyst's own process: what is not public is no id."""
    uses = EVERY_USE if level is Level.PUBLIC else EVERY_USE & ~Use.ID
    return ColumnRule(uses, level, bounds, categories)


def _level(where: str, name: str, party: str) -> Level:
    if name.upper() not in Level.__members__:
        known = ", ".join(level.name.lower() for level in Level)
        raise ConfigError(f"party {party!r}, level of {where!r}: {name!r} must be one of {known}")
    return Level[name.upper()]


def _level_of(where: str, levels: Mapping[str, Level]) -> Level:
    """That of a column, else of its table; public if there is none."""
    parts = where.split(".")
    names = [".".join(parts[:cut]) for cut in range(len(parts), 0, -1)]
    return next((levels[name] for name in names if name in levels), Level.PUBLIC)


def _by_table(rules: Mapping[str, ColumnRule], levels: Mapping[str, Level]) -> dict[str, TableRule]:
    """Rules by table; ``a.b`` is column b of table a, or the level of all of a table with a dot in its name."""
    tables = {where: TableRule(others=_rule(level)) for where, level in levels.items()}
    for where, column_rule in rules.items():
        parts = where.split(".")
        for cut in range(1, len(parts)):
            name, column = ".".join(parts[:cut]), ".".join(parts[cut:])
            rule = tables.get(name, TableRule())
            tables[name] = TableRule({**rule.columns, column: column_rule}, rule.others)
    return tables
