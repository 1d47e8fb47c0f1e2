"""`Relation`: a `Query` bound to a federation, the virtual training table, never materialised.

`fed.sql` makes one: parties have read their snapshots by then. The blinded keys are joined when the first
question needs it; what is known afterwards is the mapping, never a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import mark
from tablepuppet.errors import LearnError, NotPickledError, PrivacyError
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows, TableMapping
from tablepuppet.operators.client import Client
from tablepuppet.operators.dealing import dealt, dealt_to_groups
from tablepuppet.operators.secure_sum import make_rosters
from tablepuppet.party.request import Request
from tablepuppet.party.snapshot import NOWHERE
from tablepuppet.prep.columns.dividing import Time, as_time, classes_of, groups_of, shares, stratified_label, times_of
from tablepuppet.prep.columns.label import joined_labels
from tablepuppet.prep.columns.selected import check_without_noise
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.prep.explore.statistics import Statistics
from tablepuppet.prep.pipelines.noisy_answers import EncoderNoise
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Foresight, Pipeline, fit_encoding, foresee
from tablepuppet.privacy.funds import PartysFunds
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import number
from tablepuppet.runs.table_view import card
from tablepuppet.session import Session
from tablepuppet.spelling import attributes_explained, names_checked, shows
from tablepuppet.sql.explain import Explanation, JoinSizes, Measured, MeasuredStep, ShardSize, explain
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import Query
from tablepuppet.wire.engine import call_all

if TYPE_CHECKING:
    from tablepuppet.algebra.array import LazyArray
    from tablepuppet.algebra.placement import PlanName
    from tablepuppet.algebra.recipes import Prepared


_NO_ROWS = "rows stay in their databases; rel.describe() and rel.profile() summarise them"
ELSEWHERE = {  # what users of pandas try
    **dict.fromkeys(("shape", "size"), "write len(rel), rel.columns; rel.matrix().shape of encoded features"),
    **dict.fromkeys("head tail sample iloc loc values to_numpy to_pandas to_df df fetchall".split(), _NO_ROWS),
    **dict.fromkeys(
        "dtypes info mean std min max isnull isna nunique count".split(), "rel.describe() has it by column"
    ),
    **dict.fromkeys(("merge", "filter", "where", "drop", "assign", "select"), "write it in SQL: fed.sql(...)"),
    "corr": "write rel.correlation()",
    "cov": "write rel.covariance()",
    "groupby": "write rel.group_means(column, by)",
    "value_counts": "write rel.crosstab(column, another), whose sums they are",
    "median": "write rel.quantile(0.5)",
    "hist": "write rel.histogram(column)",
}


@shows(
    "columns", "events", "explain", "label", "mapping", "matrix", "plan", "prep", "query", "rows", "split", "with_prep"
)
@attributes_explained(ELSEWHERE)
class Relation(Statistics):
    """The result of a SQL query over many databases, as something to learn from.

    Made by `Federation.sql` and by `split`.
    """

    def __init__(
        self, session: Session, rows: JoinedRows | None = None, prep: Pipeline | None = None, shares: bool = False
    ):
        self._session, self._prep = session, session.settings.prep if prep is None else prep
        self._view = session.new_view()
        self._shares = shares  # whether all learners over it have the same encoders
        self._shared: Encoding | None = None
        self._to_learn: Relation | None = None
        self._information: Mapping[str, float] = {}  # values of columns, as the last fit of its pipeline found them
        if rows is not None:
            self.joined_rows = rows

    def withdrawn_if_it_fails(self) -> AbstractContextManager[None]:
        """If the block raises, steps about models that it has queued for the parties are not sent."""
        return self._session.outbox.withdrawn_if_it_fails()

    def __getstate__(self) -> dict[str, Any]:
        raise NotPickledError(
            "a relation is an open session of its parties, and cannot be pickled: fed.sql opens another"
        )

    @cached_property
    def joined_rows(self) -> JoinedRows:
        """The joined rows, which only this object holds."""
        return self._session.join()

    @property
    def mapping(self) -> TableMapping:
        """For each joined row, its row in every table."""
        return self.joined_rows.mapping

    @cached_property
    def client(self) -> Client:
        """The way to the shards of this relation."""
        session = self._session
        return Client(
            session.engine, session.outbox, self._view, session.plan, self.joined_rows, session.rows_read, session.key,
            session.secured,
        )  # fmt: skip

    @property
    def query(self) -> Query:
        """What was asked."""
        return self._session.plan.query

    @property
    def plan(self) -> Plan:
        """Who reads what."""
        return self._session.plan

    @property
    def wire(self) -> str:
        """Precision of row arrays on the wire; float64 in one process, where nothing is rounded."""
        return self._session.wire

    @property
    def double(self) -> bool:
        """Whether networks are computed in double precision: if the federation has wire="float64"."""
        return self._session.settings.wire == "float64"

    @property
    def max_categories(self) -> int:
        """Distinct values beyond which text is no feature."""
        return self._session.settings.max_categories

    def funds(self) -> PartysFunds:
        """What is left of privacy budgets now, by party and table; parties without one are not asked."""
        engine, tables = self._session.engine, self.plan.tables.values()
        parties = list(dict.fromkeys(shard.party for table in tables for shard in table.shards if shard.funds))
        replies = call_all(engine, [(party, Request("describe")) for party in parties])
        return {
            (party, shard.name.lower()): shard.funds
            for party, reply in zip(parties, replies, strict=True)
            for shard in reply[0]["tables"]
            if shard.funds
        }

    @property
    def approved(self) -> dict[str, float]:
        """The epsilon that operators were asked to approve for it, by party, where a table needs their approval."""
        epsilons, tables = self._session.settings.epsilons, self.plan.tables.values()
        needed = [shard.party for table in tables for shard in table.shards if shard.require_approval]
        return {party: epsilons.get(party, 0.0) for party in needed}

    @property
    def events(self) -> Events:
        """Where events are emitted."""
        return self._session.events

    def without_reduction(self) -> Relation:
        """The same joined rows with duplicates kept: every party computes and sends as many rows as the join has."""
        return Relation(self._session, self.joined_rows.unreduced(), self.prep)

    @property
    def prep(self) -> Pipeline:
        """The steps by which columns become features."""
        return self._prep

    @names_checked
    def with_prep(self, prep: Pipeline | None) -> Relation:
        """The same joined rows, prepared by other steps, by default the usual ones; no table is read again.

        Raises LearnError if a step does not fit its columns, or if expressions (`Map`) are not those that were
        evaluated when tables were read.
        """
        pipeline = DEFAULT if prep is None else prep
        if not isinstance(pipeline, Pipeline):
            raise LearnError(f"prep is a pipeline, such as tp.prep.Pipeline([...]), not {type(prep).__name__}")
        if pipeline.maps != self.prep.maps:
            raise LearnError(
                "Map is evaluated where columns are read: a pipeline for rows that are read already begins with the "
                "Map steps of fed.sql(..., prep=...), and has no others"
            )
        found = Relation(self._session, self.joined_rows, pipeline, self._shares)
        found._foreseen()
        return found

    def check_prep(self) -> None:
        """PrivacyError or LearnError if its pipeline cannot be fitted, as far as the catalog shows."""
        if self.prep is not DEFAULT:
            self._foreseen().check_policies(self.plan)

    def _foreseen(self) -> Foresight:
        """What the fit of its pipeline will ask."""
        return foresee(self.prep, self.plan, self.max_categories)

    def fit_encoding(self) -> Encoding:
        """The pipeline, fitted over these joined rows and applied at the parties."""
        if self._shared is not None:
            return self._shared
        found = fit_encoding(self.client, self.prep, self.max_categories, self.events)
        if self._shares:
            self._shared = found
        self._information = found.iv_
        return found

    def to_learn(self) -> Relation:
        """The same joined rows to learn from; apart from those to predict, if both are prepared differently."""
        if not self.prep.leaves_out:
            return self
        if self._to_learn is None:
            self._to_learn = Relation(self._session, self.joined_rows, self.prep, self._shares)
        return self._to_learn

    def sharing_encoders(self) -> Relation:
        """The same joined rows, whose encoders are fitted once for all learners that learn from them."""
        return Relation(self._session, self.joined_rows, self.prep, shares=True)

    def fit_private_encoding(self, noise: EncoderNoise) -> Encoding:
        """Fit encoders from a policy's bounds and lists, or from statistics with noise."""
        return fit_encoding(self.client, self.prep, self.max_categories, self.events, noise)

    def __len__(self) -> int:
        return len(self.joined_rows)

    @property
    def columns(self) -> list[str]:
        """Feature names in SELECT order, without the label."""
        return [column.name for column in self.query.features]

    def __repr__(self) -> str:
        size = f"{len(self):,} joined rows" if "joined_rows" in self.__dict__ else "not joined yet"
        label = f", label {self.query.label.name!r}" if self.query.label else ""
        return f"<Relation: {size}, {len(self.columns)} features{label}>"

    def _repr_html_(self) -> str:
        """What is known already: nobody is asked, and nothing is joined, to show it."""
        query, tables = self.query, self.plan.tables
        features = {alias: [c.name for c in query.features if c.alias == alias] for alias in tables}
        facts = {"label": query.label.qualified if query.label else "none"}
        facts |= {
            f"{table.name} {alias}" if table.name != alias else alias: "; ".join(
                [f"at {', '.join(shard.party for shard in table.shards)}", *filter(None, [", ".join(features[alias])])]
            )
            for alias, table in tables.items()
        }
        size = f"{len(self):,} joined rows" if "joined_rows" in self.__dict__ else "not joined yet"
        return card(f"Relation: {size}, {len(self.columns)} features", facts, query.sql.strip())

    @names_checked
    def explain(self, *, analyze: bool = False) -> Explanation:
        """The plan: scans, pushed filters, join keys, sizes, bytes per training round, where to run it.

        With ``analyze`` also what it has taken so far: trips, bytes and seconds of the parties and of this process, by
        what was asked, beside what was estimated; also that of fits on it, on its splits and folds.
        """
        shards = {
            (shard.party, alias): self._size_of(alias, shard)
            for alias, table in self.joined_rows.tables.items()
            for shard in table.shards
        }
        local = frozenset(party for party in self.plan.parties if not self._session.engine.is_service(party))
        sizes = JoinSizes(len(self), self.joined_rows.nbytes, shards, np.dtype(self.wire).itemsize)
        session, prepared = self._session, () if self.prep is DEFAULT else self._prepared_by()
        if not analyze:
            return explain(self.plan, sizes, local, prepared)
        steps = [
            MeasuredStep(each.ops, party, int(count), int(up), int(down), spent, each.trips, each.here)
            for each in session.engine.stopwatch.of(session.id)
            for party, (count, up, down, spent) in sorted(each.parties.items())
        ]
        return explain(self.plan, sizes, local, prepared, measured=Measured(steps, session.join_seconds))

    def _size_of(self, alias: str, shard: ShardRows) -> ShardSize:
        """The sizes of a shard, for people: the missing row is none of its rows."""
        counts, missing = self.joined_rows.tables[alias].counts[shard.slice], self.client.missing_row(alias, shard)
        scan = next(scan for scan in self.plan.of_alias(alias) if scan.party == shard.party)
        read = self._session.rows_read[shard.party, alias] - scan.missing
        without = 0 if missing is None else int(counts[missing])
        return ShardSize(read, len(shard.row_ids) - (missing is not None), without)

    def _prepared_by(self) -> list[str]:
        """The steps of its pipeline for people, with what was learned of the label when it was fitted."""
        foreseen, fitted = self._foreseen(), self if self._to_learn is None else self._to_learn
        values = [f"  information value of {name}: {number(value)}" for name, value in fitted._information.items()]
        return [*foreseen.lines(self.prep), *foreseen.passed_on(self.plan), *values]

    @names_checked
    def matrix(self, *, secure_sum: bool = False, like: Prepared | None = None, plan: PlanName = "cost") -> LazyArray:
        """The prepared features as a matrix X that is never built, one row per joined row: a SciPy `LinearOperator`,
        and a lazy array for NumPy.

        With ``secure_sum`` tables of several shards reach the coordinator as a sum only, where what they answer is one.
        ``like`` is another matrix, or a model of `tp.linalg`: columns are prepared as there, not anew. ``plan`` says
        where steps run: ``"parties"`` (there, and vectors stay there), ``"heuristic"`` (at parties), ``"collect"``
        (here) or ``"cost"``, the cheapest.
        """
        from tablepuppet.algebra.array import LazyArray  # with SciPy, which takes a while to load
        from tablepuppet.algebra.recipes import Preparation
        from tablepuppet.algebra.source import MatrixSource

        if not isinstance(secure_sum, bool):
            raise LearnError(f"matrix: secure_sum is True or False, not {secure_sum!r}")
        if like is not None and not isinstance(getattr(like, "preparation", None), Preparation):
            raise LearnError(
                f"matrix: like is another matrix, X = rel.matrix(), or a model of tp.linalg, not {type(like).__name__}"
            )
        check_without_noise(
            self.plan,
            self.query.features,
            "rel.matrix()",
            "learners have, with privacy=tp.Privacy(feature_epsilon=...)",
        )
        if secure_sum and plan == "collect":
            raise LearnError(
                'matrix: plan="collect" brings the cells of tables here, and with secure_sum=True shards send sums '
                'only: take plan="cost", "heuristic" or "parties"'
            )
        rows = self.to_learn() if like is None else self
        if secure_sum:
            make_rosters(rows.client, dict.fromkeys(column.alias for column in self.query.features))
        if like is None:
            encoding = rows.fit_encoding()
        else:
            like.preparation.check(self.client, self.query.features)
            encoding = like.preparation.encoding
        source = MatrixSource(rows.client, encoding, self.wire, rows, plan)
        return LazyArray(source, None if like is None else like.preparation.recipe)

    def label(self) -> NDArray[Any]:
        """The label of every joined row, (joined rows,), in the order of `rows`: numbers, or class values of text.

        Booleans are 0 and 1, dates days since 1970-01-01, as for learners. Raises LearnError if the query has no label
        or rows lack one, and PrivacyError if a policy does not release labels.
        """
        if self.query.label is None:
            raise LearnError("the query has no label: name a selected column, fed.sql(..., label='column')")
        check_without_noise(
            self.plan, [self.query.label], "rel.label()", "learners have, with privacy=tp.Privacy(label_epsilon=...)"
        )
        return joined_labels(self.client, self.query.label)

    def rows(self) -> pa.Table:
        """Where each joined row comes from: ``<alias>.party`` and ``<alias>.row``, its place in the source; NULL where
        an outer join found no row.

        Only where all parties are in this process: elsewhere a row's place is nobody's business.
        """
        columns: dict[str, pa.Array] = {}
        for alias, table in self.joined_rows.tables.items():
            names, places = [], [np.zeros(0, np.int64)]
            for place, shard in enumerate(table.shards):
                positions = self._session.engine.capabilities(shard.party).positions
                if positions is None:
                    raise PrivacyError(
                        f"rows() gives the positions of rows in their sources; party {shard.party!r} runs elsewhere "
                        "and does not release them"
                    )
                names.append(np.full(len(shard.row_ids), place, np.int32))
                places.append(positions(self._session.id, alias, shard.row_ids))
            owners = pa.array([shard.party for shard in table.shards], pa.string())
            found = self.joined_rows.taken(alias, np.concatenate(places))
            missing = found == NOWHERE
            of_row = self.joined_rows.taken(alias, np.concatenate(names))
            columns[f"{alias}.party"] = owners.take(pa.array(of_row, mask=missing))
            columns[f"{alias}.row"] = pa.array(found, mask=missing)
        return pa.table(columns)

    @names_checked
    def split(
        self, test: float = 0.15, seed: int = 7, by: str | None = None, stratify: bool = False,
        after: Time | None = None,
    ) -> tuple[Relation, Relation]:  # fmt: skip
        """(train, test): round(test * n) of the n rows of the label's table that take part go to test.

        No row of that table is on both sides. One seed picks the same source rows in every process and on every
        day that the data is the same. Without a label the first table of FROM is split.

        ``by`` keeps groups on one side, and ``test`` is a share of the groups: rows with one value of a selected column
        or of a join key, such as ``by="o.card"``, or, of an alias, ``by="c"``, all that is joined to one row of that
        table. ``stratify`` keeps the shares of the label's classes. With ``after``, rows whose column ``by`` is that
        date or number or later are the test side, ``split(after=date(2024, 1, 1), by="o.day")``; nothing is drawn.
        """
        check_split(test, seed, by, stratify, after)
        alias, held_out = self._held_out(test, np.random.default_rng(seed), by, stratify, after)
        if len(held_out) and held_out.all() == held_out.any():
            side, share = "train" if held_out.all() else "test", f"test={test:g}" if after is None else f"after={after}"
            message = f"split: {share} of {len(held_out):,} rows leaves none for the {side} side"
            self.events.emit("warning", "split.empty", message, side=side)
        sides = self.parted(alias, held_out)
        for name, part in zip(("train", "test"), sides, strict=True):
            if few := part.too_few(f"the {name} side"):
                self.events.emit("warning", "split.few", f"split: {few}", side=name)
        return sides

    def too_few(self, name: str) -> str:
        """Why a party will refuse to use these joined rows, which go by ``name`` for people: fewer rows of its table
        take part than its policy allows (``min_rows``). "" if none will.
        """
        for alias, table in self.joined_rows.tables.items():
            published = {shard.party: shard for shard in self.plan.tables[alias].shards}
            for shard in table.shards:
                known = published[shard.party]
                rows = len(shard.row_ids) - (self.client.missing_row(alias, shard) is not None)
                if 0 < rows < known.min_rows:
                    return (
                        f"{name} has {rows} rows of table {known.name!r} at party {shard.party!r}, which "
                        f"refuses fewer than {known.min_rows} (policy rule min_rows)"
                    )
        return ""

    def check_enough(self, name: str, advice: str) -> None:
        """PrivacyError, with what to do instead, if a party will refuse to use these joined rows; nobody is asked."""
        if few := self.too_few(name):
            raise PrivacyError(f"{few}; {advice}", rule="min_rows")

    def _held_out(
        self, test: float, rng: np.random.Generator, by: str | None, stratify: bool, after: Time | None
    ) -> tuple[str, NDArray[np.bool_]]:
        """(the alias of the table that is split, which of its base rows are the test side)."""
        if not len(self):
            return self.split_table, np.zeros(0, bool)
        if after is not None and by is not None:
            column, times = times_of(self.client, by, "split")
            return column.alias, times >= as_time(after, column)
        if by is not None:
            alias, groups = groups_of(self.client, by, "split")
            count = int(groups.max(initial=-1)) + 1
            drawn = mark(count, rng.permutation(count)[: round(test * count)])
            return alias, dealt_to_groups(self.client, alias, drawn, groups).astype(bool)
        if stratify:
            alias, classes = classes_of(self.client, stratified_label(self.plan), "split")
            counts = np.bincount(classes)
            parts = [mark(n, rng.permutation(n)[:size]) for n, size in zip(counts, shares(counts, test), strict=True)]
            return alias, dealt(self.client, alias, np.concatenate(parts), classes).astype(bool)
        rows = self.joined_rows.tables[self.split_table].rows
        drawn = mark(rows, rng.permutation(rows)[: round(test * rows)])
        return self.split_table, dealt(self.client, self.split_table, drawn).astype(bool)

    @property
    def split_table(self) -> str:
        """The alias of the table whose rows are split: that of the label, or the first of FROM; instead of one that an
        outer join may find no row of, the first of which every joined row has a row.
        """
        first = self.query.label.alias if self.query.label else self.query.tables[0].alias
        certain = (use.alias for use in self.query.tables if use.alias not in self.query.may_miss)
        return first if first not in self.query.may_miss else next(certain, first)

    def parted(self, alias: str, chosen: NDArray[np.bool_]) -> tuple[Relation, Relation]:
        """(the joined rows of other rows of a table, those of the chosen ones)."""
        rest, those = (
            Relation(self._session, self.joined_rows.where(alias, side), self.prep) for side in (~chosen, chosen)
        )
        return rest, those


def check_split(
    test: float, seed: int, by: str | None = None, stratify: bool = False, after: Time | None = None
) -> None:
    """LearnError unless rows can be held out so."""
    if not isinstance(test, Real) or not 0 <= test <= 1:
        raise LearnError(f"split: test is the share of rows to hold out, between 0 and 1, not {test!r}")
    if not isinstance(seed, Integral) or seed < 0:
        raise LearnError(f"split: seed is a whole number from 0, not {seed!r}")
    if by is not None and not isinstance(by, str):
        raise LearnError(f"split: by is the name of a column or the alias of a table, not {by!r}")
    if not isinstance(stratify, bool):
        raise LearnError(f"split: stratify is True or False, not {stratify!r}; it is for classes of the label")
    if stratify and by is not None:
        raise LearnError("split: give by or stratify: groups and times stay together, whatever their classes")
    if after is not None and by is None:
        raise LearnError("split: after needs the column of the time, such as by='o.day'")
